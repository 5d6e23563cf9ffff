"""`PromptIterator`: the batches of all epochs, from any position."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import grain
import numpy as np
import numpy.typing as npt

from gristmill._dataset import grain_compat
from gristmill._prompts.batches import PADDING, make_batch
from gristmill._prompts.layouts import Batch
from gristmill._prompts.order import Orders
from gristmill._prompts.spec import PromptSpec
from gristmill._state import prompt_states, states
from gristmill._state.checkpoint_files import read_merged
from gristmill._util.named_values import decode
from gristmill.errors import ArgumentError, StateError


@dataclass(frozen=True, eq=False)
class HostRows:
    """What this process makes of each global batch.

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


class PromptIterator(grain.DatasetIterator[Batch]):
    """Iterates over the batches of a `PromptDataset`; made by `iter(dataset)`, and a context manager.

    It has no threads: a batch is copied from memory in its `next`.
    """

    def __init__(self, spec: PromptSpec, host: HostRows, orders: Orders) -> None:
        super().__init__()
        self._spec, self._host, self._orders = spec, host, orders
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
          ArgumentError: the iterator was closed, or an epoch has no batch.
        """
        self._assert_not_closed()
        steps, epochs = self._spec.steps_per_epoch, self._spec.epochs
        if not steps:
            raise ArgumentError(
                f"batch_size={self._spec.batch_size}: there are only {len(self._spec.rows)} prompts, so that no batch "
                "is full; lower batch_size=, or set drop_remainder=False"
            )
        step = self._host.next_step(self._step)
        epoch, number = divmod(step, steps)
        if epochs is not None and epoch >= epochs:
            raise StopIteration
        with grain_compat.measured(self):
            batch = grain_compat.recorded(self, self._make(epoch, number))
        self._step = step + 1
        return batch

    def _make(self, epoch: int, number: int) -> Batch:
        spec = self._spec
        order = self._orders.of_epoch(epoch)
        places = number * spec.batch_size + self._host.rows // spec.num_generations
        items = np.where(places < len(order), order[np.minimum(places, len(order) - 1)].astype(np.int64), PADDING)
        # The rows of one prompt are next to one another: it is made once, and repeated.
        is_first = np.ones(len(places), bool)
        is_first[1:] = places[1:] != places[:-1]
        if is_first.all() or spec.layout.name == "ragged":
            return make_batch(spec, items.tolist())
        batch = make_batch(spec, items[is_first].tolist())
        return {key: array[np.cumsum(is_first) - 1] for key, array in batch.items()}

    def get_state(self) -> dict[str, Any]:
        """The state after the last batch: a fresh dict of integers and strings.

        Returns:
          `epoch` and `place`: how many prompts of the epoch's order were passed; `counts` of what was delivered;
          `fingerprint` and `ids`, which say of which stream it is.
        """
        spec, step = self._spec, self._step
        epoch, number = divmod(step, max(spec.steps_per_epoch, 1))
        rest = len(spec.rows) % spec.batch_size
        is_cut = spec.drop_remainder and spec.steps_per_epoch > 0
        delivered = epoch * (len(spec.rows) - (rest if is_cut else 0)) + number * spec.batch_size
        return {
            "version": prompt_states.VERSION,
            "fingerprint": spec.fingerprint,
            "ids": spec.encoder.ids_fingerprint,
            "epoch": epoch,
            "place": number * spec.batch_size,
            "counts": {"batches": step, "prompts": delivered, "left_out": epoch * rest if is_cut else 0},
        }

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
        self._step = position(self._spec, state)

    async def load(self, directory: Any) -> Any:
        """Reads the states of all processes; called by Orbax's `load_checkpointables`."""

        async def load() -> None:
            self.set_state(await asyncio.to_thread(read_merged, directory))

        return load()

    def stats(self) -> dict[str, Any]:
        """The counts of the state, those of the records, and `rows` and `epoch`."""
        state = self.get_state()
        rows = state["counts"]["batches"] * len(self._host.rows)
        return {**self._spec.counts, **state["counts"], "rows": rows, "epoch": state["epoch"]}

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


def position(spec: PromptSpec, state: Mapping[str, Any]) -> int:
    """The number of global batches that were delivered when a state was saved.

    Raises:
      StateError: see `PromptIterator.set_state`.
    """
    checked = prompt_states.check(state)
    if checked["fingerprint"] != spec.fingerprint:
        saved, current = decode(checked["fingerprint"]), decode(spec.fingerprint)
        changed = sorted(name for name in saved.keys() | current.keys() if saved.get(name) != current.get(name))
        described = ", ".join(
            f"{name} was {saved.get(name, 'the default')} and is {current.get(name, 'the default')}" for name in changed
        )
        raise StateError(
            f"the state was saved by another dataset: {described}. Use the same records, tokenizer and arguments as "
            "the run that saved it"
        )
    states.check_ids(checked["ids"], spec.encoder.ids_fingerprint)
    epoch, place = checked["epoch"], checked["place"]
    number, rest = divmod(place, spec.batch_size)
    if rest or number >= max(spec.steps_per_epoch, 1):
        raise StateError(
            f"the state's place is {place}: expected a multiple of batch_size={spec.batch_size} below that of the "
            f"{spec.steps_per_epoch} batches of an epoch"
        )
    step: int = epoch * spec.steps_per_epoch + number
    return step
