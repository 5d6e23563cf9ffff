"""The content of packed files: `gristmill inspect` on a packed folder, or on a Megatron index."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from gristmill._files import folder, megatron, units
from gristmill._files.formats import FORMATS
from gristmill._files.remote_folder import RemoteFolder, is_read_only
from gristmill._files.row_items import arrays_of
from gristmill._files.schema import Part, Source
from gristmill._files.source import encoder_of
from gristmill._mixture import fingerprint as mixtures
from gristmill._shards.address import Address
from gristmill._shards.stores import is_glob
from gristmill._spec.fields import fields_of_packed, mark_field, token_field
from gristmill._util.atomic_files import DamagedError
from gristmill._util.text import counted, format_columns, format_fields

_IDS_SHOWN = 32
_PARTS_SHOWN = 20


def is_packed(path: Path) -> bool:
    """Whether `path` is a packed folder or a file in one, or a Megatron index."""
    if path.suffix == ".idx":
        return True
    index = (path if path.is_dir() else path.parent) / folder.INDEX
    is_own = path.is_dir() or path == index or folder.is_part(path)
    if not is_own or not index.is_file():
        return False
    found = folder.read_index(index)
    return folder.is_index(found) or units.is_index(found)


def inspect(path: Path) -> dict[str, Any]:
    """The content of the packed files at `path`, and the damage that their sizes show.

    Raises:
      GristmillError: its index or a note is damaged, or a file cannot be read.
    """
    if path.suffix == ".idx":
        return _megatron(path)
    whole = path if path.is_dir() else path.parent
    if units.is_finished(whole):
        return _units(str(whole), folder.read_index(whole / folder.INDEX))
    packed = folder.Folder.open(path)
    parts, damaged = packed.parts(), []
    try:
        first = _first(packed, parts)
    except DamagedError as error:
        first = None
        if packed.wrong_size(parts[0]["files"]) is None:
            damaged = [f"{next(iter(parts[0]['files']))}: {error}"]
    return _packed(packed, str(packed.path), parts, first, damaged)


def is_packed_remote(address: Address) -> bool:
    """Whether a URL is that of a packed folder in a store.

    Raises:
      GristmillError: the store cannot be reached.
    """
    index = _remote_index(address)
    return folder.is_index(index) or units.is_index(index)


def _remote_index(address: Address) -> Any:
    """The value in the index of a folder in a store; None if it has none."""
    url = address.name.rstrip("/")
    content = None if is_read_only(url) or is_glob(url) else address.reach().read(f"{url}/{folder.INDEX}")
    try:
        return None if content is None else json.loads(content)
    except ValueError:
        return None


def inspect_remote(address: Address) -> dict[str, Any] | None:
    """The facts in the index and the notes of a packed folder in a store; None if it is none.

    Raises:
      GristmillError: they are damaged, or the store cannot be reached.
    """
    url = address.name.rstrip("/")
    index = _remote_index(address)
    if units.is_index(index):
        return _units(url, index)
    if not folder.is_index(index):
        return None
    with RemoteFolder.opened(address.at(url), folder.INDEX) as remote:
        packed = folder.Folder.open(remote.local, remote)
        return _packed(packed, url, packed.parts(), None, [])


def _packed(
    packed: folder.Folder, path: str, parts: list[Part], first: dict[str, Any] | None, damaged: list[str]
) -> dict[str, Any]:
    index = packed.index
    damaged = damaged + [wrong for part in parts if (wrong := packed.wrong_size(part["files"]))]
    return {
        "kind": "packed",
        "path": path,
        **{name: index[name] for name in ("format", "dtype", "fields", "sequence_length", "source")},
        "complete": packed.is_complete(parts),
        "damaged": damaged
        + [f"{name} is missing" for name in packed.missing_notes(parts)]
        + [f"{name} belongs to no part" for name in packed.stray_files(parts)],
        **packed.totals(parts),
        "quarantine_file": index["source"]["arguments"].get("quarantine_file"),
        "parts": parts,
        "stream": mixtures.describe(index["fingerprint"]),
        "first": first,
    }


def describe(found: dict[str, Any]) -> str:
    """The result of `inspect` for people."""
    if found["kind"] == "packed units":
        return format_fields(
            [
                ("packed", f"{found['path']}, format {found['format']}, {counted(found['units'], 'unit')}"),
                ("holds", holds(found, found["sequence_length"])),
                ("of the source", of_the_source(found)),
                ("fields", f"{', '.join(found['fields'])} ({found['dtype']})"),
                ("units", f"unit-00000 to unit-{found['units'] - 1:05}: inspect one to see its parts"),
            ]
        )
    first = found["first"]
    begins = [("begins with", " ".join(map(str, first["ids"])))] if first else []
    if first and first["text"] is not None:
        begins.append(("that is", repr(first["text"])))
    if found["kind"] == "megatron":
        what = (
            f"{counted(found['sequences'], 'sequence')} of {counted(found['documents'], 'document')}, "
            f"{counted(found['tokens'], 'token')} of type {found['dtype']}"
            f"{', and a mode of each sequence' if found['has_modes'] else ''}"
        )
        return format_fields([("Megatron index", found["path"]), ("holds", what), *begins])
    listed = found["quarantine_file"]
    whole = f"{'' if found['complete'] else 'not '}complete{', and damaged' if found['damaged'] else ''}"
    lines: list[tuple[str, object]] = [
        ("packed", f"{found['path']}, format {found['format']}, {whole}"),
        *(("DAMAGED", wrong) for wrong in found["damaged"][:_PARTS_SHOWN]),
        ("holds", holds(found, found["sequence_length"])),
        ("of the source", of_the_source(found)),
        ("fields", f"{', '.join(found['fields'])} ({found['dtype']})"),
        *_described_sources(found["source"]),
        ("tokenizer", found["source"]["tokenizer"] or "none"),
        *([("quarantined", f"listed in {listed}")] if listed else []),
        *begins,
    ]
    stream = format_fields((f"  {name}", value) for name, value in found["stream"].items())
    rows = [("part", "items", "tokens", "bytes")]
    for part in found["parts"][:_PARTS_SHOWN]:
        size = sum(part["files"].values())
        rows.append((next(iter(part["files"])), f"{part['items']:,}", f"{part['tokens']:,}", f"{size:,}"))
    if len(found["parts"]) > _PARTS_SHOWN:
        rows.append((f"and {len(found['parts']) - _PARTS_SHOWN:,} more", "", "", ""))
    return f"{format_fields(lines)}\n\nOf the stream\n{stream}\n\n{format_columns(rows, right=(1, 2, 3))}"


def _described_sources(source: Source) -> list[tuple[str, object]]:
    """The shards that the rows come from, of a mixture those of each source."""
    if "mixture" not in source:
        return [("shards", ", ".join(source["shards"]))]
    sources = source["mixture"].get("sources")
    return [
        (f"source {name}", ", ".join(map(str, shards)) if isinstance(shards, list) else shards)
        for name, own in (sources.items() if isinstance(sources, dict) else ())
        for shards in [own.get("shards") if isinstance(own, dict) else None]
    ]


def holds(found: dict[str, Any], sequence_length: int) -> str:
    """The amount of packed data, in words."""
    items, tokens, size = found["items"], counted(found["tokens"], "token"), counted(found["bytes"], "byte")
    file_format = FORMATS.get(found["format"])  # None: of a damaged index
    if file_format and file_format.holds_documents:
        return f"{counted(items, 'document')}, {tokens}, {size}"
    fill = f", {found['tokens'] / (items * sequence_length):.1%} full" if items else ""
    return f"{counted(items, 'row')} of {sequence_length:,}, {tokens}{fill}, {size}"


def of_the_source(found: dict[str, Any]) -> str:
    """The fate of the shards' records, in words."""
    dropped = f"{counted(found['dropped_tokens'], 'token')} dropped"
    quarantined = f"{counted(found['quarantined'], 'record')} quarantined"
    if filtered := found["filtered"]:
        quarantined = f"{filtered:,} filtered, {quarantined}"
    if lost := found["lost_shards"]:
        quarantined += f", {counted(lost, 'shard')} not read to the end"
    return f"{counted(found['documents'], 'document')}, {dropped}, {quarantined}"


