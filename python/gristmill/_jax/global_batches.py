"""`global_batches`: the stream as dicts of global `jax.Array`, on any number of hosts.

All hosts end at the same step. The lanes of finite epochs end at different steps, each host knows only its
own, and a training step that one host does not join hangs the others. So each host votes, with batch t, whether
it has rows for step t+1, and all of them take step t+1 if any has; a host without rows adds padding:

    host 0   batch t   "more at t+1"   ──┐ any, computed on the devices ahead of training step t
    host 1   batch t   "no more"       ──┘ and looked at when batch t+1 is asked for

By then the answer has arrived, so no step waits for a vote, except the first, which no batch precedes. There is no vote
if every process loads all lanes (one host, or replicas only), or if `epochs=None`, unless replicas may quarantine
records: they also compare their cursors.
"""

import time
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import jax

import gristmill._core as _core
from gristmill._dataset.iterator import Element, StreamIterator
from gristmill._dataset.packed import PackedDataset, spec_of
from gristmill._dataset.spec import Spec
from gristmill._jax import agreement
from gristmill._jax.global_prompts import GlobalPrompts
from gristmill._jax.row_sharding import row_sharding
from gristmill._prompts.dataset import PromptDataset
from gristmill._state.states import State
from gristmill._util import grain_compat
from gristmill._util.named_values import encode
from gristmill.errors import ArgumentTypeError, GristmillError

GlobalBatch = dict[str, jax.Array]


@overload
def global_batches(dataset: PackedDataset, sharding: jax.sharding.Sharding) -> "GlobalBatches": ...


@overload
def global_batches(dataset: PromptDataset, sharding: jax.sharding.Sharding) -> GlobalPrompts: ...


def global_batches(
    dataset: PackedDataset | PromptDataset, sharding: jax.sharding.Sharding
) -> "GlobalBatches | GlobalPrompts":
    """The batches of `dataset` as global arrays that are laid out by `sharding`.

    Each process loads the lanes, or the prompts, of the rows that its devices hold. All processes of the sharding must
    take the batches in step, as they take part in each training step; they end together. This call runs a computation
    of all processes, which compares their streams; so does the first `next`, and the first after `set_state`,
    which compares their steps, and with finite `epochs` every `next`: call them in the thread that runs the training
    steps, in the same order among them everywhere.

    Args:
      dataset: a `PackedDataset` with `batch_size`, or a `PromptDataset`.
      sharding: of an array `[batch_size, sequence_length]`, or `[batch_size * num_generations, prompt_length]`; the
        sequence axis may be split too. The array `provenance`, if the dataset has it, is split by rows alone.

    Returns:
      An iterator with `get_state`, `set_state`, `stats` and `close`, and of packed rows `quarantine`,
      `start_prefetch` and `announced`; a context manager. For prompts, columns stay NumPy arrays of the rows of this
      process.

    Raises:
      ArgumentError: the rows of this sharding are not whole lanes, see `PackedDataset.for_sharding`; or the
        processes have different streams, such as other shards: raised on all of them, with the differences.
      ArgumentTypeError: `dataset` is neither.
    """
    if isinstance(dataset, PromptDataset):
        return GlobalPrompts(dataset, sharding)
    if not isinstance(dataset, PackedDataset):
        raise ArgumentTypeError(
            f"global_batches: expected a PackedDataset or PromptDataset, got {type(dataset).__name__}: only its "
            "hosts know when all have ended. For other Grain pipelines use jax.make_array_from_process_local_data, and "
            "epochs=None or as many steps on all hosts"
        )
    return GlobalBatches(dataset, sharding)


