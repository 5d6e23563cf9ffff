"""States as flat dicts of strings and integers, with a key for each lane.

    {"version": 1, "stream": '{"version": 3, "fingerprint": ..., "step": 120, ...}', "lane_0": "shard=3 ...", ...}

The states of several ranks, joined as dicts, are the state of the whole stream; and torch's distributed checkpoint, in
which a rank reads the keys that its own state has, restores it on another number of ranks.
"""

import json
from collections.abc import Mapping
from typing import Any

from gristmill.errors import StateError

VERSION = 1
_LANE = "lane_"


def flat(state: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A state of an iterator as a flat dict, with further values."""
    lanes = {f"{_LANE}{lane}": cursor for lane, cursor in state.get("lanes", {}).items()}
    stream = {name: value for name, value in state.items() if name != "lanes"}
    return {"version": VERSION, **more, "stream": json.dumps(stream), **lanes}


def nested(state_dict: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """The state of an iterator that a flat dict holds.

    Raises:
      StateError: it is none of `owner`, or of another version.
    """
    try:
        version, stream = state_dict["version"], json.loads(state_dict["stream"])
        lanes = {name.removeprefix(_LANE): value for name, value in state_dict.items() if name.startswith(_LANE)}
        found = {**stream, **({"lanes": lanes} if lanes else {})}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        keys = sorted(map(str, state_dict)) if isinstance(state_dict, Mapping) else type(state_dict).__name__
        raise StateError(f"expected a state_dict of {owner}, got one with {keys}") from error
    if version != VERSION:
        raise StateError(f"the state_dict has version {version}, and this release reads version {VERSION}")
    return found
