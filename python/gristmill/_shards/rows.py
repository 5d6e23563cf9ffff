"""Row lists: files that list rows of the shards which are left out.

    duplicates/*.parquet:column=doc_id       rows as "2023-06/0000/en_head.json.gz/3", in a column
    seen.txt:key=id                          ids of the records' key "id", one a line

This text form is that of the command line. A backslash comes before a colon, comma or backslash of a part.
"""

import glob
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gristmill._core as _core
from gristmill._filter.compiler import Steps, compile_filter
from gristmill._shards import stores
from gristmill._shards.manifest import Manifest, absolute
from gristmill._shards.sidecars import split
from gristmill._util import checks
from gristmill._util.checks import wrong_type
from gristmill._util.local_files import Pathish, utf8_path
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError

_FORM = "FILES[:column=NAME][:key=KEY]"


@dataclass(frozen=True)
class RowList:
    """Rows of the shards that are left out: a list of duplicates, of records seen before, of test data.

        RowList("duplicates/**/*.parquet", column="doc_id")    # RedPajama-v2
        RowList("seen.txt", key="id")

    Attributes:
      files: paths and globs of the files that hold the list: Parquet, JSON lines, or plain lines.
      column: the column, or the key of each line, that holds an id. None: each line is an id.
      key: the key of a record that an id must equal, or a path such as `meta.id`. None: an id names a shard, by the end
        of its path, and a row: `2023-06/0000/en_head.json.gz/3`. Rows of other shards are ignored.

    Raises:
      ArgumentError: an argument's value is not allowed.
      ArgumentTypeError: an argument is of the wrong type.
    """

    files: "Pathish | Iterable[Pathish]"
    column: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        files = [self.files] if isinstance(self.files, (str, os.PathLike)) else self.files
        paths = tuple(checks.path("files", file) for file in checks.items("files", files, "a path or a list of paths"))
        if not paths:
            raise ArgumentError("files=[]: expected at least one path or glob")
        object.__setattr__(self, "files", paths)
        if self.column is not None:
            checks.text("column", self.column)
        _ = self.key_path

    @property
    def key_path(self) -> Steps | None:
        """The path of the key."""
        if self.key is None:
            return None
        compiled = compile_filter("key", self.key)
        if compiled.program != (("path", 0),):
            raise ArgumentError(f"key={shortened(self.key)}: expected a key, or a path such as meta.id")
        return compiled.paths[0]

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths and globs."""
        found: tuple[str, ...] = self.files  # type: ignore[assignment]  # since __post_init__
        return found

    @property
    def options(self) -> str:
        """All but the files, as text."""
        parts = [f"{name}={value}" for name in ("column", "key") if (value := getattr(self, name)) is not None]
        return "".join(f":{_escaped(part)}" for part in parts)

    @property
    def text(self) -> str:
        """It as text."""
        return ",".join(map(_escaped, self.paths)) + self.options

    @property
    def absolute(self) -> "RowList":
        """The same with paths from the root."""
        here = glob.escape(os.getcwd())
        paths = [path if stores.is_remote(path) else os.path.join(here, path) for path in self.paths]
        return RowList(paths, self.column, self.key)

    @classmethod
    def check(cls, argument: str, value: Any) -> "RowList | None":
        """The list, given as such or as text.

        Raises:
          ArgumentError: the text is wrong.
          ArgumentTypeError: it is something else.
        """
        if value is None or isinstance(value, RowList):
            return value
        if not isinstance(value, str):
            raise wrong_type(argument, value, "a RowList")
        files, *parts = split(value, ":")
        options = dict(part.partition("=")[::2] for part in map(_unescaped, parts))
        if not options.keys() <= {"column", "key"} or len(options) < len(parts) or not files:
            raise ArgumentError(f"{argument}={shortened(value)}: expected {_FORM}")
        return cls([_unescaped(path) for path in split(files, ",")], **options)


class DroppedRows:
    """The rows that are left out of some shards.

    Attributes:
      named: the list.
      files: its files.
    """

    def __init__(self, named: RowList, shards: Manifest) -> None:
        self.named = named
        self._shards = shards
        self.files = Manifest.find(named.paths, dict(shards.storage_options))
        _ = self.core  # errors come when the dataset is made

    @property
    def key_path(self) -> Steps | None:
        """The path of the key whose ids are listed."""
        return self.named.key_path

    @property
    def is_numbered(self) -> bool:
        """Whether rows are known by their number in a shard."""
        return self.named.key is None

    @property
    def fingerprint(self) -> str:
        """The value that a stream's fingerprint has of it."""
        return f"{self.files.fingerprint}{self.named.options}"

    @cached_property
    def core(self) -> _core.RowList:
        """The list in memory: 4 bytes for each row, or 16 for each id of a key."""
        shards = None
        if self.named.key is None:
            shards = [absolute(self._shards.folder, path) for path in self._shards.paths]
        files = [(utf8_path(path), size) for path, size in self.files]
        named = None if shards is None else [utf8_path(path) for path in shards]
        return _core.RowList(self.files.folder, files, self.named.column, named, self.files.storage_options)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "core"}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DroppedRows) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)


def _escaped(part: str) -> str:
    return re.sub(r"([\\:,])", r"\\\1", part)


def _unescaped(part: str) -> str:
    return re.sub(r"\\(.)", r"\1", part)
