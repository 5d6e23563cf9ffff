"""What commands print for other programs."""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import click

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


INTERRUPTED = 130
TERMINATED = 143


@contextlib.contextmanager
def repeating_lost_interrupts() -> Iterator[None]:
    """Raises a `KeyboardInterrupt` again that Python has dropped.

    What is raised in a callback of the garbage collector, of which JAX has one, or in a finalizer only becomes a
    message on stderr, and the command would go on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # there are no interrupts here
        return

    def hook(unraisable: Any) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        else:
            hook_before(unraisable)

    hook_before, sys.unraisablehook = sys.unraisablehook, hook
    alarm_before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm_before)
        sys.unraisablehook = hook_before


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """While large packages are imported, Ctrl-C ends the process at once.

    A `KeyboardInterrupt` in the middle of it may be lost in a callback of theirs, or break their C++ code.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # whoever called this sees to interrupts, or wants none
        return
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def cleaning_up_when_terminated() -> Iterator[None]:
    """SIGTERM, as schedulers and `timeout` send it, leaves neither processes nor temporary files behind."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield  # whoever called this sees to it
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def print_json(value: Any) -> None:
    """Prints a command's result for other programs."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # what is no file has none
    is_utf8 = encoding.lower().replace("-", "") == "utf8"
    click.echo(json.dumps(value, indent=2, ensure_ascii=not is_utf8))
