"""Stores of files that record functions read by name: folders, prepared tars, on disks and in stores."""

import json
import sqlite3
import struct
import threading

import pytest

import gristmill as gm
from bucket import objects_of
from chat_models import VISION_CHATML, write_vision
from helpers import assert_resumes, assert_same_batches, tar_of
from images import image, tar_index
from object_store import Server

MODEL = gm.ImageModel("qwen3-vl", patch_size=4, min_pixels=64, max_pixels=512)
COUNT = 12


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_vision(tmp_path_factory.mktemp("models") / "vision")


@pytest.fixture
def folder(tmp_path):
    """Lines, images in a folder, texts and images in tars, and a metadataset of them."""
    records = [{"image": f"a/p{at}.png", "n": at, "caption": f"Caption {at}."} for at in range(COUNT)]
    lines(tmp_path / "x.jsonl", records)
    (tmp_path / "pictures/a").mkdir(parents=True)
    members = []
    for at in range(COUNT):
        (tmp_path / f"pictures/a/p{at}.png").write_bytes(image(8 + 8 * (at % 3), 8, at))
        told = {"txt": f"Text {at}. ".encode(), "json": json.dumps({"n": at}).encode()}
        members.append((f"d/t{at}", {"png": image(8, 8 + 8 * (at % 3), at), **told}))
    prepare(tmp_path / "texts", {"0.tar": members[:5], "1.tar": members[5:]})
    aux = {"pictures": "filesystem://pictures", "texts": "./texts"}
    metadataset(tmp_path / "mix.yaml", train={"path": "x.jsonl", "aux": aux})
    return tmp_path


def lines(path, records):
    """A JSONL file and its index, as `energon prepare` makes it."""
    written = [json.dumps(record) + "\n" for record in records]
    path.write_text("".join(written))
    ends = [sum(map(len, written[:at])) for at in range(len(written) + 1)]
    path.with_name(f"{path.name}.idx").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))


def prepare(folder, tars):
    """A folder of tars with the index of their members, as `energon prepare` makes them."""
    (folder / ".nv-meta").mkdir(parents=True)
    counts = {name: len(members) for name, members in tars.items()}
    (folder / ".nv-meta/.info.json").write_text(json.dumps({"shard_counts": counts}))
    (folder / ".nv-meta/split.yaml").write_text(json.dumps({"split_parts": {"train": [*tars]}}))
    with sqlite3.connect(folder / ".nv-meta/index.sqlite") as index:
        index.execute("CREATE TABLE samples (tar_file_id, sample_key, sample_index, byte_offset, byte_size)")
        index.execute("CREATE TABLE sample_parts "
                      "(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size)")  # fmt: skip
        for tar, (name, members) in enumerate(tars.items()):
            data = tar_of(members)
            (folder / name).write_bytes(data)
            (folder / f"{name}.idx").write_bytes(tar_index(data))
            for number, (key, parts) in enumerate(members):
                index.execute("INSERT INTO samples VALUES (?, ?, ?, 0, 0)", (tar, key, number))
                for part, content in parts.items():
                    place = (tar, number, part, data.index(content), len(content))
                    index.execute("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", place)
    index.close()


def metadataset(path, **splits):
    path.write_text(json.dumps({"__class__": "MetadatasetV2", "splits": splits}))
    return path


def cook(record, pictures, texts):
    """A caption of the line and the tars, with an image of the folder and one of the tars."""
    about = record["json"]
    key = f"d/t{about['n']}"
    assert texts.get(f"{key}.json", record) == {"n": about["n"]}
    return {"text": texts[f"{key}.txt"][0] + about["caption"],
            "images": [pictures.get(about["image"], record), texts.get(f"{key}.png")]}  # fmt: skip


FUNCTION = gm.RecordFunction(cook, ["json"])
SAMPLE = gm.ImageText(MODEL, text=gm.Text("text"), record=FUNCTION)


def dataset(shards, tokenizer, **more):
    settings = {"packing": "pad", "sequence_length": 128, "lanes": 1, "layout": "grain", "eos": False, "seed": None}
    return gm.PackedDataset(shards, tokenizer=tokenizer, **{**settings, **more})


def mixture(path, sample=SAMPLE, **more):
    return gm.Mixture.from_energon(path, sample=sample, epochs=1, **more)


