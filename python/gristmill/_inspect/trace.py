"""`gristmill trace`: the steps and rows in which a record was trained on, and the digests of steps.

A state says how far each lane is, and the sizes of the shards which lane has a shard in an epoch. So only lanes that
have passed the record are replayed, from the latest of the given states before it, and up to the last one.
"""

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import gristmill._core as _core
from gristmill._dataset.digest import batch_digest
from gristmill._dataset.intervals import dealt
from gristmill._dataset.iterator import PackedDatasetIterator
from gristmill._dataset.packed import PackedDataset, spec_of, with_spec
from gristmill._dataset.spec import Spec
from gristmill._filter.compiler import compile_filter
from gristmill._inspect import documents
from gristmill._inspect.locate import Run
from gristmill._sample.plans import TokensPlan
from gristmill._shards.pieces import Piece
from gristmill._shards.selection import Numbering
from gristmill._state import commits, states
from gristmill._util.local_files import utf8_path
from gristmill._util.progress import Progress
from gristmill._util.text import counted, format_columns
from gristmill.errors import ArgumentError, ShardError, StateError


class Record(NamedTuple):
    """A record: the index of its piece among those of all sources, and its number there."""

    piece: int
    number: int


class _Start(NamedTuple):
    """A state of a lane: the steps before it, and its cursor."""

    step: int
    lane: str


def named_record(dataset: PackedDataset, name: str) -> Record:
    """The record that `SHARD:RECORD` names: a shard by the end of its path, and the number of a record in it.

    Raises:
      ArgumentError: it names none, or several.
    """
    path, _, number = name.rpartition(":")
    if not path or not number.isdecimal():
        raise ArgumentError(f"{name!r}: expected a shard and the number of a record, such as 0000/en_head.json.gz:17")
    pieces = dataset.pieces
    found = [index for index, piece in enumerate(pieces) if _ends(piece, path)]
    if len(found) != 1:
        which = f"several, such as {pieces[found[1]].name!r}" if found else "none of the shards"
        raise ArgumentError(f"{name!r}: expected the end of one shard's path, found that of {which}")
    return Record(found[0], int(number))


def check_exists(dataset: PackedDataset, record: Record, name: str) -> None:
    """Checks that a record which no row has is one of its shard, as far as that can be read.

    Raises:
      ArgumentError: the shard has fewer records.
    """
    with contextlib.suppress(ShardError):
        if not documents.find(dataset, [(*record, 0)], whole=False):
            raise ArgumentError(f"{name!r}: the shard has no such record; they count from 0")


def find_records(dataset: PackedDataset, where: str) -> list[Record]:
    """The records whose key has a value, `KEY=VALUE`: as a string, or a number.

    Raises:
      ArgumentError: it is written in another way, or no record has it.
      GristmillError: a shard cannot be read.
    """
    key, equals, value = where.partition("=")
    if not equals or not key:
        raise ArgumentError(f"--where {where}: expected KEY=VALUE, such as id=17")
    conditions = [f"{key} == {json.dumps(value, ensure_ascii=False)}"]
    with contextlib.suppress(ValueError):
        conditions.append(f"{key} == {float(value) if '.' in value else int(value)}")
    keep = compile_filter("where", " or ".join(conditions))
    found, first = [], 0
    for source in spec_of(dataset).last_sources:
        numbering = Numbering(keep.paths, None, source.shards)
        program = numbering.program(keep.paths, keep.program)
        sizes = dict(source.shards)
        ids = (source.sample.dtype, source.eos) if isinstance(source.sample, TokensPlan) else None
        pieces = source.pieces
        with Progress("looking for records", len(pieces), "shards") as progress:
            for index, piece in enumerate(pieces):
                size = sizes[piece.path]
                part = None if piece.end - piece.start == size else (piece.start, piece.end)
                storage = source.shards.storage_options
                records = _core.Records(
                    utf8_path(piece.path),
                    size,
                    source.max_document_bytes,
                    numbering.own,
                    [program],
                    [],
                    storage,
                    part,
                    ids,
                )
                found += [Record(first + index, number) for number in _matching(records)]
                progress.show(index)
        first += len(pieces)
    if not found:
        raise ArgumentError(f"--where {where}: expected a record whose {key!r} has this value, found none")
    return found


def _matching(records: _core.Records) -> Iterator[int]:
    while True:
        try:
            values = records.next_values()
        except ShardError:
            continue
        if values is None:
            return
        if values[0] and values[0][0][1]:
            yield records.position()[0] - 1


