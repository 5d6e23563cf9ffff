"""Prompts and completions that are lists of messages."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from chat_models import REASONING, trained_texts, write_chatml
from helpers import assert_same_batches

PAIRS = [
    ([{"role": "user", "content": "Q1"}], [{"role": "assistant", "content": "A1"}]),
    (
        [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "Q2"},
            {"role": "assistant", "content": "not trained"},
            {"role": "user", "content": "Q3"},
        ],
        [
            {"role": "assistant", "content": "call"},
            {"role": "tool", "content": "T"},
            {"role": "assistant", "content": "A3"},
        ],
    ),
]
TRAINED = ["A1<|im_end|>", "call<|im_end|>A3<|im_end|>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_chatml(tmp_path_factory.mktemp("models") / "chatml")


def write(path, pairs, names=("prompt", "completion"), **more):
    records = [dict(zip(names, pair, strict=True)) | more for pair in pairs]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def dataset(path, folder, sample, **more):
    given = {"sequence_length": 256, "packing": "pad", "layout": "grain"} | more
    return gm.PackedDataset(path, tokenizer=folder, sample=sample, **given)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_messages_of_the_completion_are_trained_on(tmp_path, folder, name):
    path = write(tmp_path / name, PAIRS)
    rows = list(dataset(path, folder, gm.Completion()))
    assert trained_texts(folder, rows) == TRAINED
    whole = tmp_path / "whole.jsonl"
    whole.write_text("".join(json.dumps({"messages": prompt + answer}) + "\n" for prompt, answer in PAIRS))
    for row, expected in zip(rows, dataset(whole, folder, gm.Chat()), strict=True):
        np.testing.assert_array_equal(row["tokens"], expected["tokens"])


def test_options_are_those_of_conversations(tmp_path, folder):
    path = write(tmp_path / "a.jsonl", [PAIRS[0]], ("q", "a"), system="Short.")
    sample = gm.Completion("q", "a", template=REASONING, system_field="system")
    [row] = dataset(path, folder, sample)
    assert trained_texts(folder, [row]) == ["A1<|im_end|>"]
    text = gm.Encoder.from_pretrained(str(folder)).decode(row["tokens"][row["tokens_segment_ids"] > 0])
    assert text.startswith("<|im_start|>system\nShort.<|im_end|>\n<|im_start|>user\nQ1")
    for name in ("field", "format", "samples", "train_on", "add_generation_prompt"):
        with pytest.raises(gm.ArgumentError, match=f"{name}=: the messages of a gm.Completion"):
            gm.Completion(**{name: "x"})
    with pytest.raises(gm.ArgumentError, match="none_fields='x'"):
        gm.Completion(none_fields="x")
    with pytest.raises(TypeError, match="other"):
        gm.Completion(other=1)


def test_record_of_the_other_kind_is_bad(tmp_path, folder):
    path = write(tmp_path / "a.jsonl", [PAIRS[0], ("user:", " the ant")])
    with pytest.raises(gm.ShardError, match=r'list of messages under the key "prompt", found a string') as raised:
        list(dataset(path, folder, gm.Completion()))
    assert raised.value.record == 1
    path = write(tmp_path / "b.jsonl", [("user:", " the ant"), PAIRS[0]])
    with pytest.raises(gm.ShardError, match=r'a string under the key "prompt", found a list'):
        list(dataset(path, folder, gm.Completion()))
    path = write(tmp_path / "c.jsonl", [(PAIRS[0][0], "A1")])
    with pytest.raises(gm.ShardError, match=r'list of messages under the key "completion", found a string'):
        list(dataset(path, folder, gm.Completion()))


def test_completion_without_a_trained_message_follows_on_untrained(tmp_path, folder):
    untrained = (PAIRS[1][0], [{"role": "assistant", "content": "A", "train": False}])
    path = write(tmp_path / "a.jsonl", [PAIRS[0], untrained])
    with pytest.raises(gm.ShardError, match="expected a token to train on"):
        list(dataset(path, folder, gm.Completion()))
    assert len(list(dataset(path, folder, gm.Completion(on_untrained="drop")))) == 1


def test_strings_are_as_before(tmp_path, folder):
    path = write(tmp_path / "a.jsonl", [("user:", " the ant")])
    strings = dataset(path, folder, gm.Completion())
    assert "sample=Completion%28%29" in strings.fingerprint
    lists = dataset(write(tmp_path / "b.jsonl", PAIRS), folder, gm.Completion())
    assert "template%3D" in lists.fingerprint
    assert_same_batches(list(strings), list(dataset(path, folder, gm.Completion("prompt", "completion"))))
    with pytest.raises(gm.ArgumentError, match="the chat template writes the tokens around a conversation"):
        dataset(tmp_path / "b.jsonl", folder, gm.Completion(), eos=True)


def test_completions_of_which_no_word_is_trained_are_a_warning(tmp_path, tokenizer_file, caplog):
    """A tokenizer that joins a space with the word behind it leaves nothing of a word behind a prompt's last space."""
    said = "1 of 2 samples so far train only the tokens that end them"
    for number, pair in enumerate([("user: ", "the"), ("user:", " the")]):
        path = write(tmp_path / f"{number}.jsonl", [pair, ("user:", " the ant")])
        iterator = iter(dataset(path, tokenizer_file.parent, gm.Completion(), eos=True))
        assert len(list(iterator)) == 2
        is_lost = iterator.stats()["only_stops"] == 1
        assert [said in caplog.text, is_lost] == [number == 0] * 2
        caplog.clear()
