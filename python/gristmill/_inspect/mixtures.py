"""`gristmill inspect` on a mixture file: its sources, and their shares of the rows from step to step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gristmill._dataset import packed
from gristmill._dataset.packed import PackedDataset, spec_of
from gristmill._mixture import fingerprint as mixtures
from gristmill._mixture.mixture_file import SPECIAL_TOKENS, MixtureFile
from gristmill._tokenizer.encoder import Encoder
from gristmill._util.text import counted, format_columns, format_fields
from gristmill.errors import ArgumentError


def dataset_of(file: MixtureFile, tokenizer: Path | None, arguments: Mapping[str, Any]) -> PackedDataset:
    """The dataset of a mixture file.

    Args:
      file: the file.
      tokenizer: the path of its tokenizer; None if it needs none.
      arguments: those of `PackedDataset` in place of the file's.

    Raises:
      GristmillError: see `PackedDataset.from_file`.
    """
    if tokenizer is None:
        return packed.dataset_of(file, arguments)
    special = file.arguments.get(SPECIAL_TOKENS, "id")
    encoder = Encoder.from_file(tokenizer, config="ignore", special_tokens_in_text=special)
    return packed.dataset_of(file, {**arguments, "tokenizer": encoder})


def inspect(file: MixtureFile, dataset: PackedDataset) -> dict[str, Any]:
    """The stream that a mixture file describes.

    Returns:
      A dict whose `kind` is "mixture"; docs/json.md describes it.

    Raises:
      ArgumentError: the dataset is no mixture.
    """
    spec = spec_of(dataset)
    if spec.mixing is None:
        raise ArgumentError(f"{file.path} describes no mixture")
    stages = [
        {"step": step, "shares": {name: weight / sum(weights.values()) for name, weight in weights.items() if weight}}
        for step, weights in spec.mixing.stages
    ]
    return {
        "kind": "mixture",
        "path": file.path,
        "lanes": dataset.lanes,
        "rows_per_step": spec.rows_per_step,
        "sequence_length": spec.rows.sequence_length,
        "ends": spec.ends,
        "weights_by": spec.mixing.weights_by,
        "stages": stages,
        "sources": {
            name: {
                "shards": len(source.manifest),
                "pieces": len(source.pieces),
                "bytes": sum(source.manifest.sizes),
                "epochs": spec_of(source).sources[0].epochs,
            }
            for name, source in dataset.sources.items()
        },
        "stream": mixtures.describe(dataset.fingerprint),
    }


def describe(found: dict[str, Any]) -> str:
    """The result of `inspect` for people."""
    end = "ends with its sources" if found["ends"] else "never ends"
    rows = f"{counted(found['rows_per_step'], 'row')} of {counted(found['sequence_length'], 'token')}"
    summary = format_fields(
        [
            ("mixture", f"{found['path']}, {end}"),
            ("a step", f"{rows}, in {counted(found['lanes'], 'lane')}"),
            ("shares", f"of {found['weights_by']}"),
        ]
    )
    steps = [f"from step {stage['step']:,}" for stage in found["stages"]]
    table = [("source", "shards", "bytes", "epochs", *steps)]
    for name, source in found["sources"].items():
        shares = [f"{stage['shares'].get(name, 0):.4%}" for stage in found["stages"]]
        epochs = "endless" if source["epochs"] is None else f"{source['epochs']:,}"
        table.append((name, f"{source['shards']:,}", f"{source['bytes']:,}", epochs, *shares))
    stream = format_fields((f"  {name}", value) for name, value in found["stream"].items())
    columns = format_columns(table, right=range(1, len(table[0])))
    return f"{summary}\n\n{columns}\n\nOf the stream\n{stream}"
