"""`PromptIterator`: the batches of all epochs, from any position."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gristmill._prompts import sequence
from gristmill._prompts.batches import make_batch
from gristmill._prompts.layouts import Batch
from gristmill._prompts.order import Orders
from gristmill._prompts.spec import PromptSpec
from gristmill._state import prompt_states
from gristmill._state.checkpoint_files import read_merged
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
        self._sequence = sequence.of(spec, orders)
        # How many global batches were delivered, those of other workers included.
        self._step = 0

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
        with grain_compat.measured(self):
            items = self._sequence.items_of(step)
            batch = None if items is None else grain_compat.recorded(self, self._make(items, step))
        if batch is None:
            raise StopIteration
        self._step = step + 1
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
          which stream it is.
        """
        stream = {"fingerprint": self._spec.fingerprint, "ids": self._spec.encoder.ids_fingerprint}
        return {**self._sequence.position(self._step), **stream}

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
        self._step = self._sequence.restore(prompt_states.check(state))

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
