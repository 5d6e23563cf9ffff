"""Rows with images on devices: global batches, and a merge of features as MaxText does it."""

import json

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gristmill as gm
from chat_models import write_vision
from helpers import assert_resumes, assert_same_batches, tar_of
from images import captions

FIXED = gm.ImageModel("gemma3", size=(8, 12), tokens=4)
PATCHES = gm.ImageModel("qwen3-vl", patch_size=4, min_pixels=64, max_pixels=512)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_vision(tmp_path_factory.mktemp("models") / "vision")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    path = tmp_path_factory.mktemp("shards")
    for number in range(4):
        (path / f"{number}.tar").write_bytes(tar_of(captions(20, number)))
    return str(path / "*.tar")


def dataset_of(shards, folder, sample, **arguments):
    return gm.PackedDataset(
        shards, tokenizer=folder, sample=sample, packing="best_fit", sequence_length=128, batch_size=4, lanes=4, seed=1,
        epochs=1, eos=False, **arguments,
    )  # fmt: skip


def fetched(batch):
    return {name: np.asarray(array) for name, array in batch.items()}


@pytest.mark.parametrize("model", [FIXED, PATCHES], ids=["fixed", "patches"])
def test_global_batches_hold_the_images(shards, folder, model):
    mrope = model is PATCHES
    dataset = dataset_of(shards, folder, gm.ImageText(model, text=gm.Text("txt"), max_patches=256, mrope=mrope))
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))
    with gm.global_batches(dataset, sharding) as batches:
        first = next(batches)
        state = batches.get_state()
        rest = list(batches)
    expected = list(dataset)
    assert_same_batches(map(fetched, [first, *rest]), expected)
    pixels = first["images" if model is FIXED else "image_patches"]
    assert pixels.dtype == np.uint8
    assert pixels.sharding.spec == PartitionSpec("data")
    with gm.global_batches(dataset, sharding) as batches:
        batches.set_state(state)
        assert_same_batches(map(fetched, batches), expected[1:])


@pytest.mark.parametrize("with_masks", [False, True])
def test_features_of_a_packed_row_come_to_their_placeholders(shards, folder, with_masks):
    """MaxText gives the k-th placeholder of a row the k-th feature; with masks those of real images come first."""
    dataset = dataset_of(shards, folder, gm.ImageText(FIXED, text=gm.Text("txt"), max_images=6))
    token = gm.Encoder.from_file(folder).token_to_id("<image_soft_token>")
    images = 0
    for batch in dataset:
        for row in range(len(batch["inputs"])):
            mask = batch["image_masks"][row]
            features = np.arange(1, 6 * 4 + 1).reshape(6, 4)  # one value of each image, of each of its tokens
            if with_masks:
                features = features[np.argsort(1 - mask, stable=True)]
            merged = np.zeros(128, int)
            places = np.flatnonzero(batch["inputs"][row] == token)
            merged[places] = features.reshape(-1)[: len(places)]
            for number in np.flatnonzero(mask):
                start = batch["image_position"][row, number]
                assert merged[start : start + 4].tolist() == [4 * number + part for part in range(1, 5)]
                segment = batch["image_segmentation"][row, number]
                assert (batch["inputs_segmentation"][row, start : start + 4] == segment).all()
                images += 1
            assert len(places) == 4 * mask.sum()
    assert images == 4 * sum(number % 4 for number in range(20))


def test_mixture_of_images_and_text(shards, folder, tmp_path):
    for number in range(4):
        lines = [json.dumps({"text": f"document {number}, {line}" * 3}) for line in range(30)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines))
    sample = gm.ImageText(PATCHES, text=gm.Text("txt"), mrope=True, max_patches=300)
    sources = {
        "images": gm.Source(shards, sample=sample, weight=1, epochs=1),
        "text": gm.Source(str(tmp_path / "*.jsonl"), weight=1, epochs=2),
    }
    dataset = gm.PackedDataset(
        gm.Mixture(sources), tokenizer=folder, packing="best_fit", sequence_length=128, batch_size=4, lanes=4, seed=1,
        eos=False, source_arrays=True,
    )  # fmt: skip
    batches = list(dataset)
    of_text = [batch["source"] == 1 for batch in batches]
    assert sum(int(rows.sum()) for rows in of_text) > 0
    for batch, rows in zip(batches, of_text, strict=True):
        assert not batch["image_masks"][rows].any()
        assert not batch["image_patches"][rows].any()
        positions = batch["inputs_position"][rows]
        assert (positions == positions[:, :1]).all()
    alone = dataset.sources["images"]
    found = [row for batch in batches for row in batch["image_patches"][batch["source"] == 0]]
    expected = [row for batch in alone for row in batch["image_patches"]]
    assert sum(row.any() for row in found) == sum(row.any() for row in expected)
    assert_resumes(dataset, 3)
    other = gm.ImageText(PATCHES, text=gm.Text("txt"), mrope=True, max_patches=301)
    with pytest.raises(gm.ArgumentError, match="the sources 'images' and 'more' have other arrays of images"):
        gm.PackedDataset(
            gm.Mixture(sources | {"more": gm.Source(shards, sample=other, weight=1)}), tokenizer=folder,
            packing="best_fit", batch_size=4, lanes=4, eos=False,
        )  # fmt: skip
