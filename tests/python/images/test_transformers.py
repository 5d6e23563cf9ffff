"""`ImageModel` gives the pixels of transformers' PIL processors, bit for bit: `make test-transformers`."""

import importlib
import io
import json
import math
import os
import random

import numpy as np
import pytest
from PIL import Image

import gristmill as gm
from gristmill._images.model import core_of_model
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


def merged(pixels, patch, merge):
    """An image `[3, height, width]` as patches, those of a token after one another."""
    _, height, width = pixels.shape
    down, across = height // (patch * merge), width // (patch * merge)
    parts = pixels.reshape(3, down, merge, patch, across, merge, patch)
    return parts.transpose(1, 4, 2, 5, 0, 3, 6).reshape(-1, 3 * patch * patch)


def of_tiles(found):
    return found["pixel_values"].reshape(-1, *found["pixel_values"].shape[-3:]).transpose(0, 2, 3, 1)


def of_first(found):
    return found["pixel_values"][0].transpose(0, 2, 3, 1)


IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
# Each model has an image processor, the processor whose texts it has, its needs, and a function of its pixels.
OTHERS = {
    "internvl": (
        "GotOcr2ImageProcessorPil", {"size": {"height": 448, "width": 448}, "crop_to_patches": True, **IMAGENET},
        "internvl.processing_internvl.InternVLProcessor",
        {"start_image_token": "<img>", "end_image_token": "</img>", "image_token": "<IMG_CONTEXT>",
         "image_seq_length": 256},
        of_tiles,
    ),
    "pixtral": (
        "PixtralImageProcessorPil", {"patch_size": {"height": 16, "width": 16}},
        "pixtral.processing_pixtral.PixtralProcessor",
        {"patch_size": 16, "spatial_merge_size": 1, "image_token": "[IMG]", "image_break_token": "[IMG_BREAK]",
         "image_end_token": "[IMG_END]"},
        lambda found: merged(found["pixel_values"][0], 16, 1),
    ),
    "mistral3": (
        "PixtralImageProcessorPil", {"patch_size": {"height": 28, "width": 28}, "size": {"longest_edge": 1540}},
        "pixtral.processing_pixtral.PixtralProcessor",
        {"patch_size": 14, "spatial_merge_size": 2, "image_token": "[IMG]", "image_break_token": "[IMG_BREAK]",
         "image_end_token": "[IMG_END]"},
        lambda found: merged(found["pixel_values"][0], 14, 2),
    ),
    "llava": (
        "LlavaImageProcessorPil",
        {"do_pad": True, "size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}, None, {},
        lambda found: found["pixel_values"][0].transpose(1, 2, 0),
    ),
    "llava-next": (
        "LlavaNextImageProcessorPil", {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}},
        "llava_next.processing_llava_next.LlavaNextProcessor",
        {"patch_size": 14, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default",
         "image_token": "<image>"},
        of_first,
    ),
    "llava-onevision": (
        "LlavaOnevisionImageProcessorPil", HALF, "llava_onevision.processing_llava_onevision.LlavaOnevisionProcessor",
        {"num_image_tokens": 729, "vision_feature_select_strategy": "full", "image_token": "<image>",
         "vision_aspect_ratio": "anyres_max_9"},
        of_first,
    ),
    "idefics3": (
        "Idefics3ImageProcessorPil", {"return_row_col_info": True}, "idefics3.processing_idefics3.Idefics3Processor",
        {"fake_image_token": "<fake_token_around_image>", "global_image_tag": "<global-img>", "image_token": "<image>",
         "image_seq_len": 169},
        of_first,
    ),
    "smolvlm": (
        "SmolVLMImageProcessorPil",
        {"return_row_col_info": True, "size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
        "smolvlm.processing_smolvlm.SmolVLMProcessor",
        {"fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>",
         "image_token": "<image>", "image_seq_len": 64},
        of_first,
    ),
    "gemma4": (
        "Gemma4ImageProcessorPil", {}, "gemma4.processing_gemma4.Gemma4Processor",
        {"boi_token": "<|image>", "image_token": "<|image|>", "eoi_token": "<image|>"},
        lambda found: found["pixel_values"][0][: int((found["image_position_ids"][0][:, 0] >= 0).sum())],
    ),
    "siglip2-naflex": (
        "Siglip2ImageProcessorPil", {}, None, {},
        lambda found: found["pixel_values"][0][: int(found["pixel_attention_mask"][0].sum())],
    ),
    "glm4v": ("Glm4vImageProcessorPil", {}, None, {}, lambda found: found["pixel_values"]),
}  # fmt: skip


def other(name):
    kind, options, text, needs, pixels = OTHERS[name]
    reference = getattr(transformers, kind)(**options)
    if text is None:
        return reference, None, pixels
    module, _, kind = text.rpartition(".")
    try:
        processor = getattr(importlib.import_module(f"transformers.models.{module}"), kind)
    except ModuleNotFoundError:  # some of them need torch; `make test-torch` has it
        return reference, None, pixels
    # The methods that make a text need no tokenizer.
    made = object.__new__(processor)
    made.__dict__.update(image_processor=reference, **needs)
    return reference, made, pixels


def assert_same_as(name, model, reference, processor, pixels, image):
    nested = [[image]] if "return_row_col_info" in OTHERS[name][1] else [image]
    expected = reference(images=nested, return_tensors="np")
    found = model.pixels(encoded(image), dtype="float32")
    shown = f"{name}: {image.width} x {image.height}"
    np.testing.assert_array_equal(found, pixels(expected), shown, strict=True)
    if processor is not None:
        data = {key: expected[key] if key == "pixel_values" else np.asarray(expected[key]).tolist() for key in expected}
        assert core_of_model(model).expanded(image.height, image.width) == processor.replace_image_token(data, 0), shown


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_at_random(name):
    """Pixels, tokens and the text of an image, of sizes and aspect ratios at random."""
    generator = random.Random(name)
    model, reference = gm.ImageModel(name), other(name)
    done = 0
    while done < CASES:
        height, width = (max(2, int(math.exp(generator.uniform(math.log(8), math.log(1700))))) for _ in range(2))
        if max(height, width) > 30 * min(height, width):
            continue
        pixels = np.random.default_rng(done).integers(0, 256, (height, width, 3), np.uint8)
        assert_same_as(name, model, *reference, Image.fromarray(pixels))
        done += 1


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    ("width", "height"),
    [
        (336, 336),
        (384, 384),
        (448, 448),
        (512, 512),
        (672, 336),
        (336, 672),
        (1024, 1024),
        (2048, 512),
        (16, 400),
        (999, 1),
    ],
)
def test_other_models_at_sizes_of_tiles(name, width, height):
    model, reference = gm.ImageModel(name), other(name)
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
    image = Image.fromarray(pixels)
    try:
        reference[0](images=[[image]] if "return_row_col_info" in OTHERS[name][1] else [image])
    except ValueError:
        with pytest.raises(gm.ImageError):
            model.plan(height, width)
        return
    assert_same_as(name, model, *reference, image)


