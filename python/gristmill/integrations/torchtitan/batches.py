"""`RankBatches`: one rank's rows of each global batch as torchtitan's tensors, a microbatch at a time.

    step of the stream        the rows of an optimizer step of all ranks: global_batch_size
    rank's rows of a step     global_batch_size / dp_world_size, its lanes' rows
    microbatch                local_batch_size of them: what the trainer's `next` gets

The stream does not depend on the number of ranks, and its state has a key for each lane. So torch's distributed
checkpoint, in which a rank reads the keys that its own state has, restores it on another number of ranks.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from gristmill import PackedDataset
from gristmill._util import checks
from gristmill.errors import ArgumentError, StateError
from gristmill.integrations.torch import states
from gristmill.integrations.torch.ranks import all_ranks

TrainerBatch = tuple[dict[str, torch.Tensor], torch.Tensor]

_IGNORED_LABEL = -100  # torchtitan's IGNORE_INDEX
_OF_TEXT = frozenset(
    {"inputs", "inputs_segmentation", "inputs_position", "targets", "targets_segmentation", "targets_position"}
)


class RankBatches:
    """An iterator over the microbatches of one rank, with torchtitan's `Stateful` methods.

    All ranks of `torch.distributed` make it, and take as many batches: the first `next` and, with finite epochs, each
    one is a collective. They end together: a rank whose lanes have ended gets rows of padding, without labels, until
    the last lane of the last rank has ended.

    Args:
      dataset: this rank's rows of each step, in the layout `maxtext`.
      rows: rows of a microbatch.
      dp_world_size: data-parallel ranks, which share the rows of a step.
      is_flat: whether a batch is one sequence of all its rows' tokens, as torchtitan has them since August 2026.

    Raises:
      ArgumentError: the rank's rows of a step are no whole microbatches, or have images.
    """

    def __init__(self, dataset: PackedDataset, *, rows: int, dp_world_size: int, is_flat: bool) -> None:
        if others := dataset.shapes.keys() - _OF_TEXT:
            raise ArgumentError(f"torchtitan's batches of text have no place for {', '.join(sorted(others))}")
        dataset.check_one_size("torchtitan")
        own, other = divmod(dataset.batch_size or 0, dp_world_size)
        if own == 0 or own % rows or other:
            raise ArgumentError(
                f"global_batch_size={dataset.batch_size}: expected a multiple of the {rows} rows of a batch times "
                f"{dp_world_size} data-parallel ranks"
            )
        self.dataset = dataset
        self._ranks = all_ranks()
        self._steps = iter(dataset) if self._ranks is None else dataset.iterate_together(self._ranks.vote)
        self._is_compared = self._ranks is None
        self._rows, self._count, self._dp_world_size, self._is_flat = rows, own // rows, dp_world_size, is_flat
        # The step that is being delivered: its rows, the state before it, and how many batches were delivered.
        self._step: dict[str, Any] | None = None
        self._before: dict[str, Any] | None = None
        self._delivered = 0

    def __iter__(self) -> Iterator[TrainerBatch]:
        return self

    def __next__(self) -> TrainerBatch:
        """The next microbatch.

        Returns:
          `({"input", "positions"}, labels)`, int64 `[rows, sequence_length]`, or `[rows * sequence_length]` if flat.
          Labels are shifted: that of a token is the one which follows it in its document, or -100. Positions count
          from 0 in each document of a row.

        Raises:
          StopIteration: all lanes of all ranks have delivered all their epochs.
          ShardError: a record of this rank's shards cannot be used.
          ArgumentError: the ranks have different streams: raised on all of them.
          StateError: the ranks resumed at different steps: raised on all of them.
        """
        if self._step is None:
            self._compare()
            before = self._steps.get_state() if self._count > 1 else None
            self._step = next(self._steps)
            self._before = before
        start = self._delivered * self._rows
        batch = self._tensors({name: array[start : start + self._rows] for name, array in self._step.items()})
        self._delivered += 1
        if self._delivered == self._count:
            self._step, self._before, self._delivered = None, None, 0
        return batch

    def _compare(self) -> None:
        """Compares the streams and the steps of all ranks, once after each start."""
        if self._ranks is not None and not self._is_compared:
            step = self._steps.get_state()["step"]
            self._ranks.check_same(self.dataset.fingerprint, step, self.dataset.differences)
            self._is_compared = True

    def _tensors(self, rows: Mapping[str, Any]) -> TrainerBatch:
        labels = np.where(rows["targets_segmentation"] != 0, rows["targets"], _IGNORED_LABEL)
        arrays = (rows["inputs"], rows["inputs_position"], labels)
        # torchtitan's own are int64, which its loss needs.
        tensors = [torch.from_numpy(array.astype(np.int64)) for array in arrays]
        inputs, positions, targets = (tensor.flatten() if self._is_flat else tensor for tensor in tensors)
        return {"input": inputs, "positions": positions}, targets

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch: strings and integers, with a key for each lane of this rank.

        The states of all ranks together, as torch's distributed checkpoint joins them, are the state of the whole
        stream.
        """
        state = self._before if self._delivered else self._steps.get_state()
        assert state is not None
        return states.flat(state, dp_world_size=self._dp_world_size, rows=self._rows, delivered=self._delivered)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Moves to a saved position.

        Args:
          state_dict: one that holds at least the lanes of this rank, from any data-parallel degree: its own, or
            those of all ranks joined as dicts. An empty one changes nothing.

        Raises:
          StateError: it belongs to another stream, lacks lanes, is damaged, or was saved between the microbatches of
            a step on another data-parallel degree. The position stays as it was.
        """
        if not state_dict:
            return
        stream = states.nested(state_dict, "RankBatches")
        try:
            delivered, form = state_dict["delivered"], (state_dict["dp_world_size"], state_dict["rows"])
        except KeyError as error:
            raise StateError(f"expected a state_dict of RankBatches, got one with {sorted(state_dict)}") from error
        if type(delivered) is not int or delivered < 0 or (delivered and delivered >= self._count):
            raise StateError(f"the state_dict was saved after {delivered} batches of a step of {self._count}")
        if delivered and form != (self._dp_world_size, self._rows):
            raise StateError(
                f"the state was saved within a step, after {delivered} batches of {form[1]} rows on {form[0]} "
                "data-parallel ranks, and restores only on as many: save after whole optimizer steps"
            )
        self._steps.set_state(stream)
        self._step, self._before, self._delivered = None, self._steps.get_state(), delivered
        self._is_compared = self._ranks is None

    def stats(self) -> dict[str, Any]:
        """Figures of this rank's lanes, see `PackedDatasetIterator.stats`."""
        return self._steps.stats()

    def close(self) -> None:
        """Stops and joins the threads. Delivered batches stay valid."""
        self._steps.close()


def rows_of(num_tokens: int, sequence_length: int) -> int:
    """The rows of `sequence_length` tokens of a batch of `num_tokens` tokens.

    Raises:
      ArgumentError: they are no whole rows.
    """
    if num_tokens < sequence_length or num_tokens % sequence_length:
        raise ArgumentError(
            f"num_tokens_per_microbatch_per_dp_rank={num_tokens}: expected a multiple of "
            f"max_context_length={sequence_length}, the tokens of a row"
        )
    return checks.integer("num_tokens_per_batch", num_tokens // sequence_length, 1, 2**20)
