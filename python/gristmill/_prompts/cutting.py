"""Prompts that are too long: the part that is kept of their ids."""

import numpy as np

from gristmill._prompts.reading import Ids

OVERLONG = ("drop", "left", "right", "middle", "error")


def cut(ids: Ids, length: int, overlong: str, *, has_bos: bool, has_eos: bool) -> Ids:
    """At most `length` ids of a prompt; BOS and EOS stay where they are.

    Args:
      ids: those of the prompt.
      length: how many there may be.
      overlong: the side that is cut: `"left"`, `"right"`, or `"middle"`, which keeps the first and the last half.
      has_bos: whether the first id is BOS.
      has_eos: whether the last id is EOS.
    """
    if len(ids) <= length:
        return ids
    if not has_bos and not has_eos:
        return _part(ids, length, overlong)
    first, last = ids[: int(has_bos)], ids[len(ids) - int(has_eos) :]
    inner = ids[len(first) : len(ids) - len(last)]
    return np.concatenate([first, _part(inner, length - len(first) - len(last), overlong), last])


def _part(ids: Ids, length: int, overlong: str) -> Ids:
    if overlong == "left":
        return ids[len(ids) - length :]
    if overlong == "right":
        return ids[:length]
    return np.concatenate([ids[: length // 2], ids[len(ids) - (length - length // 2) :]])
