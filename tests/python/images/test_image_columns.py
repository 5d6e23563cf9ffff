"""Images in the keys of records give the batches that the same samples give as members of a tar."""

import base64
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from bucket import objects_of
from chat_models import write_vision
from helpers import assert_resumes, assert_same_batches, tar_of
from images import image
from object_store import Server

FIXED = gm.ImageModel("gemma3", size=(8, 12), tokens=4)
PATCHES = gm.ImageModel("qwen3-vl", patch_size=4, min_pixels=64, max_pixels=512)
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_vision(tmp_path_factory.mktemp("models") / "vision")


@pytest.fixture(scope="module")
def samples():
    """Records of none to three images, a caption, and messages with as many placeholders."""
    found = []
    for number in range(23):
        images = [image(5 + number % 7, 4 + at, number) for at in range(number % 4)]
        marks = "<image>" * len(images)
        messages = [
            {"role": "user", "content": f"{marks}question {number}"},
            {"role": "assistant", "content": f"answer {number}{'!' * (number % 5)}"},
        ]
        found.append({"images": images, "text": f"caption {number}", "messages": messages})
    return found


def dataset(folder, shards, model=PATCHES, **more):
    sample = {name: more.pop(name) for name in ("fields", "text", "image_root") if name in more}
    settings = {
        "packing": "best_fit", "fit_window": 5, "sequence_length": 96, "batch_size": 2, "lanes": 1, "eos": False,
        "epochs": 1, "shuffle_window": 7, "seed": 3, **more,
    }  # fmt: skip
    sample = gm.ImageText(model, max_images=4, images="float32", **sample)
    return gm.PackedDataset(shards, tokenizer=folder, sample=sample, **settings)


def as_tar(path, samples, key):
    records = []
    for number, sample in enumerate(samples):
        parts = {f"{at}.png": data for at, data in enumerate(sample["images"])}
        value = sample[key]
        parts["txt" if key == "text" else "json"] = (value if key == "text" else json.dumps(value)).encode()
        records.append((f"{number:03}", parts))
    path.write_bytes(tar_of(records))
    return str(path)


def table(samples, kind):
    """The columns of samples, with images as `datasets` writes them, or as bytes alone."""
    if kind == "bytes":
        images = pa.array([sample["images"] for sample in samples], pa.list_(pa.binary()))
    else:
        rows = [
            [{"bytes": data, "path": f"{number}-{at}.png"} for at, data in enumerate(sample["images"])]
            for number, sample in enumerate(samples)
        ]
        images = pa.array(rows, pa.list_(STRUCT))
    return pa.table(
        {
            "images": images,
            "text": [sample["text"] for sample in samples],
            "messages": [sample["messages"] for sample in samples],
        }
    )


def files(path, samples):
    """The samples with the paths of their images, below `path`, in place of these."""
    found = []
    for number, sample in enumerate(samples):
        names = [f"part{number % 2}/{number}-{at}.png" for at in range(len(sample["images"]))]
        for name, data in zip(names, sample["images"], strict=True):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
        found.append({**sample, "images": names})
    return found


def jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def write(kind, path, samples):
    """A shard of this kind; returns its path, and arguments of the sample."""
    if kind in ("parquet", "bytes"):
        pq.write_table(table(samples, kind), path / "x.parquet", row_group_size=5)
        return str(path / "x.parquet"), {}
    if kind == "arrow":
        with (
            pa.OSFile(str(path / "x.arrow"), "wb") as sink,
            pa.ipc.new_stream(sink, table(samples, kind).schema) as out,
        ):
            out.write_table(table(samples, kind), max_chunksize=5)
        return str(path / "x.arrow"), {}
    if kind == "beside":
        return jsonl(path / "x.jsonl", files(path, samples)), {}
    if kind == "root":
        return jsonl(path / "x.jsonl", files(path / "photographs", samples)), {"image_root": path / "photographs"}
    inline = [
        {**sample, "images": [base64.b64encode(data).decode() for data in sample["images"]]} for sample in samples
    ]
    for record in inline:
        record["images"] = [
            {"bytes": data} if number % 2 else f"data:image/png;base64,{data}"
            for number, data in enumerate(record["images"])
        ]
    return jsonl(path / "x.jsonl", inline), {}


