"""The documents of a row, whole: their records are read again, and what a run makes of them.

A document may begin in an earlier row. So its record is found in the shard, and a stream that begins there is replayed,
of the same source, but with one document in each row.
"""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import gristmill._core as _core
from gristmill._dataset.iterator import PackedDatasetIterator
from gristmill._dataset.packed import PackedDataset, spec_of
from gristmill._dataset.spec import Spec
from gristmill._inspect.chats import marked
from gristmill._sample.plans import FieldsPlan, FillPlan, ImageTextPlan, TokensPlan
from gristmill._tokenizer.encoder import Encoder, text_of
from gristmill._util.local_files import utf8_path

# A longer document takes several rows here.
_ROW = 2**14
# Formats whose records have no place of their own among the bytes.
_OF_ROWS = ("parquet", "arrow")
_OF_TOKENS = ("tokens", "tokens_loss_mask")

# The index of a piece among those of all sources, the number of a record in it, and that of a sample of the record.
Place = tuple[int, int, int]


def place_of(entry: Sequence[int]) -> Place:
    """The sample of an entry of a row's provenance."""
    shard, record, _, _, *sample = entry
    return shard, record, sample[0] if sample else 0


def find(dataset: PackedDataset, places: Iterable[Place], *, whole: bool) -> dict[Place, dict[str, Any]]:
    """The records of a row.

    Args:
      dataset: the dataset of the row.
      places: where they are.
      whole: whether to read the documents, too.

    Returns:
      For each: `bytes`, the first byte of the record in the inflated shard and that after it, or None in a format of
      rows; if `whole`, also `document`, a dict of `text`, the `record` as JSON, and, of samples with a loss mask,
      `parts`, as `gristmill inspect chats` has them.

    Raises:
      GristmillError: a shard cannot be read.
    """
    spec = spec_of(dataset)
    specs = [(spec.alone(source), own) for source in spec.last_sources for own in range(len(source.pieces))]
    found = {}
    by_record = itertools.groupby(sorted(set(places)), key=lambda place: place[:2])
    for piece, records in itertools.groupby(by_record, key=lambda one: one[0][0]):
        spec, own = specs[piece]
        reader = _reader(spec, own)
        for (_, number), samples in records:
            record = reader.record(number)
            if record is None:
                continue
            start, end, line = record
            described: dict[str, Any] = {"bytes": None if reader.format in _OF_ROWS else [start, end]}
            for place in samples:
                found[place] = described
                if whole:
                    document = _document(spec, own, place[1:], start, line, dataset.encoder)
                    found[place] = {**described, "document": {**document, "record": line.decode(errors="replace")}}
    return found


def _reader(spec: Spec, own: int) -> _core.Records:
    given = spec.last_sources[0]
    piece, size = given.pieces[own], dict(given.shards)[given.pieces[own].path]
    part = None if piece.end - piece.start == size else (piece.start, piece.end)
    storage = given.shards.storage_options
    ids = (given.sample.dtype, given.eos) if isinstance(given.sample, TokensPlan) else None
    return _core.Records(utf8_path(piece.path), size, given.max_document_bytes, storage=storage, piece=part, ids=ids)


def _document(spec: Spec, own: int, place: tuple[int, int], byte: int, line: bytes, encoder: Encoder) -> dict[str, Any]:
    """The text of a record: that of its field, or what its tokens say."""
    plan = spec.sources[0].sample
    if plan is None or isinstance(plan, (FillPlan, FieldsPlan)):
        text = _value(line, spec.sources[0].text_field)
        if text is not None:
            return {"text": text}
    ids, trained = _tokens(spec, own, place, byte)
    text = text_of(encoder, ids.tolist())
    return {"text": text} if trained is None else {"text": text, "parts": marked(encoder, ids, trained)}


def _value(line: bytes, path: str) -> str | None:
    """The string of a record at a path, if it is as simple as that."""
    try:
        record = json.loads(line)
        value = record.get(path)
        for key in path.split(".") if value is None else ():
            record = value = record[key]
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def _tokens(spec: Spec, own: int, place: tuple[int, int], byte: int) -> tuple[Any, Any]:
    """The ids of a sample, and for each whether it is trained on; None if it has no mask."""
    plan = spec.sources[0].sample
    alone = _alone(spec, keeps_rows=isinstance(plan, ImageTextPlan))
    sizes = [piece.end - piece.start for piece in spec.last_sources[0].pieces]
    shard = _core.deal(sizes, 1, None, 0)[0].index(own)
    with PackedDatasetIterator(alone) as iterator:
        state = iterator.get_state()
        numbers = {"shard": shard, "record": place[0], "byte": byte, "sample": place[1]}
        cursor = " ".join(f"{name}={number}" for name, number in numbers.items() if number)
        iterator.set_state({**state, "lanes": {"0": cursor}})
        own_rows = itertools.takewhile(lambda row: place_of(row["provenance"][0].tolist()) == (own, *place), iterator)
        rows = [
            {name: array[row["tokens_segment_ids"] > 0] for name, array in row.items() if name in _OF_TOKENS}
            for row in own_rows
        ]
    ids = np.concatenate([row["tokens"] for row in rows])
    kept = ids != plan.image_token if isinstance(plan, ImageTextPlan) else np.ones(len(ids), np.bool_)
    if plan is None or not plan.has_mask:
        return ids[kept], None
    trained = np.concatenate([row["tokens_loss_mask"] for row in rows]) == 1
    return ids[kept], trained[kept]


def _alone(spec: Spec, *, keeps_rows: bool) -> Spec:
    """A stream of a source with one document in each row. Samples with images are never cut: theirs stay as long."""
    cut: dict[str, Any] = {"truncation": "right"} if keeps_rows else {"truncation": "split", "sequence_length": _ROW}
    if spec.rows.truncation == "turns":
        cut = {}  # A conversation is what the run has of it.
    fixed: dict[str, Any] = {"batch_size": None, "max_segments": None, "boundary_targets": False}
    rows = replace(spec.rows, packing="pad", layout="grain", **fixed, **cut)
    alone = replace(
        spec,
        sources=[
            replace(
                spec.last_sources[0],
                epochs=1,
                first_piece=0,
                keep=None,
                drop=None,
                also_dropped=(),
                added=(),
                adds_at=None,
            )
        ],
        rows=rows,
        stages=(),
        edited=(),
        order=replace(spec.order, lanes=1, seed=None),
        delivers_untrained=True,
    )
    return alone.with_running(
        own_lanes=[0], shard_index=0, shard_count=1, quarantine_file=None, provenance=1, prefetch=1, threads=1
    )
