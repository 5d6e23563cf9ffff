"""Shards in stores on the network: URLs, and globs of them, with few requests.

    gs://bucket/2023-*/en_head.json.gz    gs://bucket/  ──> the folders in it  ──> the size of that name in each
    gs://bucket/data/**/*.gz              gs://bucket/data/  ──> all objects below it, in pages

The folder before the first component with `*`, `?` or `[` is listed, and names behind that component are asked for. If
more such components follow, all that is below the folder is listed.
Patterns match as those of local files do: see `gristmill._shards.listing`.
"""

import fnmatch
import functools
import re
from collections.abc import Iterable, Mapping
from glob import has_magic
from typing import Any

from gristmill import _core
from gristmill._util.checks import wrong_type
from gristmill.errors import ArgumentError, MissingShardError

# Name and value of each option.
StorageOptions = tuple[tuple[str, str], ...]

_URL = re.compile(r"(gs|s3|s3a|az|azure|abfs|abfss|adl|https?)://", re.ASCII)


def is_remote(name: str) -> bool:
    """Whether a name is a URL of a store on the network, and not a path."""
    return _URL.match(name) is not None


def absolute(url: str) -> str:
    """A URL as a path from a root, so that the part of it below a folder is that of the same shards under a mount."""
    scheme, rest = url.split("://", 1)
    return f"/{scheme}:/{rest}"


def check_options(name: str, options: Any) -> StorageOptions | None:
    """The options of stores, sorted by name; None if there are none.

    Raises:
      ArgumentTypeError: they are not a dict of strings; numbers and booleans are spelled out.
    """
    if options is None:
        return None
    if not isinstance(options, Mapping):
        raise wrong_type(name, options, "a dict of strings")
    found = []
    for key, value in options.items():
        if not isinstance(key, str) or not isinstance(value, (str, int, float)):
            raise wrong_type(f"{name}[{key!r}]", value, "strings as names and values")
        found.append((key, str(value).lower() if isinstance(value, bool) else str(value)))
    return tuple(sorted(found))


class Lister:
    """Finds the objects that URLs and globs of them name. Of all patterns of a manifest there is one.

    Raises, whatever is asked first:
      ArgumentError: this build cannot reach stores, or an option is unknown.
      GristmillError: a store cannot be reached.
    """

    def __init__(self, patterns: Iterable[object], options: StorageOptions) -> None:
        self._options = options
        self._urls = [name for name in patterns if isinstance(name, str) and is_remote(name) and not _is_glob(name)]

    def matches(self, pattern: str) -> list[tuple[str, int]]:
        """The objects of one of the patterns, and their sizes in bytes.

        Raises:
          MissingShardError: there is none.
        """
        if not _is_glob(pattern):
            if (size := self._sizes[pattern]) is None:
                raise MissingShardError(f"no such object: {pattern!r}")
            return [(pattern, size)]
        scheme, rest = pattern.split("://", 1)
        bucket, _, key = rest.partition("/")
        if has_magic(bucket):
            raise MissingShardError(f"{pattern!r}: a glob begins behind the bucket")
        root = f"{scheme}://{bucket}/"
        found = [(root + key, size) for key, size in self._objects(root, key.split("/")) if not key.endswith("/")]
        if not found:
            raise MissingShardError(f"no object matches the glob {pattern!r}")
        return found

    @functools.cached_property
    def _stores(self) -> "_core.Stores":
        if not hasattr(_core, "Stores"):
            raise ArgumentError("this build of gristmill reads local files only: build it with --features remote")
        return _core.Stores(list(self._options))

    @functools.cached_property
    def _sizes(self) -> dict[str, int | None]:
        """Of all objects that are no globs: they are asked for at once."""
        return dict(zip(self._urls, self._stores.sizes(self._urls), strict=True))

    def _objects(self, root: str, pattern: list[str]) -> Iterable[tuple[str, int]]:
        """Keys and sizes of the objects that match the components of a pattern."""
        first = next(depth for depth, part in enumerate(pattern) if has_magic(part))
        part, rest = pattern[first], pattern[first + 1 :]
        folder = "".join(f"{name}/" for name in pattern[:first])
        if part == "**" or any(map(has_magic, rest)):
            listed = self._stores.list_below(root + folder)
            return [(key, size) for key, size in listed if _fits_all(key.split("/"), pattern)]
        folders, objects = self._stores.list_folder(root + folder)
        if not rest:
            return [(key, size) for key, size in objects if _fits(key[len(folder) :], part)]
        names = ["/".join([below, *rest]) for below in folders if _fits(below[len(folder) :], part)]
        sizes = self._stores.sizes([root + name for name in names])
        return [(name, size) for name, size in zip(names, sizes, strict=True) if size is not None]


def _is_glob(url: str) -> bool:
    scheme, rest = url.split("://", 1)
    # A URL of the web has a question mark of its own, and its servers list nothing.
    return scheme not in ("http", "https") and has_magic(rest)


def _fits(name: str, pattern: str) -> bool:
    # As for local files: a name with a dot in front is hidden.
    return fnmatch.fnmatchcase(name, pattern) and (pattern[0] == "." or name[:1] != ".")


def _fits_all(names: list[str], pattern: list[str]) -> bool:
    """Whether the components of a key match those of a pattern."""
    if not pattern or not names:
        return not pattern and not names
    if pattern[0] != "**":
        return _fits(names[0], pattern[0]) and _fits_all(names[1:], pattern[1:])
    if len(pattern) == 1:
        return not any(name.startswith(".") for name in names)
    if _fits_all(names, pattern[1:]):
        return True
    return not names[0].startswith(".") and _fits_all(names[1:], pattern)
