"""`gristmill inspect` on a folder that Megatron-Energon has prepared: its splits, and how it is read."""

from typing import Any

from gristmill._core import Records, build_info
from gristmill._images.decoding import SLOW_JPEG
from gristmill._sample.energon_samples import RESULTS
from gristmill._sample.image_fields import guess
from gristmill._sample.samples import Chat
from gristmill._shards.address import Address
from gristmill._shards.energon_files import alternatives
from gristmill._shards.energon_folder import EnergonFolder, is_prepared, splits_of
from gristmill._shards.place import Place
from gristmill._util.local_files import utf8_path
from gristmill._util.text import counted, format_columns, format_fields, shortened
from gristmill.errors import ArgumentError


def is_one(address: Address) -> bool:
    """Whether there is such a folder."""
    return is_prepared(Place(address))


def inspect(address: Address, max_document_bytes: int) -> dict[str, Any]:
    """The splits of a folder, whose counts are compared.

    Returns:
      A dict whose `kind` is "energon"; docs/json.md describes it.

    Raises:
      GristmillError: the folder is damaged.
    """
    splits: dict[str, dict[str, int] | None] = {}
    first: EnergonFolder | None = None
    path, options = address.name, dict(address.options)
    for name in splits_of(path, options):
        try:
            folder = EnergonFolder(path, split=name, storage_options=options)
        except ArgumentError as error:
            if error.argument != "split":
                raise
            splits[name] = None
            continue
        first = first or folder
        splits[name] = {
            "shards": len(folder.manifest),
            "samples": len(folder),
            "excluded": sum(map(len, folder.left_out.rows)) if folder.left_out else 0,
            "bytes": sum(folder.manifest.sizes),
        }
    found: dict[str, Any] = {
        "kind": "energon",
        "path": path,
        "splits": splits,
        "fields": None,
        "sample_type": None,
        "unread": {},
        "refusal": None,
        "parts": {},
    }
    if first is not None:
        shard, size = next(iter(first.manifest))
        record = Records(utf8_path(shard), size, max_document_bytes, storage=address.options).next() or []
        found |= {
            "fields": first.fields,
            "sample_type": first.sample_type and {"name": first.sample_type.name, "fields": first.sample_type.fields},
            "unread": first.unread,
            "refusal": first.refusal,
            "first_shard": shard,
            "parts": {key: kind for key, kind, _ in record},
        }
    return found


def describe(found: dict[str, Any]) -> str:
    """The result of `inspect` for people."""
    rows = [("split", "shards", "samples", "excluded", "bytes")]
    for name, split in found["splits"].items():
        counts = ("0", "0", "0", "0") if split is None else tuple(f"{count:,}" for count in split.values())
        rows.append((name, *counts))
    summary = format_fields([("folder", f"{found['path']}, prepared by Energon")])
    described = f"{summary}\n\n{format_columns(rows, right=range(1, 5))}"
    if not found["parts"]:
        return described
    parts = ", ".join(f"{key} ({kind})" for key, kind in found["parts"].items())
    described += f"\n\nThe first of {counted(_samples(found), 'sample')} has {parts}."
    if not build_info()["jpeg_vector_code"]:
        described += f"\nJPEG is decoded {SLOW_JPEG}."
    split = next(name for name, counts in found["splits"].items() if counts)
    folder = f"gm.EnergonFolder({shortened(found['path'])}, split={split!r})"
    if (kind := found["sample_type"]) is not None:
        become = RESULTS[kind["name"]]
        named = _named({**(found["fields"] or {}), **kind["fields"]})
        described += f"\nIts samples are a {kind['name']} each: {named}. They become {become}"
        return f"{described}, by gm.ImageText(model) of {folder}.{_left(found)}"
    if found["fields"]:
        described += f"\ndataset.yaml names its fields: {_named(found['fields'])}. They are read"
        model = "gm.VideoModel(...)" if "videos" in found["fields"] else "model"
        return f"{described} by gm.ImageText({model}) of {folder}.{_left(found)}"
    if found["refusal"]:
        return f"{described}\nThey are not read as the folder says: {found['refusal']}, with {folder}."
    text = guess(found["parts"])
    if text is None:
        return (
            f"{described}\nNo text or conversation is found: name it in fields= of gm.ImageText, or have "
            f"record=gm.RecordFunction(cook, fields=[...]) make it of these parts, with {folder}."
        )
    what = "conversation" if isinstance(text, Chat) else "text"
    return (
        f"{described}\ndataset.yaml names no fields; the {what} is taken from {text.field!r}, as a guess: "
        f"gm.ImageText(model, text=gm.{type(text).__name__}({shortened(text.field)})) of {folder}."
    )


def _named(fields: dict[str, str]) -> str:
    return ", ".join(f"{name} {part!r}" for name, part in fields.items())


def _left(found: dict[str, Any]) -> str:
    """The fields and parts of the first sample of which nothing is read."""
    fields = {**(found["fields"] or {}), **(found["sample_type"] or {}).get("fields", {})}
    named = [*fields.values(), *found["unread"].values()]
    covered = {".".join(path) for part in named for path in alternatives(part)}
    parts = [
        part
        for part in found["parts"]
        if not any(f"{part}.".startswith(f"{path}.") or path.startswith(f"{part}.") for path in covered)
    ]
    unread = [*(f"the field {name} {part!r}" for name, part in found["unread"].items()), *map(repr, parts)]
    return f" Nothing is read of {', '.join(unread)}." if unread else ""


def _samples(found: dict[str, Any]) -> int:
    return sum(split["samples"] for split in found["splits"].values() if split)
