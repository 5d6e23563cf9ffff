"""The order of the prompts in each epoch."""

import numpy as np
import numpy.typing as npt

import gristmill._core as _core

ORDERS = ("gristmill", "torch", "torchdata")


class Orders:
    """Permutations of `0..count`, one for each epoch.

    Args:
      count: how many prompts there are.
      seed: None: they stay in the order of their records.
      kind: `"gristmill"`: a permutation by seed and epoch; `"torch"`: those that `torch.utils.data.RandomSampler` draws
        from one generator through all epochs, of which it draws another one at each epoch's end; `"torchdata"`: those
        of `torchdata.stateful_dataloader`, which does not.
    """

    def __init__(self, count: int, seed: int | None, kind: str) -> None:
        self._count, self._seed, self._kind = count, seed, kind
        self._last: tuple[int, npt.NDArray[np.uint32]] | None = None

    def of_epoch(self, epoch: int) -> "npt.NDArray[np.uint32]":
        """The order in an epoch."""
        last = self._last
        if last is None or last[0] != epoch:
            self._last = last = (epoch, self._make(epoch))
        return last[1]

    def _make(self, epoch: int) -> "npt.NDArray[np.uint32]":
        if self._seed is None:
            return np.arange(self._count, dtype=np.uint32)
        if self._kind == "gristmill":
            return _core.prompt_order("gristmill", self._count, self._seed, epoch)
        skipped = epoch if self._kind == "torchdata" else 2 * epoch
        return _core.prompt_order("torch", self._count, self._seed, skipped)
