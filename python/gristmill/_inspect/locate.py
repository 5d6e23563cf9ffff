"""`gristmill inspect --row`: where the text of one row of a run comes from.

A row is found by playing its lane alone from a saved state, or from the start, with `provenance`. A state knows
all arguments of its dataset but the shards and the tokenizer, of which it holds the fingerprints.
"""

import ast
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from gristmill._cli import options
from gristmill._cli.options import reworded
from gristmill._dataset.iterator import Element, PackedDatasetIterator
from gristmill._dataset.packed import PackedDataset
from gristmill._inspect import contents
from gristmill._spec import fingerprints
from gristmill._spec.settings import PROVENANCE
from gristmill._state import states
from gristmill._tokenizer.encoder import Encoder, SpecialTokensInText
from gristmill._util.progress import Progress
from gristmill._util.text import counted, format_columns, format_fields, format_numbers
from gristmill.errors import ArgumentError, GristmillError, StateError

# Of a fingerprint: what is no argument, and the arguments that are strings.
_NO_ARGUMENTS = frozenset({"manifest", "tokenizer"})
_STRINGS = frozenset({"text_field", "packing", "truncation", "layout", "on_error"})
# Arguments for which "None" says something else than leaving them out; it may be the name of a field.
_NONE_MEANS = frozenset({"epochs", "text_field"})
_ARGUMENTS = frozenset(inspect.signature(PackedDataset).parameters)
# Arguments that others than --set are for.
_SET_ALREADY = frozenset({"shards", "tokenizer", "prefetch", "provenance"})
_EXCERPT = 60


def locate(
    path: Path,
    *,
    row: int,
    step: int | None,
    shards: Sequence[str],
    tokenizer: Path,
    special_tokens_in_text: SpecialTokensInText,
    settings: Iterable[str],
) -> dict[str, Any]:
    """Where a row's text comes from.

    Args:
      path: a state saved as JSON (gzipped or not), a checkpoint's folder with those of all processes, or shards
        (path or glob).
      row: of the global batch, from 0.
      step: of the batch, from 0. None: the one after the state, or the first.
      shards: those of the state; none if `path` names shards.
      tokenizer: the tokenizer.json.
      special_tokens_in_text: as for `Encoder`.
      settings: further arguments of `PackedDataset`, each as `name=value`.

    Raises:
      GristmillError: they do not fit each other, or there is no such row; it says how many there are.
    """
    state = contents.saved_state(path)
    is_run = state is None
    arguments = _from_settings(settings)
    encoder = Encoder.from_file(tokenizer, special_tokens_in_text=special_tokens_in_text)
    if state is None and shards:
        raise StateError(
            f"{path} is no saved state: expected one, since --shards names the shards of a state, found "
            f"{'another file' if path.is_file() else 'no such file'}; to start without a state, name the shards "
            "as PATH, and no --shards"
        )
    if state is None:
        with _naming_set():
            dataset = _dataset([str(path)], encoder, arguments)
        state = iter(dataset).get_state()
    elif arguments:
        raise ArgumentError(f"{path} is a saved state, which already records the arguments: drop --set")
    elif not shards:
        raise ArgumentError(f"{path} is a saved state: name its shards with --shards")
    else:
        _check_tokenizer(path, state, tokenizer, encoder)
        try:
            dataset = _dataset(list(shards), encoder, _from_fingerprint(state["fingerprint"]))
        except ArgumentError as error:
            raise StateError(f"{path} was saved with other shards or by another release: {error}") from error
    with _naming_set() if is_run else nullcontext():
        step, lane, element = _play(dataset, state, step, row)
    return {"kind": "row", "step": step, "row": row, "lane": lane, **_found(dataset, element)}


def describe(found: dict[str, Any]) -> str:
    """The result of `locate` for people."""
    summary = format_fields(
        [
            ("row", f"{found['row']} of the batch of step {found['step']:,}, which lane {found['lane']} gives"),
            ("places", f"{counted(found['tokens'], 'token')}, {found['padding']:,} of padding"),
        ]
    )
    if not found["segments"]:
        return f"{summary}\n\nThe row is padding alone: its lane has ended."
    rows = [["places", "shard", "record", "tokens", "text"]]
    for part in found["segments"]:
        start, offset, length = part["place"], part["offset"], part["length"]
        rows.append(
            [
                f"{start}-{start + length - 1}",
                part["shard"],
                f"{part['record']:,}",
                f"{offset:,}-{offset + length - 1:,}",
                json.dumps(part["text"][:_EXCERPT], ensure_ascii=False),
            ]
        )
    return f"{summary}\n\n{format_columns(rows, right=(0, 2, 3))}"


def _check_tokenizer(path: Path, state: states.State, tokenizer: Path, encoder: Encoder) -> None:
    saved = fingerprints.parse(state["fingerprint"]).get("tokenizer")
    if saved != encoder.fingerprint:
        raise StateError(
            f"{path} was saved with another tokenizer than {tokenizer}, or with another special_tokens_in_text=, which "
            f"counts into its fingerprint: expected {saved}, found {encoder.fingerprint}; name the tokenizer of the "
            "run, and give --special-tokens-in-text as its Encoder had it"
        )