def trace(run: Run, records: Sequence[Record], earlier: "Sequence[states.State]" = ()) -> list[dict[str, Any]]:
    """The rows in which records were trained on, up to the state of a run.

    Args:
      run: the run, whose dataset lists all segments of rows.
      records: the records.
      earlier: states of the same run that were saved before.

    Returns:
      For each row a dict of `epoch`, `step` and `row` of the global batch, from 0; `shard` and `record`; and `offset`
      and `tokens`, the first token of the record in the row, and how many are there. In the order of steps and rows.

    Raises:
      GristmillError: a state is of another run, lacks lanes, or a shard cannot be read.
    """
    spec = replace(spec_of(run.dataset), names_epochs=True)
    found: dict[tuple[int, ...], dict[str, Any]] = {}
    wanted = set(records)
    lanes = {lane for record in records for lane in _lanes_with(spec, run.state, record)}
    for lane in sorted(lanes):
        start = _start(spec, run.state, records, lane, earlier)
        for step, row, entry in _entries(run.dataset, spec, run.state, start, lane):
            piece, number, offset, length, _, epoch = entry
            if length and Record(piece, number) in wanted:
                key = (step, row, piece, number, epoch)
                known = found.get(key)
                found[key] = {
                    "epoch": epoch,
                    "step": step,
                    "row": row,
                    "shard": run.dataset.pieces[piece].name,
                    "record": number,
                    "offset": offset if known is None else min(offset, known["offset"]),
                    "tokens": length + (0 if known is None else known["tokens"]),
                }
    return [found[key] for key in sorted(found)]


def digests(run: Run, first: "states.State | None" = None) -> list[dict[str, Any]]:
    """The digest of each step's global batch, as `gm.batch_digest` has it, up to the state of a run.

    Args:
      run: the run.
      first: a state to begin at. None: the start.

    Raises:
      GristmillError: the state lacks lanes, or a shard cannot be read.
    """
    spec = spec_of(run.dataset).with_running(provenance=0, source_arrays=False, own_lanes=range(run.dataset.lanes))
    spec = replace(spec, stages=[(step, rows, 0) for step, rows, _ in spec.stages])
    last, more = _trained(run.state)
    found = []
    with PackedDatasetIterator(spec) as iterator:
        if first is not None:
            iterator.set_state(states.without_commits(first))
        begin = 0 if first is None else first["step"]
        with Progress("digests", last - begin, "steps") as progress:
            for batch in iterator:
                step = _step(iterator)
                if step >= last and step not in more:
                    if step >= max(more, default=0):
                        break
                    continue
                found.append({"step": step, "digest": batch_digest(batch)})
                progress.show(step - begin)
                if step + 1 >= last and step >= max(more, default=0):
                    break
    return found


def describe(found: Sequence[Mapping[str, Any]], what: str) -> str:
    """The result of `trace` for people."""
    if not found:
        return f"{what} was not trained on up to the state."
    rows = [["epoch", "step", "row", "shard", "record", "tokens"]]
    for one in found:
        tokens = f"{one['offset']:,}-{one['offset'] + one['tokens'] - 1:,}"
        rows.append(
            [str(one["epoch"]), f"{one['step']:,}", str(one["row"]), one["shard"], f"{one['record']:,}", tokens]
        )
    steps = {one["step"] for one in found}
    summary = f"{what} was trained on in {counted(len(found), 'row')} of {counted(len(steps), 'step')}."
    return f"{summary}\n\n{format_columns(rows, right=(0, 1, 2, 4, 5))}"


def describe_digests(found: Iterable[Mapping[str, Any]]) -> str:
    """Digests for people, a step a line."""
    return "\n".join(f"{one['step']} {one['digest']}" for one in found)


def _ends(piece: Piece, path: str) -> bool:
    return any(name == path or name.endswith(f"/{path}") for name in {piece.name, piece.path})


def _trained(state: states.State) -> tuple[int, set[int]]:
    """The steps before which all were trained on, and those from there on that were committed."""
    committed = commits.Committed.read(state[commits.KEY]) if commits.KEY in state else commits.Committed()
    return state["step"], committed.steps | {*committed.rows}


def _source_of(spec: Spec, record: Record) -> tuple[int, int]:
    """The index of a record's source, and that of its piece in it."""
    piece = record.piece
    for index, source in enumerate(spec.last_sources):
        if piece < len(source.pieces):
            return index, piece
        piece -= len(source.pieces)
    raise AssertionError(record)


