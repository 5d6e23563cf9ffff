"""Keys, sample types and blends beside Megatron-Energon's own classes and loader; `make test-energon`."""

import dataclasses
import inspect
import json
import re
import subprocess
import sys

import pytest

import gristmill as gm
from chat_models import write_vision
from gristmill._mixture import energon
from gristmill._shards import energon_files
from helpers import tar_of
from images import image

theirs = pytest.importorskip("megatron.energon", reason="megatron-energon is not installed: make test-energon")
pytestmark = pytest.mark.filterwarnings("ignore")

NONE = ("CaptioningSample", {"image": "jpg", "caption": "txt"})
MODEL = gm.ImageModel("qwen3-vl", patch_size=4, min_pixels=64, max_pixels=512)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_vision(tmp_path_factory.mktemp("models") / "vision")


def prepare(path, records, sample_type, field_map, shards=1):
    """A folder that `energon prepare` makes, of which the training split has all."""
    path.mkdir()
    for shard in range(shards):
        (path / f"{shard}.tar").write_bytes(tar_of(records[shard::shards]))
    command = [sys.executable, "-m", "megatron.energon.cli.main", "prepare", str(path), "--non-interactive"]
    is_listed = hasattr(theirs, sample_type)
    kind, fields = (sample_type, field_map) if is_listed else NONE
    command += ["--split-ratio", "1,0,0", "--sample-type", kind, "--field-map", json.dumps(fields)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (path / ".nv-meta/dataset.yaml").is_file(), done.stdout + done.stderr
    if not is_listed:
        kind = {"__module__": "megatron.energon.flavors.vqa_and_ocr", "__class__": sample_type}
        (path / ".nv-meta/dataset.yaml").write_text(json.dumps({"sample_type": kind, "field_map": field_map}))
    return path


def samples_of(path, split="train", cook=None):
    """The samples of a folder or metadataset, crude ones as a cooker makes them, as Energon's validation gives them."""

    class Encoder(theirs.DefaultTaskEncoder):
        decoder = theirs.SampleDecoder(image_decode="pilrgb")
        cookers = () if cook is None else (theirs.Cooker(cook),)

        def batch(self, samples):
            return samples

    config = theirs.WorkerConfig(rank=0, world_size=1, num_workers=0)
    found = theirs.get_val_dataset(
        str(path), split_part=split, worker_config=config, batch_size=1, task_encoder=Encoder()
    )
    return [sample for batch in theirs.get_loader(found) for sample in batch]


def read(shards, tokenizer, **more):
    """The text of each sample, the part of it that is trained on, and the sizes of its images."""
    sample = more.pop("sample", gm.ImageText(MODEL))
    dataset = gm.PackedDataset(
        shards, tokenizer=tokenizer, sample=sample, packing="pad", sequence_length=256, epochs=1, lanes=1, seed=None,
        layout="grain", eos=False, **more,
    )  # fmt: skip
    encoder = gm.Encoder.from_file(tokenizer)
    found = []
    for row in dataset:
        is_text = [(row["tokens_segment_ids"] > 0), (row["tokens_loss_mask"] > 0)]
        texts = [encoder.decode(row["tokens"][own]) for own in is_text]
        grids = row["image_grid_thw"][row["image_masks"] > 0]
        shown = [re.sub(r"(<\|image_pad\|>)+", "<i>", text) for text in texts]
        found.append((*shown, [tuple(grid) for grid in grids.tolist()]))
    return found


def keys_of(kind):
    """The arguments of a class and of those that it is derived from."""
    makers = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base) and base is not object]
    found = {name for maker in makers for name in inspect.signature(maker).parameters}
    return {name for name in found - {"self", "args", "kwargs"} if not name.startswith("_")}


