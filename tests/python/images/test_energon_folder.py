"""Folders as `energon prepare` makes them."""

import io
import itertools
import json
import math
import pickle
import struct
import tarfile
from pathlib import Path

import pytest

import gristmill as gm
from bucket import objects_of
from chat_models import write_vision
from helpers import assert_resumes, assert_same_batches, tar_of
from images import captions, image
from object_store import Server

MODEL = gm.ImageModel("gemma3", size=(8, 12), tokens=4)
COUNTS = {"train/a_00.tar": 6, "train/a_01.tar": 9, "val.tar": 4, "left.tar": 3}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_vision(tmp_path_factory.mktemp("models") / "vision")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train").mkdir()
    meta = tmp_path / ".nv-meta"
    meta.mkdir()
    for number, (name, count) in enumerate(COUNTS.items()):
        write(tmp_path / name, singles(count, number))
    (meta / ".info.json").write_text(json.dumps({"energon_version": "7.4.1", "shard_counts": COUNTS}))
    split(tmp_path)
    (meta / "dataset.yaml").write_text(
        "__module__: megatron.energon\n__class__: CaptioningSample\nfield_map: {image: png, caption: txt}\n"
    )
    return tmp_path


def singles(count, shard):
    """Records of one image and a caption."""
    return [
        (f"{number:04}", {"png": image(5 + number, 4, shard), "txt": f"caption {number} of {shard}".encode()})
        for number in range(count)
    ]


def write(path, records):
    """A tar and its index, as Energon writes it."""
    path.write_bytes(tar_of(records))
    with tarfile.open(path) as archive:
        members = [(member.name.partition(".")[0], member.offset) for member in archive]
        starts = [next(group)[1] for _, group in itertools.groupby(members, key=lambda member: member[0])]
        Path(f"{path}.idx").write_bytes(struct.pack(f"<{len(starts) + 1}Q", *starts, archive.offset))


def split(folder, exclude=("left.tar",)):
    parts = {"train": ["train/a_{00..01}.tar", "left.tar"], "val": ["val.tar"], "test": []}
    text = json.dumps({"split_parts": parts, "exclude": list(exclude)})
    (folder / ".nv-meta" / "split.yaml").write_text(text)  # JSON is YAML


def records(shards, tokenizer, **arguments):
    """Shard and record of all samples, in the order of the rows."""
    dataset = gm.PackedDataset(
        shards, tokenizer=tokenizer, sample=gm.ImageText(MODEL), packing="pad", sequence_length=128, epochs=1, lanes=1,
        eos=False, provenance=True, **arguments,
    )  # fmt: skip
    names = [piece.name.rpartition("/")[2] for piece in dataset.pieces]
    with iter(dataset) as iterator:
        rows = [row["provenance"][0] for row in iterator]
        filtered = iterator.stats()["filtered"]
    return [(names[shard], int(record)) for shard, record, _, _ in rows], filtered


def all_of(*counts):
    return [(name, record) for name, records in counts for record in records]


def test_splits_are_read_unmodified(folder, tokenizer, caplog):
    train = gm.EnergonFolder(folder)
    assert train.fields == {"images": "png", "text": "txt"}
    found, filtered = records(train, tokenizer)
    assert (found, filtered) == (all_of(("a_00.tar", range(6)), ("a_01.tar", range(9))), 0)
    assert "fields=None" not in caplog.text  # dataset.yaml says them
    found, _ = records(gm.EnergonFolder(folder, split="val"), tokenizer)
    assert found == all_of(("val.tar", range(4)))
    assert pickle.loads(pickle.dumps(train)).manifest == train.manifest
    named = gm.PackedDataset(
        [str(folder / "train/*.tar")], tokenizer=tokenizer, packing="best_fit", eos=False, epochs=1, batch_size=2,
        sample=gm.ImageText(MODEL, fields={"images": "png", "text": "txt"}),
    )  # fmt: skip
    dataset = gm.PackedDataset(
        train, tokenizer=tokenizer, packing="best_fit", eos=False, epochs=1, batch_size=2, sample=gm.ImageText(MODEL)
    )
    assert_same_batches(dataset, named)


