"""The comparison for people."""

from collections.abc import Sequence
from typing import Any

from peers import OURS
from rounds import PASSES

from gristmill._util.text import format_columns, format_fields


def describe(result: dict[str, Any]) -> str:
    """Versions, speeds, ratios, and what was refused or came out different."""
    names: list[str] = list(result["engines"])
    others = [name for name in names if name != OURS]
    compared: list[dict[str, Any]] = result["compared"]
    machine = result["machine"]
    facts = format_fields(
        [
            ("machine", f"{machine['processor']}, {machine['system']}"),
            ("engines", ", ".join(f"{name} {version}".strip() for name, version in result["engines"].items())),
            ("rounds", f"{result['rounds']}, one thread, processor time"),
            ("texts", "strings" if result["strings"] else "UTF-8 for engines that take it, else strings"),
        ]
    )
    speeds = [("tokenizer", "text", *names)]
    ratios = [("tokenizer", "text", *others)]
    for entry in compared:
        where = (entry["tokenizer"], entry["text"])
        speeds.append((*where, *(_both(entry["summary"].get(name), "speed", "{:.0f}") for name in names)))
        ratios.append((*where, *(_both(entry["summary"].get(name), "ratio", "{:.2f}") for name in others)))
    parts = [
        facts,
        "MB of text a second, first pass / second pass\n" + format_columns(speeds, right=range(2, 2 + len(names))),
    ]
    if others:
        title = "gristmill is so many times as fast, first pass / second pass"
        parts.append(f"{title}\n" + format_columns(ratios, right=range(2, 2 + len(others))))
    parts.append("\n".join(notes(compared)))
    return "\n\n".join(parts)


def notes(compared: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each refusal and for all ids that differ from gristmill's; a line that says so if there are none."""
    found = []
    for entry in compared:
        where = f"{entry['tokenizer']}, {entry['text']}"
        found += [f"{where}: {name} failed: {message}" for name, message in entry["failed"].items()]
        for name, summary in entry["summary"].items():
            if summary["same_ids"] is False:
                found.append(f"{where}: {name} has other ids than gristmill")
    return found or ["All engines gave the same ids."]


def _both(summary: dict[str, Any] | None, key: str, form: str) -> str:
    values = [None if summary is None else summary[f"{which}_{key}"] for which in PASSES]
    return " / ".join("-" if value is None else form.format(value) for value in values)
