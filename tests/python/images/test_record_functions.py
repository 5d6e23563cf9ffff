"""Functions that make the records of crude folders, sample types of Energon, and completions and pairs with images."""

import base64
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from chat_models import VISION_CHATML, write_vision
from helpers import assert_resumes, assert_same_batches, tar_of
from images import image

MODEL = gm.ImageModel("qwen3-vl", patch_size=4, min_pixels=64, max_pixels=512)
SMALL, WIDE = image(8, 8), image(16, 8)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_vision(tmp_path_factory.mktemp("models") / "vision")


def write(path, samples, name="a.tar"):
    (path / name).write_bytes(tar_of([(f"d/s{number}", parts) for number, parts in enumerate(samples)]))
    return str(path / name)


def dataset_of(shards, tokenizer, sample, **more):
    has_ends = not isinstance(sample.text, (gm.Chat, gm.Preference))
    arguments = {"packing": "pad", "sequence_length": 128, "epochs": 1, "lanes": 1, "seed": None, "layout": "grain"}
    if has_ends:
        arguments["eos"] = False
    return gm.PackedDataset(shards, tokenizer=tokenizer, sample=sample, **{**arguments, **more})


def shown(row, tokenizer):
    """The text of a row, the part of it that is trained on, and the sizes of its images."""
    encoder = gm.Encoder.from_pretrained(tokenizer)
    is_text = [(row["tokens_segment_ids"] > 0), (row["tokens_loss_mask"] > 0)]
    texts = [encoder.decode(row["tokens"][own]) for own in is_text]
    texts = [re.sub(r"<\|vision_start\|>(<\|image_pad\|>)+<\|vision_end\|>", "<i>", text) for text in texts]
    return *texts, [(4 * w, 4 * h) for _, h, w in row["image_grid_thw"][row["image_masks"] > 0].tolist()]


def read(shards, tokenizer, sample, **more):
    """The samples, and the bad records."""
    more = {"on_error": "quarantine", "max_error_rate": 1.0, **more}
    with iter(dataset_of(shards, tokenizer, sample, **more)) as iterator:
        found = [shown(row, tokenizer) for row in iterator]
        return found, [entry["reason"] for entry in iterator.quarantine()], iterator.stats()


def cook(record):
    """Messages of a question and answers."""
    about = record["about"]
    if about.get("skip"):
        return None
    messages = [
        {"role": "user", "content": "<image>" * len(about["use"]) + about["q"]},
        {"role": "assistant", "content": f"{record['note']} {record['__key__']} {record['__images__']}"},
    ]
    return {"messages": messages, "images": about["use"]}


FIELDS = {"about": "json[about]", "note": "txt,text"}


def crude(about, **parts):
    return {"json": json.dumps({"about": about}).encode(), **parts}


def test_function_makes_messages_and_chooses_images(tmp_path, tokenizer):
    two = {"a.png": SMALL, "b.png": WIDE}
    samples = [
        crude({"q": "Who?", "use": ["b.png", "a.png"]}, **two, txt=b"Ant"),
        crude({"q": "No.", "use": [], "skip": True}, **two, txt=b"x"),
        crude({"q": "What?", "use": ["s2.b.png"]}, **two, text=b"Bee"),
        crude({"q": "Alone?", "use": []}, **two, txt=b"Fly"),
        crude({"q": "By number?", "use": [1, 1]}, **two, txt=b"Two"),
        {"txt": b"no JSON", "a.png": SMALL},
        crude({"q": "Which?", "use": ["c.png"]}, **two, txt=b"x"),
        crude({"q": "Which?", "use": [2]}, **two, txt=b"x"),
    ]
    sample = gm.ImageText(MODEL, text=gm.Chat(), record=gm.RecordFunction(cook, FIELDS))
    found, bad, stats = read(write(tmp_path, samples), tokenizer, sample)
    end = "['a.png', 'b.png']<|im_end|>\n"

    def chat(said, answer):
        return f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n{answer} {end}"

    assert found == [
        (chat("<i><i>Who?", "Ant d/s0"), f"Ant d/s0 {end[:-1]}", [(16, 8), (8, 8)]),
        (chat("<i>What?", "Bee d/s2"), f"Bee d/s2 {end[:-1]}", [(16, 8)]),
        (chat("Alone?", "Fly d/s3"), f"Fly d/s3 {end[:-1]}", []),
        (chat("<i><i>By number?", "Two d/s4"), f"Two d/s4 {end[:-1]}", [(16, 8), (16, 8)]),
    ]
    assert bad[0] == "sample \"d/s5\": the function raised KeyError: 'about'"
    assert bad[1] == (
        'sample "d/s6": expected a list under "images", of names or numbers of the sample\'s images '
        '["a.png", "b.png"], found "c.png"'
    )
    assert bad[2].endswith("found 2")
    assert (stats["filtered"], stats["quarantined"], stats["records"]) == (1, 3, 8)