def test_each_key_of_energons_classes_is_known():
    from megatron.energon.flavors.webdataset import structs
    from megatron.energon.metadataset import metadataset, metadataset_v2

    known = energon_files.DATASET_IRRELEVANT | energon_files.DATASET_FOLLOWED | energon_files.DATASET_REFUSED.keys()
    for kind in (theirs.StandardWebdatasetFactory, theirs.CrudeWebdataset):
        assert keys_of(kind) <= known
    assert keys_of(theirs.SampleDecoder) <= energon_files.DECODER_IRRELEVANT | {"image_decode"}
    assert {field.name for field in dataclasses.fields(structs.WebdatasetSplits)} == {"split_parts", "exclude"}
    assert {field.name for field in dataclasses.fields(structs.WebdatasetInfo)} == {"energon_version", "shard_counts"}
    nodes = [
        kind
        for module in (metadataset, metadataset_v2)
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and kind.__module__ == module.__name__
    ]
    assert len(nodes) > 10
    keys = set().union(*map(keys_of, nodes))
    assert keys <= energon.FOLLOWED | energon.REFUSED


def test_each_field_of_energons_samples_is_read_left_or_refused(tmp_path):
    path = prepare(tmp_path / "any", [("s", {"jpg": b"", "txt": b"a"})], *NONE)
    kinds = [kind for name, kind in vars(theirs).items() if name.endswith("Sample") and dataclasses.is_dataclass(kind)]
    assert len(kinds) > 9
    for kind in kinds:
        fields = {field.name for field in dataclasses.fields(kind) if not field.name.startswith("__")}
        for own in fields:
            base, _ = RECORDS.get(kind.__name__, ({}, None))
            described = {
                "sample_type": {"__module__": kind.__module__, "__class__": kind.__name__},
                "field_map": {**base, own: base.get(own, "json[x]")},
            }
            (path / ".nv-meta/dataset.yaml").write_text(json.dumps(described))
            folder = gm.EnergonFolder(path)
            of_type = folder.sample_type.fields if folder.sample_type else {}
            is_read = own in of_type or described["field_map"][own] in (folder.fields or {}).values()
            is_named = repr(own) in (folder.refusal or "") or kind.__name__ in (folder.refusal or "")
            assert is_read or own in folder.unread or is_named, (kind, own)


RECORDS = {
    "VQASample": (
        {"image": "jpg", "context": "json[q]", "answers": "json[a]", "answer_weights": "json[w]"},
        [{"q": "Who?", "a": ["An ant.", "A bee."], "w": [0.25, 0.75]}, {"q": "What?", "a": ["No."], "w": [1]}],
    ),
    "VQAOCRSample": (
        {"image": "jpg", "context": "json[q]", "answers": "json[a]", "text": "txt"},
        [{"q": "Who?", "a": ["An ant.", "A bee."]}, {"q": "What?", "a": ["No."]}],
    ),
    "MultiChoiceVQASample": (
        {"image": "jpg", "context": "json[q]", "choices": "json[c]", "correct_choice_idx": "json[r]"},
        [{"q": "Who?", "c": ["An ant", "A bee"], "r": 1}, {"q": "What?", "c": ["a", "b", "c"], "r": 0}],
    ),
    "OCRSample": ({"image": "jpg", "text": "txt", "words_text": "json[words]"}, [{"words": ["a"]}, {"words": []}]),
    "CaptioningSample": ({"image": "png,jpg", "caption": "json[c],txt"}, [{"c": "One."}, {"c": "Two."}]),
    "TextSample": ({"text": "txt"}, [{}, {}]),
    "ImageClassificationSample": (
        {"image": "jpg", "label": "cls", "label_name": "json[n]"}, [{"n": "ant"}, {"n": "bee"}],
    ),
}  # fmt: skip


