"""Packing in units on a Ray cluster: `gm.pack(..., units=, engine="ray")` and `gristmill pack --engine ray`.

Each unit is a task. The bytes of a unit follow from its plan, so a task may be done twice:

    a node dies or is preempted    its units are done again elsewhere, from their last finished file
    a unit takes long              a second task does it in a folder of its own; the first that is done counts
    a unit has a bad record        it fails with the located error; the others continue
"""

import contextlib
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gristmill._files import units
from gristmill._util.progress import Progress
from gristmill._util.text import counted
from gristmill.errors import GristmillError, MissingExtraError

try:
    import ray
except ModuleNotFoundError as error:
    raise MissingExtraError("engine='ray' needs Ray: pip install 'gristmill[ray]'") from error

# A unit that takes so many times the median, and so long, is given to a second task.
_SLOW, _SLOW_SECONDS = 2.0, 60.0
# How often a unit may be lost with its worker or node: preempted machines lose some, and a unit may kill each.
_LOSSES = 20
_POLL_SECONDS = 1.0
_SHOWN = 5


@dataclass
class _Unit:
    """A unit that is not done: its tasks, and when the first of them began."""

    number: int
    tasks: list[Any] = field(default_factory=list)
    began: float = 0.0
    losses: int = 0


def pack_units(
    pack_unit: units.PackUnit, path: Path, count: int, *, cpus: int = 1, slow_seconds: float = _SLOW_SECONDS
) -> None:
    """Packs all units of a folder that are not complete.

    Ray is the cluster of `ray.init()`, or else that of `RAY_ADDRESS`, or else the one on this machine. All its nodes
    see the folder, the shards and the tokenizer at the same paths.

    Args:
      pack_unit: packs the unit with a number into a folder, or its own if that is None. It is pickled.
      path: the folder.
      count: how many units there are.
      cpus: CPUs of a task.
      slow_seconds: a unit that takes less is never given to a second task.

    Raises:
      GristmillError: some units failed; the message has the error of each. All others are complete.
    """
    with _connected():
        task = ray.remote(num_cpus=cpus, max_retries=0)(_run)
        function = ray.put(pack_unit)
        left = [_Unit(number) for number in range(count) if not units.is_complete(path, number)]
        run = _Run(path, lambda number, folder: task.remote(function, number, folder), slow_seconds, cpus)
        try:
            run.all(left, count)
        except BaseException:
            for own in run.running:
                for reference in own.tasks:
                    ray.cancel(reference, force=True)
            raise
    if run.failed:
        listed = "; ".join(f"unit {number}: {error}" for number, error in sorted(run.failed.items())[:_SHOWN])
        more = f"; and {len(run.failed) - _SHOWN} more" if len(run.failed) > _SHOWN else ""
        raise GristmillError(
            f"{counted(len(run.failed), 'unit')} of {count} failed, and all others are complete: {listed}{more}; "
            "repair the cause and run the same command again"
        )


class _Run:
    """The tasks of a run."""

    def __init__(self, path: Path, submit: Callable[[int, Path | None], Any], slow_seconds: float, cpus: int) -> None:
        self._path, self._submit, self._slow_seconds, self._cpus = path, submit, slow_seconds, cpus
        self.running: list[_Unit] = []
        self.failed: dict[int, str] = {}
        self._seconds: list[float] = []

    def all(self, waiting: list[_Unit], count: int) -> None:
        """Does all units."""
        waiting.reverse()
        with Progress("packing", count, " units") as progress:
            while waiting or self.running:
                while waiting and len(self.running) < self._slots():
                    self._begin(waiting.pop())
                self._wait(waiting)
                if not waiting:
                    self._double_slow()
                progress.show(count - len(waiting) - len(self.running), self._note(len(waiting)))

    def _slots(self) -> int:
        """Tasks that the cluster can run now, and one to show an autoscaler that there are more."""
        return int(ray.cluster_resources().get("CPU", 0)) // self._cpus + 1

    def _begin(self, unit: _Unit) -> None:
        unit.tasks, unit.began = [self._submit(unit.number, None)], time.monotonic()
        self.running.append(unit)

    def _wait(self, waiting: list[_Unit]) -> None:
        tasks = [task for unit in self.running for task in unit.tasks]
        done, _ = ray.wait(tasks, num_returns=1, timeout=_POLL_SECONDS)
        for task in done:
            unit = next(unit for unit in self.running if task in unit.tasks)
            self._end(unit, task, waiting)

    def _end(self, unit: _Unit, task: Any, waiting: list[_Unit]) -> None:
        """Takes the result of a task, or what it failed of."""
        is_second = task is not unit.tasks[0]
        unit.tasks.remove(task)
        try:
            ray.get(task)
        except ray.exceptions.RayTaskError as error:
            self.failed[unit.number] = str(error.cause or error).splitlines()[0]
        except ray.exceptions.RayError as error:  # the worker or its node has died
            unit.losses += 1
            if unit.tasks:
                return  # the other task of the unit continues
            self.running.remove(unit)
            if unit.losses > _LOSSES:
                self.failed[unit.number] = f"lost with its worker {unit.losses} times: {str(error).splitlines()[0]}"
            else:
                waiting.append(unit)
            return
        for other in unit.tasks:
            ray.cancel(other, force=True)
            if not is_second:
                shutil.rmtree(_second(self._path, unit.number), ignore_errors=True)
        self.running.remove(unit)
        if unit.number not in self.failed:
            self._seconds.append(time.monotonic() - unit.began)
            if is_second:
                _replace(_second(self._path, unit.number), units.unit_path(self._path, unit.number))

    def _double_slow(self) -> None:
        """Gives units that take long to a second task, once no other unit waits for one."""
        if not self._seconds or len(self.running) >= self._slots() - 1:
            return
        limit = max(self._slow_seconds, _SLOW * statistics.median(self._seconds))
        for unit in self.running:
            if len(unit.tasks) == 1 and time.monotonic() - unit.began > limit:
                unit.tasks.append(self._submit(unit.number, _second(self._path, unit.number)))
                return

    def _note(self, waiting: int) -> str:
        if not self._seconds:
            return f"{len(self.running)} running"
        # Units that run are half done.
        left = (waiting + len(self.running) / 2) * statistics.mean(self._seconds) / max(self._slots() - 1, 1)
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"{len(self.running)} running{failed}, {left / 60:.0f} min left"


def _run(pack_unit: units.PackUnit, number: int, folder: Path | None) -> dict[str, Any]:
    return pack_unit(number, folder)


def _second(path: Path, number: int) -> Path:
    """The folder of a second task of a unit."""
    return path / f"second-{number:05}"


def _replace(made: Path, path: Path) -> None:
    """Puts a folder in place of another one, in which a task may still write: its bytes would be the same."""
    old = made.with_name(f"{made.name}.old")
    with contextlib.suppress(FileNotFoundError):
        path.rename(old)
    made.rename(path)
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _connected() -> Iterator[None]:
    if ray.is_initialized():
        yield
        return
    ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, configure_logging=False)
    try:
        yield
    finally:
        ray.shutdown()