@pytest.mark.parametrize(
    ("listed", "sizes"),
    [
        (["a", "b", "a"], [(8, 8), (8, 8), (16, 8)]),  # as often as there are: one each
        (["b", "a"], [(8, 8), (8, 8), (16, 8)]),  # once: all of them
        (["b", "b"], [(8, 8), (8, 8)]),
        ([2], [(16, 8)]),
        (["a", "a", "a"], None),
    ],
)
def test_names_of_several_images(tmp_path, tokenizer, listed, sizes):
    data = [base64.b64encode(one).decode() for one in (SMALL, SMALL, WIDE)]
    images = [{"path": name, "bytes": one} for name, one in zip("aba", data, strict=True)]
    (tmp_path / "a.jsonl").write_text(json.dumps({"images": images, "text": "t"}))

    def made(record):
        assert record["__images__"] == ["a", "b", "a"]
        return {"text": "some text", "images": listed}

    sample = gm.ImageText(MODEL, text=gm.Text("text"), record=gm.RecordFunction(made, ["text"]))
    found, bad, _ = read(str(tmp_path / "a.jsonl"), tokenizer, sample)
    if sizes is None:
        assert bad == [
            'expected "a" once under "images", for all 2 images of this name, or 2 times, found it 3 times; '
            "list numbers"
        ]
    else:
        assert [sorted(row[2]) for row in found] == [sizes]


