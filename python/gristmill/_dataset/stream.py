"""`Stream`: the batches of some lanes and the positions between them. It knows nothing of Grain.

The core knows which batches have reached the caller. A `next` of an iterator

    stream.begin()                  batches that an interrupted call has taken come again
    taken = stream.core.take()      once or several times
    stream.core.delivered = number  the last thing before it returns: an attribute, after which no signal is handled

and where it raises sets `stream.core.interrupted` to the number that it has set as delivered, or to 0. State,
statistics and quarantined records are those up to the last delivered batch.
"""

import time
import weakref
from typing import Any

import gristmill._core as _core
from gristmill._dataset.spec import Spec
from gristmill._shards.hive import check_keeps_some
from gristmill._state import states
from gristmill._state.commits import KEY, Committed
from gristmill._tokenizer.encoder import core_of
from gristmill._util.cores import shared_cores
from gristmill.errors import StateError


class Stream:
    """The batches of the lanes that a spec names.

    Attributes:
      spec: the definition of the stream.
      core: the pipeline that produces the batches.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        first, *others = spec.intervals
        self.core = _core.Pipeline(core_of(spec.encoder), first, others)
        if _calls_python(spec):
            # Before the interpreter ends: its threads may be in a function of the user, which they cannot be then.
            weakref.finalize(self, self.core.close)
        self._fingerprint = spec.fingerprint
        self._shares_cores = False
        self._started: float | None = None

    def begin(self, processes: int) -> int:
        """Begins a call that takes batches, in one of some processes that share the cores.

        Returns:
          How many batches are taken and not delivered; none if the last call was interrupted, or the stream restored.
        """
        self._share_cores(processes)
        if self._started is None:
            self._started = time.perf_counter()
        return self.core.begin()

    def start(self, processes: int) -> None:
        """Starts the threads."""
        self._share_cores(processes)
        self.core.start()

    def position(self, number: int | None = None) -> states.State:
        """The state after the last delivered batch, or after batch `number`. The quarantine file may lag behind it."""
        step, row, lanes = self.core.state(number)
        return {
            "version": _core.MIXTURE_STATE_VERSION if self.spec.mixing else _core.STATE_VERSION,
            "fingerprint": self._fingerprint,
            "ids": self.spec.encoder.ids_fingerprint,
            "step": step,
            "row": row,
            "lanes": lanes,
        }

    def start_position(self) -> states.State:
        """The state before the first batch."""
        lanes = dict.fromkeys(map(str, self.spec.running.own_lanes), "")
        return {**self.position(), "step": 0, "row": 0, "lanes": lanes}

    def state(self) -> states.State:
        """The state after the last delivered batch, once the quarantine file up to there is on disk."""
        position = self.position()
        self.sync()
        return position

    def sync(self) -> None:
        """Returns once the quarantine file is on disk."""
        self.core.sync_quarantine_file()

    def restore(self, state: states.State) -> states.State:
        """Moves to the position of a state. Returns it, checked.

        Raises:
          StateError: see `PackedDatasetIterator.set_state`. The position stays as it was.
        """
        checked = states.check(state)
        self._check_same_stream(checked)
        own = self.spec.running.own_lanes
        missing = [lane for lane in own if str(lane) not in checked["lanes"]]
        if missing:
            raise StateError(
                f"the state holds the lanes {', '.join(checked['lanes']) or '(none)'}, and this iterator also needs "
                f"{', '.join(map(str, missing))}: merge the states of all hosts with gristmill.merge_states, "
                "or those of a Loader with |"
            )
        intervals = self.spec.intervals
        rows = min(one.rows_per_step for one in intervals)
        length = min(one.rows.sequence_length for one in intervals)
        if checked["step"] > (most := _core.CURSOR_LARGEST // (rows * length)):
            raise StateError(
                f"the state's step is {checked['step']}: expected at most {most}, because no stream has more steps of "
                f"{rows} rows of {length} tokens"
            )
        if checked["row"] and len(checked["lanes"]) != len(own):
            raise StateError(
                "the state was saved between the rows of a step, and restores only onto the same lanes: save after a "
                "whole step, or use batch_size"
            )
        committed = Committed.read(checked[KEY]).ranges() if KEY in checked else []
        lanes = [checked["lanes"][str(lane)] for lane in own]
        self.core.restore(checked["step"], checked["row"], lanes, committed)
        return checked

    def stats(self) -> dict[str, Any]:
        """Figures of the lanes, see `PackedDatasetIterator.stats`."""
        elapsed = 0.0 if self._started is None else time.perf_counter() - self._started
        return {**self.core.stats(), "elapsed_seconds": elapsed}

    def check_keeps_some(self) -> None:
        """Checks, at the end, that no filter has left out all records for want of values that are elsewhere.

        Raises:
          ArgumentError: one has, and its paths show why.
        """
        stats = self.core.stats()
        for source in self.spec.sources:
            own = stats["sources"][source.name] if self.spec.mixing else stats
            if source.keep and not own["documents"]:
                check_keeps_some(source.keep, source.shards, source.max_document_bytes)

    def close(self) -> None:
        """Stops and joins the threads for good."""
        self.core.close()

    def _share_cores(self, processes: int) -> None:
        if not self._shares_cores:
            self._shares_cores = True
            if self.spec.running.threads is None:
                self.core.set_threads(shared_cores(processes))

    def _check_same_stream(self, state: states.State) -> None:
        if different := states.incompatibilities(state, self._fingerprint):
            adding = (
                "; to add shards, use edits=[gm.Edit(step, shards=...)] with a step to come, or add them to a mixture "
                "as a source of a later stage"
            )
            raise StateError(
                f"the state was saved by another dataset: {different}. Use the same shards, tokenizer and arguments as "
                f"the run that saved it{'' if states.same_shards(state, self._fingerprint) else adding}"
            )
        states.check_ids(state["ids"], self.spec.encoder.ids_fingerprint)


def _calls_python(spec: Spec) -> bool:
    """Whether workers call a function of the user for images."""
    samples = (source.sample for source in spec.sources)
    return any(isinstance(getattr(sample, "image_model", None), _core.ImageFunction) for sample in samples)
