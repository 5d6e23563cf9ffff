"""`PackedRows`: random access to the rows that `gristmill pack` wrote."""

import bisect
import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from gristmill._files import units
from gristmill._files.folder import Folder
from gristmill._files.remote_folder import RemoteFolder, named_by_url
from gristmill._files.row_items import arrays_of
from gristmill._files.schema import Index
from gristmill._shards.address import Address
from gristmill._util.atomic_files import DamagedError
from gristmill._util.named_values import decode
from gristmill.errors import ArgumentError, GristmillError

# A part that is open takes a file descriptor and address space.
_OPEN_PARTS = 128


class PackedRows(Sequence[dict[str, npt.NDArray[np.int32]]]):
    """All rows of packed folders, by their number: a random-access source for Grain.

    `rows[i]` is a dict of int32 arrays `[sequence_length]`, one for each packed field. In a folder in Megatron's format
    it is a document: `{"inputs": ids}`, int32 `[tokens]`, EOS included. Rows are in the order in which they were
    packed; several folders, as hosts pack them with `--shard-index`, and units follow one another. Files are opened as
    they are needed, and rows are read from disk at each access.

    It can be pickled, and read by several threads.

    Example:
      >>> import gristmill as gm
      >>> rows = gm.PackedRows("packed")
      >>> dataset = grain.MapDataset.source(rows).shuffle(seed=1).batch(16)
    """

    def __init__(
        self,
        folder: "str | PathLike[str] | Sequence[str | PathLike[str]]",
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Opens packed folders.

        Args:
          folder: a folder that `gristmill pack` wrote, or several in order; of a store, its URL. Files of a store are
            copied below `TMPDIR` when one of their rows is wanted, and removed with this object.
          storage_options: how stores are reached: see `Manifest.find`.

        Raises:
          MissingShardError: there is no packed folder at a path.
          ArgumentError: no folder is named, or their rows differ in fields, length or ids.
          GristmillError: a folder is not complete, or its index is damaged or cannot be read.
        """
        paths = [folder] if isinstance(folder, str | PathLike) else list(folder)
        if not paths:
            raise ArgumentError("folder=[]: expected at least one folder")
        self._options = dict(storage_options or {})
        self._folders = [
            own for path in paths for own in _opened(Address.of(str(path), storage_options=storage_options))
        ]
        for other in self._folders[1:]:
            _check_alike(self._folders[0], other)
        self._parts = [(own, number) for own in self._folders for number in range(len(own.index["parts"]))]
        self._ends = list(itertools.accumulate(own.index["parts"][number]["items"] for own, number in self._parts))
        self._read = functools.lru_cache(_OPEN_PARTS)(self._read_part)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of a row's arrays."""
        return tuple(self._folders[0].index["fields"])

    @property
    def sequence_length(self) -> int:
        """The number of tokens of a row; of the rows that were packed, where the items are documents."""
        return self._folders[0].index["sequence_length"]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: SupportsIndex) -> dict[str, npt.NDArray[Any]]:  # type: ignore[override]
        """The row with this number, from 0; negative numbers count from the end.

        Raises:
          IndexError: there is none.
          GristmillError: its file is missing or damaged, or cannot be read.
        """
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        number %= len(self)
        part = bisect.bisect_right(self._ends, number)
        begin = self._ends[part - 1] if part else 0
        try:
            item = np.array(self._read(part)[number - begin])
        except DamagedError as error:
            folder, of_folder = self._parts[part]
            raise GristmillError(
                f"{folder.named(str(folder.part_path(of_folder)))}, item {number - begin}: "
                f"{folder.named(str(error))}; restore the file, or pack again"
            ) from error
        if item.dtype.names is None:  # ids of documents may be of a smaller type in files
            item = item.astype(np.int32, copy=False)
        return arrays_of(item, self._folders[0].index["dtype"], self.fields)

    def _read_part(self, part: int) -> Any:
        folder, number = self._parts[part]
        return folder.read(number, folder.index["parts"][number])

    def __repr__(self) -> str:
        # Grain compares it with that in a saved state: it names the rows, not where they are.
        folders = itertools.groupby(own.index["fingerprint"] for own in self._folders)
        counts = ((fingerprint, len(list(alike))) for fingerprint, alike in folders)
        packed = ", ".join(name if count == 1 else f"{name} in {count} folders" for name, count in counts)
        return f"PackedRows(rows={len(self)}, fields={list(self.fields)}, packed={packed!r})"

    def __reduce__(self) -> Any:
        return PackedRows, ([own.named(str(own.path)) for own in self._folders], self._options)


def index_of(rows: PackedRows) -> Index:
    """The index of the first folder of packed rows."""
    return rows._folders[0].index


def _opened(address: Address) -> list[Folder]:
    """The packed folder of an address, or those of its units."""
    if not address.is_remote:
        return [_complete(Folder.open(own)) for own in units.folders_of(Path(address.name))]
    remote = RemoteFolder.to_read(address)
    with named_by_url(str(remote.local), remote.url):
        folders = units.folders_of(remote.local)
        own = [remote if path == remote.local else remote.inside(path.name) for path in folders]
        return [_complete(Folder.open(found.local, found)) for found in own]


def _complete(folder: Folder) -> Folder:
    if not folder.index.get("complete"):
        raise GristmillError(f"{folder.path} is not complete: run the same gristmill pack command again to finish it")
    return folder


def _check_alike(first: Folder, other: Folder) -> None:
    def values(folder: Folder) -> dict[str, Any]:
        # The ids are those of another release of `tokenizers` if a probe text has the same.
        probe = decode(folder.index["ids"]).get("probe")
        index = folder.index
        shape = {"fields": index["fields"], "sequence_length": index["sequence_length"], "dtype": index["dtype"]}
        return {**shape, "ids of a probe text": probe}

    for (name, expected), found in zip(values(first).items(), values(other).values(), strict=True):
        if expected != found:
            raise ArgumentError(
                f"folder={other.named(str(other.path))!r}: expected {name} {expected!r} as in "
                f"{first.named(str(first.path))!r}, found {found!r}; "
                "folders of other rows need a PackedRows of their own"
            )
