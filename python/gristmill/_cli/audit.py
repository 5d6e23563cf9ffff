"""`gristmill audit`."""

from pathlib import Path
from typing import Any

import click

from gristmill._cli import mixture_files, options
from gristmill._sample import named
from gristmill._shards.address import Address
from gristmill._tokenizer.encoder import Encoder
from gristmill._tokenizer.options import SpecialTokensInText
from gristmill._util.output import importing, print_json

# Options that a mixture file has for each source.
_OF_SOURCES = {
    "sample": "--sample",
    "settings": "--set",
    "keep": "--keep",
    "sidecars": "--sidecar",
    "drop": "--drop",
    "max_document_bytes": "--max-document-bytes",
}


@click.command()
@click.argument("shards", nargs=-1, required=True, type=options.shard_path)
@click.option("--tokenizer", type=options.tokenizer_path, help="A tokenizer.json, its folder, or a hub name.")
@click.option("--sequence-length", type=click.IntRange(1), help="Count what is cut of samples with more tokens.")
@options.special_tokens_option
@options.sample_option
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="An argument of the sample.")
@options.dataset_options("keep", "sidecars", "drop", "max_document_bytes", "storage_options", "threads")
@options.as_json_option
def audit(
    shards: tuple[str, ...],
    tokenizer: Path | None,
    sequence_length: int | None,
    special_tokens_in_text: SpecialTokensInText,
    sample: tuple[str, ...],
    settings: tuple[str, ...],
    storage_options: dict[str, str] | None,
    threads: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Count what a run would make of all conversations of SHARDS.

    SHARDS are paths and globs, or a mixture file (.toml, .yaml), whose sources are counted each with its own sample.
    One pass on all cores counts tokens and trained ones by role, lengths, answers that are cut, answers without a stop
    token, lost reasoning, duplicates, and records that cannot be used; the first of each kind are located. No record
    ends it. Conversations are those of gm.Chat, unless --sample says otherwise. `gristmill view` draws what --json
    prints.

    \b
    Examples:
      gristmill audit 'chats/*.jsonl' --tokenizer model --sequence-length 4096
      gristmill audit chats.parquet --tokenizer model --set train_on=last --json > audit.json
      gristmill audit alpaca.jsonl --tokenizer model --sample instruction
      gristmill audit mixture.toml --sequence-length 4096
    """
    file = mixture_files.find_own(shards, tokenizer, special_tokens_in_text, storage_options)
    if file is not None and (own := [name for name in _OF_SOURCES if options.is_given(name)]):
        raise click.UsageError(f"{_OF_SOURCES[own[0]]}: each source of a mixture has its own: set it in the file")
    with importing():
        from gristmill._dataset.packed import spec_of
        from gristmill._inspect import audit, mixtures

    if file is not None:
        spec = spec_of(mixtures.dataset_of(file, mixture_files.tokenizer_if_needed(file), {}))
        sources, threads = spec.sources, threads or spec.running.threads
    elif tokenizer is None:
        raise click.UsageError("Missing option '--tokenizer'.")
    else:
        made = named.make(named.parse([*(sample or ("chat",)), *settings]))
        assert made is not None
        encoder = Encoder.from_file(tokenizer, config="ignore", special_tokens_in_text=special_tokens_in_text)
        sources = [audit.source_of(Address.of(*shards, storage_options=storage_options), made, encoder, **given)]
    found = audit.audit(shards, sources, sequence_length=sequence_length, threads=threads)
    if as_json:
        print_json(found)
    else:
        click.echo(audit.describe(found))
