"""`gristmill inspect` on a metadataset of Megatron-Energon: the folders of its splits, and their shares."""

from typing import Any

from gristmill._mixture import energon
from gristmill._shards.address import Address
from gristmill._util.text import format_columns, format_fields, shortened
from gristmill.errors import ArgumentError


def inspect(address: Address, splits: list[str]) -> dict[str, Any]:
    """The sources of each split, whose folders are opened and counted; or why it is refused.

    Returns:
      A dict whose `kind` is "metadataset"; docs/json.md describes it.

    Raises:
      GristmillError: a folder is damaged, or a store cannot be reached.
    """
    found: dict[str, Any] = {}
    for split in splits:
        try:
            repeats = split not in energon.EVALUATED
            read = energon.read(address.name, split, repeats=repeats, storage_options=dict(address.options))
        except ArgumentError as error:
            found[split] = {"sources": [], "refusal": str(error)}
            continue
        total = sum(source.weight for source in read)
        sources = [
            {
                "name": source.name,
                "path": source.folder.path,
                "split": source.folder.split,
                "samples": len(source.folder),
                "passes": source.passes,
                "share": source.weight / total,
                "subflavors": source.subflavors,
                "aux": {name: at.text for name, at in source.aux.items()},
                "refusal": source.folder.refusal,
            }
            for source in read
        ]
        found[split] = {"sources": sources, "refusal": None}
    return {"kind": "metadataset", "path": address.name, "splits": found}


def describe(found: dict[str, Any]) -> str:
    """The result of `inspect` for people."""
    parts = [format_fields([("metadataset", f"{found['path']}, of Energon")])]
    for name, split in found["splits"].items():
        if split["refusal"] is not None:
            parts.append(f"split {name}: refused: {split['refusal']}")
            continue
        rows = [("source", "samples", "passes", "share", "folder", "split")]
        for source in split["sources"]:
            counts = (f"{source['samples']:,}", f"{source['passes']}", f"{source['share']:.2%}")
            rows.append((source["name"], *counts, source["path"], source["split"]))
        parts.append(f"split {name}:\n{format_columns(rows, right=range(1, 4))}")
        for source in split["sources"]:
            described = [f"{key}: {source[key]}" for key in ("subflavors", "aux", "refusal") if source[key]]
            if described:
                parts[-1] += f"\n{source['name']}: {'; '.join(described)}"
        path = shortened(found["path"])
        parts[-1] += f"\nIt is read by gm.Mixture.from_energon({path}, {name!r}, sample=gm.ImageText(model))."
    return "\n\n".join(parts)
