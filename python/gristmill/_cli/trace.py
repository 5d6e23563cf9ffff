"""`gristmill trace`."""

from pathlib import Path

import click

from gristmill._cli import runs
from gristmill._cli.inspect import settings_option
from gristmill._cli.options import (
    ROW_LIST,
    as_json_option,
    dataset_option,
    sample_option,
    shard_path,
    special_tokens_option,
    tokenizer_path,
)
from gristmill._tokenizer.options import SpecialTokensInText
from gristmill._util.output import importing, print_json


@click.command()
@click.argument("record", required=False, metavar="[SHARD:RECORD]")
@click.option(
    "--state", "paths", multiple=True, required=True, type=shard_path,
    help="A saved state of the run; earlier ones, too, to begin at.",
)  # fmt: skip
@click.option("--where", metavar="KEY=VALUE", help="Trace the records whose key has this value.")
@click.option("--digests", is_flag=True, help="Print the digest of each step.")
@click.option("--shards", multiple=True, type=shard_path, help="The shards of the run, globs or mixture file.")
@click.option("--drop", metavar=ROW_LIST, help="The row list of the run.")
@click.option("--tokenizer", type=tokenizer_path, help="A tokenizer.json, its folder, or a hub name.")
@special_tokens_option
@sample_option
@settings_option("the dataset: edits=")
@dataset_option("storage_options")
@as_json_option
def trace(
    record: str | None,
    paths: tuple[str, ...],
    where: str | None,
    digests: bool,
    shards: tuple[str, ...],
    drop: str | None,
    tokenizer: Path | None,
    special_tokens_in_text: SpecialTokensInText,
    sample: tuple[str, ...],
    settings: tuple[str, ...],
    storage_options: dict[str, str] | None,
    as_json: bool,
) -> None:
    """Find the steps and rows in which a record was trained on.

    A shard is named by the end of its path, and a record by its number in it, from 0; or records by the value of a key.
    Steps, rows and epochs count from 0. The lanes that have passed the record are replayed up to the last of the
    states, from the latest one before the record, or else from the start.

    \b
    Examples:
      gristmill trace 0000/en_head.json.gz:17 --state state.json --shards 'red_pajama/*/*.gz' --tokenizer model
      gristmill trace --where id=17 --state state.json --shards mixture.toml --json
      gristmill trace --digests --state state.json --shards 'red_pajama/*/*.gz' --tokenizer model
    """
    if (record is not None) + (where is not None) + digests != 1:
        raise click.UsageError("expected one of SHARD:RECORD, --where and --digests")
    with importing():
        from gristmill._inspect import trace as tracing

    states = [(path, runs.needed_state(path)) for path in paths]
    path, last = max(states, key=lambda one: one[1]["step"])
    earlier = [state for _, state in states if state is not last]
    for other, state in states:
        tracing.check_same_run(last, state, other)
    if tokenizer is None and runs.needs_tokenizer(last, shards, sample):
        raise click.UsageError("trace needs --tokenizer, and the --shards of the run")
    with runs.opened(path, shards, drop, tokenizer, special_tokens_in_text, sample, settings, storage_options) as run:
        if digests:
            begin = max(earlier, key=lambda state: state["step"], default=None)
            listed = tracing.digests(run, begin)
            if as_json:
                print_json(listed)
            else:
                click.echo(tracing.describe_digests(listed))
            return
        if where is not None:
            records, what = tracing.find_records(run.dataset, where), f"The record of {where}"
        else:
            records, what = [tracing.named_record(run.dataset, record or "")], f"Record {record}"
        found = tracing.trace(run, records, earlier)
    if as_json:
        print_json(found)
    else:
        click.echo(tracing.describe(found, what))
