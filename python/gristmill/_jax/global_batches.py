"""`global_batches`: the stream as dicts of global `jax.Array`, on any number of hosts.

How all hosts end on the same step. The lanes of finite epochs end at different steps, each host knows only its
own, and a training step that one host does not join hangs the others. So each host says, with batch t, whether
it has rows for step t+1, and all of them take step t+1 if any has; a host without gives rows of padding:

    host 0   batch t   "more at t+1"   ──┐ any, computed on the devices ahead of training step t
    host 1   batch t   "no more"       ──┘ and looked at when batch t+1 is asked for

By then the answer has long been there, so no step waits for a vote. The first step alone, of which no batch
before it could tell, asks and waits. Where every process loads all lanes (one host, or replicas only) and with
`epochs=None`, nobody is asked, unless replicas may leave out records: they also say where they stand.
"""

import copy
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import grain
import jax

from gristmill import _core
from gristmill._dataset.iterator import ClosableIterator, Element, PackedDatasetIterator
from gristmill._dataset.packed import PackedDataset, spec_of
from gristmill._dataset.report import Reporter
from gristmill._jax import agreement
from gristmill._util.named_values import encode
from gristmill.errors import ArgumentError, ArgumentTypeError, GristmillError, StateError

if TYPE_CHECKING:
    from gristmill._state.states import State

GlobalBatch = dict[str, jax.Array]

# What stats() reports of this moment. All else in it is counted up to the batch that was handed out.
_OF_THE_MOMENT = ("wait_seconds", "elapsed_seconds", "ring_ready", "busy_seconds", "verified")


def global_batches(dataset: PackedDataset, sharding: jax.sharding.Sharding) -> "GlobalBatches":
    """The batches of `dataset` as global arrays that are laid out by `sharding`.

    Each process loads the lanes of the rows that its devices hold. All processes of the sharding must take the
    batches in step, as they take part in each training step; they end together. This call runs a computation of
    all processes, which compares what they were given; so does the first `next`, and the first after `set_state`,
    which compares their steps, and with finite `epochs` every `next`: call them in the thread that runs the training
    steps, in the same order among them everywhere.

    Args:
      dataset: a `PackedDataset` with `batch_size`.
      sharding: of an array `[batch_size, sequence_length]`; the sequence axis may be split too. The array
        `provenance`, if the dataset has it, is split by rows alone.

    Returns:
      An iterator with `get_state`, `set_state`, `stats`, `quarantine`, `start_prefetch` and `close`; a context
      manager.

    Raises:
      ArgumentError: the rows of this sharding are not whole lanes, see `PackedDataset.for_sharding`; or the
        processes were given different streams, such as other shards: raised on all of them, naming what differs.
      ArgumentTypeError: `dataset` is no `PackedDataset`.
    """
    if not isinstance(dataset, PackedDataset):
        raise ArgumentTypeError(
            f"global_batches: expected a PackedDataset, got {type(dataset).__name__}: only that can say when all hosts "
            "have ended. For other Grain pipelines use jax.make_array_from_process_local_data, and epochs=None or as "
            "many steps on all hosts"
        )
    return GlobalBatches(dataset, sharding)


def row_sharding(sharding: Any) -> Any:
    """The sharding of an array that has the same rows and other columns, which are not split.

    Raises:
      ArgumentError: it is neither a `NamedSharding` nor one of a single device.
    """
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        return sharding
    if not isinstance(sharding, jax.sharding.NamedSharding):
        raise ArgumentError(
            f"provenance: its rows cannot be divided as a {type(sharding).__name__} divides those of tokens; use a "
            "NamedSharding, or leave provenance out"
        )
    spec = jax.sharding.PartitionSpec(*sharding.spec[:1])
    return jax.sharding.NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)