@pytest.mark.parametrize("name", [*PROCESSORS, *OTHERS])
def test_settings_are_those_of_a_checkpoint(name, tmp_path):
    """A processor that was saved, with settings of its own, is read again."""
    kind, options, *_ = PROCESSORS.get(name) or OTHERS[name]
    reference = getattr(transformers, kind)(**options)
    reference.save_pretrained(tmp_path)
    around = OTHERS[name][3] if name in OTHERS else {}
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "X", **around}))
    model = gm.ImageModel.from_pretrained(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (311, 507, 3), np.uint8)
    image = Image.fromarray(pixels)
    if name in OTHERS:
        assert_same_as(name, model, reference, None, OTHERS[name][-1], image)
    else:
        assert_same(model, reference, image)


@pytest.mark.parametrize("name", [*PROCESSORS, *OTHERS])
def test_settings_that_a_file_leaves_out_are_those_of_the_class(name, tmp_path):
    kind = (PROCESSORS.get(name) or OTHERS[name])[0]
    options = {"patch_size": 16} if name == "qwen3-vl" else {}
    options |= {"crop_to_patches": True} if name == "internvl" else {}
    options |= {"return_row_col_info": True} if name in ("idefics3", "smolvlm") else {}
    described = {"image_processor_type": kind.removesuffix("Pil"), **options}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(described))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (311, 507, 3), np.uint8))
    if name == "llava-next":  # its tiles do not divide its canvases
        with pytest.raises(gm.ArgumentError, match=r"image_grid_pinpoints: expected .* multiples of size=224"):
            gm.ImageModel.from_pretrained(tmp_path)
        return
    model = gm.ImageModel.from_pretrained(tmp_path)
    reference = getattr(transformers, kind)(**options)
    if name in PROCESSORS:
        assert_same(model, reference, image)
    else:
        pixels = other("pixtral")[2] if name == "mistral3" else OTHERS[name][-1]
        assert_same_as(name, model, reference, None, pixels, image)


@pytest.mark.parametrize(("added", "strategy", "tokens"), [(1, "default", 576), (0, "full", 576), (1, "full", 577)])
def test_tokens_of_llava_are_those_of_its_processor(added, strategy, tokens, tmp_path):
    around = {"patch_size": 14, "num_additional_image_tokens": added, "vision_feature_select_strategy": strategy}
    (tmp_path / "processor_config.json").write_text(json.dumps(around))
    for kind, is_followed in [("CLIPImageProcessor", True), ("LlavaNextImageProcessor", tokens == 576)]:
        sides = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
        described = {"image_processor_type": kind, **sides}
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(described))
        if is_followed:
            assert gm.ImageModel.from_pretrained(tmp_path).tokens == tokens
        else:
            with pytest.raises(gm.ArgumentError, match=r"the tokens of patches alone, found \+1 by num_additional"):
                gm.ImageModel.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("kind", "size", "match"),
    [
        ("CLIPImageProcessor", {"height": 336, "width": 336}, "expected shortest_edge"),
        ("SiglipImageProcessor", {"shortest_edge": 384}, "expected height and width"),
    ],
)
def test_sizes_of_the_other_kind_are_refused(kind, size, match, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": kind, "size": size}))
    with pytest.raises(gm.ArgumentError, match=match):
        gm.ImageModel.from_pretrained(tmp_path)
