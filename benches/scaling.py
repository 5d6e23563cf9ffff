"""The needs of larger machines and many hosts, modelled from measured costs: `python benches/scaling.py bench.json`.

bench.json comes from `gristmill bench --threads 1 --threads 2 ... --latency --output FOLDER`. The model is in
docs/scaling.md. Costs are of processor time, so that they hold on a machine where other programs run, too.
"""

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# As in rust/lane/reader.rs, and rust/pipeline/workers.rs: work is taken, a block is read, and encoded; work is taken,
# and the block is packed.
BLOCK_BYTES = 512 << 10
LOCKS_PER_BLOCK = 5
# int32 in six arrays.
BYTES_PER_PLACE = 24
# Inflating writes the text once and looks back at it; splitting and extracting read it and write it once more;
# encoding reads it. Rows are written once, and read by whoever takes them.
PASSES_OVER_TEXT, PASSES_OVER_ROWS = 5, 2


@dataclass(frozen=True)
class Costs:
    """The costs that were measured on one thread.

    Attributes:
      read: processor seconds a token, likewise `encode` and `pack`.
      text_bytes: of a token, inflated; `stored_bytes` as stored.
      batch_tokens: tokens of a batch of those whose delays were measured, which are larger than the job's.
      hand_over: seconds that `next` takes when such a batch is ready.
      base_bytes: memory of the process on one thread; `thread_bytes` of each further one.
    """

    read: float
    encode: float
    pack: float
    text_bytes: float
    stored_bytes: float
    batch_tokens: int
    hand_over: float
    base_bytes: float
    thread_bytes: float

    @property
    def token(self) -> float:
        """Processor seconds a token, all phases."""
        return self.read + self.encode + self.pack

    @classmethod
    def of(cls, bench: Mapping[str, Any]) -> "Costs":
        """The costs that a benchmark measured."""
        runs = {entry["threads"]: entry["summary"]["gristmill"] for entry in bench["by_threads"]}
        if 1 not in runs or "latency" not in bench:
            raise SystemExit("the model needs `gristmill bench --threads 1 --latency` (and further --threads to check)")
        one, most = runs[1], max(runs)
        phases = {phase: seconds / sum(one["busy_seconds"].values()) for phase, seconds in one["busy_seconds"].items()}
        token = 1 / one["tokens_per_cpu_second"]
        grown = (runs[most]["peak_bytes"] - one["peak_bytes"]) / max(1, most - 1)
        return cls(
            **{phase: share * token for phase, share in phases.items()},
            text_bytes=one["text_bytes"] / one["tokens"],
            stored_bytes=bench["shard_bytes"] / one["tokens"],
            batch_tokens=bench["latency"]["batch_size"] * bench["job"]["sequence_length"],
            hand_over=bench["latency"]["paced"]["p50"],
            base_bytes=one["peak_bytes"],
            thread_bytes=max(0.0, grown),
        )


@dataclass(frozen=True)
class Machine:
    """The assumptions about a machine: memory bandwidth and storage in bytes a second, seconds that a lock is held."""

    memory: float
    storage: float
    lock: float


def limits(costs: Costs, machine: Machine, cores: int, lanes: int) -> dict[str, float]:
    """Tokens a second that each part could do by itself."""
    return {
        "cores": cores / costs.token,
        # Within a lane blocks are read one after another, and packed one after another; encoding is free of order.
        "lanes": lanes / max(costs.read, costs.pack),
        "schedule's lock": BLOCK_BYTES / costs.text_bytes / (LOCKS_PER_BLOCK * machine.lock),
        "consumer": costs.batch_tokens / costs.hand_over,
        "memory bandwidth": machine.memory
        / (PASSES_OVER_TEXT * costs.text_bytes + PASSES_OVER_ROWS * BYTES_PER_PLACE + costs.stored_bytes),
        "storage": machine.storage / costs.stored_bytes,
    }


def lanes_needed(costs: Costs, by_part: Mapping[str, float]) -> int:
    """The fewest lanes that do not hold up the other parts."""
    rate = min(limit for part, limit in by_part.items() if part != "lanes")
    return math.ceil(rate * max(costs.read, costs.pack))


