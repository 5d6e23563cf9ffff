"""The items of packed files: rows, or whole documents.

    batch of rows ─ Rows.take ──────> rows that hold tokens, int32 [n, fields, sequence_length]
                  ─ Documents.take ─> documents that end in them, a list of int32 arrays

Rows of nothing but padding, which lanes give that end before others, are left out: a reader that takes rows in any
order has no step to fill.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gristmill.errors import GristmillError

if TYPE_CHECKING:  # Loads Grain, which `inspect` has no need of.
    from gristmill._dataset.iterator import Element

Items: TypeAlias = "npt.NDArray[Any] | Sequence[npt.NDArray[Any]]"

_NONE: npt.NDArray[np.int32] = np.zeros(0, np.int32)
_PENDING = "<i4"


class Collector(Protocol):
    """Turns batches into items.

    Attributes:
      rows: number of rows of the last batch that hold tokens.
      ends: for each item of the last batch, its row, and the index in the row of its last token, or None if the
        item is the whole row.
    """

    rows: int
    ends: list[tuple[int, int | None]]

    def take(self, batch: "Element") -> Items:
        """The items that end in a batch."""

    def pending(self) -> list[str]:
        """For each lane and in it each source, the item that has not ended: its ids as little-endian int32, in base 64.

        Lanes may be far into long documents. As numbers, these take many times as long to write, read and check.
        """

    def set_pending(self, pending: list[str]) -> None:
        """Continues with items that were pending in another run.

        Raises:
          GristmillError: they are of another form.
        """


class Rows:
    """Rows with all their fields; none is pending."""

    def __init__(self, marks: str, fields: Sequence[str], lanes: int, ranks: Sequence[int] = (0,)) -> None:
        del lanes, ranks
        self._marks = marks
        self._fields = fields
        self.rows = 0
        self.ends: list[tuple[int, int | None]] = []

    def take(self, batch: "Element") -> Items:
        """The rows of a batch."""
        kept = batch[self._marks].any(axis=1)
        self.ends = [(row, None) for row in np.flatnonzero(kept).tolist()]
        self.rows = len(self.ends)
        rows: npt.NDArray[np.int32] = np.stack([batch[name] for name in self._fields], axis=1)[kept]
        return rows

    def pending(self) -> list[str]:
        """There is none."""
        return []

    def set_pending(self, pending: list[str]) -> None:
        """There is none."""
        _decode_pending(pending, 0)


class Documents:
    """Documents, EOS included; those that rows of `concat` cut are joined again, within their lane and source."""

    def __init__(self, marks: str, fields: Sequence[str], lanes: int, ranks: Sequence[int] = (0,)) -> None:
        del marks, fields
        self._lanes, self._ranks = lanes, ranks
        # The pieces of the document that has not ended, for each lane and in it for each source, by the sources' names.
        self._started: list[list[npt.NDArray[np.int32]]] = [[] for _ in range(lanes * len(ranks))]
        self.rows = 0
        self.ends: list[tuple[int, int | None]] = []

    def take(self, batch: "Element") -> Items:
        """The documents that end in a batch."""
        rows_per_lane = len(batch["inputs"]) // self._lanes
        sources = batch.get("source", np.zeros(len(batch["inputs"]), np.int32))
        documents: list[Any] = []
        self.ends = []
        self.rows = int(np.count_nonzero(batch["inputs_segmentation"][:, 0]))
        for row, ids in enumerate(batch["inputs"]):
            tokens = np.count_nonzero(batch["inputs_segmentation"][row])
            # A token without a target is its document's last.
            ends = np.flatnonzero(batch["targets_segmentation"][row, :tokens] == 0) + 1
            *whole, rest = np.split(ids[:tokens], ends)
            feed = row // rows_per_lane * len(self._ranks) + self._ranks[sources[row]]
            if whole:
                whole[0] = np.concatenate([*self._started[feed], whole[0]])
                self._started[feed] = []
            documents.extend(whole)
            self.ends += [(row, end - 1) for end in ends.tolist()]
            # A copy: a view would keep the whole batch.
            self._started[feed].append(rest.copy())
        return documents

    def pending(self) -> list[str]:
        """For each lane and source, the start of a document."""
        started = (np.concatenate([_NONE, *pieces]) for pieces in self._started)
        return [base64.b64encode(ids.astype(_PENDING).tobytes()).decode() for ids in started]

    def set_pending(self, pending: list[str]) -> None:
        """For each lane and source, the start of a document."""
        self._started = [[ids] for ids in _decode_pending(pending, len(self._started))]


def _decode_pending(pending: list[str], lanes: int) -> list[npt.NDArray[np.int32]]:
    try:
        started = [np.frombuffer(base64.b64decode(ids, validate=True), _PENDING).astype(np.int32) for ids in pending]
    except (binascii.Error, ValueError):
        started = []
    if len(started) != lanes or any(ids.min(initial=0) < 0 for ids in started):
        raise GristmillError(f"expected in pending the ids of a started document for each of {lanes} lanes")
    return started
