"""`Cost`: the cost of a row, by which steps are balanced."""

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gristmill._util import checks
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError


@dataclass(frozen=True)
class Cost:
    """The cost of computing a row: the sum over its segments of `linear * n + quadratic * n**2`, of n tokens.

    Attributes:
      linear: the cost of a token.
      quadratic: the cost of a pair of tokens of one segment, which attention compares: relative to `linear`, about the
        number of tokens at which attention costs as much as all else, inverted.

    Raises:
      ArgumentError: a value is negative or not finite, or both are 0.
      ArgumentTypeError: a value is no number.
    """

    linear: float = 1.0
    quadratic: float = 0.0

    def __post_init__(self) -> None:
        for name in ("linear", "quadratic"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise checks.wrong_type(name, value, "a number from 0 on")
            number = float(value)
            if not (math.isfinite(number) and number >= 0):
                raise ArgumentError(f"{name}={value!r}: expected a finite number from 0 on")
            object.__setattr__(self, name, number)
        if not (self.linear or self.quadratic):
            raise ArgumentError("linear=0, quadratic=0: expected rows that cost something")

    @property
    def fingerprint(self) -> str:
        """Both numbers as text."""
        return f"{self.linear!r},{self.quadratic!r}"


@dataclass(frozen=True)
class CostKind:
    """A `Cost`, a dict of its numbers, text such as `1.0,0.0001`, or None."""

    def check(self, name: str, value: Any) -> Cost | None:
        """See `Kind`."""
        if isinstance(value, Mapping):
            if unknown := value.keys() - {"linear", "quadratic"}:
                raise ArgumentError(
                    f"{name}={shortened(value)}: expected linear and quadratic, got {sorted(unknown)!r}"
                )
            return Cost(**value)
        if value is None or isinstance(value, Cost):
            return value
        if isinstance(value, str):
            try:
                linear, quadratic = map(float, value.split(","))
            except ValueError:
                raise ArgumentError(
                    f"{name}={shortened(value)}: expected the linear and the quadratic cost, such as 1.0,0.0001"
                ) from None
            return Cost(linear, quadratic)
        raise checks.wrong_type(name, value, "a gm.Cost or None")

    def parse(self, text: str) -> Cost | None:
        """See `Kind`."""
        return None if text == "None" else self.check("", text)
