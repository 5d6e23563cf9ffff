"""The benchmark's result for people."""

from typing import Any

from gristmill._bench.rounds import OURS, SPEEDS
from gristmill._util.text import counted, format_columns, format_fields, shortened


def describe(result: dict[str, Any]) -> str:
    """Tables, with the machine and the job above them."""
    parts = [_facts(result), *(_threads(result, entry) for entry in result["by_threads"])]
    parts.append(f"Same work: {_same_work(result)}.")
    if result["failed"]:
        parts.append("\n".join(f"skipped: {reason}" for reason in result["failed"].values()))
    if "latency" in result:
        parts.append(_latency(result["latency"]))
    return "\n\n".join(parts)


def _facts(result: dict[str, Any]) -> str:
    machine, job = result["machine"], result["job"]
    return format_fields(
        [
            (
                "machine",
                f"{machine['processor']}, {machine['usable_cores']} usable cores, "
                f"{machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']}",
            ),
            ("versions", ", ".join(f"{name} {version}" for name, version in result["versions"].items())),
            ("shards", f"{len(job['shards'])}, {job['shards'][0]} ..."),
            ("tokenizer", job["tokenizer"]),
            *([("sample", _sample(job["sample"]))] if job["sample"] else []),
            ("rows", f"{job['sequence_length']:,} tokens, {job['batch_size']} a batch"),
            ("rounds", f"{len(result['by_threads'][0]['rounds'])}, of which medians are shown"),
        ]
    )


def _threads(result: dict[str, Any], entry: dict[str, Any]) -> str:
    summary = entry["summary"]
    count = entry["threads"]
    titles = {name: contender["title"] for name, contender in result["contenders"].items()}
    fewest = result["by_threads"][0]["threads"]
    has_masks = "trained_tokens" in summary[OURS]
    rows: list[tuple[str, ...]] = [("", "tokens/s", "speedup", "tokens/CPU second", "speedup", "first batch", "memory")]
    if has_masks:
        rows[0] += ("trained on",)
    for name, medians in summary.items():
        faster, cheaper = ("" if name == OURS else _times(medians[f"{speed}_ratio"]) for speed in SPEEDS)
        rows.append(
            (
                titles[name],
                f"{medians['tokens_per_second']:,.0f}",
                faster,
                f"{medians['tokens_per_cpu_second']:,.0f}",
                cheaper,
                f"{medians['seconds_to_first_batch']:.2f} s",
                f"{medians['peak_bytes'] / 1e6:,.0f} MB",
                *([f"{medians['trained_tokens']:,}" if "trained_tokens" in medians else ""] if has_masks else []),
            )
        )
    lines = [
        counted(count, "thread"),
        format_columns(rows, right=range(1, len(rows[0]))),
    ]
    if count != fewest:
        lines.append(f"gristmill's speed: {summary[OURS]['threads_ratio']:.2f} times that on {fewest}")
    if busy := summary[OURS].get("busy_seconds"):
        whole = sum(busy.values()) or 1.0
        lines.append("gristmill's time: " + ", ".join(f"{name} {spent / whole:.0%}" for name, spent in busy.items()))
        padding, tokens = summary[OURS]["padding_tokens"], summary[OURS]["tokens"]
        share = padding / ((padding + tokens) or 1)
        lines.append(f"gristmill's rows: {share:.0%} padding, at the ends of lanes")
    return "\n".join(lines)


def _sample(sample: dict[str, Any]) -> str:
    """A sample as the command line has it."""
    values = [f"{name}={shortened(value)}" for name, value in sample.items() if name != "kind"]
    return " ".join([sample["kind"], *values])


def _times(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio >= 1 else f"{ratio:.2f}x"


def _same_work(result: dict[str, Any]) -> str:
    counts = {
        name: f"{found['tokens']:,} tokens with {found['eos_tokens']:,} EOS"
        for name, found in result["by_threads"][0]["summary"].items()
        if result["contenders"][name]["work"] != "bytes"
    }
    if not result["same_work"]:
        return "NO: " + "; ".join(f"{name} {count}" for name, count in counts.items())
    if not result["same_rows"]:
        return "NO: some yielded another number of rows when measured"
    who = "all that pack" if result["job"]["sample"] is None else "all"
    return f"yes, {who} yielded the same {counts[OURS]}, and as many rows each time"


def _latency(latency: dict[str, Any]) -> str:
    rows = [("delays", "median", "99th percentile", "longest", "batches")]
    titles = {
        "first": "first batch after the start",
        "continuous": "next, one after another",
        "paced": f"next, every {1e3 * latency['pace']:.1f} ms",
    }
    for name, title in titles.items():
        found = latency[name]
        median, ninety_ninth, longest = (f"{1e3 * found[key]:.2f} ms" for key in ("p50", "p99", "max"))
        rows.append((title, median, ninety_ninth, longest, f"{len(found['seconds']):,}"))
    what = f"{latency['lanes']} lanes on {latency['threads']} threads, {latency['batch_size']} rows a batch"
    return f"{format_columns(rows, right=range(1, 5))}\n{what}"
