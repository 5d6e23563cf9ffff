"""Measurements in processes of their own: how one is started, and how it says what it found."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from gristmill._errors import GristmillError


def measure(what: str, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Runs a module that ends with `main`.

    Args:
      what: what is measured, for the error's message.
      module: its name.
      arguments: the module's arguments.
      environment: its environment; None is this process's.

    Returns:
      What it found.

    Raises:
      GristmillError: it failed.
    """
    command = [sys.executable, "-m", module, *arguments]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode:
        last = (finished.stderr.strip().splitlines() or ["no message"])[-1]
        raise GristmillError(f"{what} failed with exit code {finished.returncode}: {last}")
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return found


def main(find: Callable[..., dict[str, Any]]) -> None:
    """Prints what `find` gives for the arguments of this process, and ends it."""
    try:
        print(json.dumps(find(*sys.argv[1:])))
    except Exception as error:
        # One line, which `measure` shows; Grain's notes on its tracebacks would only hide it.
        sys.exit(f"{type(error).__name__}: {error}")
