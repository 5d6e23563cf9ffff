"""`gristmill inspect` on a folder that Megatron-Energon has prepared: its splits, and how it is read."""

from pathlib import Path
from typing import Any

from gristmill._core import Records, build_info
from gristmill._images.decoding import SLOW_JPEG
from gristmill._sample.image_fields import guess
from gristmill._sample.samples import Chat
from gristmill._shards.energon_folder import EnergonFolder, splits_of
from gristmill._util.local_files import utf8_path
from gristmill._util.text import counted, format_columns, format_fields, shortened
from gristmill.errors import ArgumentError


def is_one(path: Path) -> bool:
    """Whether a path is such a folder."""
    return (path / ".nv-meta").is_dir()


def inspect(path: Path, max_document_bytes: int) -> dict[str, Any]:
    """The splits of a folder, whose counts are compared.

    Returns:
      A dict whose `kind` is "energon"; docs/json.md describes it.

    Raises:
      GristmillError: the folder is damaged.
    """
    splits: dict[str, dict[str, int] | None] = {}
    first: EnergonFolder | None = None
    for name in splits_of(path):
        try:
            folder = EnergonFolder(path, split=name)
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
        "path": str(path),
        "splits": splits,
        "fields": None,
        "refusal": None,
        "parts": {},
    }
    if first is not None:
        shard, size = next(iter(first.manifest))
        record = Records(utf8_path(shard), size, max_document_bytes).next() or []
        found |= {
            "fields": first.fields,
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
    if found["fields"]:
        named = ", ".join(f"{name} {part!r}" for name, part in found["fields"].items())
        return f"{described}\ndataset.yaml names its fields: {named}. They are read by gm.ImageText(model) of {folder}."
    if found["refusal"]:
        return f"{described}\nThey are not read as the folder says: {found['refusal']}, with {folder}."
    text = guess(found["parts"])
    if text is None:
        return f"{described}\nNo text or conversation is found: name it in fields= of gm.ImageText, with {folder}."
    what = "conversation" if isinstance(text, Chat) else "text"
    return (
        f"{described}\ndataset.yaml names no fields; the {what} is taken from {text.field!r}, as a guess: "
        f"gm.ImageText(model, text=gm.{type(text).__name__}({shortened(text.field)})) of {folder}."
    )


def _samples(found: dict[str, Any]) -> int:
    return sum(split["samples"] for split in found["splits"].values() if split)
