"""The parts of the shards that are read, and the arena that the core makes of them."""

import functools
import hashlib
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

import gristmill._core as _core
from gristmill._prompts import exact
from gristmill._sample.plans import ChatPlan, CompletionPlan
from gristmill._sample.samples import Text
from gristmill._shards.selection import Selection
from gristmill._shards.stores import StorageOptions

Plan: TypeAlias = ChatPlan | CompletionPlan | Text
Ids: TypeAlias = "npt.NDArray[np.uint32]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"
Offsets: TypeAlias = "npt.NDArray[np.int64]"

_ARRAYS = (
    "ids", "trained", "id_offsets", "texts", "text_offsets", "records", "record_offsets", "shards", "numbers",
    "indices", "overlong_shards", "overlong_numbers", "overlong_tokens",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The shards that are read, and what becomes of each record. The core reads it in `rust/python/prompts.rs`.

    Attributes:
      folder: the folder that relative paths start from.
      storage: how stores are reached.
      paths: the shards' paths.
      sizes: their sizes in bytes.
      selection: the filter.
      prompts: a conversation, a completion or a text for each prompt of a record.
      bos: put before the ids of each prompt.
      eos: put after them.
      longest: records of which a prompt has more tokens are left out.
      cut: how many tokens at the start and at the end are kept of longer ones; None: they are not cut.
      masks: for each prompt whether it has a loss mask.
      needs_trained: whether a record is bad, or left out, if a prompt with a mask has no trained token, or its mask
        cannot be derived; else nothing of it is trained on.
      selected: the indices of the records that are read, in order.
      keeps_records: whether the records themselves are kept.
      keeps_texts: whether the rendered texts are kept.
      raises: whether a bad record is an error.
      max_memory: the bytes that the arena may take.
      threads: worker threads.
    """

    folder: str
    storage: StorageOptions
    paths: Sequence[str]
    sizes: Sequence[int]
    selection: Selection
    max_document_bytes: int
    prompts: Sequence[Plan]
    bos: int | None
    eos: int | None
    longest: int | None
    cut: tuple[int, int] | None
    masks: Sequence[bool]
    needs_trained: bool
    selected: Sequence[int] | None
    keeps_records: bool
    keeps_texts: bool
    raises: bool
    max_memory: int
    threads: int


@dataclass(frozen=True)
class BadRecord:
    """A record that cannot be used.

    Attributes:
      shard: the index of its shard.
      record: its number in the shard; None if that could not be opened.
      byte: the byte of its shard at which it starts, where there is one.
      reason: what was expected and found.
      is_lost: whether the rest of the shard is lost with it.
    """

    shard: int
    record: int | None
    byte: int | None
    reason: str
    is_lost: bool


class Arena:
    """The prompts of all records that were kept, by their number among these.

    It is never changed, so copies are the same object.

    Attributes:
      prompts: how many prompts each record has.
      read: the records that were read.
      filtered: those that the filter left out.
      bad: those that cannot be used.
      keys: the keys that any record has, in the order in which they occur.
      ids: the ids of all prompts, one after another.
      trained: for each id whether it is trained on; empty if no prompt has a loss mask.
      id_offsets: where each begins.
      shards: the index of each record's shard.
      numbers: the number of each record in its shard.
      indices: the index of each record among all that there are.
      pickled: the rows of Python that hold values which JSON lacks, by their number.
      overlong_shards: the shards of the records with too long a prompt.
      overlong_numbers: their numbers.
      overlong_tokens: the tokens of the longest prompt of each.
    """

    ids: Ids
    trained: Mask
    id_offsets: Offsets
    texts: "npt.NDArray[np.uint8]"
    text_offsets: Offsets
    records: "npt.NDArray[np.uint8]"
    record_offsets: Offsets
    shards: "npt.NDArray[np.uint32]"
    numbers: Offsets
    indices: Offsets
    overlong_shards: "npt.NDArray[np.uint32]"
    overlong_numbers: Offsets
    overlong_tokens: Offsets

    def __init__(self, found: dict[str, Any], reading: Reading) -> None:
        self.prompts = len(reading.prompts)
        self._ends = reading.bos is not None, reading.eos is not None
        self.read: int = found["read"]
        self.filtered: int = found["filtered"]
        self.bad = [BadRecord(*values) for values in found["bad"]]
        self.keys = [_unescaped(key) for key in found["keys"]]
        self.pickled: Mapping[int, bytes] = {}
        for name in _ARRAYS:
            array = found[name]
            array.flags.writeable = False
            setattr(self, name, array)

    @classmethod
    def of(cls, encoder: _core.Encoder, reading: Reading) -> Self:
        """The arena of what is read.

        Raises:
          ShardError: a record cannot be used, and `raises` is set; or a shard cannot be read.
          ArgumentError: the arena would take more than `max_memory` bytes.
        """
        return cls(_core.read_prompts(encoder, reading), reading)

    def __len__(self) -> int:
        return len(self.shards)

    @property
    def nbytes(self) -> int:
        """The bytes of memory that it takes."""
        return sum(getattr(self, name).nbytes for name in _ARRAYS) + sum(map(len, self.pickled.values()))

    @property
    def has_texts(self) -> bool:
        """Whether texts were kept."""
        return len(self.text_offsets) > 1

    def content(self) -> bytes:
        """A hash of all ids."""
        digest = hashlib.blake2b(self.id_offsets.tobytes(), digest_size=8)
        digest.update(self.ids.data)
        return digest.digest()

    @functools.cached_property
    def lengths(self) -> "npt.NDArray[np.int64]":
        """The tokens of each prompt, int64 `[records, prompts]`."""
        return np.diff(self.id_offsets).reshape(len(self), self.prompts)

    def prompt_ids(self, row: int, prompt: int) -> Ids:
        """The ids of a record's prompt."""
        return self.ids[self._span(row, prompt)]

    def prompt_mask(self, row: int, prompt: int) -> Mask:
        """For each of these ids whether it is trained on, if any prompt has a loss mask."""
        return self.trained[self._span(row, prompt)]

    def _span(self, row: int, prompt: int) -> slice:
        start, stop = self.id_offsets[row * self.prompts + prompt : row * self.prompts + prompt + 2]
        return slice(start, stop)

    def trained_counts(self) -> "npt.NDArray[np.int64]":
        """How many tokens of each prompt are trained on, int64 `[records, prompts]`."""
        before = np.concatenate([[0], np.cumsum(self.trained, dtype=np.int64)])
        return np.diff(before[self.id_offsets]).reshape(len(self), self.prompts)

    def ends(self, row: int) -> tuple[bool, bool]:
        """Whether the prompts of a record begin with BOS, and whether they end with EOS."""
        del row
        return self._ends

    def text(self, row: int, prompt: int) -> str:
        """The text of a record's prompt, if texts were kept."""
        start, stop = self.text_offsets[row * self.prompts + prompt : row * self.prompts + prompt + 2]
        return self.texts[start:stop].tobytes().decode()

    def record(self, row: int) -> dict[str, Any]:
        """A record, if records were kept: a fresh object each time.

        Raises:
          ValueError: Python cannot hold a value of it.
        """
        if (pickled := self.pickled.get(int(self.numbers[row]))) is not None:
            found: dict[str, Any] = pickle.loads(pickled)
            return found
        start, stop = self.record_offsets[row : row + 2]
        return exact.load(self.records[start:stop].tobytes())

    def overlong(self) -> Iterator[tuple[int, int, int]]:
        """Shard, number and tokens of each record with too long a prompt."""
        yield from zip(
            self.overlong_shards.tolist(), self.overlong_numbers.tolist(), self.overlong_tokens.tolist(), strict=True
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class JoinedArena(Arena):
    """The prompts of several arenas, one after another.

    Attributes:
      prompts: how many prompts each record has.
      keys: the keys that any record has.
      bad: the records that cannot be used.
      shards: the index of each record's shard among those of all arenas.
      numbers: the number of each record in its shard.
    """

    def __init__(self, arenas: Sequence[Arena], shards: Sequence[int]) -> None:
        self._arenas = tuple(arenas)
        self._shards = [sum(shards[:index]) for index in range(len(shards))]
        self._starts = np.cumsum([0, *map(len, arenas)])
        self.prompts = arenas[0].prompts
        self.keys = list(dict.fromkeys(key for arena in arenas for key in arena.keys))
        both = list(zip(self._arenas, self._shards, strict=True))
        self.bad = [replace(bad, shard=bad.shard + first) for arena, first in both for bad in arena.bad]
        self.shards = np.concatenate([arena.shards + np.uint32(first) for arena, first in both])
        self.numbers: Offsets = np.concatenate([arena.numbers for arena in arenas])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _find(self, row: int) -> tuple[Arena, int]:
        index = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._arenas[index], row - int(self._starts[index])

    @property
    def nbytes(self) -> int:
        """The bytes of memory that it takes."""
        return sum(arena.nbytes for arena in self._arenas) + self.shards.nbytes + self.numbers.nbytes

    @property
    def has_texts(self) -> bool:
        """Whether texts were kept."""
        return any(arena.has_texts for arena in self._arenas)

    @functools.cached_property
    def lengths(self) -> "npt.NDArray[np.int64]":
        """The tokens of each prompt, int64 `[records, prompts]`."""
        return np.concatenate([arena.lengths for arena in self._arenas])

    def content(self) -> bytes:
        """A hash of all ids."""
        return hashlib.blake2b(b"".join(arena.content() for arena in self._arenas), digest_size=8).digest()

    def prompt_ids(self, row: int, prompt: int) -> Ids:
        """See `Arena`."""
        arena, own = self._find(row)
        return arena.prompt_ids(own, prompt)

    def prompt_mask(self, row: int, prompt: int) -> Mask:
        """See `Arena`."""
        arena, own = self._find(row)
        return arena.prompt_mask(own, prompt)

    def ends(self, row: int) -> tuple[bool, bool]:
        """See `Arena`."""
        arena, own = self._find(row)
        return arena.ends(own)

    def text(self, row: int, prompt: int) -> str:
        """See `Arena`."""
        arena, own = self._find(row)
        return arena.text(own, prompt)

    def record(self, row: int) -> dict[str, Any]:
        """See `Arena`."""
        arena, own = self._find(row)
        return arena.record(own)

    def overlong(self) -> Iterator[tuple[int, int, int]]:
        """See `Arena`."""
        for arena, first in zip(self._arenas, self._shards, strict=True):
            for shard, number, tokens in arena.overlong():
                yield shard + first, number, tokens


def _unescaped(key: str) -> str:
    """A key as JSON writes it, without its quotes."""
    found: str = json.loads(f'"{key}"')
    return found
