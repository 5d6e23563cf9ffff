"""`Rows`: the records of several files in the order in which veRL has them."""

import contextlib
import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill import Chat, Encoder, PromptDataset
from gristmill._prompts.reading import Arena
from gristmill._prompts.resolving import read_records
from gristmill.errors import ShardError

_LONGEST = 2**24
# Files whose rows all have the same keys, of which `datasets` makes one table.
_OF_COLUMNS = (".parquet", ".arrow", ".feather")
# Records of which the keys of a file are taken: a struct may be null in some of them.
_LOOKED_AT = 64


class Rows:
    """The records of some files, one file after another as they are listed, with the ids of their conversations.

    It pickles with all that it holds, so that worker processes have it however they start.

    Attributes:
      keys: the keys that any record has.
      paths: the shards, in the order of their records.
      counts: what became of the records: `read`, `kept` and `quarantined`.
      quarantined: the records that could not be used, as `gm.PromptDataset.dropped` lists them.
      lengths: the tokens of each conversation, int64 `[rows]`; 0 if they are not rendered.
      numbers: the number of each row among all records of all files.
    """

    def __init__(
        self,
        files: Sequence[str],
        encoder: Encoder | None = None,
        chat: Chat | None = None,
        *,
        keeps_records: bool = True,
        keeps_texts: bool = False,
        **options: Any,
    ) -> None:
        """Reads the files on all cores. Without `chat` nothing is rendered.

        Raises:
          GristmillError: as `gm.PromptDataset`; a file that is damaged is an error even where bad records are not.
        """
        self._arenas: list[Arena] = []
        self._shards: list[Sequence[str]] = []
        shards: Sequence[str]
        self.keys: list[str] = []
        self.counts = {"read": 0, "kept": 0, "quarantined": 0}
        self.quarantined: list[dict[str, Any]] = []
        numbers = []
        for file in files:
            if chat is None or encoder is None:
                arena, shards = read_records(file, **options)
            else:
                dataset = PromptDataset(
                    file,
                    tokenizer=encoder,
                    prompt=chat,
                    prompt_length=_LONGEST,
                    overlong="error",
                    columns=[] if keeps_records else False,
                    full_prompts=keeps_texts,
                    batch_size=1,
                    **options,
                )
                arena, shards = dataset.arena, dataset.shard_names
                self.quarantined += dataset.dropped()
            for bad in arena.bad:
                if bad.is_lost:
                    raise ShardError(shards[bad.shard], bad.record, bad.byte, bad.reason)
            numbers.append(arena.indices + self.counts["read"])
            self._arenas.append(arena)
            self._shards.append(shards)
            self.keys += [key for key in arena.keys if key not in self.keys]
            self.counts["read"] += arena.read
            self.counts["kept"] += len(arena)
            self.counts["quarantined"] += len(arena.bad)
        self.numbers: npt.NDArray[np.int64] = np.concatenate([np.empty(0, np.int64), *numbers])
        self.lengths: npt.NDArray[np.int64] = (
            np.zeros(len(self.numbers), np.int64)
            if chat is None
            else np.concatenate([arena.lengths[:, 0] for arena in self._arenas])
        )
        self._starts = np.cumsum([0, *map(len, self._arenas)])
        self._shape = self._joined_shape() if keeps_records else None

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def paths(self) -> list[str]:
        """See the class."""
        return [path for shards in self._shards for path in shards]

    def record(self, row: int) -> dict[str, Any]:
        """A record, a fresh object: None where another record has a key and this one does not.

        Raises:
          ShardError: Python cannot hold a value of it.
        """
        arena, index = self._find(row)
        try:
            record = arena.record(index)
        except (ValueError, RecursionError) as error:
            reason = f"it cannot become Python objects: {error}; fix the record, or leave it out"
            raise ShardError(*self.source(row), None, reason) from None
        if self._shape is not None:
            record = _as_shaped(record, self._shape)
        return {key: record.get(key) for key in self.keys}

    def records(self, rows: "npt.NDArray[np.int64]") -> Iterator[dict[str, Any]]:
        """The records of some rows."""
        return map(self.record, rows.tolist())

    def ids(self, row: int) -> "npt.NDArray[np.uint32]":
        """The ids of a row's conversation."""
        arena, index = self._find(row)
        return arena.prompt_ids(index, 0)

    def text(self, row: int) -> str:
        """The text of a row's conversation, if texts are kept."""
        arena, index = self._find(row)
        return arena.text(index, 0)

    def source(self, row: int) -> tuple[str, int]:
        """The shard of a row, and its number there."""
        arena, index = self._find(row)
        shards = self._shards[self._number_of(row)]
        return shards[arena.shards[index]], int(arena.numbers[index])

    def content(self, rows: "npt.NDArray[np.int64]") -> bytes:
        """A hash of the records of some rows."""
        digest = hashlib.sha256()
        # Rows that follow one another lie side by side.
        for run in np.split(rows, np.nonzero(np.diff(rows) != 1)[0] + 1):
            first, end = (int(run[0]), int(run[-1]) + 1) if len(run) else (0, 0)
            while first < end:
                arena, index = self._find(first)
                until = min(end, first - index + len(arena))
                start, stop = arena.record_offsets[[index, index + until - first]]
                digest.update(arena.records[start:stop].data)
                first = until
        return digest.digest()

    def _number_of(self, row: int) -> int:
        return int(np.searchsorted(self._starts, row, side="right")) - 1

    def _find(self, row: int) -> tuple[Arena, int]:
        number = self._number_of(row)
        return self._arenas[number], int(row - self._starts[number])

    def _joined_shape(self) -> Any:
        """The keys of all files of columns together, of which `datasets` makes one table; None if they are the same."""
        found = []
        for arena, shards in zip(self._arenas, self._shards, strict=True):
            if not all(path.endswith(_OF_COLUMNS) for path in shards):
                return None
            found.append(_shape(list(itertools.islice(_readable(arena), _LOOKED_AT)))[0])
        joined = functools.reduce(_joined, found, None)
        return None if all(repr(shape) == repr(joined) for shape in found) else joined