def test_fields_of_the_folder_hold_beside_a_text_that_is_named(folder, tokenizer):
    for number, (name, count) in enumerate(COUNTS.items()):
        records = singles(count, number)
        write(folder / name, [(key, {**parts, "mask.png": image(4, 4)}) for key, parts in records])
    shards = gm.EnergonFolder(folder)

    def images(sample):
        dataset = gm.PackedDataset(
            shards, tokenizer=tokenizer, sample=sample, packing="pad", sequence_length=128, epochs=1, eos=False
        )
        return sum(int(row["image_masks"].sum()) for row in dataset)

    assert images(gm.ImageText(MODEL)) == 15
    assert images(gm.ImageText(MODEL, text=gm.Text("txt"))) == 15
    assert images(gm.ImageText(MODEL, fields={"text": "txt"})) == 30
    assert images(gm.ImageText(MODEL, fields={"images": ["png"], "text": "txt"})) == 30


def test_excluded_samples_and_subsets_are_left_out(folder, tokenizer):
    split(folder, ["left.tar", "train/a_00.tar/000{1..2}", "train/a_01.tar/0008"])
    found, filtered = records(gm.EnergonFolder(folder), tokenizer)
    assert found == all_of(("a_00.tar", [0, 3, 4, 5]), ("a_01.tar", range(8)))
    assert filtered == 3
    for subset, expected in [
        ((0, 3), all_of(("a_00.tar", [0]))),
        ((0.8, 1.0), all_of(("a_01.tar", [6, 7]))),
        ((5, None), all_of(("a_00.tar", [5]), ("a_01.tar", range(8)))),
        ((0.0, 0.5), all_of(("a_00.tar", [0, 3, 4, 5]), ("a_01.tar", [0]))),
    ]:
        assert records(gm.EnergonFolder(folder, subset=subset), tokenizer)[0] == expected, subset
    dataset = gm.PackedDataset(
        gm.EnergonFolder(folder, subset=(1, 13)), tokenizer=tokenizer, sample=gm.ImageText(MODEL), packing="best_fit",
        sequence_length=128, batch_size=2, lanes=2, seed=1, epochs=3, eos=False,
    )  # fmt: skip
    assert_resumes(dataset, 3)
    mixture = gm.Mixture({"a": gm.Source(gm.EnergonFolder(folder), weight=1, sample=gm.ImageText(MODEL), epochs=1)})
    with iter(gm.PackedDataset(mixture, tokenizer=tokenizer, packing="pad", eos=False, lanes=1)) as iterator:
        list(iterator)
        assert iterator.stats()["filtered"] == 3


def test_folders_that_do_not_fit_are_refused(folder, tokenizer, tmp_path):
    def refused(match, *arguments, **named):
        with pytest.raises((gm.ArgumentError, gm.ArgumentTypeError, gm.MissingShardError), match=match):
            gm.EnergonFolder(*arguments, **named)

    refused("expected a folder with .nv-meta", folder / "train")
    refused(r"path='msc://bucket/x': .* found a URL of no store that is read: mount the store", "msc://bucket/x")
    refused("found a file: gm.Mixture.from_energon reads metadatasets", folder / "mix.yaml")
    (folder / "x.jsonl").write_text("{}\n")
    refused("expected its index .*x.jsonl.idx' beside it, found none: run `energon prepare`", folder / "x.jsonl")
    refused("split='dev': expected one of 'train', 'val', 'test'", folder, split="dev")
    refused("split='test': expected samples in it, found none", folder, split="test")
    refused("within the 15 samples of the split", folder, subset=(3, 99))
    refused("subset", folder, subset=("0%", "50%"))
    split(folder, ["train/a_00.tar/0007"])
    refused("exclude names '0007' of 'train/a_00.tar', which has no such sample", folder)
    split(folder, ["nowhere.tar/0007"])
    refused("which is in no shard of the folder", folder)
    split(folder)
    (folder / "val.tar").unlink()
    refused("no such file", folder, split="val")
    split(folder, ["left.tar", "train/a_00.tar/0001"])
    with pytest.raises(gm.ArgumentError, match="leaves out samples of its own"):
        gm.PackedDataset(
            gm.EnergonFolder(folder), tokenizer=tokenizer, drop=gm.RowList("x.txt"), packing="pad",
            sample=gm.ImageText(MODEL),
        )  # fmt: skip


