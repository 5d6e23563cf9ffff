"""Kinds of arguments: how a value is checked, and how it is read from text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from gristmill._filter.compiler import Keep, compile_filter
from gristmill._sample import samples
from gristmill._shards import stores
from gristmill._shards.rows import RowList
from gristmill._shards.sidecars import Sidecars
from gristmill._tokenizer import special_tokens
from gristmill._util import checks
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError

_MOST_DIGITS = 20


class Kind(Protocol):
    """The values that an argument takes."""

    def check(self, name: str, value: Any) -> Any:
        """The value of the argument `name`, as Python's own type.

        Raises:
          ArgumentError: the value is not allowed.
          ArgumentTypeError: the value is of the wrong type.
        """

    def parse(self, text: str) -> Any:
        """The value that `str` writes as this text.

        Raises:
          ValueError: `str` writes no value of this kind so.
        """


class StepwiseKind(Kind, Protocol):
    """The values of an argument that says something of some steps, and may change for those to come."""

    def first_difference(self, before: Any, after: Any) -> int | None:
        """The first step for which two checked values say another thing; None if there is none."""


@dataclass(frozen=True)
class Integer:
    """An integer within bounds, or None where that is allowed."""

    least: int
    most: int
    or_none: bool = False

    def check(self, name: str, value: Any) -> int | None:
        """See `Kind`."""
        check = checks.optional_integer if self.or_none else checks.integer
        return check(name, value, self.least, self.most)

    def parse(self, text: str) -> int | None:
        """See `Kind`."""
        return None if self.or_none and text == "None" else int(text)


@dataclass(frozen=True)
class Fraction:
    """A number from 0 to 1."""

    def check(self, name: str, value: Any) -> float:
        """See `Kind`."""
        return checks.fraction(name, value)

    def parse(self, text: str) -> float:
        """See `Kind`."""
        return float(text)


@dataclass(frozen=True)
class Boolean:
    """True or False."""

    def check(self, name: str, value: Any) -> bool:
        """See `Kind`."""
        return checks.boolean(name, value)

    def parse(self, text: str) -> bool:
        """See `Kind`."""
        if text not in ("False", "True"):
            raise ValueError(text)
        return text == "True"


@dataclass(frozen=True)
class Choice:
    """One of some words, or None where that is allowed."""

    words: Sequence[str]
    or_none: bool = False

    def check(self, name: str, value: Any) -> str | None:
        """See `Kind`."""
        return None if self.or_none and value is None else checks.choice(name, value, self.words)

    def parse(self, text: str) -> str | None:
        """See `Kind`."""
        return None if self.or_none and text == "None" else text


@dataclass(frozen=True)
class Text:
    """A string that is not empty."""

    def check(self, name: str, value: Any) -> str:
        """See `Kind`."""
        return checks.text(name, value)

    def parse(self, text: str) -> str:
        """See `Kind`."""
        return text


@dataclass(frozen=True)
class Filter:
    """An expression that records must satisfy, or None."""

    def check(self, name: str, value: Any) -> Keep | None:
        """See `Kind`."""
        return None if value is None else compile_filter(name, value)

    def parse(self, text: str) -> str | None:
        """See `Kind`."""
        return None if text == "None" else text


@dataclass(frozen=True)
class SidecarsKind:
    """Sidecars by name, or None."""

    def check(self, name: str, value: Any) -> Sidecars | None:
        """See `Kind`."""
        return Sidecars.check(name, value)

    def parse(self, text: str) -> str | None:
        """See `Kind`."""
        return None if text == "None" else text


@dataclass(frozen=True)
class RowListKind:
    """A row list, or None."""

    def check(self, name: str, value: Any) -> RowList | None:
        """See `Kind`."""
        return RowList.check(name, value)

    def parse(self, text: str) -> str | None:
        """See `Kind`."""
        return None if text == "None" else text


@dataclass(frozen=True)
class StorageOptionsKind:
    """Options of stores by name, or None."""

    def check(self, name: str, value: Any) -> stores.StorageOptions | None:
        """See `Kind`."""
        return stores.check_options(name, value)

    def parse(self, text: str) -> list[str] | None:
        """See `Kind`. It is one option."""
        return None if text == "None" else [text]


@dataclass(frozen=True)
class SampleKind:
    """The sample that a record becomes, or None for its text."""

    def check(self, name: str, value: Any) -> samples.Sample | None:
        """See `Kind`."""
        return samples.check(name, value)

    def parse(self, text: str) -> str | None:
        """See `Kind`. A fingerprint describes a sample, and does not hold its template."""
        return None if text == "None" else text


class Steps(tuple[tuple[int, int], ...]):
    """Ranges of steps, in order and apart: each a first step and an end, which is not in it."""

    def __str__(self) -> str:
        return ",".join(f"{first}:{end}" for first, end in self)

    def within(self, start: int, end: int) -> "Steps":
        """The parts of the ranges from one step up to another."""
        parts = ((max(first, start), min(last, end)) for first, last in self)
        return Steps((first, last) for first, last in parts if first < last)


@dataclass(frozen=True)
class StepRanges:
    """Ranges of steps as pairs, or text such as `12000:12200,13000:13010`; None, too, stands for no step."""

    most: int = 2**62

    def check(self, name: str, value: Any) -> Steps | None:
        """See `Kind`."""
        expected = "pairs of a first step and an end behind it, such as (12_000, 12_200)"
        if isinstance(value, str):
            texts = [pair.split(":") for pair in value.split(",")]
            if not all(step.isdecimal() for pair in texts for step in pair):
                raise ArgumentError(f"{name}={shortened(value)}: expected text such as 12000:12200,13000:13010")
            value = [list(map(int, pair)) for pair in texts]
        given = checks.items(name, () if value is None else value, f"a list of {expected}")
        pairs = [checks.items(name, pair, expected) for pair in given]
        found: list[tuple[int, int]] = []
        for pair in sorted([checks.integer(name, step, 0, self.most) for step in pair] for pair in pairs):
            if len(pair) != 2 or pair[0] >= pair[1]:
                raise ArgumentError(f"{name}={shortened(pair)}: expected {expected}")
            if found and pair[0] <= found[-1][1]:
                found[-1] = (found[-1][0], max(found[-1][1], pair[1]))
            else:
                found.append((pair[0], pair[1]))
        return Steps(found) or None

    def parse(self, text: str) -> Steps | None:
        """See `Kind`."""
        return None if text == "None" else self.check("", text)

    def first_difference(self, before: Steps | None, after: Steps | None) -> int | None:
        """See `StepwiseKind`."""
        borders = {step for ranges in (before, after) for pair in ranges or () for step in pair}
        sides = [before or Steps(), after or Steps()]
        return next(
            (step for step in sorted(borders) if len({bool(one.within(step, step + 1)) for one in sides}) > 1), None
        )


@dataclass(frozen=True)
class FilePath:
    """The path of a file to write, or None."""

    def check(self, name: str, value: Any) -> str | None:
        """See `Kind`."""
        return None if value is None else checks.path(name, value)

    def parse(self, text: str) -> str | None:
        """See `Kind`."""
        return None if text == "None" else text


@dataclass(frozen=True)
class SpecialToken:
    """A token by its spelling or id, True for the tokenizer's own, False for none."""

    # Words of the command line, and those that `str` writes.
    words: ClassVar[Mapping[str, bool | None]] = {
        "auto": True,
        "none": False,
        "None": None,
        "True": True,
        "False": False,
    }

    def check(self, name: Any, value: Any) -> str | int | bool | None:
        """See `Kind`."""
        return special_tokens.check_type(name, value)

    def parse(self, text: str) -> str | int | bool | None:
        """See `Kind`."""
        if text in self.words:
            return self.words[text]
        # More digits than an id has are a spelling, which no vocabulary has.
        return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else text


@dataclass(frozen=True)
class Other:
    """A value with a check of its own, which text cannot express."""

    own_check: Callable[[str, Any], Any] = lambda _, value: value

    def check(self, name: str, value: Any) -> Any:
        """See `Kind`."""
        return self.own_check(name, value)

    def parse(self, text: str) -> str:
        """See `Kind`."""
        return text
