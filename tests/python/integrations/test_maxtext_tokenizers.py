"""Tokenizers of MaxText's config: files of SentencePiece and tiktoken beside these libraries."""

import base64
import json
import re
from types import SimpleNamespace

import pytest

import gristmill as gm
from gristmill.integrations import maxtext
from gristmill.integrations.maxtext.settings import sources_of
from gristmill.integrations.maxtext.tokenizers import encoder_of

ODD = ["", " a", "two  spaces ", "a\tb\nc", "naïve ﬁ 🙂", "<s> the </s> <unk>", "<tag>ant<tag> ▁x", "12345"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("corpus") / "texts.txt"
    # The corpus has words alone: pieces of lines of one character have equal scores, among which libraries choose
    # differently.
    path.write_text("\n".join(" ".join(re.findall("[A-Za-z]+", text[:400])) for text in texts[:400]))
    with path.open("a") as file:
        file.write("\n" + " ".join(f"x{char}y" for char in "<>/[]|0123456789_") * 20)
    return path


def config(path, kind="sentencepiece", **more):
    return SimpleNamespace(tokenizer_path=str(path), tokenizer_type=kind, use_sft=False, **more)


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"},
        {"model_type": "bpe", "byte_fallback": True, "add_dummy_prefix": False, "user_defined_symbols": ["<tag>"]},
        {"model_type": "unigram"},
        {"model_type": "unigram", "bos_id": -1, "normalization_rule_name": "nfkc"},
    ],
    ids=lambda options: "-".join(map(str, options.values()))[:40],
)
def test_sentencepiece_model_has_the_ids_of_its_library(tmp_path, corpus, texts, options):
    sentencepiece = pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "small"), vocab_size=600, minloglevel=2, **options
    )
    path = tmp_path / "small.model"
    reference = sentencepiece.SentencePieceProcessor(model_file=str(path))
    encoder = encoder_of(config(path))
    for text in (*ODD, *texts[:100]):
        assert encoder.encode(text).tolist() == reference.EncodeAsIds(text), text
    assert encoder.eos_id == reference.eos_id()
    assert encoder.bos_id == (None if reference.bos_id() < 0 else reference.bos_id())
    # In conversations, templates write special tokens.
    chat = config(path)
    chat.use_sft = True
    assert encoder_of(chat).encode("</s>").tolist()[-1] == reference.eos_id()


def test_model_without_the_same_ids_says_how_to_convert_it(tmp_path, corpus):
    sentencepiece = pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "chars"), vocab_size=80, model_type="char", minloglevel=2
    )
    with pytest.raises(gm.TokenizerError, match=r"tokenizer_path=.*save_pretrained.*tokenizer_type"):
        encoder_of(config(tmp_path / "chars.model"))


def test_tiktoken_file_has_the_ids_of_its_library(tmp_path, texts):
    pytest.importorskip("tiktoken")
    import tiktoken

    pieces = [bytes([byte]) for byte in range(256)]
    pieces += [
        b"th",
        b"in",
        b" t",
        b"the",
        b" the",
        b"an",
        b"ant",
        b" ant",
        b"  ",
        b"\n\n",
        "é".encode(),
        b"er",
        b"ing",
    ]
    path = tmp_path / "small.tiktoken"
    path.write_bytes(b"\n".join(base64.b64encode(piece) + f" {rank}".encode() for rank, piece in enumerate(pieces)))
    encoder = encoder_of(config(path, "tiktoken"))
    pattern = json.loads(encoder._core.json)["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    ranks = {piece: rank for rank, piece in enumerate(pieces)}
    reference = tiktoken.Encoding("small", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    for text in (*ODD, "<|end_of_text|>", *texts[:100]):
        assert encoder.encode(text).tolist() == reference.encode_ordinary(text), text
    assert (encoder.bos_id, encoder.eos_id) == (len(pieces), len(pieces) + 1)
    assert encoder.id_to_token(len(pieces) + 9) == "<|eot_id|>"


def test_default_type_takes_a_folder_and_a_token_is_of_its_download_alone(tmp_path, tokenizer_file, monkeypatch):
    import os

    monkeypatch.delenv("HF_TOKEN", raising=False)
    seen = []
    load = gm.Encoder.from_pretrained
    monkeypatch.setattr(gm.Encoder, "from_pretrained", lambda path: seen.append(os.environ["HF_TOKEN"]) or load(path))
    encoder = encoder_of(config(tokenizer_file.parent, hf_access_token="secret"))
    assert encoder.fingerprint == load(tokenizer_file).fingerprint
    assert seen == ["secret"]
    assert "HF_TOKEN" not in os.environ


def test_dataset_has_the_ends_of_a_sentencepiece_model(tmp_path, corpus):
    sentencepiece = pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "small"), vocab_size=600, minloglevel=2
    )
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "the ant"}))
    own = config(tmp_path / "small.model", add_bos=True, add_eos=True, max_target_length=16, packing=False)
    own.use_truncation = True
    own.max_segments_per_seq = -1
    batch = next(
        iter(maxtext.make_dataset(own, sources_of(str(tmp_path / "a.jsonl")), ["text"], batch_size=1, epochs=1))
    )
    reference = sentencepiece.SentencePieceProcessor(model_file=own.tokenizer_path)
    ids = batch["inputs"][batch["inputs_segmentation"] > 0].tolist()
    assert ids == [reference.bos_id(), *reference.EncodeAsIds("the ant"), reference.eos_id()]
