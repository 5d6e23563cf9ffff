"""Rows that Python has, written as JSON lines so that they take the same way as those of files."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gristmill._prompts import exact
from gristmill._shards.manifest import Manifest
from gristmill._util.checks import wrong_type
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError, ArgumentTypeError

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


@dataclasses.dataclass(frozen=True)
class Written:
    """A file of rows.

    Attributes:
      path: its path.
      digest: the hash of its content.
      pickled: the rows that hold values which JSON lacks, by their number.
    """

    path: str
    digest: str
    pickled: Mapping[int, bytes]


@contextlib.contextmanager
def written(rows: Iterable[Mapping[str, Any]]) -> Iterator[Written]:
    """A file of the rows, which is removed afterwards."""
    digest = hashlib.sha256()
    pickled = {}
    with tempfile.NamedTemporaryFile(prefix="gristmill-rows-", suffix=".jsonl") as file:
        for number, row in enumerate(rows):
            line, kept = _line(row)
            digest.update(line)
            file.write(line)
            if kept is not None:
                pickled[number] = kept
        file.flush()
        yield Written(file.name, digest.hexdigest()[:16], pickled)


def _line(row: Any) -> tuple[bytes, bytes | None]:
    """A row as JSON, and pickled if that is not the same."""
    if not isinstance(row, Mapping):
        raise wrong_type("shards", row, "dicts, as the rows before it")
    try:
        return json.dumps(row, allow_nan=False).encode() + b"\n", None
    except (TypeError, ValueError, RecursionError):
        try:
            plain, own = exact.as_json(row), exact.as_python(row)
            line = json.dumps(plain).encode() + b"\n"
            return line, None if plain == own else pickle.dumps(own)
        except TypeError as error:
            raise ArgumentTypeError(
                f"shards: expected rows of values that JSON, or a column of a file, can hold, {error}"
            ) from None
        except RecursionError:
            raise ArgumentError(
                f"shards={shortened(list(row))}: expected rows without cycles, found one in the row with these keys, "
                "or more levels than Python can write"
            ) from None
