"""Commits: the steps, or rows of steps, that were trained on, in any order.

Between loader and trainer there may be a queue. A state then counts what was committed, and not what was delivered: it
is the position before the first step that is not committed, with the steps and rows behind it that are.

    delivered   0 1 2 3 4 5 6 7          state    step 2, committed="4,6-7"
    committed   0 1   x   x   x x        restored 2, 3, 5, then 8

Such a state says so also where nothing is behind it (`committed=""`), so that the iterators which are restored from it
count likewise. As text, single rows of a step, by their index in the global batch, follow a colon: "4,6-7,9:0-3+5".
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gristmill._util import checks
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError, StateError

KEY = "committed"
_NUMBER = "(?:0|[1-9][0-9]{0,18})"
_ITEM = re.compile(f"({_NUMBER})(?:-({_NUMBER})|:({_NUMBER}(?:-{_NUMBER})?(?:[+]{_NUMBER}(?:-{_NUMBER})?)*))?")
_LARGEST = 2**62
_MOST = 2**24

Positions = Callable[[], "dict[str, Any]"]


class Committed:
    """Steps that are committed, and of others the rows that are.

    Attributes:
      steps: the steps.
      rows: the rows of other steps, by their index in the global batch.
    """

    def __init__(self) -> None:
        self.steps: set[int] = set()
        self.rows: dict[int, set[int]] = {}

    @classmethod
    def read(cls, text: Any) -> "Committed":
        """Reads what `str` writes.

        Raises:
          StateError: it is something else.
        """
        found = cls()
        wrong = StateError(f"a state's {KEY} are steps and rows such as 4,6-7,9:0-3+5, got {shortened(text)}")
        if not isinstance(text, str):
            raise wrong
        for item in text.split(",") if text else ():
            match = _ITEM.fullmatch(item)
            if match is None:
                raise wrong
            first, last, rows = match.groups()
            if rows:
                parts = [part.partition("-")[::2] for part in rows.split("+")]
                ranges = [range(int(start), int(end or start) + 1) for start, end in parts]
                if any(not numbers or len(numbers) > _MOST for numbers in ranges):
                    raise wrong
                found.rows.setdefault(int(first), set()).update(*ranges)
                continue
            steps = range(int(first), int(last or first) + 1)
            if not steps or len(steps) > _MOST or steps[-1] > _LARGEST:
                raise wrong
            found.steps.update(steps)
        return found

    def __str__(self) -> str:
        whole = [(first, _text(first, last)) for first, last in _runs(self.steps)]
        parts = [
            (step, f"{step}:" + "+".join(_text(*run) for run in _runs(rows)))
            for step, rows in self.rows.items()
            if rows and step not in self.steps
        ]
        return ",".join(text for _, text in sorted([*whole, *parts]))

    def __bool__(self) -> bool:
        return bool(self.steps or self.rows)

    def ranges(self) -> list[tuple[int, int]]:
        """The steps as ranges, each a first step and an end."""
        return [(first, last + 1) for first, last in _runs(self.steps)]

    def add_rows(self, step: int, rows: Iterable[int], rows_of_step: int) -> None:
        """Adds rows of a step, which is committed once all of them are."""
        if step in self.steps:
            return
        known = self.rows.setdefault(step, set())
        known.update(rows)
        if len(known) >= rows_of_step:
            self.add_step(step)

    def add_step(self, step: int) -> None:
        """Adds a step."""
        self.steps.add(step)
        self.rows.pop(step, None)

    def forget(self, before: int) -> None:
        """Forgets the steps before one."""
        self.steps = {step for step in self.steps if step >= before}
        self.rows = {step: rows for step, rows in self.rows.items() if step >= before}


def merged(texts: Sequence["str | None"], caller: str) -> "str | None":
    """The commits of all hosts, of those of each: the same steps, and any rows.

    Raises:
      StateError: the steps differ; or a text is damaged.
    """
    if texts.count(None) == len(texts):
        return None
    found = [Committed() if text is None else Committed.read(text) for text in texts]
    for one in found:
        if one.steps != found[0].steps:
            raise StateError(
                f"{caller}: one host has committed the steps {shortened(found[0].ranges())} behind the state's, and "
                f"another {shortened(one.ranges())}: commit the same steps on every host"
            )
        for step, rows in one.rows.items():
            found[0].rows.setdefault(step, set()).update(rows)
    return str(found[0])


class Commits:
    """The steps that an iterator has delivered, and those of them that were committed.

    It begins with the first commit: before, states count what was delivered.

    Args:
      rows_before: the number of rows of all steps before one.
      is_skipped: whether a step is never delivered.
    """

    def __init__(self, rows_before: Callable[[int], int], is_skipped: Callable[[int], bool]) -> None:
        self._rows_before, self._is_skipped = rows_before, is_skipped
        self._start: dict[str, Any] | None = None
        # Positions by the steps before them; None before the first commit.
        self._positions: dict[int, dict[str, Any]] | None = None
        self.committed = Committed()
        # Rows of delivered steps that hold nothing, of which nobody has to say that they were trained on.
        self._empty: dict[int, set[int]] = {}

    @property
    def has_begun(self) -> bool:
        """Whether something was committed, so that states count that."""
        return self._positions is not None

    def restart(self, state: Mapping[str, Any] | None, step: int) -> None:
        """Begins at a state whose next step is `step`; None: at the start."""
        text = None if state is None else state.get(KEY)
        self.committed = Committed() if text is None else Committed.read(text)
        self._start = None if state is None else {name: value for name, value in state.items() if name != KEY}
        self._positions = {step: self._start} if text is not None and self._start is not None else None
        self._empty = {}

    def delivered_empty(self, step: int, rows: Iterable[int]) -> None:
        """Knows rows of a delivered step that hold nothing."""
        self._empty[step] = set(rows)

    def note(self, step: int, position: Positions) -> None:
        """Before the next element: keeps the position after `step` steps, once something was committed."""
        if self._positions is not None and step not in self._positions:
            self._positions[step] = position()

    def commit(self, what: Any, first: int, steps: int, start: Positions, position: Positions) -> None:
        """Commits a step, or rows by their ids.

        Args:
          what: the step, or a list or array of ids.
          first: the first step that was delivered, or restored.
          steps: the steps that were delivered.
          start: makes the position at the start of the stream.
          position: makes the position after the last step.

        Raises:
          ArgumentError: it was not delivered.
          ArgumentTypeError: it is neither a step nor ids.
        """
        by_step = self._checked(what, steps)
        if self._positions is None:
            began = start() if self._start is None else self._start
            self._positions = {first: began}
        self.note(steps, position)
        for step, rows in by_step.items():
            if rows is None:
                self.committed.add_step(step)
            else:
                self.committed.add_rows(step, {*rows, *self._empty.get(step, ())}, self._rows_of(step))
        base = self._base()
        self.committed.forget(base)
        self._positions = {step: one for step, one in self._positions.items() if step >= base}
        self._empty = {step: rows for step, rows in self._empty.items() if step >= base}

    def _checked(self, what: Any, steps: int) -> "dict[int, list[int] | None]":
        if _is_number(what):
            step = checks.integer("step", what, 0, _LARGEST)
            if step in self.committed.steps:
                return {}
            if step >= steps or self._is_skipped(step):
                raise ArgumentError(f"commit({step}): expected a step that was delivered, one before {steps}")
            return {step: None}
        ids = checks.items("ids", getattr(what, "tolist", lambda: what)(), "a step, or a list of ids")
        found: dict[int, list[int] | None] = {}
        delivered = self._rows_before(steps)
        for given in ids:
            number = checks.integer("ids", given, 0, _LARGEST)
            step = self._step_of(number, max(steps, *self.committed.steps, 0) + 1)
            if step in self.committed.steps:
                continue
            if step >= steps or self._is_skipped(step):
                raise ArgumentError(f"commit: id {number}: expected one of a row that was delivered, below {delivered}")
            rows = found.setdefault(step, [])
            if rows is not None:
                rows.append(number - self._rows_before(step))
        return found

    def _step_of(self, number: int, steps: int) -> int:
        low, high = 0, steps
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._rows_before(middle) <= number else (low, middle)
        return low

    def _rows_of(self, step: int) -> int:
        return self._rows_before(step + 1) - self._rows_before(step)

    def _base(self) -> int:
        """The last known position before which every step is committed."""
        assert self._positions is not None
        known = sorted(self._positions)
        open_from, base = known[0], known[0]
        for step in known:
            while open_from < step and (open_from in self.committed.steps or self._is_skipped(open_from)):
                open_from += 1
            if open_from < step:
                break
            base = step
        return base

    def state(self, position: Positions, step: int) -> dict[str, Any]:
        """The state: after the last element, or once something was committed, before the first step that is not."""
        if self._positions is None:
            return position()
        self.note(step, position)
        base = self._base()
        return {**self._positions[base], KEY: str(self.committed)}

    def rows_of(self, step: int) -> set[int]:
        """The committed rows of a step, not all of which are."""
        return self.committed.rows.get(step, set())


def _is_number(what: Any) -> bool:
    return hasattr(what, "__index__") and not hasattr(what, "__len__")


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The first and last of each run of successive numbers."""
    for _, run in itertools.groupby(enumerate(sorted(numbers)), lambda one: one[1] - one[0]):
        found = [number for _, number in run]
        yield found[0], found[-1]


def _text(first: int, last: int) -> str:
    return f"{first}-{last}" if last > first else str(first)
