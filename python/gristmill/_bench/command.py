"""`gristmill bench`."""

import json
from pathlib import Path

import click

from gristmill import _sample
from gristmill._encoder import Encoder
from gristmill._manifest import Manifest
from gristmill._options import dataset_options

_STDOUT = "-"


@click.command()
@click.option("--shards", help="A glob of your own shards.  [default: the demo's text]")
@click.option("--text-field", default="text", show_default=True, help="Key of the text in your shards.")
@click.option(
    "--tokenizer", type=click.Path(exists=True, path_type=Path), help="A tokenizer.json.  [default: the demo's]"
)
@click.option("--eos", help="Token behind each document.  [default: the one named beside the tokenizer]")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the demo's text is kept.  [default: ~/.cache/gristmill/demo]",
)
@click.option(
    "--megabytes", type=click.FloatRange(0.01), default=32.0, show_default=True, help="How much of the demo's text."
)
@dataset_options("batch_size", "sequence_length", batch_size=32)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="How often to run each.")
@click.option("--threads", type=click.IntRange(1), help="Threads for each.  [default: one for each core]")
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, allow_dash=True),
    is_flag=False,
    flag_value=_STDOUT,
    metavar="[FILE]",
    help="Print all that was measured as JSON; with FILE, write it there beside printing the table.",
)
def bench(
    shards: str | None,
    text_field: str,
    tokenizer: Path | None,
    eos: str | None,
    folder: Path | None,
    megabytes: float,
    batch_size: int,
    sequence_length: int,
    rounds: int,
    threads: int | None,
    json_file: str | None,
) -> None:
    """Compare with the pipelines of today, on the same shards.

    Tokens a second from gzipped JSONL to packed batches: of gristmill, of `datasets` streaming with `tokenizers`
    and packing in NumPy, and of Grain with `tokenizers`. Each runs in a process of its own, once a round, in
    alternating order. Shown are medians, and the median of the rounds' ratios.

    \b
    Examples:
      gristmill bench
      gristmill bench --threads 1 --rounds 5 --json bench.json
      gristmill bench --shards 'pile/*.jsonl.gz' --tokenizer llama/tokenizer.json
    """
    from gristmill import _core
    from gristmill._bench import report
    from gristmill._bench.contenders import Job
    from gristmill._bench.rounds import compare

    save_to = None if json_file in (None, _STDOUT) else _writable(str(json_file))
    if shards is None:
        sample = _sample.prepare(folder or _sample.default_folder(), megabytes)
        shards, text_field = sample.glob, _sample.TEXT_FIELD
    tokenizer = tokenizer or _sample.tokenizer()
    job = Job(
        shards=list(Manifest.find(shards).paths),
        text_field=text_field,
        tokenizer=str(tokenizer),
        eos=Encoder.from_file(tokenizer).special_token_id("eos", eos),
        batch_size=batch_size,
        sequence_length=sequence_length,
        threads=threads or _core.usable_cores(),
    )
    result = compare(job, rounds)
    as_json = json.dumps(result, indent=2, ensure_ascii=False)
    if save_to is not None:
        save_to.write_text(as_json + "\n")
    click.echo(as_json if json_file == _STDOUT else report.describe(result))


def _writable(name: str) -> Path:
    """A file that can be written, which is better known before the benchmark than after it."""
    path = Path(name)
    try:
        path.touch()
    except OSError as error:
        raise click.BadParameter(f"{name!r}: {error.strerror}", param_hint="--json") from error
    return path
