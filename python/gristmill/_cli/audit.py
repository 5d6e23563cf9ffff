"""`gristmill audit`."""

from pathlib import Path
from typing import Any

import click

from gristmill._cli import options
from gristmill._mixture import syntax
from gristmill._sample import named
from gristmill._shards.address import Address
from gristmill._tokenizer.encoder import Encoder
from gristmill._tokenizer.options import SpecialTokensInText
from gristmill._util.output import importing, print_json


@click.command()
@click.argument("shards", nargs=-1, required=True, type=options.shard_path)
@click.option(
    "--tokenizer", type=options.tokenizer_path, required=True, help="A tokenizer.json, its folder, or a hub name."
)
@click.option("--sequence-length", type=click.IntRange(1), help="Count what is cut of samples with more tokens.")
@options.special_tokens_option
@options.sample_option
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="An argument of the sample.")
@options.dataset_options("keep", "sidecars", "drop", "max_document_bytes", "storage_options", "threads")
@options.as_json_option
def audit(
    shards: tuple[str, ...],
    tokenizer: Path,
    sequence_length: int | None,
    special_tokens_in_text: SpecialTokensInText,
    sample: tuple[str, ...],
    settings: tuple[str, ...],
    storage_options: dict[str, str] | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Count what a run would make of all conversations of SHARDS.

    One pass on all cores counts tokens and trained ones by role, lengths, answers that are cut, answers without a stop
    token, lost reasoning, duplicates, and records that cannot be used; the first of each kind are located. No record
    ends it. Conversations are those of gm.Chat, unless --sample says otherwise. `gristmill view` draws what --json
    prints.

    \b
    Examples:
      gristmill audit 'chats/*.jsonl' --tokenizer model --sequence-length 4096
      gristmill audit chats.parquet --tokenizer model --set train_on=last --json > audit.json
      gristmill audit alpaca.jsonl --tokenizer model --sample instruction
    """
    if mixtures := [path for path in shards if syntax.is_mixture_file(path)]:
        raise click.UsageError(
            f"expected shards, found the mixture file {mixtures[0]}: audit the shards of its sources"
        )
    with importing():
        from gristmill._inspect import audit

    made = named.make(named.parse([*(sample or ("chat",)), *settings]))
    assert made is not None
    encoder = Encoder.from_file(tokenizer, config="ignore", special_tokens_in_text=special_tokens_in_text)
    address = Address.of(*shards, storage_options=storage_options)
    found = audit.audit(address, made, encoder, sequence_length=sequence_length, **given)
    if as_json:
        print_json(found)
    else:
        click.echo(audit.describe(found))
