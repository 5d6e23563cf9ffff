"""What an `Encoder` is made from: tokenizer.json, the files beside it, and what is refused."""

import json
import pickle
from pathlib import Path

import pytest

import gristmill as gm


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cannot load"),
        (b"{}", "cannot load"),
        (b"\xff", "cannot load"),
        (b'{"model": {"type": "X"}}', "cannot load"),
    ],
)
def test_files_that_the_reference_refuses_are_refused(tmp_path, data, message):
    with pytest.raises(gm.TokenizerError, match=message):
        gm.Encoder.from_bytes(data)
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(gm.TokenizerError, match=r"tokenizer\.json: .*" + message):
        gm.Encoder.from_file(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("files", "eos", "bos"),
    [
        ({}, None, None),
        ({"special_tokens_map": {"eos_token": "</s>", "bos_token": {"content": "<s>"}}}, 1, 0),
        ({"special_tokens_map": {"eos_token": "</s>", "bos_token": "<s>"}, "config": {"eos_token": "<s>"}}, 0, 0),
        # One that the vocabulary lacks hides none that it has.
        (
            {
                "special_tokens_map": {"eos_token": "</s>", "bos_token": "<s>"},
                "config": {"eos_token": "<nope>", "bos_token": "\ud800"},
            },
            1,
            0,
        ),
        ({"config": {"eos_token": "<nope>", "bos_token": "<s>"}}, None, 0),
        ({"config": ["</s>"], "special_tokens_map": {"eos_token": 1}}, None, None),
    ],
)
def test_special_tokens_come_from_either_file(tmp_path, tokenizer_json, files, eos, bos):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    names = {"config": "tokenizer_config.json", "special_tokens_map": "special_tokens_map.json"}
    for file, named in files.items():
        (tmp_path / names[file]).write_text(json.dumps(named))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        encoder = gm.Encoder.from_pretrained(path)
        assert (encoder.eos_id, encoder.bos_id) == (eos, bos)
    again = pickle.loads(pickle.dumps(encoder))
    assert (again.eos_id, again.bos_id) == (eos, bos)


class Named(gm.Encoder):
    """One of a user's own."""

    def __init__(self, *args, name="nobody", **options):
        super().__init__(*args, **options)
        self.name = name


class FromPath(gm.Encoder):
    """One that takes other arguments."""

    def __init__(self, path):
        super().__init__(path.read_bytes())


def test_a_pickle_keeps_its_class_and_what_the_files_beside_it_named(tmp_path, tokenizer_json):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<nowhere>"}')
    encoder = Named.from_file(tmp_path)
    encoder.name = "somebody"
    other = FromPath(tmp_path / "tokenizer.json")
    assert pickle.loads(pickle.dumps(other)).fingerprint == other.fingerprint
    for one in (encoder, pickle.loads(pickle.dumps(encoder))):
        assert type(one) is Named
        assert one.name == "somebody"
        with pytest.raises(gm.ArgumentError, match="name '<nowhere>', which its vocabulary lacks"):
            one.special_token_id("eos", None)


def test_special_tokens_that_the_vocabulary_lacks_are_named(tmp_path, tokenizer_json):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<nope>"}')
    with pytest.raises(gm.ArgumentError, match="name '<nope>', which its vocabulary lacks"):
        gm.Encoder.from_file(tmp_path).special_token_id("eos", None)
    with pytest.raises(gm.ArgumentError, match="eos_token='<nope>': the vocabulary has no such token"):
        gm.Encoder.from_file(tmp_path, eos_token="<nope>")


@pytest.mark.parametrize("text", ["[" * 100_000, "not json", ""])
def test_a_damaged_file_beside_the_tokenizer_is_named(tmp_path, tokenizer_json, text):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(gm.TokenizerError, match=r"tokenizer_config\.json is not JSON"):
        gm.Encoder.from_pretrained(tmp_path)


def test_a_folder_in_the_place_of_a_file_beside_the_tokenizer_is_named(tmp_path, tokenizer_json):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    (tmp_path / "tokenizer_config.json").mkdir()
    with pytest.raises(gm.TokenizerError, match=r"cannot read '.*tokenizer_config\.json' beside the tokenizer: Is a d"):
        gm.Encoder.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("make", "source", "error", "message"),
    [
        (gm.Encoder.from_file, 5, TypeError, "path=5: expected a path"),
        (gm.Encoder.from_bytes, "x" * 10**6, TypeError, r"json_bytes='x{100,200}\.\.\.: expected the bytes"),
        (gm.Encoder.from_bytes, b"\x1f\x8bx", gm.TokenizerError, "expected gzip data"),
        (gm.Encoder, "t.json", TypeError, r"json_bytes='t.json': .*, got str; for a path: gm\.Encoder\.from_file"),
        (gm.Encoder, Path("t.json"), TypeError, r", got PosixPath; for a path: gm\.Encoder\.from_file"),
        (gm.Encoder, '{"model": ', TypeError, r", got str; for those of a string: \.encode\(\)$"),
        (gm.Encoder, 5, TypeError, "json_bytes=5: expected the bytes of a tokenizer.json, got int$"),
        (gm.Encoder.from_pretrained, "/nowhere/model", FileNotFoundError, "no such folder: '/nowhere/model'"),
        (gm.Encoder.from_pretrained, f"./{'x' * 300}", gm.TokenizerError, "no such folder"),
        (
            gm.Encoder.from_file,
            "/nowhere",
            FileNotFoundError,
            r"cannot read the tokenizer '/nowhere': No such file or directory \(working folder: '.+'\)$",
        ),
        (gm.Encoder.from_file, "org/nowhere.json", FileNotFoundError, r"\(working folder: '.+'\)$"),
        (gm.Encoder.from_file, "some/folder/nowhere", FileNotFoundError, r"\(working folder: '.+'\)$"),
        (
            gm.Encoder.from_file,
            "org/nowhere",
            FileNotFoundError,
            r"hub: gm\.Encoder\.from_pretrained\('org/nowhere'\)$",
        ),
        (gm.Encoder.from_file, "x" * 300, gm.TokenizerError, "cannot read the tokenizer 'x+': File name too"),
    ],
)
def test_what_no_encoder_is_made_of_is_named(make, source, error, message):
    with pytest.raises(error, match=message) as caught:
        make(source)
    assert isinstance(caught.value, gm.GristmillError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