def test_bytes_of_columns_are_given_as_their_number(tmp_path, tokenizer):
    """Bytes that are no text: images must not become text on their way to a function."""
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    image_column = pa.array([{"bytes": SMALL, "path": "a.png"}], struct)
    columns = {"image": image_column, "raw": [[WIDE, b"text"]], "said": [b"caf\xc3\xa9"]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    given = {}

    def made(record):
        given.update(record)
        return {"text": record["said"]}

    sample = gm.ImageText(MODEL, text=gm.Text("text"), record=gm.RecordFunction(made, [*columns]))
    assert read(str(tmp_path / "a.parquet"), tokenizer, sample)[0] == [("<i>café", "café", [(8, 8)])]
    assert given["image"] == {"bytes": {"bytes": len(SMALL)}, "path": "a.png"}
    assert (given["raw"], given["said"]) == ([{"bytes": len(WIDE)}, "text"], "café")


def test_named_images_are_there_unless_a_function_says_so(tmp_path, tokenizer):
    """In tars and in columns alike, of each text that needs no placeholders for them."""
    record = {"prompt": "a question", "completion": "an answer"}
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    tar = write(tmp_path, [{"json": json.dumps(record).encode()}])
    for shard, before, name in [(str(tmp_path / "a.jsonl"), "", "image"), (tar, "json.", "png")]:
        prompt, completion = f"{before}prompt", f"{before}completion"
        for text in (gm.Completion(prompt, completion), gm.Instruction(prompt, output=completion)):
            found, bad, _ = read(shard, tokenizer, gm.ImageText(MODEL, fields={"images": name}, text=text))
            assert (found, len(bad)) == ([], 1)
            assert 'as fields["images"] says, found' in bad[0]
        function = gm.RecordFunction(lambda _: {**record, "images": []}, ["json", "prompt"], name="no images")
        sample = gm.ImageText(MODEL, fields={"images": name}, text=gm.Completion(), record=function)
        assert read(shard, tokenizer, sample)[0] == [("a questionan answer", "an answer", [])]


def test_errors_have_shard_record_and_byte(tmp_path, tokenizer):
    shard = write(tmp_path, [{"txt": b"a", "png": SMALL}, {"txt": b"b", "png": SMALL}])
    for made, match in [
        (lambda record: 1 / (record["txt"] == "b"), "the function raised ZeroDivisionError"),
        (lambda record: [record["txt"]], "expected a dict or None, found list"),
        (lambda record: {"text": float("nan")}, "the function raised ValueError: Out of range float values"),
        (lambda record: {"text": b"x"}, "the function raised TypeError: Object of type bytes"),
        (lambda record: {"text": 3}, 'expected a string under the key "text", found a number'),
        (lambda record: {"text": "a", "images": "png"}, 'expected a list under "images"'),
        (lambda record: {"text": "a", "image": ["png"]}, 'under "images", found some under'),
        (lambda record: {"text": "<image> <image>"}, "expected a placeholder for each image, found 2 for 1"),
    ]:
        sample = gm.ImageText(MODEL, text=gm.Text("text"), record=gm.RecordFunction(made, ["txt"]))
        with pytest.raises(gm.ShardError, match=match) as caught:
            list(dataset_of(shard, tokenizer, sample))
        error = caught.value
        assert (error.shard, error.record) in [(shard, 0), (shard, 1)]
        assert error.byte is not None


def test_stream_is_one_on_any_threads_and_after_restarts(tmp_path, tokenizer):
    for shard in range(4):
        samples = [crude({"q": "Q" * number, "use": [0]}, png=SMALL, txt=b"A" * (1 + number)) for number in range(9)]
        write(tmp_path, samples, f"{shard}.tar")

    def make(version=None, function=cook, **more):
        sample = gm.ImageText(MODEL, text=gm.Chat(), record=gm.RecordFunction(function, FIELDS, version=version))
        arguments = {
            "packing": "best_fit",
            "batch_size": 4,
            "lanes": 2,
            "seed": 1,
            "epochs": 4,
            "sequence_length": 192,
        }
        return dataset_of(str(tmp_path / "*.tar"), tokenizer, sample, **arguments, **more)

    with iter(make(threads=1)) as one, iter(make(threads=3)) as three:
        for _ in range(6):
            assert_same_batches([next(one)], [next(three)])
    assert_resumes(make(), 5)
    # The name and the version define the stream, and the code does not.
    same = gm.RecordFunction(lambda record: None, FIELDS, name=f"{cook.__module__}.cook")
    assert same.described == gm.RecordFunction(cook, FIELDS).described
    assert make().fingerprint != make(version=2).fingerprint != make(version="2").fingerprint
    with iter(make()) as one, iter(make(version=2)) as other:
        next(one)
        with pytest.raises(gm.StateError, match="version=2"):
            other.set_state(one.get_state())


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: gm.RecordFunction("cook", ["json"]), "cook='cook': expected a function"),
        (lambda: gm.RecordFunction(cook, "json"), "fields='json': expected a list of parts"),
        (lambda: gm.RecordFunction(cook, []), "expected the parts that the function is given, found none"),
        (lambda: gm.RecordFunction(cook, ["json["]), "expected parts with commas between them"),
        (lambda: gm.RecordFunction(cook, {"__key__": "json"}), "the name '__key__' is that of what is given"),
        (lambda: gm.RecordFunction(cook, {"a": 3}), "fields\\['a'\\]"),
        (lambda: gm.RecordFunction(cook, ["json"], version=1.5), "version=1.5"),
        (lambda: gm.ImageText(MODEL, record=cook), "record=.*: expected gm.RecordFunction or None"),
        (
            lambda: gm.ImageText(MODEL, fields={"text": "txt"}, record=gm.RecordFunction(cook, ["txt"])),
            "text= names keys of what record= makes",
        ),
    ],
)
def test_arguments_are_checked(make, match):
    with pytest.raises((gm.ArgumentError, gm.ArgumentTypeError), match=match):
        make()


