"""Shardings of meshes that have many hosts, as far as a dataset asks for them."""

import itertools
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    id: int
    process_index: int


@dataclass(frozen=True)
class Sharding:
    """Rows of devices, as a `jax.sharding.Sharding` of several hosts tells them."""

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
