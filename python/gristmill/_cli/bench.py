"""`gristmill bench`."""

import importlib.util
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

import click

from gristmill._bench.contenders import CONTENDERS, own_dataset, template_of
from gristmill._bench.job import Job
from gristmill._cli import mixture_files, options
from gristmill._cli.options import as_json_option
from gristmill._demo import sample_text
from gristmill._mixture.mixture_file import MixtureFile
from gristmill._sample import named
from gristmill._shards import stores
from gristmill._shards.manifest import Manifest
from gristmill._shards.outputs import find_shard
from gristmill._tokenizer.encoder import Encoder, special_token_id
from gristmill._util import atomic_files
from gristmill._util.output import cleaning_up_when_terminated, importing, notice, print_json
from gristmill.errors import GristmillError

# Delays are measured on a small share of a machine, as beside a training loop.
_LATENCY_THREADS = 2
_RESULT, _SPEEDS, _DELAYS = "bench.json", "speeds.svg", "delays.svg"


@click.command()
@click.argument("paths", metavar="[SHARDS|MIXTURE]...", nargs=-1, type=options.shard_path)
@click.option(
    "--shards",
    multiple=True,
    type=options.shard_path,
    help="The same as SHARDS: a path or glob; may be repeated.  [default: the demo's text]",
)
@options.dataset_options("text_field", "storage_options")
@options.sample_option
@click.option(
    "--tokenizer",
    type=options.tokenizer_path,
    help="A tokenizer.json, its folder, or a hub name.  [default: the demo's]",
)
@options.dataset_options("eos")
@click.option(
    "--folder",
    type=options.PathType(file_okay=False, path_type=Path),
    help="Folder of the demo's text.  [default: ~/.cache/gristmill/demo]",
)
@click.option(
    "--megabytes", type=click.FloatRange(0.01), default=32.0, show_default=True, help="Megabytes of the demo's text."
)
@options.dataset_options("batch_size", "sequence_length", "lanes", "on_error", batch_size=32)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Number of rounds.")
@click.option(
    "--threads",
    type=click.IntRange(1),
    multiple=True,
    help="Threads for each; may be repeated.  [default: 1 2 4]",
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(CONTENDERS)),
    help="Run only gristmill and this contender; may be repeated.",
)
@click.option("--formats", is_flag=True, help="Also measure the same text in Zstandard and Parquet.")
@click.option("--latency", is_flag=True, help="Measure delays too: of the first batch, and of each next.")
@click.option(
    "--output",
    type=options.PathType(file_okay=False, path_type=Path),
    help="Folder for bench.json and the charts speeds.svg and delays.svg.",
)
@click.option("--steps", type=click.IntRange(1), help="With a mixture: steps to measure.  [default: 8 M tokens]")
@mixture_files.print_config_option
@as_json_option
def bench(
    paths: tuple[str, ...],
    shards: tuple[str, ...],
    text_field: str,
    storage_options: dict[str, str] | None,
    sample: tuple[str, ...],
    tokenizer: Path | None,
    eos: str | int | bool,
    folder: Path | None,
    megabytes: float,
    batch_size: int,
    sequence_length: int,
    lanes: int | None,
    on_error: Literal["raise", "quarantine"],
    rounds: int,
    threads: tuple[int, ...],
    only: tuple[str, ...],
    formats: bool,
    latency: bool,
    output: Path | None,
    steps: int | None,
    print_config: bool,
    as_json: bool,
) -> None:
    """Compare speed with common input pipelines.

    SHARDS are your own, paths, globs and URLs; without them the demo's text is measured. With shards in stores,
    gristmill alone is measured.

    Tokens a second from gzipped JSONL to packed batches: of gristmill; of `datasets` streaming with `tokenizers`
    and packing in NumPy; of Grain with `tokenizers`; of Grain over pre-tokenized ArrayRecord; of gigatoken, which packs
    nothing; and of decompression and of reading the files only, the limits. With --formats also of gristmill and of
    `datasets` over copies in other formats, which are made first. Each runs in a process of its own, once a
    round, in alternating order. Shown are medians, and the median of the rounds' ratios. Without --only,
    `datasets` and `tokenizers` must be installed, and of the others those are left out that are not.

    With --sample chat, from conversations to ids with masks of trained tokens: gristmill, which also packs them, and
    `transformers` and `renderers` in `datasets.map`, where they are installed.

    With MIXTURE, a mixture file (.toml, .yaml), the speed of the mixture beside that of each of its sources alone.

    \b
    Examples:
      gristmill bench
      gristmill bench --threads 2 --rounds 5 --latency --output results
      gristmill bench --shards 'pile/*.jsonl.gz' --tokenizer llama/tokenizer.json --only gigatoken --only inflate
      gristmill bench 'chats/*.jsonl' --tokenizer model --sample chat --threads 1 --threads 2
      gristmill bench mixture.toml --threads 2
    """
    file = mixture_files.find(paths)
    if print_config:
        mixture_files.check_print_config(file, as_json=as_json)
    if file is not None:
        rows: dict[str, object] = {"batch_size": batch_size, "sequence_length": sequence_length, "lanes": lanes}
        own = (
            "shards",
            "text_field",
            "sample",
            "folder",
            "megabytes",
            "on_error",
            "only",
            "formats",
            "latency",
            "output",
        )
        if wrong := list(filter(options.is_given, own)):
            raise click.UsageError(f"--{wrong[0].replace('_', '-')} does not go with a mixture file")
        rows |= {"tokenizer": tokenizer, "eos": eos, "storage_options": storage_options}
        file = mixture_files.with_options(file, rows)
        _bench_mixture(file, rounds, threads or (1, 2, 4), steps, print_config=print_config, as_json=as_json)
        return
    if steps is not None:
        raise click.UsageError("--steps has no effect without a mixture file")
    with importing():
        from gristmill._bench import latency as delays
        from gristmill._bench import report
        from gristmill._bench import rounds as running

    shards = (*paths, *shards)
    made = named.parse(sample)
    kind = "text" if made is None else made["kind"]
    _check_options(kind, shards, only, formats=formats)
    is_remote = any(map(stores.is_remote, shards))
    if is_remote and (given := [name for name in ("only", "formats", "latency") if options.is_given(name)]):
        raise click.UsageError(f"--{given[0]} needs local shards: of those in stores, gristmill alone is measured")
    needed = only or (("datasets",) if kind == "text" and not is_remote else ())
    packages = dict.fromkeys(package for name in needed for package in CONTENDERS[name].needs)
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise GristmillError(f"{' and '.join(missing)} not installed: pip install {' '.join(missing)}")
    if output is not None:
        _check_apart(output, shards)
        _make_folder(output)
    if not shards:
        demo = sample_text.prepare(folder or sample_text.default_folder(), megabytes)
        shards, text_field = (demo.glob,), sample_text.TEXT_FIELD
    tokenizer = tokenizer or sample_text.tokenizer()
    encoder = Encoder.from_file(tokenizer)
    manifest = Manifest.find(shards, storage_options)
    job = Job(
        shards=list(manifest.paths),
        shard_bytes=sum(manifest.sizes),
        storage_options=storage_options,
        text_field=text_field,
        tokenizer=str(tokenizer),
        eos=None if kind == "chat" else special_token_id(encoder, "eos", eos),
        batch_size=batch_size,
        sequence_length=sequence_length,
        threads=_LATENCY_THREADS,
        lanes=lanes,
        on_error=on_error,
        sample=made,
    )
    # Arguments that do not go together are better known before anything runs.
    job = replace(job, template=template_of(own_dataset(job, encoder)))
    with cleaning_up_when_terminated():
        result = running.compare(
            job,
            rounds,
            threads or (1, 2, 4),
            [] if is_remote else [*only] or running.available(formats=formats, kind=kind),
        )
        try:
            if latency:
                result["latency"] = delays.in_child(job)
        finally:  # delays that cannot be measured, a full disk or a closed pipe do not lose the rest
            try:
                if output is not None:
                    _write(result, output)
            finally:
                if as_json:
                    print_json(result)
                else:
                    click.echo(report.describe(result))


