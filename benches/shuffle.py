"""How well a seed mixes documents, against a permutation of all of them.

python benches/shuffle.py --chart docs/shuffle.svg

Writes small shards of several sources, one row a document, plays an epoch with each number of lanes and each
window, and reads off the provenance the position of each document. Two things are measured: how far apart two
documents come that stood behind each other in their shard, and how often two rows of one batch come from the same
source or shard. The text of the documents plays no part, so they are a word each.
"""

import argparse
import gzip
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import gristmill as gm
from gristmill._demo import sample_text

SOURCES = 8
SHARDS_OF_SOURCE = 8
DOCUMENTS = (2000, 6000)
BATCH = 256
LANES = (1, 8, 32)
WINDOWS = (1, 64, 1024, 16384)


@dataclass
class Mixing:
    """An epoch's documents in stream order, as numbers in manifest order, and what was measured of them."""

    name: str
    lanes: int
    order: np.ndarray
    moved: np.ndarray
    apart: np.ndarray
    same_source: float
    same_shard: float


def write(folder: Path) -> np.ndarray:
    """Shards of all sources. Gives the number of documents of each, in manifest order."""
    random = np.random.default_rng(0)
    counts = random.integers(*DOCUMENTS, (SOURCES, SHARDS_OF_SOURCE))
    line = (json.dumps({"text": "grain"}) + "\n").encode()
    for source in range(SOURCES):
        (folder / f"source{source}").mkdir()
        for shard in range(SHARDS_OF_SOURCE):
            # Stored, so that the sizes by which lanes are dealt are those of the documents.
            path = folder / f"source{source}" / f"{shard:02}.jsonl.gz"
            path.write_bytes(gzip.compress(line * int(counts[source, shard]), 0))
    return counts.reshape(-1)


def played(folder: Path, counts: np.ndarray, lanes: int, **arguments: int) -> np.ndarray:
    """The documents of an epoch in stream order: row after row, batch after batch."""
    dataset = gm.PackedDataset(
        str(folder / "*" / "*.gz"), tokenizer=sample_text.tokenizer(), eos=False, sequence_length=8, packing="pad",
        batch_size=BATCH, lanes=lanes, layout="grain", provenance=True, **arguments,
    )  # fmt: skip
    first = np.concatenate([[0], counts.cumsum()])
    rows = np.concatenate([batch["provenance"][:, 0] for batch in dataset])
    shard, record, _, length = rows[rows[:, 3] > 0].T
    assert length.size == counts.sum()
    return first[shard] + record


def measured(name: str, lanes: int, counts: np.ndarray, order: np.ndarray, plain: np.ndarray) -> Mixing:
    """The effect of an order on the documents; `plain` is the order without a seed."""
    position, position_before = np.empty_like(order), np.empty_like(order)
    position[order] = position_before[plain] = np.arange(order.size)
    shard = np.repeat(np.arange(counts.size), counts)
    is_neighbour = shard[1:] == shard[:-1]
    apart = np.abs(np.diff(position))[is_neighbour]
    of_shard, of_source = batches(shard[order]), batches(shard[order] // SHARDS_OF_SOURCE)
    moved = np.abs(position - position_before)
    return Mixing(name, lanes, order, moved, apart, same(of_source), same(of_shard))


def batches(values: np.ndarray) -> Iterator[np.ndarray]:
    return (values[start : start + BATCH] for start in range(0, values.size - BATCH, BATCH))


def same(batches: Iterator[np.ndarray]) -> float:
    """How often two rows of a batch have the same value."""
    counts = [np.bincount(batch) for batch in batches]
    return float(np.mean([(count * (count - 1)).sum() / (BATCH * (BATCH - 1)) for count in counts]))


def all_mixings(folder: Path) -> list[Mixing]:
    counts = write(folder)
    found = []
    for lanes in LANES:
        plain = played(folder, counts, lanes)
        found.append(measured("no seed", lanes, counts, plain, plain))
        for window in WINDOWS:
            order = played(folder, counts, lanes, seed=1, shuffle_window=window)
            found.append(measured(f"window {window:,}", lanes, counts, order, plain))
    ideal = np.random.default_rng(1).permutation(counts.sum())
    found.append(measured("all permuted", 0, counts, ideal, np.arange(ideal.size)))
    return found


def table(mixings: list[Mixing]) -> str:
    lines = [
        "| lanes | order | a document moves, median | neighbours come apart, 10 % / median / 90 % | "
        "same source in a batch | same shard in a batch |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for mixing in mixings:
        low, median, high = np.quantile(mixing.apart, [0.1, 0.5, 0.9])
        lines.append(
            f"| {mixing.lanes or '-'} | {mixing.name} | {np.median(mixing.moved):,.0f} | "
            f"{low:,.0f} / {median:,.0f} / {high:,.0f} | {mixing.same_source:.1%} | {mixing.same_shard:.1%} |"
        )
    return "\n".join(lines)


def draw(mixings: list[Mixing], counts_total: int, path: Path) -> None:
    """The stream of eight lanes as a strip of colours for each order, and how far neighbours come apart."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "shuffle", "font.size": 8})
    from matplotlib import pyplot as plt

    shown = [mixing for mixing in mixings if mixing.lanes in (0, 8)]
    figure, axes = plt.subplots(len(shown) + 1, figsize=(7.5, 5), height_ratios=[1] * len(shown) + [5])
    for axis, mixing in zip(axes, shown, strict=False):
        # A sample of the documents, column after column; each is coloured by its position in the manifest.
        sample = np.sort(np.random.default_rng(2).choice(mixing.order.size, 160 * 6, replace=False))
        pixels = mixing.order[sample].reshape(160, 6).T
        axis.imshow(pixels, aspect="auto", cmap="turbo", vmin=0, vmax=counts_total, interpolation="nearest")
        axis.set_ylabel(mixing.name, rotation=0, ha="right", va="center")
        axis.set(xticks=[], yticks=[])
    axes[0].set_title("One epoch in stream order, 8 lanes; the colour is the document's position in the manifest")
    for mixing in shown:
        quantiles = np.linspace(0, 1, 101)
        axes[-1].plot(np.maximum(np.quantile(mixing.apart, quantiles), 1), quantiles, label=mixing.name)
    axes[-1].set(
        xscale="log", xlabel="documents between two that are neighbours in their shard", ylabel="share of pairs"
    )
    axes[-1].legend(loc="upper left", bbox_to_anchor=(0.01, 0.94), frameon=False)
    figure.tight_layout(h_pad=0.3)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chart", type=Path, help="where to draw it, as SVG; needs matplotlib")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mixings = all_mixings(Path(folder))
    total = mixings[0].order.size
    shards = SOURCES * SHARDS_OF_SOURCE
    print(f"{total:,} documents in {shards} shards of {SOURCES} sources, batches of {BATCH} rows\n\n{table(mixings)}")
    if arguments.chart:
        draw(mixings, total, arguments.chart)


if __name__ == "__main__":
    main()
