"""The lanes that each process loads, read off a JAX sharding of the global batch.

    sharding of 8 rows          rows of each process      lanes (4, of 2 rows each)
    over 2 processes            0: 0-3    1: 4-7          0: 0, 1    1: 2, 3
    rows assigned in turn       0: 0-1, 4-5   1: 2-3, 6-7 0: 0, 2    1: 1, 3
    the same rows on both       0: 0-7    1: 0-7          0: 0 to 3  1: 0 to 3

Every process works out the plan of all processes, so that each finds the same mistakes and none waits for
another. How the sequence axis is split does not matter: a process always loads whole rows.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from gristmill._util import checks
from gristmill._util.text import format_numbers
from gristmill.errors import ArgumentError

# First row, and the one after the last.
Span = tuple[int, int]


def lanes_of_process(plan: Mapping[int, list[int]], process: int) -> list[int]:
    """The lanes of one process, in the order of its rows.

    Raises:
      ArgumentError: the sharding has no device of this process.
    """
    if process not in plan:
        raise _no_device(plan, process)
    return plan[process]


def lanes_of_processes(
    sharding: Any, *, batch_size: int, sequence_length: int, lanes: int, shards: int
) -> dict[int, list[int]]:
    """The lanes of every process that has a device in `sharding`.

    Args:
      sharding: a `jax.sharding.Sharding` of an array `[batch_size, sequence_length]`.
      batch_size: rows of the global batch.
      sequence_length: tokens of a row.
      lanes: lanes that share these rows.
      shards: the largest number of lanes there could be.

    Raises:
      ArgumentError: the sharding does not fit the batch, two processes share only some of their rows, or the
        rows of a process are not whole lanes.
      ArgumentTypeError: `sharding` is not a sharding.
    """
    rows = _rows_of_processes(sharding, (batch_size, sequence_length))
    _check_overlap(rows)
    rows_per_lane = batch_size // lanes
    step = _largest_step(rows.values(), batch_size)
    if step % rows_per_lane:
        possible = [n for n in range(1, shards + 1) if batch_size % n == 0 and step % (batch_size // n) == 0]
        fewest = next(n for n in range(1, batch_size + 1) if batch_size % n == 0 and step % (batch_size // n) == 0)
        raise ArgumentError(
            f"lanes={lanes}: a process loads whole lanes, here of {rows_per_lane} rows each, but this sharding assigns "
            f"{_described(rows)}; "
            + (
                f"possible numbers of lanes: {format_numbers(possible)}"
                if possible
                else f"it needs at least {fewest} shards, or pieces of shards: see split_bytes="
            )
        )
    return {
        process: [lane for start, stop in spans for lane in range(start // rows_per_lane, stop // rows_per_lane)]
        for process, spans in rows.items()
    }


def rows_of_process(sharding: Any, shape: tuple[int, int], process: int) -> tuple[Span, ...]:
    """The rows of an array of this shape that the devices of one process hold, as spans in order.

    Raises:
      ArgumentError: the sharding does not fit the shape, two processes share only some of their rows, or this one has
        no device.
      ArgumentTypeError: `sharding` is not a sharding.
    """
    rows = _rows_of_processes(sharding, shape)
    _check_overlap(rows)
    if process not in rows:
        raise _no_device(rows, process)
    return rows[process]


def _rows_of_processes(sharding: Any, shape: tuple[int, int]) -> dict[int, tuple[Span, ...]]:
    """The rows of each process as spans in order, joined where they touch."""
    if not hasattr(sharding, "devices_indices_map"):
        raise checks.wrong_type(
            "sharding", sharding, "a jax.sharding.Sharding, such as NamedSharding(mesh, PartitionSpec('data'))"
        )
    unfit = f"the sharding does not fit batches of shape {shape} (batch_size, sequence_length)"
    if len(spec := getattr(sharding, "spec", ())) > len(shape):
        raise ArgumentError(f"{unfit}: its spec, {spec}, is for arrays of {len(spec)} axes")
    try:
        indices = sharding.devices_indices_map(shape)
    except ValueError as error:
        raise ArgumentError(f"{unfit}: {error}") from error
    spans: dict[int, set[Span]] = {}
    for device, index in indices.items():
        spans.setdefault(device.process_index, set()).add(index[0].indices(shape[0])[:2])
    return {process: _joined(spans[process]) for process in sorted(spans)}


def _no_device(plan: Mapping[int, object], process: int) -> ArgumentError:
    return ArgumentError(
        f"the sharding has no device of process {process}: it spans the processes {format_numbers(sorted(plan))}. Only "
        "those can load batches for it"
    )


def _joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    joined: list[Span] = []
    for start, stop in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return tuple(joined)


def _check_overlap(rows: Mapping[int, tuple[Span, ...]]) -> None:
    """Processes load either the same rows, as replicas of each other, or have none in common."""
    groups: dict[tuple[Span, ...], int] = {}
    for process, spans in rows.items():
        groups.setdefault(spans, process)
    ends: list[tuple[int, int, int]] = sorted((*span, process) for spans, process in groups.items() for span in spans)
    for (_, end, before), (start, _, process) in itertools.pairwise(ends):
        if start < end:
            pair = {name: rows[name] for name in sorted((before, process))}
            raise ArgumentError(
                f"the sharding assigns {_described(pair)}: these overlap in part. Any two processes must "
                "hold either the same rows or none in common, whatever lanes= is. Arrange the mesh axes of the "
                "batch so that each process holds whole replicas"
            )


def _largest_step(rows: Iterable[tuple[Span, ...]], batch_size: int) -> int:
    """The largest number of rows that divides all borders between processes."""
    return math.gcd(batch_size, *(border for spans in rows for span in spans for border in span))


def _described(rows: Mapping[int, tuple[Span, ...]]) -> str:
    def one(spans: tuple[Span, ...]) -> str:
        shown = [f"{start}-{stop - 1}" for start, stop in spans[:4]]
        return ", ".join(shown if len(spans) <= 4 else [*shown, "..."])

    shown = [f"process {process} the rows {one(spans)}" for process, spans in list(rows.items())[:4]]
    return "; ".join(shown if len(rows) <= 4 else [*shown, "..."])
