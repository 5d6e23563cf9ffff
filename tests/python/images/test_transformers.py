"""`ImageModel` gives the pixels of transformers' PIL processors, bit for bit: `make test-transformers`."""

import io
import math
import os
import random

import numpy as np
import pytest
from PIL import Image

import gristmill as gm
from image_oracle import tiles_text

transformers = pytest.importorskip("transformers")

CASES = int(os.environ.get("GRISTMILL_CASES", 30))
QWEN3 = {
    "patch_size": 16,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "size": {"shortest_edge": 256 * 256, "longest_edge": 4096 * 4096},
}
PROCESSORS = {
    "qwen2-vl": ("Qwen2VLImageProcessorPil", {}),
    "qwen2.5-vl": ("Qwen2VLImageProcessorPil", {}),
    "qwen3-vl": ("Qwen2VLImageProcessorPil", QWEN3),
    "gemma3": ("Gemma3ImageProcessorPil", {"size": {"height": 896, "width": 896}}),
    "siglip": ("SiglipImageProcessorPil", {}),
    "clip": ("CLIPImageProcessorPil", {}),
}


def processor(name):
    kind, options = PROCESSORS[name]
    return getattr(transformers, kind)(**options)


def encoded(image):
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=0)
    return file.getvalue()


def assert_same(model, reference, image):
    data = encoded(image)
    expected = reference(images=[image], return_tensors="np")
    pixels = expected["pixel_values"]
    plan = model.plan(image.height, image.width)
    if "image_grid_thw" in expected:
        assert plan.grid_thw == tuple(expected["image_grid_thw"][0])
        assert plan.tokens == pixels.shape[0] // 4
    else:
        pixels = pixels[0].transpose(1, 2, 0)
    ours = model.pixels(data, dtype="float32")
    assert ours.dtype == pixels.dtype == np.float32
    np.testing.assert_array_equal(ours, pixels, f"{image.width} x {image.height}")


@pytest.mark.parametrize("name", PROCESSORS)
def test_images_at_random(name):
    generator = random.Random(name)
    model, reference = gm.ImageModel(name), processor(name)
    done = 0
    while done < CASES:
        height, width = (max(1, int(math.exp(generator.uniform(0, math.log(1500))))) for _ in range(2))
        if max(height, width) > 200 * min(height, width) and name.startswith("qwen"):
            with pytest.raises(gm.ImageError, match="expected an aspect ratio of at most 200"):
                model.plan(height, width)
            continue
        if max(height, width) > 100 * min(height, width):
            continue  # CLIP takes gigabytes in transformers
        pixels = np.random.default_rng(done).integers(0, 256, (height, width, 3), np.uint8)
        assert_same(model, reference, Image.fromarray(pixels))
        done += 1


@pytest.mark.parametrize("name", PROCESSORS)
def test_every_value_of_a_byte(name):
    pixels = np.arange(224 * 224 * 3, dtype=np.uint32).reshape(224, 224, 3).astype(np.uint8)
    assert_same(gm.ImageModel(name), processor(name), Image.fromarray(pixels))


@pytest.mark.parametrize("name", PROCESSORS)
def test_photographs(name):
    folder = os.environ.get("GRISTMILL_PHOTOS")
    if not folder:
        pytest.skip("GRISTMILL_PHOTOS is not set")
    model, reference = gm.ImageModel(name), processor(name)
    for file in sorted(os.scandir(folder), key=lambda file: file.name):
        with Image.open(file.path) as image:
            assert_same(model, reference, image.convert("RGB"))


@pytest.mark.parametrize("height", [*range(1, 60), *range(60, 6000, 173)])
def test_sizes_of_qwen_are_rounded_as_transformers_rounds(height):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    models = [
        (gm.ImageModel("qwen2-vl"), 28, 56 * 56, 28 * 28 * 1280),
        (gm.ImageModel("qwen3-vl"), 32, 256**2, 4096**2),
    ]
    for width in [*range(1, 100), *range(100, 6000, 61)]:
        for model, factor, least, most in models:
            if max(height, width) <= 200 * min(height, width):
                assert model.plan(height, width).size == smart_resize(height, width, factor, least, most)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "1"])
def test_transparent_images_are_put_on_white(mode):
    pixels = np.random.default_rng(0).integers(0, 256, (50, 60, 4), np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    file = io.BytesIO()
    image.save(file, "PNG", **({"transparency": 0} if mode in ("P", "L", "1") else {}))
    with Image.open(file) as image:
        expected = processor("siglip")(images=[image], return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
    model = gm.ImageModel("siglip", alpha="white")
    np.testing.assert_array_equal(model.pixels(file.getvalue(), dtype="float32"), expected)


@pytest.mark.parametrize(("down", "across"), [(1, 1), (1, 2), (3, 1), (2, 3), (4, 4)])
def test_tokens_of_llama4_are_those_of_its_processor(down, across):
    from transformers.models.llama4.processing_llama4 import Llama4Processor

    assert gm.ImageModel("llama4").plan(336 * down, 336 * across).tiles == (down, across)
    expected = Llama4Processor._prompt_split_image(None, (down, across), 4)
    assert expected == f"<|image_start|>{tiles_text((down, across), 4)}<|image_end|>"


def test_settings_mean_what_they_mean_in_transformers():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 500, 3), np.uint8))
    mean, std = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]
    model = gm.ImageModel(
        "clip", size=(100, 120), shortest_edge=150, resample="lanczos", image_mean=mean, image_std=std
    )
    options = {"size": {"shortest_edge": 150}, "crop_size": {"height": 100, "width": 120}, "resample": 1}
    assert_same(model, transformers.CLIPImageProcessorPil(image_mean=mean, image_std=std, **options), image)
    patches = {"patch_size": 10, "merge_size": 3, "temporal_patch_size": 1}
    model = gm.ImageModel("qwen2-vl", min_pixels=10_000, max_pixels=40_000, **patches)
    size = {"shortest_edge": 10_000, "longest_edge": 40_000}
    reference = transformers.Qwen2VLImageProcessorPil(size=size, **patches)
    expected = reference(images=[image], return_tensors="np")["pixel_values"]
    np.testing.assert_array_equal(model.pixels(encoded(image), dtype="float32"), expected)
