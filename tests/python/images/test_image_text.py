"""Samples with images: the whole stream compared with the naive model of `image_oracle`."""

import io
import itertools
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tokenizers import Tokenizer

import gristmill as gm
import image_oracle
from chat_models import write_vision
from gristmill import _core
from helpers import assert_resumes, assert_same_batches, tar_of
from images import captions, image

FIXED = gm.ImageModel("gemma3", size=(8, 12), tokens=4)
PATCHES = gm.ImageModel("qwen3-vl", patch_size=4, min_pixels=64, max_pixels=512)
TILES = gm.ImageModel("llama4", size=4, max_tiles=4, tokens=3)
IMAGE = {
    "gemma3": "\n\n<start_of_image>{}<end_of_image>\n\n", "qwen3-vl": "<|vision_start|>{}<|vision_end|>",
    "llama4": "<|image_start|>{}<|image_end|>",
}  # fmt: skip
TOKEN = {"gemma3": "<image_soft_token>", "qwen3-vl": "<|image_pad|>", "llama4": "<|patch|>"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_vision(tmp_path_factory.mktemp("models") / "vision")


def write(path, *shards):
    paths = [path / f"{number}.tar" for number in range(len(shards))]
    for shard, records in zip(paths, shards, strict=True):
        shard.write_bytes(tar_of(records))
    return [str(shard) for shard in paths]


def natural(part):
    return int(part.split(".")[0])


def caption_oracle(folder, model, placeholders=False):
    """Ids, mask and images of a record, by the wheel of `tokenizers` and `ImageModel`; none if it is bad."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    token = tokenizer.token_to_id(TOKEN[model.name])
    around = {tokenizer.token_to_id(name) for name in ("<|vision_start|>", "<|vision_end|>", TOKEN[model.name])}
    around |= {tokenizer.token_to_id(name) for name in ("<start_of_image>", "<end_of_image>", "<|image|>")}
    around |= {tokenizer.token_to_id(name) for name in ("<|image_start|>", "<|image_end|>")}
    markup = IMAGE[model.name].format(TOKEN[model.name])

    def encoded(parts):
        text = parts["txt"].decode()
        pictures = [parts[part] for part in sorted((part for part in parts if part != "txt"), key=natural)]
        if "<image>" in text:
            if text.count("<image>") != len(pictures):
                return None
            pieces = text.split("<image>")
        else:
            pieces = [""] * len(pictures) + [text]
        whole, trained = "", []
        for number, piece in enumerate(pieces):
            whole += markup if number else ""
            trained += [(len(whole), len(whole) + len(piece))]
            whole += piece
        found = tokenizer.encode(whole, add_special_tokens=False)
        ids, mask, images = [], [], []
        for index, (start, _) in zip(found.ids, found.offsets, strict=True):
            if index != token:
                ids.append(index)
                mask.append(index not in around and any(first <= start < end for first, end in trained))
                continue
            data = pictures[len(images)]
            plan = model.plan(*reversed(gm.image_size(data)))
            of_image = [index] * plan.tokens
            if model is TILES:
                of_image = tokenizer.encode(
                    image_oracle.tiles_text(plan.tiles, model.tokens), add_special_tokens=False
                ).ids
            at = len(ids) + of_image.index(index)
            images.append(image_oracle.Picture(at, plan.tokens, plan.grid_thw, model.pixels(data)))
            ids += of_image
            mask += [False] * len(of_image)
        return ids, mask, images

    return encoded


models = st.sampled_from(
    [(FIXED, {"fixed": (8, 12, 3)}), (PATCHES, {"patches": (200, 96)}), (TILES, {"tiles": (5, 4, 4, 3)})]
)
packings = st.sampled_from(
    [
        {"packing": "best_fit", "fit_window": 5},
        {"packing": "best_fit", "fit_window": 3, "truncation": "drop", "max_segments": 2},
        {"packing": "pad"},
        {"packing": "pad", "truncation": "drop"},
    ]
)
others = st.fixed_dictionaries(
    {
        "sequence_length": st.integers(50, 120),
        "layout": st.sampled_from(_core.LAYOUTS),
        "seed": st.none() | st.integers(0, 99),
        "shuffle_window": st.integers(1, 6),
    }
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    models, packings, others, st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(3, 5), st.booleans(),
    st.integers(1, 3), st.integers(1, 2), st.data(),
)  # fmt: skip
def test_stream_matches_the_model(
    tmp_path_factory, folder, model, packing, others, counts, max_images, mrope, threads, epochs, data
):
    (model, shape), mrope = model, mrope and model[0] is PATCHES and others["layout"] != "varlen"
    path = tmp_path_factory.mktemp("shards")
    paths = write(path, *(captions(count, shard) for shard, count in enumerate(counts)))
    sample = gm.ImageText(
        model, fields={"text": "txt"}, max_images=max_images, mrope=mrope,
        max_patches=shape.get("patches", [None])[0],
    )  # fmt: skip
    arguments = {
        "tokenizer": folder, "sample": sample, "batch_size": 4, "epochs": epochs, "on_error": "quarantine",
        "max_error_rate": 1.0, "eos": False, **packing, **others,
    }  # fmt: skip
    dataset = gm.PackedDataset(paths, threads=threads, **arguments)
    named = {name: value for name, value in {**packing, **others}.items() if name != "truncation"}
    oracle = image_oracle.ImageModel(
        None, sample=caption_oracle(folder, model), max_images=max_images, mrope=mrope, **named, **shape
    )
    expected = oracle.batches([dataset.plan(epoch) for epoch in range(epochs)], 4 // dataset.lanes)

    with iter(dataset) as iterator:
        assert_same_batches(list(iterator), expected)
        stats = iterator.stats()
    assert stats["documents"] + stats["filtered"] + stats["quarantined"] == epochs * sum(counts)
    assert (stats["filtered"] > 0) <= (packing.get("truncation") == "drop")
    assert stats["trained_tokens"] == oracle.totals["trained"]
    masks = [batch["image_masks"].reshape(4, max_images, -1)[..., 0] for batch in expected]
    assert stats["images"] == sum(int(mask.sum()) for mask in masks)

    step = data.draw(st.integers(0, len(expected)))
    with iter(dataset) as iterator:
        for _ in range(step):
            next(iterator)
        state = iterator.get_state()
    if dataset.lanes % 2:
        with iter(dataset) as resumed:
            resumed.set_state(state)
            assert_same_batches(list(resumed), expected[step:])
        return
    # On two hosts, whose states are merged again; twice in a row.
    states = []
    for index in range(2):
        with iter(gm.PackedDataset(paths, shard_index=index, shard_count=2, **arguments)) as half:
            half.set_state(state)
            if step < len(expected):
                next(half, None)
            states.append(half.get_state())
    with iter(dataset) as resumed:
        resumed.set_state(gm.merge_states(states))
        assert_same_batches(list(resumed), expected[step + 1 :])


def test_placeholders_in_a_text(tmp_path, folder):
    records = [
        ("a", {"1.png": image(8, 8), "2.png": image(12, 8), "txt": b"first <image> then <image>."}),
        ("b", {"1.png": image(8, 8), "txt": b"<image><image> one too many"}),
        ("c", {"txt": b"<image>"}),
        ("d", {"1.png": image(8, 8), "txt": b"in front"}),
    ]
    paths = write(tmp_path, records)
    dataset = gm.PackedDataset(
        paths, tokenizer=folder, sample=gm.ImageText(PATCHES, text=gm.Text("txt")), packing="pad",
        sequence_length=64, epochs=1, eos=False, on_error="quarantine", max_error_rate=1.0, layout="grain",
    )  # fmt: skip
    oracle = caption_oracle(folder, PATCHES)
    with iter(dataset) as iterator:
        rows = list(iterator)
        reasons = [(entry["record"], entry["reason"]) for entry in iterator.quarantine()]
    assert reasons == [
        (1, 'sample "b": expected a placeholder for each image, found 2 for 1'),
        (2, 'sample "c": expected a placeholder for each image, found 1 for 0'),
    ]
    for row, record in zip(rows, [records[0], records[3]], strict=True):
        ids, mask, images = oracle(record[1])
        assert row["tokens"][: len(ids)].tolist() == ids
        assert row["tokens_loss_mask"][: len(ids)].tolist() == [int(trained) for trained in mask]
        assert row["image_position"][: len(images)].tolist() == [picture.at for picture in images]


def test_samples_that_do_not_fit_are_bad_or_filtered(tmp_path, folder):
    records = captions(8)
    records.insert(3, ("long", {"1.png": image(8, 8), "txt": b"x" * 300}))
    records.insert(1, ("many", {**{f"{n}.png": image(8, 8) for n in range(5)}, "txt": b"x"}))
    paths = write(tmp_path, records)
    arguments = {
        "tokenizer": folder, "sample": gm.ImageText(FIXED, text=gm.Text("txt"), max_images=4), "packing": "best_fit",
        "sequence_length": 100, "epochs": 1, "eos": False,
    }  # fmt: skip
    with pytest.raises(gm.ShardError, match=r"0.tar: record 1, .* at most max_images=4 images, found one of 5"):
        list(gm.PackedDataset(paths, **arguments))
    with iter(gm.PackedDataset(paths, on_error="quarantine", max_error_rate=1.0, **arguments)) as iterator:
        list(iterator)
        reasons = [entry["reason"] for entry in iterator.quarantine()]
    assert "expected a sample of at most max_images=4 images, found one of 5" in reasons[0]
    assert "expected a sample of at most sequence_length=100 tokens, found one of 309, 4 of them" in reasons[1]
    with iter(gm.PackedDataset(paths, truncation="drop", **arguments)) as iterator:
        list(iterator)
        stats = iterator.stats()
    assert (stats["filtered"], stats["documents"], stats["quarantined"]) == (2, 8, 0)


def damaged(records, *numbers):
    """Cuts the first image of some records, whose header stays."""
    for number in numbers:
        parts = records[number][1]
        name = next(iter(parts))
        parts[name] = parts[name][: len(parts[name]) // 2]
    return records


def has_damaged(provenance):
    return any(length and record in (3, 10, 11) for _, record, _, length in provenance.reshape(-1, 4))


MASKS = {
    "maxtext": "targets_segmentation", "grain": "tokens_loss_mask", "hf": "labels", "varlen": "targets_loss_mask"
}  # fmt: skip


@pytest.mark.parametrize("layout", list(MASKS))
@pytest.mark.parametrize("threads", [1, 3])
def test_damaged_images_become_zeros_and_are_not_trained_on(tmp_path, folder, layout, threads):
    good, bad = captions(40), damaged(captions(40), 3, 10, 11)
    arguments = {
        "tokenizer": folder, "sample": gm.ImageText(FIXED, text=gm.Text("txt")), "packing": "best_fit",
        "sequence_length": 128, "batch_size": 2, "epochs": 1, "eos": False, "layout": layout, "provenance": True,
    }  # fmt: skip
    expected = list(gm.PackedDataset(write(tmp_path, good), **arguments))
    paths = write(tmp_path, bad)
    for batch in expected:
        for row, provenance in enumerate(batch["provenance"]):
            at = 0
            for number, (_, record, _, length) in enumerate(provenance, 1):
                if length and record in (3, 10, 11):
                    for name in MASKS.values():
                        if name in batch:
                            batch[name][row, at : at + length] = -100 if name == "labels" else 0
                    # The first image in the file is the last one of the sample.
                    index = np.flatnonzero(batch["image_segmentation"][row] == number)[-1]
                    batch["images"][row, index] = 0
                at += length
    dataset = gm.PackedDataset(paths, on_error="quarantine", max_error_rate=0.1, threads=threads, **arguments)
    with iter(dataset) as iterator:
        assert_same_batches(list(iterator), expected)
        stats, entries = iterator.stats(), iterator.quarantine()
    assert (stats["documents"], stats["undecodable"], stats["quarantined"]) == (40, 3, 0)
    assert sorted(entry["record"] for entry in entries) == [3, 10, 11]
    assert "cannot be decoded: PNG image: " in entries[0]["reason"]
    if layout == "grain":
        assert stats["trained_tokens"] == sum(int(batch[MASKS[layout]].sum()) for batch in expected)
    for step in range(len(expected)):
        with iter(dataset) as iterator, iter(dataset) as restored:
            for _ in range(step):
                next(iterator)
            restored.set_state(iterator.get_state())
            assert_same_batches(list(restored), expected[step:])
            assert restored.stats()["undecodable"] == 3

    with pytest.raises(gm.ShardError, match=r"of the .* samples that lane 0 has delivered so far have an image"):
        list(gm.PackedDataset(paths, on_error="quarantine", max_error_rate=0.05, **arguments))
    stopping = iter(gm.PackedDataset(paths, threads=threads, **arguments))
    before = list(itertools.takewhile(lambda batch: not has_damaged(batch["provenance"]), expected))
    assert_same_batches(itertools.islice(stopping, len(before)), before)
    with pytest.raises(
        gm.ShardError, match=r"0.tar: record 3, byte .*: sample \".*\": image 2, at byte .*, cannot be decoded"
    ):
        next(stopping)
    assert stopping.get_state()["step"] == len(before)
    stopping.close()


def test_damaged_images_are_listed_once_in_the_quarantine_file(tmp_path, folder):
    records = [captions(30, 0), captions(30, 1)]
    damaged(records[0], 3, 10, 11), damaged(records[1], 1, 29)
    records[0].insert(5, ("long", {"1.png": image(8, 8), "txt": b"x" * 300}))
    paths = write(tmp_path, *records)
    arguments = {
        "tokenizer": folder, "sample": gm.ImageText(FIXED, text=gm.Text("txt")), "packing": "best_fit",
        "fit_window": 6, "sequence_length": 128, "batch_size": 2, "lanes": 2, "epochs": 2, "eos": False, "seed": 1,
        "on_error": "quarantine", "max_error_rate": 0.5,
    }  # fmt: skip

    def listed(path):
        return sorted(path.read_text().splitlines())

    whole = tmp_path / "whole.jsonl"
    with iter(gm.PackedDataset(paths, quarantine_file=whole, threads=1, **arguments)) as iterator:
        steps = sum(1 for _ in iterator)
        stats = iterator.stats()
    lines = [json.loads(line) for line in listed(whole)]
    images = [line for line in lines if line.get("undecodable")]
    assert (len(images), len(lines)) == (stats["undecodable"], stats["undecodable"] + stats["quarantined"]) == (10, 12)
    for lane in range(2):
        of_lane = [line["number"] for line in images if line["lane"] == lane]
        assert sorted(of_lane) == list(range(1, len(of_lane) + 1))
    for line in lines:
        key = records[int(Path(line["shard"]).stem)][line["record"]][0]
        assert line["reason"].startswith(f'sample "{key}": ')
        assert ("cannot be decoded: PNG image: " in line["reason"]) == ("undecodable" in line)

    resumed = tmp_path / "resumed.jsonl"
    dataset = gm.PackedDataset(paths, quarantine_file=resumed, threads=3, **arguments)
    state = None
    for _ in range(steps):
        with iter(dataset) as iterator:
            if state is not None:
                iterator.set_state(state)
            next(iterator)
            state = iterator.get_state()
    with iter(dataset) as iterator:
        iterator.set_state(state)
        assert not list(iterator)
    assert listed(resumed) == listed(whole)


def test_conversations_of_either_form(tmp_path, folder):
    turns = [{"role": "user", "content": "Look at <image> and say"}, {"role": "assistant", "content": "An ant."}]
    typed = [
        {"role": "user", "content": [{"type": "text", "text": "Look at "}, {"type": "image"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A user."}]},
    ]
    shared = [{"from": "human", "value": "<image>\nWho?"}, {"from": "gpt", "value": "An ant."}]
    contents = [turns, typed, {"conversations": shared}, {"messages": turns}]
    records = [(f"{n}", {"0.png": image(8, 8, n), "json": json.dumps(c).encode()}) for n, c in enumerate(contents)]
    records.append(("p", {"jpgs": pickle.dumps([image(8, 8, 9, "JPEG")]), "json": json.dumps(turns).encode()}))
    paths = write(tmp_path, records)
    arguments = {"tokenizer": folder, "packing": "pad", "sequence_length": 96, "layout": "grain", "epochs": 1}
    encoder = gm.Encoder.from_file(folder)

    def texts(sample, **more):
        dataset = gm.PackedDataset(paths, sample=sample, **arguments, **more)
        rows = list(dataset)
        assert all(row["image_masks"].sum() == 1 for row in rows)
        trained = [encoder.decode(row["tokens"][row["tokens_loss_mask"] > 0]) for row in rows]
        return [encoder.decode(row["tokens"][row["tokens_segment_ids"] > 0]) for row in rows], trained

    pad = "<|vision_start|><|image_pad|><|vision_end|>"
    whole, trained = texts(gm.ImageText(PATCHES))
    user, end = f"<|im_start|>user\n{pad}", "<|im_end|>\n<|im_start|>assistant\n"
    assert whole == [
        f"{user}Look atand say{end}An ant.<|im_end|>\n",
        f"{user}Look at {end}A user.<|im_end|>\n",
        f"{user}\nWho?{end}An ant.<|im_end|>\n",
        f"{user}Look atand say{end}An ant.<|im_end|>\n",
        f"{user}Look atand say{end}An ant.<|im_end|>\n",
    ]
    assert trained == ["An ant.<|im_end|>", "A user.<|im_end|>", *["An ant.<|im_end|>"] * 3]
    as_bridge = gm.Chat("json", format="chatml", stop_tokens=["<|im_end|>\n"])
    assert texts(gm.ImageText(PATCHES, text=as_bridge))[1][0] == "An ant.<|im_end|>\n"
    in_place = gm.ImageText(PATCHES, text=gm.Chat("json"))
    with pytest.raises(gm.ShardError, match="record 2"):
        texts(in_place)
    paths = write(tmp_path, records[:2])
    assert texts(in_place)[0][0] == f"<|im_start|>user\nLook at {pad} and say{end}An ant.<|im_end|>\n"


def test_fields_are_guessed_aloud(tmp_path, folder, caplog):
    paths = write(tmp_path, captions(3))
    arguments = {"tokenizer": folder, "packing": "pad", "sequence_length": 96, "epochs": 1, "eos": False}
    guessed = gm.PackedDataset(paths, sample=gm.ImageText(FIXED), **arguments)
    assert "has txt (string); its images are none of these, and the text is taken from 'txt'" in caplog.text
    named = gm.PackedDataset(paths, sample=gm.ImageText(FIXED, text=gm.Text("txt")), **arguments)
    assert_same_batches(guessed, named)
    with pytest.raises(gm.ArgumentError, match="shows no conversation, only txt"):
        gm.PackedDataset(paths, sample=gm.ImageText(FIXED, text=gm.Chat()), **arguments)
    caption = [("a", {"png": image(9, 9), "json": b'{"caption": "An ant.", "width": 3}'})]
    paths = write(tmp_path, caption)
    gm.PackedDataset(paths, sample=gm.ImageText(FIXED), **arguments)
    assert "its images are png, and the text is taken from 'json.caption'" in caplog.text
    more = {"images": "jpg, png", "text": "json.caption"}
    for fields in (None, {"images": "png;jpg", "text": "json[caption]"}, more):
        (row,) = gm.PackedDataset(paths, sample=gm.ImageText(FIXED, fields=fields), **arguments)
        assert row["image_masks"].sum() == 1


def quarantined(paths, folder, **fields):
    """The numbers of documents and images, and the reasons of bad records by their number."""
    dataset = gm.PackedDataset(
        paths, tokenizer=folder, sample=gm.ImageText(FIXED, text=gm.Text("txt"), **fields), packing="pad",
        sequence_length=64, epochs=1, eos=False, on_error="quarantine", max_error_rate=1.0,
    )  # fmt: skip
    with iter(dataset) as iterator:
        images = sum(int(row["image_masks"].sum()) for row in iterator)
        reasons = {entry["record"]: entry["reason"] for entry in iterator.quarantine()}
        return iterator.stats()["documents"], images, reasons


TEXT = {"txt": b"A caption."}


@pytest.mark.parametrize(
    "extension", ["jpg", "JPG", "jpeg", "jpe", "Jfif", "pjpeg", "mpo", "png", "gif", "bmp", "1.tif"]
)
@pytest.mark.parametrize("kind", ["JPEG", "BMP"])
def test_format_of_an_image_is_that_of_its_bytes(tmp_path, folder, extension, kind):
    paths = write(tmp_path, [("a", {extension: image(9, 9, kind=kind), **TEXT})])
    assert quarantined(paths, folder) == (1, 1, {})


@pytest.mark.parametrize(
    ("extension", "kind", "name"),
    [
        ("bmp", "TIFF", "TIFF"), ("tif", "TIFF", "TIFF"), ("0.TIFF", "TIFF", "TIFF"), ("avif", "AVIF", "AVIF"),
        ("jp2", "JPEG2000", "JPEG 2000"), ("ico", "ICO", "icon"), ("jpg", "TIFF", "TIFF"), ("ppm", "PPM", "bytes"),
    ],
)  # fmt: skip
def test_images_of_other_formats_are_bad_records(tmp_path, folder, extension, kind, name):
    other = image(9, 9, kind=kind)
    paths = write(
        tmp_path, [("a", {extension: other, **TEXT}), ("b", {"1.png": image(9, 9), extension: other, **TEXT})]
    )
    documents, images, reasons = quarantined(paths, folder)
    assert (documents, images, list(reasons)) == (0, 0, [0, 1])
    for reason in reasons.values():
        assert f'the image "{extension}", at byte' in reason
        assert f"expected a JPEG, PNG, WebP, GIF or BMP image, found {name}" in reason
        assert 'say which members are images in fields={"images": [...]}' in reason
    # Other members may have any content where the images are named.
    documents, images, reasons = quarantined(paths[:1], folder, fields={"images": ["1.png"]})
    assert (documents, images, list(reasons)) == (1, 1, [0])


@pytest.mark.parametrize("extension", ["svg", "heic", "jxl", "psd", "dng", "exr"])
def test_extensions_of_other_formats_are_known(tmp_path, folder, extension):
    paths = write(tmp_path, [("a", {extension: b"<svg></svg>", **TEXT})])
    assert f'the image "{extension}", at byte 512: expected a JPEG' in quarantined(paths, folder)[2][0]


def test_captions_are_not_trained_on_without_their_image(tmp_path, folder):
    records = [
        ("a", {"img": image(9, 9, kind="JPEG"), **TEXT}),
        ("b", {"picture": image(9, 9, kind="TIFF"), **TEXT}),
        ("c", TEXT),
        ("d", {"npy": b"\x93NUMPY\x01\0" + bytes(100), "xml": b"<annotation>", **TEXT}),
        ("e", {"png": image(9, 9), "thumb": image(3, 3, kind="JPEG"), **TEXT}),
        ("f", {"jpgs": pickle.dumps([]), **TEXT}),
    ]
    paths = write(tmp_path, records)
    documents, images, reasons = quarantined(paths, folder)
    assert (documents, images, list(reasons)) == (4, 1, [0, 1])
    assert 'found the JPEG image "img" and no other; rename it, or name it in fields={"images": ["img"]}' in reasons[0]
    assert 'found the TIFF image "picture" and no other' in reasons[1]
    documents, images, reasons = quarantined(paths, folder, fields={"images": ["img", "png"]})
    assert (documents, images, list(reasons)) == (2, 2, [1, 2, 3, 5])
    assert reasons[2] == (
        'sample "c": expected an image under "img", "png", as fields["images"] says, found "txt"; add it, or leave '
        '"images" out of fields= to train on texts without images, too'
    )
    # A record that the filter leaves out may be without one.
    dataset = gm.PackedDataset(
        paths, tokenizer=folder, sample=gm.ImageText(FIXED, fields={"images": "png", "text": "txt"}), packing="pad",
        sequence_length=64, epochs=1, eos=False, keep="png is not None",
    )  # fmt: skip
    with iter(dataset) as iterator:
        assert sum(1 for _ in iterator) == 1
        assert iterator.stats()["filtered"] == 5


def test_image_under_another_extension_is_found_if_the_filter_reads_it_too(tmp_path, folder):
    paths = write(tmp_path, [("a", {"img": image(9, 9, kind="JPEG"), **TEXT})])
    dataset = gm.PackedDataset(
        paths, tokenizer=folder, sample=gm.ImageText(FIXED, text=gm.Text("txt")), packing="pad", sequence_length=64,
        epochs=1, eos=False, keep="img.bytes > 100",
    )  # fmt: skip
    with pytest.raises(gm.ShardError, match='found the JPEG image "img" and no other'):
        list(dataset)


def test_token_of_images_that_the_model_does_not_name(tmp_path, folder):
    paths = write(tmp_path, [("a", {"1.png": image(8, 8), "2.png": image(9, 8), "txt": b"<image> ant<image>"})])
    arguments = {"tokenizer": folder, "packing": "pad", "sequence_length": 32, "epochs": 1, "eos": False}
    model = gm.ImageModel(size=4, tokens=3)
    sample = gm.ImageText(model, text=gm.Text("txt"), image_token="<|image_pad|>")
    (row,) = gm.PackedDataset(paths, sample=sample, **arguments)
    encoder = gm.Encoder.from_file(folder)
    pad = "<|image_pad|>" * 3
    assert encoder.decode(row["inputs"][row["inputs_segmentation"] > 0]) == f"{pad} ant{pad}"
    assert row["image_position"][:3].tolist() == [0, 5, 0]
    # Images that are no part of the text.
    (row,) = gm.PackedDataset(paths, sample=gm.ImageText(gm.ImageModel(size=4), text=gm.Text("txt")), **arguments)
    assert encoder.decode(row["inputs"][row["inputs_segmentation"] > 0]) == " ant"
    assert (row["image_masks"].sum(), row["image_position"].sum()) == (2, 0)


def test_filters_see_the_size_of_images(tmp_path, folder):
    paths = write(tmp_path, [(str(n), {"png": image(n, 5), "txt": b"x"}) for n in range(4, 10)])
    dataset = gm.PackedDataset(
        paths, tokenizer=folder, sample=gm.ImageText(FIXED, text=gm.Text("txt")),
        keep="png.width >= 7 and png.height == 5", packing="best_fit", sequence_length=64, epochs=1, eos=False,
    )  # fmt: skip
    with iter(dataset) as iterator:
        list(iterator)
        assert (iterator.stats()["documents"], iterator.stats()["filtered"]) == (3, 3)


def test_normalized_pixels_are_those_of_the_model(tmp_path, folder):
    paths = write(tmp_path, captions(6))
    for model, name in [(FIXED, "images"), (PATCHES, "image_patches")]:
        sample = gm.ImageText(model, text=gm.Text("txt"), images="float32")
        dataset = gm.PackedDataset(
            paths, tokenizer=folder, sample=sample, packing="pad", sequence_length=96, epochs=1, eos=False
        )
        rows = list(dataset)
        parts = captions(6)[1][1]
        expected = model.pixels(next(iter(parts.values())), dtype=np.float32)
        found = rows[1][name][0] if model is FIXED else rows[1][name][: len(expected)]
        assert rows[1][name].dtype == np.float32
        np.testing.assert_array_equal(found, expected)
        assert not rows[0][name].any()


def test_transparent_images_are_put_on_white_if_the_model_says_so(tmp_path, folder):
    file = io.BytesIO()
    Image.new("RGBA", (12, 8), (255, 0, 0, 0)).save(file, "PNG")
    paths = write(tmp_path, [("0", {"png": file.getvalue(), "txt": b"a caption"})])
    for alpha, color in [("drop", [255, 0, 0]), ("white", [255, 255, 255])]:
        model = gm.ImageModel("gemma3", size=(8, 12), tokens=4, alpha=alpha)
        sample = gm.ImageText(model, text=gm.Text("txt"))
        dataset = gm.PackedDataset(paths, tokenizer=folder, sample=sample, packing="pad", sequence_length=96, epochs=1)
        (row,) = dataset
        assert (row["images"][0] == color).all()


def test_arguments_that_do_not_fit_are_refused(tmp_path, folder, encoder):
    paths = write(tmp_path, captions(2))
    sample = gm.ImageText(FIXED, text=gm.Text("txt"))

    def refused(match, **arguments):
        given = {"tokenizer": folder, "sample": sample, "packing": "best_fit", **arguments}
        with pytest.raises((gm.ArgumentError, gm.ArgumentTypeError), match=match):
            gm.PackedDataset(paths, **given)

    refused("packing='concat': samples with images are never cut", packing="concat")
    refused("truncation='left'", packing="pad", truncation="left")
    refused("boundary_targets=True", boundary_targets=True)
    refused("tokenizer has no token '<image_soft_token>'", tokenizer=encoder)
    refused("has no token '<.patch.>'", tokenizer=encoder, sample=gm.ImageText("llama4", text=gm.Text("txt")))
    refused("mrope=True", sample=gm.ImageText(FIXED, text=gm.Text("txt"), mrope=True))
    refused("set image_token=", sample=gm.ImageText(gm.ImageModel(size=8, tokens=3), text=gm.Text("txt")))
    refused("the model's own is", sample=gm.ImageText(FIXED, text=gm.Text("txt"), image_token="<image>"))
    refused("lower batch_size=, sequence_length= or max_images=", sample=gm.ImageText("gemma3", text=gm.Text("txt")),
            batch_size=1024)  # fmt: skip
    for arguments, match in [
        ({"model": 3}, "model"),
        ({"model": "x"}, "name="),
        ({"model": FIXED, "fields": {"video": "mp4"}}, "expected images, and text or conversation"),
        ({"model": FIXED, "fields": {"text": "txt", "conversation": "json"}}, "got both"),
        ({"model": FIXED, "text": "txt"}, "text"),
        ({"model": FIXED, "images": "int8"}, "images"),
    ]:
        with pytest.raises((gm.ArgumentError, gm.ArgumentTypeError), match=match):
            gm.PackedDataset(paths, tokenizer=folder, packing="pad", sample=gm.ImageText(**arguments))
    (tmp_path / "x.jsonl").write_text('{"txt": "a"}\n')
    shards = [*paths, str(tmp_path / "x.jsonl")]
    with pytest.raises(gm.ArgumentError, match="expected a tar that is not compressed, found JSON lines"):
        list(gm.PackedDataset(shards, tokenizer=folder, packing="pad", sample=sample, eos=False, epochs=1, lanes=2))


def test_resume_with_pieces_of_one_tar(tmp_path, folder):
    paths = write(tmp_path, captions(60))
    dataset = gm.PackedDataset(
        paths, tokenizer=folder, sample=gm.ImageText(PATCHES, text=gm.Text("txt"), mrope=True), packing="best_fit",
        sequence_length=128, batch_size=4, lanes=4, split_bytes=30_000, seed=3, epochs=2, eos=False, provenance=True,
    )  # fmt: skip
    assert_resumes(dataset, 4)