class GlobalBatches(ClosableIterator, grain.DatasetIterator[GlobalBatch]):
    """Iterates over global batches; made by `global_batches`, and a context manager."""

    def __init__(self, dataset: PackedDataset, sharding: jax.sharding.Sharding) -> None:
        super().__init__()
        # Before the lanes, of which other shards may have other numbers: all processes must come here.
        # Provenance is not part of the stream, but of what the processes compute on. Another release may give another.
        spec = spec_of(dataset)
        also = encode({"provenance": spec.running.provenance, "gristmill": _core.__version__})
        agreement.check_same_stream(f"{spec.fingerprint} {also}", sharding)
        self._shape = (spec.rows.batch_size, spec.rows.sequence_length)
        self._sharding = sharding
        # The arrays whose columns are not those of the sharding, with the shape of a row.
        self._other_shapes = {
            field.name: field.row_shape for field in spec.fields if field.row_shape != self._shape[1:]
        }
        self._row_sharding = row_sharding(sharding) if self._other_shapes else None
        # Not by iter(), of which Grain may give an iterator of its own around this one. What there is to report is
        # reported here, with the batch that is handed out, which is later than its rows are taken.
        self._iterator = PackedDatasetIterator(spec_of(dataset.for_sharding(sharding)), reports=False)
        self._agreement = agreement.agreement_of(
            sharding,
            spec.lanes_of_processes(sharding),
            ends=spec.order.epochs is not None,
            leaves_out=spec.source.faults.on_error == "quarantine",
        )
        self._ahead: _Batch | None = None
        self._told = self._tell(_NOTHING_LISTED)
        self._going_to: _Told | None = None
        self._vote_seconds = 0.0
        self._reporter = Reporter(spec.running.on_stats)

    def __next__(self) -> GlobalBatch:
        """The next batch; the transfer of the one after it has begun if its rows are there.

        Returns:
          A dict of global int32 arrays `[batch_size, sequence_length]` that are laid out by the sharding, with the
          keys of the `layout`, see `PackedDataset`. With `provenance` also `provenance`, `[batch_size, entries, 4]`.

        Raises:
          StopIteration: every lane of every host has given all its epochs.
          ShardError: a record of this host's shards cannot be used. Other hosts learn of it only when this
            process has ended, which must not wait for them: see the guide on training.
          StateError: the processes go on from different steps: raised on all of them.
          GristmillError: processes that load the same lanes have left out different records: raised on all of them.
          GristmillError: an earlier call was interrupted while it voted with the other hosts.
          ArgumentError: the iterator was closed.
        """
        self._assert_not_closed()
        self._arrive()
        self._reporter.tick(self)
        # Whatever is raised between taking a batch and handing it out, what was taken must come again.
        self._going_to = before = self._told
        try:
            batch = self._next()
            self._going_to = None
            return batch
        except BaseException as error:
            stays = isinstance(error, StopIteration) or (isinstance(error, GristmillError) and self._has_failed())
            self._going_to = None if stays else before
            raise

    def _next(self) -> GlobalBatch:
        if self._agreement:
            self._agreement.start(self._told.state["step"])
        batch = self._ahead or self._take()
        self._ahead = batch
        if not self._exists(batch):
            # Where there was no batch at all, what was left out was not told with one.
            self._told = batch.before_padding or self._told
            self._reporter.end(self)
            raise StopIteration
        self._ahead = self._take_ready()
        if self._agreement:
            self._agreement.on(batch.told.state["step"], batch.more, batch.told.state["lanes"])
        self._told = batch.told
        return batch.arrays

    def get_state(self) -> "State":
        """Where the stream stands after the last batch handed out, as `PackedDatasetIterator.get_state`.

        Returns:
          A state of the lanes of this process; `merge_states` joins those of all processes.

        Raises:
          GristmillError: the quarantine file was removed or cannot be written to the disk, or this process was forked
            while another thread was in a call of the iterator.
        """
        state = copy.deepcopy((self._going_to or self._told).state)
        self._iterator._sync()
        return state

    def set_state(self, state: "State") -> None:
        """Goes to a saved place, on every process alike: see `PackedDatasetIterator.set_state`.

        Args:
          state: one that this process saved, or one made by `merge_states` from those of all processes.

        Raises:
          StateError: the state belongs to another stream, lacks lanes, or is damaged. That the processes were given
            states of different steps is found by the next `next`.
          ArgumentError: the iterator was closed.
          GristmillError: records were left out before, and the quarantine file was removed or cannot be written to the
            disk; the iterator stays where it was.
        """
        self._assert_not_closed()
        self._arrive()
        if self._agreement:
            self._agreement.forget()
        self._going_to = replace(_NOTHING_LISTED, state=state)
        try:
            self._arrive()
        except GristmillError:
            self._going_to = None  # refused: all stays as it was
            raise

    def start_prefetch(self) -> None:
        """Starts the threads, which prepare batches while the caller does something else.

        Raises:
          ArgumentError: the iterator was closed.
          GristmillError: the system refuses memory or threads, or this process is a fork of the iterator's own.
        """
        self._assert_not_closed()
        self._iterator.start_prefetch()

    def stats(self) -> dict[str, Any]:
        """Figures of this process's lanes, up to the last batch handed out.

        Returns:
          Those of `PackedDatasetIterator.stats`, and `vote_seconds` spent waiting for the other hosts. `wait_seconds`
          is how long `next` has waited for this host's rows: a run whose `wait_seconds` grows much slower than its
          `elapsed_seconds` is not bound by its input.
        """
        now = self._iterator.stats()
        return {
            **self._told.counts,
            **{name: now[name] for name in _OF_THE_MOMENT},
            "vote_seconds": self._vote_seconds,
        }

    def quarantine(self) -> list[dict[str, Any]]:
        """The records left out so far of this process's lanes, as of the last batch handed out.

        Returns:
          As `PackedDatasetIterator.quarantine`: dicts of `shard`, `record`, `byte` and `reason`, of which `record` and
          `byte` may be None.
        """
        return copy.deepcopy(self._told.quarantine)

    def _left_out(self, known: int) -> tuple[int, list[dict[str, Any]]]:
        """As `PackedDatasetIterator._left_out`, as of the last batch handed out."""
        new = self._told.listed - known
        return self._told.listed, self._told.quarantine[-new:] if new > 0 else []

    def close(self) -> None:
        """Stops and joins the threads. Batches already given stay valid."""
        if not hasattr(self, "_iterator"):
            return  # it could not be made, and Grain's `__del__` closes what there is
        try:
            if hasattr(self, "_reporter") and not self._is_closed():
                self._reporter.report(self)
        finally:  # `on_stats` is the user's and may raise: this is closed all the same
            self._iterator.close()
            self._ahead = None
            super().close()

    def _arrive(self) -> None:
        """Goes where an interrupted call has left off; interrupted again, it leaves that to the next call."""
        if self._going_to is None:
            return
        try:
            self._iterator.set_state(self._going_to.state)
        except StateError:
            self._going_to = None  # one of the caller's that is refused: all stays as it was
            raise
        self._ahead = None
        self._told = replace(self._tell(_NOTHING_LISTED), quarantine=self._going_to.quarantine)
        if self._going_to.counts:  # an interrupt has taken a batch back
            self._reporter.rewound()
        else:
            self._reporter.restored(self)
        self._going_to = None

    def _tell(self, before: "_Told") -> "_Told":
        """What there is to tell after the last batch taken, given what was told before it."""
        listed, new = self._iterator._pipeline.quarantine(before.listed)
        # A list that nothing is added to is shared: a batch without bad records costs nothing here.
        quarantine = [*before.quarantine, *new][-_core.MOST_LISTED :] if new else before.quarantine
        return _Told(self._iterator._place(), self._iterator.stats(), quarantine, listed)

    def _exists(self, batch: "_Batch") -> bool:
        """Whether any process has rows in this step."""
        if self._agreement is None:
            return batch.has_rows
        # Nothing before the first batch said whether there would be one.
        vote = self._agreement.on(batch.told.state["step"] - 1, batch.has_rows, self._told.state["lanes"])
        start = time.perf_counter()
        answer = vote()
        self._vote_seconds += time.perf_counter() - start
        return answer

    def _take_ready(self) -> "_Batch | None":
        """The batch after this one, if it can be had at once."""
        if not self._iterator._pipeline.ready():
            return None
        try:
            return self._take()
        except GristmillError:
            if not self._has_failed():
                raise
            return None  # belongs to the next call, which meets the same error

    def _has_failed(self) -> bool:
        """Whether this process's rows have ended with an error that stays: others may be those of signal handlers."""
        return self._iterator._pipeline.has_failed()

    def _take(self) -> "_Batch":
        """Takes this process's rows of the next step, and begins to move them to its devices."""
        element = next(self._iterator, None)
        told = self._tell(self._ahead.told if self._ahead else self._told)
        if element is not None:
            return _Batch(self._move(element), self._iterator._pipeline.more(), told)
        element = self._iterator._padding()
        return _Batch(self._move(element), False, self._tell(told), before_padding=told)

    def _move(self, element: "Element") -> GlobalBatch:
        """Begins to move this process's rows to its devices."""
        by_token = {name: array for name, array in element.items() if name not in self._other_shapes}
        # All arrays in one call, 223 us against 339 in six; only that JAX puts a dict's names in another order.
        moved = jax.make_array_from_process_local_data(self._sharding, by_token, self._shape)
        for name, row_shape in self._other_shapes.items():
            shape = (self._shape[0], *row_shape)
            moved[name] = jax.make_array_from_process_local_data(self._row_sharding, element[name], shape)
        return {name: moved[name] for name in element}


@dataclass(frozen=True)
class _Told:
    """What is told of the stream after a batch."""

    state: "State"
    # Empty of a place that the caller names, before it is reached.
    counts: dict[str, Any]
    # The records left out, and how many the iterator has listed since it was made or restored.
    quarantine: list[dict[str, Any]]
    listed: int


_NOTHING_LISTED = _Told(state={}, counts={}, quarantine=[], listed=0)


@dataclass(frozen=True)
class _Batch:
    """A batch that may not have been handed out yet, and what goes with it."""

    arrays: GlobalBatch
    # Whether the next step has rows of this process that are not all padding.
    more: bool
    told: _Told
    # Of a step without such rows: what was to tell in front of it.
    before_padding: _Told | None = None

    @property
    def has_rows(self) -> bool:
        """Whether this step has such rows."""
        return self.before_padding is None
