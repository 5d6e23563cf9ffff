"""The fields of samples of folders that Energon has prepared, and each key of the files there."""

import io
import json
import tarfile
import urllib.parse

import pytest

import gristmill as gm
from chat_models import write_vision
from gristmill._cli import main
from gristmill._shards import energon_files
from helpers import tar_of
from images import image

MODEL = gm.ImageModel("gemma3", size=(8, 12), tokens=4)
CAPTIONING = "sample_type: {{__module__: megatron.energon, __class__: CaptioningSample}}\nfield_map: {}\n"
QUESTION = [{"role": "user", "content": "<image>What is it?"}, {"role": "assistant", "content": "An ant."}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_vision(tmp_path_factory.mktemp("models") / "vision")


def prepared(path, samples, dataset_yaml, **split):
    """A folder of one tar, as `energon prepare` makes it."""
    (path / ".nv-meta").mkdir(exist_ok=True)
    records = [(f"s{number}", parts) for number, parts in enumerate(samples)]
    (path / "a.tar").write_bytes(tar_of(records))
    write = {
        ".info.json": json.dumps({"energon_version": "7.4.1", "shard_counts": {"a.tar": len(records)}}),
        "split.yaml": json.dumps({"split_parts": {"train": ["a.tar"]}, "exclude": [], **split}),
        "dataset.yaml": dataset_yaml if isinstance(dataset_yaml, str) else json.dumps(dataset_yaml),
    }
    for name, text in write.items():
        (path / ".nv-meta" / name).write_text(text)
    return path


def read(shards, tokenizer, sample=None, **arguments):
    """The text and the sizes of the images of each sample, and the bad records."""
    sample = sample or gm.ImageText(gm.ImageModel("qwen3-vl", patch_size=4, min_pixels=64, max_pixels=512))
    dataset = gm.PackedDataset(
        shards, tokenizer=tokenizer, sample=sample, packing="pad", sequence_length=128, epochs=1, lanes=1, seed=None,
        layout="grain", **({} if isinstance(sample.text, gm.Chat) else {"eos": False}),
        **{"on_error": "quarantine", "max_error_rate": 1.0, **arguments},
    )  # fmt: skip
    encoder = gm.Encoder.from_file(tokenizer)
    found = []
    with iter(dataset) as iterator:
        for row in iterator:
            ids = row["tokens"][row["tokens_segment_ids"] > 0]
            text = encoder.decode([index for index in ids if "vision" not in encoder.id_to_token(int(index))])
            grids = row["image_grid_thw"][row["image_masks"] > 0]
            found.append((text.replace("<|image_pad|>", ""), [(4 * w, 4 * h) for _, h, w in grids.tolist()]))
        return found, [entry["reason"] for entry in iterator.quarantine()]


SMALL, WIDE = image(8, 8), image(16, 8)


def test_commas_are_alternatives_and_a_part_is_a_whole_extension(tmp_path, tokenizer):
    in_json = json.dumps({"about": {"texts": ["no", "b"]}, "a.b": {"0": "d"}}).encode()
    samples = [
        {"jpg": image(8, 8, kind="JPEG"), "txt": b"a"},
        {"png": SMALL, "json": in_json},
        {"mask.jpg": image(16, 8, kind="JPEG"), "jpg": image(8, 8, kind="JPEG"), "png": WIDE, "txt": b"c"},
        {"thumb.png": WIDE, "png": SMALL, "long.txt": b"no", "json": in_json},
        {"left.jpg": image(8, 8, kind="JPEG"), "JPG": image(8, 8, kind="JPEG"), "txt": b"e"},
        {"png": SMALL, "json": b"{}"},
    ]
    field_map = {"image": "jpg,png", "caption": "txt, json[about][texts][1]"}
    folder = prepared(tmp_path, samples, CAPTIONING.format(json.dumps(field_map)))
    found, bad = read(gm.EnergonFolder(folder), tokenizer)
    assert found == [("a", [(8, 8)]), ("b", [(8, 8)]), ("c", [(8, 8)]), ("b", [(8, 8)])]
    assert bad == [
        'sample "s4": expected an image with the extension "jpg" or "png", as dataset.yaml says, found none; add it, '
        "or exclude the sample in split.yaml",
        'sample "s5": expected a string under the key "txt,json.about.texts.1", found no such key',
    ]
    # A key with a dot, and a number that is a key; a member of that name is another part.
    samples = [{"png": SMALL, "json": in_json, "json.a.b.0": b"no"}]
    folder = prepared(tmp_path, samples, CAPTIONING.format(json.dumps({"image": "png", "caption": "json[a.b][0]"})))
    assert read(gm.EnergonFolder(folder), tokenizer) == ([("d", [(8, 8)])], [])


def test_states_of_a_folder_with_one_part_are_those_of_its_fields(tmp_path, tokenizer):
    samples = [{"png": image(8 + number, 8), "txt": b"text"} for number in range(8)]
    folder = prepared(tmp_path, samples, CAPTIONING.format("{image: png, caption: txt}"))

    def iterate(shards, fields=None):
        return iter(gm.PackedDataset(
            shards, tokenizer=tokenizer, sample=gm.ImageText(MODEL, fields=fields), packing="pad", eos=False,
            sequence_length=64,
        ))  # fmt: skip

    with (
        iterate(str(folder / "a.tar"), {"images": "png", "text": "txt"}) as named,
        iterate(gm.EnergonFolder(folder)) as iterator,
    ):
        next(named)
        iterator.set_state(named.get_state())
        assert (next(iterator)["inputs"] == next(named)["inputs"]).all()
        assert 'fields="png"' in urllib.parse.unquote(named.get_state()["fingerprint"])


def test_chats_of_a_folder(tmp_path, tokenizer):
    turns = json.dumps(QUESTION).encode()
    alone = json.dumps([{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "An ant."}]).encode()
    tools = json.dumps([{"type": "function", "function": {"name": "zoom"}}]).encode()
    samples = [
        {"jpg": image(8, 8, kind="JPEG"), "conversation.json": turns, "tools.json": tools},
        {"conversation.json": alone, "tools.json": tools},
        {"left.jpg": image(8, 8, kind="JPEG"), "conversation.json": turns, "tools.json": tools},
    ]
    chats = {"__module__": "megatron.bridge.data.energon.task_encoder_utils", "__class__": "ChatMLWebdataset"}
    fields = {"imgs": "jpg", "conversation": "conversation.json", "tools": "tools.json"}
    folder = gm.EnergonFolder(prepared(tmp_path, samples, {**chats, "field_map": fields}))
    template = (
        "{% if tools %}<|im_start|>system\n{{ tools[0].function.name }}<|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
        "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    model = gm.ImageModel("qwen3-vl", patch_size=4, min_pixels=64, max_pixels=512)

    def sample(**more):
        return gm.ImageText(model, text=gm.Chat(format="chatml", template=template, **more))

    found, bad = read(folder, tokenizer, sample())
    start, end = "<|im_start|>system\nzoom<|im_end|>\n<|im_start|>user\n", "<|im_start|>assistant\nAn ant.<|im_end|>\n"
    assert found == [(f"{start}What is it?<|im_end|>\n{end}", [(8, 8)]), (f"{start}Who?<|im_end|>\n{end}", [])]
    assert bad == ['sample "s2": expected a placeholder for each image, found 1 for 0']
    found, _ = read(folder, tokenizer, sample(tools=[{"type": "function", "function": {"name": "other"}}]))
    assert found[0][0].startswith("<|im_start|>system\nother<|im_end|>")


@pytest.mark.parametrize(
    ("field_map", "match"),
    [
        (
            {"videos": "mp4s", "conversation": "json"},
            "field 'videos' is in 'mp4s': expected files with",
        ),
        ({"videos": "mp4", "image": "jpg", "conversation": "json"}, "a sample has images or videos, not both"),
        ({"videos": "json[film]", "conversation": "json"}, "field 'videos' is inside of JSON"),
        ({"vids": "mp4", "conversation": "json"}, "field 'vids' is of videos or audio, which are not read"),
        ({"audio": "wav", "conversation": "json"}, "field 'audio' is of videos or audio"),
        ({"image": "mp4", "caption": "txt"}, "field 'image' is in 'mp4': videos and audio are not read"),
        ({"image": "jpg,clip.webm", "caption": "txt"}, "field 'image' is in 'clip.webm'"),
        ({"image": "jpg", "caption": "flac"}, "field 'caption' is in 'flac'"),
        ({"image": "json[image]", "caption": "txt"}, "field 'image' is inside of JSON"),
        ({"image": "jpg", "caption": "json[a"}, "expected parts with commas between them, .* found 'json\\[a'"),
        ({"image": "jpg"}, "expected a field that is a text or a conversation"),
        ({"caption": "txt"}, "expected a field that is the image of a CaptioningSample"),
        ({"image": "jpg", "caption": "txt", "conversation": "json"}, "and not both"),
        ({"image": "jpg", "imgs": "png", "caption": "txt"}, "fields 'image' and 'imgs' are both the images"),
        ({"image": "jpg", "caption": "txt", "label": "cls"}, "field 'label' of CaptioningSample is not read"),
        ({"image": "jpg", "caption": 3}, "field 'caption': expected a part, found 3"),
        ({}, "expected a field_map, found {}"),
    ],
)
def test_field_maps_that_are_not_read_are_refused(tmp_path, tokenizer, field_map, match):
    folder = gm.EnergonFolder(prepared(tmp_path, [{"txt": b"a"}], CAPTIONING.format(json.dumps(field_map))))
    assert folder.fields is None
    with pytest.raises(gm.ArgumentError, match=match):
        read(folder, tokenizer)
    with pytest.raises(gm.ArgumentError, match="say what is read: gm"):
        read(folder, tokenizer, gm.ImageText(MODEL, text=gm.Text("txt")))
    dataset = gm.PackedDataset(
        folder, tokenizer=tokenizer, sample=gm.ImageText(MODEL, fields={"images": ["jpg"], "text": "txt"}),
        packing="pad", eos=False,
    )  # fmt: skip
    assert dataset.pieces


LOADER = {"sample_loader": "sample_loader.py:sample_loader", "part_filter": "sample_loader.py:part_filter"}
QUESTION_MAP = {"image": "jpg", "context": "txt", "answers": "json[answers]"}


def of_type(name, **more):
    return {"sample_type": {"__module__": "megatron.energon", "__class__": name}, **more}


@pytest.mark.parametrize(
    ("dataset", "match"),
    [
        (of_type("ImageSample", field_map={"image": "jpg"}), "its ImageSample .* has no text to train on"),
        ({"__class__": "ImageWebdataset", "field_map": {"image": "jpg"}}, "its ImageWebdataset .* has no text"),
        (of_type("VidQASample", field_map={"video": "mp4"}), "its VidQASample .* has a video beside a question"),
        (
            of_type("ImageClassificationSample", field_map={"image": "jpg", "label": "cls"}),
            "is a text or a conversation",
        ),
        ({"__class__": "JoinedWebdatasetFactory"}, "its JoinedWebdatasetFactory .* join them in one"),
        (of_type("CaptioningSample", **LOADER), "sample_loader and part_filter say what a sample is, which is code"),
        ({"__class__": "CrudeWebdataset", "part_filter": ["jpg", "txt"]}, "its part_filter say"),
        (
            of_type("MySample", field_map={"image": "jpg", "question": "txt"}),
            "field 'question' of MySample is not read",
        ),
        (of_type("CaptioningSample"), "expected a field_map, found None"),
        ({"sample_type": "CaptioningSample"}, "expected a sample_type with __module__ and __class__"),
        (of_type("VQASample", field_map={"image": "jpg", "answers": "txt"}), "the field 'context' of a VQASample"),
        (of_type("VQASample", field_map={"context": "txt"}), "a field that is the image of a VQASample"),
        (of_type("VQASample", field_map={**QUESTION_MAP, "more": "x"}), "field 'more' of VQASample is not read"),
        (of_type("VQASample", field_map={**QUESTION_MAP, "audio": "wav"}), "field 'audio' is of videos or audio"),
        (of_type("VQASample", field_map={**QUESTION_MAP, "context": "mp4"}), "field 'context' is in 'mp4'"),
        (of_type("VQASample", field_map={**QUESTION_MAP, "imgs": "png"}), "'image' and 'imgs' are both the images"),
        (of_type("VQASample", field_map={**QUESTION_MAP, "context": 3}), "field 'context': expected a part, found 3"),
    ],
)
def test_samples_that_are_not_read_are_refused_by_name(tmp_path, tokenizer, capsys, dataset, match):
    samples = [{"jpg": image(8, 8, kind="JPEG"), "txt": b"Which colour is it?", "json": b'{"answers": ["Navy."]}'}]
    path = prepared(tmp_path, samples, dataset)
    folder = gm.EnergonFolder(path)
    for sample in (None, gm.ImageText(MODEL, text=gm.Text("txt")), gm.ImageText(MODEL, fields={"text": "txt"})):
        with pytest.raises(gm.ArgumentError, match=match):
            read(folder, tokenizer, sample)
    main.run(["inspect", str(path)])
    shown = capsys.readouterr().out
    assert "They are not read as the folder says: " in shown
    assert "They are read by gm.ImageText" not in shown
    assert "as a guess" not in shown
    main.run(["inspect", str(path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["fields"], found["refusal"]) == (None, folder.refusal)
    named = gm.ImageText(MODEL, fields={"images": ["jpg"], "text": "txt"})
    dataset = gm.PackedDataset(folder, tokenizer=tokenizer, sample=named, packing="pad", epochs=1, eos=False)
    assert [int(row["image_masks"].sum()) for row in dataset] == [1]


def test_types_that_are_read(tmp_path, tokenizer):
    samples = [{"png": SMALL, "txt": b"An ant.", "wav": b"\0"}]
    for name in ("CaptioningSample", "CaptioningWebdataset", "MyOwnSample"):
        dataset = {"__class__": name, "field_map": {"image": "png", "text": "txt"}}
        assert read(gm.EnergonFolder(prepared(tmp_path, samples, dataset)), tokenizer) == ([("An ant.", [(8, 8)])], [])
    # A text is no caption: no image belongs to it.
    folder = gm.EnergonFolder(prepared(tmp_path, samples, of_type("TextSample", field_map={"text": "txt"})))
    assert read(folder, tokenizer) == ([("An ant.", [])], [])
    folder = gm.EnergonFolder(prepared(tmp_path, samples, {"__class__": "CrudeWebdataset"}))
    assert (folder.fields, folder.refusal) == (None, None)
    assert read(folder, tokenizer) == ([("An ant.", [(8, 8)])], [])


# All keys of the files of Energon 7.4.1, by its dataclasses and the arguments of its factories, with those of earlier
# releases; and a value of each.
DATASET_KEYS = {
    "__module__": "megatron.energon", "__class__": "StandardWebdatasetFactory",
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "png", "caption": "txt"}, "sample_loader": "a.py:f", "part_filter": "a.py:f",
    "subflavors": {"a": 1}, "subflavor": "a", "decoder": None, "auto_decode": True, "image_decode": "pil",
    "ignore_decoder_errors": True, "av_decode": "torch", "video_decode_audio": False, "guess_content": True,
    "path": "x", "split_part": "val", "split_config": "x.yaml", "subset": {"range": [0, 1]}, "training": False,
    "worker_config": {}, "shuffle_over_epochs": 1, "parallel_shard_iters": 4, "max_samples_per_sequence": 10,
    "inner_datasets": [], "inner_dataset": {},
}  # fmt: skip
DATASET_USED = {"__module__", "__class__", "sample_type", "field_map", "decoder", "image_decode", "shuffle_over_epochs",
                "subflavors", "subflavor"}  # fmt: skip
DECODER_KEYS = {
    "__module__": "megatron.energon", "__class__": "SampleDecoder", "image_decode": "torchrgb8", "av_decode": "pyav",
    "video_decode_audio": True, "guess_content": True,
}  # fmt: skip
SPLIT_KEYS, INFO_KEYS = {"split_parts", "exclude"}, {"energon_version", "shard_counts"}
NODE_KEYS = {
    "path": "./a", "split_part": "train", "subset": {"range": [0, 1]}, "split_config": "split.yaml",
    "dataset_config": "dataset.yaml", "subflavors": {"a": 1}, "subflavor": "a", "aux": {"x": "./a"}, "join": [],
    "joiner": {}, "nonmatch": "skip", "shuffle_over_epochs_multiplier": 1, "weight": 2, "repetitions": 2,
    "blend": [], "blend_epochized": [], "datasets": [],
}  # fmt: skip


def test_each_key_of_dataset_yaml_is_used_or_irrelevant_or_refused(tmp_path, tokenizer):
    base = {name: DATASET_KEYS[name] for name in ("sample_type", "field_map")}
    samples = [{"png": SMALL, "txt": b"a"}]
    assert {*energon_files.DATASET_REFUSED} | energon_files.DATASET_IRRELEVANT <= DATASET_KEYS.keys()
    expected = ([("a", [(8, 8)])], [])
    for name, value in DATASET_KEYS.items():
        path = prepared(tmp_path, samples, {**base, name: value})
        if name in energon_files.DATASET_REFUSED:
            with pytest.raises(gm.ArgumentError, match=f"the key '{name}' is not followed: "):
                gm.EnergonFolder(path)
        elif name in ("sample_loader", "part_filter"):
            assert f"its {name} say what a sample is" in gm.EnergonFolder(path).refusal
        else:
            assert name in energon_files.DATASET_IRRELEVANT | DATASET_USED
            assert read(gm.EnergonFolder(path), tokenizer) == expected, name
    # Values of keys that are used are looked at.
    for name, value, match in [
        ("sample_type", {"__class__": "VQASample"}, "field 'caption' of VQASample"),
        ("sample_type", {"__class__": "CaptioningSample", "more": 1}, "found \\['more'\\]"),
        ("field_map", {"image": "png", "caption": "txt", "more": "x"}, "'more'"),
        ("image_decode", "torchl", "image_decode 'torchl' is not offered: images are decoded to RGB"),
        ("image_decode", "pilrgba", "image_decode 'pilrgba' is not offered"),
        ("decoder", {**DECODER_KEYS, "image_decode": "l8"}, "image_decode 'l8' is not offered"),
        ("decoder", {"__class__": "MyDecoder"}, "its decoder MyDecoder is code"),
        ("decoder", {"crop": 3}, "its decoder has 'crop', which is not known"),
        ("decoder", "x", "expected a decoder"),
    ]:
        folder = gm.EnergonFolder(prepared(tmp_path, samples, {**base, name: value}))
        with pytest.raises(gm.ArgumentError, match=match):
            read(folder, tokenizer)
    assert {*DECODER_KEYS} == energon_files.DECODER_IRRELEVANT | {"image_decode"}
    path = prepared(tmp_path, samples, {**base, "decoder": DECODER_KEYS})
    assert read(gm.EnergonFolder(path), tokenizer) == expected
    for key, value, match in [
        ("limit", 3, "found 'limit', which may change the samples"),
        ("shuffle_over_epochs", -1, "expected 1, each sample once an epoch, found -1"),
    ]:
        path = prepared(tmp_path, samples, {**base, key: value})
        with pytest.raises(gm.ArgumentError, match=match):
            gm.EnergonFolder(path)


def test_each_key_of_the_other_files_is_used_or_refused(tmp_path, tokenizer):
    caption = CAPTIONING.format("{image: png, caption: txt}")
    path = prepared(tmp_path, [{"png": SMALL, "txt": b"a"}] * 3, caption, exclude=["a.tar/s1"])
    split, info = path / ".nv-meta/split.yaml", path / ".nv-meta/.info.json"
    assert {*json.loads(split.read_text())} == SPLIT_KEYS
    assert {*json.loads(info.read_text())} == INFO_KEYS
    assert len(read(gm.EnergonFolder(path), tokenizer)[0]) == 2

    def refused(file, changes, match):
        before = file.read_text()
        file.write_text(json.dumps({**json.loads(before), **changes}))
        with pytest.raises(gm.ArgumentError, match=match):
            gm.EnergonFolder(path)
        file.write_text(before)

    for file in (split, info):
        refused(file, {"split_parts_fractions": {}}, "found 'split_parts_fractions', which may change the samples")
    refused(info, {"shard_counts": None}, "expected shard_counts, the number of samples of each shard")
    refused(info, {"shard_counts": {"a.tar": "3"}}, "expected shard_counts")
    refused(split, {"split_parts": ["a.tar"]}, "expected split_parts, lists of shards by name")
    refused(split, {"split_parts": {"train": "a.tar"}}, "split_parts: train: expected a list of names, found 'a.tar'")
    refused(split, {"split_parts": {"train": ["a.tar", "{a,b}.tar"]}}, "lists 'a.tar' twice")
    refused(split, {"split_parts": {"train": ["{a.tar"]}}, "expected each brace to be closed in '{a.tar'")
    refused(split, {"exclude": "a.tar"}, "exclude: expected a list of names")
    split.write_text("split_parts: {train: [a.tar\n")
    with pytest.raises(gm.ArgumentError, match="not valid YAML"):
        gm.EnergonFolder(path)


def test_each_key_of_a_metadataset_is_used_or_irrelevant_or_refused(tmp_path):
    (tmp_path / "a").mkdir()
    prepared(tmp_path / "a", [{"png": SMALL, "txt": b"a"}], CAPTIONING.format("{image: png, caption: txt}"))
    used = {"path", "split_part", "subset", "split_config", "dataset_config", "shuffle_over_epochs_multiplier", "aux"}
    record = gm.RecordFunction(lambda _, **stores: stores, ["txt"])
    kinds = {"blend", "blend_epochized", "datasets"}
    for name, value in NODE_KEYS.items():
        for blend, share in [("blend", "weight"), ("blend_epochized", "repetitions"), ("datasets", "weight")]:
            node = {blend: [{"path": "./a", name: value}]}
            (tmp_path / "mix.yaml").write_text(json.dumps({"__class__": "MetadatasetV2", "splits": {"train": node}}))
            if name in used | energon_files.NAMES | {share}:
                mixture = gm.Mixture.from_energon(tmp_path / "mix.yaml", sample=gm.ImageText(MODEL, record=record))
                assert [*mixture.sources] == ["a"]
                continue
            joins = name in ("join", "joiner", "nonmatch")
            assert joins or name in kinds | {"weight", "repetitions"}
            with pytest.raises(gm.ArgumentError, match=f"found {name}: joins are" if joins else f"found '{name}'"):
                gm.Mixture.from_energon(tmp_path / "mix.yaml")


def test_braces_are_those_of_bash():
    for text, expected in [
        ("a.tar", ["a.tar"]),
        ("s_{008..010}.tar", ["s_008.tar", "s_009.tar", "s_010.tar"]),
        ("{9..1..4}", ["9", "5", "1"]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{a..e..2}", ["a", "c", "e"]),
        ("{x,y{1,2}}{,.z}", ["x", "x.z", "y1", "y1.z", "y2", "y2.z"]),
        ("{one}-{a,b}", ["{one}-a", "{one}-b"]),
        (r"\{a,b\}", ["{a,b}"]),
    ]:
        assert energon_files.braces(text) == expected
    for text in ("{a", "a}", "{a,{b}", "}{"):
        with pytest.raises(ValueError, match="expected each brace to be closed"):
            energon_files.braces(text)
    for text in ("{0..9999999999}", "{1..2000}-{1..2000}"):
        with pytest.raises(ValueError, match="expected braces of at most 1,000,000 names, found"):
            energon_files.braces(text)


def test_videos_and_audio_are_not_trained_blind(tmp_path, tokenizer):
    clip = b"\0\0\0\x18ftypisom"
    said = {"role": "assistant", "content": "A door opens."}
    parts = [
        "<video>What?", "What is <audio>said?", [{"type": "video"}], [{"type": "audio", "audio": "a.wav"}],
        [{"type": "text", "text": "<video>What?"}],
    ]  # fmt: skip
    records = [(f"m{at}", {"json": json.dumps([{"role": "user", "content": one}, said]).encode()}) for at, one in
               enumerate(parts)]  # fmt: skip
    (tmp_path / "chats.tar").write_bytes(tar_of(records))
    sample = gm.ImageText(MODEL, text=gm.Chat("json"))
    found, bad = read(str(tmp_path / "chats.tar"), tokenizer, sample)
    assert (found, len(bad)) == ([], len(parts))
    assert all("videos and audio are not read" in reason for reason in bad)
    captions = [
        *((f"c{extension}", {extension: clip, "txt": b"A door opens."}) for extension in energon_files.MEDIA),
        ("big", {"left.MP4": clip, "txt": b"A door opens."}),
        ("said", {"txt": b"<video>A door opens."}),
        ("seen", {"mp4": clip, "png": SMALL, "txt": b"A door."}),
        ("none", {"txt": b"Without."}),
    ]
    (tmp_path / "captions.tar").write_bytes(tar_of(captions))
    text = gm.ImageText(gm.ImageModel("qwen3-vl", patch_size=4, min_pixels=64, max_pixels=512), text=gm.Text("txt"))
    found, bad = read(str(tmp_path / "captions.tar"), tokenizer, text)
    assert found == [("A door.", [(8, 8)]), ("Without.", [])]
    assert len(bad) == len(captions) - 2
    assert all("videos and audio are not read" in reason for reason in bad)


def linked(*members):
    """A tar of files, and of links with their kinds and targets."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = content
                archive.addfile(member)
    return file.getvalue()


HARD, SYMBOLIC = tarfile.LNKTYPE, tarfile.SYMTYPE


def test_links_are_bad_records(tmp_path, tokenizer, encoder):
    long = "x" * 120
    members = [
        ("a.png", SMALL), ("a.txt", b"a"), ("a.thumb", (HARD, "a.png")), ("a.png", (HARD, "a.png")),
        ("b.png", (HARD, "a.png")), ("b.txt", b"b"),
        ("c.txt", b"c"), ("c.png", (SYMBOLIC, f"../{long}.png")),
        ("d.png", SMALL), ("d.txt", (HARD, "a.txt")),
        ("e.png", (SYMBOLIC, "a.png")), ("e.txt", (SYMBOLIC, "a.txt")),
        ("f.png", SMALL), ("f.txt", b"f"), ("README", (SYMBOLIC, "a.txt")),
    ]  # fmt: skip
    path = tmp_path / "a.tar"
    path.write_bytes(linked(*members))
    model = gm.ImageModel("qwen3-vl", patch_size=4, min_pixels=64, max_pixels=512)
    found, bad = read(str(path), tokenizer, gm.ImageText(model, text=gm.Text("txt")))
    assert found == [("a", [(8, 8)]), ("f", [(8, 8)])]
    assert [reason.partition(": links are not followed")[0] for reason in bad] == [
        'expected a file under "png", found a link to "a.png"',
        f'expected a file under "png", found a link to "../{long}.png"',
        'expected a file under "txt", found a link to "a.txt"',
        'expected a file under "png", found a link to "a.png"',
    ]
    texts = gm.PackedDataset(
        str(path), tokenizer=encoder, text_field="txt", packing="pad", sequence_length=16, epochs=1, lanes=1, seed=None,
        on_error="quarantine", max_error_rate=1.0, eos=False, layout="grain",
    )  # fmt: skip
    with iter(texts) as iterator:
        assert len(list(iterator)) == 4
        assert [entry["record"] for entry in iterator.quarantine()] == [3, 4]
    # Energon counts files alone.
    prepared(tmp_path, [], CAPTIONING.format("{image: png, caption: txt}"))
    path.write_bytes(linked(*members))
    (tmp_path / ".nv-meta/.info.json").write_text(json.dumps({"shard_counts": {"a.tar": 5}}))
    with pytest.raises(
        gm.ShardError, match=r"expected 5 samples, .* found 6 in the tar with the link 'a.thumb': links"
    ):
        gm.EnergonFolder(tmp_path)


def test_parts_name_their_members(tmp_path, tokenizer):
    def chat(*parts):
        turns = [{"role": "user", "content": [*parts, {"type": "text", "text": "Which?"}]}]
        return json.dumps([*turns, {"role": "assistant", "content": "That."}]).encode()

    def named(name):
        return {"type": "image", "image": name}

    two = {"zz.png": WIDE, "aa.png": SMALL}
    records = [
        ("a", {**two, "json": chat(named("zz.png"), named("aa.png"))}),
        ("b", {**two, "json": chat({"type": "image"}, {"type": "image"})}),
        ("d/c", {**two, "json": chat(named("aa.png"), named("c.zz.png"), named("d/c.aa.png"))}),
        ("d", {**two, "json": chat(named("zz.png"), named("bb.png"))}),
        ("e", {**two, "json": chat(named("https://a.b/zz.png"), named("aa.png"))}),
        ("f", {**two, "json": chat(named("data:image/png;base64,iVBORw0KGgo="), named("aa.png"))}),
    ]
    (tmp_path / "a.tar").write_bytes(tar_of(records))
    model = gm.ImageModel("qwen3-vl", patch_size=4, min_pixels=64, max_pixels=512)
    found, bad = read(str(tmp_path / "a.tar"), tokenizer, gm.ImageText(model, text=gm.Chat("json")))
    small, wide = (8, 8), (16, 8)
    assert [images for _, images in found] == [[wide, small], [small, wide], [small, wide, small]]
    assert [reason[:50] for reason in bad] == [
        'sample "d": expected parts of type image to name o',
        'sample "e": message 0: expected the name of a memb',
        'sample "f": message 0: expected the name of a memb',
    ]
    assert "found the URL" in bad[1]
    assert 'found an image itself under "image"' in bad[2]


@pytest.mark.parametrize("extension", ["avif", "tiff", "0.heic", "mp4", "wav"])
def test_guesses_are_refused_where_no_image_is_read(tmp_path, tokenizer, extension):
    (tmp_path / "a.tar").write_bytes(tar_of([("s", {extension: b"\0\1\2", "txt": b"A navy picture."})]))
    with pytest.raises(gm.ArgumentError, match=f"no image that is read, only '{extension}', and its text would be"):
        read(str(tmp_path / "a.tar"), tokenizer)


@pytest.mark.parametrize(
    "parts",
    [
        {"txt": b"Which colour?", "json": b'{"answers": ["Navy."]}'},
        {"txt": b"Which colour?", "answer.txt": b"Navy."},
        {"text": b"Navy.", "question": b"Which colour?"},
        {"json": b'{"text": "Which?", "choices": ["a", "b"]}'},
    ],
)
def test_questions_are_not_guessed_to_be_captions(tmp_path, tokenizer, capsys, parts):
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of([("s", {"png": SMALL, **parts})]))
    with pytest.raises(gm.ArgumentError, match="shows no text, only "):
        read(str(path), tokenizer)
    main.run(["inspect", str(path)])
    assert "gm.ImageText" not in capsys.readouterr().out


def test_captions_that_are_no_text_say_so(tmp_path, tokenizer):
    (tmp_path / "a.tar").write_bytes(tar_of([("s", {"png": SMALL, "txt": b"a \0 byte"})]))
    _, bad = read(str(tmp_path / "a.tar"), tokenizer, gm.ImageText(MODEL, text=gm.Text("txt")))
    assert 'a string under the key "txt", found an object of bytes, which are no text' in bad[0]


def test_empty_captions_say_what_to_do(tmp_path, tokenizer):
    (tmp_path / "a.tar").write_bytes(tar_of([("s", {"png": SMALL, "txt": b""})]))
    _, bad = read(str(tmp_path / "a.tar"), tokenizer, gm.ImageText(MODEL, text=gm.Text("txt")))
    assert bad[0].endswith("leave out samples without a text with keep=")
    dataset = gm.PackedDataset(
        str(tmp_path / "a.tar"), tokenizer=tokenizer, sample=gm.ImageText(MODEL, text=gm.Text("txt")), packing="pad",
        keep='txt != ""', epochs=1, eos=False,
    )  # fmt: skip
    assert list(dataset) == []
