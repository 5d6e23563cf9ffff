"""`ImageModel`: what a model makes of an image: its size, its tokens and its pixels."""

import dataclasses
import numbers
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import gristmill._core as _core
from gristmill._images import pretrained
from gristmill._images.decoding import as_bytes
from gristmill._util import checks
from gristmill.errors import ArgumentError

_SIDE = 1 << 24
_PIXELS = 1 << 28


class ImagePlan(NamedTuple):
    """The result of a model for an image of a certain size.

    Attributes:
      size: height and width of the resized image; of tiles, those of the canvas that they cover.
      grid_thw: patches in time, down and across; zeros for a model without patches.
      tokens: tokens of the sequence whose embeddings are the image's, without separators.
      tiles: tiles down and across, without that of the whole image; 1 and 1 for a model without tiles.
    """

    size: tuple[int, int]
    grid_thw: tuple[int, int, int]
    tokens: int
    tiles: tuple[int, int]


@dataclass(frozen=True)
class ImageModel:
    """How a model wants its images: a name, or settings of one's own, or both.

    The pixels are those of Pillow's resize and of transformers' PIL processors, bit for bit; of `"llama4"`, which has
    none, the number and the choice of the tiles are equal. Names of settings are those of transformers' processors.

    Args:
      name: `"qwen2-vl"`, `"qwen2.5-vl"` or `"qwen3-vl"`: patches at the image's own aspect ratio. With `-bridge` behind
        it, images are resized twice, as Megatron-Bridge does. `"glm4v"`: likewise, of GLM-4.1V to 4.6V. `"pixtral"`,
        `"mistral3"`: patches with a token after each row of an image's tokens. `"gemma4"`, `"siglip2-naflex"`: patches
        whose values are those of their pixels, row by row. `"gemma3"`: 896 x 896, 256 tokens, without pan and scan.
        `"siglip"`: 224 x 224. `"clip"`: the shorter side becomes 224, and the middle is cut out. `"llava"`: padded to a
        square before that, 336 x 336. `"llama4"`, `"internvl"`, `"llava-next"`, `"llava-onevision"`, `"idefics3"`,
        `"smolvlm"`: tiles. None: as the settings say; patches if `patch_size` is set, else a fixed `size`.
      size: of models of a fixed size, height and width of the result, or one number for both; of tiles, their side.
      shortest_edge: of models of a fixed size: the shorter side is resized to it with the aspect ratio kept, and `size`
        is cut out of the middle. None: resized to `size`, whatever the aspect ratio.
      resample: `"nearest"`, `"box"`, `"bilinear"`, `"hamming"`, `"bicubic"` (the default without a name) or
        `"lanczos"`, as in Pillow.
      image_mean: for each channel, what is subtracted from values between 0 and 1; `(0.5, 0.5, 0.5)` without a name.
      image_std: for each channel, what the difference is divided by; `(0.5, 0.5, 0.5)` without a name.
      patch_size: of models of patches: height and width of a patch.
      merge_size: of models of patches: a square of `merge_size ** 2` patches is one token.
      temporal_patch_size: of models of patches: how often a still image is repeated in a patch.
      min_pixels: of models of patches: the least pixels of a resized image.
      max_pixels: of models of patches: the most pixels of a resized image.
      longest_edge: of Pixtral and Mistral 3, the longest side of a resized image; of Idefics 3 and SmolVLM, what the
        longer side becomes before an image is cut into tiles.
      max_tokens: of Gemma 4 the most tokens of an image, of SigLIP 2 the most patches.
      max_tiles: of models of tiles: the most tiles, without that of the whole image; of LLaVA-OneVision as many as an
        image may have before its tokens are pooled.
      image_grid_pinpoints: of LLaVA-NeXT and LLaVA-OneVision, height and width of each canvas of tiles.
      tokens: of models of a fixed size, the tokens of an image; of tiles, the tokens of each. Without a name, 0.
      pad: of models of a fixed size: whether images are padded to a square with the colour of the mean before all else.
      alpha: `"drop"` (the default): transparent pixels keep their colour, as with Pillow's `convert("RGB")`.
        `"white"`: the image is put on white, as transformers 5.24 and qwen_vl_utils do.
      apply_exif: whether images are turned as the Exif tag of a JPEG, or of a PNG before its pixels, says, as by
        Pillow's `ImageOps.exif_transpose`. None: they are not.
      pillow: 12 or 13: whose resize it is. Pillow 13.0 changed the order of its two passes for images whose height
        shrinks by more than twice what their width does.

    Raises:
      ArgumentError: a value is not allowed, or belongs to models of another kind.
      ArgumentTypeError: a value is of the wrong type.
      ImageError: this build leaves images out.
    """

    name: str | None = None
    _: dataclasses.KW_ONLY
    size: int | tuple[int, int] | None = None
    shortest_edge: int | None = None
    resample: str | None = None
    image_mean: tuple[float, float, float] | None = None
    image_std: tuple[float, float, float] | None = None
    patch_size: int | None = None
    merge_size: int | None = None
    temporal_patch_size: int | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    longest_edge: int | None = None
    max_tokens: int | None = None
    max_tiles: int | None = None
    image_grid_pinpoints: tuple[tuple[int, int], ...] | None = None
    tokens: int | None = None
    pad: bool | None = None
    apply_exif: bool | None = None
    alpha: str | None = None
    pillow: int = 13

    def __post_init__(self) -> None:
        if not _core.IMAGE_MODELS:  # this build leaves images out, and the core says so
            _core.ImageModel(None, {}, 13)
        changes = self._changes()
        for name, value in changes.items():
            object.__setattr__(self, name, value)
        if self.name is not None:
            checks.choice("name", self.name, _core.IMAGE_MODELS)
        object.__setattr__(self, "pillow", checks.integer("pillow", self.pillow, 12, 13))
        if self.name is None and self.size is None and self.patch_size is None:
            raise ArgumentError("size=None: expected a size or a patch_size, as the model has no name")
        core_of_model(self)

    def _changes(self) -> dict[str, Any]:
        return {
            "size": _size(self.size),
            "shortest_edge": checks.optional_integer("shortest_edge", self.shortest_edge, 1, 1 << 14),
            "resample": None if self.resample is None else checks.choice("resample", self.resample, _core.RESAMPLES),
            "image_mean": channels("image_mean", self.image_mean),
            "image_std": channels("image_std", self.image_std),
            "patch_size": checks.optional_integer("patch_size", self.patch_size, 1, 1 << 10),
            "merge_size": checks.optional_integer("merge_size", self.merge_size, 1, 16),
            "temporal_patch_size": checks.optional_integer("temporal_patch_size", self.temporal_patch_size, 1, 16),
            "min_pixels": checks.optional_integer("min_pixels", self.min_pixels, 1, _PIXELS),
            "max_pixels": checks.optional_integer("max_pixels", self.max_pixels, 1, _PIXELS),
            "longest_edge": checks.optional_integer("longest_edge", self.longest_edge, 1, 1 << 14),
            "max_tokens": checks.optional_integer("max_tokens", self.max_tokens, 1, 1 << 20),
            "max_tiles": checks.optional_integer("max_tiles", self.max_tiles, 1, 64),
            "image_grid_pinpoints": _pinpoints(self.image_grid_pinpoints),
            "pad": None if self.pad is None else checks.boolean("pad", self.pad),
            "apply_exif": None if self.apply_exif is None else checks.boolean("apply_exif", self.apply_exif),
            "tokens": checks.optional_integer("tokens", self.tokens, 0, 1 << 20),
            "alpha": None if self.alpha is None else checks.choice("alpha", self.alpha, ("drop", "white")),
        }

    @classmethod
    def from_pretrained(cls, folder: "str | os.PathLike[str]", **changes: Any) -> "ImageModel":
        """The model of a checkpoint, by its own `preprocessor_config.json` or `processor_config.json`.

        Every setting of the files is used, or refused: the images become those of the checkpoint, with, for example,
        the most pixels of Qwen's, which differ from those of the class.

        Args:
          folder: the folder of the checkpoint, or the path of the file.
          **changes: settings that replace those of the files.

        Raises:
          ArgumentError: there is no such file, its processor is not known, or a setting of it is not followed.
        """
        name, settings = pretrained.read(folder)
        return cls(name, **{**settings, **changes})

    def plan(self, height: int, width: int) -> ImagePlan:
        """The plan for an image of this size: no pixels are needed.

        Args:
          height: rows of the image.
          width: columns of the image.

        Raises:
          ImageError: the model does not take images of this size. Qwen's refuse aspect ratios above 200.
        """
        height, width = checks.integer("height", height, 1, _SIDE), checks.integer("width", width, 1, _SIDE)
        size, grid, tokens, tiles = core_of_model(self).plan(height, width)
        return ImagePlan(size, (grid[0], grid[1], grid[2]), tokens, (tiles[0], tiles[1]))

    def pixels(
        self, data: bytes | bytearray | memoryview, *, dtype: Any = np.uint8, max_pixels: int = _core.MAX_PIXELS
    ) -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
        """The pixels of an image as the model wants them. The GIL is released meanwhile.

        Args:
          data: the bytes of a JPEG, PNG, WebP, GIF or BMP file.
          dtype: `uint8`: resized. `float32`: also normalized, to the values of transformers' PIL processor.
          max_pixels: width times height above which the image is refused, as in `decode_image`.

        Returns:
          Array `[height, width, 3]` for models of a fixed size. For models of patches, `[patches, 3 *
          temporal_patch_size * patch_size ** 2]`: the patches of a token after one another, and the channels of a patch
          after one another; of Gemma 4 and SigLIP 2, patches row by row, and so their pixels. For models of tiles,
          `[tiles, height, width, 3]`: row by row, and last the whole image if there are several; of LLaVA-NeXT and
          LLaVA-OneVision first, always.

        Raises:
          ImageError: the bytes are no image, or a damaged one, or the model does not take its size.
        """
        kind = np.dtype(dtype)
        if kind not in (np.dtype(np.uint8), np.dtype(np.float32)):
            raise ArgumentError(f"dtype={kind.name!r}: expected 'uint8' or 'float32'")
        most = checks.integer("max_pixels", max_pixels, 1, 2**63 - 1)
        return core_of_model(self).pixels(as_bytes(data), most, kind == np.float32)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def core_of_model(model: ImageModel) -> _core.ImageModel:
    """The core's model, made once."""
    core: _core.ImageModel | None = model.__dict__.get("_core")
    if core is None:
        core = _core.ImageModel(model.name, model._changes(), model.pillow)
        object.__setattr__(model, "_core", core)
    return core