def chosen(rows: Rows, max_samples: int, *, shuffle: bool, seed: int | None) -> "npt.NDArray[np.int64]":
    """The rows of a sample of all records: the first ones, or with `shuffle` as many in the order in which NumPy draws.

    veRL draws before it leaves out any record, so the numbers are those of all records.
    """
    total = rows.counts["read"]
    if not 0 < max_samples < total:
        return np.arange(len(rows))
    drawn = np.random.default_rng(seed).choice(total, max_samples, replace=False) if shuffle else np.arange(max_samples)
    places = np.full(total, -1)
    places[drawn] = np.arange(max_samples)
    found = places[rows.numbers]
    (kept,) = np.nonzero(found >= 0)
    return kept[np.argsort(found[kept])]


def _readable(arena: Arena) -> Iterator[dict[str, Any]]:
    for index in range(len(arena)):
        with contextlib.suppress(ValueError, RecursionError):
            yield arena.record(index)


def _shape(value: Any) -> Any:
    """The keys of a value: a dict of the shapes of its items, a list of one shape, or None."""
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [functools.reduce(_joined, map(_shape, value), None)]
    return None


def _joined(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: _joined(one.get(key), other.get(key)) for key in [*one, *(key for key in other if key not in one)]}
    if isinstance(one, list) and isinstance(other, list):
        return [_joined(one[0], other[0])]
    return other if one is None else one


def _as_shaped(value: Any, shape: Any) -> Any:
    """A value with the keys of a shape, in that order; None where it lacks one."""
    if isinstance(value, dict) and isinstance(shape, dict):
        keys = [*shape, *(key for key in value if key not in shape)]
        return {key: _as_shaped(value.get(key), shape.get(key)) for key in keys}
    if isinstance(value, list) and isinstance(shape, list):
        return [_as_shaped(item, shape[0]) for item in value]
    return value