KINDS = ["parquet", "bytes", "arrow", "beside", "root", "base64"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", ["text", "messages"])
def test_batches_are_those_of_a_tar(tmp_path, folder, samples, kind, key):
    text = gm.Text("text") if key == "text" else gm.Chat("messages", stop_tokens=["<|im_end|>\n"])
    in_tar = gm.Text("txt") if key == "text" else gm.Chat("json", stop_tokens=["<|im_end|>\n"])
    model = FIXED if kind == "arrow" and key == "text" else PATCHES
    shard, more = write(kind, tmp_path, samples)
    found = dataset(folder, shard, model, text=text, **more)
    expected = dataset(folder, as_tar(tmp_path / "x.tar", samples, key), model, text=in_tar)
    batches = list(found)
    assert sum(batch["image_masks"].sum() for batch in batches) == sum(len(sample["images"]) for sample in samples)
    assert_same_batches(batches, expected)
    assert_resumes(found, 2)


def test_sets_that_datasets_saves(tmp_path, folder, samples):
    """`to_parquet` and `save_to_disk` of a column of `datasets.Image`."""
    datasets = pytest.importorskip("datasets")
    one = [sample for sample in samples if len(sample["images"]) == 1]
    features = datasets.Features({"image": datasets.Image(), "text": datasets.Value("string")})
    columns = {"image": [sample["images"][0] for sample in one], "text": [sample["text"] for sample in one]}
    saved = datasets.Dataset.from_dict(columns, features=features)
    saved.to_parquet(tmp_path / "x.parquet")
    saved.save_to_disk(tmp_path / "saved")
    expected = list(dataset(folder, as_tar(tmp_path / "x.tar", one, "text"), text=gm.Text("txt")))
    assert_same_batches(dataset(folder, str(tmp_path / "x.parquet")), expected)
    assert_same_batches(dataset(folder, str(tmp_path / "saved")), expected)


def test_fields_are_guessed_and_said(tmp_path, folder, samples, caplog):
    shard, _ = write("parquet", tmp_path, samples)
    guessed, named = dataset(folder, shard), dataset(folder, shard, text=gm.Chat("messages"))
    assert "is taken from 'messages', and images from 'images' or 'image'" in caplog.text
    assert_same_batches(guessed, named)
    only_text = [{"images": sample["images"], "caption": sample["text"]} for sample in files(tmp_path, samples)]
    shard = jsonl(tmp_path / "captions.jsonl", only_text)
    assert_same_batches(dataset(folder, shard), dataset(folder, shard, text=gm.Text("caption")))
    (tmp_path / "q.jsonl").write_text('{"image": "a.png", "question": "b", "answer": "c", "text": "d"}\n')
    with pytest.raises(gm.ArgumentError, match=r"shows no text, only the keys .*'question'.*; name it, such as"):
        dataset(folder, str(tmp_path / "q.jsonl"))


def test_share_gpt_of_llava(tmp_path, folder, samples):
    """Records as LLaVA has them: one path under `image`, and `conversations`."""
    one = [sample for sample in files(tmp_path, samples) if len(sample["images"]) == 1]
    roles = {"user": "human", "assistant": "gpt"}
    records = [
        {
            "id": str(number),
            "image": sample["images"][0],
            "conversations": [{"from": roles[turn["role"]], "value": turn["content"]} for turn in sample["messages"]],
        }
        for number, sample in enumerate(one)
    ]
    shard = jsonl(tmp_path / "llava.jsonl", records)
    expected = list(dataset(folder, jsonl(tmp_path / "x.jsonl", one), text=gm.Chat("messages")))
    named = gm.Chat("conversations", format="sharegpt")
    for text in (None, gm.Chat(), named):
        assert_same_batches(dataset(folder, shard, text=text), expected)
    with pytest.raises(gm.ArgumentError, match=r"messages of ShareGPT under 'conversations'; set format=.sharegpt"):
        dataset(folder, shard, text=gm.Chat("conversations"))


@pytest.mark.parametrize("kind", ["path", "file", "data", "url", "source"])
def test_parts_of_messages_lead_to_images(tmp_path, folder, samples, kind):
    """Parts that are paths, or data URLs as in requests to servers, need no key of images beside the messages."""
    named = files(tmp_path, samples)

    def part(name):
        data = base64.b64encode((tmp_path / name).read_bytes()).decode()
        if kind == "path":
            return {"type": "image", "image": name}
        if kind == "file":
            return {"type": "image", "image": (tmp_path / name).as_uri()}
        if kind == "source":
            return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        url = f"data:image/png;base64,{data}" if kind == "data" else str(tmp_path / name)
        return {"type": "image_url", "image_url": {"url": url}}

    records = []
    for sample in named:
        question, answer = sample["messages"]
        text = {"type": "text", "text": question["content"].removeprefix("<image>" * len(sample["images"]))}
        parts = [*map(part, sample["images"]), text]
        records.append({"messages": [{**question, "content": parts}, answer]})
    found = dataset(folder, jsonl(tmp_path / "parts.jsonl", records), text=gm.Chat("messages"))
    expected = dataset(folder, jsonl(tmp_path / "x.jsonl", named), text=gm.Chat("messages"))
    assert_same_batches(found, expected)


def test_parts_name_images_of_a_column_by_their_paths(tmp_path, folder, samples):
    named = files(tmp_path, [sample for sample in samples if len(sample["images"]) == 2])
    records, expected = [], []
    for sample in named:
        question, answer = sample["messages"]
        parts = [{"type": "image", "image": name} for name in reversed(sample["images"])]
        text = {"type": "text", "text": question["content"].removeprefix("<image><image>")}
        records.append({**sample, "messages": [{**question, "content": [*parts, text]}, answer]})
        expected.append({**sample, "images": sample["images"][::-1]})
    found = dataset(folder, jsonl(tmp_path / "parts.jsonl", records), text=gm.Chat("messages"))
    expected = dataset(folder, jsonl(tmp_path / "x.jsonl", expected), text=gm.Chat("messages"))
    assert_same_batches(found, expected)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_parts_have_indices_of_images(tmp_path, folder, samples, kind):
    """Parts of `{"type", "text", "index"}`, as in sets of visual instructions for TRL: images by their index."""
    named = files(tmp_path, [sample for sample in samples if len(sample["images"]) == 2])
    records, expected = [], []
    for sample in named:
        question, answer = sample["messages"]
        parts = [{"type": "image", "text": None, "index": index} for index in (1, 0)]
        parts.append({"type": "text", "text": question["content"].removeprefix("<image><image>"), "index": None})
        answer = {**answer, "content": [{"type": "text", "text": answer["content"], "index": None}]}
        records.append({"images": sample["images"], "messages": [{**question, "content": parts}, answer]})
        expected.append({**sample, "images": sample["images"][::-1]})
    shard = jsonl(tmp_path / "parts.jsonl", records)
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(records), tmp_path / "parts.parquet")
        shard = str(tmp_path / "parts.parquet")
    found = dataset(folder, shard, text=gm.Chat("messages"))
    expected = dataset(folder, jsonl(tmp_path / "x.jsonl", expected), text=gm.Chat("messages"))
    assert_same_batches(found, expected)


