"""`PackedDatasetIterator`: what `iter` of a `PackedDataset` gives, and what it tells of itself."""

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import grain
import numpy as np
import numpy.typing as npt

from gristmill import _core
from gristmill._dataset import grain_compat
from gristmill._dataset.report import Reporter
from gristmill._spec import fingerprints
from gristmill._state import states
from gristmill._state.checkpoint_files import LoadsAnyProcessCount
from gristmill._util import checks
from gristmill.errors import ArgumentError, ArgumentTypeError, GristmillError, StateError

if TYPE_CHECKING:
    from gristmill._spec.spec import Spec

Element: TypeAlias = "dict[str, npt.NDArray[np.int32]]"


class ClosableIterator(grain_compat.Closable, LoadsAnyProcessCount):
    """What the iterators of this package share: they can be closed and restored, and neither pickled nor copied.

    They are context managers, which close them.
    """

    def __reduce__(self) -> Any:
        raise ArgumentTypeError(
            "an iterator has threads, and is neither pickled nor copied: save its get_state(), and give that to "
            "set_state() of another iterator of the dataset"
        )

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()  # type: ignore[attr-defined]

    def _assert_not_closed(self) -> None:
        if self._is_closed():
            raise ArgumentError("this iterator was closed: create another one of the dataset")


