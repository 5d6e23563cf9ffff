"""The items of packed files: rows, or whole documents.

    batch of rows ─ Rows.take ──────> rows that hold tokens, int32 [n, fields, sequence_length]
                  ─ Documents.take ─> documents that end in them, a list of int32 arrays

Rows of nothing but padding, which lanes give that end before others, are left out: a reader that takes rows in any
order has no step to fill.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gristmill.errors import GristmillError

if TYPE_CHECKING:  # Loads Grain, which `inspect` has no need of.
    from gristmill._dataset.iterator import Element

Items: TypeAlias = "npt.NDArray[Any] | Sequence[npt.NDArray[Any]]"

# The type that holds the bits of bfloat16, which files of arrays cannot name.
_BFLOAT16, _BITS = "bfloat16", "<u2"
_NONE: npt.NDArray[np.int32] = np.zeros(0, np.int32)
_PENDING = "<i4"


@dataclass(frozen=True)
class RowForm:
    """The form of rows in files: one array of all fields, or where these differ in dtype or shape, a record of arrays.

    Attributes:
      dtype: of the elements, or of the record.
      shape: of a row: `[fields, sequence_length]`, or none of a record.
    """

    dtype: "np.dtype[Any]"
    shape: tuple[int, ...]

    @classmethod
    def of(cls, described: str, fields: Sequence[str], length: int) -> "RowForm":
        """The form of the entry `dtype` of an index."""
        if not described.startswith("["):
            return cls(np.dtype(described), (len(fields), length))
        parts = [(name, _BITS if own == _BFLOAT16 else own, tuple(shape)) for name, own, shape in json.loads(described)]
        return cls(np.dtype(parts), ())

    @property
    def is_record(self) -> bool:
        """Whether a row is a record of arrays."""
        return self.dtype.names is not None


def describe_form(arrays: "Mapping[str, tuple[Any, tuple[int, ...]]]", length: int) -> str:
    """The entry `dtype` of an index of rows with these arrays: names, dtypes and shapes."""
    if all((np.dtype(dtype), shape) == (np.int32, (length,)) for dtype, shape in arrays.values()):
        return "<i4"
    parts = [
        [name, _BFLOAT16 if np.dtype(dtype).name == _BFLOAT16 else np.dtype(dtype).newbyteorder("<").str, list(shape)]
        for name, (dtype, shape) in arrays.items()
    ]
    return json.dumps(parts)


def are_same(one: "npt.NDArray[Any]", other: "npt.NDArray[Any]") -> bool:
    """Whether two items are the same; those of records bit for bit."""
    return one.tobytes() == other.tobytes() if one.dtype.names else np.array_equal(one, other)


def arrays_of(item: "npt.NDArray[Any]", described: str, fields: Sequence[str]) -> "dict[str, npt.NDArray[Any]]":
    """The arrays of a row by the names of its fields; of a document its ids under the only name."""
    if item.dtype.names is None:
        return dict(zip(fields, np.atleast_2d(item), strict=True))
    dtypes = {name: own for name, own, _ in json.loads(described)}
    return {name: _as(dtypes[name], item[name]) for name in fields}


def _as(dtype: str, array: "npt.NDArray[Any]") -> "npt.NDArray[Any]":
    if dtype != _BFLOAT16:
        return array
    import ml_dtypes

    return array.view(ml_dtypes.bfloat16)


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
        arrays = {name: batch[name][kept] for name in self._fields}
        length = batch[self._marks].shape[1]
        form = describe_form({name: (array.dtype, array.shape[1:]) for name, array in arrays.items()}, length)
        record = RowForm.of(form, self._fields, length)
        if not record.is_record:
            return np.stack([*arrays.values()], axis=1)
        rows = np.empty(self.rows, record.dtype)
        for name, array in arrays.items():
            rows[name] = array.view(_BITS) if array.dtype.name == _BFLOAT16 else array
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
