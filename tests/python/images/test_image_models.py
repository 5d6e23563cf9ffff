"""Models whose images become tiles, rows of tokens or patches: recorded values of transformers 5.24, and rows of them.

`test_transformers.py` compares them with transformers itself; its processors made `recorded.json`: for each size of an
image, the shape of its pixels and the CRC-32 of these and of the text that stands for it, null where there is none.
"""

import io
import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from tokenizers import Tokenizer

import gristmill as gm
from chat_models import write_vision
from gristmill._images.model import core_of_model
from helpers import assert_resumes, tar_of
from images import image

RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text())
WORDS = [
    "<image>", "<fake_token_around_image>", "<global-img>", "[IMG]", "[IMG_BREAK]", "[IMG_END]", "<IMG_CONTEXT>",
    "<img>", "</img>", "<|image>", "<image|>", "<|begin_of_image|>", "<|end_of_image|>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
]  # fmt: skip
# Small ones of each kind.
SMALL = {
    "internvl": {"size": 8, "max_tiles": 4, "tokens": 3},
    "pixtral": {"patch_size": 4, "longest_edge": 24},
    "mistral3": {"patch_size": 2, "longest_edge": 24},
    "llava": {"size": 8, "tokens": 4},
    "llava-next": {"size": 8, "tokens": 4, "image_grid_pinpoints": [(8, 16), (16, 8), (16, 16)]},
    "llava-onevision": {"size": 8, "tokens": 9, "max_tiles": 2, "image_grid_pinpoints": [(8, 8), (8, 16), (16, 16)]},
    "idefics3": {"size": 8, "longest_edge": 16, "tokens": 3},
    "smolvlm": {"size": 8, "longest_edge": 24, "tokens": 2},
    "gemma4": {"patch_size": 4, "max_tokens": 6},
    "glm4v": {"patch_size": 4, "min_pixels": 128, "max_pixels": 1024},
}


