"""`PromptIterator`: the batches of all epochs, from any position."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gristmill._prompts import sequence
from gristmill._prompts.batches import PADDING, make_batch
from gristmill._prompts.layouts import Batch
from gristmill._prompts.order import Orders
from gristmill._prompts.spec import PromptSpec
from gristmill._state import prompt_states
from gristmill._state.checkpoint_files import read_merged
from gristmill._state.commits import Commits
from gristmill._util import grain_compat
from gristmill.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class HostRows:
    """The rows that this process makes of each global batch.

    Attributes:
      rows: the rows of the global batch that it holds.
      first: the first batch that it makes.
      every: it makes each so-manieth batch from there on.
    """

    rows: "npt.NDArray[np.intp]"
    first: int = 0
    every: int = 1

    def sliced(self, first: int, every: int) -> "HostRows":
        """The part of a worker process that shares the batches with others."""
        return replace(self, first=self.first + first * self.every, every=self.every * every)

    def next_step(self, step: int) -> int:
        """The first of its steps that is not before `step`."""
        return step + (self.first - step) % self.every


class PromptIterator(grain_compat.DatasetIterator[Batch]):
    """Iterates over the batches of a `PromptDataset`; made by `iter(dataset)`, and a context manager.

    It has no threads: a batch is copied from memory in its `next`.
    """

    def __init__(self, spec: PromptSpec, host: HostRows, orders: Sequence[Orders]) -> None:
        super().__init__()
        self._spec, self._host = spec, host
        self._orders = orders
        self._sequence = sequence.of(spec, orders)
        # How many global batches were delivered, those of other workers included, and when this iterator began.
        self._step = self._started_at = 0
        self._last: int | None = None
        self._commits = Commits(lambda step: step * spec.batch_size, lambda _: False)

    @grain_compat.unwrapped
    def __next__(self) -> Batch:
        """The next batch.

        Returns:
          A dict of arrays, see `PromptDataset`: the rows of this process, in the order of the global batch. The arrays
          are the caller's to keep and to change.

        Raises:
          StopIteration: all epochs were delivered.
          ArgumentError: the iterator was closed; an epoch has no batch; or a source of a mixture is exhausted, and
            `on_exhausted="error"`.
        """
        self._assert_not_closed()
        step = self._host.next_step(self._step)
        while step in self._commits.committed.steps:
            step = self._host.next_step(step + 1)
        self._commits.note(self._step, self._position)
        with grain_compat.measured(self):
            items = self._sequence.items_of(step)
            if items is not None and (committed := self._commits.rows_of(step)):
                items = items.copy()
                items[[row for row in committed if row < len(items)]] = PADDING
            if items is not None and (empty := np.flatnonzero(items == PADDING)).size:
                self._commits.delivered_empty(step, empty.tolist())
            batch = None if items is None else grain_compat.recorded(self, self._make(items, step))
        if batch is None:
            raise StopIteration
        self._step, self._last = step + 1, step
        return batch

    def _make(self, items: "npt.NDArray[np.int64]", step: int) -> Batch:
        """The rows of this process, of a batch of these items."""
        spec = self._spec
        places = self._host.rows // spec.num_generations
        own = items[places]
        # The rows of one prompt are next to one another: it is made once, and repeated.
        is_first = np.ones(len(places), bool)
        is_first[1:] = places[1:] != places[:-1]
        if is_first.all() or spec.layout.name == "ragged":
            batch = make_batch(spec, own.tolist())
        else:
            batch = make_batch(spec, own[is_first].tolist())
            batch = {key: array[np.cumsum(is_first) - 1] for key, array in batch.items()}
        return batch | spec.arrays_of_sources(own.tolist(), step)

    def get_state(self) -> dict[str, Any]:
        """The state after the last batch: a fresh dict of integers and strings.

        Returns:
          `epoch` and `place`: how many prompts of the epoch's order were passed; of a mixture `step` and `sources`, the
          batches, and the prompts of each source; `counts` of what was delivered; `fingerprint` and `ids`, which say of
          which stream it is. After the first `commit` it counts what was committed, and not what was delivered.
        """
        return dict(self._commits.state(self._position, self._step))

    def _position(self) -> dict[str, Any]:
        """The state after the last batch."""
        return {**self._sequence.position(self._step), **self._stream()}

    def _stream(self) -> dict[str, Any]:
        return {"fingerprint": self._spec.fingerprint, "ids": self._spec.encoder.ids_fingerprint}

    def commit(self, what: "int | Sequence[int] | npt.NDArray[np.integer[Any]]") -> None:
        """Says that a batch, or prompts of batches, were trained on: for loops with a queue between loader and trainer.

        From the first call on, states count what was committed, in any order. A restored iterator delivers each batch
        that was not; of a batch of which some prompts were, their rows are padding, with `index` -1. Call it on every
        host with the same batches.

        Args:
          what: the number of a batch, from 0, or ids of prompts, see `ids`. Committing again changes nothing; an
            empty list only begins to count, before a state that is saved ahead of the first commit.

        Raises:
          ArgumentError: a batch or prompt was not delivered, or this is one of several worker processes.
          ArgumentTypeError: it is neither a number nor ids.
        """
        if self._host.every > 1:
            raise ArgumentError("commit: worker processes of Grain share the batches; load them in this process")
        self._commits.commit(what, self._started_at, self._step, self._start_position, self._position)

    def _start_position(self) -> dict[str, Any]:
        """The state before the first batch."""
        return {**sequence.of(self._spec, self._orders).position(0), **self._stream()}

    @property
    def step(self) -> int | None:
        """The number of the last batch, from 0; None before the first one."""
        return self._last

    @property
    def ids(self) -> "npt.NDArray[np.int64]":
        """The ids of the prompts in the rows of the last batch, int64 `[rows]`, for `commit`.

        Prompt p of batch t has the id `t * batch_size + p`, which several rows have with `num_generations`; the same
        prompt has another id in each epoch.
        """
        if self._last is None:
            return np.empty(0, np.int64)
        places = np.asarray(self._host.rows, np.int64) // self._spec.num_generations
        return self._last * self._spec.batch_size + places

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Moves to a saved position; the next batch is the one that followed there, on any number of hosts.

        Args:
          state: one that an iterator of the same stream saved on any host. `epochs`, `columns` and what else leaves the
            stream as it is may differ.

        Raises:
          StateError: the state belongs to another stream, or is damaged; the iterator stays where it was.
          ArgumentError: the iterator was closed.
        """
        self._assert_not_closed()
        checked = prompt_states.check(state)
        self._step = self._started_at = self._sequence.restore(checked)
        self._last = None
        self._commits.restart(checked, self._step)

    async def load(self, directory: Any) -> Any:
        """Reads the states of all processes; called by Orbax's `load_checkpointables`."""

        async def load() -> None:
            self.set_state(await asyncio.to_thread(read_merged, directory))

        return load()

    def stats(self) -> dict[str, Any]:
        """The counts of the state, those of the records, and `rows` and `epoch`.

        With a mixture, instead of `epoch`, `sources`: a dict for each source by name, with the counts of its records,
        its `prompts`, `epochs` (how often it was delivered), `exhausted`, `asked` (the share that the weights have
        asked for up to here) and `given` (its share of the prompts).
        """
        counts = self._sequence.position(self._step)["counts"]
        rows = counts["batches"] * len(self._host.rows)
        return {**self._spec.counts, **counts, "rows": rows, **self._sequence.stats(self._step)}

    def close(self) -> None:
        """Ends the iterator. Delivered batches stay valid."""
        if hasattr(self, "_step"):
            super().close()

    @property
    def _parent(self) -> Any:
        return grain_compat.no_parent()

    def _assert_not_closed(self) -> None:
        if self._closed:
            raise ArgumentError("this iterator was closed: create another one of the dataset")

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