def folder_of(path, samples, name, field_map):
    (path / ".nv-meta").mkdir(exist_ok=True)
    write(path, samples)
    files = {
        ".info.json": {"energon_version": "7.4.1", "shard_counts": {"a.tar": len(samples)}},
        "split.yaml": {"split_parts": {"train": ["a.tar"]}, "exclude": []},
        "dataset.yaml": {"sample_type": {"__module__": "megatron.energon", "__class__": name}, "field_map": field_map},
    }
    for file, value in files.items():
        (path / ".nv-meta" / file).write_text(json.dumps(value))
    return gm.EnergonFolder(path)


VQA = {"image": "png", "context": "json[q]", "answers": "json[a],txt", "answer_weights": "json[w]"}
CHOICES = {"image": "png", "context": "json[q]", "choices": "json[c]", "correct_choice_idx": "json[r]"}
SIMILAR = {"images": "jpgs", "texts": "json[t]", "matched_text_indices": "json[m]", "similarity_matrix": "json[s]"}


def pickled(*files):
    import pickle

    return pickle.dumps(list(files))


@pytest.mark.parametrize(
    ("name", "field_map", "parts", "expected"),
    [
        ("VQASample", VQA, {"q": "Who?", "a": ["Ant.", "Bee.", "Fly."], "w": [1, 3, 3]}, ("<i>Who?\n", "Bee.")),
        ("VQASample", VQA, {"q": "Who?", "a": ["Ant.", "Bee."]}, ("<i>Who?\n", "Ant.")),
        ("VQASample", VQA, {"q": "See <image> here?"}, ("See <i> here?\n", "A text.")),
        ("VQASample", VQA, {"q": "Who?", "a": []}, "expected answers that are a text or a list of texts, found \\[\\]"),
        ("VQASample", VQA, {"q": "Who?", "a": ["Ant."], "w": [1, 2]}, "expected a weight for each of 1 answers"),
        ("VQASample", VQA, {"a": ["Ant."]}, "expected a text as context, found none"),
        (
            "MultiChoiceVQASample",
            CHOICES,
            {"q": "Who?", "c": ["ant", "bee"], "r": 1},
            ("<i>Who?\nA. ant\nB. bee\n", "B"),
        ),
        (
            "MultiChoiceVQASample",
            CHOICES,
            {"q": "Who?", "c": ["ant"], "r": 1},
            "expected correct_choice_idx from 0 to 0",
        ),
        ("MultiChoiceVQASample", CHOICES, {"q": "Who?", "r": 1}, "expected choices, a list of at most 26 texts"),
        (
            "OCRSample",
            {"image": "png", "text": "txt", "words_boxes": "json[b]"},
            {"b": [[0, 0, 1, 1]]},
            ("<i>", "A text."),
        ),
        ("InterleavedSample", {"sequence": "json[s]"}, {"s": ["One ", "png", " two."]}, ("", "One <i> two.")),
        (
            "InterleavedSample",
            {"sequence": "json"},
            [{"type": "text", "text": "One "}, {"type": "image", "image": "s0.png"}, "."],
            ("", "One <i>."),
        ),
        (
            "InterleavedSample",
            {"sequence": "json[s]"},
            {"s": [{"type": "image", "image": "other.png"}]},
            "as an image of the sequence, found 'other.png'",
        ),
        (
            "InterleavedSample",
            {"sequence": "json[s]"},
            {"s": ["One ", "other.png"]},
            "expected each image of the sample in the sequence, found none that names 'png'",
        ),
        (
            "InterleavedSample",
            {"sequence": "json[s]"},
            {"s": [{"text": "One ", "image": "png"}]},
            "expected a text or an image in an item of the sequence, found \\['png', 'One '\\]",
        ),
        (
            "InterleavedSample",
            {"sequence": "json[s]"},
            {"s": "One"},
            "expected a sequence, a list of texts and of images",
        ),
        ("SimilarityInterleavedSample", SIMILAR, {"t": ["One.", "Two."], "m": [1, 0]}, ("", "<i>One. <i>Two.")),
        ("SimilarityInterleavedSample", SIMILAR, {"t": ["One.", "Two."], "m": [1, 1]}, ("", "One. <i><i>Two.")),
        (
            "SimilarityInterleavedSample",
            SIMILAR,
            {"t": ["One.", "Two."], "s": [[0.1, 0.9], [0.2, 0.1]]},
            ("", "<i>One. <i>Two."),
        ),
        ("SimilarityInterleavedSample", SIMILAR, {"t": ["One."], "m": [0]}, "for each of 2 images"),
        ("SimilarityInterleavedSample", SIMILAR, {"t": ["One."], "m": [0, 1]}, "expected indices of 1 texts, found 1"),
    ],
)
def test_sample_types_of_energon(tmp_path, tokenizer, name, field_map, parts, expected):
    images = {"jpgs": pickled(SMALL, WIDE)} if "images" in field_map else {"png": SMALL}
    sample = {**images, "txt": b"A text.", "json": json.dumps(parts).encode()}
    found, bad, _ = read(folder_of(tmp_path, [sample], name, field_map), tokenizer, gm.ImageText(MODEL))
    if isinstance(expected, str):
        assert found == []
        assert re.search(expected, bad[0]), bad
        return
    before, after = expected
    assert bad == []
    ((text, trained, sizes),) = found
    assert (text, trained) == (before + after, after.replace("<i>", ""))
    order = [SMALL, WIDE] if parts != {"t": ["One.", "Two."], "m": [1, 0]} and "s" not in parts else [WIDE, SMALL]
    assert sizes == [gm.image_size(file) for file in (order if "images" in field_map else [SMALL])]