def read(shards, tokenizer, **more):
    """The text and the sizes of images of each sample, and the bad records."""
    encoder = gm.Encoder.from_pretrained(tokenizer)
    with iter(dataset(shards, tokenizer, **more)) as iterator:
        found = []
        for row in iterator:
            grids = row["image_grid_thw"][row["image_masks"] > 0].tolist()
            text = encoder.decode(row["tokens"][row["tokens_loss_mask"] > 0])
            found.append((text, [(4 * columns, 4 * rows) for _, rows, columns in grids]))
        return found, [entry["reason"] for entry in iterator.quarantine()]


def test_files_of_folders_and_tars_are_images_and_texts(folder, tokenizer):
    sizes = [8 + 8 * (at % 3) for at in range(COUNT)]
    expected = [(f"Text {at}. Caption {at}.", [(size, 8), (8, size)]) for at, size in enumerate(sizes)]
    assert read(mixture(folder / "mix.yaml"), tokenizer) == (expected, [])
    # Without a metadataset: the stores are arguments of the function.
    aux = {"pictures": f"filesystem://{folder}/pictures", "texts": str(folder / "texts")}
    alone = gm.ImageText(MODEL, text=gm.Text("text"), record=gm.RecordFunction(cook, ["json"], aux=aux))
    assert read(gm.EnergonFolder(folder / "x.jsonl"), tokenizer, sample=alone, epochs=1) == (expected, [])
    # The images of members have the pixels of their files.
    first = gm.ImageText(MODEL, text=gm.Text("caption"), image_root=str(folder / "pictures"))
    (own, *_) = dataset(str(folder / "x.jsonl"), tokenizer, sample=first, epochs=1)
    patches = int(own["image_grid_thw"].prod(axis=1).sum())
    both = next(iter(dataset(mixture(folder / "mix.yaml"), tokenizer)))
    assert (both["image_patches"][:patches] == own["image_patches"][:patches]).all()


def test_media_have_the_descriptions_of_the_index(folder, tokenizer):
    """As `energon prepare --media-metadata-by-extension` writes them, of folders and of prepared tars alike."""

    def described(record, pictures, texts):
        about = record["json"]
        seen = pictures.get_media_metadata(about["image"])
        film = texts.get_media_metadata("a/film.mp4")
        text = f"{seen.width} x {seen.height} {film.video_fps} {film.audio_channels} {about['caption']}"
        return {"text": text, "images": [pictures.get(about["image"])]}

    sample = gm.ImageText(MODEL, text=gm.Text("text"), record=gm.RecordFunction(described, ["json"]))
    _, bad = read(mixture(folder / "mix.yaml", sample, on_error="quarantine", max_error_rate=1.0), tokenizer)
    assert len(bad) == COUNT
    assert "index.sqlite, found none: run `energon prepare --media-metadata-by" in bad[0]
    lines = [json.loads(line) for line in (folder / "x.jsonl").read_text().splitlines() if line.strip()]
    (folder / "pictures/.nv-meta").mkdir()
    still = json.dumps({"width": 8, "height": 9, "format": "PNG", "mode": "RGB"})
    film = json.dumps({"video_fps": 25.0})
    for name, rows in {
        "pictures": [(line["image"], "image", still) for line in lines[1:]],
        "texts": [("a/film.mp4", "av", film)],
    }.items():
        with sqlite3.connect(folder / name / ".nv-meta/index.sqlite") as index:
            index.execute("CREATE TABLE media_metadata (entry_key TEXT, metadata_type TEXT, metadata_json TEXT)")
            index.executemany("INSERT INTO media_metadata VALUES (?, ?, ?)", dict.fromkeys(rows))
        index.close()
    found, bad = read(mixture(folder / "mix.yaml", sample, on_error="quarantine", max_error_rate=1.0), tokenizer)
    assert found[0][0] == f"8 x 9 25.0 None {lines[len(bad)]['caption']}"
    assert f"expected {lines[0]['image']!r} among the media of" in bad[0]


