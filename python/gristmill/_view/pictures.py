"""The images of a row as PNG, small enough for a page."""

import base64
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import gristmill._core as _core

# The longer side of an image on a page, in pixels.
_SIDE = 256
# An image of this size tells how large a model's patches are.
_PROBE = 448


@dataclass(frozen=True)
class Picture:
    """An image.

    Attributes:
      height, width: of the pixels in the batch.
      url: `data:` with a PNG, reduced.
    """

    height: int
    width: int
    url: str


def of_row(by_content: Mapping[str, npt.NDArray[Any]], model: _core.ImageModel | None) -> list[tuple[int, Picture]]:
    """The images of a row, each with the index of its first token.

    Args:
      by_content: the arrays of the row by their content.
      model: of images as patches, their model.
    """
    if "pixels" not in by_content or "image_mask" not in by_content:
        return []
    pixels, found, patch = by_content["pixels"], [], 0
    masks = by_content["image_mask"]
    tiles = masks.reshape(len(masks), -1).sum(axis=1)  # 1 of an image without
    for image in np.flatnonzero(tiles).tolist():
        if "image_grid" in by_content:
            if model is None:
                return []
            frames, rows, columns = by_content["image_grid"][image].tolist()
            patches = pixels[patch : patch + frames * rows * columns]
            patch += len(patches)
            shown = _joined(patches[: rows * columns], rows, columns, model)
        elif masks.ndim == 2:
            is_first = model is not None and model.whole_first
            shown = pixels[image, 0 if is_first else tiles[image] - 1]  # the whole image
        else:
            shown = pixels[image]
        if shown.ndim != 3 or shown.shape[2] != 3:  # images of a function of the user may have any shape
            return []
        found.append((int(by_content["image_index"][image]), _picture(shown)))
    return found


def _joined(patches: npt.NDArray[Any], rows: int, columns: int, model: _core.ImageModel) -> npt.NDArray[Any]:
    """The image of patches, in the order of Qwen-VL's processor, those of a token together; or row by row."""
    (height, _), grid, tokens, _ = model.plan(_PROBE, _PROBE)
    if model.by_pixels:
        side = height // grid[1]
        blocks = patches.reshape(rows, columns, side, side, 3)
        return blocks.transpose(0, 2, 1, 3, 4).reshape(rows * side, columns * side, 3)
    side, merge = height // grid[1], math.isqrt(grid[1] * grid[2] // tokens)
    frames = patches.shape[1] // (3 * side * side)
    blocks = patches.reshape(rows // merge, columns // merge, merge, merge, 3, frames, side, side)[..., 0, :, :]
    return blocks.transpose(0, 2, 5, 1, 3, 6, 4).reshape(rows * side, columns * side, 3)


def _picture(pixels: npt.NDArray[Any]) -> Picture:
    height, width = pixels.shape[:2]
    if pixels.dtype != np.uint8:  # normalized: its darkest value is shown as black, its brightest as white
        low, high = float(pixels.min()), float(pixels.max())
        pixels = ((pixels - low) * (255 / max(high - low, 1e-6))).astype(np.uint8)
    step = -(-max(height, width) // _SIDE)
    url = "data:image/png;base64," + base64.b64encode(_png(pixels[::step, ::step])).decode()
    return Picture(height, width, url)


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A PNG file of uint8 `[height, width, 3]`."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width, _ = pixels.shape
    lines = np.zeros((height, 1 + width * 3), np.uint8)  # each begins with 0: no filter
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines.tobytes()))
        + chunk(b"IEND", b"")
    )
