"""Saved states: their form, merging those of several hosts, and checking them.

    {"version": 3, "fingerprint": "manifest=... tokenizer=... lanes=8 ...", "ids": "tokenizers=0.23.2 probe=9c34...",
     "step": 120, "row": 0, "lanes": {"0": "shard=3 record=1041 ...", "1": "..."}}

`ids` is the encoder's `ids_fingerprint`. `step` counts whole steps that were delivered, `row` the rows of the next one
when single rows are delivered. A lane's string is its cursor, written and read by rust/state.rs: its position in the
shards and its totals, by name, without those that are 0; of a mixture, one for each source that the lane has read:

    {"version": 4, "fingerprint": "mixture=code,web ...", ..., "lanes": {"0": "code: shard=3 ...; web: record=7 ..."}}

Once something was committed, `committed` names the steps from `step` on that were, and rows of others:
`"committed": "4,6-7,9:0-3"`, see `gristmill._state.commits`.

A dict of them would take ten times as long to copy, which
Grain does with the state of each element. All values are plain integers and strings.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gristmill._core import CURSOR_LARGEST, MIXTURE_STATE_VERSION, STATE_VERSION, lane_start, read_lane
from gristmill._mixture import fingerprint as mixtures
from gristmill._spec import fingerprints
from gristmill._state import commits, prompt_states
from gristmill._tokenizer.encoder import no_tokenizer
from gristmill._util import checks
from gristmill._util.named_values import decode
from gristmill._util.text import shortened
from gristmill.errors import StateError

_KEYS = frozenset({"version", "fingerprint", "ids", "step", "row", "lanes"})
# Not longer: Python reads no integer of more than 4300 digits.
_LANE = re.compile("0|[1-9][0-9]{0,18}")

State = dict[str, Any]


def merge_states(states: Iterable[Mapping[str, Any]]) -> State:
    """The states of several hosts as one, which any host can restore from.

    Args:
      states: states saved at the same step by iterators of the same dataset, in any order. A host whose
        lanes have all ended may be at an earlier step. The states of a `PromptDataset` are equal on all hosts.

    Returns:
      A state that holds all lanes of `states`; of prompts, the one state.

    Raises:
      StateError: the states differ in their fingerprint or step, one was saved between the rows of a
        step, or they hold different cursors for the same lane.
      ArgumentTypeError: `states` is not a list.
    """
    expected = "a list of states"
    if isinstance(states, Mapping):  # a single state, whose keys are not states
        raise checks.wrong_type("states", states, expected)
    found = checks.items("states", states, expected)
    if found and all(map(prompt_states.is_one, found)):
        return prompt_states.merged(found, "merge_states")
    return merged([check(state) for state in found], "merge_states")


def merged(checked: Sequence[State], caller: str) -> State:
    """`merge_states` of states that were checked.

    Raises:
      StateError: see `merge_states`.
    """
    if not checked:
        raise StateError(f"{caller}: expected at least one state, got none")
    first = max(checked, key=lambda state: state["step"])
    lanes: dict[str, str] = {}
    for state in checked:
        if different := fingerprints.differences(state["fingerprint"], first["fingerprint"]):
            raise StateError(f"{caller}: the states come from different streams: {different}")
        if state["ids"] != first["ids"]:
            raise StateError(
                f"{caller}: the states were saved by releases of gristmill with different ids: "
                + fingerprints.differences(state["ids"], first["ids"])
            )
        if state["row"]:
            raise StateError(
                f"{caller}: a state was saved after row {state['row']} of a step; states can only be merged at batch "
                "boundaries: save after a whole step, or use batch_size"
            )
        if state["step"] != first["step"] and not is_at_end(state):
            raise StateError(
                f"{caller}: the states were saved at different steps, {state['step']} and {first['step']}: save them "
                "after the same batch on every host"
            )
        for lane, cursor in state["lanes"].items():
            if lanes.setdefault(lane, cursor) != cursor:
                raise StateError(
                    f"{caller}: two states hold different cursors for lane {lane}: merge states of one save only"
                )
    whole = {**first, "lanes": {lane: lanes[lane] for lane in sorted(lanes, key=int)}}
    committed = commits.merged([state.get(commits.KEY) for state in checked], caller)
    return whole if committed is None else {**whole, commits.KEY: committed}


def start_of(state: State) -> State:
    """The state at the start of the run of `state`."""
    lanes = {lane: lane_start(lane, text) for lane, text in state["lanes"].items()}
    return {**without_commits(state), "step": 0, "row": 0, "lanes": lanes}


def without_commits(state: State) -> State:
    """The state with nothing of what was committed."""
    return {name: value for name, value in state.items() if name != commits.KEY}


def lane_state(state: State, lane: str) -> State:
    """The state of one of its lanes.

    Within a step of single rows it may be one row ahead of others; if it is not, it keeps the `row` of the whole, so
    that `merge_lanes` can tell it from the state of a lane that ended before the others.
    """
    is_ahead = sorted(state["lanes"], key=int).index(lane) < state["row"]
    step, row = (state["step"] + 1, 0) if is_ahead else (state["step"], state["row"])
    return {**state, "step": step, "row": row, "lanes": {lane: state["lanes"][lane]}}


def merge_lanes(shard_states: Sequence[Mapping[str, Any]], own_lanes: Sequence[int]) -> State:
    """The `state`s of single lanes as one of an iterator that has these lanes, which may be between rows of a step.

    Raises:
      StateError: one is not a state, or they do not belong together, see `merge_states`.
    """
    own = list(map(str, own_lanes))
    checked = [check(_state_in(entry)) for entry in shard_states]
    kept = [state for state in checked if not state["lanes"].keys().isdisjoint(own)] or checked
    step_of = {lane: state["step"] for state in kept for lane in state["lanes"]}
    last = max(step_of.values(), default=0)
    is_within = any(state["step"] < last and (state["row"] or not is_at_end(state)) for state in kept)
    # Rows are delivered lane after lane: those of the last step up to the first lane whose row is missing.
    delivered = [*itertools.takewhile(lambda lane: step_of.get(lane) != last - 1, own)] if is_within else []
    steps = [max(0, state["step"] - (not state["lanes"].keys().isdisjoint(delivered))) for state in kept]
    whole = merged(
        [{**state, "step": step, "row": 0} for state, step in zip(kept, steps, strict=True)], "set_shard_states"
    )
    return {**whole, "row": len(delivered)}


def check(state: Any) -> State:
    """`state`, if it has the form of one.

    Raises:
      StateError: it has not.
    """
    if not isinstance(state, Mapping):
        hint = ": json.loads it first" if isinstance(state, (str, bytes)) else ""
        raise StateError(f"a state is a dict, got {type(state).__name__}{hint}")
    if "stream" in state:  # the flat form of gristmill.integrations.torch
        raise StateError(
            "expected the state of an iterator, got a state_dict of a Loader: its load_state_dict takes it, and | "
            "joins those of several ranks"
        )
    _check_version(state)
    if set(state) - {commits.KEY} != _KEYS:
        raise StateError(f"a state has the keys {sorted(_KEYS)}, got {shortened(list(state))}")
    if commits.KEY in state:
        commits.Committed.read(state[commits.KEY])
    for name in ("fingerprint", "ids"):
        if not isinstance(state[name], str):
            raise StateError(f"a state's {name} is a string, got {shortened(state[name])}")
    expected = MIXTURE_STATE_VERSION if mixtures.is_mixture(state["fingerprint"]) else STATE_VERSION
    if state["version"] != expected:
        raise StateError(f"the state has version {state['version']}, but one of its fingerprint has version {expected}")
    _check_number("step", state["step"])
    _check_number("row", state["row"])
    lanes = state["lanes"]
    if not isinstance(lanes, Mapping):
        raise StateError(f"a state's lanes are a dict, got {type(lanes).__name__}")
    return {**state, "lanes": {lane: _checked_cursor(lane, cursor) for lane, cursor in lanes.items()}}


def check_ids(saved: str, current: str, what: str = "the state was saved") -> None:
    """Checks that a stream continues with the same ids, by the `ids_fingerprint` of its encoders.

    Another version of `tokenizers` is accepted if its ids of the probe text are the same.

    Args:
      saved: that of the encoder before.
      current: that of the encoder from now on.
      what: the beginning of the message.

    Raises:
      StateError: the ids differ, or may differ.
    """
    if saved == current:
        return
    before, after = decode(saved), decode(current)
    if before.get("probe") == after.get("probe") != "none":
        return
    if before.get("probe") == after.get("probe"):
        reason = "and this tokenizer's ids are random, so that a probe text cannot show whether the two agree"
    else:
        reason = "whose ids of a probe text differ for this tokenizer"
    raise StateError(
        f"{what} with the ids of tokenizers {before.get('tokenizers')}, and this release of gristmill reproduces "
        f"tokenizers {after.get('tokenizers')}, {reason}: use the release of gristmill that the run began with"
    )


def cursor_numbers(cursor: str) -> dict[str, int]:
    """The numbers of a lane that reads one source, by their names."""
    return lane_numbers(cursor)[""]


def lane_numbers(cursor: str) -> dict[str, dict[str, int]]:
    """A lane's numbers by their names, for each source by its name; "" is that of a stream without a mixture."""
    return read_lane("", cursor)[0]


