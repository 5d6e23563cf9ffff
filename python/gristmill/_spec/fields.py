"""The content of each field of a batch. The core lists them: `_core.layout_fields`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import gristmill._core as _core

# Contents that are ids, or stand for none.
_IDS = ("token", "target", "label")
# Contents that are values of the fields of samples.
OF_TOKENS, OF_SAMPLES = ("value", "target_value"), "sample_value"
VALUES = (*OF_TOKENS, OF_SAMPLES)
# Contents that are 0 on padding and nowhere else; or the lengths of segments, of rows that begin with their tokens.
_MARKS = ("segment", "mask", "segment_length")


def token_field(fields: Sequence[_core.Field]) -> str:
    """The name of the field that holds the tokens of a row."""
    return _first(fields, ("token",))


def mark_field(fields: Sequence[_core.Field]) -> str:
    """The name of a field whose first element that is not 0 has the index of a row's first token."""
    return _first(fields, _MARKS)


def id_fields(fields: Sequence[_core.Field]) -> list[str]:
    """The names of the fields that hold ids."""
    return [field.name for field in fields if field.content in _IDS]


def fields_of_packed(names: Sequence[str], sequence_length: int) -> list[_core.Field] | None:
    """The arrays that packed rows may hold, by the layout whose tokens are among their names; None: of no layout.

    A document of the Megatron format has the name of the first layout's tokens.
    """
    layouts = (
        _core.layout_fields(layout, sequence_length, 1, (0, 4), has_mask=True, source_arrays=True)
        for layout in _core.LAYOUTS
    )
    return next((own for own in layouts if not has_lengths(own) and token_field(own) in names), None)


def has_lengths(fields: Sequence[_core.Field]) -> bool:
    """Whether segments are told by their lengths, and not by a number for each token, so that rows are not packed."""
    return any(field.content == "segment_length" for field in fields)


def first_token(marks: npt.NDArray[Any]) -> int:
    """The index in a row of its first token, given the row's field named by `mark_field`; 0 if it has none."""
    return int(np.argmax(marks != 0))


def _first(fields: Sequence[_core.Field], contents: Sequence[str]) -> str:
    return next(field.name for field in fields if field.content in contents)
