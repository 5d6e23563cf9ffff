"""The command line. Results go to stdout, progress and errors to stderr.

Exit codes: 0 done, 1 an error, 2 wrong usage, 3 `verify` or `certify` found a difference, or
what they check is damaged, incomplete or does not fit, 130 interrupted, 143 terminated.
"""

import io
import logging
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from gristmill._cli.audit import audit
from gristmill._cli.bench import bench
from gristmill._cli.certify import certify
from gristmill._cli.demo import demo
from gristmill._cli.index import index
from gristmill._cli.inspect import inspect
from gristmill._cli.options import is_wrong_usage
from gristmill._cli.pack import pack, verify
from gristmill._cli.runs import naming_setting
from gristmill._cli.trace import trace
from gristmill._cli.view import view
from gristmill._core import __version__, build_info
from gristmill._images.decoding import SLOW_JPEG
from gristmill._util.output import INTERRUPTED, repeating_lost_interrupts
from gristmill.errors import GristmillError

# Also the exit code of click.
WRONG_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits."""
    if sys.stderr is None:  # closed before Python began, as some daemons do
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the locale may lack characters of the text
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    _silence_missing_jax()
    try:
        with repeating_lost_interrupts():
            code = cli.main(arguments, prog_name="gristmill", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        naming_setting(error).show()
        return error.exit_code
    except (GristmillError, OSError) as error:
        print(f"error: {' '.join(_message_of(error).splitlines())}", file=sys.stderr)
        return WRONG_USAGE if is_wrong_usage(error) else 1
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED


def _message_of(error: Exception) -> str:
    """An error's message. The message of a system's error is without its number."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename!r}: {error.strerror}"
    return str(error)


def _describe_build() -> str:
    info = build_info()
    commit = f"commit {info['commit']}" if info["commit"] else "commit unknown"
    built = "" if info["optimised"] else ", not optimised"
    jpeg = "" if info["jpeg_vector_code"] else f", JPEG is decoded {SLOW_JPEG}"
    return (
        f"%(prog)s %(version)s ({commit}{built})\n"
        f"{info['system']}, hot loops use {info['instructions']}{jpeg}\n"
        f"ids of the tokenizers crate {info['tokenizers_crate']}, Python {platform.python_version()}"
    )


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gristmill", message=_describe_build())
def cli() -> None:
    """Turns raw training data into the batches that language models are trained on.

    \b
    Tab completion, for bash (likewise zsh and fish):
      eval "$(_GRISTMILL_COMPLETE=bash_source gristmill)"
    """


for command in (demo, inspect, trace, audit, view, pack, verify, certify, bench, index):
    cli.add_command(command)


def _silence_missing_jax() -> None:
    """Grain warns when it is loaded without JAX, which no command needs."""
    logging.getLogger("absl").addFilter(lambda record: "jax profiler" not in record.getMessage())
