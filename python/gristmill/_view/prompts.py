"""The page of prompts: their rows as a `PromptDataset` pads them, and what their tokens are of."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gristmill._inspect.prompts import first_step
from gristmill._prompts.batches import PADDING, ids_of, mask_of
from gristmill._prompts.cutting import cut
from gristmill._prompts.dataset import PromptDataset, sequence_of, spec_of
from gristmill._prompts.exact import as_json
from gristmill._prompts.spec import PromptSpec
from gristmill._sample.plans import ChatPlan
from gristmill._state import prompt_states
from gristmill._util.text import counted
from gristmill._view.charts import Chart, lengths
from gristmill._view.conversations import origins_of
from gristmill._view.page import Page, Table
from gristmill._view.pages import figures, listed
from gristmill._view.rows import Row, Segment
from gristmill.errors import ArgumentError

# The fates of a record.
_FATES = ("kept", "overlong", "filtered", "quarantined")


def of_prompts(
    dataset: PromptDataset, state: "prompt_states.PromptState | None", *, title: str, step: int | None, rows: int
) -> Page:
    """The page of some prompts.

    Args:
      dataset: the prompts, with their records.
      state: a state of it. None: its start.
      title: its heading.
      step: the first step that is shown. None: the one after the state.
      rows: how many rows are shown, which also the figures of rows are of.

    Raises:
      StateError: the state is of another dataset.
      ArgumentError: there is no such step.
    """
    spec, sequence = spec_of(dataset), sequence_of(dataset)
    first = first_step(sequence, state, step)
    found = list(itertools.islice(_rows(spec, sequence, first), rows))
    if not found:
        raise ArgumentError(f"there is no step {first}: the stream has ended before it")
    counts = dataset.counts()
    facts = [
        ("prompts", f"{len(dataset):,}"),
        ("rows", f"{counted(spec.rows_per_batch, 'row')} of {counted(spec.prompt_length, 'token')} a step"),
        ("generations", f"{spec.num_generations:,} of each prompt"),
        ("layout", f"{spec.layout.name}, padded on the {' and '.join(dict.fromkeys(spec.layout.padding))}"),
        ("overlong", spec.overlong),
        ("shown", f"{found[0].name} to {found[-1].name}"),
        ("tokenizer", f"{dataset.encoder.vocab_size:,} ids, {dataset.encoder.fingerprint}"),
    ]
    charts = [
        lengths(
            spec.arena.lengths[spec.rows].ravel().tolist(), "Lengths of all prompts, before they are cut", "tokens"
        ),
        Chart("All records", ("fate", "records"), [(name, counts[name]) for name in _FATES]),
        *figures(found),
    ]
    tables = [_sources(sequence.stats(first)["sources"])] if spec.mixing else []
    if dropped := dataset.dropped():
        tables.append(listed("Records that are left out", dropped))
    return Page(title, facts, found, dataset.encoder, charts, tables)


def _rows(spec: PromptSpec, sequence: Any, step: int) -> Iterator[Row]:
    """The rows from a step on; several prompts are as many rows."""
    while (items := sequence.items_of(step)) is not None:
        for number, item in enumerate(np.repeat(items, spec.num_generations).tolist()):
            for prompt, column in enumerate(spec.plans):
                of = f", {column}" if len(spec.plans) > 1 else ""
                yield _row(spec, item, prompt, f"step {step:,}, row {number:,}{of}")
        step += 1


def _row(spec: PromptSpec, item: int, prompt: int, name: str) -> Row:
    length, layout = spec.prompt_length, spec.layout
    pads = layout.name != "ragged" and not layout.is_text
    if item == PADDING:
        return Row(name, [layout.pad] * (length if pads else 0), None, None, [])
    row = int(spec.rows[item])
    ids, kept = ids_of(spec, row, prompt).tolist(), _kept(spec, row, prompt)
    padding = length - len(ids) if pads else 0
    before, after = (padding, 0) if layout.padding[prompt] == "left" else (0, padding)
    arena = spec.arena
    place = {"shard": spec.shard_names[arena.shards[row]], "record": int(arena.numbers[row])}
    place["offset"] = kept[0] if kept else 0
    names = _origins(spec, item, row, prompt)
    origins = [names[index] for index in kept] if names else []
    trained = mask_of(spec, row, prompt).tolist() if layout.masked[prompt] else None
    return Row(
        name,
        [layout.pad] * before + ids + [layout.pad] * after,
        None if trained is None else [False] * before + trained + [False] * after,
        [0] * before + list(range(len(ids))) + [0] * after,
        [Segment(before, len(ids), place)] if ids else [],
        None if spec.mixing is None else spec.source_of(item).name,
        origins=[""] * before + origins + [""] * after if origins else [],
    )


def _kept(spec: PromptSpec, row: int, prompt: int) -> list[int]:
    """The numbers of the tokens that are left of a prompt."""
    every = np.arange(len(spec.arena.prompt_ids(row, prompt)), dtype=np.uint32)
    has_bos, has_eos = spec.arena.ends(row)
    kept: list[int] = cut(every, spec.prompt_length, spec.overlong, has_bos=has_bos, has_eos=has_eos).tolist()
    return kept


def _origins(spec: PromptSpec, item: int, row: int, prompt: int) -> list[str]:
    """For each token of the whole prompt, the message and the part of it that it comes from; empty if not known."""
    plan = list(spec.source_of(item).plans.values())[prompt]
    if not isinstance(plan, ChatPlan) or not spec.keeps_records:
        return []
    found = origins_of(plan, spec.encoder, as_json(spec.arena.record(row)))
    if found is None:
        return []
    ids = spec.arena.prompt_ids(row, prompt).tolist()
    has_bos, has_eos = spec.arena.ends(row)
    begin, end = int(has_bos), len(ids) - int(has_eos)
    return [""] * begin + found[1] + [""] * (len(ids) - end) if ids[begin:end] == found[0] else []


def _sources(sources: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [["source", "asked", "given", "delivered", *_FATES]]
    for name, own in sources.items():
        counts = (f"{own[key]:,}" for key in ("prompts", *_FATES))
        rows.append([name, f"{own['asked']:.3%}", f"{own['given']:.3%}", *counts])
    return Table("Sources", "Prompts that were delivered before the first step that is shown.", rows)