def _from_settings(settings: Iterable[str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ArgumentError(f"--set {setting}: expected name=value, such as sequence_length=2048")
        if name not in _ARGUMENTS:
            raise ArgumentError(f"--set {setting}: expected an argument of PackedDataset, which has none of this name")
        if name in _SET_ALREADY:
            raise ArgumentError(f"--set {setting}: expected an argument that this command does not set itself")
        if name in arguments:
            raise ArgumentError(f"--set {setting}: expected each argument once")
        arguments[name] = value if name in _STRINGS else _literal(value)
    return arguments


@contextmanager
def _naming_set() -> Iterator[None]:
    """Has errors say `--set` where they name an argument that it gives."""
    try:
        yield
    except GristmillError as error:
        raise reworded(error, options.in_settings(str(error), _ARGUMENTS - _SET_ALREADY)) from error


def _from_fingerprint(fingerprint: str) -> dict[str, Any]:
    """The arguments that a state was made with. One that its packing does not use is None there, or left out."""
    arguments = {
        name: value if name in _STRINGS else _literal(value)
        for name, value in fingerprints.parse(fingerprint).items()
        if name not in _NO_ARGUMENTS and (value != "None" or name in _NONE_MEANS)
    }
    return arguments | {name: False for name in ("eos", "bos") if arguments.get(name) is None}


def _literal(value: str) -> Any:
    """`value` as Python has it, or as a string: the end-of-text token may be an id or a spelling."""
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return value


def _dataset(shards: list[str], encoder: Encoder, arguments: Mapping[str, Any]) -> PackedDataset:
    if unknown := [name for name in arguments if name not in _ARGUMENTS]:
        raise ArgumentError(
            f"expected arguments of PackedDataset, got {unknown[0]!r}, which this release does not know"
        )
    dataset = PackedDataset(shards, tokenizer=encoder, prefetch=1, **arguments)
    # All segments are listed, however many.
    return dataset._with(provenance_entries=dataset._settings.sequence_length)


def _play(dataset: PackedDataset, state: states.State, step: int | None, row: int) -> "tuple[int, int, Element | None]":
    """The row's step, by default the first after the state, its lane, and its arrays; None if the lane has ended."""
    batch_size = dataset._settings.batch_size
    rows = batch_size or dataset.lanes
    if not 0 <= row < rows:
        raise ArgumentError(f"--row {row}: a global batch has the rows 0 to {rows - 1}")
    rows_per_lane = rows // dataset.lanes
    lane, own_row = divmod(row, rows_per_lane)
    if str(lane) not in state["lanes"]:
        raise StateError(
            f"the row is of lane {lane}, and the state holds the lanes {', '.join(state['lanes'])}: use that of "
            "another host, or the folder with those of all"
        )
    start = {**states.of_lane(state, str(lane)), "row": 0}
    step = start["step"] if step is None else step
    if step < start["step"]:
        raise ArgumentError(f"--step {step}: the state is already at step {start['step']}; use a state saved earlier")
    with PackedDatasetIterator(dataset._with(own_lanes=[lane])._settings) as iterator:
        iterator.set_state(start)
        element = _element(iterator, step - start["step"], f"lane {lane}")
    if element is None:
        _check_step(dataset, state, step)
    elif batch_size is not None:
        element = {name: array[own_row] for name, array in element.items()}
    return step, lane, element


def _check_step(dataset: PackedDataset, state: states.State, step: int) -> None:
    """Checks that a lane of the state has a row in a step: only there do rows of those that have ended exist.

    Raises:
      ArgumentError: none has.
    """
    lanes = sorted(map(int, state["lanes"]))
    batch_size = dataset._settings.batch_size
    elements_per_step = len(lanes) if batch_size is None else 1
    with PackedDatasetIterator(dataset._with(own_lanes=lanes)._settings) as iterator:
        iterator.set_state(state)
        ahead = max(0, (step - state["step"]) * elements_per_step - state["row"])
        if _element(iterator, ahead, "all lanes") is not None:
            return
        steps = iterator.get_state()["step"]
    is_whole = len(lanes) == dataset.lanes
    whose = "the stream has" if is_whole else f"the lanes that the state holds, {format_numbers(lanes)}, have"
    raise ArgumentError(
        f"there is no step {step}: {whose} {counted(steps, 'step')}, counted from 0, of "
        f"{counted(batch_size or dataset.lanes, 'row')}"
        + ("" if is_whole else "; those of other hosts may have more: use the folder with the states of all")
    )


def _element(iterator: PackedDatasetIterator, ahead: int, what: str) -> "Element | None":
    """What comes after so many others; None after the end."""
    with Progress(f"playing {what}", ahead, "steps") as progress:
        for done in range(ahead):
            if next(iterator, None) is None:
                return None
            progress.show(done)
        return next(iterator, None)


def _found(dataset: PackedDataset, element: "Element | None") -> dict[str, Any]:
    if element is None:
        return {"tokens": 0, "padding": dataset._settings.sequence_length, "segments": []}
    tokens = next(iter(element.values()))
    segments, place = [], 0
    for shard, record, offset, length in element[PROVENANCE].tolist():
        if not length:
            break
        segments.append(
            {
                "place": place,
                "length": length,
                "shard": dataset.manifest.paths[shard],
                "record": record,
                "offset": offset,
                "text": dataset.encoder.decode(tokens[place : place + length]),
            }
        )
        place += length
    return {"tokens": place, "padding": len(tokens) - place, "segments": segments}
