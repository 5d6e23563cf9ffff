"""`GlobalPrompts`: batches of prompts whose arrays are global `jax.Array`s.

Every process knows all prompts, and so when the stream ends: there are no votes. The processes compare their streams
when the iterator is made, and their positions before its first batch.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

import gristmill._core as _core
from gristmill._jax import agreement
from gristmill._jax.row_sharding import row_sharding
from gristmill._prompts.dataset import PromptDataset, host_of, spec_of
from gristmill._prompts.iterator import PromptIterator
from gristmill._prompts.layouts import Batch
from gristmill._util import grain_compat
from gristmill._util.named_values import encode
from gristmill.errors import ArgumentError


class GlobalPrompts(PromptIterator):
    """Iterates over global batches of prompts; made by `global_batches`, and a context manager."""

    def __init__(self, dataset: PromptDataset, sharding: jax.sharding.Sharding) -> None:
        spec = spec_of(dataset)
        if spec.layout.name == "ragged":
            raise ArgumentError("layout='ragged': its rows differ in length; use a layout that pads")
        also = {"prompts": len(dataset), "content": spec.arena.content().hex(), "gristmill": _core.__version__}
        agreement.check_same_stream(f"{spec.fingerprint} {encode(also)}", sharding)
        own = dataset.for_sharding(sharding)
        super().__init__(spec, host_of(own), own._orders)
        self._shape = (spec.rows_per_batch, spec.prompt_length)
        self._sharding, self._row_sharding = sharding, row_sharding(sharding)
        self._agreement = agreement.agreement_of(sharding, {}, ends=False, quarantines=False)

    @grain_compat.unwrapped
    def __next__(self) -> Any:
        """The next batch.

        Returns:
          A dict: the arrays of numbers are global arrays, laid out by the sharding if they are
          `[rows, prompt_length]`, else split by rows alone; those of 64 bits have 32 unless JAX is told otherwise.
          Arrays of objects are NumPy's, and hold the rows of this process in global order.

        Raises:
          StopIteration: all epochs were delivered.
          StateError: the processes resumed at different batches: raised on all of them.
          ArgumentError: the iterator was closed, or an epoch has no batch.
        """
        self._assert_not_closed()
        if self._agreement:
            self._agreement.start(lambda: self._step)
        return super().__next__()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Moves to a saved position, on every process alike: see `PromptIterator.set_state`."""
        super().set_state(state)
        if self._agreement:
            self._agreement.forget()

    def _make(self, items: "npt.NDArray[np.int64]", step: int) -> Batch:
        return {key: self._moved(array) for key, array in super()._make(items, step).items()}

    def _moved(self, array: "npt.NDArray[Any]") -> Any:
        if array.dtype == object:
            return array
        array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
        shape = (self._shape[0], *array.shape[1:])
        sharding = self._sharding if shape == self._shape and array.shape[1] > 1 else self._row_sharding
        return jax.make_array_from_process_local_data(sharding, np.ascontiguousarray(array), shape)