def _bench_mixture(
    file: MixtureFile, rounds: int, threads: tuple[int, ...], steps: int | None, *, print_config: bool, as_json: bool
) -> None:
    """Measures a mixture and prints the figures.

    Raises:
      GristmillError: the file is wrong, or a run failed.
    """
    with importing():
        from gristmill._bench import mixtures
        from gristmill._dataset.packed import spec_of
        from gristmill._inspect.mixtures import dataset_of

    # Arguments that do not go together are better known before anything runs.
    tokenizer = mixture_files.tokenizer_of(file)
    dataset = dataset_of(file, tokenizer, {})
    if print_config:
        click.echo(mixture_files.config(file, dataset), nl=False)
        return
    spec = spec_of(dataset)
    steps = steps or mixtures.default_steps(spec.rows_per_step, spec.rows.sequence_length)
    arguments = {**file.arguments, "tokenizer": str(tokenizer.absolute())}
    with cleaning_up_when_terminated():
        result = mixtures.compare(
            file.path, arguments, list(dataset.sources), rounds=rounds, threads=threads, steps=steps
        )
    if as_json:
        print_json(result)
    else:
        click.echo(mixtures.describe(result))


def _check_options(kind: str, shards: tuple[str, ...], only: tuple[str, ...], *, formats: bool) -> None:
    """Checks that the options go together.

    Raises:
      UsageError: two do not.
    """
    if kind == "image_text":
        raise click.UsageError(
            "--sample image_text: the contenders read text: `python benches/images.py` compares images, and a mixture "
            "file the sources of a run"
        )
    if formats and only:
        raise click.UsageError("--formats adds contenders, and --only names them: use one of these options")
    if options.is_given("text_field") and not shards:
        raise click.UsageError("--text-field has no effect without SHARDS")
    if shards and any(map(options.is_given, ("folder", "megabytes"))):
        raise click.UsageError("--folder and --megabytes apply to the demo's text: they have no effect with SHARDS")
    if kind == "text" and options.is_given("sample"):
        raise click.UsageError("--sample text: name the key with --text-field")
    if kind != "text":
        if not shards or not options.is_given("tokenizer"):
            raise click.UsageError(f"--sample {kind} needs SHARDS and --tokenizer: the demo has only text")
        if given := [name for name in ("text_field", "formats") if options.is_given(name)]:
            raise click.UsageError(f"--{given[0].replace('_', '-')} has no effect with --sample {kind}")
        if kind == "chat" and options.is_given("eos"):
            raise click.UsageError("--eos has no effect with --sample chat: the template writes the tokens around it")
    if unfit := [name for name in only if kind not in CONTENDERS[name].kinds]:
        fit = [name for name, contender in CONTENDERS.items() if kind in contender.kinds]
        sample = f"--sample {kind}" if kind != "text" else "text"
        raise click.UsageError(f"--only {unfit[0]} has no effect with {sample}: expected one of {', '.join(fit)}")


def _check_apart(folder: Path, shards: tuple[str, ...]) -> None:
    """Checks that no result would be a shard of the next benchmark, or is one of this."""
    if found := find_shard(shards, (folder / name for name in (_RESULT, _SPEEDS, _DELAYS))):
        raise click.UsageError(
            f"--output {folder}: {found[0]!r} will be written, and {found[1]}: write into another folder"
        )


def _make_folder(folder: Path) -> None:
    """Finds out whether results can be written, which is better known before the benchmark than after it."""
    with atomic_files.writing_into(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


def _write(result: dict[str, object], folder: Path) -> None:
    with atomic_files.writing_into(folder):
        atomic_files.write_json(folder / _RESULT, result, indent=2)
    if importlib.util.find_spec("matplotlib") is None:
        notice("no charts: matplotlib is not installed (pip install 'gristmill[bench]')")
        return
    from gristmill._bench import chart

    chart.draw_speeds(result, folder / _SPEEDS)
    if "latency" in result:
        chart.draw_delays(result["latency"], folder / _DELAYS)  # type: ignore[arg-type]
