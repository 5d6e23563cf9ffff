"""The sequence of the global batches: which items are in each, and what a state says of a position between two."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import gristmill._core as _core
from gristmill._mixture.mixing import Mixing
from gristmill._prompts.batches import PADDING
from gristmill._prompts.order import Orders
from gristmill._prompts.spec import PromptSpec
from gristmill._state import prompt_states, states
from gristmill._util.named_values import decode
from gristmill._util.text import counted
from gristmill.errors import ArgumentError, StateError

Items = npt.NDArray[np.int64]


class BatchSequence(Protocol):
    """The items of all global batches."""

    def items_of(self, step: int) -> "Items | None":
        """The items of batch `step`, int64 `[batch_size]`, with `PADDING` where there is none; None after the end.

        Raises:
          ArgumentError: there is no such batch, and never will be.
        """

    def position(self, step: int) -> dict[str, Any]:
        """A state's entries about the position before batch `step`: the one asked for last, or the next one."""

    def restore(self, state: prompt_states.PromptState) -> int:
        """Moves to a saved position. Returns the number of the next batch.

        Raises:
          StateError: the state belongs to another stream, or is damaged; nothing was moved.
        """

    def stats(self, step: int) -> dict[str, Any]:
        """Figures of the batches before `step`."""


def of(spec: PromptSpec, orders: Sequence[Orders]) -> BatchSequence:
    """The sequence of a dataset. Each source, or the whole, has its own `orders`."""
    return EpochSequence(spec, orders[0]) if spec.mixing is None else MixedSequence(spec, spec.mixing, orders)


class EpochSequence:
    """Permutations of all prompts, one after another."""

    def __init__(self, spec: PromptSpec, orders: Orders) -> None:
        self._spec, self._orders = spec, orders

    def items_of(self, step: int) -> "Items | None":
        """See `BatchSequence`."""
        spec, steps = self._spec, self._spec.steps_per_epoch
        if not len(spec.rows):
            raise ArgumentError(
                f"there are no prompts, only {counted(spec.counts['read'], 'record')}: dataset.counts() says what "
                "became of them"
            )
        if not steps:
            raise ArgumentError(
                f"batch_size={spec.batch_size}: there are only {len(spec.rows)} prompts, so that no batch "
                "is full; lower batch_size=, or set drop_remainder=False"
            )
        epoch, number = divmod(step, steps)
        if (epochs := spec.sources[0].epochs) is not None and epoch >= epochs:
            return None
        order = self._orders.of_epoch(epoch)[number * spec.batch_size : (number + 1) * spec.batch_size]
        items = np.full(spec.batch_size, PADDING, np.int64)
        items[: len(order)] = order
        return items

    def position(self, step: int) -> dict[str, Any]:
        """See `BatchSequence`."""
        spec = self._spec
        epoch, number = divmod(step, max(spec.steps_per_epoch, 1))
        rest = len(spec.rows) % spec.batch_size
        is_cut = spec.drop_remainder and spec.steps_per_epoch > 0
        delivered = epoch * (len(spec.rows) - (rest if is_cut else 0)) + number * spec.batch_size
        return {
            "version": prompt_states.VERSION,
            "epoch": epoch,
            "place": number * spec.batch_size,
            "counts": {"batches": step, "prompts": delivered, "left_out": epoch * rest if is_cut else 0},
        }

    def restore(self, state: prompt_states.PromptState) -> int:
        """See `BatchSequence`."""
        spec = self._spec
        if state["fingerprint"] != spec.fingerprint:
            raise _of_another_stream(_differences(decode(state["fingerprint"]), decode(spec.fingerprint)))
        states.check_ids(state["ids"], spec.encoder.ids_fingerprint)
        epoch, place = state["epoch"], state["place"]
        number, rest = divmod(place, spec.batch_size)
        if rest or number >= max(spec.steps_per_epoch, 1):
            raise StateError(
                f"the state's place is {place}: expected a multiple of batch_size={spec.batch_size} below that of the "
                f"{spec.steps_per_epoch} batches of an epoch"
            )
        step: int = epoch * spec.steps_per_epoch + number
        return step

    def stats(self, step: int) -> dict[str, Any]:
        """See `BatchSequence`."""
        return {"epoch": self.position(step)["epoch"]}


