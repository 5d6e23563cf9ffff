"""Progress on stderr: a bar on a terminal, elsewhere a plain line at growing intervals."""

import os
import sys
import time
from types import TracebackType
from typing import Self

from tqdm import tqdm

from gristmill._util.output import notice

# Between lines: short at first, so that a short run shows one too, and twice as long after each.
_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 60.0


class Progress:
    """Shows how much of `total` is done. Use it in a `with`, and call `show` as often as you like.

    Args:
      what: the work, for the line.
      total: how much there is to do.
      unit: of `total`.
    """

    def __init__(self, what: str, total: float, unit: str) -> None:
        self._what = what
        self._total = total
        self._interval = _FIRST_SECONDS
        self._next_line = time.monotonic() + self._interval
        self._bar = (
            tqdm(desc=what, total=round(total), unit=unit, unit_scale=True, leave=False, dynamic_ncols=True)
            # Some programs that emulate a terminal give it no width, and a bar would show nothing.
            if sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).columns
            else None
        )

    def show(self, done: float, note: str = "") -> None:
        """Shows that `done` of the total is done, with a note."""
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(round(done) - self._bar.n)
        elif time.monotonic() >= self._next_line:
            self._interval = min(2 * self._interval, _LONGEST_SECONDS)
            self._next_line = time.monotonic() + self._interval
            share = min(1.0, done / self._total) if self._total else 1.0
            notice(f"{self._what}: {share:.0%}" + (f", {note}" if note else ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            # A short run may end before the bar was due to be drawn with its first note.
            self._bar.refresh()
            self._bar.close()
