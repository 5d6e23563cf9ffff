"""The sharding of arrays beside the tokens."""

from typing import Any

import jax

from gristmill.errors import ArgumentError


def row_sharding(sharding: Any) -> Any:
    """The sharding of an array that has the same rows and other columns, which are not split.

    Raises:
      ArgumentError: it is neither a `NamedSharding` nor one of a single device.
    """
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        return sharding
    if not isinstance(sharding, jax.sharding.NamedSharding):
        raise ArgumentError(
            f"provenance, index, seq_lens: their rows cannot be divided as a {type(sharding).__name__} divides those "
            "of tokens; use a NamedSharding, or leave provenance out"
        )
    spec = jax.sharding.PartitionSpec(*sharding.spec[:1])
    return jax.sharding.NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)