def test_a_run_with_stores_resumes(folder, tokenizer):
    settings = {"packing": "best_fit", "batch_size": 1, "seed": 1, "fit_window": 4}
    made = dataset(mixture(folder / "mix.yaml", shuffle_window=4), tokenizer, **settings)
    assert_resumes(made, steps=3)
    with iter(made) as iterator:
        next(iterator)
        state = iterator.get_state()
    (folder / "moved").mkdir()
    (folder / "pictures").rename(folder / "moved/pictures")
    moved = {"pictures": "filesystem://moved/pictures", "texts": "./texts"}
    metadataset(folder / "moved.yaml", train={"path": "x.jsonl", "aux": moved})
    with iter(dataset(mixture(folder / "moved.yaml"), tokenizer, **settings)) as iterator:
        iterator.set_state(state)  # files may move
        next(iterator)
    metadataset(folder / "more.yaml", train={"path": "x.jsonl", "aux": {**moved, "others": "./texts"}})

    def takes_others(record, pictures, texts, others):
        return cook(record, pictures, texts)

    named = gm.RecordFunction(takes_others, ["json"], name=FUNCTION.name)
    sample = gm.ImageText(MODEL, text=gm.Text("text"), record=named)
    with (
        iter(dataset(mixture(folder / "more.yaml", sample), tokenizer, **settings)) as iterator,
        pytest.raises(gm.StateError, match="aux"),
    ):
        iterator.set_state(state)


def test_missing_files_are_located(folder, tokenizer):
    def failing(record, pictures, texts):
        number = record["json"]["n"]
        if number == 0:
            return cook({"json": {**record["json"], "image": "a/none.png"}}, pictures, texts)
        if number == 1:
            texts.get("d/none.txt")
        if number == 2:
            texts.get("none")
        if number == 3:
            pictures.get(3)
        if number == 4:
            (folder / "pictures/a/p4.png").write_bytes(b"no image")
        if number == 5:
            return {"text": "a", "images": [{"name": "a"}]}
        if number == 6:
            return {"text": "a", "images": [pictures.get("a/p6.png").read()]}
        if number == 7:
            try:
                pictures.get("a/none.png")
            except FileNotFoundError:
                return {"text": "Found none."}
        if number == 8:
            assert pictures.get("a/p8.png").read() == (folder / "pictures/a/p8.png").read_bytes()
            assert texts.get("d/t8.png").read() == image(8, 24, 8)
        return cook(record, pictures, texts)

    sample = gm.ImageText(MODEL, text=gm.Text("text"), record=gm.RecordFunction(failing, ["json"]))
    found, bad = read(mixture(folder / "mix.yaml", sample, on_error="quarantine", max_error_rate=1.0), tokenizer)
    assert found[0] == ("Found none.", [])
    assert len(found) == COUNT - 7
    pictures, tars = folder / "pictures", folder / "texts"
    for reason, expected in zip(bad, [
        f"the function raised FileNotFoundError: aux 'pictures': expected the file 'a/none.png' in {pictures}, found",
        f"""KeyError: "aux 'texts': expected the file 'd/none.txt' in {tars}, found none""",
        f"""KeyError: "aux 'texts': expected the file 'none' in {tars}, found none""",
        "TypeError: aux 'pictures': expected the name of a file, found int",
        'the image "a/p4.png" at ',
        "expected a file of a store, as its get() returns it, as an image, found {",
        "TypeError: Object of type bytes is not JSON serializable",
    ], strict=True):  # fmt: skip
        assert expected in reason
    with pytest.raises(gm.ShardError, match=r"x.jsonl: record 0, byte 0: the function raised FileNotFoundError"):
        next(iter(dataset(mixture(folder / "mix.yaml", sample), tokenizer)))


