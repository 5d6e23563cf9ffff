"""The rows of one rank of each step of a stream, as arrays: of packed rows, of prompts, and of batches by index."""

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from gristmill import PackedDataset, PackedRows, PromptDataset
from gristmill.errors import ArgumentError, ArgumentTypeError, StateError
from gristmill.integrations.torch.ranks import Ranks

Arrays = dict[str, Any]
_IGNORED_LABEL = -100


class Steps(Protocol):
    """An iterator over the rows of one rank: that of a dataset of gristmill's, or `IndexedSteps`."""

    def __next__(self) -> Arrays:
        """The rows of the next step."""

    def get_state(self) -> dict[str, Any]:
        """The position after the last step."""

    def set_state(self, state: Any) -> None:
        """Moves to a position."""

    def close(self) -> None:
        """Ends its threads."""


class Rows:
    """A dataset, of which one rank takes its rows.

    Attributes:
      steps: makes an iterator over them.
      rows: the number of rows of this rank in a step.
      length: the number of steps; None if it is not known, or there is no end.
      contents: what each array of a step holds, by its name; None if it is not known before the first one.
      fingerprint: names the stream.
      differences: says how the stream differs from that of another fingerprint.
      batch_size: rows of a step of all ranks.
    """

    def __init__(
        self, dataset: Any, rank: int, world_size: int, ranks: Ranks | None, *, with_mask: bool = False
    ) -> None:
        """Takes the rows of one rank.

        Args:
          dataset: see `Loader`.
          rank: this rank.
          world_size: the number of ranks.
          ranks: the processes that end together; None: there is one, or no process group.
          with_mask: whether rows of the layout `hf` have a mask of their tokens.

        Raises:
          ArgumentError: the dataset has no batches, or they cannot be divided among so many ranks.
          ArgumentTypeError: it is no dataset.
        """
        self.steps: Callable[[], Steps]
        self.length: int | None = None
        self.contents: Mapping[str, str] | None = None
        self.differences: Callable[[str], str] = lambda _: ""
        if isinstance(dataset, PackedDataset):
            self._take_packed(dataset, rank, world_size, ranks, with_mask)
        elif isinstance(dataset, PromptDataset):
            prompts = dataset.for_hosts(rank, world_size)
            self.steps = lambda: iter(prompts)
            self.batch_size, self.length, self.fingerprint = prompts.rows_per_batch, prompts.steps, prompts.fingerprint
        elif hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not isinstance(dataset, str | bytes):
            indexed = IndexedSteps(dataset, rank, world_size)
            self.steps = lambda: IndexedSteps(dataset, rank, world_size)
            self.batch_size, self.length, self.fingerprint = indexed.batch_size, indexed.steps, indexed.fingerprint
        else:
            raise ArgumentTypeError(
                f"dataset: expected a gm.PackedDataset, gm.PromptDataset, gm.PackedRows or a grain.MapDataset of "
                f"batches, got {type(dataset).__name__}"
            )
        self.rows = self.batch_size // world_size

    def _take_packed(
        self, dataset: PackedDataset, rank: int, world_size: int, ranks: Ranks | None, with_mask: bool
    ) -> None:
        if dataset.batch_size is None:
            raise ArgumentError("batch_size=None: a rank takes its rows of a batch; set the dataset's batch_size")
        if world_size == 1 and len(dataset.own_lanes) < dataset.lanes:
            raise ArgumentError(
                f"the dataset has the lanes {dataset.own_lanes} of {dataset.lanes}, as one of several hosts: pass "
                "rank= and world_size=, and leave shard_index= and shard_count= out"
            )
        # Ranks without a process group cannot vote: then each reads all lanes, and knows the end of all.
        alone = world_size > 1 and ranks is None and dataset.ends
        reads_all = alone or dataset.equal_steps
        name, number = ("batch_size", dataset.batch_size) if reads_all else ("lanes", dataset.lanes)
        if number % world_size:
            raise ArgumentError(
                f"world_size={world_size}: the number of ranks must divide the dataset's {name}={number}"
            )
        own = dataset.for_hosts(
            rank, world_size, equal_steps=True if alone else None, attention_mask=True if with_mask else None
        )
        if ranks is not None and not own.equal_steps:
            self.steps = lambda: own.iterate_together(ranks.vote)
        else:
            self.steps = lambda: iter(own)
        self.batch_size = dataset.batch_size
        self.contents = own.contents
        self.fingerprint, self.differences = own.fingerprint, own.differences


