"""Rows of a `PackedDataset` as the batches of Megatron-Bridge, in NumPy, or in torch where a program has it."""

import dataclasses
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Batch = dict[str, Any]
# Numbers that are tensors in Bridge's batches.
_NUMBERS = ("max_seqlen_q", "max_seqlen_kv")

_IGNORED = -100


@dataclass
class GenericVisualInputs:
    """The images of a batch, one after another along axis 0; what there is none of is None.

    Attributes:
      pixel_values: float32: `[patches, values]` of models of patches, or `[images, 3, height, width]`, of tiles
        `[tiles, 3, height, width]`.
      image_grid_thw: int64 `[images, 3]`: frames, rows and columns of patches.
    """

    pixel_values: Array | None = None
    pixel_values_videos: Array | None = None
    image_grid_thw: Array | None = None
    video_grid_thw: Array | None = None
    second_per_grid_ts: Array | None = None
    image_sizes: Array | None = None
    image_position_ids: Array | None = None
    mm_token_type_ids: Array | None = None

    def as_model_kwargs(self) -> dict[str, Array]:
        """The arrays that are there, by name."""
        values = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: value for name, value in values if value is not None}

    def normalized_for_model(self) -> dict[str, Array]:
        """The same: all images are along axis 0 already, as Bridge's models take them."""
        return self.as_model_kwargs()


def tensors(batch: Batch) -> Batch:
    """The batch with CPU tensors in place of its arrays, and of the numbers that are tensors in Bridge."""
    import torch

    def tensor(value: Any) -> Any:
        return torch.from_numpy(value) if isinstance(value, np.ndarray) else value

    found = {name: tensor(value) for name, value in batch.items()}
    images: GenericVisualInputs = batch["visual_inputs"]
    values = {name: tensor(value) for name, value in images.as_model_kwargs().items()}
    numbers = {name: torch.tensor(batch[name], dtype=torch.int32) for name in _NUMBERS if batch[name] is not None}
    return {**found, **numbers, "visual_inputs": GenericVisualInputs(**values)}


