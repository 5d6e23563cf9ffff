"""Small integers exchanged between the processes of a sharding."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gristmill.errors import GristmillError

# Seconds between two looks at whether an answer is there.
_FIRST_PAUSE = 20e-6
_LONGEST_PAUSE = 0.005


class Exchange:
    """Moves integers between all devices of a sharding, and with them between their processes.

    Every method is a computation of all these processes: each must call it, in the same order among the
    program's other computations.

    Attributes:
      processes: of each device, in the order of their ids, the process that has it.
    """

    def __init__(self, devices: Iterable[Any]) -> None:
        # All devices, not one of each process: any platform can run a computation over those that the training
        # step runs over. In the order of their ids, so that all processes agree.
        self._devices = sorted(devices, key=lambda device: device.id)
        self.processes = np.array([device.process_index for device in self._devices])
        self._mesh = Mesh(np.array(self._devices), ("device",))
        self._one_each = NamedSharding(self._mesh, PartitionSpec("device"))
        everywhere = NamedSharding(self._mesh, PartitionSpec())
        self._all = jax.jit(lambda values: values, out_shardings=everywhere)

    def ask(self, value_of: Callable[[Any], npt.NDArray[np.uint32]]) -> Callable[[], npt.NDArray[np.uint32]]:
        """Starts to gather `value_of(device)` of all devices, each computed on its process: arrays of one shape.

        Returns:
          A function that waits for the answer: these arrays as one, in the order of `processes`.

        Raises:
          GristmillError: the computation has failed: on a single CPU device it runs here, and not meanwhile.
        """
        own = self._place(lambda device: value_of(device)[np.newaxis])
        # The caller may be under another mesh, or debug without jit, which alone moves the values.
        with jax.set_mesh(self._mesh), jax.disable_jit(False), _failing_together():
            answer = self._all(own)
        return functools.partial(_wait, answer.addressable_data(0))

    def gather(self, value_of: Callable[[Any], npt.NDArray[np.uint32]]) -> dict[Any, npt.NDArray[np.uint32]]:
        """`value_of(device)` of each device, computed on its process: arrays of one shape."""
        return dict(zip(self._devices, self.ask(value_of)(), strict=True))

    def _place(self, value_of: Callable[[Any], npt.NDArray[Any]]) -> jax.Array:
        own = [device for device in self._devices if device.process_index == jax.process_index()]
        parts = [jax.device_put(value_of(device), device) for device in own]
        shape = (len(self._devices), *parts[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self._one_each, parts)


def _is_ready(answer: jax.Array) -> bool:
    """Whether there is a value, or an error."""
    try:
        return bool(answer.is_ready())  # type: ignore[attr-defined]  # of all arrays, yet not in their stub
    except (RuntimeError, ValueError):
        return True  # asking for the value raises the error again


def _wait(answer: jax.Array) -> npt.NDArray[np.uint32]:
    """The answer, once it is there. NumPy would wait where no signal is heard, and another process may never answer.

    Raises:
      GristmillError: the computation has failed.
    """
    pause = _FIRST_PAUSE
    # Outside the `with` below: a signal's handler may raise errors of its own.
    while not _is_ready(answer):
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    with _failing_together():
        return np.asarray(answer)


@contextlib.contextmanager
def _failing_together() -> Iterator[None]:
    """Turns errors of JAX in a computation of several processes into a GristmillError."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise GristmillError(
            f"a computation of the processes of the sharding failed, perhaps because one of them has ended: {error}. "
            "End all of them, and resume from a saved state"
        ) from error


@functools.lru_cache(maxsize=8)
def exchange(devices: frozenset[Any]) -> Exchange:
    """The `Exchange` of these devices, made and compiled once."""
    return Exchange(devices)