def test_sample_types_as_conversations(tmp_path, tokenizer):
    values = [{"q": "Who?", "a": ["Ant."]}, {"q": "What?", "a": ["No."]}]
    samples = [{"png": SMALL, "json": json.dumps(one).encode()} for one in values]
    samples += [{"json": json.dumps(values[0]).encode()}]
    folder = folder_of(tmp_path, samples, "VQASample", VQA)
    found, bad, _ = read(folder, tokenizer, gm.ImageText(MODEL, text=gm.Chat(template=VISION_CHATML)))
    assert [trained for _, trained, _ in found] == ["Ant.<|im_end|>", "No.<|im_end|>"]
    assert found[0][0].startswith("<|im_start|>user\n<i>Who?<|im_end|>")
    assert bad == ['sample "d/s2": expected a placeholder for each image, found 1 for 0']
    _, bad, _ = read(folder, tokenizer, gm.ImageText(MODEL))
    assert bad[0].startswith('sample "d/s2": expected an image with the extension "png", as dataset.yaml says')
    for text in (gm.Text("txt"), gm.Chat("json"), gm.Completion("a", "b"), gm.Instruction()):
        with pytest.raises(gm.ArgumentError, match="of a VQASample, whose parts are read together"):
            read(folder, tokenizer, gm.ImageText(MODEL, text=text))