def test_counts_of_shards_are_compared_with_the_folders(folder, tokenizer):
    tar, index = folder / "val.tar", folder / "val.tar.idx"

    def refused(match):
        with pytest.raises(gm.ShardError, match=match) as caught:
            gm.EnergonFolder(folder, split="val")
        assert caught.value.shard == str(tar)

    whole = index.read_bytes()
    index.write_bytes(whole[:-8])
    refused("val.tar: expected 4 samples, as .info.json says, found 3 in val.tar.idx: prepare the folder again")
    index.write_bytes(b"")
    refused("expected 4 samples, as .info.json says, found 0 in val.tar.idx")
    index.write_bytes(whole)
    tar.write_bytes(tar_of(captions(7, 2)))
    refused(
        r"byte \d+: expected 4 samples, as .info.json says, found more in the tar, which continues where val.tar.idx"
    )
    index.unlink()
    refused("expected 4 samples, as .info.json says, found 7 in the tar")
    tar.write_bytes(tar_of(singles(4, 2)))
    assert len(records(gm.EnergonFolder(folder, split="val"), tokenizer)[0]) == 4
    # A tar that is cut is the run's to report.
    tar.write_bytes(tar.read_bytes()[:-20000])
    with pytest.raises(gm.ShardError, match=r"val.tar: record .*it was cut"):
        records(gm.EnergonFolder(folder, split="val"), tokenizer)


def test_folders_of_stores_are_those_of_the_disk(folder, tokenizer):
    split(folder, ["left.tar", "train/a_00.tar/000{1..2}", "train/a_01.tar/0008"])
    (folder / "val.tar.idx").unlink()
    mix = metadataset(
        folder / "mixes" / "mix.yaml",
        train={"blend": [{"weight": 5, "path": "../"}, {"weight": 2, "path": "nested.yaml"}]},
    )
    metadataset(folder / "mixes" / "nested.yaml", train={"path": "./..", "split_part": "val"})
    with Server(objects_of(folder)) as server:
        options = server.options()
        for url in ("s3://bucket", "s3://bucket/"):
            for more in ({}, {"subset": (0.0, 0.5)}, {"split": "val"}):
                stored = gm.EnergonFolder(url, **more, storage_options=options)
                local = gm.EnergonFolder(folder, **more)
                assert (len(stored), stored.fields) == (len(local), local.fields)
                assert records(stored, tokenizer) == records(local, tokenizer)
        assert len(stored.part(2)) == 2
        stored = gm.Mixture.from_energon(
            "s3://bucket/mixes/mix.yaml", sample=gm.ImageText(MODEL), epochs=1, storage_options=options
        )
        local = gm.Mixture.from_energon(mix, sample=gm.ImageText(MODEL), epochs=1)
        settings = {"tokenizer": tokenizer, "packing": "pad", "sequence_length": 128, "lanes": 1, "eos": False}
        assert_same_batches(gm.PackedDataset(stored, **settings), gm.PackedDataset(local, **settings))
        for path, message in [
            ("s3://bucket/train", "expected a folder with .nv-meta"),
            ("s3://bucket/mixes/mix.yaml", "from_energon reads metadatasets"),
        ]:
            with pytest.raises(gm.ArgumentError, match=message):
                gm.EnergonFolder(path, storage_options=options)
        with pytest.raises(gm.GristmillError, match=r"cannot read the metadataset 's3://bucket/x.yaml'"):
            gm.Mixture.from_energon("s3://bucket/x.yaml", storage_options=options)
    # One more image than the index says, which is larger than the end of a tar.
    with tarfile.open(folder / "train/a_01.tar", "a") as archive:
        member = tarfile.TarInfo("0099.png")
        member.size = 20_000
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    with (
        Server(objects_of(folder)) as server,
        pytest.raises(
            gm.ShardError, match=r"s3://bucket/train/a_01.tar.*expected 9 samples, as .info.json says, found 10"
        ),
    ):
        gm.EnergonFolder("s3://bucket", storage_options=server.options())


def metadataset(path, **splits):
    value = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def shares(mixture):
    return {name: (source.arguments["shards"].split, source.weight) for name, source in mixture.sources.items()}


