"""A lock on a folder: one process at a time writes into it.

The lock is `flock` on a file in the folder, which the system releases when the process ends. Some file systems have no
`flock`. There the lock is a file that is created exclusively and names its process. It stays behind when the process is
killed: the next process on the same machine sees that, and removes it.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from gristmill._util.output import cleaning_up_when_terminated
from gristmill.errors import GristmillError

# How the names of all files begin that a lock leaves in its folder.
LOCK = ".lock"
HOLDER = LOCK + "-holder"
# Lustre without `-o flock`, NFS without a lock daemon, some file systems in user space.
_NO_FLOCK = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL})
_POLL_SECONDS = 0.2

_LOGGER = logging.getLogger("gristmill")


@contextlib.contextmanager
def locked(folder: Path, *, waits: bool = False) -> Iterator[None]:
    """Keeps other processes from writing into a folder. One that cannot be written needs no lock.

    Args:
      folder: the folder.
      waits: whether to wait for another process that is writing there.

    Raises:
      GristmillError: another process is writing there.
    """
    file = _open(folder)
    if file is None:
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            raise GristmillError(f"{folder}: another process is writing into this folder") from None
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
        else:
            yield
            return
    # A terminated process, as schedulers end one before they start it on another machine, removes its file.
    with cleaning_up_when_terminated(), _holding(folder / HOLDER, waits=waits):
        yield


def _open(folder: Path) -> IO[str] | None:
    """The file to lock; None if the folder is read-only."""
    try:
        return (folder / LOCK).open("w")
    except OSError:
        if os.access(folder, os.W_OK):
            raise
        return None


@contextlib.contextmanager
def _holding(path: Path, *, waits: bool) -> Iterator[None]:
    """Holds a lock that is the file at `path`."""
    pid = os.getpid()
    mine = json.dumps({"host": socket.gethostname(), "pid": pid, "machine": _machine(), "started": _started(pid)})
    is_reported = False
    while not _create(path, mine):
        holder = _read(path)
        if holder is None:
            continue  # released since
        if _has_ended(holder):
            _remove(path, holder)
            continue
        if not waits:
            raise GristmillError(_describe(path, holder))
        if not is_reported:
            _LOGGER.warning("waiting: %s", _describe(path, holder))
            is_reported = True
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        if _read(path) == mine:
            path.unlink(missing_ok=True)


def _create(path: Path, text: str) -> bool:
    """Creates a file, unless it is there."""
    try:
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        return False
    return True


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _remove(path: Path, holder: str) -> None:
    """Removes the file of a process that has ended, unless another process did so and holds the lock now."""
    aside = path.with_name(f"{path.name}-{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
        if _read(aside) == holder:
            aside.unlink()
        else:
            aside.rename(path)


def _parsed(holder: str) -> dict[str, Any]:
    """The contents of a holder's file; nothing if it was killed before it wrote it."""
    with contextlib.suppress(ValueError):
        found = json.loads(holder)
        if isinstance(found, dict):
            return found
    return {}


def _has_ended(holder: str) -> bool:
    """Whether a holder's process is known to have ended: it was one of this machine."""
    found = _parsed(holder)
    machine, pid = _machine(), found.get("pid")
    if machine is None or found.get("machine") != machine or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's
        pass
    started = _started(pid)
    return started is not None and started != found.get("started")


def _machine() -> str | None:
    """The machine since its start, and the namespace, that process numbers belong to; None if the system hides it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When a process started: a later one may have its number. Empty if it is dead; None if the system hides it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # After the name, which may hold anything, come the 3rd field, the state, and the others up to the 22nd.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _describe(path: Path, holder: str) -> str:
    found = _parsed(holder)
    who = f"process {found['pid']} on {found['host']}" if {"pid", "host"} <= found.keys() else "unknown process"
    return (
        f"{path.parent}: another process is writing into this folder ({who}). Its file system has no flock, which "
        f"would show whether that process still runs: if it has ended, remove {str(path)!r}"
    )