def _first(packed: folder.Folder, parts: list[Part]) -> dict[str, Any] | None:
    """The first ids of the first item.

    Raises:
      DamagedError: its part is damaged.
      GristmillError: the system refuses to read a file of its part.
    """
    if not parts or not parts[0]["items"]:
        return None
    item = packed.read(0, parts[0])[0]
    fields = packed.index["fields"]
    layout = fields_of_packed(fields, packed.index["sequence_length"])
    if layout is None:
        return None
    # A document of the Megatron format is its only field.
    arrays = arrays_of(item, packed.index["dtype"], fields)
    row = arrays[token_field(layout)]
    marks = arrays.get(mark_field(layout), np.ones_like(row))
    ids = row[marks != 0][:_IDS_SHOWN].tolist()
    if ids and min(ids) < 0:
        raise DamagedError(f"its first item holds {min(ids)}, which is not an id")
    encoder = encoder_of(packed.index["source"])
    return {"ids": ids, "text": encoder and encoder.decode(ids)}


def _units(path: str, index: dict[str, Any]) -> dict[str, Any]:
    names = ("format", "dtype", "fields", "sequence_length", "units", "parts")
    described = {name: index[name] for name in names}
    return {"kind": "packed units", "path": path, **described, **index["totals"]}


def _megatron(path: Path) -> dict[str, Any]:
    found = megatron.read(path)
    return {
        "kind": "megatron",
        "path": str(path),
        "dtype": found.dtype.name,
        "sequences": len(found.sequences),
        "documents": len(found.documents) - 1,
        "has_modes": found.has_modes,
        "tokens": int(found.sequences.lengths.sum()),
        "first": {"ids": found.sequences[0][:_IDS_SHOWN].tolist(), "text": None} if found.sequences else None,
    }
