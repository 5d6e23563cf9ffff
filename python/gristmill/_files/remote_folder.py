"""A folder of a store that `gristmill pack` writes: each file of it appears whole, or not at all.

    part-00000.npy   written into a local folder  ──> an object, and the local file is removed
    part-00000.json  written after it             ──> an object, by which a later run knows that the part is whole

A later run fetches the index and the notes, and continues after the last one.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gristmill._shards import stores
from gristmill._shards.address import Address
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError, GristmillError

# The schemes of stores that cannot be written.
_READ_ONLY = ("http://", "https://", "hf://")


def check_local(path: str) -> None:
    """Checks that packed files that are to be read are local.

    Raises:
      ArgumentError: they are in a store.
    """
    if stores.is_remote(path):
        raise ArgumentError(
            f"{path}: expected packed files in a local folder: copy those of a store there, for example with "
            "gcloud storage or aws s3"
        )


def is_read_only(url: str) -> bool:
    """Whether a store cannot be written."""
    return url.startswith(_READ_ONLY)


def check_can_be_written(url: str) -> None:
    """Checks that a store can be written.

    Raises:
      ArgumentError: it cannot.
    """
    if is_read_only(url):
        raise ArgumentError(f"--output {url}: expected a local folder, or gs://, s3:// or az://, which can be written")


@contextlib.contextmanager
def named_by_url(local: str, url: str) -> Iterator[None]:
    """Errors within name a URL in place of the local folder that stands for it."""
    try:
        yield
    except GristmillError as error:
        raise error.reworded(lambda text: text.replace(local, url)) from error


class RemoteFolder:
    """A folder of a store, and the local one in which its files are written first.

    Attributes:
      local: the local folder, with the index and the notes.
    """

    def __init__(self, address: Address, local: Path, index: str) -> None:
        """Fetches the index and the notes that are there.

        Raises:
          ArgumentError: the store cannot be written.
          GristmillError: the folder holds other files, or the store cannot be reached.
        """
        url = address.name
        check_can_be_written(url)
        self.local = local
        self._url = url.rstrip("/")
        self._stores = address.reach()
        folder, prefix = f"{self._url}/", self._url.split("://", 1)[1].partition("/")[2]
        listed, _ = self._stores.list_below(folder)
        self._sizes = {key.removeprefix(f"{prefix}/" if prefix else ""): size for key, size in listed}
        if self._sizes and index not in self._sizes:
            raise GristmillError(
                f"{url} is not empty and does not hold packed files, but {shortened(min(self._sizes))}: choose another "
                "folder"
            )
        for name in self._sizes:
            if name.endswith(".json") and "/" not in name:
                (local / name).write_bytes(self._stores.read(f"{folder}{name}") or b"")

    @classmethod
    @contextlib.contextmanager
    def opened(cls, address: Address, index: str) -> "Iterator[RemoteFolder]":
        """The folder, with a local one that is there until the end of the `with`. Errors name the URL.

        Raises:
          GristmillError: see `RemoteFolder`.
        """
        with (
            tempfile.TemporaryDirectory(prefix="gristmill-pack-") as local,
            named_by_url(local, address.name.rstrip("/")),
        ):
            yield cls(address, Path(local), index)

    def size(self, name: str) -> int | None:
        """The bytes of a file; None if it is not there."""
        return self._sizes.get(name)

    def publish(self, path: Path) -> None:
        """Makes a local file appear in the store. One that is not JSON is then removed.

        Raises:
          GristmillError: the store cannot be written.
        """
        self._stores.upload(f"{self._url}/{path.name}", str(path))
        self._sizes[path.name] = path.stat().st_size
        if path.suffix != ".json":
            path.unlink()
