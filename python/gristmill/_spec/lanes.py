"""The number of lanes of a stream, and the lanes of each host."""

from collections.abc import Iterable

from gristmill._util import checks
from gristmill._util.text import format_numbers
from gristmill.errors import ArgumentError

# More lanes cost memory and do not help on the machines of most runs; larger runs set `lanes`.
_LARGEST_DEFAULT = 64
_LARGEST = 2**32


def lane_count(lanes: int | None, batch_size: int | None, shards: int, *, shard_bytes: int) -> int:
    """The number of lanes: the one asked for, or the default.

    The default is the largest power of two that divides `batch_size` and is at most `shards` and 64. It never
    depends on the machine.

    Args:
      lanes: the number asked for.
      batch_size: rows of the global batch.
      shards: the number of shards; a piece of one counts as one.
      shard_bytes: the bytes of all shards, for advice.

    Raises:
      ArgumentError: there are fewer shards than lanes, or the lanes do not divide the batch.
    """
    if lanes is None:
        default = 1
        while 2 * default <= min(shards, _LARGEST_DEFAULT) and (batch_size or 0) % (2 * default) == 0:
            default *= 2
        return default
    lanes = checks.integer("lanes", lanes, 1, _LARGEST, ", or None")
    if lanes > shards:
        enough = shard_bytes // lanes
        divide = f", or split_bytes={enough}, which divides large shards into enough pieces" if enough else ""
        raise ArgumentError(
            f"lanes={lanes}: expected at most {shards}, the number of shards and of pieces of shards: each lane needs "
            f"at least one; {_advice(n for n in range(1, shards + 1) if (batch_size or 0) % n == 0)}{divide}"
        )
    if batch_size is not None and batch_size % lanes:
        raise ArgumentError(
            f"lanes={lanes}: each lane packs the same number of rows of a batch, so lanes must divide "
            f"batch_size={batch_size}; "
            f"{_advice(n for n in range(1, shards + 1) if batch_size % n == 0)}"
        )
    return lanes


def lanes_of_host(lanes: int, shard_index: int, shard_count: int, *, equal_steps: bool = False) -> list[int]:
    """The lanes of host `shard_index` of `shard_count`; all of them with `equal_steps`.

    Raises:
      ArgumentError: `shard_count` does not divide the lanes, or `shard_index` is out of range.
    """
    shard_count = checks.integer("shard_count", shard_count, 1, _LARGEST)
    shard_index = checks.integer("shard_index", shard_index, 0, shard_count - 1)
    if equal_steps:
        return list(range(lanes))
    if lanes % shard_count:
        raise ArgumentError(
            f"shard_count={shard_count}: a host loads whole lanes, so it must divide lanes={lanes}; "
            f"{_advice(n for n in range(1, lanes + 1) if lanes % n == 0)}"
        )
    own = lanes // shard_count
    return list(range(shard_index * own, (shard_index + 1) * own))


def check_equal_steps(batch_size: int | None, shard_count: int, *, equal_steps: bool) -> None:
    """Checks that hosts which take equally many steps have equally many rows.

    Raises:
      ArgumentError: they have not.
    """
    if equal_steps and (batch_size is None or batch_size % shard_count):
        raise ArgumentError(
            f"equal_steps=True: each host delivers the same number of rows of a batch, so shard_count={shard_count} "
            f"must divide batch_size={batch_size}"
        )


def _advice(allowed: Iterable[int]) -> str:
    first, *others = allowed
    return f"use one of {format_numbers([first, *others])}" if others else f"use {first}"
