"""`image_size` and `decode_image`: JPEG, PNG, WebP, GIF and BMP bytes, as Pillow decodes them."""

from typing import Any

import numpy as np
import numpy.typing as npt

import gristmill._core as _core
from gristmill._util import checks

# The words for a processor without AVX2, for people.
SLOW_JPEG = "without vector code, at half the speed: this processor has no AVX2"


def image_size(data: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Width and height of an image, from its headers: no pixels are decoded.

    Args:
      data: the bytes of a JPEG, PNG, WebP, GIF or BMP file. The format is recognised by content.

    Raises:
      ImageError: the bytes are of no such format, or the headers are damaged or incomplete.
    """
    return _core.image_size(as_bytes(data))


def decode_image(data: bytes | bytearray | memoryview, *, max_pixels: int = _core.MAX_PIXELS) -> npt.NDArray[np.uint8]:
    """The pixels of an image: exactly those of Pillow's `Image.open(...).convert("RGB")`.

    As in Pillow, orientation tags are not applied, colour profiles are not used, alpha is left out, and a damaged or
    incomplete image is an error. An animation becomes its first frame on its canvas. The GIL is released meanwhile.

    Args:
      data: the bytes of a JPEG, PNG, WebP, GIF or BMP file. The format is recognised by content.
      max_pixels: width times height above which the image is refused before any memory is taken for its pixels; the
        default is the limit of Pillow.

    Returns:
      Array `uint8 [height, width, 3]` of red, green and blue.

    Raises:
      ImageError: the bytes are of no such format, are damaged or incomplete, or hold more than `max_pixels` pixels.
    """
    return _core.decode_image(as_bytes(data), checks.integer("max_pixels", max_pixels, 1, 2**63 - 1))


def as_bytes(data: Any) -> bytes | bytearray:
    """Bytes as the core takes them."""
    if isinstance(data, (bytes, bytearray)):
        return data
    if isinstance(data, memoryview):
        return bytes(data)
    raise checks.wrong_type("data", data, "the bytes of an image")
