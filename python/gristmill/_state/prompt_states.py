"""States of prompts: an epoch and a place in it, the same on every host."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from gristmill._util.text import shortened
from gristmill.errors import StateError

PromptState: TypeAlias = "dict[str, Any]"

VERSION = 1
_KEYS = frozenset({"version", "fingerprint", "ids", "epoch", "place", "counts"})
_LARGEST = 2**62


def is_one(state: Any) -> bool:
    """Whether something may be a state of prompts, and not of packed rows."""
    return isinstance(state, Mapping) and "place" in state and "lanes" not in state


def check(state: Any) -> PromptState:
    """`state`, if it has the form of one.

    Raises:
      StateError: it has not.
    """
    if not isinstance(state, Mapping):
        raise StateError(f"a state is a dict, got {type(state).__name__}")
    if set(state) != _KEYS:
        raise StateError(f"a state of prompts has the keys {sorted(_KEYS)}, got {shortened(list(state))}")
    if state["version"] != VERSION:
        raise StateError(f"expected a state of prompts of version {VERSION}, found {state['version']!r}")
    for name in ("fingerprint", "ids"):
        if not isinstance(state[name], str):
            raise StateError(f"a state's {name} is a string, got {shortened(state[name])}")
    for name in ("epoch", "place"):
        if type(state[name]) is not int or not 0 <= state[name] < _LARGEST:
            raise StateError(f"a state's {name} is an integer from 0 on, got {shortened(state[name])}")
    return dict(state)


def merged(states: Sequence[Any], caller: str) -> PromptState:
    """The state that all hosts have saved.

    Raises:
      StateError: they differ, or one is damaged.
    """
    checked = [check(state) for state in states]
    for state in checked:
        if state != checked[0]:
            places = [(state["epoch"], state["place"]) for state in checked]
            raise StateError(
                f"{caller}: the states differ, at epoch and place {shortened(places)}: save them after the same batch "
                "of the same stream on every host"
            )
    return checked[0]
