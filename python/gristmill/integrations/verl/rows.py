"""`Rows`: the records of several files in the order in which veRL has them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill._prompts.dataset import PromptDataset, spec_of
from gristmill._prompts.reading import Arena, Ids
from gristmill._sample.samples import Chat
from gristmill._tokenizer.encoder import Encoder
from gristmill.errors import ShardError

_LONGEST = 2**24


class Rows:
    """The records of some files, one file after another as they are listed, with the ids of their conversations.

    It pickles with all that it holds, so that worker processes have it however they start.

    Attributes:
      keys: the keys that any record has.
      counts: what became of the records: `read`, `kept` and `quarantined`.
      quarantined: the records that could not be used, as `gm.PromptDataset.dropped` lists them.
      lengths: the tokens of each conversation, int64 `[rows]`.
      numbers: the number of each row among all records of all files.
    """

    def __init__(
        self,
        files: Sequence[str],
        encoder: Encoder,
        chat: Chat,
        *,
        keeps_records: bool = True,
        keeps_texts: bool = False,
        **options: Any,
    ) -> None:
        """Reads the files on all cores.

        Raises:
          GristmillError: as `gm.PromptDataset`; a file that is damaged is an error even where bad records are not.
        """
        self._arenas: list[Arena] = []
        self._shards: list[Sequence[str]] = []
        self.keys: list[str] = []
        self.counts = {"read": 0, "kept": 0, "quarantined": 0}
        self.quarantined: list[dict[str, Any]] = []
        self.fingerprints: list[str] = []
        numbers = []
        for file in files:
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
            spec = spec_of(dataset)
            if spec.counts["lost_shards"]:
                lost = next(bad for bad in spec.arena.bad if bad.is_lost)
                raise ShardError(spec.shard_names[lost.shard], lost.record, lost.byte, lost.reason)
            numbers.append(spec.arena.indices + self.counts["read"])
            self._arenas.append(spec.arena)
            self._shards.append(spec.shard_names)
            self.keys += [key for key in spec.arena.keys if key not in self.keys]
            self.fingerprints.append(dataset.fingerprint)
            self.quarantined += dataset.dropped()
            for name in self.counts:
                self.counts[name] += spec.counts[name]
        self.numbers: npt.NDArray[np.int64] = np.concatenate([np.empty(0, np.int64), *numbers])
        self.lengths: npt.NDArray[np.int64] = np.concatenate([arena.lengths[:, 0] for arena in self._arenas])
        self._starts = np.cumsum([0, *map(len, self._arenas)])

    def __len__(self) -> int:
        return len(self.numbers)

    def record(self, row: int) -> dict[str, Any]:
        """A record, a fresh object: None where another record has a key and this one does not."""
        arena, index = self._find(row)
        record = arena.record(index)
        return {key: record.get(key) for key in self.keys}

    def records(self, rows: "npt.NDArray[np.int64]") -> Iterator[dict[str, Any]]:
        """The records of some rows."""
        return map(self.record, rows.tolist())

    def ids(self, row: int) -> Ids:
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

    def _number_of(self, row: int) -> int:
        return int(np.searchsorted(self._starts, row, side="right")) - 1

    def _find(self, row: int) -> tuple[Arena, int]:
        number = self._number_of(row)
        return self._arenas[number], int(row - self._starts[number])


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