def test_stores_that_do_not_fit_are_refused(folder, tokenizer):
    def refused(match, aux, sample=SAMPLE, path="x.jsonl"):
        metadataset(folder / "odd.yaml", train={"path": path, "aux": aux})
        with pytest.raises(gm.ArgumentError, match=match):
            dataset(mixture(folder / "odd.yaml", sample), tokenizer)

    both = {"pictures": "filesystem://pictures", "texts": "./texts"}
    refused("expected a function of a record and of the stores .*missing a required argument: 'texts'",
            {"pictures": "filesystem://pictures"})  # fmt: skip
    refused("unexpected keyword argument 'more'", {**both, "more": "./texts"})
    refused(r"odd.yaml: aux: texts: expected a folder `energon prepare` made", {**both, "texts": "x.jsonl"})
    refused("aux: texts: expected a folder `energon prepare` made", {**both, "texts": "mix.yaml"})
    refused(r"expected a path, or a URL of .*, found 'msc://store/x'", {**both, "texts": "msc://store/x"})
    refused("expected path or fs_path, found 'url'", {**both, "texts": {"url": "x"}})
    refused("expected a folder, or filesystem:// with one, found 3", {**both, "texts": 3})
    refused("expected .nv-meta/.info.json", {**both, "texts": "./pictures"})
    refused("aux: expected folders by name, found", ["pictures"])
    (folder / "texts/.nv-meta/index.sqlite").rename(folder / "index")
    refused("expected .*index.sqlite, found none: prepare the folder", both)
    (folder / "texts/.nv-meta/index.sqlite").write_bytes(b"no database" * 100)
    refused("index.sqlite, found file is not a database: prepare the folder again", both)
    for sample in (gm.ImageText(MODEL, text=gm.Text("caption")), gm.Text("caption"), None):
        refused("x: its aux 'pictures', 'texts' is read by record=gm.RecordFunction", both, sample)
    twice = gm.RecordFunction(cook, ["json"], aux={"texts": "x"})
    refused("aux 'texts' is in the metadataset and in aux=", both, gm.ImageText(MODEL, record=twice))
    metadataset(folder / "outer.yaml", train={"path": "mix.yaml", "aux": both})
    with pytest.raises(gm.ArgumentError, match="aux of another metadataset is not offered"):
        mixture(folder / "outer.yaml")
    with pytest.raises(gm.ArgumentTypeError, match="aux"):
        gm.RecordFunction(cook, ["json"], aux=["texts"])
    metadataset(folder / "odd.yaml", train={"path": "x.jsonl", "split_config": "a.yaml"})
    with pytest.raises(gm.ArgumentError, match=r"JSONL has no .nv-meta, of which 'a.yaml' would be a file"):
        mixture(folder / "odd.yaml", gm.Text("caption"))

    def with_primary(record, primary):
        return {"text": primary.get(".txt")}

    sample = gm.ImageText(MODEL, text=gm.Text("text"), record=gm.RecordFunction(with_primary, ["json"]))
    with pytest.raises(gm.ArgumentError, match="its primary is the store of an EnergonFolder of tars"):
        dataset(gm.EnergonFolder(folder / "x.jsonl"), tokenizer, sample=sample)


def test_lines_are_those_of_their_index(folder, tokenizer):
    path = folder / "x.jsonl"
    sample = gm.ImageText(MODEL, text=gm.Text("caption"), image_root=str(folder / "pictures"))

    def captions(shards):
        return [int(text.split()[1][:-1]) for text, _ in read(shards, tokenizer, sample=sample, epochs=1)[0]]

    whole = gm.EnergonFolder(path, split="val")
    assert (len(whole), captions(whole), captions(whole.part(5))) == (COUNT, [*range(COUNT)], [*range(5)])
    path.write_text(path.read_text().replace("\n", "\n  \n\n", 1))
    written = path.read_text()
    ends = [at + 1 for at, sign in enumerate(written) if sign == "\n"]
    ends = [0, *ends[2:]]
    path.with_name("x.jsonl.idx").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
    for subset in [(0, 3), (1, None), (2, 7), (0.25, 0.5), (0.5, None)]:
        part = gm.EnergonFolder(path, subset=subset)
        low, high = (int(COUNT * end) if isinstance(end, float) else end for end in subset)
        expected = [*range(COUNT)][low:high]
        assert (len(part), captions(part)) == (len(expected), expected)
        assert captions(part.part(2)) == expected[:2]
        assert len(part.part(2).part(1)) == 1
    for node in ({"blend_epochized": [{"repetitions": 1.5, "path": "x.jsonl"}]}, {"path": "x.jsonl"}):
        made = mixture(metadataset(folder / "mix.yaml", train=node), sample)
        assert sorted(captions_of_mixture(made, tokenizer)) == sorted(
            [*range(COUNT), *(range(6) if "blend_epochized" in node else ())]
        )
    path.write_text(written + "\n")
    with pytest.raises(gm.ShardError, match=r"expected the \d+ bytes of x.jsonl.idx, found \d+: run `energon prepare`"):
        gm.EnergonFolder(path)


