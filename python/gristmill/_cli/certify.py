"""`gristmill certify`."""

import math
from pathlib import Path

import click

from gristmill._cli import options
from gristmill._cli.options import (
    PathType,
    as_json_option,
    dataset_option,
    naming_options,
    special_tokens_option,
    tokenizer_path,
)
from gristmill._shards.address import Address
from gristmill._tokenizer.options import SpecialTokensInText
from gristmill._util.output import DIFFERENT, cleaning_up_when_terminated, importing, notice, print_json

_MOST_MINUTES = 10**6
_json_path = PathType(dir_okay=False, path_type=Path)


@click.command()
@click.argument("path", metavar="PATH", type=options.shard_path, required=False)
@click.argument("others", metavar="[CERTIFICATES]...", nargs=-1, type=_json_path)
@click.option(
    "--texts",
    multiple=True,
    type=options.shard_path,
    help="Also compare on these: shards, or text files (.txt, .md); repeated.",
)
@click.option("--text-field", default="text", show_default=True, help="Key of the texts in --texts.")
@dataset_option("storage_options")
@click.option(
    "--minutes",
    type=click.FloatRange(0, _MOST_MINUTES, min_open=True),
    default=1.0,
    show_default=True,
    help="How long to compare.",
)
@click.option("--documents", type=click.IntRange(1), help="How many texts to compare, of all kinds together.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the generated texts.")
@special_tokens_option
@click.option("--name", help="The tokenizer's name in the certificate.  [default: that of its file or folder]")
@click.option("--output", type=_json_path, help="Write the certificate into this file.")
@click.option("--check", type=_json_path, help="Compare nothing; tell whether this certificate fits the tokenizer.")
@click.option("--table", is_flag=True, help="Compare nothing; print a Markdown table of these certificates.")
@as_json_option
def certify(
    path: str | None,
    others: tuple[Path, ...],
    texts: tuple[str, ...],
    text_field: str,
    storage_options: dict[str, str] | None,
    minutes: float,
    documents: int | None,
    seed: int,
    special_tokens_in_text: SpecialTokensInText,
    name: str | None,
    output: Path | None,
    check: Path | None,
    table: bool,
    as_json: bool,
) -> int:
    """Compare a tokenizer's ids with the reference's, and certify it.

    PATH is a tokenizer.json, its folder, or a hub name. Its ids are compared with those of the `tokenizers` package
    (pip install 'gristmill[certify]'), on --texts, on texts of the Python installation, and on generated ones: every
    Unicode character, texts in many scripts, borders of pre-tokens, added tokens, long repeats, damaged text, mutations
    of the others. The kinds take turns, given texts first: at most 256 texts or about 65,000 characters of a kind, and
    of --texts four times the characters. So most of --documents are generated texts. The certificate names the file by
    its hash, the versions and kernels, and what was compared of each kind.

    A difference is shown with the shortest text that has it. Exit code 0: no difference, or with --check the
    certificate fits; 3: differences, or it does not fit. If interrupted, the certificate is of what was compared until
    then, and says so.

    \b
    Examples:
      gristmill certify tokenizer.json
      gristmill certify model --texts 'data/*.json.gz' --minutes 60 --output model.json
      gristmill certify tokenizer.json --check model.json
      gristmill certify --table certificates/*.json
    """
    with importing():
        from gristmill._certify import certificate as certificates
        from gristmill._certify import certify as running
        from gristmill._util import atomic_files

    if table:
        _check_alone("--table", "check", "as_json")
        click.echo(certificates.table(map(certificates.read, _certificates(path, others))))
        return 0
    if path is None:
        raise click.UsageError("Missing argument 'PATH'.")
    if others:
        raise click.UsageError("several paths need --table; a comparison is of one tokenizer")
    tokenizer = tokenizer_path.convert(path, None, click.get_current_context())
    if check is not None:
        _check_alone("--check", "table")
        return _check(tokenizer, check, as_json=as_json)
    if math.isnan(minutes):  # the range lets NaN pass
        raise click.UsageError("--minutes: expected a number")
    if documents is not None and options.is_given("minutes"):
        raise click.UsageError("--documents and --minutes cannot be combined")
    if not texts and (given := [name for name in ("text_field", "storage_options") if options.is_given(name)]):
        raise click.UsageError(f"--{given[0].replace('_', '-').removesuffix('s')} has no effect without --texts")
    job = running.Job(
        tokenizer,
        name or _name(tokenizer),
        special_tokens_in_text=special_tokens_in_text,
        texts=Address.of(*texts, storage_options=storage_options),
        text_field=text_field,
        seed=seed,
        documents=documents,
        minutes=minutes,
    )
    if output is not None and not output.parent.is_dir():
        raise click.UsageError(f"--output {output}: there is no such folder")
    with cleaning_up_when_terminated(), naming_options(["text_field"]):
        try:
            found, stopped = running.certify(job)
            if stopped is not None and not found["totals"]["texts"]:
                raise stopped
        except (KeyboardInterrupt, SystemExit):
            notice("stopped before anything was compared; no certificate written")
            raise
    if output is not None:
        with atomic_files.writing_into(output.parent):
            atomic_files.write_json(output, found, indent=2)
    if as_json:
        print_json(found)
    else:
        click.echo(certificates.describe(found))
    if found["differences"]:
        return DIFFERENT
    if stopped is not None:
        raise stopped
    return 0


def _check(tokenizer: Path, certificate_path: Path, *, as_json: bool) -> int:
    """Prints whether a certificate fits a tokenizer, and returns the exit code."""
    from gristmill._certify import certificate as certificates
    from gristmill._certify import certify as running

    certificate = certificates.read(certificate_path)
    here = certificates.identity(running.load(tokenizer, certificate["special_tokens_in_text"]))
    misfits, caveats = certificates.misfits(certificate, here), certificates.caveats(certificate, here)
    if as_json:
        print_json({"fits": not misfits, "misfits": misfits, "caveats": caveats})
    else:
        click.echo(certificates.describe_check(certificate, misfits, caveats))
    return DIFFERENT if misfits else 0


def _certificates(path: str | None, others: tuple[Path, ...]) -> list[Path]:
    """The paths of certificates for a table.

    Raises:
      UsageError: there are none, or one is a folder.
    """
    takes = "--table takes certificates, the files that --output writes"
    if path is None:
        raise click.UsageError(f"{takes}: at least one is needed")
    if Path(path).is_dir():
        raise click.UsageError(f"{takes}: {path!r} is a folder")
    return [Path(path), *others]


def _check_alone(option: str, *others: str) -> None:
    """Checks that options which belong to a comparison are absent.

    Raises:
      UsageError: one is there.
    """
    own = (*others, "texts", "text_field", "minutes", "documents", "seed", "special_tokens_in_text", "name", "output")
    if given := [name for name in own if options.is_given(name)]:
        raise click.UsageError(f"{option} cannot be combined with --{given[0].removeprefix('as_').replace('_', '-')}")


def _name(tokenizer: Path) -> str:
    """The name of a tokenizer's file, or if that is the usual one, of its folder."""
    name = tokenizer.name.removesuffix(".gz").removesuffix(".json").removesuffix(".tokenizer")
    return tokenizer.absolute().parent.name if name == "tokenizer" else name
