"""Stages: the weights of a mixture's sources from step to step, and the same as text.

0:code:0.1,web:0.9;300000:code:0.5,web:0.5
"""

import bisect
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

# Shares are multiples of this part of one: far finer than any run tells apart, and sums fit into 64 bits.
_PARTS = 2**48


class Stage(NamedTuple):
    """Weights from a step on, of each source."""

    step: int
    weights: Mapping[str, float]

    def parts(self) -> dict[str, int]:
        """The weights as whole numbers whose sum is about 2**48; those above 0 stay above 0."""
        whole = sum(map(Fraction, self.weights.values()))
        return {
            name: max(1, round(Fraction(weight) * _PARTS / whole)) if weight else 0
            for name, weight in self.weights.items()
        }


def core_stages(stages: Sequence[Stage], names: Sequence[str]) -> list[tuple[int, list[int]]]:
    """Stages as the core takes them: whole numbers of the sources in some order.

    One with the weights of the stage before is a part of that: nothing begins with it.
    """
    found: list[tuple[int, list[int]]] = []
    for stage in stages:
        parts = stage.parts()
        weights = [parts.get(name, 0) for name in names]
        if not found or weights != found[-1][1]:
            found.append((stage.step, weights))
    return found


def mean_shares(stages: Sequence[Stage], steps: int) -> dict[str, float]:
    """The share of each source that the weights ask for in so many steps, without steps in the first one."""
    found: dict[str, float] = {}
    ends = [*(stage.step for stage in stages[1:]), max(steps, 1)]
    for (start, weights), end in zip(stages, ends, strict=True):
        length = max(0, min(end, max(steps, 1)) - start)
        for name, weight in weights.items():
            found[name] = found.get(name, 0.0) + weight / sum(weights.values()) * length / max(steps, 1)
    return found


def write(stages: Iterable[Stage]) -> str:
    """Stages as text, without the sources whose weight is 0."""
    return ";".join(
        f"{step}:" + ",".join(f"{name}:{_number(weights[name])}" for name in sorted(weights) if weights[name])
        for step, weights in stages
    )


def read(text: str) -> list[Stage]:
    """The stages of a text.

    Raises:
      ValueError: it is not one.
    """
    stages = []
    for part in text.split(";"):
        step, _, weights = part.partition(":")
        pairs = [pair.split(":") for pair in weights.split(",")]
        stages.append(Stage(int(step), {name: float(weight) for name, weight in pairs}))
    if not stages or stages[0].step != 0:
        raise ValueError(text)
    return stages


def stage_at(stages: Sequence[Stage], step: int) -> int:
    """The index of the stage of a step."""
    return bisect.bisect_right([stage.step for stage in stages], step) - 1


def first_difference(before: Sequence[Stage], after: Sequence[Stage], steps: int) -> "tuple[int, Stage, Stage] | None":
    """The first of so many steps at which two lists of stages have other weights, and their stages there."""
    starts = sorted({stage.step for stage in (*before, *after)})
    for step in starts:
        one, other = before[stage_at(before, step)], after[stage_at(after, step)]
        if step < steps and _shares(one) != _shares(other):
            return step, one, other
    return None


def is_used(stages: Sequence[Stage], name: str, steps: int) -> bool:
    """Whether a source has a weight above 0 in the first so many steps."""
    return any(stage.step < steps and stage.weights.get(name, 0) > 0 for stage in stages)


def _shares(stage: Stage) -> dict[str, int]:
    return {name: parts for name, parts in stage.parts().items() if parts}


def _number(weight: float) -> str:
    return str(int(weight)) if weight == int(weight) and weight < 2**53 else repr(weight)
