"""Rows that Python has, written as JSON lines so that they take the same way as those of files."""

import contextlib
import datetime
import decimal
import hashlib
import itertools
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gristmill._shards.manifest import Manifest
from gristmill._util.checks import wrong_type
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError

# How errors and `dropped()` name rows that are not those of a file.
ROWS = "rows"


def as_rows(shards: Any) -> Iterator[Mapping[str, Any]] | None:
    """The rows, if `shards` are an iterable of dicts and not shards. The first is taken to find out."""
    if isinstance(shards, (str, bytes, os.PathLike, Manifest, Mapping)) or hasattr(shards, "read"):
        return None
    if not isinstance(shards, Iterable):
        return None
    rows = iter(shards)
    first = next(rows, None)
    return itertools.chain([first], rows) if isinstance(first, Mapping) else None


@contextlib.contextmanager
def written(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """A file of the rows, which is removed afterwards, and the hash of its content."""
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(prefix="gristmill-rows-", suffix=".jsonl") as file:
        for row in rows:
            line = _line(row)
            digest.update(line)
            file.write(line)
        file.flush()
        yield file.name, digest.hexdigest()[:16]


def _line(row: Any) -> bytes:
    if not isinstance(row, Mapping):
        raise wrong_type("shards", row, "dicts, as the rows before it")
    try:
        text = json.dumps(row, default=_plain, allow_nan=False)
    except (ValueError, RecursionError):  # NaN, which files of columns read as null
        try:
            text = json.dumps(_without_nan(row), default=_plain)
        except RecursionError:
            raise ArgumentError(
                f"shards={shortened(list(row))}: expected rows without cycles, found one in the row with these keys, "
                "or more levels than Python can write"
            ) from None
    return text.encode() + b"\n"


def _plain(value: Any) -> Any:
    """A value that JSON does not have, as it is read from files of columns."""
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return value.decode(errors="replace")
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # an array or a scalar of NumPy
        return value.tolist()
    raise wrong_type("shards", value, "rows of values that JSON, or a column of a file, can hold")


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    if hasattr(value, "tolist"):
        return _without_nan(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
