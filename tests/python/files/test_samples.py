"""Conversations and completions packed, verified and located by the command line."""

import json

import numpy as np
import pytest

import gristmill as gm
from chat_models import write_chatml
from command_line import checked
from gristmill._cli import main

CHATS = [
    [{"role": "user", "content": f"Hi {n}"}, {"role": "assistant", "content": f"The ant {n}"}] * (1 + n % 2)
    for n in range(12)
]
ROWS = {"packing": "best_fit", "layout": "grain", "sequence_length": 64, "batch_size": 2, "lanes": 1}


@pytest.fixture
def source(tmp_path):
    shard = tmp_path / "chats.jsonl"
    records = [{"turns": {"chat": chat}, "q": f"{n} + 1?", "a": f" {n + 1}"} for n, chat in enumerate(CHATS)]
    shard.write_text("".join(json.dumps(record) + "\n" for record in records))
    return shard, write_chatml(tmp_path / "model")


def options(values):
    return [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def sample_options(*words):
    return [part for word in words for part in ("--sample", word)]


@pytest.mark.parametrize(
    ("words", "sample"),
    [
        (
            ("chat", "field=turns.chat", "train_on=last", "date=today"),
            gm.Chat("turns.chat", train_on="last"),
        ),
        (("completion", "prompt_field=q", "completion_field=a"), gm.Completion("q", "a")),
        (("instruction", "instruction=q", "input=null", "output=a"), gm.Instruction("q", None, "a")),
    ],
)
def test_packed_samples_keep_their_masks(tmp_path, source, capsys, monkeypatch, words, sample):
    shard, model = source
    arguments = [str(shard), "--tokenizer", str(model), "--output", str(tmp_path / "out"), *options(ROWS)]
    assert main.run(["pack", *arguments, *sample_options(*words), "--json"]) == 0
    packed = gm.PackedRows(tmp_path / "out")
    expected = [
        {name: array[index] for name, array in batch.items()}
        for batch in gm.PackedDataset(shard, tokenizer=model, sample=sample, **ROWS)
        for index in range(ROWS["batch_size"])
        if batch["tokens_segment_ids"][index].any()
    ]
    assert len(packed) == len(expected) > 1
    for row, other in zip((packed[index] for index in range(len(packed))), expected, strict=True):
        np.testing.assert_array_equal(row["tokens"], other["tokens"])
        np.testing.assert_array_equal(row["tokens_loss_mask"], other["tokens_loss_mask"])
        assert 0 < row["tokens_loss_mask"].sum() < (row["tokens_segment_ids"] > 0).sum()
    capsys.readouterr()
    # The source is known in another folder.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main.run(["verify", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["equal"]
    # One token of the mask is another.
    [file] = (tmp_path / "out").glob("*.npy")
    rows = np.load(file, mmap_mode="r+")
    field = json.loads((tmp_path / "out" / "index.json").read_text())["fields"].index("tokens_loss_mask")
    rows[1, field, 3] ^= 1
    rows.flush()
    assert main.run(["verify", str(tmp_path / "out"), "--json"]) == 3


def test_row_of_a_conversation_is_located(tmp_path, source, capsys):
    shard, model = source
    chat = sample_options("chat", "field=turns.chat")
    iterator = iter(gm.PackedDataset(shard, tokenizer=model, sample=gm.Chat("turns.chat"), **ROWS))
    next(iterator)
    (tmp_path / "state.json").write_text(json.dumps(iterator.get_state()))
    settings = [word for name, value in ROWS.items() for word in ("--set", f"{name}={value}")]
    start = [str(shard), "--row", "1", "--step", "1", "--tokenizer", str(model), *settings]
    state = [str(tmp_path / "state.json"), "--row", "1", "--shards", str(shard), "--tokenizer", str(model)]
    found = []
    for arguments in (start, state):
        assert main.run(["inspect", *arguments, *chat, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["segments"] == found[1]["segments"] != []
    assert main.run(["inspect", *state]) == 1
    assert "name it with --sample" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["talk"], "'completion', 'tokens', 'preference' or 'image_text' first"),
        (["chat", "train_on"], "expected name=value"),
        (["chat", "tone=kind"], "gm.Chat"),
        (["chat", "train_on=none"], "train_on="),
    ],
)
def test_wrong_samples_are_refused(tmp_path, source, capsys, words, message):
    shard, model = source
    arguments = ["pack", str(shard), "--tokenizer", str(model), "--output", str(tmp_path / "out"), *options(ROWS)]
    assert main.run([*arguments, *sample_options(*words)]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_megatron_takes_no_samples(tmp_path, source, capsys):
    shard, model = source
    arguments = ["pack", str(shard), "--tokenizer", str(model), "--output", str(tmp_path / "out")]
    assert main.run([*arguments, "--format", "megatron", "--sample", "chat"]) == 2
    assert "without masks: it takes no --sample" in capsys.readouterr().err


def test_ready_ids_are_packed_without_a_tokenizer(tmp_path, capsys):
    shard, output = tmp_path / "ids.jsonl", tmp_path / "out"
    shard.write_text("".join(json.dumps({"input_ids": [n, n + 1], "adv": [0.5, 1.5]}) + "\n" for n in range(9)))
    words = sample_options("tokens", 'fields={"adv": {"dtype": "float16"}}')
    rows = options({"layout": "grain", "sequence_length": 4, "batch_size": 2})
    assert checked(capsys, "pack", shard, "--output", output, *words, *rows)[0] == 0
    assert checked(capsys, "verify", output)[1]["equal"]
    code, found = checked(capsys, "inspect", output)
    assert (code, found["source"]["tokenizer"], found["first"]) == (0, "", {"ids": [0, 1, 1, 2], "text": None})
    assert main.run(["view", str(output), "--output", str(tmp_path / "page.html")]) == 0
    assert "none, not found" not in (tmp_path / "page.html").read_text()
    capsys.readouterr()
    code, error = checked(capsys, "pack", shard, "--output", tmp_path / "other")
    assert code == 2
    assert "Missing option '--tokenizer'" in error


REWARD = {"reward": gm.Field(per="sample")}
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PACKED = [
    gm.Tokens(loss_mask="mask", fields={"scores": gm.Field(), "top": gm.Field("scores", "float16"), **REWARD}),
    gm.Text("a", fields=REWARD),
    gm.Text("a", gm.FillInTheMiddle(0.5, prefix=1, middle=2, suffix=3)),
    gm.Completion("q", "a", fields=REWARD),
    gm.Instruction("q", None, "a", template=TEMPLATE),
    gm.Preference(gm.Completion("q", "a", fields=REWARD), gm.Completion("q", "q", fields=REWARD)),
    gm.Preference(*[gm.Chat("turns.chat", train_on="last", template=TEMPLATE)] * 2),
]


@pytest.mark.parametrize("sample", PACKED, ids=lambda sample: type(sample).__name__)
def test_what_python_packs_is_verified(tmp_path, capsys, sample):
    records = [
        {
            "q": f"{n} + 1?", "a": f" {n + 1}" * (n % 5 + 1), "turns": {"chat": CHATS[n % len(CHATS)]},
            "input_ids": [n + 1] * 3, "mask": [0, 1, 1], "scores": [0.0, 0.5, n / 4], "reward": n / 8,
        }
        for n in range(20)
    ]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    model = None if isinstance(sample, gm.Tokens) else write_chatml(tmp_path / "model")
    more = {"truncation": "drop"} if isinstance(sample, gm.Preference) else {}
    dataset = gm.PackedDataset(
        tmp_path / "a.jsonl", tokenizer=model, sample=sample, sequence_length=256, batch_size=2, packing="best_fit",
        seed=1, **more,
    )  # fmt: skip
    assert gm.pack(dataset, tmp_path / "packed", format="parquet")["items"]
    assert main.run(["verify", str(tmp_path / "packed")]) == 0, capsys.readouterr().err
    index = json.loads((tmp_path / "packed" / "index.json").read_text())
    del index["source"]["arguments"]["sample"]
    (tmp_path / "packed" / "index.json").write_text(json.dumps(index))
    capsys.readouterr()
    assert main.run(["verify", str(tmp_path / "packed")]) == 1
    assert "packed from Python with a sample, which the index does not hold" in capsys.readouterr().err


def test_what_an_index_does_not_hold_is_said(tmp_path, capsys):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"input_ids": [1, 2, 3], "id": "x"}\n' * 500)
    (tmp_path / "bad.txt").write_text("y\n")
    sources = {name: gm.Source(f"{tmp_path}/{name}.jsonl", weight=1, sample=gm.Tokens(), epochs=1) for name in "ab"}
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS))
    model, made = write_chatml(tmp_path / "model"), gm.ChatTemplate(TEMPLATE.replace("{{ eos_token }}", "<|im_end|>"))
    chat = gm.Chat(template=made)
    edits = [gm.Edit(1, drop=gm.RowList(tmp_path / "bad.txt", key="id"))]
    rows = {"sequence_length": 128, "batch_size": 2}
    for number, (dataset, lacking) in enumerate(
        [
            (gm.PackedDataset(gm.Mixture(sources), **rows), "a mixture"),
            (gm.PackedDataset(tmp_path / "chats.jsonl", tokenizer=model, sample=chat, **rows), "a sample"),
            (gm.PackedDataset(tmp_path / "a.jsonl", sample=gm.Tokens(), edits=edits, **rows), "edits"),
        ]
    ):
        gm.pack(dataset, tmp_path / str(number))
        assert main.run(["verify", str(tmp_path / str(number))]) == 1
        assert f"packed from Python with {lacking}, which the index does not hold" in capsys.readouterr().err
