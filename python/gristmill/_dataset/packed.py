"""`PackedDataset`: shards of text as a Grain dataset of packed rows."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from gristmill._dataset.intervals import dealt
from gristmill._dataset.iterator import Element, PackedDatasetIterator
from gristmill._dataset.spec import Spec, resolve
from gristmill._dataset.together import TogetherIterator
from gristmill._mixture import fingerprint as fingerprints_of_mixtures
from gristmill._mixture import mixture_file
from gristmill._mixture.mixture import Mixture, mixture_of
from gristmill._mixture.mixture_file import MixtureFile
from gristmill._sample.samples import Sample
from gristmill._shards.energon_folder import EnergonFolder
from gristmill._shards.manifest import Manifest
from gristmill._shards.pieces import Piece
from gristmill._shards.rows import RowList
from gristmill._shards.sidecars import Sidecar
from gristmill._spec import fingerprints
from gristmill._spec.arguments import ARGUMENTS
from gristmill._spec.cost import Cost
from gristmill._spec.edits import Edit
from gristmill._spec.sharding import lanes_of_process
from gristmill._spec.stages import Stage
from gristmill._state.states import State
from gristmill._tokenizer.encoder import Encoder, special_tokens_in_text_of
from gristmill._util import checks
from gristmill._util.grain_compat import IterDataset, SourceDataset
from gristmill._util.local_files import Pathish
from gristmill._util.text import counted
from gristmill.errors import ArgumentError, MissingExtraError


class PackedDataset(SourceDataset, IterDataset[Element]):
    """Text of JSONL, Parquet, Arrow or tar shards, tokenized and packed into rows, as a `grain.IterDataset`.

    The global sequence of batches is a function of the shards, the tokenizer and the arguments alone: threads,
    prefetching, hosts and restarts do not change it.

    Elements are dicts of int32 arrays: `[rows of this host, sequence_length]` with `batch_size`,
    `[sequence_length]` without. A segment is the tokens of one document in a row: segments are numbered from 1 in
    each row, 0 is padding, and positions count from 0 in each segment. The layouts are named after the library that
    reads them:

    - `maxtext`: `inputs`, `inputs_segmentation`, `inputs_position`, `targets`, `targets_segmentation`,
      `targets_position`. `targets[i]` is the token that follows `inputs[i]` in its document, also across the
      end of the row; if none follows, or truncation has dropped it, `targets` and
      `targets_segmentation` are 0. MaxText's own shift differs there, see `boundary_targets`.
    - `grain`: `tokens`, `tokens_segment_ids`, `tokens_positions`.
    - `hf`: `input_ids`, `attention_mask`, `position_ids`, `labels`. Labels are not shifted. They are -100 on
      padding, on the first token of a document, and wherever else the token before it in the row
      is not the one before it in its document. Models of `transformers` separate packed documents by
      `position_ids` if they get no `attention_mask`: so rows of several documents have none, see that argument.
    - `varlen`: 4 bytes a token, of which `expand` makes the arrays of `maxtext` or `grain` on the device. `tokens`;
      `seq_lens`, int32 `[rows, max_segments]`, the number of tokens of each segment and zeros behind the last;
      `next_token`, int32 `[rows]`, the token that follows the row's last one in its document, or -1; and of samples
      with a mask `targets_loss_mask`, uint8 `[rows, sequence_length]`, 1 where the next token of the document is there
      and trained on. Rows begin with their tokens, and the rest is padding. With `pad_segments_to` also
      `seq_lens_padded`, shaped as `seq_lens`, the elements from the start of each segment to where the next may begin.

    With `provenance`, the array `provenance` names the source of each row's tokens: int32
    `[rows, entries, 4]` (`[entries, 4]` without `batch_size`). An entry stands for tokens that are consecutive
    in the row and in their document: `shard` (an index into `pieces`), `record` (the 0-based line in it),
    `offset` (the number of tokens of the document before these, BOS included) and `length` (their number); where
    records become several samples, a fifth number is that of the `sample`. There is one entry for each segment, in
    order, and with `truncation="middle"` one more for the tokens after the cut; the rest is zeros. Segments for which a
    row has no entry left are not listed: then the lengths do not add up to its tokens. The source of token `i` of a
    row, counted from its first token, is

        shard, record, offset, length = row["provenance"].T
        entry = np.searchsorted(length.cumsum(), i, side="right")
        source = dataset.pieces[shard[entry]].name, record[entry], offset[entry] + i - length[:entry].sum()

    With a `sample` of `ImageText`, rows also hold `images` (uint8 or float32 `[rows, max_images, height, width, 3]`) or
    `image_patches` (`[rows, max_patches, values]`) and `image_grid_thw` (`[rows, max_images, 3]`); `image_masks`,
    `image_segmentation` and `image_position` (int32 `[rows, max_images]`): for each image 1, its segment, and the index
    of its first token. With `mrope`, `inputs_position` or its like is `[rows, 3, sequence_length]`.

    With `fields` of a sample, rows also hold the arrays that `Field` names.

    With a `Mixture`, each row is of one of its sources. Each source has the arguments of `Source` of its own, and they
    are not given here. The rows of a source are those that a dataset of it alone would have, one after another.

    Args:
      shards: a glob, a path, a list of either, a `Manifest`, an `EnergonFolder`, or a `Mixture`. A file that is named
        twice is read once.
      tokenizer: the path of a tokenizer.json or of its folder, or an `Encoder`. None: with `Tokens`, which need none.
      text_field: key of the record that holds the text.
      sample: what a record becomes. None, or `Text(text_field)`: a document, each token of which is trained on; with
        `Text(text_field, fim=FillInTheMiddle(...))` some are cut, with their middle behind the rest. `Chat`,
        `Instruction` or `Completion`: a conversation, or a prompt with its completion, with a mask of the tokens that
        are trained on: others have `targets_segmentation` 0 where they are targets (`maxtext`), the label -100 (`hf`),
        or 0 in the array `tokens_loss_mask` (`grain`) or `targets_loss_mask` (`varlen`), which only such samples have.
        A conversation gets neither EOS nor BOS but by its template. `Tokens`: ready ids. `ImageText`: images with a
        text or a conversation. "Document" stands for any sample in what follows.
      keep: a condition in Python's grammar on the keys of a record, such as `"score >= 3 and language == 'en'"`.
        Records for which it is not true are left out and counted as `filtered`; a comparison is false where a key is
        missing or null. docs/filters.md has the grammar. None: all records are kept.
      sidecars: files beside the shards whose records `keep` sees, by the names that it has for them:
        `{"signals": Sidecar("documents/", "quality_signals/", ".json.gz", ".signals.json.gz")}`. Record n of a shard's
        sidecar belongs to record n of the shard; one that is missing, shorter or longer, or names another row, is an
        error.
      drop: a list of rows that are left out, counted as `filtered`:
        `RowList("duplicates/**/*.parquet", column="doc_id")`.
      split_bytes: shards of more bytes, as stored, are dealt to lanes in equal pieces that have at most so many: then
        there may be more lanes than shards. A record belongs to the piece in which its first byte lies. 0: shards are
        dealt whole.
      storage_options: how stores on the network are reached: names and values as the `object_store` crate has them,
        such as `{"aws_region": "eu-west-1"}`, and `retry_timeout`, the seconds for which an outage is waited out, by
        default 600. None: from the environment.
      io_bytes: most bytes that are requested from stores on the network ahead of the lanes. A lane that waits requests
        one range more.
      cache_dir: a folder in which shards of stores are kept once all of their bytes were read, for later epochs, runs
        and other processes: see docs/buckets.md. None: each epoch fetches them again.
      cache_bytes: most bytes of all files in that folder, by default 64 GiB.
      max_document_bytes: longest accepted line of a shard, inflated.
      eos: token or id put after each document. None: the tokenizer's own. False: none.
      bos: token or id put before each document. True: the tokenizer's own. False: none.
      sequence_length: tokens in a row.
      batch_size: rows of the global batch, over all hosts. None: single rows, lane after lane.
      packing: `"concat"`: documents are joined, and cut every `sequence_length` tokens. `"best_fit"`:
        documents that fit into a row are never cut; of longer ones full rows are cut first, and all the rest of
        a window is placed, longest first, each in the fullest row in which it fits. `"pad"`: one document a row.
      stages: lengths of rows and sizes of batches from a step on, such as `[Stage(0, sequence_length=1024,
        batch_size=512), Stage(10_000, sequence_length=4096, batch_size=128)]`; `sequence_length` and `batch_size` are
        those of the first, and may be left out. Each size of batches is a multiple of `lanes`. Tokens of a begun
        document or window that were not delivered by a stage are packed by the length of the next one. Stages to come
        may be changed when a state is restored. None: all steps are alike.
      fit_window: documents that `best_fit` places together, fewer if they hold 16 MiB of text. With a `seed`,
        at most `shuffle_window`.
      truncation: the part that is kept of a document longer than a row, BOS and EOS included, before it is packed:
        `"right"` its start, `"left"` its end, `"middle"` its first and its last half row; `"split"` all of it, in
        several rows; `"error"` stops the run there; `"drop"` nothing: it is left out and counted as `filtered`;
        `"turns"`, of conversations, the system prompt and as many of the last turns as fit, from a message of the user
        on: one whose last round does not fit is left out likewise. None: `"right"` in `pad`, else `"split"`.
      max_segments: segments in a row at most; the rest of such a row is padding. None: any number, but of `varlen` one
        for 16 tokens and at least 16: rows are those of other layouts with that number.
      pad_segments_to: the index of each segment's first token is a multiple of it, as kernels of attention with context
        parallelism need it: 2 * ranks for zigzag. It divides `sequence_length`. The filling has segment 0, id 0 and no
        target, and is padding in `stats()`; `provenance` lists tokens without it. None: segments follow one another.
      balance: the cost of rows, such as `Cost(linear=1.0, quadratic=1e-4)`. With `best_fit` the rows of a window are
        put in an order in which each step's share of a lane costs nearly the same, so that hosts do: of a lane with one
        row a step nothing changes. It depends on no number of hosts. None: rows are in the order of their earliest
        document.
      layout: `"maxtext"`, `"grain"`, `"hf"` or `"varlen"`, see above.
      boundary_targets: whether a document's last token has the next document's first token as its target, as
        MaxText's shift of whole rows makes it; in `best_fit` the next one of the same row, in `pad` none. By
        default nothing is trained across documents. Only `maxtext` has targets.
      lanes: number of ordered streams that the shards are assigned to. None: the largest power of two that
        divides `batch_size` and is at most 64 and the number of shards, each piece counted as one; one lane if
        `batch_size` is odd. It is part of the stream, and the largest number of hosts. Each lane is read and packed by
        one thread at a time.
      seed: None: no shuffling. Else the shards are permuted in each epoch, and documents within windows.
      skip: steps that are made and not delivered, such as `[(12_000, 12_200)]`: from 12,000 to 12,199, counted from 0.
        The other steps are the same, and keep their numbers. Ranges to come may be added or left out when a state is
        restored.
      edits: what is read from a step on, such as `[Edit(12_000, drop=RowList("bad.txt", key="id"))]`. The steps before
        it stay as they are, and nothing of a record that it leaves out is delivered behind it. Edits of steps to come
        may be added, changed or left out when a state is restored. None: none.
      shuffle_window: documents that are permuted together.
      epochs: number of passes over the shards. None: endless.
      on_error: `"raise"`: stop at a bad record. `"quarantine"`: list it and continue.
      max_error_rate: share of a lane's records, 0 to 1, that may be quarantined, and share of its shards (counted as
        those of an average lane) that may be truncated or damaged; beyond either the run stops. One such shard per
        epoch is tolerated unless the rate is 0; a rate of 1 tolerates everything.
      quarantine_file: path of a file to which every quarantined record is appended as a line of JSON: `shard`,
        `record`, `byte`, `reason`, `epoch`, `lane`, its `number` among the lane's entries, and `stream`, a hash of
        the fingerprint. So are delivered samples of which an image cannot be decoded, with `undecodable` and numbers
        of their own. A restored run continues the same file, and repeats none of the first 2**20 lines after its
        position; later lines may come twice, which `sort -u` removes. Each host needs its own file; `sort -u` merges
        them. A relative path starts from the working folder of this call.
      shard_index: index of this host among `shard_count` hosts, from 0.
      shard_count: number of hosts; it must divide `lanes`. With finite `epochs` hosts end at different steps, each with
        its own last lane, unless there are `equal_steps`.
      equal_steps: whether all hosts take equally many steps, as validation needs it. Each host then reads and packs the
        shards of all lanes, and decodes all images, and delivers its rows of each global batch: `shard_count` must
        divide `batch_size` and not `lanes`. Rows after the end of a lane are padding. States and `stats()` are those
        of all lanes. It changes nothing else in the stream. With `global_batches`, hosts end together without it, and
        read their own lanes only.
      threads: worker threads. None: as many as this process has cores.
      prefetch: batches that are prepared ahead.
      verify: share of the documents, 0 to 1, whose ids are compared with those of the `tokenizers` library while
        running; the first difference is a `ShardError`. Documents of more than a MiB are not compared: the library
        takes a hundred times their size in memory. If the encoder's engine is the library, nothing is compared.
      provenance: whether batches have the array `provenance`, see above; a number is the number of entries of a row.
        True: `max_segments`, or else one entry for 16 tokens and at least 16; with `packing="pad"` all that a row
        can have. It changes nothing else in the stream: states fit with and without it.
      source_arrays: whether batches of a mixture have the arrays `source`, int32 `[rows]`, the index of a row's source
        in `list(mixture.sources)` or -1 where a row is nothing but padding, and `weight`, float32 `[rows]`, the share
        of all rows that the weights of the row's step ask of that source. It changes nothing else in the stream.
      attention_mask: whether rows of the layout `hf` have the array `attention_mask`. None: where each row has one
        document, so with `packing="pad"`, or `max_segments=1`. It changes nothing else in the stream: states fit with
        and without it.
      on_stats: called with `PackedDatasetIterator.stats()` every ten seconds of iterating, at the end and at
        `close`, also if `.batch()` or `.map()` hide the iterator. An exception of it leaves that `next`, which loses
        nothing, or `close`, which closes all the same; the iterator then calls it no more. At the same times, newly
        quarantined records are logged as warnings of the logger `gristmill`.

    Raises:
      ArgumentError: an argument's value is not allowed.
      ArgumentTypeError: an argument is of the wrong type.
      MissingShardError: a shard does not exist, or a glob matches nothing.
      TokenizerError: the tokenizer cannot be loaded.
    """

    def __init__(
        self,
        shards: "Pathish | Iterable[Pathish] | Manifest | EnergonFolder | Mixture",
        *,
        tokenizer: "Encoder | Pathish | None" = None,
        text_field: str = "text",
        sample: "Sample | None" = None,
        keep: str | None = None,
        sidecars: "Mapping[str, Sidecar] | None" = None,
        drop: "RowList | None" = None,
        split_bytes: int = 0,
        storage_options: "Mapping[str, str] | None" = None,
        io_bytes: int = 2**28,
        cache_dir: "Pathish | None" = None,
        cache_bytes: int = 2**36,
        max_document_bytes: int = 2**27,
        eos: "str | int | bool | None" = None,
        bos: "str | int | bool" = False,
        sequence_length: int = 1024,
        batch_size: int | None = None,
        packing: Literal["concat", "best_fit", "pad"] = "concat",
        stages: "Sequence[Stage] | None" = None,
        fit_window: int = 1024,
        truncation: Literal["right", "left", "middle", "error", "split", "drop", "turns"] | None = None,
        max_segments: int | None = None,
        pad_segments_to: int | None = None,
        balance: "Cost | None" = None,
        layout: Literal["maxtext", "grain", "hf", "varlen"] = "maxtext",
        boundary_targets: bool = False,
        lanes: int | None = None,
        seed: int | None = None,
        skip: "Sequence[tuple[int, int]] | None" = None,
        edits: "Sequence[Edit] | None" = None,
        shuffle_window: int = 1024,
        epochs: int | None = 1,
        on_error: Literal["raise", "quarantine"] = "raise",
        max_error_rate: float = 0.01,
        quarantine_file: "Pathish | None" = None,
        shard_index: int = 0,
        shard_count: int = 1,
        equal_steps: bool = False,
        threads: int | None = None,
        prefetch: int = 4,
        verify: float = 0.0,
        provenance: bool | int = False,
        source_arrays: bool = False,
        attention_mask: bool | None = None,
        on_stats: "Callable[[dict[str, Any]], None] | None" = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in ARGUMENTS}
        super().__init__()
        self._spec = resolve(given)

    @classmethod
    def from_file(cls, path: Pathish, **arguments: Any) -> "PackedDataset":
        """The stream of a mixture file, see docs/mixtures.md: the one that `gristmill pack` writes of it.

        Args:
          path: the file, of TOML or YAML. Paths in it start from its folder.
          arguments: arguments of this class, in place of those in the file.

        Raises:
          ArgumentError: the file is not valid, has an unknown key, or a value is not allowed.
          ArgumentTypeError: a value is of the wrong type.
          MissingShardError: a shard does not exist, or a glob matches nothing.
          TokenizerError: the tokenizer cannot be loaded.
          MissingExtraError: the file is YAML, and PyYAML is not installed.
          GristmillError: the file cannot be read.
        """
        return dataset_of(mixture_file.read(path), arguments)

    @property
    def lanes(self) -> int:
        """Number of lanes of the stream, over all hosts."""
        return self._spec.order.lanes

    @property
    def manifest(self) -> Manifest:
        """The shards that are read.

        Raises:
          ArgumentError: the dataset is a mixture.
        """
        if self._spec.mixing:
            raise ArgumentError("a mixture has a manifest for each source: dataset.sources[name].manifest")
        return self._spec.sources[0].shards

    @property
    def sources(self) -> "dict[str, PackedDataset]":
        """The sources of a mixture by their names, each as the dataset of it alone; empty if this is no mixture."""
        spec = self._spec
        return {source.name: with_spec(self, spec.alone(source)) for source in spec.sources if spec.mixing}

    @property
    def pieces(self) -> list[Piece]:
        """The pieces that are dealt to lanes: the shards in order, the ones of more than `split_bytes` bytes in pieces.

        In a mixture they are the pieces of each source, one source after another.
        """
        return self._spec.pieces

    @property
    def encoder(self) -> Encoder:
        """The tokenizer."""
        return self._spec.encoder

    @property
    def fingerprint(self) -> str:
        """The definition of the stream, readable: shards, tokenizer, and every argument that changes it."""
        return self._spec.fingerprint

    def plan(self, epoch: int = 0) -> list[list[str]]:
        """The shards of each lane in an epoch, in the order in which it reads them; pieces as `path[start:end]`.

        In a mixture they are the shards of each source, one source after another, as if all were in that epoch. Shards
        that edits add come last, also before their step.

        Raises:
          ArgumentError: `epoch` is below 0 or has more than 64 bits.
          ArgumentTypeError: `epoch` is not an integer.
        """
        epoch = checks.integer("epoch", epoch, 0, 2**64 - 1)
        found: list[list[str]] = [[] for _ in range(self.lanes)]
        for source in self._spec.last_sources:
            for lane, shards in enumerate(dealt(source, self.lanes, self._spec.order.seed, epoch)):
                found[lane] += [source.pieces[shard].name for shard in shards]
        return found

    @property
    def batch_size(self) -> int | None:
        """Rows of the global batch, over all hosts, in the first stage; None: single rows."""
        return self._spec.rows.batch_size

    @property
    def sequence_length(self) -> int:
        """Tokens in a row, in the first stage."""
        return self._spec.rows.sequence_length

    @property
    def pad_segments_to(self) -> int | None:
        """The number of which the index of each segment's first token is a multiple; None: of no one."""
        return self._spec.rows.pad_segments_to

    @property
    def dtypes(self) -> "dict[str, np.dtype[Any]]":
        """The dtype of each array of an element by its name, in their order."""
        return {field.name: np.dtype(field.dtype) for field in self._spec.fields}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each array of an element by its name: in a dataset of one of several hosts, that of its rows.

        It is that of the first stage; `shapes_at` has those of others.
        """
        return self._spec.shapes

    def shapes_at(self, step: int) -> dict[str, tuple[int, ...]]:
        """The shape of each array of the element of a step, as `shapes` has them of the first stage.

        Raises:
          ArgumentError: `step` is below 0.
          ArgumentTypeError: `step` is not an integer.
        """
        return self._spec.at_step(checks.integer("step", step, 0, 2**62)).shapes

    @property
    def contents(self) -> dict[str, str]:
        """The content of each array of an element by its name, in words that do not depend on the layout.

        `token`, `segment`, `position`, `mask`, `target`, `target_segment`, `target_mask`, `label`, `trained`,
        `segment_length` and `next_token` are the arrays of rows. A `value` is that of a field of the token at its
        index, a `target_value` of the target there, a `next_value` of the token behind the row, and a `sample_value`
        of a segment, as a `pair` is. `provenance`, `source`, `weight`, and those of images are as the arguments say it.
        """
        return {field.name: field.content for field in self._spec.fields}

    @property
    def has_weights(self) -> bool:
        """Whether messages say how much they are trained on (`train_key`), so that rows have the field `weight`."""
        return any(field.is_weight for field in self._spec.carried_fields)

    @property
    def ends(self) -> bool:
        """Whether some lane may end: of a mixture by its last stage and `on_exhausted`."""
        return self._spec.ends

    @property
    def skip(self) -> list[tuple[int, int]]:
        """The ranges of steps that are not delivered, in order: each a first step and an end, which is not in it."""
        return list(self._spec.order.skip or ())

    @property
    def stages(self) -> list[Stage]:
        """The lengths of rows and sizes of batches, each from its step on; the first from step 0 on."""
        spec = self._spec
        return [
            Stage(step, rows.sequence_length, rows.batch_size) for step, rows, _ in ((0, spec.rows, 0), *spec.stages)
        ]

    def check_one_size(self, taker: str) -> None:
        """Refuses stages on behalf of a program that takes batches of one size.

        Args:
          taker: the program, for the message.

        Raises:
          ArgumentError: there are stages.
        """
        if self._spec.stages:
            raise ArgumentError(
                f"stages={self._spec.rows.stages}: {taker} takes batches of one size; leave stages= out"
            )

    @property
    def own_lanes(self) -> list[int]:
        """The lanes that this dataset loads, in the order of its rows: a state of its iterator holds these."""
        return list(self._spec.running.own_lanes)

    @property
    def equal_steps(self) -> bool:
        """Whether all hosts take equally many steps, each reading all lanes."""
        return self._spec.running.equal_steps

    def for_hosts(
        self, index: int, count: int, *, equal_steps: bool | None = None, attention_mask: bool | None = None
    ) -> "PackedDataset":
        """The same stream, of which host `index` of `count` loads its lanes: as `shard_index` and `shard_count` say it.

        The fingerprint stays as it is, and states fit any number of hosts: `merge_states` merges those of all.

        Args:
          index: the host, from 0.
          count: the number of hosts; it must divide `lanes`.
          equal_steps: as the argument of this class. None: as this dataset has it.
          attention_mask: likewise.

        Raises:
          ArgumentError: `count` does not divide the lanes, or with `equal_steps` the batch; or `index` is out of range.
          ArgumentTypeError: an argument is of the wrong type.
        """
        equal = self._spec.running.equal_steps if equal_steps is None else checks.boolean("equal_steps", equal_steps)
        mask = checks.optional_boolean("attention_mask", attention_mask)
        spec = self._spec if mask is None else self._spec.with_running(attention_mask=mask)
        return with_spec(self, spec.for_hosts(index, count, equal_steps=equal))

    def lanes_of_processes(self, sharding: Any) -> dict[int, list[int]]:
        """The lanes of every process that has a device in a sharding, as `for_sharding` chooses them.

        Args:
          sharding: a `jax.sharding.Sharding` of the global batch `[batch_size, sequence_length]`.

        Raises:
          ArgumentError: as `for_sharding`.
          ArgumentTypeError: `sharding` is not a sharding.
        """
        return self._spec.lanes_of_processes(sharding)

    def differences(self, fingerprint: str) -> str:
        """How this stream differs from another one, of which only the fingerprint is known.

        Returns:
          `seed was 1 and is 2, ...`: the value there, and the one here; empty where there is no difference in the
          arguments, and for mixtures.
        """
        if fingerprints_of_mixtures.is_mixture(fingerprint) or self._spec.mixing:
            return ""
        return fingerprints.differences(fingerprint, self.fingerprint)

    def stages_after(self, state: State) -> "list[tuple[int, dict[str, float]]]":
        """The `stages` of a mixture that continues a state with the weights of this one, from its step on.

        Returns:
          The stages of the stream that saved the state, and one from its step on; empty if the weights before its step
          are the same, or either is no mixture.
        """
        saved, step = str(state.get("fingerprint")), int(state.get("step", 0))
        stages = fingerprints_of_mixtures.continued_stages(saved, self.fingerprint, step)
        return [(stage.step, dict(stage.weights)) for stage in stages]

    def iterate_together(self, vote: "Callable[[bool], Callable[[], bool]]") -> PackedDatasetIterator:
        """An iterator that ends together with those of other hosts, where the lanes end at different steps.

        A host whose lanes have ended gets rows of padding until no host has rows. All hosts must take as many elements.

        Args:
          vote: a collective of all hosts. Called with whether this host has rows in a step, it begins a vote and
            returns a function that waits for the answer: whether any host has. It is called once for each step, in
            order, ahead of the step; not at all if the dataset does not end.

        Raises:
          ArgumentError: there are `equal_steps`, with which hosts end together without a vote.
        """
        if self._spec.running.equal_steps:
            raise ArgumentError(
                "equal_steps=True: hosts end together already; use iter(dataset)", argument="equal_steps"
            )
        return TogetherIterator(self._spec, vote) if self.ends else PackedDatasetIterator(self._spec)

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
            a process are not whole lanes; then it names the `lanes` that fit. Or there are `equal_steps`.
          ArgumentTypeError: `sharding` is not a sharding.
        """
        try:
            import jax
        except ImportError as error:
            raise MissingExtraError("a sharding needs JAX: pip install 'gristmill[jax]'") from error

        if self._spec.running.equal_steps:
            raise ArgumentError(
                "equal_steps=True: a sharding names the lanes of a process, which end at different steps; leave it "
                "out and use gm.global_batches, which ends all processes together"
            )
        plan = self._spec.lanes_of_processes(sharding)
        return with_spec(self, self._spec.with_running(own_lanes=lanes_of_process(plan, jax.process_index())))

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keeps every n-th of the own lanes: Grain calls this in the workers of `mp_prefetch`.

        Raises:
          ArgumentError: the dataset has a `batch_size`; batches cannot be divided among workers.
        """
        if self._spec.rows.batch_size is not None:
            raise ArgumentError(
                f"batch_size={self._spec.rows.batch_size}: mp_prefetch with several workers needs single rows; leave "
                "batch_size out, and put .batch() after .mp_prefetch()"
            )
        del sequential_slice  # whole lanes either way
        self._spec = self._spec.with_running(own_lanes=self._spec.running.own_lanes[sl])

    def _describe_element(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        shapes = self._spec.shapes
        fields = self._spec.fields
        return {field.name: (shapes[field.name], field.dtype) for field in fields}

    def __iter__(self) -> PackedDatasetIterator:
        return PackedDatasetIterator(self._spec)

    def __repr__(self) -> str:
        rows = self._spec.rows
        shards = sum(len(source.shards) for source in self._spec.sources)
        sources = f"{len(self.sources)} sources, " if self._spec.mixing else ""
        return (
            f"<PackedDataset of {sources}{counted(shards, 'shard')} in {counted(self.lanes, 'lane')}, "
            f"batch_size={rows.batch_size}, sequence_length={rows.sequence_length}>"
        )


def dataset_of(file: MixtureFile, arguments: Mapping[str, Any]) -> PackedDataset:
    """The dataset of a mixture file, with other arguments than those in it.

    Raises:
      GristmillError: see `PackedDataset.from_file`.
    """
    values = {**file.arguments, **arguments}
    tokenizer, special = values.pop("tokenizer", None), values.pop(mixture_file.SPECIAL_TOKENS, None)
    if tokenizer is None:
        if not file.is_ready:
            raise ArgumentError(f"{file.path} has no tokenizer: name a tokenizer.json, or its folder")
    elif not isinstance(tokenizer, Encoder):
        options = {} if special is None else {mixture_file.SPECIAL_TOKENS: special}
        tokenizer = Encoder.from_pretrained(checks.path("tokenizer", tokenizer), **options)
    elif special not in (None, has := special_tokens_in_text_of(tokenizer)):
        raise ArgumentError(
            f"tokenizer=: {file.path} says special_tokens_in_text={special!r}, and the Encoder has {has!r}: pass the "
            "path of its file, or make it alike"
        )
    return PackedDataset(mixture_of(file), tokenizer=tokenizer, **values)


def spec_of(dataset: PackedDataset) -> Spec:
    """The checked arguments of a dataset."""
    return dataset._spec


def with_spec(dataset: PackedDataset, spec: Spec) -> PackedDataset:
    """A copy of a dataset that has other arguments."""
    changed = copy.copy(dataset)
    changed._spec = spec
    return changed
