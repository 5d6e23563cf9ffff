"""`gristmill inspect filter`: what a filter keeps of the first records, and the values that it is about."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from gristmill._core import Records
from gristmill._filter.compiler import Keep, compile_filter
from gristmill._shards.address import Address
from gristmill._shards.hive import with_folders
from gristmill._shards.manifest import manifest_at
from gristmill._shards.selection import Numbering, with_missing
from gristmill._shards.sidecars import Sidecars, with_sidecars
from gristmill._util.local_files import utf8_path
from gristmill._util.text import counted, format_columns, format_fields
from gristmill.errors import ShardError

# A kind and a value, as the core has them.
_Value = tuple[str, Any]

_BINS = 10
# Other values than numbers that are listed.
_LISTED = 10
_QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
_BAR = 30
_TEXT_SHOWN = 60


def inspect(
    shards: Address,
    keep: str,
    *,
    sidecars: Sequence[str] | None = None,
    records: int,
    max_document_bytes: int,
) -> dict[str, Any]:
    """The records that a filter keeps among the first ones of some shards.

    Args:
      shards: a path or a glob.
      keep: the expression.
      sidecars: those of the shards, as text.
      records: how many records to look at.
      max_document_bytes: longest accepted line of a shard, inflated.

    Returns:
      A dict whose `kind` is "filter"; docs/json.md describes it.

    Raises:
      GristmillError: the expression is wrong, or a shard cannot be opened.
    """
    named = Sidecars.check("sidecars", sidecars)
    compiled = with_missing(compile_filter("keep", keep), named)
    manifest = with_sidecars(manifest_at(shards), named)
    with_folders(compiled, manifest)
    numbering = Numbering(compiled.paths, named, manifest)
    seen = _Seen(compiled)
    programs = [numbering.program(compiled.paths, program) for program in seen.programs]
    opened = 0
    for index, (path, size) in enumerate(manifest):
        if seen.records == records:
            break
        opened += 1
        own = [replace(files, files=[files.files[index]]) for files in numbering.sidecars]
        shard = utf8_path(path)
        storage = manifest.storage_options
        seen.read(Records(shard, size, max_document_bytes, numbering.own, programs, own, storage), records)
    return {
        "kind": "filter",
        "keep": compiled.text,
        "shards": opened,
        "records_read": seen.records,
        "bad": seen.bad,
        "kept": seen.kept,
        "clauses": [
            {"clause": text, "kept": alone, "kept_so_far": together}
            for (text, _), alone, together in zip(compiled.clauses, seen.alone, seen.together, strict=True)
        ],
        "values": [
            {"expression": text, **_distribution(values)}
            for (text, _), values in zip(compiled.values, seen.values, strict=True)
        ],
    }


class _Seen:
    """The values found in the records so far."""

    def __init__(self, keep: Keep) -> None:
        self.programs = [program for _, program in (*keep.clauses, *keep.values)]
        self.records = self.bad = self.kept = 0
        self.alone = [0] * len(keep.clauses)
        self.together = [0] * len(keep.clauses)
        self.values: list[list[_Value]] = [[] for _ in keep.values]

    def read(self, records: Records, most: int) -> None:
        """Adds the records of a shard, until there are `most`."""
        while self.records < most:
            try:
                found = records.next_values()
            except ShardError:
                self.records += 1
                self.bad += 1
                continue
            if found is None:
                return
            self.records += 1
            self._add(found)

    def _add(self, found: "Sequence[Sequence[_Value]]") -> None:
        is_kept = True
        for index, [(_, value)] in enumerate(found[: len(self.alone)]):
            is_true = bool(value)
            is_kept = is_kept and is_true
            self.alone[index] += is_true
            self.together[index] += is_kept
        self.kept += is_kept
        for values, more in zip(self.values, found[len(self.alone) :], strict=True):
            values.extend(more)


def _distribution(values: Iterable[_Value]) -> dict[str, Any]:
    kinds: Counter[str] = Counter()
    numbers: list[float] = []
    others: Counter[str] = Counter()
    for kind, value in values:
        is_infinite = kind == "number" and math.isinf(value)
        kinds["infinite" if is_infinite else kind] += 1
        if kind == "number" and not is_infinite:
            numbers.append(value)
        elif kind in ("string", "boolean"):
            others[str(value)] += 1
    numbers.sort()
    return {
        "kinds": dict(kinds),
        "quantiles": {f"{share:g}": numbers[int(share * (len(numbers) - 1) + 0.5)] for share in _QUANTILES if numbers},
        "bins": _bins(numbers),
        "most_frequent": [{"value": value, "count": count} for value, count in others.most_common(_LISTED)],
    }


def _bins(numbers: list[float]) -> list[dict[str, Any]]:
    """Counts of numbers, in order, between round borders; None: no border. A bin holds its lower border."""
    if len(set(numbers)) <= _BINS:
        return [{"from": number, "to": number, "count": count} for number, count in sorted(Counter(numbers).items())]
    borders = _borders(numbers[len(numbers) // 100], numbers[-1 - len(numbers) // 100])
    counts = Counter(sum(border <= number for border in borders) for number in numbers)
    edges = [None, *borders, None]
    bins = [{"from": edges[at], "to": edges[at + 1], "count": counts[at]} for at in range(len(borders) + 1)]
    return [found for found in bins if found["count"] or None not in (found["from"], found["to"])]


def _borders(low: float, high: float) -> list[float]:
    """Round numbers from about `low` to about `high`: multiples of a step or, over several magnitudes, 1, 2 and 5."""
    if low > 0 and high / low >= 100:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        borders = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        inner = [border for border in borders if low < border <= high]
        return inner[:: 1 + len(inner) // (2 * _BINS)]
    step = 10.0 ** math.floor(math.log10((high - low) / _BINS)) if high > low else 1.0
    step = next(step * digit for digit in (1, 2, 5, 10) if high <= low or (high - low) / (step * digit) <= _BINS)
    first = math.floor(low / step) + 1
    # Divided, so that they are round in decimals too.
    return [round(at * step, 12) for at in range(first, math.floor(high / step) + 1)] or [low]


def describe(found: dict[str, Any]) -> str:
    """The result of `inspect` for people."""
    read = found["records_read"]
    bad = f", {counted(found['bad'], 'bad one')} among them" if found["bad"] else ""
    summary = format_fields(
        [
            ("filter", found["keep"]),
            ("looked at", f"{counted(read, 'record')} of {counted(found['shards'], 'shard')}{bad}"),
            ("kept", f"{found['kept']:,} ({_share(found['kept'], read)})"),
        ]
    )
    rows = [("clause", "keeps", "", "with those before", "")]
    for clause in found["clauses"]:
        alone, together = clause["kept"], clause["kept_so_far"]
        rows.append(
            (_short(clause["clause"]), f"{alone:,}", _share(alone, read), f"{together:,}", _share(together, read))
        )
    parts = [summary, format_columns(rows, right=(1, 2, 3, 4)), *map(_describe_value, found["values"])]
    return "\n\n".join(parts)


def _describe_value(value: dict[str, Any]) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(value["kinds"].items())) or "no values"
    lines = [f"{_short(value['expression'])}: {kinds}"]
    if value["quantiles"]:
        shares = (f"{float(share):.0%}: {number:g}" for share, number in value["quantiles"].items())
        lines.append("  quantiles " + ", ".join(shares))
    rows = [(_range(found), found["count"]) for found in value["bins"]]
    rows += [(_short(repr(found["value"])), found["count"]) for found in value["most_frequent"]]
    if rows:
        most = max(count for _, count in rows)
        bars = [(f"  {name}", f"{count:,}", "#" * math.ceil(_BAR * count / most)) for name, count in rows]
        lines.append(format_columns(bars, right=(1,)))
    return "\n".join(lines)


def _range(found: dict[str, Any]) -> str:
    low, high = found["from"], found["to"]
    if low is None:
        return f"below {high:g}"
    if high is None:
        return f"{low:g} and above"
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_SHOWN else text[:_TEXT_SHOWN] + "..."
