"""The files that an `Encoder` is made from: tokenizer.json and those that name its special tokens."""

import json
import os
import pickle
from pathlib import Path

import pytest

import gristmill as gm
from gristmill._tokenizer.encoder import special_token_id


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cannot load"),
        (b"{}", "cannot load"),
        (b"\xff", "cannot load"),
        (b'{"model": {"type": "X"}}', "cannot load"),
    ],
)
def test_invalid_tokenizer_files_are_refused(tmp_path, data, message):
    with pytest.raises(gm.TokenizerError, match=message):
        gm.Encoder.from_bytes(data)
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(gm.TokenizerError, match=r"tokenizer\.json: .*" + message):
        gm.Encoder.from_file(tmp_path / "tokenizer.json")


WHOLE = {
    "version": "1.0",
    "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"a": 0, "b": 1}', r"; this is a vocab\.json; transformers writes a tokenizer\.json from it: Auto"),
        (
            b'{"tokenizer_class": "X"}',
            r"; this is a tokenizer_config\.json: use the tokenizer\.json in the same folder",
        ),
        (b'{"model_type": "x"}', r"; this is the config\.json of a model"),
        (b'{"text": "abc"}', "has the key 'model'; this file has the key 'text'$"),
        (b"{}", "this file has no keys$"),
        (b'{"text": "abc"}\n{"text": "abc"}\n', "; this is JSON lines, as in a shard"),
        (b"IQ== 0\nIg== 1\n", "; this is a tiktoken file"),
        (b"#version: 0.2\na b\n", r"; this is the merges\.txt of a tokenizer"),
        (b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02", "; this looks like a SentencePiece model"),
        (b"version https://git-lfs.github.com/spec/v1\n", "; this is a Git LFS pointer"),
        (b"<!DOCTYPE html>", "; this is a web page"),
        (b"PK\x03\x04", "; this is a zip archive"),
        (b"GGUF\x03\0\0\0", "; this is a GGUF model"),
        (b"\xff\xfe{\0", "; this is UTF-16"),
        (b"\xef\xbb\xbf" + json.dumps(WHOLE).encode(), "; this is a file with a byte order mark"),
        (json.dumps(WHOLE).encode()[:-5], "; the file may be truncated: download it again$"),
        (b"", "; this is not JSON: download the file again$"),
        (b"[1]", r"; this is JSON, but not an object: \[1\]$"),
        (json.dumps({**WHOLE, "new": 1}).encode(), "; it has the key 'new', which the library does not know; "),
        (json.dumps({**WHOLE, "decoder": {"type": "X"}}).encode(), "; its decoder is {'type': 'X'}; write it with"),
        (json.dumps({**WHOLE, "model": {"type": "X"}}).encode(), "; its model is {'type': 'X'}; write it with"),
        (
            json.dumps({**WHOLE, "version": "2.0"}).encode(),
            r"; write it with tokenizers [0-9.]+, or an earlier version$",
        ),
        (b"[" * 100_000, "cannot load"),
        # Damaged, refused for another reason, or quoting a message of the library: no kind is named by mistake.
        (json.dumps(WHOLE).encode().replace(b'"a"', b'"\xff"'), r"at line 1 column \d+$"),
        (json.dumps(WHOLE).encode()[:-1] + b",}", r"at line 1 column \d+$"),
        (json.dumps(WHOLE, indent=1).encode()[:-2] + b",\n}", r"at line \d+ column \d+$"),
        (json.dumps({**WHOLE, "version": "untagged enum DecoderWrapper "}).encode(), "earlier version$"),
        (json.dumps({**WHOLE, "model": {**WHOLE["model"], "vocab": {"a": 3 * 10**9}}}).encode(), "which int32 holds$"),
        (b"<unk>\nthe\n", "; this looks like a SentencePiece model"),
    ],
)
def test_error_names_files_of_another_kind(data, said):
    with pytest.raises(gm.TokenizerError, match=said) as caught:
        gm.Encoder.from_bytes(data)
    assert len(str(caught.value)) < 1000


def test_tokenizer_from_a_pipe_is_refused(tmp_path):
    """A read would wait for a writer."""
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(gm.TokenizerError, match="expected a regular file"):
        gm.Encoder.from_file(tmp_path)


def test_tokenizer_folder_name_need_not_be_utf_8(tmp_path):
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(WHOLE))
    assert gm.Encoder.from_file(folder).vocab_size == 1