def incompatibilities(state: State, current: str) -> str:
    """Why the stream of a state cannot continue as that of another fingerprint; empty if it can.

    Raises:
      StateError: the fingerprint of the state is damaged.
    """
    saved = state["fingerprint"]
    if mixtures.is_mixture(saved) != mixtures.is_mixture(current):
        one, other = ("a mixture", "not") if mixtures.is_mixture(saved) else ("no mixture", "one")
        return f"it was {one}, and this dataset is {other}"
    steps = state["step"] + (state["row"] > 0)
    if commits.KEY in state:
        steps = max(steps, *(end for _, end in commits.Committed.read(state[commits.KEY]).ranges()), 0)
    if not mixtures.is_mixture(saved):
        return fingerprints.incompatibilities(saved, current, has_quarantined(state), steps)
    parts = mixtures.parse(saved)
    lanes = [lane_numbers(cursor) for cursor in state["lanes"].values()]
    sums: dict[str, dict[str, int]] = {}
    for cursors in lanes:
        for name, numbers in cursors.items():
            total = sums.setdefault(name, dict.fromkeys(numbers, 0))
            sums[name] = {key: total[key] + number for key, number in numbers.items()}
    sums.pop("", None)
    ended = any(mixtures.any_exhausted(parts, cursors) for cursors in lanes)
    return mixtures.incompatibilities(saved, current, steps, sums, ended)


