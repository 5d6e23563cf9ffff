"""Models packing on 10, 100 and 1,000 nodes from costs measured here, and names the bottleneck: docs/scaling.md.

    python benches/packing_nodes.py [--tokens 1e13] [--shards 100000] [--units 64000] [--cores 64]

Measured: tokens per second of one core, bytes read and written per token, the time to start a unit and its growth with
the shards of the plan, and the time of `--finish` per unit. Assumed: the bandwidths, and one core for each unit.
"""

import argparse
import importlib.metadata
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gristmill as gm
from gristmill._demo import sample_text

ROUNDS = 5
NODES = (10, 100, 1000)
# As in scaling.py: passes over the text, and int32 rows of six arrays that are written and read once. Then one array is
# copied to the file.
PASSES_OVER_TEXT, BYTES_PER_PLACE, BYTES_OF_COPY = 5, 2 * 24, 2 * 4
GBIT = 1e9 / 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=float, default=1e13, help="of the corpus")
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--units", type=int, default=64_000)
    parser.add_argument("--cores", type=int, default=64, help="of a node")
    parser.add_argument("--memory-bandwidth", type=float, default=100e9, help="of a node, bytes per second")
    parser.add_argument("--node-gbit", type=float, default=50, help="network of a node, gigabit per second each way")
    parser.add_argument("--store-gbit", type=float, default=1000, help="of the store, to and from all nodes together")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        costs = measure(Path(folder))
    versions = f"gristmill {importlib.metadata.version('gristmill')}, Python {platform.python_version()}"
    print(f"{versions}, {platform.machine()}; medians of {ROUNDS}")
    for name, value in costs.items():
        print(f"  {name:<36} {value:,.4g}")
    print(f"\n{arguments.tokens:.3g} tokens in {arguments.shards:,} shards, {arguments.units:,} units; minutes")
    for number, nodes in enumerate(NODES):
        seconds = model(costs, arguments, nodes)
        if not number:
            print(f"{'nodes':>6} {'total':>8} " + " ".join(f"{name:>12}" for name in seconds) + "  bottleneck")
        total = max(seconds[name] for name in TOGETHER) + sum(seconds[name] for name in AFTERWARDS)
        bottleneck = max(seconds, key=seconds.__getitem__)
        columns = " ".join(f"{value / 60:>12.2f}" for value in seconds.values())
        print(f"{nodes:>6} {total / 60:>8.2f} {columns}  {bottleneck}")


# Resources used at the same time, so that the scarcest one sets the pace, and what follows one after the other.
TOGETHER = ("cores", "memory", "network", "store")
AFTERWARDS = ("last unit", "finish")


def model(costs: dict[str, float], arguments: argparse.Namespace, nodes: int) -> dict[str, float]:
    """The seconds that each resource would take if it alone were scarce."""
    tokens, units = arguments.tokens, arguments.units
    slots = min(nodes * arguments.cores, units)
    start = costs["seconds to start a unit"] + costs["... per shard of the plan"] * arguments.shards
    read, text = costs["bytes read per token"], costs["bytes of text per token"]
    moved = PASSES_OVER_TEXT * text + BYTES_PER_PLACE + BYTES_OF_COPY + read
    busiest_way = max(read, costs["bytes written per token"])
    return {
        "cores": (tokens / costs["tokens per second and core"] + units * start) / slots,
        "memory": tokens * moved / arguments.memory_bandwidth / nodes,
        "network": tokens * busiest_way / (arguments.node_gbit * GBIT) / nodes,
        "store": tokens * (read + costs["bytes written per token"]) / (arguments.store_gbit * GBIT),
        "last unit": start + tokens / units / costs["tokens per second and core"],
        "finish": units * costs["seconds of --finish per unit"],
    }


def measure(folder: Path) -> dict[str, float]:
    sample = sample_text.prepare(folder / "demo", 64)
    tokenizer = sample_text.tokenizer()
    shards = sorted(Path(sample.folder).glob("*/en_head.json.gz"))
    options = {"tokenizer": tokenizer, "text_field": "raw_content", "threads": 1, "lanes": 8, "batch_size": 8}
    runs = [
        gm.pack(gm.PackedDataset(shards, **options), folder / f"rows-{number}", fields=["inputs"])
        for number in range(ROUNDS)
    ]
    tokens = runs[0]["tokens"]
    few, many = (start_of_unit(folder / f"plan-{count}", count, tokenizer) for count in (8, 2008))
    per_shard = max((many - few) / 2000, 0.0)
    finish = [finish_of_units(folder, count, tokenizer) for count in (20, 220)]
    return {
        "tokens per second and core": statistics.median(run["tokens_per_second"] for run in runs),
        "bytes of text per token": sample.text_bytes / tokens,
        "bytes read per token": sum(path.stat().st_size for path in shards) / tokens,
        "bytes written per token": sum(path.stat().st_size for path in (folder / "rows-0").iterdir()) / tokens,
        "seconds to start a unit": few - 8 * per_shard,
        "... per shard of the plan": per_shard,
        "seconds of --finish per unit": (finish[1] - finish[0]) / 200,
    }


def start_of_unit(folder: Path, count: int, tokenizer: Path) -> float:
    """The seconds of a process that packs a unit of almost nothing, of a plan with so many shards."""
    write_tiny_shards(folder / "shards", count)
    seconds = []
    for number in range(ROUNDS):
        output = folder / f"packed-{number}"
        lanes = ["--lanes", count, "--batch-size", count, "--units", count]
        timed(folder / "shards" / "*.jsonl", "--tokenizer", tokenizer, "--output", output, "--plan", *lanes)
        seconds.append(timed("--output", output, "--unit", "0"))
    return statistics.median(seconds)


def finish_of_units(folder: Path, units: int, tokenizer: Path) -> float:
    """The seconds of `--finish` of so many units."""
    shards = folder / f"shards-{units}"
    write_tiny_shards(shards, units)
    dataset = gm.PackedDataset(str(shards / "*.jsonl"), tokenizer=tokenizer, lanes=units, batch_size=units, threads=1)
    output = folder / f"units-{units}"
    gm.pack(dataset, output, units=units)
    return statistics.median(timed("--output", output, "--finish") for _ in range(ROUNDS))


def write_tiny_shards(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number:05}.jsonl").write_text('{"text": "a few words"}\n')


def timed(*arguments: object) -> float:
    """The seconds of `gristmill pack` with these arguments."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "gristmill", "pack", *map(str, arguments)], check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