def _lanes_with(spec: Spec, state: states.State, record: Record) -> list[int]:
    """The lanes that may have passed a record before a state."""
    index, piece = _source_of(spec, record)
    source, order = spec.last_sources[index], spec.order
    epochs, ahead = {}, _trained(state)[1]
    for lane, cursor in state["lanes"].items():
        numbers = states.lane_numbers(cursor)
        epochs[int(lane)] = (numbers.get(source.name) or states.cursor_numbers("")), numbers
    last = max(own["epoch"] for own, _ in epochs.values())
    found: set[int] = set()
    shared = None
    for epoch in range(last + 2 if ahead else last + 1):
        if shared is None or order.seed is not None:  # without a seed all epochs are alike
            shared = dealt(source, order.lanes, order.seed, epoch)
        (lane,) = [lane for lane, pieces in enumerate(shared) if piece in pieces]
        if lane not in epochs:
            if epoch <= last:
                raise StateError(
                    f"lane {lane} has the shard in epoch {epoch}, and the state holds the lanes "
                    f"{', '.join(state['lanes'])}: use the folder with the states of all hosts"
                )
            continue
        own = epochs[lane][0]
        place = (epoch, shared[lane].index(piece), record.number)
        now = (own["epoch"], own["shard"], own["record"])
        is_inside = own["delivered"] or own["offset"] or own["window_hash"] or _has_windows(spec, state) or ahead
        if place < now or (is_inside and epoch <= own["epoch"] + bool(ahead)):
            found.add(lane)
    return sorted(found)


def _has_windows(spec: Spec, state: states.State) -> bool:
    """Whether lanes deliver documents in another order than they read them."""
    return spec.order.seed is not None or spec.rows.packing == "best_fit" or "carried=" in json.dumps(state["lanes"])


def _start(
    spec: Spec, state: states.State, records: Sequence[Record], lane: int, earlier: "Sequence[states.State]"
) -> "_Start":
    """The latest state of a lane before any of the records, in the first epoch in which it has one of them."""
    best = _Start(0, _core.lane_start(str(lane), state["lanes"][str(lane)]))
    firsts: dict[str, tuple[int, int, int]] = {}
    for record in records:
        index, piece = _source_of(spec, record)
        source = spec.last_sources[index]
        for epoch in itertools.count():
            share = dealt(source, spec.order.lanes, spec.order.seed, epoch)[lane]
            if piece in share:
                place = (epoch, share.index(piece), record.number)
                firsts[source.name] = min(firsts.get(source.name, place), place)
                break
            if spec.order.seed is None or epoch > 10_000:
                break
    for one in earlier:
        text = one["lanes"].get(str(lane))
        if text is None or one["step"] > state["step"] or one["step"] <= best.step or one["row"]:
            continue
        numbers = states.lane_numbers(text)
        cursors = {name: numbers.get(name, states.cursor_numbers("")) for name in firsts}
        windows = _has_windows(spec, one)
        if all(
            cursors[name]["epoch"] < place[0]
            or (not windows and (cursors[name]["epoch"], cursors[name]["shard"], cursors[name]["record"]) < place)
            for name, place in firsts.items()
        ):
            best = _Start(one["step"], text)
    return best


def _entries(
    dataset: PackedDataset, spec: Spec, state: states.State, start: _Start, lane: int
) -> "Iterator[tuple[int, int, list[int]]]":
    """The step and row of each entry of provenance of a lane, up to a state."""
    last, more = _trained(state)
    own = sorted(map(int, state["lanes"]))
    if own.index(lane) < state["row"]:
        last += 1
    with PackedDatasetIterator(spec_of(with_spec(dataset, spec.with_running(own_lanes=[lane])))) as iterator:
        iterator.set_state(
            {**states.without_commits(state), "step": start.step, "row": 0, "lanes": {str(lane): start.lane}}
        )
        end = max(last, *(step + 1 for step in more), 0)
        with Progress(f"replaying lane {lane}", end - start.step, "steps") as progress:
            while start.step < end:
                element = next(iterator, None)
                if element is None:
                    return
                step = _step(iterator)
                if step >= end:
                    return
                progress.show(step - start.step)
                if step >= last and step not in more:
                    continue
                rows = element["provenance"].tolist()
                rows = [rows] if spec.rows.batch_size is None else rows
                first = lane * spec.at_step(step).rows_per_lane
                for row, entries in enumerate(rows, first):
                    for entry in entries:
                        yield step, row, entry
                if step + 1 >= end:
                    return


def _step(iterator: PackedDatasetIterator) -> int:
    assert iterator.step is not None
    return iterator.step


def check_same_run(state: states.State, other: states.State, path: str) -> None:
    """Checks that a second state is of the run of the first.

    Raises:
      StateError: it is not.
    """
    different = states.incompatibilities(other, state["fingerprint"])
    if other["ids"] != state["ids"]:
        different = "its ids are those of another release of tokenizers"
    if different:
        raise StateError(f"{path} was saved by another run: {different}")
