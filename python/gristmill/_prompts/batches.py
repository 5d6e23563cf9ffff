"""Batches and items of a `PromptSpec`: arrays of the prompts, and the columns of their records."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gristmill._prompts.cutting import cut
from gristmill._prompts.layouts import Batch, as_objects, as_plain_column
from gristmill._prompts.reading import Ids, Mask
from gristmill._prompts.spec import EXTRA, PromptSpec
from gristmill._util.text import shortened
from gristmill.errors import ShardError

# The item of a row of padding.
PADDING = -1
_NO_IDS: Ids = np.empty(0, np.uint32)
_NO_MASK: Mask = np.empty(0, np.bool_)


def make_item(spec: PromptSpec, index: int) -> dict[str, Any]:
    """One item, as a row of a batch has it."""
    batch = make_batch(spec, [index])
    arrays = {key: array for key, array in batch.items() if key in spec.layout.keys}
    others = {key: array[0] for key, array in batch.items() if key not in arrays}
    return {**spec.layout.item(arrays), **others}


def make_batch(spec: PromptSpec, items: Sequence[int]) -> Batch:
    """The arrays of some items; `PADDING` stands for a row of padding."""
    rows = [PADDING if item == PADDING else int(spec.rows[item]) for item in items]
    texts = _each(rows, lambda row: spec.arena.text(row, 0), "") if spec.layout.is_text or spec.full_prompts else None
    prompts = range(spec.arena.prompts)
    ids = [[_NO_IDS if row == PADDING else ids_of(spec, row, prompt) for row in rows] for prompt in prompts]
    masks = [
        [_NO_MASK if row == PADDING else mask_of(spec, row, prompt) for row in rows] if has_mask else None
        for prompt, has_mask in enumerate(spec.layout.masked)
    ]
    batch = spec.layout.batch(ids, masks, texts)
    return batch | _others(spec, items, rows, texts)


def ids_of(spec: PromptSpec, row: int, prompt: int) -> Ids:
    """The ids of a prompt of the arena's row, cut if it is too long."""
    has_bos, has_eos = spec.arena.ends(row)
    ids = spec.arena.prompt_ids(row, prompt)
    return cut(ids, spec.prompt_length, spec.overlong, has_bos=has_bos, has_eos=has_eos)


def mask_of(spec: PromptSpec, row: int, prompt: int) -> Mask:
    """For each of these ids whether it is trained on."""
    has_bos, has_eos = spec.arena.ends(row)
    mask = spec.arena.prompt_mask(row, prompt)
    return cut(mask, spec.prompt_length, spec.overlong, has_bos=has_bos, has_eos=has_eos)


def _others(spec: PromptSpec, items: Sequence[int], rows: Sequence[int], texts: "Sequence[str] | None") -> Batch:
    """The arrays beside the ids: the columns, the prompt itself, and the index."""
    records = _each(rows, lambda row: _record(spec, row), None) if spec.keeps_records or spec.raw_prompt else []
    as_column = as_plain_column if spec.layout.name == "tunix" else as_objects
    found: Batch = {}
    if spec.raw_prompt:
        pairs = zip(items, records, strict=True)
        found["raw_prompt"] = as_objects([record[spec.field_of(item)] if record else None for item, record in pairs])
    if spec.full_prompts and texts is not None:
        found["full_prompts"] = as_objects(texts)
    for name in spec.columns:
        found[name] = as_column([record.get(name) if record else None for record in records])
    if spec.layout.name == "verl" and spec.keeps_records:
        return found | _extra(records)
    return found | {"index": np.array(items, np.int64 if spec.layout.name == "verl" else np.int32)}


def _record(spec: PromptSpec, row: int) -> dict[str, Any]:
    """A record as Python has it.

    Raises:
      ShardError: Python's parser refuses it, as it does integers of thousands of digits; or its `extra_info` is not
        what veRL takes it for.
    """
    try:
        record = spec.arena.record(row)
    except (ValueError, RecursionError) as error:
        reason = f"its columns cannot become Python objects: {error}; set columns=False, or fix the record"
        raise _located(spec, row, reason) from None
    if spec.layout.name == "verl" and spec.keeps_records:
        try:
            check_extra(record.get("extra_info"))
        except ValueError as error:
            raise _located(spec, row, f"{error}; fix the record, or set columns=False") from None
    return record


def _located(spec: PromptSpec, row: int, reason: str) -> ShardError:
    return ShardError(spec.shard_names[spec.arena.shards[row]], int(spec.arena.numbers[row]), None, reason)


def check_extra(info: Any) -> None:
    """Checks an `extra_info`, of which veRL takes items.

    Raises:
      ValueError: it is neither an object nor empty.
    """
    if info and not isinstance(info, dict):
        raise ValueError(f"expected an object under the key 'extra_info', found {shortened(info)}")


def _extra(records: Sequence[Any]) -> Batch:
    """`extra_info` of each record, and what veRL takes of it."""
    infos = [None if record is None else record.get("extra_info") or {} for record in records]
    found = {"extra_info": as_objects(infos)}
    for name, default in EXTRA.items():
        values = [None if info is None else info.get(name, _fresh(default)) for info in infos]
        found[name] = as_objects(values)
    index = found["index"]
    index[[info is None for info in infos]] = PADDING
    return found


def _fresh(default: Any) -> Any:
    return dict(default) if isinstance(default, dict) else default


def _each(rows: Sequence[int], value: Callable[[int], Any], padding: Any) -> list[Any]:
    return [padding if row == PADDING else value(row) for row in rows]
