"""A folder of a store with packed files: each file of it appears whole, or not at all.

    part-00000.npy   written into a local folder  ──> an object, and the local file is removed
    part-00000.json  written after it             ──> an object, by which a later run knows that the part is whole

A later run fetches the index and the notes, and continues after the last one. Who reads packed files fetches these,
too, and each other file when it is needed.
"""

import contextlib
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gristmill._shards.address import Address
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError, GristmillError, MissingShardError

# The schemes of stores that cannot be written.
_READ_ONLY = ("http://", "https://", "hf://")


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


def named_in(value: Any, local: str, url: str) -> Any:
    """A value with a URL in all texts in place of the local folder that stands for it."""
    if isinstance(value, str):
        return value.replace(local, url)
    if isinstance(value, Mapping):
        return {name: named_in(own, local, url) for name, own in value.items()}
    return [named_in(own, local, url) for own in value] if isinstance(value, list) else value


class _Temporary:
    """A local folder that is removed with this object, or when the program ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="gristmill-read-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class RemoteFolder:
    """A folder of a store, and the local one that has some of its files.

    Attributes:
      local: the local folder, with the index and the notes.
      url: the URL of the other one, without a slash at the end.
    """

    def __init__(self, address: Address, local: Path, sizes: Mapping[str, int] | None = None) -> None:
        """Lists the folder, unless its sizes are known.

        Raises:
          GristmillError: the store cannot be reached.
        """
        self.local = local
        self.url = address.name.rstrip("/")
        self._address = address
        self._stores = address.reach()
        # Several threads may read one part.
        self._fetching = threading.Lock()
        if sizes is None:
            folder, prefix = f"{self.url}/", self.url.split("://", 1)[1].partition("/")[2]
            listed, _ = self._stores.list_below(folder)
            sizes = {key.removeprefix(f"{prefix}/" if prefix else ""): size for key, size in listed}
        self._sizes = dict(sizes)

    @classmethod
    @contextlib.contextmanager
    def opened(cls, address: Address, index: str) -> "Iterator[RemoteFolder]":
        """The folder, with a local one that is there until the end of the `with`. Errors name the URL.

        Raises:
          ArgumentError: the store cannot be written.
          GristmillError: the folder holds other files, or the store cannot be reached.
        """
        check_can_be_written(address.name)
        with (
            tempfile.TemporaryDirectory(prefix="gristmill-pack-") as local,
            named_by_url(local, address.name.rstrip("/")),
        ):
            found = cls(address, Path(local))
            if found._sizes and index not in found._sizes:
                raise GristmillError(
                    f"{address.name} is not empty and does not hold packed files, but {shortened(min(found._sizes))}: "
                    "choose another folder"
                )
            found._fetch_notes(depth=0)
            yield found

    @classmethod
    def to_read(cls, address: Address) -> "RemoteFolder":
        """The folder, with a local one that is there as long as it is.

        Raises:
          ArgumentError: the store lists nothing, or is the hub.
          MissingShardError: there is no such folder.
          GristmillError: the store cannot be reached.
        """
        if is_read_only(address.name):
            raise ArgumentError(
                f"{address.name}: expected packed files in a local folder, or in gs://, s3:// or az://: download them"
            )
        held = _Temporary()
        found = cls(address, held.path)
        found._held = held
        if not found._sizes:
            raise MissingShardError(f"no packed files in {address.name!r}: no such folder")
        found._fetch_notes(depth=1)
        return found

    def inside(self, name: str) -> "RemoteFolder":
        """A folder in it."""
        sizes = {key.removeprefix(f"{name}/"): size for key, size in self._sizes.items() if key.startswith(f"{name}/")}
        found = RemoteFolder(self._address.at(f"{self.url}/{name}"), self.local / name, sizes)
        found._held = self._held
        return found

    # The local folder, if it goes when nobody reads it any more.
    _held: "_Temporary | None" = None

    def _fetch_notes(self, depth: int) -> None:
        """Fetches the JSON files in it, and in folders in it down to this depth."""
        for name in self._sizes:
            if name.endswith(".json") and name.count("/") <= depth:
                (self.local / name).parent.mkdir(exist_ok=True)
                (self.local / name).write_bytes(self._stores.read(f"{self.url}/{name}") or b"")

    @property
    def names(self) -> list[str]:
        """The names of its files, without those in folders in it."""
        return [name for name in self._sizes if "/" not in name]

    def size(self, name: str) -> int | None:
        """The bytes of a file; None if it is not there."""
        return self._sizes.get(name)

    def fetch(self, name: str) -> None:
        """Makes a file of it a local one, unless it is.

        Raises:
          GristmillError: the store cannot be read.
        """
        path = self.local / name
        with self._fetching:
            if not path.exists():
                unfinished = path.with_name(f"{name}.fetched")
                self._stores.download(f"{self.url}/{name}", self._sizes[name], str(unfinished))
                unfinished.rename(path)

    def forget(self, name: str) -> None:
        """Removes the local file."""
        (self.local / name).unlink(missing_ok=True)

    def publish(self, path: Path) -> None:
        """Makes a local file appear in the store. One that is not JSON is then removed.

        Raises:
          GristmillError: the store cannot be written.
        """
        self._stores.upload(f"{self.url}/{path.name}", str(path))
        self._sizes[path.name] = path.stat().st_size
        if path.suffix != ".json":
            path.unlink()
