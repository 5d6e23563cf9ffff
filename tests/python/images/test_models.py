"""`ImageModel`: sizes and tokens as transformers computes them, and the pixels of Pillow's resize."""

import io
import math
import os
import pickle
import random

import numpy as np
import PIL
import pytest
from PIL import Image

import gristmill as gm

CASES = int(os.environ.get("GRISTMILL_CASES", 100))
# The version of the Pillow that the tests run with.
PILLOW = min(13, int(PIL.__version__.split(".")[0]))
FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}


def noise(height, width, seed=0):
    return np.random.default_rng([height, width, seed]).integers(0, 256, (height, width, 3), np.uint8)


def encoded(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=0)
    return file.getvalue()


def by_pillow(pixels, height, width, resample):
    return np.asarray(Image.fromarray(pixels).resize((width, height), FILTERS[resample]))


@pytest.mark.parametrize("resample", FILTERS)
def test_resize_gives_the_pixels_of_pillow(resample):
    generator = random.Random(resample)
    for _ in range(CASES):
        height, width, new_height, new_width = (
            max(1, int(math.exp(generator.uniform(0, math.log(most))))) for most in (700, 700, 400, 400)
        )
        # Pillow's own tests have no images of noise; extreme values overshoot.
        pixels = noise(height, width) if generator.random() < 0.7 else noise(height, width) // 128 * 255
        model = gm.ImageModel(size=(new_height, new_width), resample=resample, pillow=PILLOW)
        expected = by_pillow(pixels, new_height, new_width, resample)
        np.testing.assert_array_equal(
            model.pixels(encoded(pixels)), expected, f"{height}x{width} to {new_height}x{new_width}"
        )


def test_clip_cuts_the_middle_out():
    model = gm.ImageModel("clip", pillow=PILLOW)
    pixels = noise(300, 500)
    expected = by_pillow(pixels, 224, 373, "bicubic")[:, 74 : 74 + 224]
    np.testing.assert_array_equal(model.pixels(encoded(pixels)), expected)


def test_bridge_resizes_twice():
    pixels = noise(300, 500)
    model = gm.ImageModel("qwen3-vl-bridge", pillow=PILLOW)
    plan = model.plan(300, 500)
    once = by_pillow(pixels, 308, 504, "bicubic")
    twice = by_pillow(once, *plan.size, "bicubic")
    np.testing.assert_array_equal(image_of(model.pixels(encoded(pixels)), plan, 16), twice)


def image_of(patches, plan, patch):
    """The image that patches were cut from: the first of two equal ones in time."""
    _, down, across = plan.grid_thw
    blocks = patches.reshape(down // 2, across // 2, 2, 2, 3, 2, patch, patch)
    np.testing.assert_array_equal(blocks[..., 0, :, :], blocks[..., 1, :, :])
    return blocks[..., 0, :, :].transpose(0, 2, 5, 1, 3, 6, 4).reshape(down * patch, across * patch, 3)


def test_patches_are_in_the_order_of_tokens():
    pixels = noise(64, 96)
    model = gm.ImageModel("qwen3-vl", min_pixels=1)
    plan = model.plan(64, 96)
    assert plan == gm.ImagePlan(size=(64, 96), grid_thw=(1, 4, 6), tokens=6, tiles=(1, 1))
    patches = model.pixels(encoded(pixels))
    assert patches.shape == (24, 1536)
    np.testing.assert_array_equal(image_of(patches, plan, 16), pixels)


def test_tiles_hold_the_image_and_then_the_whole_of_it():
    pixels = noise(300, 600)
    model = gm.ImageModel("llama4", pillow=PILLOW)
    assert model.plan(300, 600).tiles == (1, 2)
    tiles = model.pixels(encoded(pixels))
    assert tiles.shape == (3, 336, 336, 3)
    canvas = np.concatenate(tiles[:2], axis=1)
    np.testing.assert_array_equal(canvas[:300, :600], pixels)  # never enlarged beyond one tile
    assert not canvas[300:].any()
    assert not canvas[:, 600:].any()
    np.testing.assert_array_equal(tiles[2], by_pillow(pixels, 336, 336, "bilinear"))
    assert model.pixels(encoded(pixels), dtype="float32")[0, 335, 0, 0] == -1


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 20_000), (20_000, 1), (1, 200), (3, 7)])
def test_extreme_sizes(height, width):
    pixels = noise(height, width)
    for name in ("gemma3", "siglip", "clip", "llama4"):
        model = gm.ImageModel(name, pillow=PILLOW)
        values = model.pixels(encoded(pixels))
        if name in ("gemma3", "siglip"):
            side = values.shape[0]
            resample = "bilinear" if name == "gemma3" else "bicubic"
            np.testing.assert_array_equal(values, by_pillow(pixels, side, side, resample))
        assert model.pixels(encoded(pixels), dtype="float32").shape == values.shape
    model = gm.ImageModel("qwen2-vl")
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(gm.ImageError, match=f"an aspect ratio of at most 200, found {width} x {height}"):
            model.pixels(encoded(pixels))
    else:
        assert len(model.pixels(encoded(pixels))) == 4 * model.plan(height, width).tokens


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"name": "qwen"}, "name='qwen': expected one of 'qwen2-vl', "),
        ({}, "size=None: expected a size or a patch_size, as the model has no name"),
        ({"name": "siglip", "max_pixels": 5}, "max_pixels=5: expected None, as the model is one of a fixed size"),
        ({"name": "qwen3-vl", "tokens": 5}, "tokens=5: expected None, as the model is one of patches"),
        ({"name": "qwen3-vl", "max_pixels": 5}, "max_pixels=5: expected 1024 to 268435456"),
        ({"name": "llama4", "size": (5, 6)}, r"size=\(5, 6\): expected one number for tiles"),
        ({"name": "clip", "shortest_edge": 100}, "shortest_edge=100: expected 224 to 16384"),
        ({"size": 5, "image_std": (1, 0, 1)}, "image_std=0: expected finite numbers other than 0"),
        ({"size": 5, "image_mean": (1, 2)}, r"image_mean=\(1, 2\): expected 3 numbers, got 2"),
        ({"size": 5, "resample": "cubic"}, "resample='cubic': expected one of 'nearest', "),
        ({"size": (1, 2, 3)}, r"size=\(1, 2, 3\): expected height and width"),
        ({"size": 5, "pillow": 11}, "pillow=11: expected an integer from 12 to 13"),
    ],
)
def test_settings_out_of_range_are_refused(arguments, match):
    with pytest.raises(gm.ArgumentError, match=f"^{match}"):
        gm.ImageModel(**arguments)


def test_dtype_is_uint8_or_float32():
    model = gm.ImageModel("siglip")
    with pytest.raises(gm.ArgumentError, match="dtype='float64': expected 'uint8' or 'float32'"):
        model.pixels(encoded(noise(3, 4)), dtype=float)


def test_models_are_values():
    model = gm.ImageModel("clip", size=np.int64(336), image_mean=[0, 0, 1])
    same = pickle.loads(pickle.dumps(model))
    assert same == model == gm.ImageModel("clip", size=(336, 336), image_mean=(0.0, 0.0, 1.0))
    assert hash(same) == hash(model)
    assert same != gm.ImageModel("clip", size=336)
    assert same.plan(3, 4) == model.plan(3, 4)
