"""`gristmill certify`: comparisons with the `tokenizers` package, and their certificates."""

import gzip
import json
import signal
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
import tokenizers

import gristmill as gm
from command_line import checked, fails, run_json, shard_of
from gristmill._certify import certificate, certify, comparison, generated, texts
from gristmill._certify.reference import Reference
from gristmill._cli import main
from gristmill._shards.address import Address
from helpers import PATIENCE

# More than the kinds of texts, each of which has some.
DOCUMENTS = 2500


class WrongEncoder(gm.Encoder):
    """Gives one id more for every é behind a b."""

    def encode(self, text):
        return np.concatenate([super().encode(text), np.zeros(text.count("bé"), np.int32)])

    def encode_batch(self, texts, threads=None):
        ids = [self.encode(text) for text in texts]
        return np.concatenate(ids), np.cumsum([0, *map(len, ids)])


@pytest.fixture
def wrong(monkeypatch):
    monkeypatch.setattr(
        certify, "load", lambda path, special: WrongEncoder.from_file(path, special_tokens_in_text=special)
    )


@pytest.fixture
def small_sample(monkeypatch):
    """The sample text may take seconds to find."""
    monkeypatch.setattr(texts.sample_text, "texts", lambda megabytes: (("a", f"sample {n}") for n in range(300)))


pytestmark = pytest.mark.usefixtures("small_sample")


def test_equal_ids_are_certified(tokenizer_file, tmp_path, capsys):
    output = tmp_path / "certificate.json"
    found = run_json(capsys, "certify", tokenizer_file, "--documents", DOCUMENTS, "--output", output)
    assert json.loads(output.read_text()) == found == certificate.read(output)
    assert (found["differences"], found["interrupted"], found["examples"]) == (0, False, [])
    assert found["totals"]["texts"] == DOCUMENTS == sum(kind["texts"] for kind in found["kinds"].values())
    assert found["kinds"].keys() == {"sample", "scalars", *generated._KINDS}
    assert found["tokenizer"] == tokenizer_file.parent.name
    assert found["versions"]["reference"] == tokenizers.__version__
    assert found["engine"] == "fast"
    assert found["kernels"] == gm.build_info()["instructions"]


def test_seed_and_number_of_texts_decide_the_texts(tokenizer_file, capsys):
    def hashes(*more):
        found = run_json(capsys, "certify", tokenizer_file, "--documents", DOCUMENTS, *more)
        return {name: kind["sha256"] for name, kind in found["kinds"].items()}

    first, again, other = hashes(), hashes(), hashes("--seed", 2)
    assert first == again
    assert {name for name in first if first[name] == other[name]} == {"sample"}


