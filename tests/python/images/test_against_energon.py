"""Chats and odd tars against what Megatron-Energon and Megatron-Bridge make of them.

`GRISTMILL_MULTIMODAL` names a folder with `chats/` and `broken/`, which are prepared by Energon and not part of the
repository, and `expected/`, what an independent program compared with both of them gives; beside it `tokenizers/`.
"""

import gzip
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

import gristmill as gm
from chat_models import VISION_CHATML

ROOT = Path(os.environ.get("GRISTMILL_MULTIMODAL", ""))
pytestmark = pytest.mark.skipif("GRISTMILL_MULTIMODAL" not in os.environ, reason="GRISTMILL_MULTIMODAL is not set")


@pytest.fixture(scope="module")
def expected():
    return json.loads((ROOT / "expected" / "chats.json").read_text())


@pytest.fixture(scope="module")
def encoder(expected):
    name = expected["tokenizer"].removeprefix("shared/")
    return gm.Encoder(gzip.decompress((ROOT.parent / name).read_bytes()))


def sha1(values):
    return hashlib.sha1(values.tobytes()).hexdigest()


def chats(encoder, model, shards="chats/train-*.tar", **arguments):
    """Rows of the chats, trained on as Bridge does: also on the newline behind each answer."""
    chat = gm.Chat("json", format="chatml", template=VISION_CHATML, stop_tokens=["<|im_end|>\n"])
    given = {
        "sequence_length": 8192, "packing": "pad", "layout": "grain", "epochs": 1, "lanes": 1,
        "on_error": "quarantine", "max_error_rate": 1.0, "provenance": True, **arguments,
    }  # fmt: skip
    images = given.pop("max_images", 16)
    sample = gm.ImageText(model, text=chat, max_images=images, mrope=True, max_patches=20_000)
    return gm.PackedDataset(str(ROOT / shards), tokenizer=encoder, sample=sample, **given)


@pytest.mark.parametrize("model", ["qwen2-vl", "qwen3-vl"])
@pytest.mark.parametrize("shards", ["chats/train-*.tar", "chats/jpgs-*.tar"])
def test_tokens_masks_and_positions(encoder, expected, model, shards):
    samples = {sample["key"]: sample for sample in expected["models"][model]["samples"]}
    dataset = chats(encoder, model, shards)
    names = keys_of(shards)
    found = []
    with iter(dataset) as iterator:
        for row in iterator:
            shard, record, _, length = row["provenance"][0]
            key = names[shard][record]
            found.append(key)
            sample = samples[key.removesuffix("-p")]
            ids, mask = row["tokens"][:length], row["tokens_loss_mask"][:length]
            counts = (length, int(mask.sum()), int((ids == expected["ids"]["<|image_pad|>"]).sum()))
            assert counts == (sample["tokens"], sample["trained"], sample["image_tokens"]), key
            images = len(sample["sizes"])
            assert row["image_grid_thw"][:images].tolist() == sample["grid_thw"]
            assert int(row["image_masks"].sum()) == images
            assert sha1(ids.astype(np.int32)) == sample["ids_sha1"], key
            assert sha1(mask.astype(np.uint8)) == sample["trained_sha1"], key
            assert sha1(row["tokens_positions"][:, :length].astype(np.int32)) == sample["mrope_sha1"], key
        bad = iterator.quarantine()
    if "train" in shards:
        assert found == [key for key in samples if "error" not in samples[key]]
        assert [entry["reason"] for entry in bad] == [
            'sample "mismatch": expected a placeholder for each image, found 2 for 1'
        ]
    else:
        assert len(found) == 4


def keys_of(shards):
    """The keys of the records of each shard."""
    import tarfile

    found = []
    for path in sorted(ROOT.glob(shards)):
        with tarfile.open(path) as archive:
            found.append([*dict.fromkeys(name.split(".")[0] for name in archive.getnames())])
    return found


@pytest.mark.parametrize("model", ["qwen2-vl", "qwen3-vl"])
def test_rows(encoder, expected, model):
    names = keys_of("chats/train-*.tar")
    for budgets, rows in expected["models"][model]["packing"].items():
        length, images = (int(part.split()[0]) for part in budgets.split(", "))
        dataset = chats(encoder, model, packing="best_fit", sequence_length=length, max_images=images)
        found = [[names[shard][record] for shard, record, _, length in row["provenance"] if length] for row in dataset]
        assert found == rows["best_fit"], budgets


def test_odd_tars(encoder):
    expected = json.loads((ROOT / "expected" / "broken.json").read_text())
    for name, found in expected.items():
        path = ROOT / "broken" / name
        dataset = gm.PackedDataset(
            str(path), tokenizer=encoder, sample=gm.ImageText("siglip", fields={"text": "txt"}), packing="pad",
            sequence_length=64, layout="grain", on_error="quarantine", max_error_rate=1.0, provenance=True, epochs=1,
            bos=encoder.token_to_id("<|im_start|>"), eos=False,
        )  # fmt: skip
        with iter(dataset) as iterator:
            rows = list(iterator)
            entries, stats = iterator.quarantine(), iterator.stats()
        with_text = [parts for _, parts in found["samples"] if "txt" in parts]
        lost = [entry for entry in entries if entry["byte"] is not None and stats["lost_shards"]]
        if name == "part-twice.tar":
            continue  # one record is bad, and the others are read
        assert stats["lost_shards"] == (found["error"] is not None), name
        if found["error"]:
            record, byte, _ = found["error"]
            assert (lost[-1]["record"], lost[-1]["byte"]) == (record, byte), name
        good = [parts for parts in with_text if name != "text-not-utf8.tar" or parts["txt"][1] != 2]
        bad_images = {"image-not-one.tar": 1, "image-empty.tar": 1}.get(name, 0)
        assert len(rows) + stats["undecodable"] * 0 == len(good) - bad_images, name
        assert sum(int(row["image_masks"].sum()) for row in rows) <= len(rows)
        assert stats["undecodable"] == (name == "image-cut.tar"), name


def test_folder_is_read_unmodified(encoder, expected):
    chats_of = gm.EnergonFolder(ROOT / "chats", split="jpgs")
    assert [Path(path).name for path in chats_of.manifest.paths] == ["jpgs-000000.tar"]
    chat = gm.Chat("json", format="chatml", template=VISION_CHATML)
    dataset = gm.PackedDataset(
        gm.EnergonFolder(ROOT / "chats", subset=(0, 11)), tokenizer=encoder, packing="pad", sequence_length=8192,
        sample=gm.ImageText("qwen2-vl-bridge", text=chat, max_images=16), epochs=1, lanes=1,
    )  # fmt: skip
    with iter(dataset) as iterator:
        assert sum(1 for _ in iterator) == 11
        assert iterator.stats()["images"] == 23
