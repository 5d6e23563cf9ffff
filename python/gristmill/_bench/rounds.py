"""Paired rounds: every contender once a round, in alternating order, so that a busy machine is unfair to none."""

import importlib.util
import json
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gristmill._bench import machine
from gristmill._bench.contenders import CONTENDERS, Job
from gristmill._bench.run import command
from gristmill._errors import GristmillError
from gristmill._progress import Progress

OURS = "gristmill"
_NEEDED = ("datasets", "tokenizers")
# By the clock, and by the processor: the latter is steadier where other programs run.
SPEEDS = ("tokens_per_second", "tokens_per_cpu_second")
_OTHERS = ("seconds_to_first_batch", "peak_bytes", "tokens", "eos_tokens")
_SAME_WORK = ("tokens", "eos_tokens", "id_sum")


def compare(job: Job, rounds: int, names: Sequence[str] = tuple(CONTENDERS)) -> dict[str, Any]:
    """Runs all contenders and sums up.

    Args:
      job: what to do.
      rounds: how often.
      names: the contenders.

    Returns:
      `machine`, `versions` and `job`; `rounds`, a list with what each contender did in each; `summary`, for each
      contender the medians, and the medians over the rounds of gristmill's speed divided by its own; and `same_work`,
      whether all gave the same tokens.

    Raises:
      GristmillError: a package is missing, or a contender failed.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise GristmillError(f"{' and '.join(missing)} not installed: pip install 'gristmill[bench]'")
    measured: list[dict[str, dict[str, Any]]] = []
    with Progress("benchmark", rounds * len(names), " runs") as progress:
        for number in range(rounds):
            order = names if number % 2 == 0 else names[::-1]
            results = {}
            for place, name in enumerate(order):
                progress.show(number * len(names) + place, f"round {number + 1}, {name}")
                results[name] = _run(name, job)
            measured.append({name: results[name] for name in names})
    work = [tuple(result[key] for key in _SAME_WORK) for results in measured for result in results.values()]
    return {
        "machine": machine.facts(),
        "versions": machine.versions(),
        "job": asdict(job),
        "rounds": measured,
        "summary": {name: _summary(name, measured) for name in names},
        "same_work": len(set(work)) == 1,
    }


def _run(name: str, job: Job) -> dict[str, Any]:
    arguments, environment = command(name, job)
    finished = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode:
        last = (finished.stderr.strip().splitlines() or ["no message"])[-1]
        raise GristmillError(f"the contender {name} failed with exit code {finished.returncode}: {last}")
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    for speed, time in (("tokens_per_second", "seconds"), ("tokens_per_cpu_second", "cpu_seconds")):
        result[speed] = result["tokens"] / result[time]
    return result


def _summary(name: str, measured: list[dict[str, dict[str, Any]]]) -> dict[str, float]:
    own = [results[name] for results in measured]
    medians = {key: statistics.median(result[key] for result in own) for key in (*SPEEDS, *_OTHERS)}
    ratios = {
        f"{speed}_ratio": statistics.median(results[OURS][speed] / results[name][speed] for results in measured)
        for speed in SPEEDS
    }
    return {**medians, **ratios}
