"""Samples by words, as the command line and packed folders name them."""

import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gristmill._sample.samples import Chat, Completion
from gristmill.errors import ArgumentError, GristmillError

_KINDS: dict[str, type[Chat] | type[Completion]] = {"chat": Chat, "completion": Completion}


def parse(words: Iterable[str]) -> dict[str, Any] | None:
    """A sample of its kind and values: `chat train_on=last`. None if there are no words.

    Returns:
      `kind` and values, of types that JSON has. They mean the same in another folder and on another day.

    Raises:
      ArgumentError: a word is no value, or names one again.
    """
    kind, *settings = [*words] or [""]
    if not kind:
        return None
    if kind not in _KINDS:
        raise ArgumentError(f"sample={kind!r}: expected 'chat' or 'completion' first, then its arguments as name=value")
    named = read_values(settings, lambda setting: f"sample={setting!r}", {"kind": kind})
    if named.get("date") == "today":
        named["date"] = datetime.datetime.now().date().isoformat()
    template = named.get("template")
    if isinstance(template, str) and "{%" not in template and "{{" not in template:
        named["template"] = str(Path(template).absolute())
    return named


def read_values(
    settings: Iterable[str], shown: Callable[[str], str], values: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """The values of `name=value` words, beside those that are there: JSON, or else the text itself.

    Args:
      settings: the words.
      shown: a word as an error shows it.
      values: the values that are there.

    Raises:
      ArgumentError: a word is no `name=value`, or names a value again.
    """
    found = dict(values)
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or name in found:
            raise ArgumentError(f"{shown(setting)}: expected name=value, such as train_on=last, each name once")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def make(named: Mapping[str, Any] | None) -> Chat | Completion | None:
    """The sample that `parse` returned.

    Raises:
      ArgumentError: a value is not allowed, or there is none of that name.
      ArgumentTypeError: a value is of the wrong type.
    """
    if named is None:
        return None
    values = dict(named)
    kind = _KINDS[values.pop("kind")]
    try:
        return kind(**values)
    except TypeError as error:
        if isinstance(error, GristmillError):
            raise
        message = str(error).replace(f"{kind.__name__}.__init__()", f"gm.{kind.__name__}")
        raise ArgumentError(f"sample={named['kind']!r}: {message}") from None
