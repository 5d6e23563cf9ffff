"""The fingerprint of a mixture: how it is mixed, and the fingerprint of each source under its name.

mixture=code,web stages=0:code:0.1,web:0.9 on_exhausted=continue tokenizer=04d2... lanes=8 ...
code.manifest=8a1f... code.epochs=None web.manifest=...
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from gristmill._mixture.stages import Stage, first_difference, is_used, read, stage_at, write
from gristmill._spec import fingerprints
from gristmill._util.named_values import decode, encode
from gristmill.errors import StateError

_ROWS = "rows"
_MIXTURE, _STAGES, _WEIGHTS_BY, _ON_EXHAUSTED = "mixture", "stages", "weights_by", "on_exhausted"


class Parts(NamedTuple):
    """A mixture's fingerprint in parts.

    Attributes:
      common: the arguments that all sources share, as a fingerprint.
      sources: the fingerprint of each source without those, by its name.
      stages: the weights.
      weights_by: what they count.
      on_exhausted: what happens at the end of a source.
    """

    common: str
    sources: Mapping[str, str]
    stages: Sequence[Stage]
    weights_by: str
    on_exhausted: str


def make(
    sources: Mapping[str, str],
    stages: Sequence[Stage],
    weights_by: str,
    on_exhausted: str,
    own_keys: Collection[str],
) -> str:
    """The fingerprint of a mixture, from those of its sources. Each has `own_keys` of its own."""
    names = sorted(sources)
    found = {name: decode(sources[name]) for name in names}
    common = {key: value for key, value in found[names[0]].items() if key not in own_keys}
    mixing = {_MIXTURE: ",".join(names), _STAGES: write(stages), _ON_EXHAUSTED: on_exhausted}
    if weights_by != _ROWS:
        mixing[_WEIGHTS_BY] = weights_by
    own = {f"{name}.{key}": value for name in names for key, value in found[name].items() if key in own_keys}
    return encode({**mixing, **common, **own})


def is_mixture(fingerprint: str) -> bool:
    """Whether a fingerprint is that of a mixture."""
    return _MIXTURE in decode(fingerprint)


def describe(fingerprint: str) -> dict[str, str]:
    """All that has an effect in the stream of a fingerprint, as text; of a mixture, what is not a default."""
    return decode(fingerprint) if is_mixture(fingerprint) else fingerprints.describe(fingerprint)


def parse(fingerprint: str) -> Parts:
    """The parts of a mixture's fingerprint.

    Raises:
      StateError: it is damaged.
    """
    pairs = decode(fingerprint)
    names = pairs.pop(_MIXTURE, "").split(",")
    on_exhausted = pairs.pop(_ON_EXHAUSTED, "")
    weights_by = pairs.pop(_WEIGHTS_BY, _ROWS)
    try:
        stages = read(pairs.pop(_STAGES, ""))
    except ValueError:
        raise StateError("the state's fingerprint is damaged: its stages cannot be read") from None
    sources: dict[str, dict[str, str]] = {name: {} for name in names}
    common = {}
    for key, value in pairs.items():
        name, dot, own = key.rpartition(".")
        if not dot:
            common[key] = value
        elif name in sources:
            sources[name][own] = value
    own_prints = {name: encode(own) for name, own in sources.items()}
    return Parts(encode(common), own_prints, stages, weights_by, on_exhausted)


def incompatibilities(
    saved: str, current: str, steps: int, read_sources: Mapping[str, Mapping[str, int]], ended: bool
) -> str:
    """Why a mixture cannot continue as another one: how the two differ up to where the first was saved.

    The weights may differ from there on, and so may sources that were not read until then.

    Args:
      saved: the fingerprint of the first mixture.
      current: that of the other one.
      steps: the steps up to there, one that was begun included.
      read_sources: the sources that were read until then, each with the sums of its numbers over the lanes.
      ended: whether one of them is exhausted in some lane.

    Returns:
      The differences in words; empty if the stream can continue.
    """
    before, after = parse(saved), parse(current)
    has_quarantined = any(numbers["quarantined"] for numbers in read_sources.values())
    found = [fingerprints.incompatibilities(before.common, after.common, has_quarantined, steps)]
    difference = first_difference(before.stages, after.stages, steps)
    if difference:
        found.append(weights_differ(*difference, steps))
    if before.weights_by != after.weights_by and steps:
        found.append(f"weights_by was {before.weights_by} and is {after.weights_by}")
    if before.on_exhausted != after.on_exhausted and ended and before.on_exhausted != "error":
        found.append(f"on_exhausted was {before.on_exhausted} and is {after.on_exhausted}, and a source is exhausted")
    for name in sorted({*before.sources, *after.sources}):
        if name not in read_sources and not is_used(before.stages, name, steps):
            continue
        if name not in after.sources:
            found.append(is_missing(name, steps))
        elif name in before.sources:
            quarantined = bool(read_sources.get(name, {}).get("quarantined"))
            own = fingerprints.incompatibilities(before.sources[name], after.sources[name], quarantined)
            found.append(f"of the source {name!r} {own}" if own else "")
    return ", ".join(filter(None, found))


def weights_differ(step: int, before: Stage, after: Stage, steps: int) -> str:
    """Says that two mixtures differ at a step before the one up to which they must not."""
    return (
        f"the weights of step {step}, which is in the past of step {steps}, were {_weights(before)} and are "
        f"{_weights(after)}"
    )


def is_missing(name: str, steps: int) -> str:
    """Says that a source that was read until some step is missing."""
    return f"the source {name!r} is missing: keep it, with the weight 0 from step {steps} on"


def continued_stages(saved: str, current: str, step: int) -> list[Stage]:
    """The stages with which a mixture continues another one whose weights alone were changed; empty otherwise."""
    if not is_mixture(saved) or not is_mixture(current):
        return []
    before, after = parse(saved).stages, parse(current).stages
    if first_difference(before, after, step) is None:
        return []
    return [*(stage for stage in before if stage.step < step), Stage(step, after[stage_at(after, step)].weights)]


def is_lane_at_end(parts: Parts, cursors: Mapping[str, Mapping[str, int]], step: int) -> bool:
    """Whether a lane with these cursors, by the names of its sources, has no rows from a step on."""
    ended = {name for name in parts.sources if _is_exhausted(parts, name, cursors)}
    if parts.on_exhausted == "stop":
        return bool(ended)
    if parts.on_exhausted == "error":
        return False
    ends = [*(stage.step for stage in parts.stages[1:]), None]
    return all(
        name in ended
        for stage, end in zip(parts.stages, ends, strict=True)
        if end is None or end > step
        for name, weight in stage.weights.items()
        if weight
    )


def any_exhausted(parts: Parts, cursors: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether a source is exhausted in a lane with these cursors."""
    return any(_is_exhausted(parts, name, cursors) for name in parts.sources)


def _is_exhausted(parts: Parts, name: str, cursors: Mapping[str, Mapping[str, int]]) -> bool:
    epochs = decode(parts.sources[name]).get("epochs", "1")
    return name in cursors and str(cursors[name]["epoch"]) == epochs


def _weights(stage: Stage) -> str:
    return ", ".join(f"{name}: {weight:g}" for name, weight in sorted(stage.weights.items()) if weight)
