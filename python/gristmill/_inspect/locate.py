"""`gristmill inspect row`: the sources of the text of one row of a run.

A row is found by replaying its lane alone from a saved state, or from the start, with `provenance`. A state records
all arguments of its dataset except the shards and the tokenizer, of which it holds the fingerprints.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gristmill._core as _core
from gristmill._dataset.iterator import Element, PackedDatasetIterator
from gristmill._dataset.packed import PackedDataset, spec_of, with_spec
from gristmill._dataset.spec import Spec
from gristmill._inspect import documents, prepared_folder
from gristmill._inspect.chats import text_with_marks
from gristmill._mixture.fingerprint import is_mixture
from gristmill._sample.plans import ImageTextPlan
from gristmill._sample.samples import Sample
from gristmill._shards.address import Address
from gristmill._shards.energon_folder import EnergonFolder
from gristmill._spec import fingerprints
from gristmill._spec.arguments import ARGUMENTS
from gristmill._spec.fields import OF_SAMPLES, VALUES, mark_field, token_field
from gristmill._state import states
from gristmill._tokenizer.encoder import Encoder, text_of
from gristmill._util.named_values import decode
from gristmill._util.progress import Progress
from gristmill._util.text import counted, format_columns, format_fields, format_numbers
from gristmill.errors import ArgumentError, StateError

_EXCERPT = 60


class Run(NamedTuple):
    """A dataset whose rows list all their segments, however many, and a state of it to replay from."""

    dataset: PackedDataset
    state: states.State


def run_from_start(shards: Address, arguments: Mapping[str, Any], encoder: Encoder | None) -> Run:
    """A run of shards, from its start.

    Args:
      shards: path or glob, or a folder that Energon has prepared, of which it is the split `train`.
      arguments: further ones of `PackedDataset`.
      encoder: the tokenizer; None of ready ids.

    Raises:
      GristmillError: the arguments do not match.
    """
    folder = None
    if prepared_folder.is_one(shards):
        folder = EnergonFolder(shards.name, storage_options=dict(shards.options))
    return run_of(_make_dataset(folder or shards, encoder, arguments))


def run_from_state(
    path: Path,
    state: states.State,
    shards: Address,
    drop: str | None,
    encoder: Encoder | None,
    *,
    sample: Sample | None = None,
    edits: Any = None,
) -> Run:
    """A run of shards, from a saved state.

    Args:
      path: path of the state, for messages.
      state: the state.
      shards: those of the run, paths or globs.
      drop: the row list of the run, as text.
      encoder: the tokenizer of the run; None: it had none.
      sample: that of the run, if it is no text.
      edits: those of the run.

    Raises:
      GristmillError: the arguments do not match.
    """
    if is_mixture(state["fingerprint"]):
        raise StateError(
            f"{path} was saved by a mixture: name its file, such as --shards mixture.toml; without one, make its "
            "dataset with provenance=True, restore it, and look at its rows"
        )
    saved = decode(state["fingerprint"]).get("tokenizer")
    if encoder is not None and not states.has_tokenizer(state):
        raise StateError(f"{path} was saved by a run of ready ids, which had no tokenizer: leave --tokenizer out")
    if encoder is not None and saved != encoder.fingerprint:
        raise StateError(
            f"{path} was saved with another tokenizer, or with another special_tokens_in_text=, which is part of its "
            f"fingerprint: expected {saved}, found {encoder.fingerprint}; name the tokenizer of the run, and pass "
            "the --special-tokens-in-text of its Encoder"
        )
    described = decode(state["fingerprint"]).get("sample")
    if described and sample is None:
        raise StateError(
            f"{path} was saved by a dataset of {described}, which it does not hold in full: name it with --sample"
        )
    arguments = fingerprints.arguments_of(state["fingerprint"])
    if arguments["drop"] is not None and drop is None:
        raise ArgumentError(f"{path} was saved by a run that leaves out the rows of a list: name it with --drop")
    if arguments["edits"] is not None and edits is None:
        raise ArgumentError(
            f"{path} was saved by a run with edits, of which it holds hashes: name them as a list in JSON, "
            """--set 'edits=[{"step": 12000, "drop": "bad.txt:key=id"}]'"""
        )
    try:
        own = {**arguments, "drop": drop, "sample": sample, "edits": edits}
        dataset = _make_dataset(shards, encoder, own)
    except ArgumentError as error:
        lanes, allowed = arguments["lanes"], _most_lanes(shards, encoder, own)
        if lanes and allowed and allowed < lanes:
            raise StateError(
                f"{path} was saved by a run of {counted(lanes, 'lane')}, and these shards allow {allowed:,}: name the "
                "shards of the run with --shards"
            ) from error
        raise StateError(f"{path} was saved with other shards or by another release: {error}") from error
    return run_of(dataset, state)


def _most_lanes(shards: Address, encoder: Encoder | None, arguments: dict[str, Any]) -> int | None:
    """The most lanes that shards allow; None if another argument does not fit them."""
    try:
        return len(_make_dataset(shards, encoder, {**arguments, "lanes": None}).pieces)
    except ArgumentError:
        return None


def run_of(dataset: PackedDataset, state: states.State | None = None) -> Run:
    """A run of a dataset, from a state of it; None: from its start."""
    whole = _with_provenance(dataset)
    spec = spec_of(whole)
    if spec.order.skip:  # steps to come are looked at, too
        steps = state["step"] + (state["row"] > 0) if state else 0
        skip = spec.order.skip.within(0, steps) or None
        whole = with_spec(whole, replace(spec, order=replace(spec.order, skip=skip)))
    return Run(whole, iter(whole).get_state() if state is None else state)


def locate(run: Run, *, row: int, step: int | None, full: bool = False) -> dict[str, Any]:
    """Finds the sources of a row of a run.

    Args:
      run: the run.
      row: of the global batch, from 0.
      step: of the batch, from 0. None: the first one after the run's state.
      full: whether to read the documents whole.

    Raises:
      GristmillError: the state is of another dataset, or there is no such row; the message says how many there are.
    """
    step, lane, element = _replay(run.dataset, run.state, step, row)
    return {"kind": "row", "step": step, "row": row, "lane": lane, **_describe_row(run.dataset, step, element, full)}


def first_step(state: states.State, step: int | None) -> int:
    """The step that is asked for, by default the first after a state.

    Raises:
      ArgumentError: the state is behind it.
    """
    if step is not None and step < state["step"]:
        raise ArgumentError(f"--step {step}: the state is already at step {state['step']}; use a state saved earlier")
    return state["step"] if step is None else step


def describe(found: dict[str, Any]) -> str:
    """The result of `locate` for people."""
    source = [("source", found["source"])] if "source" in found else []
    summary = format_fields(
        [
            ("row", f"{found['row']} of the batch of step {found['step']:,}, filled by lane {found['lane']}"),
            *source,
            ("holds", f"{counted(found['tokens'], 'token')}, {found['padding']:,} of padding"),
        ]
    )
    if not found["segments"]:
        return f"{summary}\n\nThe row is all padding: its lane has ended."
    images = ["images"] if "images" in found["segments"][0] else []
    samples = ["sample"] if "sample" in found["segments"][0] else []
    fields = ["fields"] if any("fields" in part for part in found["segments"]) else []
    rows = [["in row", "shard", "record", *samples, "bytes", "tokens", *images, *fields, "text"]]
    for part in found["segments"]:
        start, offset, length = part["start"], part["offset"], part["length"]
        rows.append(
            [
                f"{start}-{start + length - 1}",
                part["shard"],
                f"{part['record']:,}",
                *(f"{part[name]:,}" for name in samples),
                "{:,}-{:,}".format(*part["bytes"]) if part["bytes"] else "",
                f"{offset:,}-{offset + length - 1:,}",
                *(f"{part[name]:,}" for name in images),
                *(json.dumps(part.get(name, {}))[:_EXCERPT] for name in fields),
                json.dumps(part["text"][:_EXCERPT], ensure_ascii=False),
            ]
        )
    right = (0, *range(2, len(rows[0]) - 1))
    parts = {
        (part["shard"], part["record"], part.get("sample")): part for part in found["segments"] if "document" in part
    }
    return "\n\n".join([summary, format_columns(rows, right=right), *map(_describe_document, parts.values())])


def _describe_document(part: Mapping[str, Any]) -> str:
    document = part["document"]
    text = text_with_marks(document["parts"]) if "parts" in document else document["text"]
    sample = f", sample {part['sample']:,}" if "sample" in part else ""
    return f"{part['shard']}: record {part['record']:,}{sample}, whole\n\n{text}"


def _make_dataset(
    shards: Address | EnergonFolder, encoder: Encoder | None, arguments: Mapping[str, Any]
) -> PackedDataset:
    if unknown := [name for name in arguments if name not in ARGUMENTS]:
        raise ArgumentError(
            f"expected arguments of PackedDataset, got {unknown[0]!r}, which this release does not know"
        )
    named = shards.arguments if isinstance(shards, Address) else {"shards": shards}
    return PackedDataset(**{**arguments, **named}, tokenizer=encoder, prefetch=1)


def _with_provenance(dataset: PackedDataset) -> PackedDataset:
    """The dataset with rows that list all their segments, however many, and of a mixture their source."""
    spec = spec_of(dataset)
    has_sources = spec.mixing is not None
    stages = [(step, rows, rows.sequence_length) for step, rows, _ in spec.stages]
    running = replace(spec, stages=stages).with_running(
        provenance=spec.rows.sequence_length,
        source_arrays=has_sources,
        attention_mask=True,
        prefetch=1,
        equal_steps=False,
    )
    return with_spec(dataset, running)


def _replay(
    dataset: PackedDataset, state: states.State, step: int | None, row: int
) -> "tuple[int, int, Element | None]":
    """The row's step, by default the first after the state, its lane, and its arrays; None if the lane has ended."""
    spec = spec_of(dataset)
    rows = spec.at_step(state["step"] if step is None else step).rows_per_step
    if not 0 <= row < rows:
        raise ArgumentError(f"--row {row}: a global batch has the rows 0 to {rows - 1}")
    rows_per_lane = rows // dataset.lanes
    lane, own_row = divmod(row, rows_per_lane)
    if str(lane) not in state["lanes"]:
        raise StateError(
            f"lane {lane} fills this row, but the state holds the lanes {', '.join(state['lanes'])}: use the state of "
            "another host, or the folder with all states"
        )
    start = {**states.lane_state(state, str(lane)), "row": 0}
    step = first_step(start, step)
    with PackedDatasetIterator(spec.with_running(own_lanes=[lane])) as iterator:
        iterator.set_state(start)
        element = _element(iterator, step - start["step"], f"lane {lane}")
    if element is None:
        _check_step(spec, state, step)
    elif spec.rows.batch_size is not None:
        element = {name: array[own_row] for name, array in element.items()}
    return step, lane, element


