"""`gristmill inspect`: a command for each thing that is shown."""

import difflib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gristmill._cli import mixture_files, runs
from gristmill._cli.options import (
    TOKENIZER,
    Command,
    as_json_option,
    dataset_option,
    is_given,
    naming_options,
    sample_option,
    settings_option,
    shard_path,
    special_tokens_option,
    tokenizer_path,
)
from gristmill._cli.runs import RunOptions
from gristmill._mixture import energon, syntax
from gristmill._sample.named import read_values
from gristmill._shards import stores
from gristmill._shards.address import Address
from gristmill._tokenizer.encoder import Encoder
from gristmill._tokenizer.options import SpecialTokensInText
from gristmill._util.output import importing, print_json

# The commands that releases before chose by an option; the first of these decides.
_BY_OPTION = {"--row": "row", "--keep": "filter", "--chat": "chats", "--prompt": "prompts"}


class _Inspect(click.Group):
    """Commands by name; without one, by the options and the file, as in releases before."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the name of the command first."""
        if not args or args[0] not in [*self.commands, *ctx.help_option_names]:
            _refuse_misspelled(args, list(self.commands))
            args = [_command_of(args), *args]
        return super().parse_args(ctx, args)


def _refuse_misspelled(args: list[str], commands: list[str]) -> None:
    """A first word like a command's name, with another word behind it, is no path."""
    nearest = difflib.get_close_matches(args[0], commands, n=1) if args else []
    if nearest and len(args) > 1 and not args[1].startswith("-") and not Path(args[0]).exists():
        raise click.UsageError(f"no command {args[0]!r}; did you mean {nearest[0]!r}?")


def _command_of(args: list[str]) -> str:
    given = {arg.partition("=")[0] for arg in args}
    if named := [command for option, command in _BY_OPTION.items() if option in given]:
        return named[0]
    return "mixture" if any(map(syntax.is_mixture_file, args)) else "file"


def _no_mixture(_: click.Context, __: click.Parameter, path: str) -> str:
    if syntax.is_mixture_file(path):
        raise click.UsageError(f"expected no mixture file, found {path}: gristmill inspect mixture {path}")
    return path


path_argument = click.argument("path", type=shard_path)
shard_argument = click.argument("path", type=shard_path, callback=_no_mixture)
needed_tokenizer_option = click.option("--tokenizer", type=tokenizer_path, required=True, help=TOKENIZER)


def records_option(default: int) -> Callable[[Command], Command]:
    """The option for how many records are looked at."""
    text = "Records of a shard to look at."
    return click.option("--records", type=click.IntRange(1), default=default, show_default=True, help=text)


@click.group(cls=_Inspect)
def inspect() -> None:
    """Explain a tokenizer, shard, mixture, state, packed files, or row.

    Without the name of a command, PATH is a file or a mixture.

    \b
    Examples:
      gristmill inspect tokenizer.json --text "Hello world"
      gristmill inspect red_pajama/2023-01/en_head.json.gz
      gristmill inspect gs://bucket/red_pajama/2023-01/en_head.json.gz
      gristmill inspect state.json --json
      gristmill inspect packed
      gristmill inspect mixture.toml
      gristmill inspect filter 'red_pajama/*/*.gz' --keep "language_score > 0.8 and nlines >= 3"
      gristmill inspect chats chats.jsonl --tokenizer model --set train_on=last
      gristmill inspect prompts prompts.parquet --tokenizer model --records 1
      gristmill inspect row state.json --row 5 --shards 'red_pajama/*/*.gz' --tokenizer tokenizer.json
      gristmill inspect row mixture.toml --row 5 --step 120
    """


