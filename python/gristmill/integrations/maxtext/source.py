"""Prompts of a data set of `datasets`: read by the core where it is made of files, else row by row."""

import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill import Encoder, Manifest, PromptDataset, Text
from gristmill._prompts.cutting import cut
from gristmill.errors import ArgumentError

_LONGEST = 2**24


@dataclass(frozen=True, kw_only=True)
class Ends:
    """The tokens that `tokenize` puts around a text, and the side that is cut.

    Attributes:
      bos: id of BOS; None: none.
      eos: likewise.
      side: `"left"` or `"right"`.
    """

    bos: int | None
    eos: int | None
    side: str


class Prompts:
    """The ids of all rows, by column.

    Attributes:
      columns: the names of the columns.
      shards: the number of each row's shard, int64 `[rows]`, ascending.
      shard_count: how many shards there are.
      is_splittable: whether hosts take contiguous parts where there are fewer shards than hosts.
      fingerprint: what defines the rows, readable.
    """

    def __init__(
        self,
        columns: Sequence[str],
        ids: "npt.NDArray[Any]",
        offsets: "npt.NDArray[np.int64]",
        counts: Sequence[int],
        fingerprint: str,
        rows: "npt.NDArray[np.int64] | None" = None,
        *,
        is_splittable: bool = False,
    ) -> None:
        self.columns = columns
        self.shards = np.repeat(np.arange(len(counts)), counts)
        self.shard_count = len(counts)
        self.is_splittable = is_splittable
        self.fingerprint = fingerprint
        self._ids, self._offsets = ids, offsets
        self._rows = np.arange(len(self.shards)) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    def ids(self, row: int, column: int) -> "npt.NDArray[Any]":
        """The ids of one column of a row, before they are cut."""
        at = int(self._rows[row]) * len(self.columns) + column
        return self._ids[self._offsets[at] : self._offsets[at + 1]]


def tokenized(dataset: Any, columns: Sequence[str], encoder: Encoder, ends: Ends) -> Prompts:
    """The prompts of a data set whose columns hold strings.

    Raises:
      GristmillError: as `gm.PromptDataset`.
      KeyError: a row lacks a column.
    """
    options: dict[str, Any] = {
        "tokenizer": encoder,
        "prompt": {column: Text(column) for column in columns},
        "layout": "ragged",
        "columns": False,
        "prompt_length": _LONGEST,
        "overlong": "error",
        "batch_size": 1,
        "bos": False if ends.bos is None else ends.bos,
        "eos": False if ends.eos is None else ends.eos,
    }
    files = local_files(dataset)
    if files is not None:
        # A manifest is sorted; a data set has its files in the order in which they are listed.
        manifest = Manifest(tuple(files), tuple(Path(file).stat().st_size for file in files))
        found = PromptDataset(manifest, **options)
        places = {path: place for place, path in enumerate(files)}
        rank = np.array([places[path] for path in manifest.paths])
        shards = rank[found.arena.shards]
        order = np.argsort(shards, kind="stable")
        counts = np.bincount(shards, minlength=len(files)).tolist()
    else:
        read = _Rows(dataset, columns)
        found = PromptDataset(iter(read), **options)
        counts, order = read.counts, None
    arena = found.arena
    is_splittable = files is None and not _is_stream(dataset)
    return Prompts(columns, arena.ids, arena.id_offsets, counts, found.fingerprint, order, is_splittable=is_splittable)


def listed(dataset: Any, columns: Sequence[str]) -> Prompts:
    """The prompts of a data set whose columns hold lists of ids.

    Raises:
      ArgumentError: a value is not a list of integers.
      KeyError: a row lacks a column.
    """
    read = _Rows(dataset, columns)
    values = [_ids(row[column], column, number) for number, row in enumerate(read) for column in columns]
    offsets = np.cumsum([0, *map(len, values)])
    ids = np.concatenate([np.empty(0, np.int64), *values])
    digest = hashlib.sha256(ids.tobytes() + offsets.tobytes()).hexdigest()[:16]
    return Prompts(columns, ids, offsets, read.counts, f"ids {digest}", is_splittable=not _is_stream(dataset))


def limited(ids: "npt.NDArray[Any]", length: int, ends: Ends) -> "npt.NDArray[Any]":
    """At most `length` ids, with BOS and EOS where they are."""
    return cut(ids, length, ends.side, has_bos=ends.bos is not None, has_eos=ends.eos is not None)


def local_files(dataset: Any) -> list[str] | None:
    """The files that a streamed data set of `datasets` reads as they are: JSON lines or Parquet; else None."""
    source = getattr(dataset, "_ex_iterable", None)
    if source is None or type(source).__name__ != "ArrowExamplesIterable":
        return None
    builder = getattr(source.generate_tables_fn, "__self__", None)
    config = getattr(builder, "config", None)
    kind, kwargs = type(builder).__name__, source.kwargs
    if kind == "Parquet" and not any(map(_is_set, kwargs.get("row_groups_list") or ())):
        files = kwargs.get("files")
        is_whole = not any(_is_set(getattr(config, name, None)) for name in ("columns", "filters"))
    elif kind == "Json":
        files = kwargs.get("base_files")
        is_whole = not _is_set(getattr(config, "field", None))
    else:
        return None
    is_split = getattr(dataset, "_distributed", None) is not None
    if not files or not is_whole or is_split or len(set(files)) < len(files) or len(files) != _shard_count(dataset):
        return None
    found = [os.fspath(file) for file in files]
    return found if all(Path(file).is_file() and not _is_array(file) for file in found) else None


class _Rows:
    """The rows of a data set, shard by shard, of which only some columns are taken.

    Attributes:
      counts: how many rows each shard has had so far.
    """

    def __init__(self, dataset: Any, columns: Sequence[str]) -> None:
        self._dataset, self._columns = dataset, columns
        self.counts: list[int] = []

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for shard in self._shards():
            self.counts.append(0)
            for row in shard:
                self.counts[-1] += 1
                yield {column: row[column] for column in self._columns}

    def _shards(self) -> Iterable[Iterable[Mapping[str, Any]]]:
        count = _shard_count(self._dataset)
        if not _is_stream(self._dataset) or count < 2:
            return [self._dataset]
        return (self._dataset.shard(num_shards=count, index=index) for index in range(count))


def _is_stream(dataset: Any) -> bool:
    return hasattr(dataset, "_ex_iterable")


def _shard_count(dataset: Any) -> int:
    return int(getattr(dataset, "num_shards", 1)) if _is_stream(dataset) else 1


def _is_set(value: Any) -> bool:
    return value is not None


def _is_array(file: str) -> bool:
    """Whether a file is one JSON array, which `datasets` takes for its items."""
    with open(file, "rb") as opened:  # noqa: PTH123 - the path stays a string
        first = next(itertools.dropwhile(bytes.isspace, iter(lambda: opened.read(1), b"")), b"")
    return first == b"["


def _ids(value: Any, column: str, number: int) -> "npt.NDArray[np.int64]":
    found = np.asarray(value if not isinstance(value, str) else [value])
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ArgumentError(
            f"row {number}: {column!r}: expected a list of ids with tokenize=False, found {type(value).__name__}"
        )
    return found.astype(np.int64)