def test_error_names_tokenizer_files_in_the_folder(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(
        gm.MissingTokenizerError, match=r"; the folder has merges\.txt, vocab\.json: transformers writes"
    ):
        gm.Encoder.from_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(gm.MissingTokenizerError, match=r"; the folder has a tokenizer\.json$"):
        gm.Encoder.from_file(tmp_path / "tokeniser.json")


@pytest.mark.parametrize(
    ("files", "eos", "bos"),
    [
        ({}, None, None),
        ({"special_tokens_map": {"eos_token": "</s>", "bos_token": {"content": "<s>"}}}, 1, 0),
        ({"special_tokens_map": {"eos_token": "</s>", "bos_token": "<s>"}, "config": {"eos_token": "<s>"}}, 0, 0),
        # A named token that the vocabulary lacks does not hide one of the other file.
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
    """A user's subclass with an attribute."""

    def __init__(self, *args, name="nobody", **options):
        super().__init__(*args, **options)
        self.name = name


class FromPath(gm.Encoder):
    """A user's subclass with another signature."""

    def __init__(self, path):
        super().__init__(path.read_bytes())


def test_pickled_encoder_keeps_class_and_named_tokens(tmp_path, tokenizer_json):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<nowhere>"}')
    encoder = Named.from_file(tmp_path)
    encoder.name = "somebody"
    other = FromPath(tmp_path / "tokenizer.json")
    assert pickle.loads(pickle.dumps(other)).fingerprint == other.fingerprint
    for one in (encoder, pickle.loads(pickle.dumps(encoder))):
        assert type(one) is Named
        assert one.name == "somebody"
        with pytest.raises(gm.ArgumentError, match="name '<nowhere>', which is not in its vocabulary"):
            special_token_id(one, "eos", None)


def test_special_tokens_missing_from_vocabulary_are_named(tmp_path, tokenizer_json):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<nope>"}')
    with pytest.raises(gm.ArgumentError, match="name '<nope>', which is not in its vocabulary"):
        special_token_id(gm.Encoder.from_file(tmp_path), "eos", None)
    with pytest.raises(gm.ArgumentError, match="eos_token='<nope>': the vocabulary has no such token"):
        gm.Encoder.from_file(tmp_path, eos_token="<nope>")


def test_special_token_id_takes_eos_and_bos_only(encoder):
    assert special_token_id(encoder, "bos", True) == encoder.bos_id != encoder.eos_id
    with pytest.raises(KeyError, match="pad"):
        special_token_id(encoder, "pad", True)
    assert not hasattr(gm.Encoder, "special_token_id")


@pytest.mark.parametrize("text", ["[" * 100_000, "not json", ""])
def test_damaged_special_tokens_file_is_named(tmp_path, tokenizer_json, text):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(gm.TokenizerError, match=r"tokenizer_config\.json is not JSON"):
        gm.Encoder.from_pretrained(tmp_path)
    # With both tokens given, the file is not needed.
    token = gm.Encoder.from_bytes(tokenizer_json).id_to_token(0)
    encoder = gm.Encoder.from_pretrained(tmp_path, eos_token=token, bos_token=token)
    assert (encoder.eos_id, encoder.bos_id) == (0, 0)


def test_folder_named_tokenizer_config_json_is_named(tmp_path, tokenizer_json):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    (tmp_path / "tokenizer_config.json").mkdir()
    with pytest.raises(
        gm.TokenizerError, match=r"cannot read '.*tokenizer_config\.json' beside the tokenizer\.json: Is a d"
    ):
        gm.Encoder.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("make", "source", "error", "message"),
    [
        (gm.Encoder.from_file, 5, TypeError, "path=5: expected a path"),
        (gm.Encoder.from_bytes, "x" * 10**6, TypeError, r"json_bytes='x{100,200}\.\.\.: expected the bytes"),
        (gm.Encoder.from_bytes, b"\x1f\x8bx", gm.TokenizerError, "corrupt gzip data"),
        (gm.Encoder, "t.json", TypeError, r"json_bytes='t.json': .*, got str; for a path: gm\.Encoder\.from_file"),
        (gm.Encoder, Path("t.json"), TypeError, r", got PosixPath; for a path: gm\.Encoder\.from_file"),
        (gm.Encoder, '{"model": ', TypeError, r", got str; for a string: \.encode\(\) gives its bytes$"),
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
def test_wrong_sources_of_an_encoder_are_named(make, source, error, message):
    with pytest.raises(error, match=message) as caught:
        make(source)
    assert isinstance(caught.value, gm.GristmillError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