@inspect.command()
@shard_argument
@records_option(1000)
@dataset_option("max_document_bytes")
@dataset_option("storage_options")
@click.option("--text", help="With a tokenizer: text to encode.")
@as_json_option
def file(
    path: str,
    records: int,
    max_document_bytes: int,
    storage_options: dict[str, str] | None,
    text: str | None,
    as_json: bool,
) -> None:
    """Explain a tokenizer, a shard, a state or packed files.

    A state is one saved as JSON, gzipped or not, or a checkpoint's folder of process_0-of-N.json.
    """
    with importing():
        from gristmill._inspect import contents

    with naming_options(["max_document_bytes"]):
        looks = {"records": records, "max_document_bytes": max_document_bytes}
        if stores.is_remote(path):
            found = contents.inspect_remote(Address.of(path, storage_options=storage_options), **looks)
        else:
            found = contents.inspect(Path(path), text=text, **looks)
    if text is not None and found["kind"] != "tokenizer":
        raise click.UsageError(f"--text needs a tokenizer, and {path} is not one")
    options = {"records": "--records", "max_document_bytes": "--max-document-bytes"}
    if found["kind"] != "shard" and (of_shards := [option for name, option in options.items() if is_given(name)]):
        raise click.UsageError(f"{of_shards[0]} needs a shard, and {path} is not one")
    _show(found, contents.describe, as_json=as_json)


@inspect.command("filter")
@shard_argument
@click.option("--keep", required=True, help="The filter.")
@records_option(1000)
@dataset_option("max_document_bytes")
@dataset_option("sidecars")
@dataset_option("storage_options")
@as_json_option
def show_filter(path: str, as_json: bool, storage_options: dict[str, str] | None, **looks: Any) -> None:
    """Show which records a filter keeps.

    PATH is a shard or a glob. The values that the filter is about are shown, too.
    """
    with importing():
        from gristmill._inspect import filtering

    with naming_options(["max_document_bytes", "keep", "sidecars"]):
        found = filtering.inspect(Address.of(path, storage_options=storage_options), looks.pop("keep"), **looks)
    _show(found, filtering.describe, as_json=as_json)


@inspect.command()
@path_argument
@click.option("--tokenizer", type=tokenizer_path, help=TOKENIZER)
@special_tokens_option
@settings_option("the dataset")
@dataset_option("storage_options")
@mixture_files.print_config_option
@as_json_option
def mixture(
    path: str,
    tokenizer: Path | None,
    special_tokens_in_text: SpecialTokensInText,
    settings: tuple[str, ...],
    storage_options: dict[str, str] | None,
    print_config: bool,
    as_json: bool,
) -> None:
    """Explain a mixture file, or a metadataset of Energon."""
    with importing():
        from gristmill._inspect import metadatasets, mixtures

    if syntax.is_mixture_file(path) and (splits := energon.splits_of(path, storage_options)) is not None:
        others = {"tokenizer": "--tokenizer", "settings": "--set", "print_config": "--print-config"}
        if given := [option for name, option in others.items() if is_given(name)]:
            raise click.UsageError(f"{given[0]} needs a mixture file, and {path} is a metadataset of Energon")
        _show(
            metadatasets.inspect(Address.of(path, storage_options=storage_options), splits),
            metadatasets.describe,
            as_json=as_json,
        )
        return
    found = mixture_files.find_own([path], tokenizer, special_tokens_in_text, storage_options)
    if found is None:
        raise click.UsageError(f"expected a mixture file, a .toml or .yaml, found {path}")
    mixture_files.check_print_config(found, as_json=as_json and print_config)
    found = replace(found, arguments={**found.arguments, **runs.parse_settings(settings)})
    dataset = mixtures.dataset_of(found, mixture_files.tokenizer_if_needed(found), {})
    if print_config:
        click.echo(mixture_files.config(found, dataset), nl=False)
    else:
        _show(mixtures.inspect(found, dataset), mixtures.describe, as_json=as_json)


@inspect.command()
@shard_argument
@needed_tokenizer_option
@records_option(3)
@settings_option("gm.Chat")
@dataset_option("storage_options")
@click.option("--chat", is_flag=True, hidden=True)
@as_json_option
def chats(
    path: str,
    tokenizer: Path,
    records: int,
    settings: tuple[str, ...],
    storage_options: dict[str, str] | None,
    chat: bool,
    as_json: bool,
) -> None:
    """Show conversations of a shard, trained tokens marked."""
    del chat  # the old name of the command
    with importing():
        from gristmill._inspect import chats

    shard = Address.of(path, storage_options=storage_options)
    found = chats.inspect(shard, records=records, **_of_records(tokenizer, settings))
    _show(found, chats.describe, as_json=as_json)


