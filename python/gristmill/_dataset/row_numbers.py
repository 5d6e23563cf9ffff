"""`RowNumbers`: the rows of a stream, counted over all steps."""

import numpy as np
import numpy.typing as npt

from gristmill._dataset.spec import Spec


class RowNumbers:
    """The numbers of the rows of a stream, and of those of one host.

    Args:
      spec: the definition of the stream.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        # For each interval its first step, the rows of all steps before it, and its own spec.
        self._intervals: list[tuple[int, int, Spec]] = []
        for one in spec.intervals:
            first, before = one.interval.first, 0
            if self._intervals:
                start, passed, last = self._intervals[-1]
                before = passed + (first - start) * last.rows_per_step
            self._intervals.append((first, before, one))

    def before(self, step: int) -> int:
        """The number of rows of all steps before one, of all hosts."""
        first, before, spec = self._of(step)
        return before + (step - first) * spec.rows_per_step

    def own(self, step: int) -> "npt.NDArray[np.int64]":
        """The rows of a step that this host delivers, by their index in the global batch."""
        spec = self._of(step)[2]
        running = spec.running
        if running.equal_steps:
            rows = spec.rows_per_step // running.shard_count
            return np.arange(running.shard_index * rows, (running.shard_index + 1) * rows)
        lanes = np.asarray(running.own_lanes, np.int64)
        return (lanes[:, None] * spec.rows_per_lane + np.arange(spec.rows_per_lane)).reshape(-1)

    def is_skipped(self, step: int) -> bool:
        """Whether a step is never delivered."""
        return any(first <= step < end for first, end in self._spec.order.skip or ())

    def _of(self, step: int) -> tuple[int, int, Spec]:
        return [one for one in self._intervals if one[0] <= step][-1]
