"""`gristmill inspect --row --full`: the documents of a row, whole, with the bytes of their records."""

import gzip
import json

import pyarrow as pa
import pytest
from pyarrow import parquet

import gristmill as gm
from chat_models import CHATML, write_chatml
from command_line import run_json
from gristmill._cli import main
from helpers import tar_of

TEXTS = [f"Document {n}: " + f"the ants of hill {n} said it again. " * (2 + n % 5) for n in range(40)]


@pytest.fixture
def model(tmp_path):
    return write_chatml(tmp_path / "model")


def write(path, records):
    lines = [json.dumps(record) + "\n" for record in records]
    table = pa.Table.from_pylist(records)
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=10)
    elif path.suffix == ".arrow":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=10)
    elif path.suffix == ".tar":
        path.write_bytes(tar_of((f"{n:03}", {"json": line.encode()}) for n, line in enumerate(lines)))
    else:
        data = "".join(lines).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def settings(**values):
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def documents_of(capsys, path, model, *more, steps=3, rows=2):
    """The segments of some rows, and the numbers of their records."""
    common = ["inspect", path, "--full", "--tokenizer", model, *more]
    places = [(step, row) for step in range(steps) for row in range(rows)]
    return [
        part for step, row in places for part in run_json(capsys, *common, "--step", step, "--row", row)["segments"]
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow", "a.tar"])
@pytest.mark.parametrize(("packing", "layout"), [("concat", "varlen"), ("best_fit", "hf"), ("pad", "maxtext")])
def test_texts_are_whole(tmp_path, model, capsys, name, packing, layout):
    path = write(tmp_path / name, [{"meta": {"text": text}, "n": n} for n, text in enumerate(TEXTS)])
    field = "json.meta.text" if name == "a.tar" else "meta.text"
    more = settings(
        text_field=field, packing=packing, layout=layout, sequence_length=200, batch_size=2, lanes=1, seed=5
    )
    found = documents_of(capsys, path, model, *more)
    assert len({part["record"] for part in found}) > 3
    assert any(part["offset"] for part in found) or packing == "pad"
    for part in found:
        document = part["document"]
        assert document["text"] == TEXTS[part["record"]]
        record = json.loads(document["record"])
        assert (record["json"] if name == "a.tar" else record)["n"] == part["record"]
        if name.startswith("a.jsonl"):
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            start, end = part["bytes"]
            assert data[start:end].decode() == document["record"] + "\n"
        elif name == "a.tar":
            assert path.read_bytes()[part["bytes"][0] :].startswith(f"{part['record']:03}.json".encode())
        else:
            assert part["bytes"] is None


def test_documents_of_pieces_and_filters(tmp_path, model, capsys):
    path = write(tmp_path / "a.jsonl", [{"text": text, "n": n} for n, text in enumerate(TEXTS)])
    more = settings(split_bytes=2000, sequence_length=100, batch_size=2, lanes=2, keep="n % 3 == 0")
    found = documents_of(capsys, path, model, *more)
    assert len({part["shard"] for part in found}) > 1
    for part in found:
        record = json.loads(part["document"]["record"])
        assert record["text"] == part["document"]["text"]
        assert record["n"] % 3 == 0
        assert part["text"].removesuffix("<|im_end|>") in record["text"]


def test_conversations_show_what_is_trained_on(tmp_path, model, capsys):
    chats = [
        [{"role": "user", "content": f"Which {n}? {'Well. ' * n}"}, {"role": "assistant", "content": f"The ant {n}."}]
        for n in range(12)
    ]
    path = write(tmp_path / "a.jsonl", [{"turns": chat} for chat in chats])
    more = ["--sample", "chat", "--sample", "field=turns"]
    more += settings(packing="concat", sequence_length=64, batch_size=2, lanes=1)
    found = documents_of(capsys, path, model, *more, steps=2)
    assert any(part["offset"] for part in found)
    template = gm.ChatTemplate.from_string(CHATML, tokenizer=gm.Encoder.from_file(model, config="ignore"))
    for part in found:
        document, chat = part["document"], chats[part["record"]]
        assert document["text"] == template.render(chat)
        trained = [own["text"] for own in document["parts"] if own["trained"]]
        assert trained == [chat[1]["content"] + "<|im_end|>"]
        assert "".join(own["text"] for own in document["parts"]) == document["text"]
    arguments = ["inspect", path, "--row", 1, "--step", 0, "--full", "--tokenizer", model, *more]
    assert main.run(list(map(str, arguments))) == 0
    shown = capsys.readouterr().out
    for part in found:
        if part in run_json(capsys, *arguments)["segments"]:
            assert f"{path}: record {part['record']}, whole\n\n<|im_start|>user\nWhich" in shown
    assert "⟦The ant" in shown


def test_completions_of_a_mixture(tmp_path, model, capsys):
    write(tmp_path / "web.jsonl.gz", [{"text": text} for text in TEXTS])
    write(tmp_path / "sums.jsonl", [{"q": f"{n} + 1 = ", "a": f"{n + 1}"} for n in range(30)])
    path = tmp_path / "mix.toml"
    path.write_text(
        """
        tokenizer = "model"
        packing = "best_fit"
        layout = "hf"
        sequence_length = 128
        batch_size = 4
        lanes = 1
        [sources.web]
        shards = "web.jsonl.gz"
        weight = 0.5
        epochs = 1
        [sources.sums]
        shards = "sums.jsonl"
        weight = 0.5
        epochs = 1
        sample = { kind = "completion", prompt_field = "q", completion_field = "a" }
        """
    )
    seen = set()
    for row in range(4):
        found = run_json(capsys, "inspect", path, "--row", row, "--step", 0, "--full")
        seen.add(found["source"])
        for part in found["segments"]:
            document, record = part["document"], json.loads(part["document"]["record"])
            if found["source"] == "web":
                assert document == {"text": TEXTS[part["record"]], "record": document["record"]}
            else:
                assert document["text"] == record["q"] + record["a"] + "<|im_end|>"
                assert [own["trained"] for own in document["parts"]] == [False, True]
    assert seen == {"web", "sums"}


def test_full_needs_a_row(tmp_path, capsys):
    assert main.run(["inspect", str(tmp_path), "--full"]) == 2
    assert "No such option" in capsys.readouterr().err
