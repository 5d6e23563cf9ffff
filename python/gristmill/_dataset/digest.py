"""`batch_digest`: what proves that two batches are the same."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

# Arrays that a batch may have or not, while the stream is the same.
_BESIDE = frozenset({"provenance", "attention_mask", "source", "weight"})


def batch_digest(batch: Mapping[str, Any]) -> str:
    """The digest of a batch: equal for two batches only if their arrays are.

    It is that of `gristmill trace --digests`, if the batch is the global one. Arrays that change nothing in the stream
    do not count: `provenance`, `attention_mask`, `source` and `weight`.

    Args:
      batch: an element of a `PackedDataset`: a dict of arrays.

    Returns:
      64 hexadecimal digits: the SHA-256 of the names, in their order in the alphabet, dtypes, shapes and bytes
      (little-endian) of the arrays.
    """
    digest = hashlib.sha256()
    for name in sorted(batch.keys() - _BESIDE):
        array = np.ascontiguousarray(batch[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {array.dtype.name} {list(array.shape)}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