@dataclass(frozen=True, kw_only=True)
class BatchForm:
    """How rows become a batch.

    Attributes:
      sequence_length: tokens of a row, or of all segments that are joined.
      joins: whether all samples of a batch become the segments of one row (THD).
      pad_to_max_length: whether that row, or each row, is widened to `sequence_length`.
      pad_to_multiple_of: or each row to a multiple of it.
      segment_multiple: if samples are joined, each is widened to a multiple of it.
      tensors: whether batches hold tensors. None: where torch is imported.
    """

    sequence_length: int
    joins: bool
    pad_to_max_length: bool
    pad_to_multiple_of: int
    segment_multiple: int
    tensors: bool | None = None

    def batch(self, rows: Mapping[str, Array], keys: Sequence[str]) -> Batch:
        """The batch of some rows.

        Args:
          rows: arrays of the layout `grain`, with those of images.
          keys: the keys of its samples.
        """
        segments = [segment for row in range(len(rows["tokens"])) for segment in _segments(rows, row)]
        made = self._joined([found for found in segments if found.ids.size]) if self.joins else self._padded(segments)
        batch = {
            **made,
            "visual_inputs": _images(rows),
            "__key__": list(keys),
            "__keys__": list(keys),
            "__restore_key__": [() for _ in keys],
        }
        has_tensors = "torch" in sys.modules if self.tensors is None else self.tensors
        return tensors(batch) if has_tensors else batch

    def _padded(self, samples: "Sequence[_Segment]") -> Batch:
        longest = max(len(sample.ids) for sample in samples)
        multiple = self.pad_to_multiple_of
        width = min(max(-(-longest // multiple), 1) * multiple, max(self.sequence_length, longest))
        width = self.sequence_length if self.pad_to_max_length else width
        return {
            "input_ids": _stacked([sample.ids for sample in samples], width, 0),
            "labels": _stacked([sample.labels for sample in samples], width, _IGNORED),
            "loss_mask": _stacked([sample.loss_mask for sample in samples], width, 0),
            "position_ids": np.tile(np.arange(width), (len(samples), 1)),
            "attention_mask": _stacked([np.ones(len(sample.ids), np.int64) for sample in samples], width, 0),
            **dict.fromkeys(
                ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded", "max_seqlen_q",
                 "max_seqlen_kv", "total_tokens")
            ),
        }  # fmt: skip

    def _joined(self, samples: "Sequence[_Segment]") -> Batch:
        multiple = self.segment_multiple
        samples = samples or [_Segment.padding(multiple)]
        real = [len(sample.ids) for sample in samples]
        padded = [-(-length // multiple) * multiple for length in real]
        if self.pad_to_max_length:
            padded[-1] += max(0, self.sequence_length - sum(padded))
        ends = np.cumsum([0, *real], dtype=np.int32)
        padded_ends = np.cumsum([0, *padded], dtype=np.int32) if padded != real else None

        def joined(arrays: Sequence[Array], fill: int) -> Array:
            parts = (
                np.pad(array, (0, n - len(array)), constant_values=fill)
                for array, n in zip(arrays, padded, strict=True)
            )
            return np.concatenate([*parts])[None]

        return {
            "input_ids": joined([sample.ids for sample in samples], 0),
            "labels": joined([sample.labels for sample in samples], _IGNORED),
            "loss_mask": joined([sample.loss_mask for sample in samples], 0),
            "position_ids": np.concatenate([np.arange(length) for length in padded])[None],
            "attention_mask": None,
            "cu_seqlens_q": ends,
            "cu_seqlens_kv": ends.copy(),
            "cu_seqlens_q_padded": padded_ends,
            "cu_seqlens_kv_padded": None if padded_ends is None else padded_ends.copy(),
            "max_seqlen_q": max(padded),
            "max_seqlen_kv": max(padded),
            "total_tokens": sum(padded),
        }


class _Segment(NamedTuple):
    """A sample: its ids; the ids that follow them where they are trained on; and where that is."""

    ids: Array
    labels: Array
    loss_mask: Array

    @classmethod
    def padding(cls, length: int) -> "_Segment":
        return cls(np.zeros(length, np.int64), np.full(length, _IGNORED, np.int64), np.zeros(length, np.float32))


def _segments(rows: Mapping[str, Array], row: int) -> list[_Segment]:
    """The samples of a row; one that is empty if it has none."""
    number = rows["tokens_segment_ids"][row]
    bounds = np.searchsorted(number[: np.count_nonzero(number)], range(1, int(number.max()) + 2))
    found = []
    for start, end in itertools.pairwise(bounds):
        ids = rows["tokens"][row, start:end].astype(np.int64)
        trained = np.append(rows["tokens_loss_mask"][row, start + 1 : end] != 0, False)
        found.append(_Segment(ids, np.where(trained, np.roll(ids, -1), _IGNORED), trained.astype(np.float32)))
    return found or [_Segment.padding(0)]


def _stacked(arrays: Sequence[Array], width: int, fill: int) -> Array:
    found = np.full((len(arrays), width), fill, arrays[0].dtype)
    for row, array in zip(found, arrays, strict=True):
        row[: len(array)] = array
    return found


def _images(rows: Mapping[str, Array]) -> GenericVisualInputs:
    """The images of all rows in order."""
    there = rows["image_masks"] > 0
    if not there.any():
        return GenericVisualInputs()
    if "images" in rows:  # or tiles of them
        pixels = rows["images"][there]
        has_channels = pixels.ndim == 4 and pixels.shape[-1] == 3
        return GenericVisualInputs(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)) if has_channels else pixels)
    counts = there.sum(axis=1).tolist()
    grids = [grid[:count].astype(np.int64) for grid, count in zip(rows["image_grid_thw"], counts, strict=True)]
    patches = [found[: int(grid.prod(axis=1).sum())] for found, grid in zip(rows["image_patches"], grids, strict=True)]
    return GenericVisualInputs(np.concatenate(patches), image_grid_thw=np.concatenate(grids))
