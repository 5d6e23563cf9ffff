"""The message, and the part of it, that each token of a conversation comes from."""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gristmill._core as _core
from gristmill._dataset.packed import PackedDataset, spec_of
from gristmill._sample.plans import ChatPlan
from gristmill._tokenizer.encoder import Encoder, core_of
from gristmill._util.local_files import open_inflated
from gristmill._view.rows import Row
from gristmill.errors import GristmillError

# A record further on is not looked for: the lines before it are read.
_LAST_RECORD = 100_000


# The ids of a conversation, and for each what it is of, such as `user, message 0: content`.
Origins = tuple[list[int], list[str]]


def with_origins(dataset: PackedDataset, rows: Sequence[Row]) -> list[Row]:
    """The rows with the origins of their tokens, where they are conversations of shards of JSON lines."""
    sources: dict[str | None, PackedDataset] = {None: dataset, **dict(dataset.sources.items())}
    records: dict[tuple[str | None, str], set[int]] = {}
    for row in rows:
        for segment in row.segments:
            if segment.place:
                records.setdefault((row.source, segment.place["shard"]), set()).add(segment.place["record"])
    found: dict[tuple[str | None, str, int], Origins] = {}
    for (name, shard), wanted in records.items():
        plan = spec_of(sources[name]).sources[0].sample if name in sources else None
        if isinstance(plan, ChatPlan):
            own = _of_shard(plan, dataset.encoder, Path(shard), wanted)
            found |= {(name, shard, record): origins for record, origins in own.items()}
    return [replace(row, origins=_of_row(row, found)) for row in rows]


def _of_row(row: Row, found: Mapping[tuple[str | None, str, int], Origins]) -> list[str]:
    names = [""] * len(row.tokens)
    for segment in row.segments:
        place, end = segment.place, segment.start + segment.length
        if place and (own := found.get((row.source, place["shard"], place["record"]))):
            part = slice(place["offset"], place["offset"] + segment.length)
            # The text of a sample may be made in another way than here: then the ids are others, too.
            if own[0][part] == row.tokens[segment.start : end]:
                names[segment.start : end] = own[1][part]
    return names if any(names) else []


def _of_shard(plan: ChatPlan, encoder: Encoder, shard: Path, records: set[int]) -> dict[int, Origins]:
    wanted = {record for record in records if record <= _LAST_RECORD}
    found = {}
    try:
        for record, value in _records(shard, wanted):
            if (own := origins_of(plan, encoder, value)) is not None:
                found[record] = own
    except (OSError, EOFError, ValueError):
        pass  # the shard has another format, or is in a store
    return found


def _records(shard: Path, wanted: set[int]) -> Iterable[tuple[int, Mapping[str, Any]]]:
    with open_inflated(shard) as file:
        for record, line in enumerate(itertools.islice(file, max(wanted, default=-1) + 1)):
            if record in wanted and isinstance(value := json.loads(line), dict):
                yield record, value


def origins_of(plan: ChatPlan, encoder: Encoder, value: Mapping[str, Any]) -> Origins | None:
    """The ids of a record's conversation, and what each is of; None if that is not known."""
    messages, tools = _get(value, plan.field), _get(value, plan.tools_field)
    if plan.fixed_tools is not None:
        tools = json.loads(plan.fixed_tools)
    kwargs = {} if plan.template_kwargs is None else json.loads(plan.template_kwargs)
    kwargs |= _get(value, plan.kwargs_field) or {}
    if plan.date is not None:
        kwargs["date"] = plan.date
    options = {"add_generation_prompt": plan.add_generation_prompt, **kwargs}
    try:
        text = plan.chat_template.render(messages, tools, **options)
        spans = plan.chat_template.spans(messages, tools, train_on=None, **options)
    except (GristmillError, TypeError, AttributeError):
        return None  # messages of another format
    ranges: dict[str, list[tuple[int, int]]] = {}
    for start, end, message, part, _ in spans:
        if part == "unknown":
            return None
        name = part if message is None else f"{messages[message].get('role', '')}, message {message}: {part}"
        ranges.setdefault(name, []).append((start, end))
    names: list[str] = []
    ids: list[int] = []
    for name, own in ranges.items():
        array, mask = _core.ChatTemplate.encode_text(core_of(encoder), text, own)
        ids = ids or array.tolist()
        names = names or [""] * len(ids)
        for index in mask.nonzero()[0].tolist():
            names[index] = name
    return ids, names


def _get(value: Any, path: str | None) -> Any:
    for key in () if path is None else path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return None if path is None else value
