"""Messages name arguments in one form, which is read by one routine."""

import copy
import pickle

import pytest

import gristmill as gm
from gristmill import _messages
from gristmill._messages import Mention


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("batch_size=6: expected", [Mention("batch_size", "6"), ": expected"]),
        ("raise max_memory=, or", ["raise ", Mention("max_memory"), ", or"]),
        ("set on_error=\"quarantine\" to", ["set ", Mention("on_error", '"quarantine"'), " to"]),
        ("set on_error=\\\"a\\\"", ["set ", Mention("on_error", ""), "\\\"a\\\""]),
        ("path='it\\'s=1', b=2", [Mention("path", "'it\\'s=1'"), ", ", Mention("b", "2")]),
        ("set date= of gm.Chat to", ["set ", Mention("date", "", "Chat"), " to"]),
        ("kwargs={'a': [1, ']']}; x", [Mention("kwargs", "{'a': [1, ']']}"), "; x"]),
        ("verify=-1.5. Next", [Mention("verify", "-1.5"), ". Next"]),
        ("a/lanes=4/b: 'seed=1', \"seed=1\", --x=1, data.seed=1, a=b=c",
         ["a/lanes=4/b: 'seed=1', \"seed=1\", --x=1, data.seed=1, ", Mention("a", "b"), "=c"]),
        ("2x=1, =1, a == b", ["2x=1, =1, a == b"]),
        ("", []),
    ],
)  # fmt: skip
def test_parts_are_the_texts_and_arguments_of_a_message(message, expected):
    assert _messages.parts(message) == expected
    assert "".join(map(str, _messages.parts(message))) == message


def test_error_knows_the_argument_that_it_is_about():
    assert gm.ArgumentError("batch_size=6: expected less").argument == "batch_size"
    assert gm.ArgumentError("batch_size=: expected less").argument == "batch_size"
    assert gm.ArgumentError("the batch_size=6 is large").argument is None
    assert gm.ArgumentError("date= of gm.Chat: no").argument is None
    assert gm.ArgumentError("x: expected y", argument="x").argument == "x"
    assert gm.ArgumentError().argument is None
    assert gm.StateError("batch_size=6").argument is None


@pytest.mark.parametrize(
    "error",
    [
        gm.ArgumentError("seed=1: no", argument="seed"),
        gm.ArgumentTypeError("seed: no", argument="seed"),
        gm.ShardError("seed=1", 3, 4, "seed=1: no"),
        gm.MissingShardError("seed=1: no"),
        gm.MissingExtraError("seed=1: no", name="jax"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_spelled_error_has_the_facts_of_the_first_one(error):
    error.__cause__ = ValueError()
    spelled = error.spelled(lambda mention: f"<{mention.name}>{mention.value}")
    facts = ["argument", "shard", "record", "byte", "name", "__cause__"]
    for found in (spelled, copy.copy(spelled), pickle.loads(pickle.dumps(spelled))):
        assert type(found) is type(error)
        assert [getattr(found, fact, None) for fact in facts[:-1]] == [
            getattr(error, fact, None) for fact in facts[:-1]
        ]
        assert "<seed>" in str(found)
    assert spelled.__cause__ is error.__cause__
    assert "<" not in str(error)


@pytest.mark.parametrize(("shards", "name"), [("shards", "text_field"), ("mixture", "keep")])
def test_errors_of_sources_keep_the_argument(tmp_path, encoder, shards, name):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises((gm.ArgumentError, gm.ArgumentTypeError)) as caught:
        gm.PackedDataset(gm.Mixture({"a": gm.Source(f"{tmp_path}/a.jsonl", weight=1, **{name: 3})}), tokenizer=encoder)
    assert caught.value.argument == name
    assert str(caught.value).startswith(f"source 'a': {name}=3")
