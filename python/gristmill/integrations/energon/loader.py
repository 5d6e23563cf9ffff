"""Loaders with the methods that Megatron-Bridge's training loop calls."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from gristmill import PackedDataset, PackedDatasetIterator, merge_states
from gristmill.errors import GristmillError, StateError
from gristmill.integrations.energon.batches import Batch, BatchForm
from gristmill.integrations.energon.keys import SampleKeys

T = TypeVar("T")
_State = dict[str, Any]
_KEYS = {"stream", "micro_batch", "micro_batch_size", "ranks"}


class BatchLoader:
    """The batches of one rank: what `datasets_provider` returns. Each `iter` begins at the first batch.

    Attributes:
      dataset: the rows.
    """

    def __init__(self, dataset: PackedDataset, form: BatchForm, micro_batch_size: int, ranks: int) -> None:
        self.dataset = dataset
        self._form = form
        self._keys = SampleKeys(dataset.pieces)
        self._size = micro_batch_size
        self._ranks = ranks
        self._rows: PackedDatasetIterator | None = None
        # The state at the last whole step, None at the beginning; and how many batches after it were delivered.
        self._stream: _State | None = None
        self._delivered = 0
        self._is_restored = False

    @property
    def is_endless(self) -> bool:
        """Whether its batches do not end."""
        return not self.dataset.ends

    def __iter__(self) -> Iterator[Batch]:
        """Batches from the first one on, or once from where `restore_state_rank` has moved to."""
        if not self._is_restored:
            self.rewind()
        self.close()
        self._is_restored = False
        return self._batches(self._stream, self._delivered)

    def _batches(self, start: "_State | None", skipped: int) -> Iterator[Batch]:
        self._rows = rows = iter(self.dataset)
        if start is not None:
            rows.set_state(start)
        self._stream, is_new = rows.get_state(), True
        while True:
            step = next(rows, None)
            if step is None and is_new and start is not None:  # saved at the end, after which it begins again
                self.rewind()
                yield from self._batches(None, 0)
            if step is None:
                return
            is_new = False
            count = len(step["tokens"]) // self._size
            for number in range(skipped, count):
                part = slice(number * self._size, (number + 1) * self._size)
                found = {name: array[part] for name, array in step.items()}
                batch = self._form.batch(found, self._keys.of(found["provenance"]))
                # The position within a step is the state before it and a number of batches.
                self._delivered = (number + 1) % count
                if not self._delivered:
                    self._stream = rows.get_state()
                yield batch
            skipped = 0

    def rewind(self) -> None:
        """Has the next `iter` begin at the first batch."""
        self.close()
        self._stream, self._delivered, self._is_restored = None, 0, False

    def save_state_rank(self) -> dict[str, Any]:
        """The position after the last batch, as values that JSON has.

        Returns:
          A dict. After a whole global batch, those of all ranks together restore on any number of ranks.
        """
        if self._stream is None:
            if self._rows is None:
                self._rows = iter(self.dataset)
            self._stream = self._rows.get_state()
        return {
            "stream": self._stream,
            "micro_batch": self._delivered,
            "micro_batch_size": self._size,
            "ranks": self._ranks,
        }

    def restore_state_rank(self, state: "Mapping[str, Any] | Sequence[Mapping[str, Any]]") -> None:
        """Has the next `iter` begin where a state was saved.

        Args:
          state: that of this rank; or, to continue with another number of ranks, a list of those of all ranks.

        Raises:
          StateError: it is no state of these data, lacks what this rank reads, or was saved within a global batch on
            another number of ranks. Nothing changes then.
        """
        found = [state] if isinstance(state, Mapping) else list(state)
        for one in found:
            if not isinstance(one, Mapping) or set(one) != _KEYS:
                raise StateError(f"expected a state of save_state, with the keys {sorted(_KEYS)}, or a list of them")
        if not found:
            raise StateError("expected at least one state, got none")
        first = found[0]
        if any(one[name] != first[name] for one in found for name in _KEYS - {"stream"}):
            raise StateError("the states were saved after different batches, or by different runs")
        if first["micro_batch"] and (first["ranks"], first["micro_batch_size"]) != (self._ranks, self._size):
            raise StateError(
                f"the state was saved within a global batch, after {first['micro_batch']} batches of "
                f"{first['micro_batch_size']} rows on {first['ranks']} ranks, and restores only on as many: save after "
                "whole global batches"
            )
        stream = merge_states([one["stream"] for one in found])
        with iter(self.dataset) as probe:
            self._check(probe, stream, first["ranks"])
        self._stream, self._delivered, self._is_restored = stream, first["micro_batch"], True

    def _check(self, probe: PackedDatasetIterator, stream: _State, ranks: int) -> None:
        try:
            probe.set_state(stream)
        except StateError as error:
            if ranks == self._ranks:
                raise
            raise StateError(
                f"{error}. The state was saved by {ranks} ranks, and there are {self._ranks}: pass global_batch_size= "
                "to the data module, so that the stream does not depend on them, and a list of the states of all ranks"
            ) from error

    def stats(self) -> dict[str, Any]:
        """See `PackedDatasetIterator.stats`; of what was left out, `filtered`, `quarantined` and `undecodable`."""
        if self._rows is None:
            self._rows = iter(self.dataset)
        return self._rows.stats()

    def close(self) -> None:
        """Ends its threads."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None


class EnergonDataloader:
    """An endless iterator over a loader, which begins again at its end, with a state.

    `iter` gives the loader itself, so that it keeps its methods. A loader that ends, such as that of validation, also
    begins at the first batch again.

    Args:
      dataloader: a `BatchLoader`, or any iterable with `save_state_rank` and `restore_state_rank`.
    """

    def __init__(self, dataloader: Any) -> None:
        self.dataloader = dataloader
        self._iter = cyclic_iter(dataloader)
        self._is_at_start = True

    def __next__(self) -> Any:
        self._is_at_start = False
        return next(self._iter)

    def __iter__(self) -> "EnergonDataloader":
        if not getattr(self.dataloader, "is_endless", True) and not self._is_at_start:
            self.dataloader.rewind()
            self._iter = cyclic_iter(self.dataloader)
            self._is_at_start = True
        return self

    def save_state(self) -> Any:
        """The position after the last batch, see `BatchLoader.save_state_rank`."""
        return self.dataloader.save_state_rank()

    def restore_state(self, state: Any) -> None:
        """Moves to a saved position, at any time, see `BatchLoader.restore_state_rank`."""
        self.dataloader.restore_state_rank(state)
        self._iter = cyclic_iter(self.dataloader)
        self._is_at_start = True

    def stats(self) -> dict[str, Any]:
        """Figures of the loader, see `BatchLoader.stats`."""
        found: dict[str, Any] = self.dataloader.stats()
        return found

    def close(self) -> None:
        """Ends its threads."""
        self.dataloader.close()


def cyclic_iter(iter: Iterable[T]) -> Iterator[T]:  # noqa: A002 - the name that Bridge has
    """The items of an iterable, again and again.

    Raises:
      GristmillError: it has none.
    """
    while True:
        item = None
        for item in iter:
            yield item
        if item is None:
            raise GristmillError("an iterable without items cannot be repeated: there are no samples")
