"""Checks of arguments. Each error names the argument, its value, and the allowed values."""

import numbers
import operator
import os
import urllib.parse
from collections.abc import Sequence
from typing import Any

import numpy as np

from gristmill._util.text import shortened
from gristmill.errors import ArgumentError, ArgumentTypeError


def wrong_type(name: str, value: object, expected: str, hint: str = "") -> ArgumentTypeError:
    """The error for a value of a type that `name` does not take."""
    return ArgumentTypeError(
        f"{name}={shortened(value)}: expected {expected}, got {type(value).__name__}{hint}", argument=name
    )


def integer(name: str, value: Any, least: int, most: int, others: str = "") -> int:
    """An integer from `least` to `most`, Python's or NumPy's, not a boolean. The message also allows `others`."""
    expected = f"an integer from {least} to {most}{others}"
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise wrong_type(name, value, expected)
    if not least <= number <= most:
        raise ArgumentError(f"{name}={shortened(number)}: expected {expected}", argument=name)
    return number


def optional_integer(name: str, value: Any, least: int, most: int) -> int | None:
    """Like `integer`, or None."""
    return None if value is None else integer(name, value, least, most, ", or None")


def items(name: str, value: Any, expected: str) -> list[Any]:
    """The items of a list or of anything else that has some."""
    try:
        found = iter(value)
    except TypeError:
        raise wrong_type(name, value, expected) from None
    return list(found)


def boolean(name: str, value: Any) -> bool:
    """True or False, Python's or NumPy's; nothing else, so that a swapped argument is noticed."""
    if not isinstance(value, (bool, np.bool_)):
        raise wrong_type(name, value, "True or False")
    return bool(value)


def optional_boolean(name: str, value: Any) -> bool | None:
    """True, False or None."""
    return None if value is None else boolean(name, value)


def fraction(name: str, value: Any) -> float:
    """A number from 0 to 1."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number:
        raise wrong_type(name, value, "a number from 0 to 1")
    if not 0 <= value <= 1:
        raise ArgumentError(f"{name}={shortened(value)}: expected a number from 0 to 1", argument=name)
    return float(value)


def choice(name: str, value: Any, allowed: Sequence[str]) -> str:
    """One of some words."""
    # An array would compare item by item.
    if not isinstance(value, str) or value not in allowed:
        raise ArgumentError(
            f"{name}={shortened(value)}: expected one of {', '.join(map(repr, allowed))}", argument=name
        )
    return str(value)


def text(name: str, value: Any) -> str:
    """A string that is not empty."""
    if isinstance(value, str) and not value:
        raise ArgumentError(f"{name}='': expected a non-empty string", argument=name)
    return valid_text(name, value)


def valid_text(name: str, value: Any, expected: str = "a string") -> str:
    """A string that UTF-8 can express: without lone surrogates."""
    if not isinstance(value, str):
        raise wrong_type(name, value, expected)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(
            f"{name}={shortened(value)}: expected a string without lone surrogates, found {value[error.start]!r} at "
            f"character {error.start}",
            argument=name,
        ) from None
    return value


def assert_encodable(name: str, value: Any) -> None:
    """Checks that a value is a string that UTF-8 can express, or bytes of UTF-8."""
    try:
        if isinstance(value, (bytes, bytearray)):
            value.decode()
        else:
            expected = "a string or bytes of UTF-8"
            if isinstance(value, memoryview):
                raise wrong_type(name, value, expected, "; bytes(...) gives its bytes")
            if hasattr(value, "as_py"):  # a scalar of Arrow
                raise wrong_type(name, value, expected, "; .as_py() gives its value")
            valid_text(name, value, expected)
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{name}={shortened(value)}: expected UTF-8, found {value[error.start]:#04x} at byte {error.start}: "
            f"{error.reason}",
            argument=name,
        ) from None


def without_scheme(name: str) -> str:
    """The path that a URL such as `file:///data/a.jsonl` stands for; any other name as it is.

    Raises:
      ArgumentError: the URL names another host.
    """
    if not name.startswith("file://"):
        return name
    host, slash, path = name.removeprefix("file://").partition("/")
    if host not in ("", "localhost") or not slash:
        raise ArgumentError(f"{name!r}: expected file:///path, with nothing between the second and the third slash")
    return urllib.parse.unquote(f"/{path}")


def path(name: str, value: Any) -> str:
    """A path as a string, also where it is given as a `file://` URL."""
    if not isinstance(value, (str, os.PathLike)):
        raise wrong_type(name, value, "a path")
    found = os.fspath(value)
    if not isinstance(found, str):
        raise wrong_type(name, value, "a path of text")
    if not found or "\0" in found:
        raise ArgumentError(f"{name}={shortened(found)}: expected a non-empty path without NUL", argument=name)
    return without_scheme(found)
