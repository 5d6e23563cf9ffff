"""Weights of messages: each token has that of the message that it is of, and 0 where it is not trained on."""

import json

import numpy as np
import pytest

import gristmill as gm
from chat_models import write_chatml

WEIGHTS = [0.5, None, 0.25, 1, 0, True, False, 2.5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_chatml(tmp_path_factory.mktemp("models") / "chatml")


def conversation(first):
    """Turns whose answers have weights, from one of them on."""
    messages = []
    for turn in range(3):
        messages.append({"role": "user", "content": f"question {turn}"})
        answer = {"role": "assistant", "content": f"answer {turn} {first}"}
        weight = WEIGHTS[(first + turn) % len(WEIGHTS)]
        messages.append(answer if weight is None else {**answer, "loss": weight})
    return messages


def write(path, conversations):
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in conversations))
    return path


def expected_of(template, messages):
    """Ids, mask and weights of a conversation: each trained message rendered by itself with all before it."""
    flagged = [{key: value for key, value in message.items() if key != "loss"} for message in messages]
    ids, _ = template.encode(flagged, train_on="assistant")
    weights = np.zeros(len(ids), np.float32)
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            alone = [{**one, "train": at == index} for at, one in enumerate(flagged)]
            _, mask = template.encode(alone, train_on="assistant")
            weights[np.flatnonzero(mask)] = float(message.get("loss", 1))
    return ids, weights


@pytest.mark.parametrize("layout", ["maxtext", "grain", "hf", "varlen"])
def test_tokens_have_the_weights_of_their_messages(tmp_path, folder, layout):
    conversations = [conversation(first) for first in range(8)]
    path = write(tmp_path / "a.jsonl", conversations)
    template = gm.ChatTemplate.from_pretrained(folder)
    rows = [*gm.PackedDataset(path, tokenizer=folder, sample=gm.Chat(train_key="loss", on_untrained="drop"),
                              sequence_length=128, packing="pad", layout=layout)]  # fmt: skip
    assert len(rows) == len(conversations)
    for row, messages in zip(rows, conversations, strict=True):
        ids, weights = expected_of(template, messages)
        name, count = "targets_weight" if layout == "maxtext" else "weight", len(ids)
        if layout == "maxtext":
            weights = np.append(weights[1:], 0)
            np.testing.assert_array_equal(row["targets_segmentation"][:count] != 0, weights != 0)
        elif layout == "hf":
            np.testing.assert_array_equal(row["labels"][:count] != -100, weights != 0)
        elif layout == "grain":
            np.testing.assert_array_equal(row["tokens_loss_mask"][:count] != 0, weights != 0)
        assert row[name].dtype == np.float32
        np.testing.assert_array_equal(row[name], np.pad(weights, (0, 128 - count)))


def test_turns_have_their_own_weights(tmp_path, folder):
    messages = conversation(0)
    path = write(tmp_path / "a.jsonl", [messages])
    sample = gm.Chat(train_key="loss", samples="turns")
    rows = [
        *gm.PackedDataset(path, tokenizer=folder, sample=sample, sequence_length=128, packing="pad", layout="grain")
    ]
    assert [sorted({*row["weight"].tolist()}) for row in rows] == [[0, 0.5], [0, 1], [0, 0.25]]


@pytest.mark.parametrize("train_on", ["all", "assistant", "last", "final", ["user", "assistant"]])
def test_weights_follow_what_is_trained_on(tmp_path, folder, train_on):
    messages = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer", "w": 0.5}]
    path = write(tmp_path / "a.jsonl", [messages])
    sample = gm.Chat(train_key="w", train_on=train_on)
    [row] = gm.PackedDataset(path, tokenizer=folder, sample=sample, sequence_length=64, packing="pad", layout="grain")
    mask, weights = row["tokens_loss_mask"], row["weight"]
    np.testing.assert_array_equal(weights != 0, mask != 0)
    assert {*weights[mask != 0].tolist()} == ({0.5, 1} if train_on in ("all", ["user", "assistant"]) else {0.5})


def test_other_sources_of_a_mixture_have_ones(tmp_path, folder):
    chats = write(tmp_path / "a.jsonl", [conversation(0)] * 4)
    text = tmp_path / "b.jsonl"
    text.write_text('{"text": "word word word"}\n' * 8)
    mixture = gm.Mixture(
        {
            "chats": gm.Source(chats, weight=1, sample=gm.Chat(train_key="loss"), epochs=1),
            "text": gm.Source(text, weight=1, epochs=1),
        }
    )
    for row in gm.PackedDataset(mixture, tokenizer=folder, sequence_length=128, layout="grain",
                                packing="best_fit"):  # fmt: skip
        mask = row["tokens_loss_mask"] != 0
        np.testing.assert_array_equal(row["weight"] != 0, mask)
        if 0.5 not in row["weight"]:
            assert {*row["weight"][mask].tolist()} <= {1, 0.25}


@pytest.mark.parametrize("value", [-0.5, "0.5", float("nan"), [1]])
def test_other_values_are_bad_records(tmp_path, folder, value):
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "loss": value}]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"messages": messages}).replace("NaN", "1e999") + "\n")
    with pytest.raises(gm.ShardError, match="or a weight from 0 on"):
        [*gm.PackedDataset(path, tokenizer=folder, sample=gm.Chat(train_key="loss"), sequence_length=16)]


def test_weights_under_the_usual_keys_name_the_argument(tmp_path, folder):
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 0.5}]
    path = write(tmp_path / "a.jsonl", [messages])
    with pytest.raises(gm.ShardError, match="weights are read under the key that train_key names"):
        [*gm.PackedDataset(path, tokenizer=folder, sample=gm.Chat(), sequence_length=16)]
