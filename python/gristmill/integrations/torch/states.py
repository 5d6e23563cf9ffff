"""States as flat dicts of strings and integers, with a key for each lane.

    {"version": 1, "stream": '{"version": 3, "fingerprint": ..., "step": 120, ...}', "lane_0": "step=120 shard=3 ..."}

The states of several ranks, joined as dicts, are the state of the whole stream; and torch's distributed checkpoint, in
which a rank reads the keys that its own state has, restores it on another number of ranks. Each lane has the step, so
that states of different steps are not joined.
"""

import json
from collections.abc import Mapping
from typing import Any

from gristmill.errors import StateError

VERSION = 1
_LANE, _STEP = "lane_", "step="


def flat(state: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A state of an iterator as a flat dict, with further values."""
    lanes = {f"{_LANE}{lane}": f"{_STEP}{state['step']} {cursor}" for lane, cursor in state.get("lanes", {}).items()}
    stream = {name: value for name, value in state.items() if name != "lanes"}
    return {"version": VERSION, **more, "stream": json.dumps(stream), **lanes}


def nested(state_dict: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """The state of an iterator that a flat dict holds.

    Raises:
      StateError: it is none of `owner`, of another version, or joined of states of different steps.
    """
    try:
        version, stream = state_dict["version"], json.loads(state_dict["stream"])
        given = {name.removeprefix(_LANE): value for name, value in state_dict.items() if name.startswith(_LANE)}
        lanes = {lane: _cursor(value) for lane, value in given.items()}
        found = {**stream, **({"lanes": lanes} if lanes else {})}
        steps = {lane: _step(value, stream["step"]) for lane, value in given.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        keys = sorted(map(str, state_dict)) if isinstance(state_dict, Mapping) else type(state_dict).__name__
        raise StateError(f"expected a state_dict of {owner}, got one with {keys}") from error
    if version != VERSION:
        raise StateError(f"the state_dict has version {version}, and this release reads version {VERSION}")
    if other := next((lane for lane, step in steps.items() if step != stream["step"]), None):
        raise StateError(
            f"the state_dict is joined of states of different steps, {steps[other]} in lane {other} and "
            f"{stream['step']}: save after the same batch on every rank, and join states of one save"
        )
    return found


def _cursor(value: Any) -> Any:
    """The cursor of a lane."""
    return value.partition(" ")[2] if isinstance(value, str) and value.startswith(_STEP) else value


def _step(value: Any, default: Any) -> Any:
    """The step of a lane's state, which those of earlier builds lack."""
    has_step = isinstance(value, str) and value.startswith(_STEP)
    return int(value.partition(" ")[0].removeprefix(_STEP)) if has_step else default
