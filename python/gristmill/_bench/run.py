"""One run of a contender in this process: `python -m gristmill._bench.run` prints its figures as JSON."""

import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gristmill._bench import child
from gristmill._bench.contenders import CONTENDERS
from gristmill._bench.job import Batches, Job


def in_child(name: str, job: Job, *, count: bool = False) -> dict[str, Any]:
    """`measure` in a process of its own.

    Raises:
      GristmillError: it failed.
    """
    environment = {
        **os.environ,
        # The threads that the `tokenizers` library makes.
        "RAYON_NUM_THREADS": str(job.threads),
        "TOKENIZERS_PARALLELISM": "true" if job.threads > 1 else "false",
        # The shards are local: nothing is to be asked of the hub.
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        # A file that it leaves there when it is killed goes with the folder.
        **({"TMPDIR": job.scratch} if job.scratch else {}),
    }
    request = {"name": name, "job": asdict(job), "count": count}
    return child.measure(f"the contender {name}", "gristmill._bench.run", request, environment)


def measure(name: str, job: Job, *, count: bool = False) -> dict[str, Any]:
    """Runs a contender to its end.

    Args:
      name: which.
      job: the job.
      count: also look at every token, for which there is no time while speed is measured: reading what two threads
        pack takes a good part of a third.

    Returns:
      `seconds` from asking for the first batch to the end, `seconds_to_first_batch`, `cpu_seconds` with those of worker
      processes, `sleeps`, how often a thread waited for a lock, for work or for a disk, `peak_bytes` of the memory of
      this process, `rows`, and `notes`, what the
      contender says of itself; with `count` also `tokens`, `eos_tokens`, and `id_sum` of all ids but EOS, by which one
      sees that all gave the same tokens.
    """
    batches = _Noted(CONTENDERS[name].run(job))
    counts = _Counts(job.eos)
    rows, first = 0, 0.0
    sleeps = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    cpu = _cpu_seconds()
    start = time.perf_counter()
    for ids, valid in batches:
        first = first or time.perf_counter() - start
        rows += len(ids)
        if count:
            counts.add(ids, valid)
    return {
        "seconds": time.perf_counter() - start,
        "seconds_to_first_batch": first,
        "cpu_seconds": _cpu_seconds() - cpu,
        "sleeps": resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - sleeps,
        "peak_bytes": peak_bytes(),
        "rows": rows,
        "notes": batches.notes,
        **(counts.found() if count else {}),
    }


class _Counts:
    """Counts of the batches of a contender."""

    def __init__(self, eos: int | None) -> None:
        self._eos = eos
        self._tokens = self._eos_tokens = self._id_sum = 0

    def add(self, ids: Any, valid: Any) -> None:
        found = ids.reshape(-1) if valid is None else ids[valid != 0]
        eos = 0 if self._eos is None else int(np.count_nonzero(found == self._eos))
        self._tokens += found.size
        self._eos_tokens += eos
        self._id_sum += int(found.sum(dtype="int64")) - eos * (self._eos or 0)

    def found(self) -> dict[str, int]:
        return {"tokens": self._tokens, "eos_tokens": self._eos_tokens, "id_sum": self._id_sum}


def _cpu_seconds() -> float:
    """The processor time of this process and of the worker processes that have ended."""
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + workers.ru_utime + workers.ru_stime


def peak_bytes() -> int:
    """The most memory that this process has held."""
    try:
        # getrusage would count the memory of the parent when it started this process.
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class _Noted:
    """A contender's batches, and the return value of its generator."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self.notes: dict[str, Any] = {}

    def __iter__(self) -> Iterator[Any]:
        self.notes = (yield from self._batches) or {}


if __name__ == "__main__":
    child.main(lambda request: measure(request["name"], Job(**request["job"]), count=request["count"]))
