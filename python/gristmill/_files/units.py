"""Packing in units, on as many machines as there are: a unit is a run of lanes, and its bytes follow from the plan.

    plan.json     what is packed, and in how many units: written first
    unit-00000/   a packed folder of its own, which `verify` and `PackedRows` take by itself
    index.json    written once all units are complete; `PackedRows` and `verify` then take the whole folder

Units share nothing but the plan: any machine packs any of them, again if it was interrupted.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, cast

import gristmill._core as _core
from gristmill._dataset.packed import PackedDataset
from gristmill._files.folder import INDEX, QUARANTINE, Folder, read_index
from gristmill._files.pack import check_packable, make_folder, pack, packing_of
from gristmill._files.schema import COUNTED, Packing, Source, describe_changes, wrong
from gristmill._files.source import dataset_of, sizes_of
from gristmill._shards.address import Address
from gristmill._spec import fingerprints
from gristmill._spec.lanes import lanes_of_host
from gristmill._util import atomic_files
from gristmill._util.text import counted, format_numbers
from gristmill.errors import ArgumentError, GristmillError, MissingShardError

PLAN = "plan.json"
# Entries of a packing that follow from its fingerprint.
_OF_STREAM = frozenset({"dtype", "fields", "sequence_length", "own_lanes", "fingerprint", "ids"})
_VERSION = 1
_PLAN_KIND, _INDEX_KIND = "gristmill pack plan", "gristmill pack units"
_REMEDY = "write the plan again, or restore it"
# Where the schedulers say which of their equal tasks this one is.
_NUMBERS = {
    "SLURM_ARRAY_TASK_ID": "SLURM",
    "JOB_COMPLETION_INDEX": "Kubernetes",
    "CLOUD_RUN_TASK_INDEX": "Cloud Run",
    "BATCH_TASK_INDEX": "Google Batch",
    "AWS_BATCH_JOB_ARRAY_INDEX": "AWS Batch",
}


# Packs the unit with a number into a folder; None: its place.
PackUnit = Callable[[int, "Path | str | None"], dict[str, Any]]


class Plan(TypedDict):
    """The stream that is packed in units.

    Attributes:
      units: how many units there are; they divide the lanes.
      packing: as the index of a folder with all lanes would say it.
    """

    kind: str
    version: int
    gristmill: str
    units: int
    packing: Packing


def write_plan(
    dataset: PackedDataset,
    path: Path,
    *,
    units: int,
    file_format: str,
    rows_per_file: int,
    source: Source,
    fields: Sequence[str] = (),
    steps: int | None = None,
) -> Plan:
    """Writes the plan of a folder. One that is there must be the same.

    Args:
      dataset: what to pack, with all its lanes.
      path: the folder.
      units: how many units; they divide the lanes.
      file_format: as for `pack`.
      rows_per_file: as for `pack`, of each unit.
      source: as for `pack`.
      fields: as for `pack`.
      steps: as for `pack`.

    Raises:
      ArgumentError: the units do not divide the lanes.
      GristmillError: the folder has another plan, or cannot be written.
    """
    check_packable(dataset, steps, file_format)
    if units < 1 or dataset.lanes % units:
        raise ArgumentError(
            f"units={units}: a unit is a run of whole lanes, so the number of units must divide lanes={dataset.lanes}"
        )
    packing = packing_of(dataset, file_format, rows_per_file, source, fields, steps)
    plan: Plan = {
        "kind": _PLAN_KIND,
        "version": _VERSION,
        "gristmill": _core.__version__,
        "units": units,
        "packing": packing,
    }
    make_folder(path)
    with atomic_files.writing_into(path):
        if (path / PLAN).exists():
            found = read_plan(path)
            if different := _differences(found, plan):
                raise GristmillError(
                    f"{path / PLAN} is another plan: {', '.join(different)}. Choose another folder, or delete this one"
                )
        else:
            atomic_files.check_empty(path, set(), "units", mark=PLAN)
            atomic_files.write_json(path / PLAN, plan)
    return plan


def read_plan(path: Path) -> Plan:
    """The plan of a folder.

    Raises:
      MissingShardError: there is none.
      GristmillError: it is damaged, or of another version.
    """
    if not (path / PLAN).is_file():
        raise MissingShardError(f"no {PLAN} in {str(path)!r}: write it first, with gristmill pack --plan --units N")
    plan = atomic_files.read_json(path / PLAN, _REMEDY)
    if missing := wrong(plan, Plan):
        raise GristmillError(
            f"{path / PLAN} is damaged: {', '.join(missing)} is missing or has the wrong type; {_REMEDY}"
        )
    if plan["version"] != _VERSION:
        raise GristmillError(
            f"{path / PLAN} has version {plan['version']}, but this release of gristmill reads version {_VERSION}"
        )
    return cast(Plan, plan)


def unit_path(path: Path, number: int) -> Path:
    """The folder of a unit."""
    return path / f"unit-{number:05}"


def number_of_task(environment: Mapping[str, str]) -> int:
    """The number of the unit that a task of a scheduler's array is to pack.

    Args:
      environment: the variables of the task.

    Raises:
      ArgumentError: no scheduler has set one, or its value is no number.
    """
    found = next((name for name in _NUMBERS if name in environment), None)
    if found is None:
        known = ", ".join(f"{name} ({scheduler})" for name, scheduler in _NUMBERS.items())
        raise ArgumentError(f"--unit auto: expected one of the variables {known}; name the number of the unit")
    if not (value := environment[found]).isdecimal():
        raise ArgumentError(f"--unit auto: expected {found} to be a number from 0, found {value!r}")
    return int(value)


def pack_unit(
    local: Address, number: int, folder: "Path | str | None" = None, *, threads: int | None = None
) -> dict[str, Any]:
    """Packs one unit of the plan of a folder, or resumes it.

    Args:
      local: the folder, and how stores are reached.
      number: of the unit, from 0.
      folder: where to pack it, or the URL of that; None: in its place.
      threads: worker threads; None: as many as this process has cores.

    Returns:
      As `pack` does.

    Raises:
      ArgumentError: the plan has no such unit.
      GristmillError: the shards or the tokenizer are not those of the plan; or see `pack`.
    """
    path = Path(local.name)
    plan = read_plan(path)
    source, folder = plan["packing"]["source"], folder or unit_path(path, number)
    own: dict[str, Any] = {"threads": threads, "shard_index": _checked(plan, number), "shard_count": plan["units"]}
    if local.options and "mixture" not in source:
        own["storage_options"] = dict(local.options)
    dataset = dataset_of(source, **own, **_quarantine(folder, source))
    return _pack_unit(dataset, path / PLAN, plan, number, local.at(str(folder)))


def pack_unit_of(
    dataset: PackedDataset, local: Address, number: int, folder: "Path | str | None" = None
) -> dict[str, Any]:
    """Packs one unit of a dataset whose plan is written.

    Args:
      dataset: that of the plan.
      local: the folder, and how the store of `folder` is reached.
      number: of the unit, from 0.
      folder: where to pack it, or the URL of that; None: in its place.

    Raises:
      GristmillError: see `pack_unit`.
    """
    path = Path(local.name)
    plan = read_plan(path)
    own = dataset.for_hosts(_checked(plan, number), plan["units"])
    return _pack_unit(own, path / PLAN, plan, number, local.at(str(folder or unit_path(path, number))))


def is_complete(path: Path, number: int) -> bool:
    """Whether a unit is complete."""
    return _complete_unit(path, number) is not None


def finish(path: Path) -> dict[str, Any]:
    """Checks that all units of a folder are complete, and writes its index. It may be called again.

    Returns:
      `folder`, `format`, `units`, `parts` and the counts of all units.

    Raises:
      GristmillError: a unit is missing, not complete, or of another plan.
    """
    plan = read_plan(path)
    packing = plan["packing"]
    units = [_complete_unit(path, number) for number in range(plan["units"])]
    missing = [number for number, folder in enumerate(units) if folder is None]
    if missing:
        raise GristmillError(
            f"{path}: {counted(len(missing), 'unit')} of {plan['units']:,} not complete: {format_numbers(missing)}; "
            f"pack each with gristmill pack --output {path} --unit NUMBER"
        )
    folders = [folder for folder in units if folder is not None]
    lanes = len(packing["own_lanes"])
    expected = fingerprints.without_policy(packing["fingerprint"])
    for number, folder in enumerate(folders):
        is_same = fingerprints.without_policy(folder.index["fingerprint"]) == expected
        if not is_same or folder.index["own_lanes"] != lanes_of_host(lanes, number, plan["units"]):
            raise GristmillError(f"{folder.path} is not unit {number} of the plan: remove it, and pack it again")
    parts = [folder.index["parts"] for folder in folders]
    totals = [folder.totals(own) for folder, own in zip(folders, parts, strict=True)]
    counts = {name: sum(own[name] for own in totals) for name in ("items", *COUNTED, "bytes")}
    index: dict[str, Any] = {
        "kind": _INDEX_KIND,
        "version": _VERSION,
        "gristmill": _core.__version__,
        "complete": True,
        "units": plan["units"],
        **{name: packing[name] for name in ("format", "dtype", "fields", "sequence_length")},
        "parts": sum(map(len, parts)),
        "totals": counts,
    }
    with atomic_files.writing_into(path):
        atomic_files.write_json(path / INDEX, index)
    return {"folder": str(path), "format": index["format"], "units": plan["units"], "parts": index["parts"], **counts}


def is_finished(path: Path) -> bool:
    """Whether the units of a folder are joined by an index."""
    index = path / INDEX
    return path.is_dir() and index.is_file() and is_index(read_index(index))


def is_index(found: Any) -> bool:
    """Whether a value is the index over units."""
    return isinstance(found, dict) and found.get("kind") == _INDEX_KIND


def folders_of(path: Path) -> list[Path]:
    """The packed folders of a path: those of all its units, or itself.

    Raises:
      GristmillError: it has units that are not joined.
    """
    check_joined(path)
    if is_finished(path):
        return [unit_path(path, number) for number in range(read_plan(path)["units"])]
    return [path]


def check_joined(path: Path) -> None:
    """Checks that the units of a folder are joined, if it has any.

    Raises:
      GristmillError: they are not; the message names those that are missing.
    """
    if not (path / PLAN).is_file() or is_finished(path):
        return
    count = read_plan(path)["units"]
    has = f"{path} has a plan of {counted(count, 'unit')}"
    joining = f"gristmill pack --output {path} --finish"
    if missing := [number for number in range(count) if not is_complete(path, number)]:
        verb = "is" if len(missing) == 1 else "are"
        raise MissingShardError(
            f"{has}, of which {format_numbers(missing)} {verb} missing: pack each with gristmill pack --output {path} "
            f"--unit NUMBER, then join them with {joining}"
        )
    raise MissingShardError(f"{has}, which are not joined: run {joining}")


def _differences(found: Plan, plan: Plan) -> list[str]:
    """How a plan differs from the one that is there: each setting, what it was and what it is."""
    before, after = found["packing"], plan["packing"]
    if (saved := before["fingerprint"]) != (current := after["fingerprint"]):
        changes = describe_changes(before["source"], after["source"])
        different, own = [fingerprints.differences(saved, current, **changes)], _OF_STREAM
    else:
        different, own = [], frozenset()
    values: list[dict[str, Any]] = []
    for one in (found, plan):
        packing, source = one["packing"], one["packing"]["source"]
        of_source = {} if different else {**source, **source["arguments"], "arguments": None}
        values.append({"units": one["units"], **packing, **of_source, "source": None})
    old, new = values
    names = [name for name in {**old, **new} if name not in own and old.get(name) != new.get(name)]
    return different + [f"{name} was {old.get(name)} and is {new.get(name)}" for name in names]


def _checked(plan: Plan, number: int) -> int:
    if not 0 <= number < plan["units"]:
        raise ArgumentError(f"--unit {number}: the plan has the units 0 to {plan['units'] - 1}")
    return number


def quarantines(source: Source) -> bool:
    """Whether bad records are quarantined."""
    of_sources = source.get("mixture", {}).get("sources", {}).values()
    return any(own.get("on_error") == "quarantine" for own in (source["arguments"], *of_sources))


def _quarantine(folder: Path | str, source: Source) -> dict[str, Any]:
    """Each unit lists its own records."""
    if not quarantines(source) or isinstance(folder, str):
        return {"quarantine_file": None}
    make_folder(folder)
    return {"quarantine_file": str(folder / QUARANTINE)}


def _pack_unit(dataset: PackedDataset, path: Path, plan: Plan, number: int, folder: Address) -> dict[str, Any]:
    packing = plan["packing"]
    source = packing["source"]
    if dataset.fingerprint != packing["fingerprint"]:
        changes = describe_changes(source, {**source, "sizes": sizes_of(dataset)})
        reason = fingerprints.differences(packing["fingerprint"], dataset.fingerprint, **changes)
        raise GristmillError(f"{path} is of another stream: {reason}; restore its shards, or write a new plan")
    own = {"shard_index": number, "shard_count": plan["units"]}
    return pack(
        dataset,
        folder,
        file_format=packing["format"],
        rows_per_file=packing["rows_per_file"],
        source={**source, "arguments": {**source["arguments"], **own}},
        fields=packing["fields"],
        steps=packing.get("steps"),
    )


def _complete_unit(path: Path, number: int) -> Folder | None:
    """The folder of a unit; None if it is not complete."""
    try:
        folder = Folder.open(unit_path(path, number))
    except MissingShardError:
        return None
    return folder if folder.index.get("complete") else None


def task_number(value: str) -> int:
    """The number that `--unit` names.

    Raises:
      ArgumentError: it is neither a number nor `auto`, or no scheduler says which it is.
    """
    if value == "auto":
        return number_of_task(os.environ)
    if not value.isdecimal():
        raise ArgumentError(f"--unit {value}: expected a number from 0, or auto")
    return int(value)