def same_shards(state: State, current: str) -> bool:
    """Whether the streams of a state and of a fingerprint read the same shards."""
    saved, now = (
        {name: value for name, value in decode(one).items() if name.endswith("manifest")}
        for one in (state["fingerprint"], current)
    )
    return saved == now


def is_at_end(state: State) -> bool:
    """Whether all its lanes have delivered all their rows."""
    fingerprint = state["fingerprint"]
    lanes = [lane_numbers(cursor) for cursor in state["lanes"].values()]
    if mixtures.is_mixture(fingerprint):
        parts = mixtures.parse(fingerprint)
        return all(mixtures.is_lane_at_end(parts, cursors, state["step"]) for cursors in lanes)
    epochs = fingerprints.values_of(fingerprint)["epochs"]
    return all(numbers["epoch"] == epochs for cursors in lanes for numbers in cursors.values())


def has_quarantined(state: State) -> bool:
    """Whether records were quarantined up to this state.

    Records of an unfinished window do not count: it is read again, and must be the same then.
    """
    lanes = map(lane_numbers, state["lanes"].values())
    return any(numbers["quarantined"] for cursors in lanes for numbers in cursors.values())


def has_tokenizer(state: State) -> bool:
    """Whether the dataset of a state had a tokenizer: those of ready ids need none."""
    return decode(state["fingerprint"]).get("tokenizer") != no_tokenizer().fingerprint


def has_windows(state: State) -> bool:
    """Whether its stream has windows of documents, so that records are counted a window at a time."""
    values = fingerprints.values_of(state["fingerprint"])
    return values["packing"] == "best_fit" or values["seed"] is not None


def _state_in(entry: Any) -> Any:
    if not isinstance(entry, Mapping) or "state" not in entry:
        raise StateError(f"a shard's state is a dict with the key 'state', got {shortened(entry)}")
    return entry["state"]


def _check_version(state: Mapping[str, Any]) -> None:
    version = state.get("version", STATE_VERSION)
    if type(version) is not int:  # an array would compare item by item
        raise StateError(f"a state's version is an integer, got {shortened(version)}")
    if version < STATE_VERSION:
        raise StateError(
            f"the state has version {version}, of a release of gristmill before 0.1.0, but this release reads "
            f"version {STATE_VERSION}: finish the run with the release that saved it"
        )
    if version > MIXTURE_STATE_VERSION:
        raise StateError(
            f"the state has version {version}, but this release of gristmill reads the versions {STATE_VERSION} and, "
            f"of mixtures, {MIXTURE_STATE_VERSION}: update gristmill to the release that saved it"
        )


def _checked_cursor(lane: Any, cursor: Any) -> str:
    """The cursor of a lane in its one form."""
    if not (isinstance(lane, str) and _LANE.fullmatch(lane)):
        raise StateError(f"a state's lanes are named by their numbers as strings, got {shortened(lane)}")
    if not isinstance(cursor, str):
        raise StateError(f"the state of lane {lane} is a string of numbers, got {shortened(cursor)}")
    try:
        return read_lane(lane, cursor)[1]
    except UnicodeEncodeError:  # lone surrogates
        raise StateError(f"the state of lane {lane} is not text: {shortened(cursor)}") from None


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= CURSOR_LARGEST:
        most = f"2**{CURSOR_LARGEST.bit_length() - 1}"
        raise StateError(f"a state's {name} is an integer from 0 to {most}, got {shortened(value)}")
