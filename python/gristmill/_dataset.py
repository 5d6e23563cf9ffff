"""`PackedDataset`: shards of text as a Grain dataset of packed rows."""

import copy
import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import grain
import numpy as np
import numpy.typing as npt

from gristmill import _arguments, _core, _lanes, _sharding, _state, _state_files
from gristmill._encoder import Encoder, Pathish, as_encoder
from gristmill._errors import ArgumentError, GristmillError, StateError
from gristmill._manifest import Manifest

Element: TypeAlias = "dict[str, npt.NDArray[np.int32]]"

_PACKINGS = ("concat", "best_fit", "pad")
_TRUNCATIONS = ("right", "left", "middle", "error", "split")
_LAYOUTS = {
    "maxtext": (
        "inputs", "inputs_segmentation", "inputs_position", "targets", "targets_segmentation", "targets_position",
    ),
    "grain": ("tokens", "tokens_segment_ids", "tokens_positions"),
    "hf": ("input_ids", "attention_mask", "position_ids", "labels"),
}  # fmt: skip
_LOG = logging.getLogger("gristmill")
_REPORT_SECONDS = 10.0
# A batch's buffer is addressed with 32-bit counts of rows and tokens in many consumers.
_LARGEST_LENGTH = 2**24
_LARGEST_BATCH = 2**20
PROVENANCE = "provenance"
_PROVENANCE_NUMBERS = 4
# Bounds what a window of very short documents holds; the core bounds the bytes of longer ones.
_LARGEST_WINDOW = 2**20


class _Source:
    """A start of a Grain pipeline."""

    @property
    def _parent(self) -> Any:
        # Grain fails an assertion here, and MaxText's MultiHostDataLoadIterator.close() asks with hasattr.
        raise AttributeError("a source has no parent")


