"""`check_replicas`: whether devices that hold the same part of an array hold the same bytes."""

import hashlib
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from gristmill._jax.exchange import exchange
from gristmill.errors import ArgumentTypeError, GristmillError

_DIGEST_WORDS = 4


def check_replicas(batch: Any) -> None:
    """Compares the replicas of global arrays, over all devices and processes: a check for debugging.

    JAX takes different data for the replicas of an array silently, and trains on both. Each process
    hashes the rows it holds, and all compare the hashes: every process of the arrays' sharding must call this, at
    the same place of its program.

    Args:
      batch: a global `jax.Array`, or a dict or other pytree of them.

    Raises:
      GristmillError: replicas differ; on every process, naming the array, the two processes and the rows.
      ArgumentTypeError: a leaf of `batch` is not a `jax.Array`.
    """
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    for path, array in leaves:
        if not isinstance(array, jax.Array):
            raise ArgumentTypeError(
                f"check_replicas: {_name(path)} is a {type(array).__name__}; expected a global jax.Array, as "
                "global_batches yields them"
            )
    for path, array in leaves:
        _check(_name(path), array)


def _check(name: str, array: jax.Array) -> None:
    own = {shard.device: shard.data for shard in array.addressable_shards}
    hashes = exchange(frozenset(array.sharding.device_set)).gather(lambda device: _hash_rows(own[device]))
    indices: dict[Any, Any] = dict(array.sharding.devices_indices_map(array.shape))
    first_with: dict[tuple[Any, ...], Any] = {}
    for device, index in indices.items():
        part = tuple(dimension.indices(size) for dimension, size in zip(index, array.shape, strict=True))
        first = first_with.setdefault(part, device)
        differing = np.flatnonzero((hashes[first] != hashes[device]).any(axis=1))
        if differing.size:
            start = part[0][0] if part else 0
            rows = ", ".join(str(start + row) for row in differing[:8]) + (", ..." if differing.size > 8 else "")
            raise GristmillError(
                f"{name}: process {first.process_index} (device {first.id}) and process {device.process_index} "
                f"(device {device.id}) are replicas of each other and hold different rows: {rows}. Load them with "
                "global_batches, or with dataset.for_sharding of the array's own sharding on every process"
            )


def _hash_rows(data: jax.Array) -> npt.NDArray[np.uint32]:
    if jax.numpy.issubdtype(data.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(data)
    rows = np.atleast_1d(np.asarray(data))
    digests = [hashlib.blake2b(row.tobytes(), digest_size=4 * _DIGEST_WORDS).digest() for row in rows]
    return np.frombuffer(b"".join(digests), np.uint32).reshape(len(rows), _DIGEST_WORDS)


def _name(path: tuple[Any, ...]) -> str:
    return f"batch{jax.tree_util.keystr(path)}"
