"""The output of commands, and their end."""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import click

# The exit status of `verify` and `certify`.
DIFFERENT = 3
INTERRUPTED = 130
TERMINATED = 143


@contextlib.contextmanager
def repeating_lost_interrupts() -> Iterator[None]:
    """Raises a `KeyboardInterrupt`, or the `SystemExit` of SIGTERM, again if Python has dropped it.

    An exception in a finalizer, or in a callback of the garbage collector (JAX has one), only becomes a message on
    stderr, and the command would continue.
    """
    lost: list[BaseException] = []
    alarm_before: Any = None

    def hook(unraisable: Any) -> None:
        nonlocal alarm_before
        error = unraisable.exc_value
        if isinstance(error, (KeyboardInterrupt, SystemExit)) and _is_main_thread():
            lost.append(error)
            # The alarm is the caller's until one is lost: test runners have their timeouts by it.
            if len(lost) == 1:
                alarm_before = signal.signal(signal.SIGALRM, raise_again)
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        else:
            hook_before(unraisable)

    def raise_again(*_: object) -> None:
        raise lost[-1]

    hook_before, sys.unraisablehook = sys.unraisablehook, hook
    try:
        yield
    finally:
        sys.unraisablehook = hook_before
        if lost:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, alarm_before or signal.SIG_DFL)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def _handling(number: signal.Signals, default: Any, handler: Callable[..., Any]) -> Iterator[None]:
    """Handles a signal, unless whoever called this sees to it, or wants none."""
    if not _is_main_thread() or signal.getsignal(number) is not default:
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, default)


def importing() -> contextlib.AbstractContextManager[None]:
    """While large packages are imported, Ctrl-C ends the process at once.

    A `KeyboardInterrupt` in the middle of it may be lost in a callback of theirs, or break their C++ code.
    """
    return _handling(signal.SIGINT, signal.default_int_handler, lambda *_: os._exit(INTERRUPTED))


def cleaning_up_when_terminated() -> contextlib.AbstractContextManager[None]:
    """SIGTERM, which schedulers and `timeout` send, raises SystemExit: processes and temporary files are cleaned up."""
    return _handling(signal.SIGTERM, signal.SIG_DFL, lambda *_: sys.exit(TERMINATED))


def notice(text: str) -> None:
    """Prints a line on stderr. A full or closed log is no reason to stop."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def print_json(value: Any) -> None:
    """Prints a command's result for other programs."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # streams that are not files have none
    is_utf8 = encoding.lower().replace("-", "") == "utf8"
    click.echo(json.dumps(value, indent=2, ensure_ascii=not is_utf8))
