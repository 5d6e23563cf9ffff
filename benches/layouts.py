"""The compact layout beside `maxtext`: bytes, copies to the device, and tokens a second of a jitted step.

python benches/layouts.py                                                     the demo's text and tokenizer
python benches/layouts.py 'shards/**/*.json.gz' --tokenizer tokenizer.json    your own

Both layouts take turns, round after round, and figures are medians. The step reads each element of the six arrays of
`maxtext`, which it makes by `gm.expand` of the compact ones. On CPUs JAX uses the memory of a batch in place: there a
copy (`may_alias=False`) stands for the transfer, and the jitted step takes the batch without one.
"""

import argparse
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gristmill as gm
from gristmill._bench import machine
from gristmill._demo import sample_text

LAYOUTS = ("maxtext", "varlen")
COPIED = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="*", help="globs or paths; default: the demo's text")
    parser.add_argument("--text-field", default=None, help="key of a record that holds the text; default: text")
    parser.add_argument("--tokenizer", default=None, help="a tokenizer.json, gzipped or not; default: the demo's")
    parser.add_argument("--sequence-length", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-segments", type=int, default=64)
    parser.add_argument("--packing", default="best_fit")
    parser.add_argument("--batches", type=int, default=100, help="batches of a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=None)
    arguments = parser.parse_args()
    if not arguments.shards:
        arguments.shards = [sample_text.prepare(sample_text.default_folder(), 32).glob]
        arguments.text_field = arguments.text_field or sample_text.TEXT_FIELD
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    runs = {layout: Run(arguments, layout, sharding) for layout in LAYOUTS}
    figures: dict[str, dict[str, list[float]]] = {layout: {} for layout in LAYOUTS}
    for number in range(arguments.rounds + 1):
        for layout, run in runs.items():
            for name, value in run.round().items():
                if number:  # the first compiles, and fills the caches
                    figures[layout].setdefault(name, []).append(value)
    report(arguments, {layout: run.bytes_per_token for layout, run in runs.items()}, figures)


class Run:
    """One layout, which continues from round to round."""

    def __init__(self, arguments: argparse.Namespace, layout: str, sharding: NamedSharding) -> None:
        self._dataset = gm.PackedDataset(
            arguments.shards,
            tokenizer=gm.Encoder.from_file(arguments.tokenizer or sample_text.tokenizer()),
            text_field=arguments.text_field or "text",
            sequence_length=arguments.sequence_length,
            batch_size=arguments.batch_size,
            packing=arguments.packing,
            max_segments=arguments.max_segments,
            epochs=None,
            seed=1,
            threads=arguments.threads,
            layout=layout,
        )
        self._sharding, self._batches = sharding, arguments.batches
        self._tokens = arguments.batch_size * arguments.sequence_length
        self._host: Iterator[Any] = iter(self._dataset)
        self._devices = gm.global_batches(self._dataset, sharding)
        self._kept = list(itertools.islice(self._dataset, COPIED))
        self._moved = [next(self._devices) for _ in range(COPIED)]
        arrays = (lambda batch: batch) if layout == "maxtext" else gm.expand
        self._step = jax.jit(lambda batch: sum(array.sum() for array in arrays(batch).values()))
        self._expand = jax.jit(arrays)

    @property
    def bytes_per_token(self) -> float:
        """Bytes of a batch for each element of its rows."""
        return sum(array.nbytes for array in self._kept[0].values()) / self._tokens

    def round(self) -> dict[str, float]:
        """The figures of one round."""
        rows = itertools.islice(self._host, self._batches)
        before = self._host.stats()["busy_seconds"]["pack"]
        alone = timed(lambda: sum(1 for _ in rows)) / self._batches
        packing = (self._host.stats()["busy_seconds"]["pack"] - before) / self._batches
        return {
            "copy of a batch to the device, ms": median_of(self._copy, self._kept) * 1e3,
            "the six arrays of a batch from a jitted function, ms": median_of(self._make, self._moved) * 1e3,
            "packing of a batch, ms": packing * 1e3,
            "batches to the host alone, million tokens/s": self._tokens / alone / 1e6,
            "`global_batches` and a step, million tokens/s": self._tokens * self._batches / timed(self._train) / 1e6,
        }

    def _copy(self, batch: Any) -> None:
        jax.block_until_ready(jax.device_put(batch, may_alias=False))

    def _make(self, batch: Any) -> None:
        jax.block_until_ready(self._expand(batch))

    def _train(self) -> None:
        for _ in range(self._batches):
            result = self._step(next(self._devices))
        jax.block_until_ready(result)


def timed(work: Callable[[], Any]) -> float:
    """The seconds that something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median_of(work: Callable[[Any], None], batches: list[Any]) -> float:
    """The median seconds of a batch: on a shared machine some wait for others."""
    return statistics.median(timed(functools.partial(work, batch)) for batch in batches)


def report(arguments: argparse.Namespace, sizes: dict[str, float], figures: dict[str, dict[str, list[float]]]) -> None:
    """Prints the table, with the median of the rounds' ratios: both layouts of a round ran one after the other."""
    facts = machine.facts()
    packages = ", ".join(f"{name} {version(name)}" for name in ("gristmill", "jax", "jaxlib", "numpy", "grain"))
    print(f"{facts['processor']}, {facts['usable_cores']} cores; {jax.devices()[0].platform} x {jax.device_count()}")
    print(
        f"{packages}; {arguments.packing}, {arguments.batch_size} rows of {arguments.sequence_length:,}, at most",
        end="",
    )
    print(f" {arguments.max_segments} segments; medians of {arguments.rounds} rounds of {arguments.batches} batches\n")
    print("| | `maxtext` | `varlen` | ratio |\n| --- | ---: | ---: | ---: |")
    first, second = (sizes[layout] for layout in LAYOUTS)
    print(f"| bytes a token | {first:.2f} | {second:.2f} | {second / first:.3f} |")
    for name, values in figures["maxtext"].items():
        others = figures["varlen"][name]
        # If there are few batches, all may have been packed ahead, in no time.
        ratio = statistics.median(other / max(value, 1e-9) for value, other in zip(values, others, strict=True))
        print(f"| {name} | {statistics.median(values):.3g} | {statistics.median(others):.3g} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