def test_metadatasets_are_mixtures(folder, tokenizer, tmp_path):
    here = f"./{folder.name}"
    blend = [{"weight": 3, "path": here}, {"path": here, "split_part": "val"}]
    nested = metadataset(tmp_path.parent / "nested.yaml", train={"blend": blend})
    mix = metadataset(
        tmp_path.parent / "mix.yaml",
        train={
            "blend": [
                {"weight": 5, "path": here, "subflavors": {"kind": "captions"}},
                {"weight": 2.5, "path": here, "subset": {"range": ["0%", "60%"]}},
                {"weight": 2.5, "path": nested.name},
                {"weight": 0, "path": "./nowhere"},
            ]
        },
        val={"path": here, "subset": {"range": [1, "end"]}},
    )
    sample = gm.ImageText(MODEL)
    train = gm.Mixture.from_energon(mix, sample=sample, epochs=1)
    name = folder.name
    assert shares(train) == {
        name: ("train", 8.0), f"{name}-2": ("train", 4.0), f"{name}-3": ("train", 3.0), f"{name}-4": ("val", 1.0),
    }  # fmt: skip
    dataset = gm.PackedDataset(
        train, tokenizer=tokenizer, packing="pad", sequence_length=128, lanes=1, eos=False, source_arrays=True
    )
    order = [int(row["source"]) for row in dataset]
    assert [order.count(source) for source in range(4)] == [15, 9, 15, 4]
    first = [order[:16].count(source) for source in range(4)]
    assert all(abs(found - share) <= 1 for found, share in zip(first, [8, 4, 3, 1], strict=True))
    assert_resumes(dataset, 7)
    val = gm.Mixture.from_energon(mix, "val", sample=sample, epochs=1)
    dataset = gm.PackedDataset(val, tokenizer=tokenizer, packing="pad", sequence_length=128, lanes=1, eos=False)
    with iter(dataset) as iterator:
        assert (sum(1 for _ in iterator), iterator.stats()["filtered"]) == (3, 1)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("epochs", [1, 2])
def test_epochs_of_a_blend_have_exactly_the_repetitions(folder, tokenizer, tmp_path, lanes, epochs):
    split(folder, exclude=("left.tar", "train/a_00.tar/0002"))
    here = f"./{folder.name}"
    times = [(1.5, {}), (2, {"subset": {"range": [3, 9]}}), (0.75, {}), (0, {})]
    blend = [{"repetitions": share, "path": here, **more} for share, more in times]
    path = metadataset(tmp_path.parent / "epochs.yaml", train={"blend_epochized": blend})
    mixture = gm.Mixture.from_energon(path, sample=gm.ImageText(MODEL), epochs=epochs)
    name = folder.name
    # 14 samples without the excluded one; 6 of the subset.
    counts = {name: 14, f"{name}-part": 7, f"{name}-2": 12, f"{name}-part-2": 10}
    assert {name: source.weight for name, source in mixture.sources.items()} == counts
    assert [source.arguments["epochs"] for source in mixture.sources.values()] == [epochs, epochs, 2 * epochs, epochs]
    assert len(gm.EnergonFolder(folder)) == 14
    dataset = gm.PackedDataset(
        mixture, tokenizer=tokenizer, packing="pad", sequence_length=128, lanes=lanes, batch_size=2, eos=False,
        source_arrays=True, provenance=True,
    )  # fmt: skip
    with iter(dataset) as iterator:
        rows = [
            (int(source), tuple(entry[0, :2].tolist()))
            for batch in iterator
            for source, entry in zip(batch["source"], batch["provenance"], strict=True)
            if source >= 0
        ]
        sources = iterator.stats()["sources"]
    assert {name: found["documents"] for name, found in sources.items()} == {
        name: epochs * count for name, count in counts.items()
    }
    times_of = [{rows.count(row) for row in rows if row[0] == source} for source in range(4)]
    assert times_of == [{epochs}, {epochs}, {2 * epochs}, {epochs}]
    if lanes == epochs == 1:
        order = [source for source, _ in rows]
        for length in range(len(order)):
            for source, count in enumerate(counts.values()):
                assert abs(order[:length].count(source) - length * count / 43) <= 1.5
    assert_resumes(dataset, 5)


