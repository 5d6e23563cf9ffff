"""`Loader`: a stream's batches as tensors, with a state that restores on any number of ranks."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch.utils.data import get_worker_info

from gristmill import PackedDataset
from gristmill._util import checks
from gristmill.errors import ArgumentError, ArgumentTypeError
from gristmill.integrations.torch import flattening, states
from gristmill.integrations.torch.ranks import Ranks, all_ranks, own_rank, whole_state
from gristmill.integrations.torch.steps import Rows
from gristmill.integrations.torch.tensors import Mover, Tensors, device_of, on_cpu, on_device


class Loader:
    """An iterator over the batches of one rank, as dicts of tensors. It needs no `DataLoader` and no worker processes.

    Rank r of n has the rows r·B/n up to (r+1)·B/n of each global batch of B rows: the stream does not depend on the
    number of ranks. Its state is that of the batches that were yielded, whatever was prepared ahead. It has the methods
    of torchdata's `StatefulDataLoader` and of `torch.distributed.checkpoint`'s `Stateful`.

    All processes of the default process group make it, and take as many batches: the first `next` and, with finite
    epochs, each one is a collective, of a group of its own on CPUs. They end together: a rank whose lanes have ended
    gets rows of padding, without labels, until the last lane of the last rank has ended. Without a process group, ranks
    of finite epochs read all lanes to know the end, and deliver their own rows.

    `iter` continues where the last one stopped. After the end, it begins again.

    Args:
      dataset: a `gm.PackedDataset` with a `batch_size`, also of a mixture or of images; a `gm.PromptDataset`; a
        `gm.PackedRows`, of which each batch has one row; or a `grain.MapDataset` of batches, such as
        `grain.MapDataset.source(rows).shuffle(seed=1).batch(16)`.
      rank: the data-parallel rank of this process. None: that of the process group, or 0 without one. Processes that
        share their rows, as with tensor, pipeline or context parallelism, have the same.
      world_size: the number of data-parallel ranks. None: that of the process group, or 1.
      device: where the tensors are. None: the current GPU, or the CPU without one.
      prefetch: batches that are copied to a GPU ahead, from pinned memory on a stream of its own. The dataset has a
        `prefetch` of its own for batches in memory.
      padding_free: whether a batch is one row `[1, n]` of its tokens without padding: `input_ids`, `labels` (not
        shifted; -100 where nothing is trained and on the first token of each segment), `position_ids`,
        `cu_seq_lens_q`, `cu_seq_lens_k` (int32 `[segments + 1]`), `max_length_q`, `max_length_k` (integers); no mask.
        Fields of tokens are `[1, n, ...]`, fields of samples `[1, segments, ...]`. Rows of nothing but padding are one
        element of padding.

    Attributes:
      dataset: the dataset.
      rank: the data-parallel rank of this process.
      world_size: the number of data-parallel ranks.
      batch_size: the rows of this rank in a batch; with `stages` in one of the first.

    Raises:
      ArgumentError: a value is not allowed, the batch cannot be divided among the ranks, or `padding_free` has images.
      ArgumentTypeError: an argument is of the wrong type.
    """

    def __init__(
        self,
        dataset: Any,
        rank: int | None = None,
        world_size: int | None = None,
        device: "str | torch.device | None" = None,
        prefetch: int = 2,
        padding_free: bool = False,
    ) -> None:
        self.dataset = dataset
        self.rank, self.world_size = own_rank(rank, world_size)
        self._prefetch = checks.integer("prefetch", prefetch, 0, 1024)
        self._is_flat = checks.boolean("padding_free", padding_free)
        self._device = device_of(device)
        self._ranks = self._processes()
        self._rows = Rows(dataset, self.rank, self.world_size, self._ranks, with_mask=self._is_flat)
        self.batch_size = self._rows.rows
        if self._is_flat and any(name.startswith("image") for name in self._rows.contents or ()):
            raise ArgumentError("padding_free=True: rows with images keep their padding; leave it out")
        self._steps = self._rows.steps()
        self._start = self._steps.get_state()
        self._mover = Mover(self._device) if self._device.type == "cuda" else None
        # Batches that are on the way to the device: their parts, each with the event after its copies; and the state.
        self._ahead: deque[tuple[list[tuple[Tensors, Any]], dict[str, Any]]] = deque()
        # The state after the last batch; None: that of the steps, none of which is ahead.
        self._state: dict[str, Any] | None = None
        self._is_compared = self._ranks is None
        self._is_at_end = False

    def __iter__(self) -> Self:
        if self._is_at_end:
            self._move(self._start)
        return self

    def __next__(self) -> Tensors:
        """The next batch.

        Returns:
          A dict of tensors, the arrays of the dataset by their names: `[rows of this rank, ...]`, on the CPU with the
          memory of the arrays. Ids, position ids and labels are int64, other arrays have their own types; columns of
          objects are lists. With `padding_free`, see there.

        Raises:
          StopIteration: all lanes of all ranks have delivered all their epochs.
          ShardError: a record of this rank's shards cannot be used.
          ArgumentError: the processes have different streams, or other ranks than were named: raised on all of them. Or
            several worker processes of a `DataLoader` call it.
          StateError: the processes resumed at different steps: raised on all of them.
        """
        return self.next_parts()[0]

    def next_parts(self) -> list[Tensors]:
        """The next batch in its parts, see `PartedLoader`."""
        if self._is_at_end:
            raise StopIteration
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise ArgumentError(
                f"a DataLoader has {worker.num_workers} worker processes, each of which would deliver all rows of this "
                "rank: use the Loader itself, whose threads do their work"
            )
        self._compare()
        try:
            return self._made(next(self._steps)) if self._mover is None else self._moved(self._mover)
        except StopIteration:
            self._is_at_end = True
            raise

    def _moved(self, mover: Mover) -> list[Tensors]:
        """The next batch on the device, where some after it are on the way to it."""
        try:
            while len(self._ahead) <= self._prefetch:
                moved = [mover.move(part) for part in self._made(next(self._steps))]
                self._ahead.append((moved, self._steps.get_state()))
        except Exception:  # also that there are no more
            if not self._ahead:  # else it comes again, after the batches before it
                raise
        moved, self._state = self._ahead.popleft()
        return [mover.ready(batch, event) for batch, event in moved]

    def _made(self, arrays: dict[str, Any]) -> list[Tensors]:
        contents = self._rows.contents
        found = [
            on_cpu(flattening.flattened(part, contents) if self._is_flat else part) for part in self._divided(arrays)
        ]
        return found if self._device.type in ("cpu", "cuda") else [on_device(part, self._device) for part in found]

    def _divided(self, arrays: dict[str, Any]) -> list[dict[str, Any]]:
        return [arrays]

    def _processes(self) -> Ranks | None:
        """The processes that take batches together."""
        return all_ranks()

    def _compare(self) -> None:
        """Compares the ranks, streams and steps of all processes, once after each start."""
        if self._ranks is not None and not self._is_compared:
            self._ranks.check_parts(self.rank, self.world_size)
            self._ranks.check_same(self._rows.fingerprint, _step(self._steps.get_state()), self._rows.differences)
            self._is_compared = True

    def __len__(self) -> int:
        """The number of batches from the first to the last.

        Raises:
          TypeError: it is not known before the end, as of packed text, or there is none.
        """
        if self._rows.length is None:
            raise TypeError(
                "the number of batches is not known before the end, or there is no end; a DataLoader asks for it and "
                "is not needed: iterate over the Loader itself"
            )
        return self._rows.length

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was yielded: strings and integers, with a key for each lane.

        Returns:
          A flat dict. The states of several ranks, joined by `|` after the same batch, are the state of all.
        """
        return states.flat(self._steps.get_state() if self._state is None else self._state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Moves to a saved position; the next batch is the one that followed there.

        Args:
          state_dict: one that holds at least the lanes of this rank: its own, or those of all ranks joined by `|`, from
            any number of ranks.

        Raises:
          StateError: it belongs to another stream, lacks lanes, or is damaged. The position stays as it was.
        """
        self._move(states.nested(state_dict, "Loader"))

    def _move(self, state: Mapping[str, Any]) -> None:
        self._steps.set_state(state)
        self._ahead.clear()
        self._state, self._is_at_end, self._is_compared = None, False, self._ranks is None

    def stats(self) -> dict[str, Any]:
        """Figures of this rank's lanes, see `PackedDatasetIterator.stats`; those of batches by index are empty."""
        stats = getattr(self._steps, "stats", None)
        return {} if stats is None else stats()

    def close(self) -> None:
        """Stops and joins the threads. Yielded batches stay valid."""
        self._steps.close()

    def __reduce__(self) -> Any:
        raise ArgumentTypeError(
            "a Loader has threads, and is neither pickled nor copied: pickle the dataset, and save the state_dict()"
        )


class PartedLoader(Loader):
    """A loader whose batches are delivered in equal parts, as accumulation of gradients takes them.

    Args:
      dataset: see `Loader`.
      parts: the number of parts of a batch of this rank.
      more: further arguments of `Loader`.

    Attributes:
      parts: their number.

    Raises:
      ArgumentError: the rows of this rank cannot be divided into as many.
    """

    def __init__(self, dataset: Any, *, parts: int, **more: Any) -> None:
        if isinstance(dataset, PackedDataset):
            dataset.check_one_size("a trainer that divides batches into parts")
        super().__init__(dataset, **more)
        self.parts = parts
        if self.batch_size % parts:
            raise ArgumentError(f"a rank's {self.batch_size} rows of a step cannot be divided into {parts} parts")

    def _divided(self, arrays: dict[str, Any]) -> list[dict[str, Any]]:
        rows = self.batch_size // self.parts
        return [
            {name: array[number * rows : (number + 1) * rows] for name, array in arrays.items()}
            for number in range(self.parts)
        ]


class WholeState:
    """The state of a loader for checkpoints that one process writes, such as those of accelerate.

    `state_dict` is called on all processes, and is that of all of them; `load_state_dict` restores it on any number.

        accelerator.register_for_checkpointing(WholeState(loader))

    Args:
      loader: the loader of this process.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def state_dict(self) -> dict[str, Any]:
        """The position of all processes, see `Loader.state_dict`."""
        return whole_state(self._loader.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Moves to a saved position, see `Loader.load_state_dict`."""
        self._loader.load_state_dict(state_dict)


def _step(state: Mapping[str, Any]) -> Any:
    """The step of a state; of prompts also the epoch."""
    return state["step"] if "step" in state else (state["epoch"], state["place"])
