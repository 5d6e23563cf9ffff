"""Prompts that are too long: the part that is kept of their ids."""

from typing import TypeVar

import numpy as np

from gristmill._prompts.reading import Ids, Mask

OVERLONG = ("drop", "left", "right", "middle", "error")


_Tokens = TypeVar("_Tokens", Ids, Mask)


def kept(length: int, overlong: str, *, has_bos: bool, has_eos: bool) -> tuple[int, int] | None:
    """How many tokens at the start and at the end are kept of a prompt that is cut; None if none is."""
    inner = length - has_bos - has_eos
    first = {"left": 0, "right": inner, "middle": inner // 2}.get(overlong)
    return None if first is None else (has_bos + first, inner - first + has_eos)


def cut(ids: _Tokens, length: int, overlong: str, *, has_bos: bool, has_eos: bool) -> _Tokens:
    """At most `length` ids of a prompt, or of what belongs to them; BOS and EOS stay where they are.

    Args:
      ids: those of the prompt, or its loss mask.
      length: how many there may be.
      overlong: the side that is cut: `"left"`, `"right"`, or `"middle"`, which keeps the first and the last half.
      has_bos: whether the first id is BOS.
      has_eos: whether the last id is EOS.
    """
    both = kept(length, overlong, has_bos=has_bos, has_eos=has_eos)
    if len(ids) <= length or both is None:
        return ids
    first, last = both
    return np.concatenate([ids[:first], ids[len(ids) - last :]])
