"""A naive model of the stream: plain Python over the `tokenizers` wheel, to be checked by eye.

It follows the rules of the docs, not the code of the core: whole epochs in memory, every row a list, every
choice by exhaustive search.

    shards of a lane ──> documents ──> windows, permuted ──> rows of segments ──> arrays
"""

import gzip
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

# The text of a lane's windows, one after another: each may have twice as much as the one before, up to 16 MiB.
WINDOW_BYTES = [2**power for power in range(16, 25)]
WINDOW_PERMUTATION = 3


@dataclass
class Model:
    """The arguments of a `PackedDataset` that define its stream, ids for tokens."""

    tokenizer: Any
    sequence_length: int
    packing: str = "concat"
    fit_window: int = 1024
    # None: "right" in `pad`, else "split".
    truncation: str | None = None
    max_segments: int | None = None
    layout: str = "maxtext"
    boundary_targets: bool = False
    eos: int | None = None
    bos: int | None = None
    seed: int | None = None
    shuffle_window: int = 1024
    window_bytes: Sequence[int] = tuple(WINDOW_BYTES)
    # Entries of a row's provenance, and the manifest's paths, to which they refer.
    provenance: int = 0
    manifest: Sequence[str] = ()
    # Ids and mask of a record that becomes another sample than its text, or a list of these; None: it is left out.
    sample: Callable[[dict[str, Any]], Any] | None = None
    # "drop" or "error", with bad records left out; None: samples have no masks.
    on_untrained: str | None = None
    totals: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.layout == "varlen" and self.max_segments is None:
            self.max_segments = min(max(16, self.sequence_length // 16), self.sequence_length)
        if self.truncation is None:
            self.truncation = "right" if self.packing == "pad" else "split"

    def batches(self, plans: Sequence[Sequence[Sequence[str]]], rows_per_lane: int) -> list[dict[str, np.ndarray]]:
        """All batches of all lanes: `plans[epoch][lane]` are the shards that a lane reads in an epoch."""
        self.totals = dict.fromkeys(("documents", "tokens", "trained", "dropped", "padding"), 0)
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
            dtypes = {"targets_loss_mask": np.uint8}
            batches.append(
                {name: np.array([row[name] for row in rows], dtypes.get(name, np.int32)) for name in padding}
            )
        return batches

    # Documents

    def _windows(
        self, lane: int, epoch: int, paths: Sequence[str], limits: Iterator[int]
    ) -> Iterator[list["Document"]]:
        """The documents of an epoch, window by window."""
        most = self.shuffle_window if self.seed is not None else self.fit_window
        begins, window, size, limit = (0, 0), [], 0, next(limits)
        for shard, path in enumerate(paths):
            for record, value in self._records(path):
                documents = self._documents(value)
                for document in documents:
                    document.origin = (path, record)
                    self.totals["documents"] += 1
                    self.totals["dropped"] += len(document) - len(document.kept)
                    window.append(document)
                    size += document.text_bytes
                    if len(window) == most or size >= limit:
                        yield self._ordered(window, (lane, epoch, *begins))
                        begins = (shard, record + (document is documents[-1]))
                        window, size, limit = [], 0, next(limits)
        yield self._ordered(window, (lane, epoch, *begins))

    def _records(self, path: str) -> Iterator[tuple[int, Any]]:
        return records(path)

    def _documents(self, record: Any) -> list["Document"]:
        """The samples of a record that are not left out; none if it is bad."""
        documents = []
        for document in self._encode(record):
            if self._takes(document):
                documents.append(document)
            elif self.on_untrained == "error" and not self._is_dropped(document):
                return []
        return documents

    def _encode(self, record: Any) -> list["Document"]:
        """The samples of a record; none if it is bad."""
        if self.sample:
            found = self.sample(record) or []
            documents = []
            for ids, trained in found if isinstance(found, list) else [found] if found else []:
                documents.append(Document(map(int, ids)))
                documents[-1].trained = list(map(bool, trained))
            return documents
        text = record.get("text") if isinstance(record, dict) else None
        if not isinstance(text, str):
            return []
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        document = Document([] if self.bos is None else [self.bos])
        document.extend(ids + ([] if self.eos is None else [self.eos]))
        document.trained = [True] * len(document)
        document.text_bytes = len(text.encode())
        return [document]

    def _is_dropped(self, document: "Document") -> bool:
        """Whether a document is left out as overlong."""
        return len(document) > self.sequence_length and self.truncation == "drop"

    def _takes(self, document: "Document") -> bool:
        """Cuts a document, and says whether it is left out as overlong, untrained or bad."""
        length, offsets = self.sequence_length, list(range(len(document)))
        if len(document) > length and self.truncation != "split":
            if self._is_dropped(document):
                return False
            left = {"right": length, "left": 0, "middle": length // 2}[self.truncation]
            document.cut = offsets[:left] + offsets[len(document) - (length - left) :]
        if self.on_untrained is None:
            return True
        # The rows that `concat` makes are not known yet.
        size = len(document) if self.packing == "concat" and length > 1 else length
        parts = [document.kept[at : at + size] for at in range(0, len(document.kept), max(size, 1))]
        trained = [any(self._learnt(document, part)) for part in parts]
        return any(trained) and (self.on_untrained == "drop" or all(trained))

    def _learnt(self, document: "Document", offsets: Sequence[int]) -> Iterator[bool]:
        """For each label of a row of some tokens of a document, whether it is trained on."""
        is_shifted = self.layout in ("maxtext", "varlen")
        if self._has_boundaries:
            yield document.trained[offsets[0]]
        for before in offsets if is_shifted else offsets[:-1]:
            if before + 1 in document.kept:
                yield document.trained[before + 1]

    @property
    def _has_boundaries(self) -> bool:
        return self.boundary_targets and self.layout == "maxtext" and self.packing != "pad"

    def _ordered(self, window: list["Document"], key: tuple[int, ...]) -> list["Document"]:
        if self.seed is None:
            return window
        return [window[i] for i in permutation(len(window), self.seed, WINDOW_PERMUTATION, key)]

    # Rows: lists of segments

    def _rows(self, lane: int, epochs: Sequence[Sequence[str]]) -> Iterator[list["Segment"]]:
        limits = itertools.chain(self.window_bytes, itertools.repeat(self.window_bytes[-1]))
        windows = [window for epoch, paths in enumerate(epochs) for window in self._windows(lane, epoch, paths, limits)]
        if self.packing == "best_fit":
            for window in windows:
                placed = [document for document in window if document.kept]
                for start in range(0, len(placed), self.fit_window):
                    yield from self._best_fit(placed[start : start + self.fit_window])
        elif self.packing == "concat":
            yield from self._concat(ids for window in windows for ids in window)
        else:
            for ids in (ids for window in windows for ids in window):
                yield from self._pad(ids)

    def _concat(self, documents: Iterable["Document"]) -> Iterator[list["Segment"]]:
        row: list[Segment] = []
        for ids in documents:
            rest = list(ids.kept)
            while rest:
                free = self.sequence_length - filled(row)
                if free == 0 or len(row) == self.max_segments:
                    yield row
                    row, free = [], self.sequence_length
                row = [*row, Segment(ids, rest[:free])]
                rest = rest[free:]
        if row:
            yield row

    def _best_fit(self, window: list["Document"]) -> list[list["Segment"]]:
        length = self.sequence_length
        rows, rests = [], []
        for number, ids in enumerate(window):
            whole = len(ids.kept) - len(ids.kept) % length
            rows += [[(number, Segment(ids, ids.kept[at : at + length]))] for at in range(0, whole, length)]
            rests.append((number, Segment(ids, ids.kept[whole:])))
        for number, segment in sorted(rests, key=lambda rest: -len(rest[1].offsets)):
            fits = [
                row
                for row in rows
                if filled(p for _, p in row) + len(segment.offsets) <= length and len(row) != self.max_segments
            ]
            if fits and segment.offsets:
                max(fits, key=lambda row: filled(p for _, p in row)).append((number, segment))
            elif segment.offsets:
                rows.append([(number, segment)])
        in_rows = [sorted(row, key=lambda part: part[0]) for row in rows]
        in_rows.sort(key=lambda row: row[0][0])  # stable: full rows were cut first, in order
        return [[segment for _, segment in row] for row in in_rows]

    def _pad(self, ids: "Document") -> list[list["Segment"]]:
        length = self.sequence_length
        return [[Segment(ids, ids.kept[at : at + length])] for at in range(0, len(ids.kept), length)]

    # Arrays

    def _arrays(self, rows: list[list["Segment"]]) -> list[dict[str, list[int]]]:
        openings = [row[0] for row in rows[1:]] + [None]
        found = []
        for row, following in zip(rows, openings, strict=False):
            arrays = self._row(row, following)
            if self.on_untrained and not self._trains(row, arrays):
                self.totals["dropped"] += filled(row)
                continue
            self.totals["tokens"] += filled(row)
            self.totals["trained"] += sum(segment.ids.trained[at] for segment in row for at in segment.offsets)
            self.totals["padding"] += self.sequence_length - filled(row)
            found.append(arrays)
        return found

    def _trains(self, row: list["Segment"], arrays: dict[str, list[Any]]) -> bool:
        """Whether a trainer finds a label in the arrays of a row."""
        if self.layout == "grain":
            pairs = ((s, p) for s in row for p in range(1, len(s.offsets)) if s.follows(p))
            return any(segment.ids.trained[segment.offsets[position]] for segment, position in pairs)
        if self.layout == "hf":  # the model compares each with the prediction at the token before it
            return any(label != -100 for label in arrays["labels"][1:])
        return any(arrays["targets_segmentation" if self.layout == "maxtext" else "targets_loss_mask"])

    def _row(self, row: list["Segment"], following: "Segment | None") -> dict[str, list[Any]]:
        arrays = self._layout(row, following)
        if not self.provenance:
            return arrays
        entries = []
        for segment in row:
            path, record = segment.ids.origin
            for position, offset in enumerate(segment.offsets):
                if position and segment.follows(position):
                    entries[-1][3] += 1
                else:
                    entries.append([self.manifest.index(path), record, offset, 1])
        none = [[0, 0, 0, 0]] * self.provenance
        return arrays | {"provenance": (entries + none)[: self.provenance]}

    def _layout(self, row: list["Segment"], following: "Segment | None") -> dict[str, Any]:
        ids, segments, positions, targets, learnt, labels, trained = [], [], [], [], [], [], []
        for number, segment in enumerate(row):
            after = row[number + 1] if number + 1 < len(row) else following if self.packing == "concat" else None
            boundary = self._has_boundaries and after is not None
            for position, offset in enumerate(segment.offsets):
                ids.append(segment.ids[offset])
                segments.append(number + 1)
                positions.append(position)
                trained.append(int(segment.ids.trained[offset]))
                target = segment.target(position)
                if target is None and offset == segment.ids.kept[-1] and boundary:
                    target = (after.ids, after.offsets[0])
                targets.append(0 if target is None else target[0][target[1]])
                learnt.append(0 if target is None or not target[0].trained[target[1]] else number + 1)
                continues = segment.follows(position) if position else number == 0 and offset - 1 in segment.ids.kept
                labels.append(segment.ids[offset] if continues and segment.ids.trained[offset] else -100)
        pad = [0] * (self.sequence_length - len(ids))
        if self.layout == "grain":
            return {
                "tokens": ids + pad,
                "tokens_segment_ids": segments + pad,
                "tokens_positions": positions + pad,
            } | ({"tokens_loss_mask": trained + pad} if self.sample else {})
        if self.layout == "varlen":
            lengths = [len(segment.offsets) for segment in row]
            next_token = row[-1].target(len(row[-1].offsets) - 1) if row else None
            most = 1 if self.packing == "pad" else self.max_segments
            return {
                "tokens": ids + pad,
                "seq_lens": lengths + [0] * (most - len(lengths)),
                "next_token": -1 if next_token is None else next_token[0][next_token[1]],
            } | ({"targets_loss_mask": [int(number > 0) for number in learnt] + pad} if self.sample else {})
        if self.layout == "hf":
            holds_one = self.packing == "pad" or self.max_segments == 1
            return {
                "input_ids": ids + pad,
                **({"attention_mask": [1] * len(ids) + pad} if holds_one else {}),
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
    """A document's ids, which of them are trained on, and its shard and line."""

    trained: list[bool]
    origin: tuple[str, int]
    text_bytes: int = 0
    # The offsets of the tokens that truncation has kept.
    cut: list[int] | None = None

    @property
    def kept(self) -> list[int]:
        """The offsets of the tokens that are packed."""
        return list(range(len(self))) if self.cut is None else self.cut


class Segment(NamedTuple):
    """The tokens of a document that a row holds."""

    ids: Document
    offsets: list[int]

    def follows(self, position: int) -> bool:
        """Whether the token before this one in the segment is also the one before it in the document."""
        return self.offsets[position - 1] + 1 == self.offsets[position]

    def target(self, position: int) -> tuple[Document, int] | None:
        """The token after it in its document, and where it is there, if that is packed."""
        after = self.offsets[position] + 1
        return (self.ids, after) if after in self.ids.kept else None


def filled(segments: Iterable[Segment]) -> int:
    """Tokens in a row."""
    return sum(len(segment.offsets) for segment in segments)


def records(path: str) -> Iterator[tuple[int, Any]]:
    """Line number and value of each line that is JSON."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines):
            try:
                yield number, json.loads(line)
            except ValueError:
                continue


def permutation(n: int, seed: int, purpose: int, key: Iterable[int]) -> list[int]:
    """Fisher-Yates shuffle of `range(n)` from SplitMix64 with Lemire's bounded draws."""
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
    """The next state, and the number drawn from it."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    z = state
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return state, z ^ z >> 31
