"""The argument `quarantine_file`."""

import os

from gristmill._shards.manifest import Manifest
from gristmill._shards.outputs import find_shard
from gristmill._shards.stores import is_remote
from gristmill._util.local_files import Pathish, absolute_path
from gristmill.errors import ArgumentError


def checked_file(path: str | None, on_error: str) -> str | None:
    """The absolute path of a quarantine file.

    Raises:
      ArgumentError: nothing is quarantined, or there cannot be such a file.
    """
    if path is None:
        return None
    if is_remote(path):
        raise ArgumentError(
            f"quarantine_file={path!r}: expected a local file, to which records are appended: objects of a store "
            "cannot grow; name a local file, and copy it after the run"
        )
    if on_error != "quarantine":
        raise ArgumentError(f"quarantine_file={path!r}: on_error='raise' quarantines nothing; use 'quarantine'")
    # Path.is_dir() raises for names that are too long, and for what lies in closed folders.
    absolute = absolute_path("quarantine_file", path)  # iterators may be made in another working folder
    if not os.path.isdir(os.path.dirname(absolute)):  # noqa: PTH112, PTH120
        raise ArgumentError(f"quarantine_file={path!r}: its folder does not exist")
    if os.path.isdir(path):  # noqa: PTH112
        raise ArgumentError(f"quarantine_file={path!r}: expected a file, found a folder")
    return absolute


def check_is_no_shard(path: str | None, shards: "list[Pathish] | Manifest") -> None:
    """Checks that a later run would not read the file.

    Raises:
      ArgumentError: it would.
    """
    if path is not None and (found := find_shard(shards, [path])):
        raise ArgumentError(
            f"quarantine_file={path!r}: {found[1]}, so a resumed run would find another shard; name a file in "
            "another folder, or exclude it from the shards"
        )
