"""Files that are whole or not there: written under another name, synced, then renamed."""

import contextlib
import fcntl
import json
import os
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from gristmill.errors import GristmillError

UNFINISHED = ".unfinished"
LOCK = ".lock"


class DamagedError(GristmillError):
    """What was packed is no longer as it was written."""


def unfinished(path: Path) -> Path:
    """The name under which a file is written until it is whole."""
    return path.with_name(path.name + UNFINISHED)


def finish(path: Path) -> None:
    """Syncs what was written under `unfinished(path)`, and gives it its name."""
    with unfinished(path).open("rb") as file:
        os.fsync(file.fileno())
    unfinished(path).replace(path)
    # The name is in the folder's own data.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check_empty(folder: Path, begun: Container[str], what: str, *, mark: str | None) -> None:
    """Checks that a folder is new, or empty but for files with the names `begun`, of a run that was killed at once.

    Another run may have begun to write there since the caller looked: then the file `mark` is there, and all is well.

    Raises:
      GristmillError: it holds anything else, and so no `what` of ours.
    """
    is_empty = not folder.is_dir() or all(child.name in begun for child in folder.iterdir())
    if not is_empty and (mark is None or not (folder / mark).is_file()):
        raise GristmillError(f"{folder} is not empty, and holds no {what}: name another folder")


@contextlib.contextmanager
def writing_into(folder: Path, remedy: str = "name another folder") -> Iterator[None]:
    """Says of a system error which folder cannot be written, and what to do.

    Raises:
      GristmillError: it cannot be written.
    """
    try:
        yield
    except GristmillError:
        raise  # some are system errors, too
    except OSError as error:
        raise GristmillError(f"cannot write into {str(folder)!r}: {error.strerror or error}; {remedy}") from error


def write_json(path: Path, value: Any, *, indent: int | None = None) -> None:
    """Writes a value as JSON, wholly or not at all."""
    # ASCII: paths may hold bytes that are no UTF-8.
    unfinished(path).write_text(json.dumps(value, indent=indent) + "\n", encoding="utf-8")
    finish(path)


def read_json(path: Path, remedy: str) -> Any:
    """The value in a file that `write_json` wrote.

    Args:
      path: the file.
      remedy: what to do if it is damaged.

    Raises:
      DamagedError: it is gone, or is no JSON.
      GristmillError: it cannot be read.
    """
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        kind = DamagedError if isinstance(error, FileNotFoundError) else GristmillError
        raise kind(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {error}; {remedy}") from error


@contextlib.contextmanager
def locked(folder: Path, *, waits: bool = False) -> Iterator[None]:
    """Keeps other processes from writing into a folder; a process that dies lets go of it.

    Args:
      folder: the folder.
      waits: whether to wait for another process that is writing there.

    Raises:
      GristmillError: another process is writing there.
    """
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            raise GristmillError(f"{folder}: another process is writing into this folder") from None
        yield
