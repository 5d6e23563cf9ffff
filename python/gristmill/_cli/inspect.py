"""`gristmill inspect`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from gristmill._cli import mixture_files, runs
from gristmill._cli.options import (
    ROW_LIST,
    as_json_option,
    dataset_option,
    in_options,
    is_given,
    rewording,
    sample_option,
    shard_path,
    special_tokens_option,
    tokenizer_path,
)
from gristmill._mixture.mixture_file import SPECIAL_TOKENS, MixtureFile
from gristmill._sample.named import read_values
from gristmill._shards import stores
from gristmill._tokenizer.encoder import Encoder
from gristmill._tokenizer.options import SpecialTokensInText
from gristmill._util.output import importing, print_json

# Conversations that are shown unless --records says how many.
_CHATS = 3


@click.command()
@click.argument("path", type=shard_path)
@click.option(
    "--records",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Records of a shard to look at.",
)
@dataset_option("max_document_bytes")
@click.option("--keep", help="With shards: show which records this filter keeps, and the values that it is about.")
@dataset_option("sidecars")
@dataset_option("storage_options")
@click.option("--chat", is_flag=True, help="With a shard: show its first conversations with the trained tokens marked.")
@click.option(
    "--prompt",
    is_flag=True,
    help="With a shard: show its first prompts, rendered, token by token; with --row, that of a run's row.",
)
@click.option("--text", help="With a tokenizer: text to encode.")
@click.option("--row", type=click.IntRange(0), help="A row of a global batch, from 0: show where its text comes from.")
@click.option(
    "--step", type=click.IntRange(0), help="Step of the row's batch, from 0.  [default: the first after the state]"
)
@click.option("--full", is_flag=True, help="With --row: print its documents whole.")
@click.option(
    "--shards",
    multiple=True,
    type=shard_path,
    help="With --row and a state: its shards, paths or globs, or mixture file.",
)
@click.option("--drop", metavar=ROW_LIST, help="With --row and a state: its row list.")
@click.option(
    "--tokenizer",
    type=tokenizer_path,
    help="With --row, --chat or --prompt: a tokenizer.json, its folder, or a hub name.",
)
@special_tokens_option
@sample_option
@click.option(
    "--set",
    "settings",
    multiple=True,
    help="With --row: an argument of the dataset; with --chat or --prompt: one of gm.Chat.",
)
@mixture_files.print_config_option
@as_json_option
def inspect(
    path: str,
    records: int,
    max_document_bytes: int,
    keep: str | None,
    sidecars: list[str] | None,
    storage_options: list[str] | None,
    chat: bool,
    prompt: bool,
    text: str | None,
    row: int | None,
    step: int | None,
    full: bool,
    shards: tuple[str, ...],
    drop: str | None,
    tokenizer: Path | None,
    special_tokens_in_text: SpecialTokensInText,
    sample: tuple[str, ...],
    settings: tuple[str, ...],
    print_config: bool,
    as_json: bool,
) -> None:
    """Explain a tokenizer, shard, mixture, state, packed files, or row.

    A state is one saved as JSON, gzipped or not, or a checkpoint's folder of process_0-of-N.json. With --row, PATH is
    a state, or the shards or the mixture file of a run: the row's lane is replayed up to the step, and the records its
    text came from are listed, and with --full printed. With --keep, PATH is a shard or a glob.

    \b
    Examples:
      gristmill inspect tokenizer.json --text "Hello world"
      gristmill inspect red_pajama/2023-01/en_head.json.gz
      gristmill inspect gs://bucket/red_pajama/2023-01/en_head.json.gz
      gristmill inspect 'red_pajama/*/*.gz' --keep "language_score > 0.8 and nlines >= 3"
      gristmill inspect chats.jsonl --chat --tokenizer model --set train_on=last
      gristmill inspect prompts.parquet --prompt --tokenizer model --records 1
      gristmill inspect prompts.parquet --prompt --row 5 --step 12 --tokenizer model --set batch_size=64 --set seed=1
      gristmill inspect state.json --json
      gristmill inspect packed
      gristmill inspect state.json --row 5 --shards 'red_pajama/*/*.gz' --tokenizer tokenizer.json
      gristmill inspect 'red_pajama/*/*.gz' --row 5 --step 120 --tokenizer tokenizer.json \\
        --set batch_size=64 --set sequence_length=2048 --set text_field=raw_content
      gristmill inspect mixture.toml
      gristmill inspect mixture.toml --row 5 --step 120
      gristmill inspect state.json --row 5 --step 4217 --full --shards mixture.toml
    """
    if full and row is None:
        raise click.UsageError("--full applies only together with --row")
    if sidecars and keep is None:
        raise click.UsageError("--sidecar has no effect without --keep")
    if prompt and row is not None:
        apart = {"--chat": chat or None, "--keep": keep, "--text": text, "--drop": drop}
        if wrong := [option for option, value in apart.items() if value is not None]:
            raise click.UsageError(f"--prompt cannot be combined with {wrong[0]}")
        of_run = (path, shards, tokenizer, special_tokens_in_text, sample, settings, storage_options)
        _show_prompt(of_run, row, step, as_json=as_json)
        return
    storage = stores.check_options("--storage-option", storage_options)
    file = mixture_files.find([path])
    if print_config:
        mixture_files.check_print_config(file, as_json=as_json)
    if file is not None:
        _check_mixture_options(keep, text, chat or prompt, shards, drop, sample, row, step)
        own = {"tokenizer": tokenizer, SPECIAL_TOKENS: special_tokens_in_text, "storage_options": storage_options}
        file = mixture_files.with_options(file, own)
        _show_mixture(file, row, step, settings, full=full, print_config=print_config, as_json=as_json)
        return
    if chat or prompt:
        others: dict[str, object] = {"--prompt": True if chat and prompt else None, "--keep": keep, "--text": text}
        others |= {"--row": row, "--step": step, "--shards": shards, "--drop": drop}
        others |= {"--sample": sample if chat else None}
        option = "--chat" if chat else "--prompt"
        if wrong := [name for name, value in others.items() if _is_set(value)]:
            hint = " without --row" if option == "--prompt" and wrong[0] in ("--step", "--shards") else ""
            raise click.UsageError(f"{option} cannot be combined with {wrong[0]}{hint}")
        _show_chats(option, path, records, tokenizer, settings, sample, storage, as_json=as_json)
        return
    options = {"records": "--records", "max_document_bytes": "--max-document-bytes"}
    of_shards = [option for name, option in options.items() if is_given(name)]
    if row is None:
        if step is not None or shards or drop or tokenizer or settings or sample or special_tokens_in_text != "id":
            raise click.UsageError(
                "--step, --shards, --drop, --tokenizer, --special-tokens-in-text, --sample and --set apply only "
                "together with --row"
            )
        with importing():
            from gristmill._inspect import contents, filtering

        describe = contents.describe if keep is None else filtering.describe
        with rewording(lambda message: in_options(message, ["max_document_bytes", "keep", "sidecars"])):
            looks = {"records": records, "max_document_bytes": max_document_bytes}
            if keep is not None:
                found = filtering.inspect(path, keep, sidecars=sidecars, storage_options=storage, **looks)
            elif stores.is_remote(path):
                found = contents.inspect_remote(path, storage_options=storage, **looks)
            else:
                found = contents.inspect(Path(path), text=text, **looks)
        if text is not None and found["kind"] != "tokenizer":
            raise click.UsageError(f"--text needs a tokenizer, and {path} is not one")
        if of_shards and found["kind"] not in ("shard", "filter"):
            raise click.UsageError(f"{of_shards[0]} needs a shard, and {path} is not one")
    else:
        if of_shards or keep is not None:
            option = "--keep" if keep is not None else of_shards[0]
            raise click.UsageError(f"{option} needs a shard, and cannot be combined with --row")
        if text is not None:
            raise click.UsageError("--text needs a tokenizer, and cannot be combined with --row")
        if tokenizer is None and mixture_files.find(shards) is None:
            with importing():
                is_state = runs.state_of(path) is not None
            also = " and --shards, as PATH is a saved state" if is_state and not shards else ""
            raise click.UsageError(f"--row needs --tokenizer{also}")
        with importing():
            from gristmill._inspect import locate

        run = runs.opened(
            path, shards, drop, tokenizer, special_tokens_in_text, sample, settings, storage_options=storage
        )
        with run as opened:
            found = locate.locate(opened, row=row, step=step, full=full)
        describe = locate.describe
    if as_json:
        print_json(found)
    else:
        click.echo(describe(found))


def _check_mixture_options(
    keep: str | None,
    text: str | None,
    shows_chats: bool,
    shards: tuple[str, ...],
    drop: str | None,
    sample: tuple[str, ...],
    row: int | None,
    step: int | None,
) -> None:
    """Checks that the options go with a mixture file.

    Raises:
      UsageError: one does not.
    """
    given: dict[str, object] = {"--keep": keep, "--text": text, "--shards": shards, "--drop": drop, "--sample": sample}
    given["--chat or --prompt"] = True if shows_chats else None
    if wrong := [name for name, value in given.items() if _is_set(value)]:
        raise click.UsageError(f"{wrong[0]} does not go with a mixture file, which has its own")
    if step is not None and row is None:
        raise click.UsageError("--step applies only together with --row")


def _show_mixture(
    file: MixtureFile,
    row: int | None,
    step: int | None,
    settings: tuple[str, ...],
    *,
    full: bool,
    print_config: bool,
    as_json: bool,
) -> None:
    """Prints what a mixture file describes, or a row of it.

    Raises:
      GristmillError: the file is wrong, or there is no such row.
    """
    with importing():
        from gristmill._inspect import locate, mixtures

    dataset = mixtures.dataset_of(file, mixture_files.tokenizer_of(file), runs.parse_settings(settings))
    if print_config:
        click.echo(mixture_files.config(file, dataset), nl=False)
        return
    if row is None:
        found, describe = mixtures.inspect(file, dataset), mixtures.describe
    else:
        found, describe = locate.locate(locate.run_of(dataset), row=row, step=step, full=full), locate.describe
    if as_json:
        print_json(found)
    else:
        click.echo(describe(found))


def _show_prompt(run: Any, row: int, step: int | None, *, as_json: bool) -> None:
    """Prints the prompt of a row.

    Args:
      run: the arguments of `runs.opened_prompts`.
      row: the row of a global batch.
      step: of the batch; None: the first one after the state.
      as_json: whether to print JSON.

    Raises:
      GristmillError: the options do not match, or there is no such row.
    """
    with importing():
        from gristmill._inspect import prompts

    dataset, state = runs.opened_prompts(*run)
    found = prompts.locate(dataset, state, path=run[0], step=step, row=row)
    if as_json:
        print_json(found)
    else:
        click.echo(prompts.describe(found))


def _is_set(value: object) -> bool:
    return value is not None and value != ()


def _show_chats(
    option: str,
    path: str,
    records: int,
    tokenizer: Path | None,
    settings: Iterable[str],
    sample: tuple[str, ...],
    storage: stores.StorageOptions | None,
    *,
    as_json: bool,
) -> None:
    """Prints the first conversations or prompts of a shard.

    Raises:
      UsageError: there is no tokenizer.
      GristmillError: a setting is not allowed, or a record is bad.
    """
    if tokenizer is None:
        raise click.UsageError(f"{option} needs --tokenizer")
    with importing():
        from gristmill._inspect import chats, prompts

    values = read_values(settings, lambda setting: f"--set {setting}")
    encoder = Encoder.from_file(tokenizer, config="ignore")
    shows: Any = chats
    given: dict[str, Any] = {"records": records if is_given("records") else _CHATS, "storage_options": storage}
    if option == "--prompt":
        shows, given["sample"] = prompts, runs.prompt_sample(sample)
    found = shows.inspect(path, values, encoder, **given)
    if as_json:
        print_json(found)
    else:
        click.echo(shows.describe(found))
