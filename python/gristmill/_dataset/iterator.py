"""`PackedDatasetIterator`, and the base that it shares with `GlobalBatches`."""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from gristmill._dataset.report import Reporter
from gristmill._dataset.row_numbers import RowNumbers
from gristmill._dataset.spec import Spec
from gristmill._dataset.stream import Stream
from gristmill._state import states
from gristmill._state.checkpoint_files import read_merged
from gristmill._state.commits import Commits
from gristmill._util import checks, grain_compat
from gristmill.errors import ArgumentError, ArgumentTypeError

Element: TypeAlias = "dict[str, npt.NDArray[np.int32]]"
T = TypeVar("T")


class StreamIterator(grain_compat.DatasetIterator[T]):
    """An iterator over a stream. It is a context manager, which closes it, and is neither pickled nor copied."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self._stream = Stream(spec)
        self._reporter = Reporter(spec.running.on_stats)
        self._numbers = RowNumbers(spec)
        self._commits = Commits(self._numbers.before, self._numbers.is_skipped)
        # The step of the first element, and of the last one.
        self._started_at = 0
        self._last: int | None = None

    def start_prefetch(self) -> None:
        """Starts the threads, which prepare batches while the caller does something else.

        Raises:
          ArgumentError: the iterator was closed.
          GristmillError: the system refuses memory or threads, or this process is a fork of the iterator's own.
        """
        self._assert_not_closed()
        self._stream.start(grain_compat.process_count(self))

    def get_state(self) -> states.State:
        """The state after the last element. With a `quarantine_file`, waits until that is on disk.

        Returns:
          A fresh dict of integers and strings, see the guide on resuming. `GlobalBatches`: it is that of the lanes of
          this process; `merge_states` merges those of all processes. After the first `commit` it counts what was
          committed, and not what was delivered.

        Raises:
          GristmillError: the quarantine file was removed or cannot be written to the disk, or this process was forked
            while another thread was in a call of the iterator.
        """
        if not self._commits.has_begun:
            return self._stream.state()
        position = self._stream.position()
        state = self._commits.state(lambda: position, position["step"])
        self._stream.sync()
        return state

    def commit(self, what: "int | Sequence[int] | npt.NDArray[np.integer[Any]]") -> None:
        """Says that a step, or rows of steps, were trained on: for loops with a queue between loader and trainer.

        From the first call on, states count what was committed, in any order. A restored iterator delivers each step
        that was not; of a step of which some rows were, these are padding, and nothing of them is trained on. Call it
        on every host with the same steps.

        Args:
          what: a step, counted from 0, or ids of rows, see `ids`. Committing again changes nothing; an
            empty list only begins to count, before a state that is saved ahead of the first commit.

        Raises:
          ArgumentError: a step or row was not delivered; or there is no `batch_size`.
          ArgumentTypeError: it is neither a step nor ids.
        """
        if self._stream.spec.rows.batch_size is None:
            raise ArgumentError("commit: single rows have no step of their own; set the dataset's batch_size")
        position = self._stream.position()
        start = self._stream.start_position
        self._commits.commit(what, self._started_at, position["step"], start, lambda: position)

    @property
    def step(self) -> int | None:
        """The step of the last element, counted from 0; None before the first one."""
        return self._last

    @property
    def ids(self) -> "npt.NDArray[np.int64]":
        """The ids of the rows of the last element, int64 `[rows]`: their numbers in the stream, for `commit`.

        They are counted over all steps and hosts: with a constant `batch_size`, row r of the global batch of step t has
        the id `t * batch_size + r`.
        """
        if self._last is None:
            return np.empty(0, np.int64)
        return self._numbers.before(self._last) + self._numbers.own(self._last)

    def _begin_next(self) -> None:
        """Before the next element: keeps the position, once something was committed."""
        if self._commits.has_begun:
            position = self._stream.position()
            self._commits.note(position["step"], lambda: position)

    def _without_committed(self, element: Element, step: int) -> Element:
        """The rows of a step, of which those that were committed are padding."""
        rows = self._commits.rows_of(step)
        own = [index for index, row in enumerate(self._numbers.own(step).tolist()) if row in rows] if rows else []
        if not own:
            return element
        padding = {field.name: field.padding for field in self._stream.spec.fields}
        changed = {name: np.array(array) for name, array in element.items()}
        for name, array in changed.items():
            array[own] = padding[name]
        return changed

    def set_state(self, state: states.State) -> None:
        """Moves to a saved position; the next element is the one that followed there.

        Args:
          state: a state of this dataset that holds at least the lanes of this iterator: its own, one of
            an iterator with more lanes, or one made by `merge_states`. The dataset may have another `on_error` and
            `max_error_rate` than the one that saved it and, if no record was quarantined until then, a larger
            `max_document_bytes`: the rows delivered so far are the same.

        Raises:
          StateError: the state belongs to another stream, lacks lanes, or is damaged; the iterator stays where it was.
            A state that only the shards can refute is refused by the next `next`.
          ArgumentError: the iterator was closed.
          GristmillError: records were quarantined before, and the quarantine file was removed or cannot be written to
            the disk; the iterator stays where it was.
        """
        self._assert_not_closed()
        checked = self._stream.restore(state)
        self._commits.restart(checked, checked["step"])
        self._started_at, self._last = checked["step"], None
        self._reporter.restored(self._stream)

    def stats(self) -> dict[str, Any]:
        """Figures of the lanes of this iterator, up to the last element.

        Returns:
          `records` that were read, `documents` whose last token was delivered, `filtered_samples`, those left out of
          records of which others are delivered, `only_stops`, those of which nothing that their messages say is trained
          on but the tokens that end them, `tokens` (BOS and EOS included), `text_bytes` of UTF-8, `rows`, `batches`
          (whole steps), `skipped_steps`, which these counts include, `padding_tokens`, `dropped_tokens`,
          `dropped_messages`, those that `truncation="turns"` left out of documents, `filtered` and `quarantined`
          records and `lost_shards`, the shards that could not be read to their end, counted since the start of the
          stream and kept through restarts (of a window of documents, `records` and the last three count once all was
          delivered); and of this iterator: `skipped_tokens`, the tokens of the steps that it has skipped,
          `wait_seconds` spent waiting in `next`, `elapsed_seconds` since the first `next`, `ring_ready` batches that
          wait to be taken, `busy_seconds`, a dict of the seconds that all threads together have spent in each phase, by
          the clock on the wall, so that time in which the system runs another thread counts: `read` (inflating and
          splitting), `encode` (extracting the text and encoding it) and `pack`; and `verified`, the documents whose ids
          were compared with the reference's (`verify=`) and found equal, those prepared ahead included. A run whose
          `wait_seconds` grows much slower than its `elapsed_seconds` is not bound by its input.

          With samples with images also `images` and `image_tokens` of the rows, `undecodable`, the documents that are
          not trained on because an image of theirs is damaged, and the seconds of the phase `decode`.

          With a mixture also `sources`: a dict for each source by name, with its `rows`, `tokens`, `trained_tokens`,
          `documents`, `only_stops`, `filtered` and `quarantined`, `epochs` (how many a lane has finished, on average),
          `exhausted_lanes` (those in which it has delivered its last epoch), `asked` (the share of the rows that the
          weights have asked for up to here) and `given` (its share of the rows).
        """
        return self._stream.stats()

    def quarantine(self) -> list[dict[str, Any]]:
        """The records quarantined, and delivered samples with images that cannot be decoded, up to the last element.

        Returns:
          The newest of them since this iterator was made or restored, each with `shard`, `record`, `byte` and
          `reason`: at most ten thousand, and of each lane at most a thousand of those that are read together, so there
          may be fewer than `stats()` counts, or none. `record` and `byte` are None of a shard that could not be opened
          as the manifest's. `quarantine_file` lists all.
        """
        return self._stream.core.quarantine(0)[1]

    def close(self) -> None:
        """Stops and joins the threads. Delivered elements stay valid."""
        if not hasattr(self, "_reporter"):
            return  # its `__init__` failed, and Grain's `__del__` closes it
        try:
            if not self._is_closed():
                self._reporter.report(self.stats, self._stream)
        finally:  # `on_stats` is the user's and may raise: the threads end all the same
            self._stream.close()
            super().close()

    async def load(self, directory: Any) -> Any:
        """Reads and merges the states of all processes; called by Orbax's `load_checkpointables`."""

        async def load() -> None:
            self.set_state(await asyncio.to_thread(read_merged, directory))

        return load()

    @property
    def _parent(self) -> Any:
        return grain_compat.no_parent()

    def _is_closed(self) -> bool:
        # Grain only raises an error of its own, which is not an `ArgumentError`. A method, because Grain closes
        # iterators while the interpreter ends, when the names of modules are gone.
        return self._closed

    def _assert_not_closed(self) -> None:
        if self._is_closed():
            raise ArgumentError("this iterator was closed: create another one of the dataset")

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise ArgumentTypeError(
            "an iterator has threads, and is neither pickled nor copied: save its get_state(), and restore that "
            "with set_state() of another iterator of the dataset"
        )


