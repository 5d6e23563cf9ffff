"""A naive model of the stream: plain Python over the `tokenizers` wheel, to be checked by eye.

It follows the rules of docs and nothing of the core's code: whole epochs in memory, every row a list, every
choice by looking at all there is.

    shards of a lane ──> documents ──> windows, permuted ──> rows of pieces ──> arrays
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

WINDOW_BYTES = 16 * 2**20
WINDOW_PERMUTATION = 3


@dataclass
class Model:
    """The arguments of a `PackedDataset` that define its stream, ids for tokens."""

    tokenizer: Any
    sequence_length: int
    packing: str = "concat"
    fit_window: int = 1024
    truncation: str = "right"
    max_segments: int | None = None
    layout: str = "maxtext"
    boundary_targets: bool = False
    eos: int | None = None
    bos: int | None = None
    seed: int | None = None
    shuffle_window: int = 1024
    # Entries of a row's provenance, and the manifest's paths, which they number.
    provenance: int = 0
    manifest: Sequence[str] = ()
    totals: dict[str, int] = field(default_factory=dict)

    def batches(self, plans: Sequence[Sequence[Sequence[str]]], rows_per_lane: int) -> list[dict[str, np.ndarray]]:
        """All batches of all lanes: `plans[epoch][lane]` are the shards that a lane reads in an epoch."""
        self.totals = dict.fromkeys(("documents", "tokens", "dropped", "padding"), 0)
        lanes = []
        for lane in range(len(plans[0])):
            rows = list(self._rows(lane, [plan[lane] for plan in plans]))
            lanes.append(self._arrays(rows))
        steps = max(-(-len(rows) // rows_per_lane) for rows in lanes)
        padding = self._row([], None)
        batches = []
        for step in range(steps):
            rows = []
            for lane_rows in lanes:
                own = lane_rows[step * rows_per_lane : (step + 1) * rows_per_lane]
                rows += own + [padding] * (rows_per_lane - len(own))
            batches.append({name: np.array([row[name] for row in rows], np.int32) for name in padding})
        return batches

    # Documents

    def _windows(self, lane: int, epoch: int, paths: Sequence[str]) -> Iterator[list["Document"]]:
        """The documents of an epoch, window by window."""
        most = self.shuffle_window if self.seed is not None else self.fit_window
        begins, window, size = (0, 0), [], 0
        for shard, path in enumerate(paths):
            for record, text in documents(path):
                window.append(self._encode(text, (path, record)))
                size += len(text.encode())
                if len(window) == most or size >= WINDOW_BYTES:
                    yield self._ordered(window, (lane, epoch, *begins))
                    begins, window, size = (shard, record + 1), [], 0
        yield self._ordered(window, (lane, epoch, *begins))

    def _encode(self, text: str, origin: tuple[str, int]) -> "Document":
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        self.totals["documents"] += 1
        document = Document([] if self.bos is None else [self.bos])
        document.extend(ids + ([] if self.eos is None else [self.eos]))
        document.origin = origin
        return document

    def _ordered(self, window: list["Document"], key: tuple[int, ...]) -> list["Document"]:
        if self.seed is None:
            return window
        return [window[i] for i in permutation(len(window), self.seed, WINDOW_PERMUTATION, key)]

    # Rows: lists of pieces

    def _rows(self, lane: int, epochs: Sequence[Sequence[str]]) -> Iterator[list["Piece"]]:
        windows = [window for epoch, paths in enumerate(epochs) for window in self._windows(lane, epoch, paths)]
        if self.packing == "best_fit":
            for window in windows:
                for start in range(0, len(window), self.fit_window):
                    yield from self._best_fit(window[start : start + self.fit_window])
        elif self.packing == "concat":
            yield from self._concat(ids for window in windows for ids in window)
        else:
            for ids in (ids for window in windows for ids in window):
                yield from self._pad(ids)

    def _concat(self, documents: Iterable["Document"]) -> Iterator[list["Piece"]]:
        row: list[Piece] = []
        for ids in documents:
            rest = list(range(len(ids)))
            while rest:
                free = self.sequence_length - filled(row)
                if free == 0 or len(row) == self.max_segments:
                    yield row
                    row, free = [], self.sequence_length
                row = [*row, Piece(ids, rest[:free])]
                rest = rest[free:]
        if row:
            yield row

    def _best_fit(self, window: list["Document"]) -> list[list["Piece"]]:
        length = self.sequence_length
        rows, rests = [], []
        for number, ids in enumerate(window):
            whole = len(ids) - len(ids) % length
            rows += [[(number, Piece(ids, list(range(at, at + length))))] for at in range(0, whole, length)]
            rests.append((number, Piece(ids, list(range(whole, len(ids))))))
        for number, piece in sorted(rests, key=lambda rest: -len(rest[1].places)):
            fits = [
                row
                for row in rows
                if filled(p for _, p in row) + len(piece.places) <= length and len(row) != self.max_segments
            ]
            if fits and piece.places:
                max(fits, key=lambda row: filled(p for _, p in row)).append((number, piece))
            elif piece.places:
                rows.append([(number, piece)])
        in_rows = [sorted(row, key=lambda part: part[0]) for row in rows]
        in_rows.sort(key=lambda row: row[0][0])  # stable: full rows were cut first, in order
        return [[piece for _, piece in row] for row in in_rows]

    def _pad(self, ids: "Document") -> list[list["Piece"]]:
        length, places = self.sequence_length, list(range(len(ids)))
        if self.truncation == "split":
            return [[Piece(ids, places[at : at + length])] for at in range(0, len(ids), length)]
        if not ids:
            return []
        if len(ids) <= length:
            return [[Piece(ids, places)]]
        left = {"right": length, "left": 0, "middle": length // 2}[self.truncation]
        kept = places[:left] + places[len(ids) - (length - left) :]
        self.totals["dropped"] += len(ids) - length
        return [[Piece(ids, kept, is_cut=True)]]

    # Arrays

    def _arrays(self, rows: list[list["Piece"]]) -> list[dict[str, list[int]]]:
        openings = [row[0] for row in rows[1:]] + [None]
        for row in rows:
            self.totals["tokens"] += filled(row)
            self.totals["padding"] += self.sequence_length - filled(row)
        return [self._row(row, following) for row, following in zip(rows, openings, strict=False)]

    def _row(self, row: list["Piece"], following: "Piece | None") -> dict[str, list[Any]]:
        arrays = self._layout(row, following)
        if not self.provenance:
            return arrays
        entries = []
        for piece in row:
            path, record = piece.ids.origin
            for position, place in enumerate(piece.places):
                if position and piece.follows(position):
                    entries[-1][3] += 1
                else:
                    entries.append([self.manifest.index(path), record, place, 1])
        none = [[0, 0, 0, 0]] * self.provenance
        return arrays | {"provenance": (entries + none)[: self.provenance]}

    def _layout(self, row: list["Piece"], following: "Piece | None") -> dict[str, list[int]]:
        ids, segments, positions, targets, learnt, labels = [], [], [], [], [], []
        for number, piece in enumerate(row):
            after = row[number + 1] if number + 1 < len(row) else following if self.packing == "concat" else None
            boundary = self.boundary_targets and self.packing != "pad" and after is not None
            for position, place in enumerate(piece.places):
                ids.append(piece.ids[place])
                segments.append(number + 1)
                positions.append(position)
                target = piece.target(position)
                if target is None and place + 1 == len(piece.ids) and boundary:
                    target = after.ids[after.places[0]]
                targets.append(0 if target is None else target)
                learnt.append(0 if target is None else number + 1)
                goes_on = piece.follows(position) if position else number == 0 and place > 0 and not piece.is_cut
                labels.append(piece.ids[place] if goes_on else -100)
        pad = [0] * (self.sequence_length - len(ids))
        if self.layout == "grain":
            return {
                "tokens": ids + pad,
                "tokens_segment_ids": segments + pad,
                "tokens_positions": positions + pad,
            }
        if self.layout == "hf":
            return {
                "input_ids": ids + pad,
                "attention_mask": [1] * len(ids) + pad,
                "position_ids": positions + pad,
                "labels": labels + [-100] * len(pad),
            }
        return {
            "inputs": ids + pad,
            "inputs_segmentation": segments + pad,
            "inputs_position": positions + pad,
            "targets": targets + pad,
            "targets_segmentation": learnt + pad,
            "targets_position": positions + pad,
        }


class Document(list[int]):
    """A document's ids, and the shard and line where it stands."""

    origin: tuple[str, int]