@pytest.mark.parametrize("sample", ["images", "chat"])
@pytest.mark.parametrize(
    ("message", "key"),
    [
        ({"content": "What?", "images": ["a.png"]}, "images"),
        ({"content": "What?", "audio": {"data": "a"}}, "audio"),
        ({"content": [{"type": "text", "text": "What?", "image": "a.png"}]}, "image"),
    ],
)
def test_images_beside_what_is_said_are_not_passed_over(tmp_path, folder, sample, message, key):
    answer = {"role": "assistant", "content": "An answer."}
    messages = [{"role": "user", **message}, answer]
    shard = jsonl(tmp_path / "x.jsonl", [{"messages": messages}])
    text = gm.Chat(stop_tokens=["<|im_end|>\n"])
    made = gm.ImageText(PATCHES, text=text) if sample == "images" else text
    rows = {"tokenizer": folder, "packing": "pad", "sequence_length": 64, "batch_size": 1, "lanes": 1, "epochs": 1}
    with pytest.raises(gm.ShardError, match=rf"record 0, .*messages?.*0.* expected .*found .*\"{key}\""):
        list(gm.PackedDataset(shard, sample=made, **rows))
    empty = {"role": "user", "content": "What?", "images": [], "image": {"bytes": None, "path": ""}}
    shard = jsonl(tmp_path / "y.jsonl", [{"messages": [empty, answer]}])
    assert len(list(gm.PackedDataset(shard, sample=made, **rows))) == 1


