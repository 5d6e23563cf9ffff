"""`DataModule`: the loaders of a training run of Lightning.

Lightning fetches a batch ahead, to know which one is the last, and its checkpoints are those of the batches that were
trained. So the loader keeps the states after the last batches, and saves that of as many as were trained.
"""

from collections.abc import Iterator, Mapping
from typing import Any

try:
    from lightning.pytorch import LightningDataModule
except ModuleNotFoundError:
    from pytorch_lightning import LightningDataModule

from gristmill.errors import StateError
from gristmill.integrations.torch.loader import Loader
from gristmill.integrations.torch.passes import Pass
from gristmill.integrations.torch.ranks import whole_state
from gristmill.integrations.torch.tensors import Tensors

# More batches than Lightning fetches ahead.
_KEPT_STATES = 8


class DataModule(LightningDataModule):
    """A `LightningDataModule` over streams.

    A checkpoint holds the state of all lanes after the batches that were trained, and restores on any number of
    processes. An epoch of Lightning is a pass over the stream with all its epochs; an endless stream needs `max_steps`.
    With `accumulate_grad_batches`, `batch_size` is that of one of the batches.

    Args:
      train: what `gristmill.integrations.torch.Loader` takes.
      val: what is validated on, or a list or dict of such: streams that end. All processes take equally many steps.
      padding_free: see `Loader`.
    """

    def __init__(self, train: Any, val: Any = None, *, padding_free: bool = False) -> None:
        super().__init__()
        self.train, self.val, self._is_flat = train, val, padding_free

    def train_dataloader(self) -> "TrainBatches":
        """The batches of this process: see `Loader`. It has a state."""
        return TrainBatches(self.trainer, Loader(self.train, **self._place()))

    def val_dataloader(self) -> Any:
        """The batches of each validation, from the first to the last."""
        if isinstance(self.val, Mapping):
            return {name: Pass(dataset, **self._place()) for name, dataset in self.val.items()}
        if isinstance(self.val, list | tuple):
            return [Pass(dataset, **self._place()) for dataset in self.val]
        return [] if self.val is None else Pass(self.val, **self._place())

    def _place(self) -> dict[str, Any]:
        """The arguments of `Loader` that the trainer knows: its data-parallel rank and device."""
        strategy = self.trainer.strategy
        place = getattr(strategy, "distributed_sampler_kwargs", None) or {"rank": 0, "num_replicas": 1}
        return {
            "rank": place["rank"],
            "world_size": place["num_replicas"],
            "device": strategy.root_device,
            "padding_free": self._is_flat,
        }


class TrainBatches:
    """The batches that a trainer fetches, with the state after those that it has trained.

    `iter` begins behind the last trained batch; at the end of the stream, at its beginning.
    """

    def __init__(self, trainer: Any, loader: Loader) -> None:
        self.dataset, self.batch_size = loader.dataset, loader.batch_size
        self._trainer, self._loader = trainer, loader
        self._start = loader.state_dict()
        # How many batches the trainer had trained before this `iter`; and the states since, by the batches fetched.
        self._base, self._fetched = 0, 0
        self._states: dict[int, dict[str, Any]] = {0: self._start}

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Tensors]:
        trained = self._trained()
        if trained < self._fetched:
            self._loader.load_state_dict(self._state(trained))
        self._begin()
        return self._batches()

    def _begin(self) -> None:
        self._base += self._trained()
        self._fetched, self._states = 0, {0: self._loader.state_dict()}

    def _batches(self) -> Iterator[Tensors]:
        while True:
            try:
                (batch,) = self._loader.next_parts()
            except StopIteration:
                if self._fetched:
                    return
                self._loader.load_state_dict(self._start)
                (batch,) = self._loader.next_parts()
            self._fetched += 1
            self._states[self._fetched] = self._loader.state_dict()
            self._states.pop(self._fetched - _KEPT_STATES, None)
            yield batch

    def _trained(self) -> int:
        """The batches that were trained since the last `iter`."""
        return int(self._trainer.fit_loop.epoch_loop.batch_progress.total.processed) - self._base

    def _state(self, trained: int) -> dict[str, Any]:
        if trained not in self._states:
            raise StateError(f"the trainer has trained {trained} batches since its start, and fetched {self._fetched}")
        return self._states[trained]

    def state_dict(self) -> dict[str, Any]:
        """The position after the last trained batch, of all processes; called on all of them."""
        return whole_state(self._state(self._trained()))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Moves to a saved position, see `Loader.load_state_dict`."""
        self._loader.load_state_dict(state_dict)
        self._begin()