def pattern(width, height):
    y, x = np.mgrid[:height, :width]
    file = io.BytesIO()
    pixels = np.stack([x * 7 % 256, y * 5 % 256, (x * y) % 251], -1).astype(np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_vision(tmp_path_factory.mktemp("models") / "vision")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokens = tokenizer["added_tokens"]
    tokens += [{**tokens[-1], "id": tokens[-1]["id"] + 1 + at, "content": word} for at, word in enumerate(WORDS)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_values_of_transformers(name):
    model = gm.ImageModel(name)
    for width, height, shape, crc, text in RECORDED[name]:
        pixels = model.pixels(pattern(width, height), dtype="float32")
        assert list(pixels.shape) == shape, (width, height)
        assert zlib.crc32(np.ascontiguousarray(pixels).tobytes()) == crc, (width, height)
        if text is not None:
            found = core_of_model(model).expanded(height, width)
            assert zlib.crc32(found.encode()) == text, (width, height)
            token = core_of_model(model).words[0]
            assert found.count(token) == model.plan(height, width).tokens


@pytest.mark.parametrize("name", SMALL)
def test_rows_have_the_ids_of_the_text(tmp_path, folder, name):
    """A caption's ids are those of the text that the processor would write, and its pixels those of `pixels`."""
    model = gm.ImageModel(name, **SMALL[name])
    core = core_of_model(model)
    around = core.markup[4:] if not any(core.markup[2:4]) else ["", ""]
    sizes = [(8, 8), (17, 9), (9, 30), (40, 41), (5, 21)]
    records = [
        (f"{number}", {"png": image(width, height, number), "txt": f"a line\nand number {number}".encode()})
        for number, (width, height) in enumerate(sizes)
    ]
    (tmp_path / "x.tar").write_bytes(tar_of(records))
    dataset = gm.PackedDataset(
        str(tmp_path / "x.tar"), tokenizer=folder, packing="pad", sequence_length=256, batch_size=1, lanes=1, eos=False,
        sample=gm.ImageText(model, text=gm.Text("txt"), images="float32", max_images=2), epochs=1, shuffle_window=1,
    )  # fmt: skip
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    batches = list(dataset)
    assert len(batches) == len(sizes)
    for batch, (width, height), (_, parts) in zip(batches, sizes, records, strict=True):
        text = around[0] + core.expanded(height, width) + around[1] + parts["txt"].decode()
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        length = int(batch["inputs_segmentation"].sum())
        assert batch["inputs"][0, :length].tolist() == expected[: len(expected)]
        pixels = model.pixels(parts["png"], dtype="float32")
        found = batch["image_patches"][0] if "image_patches" in batch else batch["images"][0, 0]
        np.testing.assert_array_equal(found[: len(pixels)] if found.ndim == pixels.ndim else found, pixels)
        at, token = int(batch["image_position"][0, 0]), tokenizer.token_to_id(core.words[0])
        assert batch["inputs"][0, at] == token
        assert not batch["targets_segmentation"][0, :at].any() or "targets_loss_mask" not in batch
        line = tokenizer.encode("\n", add_special_tokens=False).ids[-1]
        assert line in batch["targets"][0][batch["targets_segmentation"][0] > 0], "line ends of the text are trained"
    assert_resumes(dataset, 2)


def test_sizes_that_no_rule_takes(folder):
    with pytest.raises(gm.ImageError, match="expected an aspect ratio of at most 200"):
        gm.ImageModel("glm4v").plan(10, 9000)
    with pytest.raises(
        gm.ArgumentError, match="longest_edge=3: expected None, as the model is one of as many tiles as"
    ):
        gm.ImageModel("internvl", longest_edge=3)
    with pytest.raises(gm.ArgumentError, match="image_grid_pinpoints: expected 1 to 64 pairs of multiples of size=336"):
        gm.ImageModel("llava-next", image_grid_pinpoints=[(336, 500)])
    with pytest.raises(gm.ArgumentError, match="max_tokens=0"):
        gm.ImageModel("gemma4", max_tokens=0)


def saved(path, values, around=None):
    path.mkdir(exist_ok=True)
    (path / "preprocessor_config.json").write_text(json.dumps(values))
    if around:
        (path / "processor_config.json").write_text(json.dumps(around))
    return path


def test_maximum_of_pixels_is_the_checkpoint_s(tmp_path):
    values = {
        "image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 12_845_056, "patch_size": 14,
        "merge_size": 2, "temporal_patch_size": 2, "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711], "processor_class": "Qwen2_5_VLProcessor",
    }  # fmt: skip
    model = gm.ImageModel.from_pretrained(saved(tmp_path / "qwen", values))
    assert (model.name, model.max_pixels) == ("qwen2-vl", 12_845_056)
    assert model.plan(3000, 4000).tokens > gm.ImageModel("qwen2.5-vl").plan(3000, 4000).tokens
    assert gm.ImageModel.from_pretrained(tmp_path / "qwen", max_pixels=50_000).max_pixels == 50_000
    # As newer versions save it: in one file, under the processor.
    nested = {"image_processor": values, "processor_class": "Qwen2_5_VLProcessor"}
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "processor_config.json").write_text(json.dumps(nested))
    assert gm.ImageModel.from_pretrained(tmp_path / "new") == model


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image_processor_type": "FuyuImageProcessor"}, "image_processor_type of CLIPImageProcessor, .*, found Fuyu"),
        ({}, "found None"),
        ({"image_processor_type": "Qwen2VLImageProcessor", "new": 3}, r"settings that are known, found .'new': 3"),
        ({"image_processor_type": "Gemma3ImageProcessor", "do_pan_and_scan": True}, "do_pan_and_scan=True: expected"),
        ({"image_processor_type": "SiglipImageProcessor", "do_resize": False}, "do_resize=False: expected True"),
        ({"image_processor_type": "SiglipImageProcessor", "rescale_factor": 1.0}, "rescale_factor=1.0: expected 1/255"),
        ({"image_processor_type": "SmolVLMImageProcessor", "do_image_splitting": False}, "do_image_splitting=False"),
    ],
)  # fmt: skip
def test_settings_that_are_not_followed_are_refused(tmp_path, values, message):
    with pytest.raises(gm.ArgumentError, match=message):
        gm.ImageModel.from_pretrained(saved(tmp_path / "x", values))
    with pytest.raises(gm.ArgumentError, match=r"expected preprocessor_config.json or processor_config.json in it"):
        gm.ImageModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_orientation_is_applied_where_it_is_asked_for(tmp_path, folder, orientation, kind):
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    pixels = np.random.default_rng(orientation).integers(0, 256, (24, 40, 3), np.uint8)
    Image.fromarray(pixels).save(file, kind, exif=exif)
    data = file.getvalue()
    with Image.open(io.BytesIO(data)) as found:
        turned = np.asarray(ImageOps.exif_transpose(found).convert("RGB"))
    model = gm.ImageModel(size=turned.shape[:2], tokens=2, apply_exif=True)
    np.testing.assert_array_equal(model.pixels(data), turned)
    (tmp_path / "x.tar").write_bytes(tar_of([("0", {kind.lower(): data, "txt": b"a caption"})]))
    sample = gm.ImageText(model, text=gm.Text("txt"), image_token="<image>", max_images=1)
    dataset = gm.PackedDataset(
        str(tmp_path / "x.tar"), tokenizer=folder, packing="pad", sequence_length=32, batch_size=1, eos=False, lanes=1,
        sample=sample, epochs=1,
    )  # fmt: skip
    np.testing.assert_array_equal(next(iter(dataset))["images"][0, 0], turned)
    plain = gm.ImageModel(size=(24, 40)).pixels(data)
    assert np.array_equal(plain, turned) == (orientation == 1)
