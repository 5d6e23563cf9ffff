"""`TogetherIterator`: one host's rows of each step, up to the last step of all hosts."""

from collections.abc import Callable

from gristmill._dataset.iterator import Element, PackedDatasetIterator
from gristmill._dataset.spec import Spec
from gristmill._state.states import State
from gristmill._util import grain_compat
from gristmill.errors import GristmillError

Vote = Callable[[bool], Callable[[], bool]]


class TogetherIterator(PackedDatasetIterator):
    """An iterator of `PackedDataset.iterate_together`.

    Args:
      spec: the definition of the stream, in which lanes end.
      vote: begins a vote on whether any host has rows in a step.
    """

    def __init__(self, spec: Spec, vote: Vote) -> None:
        super().__init__(spec)
        self._vote = vote
        # Begun votes, by the steps before the one that they are about.
        self._votes: dict[int, Callable[[], bool]] = {}

    @grain_compat.unwrapped
    def __next__(self) -> Element:
        """See `PackedDatasetIterator`; rows of padding where other hosts alone have rows."""
        self._assert_not_closed()
        core = self._stream.core
        self._stream.begin(grain_compat.process_count(self))
        self._begin_next()
        self._reporter.tick(self.stats, self._stream)
        try:
            step = own = core.take()
            if own.arrays is None:
                step = core.padding() or own
            if step.arrays is None:
                raise GristmillError("internal error: padding requested before the end of the stream")
            exists = self._vote_on(step.step - 1, own.arrays is not None)()
            if exists:
                self._vote_on(step.step, own.arrays is not None and core.has_more())
        except BaseException:
            core.interrupted = 0  # it comes again
            raise
        if exists:
            self._last = step.step - 1
            element = self._without_committed(step.arrays, self._last)
            core.delivered = step.number
            return element
        core.delivered = step.number - 1  # up to the end, without the padding after it
        self._reporter.end(self.stats, self._stream)
        raise StopIteration

    def set_state(self, state: State) -> None:
        """See `PackedDatasetIterator`; called on all hosts."""
        super().set_state(state)
        for answer in self._votes.values():
            answer()  # the other hosts have begun them too
        self._votes = {}

    def _vote_on(self, step: int, more: bool) -> Callable[[], bool]:
        """The vote on whether any host has rows in the step after `step` steps; begun once."""
        if step not in self._votes:
            self._votes = {known: vote for known, vote in self._votes.items() if known == step - 1}
            self._votes[step] = self._vote(more)
        return self._votes[step]
