"""The file formats: writers and readers of a part.

A writer writes to the names of `atomic_files.unfinished`; `close` completes its files, and `paths` names them.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np
import numpy.typing as npt

from gristmill._files import megatron, parquet
from gristmill._files.row_items import Collector, Documents, Items, RowForm, Rows
from gristmill._util.atomic_files import DamagedError, unfinished
from gristmill._util.local_files import MapMode, mapped

# Attempts to read a header.
_TRIES = 100


class Writer(Protocol):
    """Writes the items of one part."""

    paths: list[Path]

    def write(self, items: Items) -> None:
        """Appends items."""

    def close(self) -> None:
        """Completes the files."""


class NpyWriter:
    """One array [rows, fields, sequence_length], or of records [rows], for `numpy.load(mmap_mode="r")`."""

    def __init__(self, part: Path, dtype: str, fields: Sequence[str], length: int) -> None:
        self.paths = [part.with_suffix(".npy")]
        self._form = RowForm.of(dtype, fields, length)
        self._rows = 0
        self._file = unfinished(self.paths[0]).open("wb")
        self._write_header()

    def write(self, items: Items) -> None:
        """Appends rows."""
        self._file.write(np.ascontiguousarray(items, self._form.dtype).tobytes())
        self._rows += len(items)

    def close(self) -> None:
        """Writes the number of rows into the header, in which NumPy leaves room for it to grow."""
        self._file.seek(0)
        self._write_header()
        self._file.close()

    def _write_header(self) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self._form.dtype),  # type: ignore[no-untyped-call]
            "fortran_order": False,
            "shape": (self._rows, *self._form.shape),
        }
        np.lib.format.write_array_header_1_0(self._file, header)  # type: ignore[no-untyped-call]


class ArrayRecordWriter:
    """One record a row: the bytes of its fields one after another, little-endian."""

    def __init__(self, part: Path, dtype: str, fields: Sequence[str], length: int) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter as Library

        self.paths = [part.with_suffix(".array_record")]
        self._dtype = RowForm.of(dtype, fields, length).dtype
        # Grain reads groups of one record at random.
        self._library = Library(str(unfinished(self.paths[0])), "group_size:1")

    def write(self, items: Items) -> None:
        """Appends rows."""
        with _as_os_errors():
            for row in items:
                self._library.write(np.ascontiguousarray(row, self._dtype).tobytes())

    def close(self) -> None:
        """Writes the footer."""
        with _as_os_errors():
            self._library.close()


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """The library raises RuntimeError when a disk is full."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(*error.args) from error


def _read_npy(part: Path, dtype: str, fields: Sequence[str], length: int) -> Items:
    rows = mapped(lambda mode: _load_npy(part.with_suffix(".npy"), mode))
    form = RowForm.of(dtype, fields, length)
    if (rows.dtype, rows.shape[1:]) != (form.dtype, form.shape):
        raise ValueError(
            f"expected items {list(form.shape)} of {form.dtype}, found {list(rows.shape[1:])} of {rows.dtype}"
        )
    return rows


def _load_npy(path: Path, mode: MapMode) -> npt.NDArray[Any]:
    """Like `numpy.load`, which reads a header with Python's parser.

    In Python 3.11 that may fail while another thread is in it: of 16,000 loads in eight threads, with frequent garbage
    collections, 18 did.
    """
    for left in reversed(range(_TRIES)):
        try:
            rows: npt.NDArray[Any] = np.load(path, mmap_mode=mode)
            break
        except SystemError:
            if not left:
                raise
    return rows


class ArrayRecords(Sequence[npt.NDArray[Any]]):
    """The rows of a part, read on access: a part may be larger than the memory."""

    def __init__(self, part: Path, dtype: str, fields: Sequence[str], length: int) -> None:
        from array_record.python.array_record_module import ArrayRecordReader

        self._form = RowForm.of(dtype, fields, length)
        self._library = ArrayRecordReader(str(part.with_suffix(".array_record")))

    def __len__(self) -> int:
        return int(self._library.num_records())

    @overload
    def __getitem__(self, index: int) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[npt.NDArray[Any]]: ...
    def __getitem__(self, index: int | slice) -> npt.NDArray[Any] | list[npt.NDArray[Any]]:
        """One row, or those of a slice without a step.

        Raises:
          DamagedError: they cannot be read.
        """
        if isinstance(index, int):
            return self[index : index + 1][0]
        start, stop, _ = index.indices(len(self))
        try:
            records = self._library.read(start, stop) if start < stop else []
            form = self._form
            return [np.frombuffer(record, form.dtype).reshape(form.shape)[...] for record in records]
        except (RuntimeError, ValueError) as error:
            raise DamagedError(f"cannot be read: {' '.join(str(error).split())}") from error


def _read_megatron(part: Path, dtype: str, fields: Sequence[str], length: int) -> Items:
    del fields, length
    found = megatron.read(part.with_suffix(".idx"))
    if found.dtype != dtype:
        raise ValueError(f"expected ids of {dtype}, found {found.dtype.str}")
    if len(found.documents) != len(found.sequences) + 1 or (np.diff(found.documents) != 1).any():
        raise ValueError("expected one sequence for each document")
    return found.sequences


@dataclass(frozen=True)
class Format:
    """A file format.

    Attributes:
      suffixes: of the files of a part.
      collector: makes the collector that turns batches into items, from the name of a field that is 0 on padding, the
        names of those to write, the number of lanes, and the rank of each source by its name.
      writer: makes the writer of a part, from its path without suffix, the dtype of ids, the names of the fields, and
        the length of a row.
      read: reads the items of a part, from the same.
      check: raises MissingExtraError if a library is not installed.
      holds_documents: whether items are whole documents, in the dtype of the tokenizer's ids and without marks, instead
        of rows.
    """

    suffixes: tuple[str, ...]
    collector: Callable[[str, Sequence[str], int, Sequence[int]], Collector]
    writer: Callable[[Path, str, Sequence[str], int], Writer]
    read: Callable[[Path, str, Sequence[str], int], Items]
    check: Callable[[], Any] = lambda: None
    holds_documents: bool = False


FORMATS = {
    "npy": Format((".npy",), Rows, NpyWriter, _read_npy),
    "megatron": Format((".bin", ".idx"), Documents, megatron.Writer, _read_megatron, holds_documents=True),
    "array_record": Format((".array_record",), Rows, ArrayRecordWriter, ArrayRecords),
    "parquet": Format((".parquet",), Rows, parquet.Writer, parquet.Rows, parquet.libraries),
}
