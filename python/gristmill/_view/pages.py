"""The pages of `gristmill view`: of a run, of packed files, of a saved state and of a quarantine file."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gristmill._core as _core
from gristmill._dataset.iterator import PackedDatasetIterator
from gristmill._dataset.packed import PackedDataset, spec_of
from gristmill._dataset.spec import Spec
from gristmill._files.packed_rows import PackedRows, index_of
from gristmill._files.source import encoder_of
from gristmill._inspect import contents
from gristmill._inspect.locate import Run, first_step
from gristmill._sample.plans import ImageTextPlan
from gristmill._shards.address import Address
from gristmill._spec.fields import fields_of_packed
from gristmill._tokenizer.encoder import Encoder, no_tokenizer
from gristmill._util.local_files import open_inflated
from gristmill._util.progress import Progress
from gristmill._util.text import counted
from gristmill._view.charts import Chart, lengths
from gristmill._view.conversations import with_origins
from gristmill._view.page import Page, Table
from gristmill._view.rows import Row, row_of
from gristmill.errors import ArgumentError, GristmillError

# Entries of a quarantine file that are counted, and that are listed; bars of a chart.
_COUNTED, _LISTED, _BARS = 100_000, 500, 20
_SHARES = 10
_QUARANTINE_KEYS = {"shard", "record", "byte", "reason", "lane"}


def of_run(run: Run, *, title: str, step: int | None, rows: int, measured: int) -> Page:
    """The page of a run.

    Args:
      run: the run.
      title: its heading.
      step: the first step that is shown. None: the one after the run's state.
      rows: how many rows are shown.
      measured: how many rows the figures are of, at least `rows`.

    Raises:
      GristmillError: the state is of another dataset, there is no such step, or a record is bad.
    """
    spec = spec_of(run.dataset)
    lanes = sorted(map(int, run.state["lanes"]))
    first = first_step(run.state, step)
    with PackedDatasetIterator(spec.with_running(own_lanes=lanes)) as iterator:
        iterator.set_state(run.state)
        made = _rows(run.dataset, iterator, lanes, run.state, first, drawn=rows)
        found = list(itertools.islice(made, max(rows, measured)))
        stats, quarantined = iterator.stats(), iterator.quarantine()
    if not found:
        raise ArgumentError(f"there is no step {first}: the stream has ended before it")
    shown = with_origins(run.dataset, found[:rows])
    order, packing = spec.order, spec.rows
    encoder = None if run.dataset.encoder is no_tokenizer() else run.dataset.encoder
    of_encoder = "" if encoder is None else f"{encoder.vocab_size:,} ids, {encoder.fingerprint}"
    facts = [
        ("shards", f"{len(run.dataset.pieces):,}"),
        ("rows", f"{counted(spec.rows_per_step, 'row')} of {counted(packing.sequence_length, 'token')} a step"),
        ("lanes", f"{order.lanes:,}"),
        ("packing", f"{packing.packing}, layout {packing.layout}"),
        ("shown", f"{shown[0].name} to {shown[-1].name}"),
        ("tokenizer", _tokenizer(of_encoder, encoder)),
    ]
    tables = [] if not quarantined else [listed("Quarantined lately", quarantined)]
    if "sources" in stats:
        tables.insert(0, _sources(stats["sources"]))
    records = Chart(
        f"Records up to {found[-1].name}",
        ("fate", "records"),
        [(name, stats[name]) for name in ("documents", "filtered", "quarantined")],
    )
    return Page(title, facts, shown, encoder, [*figures(found), records], tables)


def of_packed(address: Address, encoder: Encoder | None, *, start: int, rows: int, measured: int) -> Page:
    """The page of packed files.

    Args:
      address: the packed folder, or a file in it.
      encoder: the tokenizer. None: the one that the folder names, if it is still there.
      start: the first row that is shown.
      rows: how many rows are shown.
      measured: how many rows the figures are of, at least `rows`.

    Raises:
      GristmillError: it is not complete, or damaged.
      ArgumentError: there is no such row.
    """
    path = Path(address.name)
    is_part = not address.is_remote and path.is_file()
    packed = PackedRows(path.parent if is_part else address.name, dict(address.options))
    index = index_of(packed)
    if start >= len(packed):
        raise ArgumentError(f"--row {start}: the folder has {counted(len(packed), 'row')}, counted from 0")
    fields = fields_of_packed(packed.fields, packed.sequence_length) or []
    numbers = range(start, min(start + max(rows, measured), len(packed)))
    found = [row_of(f"row {number:,}", packed[number], fields) for number in numbers]
    source = index["source"]
    encoder = encoder_of(source) if encoder is None else encoder
    facts = [
        ("folder", address.name),
        ("format", index["format"]),
        ("rows", f"{len(packed):,} of {counted(packed.sequence_length, 'token')}"),
        ("fields", ", ".join(packed.fields)),
        ("tokenizer", _tokenizer(source["tokenizer"], encoder)),
    ]
    return Page(f"Packed rows in {path.name}", facts, found[:rows], encoder, figures(found))


def _tokenizer(path: str, encoder: Encoder | None) -> str:
    """Whose text is shown."""
    if encoder is not None:
        return path or "given"
    return f"{path}, not found: ids are shown" if path else "none: ids are shown"


def of_state(path: Path) -> Page:
    """The page of a saved state by itself.

    Raises:
      GristmillError: it is damaged.
    """
    found = contents.inspect(path)
    if found["kind"] != "state":
        raise GristmillError(
            f"{path} is a {found['kind']}: expected shards, a mixture file, a packed folder, a saved state or a "
            "quarantine file"
        )
    facts = [("step", f"{found['step']:,}"), *((name, value) for name, value in found["stream"].items())]
    totals = Chart("So far", ("figure", "total"), list(found["totals"].items()))
    names = list(next(iter(found["lanes"].values()), {}))
    rows = [["lane", *names]]
    rows += [[lane, *(f"{cursor[name]:,}" for name in names)] for lane, cursor in found["lanes"].items()]
    note = "To see the rows that follow, name the shards and the tokenizer of the run: --shards and --tokenizer."
    return Page(f"State {path.name}", facts, charts=[totals], tables=[Table("Cursors of the lanes", note, rows)])


def of_quarantine(path: Path) -> Page:
    """The page of a quarantine file.

    Raises:
      GristmillError: it is damaged.
    """
    entries = list(itertools.islice(_quarantined(path), _COUNTED + 1))
    is_cut, entries = len(entries) > _COUNTED, entries[:_COUNTED]
    counts = [
        Chart(title, (what, "records"), Counter(str(entry[key]) for entry in entries).most_common(_BARS))
        for title, what, key in (("By reason", "reason", "reason"), ("By shard", "shard", "shard"))
    ]
    held = f"{'the first ' if is_cut else ''}{counted(len(entries), 'entry', 'entries')}"
    return Page(f"Quarantine file {path.name}", [("holds", held)], charts=counts, tables=[listed("Records", entries)])


def is_quarantine(path: Path) -> bool:
    """Whether a file is a list of quarantined records."""
    if not path.is_file():
        return False
    try:
        with open_inflated(path) as file:
            first = json.loads(file.readline(1 << 20))
    except (OSError, EOFError, ValueError):
        return False
    return isinstance(first, dict) and first.keys() >= _QUARANTINE_KEYS


def _rows(
    dataset: PackedDataset,
    iterator: PackedDatasetIterator,
    lanes: Sequence[int],
    state: Mapping[str, Any],
    first: int,
    *,
    drawn: int,
) -> Iterator[Row]:
    """The rows of some lanes from a step on, step by step, of which so many show their images."""
    spec = spec_of(dataset)
    shards, sources = [piece.name for piece in dataset.pieces], list(dataset.sources)
    model = _image_model(spec)
    per_lane = spec.rows_per_step // spec.order.lanes
    rows_of_lanes = [lane * per_lane + row for lane in lanes for row in range(per_lane)]
    step, number = state["step"], state["row"]
    with Progress("replaying all lanes", max(first - step, 1), "steps") as progress:
        for element in iterator:
            is_batch = spec.rows.batch_size is not None
            for row in range(len(rows_of_lanes) if is_batch else 1):
                arrays = {name: array[row] for name, array in element.items()} if is_batch else element
                if step >= first:
                    name = f"step {step:,}, row {rows_of_lanes[number]:,}"
                    options: Any = {"shards": shards, "sources": sources, "image_model": model, "draws": drawn > 0}
                    yield row_of(name, arrays, spec.fields, **options)
                    drawn -= 1
                number += 1
            if number == len(rows_of_lanes):
                step, number = step + 1, 0
                if step < first:
                    progress.show(step - state["step"])


def _image_model(spec: Spec) -> "_core.ImageModel | None":
    """The model of the images, whose patches it tells; pixels of a function are what they are."""
    samples = (source.sample for source in spec.sources)
    models = (sample.image_model for sample in samples if isinstance(sample, ImageTextPlan))
    return next((model for model in models if isinstance(model, _core.ImageModel)), None)


def figures(rows: Sequence[Row]) -> list[Chart]:
    """The charts of all rows together."""
    of_rows = f"of {counted(len(rows), 'row')}"
    segments = [segment.length for row in rows for segment in row.segments]
    filled = Counter(min(row.length * _SHARES // (len(row.tokens) or 1), _SHARES) for row in rows)
    names = {_SHARES: "full", **{tenth: f"{tenth}0 % to {tenth + 1}0 %" for tenth in range(_SHARES)}}
    charts = [
        lengths(segments, f"Lengths of segments, {of_rows}", "tokens"),
        Chart(
            f"How full rows are, {of_rows}", ("tokens", "rows"), [(names[own], filled[own]) for own in sorted(filled)]
        ),
    ]
    if any(row.trained is not None for row in rows):
        trained = sum(sum(row.trained or ()) for row in rows)
        tokens = sum(row.length for row in rows)
        bars = [("trained on", trained), ("other tokens", tokens - trained)]
        charts.append(Chart(f"Tokens {of_rows}", ("tokens", "how many"), bars))
    by_shard: Counter[str] = Counter()
    for row in rows:
        for segment in row.segments:
            if segment.place:
                by_shard[segment.place["shard"]] += segment.length
    if by_shard:
        charts.append(Chart(f"Tokens by shard, {of_rows}", ("shard", "tokens"), by_shard.most_common(_BARS)))
    return charts


def _sources(sources: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [["source", "asked", "given", "rows", "tokens", "trained tokens", "documents", "filtered", "quarantined"]]
    for name, own in sources.items():
        counts = (
            f"{own[key]:,}" for key in ("rows", "tokens", "trained_tokens", "documents", "filtered", "quarantined")
        )
        rows.append([name, f"{own['asked']:.3%}", f"{own['given']:.3%}", *counts])
    return Table("Sources", "Counted since the start of the stream.", rows)


def listed(title: str, entries: Sequence[Mapping[str, Any]]) -> Table:
    """A table of quarantined records."""
    rows = [["shard", "record", "byte", "reason"]]
    for entry in entries[:_LISTED]:
        rows.append([str(entry["shard"]), _count(entry["record"]), _count(entry["byte"]), str(entry["reason"])])
    left = len(entries) - _LISTED
    return Table(title, f"{counted(left, 'more entry', 'more entries')} not listed." if left > 0 else "", rows)


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else ""


def _quarantined(path: Path) -> Iterator[Mapping[str, Any]]:
    with open_inflated(path) as file:
        for number, line in enumerate(file, 1):
            try:
                entry = json.loads(line)
            except ValueError:
                entry = None
            if isinstance(entry, dict) and entry.keys() >= _QUARANTINE_KEYS:
                yield entry
            elif line.endswith(b"\n"):  # a run that was killed may have left the start of a line
                raise GristmillError(f"{path}, line {number}: expected a quarantined record, found {line[:60]!r}")