class Piece(NamedTuple):
    """What a row holds of a document: which of its tokens, and whether the others are cut away."""

    ids: Document
    places: list[int]
    is_cut: bool = False

    def follows(self, position: int) -> bool:
        """Whether a token stands in the row behind the one that it follows in its document."""
        return self.places[position - 1] + 1 == self.places[position]

    def target(self, position: int) -> int | None:
        """The token after it in its document, if it is in the row or in the next one."""
        after = self.places[position] + 1
        is_last = position + 1 == len(self.places)
        if after == len(self.ids) or (self.is_cut and (is_last or self.places[position + 1] != after)):
            return None
        return self.ids[after]


def filled(pieces: Iterable[Piece]) -> int:
    """Tokens in a row."""
    return sum(len(piece.places) for piece in pieces)


def documents(path: str) -> Iterator[tuple[int, str]]:
    """Line number and text of each sound record."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines):
            try:
                text = json.loads(line)["text"]
            except (ValueError, KeyError):
                continue
            if isinstance(text, str):
                yield number, text


def permutation(n: int, seed: int, purpose: int, key: Iterable[int]) -> list[int]:
    """Fisher and Yates's shuffle of `range(n)`, drawn from SplitMix64 with Lemire's bounded draws."""
    state = seed
    for part in (purpose, *key):
        state, drawn = split_mix(state)
        state = drawn ^ part
    order = list(range(n))
    for i in reversed(range(1, n)):
        while True:
            state, drawn = split_mix(state)
            if drawn * (i + 1) % 2**64 >= 2**64 % (i + 1):
                break
        j = drawn * (i + 1) >> 64
        order[i], order[j] = order[j], order[i]
    return order


def split_mix(state: int) -> tuple[int, int]:
    """The next state, and what is drawn with it."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    z = state
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return state, z ^ z >> 31
