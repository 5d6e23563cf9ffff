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
