"""Parquet files of rows: a column for each field, of type fixed_size_list<int32>[sequence_length], without nulls.

Fields of other dtypes are lists of these, and those of more axes flat ones; bfloat16 is its bits, as uint16.

Row groups are small, so that a row can be read alone. Pages are plain and compressed with Zstandard: a dictionary makes
these files larger by a third, and splitting bytes (BYTE_STREAM_SPLIT) makes them smaller by two percent, which not all
readers understand.
"""

import math
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from gristmill._files.row_items import Items, RowForm
from gristmill._util.atomic_files import DamagedError, unfinished
from gristmill.errors import MissingExtraError

# Bytes of a row group before compression, or one row. With 6 fields of 2,048 tokens reading one takes 3 ms, while
# groups of 4 MiB take 9 ms and save 5 percent of the file.
_GROUP_BYTES = 2**20


class Writer:
    """A file of rows. Its bytes follow from the rows, and from the version of pyarrow."""

    def __init__(self, part: Path, dtype: str, fields: Sequence[str], length: int) -> None:
        pyarrow, parquet = libraries()
        self.paths = [part.with_suffix(".parquet")]
        self._form, self._fields = RowForm.of(dtype, fields, length), list(fields)
        self._types = _types_of(self._form, fields)
        self._schema = pyarrow.schema([pyarrow.field(name, own, nullable=False) for name, own in self._types.items()])
        self._group = max(1, _GROUP_BYTES // (math.prod(self._form.shape) * self._form.dtype.itemsize))
        self._rows = np.zeros((0, *self._form.shape), self._form.dtype)
        self._file = unfinished(self.paths[0]).open("wb")
        self._library = parquet.ParquetWriter(
            self._file,
            self._schema,
            compression="zstd",
            use_dictionary=False,
            write_statistics=False,
            write_page_checksum=True,
        )

    def write(self, items: Items) -> None:
        """Appends rows. The rows of the last row group wait for more."""
        rows = np.concatenate([self._rows, np.asarray(items, self._form.dtype)])
        whole = len(rows) // self._group * self._group
        for start in range(0, whole, self._group):
            self._write_group(rows[start : start + self._group])
        self._rows = rows[whole:].copy()  # a view would keep the whole batch

    def close(self) -> None:
        """Writes the rest of the rows, and the footer."""
        try:
            if len(self._rows):
                self._write_group(self._rows)
            self._library.close()
        finally:
            self._file.close()

    def _write_group(self, rows: npt.NDArray[Any]) -> None:
        pyarrow, _ = libraries()
        own = (rows[name] if self._form.is_record else rows[:, number] for number, name in enumerate(self._fields))
        flat = (np.ascontiguousarray(array).reshape(-1) for array in own)
        columns = [
            pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(array), type=own)
            for array, own in zip(flat, self._types.values(), strict=True)
        ]
        table = pyarrow.Table.from_arrays(columns, schema=self._schema)
        self._library.write_table(table, row_group_size=len(rows))


class Rows(Sequence[npt.NDArray[Any]]):
    """The rows of a file, read on access: a row group at a time, the last of which is kept.

    It may be read by several threads: each opens the file.
    """

    def __init__(self, part: Path, dtype: str, fields: Sequence[str], length: int) -> None:
        _, parquet = libraries()
        self._path = part.with_suffix(".parquet")
        with self._path.open("rb") as file:
            opened = parquet.ParquetFile(file)
            self._metadata, schema = opened.metadata, opened.schema_arrow
        self._form, self._fields = RowForm.of(dtype, fields, length), list(fields)
        expected, found = list(_types_of(self._form, fields).items()), [(own.name, own.type) for own in schema]
        if found != expected:
            shown = [", ".join(f"{name} of {kind}" for name, kind in columns) for columns in (expected, found)]
            raise ValueError(f"expected columns {shown[0]}, found {shown[1]}")
        groups = range(self._metadata.num_row_groups)
        self._ends = np.cumsum([self._metadata.row_group(group).num_rows for group in groups], dtype=np.int64)
        self._last: tuple[int, npt.NDArray[Any]] | None = None

    def __len__(self) -> int:
        return int(self._metadata.num_rows)

    @overload
    def __getitem__(self, index: int) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[npt.NDArray[Any]]: ...
    def __getitem__(self, index: int | slice) -> npt.NDArray[Any] | list[npt.NDArray[Any]]:
        """One row, `[fields, sequence_length]`, or those of a slice.

        Raises:
          DamagedError: they cannot be read.
        """
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[operator.index(index)]
        group = int(np.searchsorted(self._ends, number, side="right"))
        begin = int(self._ends[group - 1]) if group else 0
        last = self._last
        if last is None or last[0] != group:
            last = self._last = group, self._read_group(group)
        row: npt.NDArray[Any] = last[1][number - begin]
        return row

    def _read_group(self, group: int) -> npt.NDArray[Any]:
        pyarrow, parquet = libraries()
        try:
            with self._path.open("rb") as file:
                opened = parquet.ParquetFile(file, metadata=self._metadata, page_checksum_verification=True)
                table = opened.read_row_group(group, columns=self._fields, use_threads=False)
            columns = {name: table.column(name).combine_chunks().flatten().to_numpy() for name in self._fields}
            if not self._form.is_record:
                length = self._form.shape[1]
                return np.stack([ids.reshape(-1, length) for ids in columns.values()], axis=1)
            rows = np.empty(table.num_rows, self._form.dtype)
            for name, values in columns.items():
                rows[name] = values.reshape(rows[name].shape)
            return rows
        except (pyarrow.ArrowException, ValueError) as error:
            raise DamagedError(f"cannot be read: {' '.join(str(error).split())}") from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise DamagedError(f"cannot be read: {' '.join(str(error).split())}") from error  # Arrow's, of bad pages


def libraries() -> tuple[Any, Any]:
    """The modules `pyarrow` and `pyarrow.parquet`.

    Raises:
      MissingExtraError: pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("Parquet of rows needs pyarrow: pip install 'gristmill[parquet]'") from error
    return pyarrow, parquet


def _types_of(form: RowForm, fields: Sequence[str]) -> dict[str, Any]:
    """The types of the columns: without nulls, which would have a bitmap and levels of their own."""
    pyarrow, _ = libraries()

    def column(dtype: Any, elements: int) -> Any:
        element = pyarrow.field("element", pyarrow.from_numpy_dtype(dtype), nullable=False)
        return pyarrow.list_(element, elements)

    if not form.is_record:
        return dict.fromkeys(fields, column(form.dtype, form.shape[1]))
    own = {name: form.dtype[name] for name in fields}
    return {name: column(array.base, math.prod(array.shape)) for name, array in own.items()}
