"""`PromptSpec`: what a `PromptDataset` delivers, by its checked arguments and the records that were read."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill._mixture.mixing import Mixing
from gristmill._mixture.stages import mean_shares, stage_at
from gristmill._prompts.layouts import Layout
from gristmill._prompts.reading import Arena, Plan
from gristmill._shards.manifest import Manifest
from gristmill._tokenizer.encoder import Encoder

# Columns that veRL's items make of `extra_info`, and with what where that lacks them.
EXTRA = {"index": 0, "tools_kwargs": {}, "interaction_kwargs": {}}


@dataclass(frozen=True, eq=False, kw_only=True)
class PromptSource:
    """A source of prompts.

    Attributes:
      name: its name in a mixture; empty if it is the only one.
      first: the first of its items, which are next to one another.
      size: how many they are.
      epochs: how often they are delivered. None: without end.
      plans: what its prompts are made of, by their names.
      counts: what became of its records.
    """

    name: str = ""
    first: int = 0
    size: int
    epochs: int | None
    plans: Mapping[str, Plan]
    counts: Mapping[str, int]

    def left(self, delivered: int) -> int | None:
        """How many of its prompts come after so many. None: without end."""
        return None if self.epochs is None else max(0, self.epochs * self.size - delivered)


@dataclass(frozen=True, eq=False, kw_only=True)
class PromptSpec:
    """The stream that a `PromptDataset` delivers.

    Attributes:
      sources: where prompts are from, in the order in which the user has listed the sources of a mixture; else one.
      encoder: the tokenizer.
      shard_names: the path of each shard, or `("rows",)`.
      manifest: the shards; None of rows, and of a mixture.
      columns: the names of the columns that are delivered.
      fingerprint: what defines the stream, readable.
      arena: the prompts.
      rows: the record of the arena that is each item.
      layout: the arrays.
      mixing: how the sources of a mixture are mixed.
    """

    sources: Sequence[PromptSource]
    encoder: Encoder
    shard_names: Sequence[str]
    manifest: Manifest | None
    columns: Sequence[str]
    fingerprint: str
    arena: Arena
    rows: "npt.NDArray[np.int64]"
    layout: Layout
    overlong: str
    prompt_length: int
    batch_size: int
    num_generations: int
    keeps_records: bool
    raw_prompt: bool
    full_prompts: bool
    seed: int | None
    order: str
    drop_remainder: bool
    source_arrays: bool
    mixing: Mixing | None = None

    @property
    def plans(self) -> Mapping[str, Plan]:
        """The plan of each prompt, by its name; those of the first source."""
        return self.sources[0].plans

    @property
    def counts(self) -> dict[str, int]:
        """The counts of the records of all sources."""
        return {key: sum(source.counts[key] for source in self.sources) for key in self.sources[0].counts}

    @property
    def rows_per_batch(self) -> int:
        """The rows of a global batch."""
        return self.batch_size * self.num_generations

    @property
    def steps_per_epoch(self) -> int:
        """The batches of an epoch."""
        whole, rest = divmod(len(self.rows), self.batch_size)
        return whole + int(rest > 0 and not self.drop_remainder)

    @functools.cached_property
    def by_name(self) -> list[PromptSource]:
        """The sources in the order of their names."""
        return sorted(self.sources, key=lambda source: source.name)

    @functools.cached_property
    def _firsts(self) -> "npt.NDArray[np.int64]":
        return np.array([source.first for source in self.sources])

    def _numbers_of(self, items: "npt.ArrayLike") -> "npt.NDArray[np.int32]":
        """The index of the source of each item; -1 of rows of padding."""
        return (np.searchsorted(self._firsts, items, side="right") - 1).astype(np.int32)

    def source_of(self, item: int) -> PromptSource:
        """The source of an item."""
        return self.sources[int(self._numbers_of(item))]

    def field_of(self, item: int) -> str:
        """The key of an item's prompt, of one."""
        return next(iter(self.source_of(item).plans.values())).field

    def arrays_of_sources(self, items: Sequence[int], step: int) -> "dict[str, npt.NDArray[Any]]":
        """The index of the source of each item, and the share of all that its weight asks for at a step; if wanted."""
        if self.mixing is None or not self.source_arrays:
            return {}
        stages = self.mixing.stages
        weights = stages[stage_at(stages, step)].weights
        shares = [weights.get(source.name, 0) / sum(weights.values()) for source in self.sources]
        numbers = self._numbers_of(items)
        return {"source": numbers, "weight": np.array([*shares, 0.0])[numbers].astype(np.float32)}

    def stats_of_sources(self, mixing: Mixing, steps: int, counts: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        """Figures of each source after so many steps with so many of its prompts."""
        shares, total = mean_shares(mixing.stages, steps), max(1, sum(counts.values()))
        return {
            source.name: {
                **source.counts,
                "prompts": counts[source.name],
                "epochs": counts[source.name] / source.size,
                "exhausted": source.left(counts[source.name]) == 0,
                "asked": shares.get(source.name, 0.0),
                "given": counts[source.name] / total,
            }
            for source in self.sources
        }
