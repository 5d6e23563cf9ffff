"""Local files: their paths as the core takes them, and their bytes, gzipped or not, or mapped into memory.

A file is gzipped if its first bytes say so, whatever its name.
"""

import errno
import gzip
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from gristmill._util.checks import valid_text
from gristmill.errors import ArgumentError

Pathish: TypeAlias = "str | os.PathLike[str]"
Array = TypeVar("Array")
MapMode: TypeAlias = Literal["r", "c"] | None

# The errors that file systems raise at a call that they do not have.
NOT_SUPPORTED = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})

_MAGIC = b"\x1f\x8b"


def open_inflated(path: Path) -> io.BufferedReader | gzip.GzipFile:
    """A file's bytes, inflated if it is gzipped."""
    with path.open("rb") as file:
        is_gzip = file.read(len(_MAGIC)) == _MAGIC
    return gzip.open(path, "rb") if is_gzip else path.open("rb")


def inflated(data: bytes) -> bytes:
    """Bytes of a file, inflated if it is gzipped."""
    return gzip.decompress(data) if data.startswith(_MAGIC) else data


def mapped(load: Callable[[MapMode], Array]) -> Array:
    """An array of a file, mapped into memory if its file system can do that.

    Args:
      load: gives the array, mapped with this mode of `numpy.memmap`, or read if that is None.
    """
    # File systems in user space may refuse a mapping that is shared, as that of "r" is, and allow a private one.
    modes: tuple[MapMode, ...] = ("r", "c")
    for mode in modes:
        try:
            return load(mode)
        except OSError as error:
            if error.errno not in NOT_SUPPORTED | {errno.ENODEV}:
                raise
    return load(None)


def working_folder() -> str:
    """The working folder, for a message."""
    try:
        return repr(str(Path.cwd()))
    except OSError:
        return "removed"


def absolute_path(name: str, path: str) -> str:
    """A path from the root, as a string that the core can use."""
    try:
        found = str(Path(path).absolute())
    except FileNotFoundError:
        raise ArgumentError(f"{name}={path!r}: the working folder, which it is relative to, was removed") from None
    return valid_text(name, found)


def utf8_path(path: str) -> str:
    """A shard's path as the core takes it: the bytes of its name as UTF-8, whatever the locale's encoding is."""
    try:
        return os.fsencode(path).decode()
    except UnicodeError as error:
        encoding = sys.getfilesystemencoding()
        if isinstance(error, UnicodeEncodeError) and encoding != "utf-8":
            found = (
                f"is not {encoding}, the encoding of file names in this process: set PYTHONUTF8=1, or rename the file"
            )
        else:
            found = "is not UTF-8: rename the file"
        raise ArgumentError(f"the name of the shard {path!r} {found}") from None
