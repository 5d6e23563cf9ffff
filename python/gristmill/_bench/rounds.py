"""Paired rounds: every contender once a round, in alternating order, so that a busy machine is unfair to none."""

import importlib.util
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gristmill._bench import machine
from gristmill._bench.contenders import CONTENDERS, Job, Work
from gristmill._bench.run import in_child
from gristmill._errors import GristmillError
from gristmill._progress import Progress

OURS = "gristmill"
# By the clock, and by the processor: the latter is steadier where other programs run.
SPEEDS = ("tokens_per_second", "tokens_per_cpu_second")
_OTHERS = ("seconds", "cpu_seconds", "seconds_to_first_batch", "sleeps", "peak_bytes", "tokens", "eos_tokens", "id_sum")
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
      `machine`, `versions`, `job` and `shard_bytes`; `contenders`, what each is; `failed`, why some are not there; and
      `by_threads`, for each number of threads: `threads`; `rounds`, a list with what each contender did in each;
      `summary`, for each contender the medians, and the medians over the rounds of gristmill's speed divided by its
      own and (`threads_ratio`) of its speed divided by that on the first number of threads; and `same_work`, whether
      all gave the same tokens. The speed of a contender that gives no tokens is that of the same text's tokens in its
      time.

    Raises:
      GristmillError: gristmill itself failed.
    """
    names = [OURS, *(name for name in names if name != OURS)]
    failed: dict[str, str] = {}
    measured: dict[int, list[dict[str, dict[str, Any]]]] = {count: [] for count in threads}
    with Progress("benchmark", rounds * len(measured) * len(names), " runs") as progress:
        # All numbers of threads in each round, so that they are compared within it, too.
        for place, (number, count) in enumerate(itertools.product(range(rounds), measured)):
            order = names if number % 2 == 0 else names[::-1]
            counted = replace(job, threads=count)
            measured[count].append(_round(counted, order, failed, progress, place * len(names)))
    first = next(iter(measured.values()))
    by_threads = [
        {
            "threads": count,
            "rounds": results,
            "summary": {name: _summary(name, results, first) for name in names if name not in failed},
            "same_work": all(map(_same_work, results)),
        }
        for count, results in measured.items()
    ]
    return {
        "machine": machine.facts(),
        "versions": machine.versions(),
        "job": {key: value for key, value in asdict(job).items() if key != "threads"},
        "shard_bytes": sum(Path(shard).stat().st_size for shard in job.shards),
        "contenders": {name: {"title": CONTENDERS[name].title, "work": CONTENDERS[name].work.value} for name in names},
        "by_threads": by_threads,
        "failed": failed,
    }


def _round(
    job: Job, order: Sequence[str], failed: dict[str, str], progress: Progress, done: int
) -> dict[str, dict[str, Any]]:
    results = {}
    for place, name in enumerate(order):
        if name in failed:
            continue
        progress.show(done + place, f"{name}, {job.threads} threads")
        try:
            results[name] = in_child(name, job)
        except GristmillError as error:
            # Not every tokenizer or shard is one that all others can read.
            if name == OURS:
                raise
            failed[name] = str(error)
    tokens = results[OURS]["tokens"]
    for result in results.values():
        for speed, time in (("tokens_per_second", "seconds"), ("tokens_per_cpu_second", "cpu_seconds")):
            result[speed] = tokens / max(result[time], 1e-9)
    return results


def _summary(
    name: str, measured: list[dict[str, dict[str, Any]]], first: list[dict[str, dict[str, Any]]]
) -> dict[str, Any]:
    own = [results[name] for results in measured]
    summary: dict[str, Any] = {key: statistics.median(result[key] for result in own) for key in (*SPEEDS, *_OTHERS)}
    for speed in SPEEDS:
        summary[f"{speed}_ratio"] = statistics.median(
            results[OURS][speed] / results[name][speed] for results in measured
        )
    summary["threads_ratio"] = statistics.median(
        results[name]["tokens_per_second"] / before[name]["tokens_per_second"]
        for results, before in zip(measured, first, strict=True)
    )
    if busy := [result["notes"]["busy_seconds"] for result in own if "busy_seconds" in result.get("notes", {})]:
        summary["busy_seconds"] = {stage: statistics.median(each[stage] for each in busy) for stage in _STAGES}
        for key in ("wait_seconds", "text_bytes", "padding_tokens"):
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
