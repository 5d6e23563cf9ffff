"""States of prompts, the same on every host: an epoch and an index in it; of a mixture, the prompts of each source."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from gristmill._mixture import fingerprint as mixtures
from gristmill._mixture.stages import first_difference, is_used
from gristmill._state import commits
from gristmill._util.named_values import decode
from gristmill._util.text import shortened
from gristmill.errors import StateError

PromptState: TypeAlias = "dict[str, Any]"

VERSION = 1
MIXTURE_VERSION = 2
_KEYS = {
    VERSION: frozenset({"version", "fingerprint", "ids", "epoch", "place", "counts"}),
    MIXTURE_VERSION: frozenset({"version", "fingerprint", "ids", "step", "sources", "counts"}),
}
_LARGEST = 2**62


def is_one(state: Any) -> bool:
    """Whether something may be a state of prompts, and not of packed rows."""
    return isinstance(state, Mapping) and ("place" in state or "sources" in state) and "lanes" not in state


def check(state: Any) -> PromptState:
    """`state`, if it has the form of one.

    Raises:
      StateError: it has not.
    """
    if not isinstance(state, Mapping):
        raise StateError(f"a state is a dict, got {type(state).__name__}")
    version = state.get("version")
    if type(version) is not int or version not in _KEYS:
        raise StateError(f"expected a state of prompts of version {VERSION} or {MIXTURE_VERSION}, found {version!r}")
    if set(state) - {commits.KEY} != _KEYS[version]:
        raise StateError(f"a state of prompts has the keys {sorted(_KEYS[version])}, got {shortened(list(state))}")
    if commits.KEY in state:
        commits.Committed.read(state[commits.KEY])
    for name in ("fingerprint", "ids"):
        if not isinstance(state[name], str):
            raise StateError(f"a state's {name} is a string, got {shortened(state[name])}")
    numbers = {name: state[name] for name in ("epoch", "place", "step") if name in state}
    if version == MIXTURE_VERSION:
        if not isinstance(state["sources"], Mapping):
            raise StateError(f"a state's sources are a dict, got {shortened(state['sources'])}")
        numbers |= {f"count of {name!r}": count for name, count in state["sources"].items()}
    for name, number in numbers.items():
        if type(number) is not int or not 0 <= number < _LARGEST:
            raise StateError(f"a state's {name} is an integer from 0 on, got {shortened(number)}")
    return dict(state)


def merged(states: Sequence[Any], caller: str) -> PromptState:
    """The state that all hosts have saved.

    Raises:
      StateError: they differ, or one is damaged.
    """
    committed = commits.merged([check(state).get(commits.KEY) for state in states], caller)
    checked = [{name: value for name, value in check(state).items() if name != commits.KEY} for state in states]
    for state in checked:
        if state != checked[0]:
            names = [name for name in ("epoch", "place", "step") if name in checked[0]]
            places = [tuple(one.get(name) for name in names) for one in checked]
            raise StateError(
                f"{caller}: the states differ, at {' and '.join(names)} {shortened(places)}: save them after the same "
                "batch of the same stream on every host"
            )
    return checked[0] if committed is None else {**checked[0], commits.KEY: committed}


def incompatibilities(state: PromptState, current: str) -> str:
    """Why the mixture of a state cannot continue as that of another fingerprint; empty if it can.

    Weights may differ from the state's step on, and so may sources that were not read until then, and all `epochs`.

    Raises:
      StateError: the fingerprint of the state is damaged.
    """
    if not mixtures.is_mixture(state["fingerprint"]):
        return "it was no mixture, and this dataset is one"
    before, after = mixtures.parse(state["fingerprint"]), mixtures.parse(current)
    steps: int = state["step"]
    found = [_changed("", before.common, after.common)]
    if difference := first_difference(before.stages, after.stages, steps):
        found.append(mixtures.weights_differ(*difference, steps))
    for name in sorted(before.sources):
        if not state["sources"].get(name) and not is_used(before.stages, name, steps):
            continue
        if name not in after.sources:
            found.append(mixtures.is_missing(name, steps))
        else:
            found.append(_changed(f"of the source {name!r} ", before.sources[name], after.sources[name]))
    return ", ".join(filter(None, found))


def _changed(prefix: str, saved: str, current: str) -> str:
    one, other = decode(saved), decode(current)
    changed = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    return ", ".join(
        f"{prefix}{name} was {one.get(name, 'the default')} and is {other.get(name, 'the default')}" for name in changed
    )
