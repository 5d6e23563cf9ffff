"""`Place`: a small file or a folder, on a disk or in a store."""

import os
import posixpath
from pathlib import Path

import gristmill._core as _core
from gristmill._shards.address import Address


class Place:
    """A file or a folder, on a disk or in a store, of which files are read whole.

    Attributes:
      address: where it is.
    """

    def __init__(self, address: Address) -> None:
        self.address = address

    def __truediv__(self, name: str) -> "Place":
        """A file or folder whose name starts from this one, unless it is a URL or an absolute path."""
        if "://" in name or os.path.isabs(name):
            return Place(self.address.at(name))
        if not self.is_remote:
            return Place(self.address.at(str(Path(str(self)) / name)))
        scheme, path = str(self).split("://", 1)
        return Place(self.address.at(f"{scheme}://{posixpath.normpath(f'{path}/{name}')}"))

    def __str__(self) -> str:
        return self.address.name

    @property
    def is_remote(self) -> bool:
        """Whether it is in a store on the network."""
        return self.address.is_remote

    @property
    def name(self) -> str:
        """The last part of its name."""
        return str(self).rstrip("/").rsplit("/", 1)[-1]

    @property
    def parent(self) -> "Place":
        """The folder that it is in."""
        if not self.is_remote:
            return Place(self.address.at(str(Path(str(self)).parent)))
        return Place(self.address.at(str(self).rstrip("/").rsplit("/", 1)[0]))

    def read(self, stores: "_core.Stores | None" = None) -> bytes | None:
        """The bytes of a file; None if there is none.

        Args:
          stores: the stores of its address, for many reads; None: they are reached for this one.

        Raises:
          GristmillError: the store cannot be reached, or denies access.
          OSError: the disk does.
        """
        if self.is_remote:
            return (stores or self.address.reach()).read(str(self))
        file = Path(str(self))
        return file.read_bytes() if file.is_file() else None
