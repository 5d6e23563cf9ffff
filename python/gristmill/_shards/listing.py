"""Globs as `glob.glob(..., recursive=True)` reads them, which leaves out no folder in silence.

    data/*/[ab]*.gz    data  ──> the folders in it  ──> the names in each that match
    data/**/en.gz      data/ ──> the folders below it, of any depth  ──> those that hold the name

Python's glob silently leaves out the files in a folder that it cannot list.
"""

import errno
import fnmatch
import glob
import os
from collections.abc import Iterator
from glob import has_magic

from gristmill._shards import stores
from gristmill.errors import MissingShardError

# Errors that mean that nothing has this name; links in a circle count as nothing.
NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def matches(pattern: str, *, folders: bool = False) -> Iterator[str]:
    """Paths that match a pattern, in any order; one may come twice.

    Args:
      pattern: of a path; without `*`, `?` and `[` it matches that path, if something is there.
      folders: leave out files that are known not to be folders without another system call.

    Raises:
      MissingShardError: a folder cannot be looked into.
    """
    above, name = os.path.split(pattern)
    if not has_magic(pattern):
        yield from _named(pattern)
        return
    for folder in matches(above, folders=True) if has_magic(above) else [above]:
        if name == "**":
            yield os.path.join(folder, "")
            yield from _below(folder, folders=folders)
        elif has_magic(name):
            hidden = name.startswith(".")
            names = [entry.name for entry in _entries(folder, folders=folders) if hidden or entry.name[0] != "."]
            yield from (os.path.join(folder, found) for found in fnmatch.filter(names, name))
        else:
            yield from _named(os.path.join(folder, name))


def from_folder(pattern: str, folder: str | None = None) -> str:
    """A path or glob that starts from a folder, by default the working folder, from the root. URLs stay as they are."""
    if os.path.isabs(pattern) or stores.is_remote(pattern):
        return pattern
    folder = os.getcwd() if folder is None else folder
    # A name that exists is a path; in a glob, the folder's own name is escaped.
    exists = os.path.exists(os.path.join(folder, pattern))
    return os.path.join(folder if exists else glob.escape(folder), pattern)


def _below(folder: str, *, folders: bool, above: tuple[str, ...] = ()) -> Iterator[str]:
    above = (*above, os.path.realpath(folder or os.curdir))
    for entry in _entries(folder, folders=folders):
        if entry.name[0] != ".":
            path = os.path.join(folder, entry.name)
            yield path
            # A link to a folder above would give its files other names, and two such links infinitely many.
            if _is_folder(entry) and os.path.realpath(path) not in above:
                yield from _below(path, folders=folders, above=above)


def _entries(folder: str, *, folders: bool) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder or os.curdir) as entries:
            return [entry for entry in entries if not folders or _is_folder(entry)]
    except (OSError, ValueError) as error:
        _check_nothing_there(folder or os.curdir, error)
        return []


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        _check_nothing_there(entry.path, error)
        return False


def _named(path: str) -> list[str]:
    try:
        os.lstat(path)
    except (OSError, ValueError) as error:
        _check_nothing_there(path, error)
        return []
    return [path]


def _check_nothing_there(path: str, error: OSError | ValueError) -> None:
    """Checks that looking failed because nothing has that name; no name has a NUL, which is the ValueError."""
    if isinstance(error, OSError) and error.errno not in NOTHING_THERE:
        raise MissingShardError(
            f"cannot list {path!r}: {error.strerror}; fix this, or leave the folder out of the paths and globs"
        ) from error