def test_given_shards_and_text_files_are_compared(tokenizer_file, shards, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("a text")
    arguments = ["certify", tokenizer_file, "--texts", shards, "--texts", tmp_path / "a.txt"]
    found = run_json(capsys, *arguments, "--text-field", "raw_content", "--documents", DOCUMENTS)
    assert found["kinds"]["given"]["texts"] == 341
    assert fails(capsys, *arguments, code=2).startswith("error: --text-field 'text': no record of the shards has a")
    assert "cannot read the text" in fails(capsys, *arguments, "--texts", "nowhere.md")


def test_long_given_texts_come_first(tokenizer_file, tmp_path, capsys):
    path = shard_of(tmp_path, *(json.dumps({"text": "word " * 8000}) for _ in range(8)))
    found = run_json(capsys, "certify", tokenizer_file, "--texts", path, "--documents", 8)
    assert {kind: counts["texts"] for kind, counts in found["kinds"].items()} == {"given": 7, "sample": 1}


def test_texts_of_shards_are_whole(tmp_path):
    expected = ["", "é" * 70_000, "<end>", "\0\n", "日本語 " * 5000, ""]
    path = shard_of(tmp_path, *(json.dumps({"t": text}) for text in expected), '{"u": 1}')
    unread = texts.Unread()
    assert list(texts._shard_texts(Address.of(str(path)), "t", unread)) == expected
    assert unread.records == 1


def test_records_that_cannot_be_read_are_counted(tokenizer_file, tmp_path, capsys):
    path, output = shard_of(tmp_path, "{", '{"text": "a"}', '{"u": 1}'), tmp_path / "certificate.json"
    assert (
        main.run(["certify", str(tokenizer_file), "--texts", str(path), "--documents", "9", "--output", str(output)])
        == 0
    )
    assert "9 texts compared: no difference; 2 records of --texts could not be read" in capsys.readouterr().out
    found = certificate.read(output)
    assert (found["unread_records"], found["kinds"]["given"]["texts"]) == (2, 1)


@pytest.mark.usefixtures("wrong")
def test_difference_is_shown_with_its_shortest_text(tokenizer_file, tmp_path, capsys):
    text, output = tmp_path / "a.txt", tmp_path / "certificate.json"
    text.write_text("some words, abbé, and more words")
    arguments = ["certify", str(tokenizer_file), "--texts", str(text), "--documents", "100", "--output", str(output)]
    assert main.run(arguments) == 3
    out = capsys.readouterr().out
    [example] = certificate.read(output)["examples"]
    expected = gm.Encoder.from_file(tokenizer_file).encode("bé").tolist()
    assert (example["text"], example["expected"], example["found"]) == ("bé", expected, [*expected, 0])
    assert f"difference in text 0 of given:\ntext      'b\\xe9'\nexpected  {expected}\nfound     " in out
    assert "100 texts compared: 1 difference" in out


def test_difference_of_the_cache_alone_is_shown_whole(encoder, tokenizer_json):
    class Forgetful(gm.Encoder):
        def encode_batch(self, texts, threads=None):
            ids, offsets = super().encode_batch(texts, threads)
            self.times = getattr(self, "times", 0) + 1
            return ids + (self.times > 1), offsets

    made = comparison.Comparison(Forgetful(tokenizer_json), Reference(tokenizer_json, special_tokens_as_text=False))
    made.add("given", ["some text"])
    [example] = made.examples
    assert (example["text"], example["alone"]) == ("some text", False)
    assert example["found"] == [token + 1 for token in example["expected"]]


def test_shortest_text_keeps_what_differs():
    text = "a" * 1000 + "X" + "b" * 500 + "Y" + "c" * 3
    assert comparison.shortest(text, lambda part: "X" in part and "Y" in part, 20) == "XY"
    assert comparison.shortest(text, lambda part: part == text, 20) == text


def test_special_tokens_may_be_text(tokenizer_file, capsys):
    found = run_json(capsys, "certify", tokenizer_file, "--special-tokens-in-text", "text", "--documents", DOCUMENTS)
    assert (found["differences"], found["special_tokens_in_text"]) == (0, "text")


def test_texts_that_the_reference_refuses_are_counted(tmp_path, capsys):
    # Without a token for unknown characters, most texts are an error.
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "none"}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0", "model": model}))
    found = run_json(capsys, "certify", path, "--documents", 300)
    assert (found["engine"], found["differences"]) == ("reference", 0)
    assert 250 < found["totals"]["refused"] <= 300
    assert found["totals"]["refused_by_reference"] == 0


def test_tokenizer_with_random_ids_is_refused(tokenizer_json, tmp_path, capsys):
    value = json.loads(tokenizer_json)
    value["model"]["dropout"] = 0.5
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    assert "ids differ from load to load, because it has dropout" in fails(capsys, "certify", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_comparison_writes_what_it_did(tokenizer_file, tmp_path, number, code):
    output = tmp_path / "certificate.json"
    command = [sys.executable, "-m", "gristmill", "certify", str(tokenizer_file), "--minutes", "60"]
    process = subprocess.Popen([*command, "--output", str(output)], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert b"comparing" in process.stderr.readline()
        time.sleep(0.5)
        process.send_signal(number)
        out, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == code
    found = certificate.read(output)
    assert found["interrupted"]
    assert found["totals"]["texts"] > 0
    assert b"no difference; interrupted" in out
    assert certificate.misfits(found, found) == ["the comparison was interrupted"]


def test_comparison_stopped_before_it_began_writes_nothing(tokenizer_file, tmp_path, capsys, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison.Comparison, "add", stop)
    output = tmp_path / "certificate.json"
    assert main.run(["certify", str(tokenizer_file), "--output", str(output)]) == 130
    assert "stopped before anything was compared; no certificate written\n" in capsys.readouterr().err
    assert not output.exists()


@pytest.fixture
def written(tokenizer_file, tmp_path, capsys):
    output = tmp_path / "certificate.json"
    run_json(capsys, "certify", tokenizer_file, "--documents", 100, "--output", output)
    return output


def test_certificate_fits_its_tokenizer(written, tokenizer_file, tmp_path, capsys):
    found = run_json(capsys, "certify", tokenizer_file, "--check", written)
    assert (found["fits"], found["misfits"]) == (True, [])
    gzipped = tmp_path / "other.json.gz"
    gzipped.write_bytes(gzip.compress(tokenizer_file.read_bytes()))
    assert main.run(["certify", str(gzipped), "--check", str(written)]) == 0
    assert capsys.readouterr().out.startswith("fits: 100 texts compared on 20")


def test_certificate_does_not_fit_another_file(written, tokenizer_json, tmp_path, capsys):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json + b"\n")
    code, found = checked(capsys, "certify", tmp_path, "--check", written)
    assert (code, found["fits"], len(found["misfits"])) == (3, False, 1)
    assert found["misfits"][0].startswith("sha256: certified is ")


def test_certificate_does_not_fit_other_versions_or_kernels(written, tokenizer_file, capsys, monkeypatch):
    monkeypatch.setattr(certificate, "__version__", "9.9")
    monkeypatch.setattr(certificate, "build_info", lambda: gm.build_info() | {"instructions": "plain"})
    assert main.run(["certify", str(tokenizer_file), "--check", str(written)]) == 3
    out = capsys.readouterr().out
    assert f"kernels: certified is {gm.build_info()['instructions']}, here is plain" in out
    assert f"gristmill: certified is {gm.__version__}, here is 9.9" in out


def test_unknown_commit_is_a_caveat(written, tokenizer_file, capsys, monkeypatch):
    def with_commits(certified, here):
        value = json.loads(written.read_text())
        value["versions"]["commit"] = certified
        del value["certificate_sha256"]
        written.write_text(json.dumps(certificate.signed(value)))
        monkeypatch.setattr(certificate, "build_info", lambda: gm.build_info() | {"commit": here})
        code = main.run(["certify", str(tokenizer_file), "--check", str(written)])
        return code, capsys.readouterr().out

    code, out = with_commits(None, None)
    assert (code, "\ncaveat: the commit is unknown, here and in the certificate" in out) == (0, True)
    assert with_commits("abc", "abc") == (0, out[: out.index("caveat")])
    code, out = with_commits("abc", None)
    assert (code, out) == (3, "does not fit:\n  commit: certified is abc, here is None\n")


def test_changed_certificate_does_not_fit(written, tokenizer_file, capsys):
    value = json.loads(written.read_text())
    value["totals"]["texts"] *= 1000
    written.write_text(json.dumps(value))
    code, found = checked(capsys, "certify", tokenizer_file, "--check", written)
    assert (code, found["misfits"]) == (3, ["it was changed after it was written"])


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1, "tokenizer": "a", "certificate_sha256": ""}'])
def test_files_that_are_no_certificates_are_refused(content, tokenizer_file, tmp_path, capsys):
    (tmp_path / "certificate.json").write_text(content)
    said = fails(capsys, "certify", tokenizer_file, "--check", tmp_path / "certificate.json")
    assert "is no certificate" in said
    assert "is no certificate" in fails(capsys, "certify", "--table", tmp_path / "certificate.json")