def test_completions_and_instructions_with_images(tmp_path, tokenizer):
    def part(**values):
        return {"json": json.dumps(values).encode()}

    shard = write(
        tmp_path,
        [
            {"png": SMALL, **part(prompt="Who? ", completion="An ant.")},
            {"a.png": SMALL, "b.png": WIDE, **part(prompt="<image> or ", completion="<image>?")},
            {**part(prompt="Alone? ", completion="Yes.")},
            {"png": SMALL, **part(prompt="<image><image>", completion="x")},
            {"png": SMALL, **part(prompt="x", completion="")},
        ],
    )
    sample = gm.ImageText(MODEL, text=gm.Completion("json.prompt", "json.completion"))
    found, bad, _ = read(shard, tokenizer, sample)
    assert found == [
        ("<i>Who? An ant.", "An ant.", [(8, 8)]),
        ("<i> or <i>?", "?", [(8, 8), (16, 8)]),
        ("Alone? Yes.", "Yes.", []),
    ]
    assert len(bad) == 2
    assert "found 2 for 1" in bad[0]
    with_eos = next(iter(dataset_of(shard, tokenizer, sample, eos="<|im_end|>")))
    assert shown(with_eos, tokenizer)[1] == "An ant.<|im_end|>"
    shard = write(
        tmp_path,
        [
            {"png": SMALL, **part(instruction="Who?", output="An ant.")},
            {"a.png": SMALL, "b.png": WIDE, **part(instruction="Is it", input="<image> or <image>?", output="No.")},
            {"a.png": SMALL, "b.png": WIDE, **part(instruction="Both?", output="Yes.", system="Be brief.")},
        ],
        "b.tar",
    )
    keys = [f"json.{name}" for name in ("instruction", "input", "output", "system")]
    found, bad, _ = read(shard, tokenizer, gm.ImageText(MODEL, text=gm.Instruction(*keys)))
    assert bad == []
    said = [text.split("<|im_start|>user\n")[1].split("<|im_end|>")[0] for text, _, _ in found]
    assert said == ["<i>Who?", "Is it\n<i> or <i>?", "<i><i>Both?"]
    assert [trained for _, trained, _ in found] == ["An ant.<|im_end|>", "No.<|im_end|>", "Yes.<|im_end|>"]
    # Lists of messages, which the first record shows.
    turns = [[{"role": "user", "content": "<image>Who?"}], [{"role": "assistant", "content": "An ant."}]]
    shard = write(tmp_path, [{"png": SMALL, **part(prompt=turns[0], completion=turns[1])}], "c.tar")
    sample = gm.ImageText(MODEL, text=gm.Completion("json.prompt", "json.completion", template=VISION_CHATML))
    found, bad, _ = read(shard, tokenizer, sample)
    assert (found[0][1], bad) == ("An ant.<|im_end|>", [])


