"""`gm.pack`: packing a dataset that is made in Python."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from gristmill._dataset.packed import PackedDataset, spec_of, with_spec
from gristmill._files import units as in_units
from gristmill._files.folder import check_apart
from gristmill._files.formats import FORMATS
from gristmill._files.pack import pack as pack_folder
from gristmill._files.pack import packable_fields
from gristmill._files.schema import Source
from gristmill._files.source import sizes_of
from gristmill._files.unit_places import Place
from gristmill._sample import named
from gristmill._shards import stores
from gristmill._shards.address import Address
from gristmill._shards.rows import DroppedRows
from gristmill._spec import fingerprints
from gristmill._spec.cost import Cost
from gristmill._tokenizer.encoder import special_tokens_in_text_of
from gristmill._tokenizer.load import TOKENIZER_FILE
from gristmill._util import checks
from gristmill.errors import ArgumentError, ArgumentTypeError


def pack(
    dataset: PackedDataset,
    folder: "str | PathLike[str]",
    *,
    format: Literal["npy", "array_record", "megatron", "parquet"] = "npy",  # noqa: A002 - as on the command line
    rows_per_file: int = 65536,
    fields: Sequence[str] = (),
    steps: int | None = None,
    units: int | None = None,
    engine: Literal["ray"] | None = None,
    cpus: int = 1,
    storage_options: "Mapping[str, str] | None" = None,
) -> dict[str, Any]:
    """Writes the rows of a dataset into files, or resumes after the last finished file of an earlier call.

    `gristmill pack` is this for datasets that a command line can name. The files, and what reads them, are the same:
    `PackedRows`, `gristmill verify`, `gristmill view`.

    Args:
      dataset: what to pack, with a `batch_size` and an end, unless `steps` says it. Datasets with `shard_index=` pack
        the rows of their lanes.
      folder: the folder to write, or the URL of one in a store. It is made if it is not there.
      format: `"npy"`, arrays int32 `[rows, fields, sequence_length]`; `"array_record"`, a record for each row;
        `"parquet"`, a column for each field; or `"megatron"`, pairs of `.bin` and `.idx` with whole documents.
      rows_per_file: rows after which a new file begins.
      fields: the fields of rows to write, such as `["inputs", "inputs_segmentation"]`; none: all.
      steps: how many steps (global batches) to pack; None: all.
      units: in how many units, which divide the lanes; each is a folder in `folder`, as `gristmill pack --unit` writes
        it. The rest of an interrupted call may be finished by other machines. None: not in units.
      engine: `"ray"`: the units are tasks of a Ray cluster, whose nodes all see the folder, the shards and the
        tokenizer. None: one after the other in this process.
      cpus: with an engine, CPUs of a task, which are the threads of its dataset.
      storage_options: how the store of the folder is reached. None: as that of the dataset's shards.

    Returns:
      `folder`, `format`, `parts`, `items` and `bytes` of the files; `documents`, `tokens`, `dropped_tokens`, `filtered`
      and `quarantined` records and `lost_shards` of the stream; with units their number.

    Raises:
      ArgumentError: a value is not allowed, or the dataset never ends.
      ArgumentTypeError: a value is of the wrong type.
      MissingExtraError: Ray is not installed, or pyarrow for `"parquet"`.
      GristmillError: some units failed, and the others are complete; or the folder holds something else or cannot be
        written, or a shard has an error. Finished files stay.
    """
    if not isinstance(dataset, PackedDataset):
        raise ArgumentTypeError(f"dataset: expected a PackedDataset, got {type(dataset).__name__}")
    spec = spec_of(dataset)
    checks.choice("format", format, tuple(FORMATS))
    if spec.rows.batch_size is None:
        raise ArgumentError("batch_size=None: rows are packed in batches; set the dataset's batch_size")
    known = packable_fields(spec)
    if unknown := [name for name in checks.items("fields", fields, "a list of names") if name not in known]:
        raise ArgumentError(f"fields={unknown[0]!r}: expected names of {', '.join(known)}")
    source = _source_of(dataset)
    name = checks.path("folder", folder)
    own = stores.check_options("storage_options", storage_options)
    address = Address((name,), own if own is not None else spec.sources[0].storage_options or ())
    listed = spec.running.quarantine_file
    check_apart(name, format, source["shards"], None if listed is None else Path(listed))
    chosen: dict[str, Any] = {
        "file_format": format,
        "rows_per_file": checks.integer("rows_per_file", rows_per_file, 1, 2**32),
        "source": source,
        "fields": fields,
        "steps": checks.optional_integer("steps", steps, 1, 2**62),
    }
    if engine is not None and units is None:
        raise ArgumentError(f"engine={engine!r}: expected units=, which are its tasks")
    if units is None:
        return pack_folder(dataset, address, **chosen)
    if list(spec.running.own_lanes) != list(range(dataset.lanes)):
        raise ArgumentError(f"units={units}: expected a dataset with all its lanes: leave out shard_index= and _count=")
    with Place.opened(address) as place:
        place.write_plan(dataset, units=checks.integer("units", units, 1, 2**20), **chosen)
        if engine is not None:
            dataset = with_spec(dataset, spec.with_running(threads=checks.integer("cpus", cpus, 1, 2**16)))
        pack_unit = functools.partial(in_units.pack_unit_of, dataset, place.local)
        return place.pack_all(pack_unit, engine=engine, cpus=cpus)


def _source_of(dataset: PackedDataset) -> Source:
    """The source of a dataset as the index describes it: as much as `gristmill verify` can make again."""
    spec = spec_of(dataset)
    sizes = sizes_of(dataset)
    of_stream = {} if spec.mixing else fingerprints.arguments_of(dataset.fingerprint)
    arguments = {name: value for name, value in of_stream.items() if name not in ("sample", "sidecars")}
    sample = None if spec.mixing else spec.sources[0].given_sample
    if sample is not None and (words := named.described(sample)):
        arguments["sample"] = words
    rows = None if spec.mixing else spec.sources[0].drop
    arguments["drop"] = rows.named.absolute.text if isinstance(rows, DroppedRows) else None
    arguments["quarantine_file"] = spec.running.quarantine_file
    folder = dataset.encoder.folder
    special: Any = special_tokens_in_text_of(dataset.encoder)
    return {
        "shards": list(sizes),
        "sizes": sizes,
        "tokenizer": "" if folder is None else str((folder / TOKENIZER_FILE).absolute()),
        "special_tokens_in_text": special,
        "arguments": {name: asdict(value) if isinstance(value, Cost) else value for name, value in arguments.items()},
    }
