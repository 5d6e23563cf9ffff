"""The benchmark's result for people."""

from typing import Any

from gristmill import _table
from gristmill._bench.rounds import OURS, SPEEDS

_TITLES = {
    "gristmill": "gristmill",
    "datasets": "datasets + tokenizers + NumPy",
    "grain": "Grain + tokenizers",
}


def describe(result: dict[str, Any]) -> str:
    """A table with what it rests on above it."""
    machine, job, summary = result["machine"], result["job"], result["summary"]
    facts = _table.fields(
        [
            (
                "machine",
                f"{machine['processor']}, {machine['usable_cores']} usable cores, "
                f"{machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']}",
            ),
            ("versions", ", ".join(f"{name} {version}" for name, version in result["versions"].items())),
            ("shards", f"{len(job['shards'])}, {job['shards'][0]} ..."),
            ("tokenizer", job["tokenizer"]),
            ("rows", f"{job['sequence_length']:,} tokens, {job['batch_size']} a batch"),
            ("threads", job["threads"]),
            ("rounds", f"{len(result['rounds'])}, of which medians are shown"),
            ("same work", _same_work(result)),
        ]
    )
    rows = [("", "tokens/s", "gristmill is", "tokens/CPU second", "gristmill is", "first batch", "memory")]
    for name, medians in summary.items():
        faster, cheaper = ("" if name == OURS else f"{medians[f'{speed}_ratio']:.1f} times that" for speed in SPEEDS)
        rows.append(
            (
                _TITLES.get(name, name),
                f"{medians['tokens_per_second']:,.0f}",
                faster,
                f"{medians['tokens_per_cpu_second']:,.0f}",
                cheaper,
                f"{medians['seconds_to_first_batch']:.2f} s",
                f"{medians['peak_bytes'] / 1e6:,.0f} MB",
            )
        )
    return f"{facts}\n\n{_table.columns(rows, right=range(1, 7))}"


def _same_work(result: dict[str, Any]) -> str:
    counts = {
        name: f"{medians['tokens']:,.0f} tokens with {medians['eos_tokens']:,.0f} EOS"
        for name, medians in result["summary"].items()
    }
    if result["same_work"]:
        return f"yes, all gave the same {next(iter(counts.values()))}"
    return "NO: " + "; ".join(f"{name} {count}" for name, count in counts.items())
