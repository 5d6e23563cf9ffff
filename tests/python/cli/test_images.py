"""Samples with images, and folders of Energon, in mixture files and on the command line."""

import json
import threading

import pytest

import gristmill as gm
from bucket import objects_of
from chat_models import VISION_CHATML, write_vision
from gristmill._cli import main
from helpers import assert_same_batches, tar_of
from images import captions, image, tar_index
from object_store import Server

CHAT = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "Noise."}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A prepared folder of captions, plain tars of chats, and a tokenizer."""
    root = tmp_path_factory.mktemp("data")
    (root / "prepared/.nv-meta").mkdir(parents=True)
    counts = {"a.tar": 6, "b.tar": 5, "val.tar": 4}
    for shard, (name, count) in enumerate(counts.items()):
        (root / "prepared" / name).write_bytes(tar_of(captions(count, shard)))
    splits = {"train": ["{a,b}.tar"], "val": ["val.tar"], "test": []}
    text = json.dumps({"split_parts": splits, "exclude": ["a.tar/0001"]})
    (root / "prepared/.nv-meta/split.yaml").write_text(text)
    (root / "prepared/.nv-meta/.info.json").write_text(json.dumps({"shard_counts": counts}))
    parts = [(f"{n:02}", {"0.png": image(9, 9, n), "json": json.dumps(CHAT).encode()}) for n in range(5)]
    (root / "chats.tar").write_bytes(tar_of(parts))
    (root / "template.jinja").write_text(VISION_CHATML)
    write_vision(root / "model")
    return root


@pytest.fixture(scope="module")
def mixture(folder):
    path = folder / "mix.toml"
    path.write_text(
        """
        tokenizer = "model"
        packing = "best_fit"
        sequence_length = 128
        batch_size = 4
        eos = false

        [sources.captions]
        shards = { path = "prepared", subset = [0.0, 0.9] }
        weight = 0.5
        epochs = 1
        sample = { kind = "image_text", model = { name = "gemma3", size = [8, 12], tokens = 4 }, max_images = 6 }

        [sources.chats]
        shards = "chats.tar"
        weight = 0.5
        epochs = 1

        [sources.chats.sample]
        kind = "image_text"
        model = { name = "gemma3", size = [8, 12], tokens = 4 }
        max_images = 6
        text = { kind = "chat", field = "json", format = "chatml", template = "gemma.jinja" }
        """
    )
    template = VISION_CHATML.replace("<|vision_start|><|image_pad|><|vision_end|>", "<start_of_image>")
    (folder / "gemma.jinja").write_text(template)
    return path


def run(capsys, *arguments):
    code = main.run([*map(str, arguments)])
    done = capsys.readouterr()
    assert code == 0, done.err
    return done.out


def refused(capsys, match, *arguments):
    assert main.run([*map(str, arguments)]) != 0
    assert match in " ".join(capsys.readouterr().err.split())


def test_mixture_files_name_images_and_prepared_folders(folder, mixture, capsys):
    model = gm.ImageModel("gemma3", size=(8, 12), tokens=4)
    chat = gm.Chat("json", format="chatml", template=(folder / "gemma.jinja").read_text())
    sources = {
        "captions": gm.Source(
            gm.EnergonFolder(folder / "prepared", subset=(0.0, 0.9)), weight=0.5, epochs=1,
            sample=gm.ImageText(model, max_images=6),
        ),
        "chats": gm.Source(
            str(folder / "chats.tar"), weight=0.5, epochs=1, sample=gm.ImageText(model, text=chat, max_images=6)
        ),
    }  # fmt: skip
    expected = gm.PackedDataset(
        gm.Mixture(sources), tokenizer=str(folder / "model"), packing="best_fit", sequence_length=128, batch_size=4,
        eos=False,
    )  # fmt: skip
    found = gm.PackedDataset.from_file(mixture)
    assert found.fingerprint == expected.fingerprint
    assert_same_batches(found, expected)
    assert "captions" in run(capsys, "inspect", mixture)
    printed = folder / "printed.toml"
    printed.write_text(run(capsys, "inspect", mixture, "--print-config"))
    assert gm.PackedDataset.from_file(printed).fingerprint == expected.fingerprint


def test_wrong_keys_are_named_with_their_place(folder, tmp_path):
    def file(shards='"chats.tar"', sample='kind = "image_text", model = "qwen2-vl"'):
        path = folder / "wrong.toml"
        path.write_text(f"[sources.a]\nshards = {shards}\nweight = 1\nsample = {{ {sample} }}\n")
        return path

    for given, match in [
        (
            {"shards": '{ path = "prepared", spilt = "val" }'},
            r"\[sources.a.shards\] has the unknown key 'spilt'.*'split'",
        ),
        ({"shards": "{ split = 'val' }"}, "expected the path of a prepared folder, found None"),
        ({"shards": '{ path = "prepared", split = "valid" }'}, "source 'a': split='valid': expected one of 'train'"),
        (
            {"sample": 'kind = "images"'},
            "one of 'text', 'chat', .*, 'image_text', found 'images'",
        ),
        ({"sample": 'kind = "image_text"'}, "missing 1 required positional argument: 'model'"),
        ({"sample": 'kind = "image_text", model = { nmae = "siglip" }'}, "unknown key 'nmae': did you mean 'name'"),
        (
            {"sample": 'kind = "image_text", model = "x", text = { kind = "tokens" }'},
            "one of 'text', 'chat', .*, found",
        ),
        ({"sample": 'kind = "image_text", model = "qwen2-vl", text = { kind = "text", fild = "t" }'}, "mean 'field'"),
    ]:
        with pytest.raises(gm.ArgumentError, match=match):
            gm.Mixture.from_file(file(**given))


def test_inspect_explains_a_prepared_folder(folder, capsys):
    shown = run(capsys, "inspect", folder / "prepared")
    assert [line.split() for line in shown.splitlines() if line.split()[:1] in (["train"], ["val"], ["test"])] == [
        ["train", "2", "10", "1", f"{sum((folder / 'prepared' / f'{n}.tar').stat().st_size for n in 'ab'):,}"],
        ["val", "1", "4", "0", f"{(folder / 'prepared/val.tar').stat().st_size:,}"],
        ["test", "0", "0", "0", "0"],
    ]
    assert "The first of 14 samples has txt (string)." in shown
    assert "the text is taken from 'txt', as a guess: gm.ImageText(model, text=gm.Text(\"txt\"))" in shown.replace(
        "'txt')", '"txt")'
    )
    found = json.loads(run(capsys, "inspect", folder / "prepared", "--json"))
    assert (found["kind"], found["splits"]["test"], found["parts"]) == ("energon", None, {"txt": "string"})
    meta = folder / "prepared/.nv-meta/dataset.yaml"
    meta.write_text("__class__: CaptioningSample\nfield_map: {image: png, caption: txt}\n")
    assert "dataset.yaml names its fields: images 'png', text 'txt'" in run(capsys, "inspect", folder / "prepared")
    meta.unlink()


def test_inspect_explains_a_metadataset(folder, capsys):
    """Its splits with their folders as `gm.Mixture.from_energon` has them, or why one is refused."""
    mix = folder / "mds.yaml"
    mix.write_text(
        """
        __class__: MetadatasetV2
        splits:
          train:
            blend_epochized:
              - {path: prepared, repetitions: 1.5, subflavors: {kind: stills}}
          val: {path: prepared}
          test: {join: [{path: prepared}]}
        """
    )
    found = json.loads(run(capsys, "inspect", mix, "--json"))
    mixture = gm.Mixture.from_energon(mix, sample=gm.ImageText("gemma3"))
    total = sum(source.weight for source in mixture.sources.values())
    for shown, source in zip(found["splits"]["train"]["sources"], mixture.sources.values(), strict=True):
        assert shown["share"] == pytest.approx(source.weight / total)
        assert shown["subflavors"] == {"kind": "stills"}
    assert [source["name"] for source in found["splits"]["train"]["sources"]] == [*mixture.sources]
    assert (found["kind"], found["splits"]["val"]["sources"][0]["samples"]) == ("metadataset", 4)
    shown = run(capsys, "inspect", mix)
    assert "split test: refused: " in shown
    assert "joins are not offered" in shown
    line = next(line.split() for line in shown.splitlines() if line.startswith("prepared-part "))
    assert line[1:4] == ["5", "1", "33.33%"]
    refused(capsys, "--print-config needs a mixture file", "inspect", mix, "--print-config")
    refused(capsys, "metadataset of Energon: gm.Mixture.from_energon reads it, gristmill inspect", "bench", mix)


def test_inspect_explains_a_tar(folder, capsys):
    shown = run(capsys, "inspect", folder / "chats.tar")
    assert "Images with it may be under sample=gm.ImageText(model, text=gm.Chat('json'))" in shown.replace('"', "'")


@pytest.mark.parametrize(
    ("where", "model"), [("prepared", "qwen2-vl"), ("prepared/[ab].tar", "qwen2-vl"), ("prepared", "llama4")]
)
def test_inspect_shows_texts_and_images_of_a_row(folder, capsys, where, model):
    options = [
        "--tokenizer", folder / "model", "--sample", "image_text", "--sample", f"model={model}",
        "--sample", 'text={"kind": "text", "field": "txt"}', "--set", "packing=best_fit", "--set", "batch_size=1",
        "--set", "eos=False", "--set", f"sequence_length={512 if model == 'llama4' else 128}",
    ]  # fmt: skip
    found = json.loads(run(capsys, "inspect", folder / where, "--row", 0, "--step", 0, "--full", *options, "--json"))
    for part in found["segments"]:
        assert part["document"]["text"] == part["text"]  # samples with images are whole in their row
        assert part["bytes"][0] % 512 == 0
        assert json.loads(part["document"]["record"])
    records = [(part["record"], part["images"]) for part in found["segments"]]
    assert records
    assert all(images == record % 4 for record, images in records)
    assert all("image_pad" not in part["text"] and "patch" not in part["text"] for part in found["segments"])
    assert {part["text"][-1:] for part in found["segments"]} <= {"0", "!"} | {str(n) for n in range(10)}
    shown = run(capsys, "inspect", folder / where, "--row", 0, "--step", 0, *options)
    assert "tokens  images  text" in shown


def test_images_of_a_row_that_have_tiles_count_once(folder, capsys):
    model = '{"name": "llama4", "size": 4, "max_tiles": 4, "tokens": 3}'
    options = [
        "--tokenizer", folder / "model", "--sample", "image_text", "--sample", f"model={model}",
        "--sample", 'text={"kind": "text", "field": "txt"}', "--set", "packing=pad", "--set", "batch_size=1",
        "--set", "eos=False", "--set", "sequence_length=256",
    ]  # fmt: skip
    found = json.loads(run(capsys, "inspect", folder / "prepared/a.tar", "--row", 0, "--step", 3, *options, "--json"))
    assert [(part["record"], part["images"]) for part in found["segments"]] == [(3, 3)]


def test_row_of_a_mixture_with_images(mixture, capsys):
    found = json.loads(run(capsys, "inspect", mixture, "--row", 1, "--step", 0, "--json"))
    assert found["source"] in ("captions", "chats")
    assert all("images" in part for part in found["segments"])


def test_rows_with_images_are_not_written_to_files(folder, mixture, tmp_path, capsys):
    refused(capsys, "rows with images are not written to files", "pack", mixture, "--output", tmp_path / "packed")
    refused(
        capsys, "--sample image_text: rows with images are not written", "pack", folder / "chats.tar",
        "--output", tmp_path / "other", "--tokenizer", folder / "model", "--sample", "image_text",
        "--sample", "model=qwen2-vl", "--packing", "pad",
    )  # fmt: skip
    assert not (tmp_path / "packed").exists()
    refused(
        capsys, "python benches/images.py", "bench", folder / "chats.tar", "--tokenizer", folder / "model",
        "--sample", "image_text", "--sample", "model=qwen2-vl",
    )  # fmt: skip


def test_bench_measures_a_mixture_with_images(mixture, capsys):
    found = json.loads(run(capsys, "bench", mixture, "--rounds", 1, "--threads", 1, "--steps", 1, "--json"))
    assert found["shares"].keys() == {"captions", "chats"}


def test_inspect_a_prepared_folder_in_a_store(folder, capsys):
    with Server(objects_of(folder), delay=0.01) as server:
        options = [f"--storage-option={name}={value}" for name, value in server.options().items()]
        local, stored = "prepared", "s3://bucket/prepared"
        expected = run(capsys, "inspect", folder / local)
        assert run(capsys, "inspect", stored, *options) == expected.replace(str(folder / local), stored)
        found = json.loads(run(capsys, "inspect", stored, *options, "--json"))
        assert (found["kind"], found["splits"]["train"]["samples"]) == ("energon", 10)
        rows = [
            "--row",
            "1",
            "--tokenizer",
            folder / "model",
            "--sample",
            "image_text",
            "--sample",
            "model=gemma3",
        ]
        rows += ["--set", "sequence_length=2048", "--set", "packing=pad", "--set", "eos=<|im_end|>"]
        of_store = run(capsys, "inspect", "row", stored, *rows, *options).replace(stored, str(folder / local))
        assert of_store.split() == run(capsys, "inspect", "row", folder / local, *rows).split()
        assert not readers()
        refused(capsys, "no such object", "inspect", "s3://bucket/model-of-none", *options)


def test_indexes_in_a_store_are_read_some_at_once(tmp_path):
    names = [f"{number:02}.tar" for number in range(40)]
    (tmp_path / ".nv-meta").mkdir()
    for name in names:
        data = tar_of(captions(2, 0))
        (tmp_path / name).write_bytes(data)
        (tmp_path / f"{name}.idx").write_bytes(tar_index(data))
    counts = {**dict.fromkeys(names, 2), names[7]: 3, names[20]: 5}
    (tmp_path / ".nv-meta/.info.json").write_text(json.dumps({"shard_counts": counts}))
    (tmp_path / ".nv-meta/split.yaml").write_text(json.dumps({"split_parts": {"train": names, "val": names[:7]}}))
    with Server(objects_of(tmp_path), delay=0.05) as server:
        folder = gm.EnergonFolder("s3://bucket", split="val", storage_options=server.options())
        assert len(folder) == 14
        asked_before = len(server.requests)
        server.most_at_once = 0
        with pytest.raises(gm.ShardError, match=r"07.tar: expected 3 samples, .* found 2 in 07.tar.idx"):
            gm.EnergonFolder("s3://bucket", storage_options=server.options())
        asked = [path for _, path, _ in server.requests[asked_before:] if path.endswith(".idx")]
        assert sorted(asked) == [f"bucket/{name}.idx" for name in names]
        assert server.most_at_once > 2
        server.is_out = True
        with pytest.raises(gm.GristmillError):
            gm.EnergonFolder("s3://bucket", storage_options={**server.options(), "retry_timeout": "1"})
    assert not readers()


def readers():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gristmill")]