class PackedDatasetIterator(ClosableIterator, grain_compat.Source, grain.DatasetIterator[Element]):
    """Iterates over a `PackedDataset`; made by `iter(dataset)`, and a context manager.

    Its threads start with the first `next` or `start_prefetch`, and end with `close` or the end of a `with`.
    """

    def __init__(self, spec: "Spec", reports: bool = True) -> None:
        super().__init__()
        self._spec = spec
        self._fingerprint = spec.fingerprint
        self._pipeline = _core.Pipeline(spec.tokenizing.tokenizer._core, spec)
        self._shares_cores = False
        self._started: float | None = None
        self._reporter = Reporter(spec.running.on_stats) if reports else None

    @grain_compat.unwrapped
    def __next__(self) -> Element:
        """The next element.

        Returns:
          A dict of int32 arrays, with the keys of the `layout`, see `PackedDataset`: `[rows, sequence_length]`
          with `batch_size`, where `rows` are those of the lanes of this iterator, else `[sequence_length]`. With
          `provenance` also `provenance`, `[rows, entries, 4]` or `[entries, 4]`. The arrays are the caller's to
          keep and to change.

        Raises:
          StopIteration: all epochs of the lanes of this iterator have been given.
          ShardError: a record cannot be used. What lies before it has been given; each further call raises
            the same error, and the state stays after the last element.
          StateError: the shards show that the state it goes on from is not of this stream.
          ArgumentError: the iterator was closed; or `epochs=None`, and a lane's shards of an epoch hold no document.
          GristmillError: the system refuses memory or threads, or this process is a fork of the iterator's own.
        """
        self._assert_not_closed()
        self._share_cores()
        if self._started is None:
            self._started = time.perf_counter()
        if self._reporter:
            self._reporter.tick(self)
        try:
            with grain_compat.measured(self):
                element = self._pipeline.next()
                if element is not None:
                    element = grain_compat.recorded(self, element)
        except BaseException:
            self._pipeline.is_handing_out = True  # it comes again, whichever thread asks
            raise
        if element is None:
            if self._reporter:
                self._reporter.end(self)
            raise StopIteration
        self._pipeline.is_handing_out = False  # nothing can come between this and the caller
        return element

    def start_prefetch(self) -> None:
        """Starts the threads, which fill the ring while the caller does something else.

        Raises:
          ArgumentError: the iterator was closed.
          GristmillError: the system refuses memory or threads, or this process is a fork of the iterator's own.
        """
        self._assert_not_closed()
        self._share_cores()
        self._pipeline.start()

    def get_state(self) -> states.State:
        """Where the stream stands after the last element given. With a `quarantine_file`, waits until that is on disk.

        Returns:
          A fresh dict of integers and strings, see the guide on resuming.

        Raises:
          GristmillError: the quarantine file was removed or cannot be written to the disk, or this process was forked
            while another thread was in a call of the iterator.
        """
        place = self._place()
        self._sync()
        return place

    def _sync(self) -> None:
        """Before a state is given out: the quarantine file must not lose what the state counts."""
        self._pipeline.sync_quarantine_file()

    def _place(self) -> states.State:
        step, row, lanes = self._pipeline.state()
        return {
            "version": _core.STATE_VERSION,
            "fingerprint": self._fingerprint,
            "ids": self._spec.tokenizing.tokenizer.ids_fingerprint,
            "step": step,
            "row": row,
            "lanes": lanes,
        }

    def set_state(self, state: states.State) -> None:
        """Goes to a saved place; the next element is the one that followed there.

        Args:
          state: a state of this dataset that holds at least the lanes of this iterator: its own, one of
            an iterator with more lanes, or one made by `merge_states`. The dataset may have another `on_error` and
            `max_error_rate` than the one that saved it and, if no record was left out until then, a larger
            `max_document_bytes`: what was given so far is the same.

        Raises:
          StateError: the state belongs to another stream, lacks lanes, or is damaged. What only the
            shards can tell is found by the next `next`.
          ArgumentError: the iterator was closed.
        """
        self._assert_not_closed()
        checked = states.check(state)
        if different := fingerprints.incompatibilities(
            checked["fingerprint"], self._fingerprint, states.has_left_out(checked)
        ):
            raise StateError(
                f"the state was saved by another dataset: {different}. Use the same shards, tokenizer and arguments as "
                "the run that saved it; to add shards, finish the epoch on the old ones and start anew on the new"
            )
        states.check_ids(checked["ids"], self._spec.tokenizing.tokenizer.ids_fingerprint)
        own = self._spec.running.own_lanes
        missing = [lane for lane in own if str(lane) not in checked["lanes"]]
        if missing:
            raise StateError(
                f"the state holds the lanes {', '.join(checked['lanes']) or '(none)'}, and this iterator also needs "
                f"{', '.join(map(str, missing))}: join the states of all hosts with gristmill.merge_states"
            )
        rows, length = self._spec.rows_per_step, self._spec.rows.sequence_length
        if checked["step"] > (most := _core.CURSOR_LARGEST // (rows * length)):
            raise StateError(
                f"the state's step is {checked['step']}: expected at most {most}, for in steps of {rows} rows of "
                f"{length} tokens no stream goes further"
            )
        if checked["row"] and len(checked["lanes"]) != len(own):
            raise StateError(
                "the state was saved between the rows of a step, and restores only onto the same lanes: save after a "
                "whole step, or use batch_size"
            )
        cursors = [checked["lanes"][str(lane)] for lane in own]
        self._pipeline.restore(checked["step"], checked["row"], cursors)
        if self._reporter:
            self._reporter.restored(self)

    def close(self) -> None:
        """Stops and joins the threads. Elements already given stay valid."""
        if not hasattr(self, "_reporter"):
            return  # it could not be made, and Grain's `__del__` closes what there is
        try:
            if self._reporter and not self._is_closed():
                self._reporter.report(self)
        finally:  # `on_stats` is the user's and may raise: the threads end all the same
            self._pipeline.close()
            super().close()

    def get_shard_states(self) -> list[dict[str, Any]]:
        """The state of each own lane by itself, as Grain's elastic iterators save them.

        Returns:
          A list with a dict for each lane: `exhausted`, whether it has given all its epochs, and `state`.
        """
        state = self.get_state()
        epochs = self._spec.order.epochs
        return [
            {"exhausted": states.numbers(cursor)["epoch"] == epochs, "state": states.of_lane(state, lane)}
            for lane, cursor in state["lanes"].items()
        ]

    def set_shard_states(self, shard_states: Sequence[Mapping[str, Any]]) -> None:
        """Goes to a place saved by `get_shard_states`, of this or of several iterators.

        Args:
          shard_states: those of at least the own lanes, in any order.

        Raises:
          StateError: as for `set_state` and `merge_states`.
          ArgumentTypeError: `shard_states` is no list.
        """
        entries = checks.items("shard_states", shard_states, "a list of what get_shard_states gives")
        if entries or self._spec.running.own_lanes:
            self.set_state(states.merge_lanes(entries, self._spec.running.own_lanes))

    def stats(self) -> dict[str, Any]:
        """Figures of the lanes of this iterator, up to the last element given.

        Returns:
          `documents` whose last token was given, `tokens` (BOS and EOS included), `text_bytes` of UTF-8,
          `rows`, `batches` (whole steps), `padding_tokens`, `dropped_tokens`, `quarantined` records and
          `lost_shards`, the shards that could not be read to their end, counted since the start of the stream and
          kept through restarts (of a window of documents, the last two count once all of it was given); and of this
          iterator: `wait_seconds` spent waiting in `next`, `elapsed_seconds` since the first `next`, `ring_ready`
          batches that wait to be taken, `busy_seconds`, a dict of the seconds that all threads together have spent
          in each stage, by the clock on the wall, so that time in which the system runs another thread counts: `read`
          (inflating and splitting), `encode` (extracting the text and encoding it) and `pack`; and `verified`, the
          documents whose ids were compared with the reference's (`verify=`) and found equal, those
          prepared ahead included.
        """
        elapsed = 0.0 if self._started is None else time.perf_counter() - self._started
        return {**self._pipeline.stats(), "elapsed_seconds": elapsed}

    def quarantine(self) -> list[dict[str, Any]]:
        """The records left out since this iterator was made or restored, as of the last element given.

        Returns:
          The newest of them, each with `shard`, `record`, `byte` and `reason`: at most ten thousand, and of each lane
          at most a thousand of those that are read together, so there may be fewer than `stats()` counts, or none.
          `record` and `byte` are None of a shard that could not be opened as the manifest's. `quarantine_file` lists
          all.
        """
        return self._pipeline.quarantine(0)[1]

    def _left_out(self, known: int) -> "tuple[int, list[dict[str, Any]]]":
        """How many records were listed as left out since this was made or restored, and those behind so many."""
        return self._pipeline.quarantine(known)

    def _padding(self) -> Element:
        """Behind the end, rows of padding for a step of which other hosts still have rows."""
        element = self._pipeline.padding()
        if element is None:
            raise GristmillError("padding was asked for before the end")
        return element

    def _share_cores(self) -> None:
        # Under mp_prefetch the context is filled in after the iterator is made.
        if not self._shares_cores:
            self._shares_cores = True
            if self._spec.running.threads is None:
                self._pipeline.set_threads(max(1, _core.usable_cores() // grain_compat.process_count(self)))
