import base64
import json
import struct
import sys

import pytest

from gristmill._core import Encoder as CoreEncoder
from helpers import ROOT

FOLDER = ROOT / "benches" / "encoders"


@pytest.fixture(autouse=True)
def _import_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in ("engines", "material", "peers", "report", "rounds", "tekken"):
        sys.modules.pop(name, None)


@pytest.fixture
def documents(tmp_path):
    path = tmp_path / "text.bin"
    texts = ["ab abc", "", "né 日本"]
    path.write_bytes(b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts))
    return path


@pytest.fixture
def tekken_file(tmp_path):
    tokens = [bytes([byte]) for byte in range(256)] + [b"ab", b"bc", b"abc", " né".encode()[:3]]
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(token).decode()} for rank, token in enumerate(tokens)]
    config = {"pattern": r" ?\p{L}+|\s+(?!\S)|\s+|.", "default_vocab_size": 300, "default_num_special_tokens": 40}
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps({"config": config, "vocab": vocab}))
    return path


def test_merges_follow_from_token_ranks():
    import tekken

    assert tekken.merges([b"a", b"b", b"c", b"ab", b"bc", b"abc", b"xyz"]) == [
        (b"a", b"b"),
        (b"b", b"c"),
        (b"a", b"bc"),
        (b"ab", b"c"),
    ]
    assert tekken.spell(b" a\n\xc3") == "ĠaĊÃ"


def test_tekken_file_becomes_a_tokenizer(tekken_file):
    import tekken

    made = json.dumps(tekken.tokenizer(tekken_file)).encode()
    encoder = CoreEncoder(made, False, False, 1 << 20)
    assert encoder.encode("abc xab").tolist() == [258, 32, ord("x"), 256]


def test_engines_report_counts_of_ids_and_failures(documents, tekken_file, tmp_path):
    import peers
    import rounds
    import tekken

    tokenizer = tmp_path / "small.json"
    tokenizer.write_text(json.dumps(tekken.tokenizer(tekken_file)))
    # Another engine by command: the same engine on strings, which must be found to have the same ids.
    again = peers.other(f"again={' '.join(peers.ours().command)} --strings")
    bad = peers.other("bad=false")
    compared = rounds.compare([peers.ours(), again, bad], tokenizer, documents, 2, 100, lambda what: None)
    assert set(compared["summary"]) == {"gristmill", "again"}
    assert compared["summary"]["again"]["same_ids"]
    assert compared["rounds"][0]["gristmill"]["ids"] == 3 + 10
    assert compared["failed"] == {"bad": "exit code 1"}
    with pytest.raises(ValueError, match="NAME=COMMAND"):
        peers.other("no command")


def test_summary_pairs_rounds_and_names_differing_ids():
    import report
    import rounds

    def result(seconds, crc="aa"):
        return {"load_seconds": 1.0, "cold_seconds": seconds, "warm_seconds": seconds / 2, "crc": crc, "ids": 5}

    measured = [
        {"gristmill": result(1.0), "peer": result(2.0)},
        {"gristmill": result(2.0), "peer": result(10.0)},
        {"gristmill": result(1.0), "peer": result(3.0, "bb")},
    ]
    found = rounds.summary(["gristmill", "peer", "absent"], measured, 6_000_000)
    assert found["peer"]["cold_ratio"] == 3.0
    assert found["peer"]["cold_speed"] == 2.0
    assert found["gristmill"]["warm_speed"] == 12.0
    assert not found["peer"]["same_ids"]
    assert "absent" not in found
    entry = {"tokenizer": "t", "text": "x", "summary": found, "failed": {"other": "refused it"}}
    assert report.notes([entry]) == [
        "t, x: other failed: refused it",
        "t, x: peer has other ids than gristmill",
    ]
    machine = {"processor": "p", "system": "s"}
    engines = {"gristmill": "1", "peer": "2", "other": ""}
    table = report.describe({"machine": machine, "engines": engines, "rounds": 3, "strings": True, "compared": [entry]})
    assert "3.00 / 3.00" in table
    assert "- / -" in table


def test_shards_of_one_name_become_one_text(tmp_path):
    import gzip

    import material
    import rounds

    for folder, name in [("a", "x"), ("b", "x"), ("b", "y")]:
        (tmp_path / folder).mkdir(exist_ok=True)
        with gzip.open(tmp_path / folder / f"{name}.json.gz", "wt") as shard:
            shard.write(json.dumps({"raw_content": f"{folder}{name}é"}) + "\n")
    texts = material.corpus_texts(tmp_path, tmp_path, 1.0)
    assert [(path.name, rounds.size(path)) for path in texts] == [("x.bin", 8), ("y.bin", 4)]