class GlobalBatches(StreamIterator[GlobalBatch]):
    """Iterates over global batches; made by `global_batches`, and a context manager."""

    def __init__(self, dataset: PackedDataset, sharding: jax.sharding.Sharding) -> None:
        # Before the lanes, whose number depends on the shards: all processes must make this comparison.
        # Provenance is not part of the stream, but of the arrays of a step; another release may have another stream.
        spec = spec_of(dataset)
        also = encode(
            {
                "provenance": spec.running.provenance,
                "source_arrays": spec.running.source_arrays,
                "gristmill": _core.__version__,
            }
        )
        agreement.check_same_stream(f"{spec.fingerprint} {also}", sharding)
        self._dtypes = dataset.dtypes
        self._layouts = [_Layout.of(interval, sharding) for interval in spec.intervals]
        own_spec = spec_of(dataset.for_sharding(sharding))
        self._agreement = agreement.agreement_of(
            sharding,
            spec.lanes_of_processes(sharding),
            ends=spec.ends,
            quarantines=spec.quarantines,
        )
        # The batch after the last delivered one, if it has been taken.
        self._ahead: _Batch | None = None
        self._vote_seconds = 0.0
        super().__init__(own_spec)

    def __next__(self) -> GlobalBatch:
        """The next batch; the transfer of the one after it has begun if its rows are there.

        Returns:
          A dict of global int32 arrays `[batch_size, sequence_length]` that are laid out by the sharding, with the
          keys of the `layout`, see `PackedDataset`. With `provenance` also `provenance`, `[batch_size, entries, 4]`;
          with `source_arrays` also `source` and `weight` (float32), `[batch_size]`; with `ImageText` those of images.
          These, and `seq_lens` and `next_token` of `varlen`, are split by rows alone.

        Raises:
          StopIteration: every lane of every host has delivered all its epochs.
          ShardError: a record of this host's shards cannot be used. Other hosts learn of it only when this
            process has ended, which must not wait for them: see the guide on training.
          StateError: the processes resumed at different steps: raised on all of them.
          GristmillError: processes that load the same lanes have quarantined different records: raised on all of them.
          GristmillError: an earlier call was interrupted while it voted with the other hosts.
          ArgumentError: the iterator was closed.
        """
        self._assert_not_closed()
        core = self._stream.core
        if not self._stream.begin(grain_compat.process_count(self)):
            self._ahead = None
        self._begin_next()
        self._reporter.tick(self.stats, self._stream)
        number = 0
        try:
            batch, exists = self._next()
            number = batch.number
            if exists:
                self._last = batch.step - 1
                core.delivered = number
                return batch.arrays
        except BaseException:
            core.interrupted = number
            raise
        core.delivered = batch.number - 1  # up to the end, without the padding after it
        self._reporter.end(self.stats, self._stream)
        raise StopIteration

    def _next(self) -> "tuple[_Batch, bool]":
        """The next batch, and whether any process has rows in it."""
        if self._agreement:
            self._agreement.start(lambda: self._stream.position()["step"])
        self._ahead = batch = self._ahead or self._take()
        if not self._exists(batch):
            return batch, False
        self._ahead = self._take_ready()
        if self._agreement:
            more = not self._ahead.is_padding if self._ahead else self._stream.core.has_more()
            self._agreement.vote(batch.step, more, lambda: self._stream.position(batch.number)["lanes"])
        return batch, True

    def set_state(self, state: State) -> None:
        """Moves to a saved position, on every process alike: see `PackedDatasetIterator.set_state`.

        Args:
          state: one that this process saved, or one made by `merge_states` from those of all processes.

        Raises:
          StateError: the state belongs to another stream, lacks lanes, or is damaged. Processes that were
            restored at different steps are found by the next `next`.
          ArgumentError: the iterator was closed.
          GristmillError: records were quarantined before, and the quarantine file was removed or cannot be written to
            the disk; the iterator stays where it was.
        """
        self._assert_not_closed()
        if self._agreement:
            self._agreement.forget()
        super().set_state(state)

    def stats(self) -> dict[str, Any]:
        """Figures of this process's lanes, up to the last batch.

        Returns:
          The counts of `PackedDatasetIterator.stats`, and `vote_seconds` spent waiting for the other hosts.
          `wait_seconds` is how long `next` has waited for this host's rows.
        """
        return {**super().stats(), "vote_seconds": self._vote_seconds}

    def close(self) -> None:
        """Stops and joins the threads. Delivered batches stay valid."""
        try:
            super().close()
        finally:
            self._ahead = None

    def _exists(self, batch: "_Batch") -> bool:
        """Whether any process has rows in the batch's step."""
        if self._agreement is None:
            return not batch.is_padding
        # No batch before the first one voted on it.
        vote = self._agreement.vote(
            batch.step - 1, not batch.is_padding, lambda: self._stream.position(batch.number - 1)["lanes"]
        )
        start = time.perf_counter()
        answer = vote()
        self._vote_seconds += time.perf_counter() - start
        return answer

    def _take_ready(self) -> "_Batch | None":
        """The batch after this one, if it can be had at once."""
        if not self._stream.core.ready():
            return None
        try:
            return self._take()
        except GristmillError:
            # Others than that of the stream, which stays, may be those of signal handlers.
            if not self._stream.core.has_failed():
                raise
            return None  # belongs to the next call, which meets the same error

    def _take(self) -> "_Batch":
        """Takes this process's rows of the next step, and begins to move them to its devices."""
        taken = self._stream.core.take()
        if taken.arrays is not None:
            return _Batch(self._move(taken.arrays, taken.step), taken.number, taken.step)
        padding = self._stream.core.padding()
        if padding is None or padding.arrays is None:
            raise GristmillError("internal error: padding requested before the end of the stream")
        return _Batch(self._move(padding.arrays, padding.step), padding.number, padding.step, is_padding=True)

    def _move(self, element: Element, steps: int) -> GlobalBatch:
        """Begins to move this process's rows of the last of some steps to its devices."""
        layout = [layout for layout in self._layouts if layout.first < steps][-1]
        element = self._without_committed(element, steps - 1)
        # All arrays in one call, 223 us against 339 in six; only that JAX puts a dict's names in another order.
        shapes, shardings = _one_for_all(layout.shapes), _one_for_all(layout.shardings)
        moved = jax.make_array_from_process_local_data(shardings, dict(element), shapes)
        return {name: moved[name] for name in element}

    @property
    def announced(self) -> list[tuple[int, dict[str, jax.ShapeDtypeStruct]]]:
        """The arrays of the batches from each step on at which their shapes change; the first are those of step 0.

        Each has its shape, dtype and sharding, so that a training step can be compiled ahead, once for each shape:

            for step, batch in batches.announced:
                compiled[step] = train_step.lower(state, batch).compile()
        """
        found: list[tuple[int, dict[str, jax.ShapeDtypeStruct]]] = []
        for first, shapes, shardings in self._layouts:
            arrays = {
                name: jax.ShapeDtypeStruct(shape, self._dtypes[name], sharding=shardings[name])
                for name, shape in shapes.items()
            }
            if not found or arrays != found[-1][1]:
                found.append((first, arrays))
        return found


