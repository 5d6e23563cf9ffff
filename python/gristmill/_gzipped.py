"""Files that may be gzipped: their first bytes say so, and not their names."""

import gzip
import io
from pathlib import Path

_MAGIC = b"\x1f\x8b"


def is_gzip(path: Path) -> bool:
    """Whether a file is gzipped."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def open_inflated(path: Path) -> io.BufferedReader | gzip.GzipFile:
    """A file's bytes, inflated if it is gzipped."""
    return gzip.open(path, "rb") if is_gzip(path) else path.open("rb")


def inflated(data: bytes) -> bytes:
    """Bytes of a file, inflated if it is gzipped."""
    return gzip.decompress(data) if data.startswith(_MAGIC) else data