def expected_of(sample):
    """The text of one of Energon's samples and the part that is trained on, by the rules of the docs."""
    names = {field.name for field in dataclasses.fields(sample)}
    picture = "<|vision_start|><i><|vision_end|>" if "image" in names else ""
    if "choices" in names:
        lines = [sample.context, *(f"{'ABC'[at]}. {choice}" for at, choice in enumerate(sample.choices))]
        return picture + "\n".join(lines) + "\n", "ABC"[sample.correct_choice_idx]
    if "answers" in names:
        weights = sample.answer_weights or [1.0] * len(sample.answers)
        return f"{picture}{sample.context}\n", sample.answers[weights.index(max(weights))]
    name = next(name for name in ("caption", "label_name", "text") if name in names)
    return picture, getattr(sample, name)


@pytest.mark.parametrize("name", RECORDS)
def test_samples_of_each_type_are_energons(tmp_path, tokenizer, name):
    field_map, values = RECORDS[name]
    records = [
        (f"s{number}", {"jpg": image(8 + 8 * number, 8, kind="JPEG"), "txt": f"Text {number}.".encode(),
                        "cls": str(number).encode(), "json": json.dumps(value).encode()})
        for number, value in enumerate(values)
    ]  # fmt: skip
    path = prepare(tmp_path / "folder", records, name, field_map)
    ours = read(gm.EnergonFolder(path), tokenizer)
    both = list(zip(ours, samples_of(path), strict=True))
    assert len(both) == len(records)
    for (text, trained, grids), sample in both:
        before, after = expected_of(sample)
        assert (text, trained) == (before + after, after)
        sizes = [(4 * columns, 4 * rows) for _, rows, columns in grids]
        assert sizes == ([sample.image.size] if hasattr(sample, "image") else [])


def test_evaluation_of_blends_has_energons_samples(tmp_path, tokenizer):
    for name in "xy":
        records = [(f"{name}{at}", {"png": image(8, 8), "txt": f"{name} {at}".encode()}) for at in range(4)]
        prepare(tmp_path / name, records, "CaptioningSample", {"image": "png", "caption": "txt"})
    blends = [
        {"blend_epochized": [{"repetitions": 2, "path": "./x"}, {"repetitions": 0.5, "path": "./y"}]},
        {"blend": [{"weight": 5, "path": "./x"}, {"weight": 1, "path": "./y"}]},
        {"path": "./x"},
    ]
    for blend in blends:
        node = {**blend}
        for item in [*node.get("blend", []), *node.get("blend_epochized", []), *([node] if "path" in node else [])]:
            item["split_part"] = "train"
        file = tmp_path / "mix.yaml"
        file.write_text(json.dumps(
            {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"val": node}}
        ))  # fmt: skip
        mixture = gm.Mixture.from_energon(file, "val", sample=gm.ImageText(MODEL), epochs=1)
        found = sorted(trained for _, trained, _ in read(mixture, tokenizer, sample=None))
        assert found == sorted(sample.caption for sample in samples_of(file, "val"))


def test_subsets_of_blends_have_energons_samples(tmp_path, tokenizer):
    for name, count in {"x": 9, "y": 8}.items():
        records = [(f"{name}{at}", {"png": image(8, 8), "txt": f"{name} {at}".encode()}) for at in range(count)]
        prepare(tmp_path / name, records, "CaptioningSample", {"image": "png", "caption": "txt"}, shards=2)
        described = json.dumps({"split_parts": {"train": ["{0..1}.tar"]}, "exclude": [f"0.tar/{name}0"]})
        (tmp_path / name / ".nv-meta/split.yaml").write_text(described)
    for number, (outer, inner) in enumerate([
        (["0%", "50%"], ["33.3%", "66.6%"]),
        (["33.3%", "80%"], [1, 8]),
        (["25%", "100%"], [2, "end"]),
        (["25%", "100%"], None),
    ]):  # fmt: skip
        items = [{"path": "x", "weight": 1}, {"path": "./y", "weight": 2, "subset": {"range": inner}}]
        if inner is None:
            items = [{"path": "x", "weight": 0}, {"path": "y"}]
        metadataset(tmp_path / "inner.yaml", train={"blend": items, "subset": {"range": outer}})
        node = {"blend": [{"path": "inner.yaml", "subset": {"range": ["10%", "95%"]}}, {"path": "x"}]}
        file = metadataset(tmp_path / f"{number}.yaml", train=node)
        mixture = gm.Mixture.from_energon(file, repeats=False, sample=gm.ImageText(MODEL), epochs=1)
        found = sorted(trained for _, trained, _ in read(mixture, tokenizer, sample=None))
        assert found == sorted(sample.caption for sample in samples_of(file)), node


