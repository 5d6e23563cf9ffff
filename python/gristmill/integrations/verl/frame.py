"""The records as veRL's own class has them: a `datasets.Dataset`, for samplers and trainers that read it."""

from collections.abc import Sequence
from typing import Any

from gristmill.errors import ArgumentError, MissingExtraError

_LOADERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".arrow": "arrow"}


def load(paths: Sequence[str]) -> Any:
    """All records of some files, read by `datasets`.

    Raises:
      MissingExtraError: `datasets` is not installed.
      ArgumentError: a file is of another kind.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("dataframe needs datasets, which veRL depends on: pip install datasets") from error
    return datasets.concatenate_datasets(
        [datasets.load_dataset(_loader(path), data_files=path, split="train") for path in paths]
    )


def _loader(path: str) -> str:
    name = path
    for codec in (".gz", ".zst"):
        name = name.removesuffix(codec)
    for suffix, loader in _LOADERS.items():
        if name.endswith(suffix):
            return loader
    raise ArgumentError(
        f"dataframe: {path}: datasets reads Parquet, JSONL and Arrow files, which it knows by their names"
    )