def test_small_images_in_base64(tmp_path, folder):
    """Icons have fewer characters than a path may have."""
    data = [image(4, 4, kind=kind) for kind in ("PNG", "JPEG", "GIF", "WEBP")]
    texts = [base64.b64encode(one).decode() for one in data]
    assert max(map(len, texts)) < 4096
    shard = jsonl(tmp_path / "x.jsonl", [{"image": one, "text": "some text"} for one in texts])
    assert sum(batch["image_masks"].sum() for batch in dataset(folder, shard, batch_size=1)) == len(data)


def test_images_in_a_store(tmp_path, folder, samples):
    """Relative paths from a root in a store, and URLs as they are."""
    named = files(tmp_path / "bucket", samples)
    urls = [{**sample, "images": [f"s3://bucket/{name}" for name in sample["images"]]} for sample in named]
    expected = list(dataset(folder, as_tar(tmp_path / "x.tar", samples, "text"), text=gm.Text("txt")))
    shards = [jsonl(tmp_path / "x.jsonl", named), jsonl(tmp_path / "urls.jsonl", urls)]
    with Server(objects_of(tmp_path / "bucket")) as server:
        for shard, root in zip(shards, ["s3://bucket", None], strict=True):
            found = dataset(folder, shard, text=gm.Text("text"), image_root=root, storage_options=server.options())
            assert_same_batches(found, expected)


def test_an_outage_is_no_bad_record(tmp_path, folder, samples):
    """An object that is not there is one; a store that does not answer stops the run, whatever `on_error` says."""
    named = files(tmp_path / "bucket", samples)
    shard = jsonl(tmp_path / "x.jsonl", named)
    objects = objects_of(tmp_path / "bucket")
    lost = next(name for name in sorted(objects))
    more = {"text": gm.Text("text"), "image_root": "s3://bucket", "on_error": "quarantine", "max_error_rate": 1.0}
    with Server({name: data for name, data in objects.items() if name != lost}) as server:
        iterator = iter(dataset(folder, shard, storage_options=server.options(), **more))
        assert list(iterator)
        assert iterator.stats()["quarantined"] == 1
        options = server.options(retry_timeout="1", max_retries="1")
    with pytest.raises(gm.GristmillError) as caught:
        list(dataset(folder, shard, storage_options=options, **more))
    assert not isinstance(caught.value, gm.ShardError)


BAD = [
    ({"images": ["none.png"]}, r"the image \"none.png\" at \".*none.png\": expected an image file, .* image_root="),
    ({"images": ["ftp://h/a.png"]}, r"expected a path, file:///path, or a URL of gs, .*, found one of ftp"),
    ({"images": [3]}, r"image 0 under the key \"images\": expected bytes, a path, .* found a number"),
    ({"images": [{"bytes": None, "path": None}]}, r"expected \"bytes\" or a \"path\", found neither"),
    ({"images": ["data:image/png;base64,%"]}, r"expected an image in base64"),
    ({"images": ["data:image/png;base64,AAAA"]}, r"expected a JPEG, PNG, WebP, GIF or BMP image, found bytes"),
    ({"images": []}, r"expected an image under \[\"images\"\], as fields\[\"images\"\] says, found none"),
    ({"images": ["a.png", "a.png"], "text": "one <image>"}, "expected a placeholder for each image, found 1 for 2"),
]  # fmt: skip


OTHERS = [{"video": "a.mp4"}, {"videos": ["a.mp4"]}, {"audio": {"path": "a.wav"}}]
CHAT = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]


@pytest.mark.parametrize("text", [gm.Text("text"), gm.Completion("text", "answer"), gm.Chat("messages")])
def test_a_text_beside_other_media_is_not_trained_on_alone(tmp_path, folder, text):
    """Where `fields=` names no images, the record must have none at all."""
    (tmp_path / "a.png").write_bytes(image(8, 8))
    own = {"text": "some text", "answer": "and more", "messages": CHAT}
    shown = [{"role": "user", "content": "<image>one"}, CHAT[1]]
    good = [{**own, "image": "a.png", "video": "a.mp4", "messages": shown}, own, {**own, "videos": [], "audio": None}]
    shard = jsonl(tmp_path / "x.jsonl", [*good, *({**own, **other} for other in OTHERS)])
    more = {"on_error": "quarantine", "max_error_rate": 1.0, "shuffle_window": 1}
    if isinstance(text, gm.Chat):
        more["eos"] = False
    iterator = iter(dataset(folder, shard, text=text, **more))
    assert sum(batch["image_masks"].sum() for batch in iterator) == 1
    assert iterator.stats()["documents"] == 3
    reasons = [entry["reason"] for entry in iterator.quarantine()]
    for other, reason in zip(OTHERS, reasons, strict=True):
        (key,) = other
        assert reason.startswith(f'expected an image, found none but "{key}": videos and audio are not read')


