"""The rows that a page shows: their tokens, segments and images, out of the arrays of a batch."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import gristmill._core as _core
from gristmill._spec.fields import OF_SAMPLES, VALUES
from gristmill._tokenizer.encoder import Encoder
from gristmill._tokenizer.spelling import spelling
from gristmill._view import pictures

Arrays = Mapping[str, npt.NDArray[Any]]
# The label of tokens that are not trained on.
_IGNORED = -100


@dataclass(frozen=True)
class Segment:
    """Neighbouring tokens of a row that are of one document.

    Attributes:
      start: the index in the row of its first token.
      length: how many tokens it has.
      place: where the text comes from: `shard`, `record` and `offset`, the number of the record's token that it begins
        with; empty if the row does not say.
    """

    start: int
    length: int
    place: Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A row.

    Attributes:
      name: its step and number, for people.
      tokens: the ids of its elements, padding included.
      trained: for each token, whether a model is trained to predict it; None if the arrays do not say.
      positions: for each token, its position; None if there are none.
      segments: in order.
      source: of a mixture, the name of the row's source.
      images: for each image, its index in the row and its thumbnail.
      origins: for each token, the message and the part of it that it comes from; empty if that is not known.
      values: by the names of their arrays, the values that each token has of fields.
      of_samples: the same for each segment.
    """

    name: str
    tokens: list[int]
    trained: list[bool] | None
    positions: list[int] | None
    segments: list[Segment]
    source: str | None = None
    images: list[tuple[int, pictures.Picture]] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    values: dict[str, list[Any]] = field(default_factory=dict)
    of_samples: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """How many tokens it has, without padding."""
        return sum(segment.length for segment in self.segments)


def row_of(
    name: str,
    arrays: Arrays,
    fields: Sequence[_core.Field],
    *,
    shards: Sequence[str] = (),
    sources: Sequence[str] = (),
    image_model: "_core.ImageModel | None" = None,
    draws: bool = False,
) -> Row:
    """The row in some arrays.

    Args:
      name: its name.
      arrays: each without an axis of rows.
      fields: what the arrays hold. Others are values of fields: of packed files only their names are known.
      shards: by the numbers of `provenance`, the names of the shards.
      sources: by the numbers of `source`, the names of the sources.
      image_model: of images as patches, their model.
      draws: whether to make thumbnails of its images.
    """
    by_content: dict[str, npt.NDArray[Any]] = {}
    for own in fields:
        if own.name in arrays:
            by_content.setdefault(own.content, arrays[own.name])
    tokens = by_content["token"]
    if "segment_length" in by_content:
        lengths = by_content["segment_length"]
        by_content |= _by_lengths(lengths, by_content.get("segment_room", lengths), len(tokens))
    positions = by_content.get("position")
    if positions is None and "rotary_position" in by_content:
        positions = by_content["rotary_position"][0]
    provenance = by_content.get("provenance")
    number = int(by_content["source"]) if "source" in by_content else -1
    contents = {own.name: own.content for own in fields}
    names = [name for name in arrays if contents.get(name, OF_SAMPLES) in VALUES]
    of_samples = [
        name
        for name in names
        if contents.get(name) == OF_SAMPLES or (name not in contents and arrays[name].shape[:1] != tokens.shape)
    ]
    return Row(
        name,
        tokens.tolist(),
        _trained(by_content),
        None if positions is None else positions.tolist(),
        _segments(by_content) if provenance is None else _located(by_content, provenance, shards),
        sources[number] if 0 <= number < len(sources) else None,
        pictures.of_row(by_content, image_model) if draws else [],
        values={name: _shown(arrays[name].tolist()) for name in names if name not in of_samples},
        of_samples={name: _shown(arrays[name].tolist()) for name in of_samples},
    )


def _shown(value: Any) -> Any:
    """Values in lists as JSON has them, which lacks infinities."""
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def spellings(encoder: Encoder | None, rows: Iterable[Row]) -> dict[int, str]:
    """The text of each token of some rows; of a part of a character, its spelling in the vocabulary."""
    ids = {token for row in rows for token in row.tokens if token >= 0}
    return {} if encoder is None else {token: spelling(encoder, token) for token in sorted(ids)}


def _trained(by_content: Arrays) -> list[bool] | None:
    """For each token, whether it is predicted: by its own mark, or by the target of the token before it."""
    if "trained" in by_content:
        trained = by_content["trained"] != 0
    elif "label" in by_content:
        trained = by_content["label"] != _IGNORED
    elif targets := by_content.keys() & {"target_segment", "target_mask"}:
        trained = np.concatenate([[False], by_content[targets.pop()][:-1] != 0])
    else:
        return None
    found: list[bool] = trained.tolist()
    return found


def _by_lengths(lengths: npt.NDArray[Any], rooms: npt.NDArray[Any], length: int) -> dict[str, npt.NDArray[Any]]:
    """The segments and positions of a row's tokens."""
    numbers = np.repeat(np.arange(1, len(lengths) + 1), rooms)
    positions = np.arange(len(numbers)) - np.repeat(rooms.cumsum() - rooms, rooms)
    is_token = positions < np.repeat(lengths, rooms)
    numbers, positions = numbers * is_token, positions * is_token
    padding = (0, length - len(numbers))
    return {"segment": np.pad(numbers, padding), "position": np.pad(positions, padding)}


def _is_token(by_content: Arrays) -> npt.NDArray[np.bool_]:
    marks = by_content.get("segment", by_content.get("mask"))
    return np.ones(len(by_content["token"]), np.bool_) if marks is None else marks != 0


def _segments(by_content: Arrays) -> list[Segment]:
    """The segments by their numbers; without these, by positions that begin again."""
    is_token = _is_token(by_content)
    numbers = by_content.get("segment")
    if numbers is None:
        positions = by_content.get("position")
        begins = np.zeros(len(is_token), np.int64) if positions is None else positions == 0
        numbers = np.where(is_token, 1 + np.cumsum(begins), 0)
    borders = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    pairs = itertools.pairwise(borders)
    return [Segment(start, end - start, {}) for start, end in pairs if is_token[start]]


def _located(by_content: Arrays, provenance: npt.NDArray[Any], shards: Sequence[str]) -> list[Segment]:
    """The segments that the row's provenance lists."""
    places, passed, found = np.flatnonzero(_is_token(by_content)), 0, []
    for shard, record, offset, length, *sample in provenance.tolist():
        if not length:
            break
        place = {"shard": shards[shard], "record": record, "offset": offset}
        found.append(Segment(int(places[passed]), length, place | ({"sample": sample[0]} if sample else {})))
        passed += length
    return found
