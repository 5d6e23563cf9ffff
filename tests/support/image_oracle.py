"""The naive model of `oracle` for samples with images: two budgets, and the arrays of images beside those of tokens."""

import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from oracle import Document, Model, Segment, filled


class Picture(NamedTuple):
    """An image of a sample: the index of its first token, its tokens, its patches, and its pixels."""

    at: int
    tokens: int
    grid: tuple[int, int, int]
    pixels: np.ndarray


@dataclass
class ImageModel(Model):
    """The rows of samples with images; `sample` returns ids, mask and images of a dict of members."""

    max_images: int = 8
    # The shape of all images; or the most patches of a row, and the values of one.
    fixed: tuple[int, ...] | None = None
    patches: tuple[int, int] | None = None
    # Or the most tiles of an image, and the shape of one.
    tiles: tuple[int, ...] | None = None
    mrope: bool = False
    dtype: Any = np.uint8

    def batches(self, plans: Sequence[Sequence[Sequence[str]]], rows_per_lane: int) -> list[dict[str, np.ndarray]]:
        """As of `Model`, with pixels of their own type."""
        found = super().batches(plans, rows_per_lane)
        for batch in found:
            for name in {"images", "image_patches"} & batch.keys():
                batch[name] = batch[name].astype(self.dtype)
        return found

    def _records(self, path: str) -> Iterator[tuple[int, dict[str, bytes]]]:
        groups: list[tuple[str, dict[str, bytes]]] = []
        with tarfile.open(path) as archive:
            for member in archive:
                key, _, part = member.name.partition(".")
                if not groups or groups[-1][0] != key:
                    groups.append((key, {}))
                groups[-1][1][part] = archive.extractfile(member).read()
        yield from enumerate(parts for _, parts in groups)

    def _encode(self, record: Any) -> list[Document]:
        found = self.sample(record)
        if found is None:
            return []
        ids, mask, images = found
        most = self.patches[0] if self.patches else np.inf
        if len(ids) > self.sequence_length or len(images) > self.max_images or sum(map(patches_of, images)) > most:
            return []
        document = Document(map(int, ids))
        document.trained = list(map(bool, mask))
        document.images = images
        return [document]

    def _best_fit(self, window: list[Document]) -> list[list[Segment]]:
        most = self.patches[0] if self.patches else np.inf
        rows: list[list[tuple[int, Segment]]] = []
        for number in sorted(range(len(window)), key=lambda number: -len(window[number])):
            new = [*window[number].images]

            def fits(row: list[tuple[int, Segment]], number: int = number, new: list[Picture] = new) -> bool:
                images = new + [image for _, segment in row for image in segment.ids.images]
                return (
                    filled(segment for _, segment in row) + len(window[number]) <= self.sequence_length
                    and len(images) <= self.max_images
                    and sum(map(patches_of, images)) <= most
                    and len(row) != self.max_segments
                )

            found = [row for row in rows if fits(row)]
            segment = Segment(window[number], list(range(len(window[number]))))
            if found:
                max(found, key=lambda row: filled(segment for _, segment in row)).append((number, segment))
            else:
                rows.append([(number, segment)])
        in_order = sorted((sorted(row, key=lambda part: part[0]) for row in rows), key=lambda row: row[0][0])
        return [[segment for _, segment in row] for row in in_order]

    def _layout(self, row: list[Segment], following: Segment | None) -> dict[str, Any]:
        arrays: dict[str, Any] = super()._layout(row, following)
        pictures, starts = [], np.cumsum([0, *(len(segment.ids) for segment in row)])
        for number, (segment, start) in enumerate(zip(row, starts, strict=False), 1):
            pictures += [(number, start, picture) for picture in segment.ids.images]
        rest = [0] * (self.max_images - len(pictures))
        if self.mrope:
            name = next(name for name in arrays if name.endswith(("_position", "position_ids", "_positions")))
            axes = np.zeros((3, self.sequence_length), int)
            for segment, start in zip(row, starts, strict=False):
                axes[:, start : start + len(segment.ids)] = mrope(len(segment.ids), segment.ids.images)
            arrays[name] = axes
        masks: list[Any] = [1] * len(pictures) + rest
        if self.tiles:
            pixels = np.zeros((self.max_images, *self.tiles), self.dtype)
            masks = np.zeros((self.max_images, self.tiles[0]), int)
            for number, (_, _, picture) in enumerate(pictures):
                pixels[number, : len(picture.pixels)] = picture.pixels
                masks[number, : len(picture.pixels)] = 1
            arrays["images"] = pixels
        elif self.fixed:
            pixels = np.zeros((self.max_images, *self.fixed), self.dtype)
            for number, (_, _, picture) in enumerate(pictures):
                pixels[number] = picture.pixels
            arrays["images"] = pixels
        else:
            pixels, at = np.zeros(self.patches, self.dtype), 0
            for _, _, picture in pictures:
                pixels[at : at + len(picture.pixels)] = picture.pixels
                at += len(picture.pixels)
            arrays["image_patches"] = pixels
        arrays["image_masks"] = masks
        if self.patches:
            arrays["image_grid_thw"] = [[*picture.grid] for _, _, picture in pictures] + [[0, 0, 0] for _ in rest]
        arrays["image_segmentation"] = [number for number, _, _ in pictures] + rest
        arrays["image_position"] = [start + picture.at for _, start, picture in pictures] + rest
        return arrays


def patches_of(image: Picture) -> int:
    """The patches of an image; 0 if it has none."""
    return int(np.prod(image.grid))


def tiles_text(tiles, tokens):
    """The text that Llama 4's processor writes between the start and the end of an image."""
    (down, across), tile = tiles, "<|patch|>" * tokens
    rows = "<|tile_x_separator|>".join([tile] * across) + "<|tile_y_separator|>"
    return (rows * down if down * across > 1 else "") + "<|image|>" + tile


def mrope(length: int, images: Sequence[Picture]) -> np.ndarray:
    """Positions of a sample on three axes, as Qwen2-VL has them."""
    out, place, at = np.zeros((3, length), int), 0, 0
    waiting = list(images)
    while at < length:
        if not waiting or waiting[0].at != at:
            out[:, at] = place
            at, place = at + 1, place + 1
            continue
        image = waiting.pop(0)
        t, h, w = image.grid[0], image.grid[1] // 2, image.grid[2] // 2
        out[:, at : at + t * h * w] = place + np.indices((t, h, w)).reshape(3, -1)
        at, place = at + t * h * w, place + max(t, h, w)
    return out
