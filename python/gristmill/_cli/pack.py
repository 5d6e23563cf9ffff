"""`gristmill pack` and `gristmill verify`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gristmill._cli import mixture_files, options, pack_units
from gristmill._cli.options import as_json_option
from gristmill._cli.pack_job import Job, absolute, check_fields
from gristmill._files.formats import FORMATS
from gristmill._files.schema import IMAGES_NOT_WRITTEN
from gristmill._mixture.mixture_file import SPECIAL_TOKENS, MixtureFile
from gristmill._sample import named
from gristmill._shards.address import Address
from gristmill._tokenizer.options import SpecialTokensInText
from gristmill._util.output import DIFFERENT, importing, notice, print_json
from gristmill._util.text import format_fields
from gristmill.errors import ArgumentError

if TYPE_CHECKING:  # Loads Grain.
    from gristmill._tokenizer.encoder import Encoder


def _of_shards(
    shards: tuple[str, ...],
    tokenizer: Path | None,
    special_tokens_in_text: SpecialTokensInText,
    sample: tuple[str, ...],
    arguments: dict[str, Any],
) -> Job:
    words = named.parse(sample)
    if tokenizer is None and (words is None or words["kind"] != "tokens"):
        raise click.UsageError("Missing option '--tokenizer'.")
    if words is not None and words["kind"] == "image_text":
        raise click.UsageError(f"--sample image_text: {IMAGES_NOT_WRITTEN}")
    if words is not None and words["kind"] in ("chat", "instruction", "tokens") and not options.is_given("eos"):
        arguments["eos"] = None  # A conversation has no EOS token but those of its template, ready ids have their own.
    return Job(list(shards), tokenizer, special_tokens_in_text, arguments, words)


def _of_mixture(file: MixtureFile) -> Job:
    arguments = {name: value for name, value in file.arguments.items() if name not in ("tokenizer", SPECIAL_TOKENS)}
    if arguments.get("batch_size") is None and "stages" not in arguments:
        raise ArgumentError(
            f"{file.path} has no batch_size, on which each row's source depends: add the one that you train with, or "
            "pass --batch-size"
        )
    special = file.arguments.get(SPECIAL_TOKENS, "id")
    return Job(file.shards, mixture_files.tokenizer_if_needed(file), special, arguments, file=file)


def _check_format(file_format: str, job: Job, fields: tuple[str, ...]) -> None:
    """Checks that whole documents are packed in a way in which they can be found in rows.

    Raises:
      UsageError: they are not.
    """
    if not FORMATS[file_format].holds_documents:
        return
    writes = f"--format {file_format} writes"
    if (job.value("packing"), job.value("layout")) != ("concat", "maxtext"):
        raise click.UsageError(f"{writes} whole documents: it takes neither --packing nor --layout")
    if job.value("truncation") == "middle":
        raise click.UsageError(
            f"{writes} documents without marks of what is cut inside: it takes no --truncation middle"
        )
    if any(job.value(name) for name in ("boundary_targets", "max_segments", "pad_segments_to")) or fields:
        raise click.UsageError(
            f"{writes} whole documents: it takes no --boundary-targets, --max-segments, --pad-segments-to or --field"
        )
    samples = (
        [job.sample] if job.file is None else [own.get("sample") for own in job.file.described["sources"].values()]
    )
    if any(sample and sample["kind"] != "text" for sample in samples):
        raise click.UsageError(f"{writes} whole documents without masks: it takes no --sample")


@click.command()
@click.argument("shards", nargs=-1, type=options.shard_path)
@click.option("--tokenizer", type=options.tokenizer_path, help="A tokenizer.json, its folder, or a hub name.")
@click.option("--output", type=options.PathType(file_okay=False), help="Folder to write, or its URL.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(list(FORMATS)),
    default="npy",
    show_default=True,
    help="File format.",
)
@click.option(
    "--rows-per-file",
    type=click.IntRange(1),
    default=65536,
    show_default=True,
    help="Rows after which a new file begins.",
)
@click.option("--field", "fields", multiple=True, help="Write only this field; may be repeated.  [default: all]")
@click.option("--steps", type=click.IntRange(1), help="Pack only so many steps (global batches).  [default: all]")
@click.option("--units", type=click.IntRange(1), help="Pack in so many units, which divide the lanes.")
@click.option("--plan", is_flag=True, help="With --units: only write their plan, for other machines.")
@click.option("--engine", type=click.Choice(["ray"]), help="With --units: a cluster whose tasks they are.")
@click.option("--cpus", type=click.IntRange(1), default=1, show_default=True, help="With --engine: CPUs of a task.")
@click.option(
    "--unit", metavar="NUMBER|auto", help="Pack one unit of the plan in --output; auto: a scheduler's number."
)
@click.option("--finish", is_flag=True, help="Check the units in --output, and write the index over them.")
@mixture_files.print_config_option
@options.special_tokens_option
@options.sample_option
@options.dataset_options(batch_size=64, none={"quarantine_file": "quarantine.jsonl in the folder"})
@as_json_option
def pack(
    shards: tuple[str, ...],
    tokenizer: Path | None,
    output: str | None,
    file_format: str,
    rows_per_file: int,
    fields: tuple[str, ...],
    steps: int | None,
    units: int | None,
    plan: bool,
    engine: str | None,
    cpus: int,
    unit: str | None,
    finish: bool,
    print_config: bool,
    special_tokens_in_text: SpecialTokensInText,
    sample: tuple[str, ...],
    as_json: bool,
    **arguments: Any,
) -> None:
    """Write packed rows into files.

    SHARDS are paths and globs, or a mixture file (.toml, .yaml), whose values options replace. `npy` gives arrays
    [rows, fields, sequence_length] to map into memory, `array_record` one record a row, `parquet` a column for each
    field, `megatron` pairs of .bin and .idx with whole documents. index.json describes them. The same command resumes
    an interrupted run after its last finished file; the result is that of an uninterrupted run. In a store, each file
    appears whole. All options from --text-field on are the arguments of PackedDataset.

    \b
    Examples:
      gristmill pack 'pile/*.jsonl.gz' --tokenizer llama --output packed --sequence-length 2048
      gristmill pack 'pile/*.jsonl.gz' --tokenizer llama --output packed --field inputs --field inputs_segmentation
      gristmill pack 'pile/*.jsonl.gz' --tokenizer llama --output packed --format megatron
      gristmill pack a.json.gz b.json.gz --tokenizer t.json --output packed --packing best_fit --seed 1 --json
      gristmill pack 'chats/*.jsonl' --tokenizer model --output packed --packing best_fit --layout grain \\
        --sample chat --sample train_on=last
      gristmill pack mixture.toml --output packed --steps 1000
      gristmill pack 'gs://bucket/pile/*.jsonl.gz' --tokenizer llama --output gs://bucket/packed
      gristmill pack mixture.toml --print-config
      gristmill pack 'pile/*.jsonl.gz' --tokenizer llama --output packed --units 256 --engine ray
      gristmill pack 'pile/*.jsonl.gz' --tokenizer llama --output packed --plan --units 256
      gristmill pack --output packed --unit 17
      gristmill pack --output packed --finish
    """
    place = None if output is None else Address.of(output, storage_options=arguments["storage_options"])
    if unit is not None or finish:
        pack_units.run(place, unit, arguments["threads"], is_end=finish, as_json=as_json)
        return
    if not shards:
        raise click.UsageError("Missing argument 'SHARDS...'.")
    pack_units.check(units, engine, plan=plan)
    file = mixture_files.find(shards)
    if print_config:
        mixture_files.check_print_config(file, as_json=as_json)
    elif place is None:
        raise click.UsageError("Missing option '--output'.")
    if file is None:
        job = _of_shards(shards, tokenizer, special_tokens_in_text, sample, arguments)
    elif sample:
        raise click.UsageError("--sample: each source of a mixture has its own: set it in the file")
    else:
        given = {"tokenizer": tokenizer, SPECIAL_TOKENS: special_tokens_in_text, **arguments}
        file = mixture_files.with_options(file, given)
        job = _of_mixture(file)
    _check_format(file_format, job, fields)
    # Loaded here: Grain takes half a second, which --help need not wait for.
    with importing():
        import gristmill._files.pack  # noqa: F401
        from gristmill._tokenizer.encoder import Encoder

    encoder = None
    if job.tokenizer is not None:
        encoder = Encoder.from_file(job.tokenizer, special_tokens_in_text=job.special_tokens_in_text)
    if file is not None and print_config:
        click.echo(mixture_files.config(file, job.dataset(encoder)), nl=False)
    elif place is not None and units is not None:
        chosen = {"file_format": file_format, "rows_per_file": rows_per_file, "fields": fields, "steps": steps}
        pack_units.plan(job, encoder, place, units, chosen)
        if plan:
            pack_units.show_plan(place, as_json=as_json)
        else:
            pack_units.run_all(place, engine, cpus, arguments["threads"], as_json=as_json)
    elif place is not None:
        _pack(job, encoder, place, file_format, rows_per_file, fields, steps, as_json=as_json)


def _pack(
    job: Job,
    encoder: "Encoder | None",
    place: Address,
    file_format: str,
    rows_per_file: int,
    fields: tuple[str, ...],
    steps: int | None,
    *,
    as_json: bool,
) -> None:
    """Packs, and prints the figures.

    Raises:
      GristmillError: see `gristmill._files.pack.pack`.
    """
    from gristmill._dataset.packed import spec_of
    from gristmill._files import overview
    from gristmill._files.folder import QUARANTINE, check_apart, check_quarantine_name
    from gristmill._files.pack import make_folder, packable_fields
    from gristmill._files.pack import pack as run

    listed, output = None, place.name
    if place.is_remote and job.quarantines and not job.value("quarantine_file"):
        raise click.UsageError(f"--output {output}: name a local file for quarantined records with --quarantine-file")
    if job.quarantines:
        # It may lie in the folder, which is only made once all arguments are checked.
        listed = absolute(Path(job.value("quarantine_file") or Path(output, QUARANTINE)))
        job.arguments["quarantine_file"] = None
    check_apart(output, file_format, job.shards, listed)
    dataset = job.dataset(encoder)
    known = packable_fields(spec_of(dataset))
    check_fields(fields, known)
    if listed is not None:
        if not place.is_remote:
            check_quarantine_name(listed, Path(output))
            make_folder(Path(output))
        job.arguments["quarantine_file"] = str(listed)
        dataset = job.dataset(encoder)
    try:
        found = run(
            dataset,
            place,
            fields=fields,
            file_format=file_format,
            rows_per_file=rows_per_file,
            source=job.source(dataset),
            steps=steps,
        )
    except (KeyboardInterrupt, SystemExit):
        notice("stopped: run the same command again to resume after the last finished part")
        raise
    if as_json:
        print_json(found)
        return
    earlier = f", {found['parts_of_earlier_runs']:,} of them by earlier runs" if found["parts_of_earlier_runs"] else ""
    if 0 < found["parts"] == found["parts_of_earlier_runs"]:
        speed = "nothing to do"
    else:
        speed = f"{found['tokens_per_second']:,.0f} tokens/s, {found['seconds']:.2f} s in all"
    click.echo(
        format_fields(
            [
                ("folder", found["folder"]),
                ("parts", f"{found['parts']:,} of format {found['format']}{earlier}"),
                ("holds", overview.holds(found, job.value("sequence_length"))),
                ("of the source", overview.of_the_source(found)),
                ("speed", speed),
            ]
        )
    )


@click.command()
@click.argument("folder", type=options.shard_path)
@click.option(
    "--shards",
    multiple=True,
    type=options.shard_path,
    help="Where the shards are now, of a mixture its file.  [default: where they were]",
)
@click.option("--drop", metavar=options.ROW_LIST, help="Where the row list is now.  [default: where it was]")
@click.option("--tokenizer", type=options.tokenizer_path, help="Where the tokenizer is now.  [default: where it was]")
@options.dataset_option("storage_options")
@click.option("--part", type=click.IntRange(0), help="Check this part only.  [default: all]")
@click.option("--threads", type=click.IntRange(1), help="Worker threads.  [default: one for each core]")
@as_json_option
def verify(
    folder: str,
    shards: tuple[str, ...],
    drop: str | None,
    tokenizer: Path | None,
    storage_options: dict[str, str] | None,
    part: int | None,
    threads: int | None,
    as_json: bool,
) -> int:
    """Check packed files against their source.

    Reads the shards again, encodes them with the `tokenizers` library whatever the tokenizer, packs, and compares with
    the files in FOLDER. Exit code 0: equal and, without --part, complete; 3: different, and the first
    difference is shown with the record it comes from, or damaged, or equal and not complete; 1: the comparison could
    not be made.

    \b
    Examples:
      gristmill verify packed
      gristmill verify packed --part 7 --json
      gristmill verify packed --shards '/new/place/*.jsonl.gz' --tokenizer llama
      gristmill verify packed --shards mixture.toml
      gristmill verify gs://bucket/packed --tokenizer llama
    """
    with importing():
        from gristmill._files import verify as checking

    address = Address.of(folder, storage_options=storage_options)
    given: dict[str, Any] = {
        "shards": address.at(*shards),
        "drop": drop,
        "tokenizer": tokenizer,
        "only": part,
        "threads": threads,
    }
    found = checking.verify_remote(address, **given) if address.is_remote else checking.verify(Path(folder), **given)
    if as_json:
        print_json(found)
    else:
        click.echo(checking.describe(found))
    return 0 if found["equal"] and (found["complete"] or part is not None) else DIFFERENT