class PackedDatasetIterator(_Source, _state_files.LoadsAnyProcessCount, grain.DatasetIterator[Element]):
    """Iterates over a `PackedDataset`. Its threads start with the first `next` or `start_prefetch`."""

    def __init__(self, dataset: "PackedDataset") -> None:
        super().__init__()
        self._dataset = dataset
        self._pipeline = _core.Pipeline(dataset._encoder._core, dataset._pipeline_arguments())
        self._threads_set = False
        self._reporter = _Reporter(self, dataset._on_stats)

    def __next__(self) -> Element:
        """The next element.

        Raises:
          StopIteration: all epochs of the lanes of this iterator have been given.
          ShardError: a record cannot be used. What lies before it has been given; each further call raises
            the same error, and the state stays behind the last element.
          ValueError: the iterator was closed.
        """
        self._assert_not_closed()
        self._set_threads()
        self._reporter.tick()
        with self._stats.record_self_time():
            element = self._pipeline.next()
            if element is None:
                self._reporter.report()
                raise StopIteration
            return self._stats.record_output_spec(element)

    def start_prefetch(self) -> None:
        """Starts the threads, which fill the ring while the caller does something else."""
        self._assert_not_closed()
        self._set_threads()
        self._pipeline.start()

    def get_state(self) -> _state.State:
        """Where the stream stands behind the last element given: a fresh dict of integers and strings."""
        self._pipeline.sync_quarantine_file()
        step, row, lanes = self._pipeline.state()
        return {
            "version": _state.VERSION,
            "fingerprint": self._dataset.fingerprint,
            "step": step,
            "row": row,
            "lanes": lanes,
        }

    def set_state(self, state: _state.State) -> None:
        """Goes to a saved place; the next element is the one that followed there.

        Args:
          state: a state of this dataset that holds at least the lanes of this iterator: its own, one of
            an iterator with more lanes, or one made by `merge_states`.

        Raises:
          StateError: the state belongs to another stream, lacks lanes, or is damaged. What only the
            shards can tell is found by the next `next`.
        """
        self._assert_not_closed()
        checked = _state.check(state)
        if checked["fingerprint"] != self._dataset.fingerprint:
            raise StateError(
                "the state was saved by another dataset: "
                + _state.differences(checked["fingerprint"], self._dataset.fingerprint)
                + ". Use the same shards, tokenizer and arguments as the run that saved it; to add shards, finish the "
                "epoch on the old ones and start anew on the new"
            )
        own = self._dataset._own_lanes
        missing = [lane for lane in own if str(lane) not in checked["lanes"]]
        if missing:
            raise StateError(
                f"the state holds the lanes {', '.join(checked['lanes']) or '(none)'}, and this iterator also needs "
                f"{', '.join(map(str, missing))}: join the states of all hosts with gristmill.merge_states"
            )
        if checked["row"] and len(checked["lanes"]) != len(own):
            raise StateError(
                "the state was saved between the rows of a step, and restores only onto the same lanes: save after a "
                "whole step, or use batch_size"
            )
        self._pipeline.restore(checked["step"], checked["row"], [list(checked["lanes"][str(lane)]) for lane in own])
        self._reporter.restored()

    def close(self) -> None:
        """Stops and joins the threads. Elements already given stay valid."""
        if not self._closed:
            self._reporter.report()
            self._pipeline.close()
        super().close()

    def get_shard_states(self) -> list[dict[str, Any]]:
        """The state of each own lane by itself, as Grain's elastic iterators save them.

        Returns:
          A list with a dict for each lane: `exhausted`, whether it has given all its epochs, and `state`.
        """
        state = self.get_state()
        epochs = self._dataset._epochs
        return [
            {"exhausted": cursor[0] == epochs, "state": {**state, "lanes": {lane: cursor}}}
            for lane, cursor in state["lanes"].items()
        ]

    def set_shard_states(self, shard_states: Sequence[Mapping[str, Any]]) -> None:
        """Goes to a place saved by `get_shard_states`, of this or of several iterators.

        Args:
          shard_states: those of at least the own lanes, in any order.

        Raises:
          StateError: as for `set_state` and `merge_states`.
        """
        if not shard_states and not self._dataset._own_lanes:
            return
        self.set_state(_state.merge_lanes(entry["state"] for entry in shard_states))

    def stats(self) -> dict[str, Any]:
        """Figures of the lanes of this iterator, up to the last element given.

        Returns:
          `documents` whose last token was given, `tokens` (BOS and EOS included), `text_bytes` of UTF-8,
          `rows`, `batches`, `padding_tokens`, `dropped_tokens`, `quarantined` records and `lost_shards`, the
          shards that could not be read to their end, counted since the start of the stream and kept through
          restarts; and of this iterator: `wait_seconds` spent waiting in `next`, `ring_ready` batches that wait
          to be taken, and `busy_seconds`, the time of the threads by stage.
        """
        return self._pipeline.stats()

    def quarantine(self) -> list[dict[str, Any]]:
        """The records left out since this iterator was made or restored, as of the last element given.

        Returns:
          The newest of them, each with `shard`, `record`, `byte` and `reason`: at most ten thousand, and of those
          of one lane within one step at most a thousand. `quarantine_file` lists all.
        """
        return self._pipeline.quarantine()

    def _padding(self) -> Element:
        """Behind the end, rows of padding for a step of which other hosts still have rows."""
        element = self._pipeline.padding()
        if element is None:
            raise GristmillError("padding was asked for before the end")
        return element

    def _set_threads(self) -> None:
        # Known only now: under mp_prefetch the context is filled in after the iterator is made.
        if not self._threads_set:
            processes = max(1, self._ctx.mp_context.process_count)
            threads = self._dataset._threads or max(1, _core.usable_cores() // processes)
            self._pipeline.set_threads(threads)
            self._threads_set = True


class _Reporter:
    """Tells what is happening to those who cannot reach the iterator, which Grain's transformations hide."""

    # Bound here: while the interpreter ends, Grain still closes iterators, and this module's names are gone.
    _is_ending = staticmethod(sys.is_finalizing)

    def __init__(self, iterator: PackedDatasetIterator, on_stats: "Callable[[dict[str, Any]], None] | None") -> None:
        self._pipeline = iterator._pipeline
        self._on_stats = on_stats
        self._due = time.monotonic() + _REPORT_SECONDS
        self.restored()

    def restored(self) -> None:
        """Records left out before a restored place were told of by the run that saved it."""
        self._quarantined = self._pipeline.stats()["quarantined"]

    def tick(self) -> None:
        if time.monotonic() >= self._due:
            self.report()

    def report(self) -> None:
        if self._is_ending():
            return
        self._due = time.monotonic() + _REPORT_SECONDS
        stats = self._pipeline.stats()
        all_now = stats["quarantined"]
        new, self._quarantined = all_now - self._quarantined, all_now
        if new:
            entries = self._pipeline.quarantine()
            first = entries[-min(new, len(entries))]
            _LOG.warning(
                "%d records were left out, %d in all; the first of them: %s: record %s, byte %s: %s",
                new, all_now, first["shard"], first["record"], first["byte"], first["reason"],
            )  # fmt: skip
        if self._on_stats is not None:
            self._on_stats(stats)


class PackedDataset(_Source, grain.IterDataset[Element]):
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
      padding, on a document's first token, and wherever else the token before it in the row is not the one
      before it in its document.

    With `provenance`, one more array says where each row's tokens come from: `provenance`, int32
    `[rows, entries, 4]` (`[entries, 4]` without `batch_size`). An entry stands for tokens that follow one another
    in the row and in their document: `shard` (an index into `manifest.paths`), `record` (the 0-based line in it),
    `offset` (tokens of the document before these, BOS counted) and `length` (how many they are). There is one for
    each segment, in order, and with `truncation="middle"` one more for what lies behind the cut; the rest is zeros.
    Segments for which a row has no entry left are not listed: then the lengths do not add up to its tokens. So the
    token at place `i` of a row is found by

        shard, record, offset, length = row["provenance"].T
        entry = np.searchsorted(length.cumsum(), i, side="right")
        place = dataset.manifest.paths[shard[entry]], record[entry], offset[entry] + i - length[:entry].sum()

    Args:
      shards: a glob, a path, a list of either, or a `Manifest`.
      tokenizer: the path of a tokenizer.json, or an `Encoder`.
      text_field: key of the record that holds the text.
      sequence_length: tokens in a row.
      batch_size: rows of the global batch, over all hosts. None: single rows, lane after lane.
      lanes: number of ordered streams that the shards are dealt to. None: the largest power of two that
        divides `batch_size` and is at most the number of shards and 64. It is part of the stream, and the
        largest number of hosts.
      packing: `"concat"`: documents are joined, and cut every `sequence_length` tokens. `"best_fit"`:
        documents that fit into a row are never cut; of longer ones full rows are cut first, and all the rest of
        a window is placed, longest first, each in the fullest row in which it fits. `"pad"`: one document a row.
      fit_window: documents that `best_fit` places together. With a `seed`, at most `shuffle_window`.
      truncation: what `pad` keeps of a document longer than a row, BOS and EOS included: `"right"` its start,
        `"left"` its end, `"middle"` its first and its last half row; `"split"` all of it, in several rows;
        `"error"` stops the run there.
      max_segments: segments in a row at most; the rest of such a row is padding. None: any number.
      layout: `"maxtext"`, `"grain"` or `"hf"`, see above.
      boundary_targets: whether a document's last token has the next document's first token as its target, as
        MaxText's shift of whole rows makes it; in `best_fit` the next one of the same row, in `pad` none. By
        default nothing is trained across documents.
      eos: token or id put behind each document. None: the one named beside the tokenizer. False: none.
      bos: token or id put before each document. True: the one named beside the tokenizer. False: none.
      seed: None: no shuffling. Else the shards are permuted in each epoch, and documents within windows.
      shuffle_window: documents that are permuted together.
      epochs: how often the shards are read. None: for ever.
      shard_index: which of `shard_count` hosts this is.
      shard_count: number of hosts; it must divide `lanes`.
      on_error: `"raise"`: stop at a record that cannot be used. `"quarantine"`: list it and go on.
      max_error_rate: share of a lane's records, 0 to 1, that may be quarantined, and of its shards that may end
        before their end; beyond either the run stops. One such shard in each epoch is borne at any rate but 0.
      quarantine_file: path of a file to which every quarantined record is appended as a line of JSON: `shard`,
        `record`, `byte`, `reason`, `epoch`, `lane`, its `number` among the lane's entries, and `stream`, which names
        the run by its fingerprint. A restored run goes on in the same file and lists nothing twice. Each host
        needs its own; `sort -u` joins them.
      max_document_bytes: longest accepted line of a shard, inflated.
      threads: worker threads. None: as many as this process has cores.
      prefetch: batches that are prepared ahead.
      verify: share of the documents, 0 to 1, whose ids are compared with those of the `tokenizers` library while
        running; the first difference is a `ShardError`.
      provenance: whether rows carry where they come from, see above; a number is that of the entries of a row.
        True: `max_segments`, or else one entry for 16 tokens and at least 16; with `packing="pad"` all that a row
        can have. It changes nothing else in the stream: states fit with and without it.
      on_stats: called with `PackedDatasetIterator.stats()` every ten seconds of iterating, at the end and at
        `close`: it reaches also those whose iterator is hidden by `.batch()` or `.map()`. At the same times,
        newly quarantined records are logged as warnings of the logger `gristmill`.

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
        packing: str = "concat",
        fit_window: int = 1024,
        truncation: str = "right",
        max_segments: int | None = None,
        layout: str = "maxtext",
        boundary_targets: bool = False,
        eos: "str | int | bool | None" = None,
        bos: "str | int | bool" = False,
        seed: int | None = None,
        shuffle_window: int = 1024,
        epochs: int | None = 1,
        shard_index: int = 0,
        shard_count: int = 1,
        on_error: str = "raise",
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
        self._text_field = _arguments.text("text_field", text_field)
        self._sequence_length = _arguments.integer("sequence_length", sequence_length, 1, _LARGEST_LENGTH)
        self._batch_size = _arguments.optional_integer("batch_size", batch_size, 1, _LARGEST_BATCH)
        self._packing = _arguments.choice("packing", packing, _PACKINGS)
        self._fit_window = _arguments.integer("fit_window", fit_window, 1, _LARGEST_WINDOW)
        self._truncation = _arguments.choice("truncation", truncation, _TRUNCATIONS)
        self._max_segments = _arguments.optional_integer("max_segments", max_segments, 1, _LARGEST_LENGTH)
        self._layout = _arguments.choice("layout", layout, list(_LAYOUTS))
        self._boundary_targets = _arguments.boolean("boundary_targets", boundary_targets)
        self._seed = _arguments.optional_integer("seed", seed, 0, 2**64 - 1)
        self._shuffle_window = _arguments.integer("shuffle_window", shuffle_window, 1, _LARGEST_WINDOW)
        self._epochs = _arguments.optional_integer("epochs", epochs, 1, 2**32)
        self._on_error = _arguments.choice("on_error", on_error, ["raise", "quarantine"])
        self._max_error_rate = _arguments.fraction("max_error_rate", max_error_rate)
        self._quarantine_file = _quarantine_file(quarantine_file, self._on_error)
        self._max_document_bytes = _arguments.integer("max_document_bytes", max_document_bytes, 1, 2**63 - 1)
        self._threads = _arguments.optional_integer("threads", threads, 1, 1024)
        self._prefetch = _arguments.integer("prefetch", prefetch, 1, 1024)
        self._verify = _arguments.fraction("verify", verify)
        self._entries = self._provenance_entries(provenance)
        if on_stats is not None and not callable(on_stats):
            raise _arguments.wrong_type("on_stats", on_stats, "a function that takes a dict, or None")
        self._on_stats = on_stats
        if bos is None:
            raise _arguments.wrong_type("bos", bos, "a token, an id, True for the tokenizer's own, or False for none")
        self._manifest = Manifest.find(shards)
        self._lanes = _lanes.count(lanes, self._batch_size, len(self._manifest))
        self._own_lanes = _lanes.of_host(self._lanes, shard_index, shard_count)
        self._encoder = as_encoder(tokenizer)
        self._eos = self._encoder.special_token_id("eos", eos)
        self._bos = self._encoder.special_token_id("bos", bos)
        self._fingerprint = self._make_fingerprint()

    @property
    def lanes(self) -> int:
        """Number of lanes of the stream, over all hosts."""
        return self._lanes

    @property
    def manifest(self) -> Manifest:
        """The shards that are read."""
        return self._manifest

    @property
    def encoder(self) -> Encoder:
        """The tokenizer."""
        return self._encoder

    @property
    def fingerprint(self) -> str:
        """What defines the stream, readable: shards, tokenizer, and every argument that changes it."""
        return self._fingerprint

    def plan(self, epoch: int = 0) -> list[list[str]]:
        """The shards of each lane in an epoch, in the order in which it reads them."""
        epoch = _arguments.integer("epoch", epoch, 0)
        dealt = _core.deal(self._manifest.sizes, self._lanes, self._seed, epoch)
        return [[self._manifest.paths[shard] for shard in share] for share in dealt]

    def for_sharding(self, sharding: Any) -> "PackedDataset":
        """The same stream, of which this process loads the lanes of the rows that its devices hold.

        Processes whose devices hold the same rows load the same lanes. The fingerprint stays as it is, and
        states fit any sharding.

        Args:
          sharding: a `jax.sharding.Sharding` of the global batch `[batch_size, sequence_length]`. Rows are
            always loaded whole, also where it splits the sequence axis.

        Returns:
          A copy of the dataset. Its batches hold the rows of this process, in global order.

        Raises:
          ArgumentError: there is no `batch_size`, two processes share only some of their rows, or the rows of
            a process are not whole lanes; then it names the `lanes` that would do.
        """
        import jax

        own = _sharding.lanes_of_process(self._lanes_of_processes(sharding), jax.process_index())
        dataset = copy.copy(self)
        dataset._own_lanes = own
        return dataset

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keeps every n-th of the own lanes: Grain calls this in the workers of `mp_prefetch`.

        Raises:
          ArgumentError: the dataset has a `batch_size`, whose batches cannot be cut into those of workers.
        """
        if self._batch_size is not None:
            raise ArgumentError(
                f"batch_size={self._batch_size}: mp_prefetch with several workers needs single rows; leave batch_size "
                "out, and put .batch() after .mp_prefetch()"
            )
        del sequential_slice  # whole lanes either way
        self._own_lanes = self._own_lanes[sl]

    @property
    def _element_spec(self) -> Any:
        rows = () if self._batch_size is None else (len(self._own_lanes) * self._rows_per_lane,)
        shapes = dict.fromkeys(_LAYOUTS[self._layout], (*rows, self._sequence_length))
        if self._entries:
            shapes[PROVENANCE] = (*rows, self._entries, _PROVENANCE_NUMBERS)
        return {name: grain.experimental.ShapeDtypeStruct(shape, np.int32) for name, shape in shapes.items()}

    def __iter__(self) -> PackedDatasetIterator:
        return PackedDatasetIterator(self)

    def __repr__(self) -> str:
        return (
            f"<PackedDataset of {len(self._manifest)} shards in {self._lanes} lanes, batch_size={self._batch_size}, "
            f"sequence_length={self._sequence_length}>"
        )

    def _lanes_of_processes(self, sharding: Any) -> dict[int, list[int]]:
        if self._batch_size is None:
            raise ArgumentError(
                "batch_size=None: a sharding divides the rows of a global batch; give the dataset its batch_size"
            )
        return _sharding.lanes_of_processes(
            sharding,
            batch_size=self._batch_size,
            sequence_length=self._sequence_length,
            lanes=self._lanes,
            shards=len(self._manifest),
        )

    @property
    def _rows_per_lane(self) -> int:
        return 1 if self._batch_size is None else self._batch_size // self._lanes

    def _provenance_entries(self, provenance: bool | int) -> int:
        if not isinstance(provenance, bool):
            return _arguments.integer("provenance", provenance, 1, self._sequence_length)
        if not provenance:
            return 0
        if self._packing == "pad":
            return 2 if self._truncation == "middle" else 1
        return min(self._max_segments or max(16, self._sequence_length // 16), self._sequence_length)

    def _make_fingerprint(self) -> str:
        parts = {
            "manifest": self._manifest.fingerprint,
            "tokenizer": self._encoder.fingerprint,
            "text_field": self._text_field,
            "sequence_length": self._sequence_length,
            "batch_size": self._batch_size,
            "lanes": self._lanes,
            "packing": self._packing,
            "fit_window": self._fit_window if self._packing == "best_fit" else None,
            "truncation": self._truncation if self._packing == "pad" else None,
            "max_segments": self._max_segments,
            "layout": self._layout,
            "boundary_targets": self._boundary_targets,
            "eos": self._eos,
            "bos": self._bos,
            "seed": self._seed,
            "shuffle_window": None if self._seed is None else self._shuffle_window,
            "epochs": self._epochs,
            "on_error": self._on_error,
            "max_error_rate": None if self._on_error == "raise" else self._max_error_rate,
            "max_document_bytes": self._max_document_bytes,
        }
        return " ".join(f"{name}={quote(str(value), safe='')}" for name, value in parts.items())

    def _pipeline_arguments(self) -> dict[str, Any]:
        return {
            "paths": [os.fspath(path) for path in self._manifest.paths],
            "sizes": self._manifest.sizes,
            "text_field": self._text_field,
            "sequence_length": self._sequence_length,
            "rows_per_lane": self._rows_per_lane,
            "lanes": self._lanes,
            "own_lanes": list(self._own_lanes),
            "packing": self._packing,
            "fit_window": self._fit_window,
            "truncation": self._truncation,
            "max_segments": self._max_segments,
            "layout": self._layout,
            "boundary_targets": self._boundary_targets,
            "eos": self._eos,
            "bos": self._bos,
            "seed": self._seed,
            "shuffle_window": self._shuffle_window,
            "epochs": self._epochs,
            "max_error_rate": self._max_error_rate if self._on_error == "quarantine" else None,
            "max_document_bytes": self._max_document_bytes,
            "prefetch": self._prefetch,
            "verify": self._verify,
            "single_rows": self._batch_size is None,
            "quarantine_file": self._quarantine_file and (self._quarantine_file, self._stream_name()),
            "provenance": self._entries,
        }

    def _stream_name(self) -> str:
        return hashlib.sha256(self._fingerprint.encode()).hexdigest()[:16]


def _quarantine_file(value: "Pathish | None", on_error: str) -> str | None:
    if value is None:
        return None
    path = _arguments.path("quarantine_file", value)
    if on_error != "quarantine":
        raise ArgumentError(f"quarantine_file={path!r}: nothing is listed with on_error='raise'; use 'quarantine'")
    if not Path(path).absolute().parent.is_dir():
        raise ArgumentError(f"quarantine_file={path!r}: its folder does not exist")
    return path
