"""`ResumableSampler`: veRL's order of prompts, with a position that restores exactly."""

from collections.abc import Iterator, Sized
from typing import Any

from gristmill._prompts.order import ORDERS, Orders
from gristmill._util import checks
from gristmill.errors import StateError

try:
    from verl.experimental.dataset.sampler import AbstractSampler
except ImportError:
    AbstractSampler = object

# The seed of a generator of torch that was not seeded: with `seed: null` veRL's order is that of it.
_DEFAULT_SEED = 67280421310721


class ResumableSampler(AbstractSampler):  # type: ignore[misc, unused-ignore]
    """The order in which veRL delivers prompts, for `data.sampler`: its states restore exactly, in every epoch.

    With `shuffle` the order of veRL's own sampler, bit for bit: `data.order` is `"torch"` (0.6; the default),
    `"torchdata"` (0.7 and later), or `"gristmill"`. Each `iter` is the next epoch. A state that was saved at the end of
    an epoch, so that no batch of it is left, restores at the beginning of the next one. veRL wants
    `data.dataloader_num_workers=0` with it.

    Args:
      data_source: the data set.
      data_config: veRL's `data`: `shuffle`, `seed`, `order`, and `gen_batch_size` or `train_batch_size`.
    """

    def __init__(self, data_source: Sized, data_config: Any) -> None:
        seed = data_config.get("seed", None)
        shuffle = data_config.get("shuffle", True)
        kind = checks.choice("order", data_config.get("order", "torch"), ORDERS)
        self._count = len(data_source)
        self._orders = Orders(self._count, (_DEFAULT_SEED if seed is None else seed) if shuffle else None, kind)
        self._batch = data_config.get("gen_batch_size", None) or data_config.get("train_batch_size", None) or 1
        self._epoch = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> "SamplerIterator":
        iterator = SamplerIterator(self, self._epoch)
        self._epoch += 1
        return iterator


class SamplerIterator(Iterator[int]):
    """The indices of one epoch, with a state."""

    def __init__(self, sampler: ResumableSampler, epoch: int) -> None:
        self._sampler = sampler
        self._move(epoch, 0)

    def __next__(self) -> int:
        if self._place == len(self._order):
            raise StopIteration
        self._place += 1
        return int(self._order[self._place - 1])

    def state_dict(self) -> dict[str, int]:
        """The epoch, and how many of its indices were taken."""
        return {"epoch": self._epoch, "place": self._place, "count": len(self._order)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Moves to a saved position.

        Raises:
          StateError: it is of another number of prompts.
        """
        sampler = self._sampler
        if state["count"] != len(sampler):
            raise StateError(f"the state is of {state['count']} prompts, and there are {len(sampler)}")
        is_over = state["count"] - state["place"] < sampler._batch
        epoch, place = (state["epoch"] + 1, 0) if is_over else (state["epoch"], state["place"])
        self._move(epoch, place)
        sampler._epoch = epoch + 1

    def _move(self, epoch: int, place: int) -> None:
        self._epoch, self._place = epoch, place
        self._order = self._sampler._orders.of_epoch(epoch)
