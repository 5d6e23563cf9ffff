"""Paired rounds: every contender once a round, in alternating order, so that a busy machine is unfair to none."""

import importlib.util
import json
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gristmill._bench import machine
from gristmill._bench.contenders import CONTENDERS, Job, Work
from gristmill._bench.run import command
from gristmill._errors import GristmillError
from gristmill._progress import Progress

OURS = "gristmill"
# By the clock, and by the processor: the latter is steadier where other programs run.
SPEEDS = ("tokens_per_second", "tokens_per_cpu_second")
_OTHERS = ("seconds", "cpu_seconds", "seconds_to_first_batch", "peak_bytes", "tokens", "eos_tokens", "id_sum")
_STAGES = ("read", "encode", "pack")


def available() -> list[str]:
    """The contenders whose packages are installed."""
    return [
        name
        for name, contender in CONTENDERS.items()
        if all(importlib.util.find_spec(package) for package in contender.needs)
    ]


def compare(job: Job, rounds: int, threads: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    """Runs contenders on each number of threads and sums up.

    Args:
      job: what to do; its own number of threads does not count.
      rounds: how often.
      threads: on how many threads.
      names: the contenders; gristmill is always among them.

    Returns:
      `machine`, `versions`, `job` and `shard_bytes`; `contenders`, what each is; and `by_threads`, for each number of
      threads: `threads`; `rounds`, a list with what each contender did in each; `summary`, for each contender the
      medians, and the medians over the rounds of gristmill's speed divided by its own; and `same_work`, whether all
      gave the same tokens. The speed of a contender that gives no tokens is that of the same text's tokens in its
      time.

    Raises:
      GristmillError: a contender failed.
    """
    names = [OURS, *(name for name in names if name != OURS)]
    by_threads = []
    with Progress("benchmark", rounds * len(names) * len(threads), " runs") as progress:
        for place, count in enumerate(threads):
            counted = replace(job, threads=count)
            done = place * rounds * len(names)
            measured = [_round(counted, number, names, progress, done) for number in range(rounds)]
            by_threads.append(
                {
                    "threads": count,
                    "rounds": measured,
                    "summary": {name: _summary(name, measured) for name in names},
                    "same_work": all(_same_work(results) for results in measured),
                }
            )
    return {
        "machine": machine.facts(),
        "versions": machine.versions(),
        "job": {key: value for key, value in asdict(job).items() if key != "threads"},
        "shard_bytes": sum(Path(shard).stat().st_size for shard in job.shards),
        "contenders": {name: {"title": CONTENDERS[name].title, "work": CONTENDERS[name].work.value} for name in names},
        "by_threads": by_threads,
    }


def _round(job: Job, number: int, names: Sequence[str], progress: Progress, done: int) -> dict[str, dict[str, Any]]:
    order = names if number % 2 == 0 else names[::-1]
    results = {}
    for place, name in enumerate(order):
        progress.show(done + number * len(names) + place, f"{job.threads} threads, round {number + 1}, {name}")
        results[name] = _run(name, job)
    tokens = results[OURS]["tokens"]
    for result in results.values():
        for speed, time in (("tokens_per_second", "seconds"), ("tokens_per_cpu_second", "cpu_seconds")):
            result[speed] = tokens / max(result[time], 1e-9)
    return {name: results[name] for name in names}


def _run(name: str, job: Job) -> dict[str, Any]:
    arguments, environment = command(name, job)
    finished = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode:
        last = (finished.stderr.strip().splitlines() or ["no message"])[-1]
        raise GristmillError(f"the contender {name} failed with exit code {finished.returncode}: {last}")
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return result


def _summary(name: str, measured: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    own = [results[name] for results in measured]
    summary: dict[str, Any] = {key: statistics.median(result[key] for result in own) for key in (*SPEEDS, *_OTHERS)}
    for speed in SPEEDS:
        summary[f"{speed}_ratio"] = statistics.median(
            results[OURS][speed] / results[name][speed] for results in measured
        )
    if busy := [result["notes"]["busy_seconds"] for result in own if "busy_seconds" in result.get("notes", {})]:
        summary["busy_seconds"] = {stage: statistics.median(each[stage] for each in busy) for stage in _STAGES}
        for key in ("wait_seconds", "text_bytes"):
            summary[key] = statistics.median(result["notes"][key] for result in own)
    return summary


def _same_work(results: dict[str, dict[str, Any]]) -> bool:
    """Whether those that pack gave the same tokens, and those that only encode the same but for EOS."""
    rows, ids = set(), set()
    for name, result in results.items():
        work = CONTENDERS[name].work
        if work is Work.ROWS:
            rows.add((result["tokens"], result["eos_tokens"]))
        if work in (Work.ROWS, Work.IDS):
            ids.add((result["tokens"] - result["eos_tokens"], result["id_sum"]))
    return len(rows) <= 1 and len(ids) <= 1
