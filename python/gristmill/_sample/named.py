"""Samples by words, as the command line and packed folders name them."""

import dataclasses
import datetime
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from gristmill._images.model import ImageModel
from gristmill._sample.fields import Field
from gristmill._sample.samples import (
    Chat,
    Completion,
    FillInTheMiddle,
    ImageText,
    Instruction,
    Preference,
    Sample,
    Text,
    Tokens,
)
from gristmill._util.local_files import Pathish
from gristmill.errors import ArgumentError, GristmillError

Made = TypeVar("Made", bound=Sample)

KINDS: Mapping[str, type[Sample]] = {
    "text": Text,
    "chat": Chat,
    "instruction": Instruction,
    "completion": Completion,
    "tokens": Tokens,
    "preference": Preference,
    "image_text": ImageText,
}
# The kinds of the text beside images.
TEXTS = ("text", "chat", "instruction", "completion", "preference")


def is_ready(named: Mapping[str, Any] | None) -> bool:
    """Whether a sample that `parse` returned is of ready ids, which need no tokenizer."""
    return named is not None and KINDS.get(named["kind"]) is Tokens


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
    if kind not in KINDS:
        *most, last = map(repr, KINDS)
        raise ArgumentError(
            f"sample={kind!r}: expected {', '.join(most)} or {last} first, then its arguments as name=value"
        )
    return resolved(read_values(settings, lambda setting: f"sample={setting!r}", {"kind": kind}))


def resolved(named: Mapping[str, Any], folder: Pathish = "") -> dict[str, Any]:
    """A sample by its kind and values, whose paths start from a folder, that means the same elsewhere and later."""
    values = dict(named)
    if values.get("date") == "today":
        values["date"] = datetime.datetime.now().date().isoformat()
    template = values.get("template")
    if isinstance(template, str) and "{%" not in template and "{{" not in template:
        values["template"] = str(Path(folder, template).absolute())
    if isinstance(text := values.get("text"), Mapping):
        values["text"] = resolved(text, folder)
    return values


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
        if not equals:
            raise ArgumentError(f"{shown(setting)}: expected name=value, such as train_on=last")
        if name in found:
            raise ArgumentError(f"{shown(setting)}: {name} was given twice")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def make(named: Mapping[str, Any] | None) -> Sample | None:
    """The sample that `parse` returned.

    Raises:
      ArgumentError: a value is not allowed, or there is none of that name.
      ArgumentTypeError: a value is of the wrong type.
    """
    if named is None:
        return None
    values = dict(named)
    kind = KINDS[values.pop("kind")]
    return make_of(kind, values, f"sample={named['kind']!r}")


def make_of(kind: type[Made], values: Mapping[str, Any], shown: str) -> Made:
    """A sample of a class with these values.

    Args:
      kind: the class.
      values: its arguments.
      shown: what an error names where the class has no such argument.

    Raises:
      ArgumentError: a value is not allowed, or there is none of that name.
      ArgumentTypeError: a value is of the wrong type.
    """
    try:
        if isinstance(fim := values.get("fim"), Mapping):
            values = {**values, "fim": FillInTheMiddle(**fim)}
        if kind is ImageText:
            values = _with_parts(values)
        elif kind is Preference:
            halves = {name: make(half) for name, half in values.items() if isinstance(half, Mapping)}
            values = {**values, **halves}
        elif isinstance(fields := values.get("fields"), Mapping):
            values = {**values, "fields": {name: _field(field) for name, field in fields.items()}}
        return kind(**values)
    except TypeError as error:
        if isinstance(error, GristmillError):
            raise
        message = str(error)
        for made in (kind, FillInTheMiddle, ImageModel, Field):  # as callers name them
            message = message.replace(f"{made.__name__}.__init__()", f"gm.{made.__name__}")
        raise ArgumentError(f"{shown}: {message}") from None


def described(sample: Sample) -> dict[str, Any] | None:
    """The kind and values of which `make` makes a sample again; None if JSON has no such values: a `ChatTemplate`."""
    try:
        found: dict[str, Any] = json.loads(json.dumps(resolved(_described(sample))))
    except TypeError:
        return None
    return found


def _described(sample: Sample) -> dict[str, Any]:
    given = {
        entry.name: getattr(sample, entry.name)
        for entry in dataclasses.fields(sample)
        if entry.init and getattr(sample, entry.name) != entry.default
    }
    given |= sample.options if isinstance(sample, Completion) else {}
    kind = next(name for name, known in KINDS.items() if type(sample) is known)
    return {"kind": kind, **{name: _plain(value) for name, value in given.items()}}


def _plain(value: Any) -> Any:
    match value:
        case Chat() | Completion():
            return _described(value)
        case Field() | FillInTheMiddle():
            return vars(value)
        case Mapping():
            return {name: _plain(item) for name, item in value.items()}
        case os.PathLike():
            return os.fspath(value)
    return value


def _field(named: Any) -> Any:
    return Field(**named) if isinstance(named, Mapping) else named


def _with_parts(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `ImageText` whose model and text are described by values."""
    found = dict(values)
    if isinstance(model := found.get("model"), Mapping):
        found["model"] = ImageModel(**model)
    if isinstance(text := found.get("text"), Mapping):
        if text.get("kind") not in TEXTS:
            kinds = " or ".join([", ".join(map(repr, TEXTS[:-1])), repr(TEXTS[-1])])
            raise ArgumentError(f"text={dict(text)!r}: expected a kind, {kinds}, found {text.get('kind')!r}")
        found["text"] = make(text)
    return found
