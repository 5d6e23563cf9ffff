"""Paired rounds: every contender once a round, in alternating order, so that a busy machine is unfair to none."""

import importlib.util
import itertools
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from gristmill._bench import machine
from gristmill._bench.contenders import CONTENDERS, Work
from gristmill._bench.job import Job
from gristmill._bench.run import in_child
from gristmill._util.progress import Progress
from gristmill._util.text import counted
from gristmill.errors import GristmillError

OURS = "gristmill"
# By the clock, and by the processor: the latter is steadier where other programs run.
SPEEDS = ("tokens_per_second", "tokens_per_cpu_second")
_OTHERS = ("seconds", "cpu_seconds", "seconds_to_first_batch", "sleeps", "peak_bytes")
_COUNTS = ("tokens", "eos_tokens", "id_sum")
_PHASES = ("read", "encode", "pack")
# Entries of a job that differ from run to run, or say again what another one says.
_UNSHOWN = ("threads", "scratch", "template", "shard_bytes", "storage_options")


def available(*, formats: bool = False, kind: str = "text") -> list[str]:
    """The contenders for a kind of sample whose packages are installed; with `formats` those that convert, too."""
    return [
        name
        for name, contender in CONTENDERS.items()
        if all(importlib.util.find_spec(package) for package in contender.needs)
        and (formats or not contender.converts)
        and kind in contender.kinds
    ]


def compare(job: Job, rounds: int, threads: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    """Runs contenders on each number of threads and sums up.

    Before that each runs once and every token is looked at, on the most threads.

    Args:
      job: the job; its own number of threads is ignored.
      rounds: how often.
      threads: on how many threads.
      names: the contenders; gristmill is always among them.

    Returns:
      `machine`, `versions`, `job` and `shard_bytes`; `contenders`, what each is; `failed`, why some are not there;
      `same_work`, whether all gave the same tokens; `same_rows`, whether each gave as many rows in each round; and
      `by_threads`, for each number of threads: `threads`; `rounds`, a list with what each contender did in each; and
      `summary`, for each contender what was counted, the medians, and the medians over the rounds of gristmill's speed
      divided by its own and (`threads_ratio`) of its speed divided by that on the first number of threads. The speed
      of a contender that gives no tokens is that of the same text's tokens in its time.

    Raises:
      GristmillError: gristmill itself failed, or the shards hold no text.
    """
    names = [OURS, *(name for name in names if name != OURS)]
    failed: dict[str, str] = {}
    measured: dict[int, list[dict[str, dict[str, Any]]]] = {count: [] for count in threads}
    with (
        tempfile.TemporaryDirectory(prefix="gristmill-bench-") as scratch,
        Progress("benchmark", (1 + rounds * len(measured)) * len(names), " runs") as progress,
    ):
        job = replace(job, scratch=scratch)
        counts = _round(replace(job, threads=max(threads)), names, failed, progress, 0, count=True)
        if counts[OURS]["tokens"] == 0:
            raise GristmillError("the shards hold no text to measure with: name others with --shards")
        # All numbers of threads in each round, so that they are compared within it, too.
        for place, (number, count) in enumerate(itertools.product(range(rounds), measured), start=1):
            order = names if number % 2 == 0 else names[::-1]
            results = _round(replace(job, threads=count), order, failed, progress, place * len(names))
            for result in results.values():
                _add_speeds(result, counts[OURS]["tokens"])
            measured[count].append(results)
    first = next(iter(measured.values()))
    by_threads = [
        {
            "threads": count,
            "rounds": results,
            "summary": {
                name: {
                    **{key: counts[name][key] for key in _COUNTS},
                    **_trained(job, counts[name]),
                    **_summary(name, results, first),
                }
                for name in names
                if name not in failed
            },
        }
        for count, results in measured.items()
    ]
    return {
        "machine": machine.facts(),
        "versions": machine.versions(),
        "job": {key: value for key, value in asdict(job).items() if key not in _UNSHOWN},
        "shard_bytes": job.shard_bytes,
        "contenders": {name: {"title": CONTENDERS[name].title, "work": CONTENDERS[name].work.value} for name in names},
        "by_threads": by_threads,
        "same_work": _same_work(counts),
        "same_rows": _same_rows(counts, itertools.chain(*measured.values())),
        "failed": failed,
    }


def _round(
    job: Job, order: Sequence[str], failed: dict[str, str], progress: Progress, done: int, *, count: bool = False
) -> dict[str, dict[str, Any]]:
    results = {}
    for place, name in enumerate(order):
        if name in failed:
            continue
        progress.show(done + place, f"{name}, {counted(job.threads, 'thread')}")
        try:
            results[name] = in_child(name, job, count=count)
        except GristmillError as error:
            # Not every tokenizer or shard is one that all others can read.
            if name == OURS:
                raise
            failed[name] = str(error)
    return results


def _add_speeds(result: dict[str, Any], tokens: int) -> None:
    for speed, time in zip(SPEEDS, ("seconds", "cpu_seconds"), strict=True):
        result[speed] = tokens / max(result[time], 1e-9)


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
        summary["busy_seconds"] = {phase: statistics.median(each[phase] for each in busy) for phase in _PHASES}
        for key in ("wait_seconds", "text_bytes", "padding_tokens"):
            summary[key] = statistics.median(result["notes"][key] for result in own)
    return summary


def _trained(job: Job, counted: dict[str, Any]) -> dict[str, int]:
    """How many tokens are trained on, if samples have masks."""
    notes = counted.get("notes", {})
    return {} if job.sample is None or "trained_tokens" not in notes else {"trained_tokens": notes["trained_tokens"]}


def _same_work(counts: dict[str, dict[str, Any]]) -> bool:
    """Whether those that pack gave the same tokens, and those that only encode the same but for EOS."""
    rows, ids = set(), set()
    for name, found in counts.items():
        work = CONTENDERS[name].work
        if work is Work.ROWS:
            rows.add((found["tokens"], found["eos_tokens"]))
        if work in (Work.ROWS, Work.IDS):
            ids.add((found["tokens"] - found["eos_tokens"], found["id_sum"]))
    return len(rows) <= 1 and len(ids) <= 1


def _same_rows(counts: dict[str, dict[str, Any]], measured: Iterable[dict[str, dict[str, Any]]]) -> bool:
    """Whether each contender gave as many rows each time as when they were counted."""
    return all(result["rows"] == counts[name]["rows"] for results in measured for name, result in results.items())
