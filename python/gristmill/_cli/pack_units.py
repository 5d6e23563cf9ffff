"""`gristmill pack` in units: `--plan`, `--unit` and `--finish`."""

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from gristmill._cli.options import is_given
from gristmill._cli.pack_job import Job, check_fields
from gristmill._shards.address import Address
from gristmill._util.output import importing, notice, print_json
from gristmill._util.text import counted, format_fields
from gristmill.errors import ArgumentError

if TYPE_CHECKING:
    from gristmill._dataset.packed import PackedDataset
    from gristmill._tokenizer.encoder import Encoder

# The options that go with a plan that is there; all others are in it.
_OF_UNITS = frozenset({"output", "unit", "finish", "threads", "storage_options", "as_json"})
# Lanes unless the options say how many: as many as there are shards, up to this.
_MOST_LANES = 1024


def check(units: int | None, engine: str | None, *, plan: bool) -> None:
    """Checks that the options of units go together.

    Raises:
      UsageError: they do not.
    """
    if units is None and (plan or engine):
        raise click.UsageError(f"{'--plan' if plan else '--engine'} needs --units")
    if plan and engine:
        raise click.UsageError("--plan and --engine do not go together")
    if engine is None and is_given("cpus"):
        raise click.UsageError("--cpus needs --engine")
    if engine and is_given("threads"):
        raise click.UsageError("--threads does not go with --engine, whose tasks have --cpus")


def plan(job: Job, encoder: "Encoder | None", output: Address, units: int, chosen: dict[str, Any]) -> None:
    """Writes the plan.

    Args:
      job: what is packed.
      encoder: its tokenizer, if it needs one.
      output: the folder, or its URL, and how the store is reached.
      units: how many units.
      chosen: further arguments of `write_plan`.

    Raises:
      UsageError: an option does not go with units.
      GristmillError: see `write_plan`.
    """
    with importing():
        from gristmill._dataset.packed import spec_of
        from gristmill._files.pack import packable_fields
        from gristmill._files.unit_places import Place

    if (wrong := job.value("quarantine_file")) is not None:
        raise click.UsageError(
            f"--quarantine-file {wrong}: each unit lists its own records in its folder; leave it out"
        )
    if job.value("shard_count") != 1:
        raise click.UsageError("--shard-index and --shard-count do not go with --units, which take their place")
    dataset = _with_lanes(job, encoder, units)
    check_fields(chosen["fields"], packable_fields(spec_of(dataset)))
    with Place.opened(output) as place:
        place.write_plan(dataset, units=units, source=job.source(dataset), **chosen)


def show_plan(output: Address, *, as_json: bool) -> None:
    """Prints what the plan of a folder says."""
    from gristmill._files.unit_places import Place

    with Place.opened(output) as place:
        found = place.plan()
    units, packing = found["units"], found["packing"]
    lanes = len(packing["own_lanes"])
    if as_json:
        fingerprint = packing["fingerprint"]
        print_json({"folder": output.name, "units": units, "lanes": lanes, "fingerprint": fingerprint})
        return
    lines = [
        ("plan", f"{output.name}/plan.json"),
        ("units", f"{units:,} (0 to {units - 1:,}), {counted(lanes // units, 'lane')} each"),
        ("next", f"gristmill pack --output {output.name} --unit NUMBER, for each; then --finish"),
    ]
    click.echo(format_fields(lines))


def run_all(
    output: Address,
    engine: str | None,
    cpus: int,
    threads: int | None,
    *,
    as_json: bool,
) -> None:
    """Packs all units and joins them, and prints the figures.

    Raises:
      GristmillError: see `pack_all`.
    """
    from gristmill._files import units
    from gristmill._files.unit_places import Place

    threads = threads if engine is None else cpus
    with _hint_when_stopped(), Place.opened(output) as place:
        place.plan()
        pack_unit = functools.partial(units.pack_unit, place.local, threads=threads)
        _print(place.pack_all(pack_unit, engine=engine, cpus=cpus), as_json=as_json)


def run(
    output: Address | None,
    unit: str | None,
    threads: int | None,
    *,
    is_end: bool,
    as_json: bool,
) -> None:
    """Packs a unit, or joins all, and prints the figures.

    Raises:
      UsageError: another option was given.
      GristmillError: see `pack_unit` and `finish`.
    """
    parameters = click.get_current_context().command.params
    given = [own for own in parameters if own.name and own.name not in _OF_UNITS and is_given(own.name)]
    if given:
        raise click.UsageError(f"{given[0].opts[0]} does not go with --unit and --finish: the plan says it")
    if output is None:
        raise click.UsageError("Missing option '--output'.")
    if unit is not None and is_end:
        raise click.UsageError("--unit and --finish do not go together")
    with importing():
        from gristmill._files import units
        from gristmill._files.unit_places import Place

    with _hint_when_stopped(), Place.opened(output) as place:
        found = place.finish() if unit is None else place.pack_unit(units.task_number(unit), threads=threads)
    _print(found, as_json=as_json)


@contextlib.contextmanager
def _hint_when_stopped() -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        notice("stopped: run the same command again to resume after the last finished part")
        raise


def _print(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    names = ("units", "parts", "items", "documents", "tokens", "filtered", "quarantined", "bytes")
    lines = [("folder", found["folder"]), *((name, f"{found[name]:,}") for name in names if name in found)]
    if 0 < found["parts"] == found.get("parts_of_earlier_runs"):
        lines.append(("speed", "nothing to do"))
    click.echo(format_fields(lines))


def _with_lanes(job: Job, encoder: "Encoder | None", units: int) -> "PackedDataset":
    """The dataset, by default with many lanes, so that there can be many units.

    Raises:
      ArgumentError: there are fewer shards than units.
    """
    dataset = job.dataset(encoder)
    if job.arguments.get("lanes") is not None or job.file is not None:
        return dataset
    pieces, rows = len(dataset.pieces), job.value("batch_size")
    if units > pieces:
        raise ArgumentError(
            f"--units {units}: expected at most {pieces}, the number of shards and of pieces of shards; --split-bytes "
            "divides large shards into pieces"
        )
    most = units * (min(pieces, max(_MOST_LANES, units)) // units)
    if is_given("batch_size"):
        most = next((lanes for lanes in range(most, 0, -units) if rows % lanes == 0), 0)
        if not most:
            raise ArgumentError(
                f"--units {units}: each unit packs whole lanes, and each lane the same number of rows of a batch, so "
                f"the units must divide --batch-size {rows}"
            )
    else:
        rows = most
    job.arguments.update(lanes=most, batch_size=rows)
    return job.dataset(encoder)
