"""The syntax of mixture files: TOML or YAML to plain values with their lines, and plain values to TOML."""

import datetime
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gristmill._util import unique_keys
from gristmill.errors import ArgumentError, GristmillError

_TOML = (".toml",)
_YAML = (".yaml", ".yml")

# The keys that lead to a value.
Keys = tuple[str, ...]

_TABLE = re.compile(r"\s*\[\[?\s*(.+?)\s*\]\]?\s*(#.*)?")
_PAIR = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[\w.\s-])+?)\s*=""")
_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*(?:\.|$)""")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def is_mixture_file(path: str) -> bool:
    """Whether a path is that of a mixture file, by its name; no shard has such a name."""
    return path.endswith((*_TOML, *_YAML))


def read(path: Path) -> tuple[dict[str, Any], dict[Keys, int]]:
    """The values of a file, see `parse`.

    Raises:
      GristmillError: it cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise GristmillError(f"cannot read the mixture file {str(path)!r}: {error.strerror}") from None
    return parse(str(path), content)


def parse(path: str, content: bytes) -> tuple[dict[str, Any], dict[Keys, int]]:
    """The values of a file with this content, dates as text, and the line on which each is named, where that is known.

    Raises:
      ArgumentError: it is not TOML or YAML, or a key is there twice or is no string.
      MissingExtraError: it is YAML, and PyYAML is not installed.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{path}: expected UTF-8, found {error.object[error.start]:#04x} at byte {error.start}"
        ) from None
    values, lines = _read_yaml(path, text) if path.endswith(_YAML) else _read_toml(path, text)
    if not isinstance(values, dict):
        raise ArgumentError(f"{path}: expected keys and values, found {type(values).__name__}")
    try:
        return _plain(values), lines
    except RecursionError:
        raise ArgumentError(f"{path}: not valid YAML: an anchor contains itself") from None


def write(values: Mapping[str, Any]) -> str:
    """Values as TOML. Values that are None are left out; lists of dicts and dicts of dicts become tables."""
    lines = [*_pairs({key: value for key, value in values.items() if not _has_tables(value)})]
    for key, value in values.items():
        if _has_tables(value):
            is_list = isinstance(value, list)
            for name, item in enumerate(value) if is_list else value.items():
                header = f"[[{_key(key)}]]" if is_list else f"[{_key(key)}.{_key(str(name))}]"
                lines += ["", header, *_pairs(item)]
    return "\n".join([*lines, ""])


def _has_tables(value: Any) -> bool:
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return bool(items) and all(isinstance(item, Mapping) for item in items)


def _read_toml(path: str, text: str) -> tuple[Any, dict[Keys, int]]:
    try:
        return tomllib.loads(text), dict(_toml_lines(text))
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError(f"{path}: not valid TOML: {error}") from None
    except RecursionError:
        raise ArgumentError(f"{path}: not valid TOML: it is nested too deep") from None


def _toml_lines(text: str) -> Iterator[tuple[Keys, int]]:
    table: Keys = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if found := _TABLE.fullmatch(line):
            table = _parts(found[1])
            yield table, number
        elif pair := _PAIR.match(line):
            yield (*table, *_parts(pair[1])), number


def _parts(key: str) -> Keys:
    return tuple(next(filter(None, part.groups()), "") for part in _PART.finditer(key))


def _read_yaml(path: str, text: str) -> tuple[Any, dict[Keys, int]]:
    values, root = unique_keys.yaml_of(path, text, ", or write the file as TOML")
    return values, dict(_yaml_lines(path, root, ()))


def _yaml_lines(path: str, node: Any, above: Keys) -> Iterator[tuple[Keys, int]]:
    if getattr(node, "id", None) != "mapping":
        return
    for key, value in node.value:
        number, kind = key.start_mark.line + 1, key.tag.rpartition(":")[2]
        if kind == "merge":
            continue
        if kind != "str":
            raise ArgumentError(f"{path}, line {number}: YAML reads the key {key.value} as {kind}: put it in quotes")
        yield (*above, key.value), number
        yield from _yaml_lines(path, value, (*above, key.value))


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case datetime.date() | datetime.time():
            return value.isoformat()
    return value


def _pairs(values: Mapping[str, Any]) -> Iterator[str]:
    return (f"{_key(key)} = {_value(value)}" for key, value in values.items() if value is not None)


def _value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            # A JSON string is one of TOML, but for this character.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            return f"{{ {', '.join(_pairs(value))} }}"
    return f"[{', '.join(map(_value, value))}]"


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)
