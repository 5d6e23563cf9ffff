"""Measurements in processes of their own: request and result are JSON on stdin and stdout."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from gristmill.errors import GristmillError

_PIPES: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)


def measure(what: str, module: str, request: Any, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Runs a module that ends with `main`.

    Args:
      what: the measurement, for the error's message.
      module: its name.
      request: its request, as JSON on its stdin: an argument has no room for thousands of shards.
      environment: its environment; None is this process's.

    Returns:
      Its result.

    Raises:
      GristmillError: it failed.
    """
    # Interrupted while it starts the process, `Popen` does not know it: that finds no request then, and ends.
    with subprocess.Popen(
        [sys.executable, "-m", module], env=environment, text=True, process_group=0, **_PIPES
    ) as process:
        try:
            out, errors = process.communicate(json.dumps(request))
        except BaseException:
            # With worker processes that it may have.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        last = (errors.strip().splitlines() or ["no message"])[-1]
        raise GristmillError(f"{what} failed with exit code {process.returncode}: {last}")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def main(find: Callable[[Any], dict[str, Any]]) -> None:
    """Prints the result of `find` for the request on stdin; on an error, ends this process with its message."""
    try:
        print(json.dumps(find(json.load(sys.stdin))))
    except Exception as error:
        # One line, which `measure` shows; Grain's notes on its tracebacks would only hide it.
        sys.exit(f"{type(error).__name__}: {error}")
