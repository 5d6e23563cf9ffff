"""The speed of a mixture, beside that of each of its sources alone: `gristmill bench mixture.toml`.

Each runs in a process of its own, once a round, in alternating order: `python -m gristmill._bench.mixtures` prints the
figures of one as JSON, for a request on stdin.
"""

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill._bench import child, machine
from gristmill._bench.run import peak_bytes
from gristmill._mixture import mixture_file
from gristmill._util.progress import Progress
from gristmill._util.text import counted, format_columns, format_fields

# The name of the whole; that of a source has no asterisk.
MIXTURE = "*"
# Tokens that are measured unless --steps says how much; those of two seconds at most, on a core of most machines.
_TOKENS = 2**23


def compare(
    path: str,
    arguments: Mapping[str, Any],
    sources: Sequence[str],
    *,
    rounds: int,
    threads: Sequence[int],
    steps: int,
) -> dict[str, Any]:
    """Runs the mixture and each source alone on each number of threads.

    Args:
      path: the mixture file.
      arguments: those of `PackedDataset` in place of the file's, of types that JSON has.
      sources: the names of the sources.
      rounds: how often.
      threads: on how many threads.
      steps: of the stream that are measured, or fewer if it ends before.

    Returns:
      `machine`, `versions`, `mixture` (the path), `steps`, `rounds`; `shares`, of each source the shares that were
      asked and given; and `by_threads`, of each number of threads the medians of the whole (`*`) and each source.

    Raises:
      GristmillError: a run failed.
    """
    names = [MIXTURE, *sources]
    measured: dict[int, dict[str, list[dict[str, Any]]]] = {count: {name: [] for name in names} for count in threads}
    with Progress("benchmark", rounds * len(measured) * len(names), " runs") as progress:
        for done, (number, count, place) in enumerate(itertools.product(range(rounds), measured, range(len(names)))):
            name = (names if number % 2 == 0 else names[::-1])[place]
            progress.show(done, f"{name}, {counted(count, 'thread')}")
            request = {"path": path, "arguments": {**arguments, "threads": count}, "source": name, "steps": steps}
            what = "the mixture" if name == MIXTURE else f"the source {name!r}"
            measured[count][name].append(child.measure(what, "gristmill._bench.mixtures", request))
    first = measured[threads[0]][MIXTURE][0]
    return {
        "machine": machine.facts(),
        "versions": machine.versions(),
        "mixture": path,
        "steps": first["steps"],
        "rounds": rounds,
        "shares": first["shares"],
        "by_threads": [
            {"threads": count, "summary": {name: _summary(found[name]) for name in names}}
            for count, found in measured.items()
        ],
    }


def default_steps(rows: int, sequence_length: int) -> int:
    """The steps that are measured if no option says how many."""
    return max(1, _TOKENS // (rows * sequence_length))


def measure(path: str, arguments: dict[str, Any], source: str, steps: int) -> dict[str, Any]:
    """Runs a mixture or one of its sources in this process, see `compare`."""
    from gristmill._dataset.packed import dataset_of

    whole = dataset_of(mixture_file.read(path), arguments)
    dataset = whole if source == MIXTURE else whole.sources[source]
    start, cpu = time.perf_counter(), time.process_time()
    with iter(dataset) as iterator:
        first = 0.0
        for _ in itertools.islice(iterator, steps):
            first = first or time.perf_counter() - start
        stats = iterator.stats()
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "seconds_to_first_batch": first,
        "steps": stats["batches"],
        "tokens": stats["tokens"],
        "padding_tokens": stats["padding_tokens"],
        "peak_bytes": peak_bytes(),
        "busy_seconds": stats["busy_seconds"],
        "shares": {
            name: {"asked": own["asked"], "given": own["given"]} for name, own in stats.get("sources", {}).items()
        },
    }


def describe(result: Mapping[str, Any]) -> str:
    """Tables for people."""
    facts = result["machine"]
    summary = format_fields(
        [
            ("machine", f"{facts['processor']}, {facts['usable_cores']} usable cores, {facts['system']}"),
            ("mixture", result["mixture"]),
            ("measured", f"{counted(result['steps'], 'step')}, medians of {counted(result['rounds'], 'round')}"),
        ]
    )
    return "\n\n".join([summary, *map(_threads, result["by_threads"]), _shares(result["shares"])])


def _threads(entry: Mapping[str, Any]) -> str:
    rows = [("", "tokens/s", "tokens/CPU second", "first batch", "memory", "padding", "read / encode / pack")]
    for name, found in entry["summary"].items():
        busy = found["busy_seconds"].values()
        whole = sum(busy) or 1.0
        rows.append(
            (
                "mixture" if name == MIXTURE else f"{name} alone",
                f"{found['tokens_per_second']:,.0f}",
                f"{found['tokens_per_cpu_second']:,.0f}",
                f"{found['seconds_to_first_batch']:.2f} s",
                f"{found['peak_bytes'] / 1e6:,.0f} MB",
                f"{found['padding_share']:.0%}",
                " / ".join(f"{spent / whole:.0%}" for spent in busy),
            )
        )
    return f"{counted(entry['threads'], 'thread')}\n{format_columns(rows, right=range(1, 7))}"


def _shares(shares: Mapping[str, Any]) -> str:
    rows = [("source", "share asked", "given")]
    rows += [(name, f"{found['asked']:.4%}", f"{found['given']:.4%}") for name, found in shares.items()]
    return format_columns(rows, right=(1, 2))


def _summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def median(key: str) -> float:
        return float(statistics.median(run[key] for run in runs))

    return {
        "tokens": runs[0]["tokens"],
        "tokens_per_second": statistics.median(run["tokens"] / max(run["seconds"], 1e-9) for run in runs),
        "tokens_per_cpu_second": statistics.median(run["tokens"] / max(run["cpu_seconds"], 1e-9) for run in runs),
        "seconds_to_first_batch": median("seconds_to_first_batch"),
        "peak_bytes": median("peak_bytes"),
        "padding_share": runs[0]["padding_tokens"] / ((runs[0]["tokens"] + runs[0]["padding_tokens"]) or 1),
        "busy_seconds": {
            phase: statistics.median(run["busy_seconds"][phase] for run in runs) for phase in runs[0]["busy_seconds"]
        },
    }


if __name__ == "__main__":
    child.main(lambda request: measure(**request))