def _size(given: Any) -> tuple[int, int] | None:
    if given is None:
        return None
    sides = [given, given] if isinstance(given, numbers.Integral) else checks.items("size", given, "height and width")
    if len(sides) != 2:
        raise ArgumentError(f"size={given!r}: expected height and width")
    height, width = (checks.integer("size", side, 1, 1 << 14) for side in sides)
    return height, width


def _pinpoints(given: Any) -> tuple[tuple[int, int], ...] | None:
    if given is None:
        return None
    pairs = [checks.items("image_grid_pinpoints", pair, "heights and widths") for pair in given]
    if any(len(pair) != 2 for pair in pairs):
        raise ArgumentError(f"image_grid_pinpoints={given!r}: expected heights and widths")
    sides = [[checks.integer("image_grid_pinpoints", side, 1, 1 << 16) for side in pair] for pair in pairs]
    return tuple((height, width) for height, width in sides)


def channels(name: str, given: Sequence[float] | None) -> tuple[float, float, float] | None:
    """A number for each channel.

    Raises:
      ArgumentError: there are not three.
    """
    if given is None:
        return None
    values = checks.items(name, given, "3 numbers")
    for value in values:
        if not isinstance(value, numbers.Real) or isinstance(value, bool):
            raise checks.wrong_type(name, value, "3 numbers")
    if len(values) != 3:
        raise ArgumentError(f"{name}={given!r}: expected 3 numbers, got {len(values)}")
    return float(values[0]), float(values[1]), float(values[2])
