"""The tokens of a batch's rows as one row without padding, as attention over segments of different length takes it."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.errors import ArgumentError

_IGNORED_LABEL = -100

Array = npt.NDArray[Any]


class _Rows(NamedTuple):
    ids: Array
    is_token: Array
    positions: Array
    # Whether each token is trained on, given the one before it in its row.
    is_trained: Array
    others: Mapping[str, Any]


def flattened(batch: Mapping[str, Any], contents: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The tokens of some rows as one row.

    Args:
      batch: the arrays of some rows, of any layout.
      contents: what each array holds, as the core says it. None: it is not known, and an array `[rows, sequence_length,
        ...]` has a value for each token.

    Returns:
      `input_ids`, `labels` and `position_ids`, int64 `[1, n]`: labels are not shifted, and -100 on the first token of
      each segment. `cu_seq_lens_q` and `cu_seq_lens_k`, int32 `[segments + 1]`: where each segment begins, and the end.
      `max_length_q` and `max_length_k`: the tokens of the longest one. Fields of tokens become `{name}`, `[1, n, ...]`,
      with the value of the token itself in every layout, and fields of samples `[1, segments, ...]`, with pairs
      numbered from 1. Other arrays stay.
      Rows of nothing but padding become one element of padding.

    Raises:
      ArgumentError: the arrays are of no layout of packed rows, do not say what is padding, or a field has the name of
        another array.
    """
    rows = _rows(batch)
    keep = rows.is_token
    if not keep.any():
        keep = np.zeros_like(keep)
        keep[0, 0] = True
    positions = rows.positions[keep]
    labels = np.where(rows.is_trained & (rows.positions > 0) & rows.is_token, rows.ids, _IGNORED_LABEL)[keep]
    starts = np.flatnonzero(positions == 0)
    ends = np.append(starts, len(positions)).astype(np.int32)
    longest = int(np.diff(ends).max())
    found: dict[str, Any] = {
        "input_ids": rows.ids[keep][None].astype(np.int64),
        "labels": labels[None].astype(np.int64),
        "position_ids": positions[None].astype(np.int64),
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends.copy(),
        "max_length_q": longest,
        "max_length_k": longest,
    }
    for name, value in _others(rows, keep, contents):
        if name in found:
            raise ArgumentError(f"fields[{name!r}]: a batch has an array of that name already; give it another one")
        found[name] = value
    return found


def _others(rows: _Rows, keep: Array, contents: Mapping[str, str] | None) -> Iterator[tuple[str, Any]]:
    """The arrays beside those of the tokens."""
    starts = keep & (rows.positions == 0)
    for name, array in rows.others.items():
        content = _content(name, array, keep) if contents is None else contents.get(name)
        if content == "value":
            yield name, array[keep][None]
        elif content == "target_value":  # the next token's: the first of a segment is no target
            values = np.zeros_like(array)
            values[:, 1:] = array[:, :-1]
            values[starts] = 0
            yield name.removeprefix("targets_"), values[keep][None]
        elif content in ("sample_value", "pair"):
            if content == "pair":  # rows count them from 1
                before = np.concatenate([[0], array.max(axis=1).cumsum()[:-1]])
                array = np.where(array > 0, array + before[:, None], 0).astype(array.dtype)
            yield name, array[np.arange(array.shape[1]) < starts.sum(axis=1)[:, None]][None]
        elif content != "next_value":
            yield name, array


def _content(name: str, array: Any, keep: Array) -> str:
    """A guess at what an array holds, by its shape."""
    if array.shape[:2] != keep.shape:
        return "other"
    return "target_value" if name.startswith("targets_") else "value"


def _rows(batch: Mapping[str, Any]) -> _Rows:
    left = dict(batch)
    if {"input_ids", "attention_mask", "position_ids", "labels"} <= left.keys():
        ids, mask, positions, labels = map(left.pop, ("input_ids", "attention_mask", "position_ids", "labels"))
        return _Rows(ids, mask != 0, positions, labels != _IGNORED_LABEL, left)
    if {"inputs", "inputs_segmentation", "inputs_position", "targets_segmentation"} <= left.keys():
        ids, segments, positions, targets = map(
            left.pop, ("inputs", "inputs_segmentation", "inputs_position", "targets_segmentation")
        )
        left.pop("targets", None), left.pop("targets_position", None)
        return _Rows(ids, segments != 0, positions, _shifted(targets != 0), left)
    if {"tokens", "tokens_segment_ids", "tokens_positions"} <= left.keys():
        ids, segments, positions = map(left.pop, ("tokens", "tokens_segment_ids", "tokens_positions"))
        mask = left.pop("tokens_loss_mask", None)
        return _Rows(ids, segments != 0, positions, np.ones(ids.shape, bool) if mask is None else mask != 0, left)
    if {"tokens", "seq_lens"} <= left.keys():
        ids, lengths = left.pop("tokens"), left.pop("seq_lens")
        rooms = left.pop("seq_lens_padded", lengths)
        left.pop("next_token", None)
        mask = left.pop("targets_loss_mask", None)
        index = np.arange(ids.shape[1])
        ends = rooms.cumsum(axis=1)
        segments = (index[None, :, None] >= ends[:, None, :]).sum(axis=2)
        begins = np.concatenate([np.zeros_like(ends[:, :1]), ends], axis=1)
        positions = index[None] - np.take_along_axis(begins, segments, axis=1)
        is_token = positions < np.take_along_axis(np.pad(lengths, ((0, 0), (0, 1))), segments, axis=1)
        is_trained = np.ones(ids.shape, bool) if mask is None else _shifted(mask != 0)
        return _Rows(ids, is_token, positions, is_trained, left)
    needed = ": rows of layout='hf' need attention_mask=True" if "input_ids" in left else ""
    raise ArgumentError(
        f"padding_free=True: expected the arrays of a layout of packed rows, found {', '.join(sorted(left))}{needed}"
    )


def _shifted(is_target: Array) -> Array:
    """Whether each token is trained on, where the arrays say it of its predecessor's target."""
    found = np.zeros_like(is_target)
    found[:, 1:] = is_target[:, :-1]
    return found