@pytest.mark.parametrize(
    "own", [{"picture": "a.png"}, {"img": {"bytes": "", "path": None}}, {"jpg": 3}, {"p": ["data:image/png;base64,"]}]
)
def test_images_under_other_keys_are_not_passed_over(tmp_path, folder, own):
    record = {"text": "see a.png", "answer": "b", "messages": CHAT, **own}
    shard = jsonl(tmp_path / "x.jsonl", [record])
    (key,) = own
    for text in (gm.Text("text"), gm.Completion("text", "answer"), gm.Instruction("text", output="answer")):
        with pytest.raises(gm.ArgumentError, match=f"has no key 'images' or 'image', .* without '{key}', which looks"):
            dataset(folder, shard, text=text)
    assert list(dataset(folder, shard, text=gm.Chat("messages")))
    assert list(dataset(folder, jsonl(tmp_path / "y.jsonl", [{"text": "see a.png"}]), text=gm.Text("text")))
    later = jsonl(tmp_path / "z.jsonl", [{"text": "see a.png", key: None}, record])
    with pytest.raises(gm.ArgumentError, match=f"record [01] of .*z.jsonl has no key .* without '{key}', which looks"):
        dataset(folder, later, text=gm.Text("text"))


def test_first_shards_may_be_empty_or_damaged(tmp_path, folder):
    """Keys, and whether images are in them, are those of the first record that can be read."""
    (tmp_path / "a.png").write_bytes(image(8, 8))
    good = {"image": "a.png", "text": "good and long"}
    pq.write_table(pa.table({"image": [image(8, 8)], "text": ["good and long"]}), tmp_path / "good.parquet")
    rows = pa.table({"image": pa.array([], pa.binary()), "text": pa.array([], pa.string())})
    pq.write_table(rows, tmp_path / "empty.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "good.parquet").read_bytes()[:-9])
    (tmp_path / "zero.parquet").write_bytes(b"")
    (tmp_path / "zero.jsonl").write_bytes(b"")
    jsonl(tmp_path / "good.jsonl", [good])
    (tmp_path / "begun.jsonl").write_text('{"image": \n[]\n' + json.dumps(good) + "\n")
    more = {"on_error": "quarantine", "max_error_rate": 1.0}
    for names, bad in [
        (["empty.parquet", "good.parquet"], 0), (["cut.parquet", "good.parquet"], 1),
        (["zero.parquet", "good.parquet"], 1), (["zero.jsonl", "good.jsonl"], 0), (["begun.jsonl"], 2),
    ]:  # fmt: skip
        for sample in ({}, {"fields": {"images": "image", "text": "text"}}):
            shards = []
            for number, name in enumerate(names):  # shards are sorted by path
                shards.append(tmp_path / f"{number}-{name}")
                shards[-1].write_bytes((tmp_path / name).read_bytes())
            with_errors = dict(more) if bad else {}
            iterator = iter(dataset(folder, [str(shard) for shard in shards], batch_size=1, **with_errors, **sample))
            assert sum(batch["image_masks"].sum() for batch in iterator) == 1, names
            assert iterator.stats()["quarantined"] == bad
    with pytest.raises(gm.ArgumentError, match=r"expected a record with keys in .*, found none: shards are tars"):
        dataset(folder, str(tmp_path / "zero.jsonl"))
    with pytest.raises(gm.ShardError, match="found an image; put images into tars, or name them in records"):
        dataset(folder, str(tmp_path / "a.png"))
    with pytest.raises(gm.ShardError, match="at the end of the Parquet file"):
        dataset(folder, str(tmp_path / "cut.parquet"))
    with pytest.raises(gm.ShardError, match=r"good.parquet: record 0.*max_document_bytes"):
        dataset(folder, str(tmp_path / "good.parquet"), max_document_bytes=64)


def test_file_urls_are_paths(tmp_path, folder):
    (tmp_path / "a é.png").write_bytes(image(8, 8))
    shard = jsonl(tmp_path / "x.jsonl", [{"image": (tmp_path / "a é.png").as_uri(), "text": "some text"}])
    assert sum(batch["image_masks"].sum() for batch in dataset(folder, shard, batch_size=1)) == 1


@pytest.mark.parametrize(("record", "message"), BAD)
def test_records_that_are_bad(tmp_path, folder, record, message):
    (tmp_path / "a.png").write_bytes(image(8, 8))
    good = {"images": ["a.png"], "text": "good"}
    shard = jsonl(tmp_path / "x.jsonl", [good, {"text": "bad", **record}, good])
    more = {"fields": {"images": "images", "text": "text"}}
    with pytest.raises(gm.ShardError, match=r"x.jsonl: record 1, byte \d+: .*" + message):
        list(dataset(folder, shard, **more))
    iterator = iter(dataset(folder, shard, on_error="quarantine", max_error_rate=1.0, **more))
    assert sum(batch["image_masks"].sum() for batch in iterator) == 2
    assert iterator.stats()["quarantined"] == 1


def test_damaged_images_are_listed(tmp_path, folder, samples):
    """An image whose header is sound, in memory and in a file of its own."""
    broken = image(40, 40)[:-200]
    (tmp_path / "cut.png").write_bytes(broken)
    held = [{"image": "cut.png", "text": "a"}, {"image": {"bytes": base64.b64encode(broken).decode()}, "text": "b"}]
    shard = jsonl(tmp_path / "x.jsonl", [*held, {"image": {"path": "cut.png", "bytes": None}, "text": "c"}])
    with pytest.raises(
        gm.ShardError, match=r"x.jsonl: record 0, byte 0: image 0, .*cut.png, cannot be decoded: PNG image"
    ):
        list(dataset(folder, shard, shuffle_window=1))
    iterator = iter(dataset(folder, shard, on_error="quarantine", max_error_rate=1.0))
    batches = list(iterator)
    assert iterator.stats()["undecodable"] == 3
    assert not any(batch["targets_loss_mask"].any() for batch in batches if "targets_loss_mask" in batch)


def test_root_and_kinds_are_checked(tmp_path, folder, samples):
    tar = as_tar(tmp_path / "x.tar", samples, "text")
    with pytest.raises(gm.ArgumentError, match="image_root='y': the images of a tar are its members; leave it out"):
        dataset(folder, tar, image_root="y")
    shard, _ = write("parquet", tmp_path, samples)
    (tmp_path / "y.tar").write_bytes((tmp_path / "x.tar").read_bytes())
    message = "expected images in the keys of records, as in the first shard, found a tar; make a source of each kind"
    with pytest.raises(gm.ArgumentError, match=message):
        list(dataset(folder, [shard, str(tmp_path / "y.tar")], text=gm.Text("text")))


def test_root_is_no_part_of_the_state(tmp_path, folder, samples):
    shard, more = write("root", tmp_path, samples)
    iterator = iter(dataset(folder, shard, text=gm.Text("text"), **more))
    next(iterator)
    state, rest = iterator.get_state(), list(iterator)
    (tmp_path / "photographs").rename(tmp_path / "moved")
    moved = iter(dataset(folder, shard, text=gm.Text("text"), image_root=tmp_path / "moved"))
    moved.set_state(state)
    assert_same_batches(moved, rest)


def test_a_named_key_of_images_is_a_column(tmp_path, folder):
    """Messages have no placeholder for it, so nothing else would say that it is spelled wrong."""
    path = tmp_path / "x.parquet"
    pq.write_table(
        pa.table({"pictures": [None, [{"bytes": image(8, 8), "path": None}]], "messages": [CHAT, CHAT]}), path
    )
    chat = gm.Chat("messages")
    with pytest.raises(gm.ArgumentError, match=r"fields\['images'\]=\['picture'\]: expected a column of .*'pictures'"):
        dataset(folder, path, fields={"images": ["picture"]}, text=chat, eos=False)
    assert dataset(folder, path, fields={"images": ["pictures"]}, text=chat, eos=False)
    assert dataset(folder, path, fields={"images": ["picture", "pictures"]}, text=chat, eos=False)
