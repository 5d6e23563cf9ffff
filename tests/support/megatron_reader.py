"""Reads an indexed dataset as Megatron's own loader does."""

import itertools
import struct

import numpy as np


def read_as_megatron_does(prefix):
    """The documents of an indexed dataset, read field by field as Megatron's loader reads them."""
    with prefix.with_suffix(".idx").open("rb") as index:
        assert index.read(9) == b"MMIDIDX\x00\x00"
        assert struct.unpack("<Q", index.read(8)) == (1,)
        (code,) = struct.unpack("<B", index.read(1))
        dtype = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}[code]
        (sequences,) = struct.unpack("<Q", index.read(8))
        (documents,) = struct.unpack("<Q", index.read(8))
        lengths = np.fromfile(index, np.int32, sequences)
        pointers = np.fromfile(index, np.int64, sequences)
        document_indices = np.fromfile(index, np.int64, documents)
        assert index.read() == b""
    assert document_indices[0] == 0
    assert document_indices[-1] == sequences
    assert prefix.with_suffix(".bin").stat().st_size == lengths.sum() * np.dtype(dtype).itemsize
    data = prefix.with_suffix(".bin").read_bytes()
    found = [np.frombuffer(data, dtype, n, start) for n, start in zip(lengths, pointers, strict=True)]
    return [np.concatenate(found[a:b]) for a, b in itertools.pairwise(document_indices)]