def test_keys_are_energons(tmp_path, tokenizer):
    from gristmill.integrations.energon import EnergonMultiModalDataModule

    records = [(f"d/s{at}", {"png": image(8, 8), "txt": f"{at}".encode()}) for at in range(3)]
    path = prepare(tmp_path / "keys", records, "CaptioningSample", {"image": "png", "caption": "txt"})
    (path / ".nv-meta/split.yaml").write_text(json.dumps({"split_parts": {"train": ["0.tar"], "val": ["0.tar"]}}))
    module = EnergonMultiModalDataModule(path, tokenizer, seq_length=64, task_encoder=gm.ImageText(MODEL), eos=False)
    loader = module.val_dataloader()
    found = [key for _ in records for key in next(loader)["__key__"]]
    assert found == [sample.__key__ for sample in samples_of(path)] == ["d/s0", "d/s1", "d/s2"]
    prepare_lines(tmp_path / "x.jsonl", [{"caption": f"C{at}"} for at in range(3)])

    @theirs.stateless
    def cook(sample):
        return theirs.TextSample(**theirs.basic_sample_keys(sample), text=sample["json"]["caption"] + sample["__key__"])

    def ours(sample):
        return {"text": sample["json"]["caption"] + sample["__key__"]}

    file = metadataset(tmp_path / "mix.yaml", val={"path": "x.jsonl"})
    sample = gm.ImageText(MODEL, text=gm.Text("text"), record=gm.RecordFunction(ours, ["json"]))
    loader = EnergonMultiModalDataModule(
        file, tokenizer, seq_length=64, task_encoder=sample, eos=False
    ).val_dataloader()
    expected = samples_of(file, "val", cook)
    assert [key for _ in range(3) for key in next(loader)["__key__"]] == [one.__key__ for one in expected]
    mixture = gm.Mixture.from_energon(file, "val", sample=sample, epochs=1)
    assert [text for text, _, _ in read(mixture, tokenizer, sample=None)] == [one.text for one in expected]


