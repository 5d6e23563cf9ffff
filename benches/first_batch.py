"""How long a run waits for its first batch, in order and with windows.

python benches/first_batch.py

Reads 32 shards of real text (the demo's, repeated with variation) in 32 lanes. Each round takes the first batch in
order, shuffled and fitted, and the latter also with large windows from the beginning, as runs had before windows grew.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from resume import versions, write

import gristmill as gm
from gristmill._demo import sample_text

LANES = 32
CASES: dict[str, dict[str, Any]] = {"in order": {}, "seed": {"seed": 0}, "best_fit": {"packing": "best_fit"}}


def seconds(dataset: gm.PackedDataset, window_size: str) -> float:
    """The seconds from the start of an iterator to its first batch."""
    with iter(dataset) as iterator:
        start = iterator.get_state()
        iterator.set_state({**start, "lanes": dict.fromkeys(start["lanes"], window_size)})
        before = time.perf_counter()
        next(iterator)
        return time.perf_counter() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=sample_text.default_folder().with_name("resume"))
    parser.add_argument("--megabytes", type=int, default=200, help="inflated, of all shards")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    shards = write(arguments.folder, LANES, arguments.megabytes)
    encoder = gm.Encoder.from_file(sample_text.tokenizer(), config="ignore")
    options: dict[str, Any] = {"sequence_length": 1024, "batch_size": 512, "lanes": LANES, "eos": False}
    datasets = {
        name: gm.PackedDataset(shards, tokenizer=encoder, threads=arguments.threads, **options, **case)
        for name, case in CASES.items()
    }
    runs = [
        ("in order", ""),
        ("seed", ""),
        ("best_fit", ""),
        ("seed", "window_size=10"),
        ("best_fit", "window_size=10"),
    ]
    rounds = [[seconds(datasets[name], size) for name, size in runs] for _ in range(arguments.rounds)]
    print(
        f"{versions()}; first batch of 512 x 1,024 tokens in {LANES} lanes on {arguments.threads} threads; medians of "
        f"{arguments.rounds} rounds.\n\n| | large windows | s | in order = 1 |\n| --- | --- | ---: | ---: |"
    )
    for number, (name, size) in enumerate(runs):
        found = statistics.median(figures[number] for figures in rounds)
        ratio = statistics.median(figures[number] / figures[0] for figures in rounds)
        print(f"| {name} | {'yes' if size else ''} | {found:.3f} | {ratio:.1f} |")


if __name__ == "__main__":
    main()