def main() -> None:
    """Prints the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", type=Path, help="bench.json")
    parser.add_argument("--lanes", type=int, default=64, help="lanes of one host (default: 64)")
    parser.add_argument("--demand", type=float, default=1e6, help="tokens/s that a host's accelerators take")
    parser.add_argument("--memory", type=float, default=100e9, help="memory bandwidth of a host, bytes/s")
    parser.add_argument("--storage", type=float, default=2e9, help="storage bandwidth of a host, bytes/s")
    parser.add_argument("--lock-microseconds", type=float, default=1.0, help="how long the schedule's lock is held")
    options = parser.parse_args()
    bench = json.loads(options.bench.read_text())
    costs = Costs.of(bench)
    machine = Machine(options.memory, options.storage, options.lock_microseconds * 1e-6)
    print(measured(costs))
    print(f"\nThe model against what was measured, on {bench['machine']['usable_cores']} usable cores\n")
    print(checked(costs, bench))
    print(f"\nOne host with {options.lanes} lanes\n")
    print(one_host(costs, machine, options.lanes))
    print(f"\nMany hosts, each taking {options.demand:,.0f} tokens/s\n")
    print(many_hosts(costs, options.demand))


def measured(costs: Costs) -> str:
    """The costs in words."""
    phases = ", ".join(f"{phase} {1e9 * getattr(costs, phase):.1f}" for phase in ("read", "encode", "pack"))
    return (
        f"Nanoseconds of processor time a token: {phases}; {1 / costs.token / 1e6:.1f} M tokens/s a core.\n"
        f"Bytes a token: {costs.stored_bytes:.2f} stored, {costs.text_bytes:.2f} of text. "
        f"A batch of {costs.batch_tokens:,} tokens is handed over in {1e6 * costs.hand_over:.0f} microseconds.\n"
        f"Memory: {costs.base_bytes / 1e6:,.0f} MB, and {costs.thread_bytes / 1e6:,.0f} MB for each further thread."
    )


def checked(costs: Costs, bench: Mapping[str, Any]) -> str:
    """Cost a token, cores in use and waits for each number of threads, beside what the model says."""
    rows = [
        ["threads", "cost a token", "model", "off by", "cores in use", "M tokens/s", "model for them", "sleeps a block"]
    ]
    for entry in bench["by_threads"]:
        found = entry["summary"]["gristmill"]
        cost, cores = 1 / found["tokens_per_cpu_second"], found["cpu_seconds"] / found["seconds"]
        rows.append(
            [
                f"{entry['threads']}",
                f"{1e9 * cost:.1f} ns",
                f"{1e9 * costs.token:.1f} ns",
                f"{cost / costs.token - 1:+.0%}",
                f"{cores:.2f}",
                f"{found['tokens_per_second'] / 1e6:.2f}",
                f"{cores / costs.token / 1e6:.2f}",
                f"{found['sleeps'] * BLOCK_BYTES / found['text_bytes']:.2f}",
            ]
        )
    return table(rows)


def one_host(costs: Costs, machine: Machine, lanes: int) -> str:
    """Speed, bottleneck and needs by number of cores."""
    rows = [["cores", "M tokens/s", "first bottleneck", "next", "lanes needed", "GB", "GB/s stored", "files open"]]
    for cores in (1, 2, 4, 8, 16, 32, 64, 128, 200):
        by_part = limits(costs, machine, cores, lanes)
        (first, rate), (second, further) = sorted(by_part.items(), key=lambda item: item[1])[:2]
        rows.append(
            [
                f"{cores}",
                f"{rate / 1e6:,.0f}",
                first,
                f"{second} at {further / 1e6:,.0f}",
                f"{lanes_needed(costs, by_part)}",
                f"{(costs.base_bytes + (cores - 1) * costs.thread_bytes) / 1e9:.1f}",
                f"{rate * costs.stored_bytes / 1e9:.2f}",
                f"{lanes}",
            ]
        )
    return table(rows)


def many_hosts(costs: Costs, demand: float) -> str:
    """The needs of a run by number of hosts."""
    rows = [["hosts", "M tokens/s", "cores a host", "lanes a host", "lanes", "files open", "GB/s stored", "TB a day"]]
    lanes = power_of_two(demand * max(costs.read, costs.pack))
    for hosts in (64, 128, 256, 512, 1024):
        stored = hosts * demand * costs.stored_bytes
        rows.append(
            [
                f"{hosts}",
                f"{hosts * demand / 1e6:,.0f}",
                f"{demand * costs.token:.2f}",
                f"{lanes}",
                f"{hosts * lanes:,}",
                f"{hosts * lanes:,}",
                f"{stored / 1e9:.2f}",
                f"{stored * 86_400 / 1e12:.1f}",
            ]
        )
    return table(rows)


def power_of_two(least: float) -> int:
    """The smallest power of two from `least` on."""
    return 1 << max(0, math.ceil(math.log2(max(least, 1))))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a table in Markdown."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    return "\n".join([line(rows[0]), line("---" for _ in rows[0]), *map(line, rows[1:])])


if __name__ == "__main__":
    main()
