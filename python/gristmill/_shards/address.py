"""`Address`: the paths or URLs of files, and how the stores are reached that have them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import gristmill._core as _core
from gristmill._shards import stores
from gristmill._util.checks import without_scheme


@dataclass(frozen=True)
class Address:
    """Where files are, and how the stores are reached that have them. Public arguments become one at once.

    Attributes:
      names: paths, globs and URLs.
      options: names and values of the options of stores, sorted.
    """

    names: tuple[str, ...] = ()
    options: stores.StorageOptions = ()

    @classmethod
    def of(cls, *names: str, storage_options: Mapping[str, str] | None = None) -> Self:
        """The address of names with these options.

        Raises:
          ArgumentError: a `file://` URL names a host.
          ArgumentTypeError: the options are no dict of strings.
        """
        options = stores.check_options("storage_options", storage_options) or ()
        return cls(tuple(map(without_scheme, names)), options)

    def at(self, *names: str) -> "Address":
        """The address of other names in the same stores."""
        return Address(names, self.options)

    @property
    def name(self) -> str:
        """The name, of which there is one."""
        (name,) = self.names
        return name

    @property
    def is_remote(self) -> bool:
        """Whether the name is a URL of a store on the network."""
        return stores.is_remote(self.name)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of datasets that have these shards."""
        return {"shards": list(self.names), "storage_options": dict(self.options)}

    def reach(self) -> "_core.Stores":
        """The stores.

        Raises:
          ArgumentError: an option is unknown.
        """
        return stores.reach(self.options)


NOWHERE = Address()