@inspect.command()
@shard_argument
@needed_tokenizer_option
@records_option(3)
@sample_option
@settings_option("gm.Chat")
@dataset_option("storage_options")
@click.option("--prompt", is_flag=True, hidden=True)
@as_json_option
def prompts(
    path: str,
    tokenizer: Path,
    records: int,
    sample: tuple[str, ...],
    settings: tuple[str, ...],
    storage_options: dict[str, str] | None,
    prompt: bool,
    as_json: bool,
) -> None:
    """Show prompts of a shard, token by token."""
    del prompt  # the old name of the command
    with importing():
        from gristmill._inspect import prompts

    made = runs.prompt_sample(sample)
    shard = Address.of(path, storage_options=storage_options)
    found = prompts.inspect(shard, sample=made, records=records, **_of_records(tokenizer, settings))
    _show(found, prompts.describe, as_json=as_json)


@inspect.command()
@path_argument
@click.option("--row", type=click.IntRange(0), required=True, help="A row of a global batch, from 0.")
@click.option("--step", type=click.IntRange(0), help="Step of its batch, from 0.  [default: the first after the state]")
@click.option("--full", is_flag=True, help="Print its documents whole.")
@click.option("--prompt", is_flag=True, help="Show the prompt of a run's row.")
@runs.run_options(
    shards="With a state: its shards, globs or mixture file.",
    drop="With a state: its row list.",
    tokenizer=TOKENIZER,
    settings="the dataset",
)
@as_json_option
def row(
    path: str,
    row: int,
    step: int | None,
    full: bool,
    prompt: bool,
    run: RunOptions,
    as_json: bool,
) -> None:
    """Show where the text of a row comes from.

    PATH is a state, or the shards or the mixture file of a run: the row's lane is replayed up to the step, and the
    records its text came from are listed, and with --full printed.

    \b
    Examples:
      gristmill inspect row state.json --row 5 --step 4217 --full --shards mixture.toml
      gristmill inspect row 'red_pajama/*/*.gz' --row 5 --step 120 --tokenizer tokenizer.json \\
        --set batch_size=64 --set sequence_length=2048 --set text_field=raw_content
      gristmill inspect row prompts.parquet --prompt --row 5 --step 12 --tokenizer model --set batch_size=64
    """
    if prompt:
        if full or run.drop is not None:
            raise click.UsageError(f"--prompt cannot be combined with {'--full' if full else '--drop'}")
        with importing():
            from gristmill._inspect import prompts

        dataset, state = runs.opened_prompts(path, run)
        _show(prompts.locate(dataset, state, path=path, step=step, row=row), prompts.describe, as_json=as_json)
        return
    with importing():
        from gristmill._inspect import locate, mixtures

    if (found := run.mixture_file(path)) is not None:
        for option, value in {"--shards": run.shards, "--drop": run.drop, "--sample": run.sample}.items():
            if value:
                raise click.UsageError(f"{option} does not go with a mixture file, which has its own")
        made = mixtures.dataset_of(found, mixture_files.tokenizer_if_needed(found), runs.parse_settings(run.settings))
        _show(locate.locate(locate.run_of(made), row=row, step=step, full=full), locate.describe, as_json=as_json)
        return
    if run.tokenizer is None and run.lacks_tokenizer(state := runs.state_of(path)):
        also = " and --shards, as PATH is a saved state" if state is not None and not run.shards else ""
        raise click.UsageError(f"--row needs --tokenizer{also}")
    with runs.opened(path, run) as opened:
        _show(locate.locate(opened, row=row, step=step, full=full), locate.describe, as_json=as_json)


def _of_records(tokenizer: Path, settings: tuple[str, ...]) -> dict[str, Any]:
    """The arguments with which the first records of a shard are shown, of those of a command."""
    return {
        "settings": read_values(settings, lambda setting: f"--set {setting}"),
        "encoder": Encoder.from_file(tokenizer, config="ignore"),
    }


def _show(found: dict[str, Any], describe: Callable[[dict[str, Any]], str], *, as_json: bool) -> None:
    """Prints what was found, as text or as JSON."""
    if as_json:
        print_json(found)
    else:
        click.echo(describe(found))
