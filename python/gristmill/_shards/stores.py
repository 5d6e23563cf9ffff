"""Shards in stores on the network: URLs, and globs of them, with few requests.

    gs://bucket/2023-*/en_head.json.gz    gs://bucket/  ──> the folders in it  ──> the size of that name in each
    gs://bucket/data/**/*.gz              gs://bucket/data/  ──> all objects below it, in pages

A folder before a component with `*`, `?` or `[` is listed. What is behind the last such component is asked for by name.
Patterns match as those of local files do: see `gristmill._shards.listing`.
"""

import fnmatch
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
# More folders than that are not asked one by one for the rest of a glob.
_MOST_FOLDERS = 10_000


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


def matches(pattern: str, options: StorageOptions) -> list[tuple[str, int]]:
    """The objects that a URL or a glob of URLs names, and their sizes in bytes.

    Raises:
      MissingShardError: there is none.
      ArgumentError: this build cannot reach stores, or an option is unknown.
      GristmillError: a store cannot be reached.
    """
    if not hasattr(_core, "Stores"):
        raise ArgumentError(
            f"{pattern!r}: this build of gristmill reads local files only: build it with --features remote"
        )
    stores = _core.Stores(list(options))
    scheme, rest = pattern.split("://", 1)
    bucket, _, key = rest.partition("/")
    root = f"{scheme}://{bucket}/"
    # A URL of the web has a question mark of its own, and its servers list nothing.
    if scheme in ("http", "https") or not has_magic(key):
        (size,) = stores.sizes([pattern])
        if size is None:
            raise MissingShardError(f"no such object: {pattern!r}")
        return [(pattern, size)]
    if has_magic(bucket):
        raise MissingShardError(f"{pattern!r}: a glob begins behind the bucket")
    found = [(root + key, size) for key, size in _objects(stores, root, key.split("/")) if not key.endswith("/")]
    if not found:
        raise MissingShardError(f"no object matches the glob {pattern!r}")
    return found


def _objects(stores: "_core.Stores", root: str, pattern: list[str]) -> Iterable[tuple[str, int]]:
    """Keys and sizes of the objects that match the components of a pattern."""
    folders = [""]
    for depth, part in enumerate(pattern):
        rest = pattern[depth:]
        if part == "**" or len(folders) > _MOST_FOLDERS:
            listed = [found for folder in folders for found in stores.list_below(root + folder)]
            return [(key, size) for key, size in listed if _fits_all(key.split("/"), pattern)]
        if not any(map(has_magic, rest)):
            names = [folder + "/".join(rest) for folder in folders]
            sizes = stores.sizes([root + name for name in names])
            return [(name, size) for name, size in zip(names, sizes, strict=True) if size is not None]
        if not has_magic(part):
            folders = [f"{folder}{part}/" for folder in folders]
            continue
        inside = [(folder, *stores.list_folder(root + folder)) for folder in folders]
        if len(rest) == 1:
            return [
                (key, size) for folder, _, objects in inside for key, size in objects if _fits(key[len(folder) :], part)
            ]
        folders = [
            f"{below}/" for folder, subfolders, _ in inside for below in subfolders if _fits(below[len(folder) :], part)
        ]
    return []


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