def prepare_lines(path, records, blank=()):
    """A JSONL file and its index, as `energon prepare` makes it, with blank lines before some of its records."""
    lines = ["\n" * (number in blank) + json.dumps(record) + "\n" for number, record in enumerate(records)]
    path.write_text("".join(lines))
    command = [sys.executable, "-m", "megatron.energon.cli.main", "prepare", str(path), "--non-interactive"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert path.with_name(f"{path.name}.idx").is_file(), done.stdout + done.stderr


def metadataset(path, **splits):
    path.write_text(json.dumps({"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}))
    return path


@pytest.fixture(scope="module")
def aux_folder(tmp_path_factory):
    """JSONL whose images are in a folder and in prepared tars, and whose texts are in the tars."""
    folder = tmp_path_factory.mktemp("aux")
    (folder / "pictures/a").mkdir(parents=True)
    members, lines = [], []
    for at in range(9):
        name = f"a/p{at}.png" if at % 2 else f"p{at}.png"
        (folder / "pictures" / name).write_bytes(image(8 + 8 * (at % 4), 8))
        told = {"json": json.dumps({"said": f"S{at}."}).encode(), "txt": f"T{at}".encode()}
        members.append((f"d/t{at}", {"png": image(8, 8 + 8 * (at % 3), at), **told}))
        lines.append({"image": name, "n": at, "caption": f"C{at}. "})
    prepare(folder / "texts", members, *NONE, shards=2)
    prepare_lines(folder / "x.jsonl", lines, blank=(3, 7))
    return folder


def test_lines_with_aux_are_energons_cooked_samples(aux_folder, tokenizer):
    aux = {"pictures": "filesystem://pictures", "texts": "./texts"}
    nodes = [
        {"path": "x.jsonl", "aux": aux},
        {"path": "x.jsonl", "aux": {"pictures": {"fs_path": "pictures"}, "texts": {"path": "texts"}}},
        {"path": "./x.jsonl", "subset": {"range": [2, 8]}, "aux": aux},
        {"path": "./x.jsonl", "subset": {"range": ["25%", "80%"]}, "split_part": "other", "aux": aux},
        {"blend": [
            {"path": "x.jsonl", "aux": aux, "subset": {"range": [0, 4]}, "weight": 2},
            {"path": "x.jsonl", "aux": {**aux, "pictures": f"filesystem://{aux_folder}/pictures"},
             "subset": {"range": [4, "end"]}},
        ]},
    ]  # fmt: skip

    @theirs.stateless
    def cook(sample, pictures, texts):
        about, number = sample["json"], sample["json"]["n"]
        images = [pictures.get(about["image"], sample), texts.get(f"d/t{number}.png", sample)]
        told = texts.get(f"d/t{number}.json", sample)["said"] + texts[f"d/t{number}.txt"][0]
        return theirs.CaptioningSample(
            **theirs.basic_sample_keys(sample), image=[one.size for one in images], caption=about["caption"] + told
        )

    def ours(sample, pictures, texts):
        about, number = sample["json"], sample["n"]
        images = [pictures.get(about["image"], sample), texts.get(f"d/t{number}.png", sample)]
        told = texts.get(f"d/t{number}.json", sample)["said"] + texts[f"d/t{number}.txt"][0]
        return {"text": about["caption"] + told, "images": images}

    function = gm.RecordFunction(ours, {"json": "json", "n": "json[n]"})
    sample = gm.ImageText(MODEL, text=gm.Text("text"), record=function)
    for node in nodes:
        file = metadataset(aux_folder / "mix.yaml", train=node)
        expected = sorted((sample.caption, sample.image) for sample in samples_of(file, cook=cook))
        mixture = gm.Mixture.from_energon(file, sample=sample, epochs=1)
        found = read(mixture, tokenizer, sample=None)
        sizes = [[(4 * columns, 4 * rows) for _, rows, columns in grids] for _, _, grids in found]
        assert sorted((one[1], size) for one, size in zip(found, sizes, strict=True)) == expected
        assert len(expected) > 3


def test_media_of_folders_and_tars_are_energons(tmp_path, tokenizer):
    """`get_media_metadata` of the indexes that `energon prepare --media-metadata-by-extension` makes."""
    from megatron.energon.epathlib import EPath
    from megatron.energon.media import extractor, filesystem_prepare

    (tmp_path / "pictures").mkdir()
    for at in range(3):
        (tmp_path / f"pictures/p{at}.png").write_bytes(image(8 + 8 * at, 8))
    members = [(f"t{at}", {"png": image(8, 8 + 8 * at), "txt": b"a"}) for at in range(3)]
    prepare(tmp_path / "tars", members, *NONE)
    by_extension = extractor.MediaFilterConfig.parse(None, False, True)
    filesystem_prepare.prepare_filesystem_dataset(EPath(str(tmp_path / "pictures")), by_extension, progress=False)
    command = [sys.executable, "-m", "megatron.energon.cli.main", "prepare", str(tmp_path / "tars")]
    command += ["--non-interactive", "--media-metadata-by-extension", "--force-overwrite", "--split-ratio", "1,0,0"]
    subprocess.run(command, capture_output=True, check=False)
    prepare_lines(tmp_path / "x.jsonl", [{"n": at} for at in range(3)])
    aux = {"pictures": "filesystem://pictures", "tars": "tars"}
    file = metadataset(tmp_path / "mix.yaml", train={"path": "x.jsonl", "aux": aux})
    names = ("width", "height", "format", "mode")

    def described(number, pictures, tars):
        seen = [pictures.get_media_metadata(f"p{number}.png"), tars.get_media_metadata(f"t{number}.png")]
        return str([[getattr(one, name) for name in names] for one in seen])

    @theirs.stateless
    def cook(sample, pictures, tars):
        told = described(sample["json"]["n"], pictures, tars)
        return theirs.TextSample(**theirs.basic_sample_keys(sample), text=told)

    function = gm.RecordFunction(lambda record, pictures, tars: {"text": described(record["n"], pictures, tars)},
                                 {"n": "json[n]"})  # fmt: skip
    sample = gm.ImageText(MODEL, text=gm.Text("text"), record=function)
    found = [
        text for text, _, _ in read(gm.Mixture.from_energon(file, sample=sample, epochs=1), tokenizer, sample=None)
    ]
    assert found == [one.text for one in samples_of(file, cook=cook)]
    assert "[[8, 8, 'PNG', 'RGB'], [8, 8, 'PNG', 'RGB']]" in found


def test_a_folder_of_aux_has_the_images_of_lines(aux_folder, tokenizer):
    file = metadataset(aux_folder / "mix.yaml", train={"path": "x.jsonl", "aux": {"of": "filesystem://pictures"}})

    @theirs.stateless
    def cook(sample, of):
        own = {"image": of.get(sample["json"]["image"]).size, "caption": sample["json"]["caption"]}
        return theirs.CaptioningSample(**theirs.basic_sample_keys(sample), **own)

    expected = [(sample.caption, *sample.image) for sample in samples_of(file, cook=cook)]
    sample = gm.ImageText(MODEL, text=gm.Text("caption"))
    found = read(gm.Mixture.from_energon(file, sample=sample, epochs=1), tokenizer, sample=None)
    assert [(text, 4 * columns, 4 * rows) for _, text, ((_, rows, columns),) in found] == expected


def test_primary_has_the_parts_of_other_samples(aux_folder, tokenizer):
    path = aux_folder / "texts"
    (path / ".nv-meta/dataset.yaml").write_text(
        json.dumps({"__module__": "megatron.energon", "__class__": "CrudeWebdataset", "subflavors": {}})
    )
    file = metadataset(aux_folder / "mix.yaml", train={"path": "texts", "aux": {"pictures": "filesystem://pictures"}})

    def parts(primary, pictures, number):
        other = primary.get(f"d/t{(number + 1) % 9}.json")["said"]
        return [primary.get(".png"), pictures.get("p0.png")], other + primary.get(".txt")

    @theirs.stateless
    @theirs.cooker(need_primary=True)
    def cook(sample, primary, pictures):
        images, text = parts(primary, pictures, int(sample["__key__"][3:]))
        own = {"image": [one.size for one in images], "caption": text}
        return theirs.CaptioningSample(**theirs.basic_sample_keys(sample), **own)

    def ours(sample, primary, pictures):
        images, text = parts(primary, pictures, int(sample["__key__"][3:]))
        return {"text": text, "images": images}

    sample = gm.ImageText(MODEL, text=gm.Text("text"), record=gm.RecordFunction(ours, ["json"]))
    found = read(gm.Mixture.from_energon(file, sample=sample, epochs=1), tokenizer, sample=None)
    sizes = [[(4 * columns, 4 * rows) for _, rows, columns in grids] for _, _, grids in found]
    expected = [(sample.caption, sample.image) for sample in samples_of(file, cook=cook)]
    assert [(text, size) for (_, text, _), size in zip(found, sizes, strict=True)] == expected
    assert len(expected) == 9
