"""Hosts that continue or end together.

MaxText's loops turn any `Exception` of the data into the end of the training, with exit status 0, and a host that ends
alone leaves the others in a computation that waits for it. So all hosts vote on each step before any of them gets its
batch, and if one has failed, all of them raise an error that MaxText's loops let pass:

    host 0   batch t   "has t + 1"           all raise LoadError in place of batch t + 1,
    host 1   batch t   "failed before t + 1"  each after step t, with the state and the model of step t

The vote on a step runs on the devices ahead of the training step before it, and no step waits for it.
"""

import hashlib
import signal
import sys
import threading
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gristmill._jax import agreement
from gristmill._jax.exchange import Exchange, exchange
from gristmill.errors import GristmillError
from gristmill.integrations.maxtext.words import MAXTEXT

Made = TypeVar("Made")
_DIGEST_BYTES = 8


class LoadError(BaseException):
    """The data of a host cannot be loaded, or the host was interrupted: raised on all hosts after the same step.

    It is no `Exception`, since MaxText's loops take those for the end of the data: the process ends with this error and
    a status that is not 0.
    """


class Status(IntEnum):
    """The readiness of a host for a step."""

    ENDED = 0
    ROWS = 1
    FAILED = 2


class Vote(NamedTuple):
    """The statuses of all hosts, and whether they are at one position."""

    statuses: set[int]
    agrees: bool


class Hosts:
    """The processes of a mesh. Each of them must call the methods equally often, in the same order."""

    def __init__(self, mesh: Mesh) -> None:
        self._sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        devices = frozenset(mesh.devices.flat)
        self.count = len({device.process_index for device in devices})
        self._exchange: Exchange | None = exchange(devices) if self.count > 1 else None

    def check_same(self, fingerprint: str) -> None:
        """Makes sure that all have the same stream.

        Raises:
          ArgumentError: they have not; on all of them.
        """
        agreement.check_same_stream(fingerprint, self._sharding)

    def texts(self, own: str) -> dict[int, str]:
        """A text of each process, by its index."""
        return {0: own} if self._exchange is None else agreement.gathered(self._exchange, own.encode())

    def together(self, make: Callable[[], Made]) -> Made:
        """The value that `make` returns here, if it returns on all of them.

        Raises:
          Exception: that of this host.
          GristmillError: another one has failed, with its error.
        """
        made, error = None, None
        try:
            made = make()
        except Exception as caught:  # all that MaxText would raise
            error = caught
        failed = {host: text for host, text in self.texts("" if error is None else described(error)).items() if text}
        if error is not None:
            raise error
        if failed:
            raise GristmillError(shown(failed))
        return made  # type: ignore[return-value]  # there was no error

    def vote(self, status: Status, position: str) -> Callable[[], Vote]:
        """The vote on a step, in which this process takes part now; calling the result waits for the answer."""
        if self._exchange is None:
            return lambda: Vote({status}, True)
        digest = hashlib.blake2b(position.encode(), digest_size=_DIGEST_BYTES).digest()
        words = np.array([status, *np.frombuffer(digest, np.uint32)], np.uint32)
        ask = self._exchange.ask(lambda _: words)

        def answer() -> Vote:
            answers = ask()
            return Vote(set(answers[:, 0].tolist()), bool((answers[:, 1:] == answers[0, 1:]).all()))

        return answer


def described(error: BaseException) -> str:
    """An error as other hosts show it, with the keys of MaxText's config."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted (Ctrl-C)"
    text = str(MAXTEXT.said(error)) if isinstance(error, GristmillError) else str(error)
    return text if isinstance(error, GristmillError) and text else f"{type(error).__name__}: {text}"


def shown(failed: dict[int, str]) -> str:
    """The errors of the hosts that have one."""
    return "; ".join(f"process {host}: {text}" for host, text in sorted(failed.items()))


class CtrlC:
    """Makes the first Ctrl-C an error of the next batch, so that the step is finished on all hosts.

    The second one raises `KeyboardInterrupt` at once, as ever. A program that handles SIGINT itself is left alone.
    """

    def __init__(self) -> None:
        self.is_pressed = False
        self._is_handled = False

    def handle(self) -> None:
        """Takes Ctrl-C over, in the main thread."""
        self.is_pressed = False
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._press)
            self._is_handled = True

    def leave(self) -> None:
        """Leaves Ctrl-C as it was."""
        if self._is_handled and signal.getsignal(signal.SIGINT) == self._press:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._is_handled = False

    def _press(self, _number: int, _frame: Any) -> None:
        self.is_pressed = True
        self.leave()
        print("Ctrl-C: all hosts end after this step; press it again to end at once", file=sys.stderr)


CTRL_C = CtrlC()
