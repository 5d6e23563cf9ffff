"""The phases that one thread's time goes into, and how much of that is for pieces of text that are new.

    python benches/phases.py 'shards/*.json.gz' tokenizer.json --text-field raw_content

Two epochs of the same shards in one lane, so that one ends before the other begins: the second meets hardly anything
that the encoder's cache does not hold. Prints seconds of wall-clock time, medians over the rounds.
"""

import argparse
import statistics
import time
from typing import Any

import gristmill as gm
from gristmill import _core
from gristmill._state import states

_PHASES = ("inflate", "lines and JSON", "known pieces", "new pieces", "pack")


def measure(dataset: gm.PackedDataset) -> dict[str, float]:
    """Seconds by phase of a dataset of one lane, one thread and two epochs."""
    start = time.perf_counter()
    for path, size in zip(dataset.manifest.paths, dataset.manifest.sizes, strict=True):
        _core.inflate(path, size)
    inflate = time.perf_counter() - start
    iterator = iter(dataset)
    first: dict[str, float] = {}
    for _ in iterator:
        if not first and states.cursor_numbers(iterator.get_state()["lanes"]["0"])["epoch"] == 1:
            first = iterator.stats()["busy_seconds"]
    both = iterator.stats()["busy_seconds"]
    second = {phase: both[phase] - first[phase] for phase in both}
    new = first["encode"] - second["encode"]
    return dict(zip(_PHASES, (inflate, second["read"] - inflate, second["encode"], new, second["pack"]), strict=True))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", help="a glob of gzipped JSONL")
    parser.add_argument("tokenizer", help="a tokenizer.json or its folder")
    parser.add_argument("--text-field", default="text")
    parser.add_argument("--eos", default=None, help="token behind each document; default: the tokenizer's own")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    stream: dict[str, Any] = {
        "text_field": options.text_field, "eos": options.eos, "lanes": 1, "batch_size": 64, "epochs": 2,
    }  # fmt: skip
    dataset = gm.PackedDataset(options.shards, tokenizer=options.tokenizer, threads=1, prefetch=2, **stream)
    rounds = [measure(dataset) for _ in range(options.rounds)]
    medians = {phase: statistics.median(each[phase] for each in rounds) for phase in _PHASES}
    for phase, seconds in medians.items():
        print(f"{phase:<16}{seconds:6.2f} s")
    rest = sum(medians.values()) - medians["new pieces"]
    print(f"all but new pieces take {rest:.2f} s, {rest / medians['inflate']:.1f} times inflating")


if __name__ == "__main__":
    main()