class MixedSequence:
    """Prompts of several sources, each of which has its permutations one after another.

    A position is how many prompts of each source were delivered.
    """

    def __init__(self, spec: PromptSpec, mixed: Mixing, orders: Sequence[Orders]) -> None:
        self._spec, self._mixing, self._orders = spec, mixed, orders
        nothing = (0,) * len(spec.by_name)
        # The counts before the last batch that was asked for, and after it.
        self._before: tuple[int, tuple[int, ...]] = (0, nothing)
        self._after: tuple[int, tuple[int, ...]] = (0, nothing)

    def items_of(self, step: int) -> "Items | None":
        """See `BatchSequence`."""
        at, counts = self._after if self._after[0] <= step else self._before
        while True:
            sources = self._sources_of(at, counts)
            delivered = tuple(count + int((sources == index).sum()) for index, count in enumerate(counts))
            if self._is_over(sources):
                if at == 0:
                    found = int((sources >= 0).sum())
                    raise ArgumentError(
                        f"batch_size={self._spec.batch_size}: the sources have only {found} prompts until the mixture "
                        "ends, so that no batch is full; lower batch_size=, or set "
                        "drop_remainder=False"
                    )
                self._before = self._after = (at, counts)
                return None
            self._before, self._after = (at, counts), (at + 1, delivered)
            if at == step:
                return self._items(sources, counts)
            at, counts = self._after

    def _is_over(self, sources: "npt.NDArray[np.int32]") -> bool:
        missing = int((sources < 0).sum())
        return missing == len(sources) or (missing > 0 and self._spec.drop_remainder)

    def _sources_of(self, step: int, counts: Sequence[int]) -> "npt.NDArray[np.int32]":
        """The source of each prompt of a batch, by its index in the order of the names, or -1."""
        left = [source.left(count) for source, count in zip(self._spec.by_name, counts, strict=True)]
        return _core.prompt_sources(self._mixing, self._spec.batch_size, self._spec.seed, step, left)

    def _items(self, sources: "npt.NDArray[np.int32]", counts: Sequence[int]) -> Items:
        items = np.full(len(sources), PADDING, np.int64)
        for index, (source, count) in enumerate(zip(self._spec.by_name, counts, strict=True)):
            (places,) = np.nonzero(sources == index)
            if not len(places):
                continue
            epochs, numbers = np.divmod(count + np.arange(len(places)), source.size)
            for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
                own = epochs == epoch
                items[places[own]] = source.first + self._orders[index].of_epoch(epoch)[numbers[own]].astype(np.int64)
        return items

    def _counts_at(self, step: int) -> tuple[int, ...]:
        return (self._after if self._after[0] == step else self._before)[1]

    def position(self, step: int) -> dict[str, Any]:
        """See `BatchSequence`."""
        counts = self._counts_at(step)
        return {
            "version": prompt_states.MIXTURE_VERSION,
            "step": step,
            "sources": {name: count for name, count in zip(self._mixing.names, counts, strict=True) if count},
            "counts": {"batches": step, "prompts": sum(counts)},
        }

    def restore(self, state: prompt_states.PromptState) -> int:
        """See `BatchSequence`."""
        if different := prompt_states.incompatibilities(state, self._spec.fingerprint):
            raise _of_another_stream(different)
        states.check_ids(state["ids"], self._spec.encoder.ids_fingerprint)
        step: int = state["step"]
        counts = tuple(state["sources"].get(name, 0) for name in self._mixing.names)
        self._before = self._after = (step, counts)
        return step

    def stats(self, step: int) -> dict[str, Any]:
        """See `BatchSequence`."""
        counts = dict(zip(self._mixing.names, self._counts_at(step), strict=True))
        return {"sources": self._spec.stats_of_sources(self._mixing, step, counts)}


def _differences(saved: Mapping[str, str], current: Mapping[str, str]) -> str:
    changed = sorted(name for name in saved.keys() | current.keys() if saved.get(name) != current.get(name))
    return ", ".join(
        f"{name} was {saved.get(name, 'the default')} and is {current.get(name, 'the default')}" for name in changed
    )


def _of_another_stream(different: str) -> StateError:
    return StateError(
        f"the state was saved by another dataset: {different}. Use the same records, tokenizer and arguments as "
        "the run that saved it"
    )
