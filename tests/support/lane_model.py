"""A naive model of a lane without a seed, whose rows and records change at borders: the oracle of stages and edits.

Documents are lists of ids. At a border the documents of a window that are not all delivered, and the rest of those that
are begun, are what the next window begins with.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

Row = list[list[int]]


@dataclass
class Document:
    """A document, and the tokens of it that were not delivered."""

    record: int
    ids: list[int]
    left: "list[int] | None" = None

    def rest(self) -> list[int]:
        return self.ids if self.left is None else self.left


def documents_of(shard: int, records: int) -> list[Document]:
    """The documents of a shard, of many lengths, whose ids say which they are."""
    documents = []
    for record in range(records):
        number = shard * records + record
        length = (number * 7919) % 37 if number % 11 else 90
        documents.append(Document(number, [number * 100 + index + 1 for index in range(length)]))
    return documents


@dataclass(frozen=True)
class Rules:
    """The rules of a step: the length of rows, their number in a lane, and which records are read."""

    length: int
    rows: int
    keeps: Callable[[int], bool] = field(default=lambda record: True)
    name: int = 0


Packing = Literal["concat", "pad", "best_fit"]
Placed = list[tuple[int, list[int]]]


def lane_steps(
    documents: Sequence[Document],
    rules_of: Callable[[int], Rules],
    packing: Packing,
    window: int = 64,
    truncates: bool = False,
) -> "Iterator[list[Row]]":
    """The rows of each step of a lane, as the ids of their segments; empty rows are padding."""
    ahead = [Document(document.record, document.ids) for document in documents]
    step, taken, placed = 0, list[Document](), list[Placed]()
    rules = rules_of(0)
    while True:
        now = rules_of(step)
        if (now.length, now.name) != (rules.length, rules.name):
            ahead, placed = [*_taken_back(taken, placed), *ahead], []
        rules = now
        rows: list[Row] = []
        while len(rows) < rules.rows:
            if packing == "best_fit":
                while not placed and ahead:
                    taken = []
                    while ahead and len(taken) < window:
                        document = ahead.pop(0)
                        if rules.keeps(document.record):
                            taken.append(document)
                    placed = place([(document.record, document.rest()) for document in taken], rules.length)
                rows.append([ids for _, ids in placed.pop(0)] if placed else [])
                continue
            rows.append(_row(ahead, rules, packing, truncates))
        if not any(rows):
            return
        yield rows
        step += 1


def _row(ahead: list[Document], rules: Rules, packing: Packing, truncates: bool) -> Row:
    row: Row = []
    free = rules.length
    while free and ahead:
        document = ahead[0]
        if not rules.keeps(document.record):
            ahead.pop(0)
            continue
        ids = document.rest()
        if ids:
            row.append(ids[:free])
        document.left = ids[free:]
        free -= len(ids[:free])
        if not document.left or truncates:
            ahead.pop(0)
        if packing == "pad" and row:
            break
    return row


def place(documents: "Sequence[tuple[int, list[int]]]", length: int) -> "list[Placed]":
    """The rows of `best_fit`: full rows first, then the longest rest, each in the fullest row with room for it."""
    rows: list[list[tuple[int, int, list[int]]]] = []
    rests = []
    for index, (_, ids) in enumerate(documents):
        start = 0
        while len(ids) - start >= length:
            rows.append([(index, start, ids[start : start + length])])
            start += length
        if start < len(ids):
            rests.append((index, start, ids[start:]))
    for rest in sorted(rests, key=lambda rest: -len(rest[2])):
        free = [length - sum(len(ids) for *_, ids in row) for row in rows]
        fits = [index for index in range(len(rows)) if free[index] >= len(rest[2])]
        if fits:
            rows[min(fits, key=lambda index: free[index])].append(rest)
        else:
            rows.append([rest])
    for row in rows:
        row.sort(key=lambda piece: piece[0])
    rows.sort(key=lambda row: row[0][:2])
    return [[(documents[index][0], ids) for index, _, ids in row] for row in rows]


def _taken_back(taken: Sequence[Document], placed: "list[Placed]") -> list[Document]:
    """The documents of a window of which rows are not delivered, with the tokens that are left of each."""
    if not placed:
        return []
    left = {token for row in placed for _, ids in row for token in ids}
    rests = [Document(one.record, one.ids, [token for token in one.ids if token in left]) for one in taken]
    return [document for document in rests if document.rest() or not document.ids]