@pytest.mark.parametrize("split", ["val", "test", "train"])
def test_evaluation_of_an_epochized_blend_has_each_sample_once(folder, tokenizer, tmp_path, split):
    here = f"./{folder.name}"
    items = [
        {"repetitions": 2, "path": here, "split_part": "train"},
        {"repetitions": 0.25, "path": here, "split_part": "val"},
    ]
    path = metadataset(
        tmp_path.parent / "once.yaml",
        **{split: {"blend_epochized": [*items, {"blend": [{"path": here, "split_part": "train"}]}]}},
    )
    sizes = [len(gm.EnergonFolder(folder, split=part)) for part in ("train", "val", "train")]

    def shares_of(**more):
        return [source.weight for source in gm.Mixture.from_energon(path, split, **more).sources.values()]

    if split == "train":
        metadataset(path, train={"blend_epochized": items})
        assert shares_of() == [2 * sizes[0], sizes[1] // 4]
        assert shares_of(repeats=False) == sizes[:2]
        return
    once = [size // math.gcd(*sizes) for size in sizes]
    assert shares_of() == once
    mixture = gm.Mixture.from_energon(path, split, sample=gm.ImageText(MODEL), epochs=1)
    dataset = gm.PackedDataset(
        mixture, tokenizer=tokenizer, packing="pad", sequence_length=128, lanes=1, eos=False, seed=None
    )
    with iter(dataset) as iterator:
        assert sum(1 for _ in iterator) == sum(sizes)
        assert {own["documents"] for own in iterator.stats()["sources"].values()} == {*sizes}
    with pytest.raises(gm.ArgumentTypeError, match="repeats"):
        gm.Mixture.from_energon(path, split, repeats="no")


def test_samples_of_a_mixture_are_chosen_by_name_or_by_subflavors(folder, tmp_path):
    meta = folder / ".nv-meta" / "dataset.yaml"
    described = json.loads(meta.read_text()) if meta.is_file() and meta.read_text().startswith("{") else {}
    meta.write_text(json.dumps({**described, "__class__": "CrudeWebdataset", "subflavors": {"kind": "own", "a": 1}}))
    here = f"./{folder.name}"
    inner = metadataset(
        tmp_path.parent / "inner-names.yaml",
        train={"blend": [{"path": here, "subflavors": {"kind": "inner"}}, {"path": here, "subflavor": "old"}]},
    )
    path = metadataset(
        tmp_path.parent / "names.yaml",
        train={"blend": [{"path": here}, {"path": f"./{inner.name}", "subflavors": {"kind": "outer", "b": 2}}]},
    )
    captions, chats = gm.ImageText(MODEL, text=gm.Text("txt")), gm.ImageText(MODEL, text=gm.Text("caption"))
    seen = []

    def choose(subflavors):
        seen.append(subflavors)
        return captions if subflavors["kind"] == "own" else chats

    found = gm.Mixture.from_energon(path, sample=choose)
    assert seen == [
        {"kind": "own", "a": 1},
        {"kind": "outer", "a": 1, "b": 2},
        {"kind": "outer", "a": 1, "b": 2, "__subflavor__": "old"},
    ]
    assert [source.arguments["sample"] for source in found.sources.values()] == [captions, chats, chats]
    names = [*found.sources]
    by_name = gm.Mixture.from_energon(path, sample=dict(zip(names, [chats, captions, chats], strict=True)))
    assert [source.arguments["sample"] for source in by_name.sources.values()] == [chats, captions, chats]
    for given in ({names[0]: chats}, dict.fromkeys([*names, "other"], chats)):
        with pytest.raises(gm.ArgumentError, match=f"expected a sample for each of the sources \\['{names[0]}'"):
            gm.Mixture.from_energon(path, sample=given)
    meta.write_text(json.dumps({"__class__": "CrudeWebdataset", "subflavors": ["a"]}))
    with pytest.raises(gm.ArgumentError, match="subflavors: expected names and values"):
        gm.Mixture.from_energon(path)


def test_endless_epochs_of_a_blend_inside_of_a_blend(folder, tmp_path):
    here = f"./{folder.name}"
    inner = {"blend_epochized": [{"repetitions": 2, "path": here, "split_part": "val"}, {"path": here}]}
    path = metadataset(tmp_path.parent / "inner.yaml", train={"blend": [inner, {"weight": 2, "path": here}]})
    mixture = gm.Mixture.from_energon(path)
    # A third of the weight is divided as 8 to 15.
    assert [source.weight for source in mixture.sources.values()] == [8, 15, 46]
    assert [source.arguments["epochs"] for source in mixture.sources.values()] == [None] * 3


def test_metadatasets_that_are_not_offered_are_refused(folder):
    here = f"./{folder.name}"
    path = folder.parent / "odd.yaml"
    for split, match in [
        ({"join": []}, "found join: joins are not offered"),
        ({"path": here, "aux": {"x": here}}, "its aux 'x' is read by record=gm.RecordFunction"),
        ({}, "or a blend with weights or repetitions, found none$"),
        ({"subset": None, "limit": 3}, "or a blend with weights or repetitions, found limit$"),
        ({"blend": []}, r"odd.yaml: split='train': expected a folder with a weight above 0 in it, found none$"),
        ({"blend": [{"path": here, "weight": 0}]}, "expected a folder with a weight above 0 in it, found none$"),
        ({"path": here, "blend": []}, "expected the keys .*, found 'blend', which may change the samples"),
        ({"path": here, "limit": 3}, "expected the keys .*, found 'limit', which may change the samples"),
        ({"blend": [{"path": here, "repetitions": 2}]}, "found 'repetitions'"),
        ({"blend_epochized": [{"path": here, "weight": 2}]}, "found 'weight'"),
        ({"blend": [{"path": here}], "split_part": "val"}, "found 'split_part'"),
        ({"blend": {"path": here}}, "blend: expected a list of paths, found dict"),
        ({"path": here, "shuffle_over_epochs_multiplier": -1}, "expected 1, each sample once an epoch, found -1"),
        ({"path": here, "shuffle_over_epochs_multiplier": None}, "found None: leave it out; seed=None"),
        ({"path": here, "split_part": 3}, "split_part: expected text, found 3"),
        ({"path": here, "split_config": "other.yaml"}, "expected .nv-meta/other.yaml"),
        ({"path": "odd.yaml", "split_config": "split.yaml"}, "split_config of another metadataset is not offered"),
        ({"path": "odd.yaml", "dataset_config": "a.yaml"}, "dataset_config of another metadataset is not offered"),
        ({"path": "msc://profile/folder"}, "'msc://profile/folder': .* found a URL of no store that is read: mount"),
        ({"path": here, "subset": {"range": ["end", 5]}}, "as the start of a range, found 'end'"),
        ({"path": here, "subset": {"range": ["1.2.3%", 5]}}, "expected a number, a percentage or end"),
        ({"path": here, "subset": {"range": [0, 5], "step": 2}}, "expected a subset with a range of two numbers"),
        (
            {"blend_epochized": [{"repetitions": -1, "path": here}]},
            "expected repetitions from 0 on in each item of blend",
        ),
        ({"blend_epochized": [{"repetitions": 0.05, "path": here}]}, "expected repetitions that give a sample"),
        ({"blend_epochized": [{"blend": [{"path": here}, {"path": here}]}]}, "repetitions of a blend are not offered"),
        ({"blend": [{"path": here}], "subset": {"range": [0, 1]}}, "expected percentages in a subset of a blend"),
        (
            {"path": "odd.yaml", "subset": {"range": [0, 1]}},
            "expected percentages in a subset of a blend or another metadataset",
        ),
        ({"path": "odd.yaml"}, "at most 16 metadatasets inside of each other"),
        ({"blend": [{"weight": -1, "path": here}]}, "expected weight from 0 on"),
        ({"path": here, "subset": {"range": [0, "50%"]}}, "expected two numbers or two percentages in a range"),
        ({"path": here, "subset": {"range": ["x", 1]}}, "expected a number, a percentage or end"),
        ([], "expected a path or a blend, found list"),
    ]:
        metadataset(path, train=split)
        with pytest.raises(gm.ArgumentError, match=match):
            gm.Mixture.from_energon(path)
    with pytest.raises(gm.ArgumentError, match="split='val': expected one of 'train'"):
        gm.Mixture.from_energon(path, "val")
    path.write_text("a: 1\n")
    with pytest.raises(gm.ArgumentError, match="expected a metadataset of Energon"):
        gm.Mixture.from_energon(path)
    path.write_text(json.dumps({"__class__": "MetadatasetV2", "splits": {"train": {"path": here}}, "more": 1}))
    with pytest.raises(gm.ArgumentError, match="found 'more', which may change the samples"):
        gm.Mixture.from_energon(path)


def test_keys_that_are_there_twice_are_refused(folder):
    """Readers of YAML and JSON take the last one: what the first `exclude` names would be trained on."""
    meta = folder / ".nv-meta"
    counts = (meta / ".info.json").read_text()
    for file, content, match in [
        ("split.yaml", "split_parts: {train: [val.tar]}\nexclude: [val.tar/0000]\nexclude: []\n",
         r"split.yaml, line 3: the key 'exclude' is on line 2, too"),
        ("dataset.yaml", "field_map: {image: png, caption: txt, image: jpg}\n",
         r"dataset.yaml, line 1: the key 'image' is on line 1, too"),
        (".info.json", counts.replace("{", '{"shard_counts": {}, ', 1),
         r"\.info\.json: the key 'shard_counts' is there twice"),
    ]:  # fmt: skip
        before = (meta / file).read_text()
        (meta / file).write_text(content)
        with pytest.raises(gm.ArgumentError, match=match):
            gm.EnergonFolder(folder)
        (meta / file).write_text(before)
    (folder / "mix.yaml").write_text(
        "__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n      - {path: ., weight: 1, weight: 5}\n"
    )
    with pytest.raises(gm.ArgumentError, match=r"mix.yaml, line 5: the key 'weight' is on line 5, too"):
        gm.Mixture.from_energon(folder / "mix.yaml", sample=gm.ImageText(MODEL))


def test_metadatasets_of_the_first_kind_are_blends(folder, tmp_path):
    datasets = [{"path": f"./{folder.name}", "weight": 3, "subflavor": "a"}, {"path": f"./{folder.name}"}]
    value = {"__module__": "megatron.energon", "__class__": "Metadataset", "splits": {"train": {"datasets": datasets}}}
    path = folder.parent / "first.yaml"
    path.write_text(json.dumps(value))
    name = folder.name
    assert shares(gm.Mixture.from_energon(path)) == {name: ("train", 3.0), f"{name}-2": ("train", 1.0)}


def test_other_files_of_a_folder_are_followed(folder, tokenizer, tmp_path):
    meta = folder / ".nv-meta"
    for number, (name, count) in enumerate(COUNTS.items()):
        more = [(key, {**parts, "long.txt": parts["txt"] * 2}) for key, parts in singles(count, number)]
        write(folder / name, more)
    (meta / "other.json").write_text(
        json.dumps({"split_parts": {"train": ["val.tar"], "val": []}, "exclude": ["val.tar/0001"]})
    )
    (meta / "long.yaml").write_text("sample_type: {__module__: a, __class__: CaptioningSample}\n")
    with (meta / "long.yaml").open("a") as file:
        file.write("field_map: {image: png, caption: long.txt}\n")
    more = {"split_config": "other.json", "dataset_config": "long.yaml"}
    direct = gm.EnergonFolder(folder, **more)
    assert direct.fields == {"images": "png", "text": "long.txt"}
    assert records(direct, tokenizer) == (all_of(("val.tar", [0, 2, 3])), 1)
    path = metadataset(folder.parent / "configs.yaml", train={"path": f"./{folder.name}", **more})
    mixture = gm.Mixture.from_energon(path, sample=gm.ImageText(MODEL), epochs=1)
    encoder = gm.Encoder.from_file(tokenizer)
    rows = gm.PackedDataset(mixture, tokenizer=tokenizer, packing="pad", eos=False, lanes=1, seed=None, layout="grain")
    decoded = [encoder.decode(row["tokens"][row["tokens_segment_ids"] > 0]) for row in rows]
    assert [text.rpartition("<end_of_image>")[2].strip() for text in decoded] == [
        f"caption {number} of 2" * 2 for number in (0, 2, 3)
    ]
    with pytest.raises(gm.ArgumentError, match=r"expected \.nv-meta/none\.yaml, the split of the folder"):
        gm.EnergonFolder(folder, split_config="none.yaml")
    with pytest.raises(gm.ArgumentTypeError, match="dataset_config"):
        gm.EnergonFolder(folder, dataset_config=3)
