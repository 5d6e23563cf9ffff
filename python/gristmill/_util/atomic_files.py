"""Files that are whole or not there: written under another name, synced, then renamed."""

import contextlib
import errno
import json
import os
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from gristmill._util.folder_lock import LOCK
from gristmill._util.local_files import NOT_SUPPORTED
from gristmill.errors import GristmillError

UNFINISHED = ".unfinished"

# CIFS, sshfs, gocryptfs and VirtualBox's shared folders cannot sync a folder; one that may be written may not be read.
_NO_SYNC_OF_FOLDERS = NOT_SUPPORTED | {errno.EBADF, errno.EACCES, errno.EPERM, errno.EISDIR}
# Some servers rename only to a name that is free.
_NO_REPLACING = NOT_SUPPORTED | {errno.EEXIST, errno.EACCES, errno.EPERM}


class DamagedError(GristmillError):
    """A packed file differs from the one that was written."""


def unfinished(path: Path) -> Path:
    """The name under which a file is written until it is whole."""
    return path.with_name(path.name + UNFINISHED)


def finish(path: Path) -> None:
    """Syncs the file at `unfinished(path)`, and renames it to `path`."""
    # For writing: some servers sync no file that was opened for reading.
    with unfinished(path).open("r+b") as file:
        _sync(file.fileno(), NOT_SUPPORTED)
    try:
        unfinished(path).replace(path)
    except OSError as error:
        if error.errno not in _NO_REPLACING or not path.exists():
            raise
        # A process that is killed here leaves the file to `recover`.
        path.unlink()
        unfinished(path).rename(path)
    _sync_folder(path.parent)


def recover(path: Path) -> None:
    """Renames a JSON file if a process was killed in `finish` where a file cannot be replaced."""
    if not path.exists() and is_json(unfinished(path)):
        finish(path)


def _sync_folder(folder: Path) -> None:
    """Syncs the names in a folder, if its file system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        if error.errno not in _NO_SYNC_OF_FOLDERS:
            raise
        return
    try:
        _sync(descriptor, _NO_SYNC_OF_FOLDERS)
    finally:
        os.close(descriptor)


def _sync(descriptor: int, ignored: Container[int]) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in ignored:
            raise


def check_empty(folder: Path, begun: Container[str], what: str, *, mark: str | None) -> None:
    """Checks that a folder is new or empty, except for files of a lock and files that a killed run may have left.

    Args:
      folder: the folder.
      begun: names of the files that a killed run may have left.
      what: what the folder is to hold, for the message.
      mark: a file that is there if another run has started since the caller looked; then the folder is fine.

    Raises:
      GristmillError: the folder holds other files.
    """
    is_empty = not folder.is_dir() or all(
        child.name in begun or child.name.startswith(LOCK) for child in folder.iterdir()
    )
    if not is_empty and (mark is None or not (folder / mark).is_file()):
        raise GristmillError(f"{folder} is not empty and does not hold {what}: choose another folder")


@contextlib.contextmanager
def writing_into(
    folder: Path, remedy: str | None = None, *, elsewhere: str = "choose another folder"
) -> Iterator[None]:
    """Adds the folder and the remedy to a system error.

    Args:
      folder: where files are written.
      remedy: what to do; None is `elsewhere`. Where the folder cannot be written at all, it is `elsewhere`.
      elsewhere: how to write into another folder.

    Raises:
      GristmillError: it cannot be written.
    """
    try:
        yield
    except GristmillError:
        raise  # some are system errors, too
    except OSError as error:
        advice = remedy or elsewhere
        if error.errno in NOT_SUPPORTED:
            advice = "its file system lacks a required function: choose a folder on another file system"
        elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            advice = f"make it writable, or {elsewhere}"
        raise GristmillError(f"cannot write into {str(folder)!r}: {error.strerror or error}; {advice}") from error


def write_json(path: Path, value: Any, *, indent: int | None = None) -> None:
    """Writes a value as JSON, wholly or not at all."""
    # ASCII: paths may hold bytes that are not UTF-8.
    unfinished(path).write_text(json.dumps(value, indent=indent) + "\n", encoding="utf-8")
    finish(path)


def read_json(path: Path, remedy: str) -> Any:
    """The value in a file that `write_json` wrote.

    Args:
      path: the file.
      remedy: what to do if it is damaged.

    Raises:
      DamagedError: the file is missing or is not JSON.
      GristmillError: it cannot be read.
    """
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        kind = DamagedError if isinstance(error, FileNotFoundError) else GristmillError
        raise kind(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {error}; {remedy}") from error


def is_json(path: Path) -> bool:
    """Whether a file is there, and was written to its end by `write_json`."""
    try:
        json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return False
    return True
