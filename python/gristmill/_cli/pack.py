"""`gristmill pack` and `gristmill verify`."""

import glob
from pathlib import Path
from typing import Any

import click

from gristmill._cli import options
from gristmill._cli.options import as_json_option
from gristmill._files.formats import FORMATS
from gristmill._files.schema import Source
from gristmill._shards.manifest import sizes_by_path
from gristmill._tokenizer.options import SpecialTokensInText
from gristmill._util.output import importing, notice, print_json
from gristmill._util.text import format_fields

# Exit code of `verify` if files and source differ.
DIFFERENT = 3


@click.command()
@click.argument("shards", nargs=-1, required=True, type=options.shard_path)
@click.option(
    "--tokenizer", type=options.tokenizer_path, required=True, help="A tokenizer.json, its folder, or a hub name."
)
@click.option(
    "--output", type=options.PathType(file_okay=False, path_type=Path), required=True, help="Folder to write."
)
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
@options.special_tokens_option
@options.sample_option
@options.dataset_options(batch_size=64, none={"quarantine_file": "quarantine.jsonl in the folder"})
@as_json_option
def pack(
    shards: tuple[str, ...],
    tokenizer: Path,
    output: Path,
    file_format: str,
    rows_per_file: int,
    fields: tuple[str, ...],
    special_tokens_in_text: SpecialTokensInText,
    sample: tuple[str, ...],
    as_json: bool,
    **arguments: Any,
) -> None:
    """Write packed rows into files.

    SHARDS are paths and globs. `npy` gives arrays [rows, fields, sequence_length] to map into memory,
    `array_record` one record a row, `megatron` pairs of .bin and .idx with whole documents. index.json describes
    them. The same command resumes an interrupted run after its last finished file; the result is that of an
    uninterrupted run. All options from --text-field on are the arguments of PackedDataset.

    \b
    Examples:
      gristmill pack 'pile/*.jsonl.gz' --tokenizer llama --output packed --sequence-length 2048
      gristmill pack 'pile/*.jsonl.gz' --tokenizer llama --output packed --field inputs --field inputs_segmentation
      gristmill pack 'pile/*.jsonl.gz' --tokenizer llama --output packed --format megatron
      gristmill pack a.json.gz b.json.gz --tokenizer t.json --output packed --packing best_fit --seed 1 --json
      gristmill pack 'chats/*.jsonl' --tokenizer model --output packed --packing best_fit --layout grain \\
        --sample chat --sample train_on=last
    """
    if file_format == "megatron" and (arguments["packing"], arguments["layout"]) != ("concat", "maxtext"):
        raise click.UsageError("--format megatron writes whole documents: it takes neither --packing nor --layout")
    if file_format == "megatron" and (arguments["boundary_targets"] or arguments["max_segments"] or fields):
        raise click.UsageError(
            "--format megatron writes whole documents: it takes no --boundary-targets, --max-segments or --field"
        )
    if file_format == "megatron" and sample:
        raise click.UsageError("--format megatron writes whole documents without masks: it takes no --sample")
    # Loaded here: Grain takes half a second, which --help need not wait for.
    with importing():
        from gristmill._dataset.packed import PackedDataset, spec_of
        from gristmill._files import overview
        from gristmill._files.folder import QUARANTINE, check_apart, check_quarantine_name
        from gristmill._files.pack import make_folder, packable_fields
        from gristmill._files.pack import pack as run
        from gristmill._sample import named
        from gristmill._tokenizer.encoder import Encoder

    listed = None
    if arguments["on_error"] == "quarantine":
        # It may lie in the folder, which is only made once all arguments are checked.
        listed = _absolute(Path(arguments["quarantine_file"] or output / QUARANTINE))
        arguments["quarantine_file"] = None
    check_apart(output, file_format, shards, listed)
    encoder = Encoder.from_file(tokenizer, special_tokens_in_text=special_tokens_in_text)
    words = named.parse(sample)
    if words is not None:
        arguments["sample"] = named.make(words)
        if words["kind"] == "chat" and not options.is_given("eos"):
            arguments["eos"] = None  # A conversation has no EOS token but those of its template.
    dataset = PackedDataset(list(shards), tokenizer=encoder, **arguments)
    known = packable_fields(spec_of(dataset))
    if unknown := [name for name in fields if name not in known]:
        raise click.BadParameter(f"{unknown[0]!r}: expected one of {', '.join(known)}", param_hint="--field")
    if listed is not None:
        check_quarantine_name(listed, output)
        make_folder(output)
        arguments["quarantine_file"] = str(listed)
        dataset = PackedDataset(dataset.manifest, tokenizer=encoder, **arguments)
    rows = spec_of(dataset).source.input.drop
    # Relative names would mean something else wherever `verify` is called.
    source: Source = {
        "shards": [_from_anywhere(shard) for shard in shards],
        "sizes": sizes_by_path(dataset.manifest),
        "tokenizer": str(_absolute(tokenizer)),
        "special_tokens_in_text": special_tokens_in_text,
        "arguments": {
            **arguments,
            "drop": rows and rows.named.absolute.text,
            **({} if words is None else {"sample": words}),
        },
    }
    try:
        found = run(dataset, output, fields=fields, file_format=file_format, rows_per_file=rows_per_file, source=source)
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
                ("holds", overview.holds(found, arguments["sequence_length"])),
                ("of the source", overview.of_the_source(found)),
                ("speed", speed),
            ]
        )
    )


@click.command()
@click.argument("folder", type=options.PathType(readable=False, path_type=Path))
@click.option(
    "--shards", multiple=True, type=options.shard_path, help="Where the shards are now.  [default: where they were]"
)
@click.option("--drop", metavar=options.ROW_LIST, help="Where the row list is now.  [default: where it was]")
@click.option("--tokenizer", type=options.tokenizer_path, help="Where the tokenizer is now.  [default: where it was]")
@click.option("--part", type=click.IntRange(0), help="Check this part only.  [default: all]")
@click.option("--threads", type=click.IntRange(1), help="Worker threads.  [default: one for each core]")
@as_json_option
def verify(
    folder: Path,
    shards: tuple[str, ...],
    drop: str | None,
    tokenizer: Path | None,
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
    """
    with importing():
        from gristmill._files import verify as checking

    found = checking.verify(folder, shards=shards, drop=drop, tokenizer=tokenizer, only=part, threads=threads)
    if as_json:
        print_json(found)
    else:
        click.echo(checking.describe(found))
    return 0 if found["equal"] and (found["complete"] or part is not None) else DIFFERENT


def _absolute(path: Path) -> Path:
    """The absolute form of a path; an absolute one needs no working folder."""
    return path if path.is_absolute() else Path.cwd() / path


def _from_anywhere(shards: str) -> str:
    """The absolute form of a path or glob."""
    if Path(shards).is_absolute():
        return shards
    here = Path.cwd()
    # A name that exists is a path; in a glob, the working folder's own name is escaped.
    exists = (here / shards).exists()
    return str((here if exists else Path(glob.escape(str(here)))) / shards)
