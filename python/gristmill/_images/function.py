"""`ImageFunction`: a model whose pixels a Python function makes."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import gristmill._core as _core
from gristmill._util import checks
from gristmill.errors import ArgumentError

_MOST_TOKENS = 1 << 20
_MOST_VALUES = 1 << 31

OfSize = Callable[[int, int], int]


@dataclass(frozen=True)
class ImageFunction:
    """A model whose pixels a Python function makes, for models that `ImageModel` does not have.

    Worker threads call the function, one image at a time, once the row of the image is packed. It holds the GIL, so
    one image is processed at a time unless the function releases it, as NumPy, Pillow and torch do in their kernels;
    images are decoded without it.

    The stream stays the same on any number of threads and hosts and after any restart if the function's result depends
    on its argument alone: give a function with random numbers a seed from the pixels. The state holds nothing of it.
    The `name` defines the stream: change it when the results change.

    An exception of the function is damage of the image: it stops the run, or with `on_error="quarantine"` the image
    becomes zeros, and its sample is listed and not trained on. An array of another shape or dtype stops the run.

    Args:
      process: called with the image, returns its array, or what `numpy.asarray` makes one of, such as a tensor.
      shape: the shape of the array; of tiles, that of each.
      tokens: the tokens of an image, or a function of its height and width: packing needs them before any pixels.
      input: `"pixels"`: the function is called with `uint8 [height, width, 3]`, the pixels of `decode_image`;
        `"bytes"`: with the bytes of the file, which may then be of a format that gristmill does not know, if neither
        `tokens` nor `tiles` asks for its size.
      tiles: of models whose images become several arrays: how many, as a function of height and width. The function
        returns all of them, `[tiles, *shape]`, and rows have room for `max_tiles`.
      max_tiles: the most tiles of an image.
      grid: or, of models that take images in their own size: rows and columns of arrays, such as patches, as a function
        of height and width. The function returns `[rows * columns, *shape]`; the arrays of a row's images follow one
        another in `image_patches`, `[max_patches, values]`.
      name: what the fingerprint has of the function; None: its module and name.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
      ImageError: this build leaves images out.
    """

    process: Callable[[Any], Any]
    _: dataclasses.KW_ONLY
    shape: tuple[int, ...]
    tokens: "int | OfSize" = 0
    input: Literal["pixels", "bytes"] = "pixels"
    tiles: "OfSize | None" = None
    max_tiles: int | None = None
    grid: "Callable[[int, int], tuple[int, int]] | None" = None
    name: str | None = None

    def __post_init__(self) -> None:
        _check_callable("process", self.process)
        sides = tuple(
            checks.integer("shape", side, 1, 1 << 24) for side in checks.items("shape", self.shape, "a shape")
        )
        if not sides or np.prod([float(side) for side in sides]) > _MOST_VALUES:
            raise ArgumentError(f"shape={self.shape!r}: expected one of 1 to {_MOST_VALUES} values")
        object.__setattr__(self, "shape", sides)
        if not callable(self.tokens):
            checks.integer("tokens", self.tokens, 0, _MOST_TOKENS)
        checks.choice("input", self.input, ("pixels", "bytes"))
        if (self.tiles is None) != (self.max_tiles is None):
            raise ArgumentError(
                f"tiles={self.tiles!r}, max_tiles={self.max_tiles!r}: expected both of a model with tiles, or neither"
            )
        if self.tiles is not None:
            _check_callable("tiles", self.tiles)
            checks.optional_integer("max_tiles", self.max_tiles, 1, 1 << 10)
        if self.grid is not None:
            _check_callable("grid", self.grid)
            if self.tiles is not None:
                raise ArgumentError("grid=: expected no tiles= beside it")
        object.__setattr__(self, "name", _name(self.process) if self.name is None else checks.text("name", self.name))

    @property
    def needs_size(self) -> bool:
        """Whether the size of an image says its tokens or tiles."""
        return callable(self.tokens) or self.tiles is not None or self.grid is not None

    @property
    def described(self) -> str:
        """The part of it that defines the stream."""
        tokens = _name(self.tokens) if callable(self.tokens) else self.tokens
        tiles = None if self.tiles is None else _name(self.tiles)
        grid = "" if self.grid is None else f", grid={_name(self.grid)!r}"
        return (
            f"ImageFunction(name={self.name!r}, shape={self.shape}, tokens={tokens!r}, input={self.input!r}, "
            f"tiles={tiles!r}, max_tiles={self.max_tiles}{grid})"
        )

    def plan(self, height: int, width: int) -> tuple[int, int, tuple[int, int, int], None, int]:
        """The tokens, tiles and grid of an image of this size; none of models without."""
        tokens = self.tokens(height, width) if callable(self.tokens) else self.tokens
        tiles = 0 if self.tiles is None else _number("tiles", self.tiles(height, width), 1, self.max_tiles or 1)
        rows, columns = (0, 0) if self.grid is None else self.grid(height, width)
        grid = (int(self.grid is not None), _number("grid", rows, 0, 1 << 14), _number("grid", columns, 0, 1 << 14))
        return _number("tokens", tokens, 0, _MOST_TOKENS), tiles, grid, None, 1

    def pixels(self, image: Any, dtype: str, tiles: int) -> npt.NDArray[Any]:
        """The array of an image, for the core: contiguous, of this dtype, and of so many tiles, if it has some."""
        found = np.asarray(self.process(image))
        expected = (tiles, *self.shape) if tiles else self.shape
        if found.shape != expected or found.dtype != np.dtype(dtype):
            raise ArgumentError(
                f"process={self.name}: expected an array of {dtype} {list(expected)}, as images= and shape= say, found "
                f"{found.dtype} {list(found.shape)}"
            )
        return np.ascontiguousarray(found)


def core_of_function(function: ImageFunction) -> _core.ImageFunction:
    """The core's model."""
    return _core.ImageFunction(
        {
            "plan": function.plan,
            "pixels": function.pixels,
            "shape": list(function.shape),
            "kind": "patches" if function.grid is not None else "fixed" if function.tiles is None else "tiles",
            "max_tiles": function.max_tiles or 0,
            "planned_by": "size" if function.needs_size else "nothing",
            "takes_bytes": function.input == "bytes",
            "has_tokens": function.tokens != 0,
        }
    )


def _check_callable(name: str, given: Any) -> None:
    if not callable(given):
        raise checks.wrong_type(name, given, "a function")


def _number(name: str, found: Any, least: int, most: int) -> int:
    return checks.integer(f"the result of {name}", found, least, most)


def _name(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}.{name}"
