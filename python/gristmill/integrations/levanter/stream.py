"""`StreamDataset`: the rows of a `PackedDataset` as Levanter's examples, by their index.

Levanter saves no state of its data: after a restart it asks for the rows from some index on. A stream has no index, but
a state after each step. So the states of some steps are kept, in a folder for restarts, and a row is found from the
last of them before it:

    index 70,000  ->  step 8,750 of 8 rows  ->  state of step 8,700  ->  50 steps are read and left out

Levanter's mixtures permute rows within blocks, also of one component. So the rows of some blocks are kept.
"""

import asyncio
import json
import os
import socket
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from gristmill import PackedDataset, PackedDatasetIterator
from gristmill._util import checks
from gristmill.errors import ArgumentError, MissingExtraError, StateError

try:
    from levanter.data.dataset import AsyncDataset
    from levanter.data.text.examples import GrugLmExample
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"gristmill.integrations.levanter needs {error.name}: pip install marin-levanter", name=error.name
    ) from error

_Arrays = dict[str, "npt.NDArray[Any]"]
_State = dict[str, Any]
_READ = ("inputs", "inputs_segmentation", "targets_segmentation")
_OF_TEXT = {*_READ, "inputs_position", "targets", "targets_position"}


class StreamDataset(AsyncDataset):
    """An endless `AsyncDataset` of `GrugLmExample`: row r of step s of the stream has index s * batch_size + r.

    Segments keep documents apart, and the loss is on the tokens that have a target: with a `sample` of `Chat`, on those
    of its mask. Every process reads the whole stream and takes its rows.

        DirectDatasetComponent(datasets={"train": StreamDataset(dataset, state_folder="gs-mount/states")})

    Args:
      dataset: all rows of each step, with `epochs=None`, `batch_size` and the layout `maxtext`. Its `seed` shuffles.
      state_folder: a folder that outlives the process, for states. None: a restart reads from the first row.
      state_every: steps between two states.
      window: rows that are kept in memory: at least two blocks of the mixture (`mixture_block_size`).

    Raises:
      ArgumentError: the dataset ends, skips steps, has no `batch_size`, is that of one of several hosts, or has images.
      StateError: the states of the folder are those of another stream.
    """

    def __init__(
        self,
        dataset: PackedDataset,
        *,
        state_folder: "str | os.PathLike[str] | None" = None,
        state_every: int = 100,
        window: int = 4096,
    ) -> None:
        rows = dataset.batch_size
        if rows is None or dataset.ends or any(shape[0] != rows for shape in dataset.shapes.values()):
            raise ArgumentError(
                "a StreamDataset needs a dataset with batch_size=, epochs=None and all rows of a step; for passes that "
                "end, such as validation, build a cache"
            )
        dataset.check_one_size("Levanter")
        if dataset.skip:
            raise ArgumentError(f"skip={dataset.skip}: a StreamDataset has a row for each index; leave it out")
        if others := dataset.shapes.keys() - _OF_TEXT:
            raise ArgumentError(f"Levanter's examples of text have no place for {', '.join(sorted(others))}")
        self.dataset = dataset
        self._rows = rows
        self._every = checks.integer("state_every", state_every, 1, 2**32)
        self._kept = -(-checks.integer("window", window, 1, 2**32) // rows)  # steps
        self._folder = None if state_folder is None else Path(state_folder)
        self._lock = threading.Lock()
        self._iterator: PackedDatasetIterator = iter(dataset)
        self._states: dict[int, _State] = {0: self._iterator.get_state()}
        self._next = 0  # the step that the iterator delivers next
        self._steps: OrderedDict[int, _Arrays] = OrderedDict()
        if saved := self._saved():  # now, as they may not be needed before a later restart
            with iter(dataset) as probe:
                probe.set_state(self._load(max(saved)))

    async def async_len(self) -> int:
        """Raises, as the stream is endless."""
        raise ArgumentError("the stream is endless, and has no length")

    def is_finite(self) -> bool:
        """False."""
        return False

    async def get_batch(self, indices: Sequence[int]) -> "Sequence[GrugLmExample]":
        """The examples of some rows, best in ascending order.

        Raises:
          ShardError: a record cannot be used.
          StateError: a state of the folder is damaged.
        """
        return await asyncio.to_thread(self._examples, [int(index) for index in indices])

    def close(self) -> None:
        """Stops and joins the threads."""
        self._iterator.close()

    def _examples(self, indices: list[int]) -> list[Any]:
        examples: dict[int, Any] = {}
        with self._lock:
            for index in sorted(set(indices)):
                step, row = divmod(index, self._rows)
                examples[index] = _example({name: array[row] for name, array in self._step(step).items()})
        return [examples[index] for index in indices]

    def _step(self, step: int) -> _Arrays:
        if step not in self._steps:
            self._move_before(step)
            while self._next <= step:
                self._take()
        return self._steps[step]

    def _move_before(self, step: int) -> None:
        """Moves the iterator to a state before a step, unless it is on the way there."""
        # The rows before it in its block may be asked for next.
        start = max(0, step - self._kept // 2)
        if start <= self._next <= step:
            return
        known = {**dict.fromkeys(self._saved()), **self._states}
        nearest = max(number for number in known if number <= start)
        if nearest <= self._next < start:
            return
        self._iterator.set_state(known[nearest] or self._load(nearest))
        self._next = nearest

    def _take(self) -> None:
        element = next(self._iterator)
        self._steps.pop(self._next, None)
        self._steps[self._next] = {name: element[name].copy() for name in _READ}  # out of the memory of all
        self._next += 1
        while len(self._steps) > self._kept:
            self._steps.popitem(last=False)
        if self._next % self._every == 0:
            self._save()

    def _save(self) -> None:
        state = self._iterator.get_state()
        # In memory those of the rows that are kept, and one before them.
        oldest = self._next - self._kept - self._every
        self._states = {number: old for number, old in self._states.items() if number == 0 or number >= oldest}
        self._states[self._next] = state
        if self._folder is not None and not self._path(self._next).exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            # Processes that share the folder write the same bytes.
            part = self._path(self._next).with_suffix(f".{socket.gethostname()}-{os.getpid()}.part")
            part.write_text(json.dumps(state))
            part.replace(self._path(self._next))

    def _load(self, step: int) -> _State:
        """The state of a step in the folder.

        Raises:
          StateError: the file holds none of this step.
        """
        path = self._path(step)
        try:
            state: _State = json.loads(path.read_text())
            found = state["step"]
        except (ValueError, TypeError, KeyError) as error:
            raise StateError(f"{path}: not a saved state: {error}") from error
        if found != step:
            raise StateError(f"{path}: expected the state of step {step}, got that of step {found}")
        return state

    def _saved(self) -> list[int]:
        """The steps whose states are in the folder."""
        if self._folder is None or not self._folder.is_dir():
            return []
        return [int(path.stem.removeprefix("step_")) for path in self._folder.glob("step_*.json")]

    def _path(self, step: int) -> Path:
        return Path(self._folder or ".", f"step_{step}.json")


def _example(row: _Arrays) -> Any:
    # Levanter's targets are the next tokens of the row, of which the last has none.
    has_target = (row["targets_segmentation"] != 0).astype(np.float32)
    return GrugLmExample.causal(
        jnp.asarray(row["inputs"]),
        loss_weight=jnp.asarray(has_target),
        segment_ids=jnp.asarray(row["inputs_segmentation"] - 1),  # -1 is padding there
    )
