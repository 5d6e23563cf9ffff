"""`PromptDataset`: prompts by index, and their batches as a Grain dataset."""

import copy
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from gristmill._mixture.mixture import Mixture
from gristmill._prompts import sequence
from gristmill._prompts.arguments import ARGUMENTS
from gristmill._prompts.batches import make_item
from gristmill._prompts.iterator import HostRows, PromptIterator
from gristmill._prompts.layouts import Batch
from gristmill._prompts.order import Orders
from gristmill._prompts.reading import Arena
from gristmill._prompts.resolving import resolve
from gristmill._prompts.spec import PromptSpec
from gristmill._sample.plans import ChatPlan
from gristmill._sample.samples import Chat, Completion, Text
from gristmill._shards.manifest import Manifest
from gristmill._shards.rows import RowList
from gristmill._shards.sidecars import Sidecar
from gristmill._spec.sharding import rows_of_process
from gristmill._tokenizer.encoder import Encoder
from gristmill._util import checks
from gristmill._util.grain_compat import IterDataset, SourceDataset
from gristmill._util.local_files import Pathish
from gristmill._util.text import counted
from gristmill.errors import ArgumentError, MissingExtraError

_DEFAULT_PROMPT = Chat("prompt", add_generation_prompt=True)


class PromptDataset(SourceDataset, IterDataset[Batch]):
    """Prompts of JSONL, Parquet or Arrow shards, rendered, tokenized and padded.

    All records are read when the dataset is made, on all cores, and stay in memory as ids and JSON. Then it has a
    length, `dataset[i]` is an item, and each epoch is a permutation of all prompts: a random-access source for
    `grain.MapDataset.source`, a map-style dataset, and a `grain.IterDataset` of batches.

    Batch t of an epoch holds the prompts t·`batch_size` to (t+1)·`batch_size` of that epoch's order, each in
    `num_generations` adjacent rows. This is one sequence of global batches for any number of hosts, and a state of its
    iterator restores on any other number.

    The arrays of a batch of B rows of L = `prompt_length` elements, by `layout`; c is the name of a prompt, which is
    that of its field, or a key of `prompt`:

    - `verl`: `input_ids`, `attention_mask`, `position_ids`: int64 `[B, L]`, padded on the left; `raw_prompt_ids`: the
      ids as lists. As in veRL, `extra_info` is `{}` where a record has none, and `index`, `tools_kwargs` and
      `interaction_kwargs` are its items, or 0 and `{}`.
    - `hf`: `input_ids`, `attention_mask`, `position_ids`: int32 `[B, L]`, padded on the left.
    - `maxtext`: `c`, `c_segmentation`, `c_position`: int32 `[B, L]`, padded on the right with 0; `c_true_length`: int32
      `[B, 1]`. Segmentation is 1 on every token, also on one whose id is 0.
    - `tunix`: `prompts`: rendered strings. Nested columns are JSON text. With several prompts instead `c_ids` and
      `c_mask`: int32 `[B, L]`.
    - `ragged`: `ids`: int32, all rows one after another, and `offsets`: int64 `[B + 1]`.

    A `gm.Completion`, and a `gm.Chat` without `add_generation_prompt`, have a loss mask: `loss_mask`, with the dtype,
    shape and padding of their ids, is 1 on the tokens that are trained on, else 0. `hf` has `labels`, too: the id where
    it is 1, else -100. In `maxtext` the names begin with `c_`, and a single prompt of `tunix` has no mask.

    With several prompts, the names of `verl`, `hf` and `ragged` begin with `c_`, and all but the first are padded on
    the right. Every layout has `index`: of `verl` that of `extra_info`, else, and with `columns=False`, the number of
    the item in the dataset; -1 in rows of padding.

    Args:
      shards: a glob, a path, a list of either, or a `Manifest`; or rows: an iterable of dicts, such as a
        `datasets.Dataset`, which is read to its end; or a `Mixture` of sources of either.
      tokenizer: the path of a tokenizer.json or of its folder, or an `Encoder`.
      prompt: what a prompt is made of: `gm.Chat`, a list of messages under a key, `gm.Text`, a string, or
        `gm.Completion`, two of either. Or a dict of several, such as `prompt`, `chosen` and `rejected`, which are never
        separated. With several, and in a completion, one with a loss mask that trains nothing is a bad record, or left
        out with its `on_untrained="drop"`, also where the trained tokens are cut off.
      keep: a condition on the keys of a record, as in `PackedDataset`; others are counted as `filtered`.
      sidecars: files beside the shards that say more about each record, by the name that `keep` has for them, as in
        `PackedDataset`.
      drop: a `RowList` of rows that are left out, and counted as `filtered`.
      storage_options: how stores on the network are reached, as in `PackedDataset`.
      max_document_bytes: the longest record that is read, as JSON.
      prompt_length: the most tokens of a prompt, and the elements of a row.
      overlong: what becomes of longer ones: `"drop"`: the record is left out; `"left"` and `"right"`: that side is cut;
        `"middle"`: the first and the last half are kept; `"error"`.
      padding: `"left"` or `"right"`. None: the layout's own.
      pad: token or id of padding. None: 0 in `maxtext`, else the tokenizer's own, or its EOS token, or 0.
      columns: the other columns that batches carry: True for all, a list of names, or False. They become Python
        objects only when they are delivered; a record without one has None.
      raw_prompt: whether batches have `raw_prompt`, the prompt as the record has it.
      full_prompts: whether batches have `full_prompts`, the rendered text.
      batch_size: prompts of the global batch.
      num_generations: rows of each prompt in a batch.
      layout: see above.
      bos: token or id put before each prompt. True: the tokenizer's own. It is refused for `gm.Chat`, whose template
        writes its own.
      eos: token or id put after each prompt, likewise.
      select: a slice or a list of indices of records, in that order. None: all.
      max_samples: the most records that are read, before any is left out.
      seed: seeds the order. None: the order of the records.
      order: `"gristmill"`; `"torch"`: the order of torch's RandomSampler with a generator of this seed, which is that
        of veRL 0.6; `"torchdata"`: that of torchdata's, as in veRL 0.7 and later.
      epochs: how often all prompts are delivered. None: without end.
      drop_remainder: whether the prompts that do not fill a batch at the end of an epoch are left out. Else rows of
        padding fill it, so that all hosts take equally many steps. A mixture has such a batch at its very end only.
      source_arrays: whether batches of a mixture have the arrays `source`, int32 `[B]`, the index of a prompt's source
        in `list(mixture.sources)` or -1 in a row of padding, and `weight`, float32 `[B]`, the share of all prompts that
        the weights of the step ask of that source.
      max_memory: the most bytes of ids and records.
      on_error: `"raise"`, or `"quarantine"`: a bad record is left out, counted and listed.
      max_error_rate: share of the records, and of the shards, that may be quarantined.
      quarantine_file: path of a file to which a line of JSON is appended for every quarantined record: `shard`,
        `record`, `byte`, `reason`, and which stream it is of. Lines that it has already are not written again.
      shard_index: index of this host among `shard_count` hosts, from 0.
      shard_count: number of hosts; it must divide the rows of a batch.
      threads: worker threads while records are read. None: as many as this process has cores.

    Raises:
      ArgumentError: an argument's value is not allowed, a column has the name of an array, or `max_memory` is exceeded.
      ArgumentTypeError: an argument is of the wrong type.
      GristmillError: the quarantine file cannot be written.
      MissingShardError: a shard or a sidecar does not exist, or a glob matches nothing.
      ShardError: a record cannot be used, or its prompt is too long and `overlong="error"`.
      TemplateError: there is no chat template, or the core does not render it exactly.
      TokenizerError: the tokenizer cannot be loaded.
    """

    def __init__(
        self,
        shards: "Pathish | Iterable[Pathish] | Manifest | Mixture | Iterable[Mapping[str, Any]]",
        *,
        tokenizer: "Encoder | Pathish",
        prompt: "Chat | Completion | Text | Mapping[str, Chat | Completion | Text]" = _DEFAULT_PROMPT,
        keep: str | None = None,
        sidecars: "Mapping[str, Sidecar] | None" = None,
        drop: "RowList | None" = None,
        storage_options: "Mapping[str, str] | None" = None,
        max_document_bytes: int = 2**27,
        prompt_length: int = 1024,
        overlong: Literal["drop", "left", "right", "middle", "error"] = "drop",
        padding: Literal["left", "right"] | None = None,
        pad: "str | int | None" = None,
        columns: "bool | Sequence[str]" = True,
        raw_prompt: bool = False,
        full_prompts: bool = False,
        batch_size: int = 256,
        num_generations: int = 1,
        layout: Literal["verl", "maxtext", "tunix", "hf", "ragged"] = "verl",
        bos: "str | int | bool" = False,
        eos: "str | int | bool" = False,
        select: "slice | Sequence[int] | None" = None,
        max_samples: int | None = None,
        seed: int | None = None,
        order: Literal["gristmill", "torch", "torchdata"] = "gristmill",
        epochs: int | None = 1,
        drop_remainder: bool = True,
        source_arrays: bool = False,
        max_memory: int = 2**34,
        on_error: Literal["raise", "quarantine"] = "raise",
        max_error_rate: float = 0.01,
        quarantine_file: "Pathish | None" = None,
        shard_index: int = 0,
        shard_count: int = 1,
        threads: int | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in ARGUMENTS}
        super().__init__()
        self._spec = resolve(given)
        rows = self._spec.rows_per_batch // shard_count
        self._host = HostRows(np.arange(shard_index * rows, (shard_index + 1) * rows))
        spec = self._spec
        self._orders = [Orders(source.size, spec.seed, spec.order) for source in spec.by_name]

    def __len__(self) -> int:
        """The number of prompts: those of records that were kept."""
        return len(self._spec.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One item, in the order of the records: the arrays of a row, and the columns as objects.

        Raises:
          IndexError: there is no such item.
        """
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"index {number}: there are {counted(len(self), 'prompt')}")
        return make_item(self._spec, number % len(self))

    @property
    def fingerprint(self) -> str:
        """The definition of the stream, readable: records, tokenizer, and every argument that changes it."""
        return self._spec.fingerprint

    @property
    def encoder(self) -> Encoder:
        """The tokenizer."""
        return self._spec.encoder

    @property
    def manifest(self) -> Manifest | None:
        """The shards that were read; None if the dataset was made of rows, or is a mixture."""
        return self._spec.manifest

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that batches carry."""
        return tuple(self._spec.columns)

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches of an epoch.

        Raises:
          ArgumentError: the dataset is a mixture, whose sources have epochs of their own.
        """
        if self._spec.mixing:
            raise ArgumentError("the sources of a mixture have epochs of their own: see stats()['sources']")
        return self._spec.steps_per_epoch

    @property
    def rows_per_batch(self) -> int:
        """Rows of the global batch: `num_generations` of each prompt."""
        return self._spec.rows_per_batch

    @property
    def steps(self) -> int | None:
        """The number of batches of all epochs; None if they do not end, or the dataset is a mixture."""
        epochs = None if self._spec.mixing else self._spec.sources[0].epochs
        return None if epochs is None else epochs * self._spec.steps_per_epoch

    @property
    def nbytes(self) -> int:
        """The bytes of memory that ids and records take."""
        return self._spec.arena.nbytes

    @property
    def template_engine(self) -> str | None:
        """The engine that renders conversations, see `ChatTemplate.template_engine`; None if all prompts are texts."""
        plans = self._spec.plans.values()
        return next((plan.chat_template.template_engine for plan in plans if isinstance(plan, ChatPlan)), None)

    @property
    def lengths(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """The tokens of each prompt before it is cut, int64 `[prompts]`, or `[prompts, several]`."""
        lengths: np.ndarray[Any, np.dtype[np.int64]] = self._spec.arena.lengths[self._spec.rows]
        return lengths[:, 0] if lengths.shape[1] == 1 else lengths

    @property
    def arena(self) -> Arena:
        """The memory of the dataset: ids and records, by the number of a record among those that were read and kept.

        Its arrays `ids` (uint32) and `id_offsets` (int64), `shards`, `numbers` and `indices` have the ids of all
        prompts, where each begins, and of each record the shard, the number in that and the number among all. They are
        read-only. `record(row)` is a record as a dict, `text(row, prompt)` the text of a prompt where texts are kept.
        """
        return self._spec.arena

    @property
    def shard_names(self) -> list[str]:
        """The paths of the shards, by the index that the arena has for them; `["rows"]` if it was made of rows."""
        return list(self._spec.shard_names)

    def counts(self) -> dict[str, int]:
        """The counts of the records: `read` is the sum of `kept`, `overlong`, `filtered` and `quarantined`.

        Returns:
          These; `lost_shards`, the shards whose rest could not be read, each of which is one of `quarantined`; and
          `empty`, the records among `kept` with a prompt that has no tokens.
        """
        return self._spec.counts

    def dropped(self) -> list[dict[str, Any]]:
        """The records that were left out as overlong or bad, in the order in which they were read.

        Returns:
          A list of dicts with `shard`, `record`, `byte`, `reason`, and `tokens`, which is None unless the prompt is too
          long.
        """
        names, length = self._spec.shard_names, self._spec.prompt_length
        overlong = [
            (shard, record, None, f"more than prompt_length={length} tokens", tokens)
            for shard, record, tokens in self._spec.arena.overlong()
        ]
        bad = [(one.shard, one.record, one.byte, one.reason, None) for one in self._spec.arena.bad]
        return [
            {"shard": names[shard], "record": record, "byte": byte, "reason": reason, "tokens": tokens}
            for shard, record, byte, reason, tokens in sorted(
                [*overlong, *bad], key=lambda one: (one[0], -1 if one[1] is None else one[1])
            )
        ]

    def text(self, index: int, prompt: str | None = None) -> str:
        """The rendered text of an item's prompt, decoded from its ids unless `full_prompts` or the layout keeps it.

        Args:
          index: the number of the item.
          prompt: which of several.
        """
        number = list(self._spec.plans).index(prompt) if prompt is not None else 0
        row = int(self._spec.rows[index])
        if self._spec.arena.has_texts:
            return self._spec.arena.text(row, number)
        return self.encoder.decode(self._spec.arena.prompt_ids(row, number))

    def source(self, index: int) -> tuple[str, int]:
        """The shard and the number of the record that an item is made of."""
        row = int(self._spec.rows[index])
        arena = self._spec.arena
        return self._spec.shard_names[arena.shards[row]], int(arena.numbers[row])

    def for_hosts(self, index: int, count: int) -> "PromptDataset":
        """The same stream, of which host `index` of `count` makes its rows: as `shard_index` and `shard_count` say it.

        Args:
          index: the host, from 0.
          count: the number of hosts; it must divide the rows of a batch.

        Raises:
          ArgumentError: it does not, or `index` is out of range.
          ArgumentTypeError: an argument is not an integer.
        """
        count = checks.integer("count", count, 1, 2**32)
        index = checks.integer("index", index, 0, count - 1)
        rows, rest = divmod(self.rows_per_batch, count)
        if rest:
            raise ArgumentError(f"count={count}: {self.rows_per_batch} rows of a batch cannot be divided among as many")
        changed = copy.copy(self)
        changed._host = HostRows(np.arange(index * rows, (index + 1) * rows))
        return changed

    def for_sharding(self, sharding: Any) -> "PromptDataset":
        """The same stream, of which this process makes the rows that its devices hold.

        Args:
          sharding: a `jax.sharding.Sharding` of the global batch `[batch_size * num_generations, prompt_length]`.

        Raises:
          MissingExtraError: JAX is not installed.
          ArgumentError: the sharding does not fit the batch, or two processes share only some of their rows.
          ArgumentTypeError: `sharding` is not a sharding.
        """
        try:
            import jax
        except ImportError as error:
            raise MissingExtraError("a sharding needs JAX: pip install 'gristmill[jax]'") from error

        shape = (self._spec.rows_per_batch, self._spec.prompt_length)
        spans = rows_of_process(sharding, shape, jax.process_index())
        changed = copy.copy(self)
        changed._host = HostRows(np.concatenate([np.arange(start, stop) for start, stop in spans]))
        return changed

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keeps every n-th batch: Grain calls this in the workers of `mp_prefetch`.

        Raises:
          ArgumentError: the slice is sequential.
        """
        if sequential_slice:
            raise ArgumentError("sequential_slice=True: batches are dealt to workers in turn")
        self._host = self._host.sliced(sl.start or 0, sl.step or 1)

    def _describe_element(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        if self._spec.layout.name == "ragged":
            raise ArgumentError("layout='ragged': the shapes of its arrays differ from batch to batch")
        shapes = dict(self._spec.layout.shapes)
        if self._spec.source_arrays:
            shapes |= {"source": ((), np.int32), "weight": ((), np.float32)}
        return {key: ((len(self._host.rows), *shape), np.dtype(dtype)) for key, (shape, dtype) in shapes.items()}

    def __iter__(self) -> PromptIterator:
        return PromptIterator(self._spec, self._host, self._orders)

    def __repr__(self) -> str:
        spec = self._spec
        return (
            f"<PromptDataset of {counted(len(self), 'prompt')}, batch_size={spec.batch_size}, "
            f"prompt_length={spec.prompt_length}, layout={spec.layout.name!r}>"
        )


def host_of(dataset: PromptDataset) -> HostRows:
    """The rows that this process makes of each batch."""
    return dataset._host


def sequence_of(dataset: PromptDataset) -> sequence.BatchSequence:
    """The items of each global batch, by its number."""
    return sequence.of(dataset._spec, dataset._orders)


def spec_of(dataset: PromptDataset) -> PromptSpec:
    """The checked arguments of a dataset, and its prompts."""
    return dataset._spec
