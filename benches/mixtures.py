"""The cost of a mixture: five sources of the same text beside one, on one thread.

python benches/mixtures.py                                                         the demo's text and tokenizer
python benches/mixtures.py 'shards/**/*.json.gz' --tokenizer tokenizer.json         your own
python benches/mixtures.py --memory                                                memory and open files instead

Rounds alternate between the two, so that other load on the machine meets both alike; the processor time counts.
"""

import argparse
import itertools
import multiprocessing
import resource
import statistics
import time
from pathlib import Path

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


def memory(arguments: argparse.Namespace, sources: int) -> tuple[float, int]:
    """The most MB of memory that a process takes for a mixture of so many sources, and the files that it has open."""
    field = arguments.text_field or "text"
    found = {f"s{number}": gm.Source(arguments.shards, weight=1, text_field=field) for number in range(sources)}
    dataset = gm.PackedDataset(
        gm.Mixture(found),
        tokenizer=arguments.tokenizer,
        sequence_length=arguments.sequence_length,
        batch_size=arguments.batch_size,
        lanes=arguments.lanes,
        threads=arguments.threads,
        seed=arguments.seed,
    )
    with iter(dataset) as iterator:
        for _ in itertools.islice(iterator, arguments.batches):
            pass
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, len(list(Path("/proc/self/fd").iterdir()))


def print_memory(arguments: argparse.Namespace) -> None:
    """Prints memory and open files of mixtures, each in a process of its own."""
    print("| sources | MB | open files |\n| ---: | ---: | ---: |")
    for sources in (1, 5, 20):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            most, files = pool.apply(memory, (arguments, sources))
        print(f"| {sources} | {most:.0f} | {files} |")


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
    parser.add_argument("--memory", action="store_true", help="memory and open files of 1, 5 and 20 sources")
    parser.add_argument("--seed", type=int, default=None, help="of the streams of --memory, which then have windows")
    arguments = parser.parse_args()
    arguments.tokenizer = str(arguments.tokenizer or sample_text.tokenizer())
    encoder = gm.Encoder.from_file(arguments.tokenizer)
    if not arguments.shards:
        arguments.shards = [sample_text.prepare(sample_text.default_folder(), 32).glob]
        arguments.text_field = arguments.text_field or sample_text.TEXT_FIELD
    if arguments.memory:
        print_memory(arguments)
        return
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
