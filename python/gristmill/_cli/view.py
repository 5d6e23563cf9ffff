"""`gristmill view`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gristmill._cli import mixture_files, runs
from gristmill._cli.options import PathType, is_given, shard_path
from gristmill._cli.runs import RunOptions
from gristmill._sample import named
from gristmill._util.output import importing

if TYPE_CHECKING:
    from gristmill._view.page import Page


@click.command()
@click.argument("path", type=shard_path)
@click.option("--output", type=PathType(dir_okay=False, path_type=Path), required=True, help="The page, a .html file.")
@click.option("--rows", type=click.IntRange(1, 1000), default=16, show_default=True, help="Rows to show.")
@click.option(
    "--measured-rows",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="Rows that the figures are of.",
)
@click.option("--step", type=click.IntRange(0), help="Of a run: the first step.  [default: the first after the state]")
@click.option("--row", type=click.IntRange(0), default=0, show_default=True, help="Of packed files: the first row.")
@runs.run_options(
    shards="Of a state: its shards, paths or globs, or mixture file.",
    drop="Of a state: its row list.",
    tokenizer="Of a run: a tokenizer.json, its folder, or a hub name.",
    settings="PackedDataset or PromptDataset, of shards",
)
@click.option("--prompt", is_flag=True, help="Draw the rows of a PromptDataset.")
def view(
    path: str,
    output: Path,
    rows: int,
    measured_rows: int,
    step: int | None,
    row: int,
    run: RunOptions,
    prompt: bool,
) -> None:
    """Draw rows, their tokens and figures as a page.

    PATH is the shards or the mixture file of a run, a saved state, a folder of packed files, a quarantine file, or what
    `gristmill audit --json` has printed. With --prompt the run is one of prompts, and --set also has the arguments of
    gm.Chat, which makes them of the key "prompt" unless --sample says otherwise. The page is one file that needs
    neither a server nor the network.

    \b
    Examples:
      gristmill view 'red_pajama/*/*.gz' --tokenizer tokenizer.json --set text_field=raw_content --output page.html
      gristmill view chats.jsonl --sample chat --tokenizer model --output page.html
      gristmill view mixture.toml --step 1000 --output page.html
      gristmill view state.json --shards 'red_pajama/*/*.gz' --tokenizer tokenizer.json --output page.html
      gristmill view prompts.parquet --prompt --tokenizer model --set prompt_length=512 --output page.html
      gristmill view packed --row 100 --output page.html
      gristmill view quarantine.jsonl --output page.html
      gristmill view audit.json --output page.html
    """
    with importing():
        from gristmill._files import overview, units
        from gristmill._inspect import contents, mixtures
        from gristmill._inspect.locate import run_of
        from gristmill._view import audit, pages

    if prompt:
        if wrong := [name for name in ("measured_rows", "row", "drop") if is_given(name)]:
            raise click.UsageError(f"--{wrong[0].replace('_', '-')} does not go with --prompt")
        with importing():
            from gristmill._view.prompts import of_prompts
        dataset, state = runs.opened_prompts(path, run)
        _write(of_prompts(dataset, state, title=path, step=step, rows=rows), output)
        return
    measures = {"rows": rows, "measured": measured_rows}
    address = run.address(path)
    is_local, place = not address.is_remote, Path(path)
    if (file := run.mixture_file(path)) is not None:
        if run.shards or run.drop or run.sample:
            raise click.UsageError("--shards, --drop and --sample do not go with a mixture file, which has its own")
        arguments = runs.parse_settings(run.settings)
        of_file = run_of(mixtures.dataset_of(file, mixture_files.tokenizer_if_needed(file), arguments))
        made = pages.of_run(of_file, title=f"Mixture {place.name}", step=step, **measures)
    elif overview.is_packed(place) if is_local else overview.is_packed_remote(address):
        made = pages.of_packed(address, run.encoder, start=row, **measures)
    elif is_local and (audited := audit.read(place)) is not None:
        made = audit.of_audit(audited, title=f"Audit {place.name}")
    elif is_local and pages.is_quarantine(place):
        made = pages.of_quarantine(place)
    elif run.tokenizer is None and not run.shards and not named.is_ready(named.parse(run.sample)):
        if is_local:
            units.check_joined(place)
        if not is_local or contents.saved_state(place) is None:
            raise click.UsageError("shards need --tokenizer")
        made = pages.of_state(place)
    else:
        if run.tokenizer is None and run.lacks_tokenizer(runs.state_of(path)):
            raise click.UsageError("--shards needs --tokenizer")
        with runs.opened(path, run) as opened:
            made = pages.of_run(opened, title=path, step=step, **measures)
    _write(made, output)


def _write(made: "Page", output: Path) -> None:
    from gristmill._view import page

    page.write(made, output)
    click.echo(f"{output}: {output.stat().st_size:,} bytes")
