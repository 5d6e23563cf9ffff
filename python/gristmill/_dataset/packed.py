"""`PackedDataset`: shards of text as a Grain dataset of packed rows."""

import copy
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

import grain
import numpy as np

from gristmill import _core
from gristmill._dataset.grain_compat import SourceDataset
from gristmill._dataset.iterator import Element, PackedDatasetIterator
from gristmill._shards.manifest import Manifest
from gristmill._spec.lanes import lane_count, lanes_of_host
from gristmill._spec.settings import Settings
from gristmill._spec.sharding import lanes_of_process
from gristmill._tokenizer import special_tokens
from gristmill._tokenizer.encoder import Encoder, as_encoder, check_is_function, special_token_id
from gristmill._util import checks
from gristmill._util.local_files import Pathish, absolute_path
from gristmill._util.text import counted
from gristmill.errors import ArgumentError, MissingExtraError

_LARGEST_LENGTH = 2**24
_LARGEST_BATCH = 2**20
# Many consumers count the places of an array in 32 bits.
_MOST_PLACES = 2**31
# Bounds what a window of very short documents holds; the core bounds the bytes of longer ones.
_LARGEST_WINDOW = 2**20


class PackedDataset(SourceDataset, grain.IterDataset[Element]):
    """Text of gzipped JSONL shards, tokenized and packed into rows, as a `grain.IterDataset`.

    The global sequence of batches is a function of the shards, the tokenizer and the arguments alone: threads,
    prefetching, hosts and restarts do not change it.

    Elements are dicts of int32 arrays: `[rows of this host, sequence_length]` with `batch_size`,
    `[sequence_length]` without. A segment is what a row holds of one document: numbered from 1 in each row, 0 is
    padding; its positions start from 0. The layouts are named after what reads them:

    - `maxtext`: `inputs`, `inputs_segmentation`, `inputs_position`, `targets`, `targets_segmentation`,
      `targets_position`. `targets[i]` is the token that follows `inputs[i]` in its document, also across the
      end of the row; where none follows, or truncation has cut it away, `targets` and
      `targets_segmentation` are 0. MaxText's own shift differs there, see `boundary_targets`.
    - `grain`: `tokens`, `tokens_segment_ids`, `tokens_positions`.
    - `hf`: `input_ids`, `attention_mask`, `position_ids`, `labels`. Labels are not shifted. They are -100 on
      padding, on the first token that is given of a document, and wherever else the token before it in the row
      is not the one before it in its document. Models of `transformers` keep packed documents apart by
      `position_ids` if they get no `attention_mask`: leave it out with `concat` and `best_fit`.

    With `provenance`, one more array says where each row's tokens come from: `provenance`, int32
    `[rows, entries, 4]` (`[entries, 4]` without `batch_size`). An entry stands for tokens that follow one another
    in the row and in their document: `shard` (an index into `manifest.paths`), `record` (the 0-based line in it),
    `offset` (tokens of the document before these, BOS counted) and `length` (how many they are). There is one for
    each segment, in order, and with `truncation="middle"` one more for what lies after the cut; the rest is zeros.
    Segments for which a row has no entry left are not listed: then the lengths do not add up to its tokens. So the
    token at place `i` of a row is found by

        shard, record, offset, length = row["provenance"].T
        entry = np.searchsorted(length.cumsum(), i, side="right")
        place = dataset.manifest.paths[shard[entry]], record[entry], offset[entry] + i - length[:entry].sum()

    Args:
      shards: a glob, a path, a list of either, or a `Manifest`. A file that is named twice is read once.
      tokenizer: the path of a tokenizer.json or of its folder, or an `Encoder`.
      text_field: key of the record that holds the text.
      sequence_length: tokens in a row.
      batch_size: rows of the global batch, over all hosts. None: single rows, lane after lane.
      lanes: number of ordered streams that the shards are dealt to. None: the largest power of two that
        divides `batch_size` and is at most the number of shards and 64; so an odd `batch_size` gives one lane. It
        is part of the stream, and the largest number of hosts. Each lane is read and packed by one thread at a time.
      packing: `"concat"`: documents are joined, and cut every `sequence_length` tokens. `"best_fit"`:
        documents that fit into a row are never cut; of longer ones full rows are cut first, and all the rest of
        a window is placed, longest first, each in the fullest row in which it fits. `"pad"`: one document a row.
      fit_window: documents that `best_fit` places together, fewer where they hold 16 MiB of text. With a `seed`,
        at most `shuffle_window`.
      truncation: what `pad` keeps of a document longer than a row, BOS and EOS included: `"right"` its start,
        `"left"` its end, `"middle"` its first and its last half row; `"split"` all of it, in several rows;
        `"error"` stops the run there.
      max_segments: segments in a row at most; the rest of such a row is padding. None: any number.
      layout: `"maxtext"`, `"grain"` or `"hf"`, see above.
      boundary_targets: whether a document's last token has the next document's first token as its target, as
        MaxText's shift of whole rows makes it; in `best_fit` the next one of the same row, in `pad` none. By
        default nothing is trained across documents. Only `maxtext` has targets.
      eos: token or id put after each document. None: the one named beside the tokenizer. False: none.
      bos: token or id put before each document. True: the one named beside the tokenizer. False: none.
      seed: None: no shuffling. Else the shards are permuted in each epoch, and documents within windows.
      shuffle_window: documents that are permuted together.
      epochs: how often the shards are read. None: for ever.
      shard_index: which of `shard_count` hosts this is.
      shard_count: number of hosts; it must divide `lanes`. With finite `epochs` hosts end at different steps, each with
        its own last lane.
      on_error: `"raise"`: stop at a record that cannot be used. `"quarantine"`: list it and go on.
      max_error_rate: share of a lane's records, 0 to 1, that may be quarantined, and, of as many shards as an average
        lane has, that may end before their end; beyond either the run stops. One such shard in each epoch is borne
        at any rate but 0, and anything at 1.
      quarantine_file: path of a file to which every quarantined record is appended as a line of JSON: `shard`,
        `record`, `byte`, `reason`, `epoch`, `lane`, its `number` among the lane's entries, and `stream`, which names
        the run by its fingerprint. A restored run goes on in the same file and lists nothing twice of the first 2**20
        lines that stand there after its place; what is beyond may come twice, which `sort -u` removes. Each host needs
        its own; `sort -u` joins them. A relative path starts from the working folder of this call.
      max_document_bytes: longest accepted line of a shard, inflated.
      threads: worker threads. None: as many as this process has cores.
      prefetch: batches that are prepared ahead.
      verify: share of the documents, 0 to 1, whose ids are compared with those of the `tokenizers` library while
        running; the first difference is a `ShardError`. Documents of more than a MiB are not compared: the library
        takes a hundred times their size in memory. Where the encoder's engine is the library, there is nothing to
        compare.
      provenance: whether rows carry where they come from, see above; a number is that of the entries of a row.
        True: `max_segments`, or else one entry for 16 tokens and at least 16; with `packing="pad"` all that a row
        can have. It changes nothing else in the stream: states fit with and without it.
      on_stats: called with `PackedDatasetIterator.stats()` every ten seconds of iterating, at the end and at
        `close`: it reaches also those whose iterator is hidden by `.batch()` or `.map()`. What it raises comes out of
        that `next`, which loses nothing, or out of `close`, which closes all the same; the iterator then calls it no
        more. At the same times, newly quarantined records are logged as warnings of the logger `gristmill`.

    Raises:
      ArgumentError: an argument's value is not allowed.
      ArgumentTypeError: an argument is of the wrong type.
      MissingShardError: a shard does not exist, or a glob matches nothing.
      TokenizerError: the tokenizer cannot be loaded.
    """

    def __init__(
        self,
        shards: "Pathish | Iterable[Pathish] | Manifest",
        *,
        tokenizer: "Encoder | Pathish",
        text_field: str = "text",
        sequence_length: int = 1024,
        batch_size: int | None = None,
        lanes: int | None = None,
        packing: Literal["concat", "best_fit", "pad"] = "concat",
        fit_window: int = 1024,
        truncation: Literal["right", "left", "middle", "error", "split"] = "right",
        max_segments: int | None = None,
        layout: Literal["maxtext", "grain", "hf"] = "maxtext",
        boundary_targets: bool = False,
        eos: "str | int | bool | None" = None,
        bos: "str | int | bool" = False,
        seed: int | None = None,
        shuffle_window: int = 1024,
        epochs: int | None = 1,
        shard_index: int = 0,
        shard_count: int = 1,
        on_error: Literal["raise", "quarantine"] = "raise",
        max_error_rate: float = 0.01,
        quarantine_file: "Pathish | None" = None,
        max_document_bytes: int = 2**27,
        threads: int | None = None,
        prefetch: int = 4,
        verify: float = 0.0,
        provenance: bool | int = False,
        on_stats: "Callable[[dict[str, Any]], None] | None" = None,
    ) -> None:
        super().__init__()
        length = checks.integer("sequence_length", sequence_length, 1, _LARGEST_LENGTH)
        rows = checks.optional_integer("batch_size", batch_size, 1, _LARGEST_BATCH)
        if (rows or 1) * length > _MOST_PLACES:
            raise ArgumentError(
                f"batch_size={rows}: a batch of rows of sequence_length={length} would have more than {_MOST_PLACES} "
                "places"
            )
        if on_stats is not None and not callable(on_stats):
            raise checks.wrong_type("on_stats", on_stats, "a function that takes a dict, or None")
        # Before files are looked at.
        given_eos, given_bos = special_tokens.check_type("eos", eos), special_tokens.check_type("bos", bos)
        checked: dict[str, Any] = {
            "text_field": checks.text("text_field", text_field),
            "packing": checks.choice("packing", packing, _core.PACKINGS),
            "fit_window": checks.integer("fit_window", fit_window, 1, _LARGEST_WINDOW),
            "truncation": checks.choice("truncation", truncation, _core.TRUNCATIONS),
            "max_segments": checks.optional_integer("max_segments", max_segments, 1, _LARGEST_LENGTH),
            "layout": checks.choice("layout", layout, list(_core.LAYOUTS)),
            # Elsewhere it changes nothing.
            "boundary_targets": checks.boolean("boundary_targets", boundary_targets)
            and layout == "maxtext"
            and packing != "pad",
            "seed": checks.optional_integer("seed", seed, 0, 2**64 - 1),
            "shuffle_window": checks.integer("shuffle_window", shuffle_window, 1, _LARGEST_WINDOW),
            "epochs": checks.optional_integer("epochs", epochs, 1, 2**32),
            "on_error": checks.choice("on_error", on_error, _core.ON_ERRORS),
            "max_error_rate": checks.fraction("max_error_rate", max_error_rate),
            "quarantine_file": _quarantine_file(quarantine_file, on_error),
            "max_document_bytes": checks.integer("max_document_bytes", max_document_bytes, 1, 2**63 - 1),
            "threads": checks.optional_integer("threads", threads, 1, 1024),
            "prefetch": checks.integer("prefetch", prefetch, 1, 1024),
            "verify": checks.fraction("verify", verify),
        }
        entries = _provenance_entries(provenance, length, packing, truncation, checked["max_segments"])
        if (rows or 1) * entries * _core.PROVENANCE_NUMBERS > _MOST_PLACES:
            raise ArgumentError(
                f"provenance={provenance!r}: a batch of {rows} rows would have more than {_MOST_PLACES} numbers of it; "
                "give fewer entries of a row"
            )
        manifest = Manifest.find(shards)
        all_lanes = lane_count(lanes, rows, len(manifest))
        own_lanes = lanes_of_host(all_lanes, shard_index, shard_count)
        encoder = as_encoder(tokenizer)
        check_is_function(encoder)
        self._settings = Settings(
            manifest=manifest,
            encoder=encoder,
            sequence_length=length,
            batch_size=rows,
            lanes=all_lanes,
            own_lanes=own_lanes,
            eos=special_token_id(encoder, "eos", given_eos),
            bos=special_token_id(encoder, "bos", given_bos),
            provenance_entries=entries,
            on_stats=on_stats,
            **checked,
        )

    @property
    def lanes(self) -> int:
        """Number of lanes of the stream, over all hosts."""
        return self._settings.lanes

    @property
    def manifest(self) -> Manifest:
        """The shards that are read."""
        return self._settings.manifest

    @property
    def encoder(self) -> Encoder:
        """The tokenizer."""
        return self._settings.encoder

    @property
    def fingerprint(self) -> str:
        """What defines the stream, readable: shards, tokenizer, and every argument that changes it."""
        return self._settings.fingerprint

    def plan(self, epoch: int = 0) -> list[list[str]]:
        """The shards of each lane in an epoch, in the order in which it reads them.

        Raises:
          ArgumentError: `epoch` is below 0 or has more than 64 bits.
          ArgumentTypeError: `epoch` is no integer.
        """
        epoch = checks.integer("epoch", epoch, 0, 2**64 - 1)
        dealt = _core.deal(self.manifest.sizes, self.lanes, self._settings.seed, epoch)
        return [[self.manifest.paths[shard] for shard in share] for share in dealt]

    def for_sharding(self, sharding: Any) -> "PackedDataset":
        """The same stream, of which this process loads the lanes of the rows that its devices hold.

        Processes whose devices hold the same rows load the same lanes. The fingerprint stays as it is, and
        states fit any sharding.

        Args:
          sharding: a `jax.sharding.Sharding` of the global batch `[batch_size, sequence_length]`. Rows are
            always loaded whole, also where it splits the sequence axis.

        Returns:
          A copy of the dataset. Its batches hold the rows of this process, in global order. With finite `epochs` it
          ends with the last of these lanes: processes end at different steps, unless `global_batches` loads them.

        Raises:
          MissingExtraError: JAX is not installed.
          ArgumentError: there is no `batch_size`, two processes share only some of their rows, or the rows of
            a process are not whole lanes; then it names the `lanes` that would do.
          ArgumentTypeError: `sharding` is none.
        """
        try:
            import jax
        except ImportError as error:
            raise MissingExtraError("a sharding needs JAX: pip install 'gristmill[jax]'") from error

        plan = self._settings.lanes_of_processes(sharding)
        return self._with(own_lanes=lanes_of_process(plan, jax.process_index()))

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keeps every n-th of the own lanes: Grain calls this in the workers of `mp_prefetch`.

        Raises:
          ArgumentError: the dataset has a `batch_size`, whose batches cannot be cut into those of workers.
        """
        settings = self._settings
        if settings.batch_size is not None:
            raise ArgumentError(
                f"batch_size={settings.batch_size}: mp_prefetch with several workers needs single rows; leave "
                "batch_size out, and put .batch() after .mp_prefetch()"
            )
        del sequential_slice  # whole lanes either way
        self._settings = replace(settings, own_lanes=settings.own_lanes[sl])

    def _spec(self) -> Any:
        shapes = self._settings.shapes.items()
        return {name: grain.experimental.ShapeDtypeStruct(shape, np.int32) for name, shape in shapes}

    def __iter__(self) -> PackedDatasetIterator:
        return PackedDatasetIterator(self._settings)

    def __repr__(self) -> str:
        settings = self._settings
        return (
            f"<PackedDataset of {counted(len(settings.manifest), 'shard')} in {counted(settings.lanes, 'lane')}, "
            f"batch_size={settings.batch_size}, sequence_length={settings.sequence_length}>"
        )

    def _with(self, **changes: Any) -> "PackedDataset":
        """A copy that has other settings."""
        dataset = copy.copy(self)
        dataset._settings = replace(self._settings, **changes)
        return dataset


def _provenance_entries(
    provenance: bool | int, length: int, packing: str, truncation: str, max_segments: int | None
) -> int:
    """The entries of a row's provenance that the argument means; 0: the rows have none."""
    if not isinstance(provenance, (bool, np.bool_)):
        return checks.integer("provenance", provenance, 1, length, ", or True or False")
    if not provenance:
        return 0
    if packing == "pad":
        return 2 if truncation == "middle" else 1
    return min(max_segments or max(16, length // 16), length)


def _quarantine_file(value: "Pathish | None", on_error: str) -> str | None:
    if value is None:
        return None
    path = checks.path("quarantine_file", value)
    if on_error != "quarantine":
        raise ArgumentError(f"quarantine_file={path!r}: nothing is listed with on_error='raise'; use 'quarantine'")
    # Path.is_dir() raises for names that are too long, and for what lies in closed folders.
    absolute = absolute_path("quarantine_file", path)  # iterators may be made in another working folder
    if not os.path.isdir(os.path.dirname(absolute)):  # noqa: PTH112, PTH120
        raise ArgumentError(f"quarantine_file={path!r}: its folder does not exist")
    if os.path.isdir(path):  # noqa: PTH112
        raise ArgumentError(f"quarantine_file={path!r}: expected a file, found a folder")
    return absolute
