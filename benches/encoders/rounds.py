"""Paired rounds: every engine once a round on each text, in alternating order, and ratios of what ran together."""

import json
import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from peers import OURS, Engine

PASSES = ("cold", "warm")


def compare(
    engines: Sequence[Engine],
    tokenizer: Path,
    text: Path,
    rounds: int,
    seconds: float,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Runs all engines on one text with one tokenizer and sums up.

    An engine that fails once is not run again. The first of `engines` is the one that others are compared with.
    """
    measured: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for number in range(rounds):
        results = {}
        for engine in engines if number % 2 == 0 else engines[::-1]:
            if engine.name in failed:
                continue
            progress(f"{tokenizer.stem}, {text.stem}, round {number + 1}, {engine.name}")
            try:
                results[engine.name] = run(engine, tokenizer, text, seconds)
            except EngineError as error:
                failed[engine.name] = str(error)
        measured.append(results)
    return {
        "tokenizer": tokenizer.stem,
        "text": text.stem,
        "rounds": measured,
        "failed": failed,
        "summary": summary([engine.name for engine in engines], measured, size(text)),
    }


def summary(names: Sequence[str], measured: Sequence[dict[str, Any]], text_bytes: int) -> dict[str, Any]:
    """Each engine's median speeds, how many times as fast ours is (the median of the rounds' ratios), and its ids."""
    found: dict[str, Any] = {}
    for name in names:
        rounds = [results for results in measured if name in results]
        if not rounds:
            continue
        entry: dict[str, Any] = {"load_seconds": statistics.median(results[name]["load_seconds"] for results in rounds)}
        for which in PASSES:
            key = f"{which}_seconds"
            entry[f"{which}_speed"] = text_bytes / 1e6 / statistics.median(results[name][key] for results in rounds)
            ratios = [results[name][key] / results[OURS][key] for results in rounds if OURS in results]
            entry[f"{which}_ratio"] = statistics.median(ratios) if ratios else None
        ours = next((results[OURS] for results in rounds if OURS in results), None)
        entry["same_ids"] = None if ours is None else all(_ids(results[name]) == _ids(ours) for results in rounds)
        found[name] = entry
    return found


class EngineError(Exception):
    """An engine refused, failed or took too long."""


def run(engine: Engine, tokenizer: Path, text: Path, seconds: float) -> dict[str, Any]:
    """One process of an engine; returns its measurements."""
    command = [*engine.command, str(tokenizer), str(text)]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise EngineError(f"took more than {seconds:.0f} s") from None
    if finished.returncode:
        raise EngineError((finished.stderr.strip().splitlines() or [f"exit code {finished.returncode}"])[-1])
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return result


def size(text: Path) -> int:
    """Bytes of text in a file of length-prefixed documents."""
    total = 0
    with text.open("rb") as file:
        while prefix := file.read(4):
            length = int.from_bytes(prefix, "little")
            file.seek(length, 1)
            total += length
    return total


def _ids(result: dict[str, Any]) -> tuple[str, int]:
    return result["crc"], result["ids"]
