"""`Stage`: the length of rows and their number in a batch, from a step on.

0:1024:512,10000:4096:128       as text: the step, the length and the batch size; an empty one is as before
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from gristmill._util import checks
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError

_LARGEST_STEP = 2**62
_LARGEST_LENGTH = 2**24
_LARGEST_BATCH = 2**20


@dataclass(frozen=True)
class Stage:
    """The rows of a stream from a step on, up to that of the next stage.

    Attributes:
      step: the first step.
      sequence_length: tokens in a row. None: as many as in the stage before.
      batch_size: rows of the global batch. None: as many as in the stage before.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """

    step: int
    sequence_length: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", checks.integer("step", self.step, 0, _LARGEST_STEP))
        for name, most in (("sequence_length", _LARGEST_LENGTH), ("batch_size", _LARGEST_BATCH)):
            object.__setattr__(self, name, checks.optional_integer(name, getattr(self, name), 1, most))

    @classmethod
    def ramp(
        cls,
        start: int,
        increment: int,
        samples: int,
        batch_size: int,
        *,
        step: int = 0,
        sequence_length: int | None = None,
    ) -> "list[Stage]":
        """A batch that grows, as `--rampup-batch-size start increment samples` of Megatron-LM has it.

        Within so many rows the batch grows from `start` to `batch_size` in equal shares of these rows, by `increment`
        after each.

        Args:
          start: the rows of the first batch.
          increment: by how many rows it grows at once; it divides what `batch_size` is above `start`.
          samples: the rows after which it has its last size.
          batch_size: the last size.
          step: the step at which the ramp begins.
          sequence_length: tokens in a row, in all stages.

        Returns:
          The stages, one for each size.

        Raises:
          ArgumentError: a value is not allowed.
          ArgumentTypeError: a value is of the wrong type.
        """
        start = checks.integer("start", start, 1, _LARGEST_BATCH)
        increment = checks.integer("increment", increment, 1, _LARGEST_BATCH)
        samples = checks.integer("samples", samples, 0, _LARGEST_STEP)
        last = checks.integer("batch_size", batch_size, start, _LARGEST_BATCH)
        if (last - start) % increment:
            raise ArgumentError(
                f"increment={increment}: expected a number that divides {last - start}, from start= to {last}"
            )
        count = (last - start) // increment
        share = Fraction(samples, count) if count else Fraction(0)
        found, given = [], 0
        step = checks.integer("step", step, 0, _LARGEST_STEP)
        for number in range(count + 1):
            size = start + number * increment
            # The batch grows at the first step before which so many rows were given.
            steps = -int((given - share * (number + 1)) // size) if number < count else 1
            if steps > 0:
                found.append(cls(step, sequence_length, size))
                step, given = step + steps, given + steps * size
        return found


class Stages(tuple[Stage, ...]):
    """Stages in order, the first of which may begin after step 0."""

    def __str__(self) -> str:
        return ",".join(f"{stage.step}:{stage.sequence_length or ''}:{stage.batch_size or ''}" for stage in self)

    def within(self, first: int, end: int) -> "Stages":
        """The stages that begin from one step up to another."""
        return Stages(stage for stage in self if first <= stage.step < end)

    def after(self, sequence_length: int, batch_size: int | None) -> "tuple[Stage, Stages]":
        """The first stage, and those after it that change something, each with all its values.

        Args:
          sequence_length: tokens of a row before the first of them.
          batch_size: rows of a batch before the first of them.
        """
        first, others = Stage(0, sequence_length, batch_size), []
        last = first
        for stage in self:
            full = Stage(stage.step, stage.sequence_length or last.sequence_length, stage.batch_size or last.batch_size)
            if full.step == 0:
                first = last = full
            elif replace(full, step=last.step) != last:
                others.append(full)
                last = full
        return first, Stages(others)


@dataclass(frozen=True)
class StagesKind:
    """A list of `Stage`, or text such as `0:1024:512,10000:4096:128`; None, too, stands for no stage."""

    def check(self, name: str, value: Any) -> Stages | None:
        """See `Kind`."""
        if isinstance(value, str):
            value = [_read(name, part) for part in value.split(",")]
        given = checks.items(name, () if value is None else value, "a list of gm.Stage")
        found: list[Stage] = []
        for stage in given:
            if not isinstance(stage, Stage):
                raise checks.wrong_type(name, stage, "gm.Stage")
            if found and stage.step <= found[-1].step:
                raise ArgumentError(f"{name}: step {stage.step} follows step {found[-1].step}: expected rising steps")
            found.append(stage)
        return Stages(found) or None

    def parse(self, text: str) -> Stages | None:
        """See `Kind`."""
        return None if text == "None" else self.check("stages", text)

    def first_difference(self, before: Stages | None, after: Stages | None) -> int | None:
        """See `StepwiseKind`. The first stage of both is the same, or else another argument differs."""
        different = set(before or ()) ^ set(after or ())
        return min((stage.step for stage in different), default=None)


def check_first(name: str, given: Any, default: Any, first: Any) -> None:
    """Checks that an argument and the first stage agree, where both say something.

    Raises:
      ArgumentError: they do not.
    """
    if given not in (default, first):
        raise ArgumentError(f"{name}={given}: the first of stages= has {first}: leave {name}= out, or make them equal")


def _read(name: str, text: str) -> Stage:
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isdecimal() or not part for part in parts) or not parts[0]:
        raise ArgumentError(f"{name}={shortened(text)}: expected stages such as 0:1024:512,10000:4096:128")
    step, length, batch = (int(part) if part else None for part in parts)
    return Stage(step or 0, length, batch)


def described(stages: Sequence[Stage]) -> list[dict[str, int | None]]:
    """Stages as values of JSON."""
    return [vars(stage) for stage in stages]
