"""Layouts: names and meaning of the arrays of a batch of prompts.

    verl     input_ids, attention_mask, position_ids (int64), raw_prompt_ids      left
    hf       input_ids, attention_mask, position_ids (int32)                      left
    maxtext  {c}, {c}_segmentation, {c}_position, {c}_true_length (int32)         right
    tunix    prompts: strings; of pairs {c}_ids, {c}_mask (int32)                 left
    ragged   ids (int32), offsets (int64); of pairs {c}_ids, {c}_offsets          none

A prompt with a loss mask has {c}_loss_mask, 1 on the tokens that are trained on, of the same dtype and padding as its
ids; in `ragged` beside them. In `hf` it has {c}_labels, too: its ids, and -100 elsewhere.

With several prompts the names of `verl` and `hf` begin with that of the prompt, and what follows the first one is
padded on the right: it continues a prompt.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gristmill._prompts import exact
from gristmill._prompts.reading import Ids, Mask

# Not a label.
_IGNORED = -100

LAYOUTS = ("verl", "maxtext", "tunix", "hf", "ragged")
Batch: TypeAlias = "dict[str, npt.NDArray[Any]]"


@dataclass(frozen=True)
class Layout:
    """The arrays that prompts become.

    Attributes:
      name: one of `LAYOUTS`.
      columns: the names of the prompts.
      length: the elements of a row.
      padding: the side on which each prompt is padded.
      pad: the id of padding.
      masked: for each prompt whether it has a loss mask.
    """

    name: str
    columns: Sequence[str]
    length: int
    padding: Sequence[str]
    pad: int
    masked: Sequence[bool]

    @property
    def is_text(self) -> bool:
        """Whether prompts are delivered as strings."""
        return self.name == "tunix" and len(self.columns) == 1

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """The shape of a row and the dtype of each array, objects excepted; `ragged` has none that is fixed."""
        return {
            key: shape
            for column, has_mask in zip(self.columns, self.masked, strict=True)
            for key, shape in self._shapes_of(column, has_mask=has_mask).items()
        }

    @property
    def keys(self) -> list[str]:
        """The names of all arrays, prompt by prompt."""
        return [
            key
            for column, has_mask in zip(self.columns, self.masked, strict=True)
            for keys in (self._shapes_of(column, has_mask=has_mask), self._unshaped_keys(column, has_mask=has_mask))
            for key in keys
        ]

    def _shapes_of(self, column: str, *, has_mask: bool) -> dict[str, tuple[tuple[int, ...], Any]]:
        return self._id_shapes(column) | self._mask_shapes(column, has_mask=has_mask)

    def _id_shapes(self, column: str) -> dict[str, tuple[tuple[int, ...], Any]]:
        wide, prefix = (self.length,), self._prefix(column)
        if self.name in ("verl", "hf"):
            dtype = np.int64 if self.name == "verl" else np.int32
            return {f"{prefix}{key}": (wide, dtype) for key in ("input_ids", "attention_mask", "position_ids")}
        if self.name == "maxtext":
            keys = (column, f"{column}_segmentation", f"{column}_position")
            return {**dict.fromkeys(keys, (wide, np.int32)), f"{column}_true_length": ((1,), np.int32)}
        if self.name == "tunix" and not self.is_text:
            return dict.fromkeys((f"{column}_ids", f"{column}_mask"), (wide, np.int32))
        return {}

    def _mask_shapes(self, column: str, *, has_mask: bool) -> dict[str, tuple[tuple[int, ...], Any]]:
        if not has_mask or self.name == "ragged":
            return {}
        dtype = np.int64 if self.name == "verl" else np.int32
        return dict.fromkeys(self._mask_keys(column), ((self.length,), dtype))

    def _mask_keys(self, column: str) -> list[str]:
        prefix = f"{column}_" if self.name == "maxtext" else self._prefix(column)
        return [f"{prefix}loss_mask", *([f"{prefix}labels"] if self.name == "hf" else [])]

    def _unshaped_keys(self, column: str, *, has_mask: bool) -> list[str]:
        prefix = self._prefix(column)
        if self.name == "verl":
            return [f"{prefix}raw_prompt_ids"]
        if self.name == "ragged":
            return [f"{prefix}ids", f"{prefix}offsets", *(self._mask_keys(column) if has_mask else [])]
        return ["prompts"] if self.is_text else []

    def batch(
        self, ids: Sequence[Sequence[Ids]], masks: Sequence[Sequence[Mask] | None], texts: Sequence[str] | None
    ) -> Batch:
        """The arrays of some rows.

        Args:
          ids: for each prompt, those of each row; none of a row of padding.
          masks: for each prompt with a loss mask, that of each row.
          texts: the texts of the rows, if `is_text`.
        """
        if texts is not None and self.is_text:
            return {"prompts": as_objects(texts)}
        make = {
            "verl": self._verl,
            "hf": self._hf,
            "maxtext": self._maxtext,
            "tunix": self._tunix,
            "ragged": self._ragged,
        }[self.name]
        return {
            key: array
            for column, side, rows, mask in zip(self.columns, self.padding, ids, masks, strict=True)
            for key, array in (make(column, side, rows) | self._loss_mask(column, side, rows, mask)).items()
        }

    def item(self, batch: Batch) -> dict[str, Any]:
        """The only row of a batch, as an item."""
        return {
            key: array if self.name == "ragged" else array[0]
            for key, array in batch.items()
            if not (self.name == "ragged" and key.endswith("offsets"))
        }

    def _prefix(self, column: str) -> str:
        return f"{column}_" if len(self.columns) > 1 else ""

    def _verl(self, column: str, side: str, rows: Sequence[Ids]) -> Batch:
        arrays = self._masked(column, side, rows, np.int64)
        return {**arrays, f"{self._prefix(column)}raw_prompt_ids": as_objects([row.tolist() for row in rows])}

    def _hf(self, column: str, side: str, rows: Sequence[Ids]) -> Batch:
        return self._masked(column, side, rows, np.int32)

    def _masked(self, column: str, side: str, rows: Sequence[Ids], dtype: Any) -> Batch:
        ids, mask = self._padded(side, rows, dtype)
        prefix = self._prefix(column)
        return {
            f"{prefix}input_ids": ids,
            f"{prefix}attention_mask": mask,
            f"{prefix}position_ids": np.clip(np.cumsum(mask, axis=1, dtype=dtype) - 1, 0, None),
        }

    def _maxtext(self, column: str, side: str, rows: Sequence[Ids]) -> Batch:
        ids, mask = self._padded(side, rows, np.int32)
        return {
            column: ids,
            f"{column}_segmentation": mask,
            f"{column}_position": (np.cumsum(mask, axis=1, dtype=np.int32) - 1) * mask,
            f"{column}_true_length": mask.sum(axis=1, dtype=np.int32, keepdims=True),
        }

    def _tunix(self, column: str, side: str, rows: Sequence[Ids]) -> Batch:
        ids, mask = self._padded(side, rows, np.int32)
        return {f"{column}_ids": ids, f"{column}_mask": mask}

    def _ragged(self, column: str, side: str, rows: Sequence[Ids]) -> Batch:
        del side
        prefix = self._prefix(column)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        ids = np.concatenate([np.empty(0, np.int32), *rows], dtype=np.int32, casting="unsafe")
        return {f"{prefix}ids": ids, f"{prefix}offsets": offsets}

    def _loss_mask(self, column: str, side: str, rows: Sequence[Ids], masks: Sequence[Mask] | None) -> Batch:
        if masks is None:
            return {}
        keys = self._mask_keys(column)
        if self.name == "ragged":
            return {keys[0]: np.concatenate([np.empty(0, np.int32), *masks], dtype=np.int32)}
        mask = self._aligned(side, masks, 0, np.int64 if self.name == "verl" else np.int32)
        if self.name != "hf":
            return {keys[0]: mask}
        ids = self._aligned(side, rows, self.pad, np.int32)
        return dict(zip(keys, (mask, np.where(mask, ids, np.int32(_IGNORED))), strict=True))

    def _padded(self, side: str, rows: Sequence[Ids], dtype: Any) -> "tuple[npt.NDArray[Any], npt.NDArray[Any]]":
        """The ids of each row and where they are, `[rows, length]`."""
        ids = self._aligned(side, rows, self.pad, dtype)
        return ids, self._aligned(side, [np.ones(len(row), np.bool_) for row in rows], 0, dtype)

    def _aligned(self, side: str, rows: Sequence[Ids] | Sequence[Mask], pad: int, dtype: Any) -> "npt.NDArray[Any]":
        """Values of the tokens of each row, `[rows, length]`."""
        array = np.full((len(rows), self.length), pad, dtype)
        for index, row in enumerate(rows):
            array[index, slice(self.length - len(row), None) if side == "left" else slice(0, len(row))] = row
        return array


def padding_of(layout: str, given: str | None, columns: int) -> list[str]:
    """The side on which each prompt is padded, by default the layout's own."""
    if given is not None:
        return [given] * columns
    if layout == "maxtext":
        return ["right"] * columns
    return ["left", *["right"] * (columns - 1)]


def as_objects(values: Sequence[Any]) -> "npt.NDArray[np.object_]":
    """An array of objects as they are, lists too."""
    return np.fromiter(values, dtype=object, count=len(values))


def as_plain_column(values: Sequence[Any]) -> "npt.NDArray[Any]":
    """A 1-D array without nested values, which are JSON text: of numbers or booleans if all are such."""
    flat = [json.dumps(exact.as_json(value)) if isinstance(value, (dict, list)) else value for value in values]
    for kinds, dtype in (((bool,), np.bool_), ((int,), np.int64), ((int, float), np.float64)):
        if all(type(value) in kinds for value in flat):
            try:
                return np.array(flat, dtype)
            except OverflowError:
                break
    return as_objects(flat)
