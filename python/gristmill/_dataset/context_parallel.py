"""`context_parallel`: the tokens of rows in the order in which ranks of context parallelism divide them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill._util import checks
from gristmill.errors import ArgumentError

_ORDERS = ("zigzag", "striped", "contiguous")
# The arrays with an axis of tokens, by the layout whose tokens they hold; a field of tokens is beside them.
_TOKENS = ("inputs", "tokens", "input_ids")
_OF_MAXTEXT = ("inputs", "targets")
# Arrays of rows, segments and images, whose second axis may happen to be as long as the rows.
_OTHERS = ("provenance", "pair", "image")


def context_parallel(batch: Mapping[str, Any], size: int, order: str = "zigzag") -> dict[str, Any]:
    """Reorders the tokens of rows, so that equal parts of the axis of tokens are those of the ranks, one after another.

    With a causal mask the last tokens of a row cost most. Rank r of n gets:

    - `"zigzag"`: of 2n equal chunks the chunks r and 2n - 1 - r, as MaxText's `context_parallel_load_balance`,
      Megatron-LM and Transformer Engine have it;
    - `"striped"`: the tokens r, r + n, r + 2n and so on, as striped attention has it;
    - `"contiguous"`: its part of the row as it is.

    Positions and segments move with their tokens, and targets beside them: a loss is the same in any order. Arrays of
    samples stay; those of `grain` and `hf` with as many segments as a row has tokens cannot be told from arrays of
    tokens. Call it in the jitted step or before it, on arrays of JAX, NumPy or PyTorch, with rows or single ones.

    Args:
      batch: arrays of the layouts `maxtext`, `grain` or `hf`; of `varlen` what `expand` makes of them. Arrays
        without an axis of tokens stay as they are.
      size: the number of ranks that divide a row.
      order: `"zigzag"`, `"striped"` or `"contiguous"`.

    Returns:
      The batch, with the same names, shapes and dtypes.

    Raises:
      ArgumentError: the batch has no tokens, is of `varlen`, or its rows cannot be divided so.
      ArgumentTypeError: `size` is not an integer.
    """
    return _moved(batch, size, order, _indices)


def context_parallel_inverse(batch: Mapping[str, Any], size: int, order: str = "zigzag") -> dict[str, Any]:
    """The batch that `context_parallel` reordered, given the same arguments.

    Raises:
      ArgumentError: as `context_parallel`.
      ArgumentTypeError: as `context_parallel`.
    """
    return _moved(batch, size, order, lambda *given: np.argsort(_indices(*given)))


def _moved(batch: Mapping[str, Any], size: int, order: str, indices: Any) -> dict[str, Any]:
    size = checks.integer("size", size, 1, 2**20)
    checks.choice("order", order, _ORDERS)
    name = next((name for name in _TOKENS if name in batch), None)
    if name is None or "seq_lens" in batch:
        found, expected = (", ".join(map(repr, names)) for names in (batch, _TOKENS))
        raise ArgumentError(
            f"batch has {found}: expected the tokens of a row under {expected}"
            + ("; gm.expand makes other arrays of those of layout='varlen'" if "seq_lens" in batch else "")
        )
    tokens = batch[name]
    axis, length = tokens.ndim - 1, tokens.shape[-1]
    parts = {"zigzag": 2 * size, "striped": size, "contiguous": size}[order]
    if length % parts:
        raise ArgumentError(
            f"size={size}: rows of {length} tokens cannot be divided into {parts} equal parts, as order={order!r} does"
        )
    index = indices(length, size, order)
    moved = dict(batch)
    for own, array in batch.items():
        if (
            order != "contiguous"
            and (at := _axis_of(own, array, axis, length, of_maxtext=name == "inputs")) is not None
        ):
            moved[own] = array[(slice(None),) * at + (index,)]
    return moved


def _axis_of(name: str, array: Any, axis: int, length: int, *, of_maxtext: bool) -> int | None:
    """The axis of tokens of an array; None if it has none."""
    if name.startswith(_OTHERS) or (of_maxtext and not name.startswith(_OF_MAXTEXT)):
        return None
    if array.ndim > axis + 1 and array.shape[axis] == 3 and "position" in name:  # M-RoPE has three axes before it
        axis += 1
    return axis if array.ndim > axis and array.shape[axis] == length else None


def _indices(length: int, size: int, order: str) -> npt.NDArray[np.int64]:
    """The token of the row at each index of the reordered one."""
    if order == "zigzag":
        chunks = np.arange(length).reshape(2 * size, -1)
        return np.stack([chunks[:size], chunks[: size - 1 : -1]], axis=1).reshape(-1)
    return np.arange(length).reshape(-1, size).T.reshape(-1)
