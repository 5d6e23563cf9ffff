"""Saved states: their form, joining those of several hosts, and checking them.

    {"version": 2, "fingerprint": "manifest=... tokenizer=... lanes=8 ...",
     "step": 120, "row": 0, "lanes": {"0": "0 3 1041 ...", "1": "..."}}

`step` counts whole steps that were delivered, `row` the rows of the next one when single rows are handed
out. A lane's string holds the numbers named in `CURSOR_FIELDS`: its place in the shards and its totals. A list of
them would take ten times as long to copy, which Grain does with the state of each element. All values are plain
integers and strings, and the form never changes in a run.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gristmill._core import CURSOR_FIELDS, CURSOR_LARGEST
from gristmill._spec import fingerprints
from gristmill._util import checks
from gristmill._util.text import shortened
from gristmill.errors import StateError

VERSION = 2
_KEYS = frozenset({"version", "fingerprint", "step", "row", "lanes"})
# Not longer, for Python reads no integer of more than 4300 digits.
_NUMBER = "(?:0|[1-9][0-9]{0,18})"
_LANE = re.compile(_NUMBER)
_CURSOR = re.compile(" ".join([_NUMBER] * len(CURSOR_FIELDS)))

State = dict[str, Any]


def merge_states(states: Iterable[Mapping[str, Any]]) -> State:
    """The states of several hosts as one, which any host can restore from.

    Args:
      states: states saved at the same step by iterators of the same dataset, in any order. A host whose
        lanes have all ended may be at an earlier step.

    Returns:
      A state that holds all lanes of `states`.

    Raises:
      StateError: the states differ in their fingerprint or step, one was saved between the rows of a
        step, or they hold different places for the same lane.
      ArgumentTypeError: `states` is no list.
    """
    expected = "a list of states"
    if isinstance(states, Mapping):  # one state, whose keys are none
        raise checks.wrong_type("states", states, expected)
    return merged([check(state) for state in checks.items("states", states, expected)], "merge_states")


def merged(checked: Sequence[State], caller: str) -> State:
    """`merge_states` of what has the form of states; messages begin with what they are of.

    Raises:
      StateError: see `merge_states`.
    """
    if not checked:
        raise StateError(f"{caller}: expected at least one state, got none")
    first = max(checked, key=lambda state: state["step"])
    lanes: dict[str, str] = {}
    for state in checked:
        if state["fingerprint"] != first["fingerprint"]:
            raise StateError(
                f"{caller}: the states come from different streams: "
                + fingerprints.differences(state["fingerprint"], first["fingerprint"])
            )
        if state["row"]:
            raise StateError(
                f"{caller}: a state was saved after row {state['row']} of a step; states join only between steps: "
                "save after a whole step, or use batch_size"
            )
        if state["step"] != first["step"] and not _has_ended(state):
            raise StateError(
                f"{caller}: the states are of different steps, {state['step']} and {first['step']}: save them "
                "after the same batch on every host"
            )
        for lane, cursor in state["lanes"].items():
            if lanes.setdefault(lane, cursor) != cursor:
                raise StateError(
                    f"{caller}: two states hold different places for lane {lane}: give the states of one save"
                )
    return {**first, "lanes": {lane: lanes[lane] for lane in sorted(lanes, key=int)}}


def of_lane(state: State, lane: str) -> State:
    """The state of one of its lanes.

    Within a step of single rows it may be one row ahead of others; if it is not, it keeps the `row` of the whole, so
    that `merge_lanes` can tell it from the state of a lane that ended before the others.
    """
    is_ahead = sorted(state["lanes"], key=int).index(lane) < state["row"]
    step, row = (state["step"] + 1, 0) if is_ahead else (state["step"], state["row"])
    return {**state, "step": step, "row": row, "lanes": {lane: state["lanes"][lane]}}


def merge_lanes(shard_states: Sequence[Mapping[str, Any]], own_lanes: Sequence[int]) -> State:
    """The `state`s of single lanes as one of an iterator that has these lanes, and may stand between rows of a step.

    Raises:
      StateError: one is none, or they do not belong together, see `merge_states`.
    """
    own = list(map(str, own_lanes))
    checked = [check(_of_shard(entry)) for entry in shard_states]
    kept = [state for state in checked if not state["lanes"].keys().isdisjoint(own)] or checked
    step_of = {lane: state["step"] for state in kept for lane in state["lanes"]}
    last = max(step_of.values(), default=0)
    is_within = any(state["step"] < last and (state["row"] or not _has_ended(state)) for state in kept)
    # Rows are given lane after lane: in the last step by those before the first that has not given its own.
    given = [*itertools.takewhile(lambda lane: step_of.get(lane) != last - 1, own)] if is_within else []
    steps = [max(0, state["step"] - (not state["lanes"].keys().isdisjoint(given))) for state in kept]
    whole = merged(
        [{**state, "step": step, "row": 0} for state, step in zip(kept, steps, strict=True)], "set_shard_states"
    )
    return {**whole, "row": len(given)}


def check(state: Any) -> State:
    """`state`, if it has the form of one.

    Raises:
      StateError: it has not.
    """
    if not isinstance(state, Mapping):
        hint = ": json.loads it first" if isinstance(state, (str, bytes)) else ""
        raise StateError(f"a state is a dict, got {type(state).__name__}{hint}")
    if set(state) != _KEYS:
        raise StateError(f"a state has the keys {sorted(_KEYS)}, got {shortened(list(state))}")
    # An array would compare item by item.
    if type(state["version"]) is not int or state["version"] != VERSION:
        raise StateError(f"this release reads states of version {VERSION}, got {shortened(state['version'])}")
    if not isinstance(state["fingerprint"], str):
        raise StateError("a state's fingerprint is a string")
    _check_number("step", state["step"])
    _check_number("row", state["row"])
    lanes = state["lanes"]
    if not isinstance(lanes, Mapping):
        raise StateError(f"a state's lanes are a dict, got {type(lanes).__name__}")
    for lane, cursor in lanes.items():
        if not (isinstance(lane, str) and _LANE.fullmatch(lane)):
            raise StateError(f"a state's lanes are named by their numbers as strings, got {shortened(lane)}")
        if not (isinstance(cursor, str) and _CURSOR.fullmatch(cursor)):
            shown = shortened(cursor)
            raise StateError(f"the state of lane {lane} is a string of {len(CURSOR_FIELDS)} integers, got {shown}")
        for name, value in numbers(cursor).items():
            _check_number(f"{name} of lane {lane}", value)
    return dict(state)


def numbers(cursor: str) -> dict[str, int]:
    """A lane's numbers, by their names."""
    return dict(zip(CURSOR_FIELDS, map(int, cursor.split(" ")), strict=True))


def has_left_out(state: State) -> bool:
    """Whether records were left out of what the stream gave up to here.

    Of the window that a place is inside nothing is known: it is read again, and must be the same then.
    """
    return any(numbers(cursor)["quarantined"] for cursor in state["lanes"].values())


def has_windows(state: State) -> bool:
    """Whether its stream has windows of documents, so that records are counted a window at a time."""
    stream = fingerprints.parse(state["fingerprint"])
    return stream.get("packing") == "best_fit" or stream.get("seed") != "None"


def _of_shard(entry: Any) -> Any:
    if not isinstance(entry, Mapping) or "state" not in entry:
        raise StateError(f"a shard's state is a dict with the key 'state', got {shortened(entry)}")
    return entry["state"]


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= CURSOR_LARGEST:
        most = f"2**{CURSOR_LARGEST.bit_length() - 1}"
        raise StateError(f"a state's {name} is an integer from 0 to {most}, got {shortened(value)}")


def _has_ended(state: State) -> bool:
    epochs = fingerprints.parse(state["fingerprint"]).get("epochs")
    return all(str(numbers(cursor)["epoch"]) == epochs for cursor in state["lanes"].values())