class PackedDatasetIterator(StreamIterator[Element]):
    """Iterates over a `PackedDataset`; made by `iter(dataset)`, and a context manager.

    Its threads start with the first `next` or `start_prefetch`, and end with `close` or the end of a `with`.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._equal = spec.running if spec.running.equal_steps else None

    @grain_compat.unwrapped
    def __next__(self) -> Element:
        """The next element.

        Returns:
          A dict of int32 arrays, with the keys of the `layout`, see `PackedDataset`: `[rows, sequence_length]`
          with `batch_size`, where `rows` are those of the lanes of this iterator, else `[sequence_length]`. With
          `provenance` also `provenance`, `[rows, entries, 4]` or `[entries, 4]` (5 where records become several
          samples); with `source_arrays` also `source` and
          `weight` (float32), `[rows]` or of no axes. The arrays of `varlen` have other shapes, too. The arrays are the
          caller's to keep and to change.

        Raises:
          StopIteration: the lanes of this iterator have delivered all their epochs.
          ShardError: a record cannot be used. All before it was delivered; each further call raises
            the same error, and the state stays after the last element.
          StateError: the shards show that the state it was restored from is not of this stream.
          ArgumentError: the iterator was closed; or `epochs=None`, and a lane's shards of an epoch hold no document; or
            `keep` kept no record, and looks for a value elsewhere than where it is.
          GristmillError: the system refuses memory or threads, or this process is a fork of the iterator's own.
        """
        self._assert_not_closed()
        core = self._stream.core
        self._stream.begin(grain_compat.process_count(self))
        self._begin_next()
        self._reporter.tick(self.stats, self._stream)
        try:
            with grain_compat.measured(self):
                taken = core.take()
                element = taken.arrays
                if element is not None:
                    self._last = taken.step - 1
                    if self._equal is not None:
                        element = _part(element, self._equal.shard_index, self._equal.shard_count)
                    element = self._without_committed(element, taken.step - 1)
                    element = grain_compat.recorded(self, element)
        except BaseException as error:
            core.interrupted = 0  # it comes again, whichever thread asks
            if isinstance(error, ArgumentError):
                self._stream.check_keeps_some()  # a lane without documents
            raise
        core.delivered = taken.number
        if element is None:
            self._reporter.end(self.stats, self._stream)
            self._stream.check_keeps_some()
            raise StopIteration
        return element

    def get_shard_states(self) -> list[dict[str, Any]]:
        """The state of each own lane by itself, as Grain's elastic iterators save them.

        Returns:
          A list with a dict for each lane: `exhausted`, whether it has delivered all its epochs, and `state`.
        """
        state = self.get_state()
        return [
            {"exhausted": states.is_at_end(lane_state), "state": lane_state}
            for lane_state in (states.lane_state(state, lane) for lane in state["lanes"])
        ]

    def set_shard_states(self, shard_states: Sequence[Mapping[str, Any]]) -> None:
        """Moves to a position saved by `get_shard_states`, of this or of several iterators.

        Args:
          shard_states: those of at least the own lanes, in any order.

        Raises:
          StateError: as for `set_state` and `merge_states`.
          ArgumentTypeError: `shard_states` is not a list.
        """
        entries = checks.items("shard_states", shard_states, "a list of values of get_shard_states")
        own = self._stream.spec.running.own_lanes
        if entries or own:
            self.set_state(states.merge_lanes(entries, own))


def _part(element: Element, index: int, count: int) -> Element:
    """The rows of one of some hosts, of those of a step."""
    rows = len(next(iter(element.values()))) // count
    return {name: array[index * rows : (index + 1) * rows] for name, array in element.items()}


def position_of(iterator: StreamIterator[Any]) -> states.State:
    """The state of an iterator, which may count quarantined records that are not on disk yet."""
    return iterator._stream.position()
