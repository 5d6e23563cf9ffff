"""Megatron's indexed datasets: `.bin` holds the ids of all documents, `.idx` their offsets.

    .idx   9 bytes   "MMIDIDX" and two zeros
           u64       version, 1
           u8        dtype of the ids, by its number
           u64       sequences
           u64       entries of the list of documents
           int32[]   length of each sequence
           int64[]   byte in .bin at which each begins
           int64[]   sequence at which each document begins, and the number of sequences
           int8[]    mode of each sequence, in multimodal datasets alone

All is little-endian. The files written here have one sequence for each document, and no modes.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from gristmill._files.row_items import Items
from gristmill._util.atomic_files import unfinished
from gristmill._util.local_files import MapMode, mapped
from gristmill.errors import GristmillError

if TYPE_CHECKING:
    from gristmill._tokenizer.encoder import Encoder

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
# Megatron's own rule for the dtype, applied to the largest id as well: in a vocabulary with holes it may not fit.
_LARGEST_UINT16_VOCABULARY = 65_500


def dtype_for(encoder: "Encoder") -> str:
    """The dtype of ids: uint16 if the vocabulary is small enough, else int32, and where there is none."""
    from gristmill._tokenizer.encoder import no_tokenizer

    if encoder is no_tokenizer():
        return "<i4"
    return "<u2" if max(encoder.vocab_size, encoder.largest_id) < _LARGEST_UINT16_VOCABULARY else "<i4"


class Writer:
    """A pair of files."""

    def __init__(self, part: Path, dtype: str, fields: Sequence[str], length: int) -> None:
        del fields, length
        # The index last: a pair with an index is complete.
        self.paths = [part.with_suffix(".bin"), part.with_suffix(".idx")]
        self._dtype = dtype
        self._largest = np.iinfo(dtype).max
        self._lengths: list[int] = []
        self._bin = unfinished(self.paths[0]).open("wb")

    def write(self, items: Items) -> None:
        """Appends documents.

        Raises:
          GristmillError: an id does not fit into the dtype, in which NumPy would store another one.
        """
        self._lengths.extend(map(len, items))
        for document in items:
            if document.max(initial=0) > self._largest:
                raise GristmillError(f"the id {document.max()} does not fit into {np.dtype(self._dtype)}")
            self._bin.write(document.astype(self._dtype).data)

    def close(self) -> None:
        """Writes the index."""
        self._bin.close()
        lengths = np.array(self._lengths, "<i4")
        begins = np.zeros(len(lengths), "<i8")
        np.cumsum(lengths[:-1], out=begins[1:])
        with unfinished(self.paths[1]).open("wb") as index:
            index.write(_HEADER.pack(_MAGIC, 1, _CODES[self._dtype], len(lengths), len(lengths) + 1))
            index.write(lengths.data)
            index.write((begins * np.dtype(self._dtype).itemsize).data)
            index.write(np.arange(len(lengths) + 1, dtype="<i8").data)


@dataclass(frozen=True)
class Sequences(Sequence[Any]):
    """The ids of each sequence: slices of an array, made on access, as a part may have millions."""

    ids: npt.NDArray[Any]
    begins: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.begins)

    @overload
    def __getitem__(self, index: int) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[npt.NDArray[Any]]: ...
    def __getitem__(self, index: int | slice) -> npt.NDArray[Any] | list[npt.NDArray[Any]]:
        """The ids of one sequence, or of several."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        begin = int(self.begins[index])
        return self.ids[begin : begin + int(self.lengths[index])]


@dataclass(frozen=True)
class Indexed:
    """The content of an index.

    Attributes:
      dtype: of the ids.
      sequences: the ids of each sequence, mapped into memory.
      documents: the sequence at which each document begins, and the number of sequences.
      has_modes: whether each sequence has a mode.
    """

    dtype: np.dtype[Any]
    sequences: Sequences
    documents: npt.NDArray[np.int64]
    has_modes: bool


def read(index: Path) -> Indexed:
    """Reads an index, and its `.bin`.

    Raises:
      GristmillError: either cannot be read, or is damaged.
    """
    path = index.with_suffix(".bin")
    try:
        data, size = index.read_bytes(), path.stat().st_size
    except OSError as error:
        raise GristmillError(
            f"cannot read {str(error.filename)!r}: {error.strerror}; expected an .idx with its .bin beside it"
        ) from error
    try:
        magic, version, code, count, entries = _HEADER.unpack_from(data)
        if (magic, version) != (_MAGIC, 1):
            raise ValueError("another format")
        dtype = np.dtype(_DTYPES[code])
        lengths = np.frombuffer(data, "<i4", count, _HEADER.size)
        begins = np.frombuffer(data, "<i8", count, _HEADER.size + 4 * count)
        documents = np.frombuffer(data, "<i8", entries, _HEADER.size + 12 * count)
        if documents[0] or documents[-1] != count or (np.diff(documents) < 0).any():
            raise ValueError("documents out of order")
        if (lengths < 0).any() or (begins < 0).any() or (begins % dtype.itemsize).any():
            raise ValueError("places that no sequence has")
        rest = len(data) - (_HEADER.size + 12 * count + 8 * entries)
        if rest not in (0, count):
            raise ValueError("bytes after its end")
    except (struct.error, KeyError, ValueError, IndexError, OverflowError) as error:
        raise GristmillError(f"{index} is not a Megatron index, or is damaged") from error
    width = dtype.itemsize
    tokens = int((begins // width + lengths).max(initial=0))
    if size < tokens * width:
        raise GristmillError(f"{path} is truncated: it has {size:,} bytes, but its index needs {tokens * width:,}")
    ids = mapped(lambda mode: _ids(path, dtype, tokens, mode)) if tokens else np.zeros(0, dtype)
    return Indexed(dtype, Sequences(ids, begins // width, lengths), documents, has_modes=rest > 0)


def _ids(path: Path, dtype: "np.dtype[Any]", count: int, mode: MapMode) -> "npt.NDArray[Any]":
    return np.fromfile(path, dtype, count) if mode is None else np.memmap(path, dtype, mode, shape=(count,))
