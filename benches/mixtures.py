"""The cost of a mixture: five sources of the same text beside one, on one thread.

python benches/mixtures.py                                                         the demo's text and tokenizer
python benches/mixtures.py 'shards/**/*.json.gz' --tokenizer tokenizer.json         your own

Rounds alternate between the two, so that other load on the machine meets both alike; the processor time counts.
"""

import argparse
import itertools
import statistics
import time

import gristmill as gm
from gristmill._demo import sample_text

WEIGHTS = {"a": 0.5, "b": 0.25, "c": 0.15, "d": 0.07, "e": 0.03}


def seconds(dataset: gm.PackedDataset, batches: int) -> tuple[float, float]:
    """Processor time and time of so many batches, after as many that fill the encoder's cache."""
    with iter(dataset) as iterator:
        for _ in itertools.islice(iterator, batches):
            pass
        start, clock = time.process_time(), time.perf_counter()
        for _ in itertools.islice(iterator, batches):
            pass
        return time.process_time() - start, time.perf_counter() - clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="*", help="globs or paths; default: the demo's text")
    parser.add_argument("--text-field", default=None, help="key of a record that holds the text; default: text")
    parser.add_argument("--tokenizer", default=None, help="a tokenizer.json, gzipped or not; default: the demo's")
    parser.add_argument("--sequence-length", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    encoder = gm.Encoder.from_file(arguments.tokenizer or sample_text.tokenizer())
    if not arguments.shards:
        arguments.shards = [sample_text.prepare(sample_text.default_folder(), 32).glob]
        arguments.text_field = arguments.text_field or sample_text.TEXT_FIELD
    field = arguments.text_field or "text"
    rows = {
        "tokenizer": encoder,
        "sequence_length": arguments.sequence_length,
        "batch_size": arguments.batch_size,
        "lanes": arguments.lanes,
        "threads": arguments.threads,
    }
    one = gm.PackedDataset(arguments.shards, text_field=field, epochs=None, **rows)
    sources = {name: gm.Source(arguments.shards, weight=share, text_field=field) for name, share in WEIGHTS.items()}
    five = gm.PackedDataset(gm.Mixture(sources), **rows)
    tokens = arguments.batches * arguments.batch_size * arguments.sequence_length
    times = [[seconds(dataset, arguments.batches) for dataset in (one, five)] for _ in range(arguments.rounds)]
    print("| sources | M tokens a second of processor time | M tokens a second |\n| ---: | ---: | ---: |")
    for index, name in enumerate(("1", "5")):
        processor, clock = (statistics.median(tokens / pair[index][kind] / 1e6 for pair in times) for kind in (0, 1))
        print(f"| {name} | {processor:.2f} | {clock:.2f} |")
    ratios = [pair[1][0] / pair[0][0] for pair in times]
    print(f"\nprocessor time of five sources beside one: median {statistics.median(ratios):.3f}, all ", end="")
    print(" ".join(f"{ratio:.3f}" for ratio in sorted(ratios)))


if __name__ == "__main__":
    main()