class IndexedSteps:
    """Steps of a dataset with random access: of its batches, or of `gm.PackedRows` one row for each rank.

    Attributes:
      batch_size: rows of a step of all ranks.
      steps: the number of steps.
      fingerprint: names the dataset, see `described`.
    """

    def __init__(self, dataset: Any, rank: int, world_size: int) -> None:
        self._dataset, self._rank, self._world_size = dataset, rank, world_size
        self._has_rows = isinstance(dataset, PackedRows)
        # Rows, or batches, that all ranks together have taken.
        self._taken = 0
        count = len(dataset)
        self.batch_size = world_size if self._has_rows else _rows_of(dataset[0], world_size) if count else world_size
        self.steps = -(-count // world_size) if self._has_rows else count
        self.fingerprint = described(dataset)

    def __next__(self) -> Arrays:
        """The rows of this rank in the next step.

        Raises:
          StopIteration: all were taken.
        """
        count = len(self._dataset)
        if self._taken >= count:
            raise StopIteration
        if self._has_rows:
            own = self._taken + self._rank
            row = self._dataset[min(own, count - 1)]
            found = {name: (array if own < count else _padding(name, array))[None] for name, array in row.items()}
            self._taken = min(self._taken + self._world_size, count)
            return found
        batch = self._dataset[self._taken]
        rows = _rows_of(batch, self._world_size) // self._world_size
        self._taken += 1
        return {name: array[self._rank * rows : (self._rank + 1) * rows] for name, array in batch.items()}

    def get_state(self) -> dict[str, Any]:
        """The position after the last step, the same on all ranks."""
        return {"fingerprint": self.fingerprint, "step": self._taken}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Moves to a position.

        Raises:
          StateError: it is of another dataset, or damaged.
        """
        own, found = self.fingerprint, state.get("fingerprint")
        if found != own:
            raise StateError(f"the state was saved by another dataset: it was {found}, and is {own}")
        taken = state.get("step")
        if type(taken) is not int or not 0 <= taken <= len(self._dataset):
            raise StateError(f"a state's step is an integer from 0 to {len(self._dataset)}, got {taken!r}")
        self._taken = taken

    def close(self) -> None:
        """Does nothing: there are no threads."""


def described(dataset: Any) -> str:
    """A description of a dataset with random access, the same in all processes and runs that make the same one.

    The `repr` of a `grain.MapDataset` has an address of memory. Its description has the classes, numbers and texts of
    each transformation, such as its seed, and the number of items. Functions are not told apart.
    """
    if not hasattr(dataset, "_parents"):
        text = repr(dataset)
        return text if " at 0x" not in text else f"{type(dataset).__name__} of {len(dataset)}"
    cached = {name for kind in type(dataset).__mro__ for name, value in vars(kind).items() if _is_cached(value)}
    values = {
        name.lstrip("_"): value.item() if isinstance(value, np.generic) else value
        for name, value in sorted(vars(dataset).items())
        if name not in cached and isinstance(value, int | float | str | np.generic)
    }
    source = vars(dataset).get("_source")
    parts = [described(parent) for parent in dataset._parents] + ([] if source is None else [described(source)])
    settings = [f"{name}={value!r}" for name, value in values.items()]
    return f"{type(dataset).__name__}({', '.join([*parts, *settings, f'len={len(dataset)}'])})"


def _is_cached(value: Any) -> bool:
    return isinstance(value, functools.cached_property)


def _rows_of(batch: Any, world_size: int) -> int:
    """The rows of a batch.

    Raises:
      ArgumentError: they cannot be divided among the ranks, or the arrays differ in their number.
      ArgumentTypeError: it is no dict of arrays with rows.
    """
    if not isinstance(batch, Mapping) or any(np.ndim(array) == 0 for array in batch.values()) or not batch:
        raise ArgumentTypeError(
            "dataset: expected items that are batches, dicts of arrays [rows, ...]: use .batch() of Grain; files "
            "of texts or conversations, also those that datasets saves, are read by gm.PackedDataset"
        )
    sizes = {name: operator.index(len(array)) for name, array in batch.items()}
    rows = next(iter(sizes.values()))
    if set(sizes.values()) != {rows}:
        raise ArgumentError(f"dataset: expected arrays of as many rows in a batch, found {sizes}")
    if rows % world_size:
        raise ArgumentError(f"a batch of {rows} rows cannot be divided among world_size={world_size} ranks")
    return rows


def _padding(name: str, row: Any) -> Any:
    """A row of padding of an array."""
    return np.full_like(row, _IGNORED_LABEL if name == "labels" else 0)
