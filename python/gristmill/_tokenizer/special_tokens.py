"""The special tokens that a tokenizer.json lists, and those that arguments name."""

import json
import operator
from typing import Any, Literal, TypeAlias

import numpy as np

from gristmill._util import checks
from gristmill.errors import ArgumentError

SpecialToken: TypeAlias = Literal["eos", "bos"]

_MOST_LISTED = 12

# In lower case. Vocabularies have tokens of these spellings, which nobody means.
WORDS = frozenset({"auto", "none", "true", "false"})


def describe(json_bytes: bytes) -> str:
    """A sentence that lists the special tokens of a tokenizer.json, for messages about a token that it lacks."""
    added = json.loads(json_bytes).get("added_tokens") or []
    special = [token["content"] for token in added if token.get("special")]
    if not special:
        return "It has no special tokens"
    shown = ", ".join(map(repr, special[:_MOST_LISTED]))
    more = len(special) - _MOST_LISTED
    return f"Its special tokens are {shown}" + (f" and {more} more" if more > 0 else "")


def check_type(name: SpecialToken, given: Any) -> "str | int | bool | None":
    """The value of `eos=` or `bos=` as Python's own type.

    Raises:
      ArgumentError: the value is a string that says whether there is one.
      ArgumentTypeError: the value is of another type than the argument takes.
    """
    own = "True or None" if name == "eos" else "True"
    expected = f"a token, an id, {own} for the tokenizer's own, or False for none"
    if isinstance(given, str) and given.lower() in WORDS:
        raise ArgumentError(f"{name}={given!r}: expected {expected}; a token of this spelling by its id")
    if isinstance(given, (bool, np.bool_)):
        return bool(given)
    if isinstance(given, str) or (given is None and name == "eos"):
        return given
    try:
        return operator.index(given)
    except TypeError:
        raise checks.wrong_type(name, given, expected) from None
