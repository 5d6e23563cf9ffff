"""How long a consumer waits: for the first batch, under continuous consumption, and when it takes one now and then.

`python -m gristmill._bench.latency` prints it as JSON, for a job on stdin, in a process of its own.
"""

import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gristmill._bench import child
from gristmill._bench.contenders import own_dataset
from gristmill._bench.job import Job
from gristmill.errors import GristmillError

LANES = 64
_STARTS = 7
# A paced consumer needs so much longer for a batch than the pipeline, but never less than the least.
_PACE = 1.5
_LEAST_PACE_SECONDS = 0.002
# The delays of at most so many batches are kept.
_BATCHES = 2000


def in_child(job: Job) -> dict[str, Any]:
    """Measures delays in a process of its own.

    Args:
      job: the job; its `batch_size` is raised to a multiple of 64 rows, one or more for each of 64 lanes.

    Returns:
      `first`, seconds from starting an iterator of 64 lanes to its first batch; `continuous` and `paced`, seconds
      that each `next` took; for all of them `p50`, `p99` and `max`; and `pace`, the seconds between the batches that
      a paced consumer takes.

    Raises:
      GristmillError: it failed.
    """
    with _enough_shards(job.shards) as shards:
        request = replace(job, shards=shards, lanes=LANES, batch_size=-(-job.batch_size // LANES) * LANES)
        return child.measure("measuring delays", "gristmill._bench.latency", asdict(request))


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum."""
    ordered = sorted(seconds)
    return {"p50": statistics.median(ordered), "p99": ordered[(len(ordered) - 1) * 99 // 100], "max": ordered[-1]}


def _delays(dataset: Any, pace: float) -> list[float]:
    """Seconds that each `next` but the first took, taking a batch every `pace` seconds."""
    delays = []
    with contextlib.closing(iter(dataset)) as iterator:
        next(iterator)
        due = time.perf_counter() + pace
        for _ in range(_BATCHES):
            time.sleep(max(0.0, due - time.perf_counter()))
            start = time.perf_counter()
            if next(iterator, None) is None:
                break
            delays.append(time.perf_counter() - start)
            # From when the batch came, as of a training step that begins with it.
            due = time.perf_counter() + pace
    return delays


def _first(dataset: Any) -> float:
    with contextlib.closing(iter(dataset)) as iterator:
        start = time.perf_counter()
        next(iterator)
        return time.perf_counter() - start


@contextlib.contextmanager
def _enough_shards(shards: Sequence[str]) -> Iterator[list[str]]:
    """At least as many shards as lanes: the same ones again, under other names."""
    with tempfile.TemporaryDirectory(prefix="gristmill-bench-") as folder:
        paths = []
        for number, shard in zip(range(max(LANES, len(shards))), itertools.cycle(shards), strict=False):
            path = Path(folder, f"{number:05}-{Path(shard).name}")
            path.symlink_to(Path(shard).resolve())
            paths.append(str(path))
        yield paths


def measure(job: Job) -> dict[str, Any]:
    """Measures delays in this process, see `in_child`."""
    dataset = own_dataset(job)
    first = [_first(dataset) for _ in range(_STARTS)]
    continuous = _delays(dataset, 0.0)
    if not continuous:
        raise GristmillError(
            f"delays need more than one batch in {LANES} lanes: use more text, with --megabytes or --shards"
        )
    pace = max(_LEAST_PACE_SECONDS, _PACE * statistics.mean(continuous))
    paced = _delays(dataset, pace)
    return {
        "lanes": LANES,
        "threads": job.threads,
        "batch_size": job.batch_size,
        "pace": pace,
        **{
            name: {"seconds": seconds, **quantiles(seconds)}
            for name, seconds in (("first", first), ("continuous", continuous), ("paced", paced))
        },
    }


if __name__ == "__main__":
    child.main(lambda job: measure(Job(**job)))