def _check_step(spec: Spec, state: states.State, step: int) -> None:
    """Checks that a step exists: that any lane of the state has a row in it.

    Raises:
      ArgumentError: no lane has.
    """
    lanes = sorted(map(int, state["lanes"]))
    elements_per_step = len(lanes) if spec.rows.batch_size is None else 1
    with PackedDatasetIterator(spec.with_running(own_lanes=lanes)) as iterator:
        iterator.set_state(state)
        ahead = max(0, (step - state["step"]) * elements_per_step - state["row"])
        if _element(iterator, ahead, "all lanes") is not None:
            return
        steps = iterator.get_state()["step"]
    is_whole = len(lanes) == spec.order.lanes
    subject = "the stream has" if is_whole else f"the lanes that the state holds, {format_numbers(lanes)}, have"
    raise ArgumentError(
        f"there is no step {step}: {subject} {counted(steps, 'step')}, counted from 0, of "
        f"{counted(spec.rows_per_step, 'row')}"
        + ("" if is_whole else "; lanes of other hosts may have more: use the folder with all states")
    )


def _element(iterator: PackedDatasetIterator, ahead: int, lanes: str) -> "Element | None":
    """The element after `ahead` others; None after the end."""
    with Progress(f"replaying {lanes}", ahead, "steps") as progress:
        for done in range(ahead):
            if next(iterator, None) is None:
                return None
            progress.show(done)
        return next(iterator, None)


