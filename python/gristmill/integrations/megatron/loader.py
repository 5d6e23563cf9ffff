"""`ExternalLoader`: one rank's rows of each global batch under Megatron-LM's names, a micro-batch at a time.

Megatron-LM calls `next` on the first tensor-parallel rank of the first and of the last pipeline stage alone, so nothing
here is a collective.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch

from gristmill import PackedDataset
from gristmill.errors import ArgumentError, StateError
from gristmill.integrations.torch import states
from gristmill.integrations.torch.loader import PartedLoader
from gristmill.integrations.torch.ranks import Ranks
from gristmill.integrations.torch.tensors import Tensors

# The arrays of the layout, which have Megatron-LM's names in a batch.
_OF_ROWS = frozenset(
    {"inputs", "inputs_segmentation", "inputs_position", "targets", "targets_segmentation", "targets_position"}
)
_TAKEN, _FORM = "micro_batches", "micro_batch_size"


class ExternalLoader:
    """An iterator over micro-batches, which a provider of data sets returns with `--dataloader-type external`.

        def datasets_provider(samples):
            rank, world_size = mpu.get_data_parallel_rank(), mpu.get_data_parallel_world_size()
            return ExternalLoader(dataset, args.micro_batch_size, rank, world_size), None, None

        datasets_provider.is_distributed = True

    The dataset's `batch_size` is `--global-batch-size`. With `--dataloader-save`, Megatron-LM saves `save_state()` of
    each data-parallel rank; `restore_state` takes that, or a list of those of all ranks on another number of ranks.

    Args:
      dataset: packed rows in the layout `maxtext`. Training has `epochs=None`; with an end, each rank reads all lanes
        to know it.
      micro_batch_size: rows of a micro-batch.
      rank: the data-parallel rank.
      world_size: the number of data-parallel ranks.
      cu_seqlens: whether batches have `cu_seqlens`, `cu_seqlens_padded` and `max_seqlen`, with which attention keeps
        the documents of a row apart; needs a `micro_batch_size` of 1. Each segment ends where the next one begins, with
        the filling of `pad_segments_to`, which context parallelism needs; the padding behind the last is one of its
        own.

    Raises:
      ArgumentError: a value is not allowed, the global batch cannot be divided, or rows have images.
    """

    def __init__(
        self, dataset: PackedDataset, micro_batch_size: int, rank: int, world_size: int, *, cu_seqlens: bool = False
    ) -> None:
        if cu_seqlens and micro_batch_size != 1:
            raise ArgumentError(f"cu_seqlens=True: Megatron-LM needs micro_batch_size=1 for it, got {micro_batch_size}")
        if "inputs" not in dataset.shapes:
            raise ArgumentError(
                "the layout of the dataset: expected 'maxtext', whose targets are shifted as labels are"
            )
        if images := sorted(name for name in dataset.shapes if name.startswith("image")):
            raise ArgumentError(f"Megatron-LM's batches of text have no place for {', '.join(images)}")
        rows = (dataset.batch_size or 0) // max(1, world_size)
        if rows == 0 or rows % micro_batch_size:
            raise ArgumentError(
                f"batch_size={dataset.batch_size}: expected a multiple of micro_batch_size={micro_batch_size} times "
                f"{world_size} data-parallel ranks"
            )
        self.dataset = dataset
        self._form, self._has_segments = micro_batch_size, cu_seqlens
        self._has_weights = dataset.has_weights
        self._loader = _Alone(dataset, parts=rows // micro_batch_size, rank=rank, world_size=world_size, device="cpu")
        # The micro-batches of the step that is being delivered, how many were, and the state before it.
        self._parts: list[Tensors] = []
        self._taken = 0
        self._before: dict[str, Any] = self._loader.state_dict()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Tensors:
        """The next micro-batch.

        Returns:
          `tokens`, `labels` (shifted; 0 where there is none) and `position_ids` (from 0 in each document), int64, and
          `loss_mask`, float32: `[micro_batch_size, sequence_length]`. With `cu_seqlens` also that, int32
          `[1, segments + 1]`, the same as `cu_seqlens_padded`, and `max_seqlen`, int32 `[1]`. Where messages have
          weights (`train_key`), these are the `loss_mask`. Other fields have the names of the dataset.

        Raises:
          StopIteration: all lanes of all ranks have delivered all their epochs.
          ShardError: a record of this rank's shards cannot be used.
        """
        if self._taken == len(self._parts):
            before = self._loader.state_dict()
            self._parts, self._taken, self._before = self._loader.next_parts(), 0, before
        rows = self._parts[self._taken]
        self._taken += 1
        is_trained = (rows["targets_segmentation"] != 0).float()
        batch = {
            "tokens": rows["inputs"],
            "labels": rows["targets"],
            "loss_mask": rows["targets_weight"] if self._has_weights else is_trained,
            "position_ids": rows["inputs_position"].long(),
            **{name: value for name, value in rows.items() if name not in _OF_ROWS},
        }
        if self._has_segments:
            ends = _borders(rows["inputs_segmentation"][0].numpy(), self.dataset.pad_segments_to or 1)
            batch["cu_seqlens"] = torch.from_numpy(ends[None])
            # Megatron-LM's attention takes the borders with the filling for both.
            batch["cu_seqlens_padded"] = batch["cu_seqlens"].clone()
            batch["max_seqlen"] = torch.from_numpy(np.diff(ends).max(keepdims=True))
        return batch

    def save_state(self) -> dict[str, Any]:
        """The position after the last micro-batch, as strings and integers."""
        is_within = 0 < self._taken < len(self._parts)
        state = self._before if is_within else self._loader.state_dict()
        return {**state, _TAKEN: self._taken if is_within else 0, _FORM: self._form}

    def restore_state(self, state: "Mapping[str, Any] | Sequence[Mapping[str, Any]]") -> None:
        """Moves to a saved position.

        Args:
          state: that of this rank; or a list of those of all ranks, of any number of them.

        Raises:
          StateError: it is of another stream, lacks lanes, or was saved within a global batch of micro-batches of
            another size. The position stays as it was.
        """
        found: dict[str, Any] = {}
        for one in [state] if isinstance(state, Mapping) else state:
            found |= one
        taken, form = found.get(_TAKEN), found.get(_FORM)
        states.nested(found, "ExternalLoader")
        if type(taken) is not int or taken < 0:
            raise StateError(f"expected a state of save_state, got one with {sorted(found)}")
        if taken and (form != self._form or taken >= self._loader.parts):
            raise StateError(
                f"the state was saved within a global batch, after {taken} micro-batches of {form} rows, and restores "
                "only on as many ranks with as many rows: save after whole iterations"
            )
        self._loader.load_state_dict(found)
        self._before = self._loader.state_dict()
        self._parts = self._loader.next_parts() if taken else []
        self._taken = taken

    def close(self) -> None:
        """Stops and joins the threads."""
        self._loader.close()


class _Alone(PartedLoader):
    """A loader that asks no other process."""

    def _processes(self) -> Ranks | None:
        return None


def _borders(segments: "np.ndarray[Any, Any]", multiple: int) -> "np.ndarray[Any, np.dtype[np.int32]]":
    """Where the segments of a row begin, its padding being one, and its end; all of them multiples."""
    starts = np.flatnonzero(np.diff(segments, prepend=-1))
    is_padding = segments[starts] == 0
    starts[is_padding] = -(-starts[is_padding] // multiple) * multiple  # a segment has the filling before
    return np.append(np.unique(starts[starts < len(segments)]), len(segments)).astype(np.int32)
