"""`gristmill trace`."""

import click

from gristmill._cli import runs
from gristmill._cli.options import TOKENIZER, as_json_option, shard_path
from gristmill._cli.runs import RunOptions
from gristmill._util.output import importing, print_json


@click.command()
@click.argument("record", required=False, metavar="[SHARD:RECORD]")
@click.option(
    "--state", "paths", multiple=True, required=True, type=shard_path,
    help="A saved state of the run; earlier ones, too, to begin at.",
)  # fmt: skip
@click.option("--where", metavar="KEY=VALUE", help="Trace the records whose key has this value.")
@click.option("--digests", is_flag=True, help="Print the digest of each step.")
@runs.run_options(
    shards="The shards of the run, globs or mixture file.",
    drop="The row list of the run.",
    tokenizer=TOKENIZER,
    settings="the dataset: edits=",
)
@as_json_option
def trace(
    record: str | None,
    paths: tuple[str, ...],
    where: str | None,
    digests: bool,
    run: RunOptions,
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
    if run.lacks_tokenizer(last):
        raise click.UsageError("trace needs --tokenizer, and the --shards of the run")
    with runs.opened(path, run) as opened:
        if digests:
            begin = max(earlier, key=lambda state: state["step"], default=None)
            listed = tracing.digests(opened, begin)
            if as_json:
                print_json(listed)
            else:
                click.echo(tracing.describe_digests(listed))
            return
        if where is not None:
            records, what = tracing.find_records(opened.dataset, where), f"The record of {where}"
        else:
            records, what = [tracing.named_record(opened.dataset, record or "")], f"Record {record}"
        found = tracing.trace(opened, records, earlier)
        if record is not None and not found:
            tracing.check_exists(opened.dataset, records[0], record)
    if as_json:
        print_json(found)
    else:
        click.echo(tracing.describe(found, what))