def test_certificate_of_another_format_is_refused(written, tokenizer_file, capsys):
    written.write_text(json.dumps(json.loads(written.read_text()) | {"format": 9}))
    assert "has the format 9: expected 1" in fails(capsys, "certify", tokenizer_file, "--check", written)


def test_table_lists_certificates_by_name(written, tmp_path, capsys):
    value = json.loads(written.read_text())
    (tmp_path / "b.json").write_text(json.dumps(value | {"tokenizer": "A first one", "interrupted": True}))
    assert main.run(["certify", "--table", str(written), str(tmp_path / "b.json")]) == 0
    header, line, first, second = capsys.readouterr().out.splitlines()
    assert header.startswith("| tokenizer | engine | texts |")
    assert set(line) <= set("| -:")
    assert first.startswith("| A first one (interrupted) | fast | 100 |")
    assert value["sha256"] in second


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Missing argument 'PATH'"),
        (["a", "b"], "several paths need --table"),
        (["--table"], "--table takes certificates, the files that --output writes: at least one is needed"),
        (["--table", "."], "--table takes certificates, the files that --output writes: '.' is a folder"),
        (["a", "--table", "--seed", "2"], "--table cannot be combined with --seed"),
        (["a", "--table", "--json"], "--table cannot be combined with --json"),
        (["TOKENIZER", "--minutes", "nan"], "--minutes: expected a number"),
        (["TOKENIZER", "--check", "a", "--minutes", "2"], "--check cannot be combined with --minutes"),
        (["TOKENIZER", "--documents", "2", "--minutes", "2"], "--documents and --minutes cannot be combined"),
        (["TOKENIZER", "--text-field", "a"], "--text-field has no effect without --texts"),
        (["TOKENIZER", "--output", "nowhere/a.json"], "there is no such folder"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments, says, tokenizer_file, capsys):
    code = main.run(["certify", *(str(tokenizer_file) if word == "TOKENIZER" else word for word in arguments)])
    assert (code, says in capsys.readouterr().err) == (2, True)


def test_missing_reference_is_an_error(tokenizer_file, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert fails(capsys, "certify", tokenizer_file).endswith(
        "the `tokenizers` package, is not installed: pip install 'gristmill[certify]'"
    )


def test_every_scalar_is_among_the_texts():
    seen = {text[0] for text in generated._scalars(1)}
    assert len(seen) == 0x11_0000 - 0x800


def test_generated_texts_are_utf_8_and_never_end():
    made = generated.sources(generated.Material(["<s>"], ["ab", " a"], ["some text", "", "é"]), 1)
    for kind, source in made.items():
        drawn = [next(source) for _ in range(500)]
        assert zlib.crc32("".join(drawn).encode()), kind
        assert len(set(drawn)) > 100, kind
