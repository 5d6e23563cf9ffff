"""The special tokens of a tokenizer: those in tokenizer.json, and the EOS and BOS that files in its folder name."""

import json
import operator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from gristmill._tokenizer import hub
from gristmill._util import checks
from gristmill.errors import TokenizerError

SpecialToken: TypeAlias = Literal["eos", "bos"]

_MOST_LISTED = 12


def from_sibling_files(path: Path) -> dict[str, list[str]]:
    """For "eos" and "bos" the tokens that other files in the folder of a tokenizer.json name, in order of precedence.

    Raises:
      TokenizerError: such a file cannot be read, or is not JSON.
    """
    found: dict[str, list[str]] = {"eos": [], "bos": []}
    for name in hub.SPECIAL_TOKEN_FILES:
        beside = path.parent / name
        try:
            settings = json.loads(beside.read_bytes())
        except FileNotFoundError:
            continue
        except OSError as error:
            raise TokenizerError(
                f"cannot read {str(beside)!r}, which names special tokens: {error.strerror}"
            ) from error
        except (ValueError, RecursionError) as error:
            raise TokenizerError(f"{beside} is not JSON: {error}") from None
        for key, tokens in found.items():
            value = settings.get(f"{key}_token") if isinstance(settings, dict) else None
            token = value.get("content") if isinstance(value, dict) else value
            if isinstance(token, str):
                tokens.append(token)
    return found


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
      ArgumentTypeError: the value is of another type than the argument takes.
    """
    if isinstance(given, (bool, np.bool_)):
        return bool(given)
    if isinstance(given, str) or (given is None and name == "eos"):
        return given
    try:
        return operator.index(given)
    except TypeError:
        own = "True or None" if name == "eos" else "True"
        expected = f"a token, an id, {own} for the tokenizer's own, or False for none"
        raise checks.wrong_type(name, given, expected) from None
