"""Shardings of meshes with many hosts, with only the methods that a dataset calls."""

import itertools
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    id: int
    process_index: int


@dataclass(frozen=True)
class Sharding:
    """The rows of each device, as a `jax.sharding.Sharding` over several hosts reports them."""

    rows: tuple[tuple[Device, slice], ...]

    def devices_indices_map(self, shape):
        return {device: (rows, slice(None)) for device, rows in self.rows}


class Uneven(Sharding):
    def devices_indices_map(self, shape):
        raise ValueError("should be divisible by 3")


def sharding_of(*spans):
    """A sharding whose k-th process holds the k-th list of row spans."""
    ids = itertools.count()
    return Sharding(
        tuple((Device(next(ids), process), slice(*span)) for process, own in enumerate(spans) for span in own)
    )