@pytest.mark.parametrize("mrope", [False, True])
def test_pairs_with_images(tmp_path, tokenizer, mrope):
    samples = []
    for number in range(6):
        pictures = {f"{at}.png": image(8 + 8 * at, 8, number) for at in range(number % 3)}
        question = {"role": "user", "content": "<image>" * len(pictures) + f"Q{number}"}
        pair = {
            name: [question, {"role": "assistant", "content": f"{name} {number}{'!' * number}"}]
            for name in ("chosen", "rejected")
        }
        samples.append({**pictures, "json": json.dumps(pair).encode()})
    shard = write(tmp_path, samples)
    halves = [gm.Chat(f"json.{name}") for name in ("chosen", "rejected")]
    more = {"packing": "best_fit", "truncation": "drop", "sequence_length": 192, "batch_size": 1}
    pairs = dataset_of(shard, tokenizer, gm.ImageText(MODEL, text=gm.Preference(*halves), mrope=mrope), **more)
    alone = [
        [*dataset_of(shard, tokenizer, gm.ImageText(MODEL, text=half, mrope=mrope), batch_size=1)] for half in halves
    ]
    names = ("image_segmentation", "image_position", "image_grid_thw")
    seen = 0
    pad = gm.Encoder.from_pretrained(tokenizer).token_to_id("<|image_pad|>")
    for row in pairs:
        row = {name: array[0] for name, array in row.items()}
        segments = row["tokens_segment_ids"]
        count = int(segments.max())
        assert row["pair"][:count].tolist() == [1 + at // 2 for at in range(count)]
        first_patch = 0
        for segment in range(1, count + 1):
            where = np.flatnonzero(segments == segment)
            tokens = row["tokens"][where]
            is_same = [one for one in alone[(segment - 1) % 2] if (one["tokens"][0, : len(tokens)] == tokens).all()]
            (own,) = ({name: array[0] for name, array in one.items()} for one in is_same)
            own_images = int(own["image_masks"].sum())
            images = np.flatnonzero((row["image_segmentation"] == segment) & (row["image_masks"] > 0))
            assert len(images) == own_images
            for name in names:
                expected = own[name][:own_images]
                if name == "image_position":
                    expected = expected + where[0]
                    assert (row["tokens"][row[name][images]] == pad).all()
                if name == "image_segmentation":
                    expected = expected + segment - 1
                np.testing.assert_array_equal(row[name][images], expected, err_msg=name)
            patches = int(own["image_grid_thw"].prod(axis=1).sum())
            found = row["image_patches"][first_patch : first_patch + patches]
            np.testing.assert_array_equal(found, own["image_patches"][:patches])
            first_patch += patches
            np.testing.assert_array_equal(
                row["tokens_positions"][..., where], own["tokens_positions"][..., : len(tokens)]
            )
            np.testing.assert_array_equal(row["tokens_loss_mask"][where], own["tokens_loss_mask"][: len(tokens)])
            seen += 1
    assert seen == 12
    # Both halves have the images: a row has room for those of a pair.
    few = gm.ImageText(MODEL, text=gm.Preference(*halves), max_images=3)
    found = dataset_of(shard, tokenizer, few, **more)
    with iter(found) as iterator:
        list(iterator)
        assert iterator.stats()["filtered"] == 2
    with pytest.raises(gm.ShardError, match="at most max_images=3 images, found one of 4"):
        list(dataset_of(shard, tokenizer, few, **{**more, "truncation": "error"}))
    with pytest.raises(gm.ArgumentError, match="both of a pair are in one row"):
        dataset_of(shard, tokenizer, few)


def test_placeholders_of_other_forms_are_refused(tmp_path, tokenizer):
    texts = [
        "<image_1> A.", "<img>A.", "<IMAGE> A.", "<ImageHere>", "<image/>", "<|image_1|>", "<image 1>", "<image:1>",
        "<start_of_image>", "<video_1>", "<|video_pad|>", "<speech>", "<sound>", "<|AUDIO|>", "</video>", "<vid>",
    ]  # fmt: skip
    kept = ["1 < 2 > 0 <b>", "<images of a cat", "<|im_sep|> <image2text> <imagine>", "a <", "<>"]
    shard = write(tmp_path, [{"png": SMALL, "txt": text.encode()} for text in [*texts, *kept]])
    found, bad, _ = read(shard, tokenizer, gm.ImageText(MODEL, text=gm.Text("txt")))
    assert [trained for _, trained, _ in found] == kept
    assert len(bad) == len(texts)
    for text, reason in zip(texts, bad, strict=True):
        what = (
            "videos and audio are not read" if any(at in text.lower() for at in ("vid", "au", "sp", "so")) else "write"
        )
        assert what in reason
        assert text.split(">")[0] in reason
    contents = [
        [{"type": "image"}, {"type": "point", "x": 1}],
        [{"type": "image"}, {"type": "document", "text": "Q"}],
        [{"type": "image"}, {"type": "text", "content": "Q"}],
        [{"type": "image"}, {"type": "text", "text": "<image_1>Q"}],
        "<image>Q<video_1>",
    ]
    answer = {"role": "assistant", "content": "A."}
    chats = [json.dumps([{"role": "user", "content": content}, answer]).encode() for content in contents]
    shard = write(tmp_path, [{"png": SMALL, "json": chat} for chat in chats], "b.tar")
    found, bad, _ = read(shard, tokenizer, gm.ImageText(MODEL, text=gm.Chat("json")))
    assert (found, len(bad)) == ([], len(contents))
    for match, reason in zip(["'point'", "'document'", 'under "text"', "<image_1>", "<video_1>"], bad, strict=True):
        assert match.replace("'", '"') in reason


@pytest.mark.parametrize("kind", ["image", "image_url", "video", "input_audio"])
def test_conversations_without_images_are_not_trained_blind(tmp_path, tokenizer, kind):
    content = [{"type": kind}, {"type": "text", "text": "What is it?"}]
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "An ant."}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    dataset = gm.PackedDataset(
        str(tmp_path / "a.jsonl"), tokenizer=tokenizer, sample=gm.Chat(), packing="pad", sequence_length=64
    )
    with pytest.raises(gm.ShardError, match=f'expected parts of texts, found one of type "{kind}"'):
        next(iter(dataset))
    # Prompts are rendered for a rollout, which has the images.
    (tmp_path / "b.jsonl").write_text(json.dumps({"messages": messages[:1]}) + "\n")
    prompt = gm.Chat(add_generation_prompt=True)
    prompts = gm.PromptDataset(str(tmp_path / "b.jsonl"), tokenizer=tokenizer, prompt=prompt, prompt_length=64)
    assert len(prompts) == 1