class _Layout(NamedTuple):
    """The arrays of the batches from a step on.

    Attributes:
      first: the step.
      shapes: the global shape of each.
      shardings: how each is divided.
    """

    first: int
    shapes: dict[str, tuple[int, ...]]
    shardings: dict[str, jax.sharding.Sharding]

    @classmethod
    def of(cls, spec: Spec, sharding: jax.sharding.Sharding) -> "_Layout":
        """The arrays of an interval of a stream. Arrays without an axis of tokens are divided by rows alone."""
        return cls(
            spec.interval.first,
            {field.name: (spec.rows_per_step, *field.row_shape) for field in spec.fields},
            {field.name: sharding if field.is_per_token else row_sharding(sharding) for field in spec.fields},
        )


def _one_for_all(by_name: dict[str, Any]) -> Any:
    """The one value of all arrays, where they have the same: JAX takes 16 us longer for six equal ones."""
    first, *rest = by_name.values()
    return first if all(value == first for value in rest) else by_name


@dataclass(frozen=True)
class _Batch:
    """A batch that may not have been delivered yet.

    Attributes:
      arrays: its arrays.
      number: its number, for the core.
      step: whole steps up to here.
      is_padding: whether this process has no rows in this step. The end comes before it, with the number before.
    """

    arrays: GlobalBatch
    number: int
    step: int
    is_padding: bool = False