def captions_of_mixture(made, tokenizer):
    encoder = gm.Encoder.from_pretrained(tokenizer)
    rows = dataset(made, tokenizer)
    return [int(encoder.decode(row["tokens"][row["tokens_loss_mask"] > 0]).split()[1][:-1]) for row in rows]


def test_stores_on_the_network_are_those_of_the_disk(folder, tokenizer):
    local = dataset(mixture(folder / "mix.yaml"), tokenizer)
    aux = {"pictures": "filesystem+s3://bucket/pictures", "texts": "s3://bucket/texts"}
    metadataset(folder / "urls.yaml", train={"path": "x.jsonl", "aux": aux})
    with Server(objects_of(folder)) as server:
        options = server.options()
        before = threading.active_count()
        for path in ("s3://bucket/mix.yaml", "s3://bucket/urls.yaml", folder / "urls.yaml"):
            stored = dataset(mixture(path, storage_options=options), tokenizer)
            assert_same_batches(stored, local)
        assert threading.active_count() == before
        paths = [path for _, path, _ in server.requests]
        assert sum("index.sqlite" in path for path in paths) <= 3 * 2 + 2
    # An outage is no missing file, also if the function catches it.

    def careless(record, pictures, texts):
        try:
            return cook(record, pictures, texts)
        except Exception:
            return {"text": "No matter."}

    sample = gm.ImageText(MODEL, text=gm.Text("text"), record=gm.RecordFunction(careless, ["json"]))

    def is_refused(handler, key, query):
        if server.is_refusing and key.endswith(".tar") and handler.command == "GET":
            handler.send_error(503)
            return True
        return False

    for is_whole in (True, False):
        with Server(objects_of(folder), answer=is_refused) as server:
            server.is_refusing = False
            options = {**server.options(), "retry_timeout": "1"}
            more = {"on_error": "quarantine", "max_error_rate": 1.0, "storage_options": options}
            stored = dataset(mixture(folder / "urls.yaml", sample, **more), tokenizer)
            server.is_out, server.is_refusing = is_whole, True
            with iter(stored) as iterator, pytest.raises(gm.GristmillError) as raised:
                next(iterator)
            assert not isinstance(raised.value, gm.ShardError)


def test_one_client_reads_all_images_of_local_lines(folder, tokenizer):
    sample = gm.ImageText(MODEL, text=gm.Text("caption"), image_root="s3://bucket/pictures")
    with Server(objects_of(folder)) as server:
        opened = server.connections
        options = {"storage_options": server.options(), "threads": 1}
        made = dataset(str(folder / "x.jsonl"), tokenizer, sample=sample, epochs=1, **options)
        assert len([*made]) == COUNT
        assert len(server.requests) >= 2 * COUNT
        assert server.connections - opened < COUNT


def test_crude_tars_have_stores_and_their_own_parts(folder, tokenizer):
    def made(record, primary, pictures):
        number = int(record["__key__"][3:])
        other = primary.get(f"d/t{(number + 1) % COUNT}.txt")
        parts = [{"type": "image", "image": name} for name in (f"a/p{number}.png", "png")]
        answer = {"role": "assistant", "content": primary.get(".txt") + other}
        images = ["png", pictures.get(f"a/p{number}.png")]
        return {"messages": [{"role": "user", "content": parts}, answer], "images": images}

    aux = {"pictures": f"filesystem://{folder}/pictures"}
    function = gm.RecordFunction(made, ["json"], aux=aux)
    sample = gm.ImageText(MODEL, text=gm.Chat(template=VISION_CHATML), record=function)
    found, bad = read(gm.EnergonFolder(folder / "texts"), tokenizer, sample=sample, epochs=1, sequence_length=256)
    assert bad == []
    assert [text for text, _ in found] == [f"Text {at}. Text {(at + 1) % COUNT}. <|im_end|>" for at in range(COUNT)]
    sizes = [8 + 8 * (at % 3) for at in range(COUNT)]
    assert [own for _, own in found] == [[(size, 8), (8, size)] for size in sizes]