def _segment_numbers(entries: Sequence[Sequence[int]]) -> list[int]:
    """For each entry of a row's provenance that has tokens, the index of its segment, which a cut may divide."""
    parts = [(documents.place_of(entry), entry[2]) for entry in entries if entry[3]]
    numbers: list[int] = []
    before: tuple[documents.Place, int] | None = None
    for place, offset in parts:
        goes_on = before is not None and before[0] == place and before[1] < offset
        numbers.append(numbers[-1] if goes_on else len({*numbers}))
        before = place, offset
    return numbers


def _values(
    fields: "Sequence[_core.Field]", element: "Element", tokens: range, segment: int, *, whole: bool
) -> dict[str, Any]:
    """The values of fields of some tokens of a row, if it is `whole`, and of their sample."""
    found = {}
    for field in fields:
        array = element[field.name] if field.content in VALUES else None
        if array is not None and field.content == OF_SAMPLES:
            found[field.name] = array[segment].tolist()
        elif array is not None and whole:
            found[field.name] = array[tokens.start : tokens.stop].tolist()
    return {"fields": found} if found else {}


def _describe_row(dataset: PackedDataset, step: int, element: "Element | None", full: bool) -> dict[str, Any]:
    spec = spec_of(dataset)
    if element is None:
        return {"tokens": 0, "padding": spec.at_step(step).rows.sequence_length, "segments": []}
    source = {}
    if "source" in element and (number := int(element["source"])) >= 0:
        source = {"source": list(dataset.sources)[number]}
    tokens = element[token_field(spec.fields)]
    pieces = dataset.pieces
    plans = (source.sample for source in spec.sources)
    image_tokens = {plan.image_token for plan in plans if isinstance(plan, ImageTextPlan)}
    # For images in tiles the mask has all of them, the first of which is always there.
    masks = element["image_masks"].reshape(len(element["image_position"]), -1) if image_tokens else None
    places = () if masks is None else element["image_position"][masks[:, 0] > 0]
    segments, marks = [], element[mark_field(spec.fields)]
    places_of_tokens = np.flatnonzero(marks) if marks.shape == tokens.shape else np.arange(len(tokens))
    passed = 0
    entries = element["provenance"].tolist()
    records = documents.find(dataset, [documents.place_of(entry) for entry in entries if entry[3]], whole=full)
    numbers = _segment_numbers(entries)
    for entry, number in zip(entries, numbers, strict=False):
        shard, record, offset, length, *sample = entry
        start = int(places_of_tokens[passed])
        segments.append(
            {
                "start": start,
                "length": length,
                "shard": pieces[shard].name,
                "record": record,
                **({"sample": sample[0]} if sample else {}),
                **records.get(documents.place_of(entry), {"bytes": None}),
                "offset": offset,
                "text": text_of(
                    dataset.encoder,
                    [token for token in tokens[start : start + length].tolist() if token not in image_tokens],
                ),
                **_values(spec.fields, element, range(start, start + length), number, whole=full),
                **({"images": int(sum(start <= place < start + length for place in places))} if image_tokens else {}),
            }
        )
        passed += length
    return {**source, "tokens": passed, "padding": len(tokens) - passed, "segments": segments}
