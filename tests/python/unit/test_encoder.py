"""`Encoder` compared with the `tokenizers` wheel."""

import copy
import gc
import gzip
import json
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import gristmill as gm
from gristmill._demo import sample_text
from gristmill._inspect import contents
from helpers import PATIENCE


def reference(json_bytes: bytes) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_buffer(json_bytes)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@pytest.fixture(scope="module")
def deepseek():
    return gm.Encoder.from_file(sample_text.tokenizer()), reference(sample_text.tokenizer().read_bytes())


def test_real_text_has_the_ids_of_tokenizers(deepseek, texts):
    ours, theirs = deepseek
    for text, expected in zip(texts, theirs.encode_batch_fast(texts, add_special_tokens=False), strict=True):
        assert ours.encode(text).tolist() == expected.ids


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_has_the_ids_of_tokenizers(deepseek, text):
    ours, theirs = deepseek
    assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False).ids


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=4))
def test_offsets_are_those_of_tokenizers(deepseek, texts):
    ours, theirs = deepseek
    wanted = theirs.encode_batch(texts, add_special_tokens=False)
    for text, encoding in zip(texts, wanted, strict=True):
        ids, offsets = ours.encode(text, offsets=True)
        assert (ids.tolist(), offsets.tolist()) == (encoding.ids, [list(span) for span in encoding.offsets])
        assert (ids.dtype, offsets.dtype, offsets.shape) == (np.int32, np.int64, (len(ids), 2))
    ids, borders, offsets = ours.encode_batch(texts, offsets=True)
    assert ids.tolist() == [token for encoding in wanted for token in encoding.ids]
    assert offsets.tolist() == [list(span) for encoding in wanted for span in encoding.offsets]
    assert borders.tolist() == np.cumsum([0, *(len(encoding.ids) for encoding in wanted)]).tolist()


def test_offsets_of_a_text_that_cannot_be_encoded_name_it():
    json_text = {
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"},
    }
    encoder = gm.Encoder.from_bytes(json.dumps(json_text).encode())
    with pytest.raises(gm.TokenizerError, match=r"texts\[1\]: "):
        encoder.encode_batch(["a a", "b"], offsets=True)


@pytest.mark.parametrize("threads", [None, 1, 3, 50])
def test_batch_has_the_ids_of_its_texts(encoder, texts, threads):
    ids, offsets = encoder.encode_batch(texts[:40], threads=threads)
    assert (ids.dtype, offsets.dtype, len(offsets)) == (np.int32, np.int64, 41)
    for text, start, end in zip(texts, offsets, offsets[1:], strict=False):
        np.testing.assert_array_equal(ids[start:end], encoder.encode(text))


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_batch_of_unequal_texts_has_their_ids(encoder, texts, threads):
    many = ["", *texts * 3, "".join(texts), "", *texts[:5], ""]
    ids, offsets = encoder.encode_batch(many, threads=threads)
    assert len(offsets) == len(many) + 1
    expected = [encoder.encode(text) for text in many]
    assert offsets.tolist() == [0, *np.cumsum([len(own) for own in expected]).tolist()]
    np.testing.assert_array_equal(ids, np.concatenate(expected))


def test_ids_keep_their_memory_while_referenced(tokenizer_json):
    encoder = gm.Encoder.from_bytes(tokenizer_json)
    texts = ["one two three " * 10_000, "four five six " * 10_000]
    (first, _), (second, _) = (encoder.encode_batch([text], threads=1) for text in texts)
    expected = first.copy(), second.copy()
    part, address = first[5:], first.ctypes.data
    del first
    assert encoder.encode(texts[0]).ctypes.data != address, "a view keeps the memory"
    np.testing.assert_array_equal(part, expected[0][5:])
    del part
    arrays = [encoder.encode(texts[0]) for _ in range(2)]
    arrays[0][:] = 0  # the owner of an array may write to it
    np.testing.assert_array_equal(arrays[1], expected[0])
    del encoder
    gc.collect()
    np.testing.assert_array_equal(second, expected[1])


def test_utf_8_bytes_have_the_ids_of_their_string(encoder, texts):
    texts = [*texts, "", "é", "語" * 40, "\0"]
    for text in texts:
        np.testing.assert_array_equal(encoder.encode(text.encode()), encoder.encode(text))
    mixed = [text.encode() if number % 2 else text for number, text in enumerate(texts)]
    for ids, expected in zip(encoder.encode_batch(mixed, threads=2), encoder.encode_batch(texts), strict=True):
        np.testing.assert_array_equal(ids, expected)


def test_memory_follows_from_cache_bytes_and_engine(tokenizer_json):
    encoder = gm.Encoder.from_bytes(tokenizer_json, cache_bytes=10**6)
    memory = encoder.memory
    assert memory["shared"] > len(tokenizer_json)
    assert 0 < memory["thread"] <= 1.25 * memory["thread_bound"]
    assert memory["thread_bound"] == 10**6
    assert gm.Encoder.from_bytes(tokenizer_json, engine="reference").memory["thread_bound"] == 0


def test_inspect_reports_memory_of_the_fast_engine(tokenizer_json, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer_json)
    found = contents.inspect(path)
    assert found["load_seconds"] > 0
    assert found["memory"] == gm.Encoder.from_file(path).memory
    assert "growing to at most 67.1 MB (cache_bytes)" in contents.describe(found)
    model = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    path.write_text(json.dumps({"model": model}))
    assert "that of the tokenizers library" in contents.describe(contents.inspect(path))


def test_empty_batch_and_empty_texts(encoder):
    ids, offsets = encoder.encode_batch([])
    assert (ids.tolist(), offsets.tolist()) == ([], [0])
    ids, offsets = encoder.encode_batch(["", "a", ""])
    assert offsets.tolist() == [0, 0, 1, 1]
    with pytest.raises(TypeError, match="expected a list of strings"):
        encoder.encode_batch("text")


def test_truncation_and_padding_of_the_file_are_ignored(tokenizer_json, texts):
    settings = json.loads(tokenizer_json)
    settings["truncation"] = {"max_length": 5, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    settings["padding"] = {
        "strategy": {"Fixed": 100}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>",
    }  # fmt: skip
    encoder = gm.Encoder.from_bytes(json.dumps(settings).encode())
    plain = gm.Encoder.from_bytes(tokenizer_json)
    for text in ("", "a", texts[5]):
        np.testing.assert_array_equal(encoder.encode(text), plain.encode(text))


def test_decode_and_lookup_of_tokens(encoder, texts):
    assert encoder.decode(encoder.encode(texts[0])) == texts[0]
    assert encoder.decode([encoder.eos_id]) == "</s>"
    assert encoder.decode([]) == encoder.decode(np.array([], dtype=str)) == ""
    assert encoder.token_to_id("</s>") == encoder.eos_id == 1
    assert encoder.id_to_token(1) == "</s>"
    assert encoder.token_to_id("no such token") is None
    assert encoder.id_to_token(10**6) is None
    assert encoder.vocab_size == 600


@pytest.mark.parametrize(("wanted", "engine"), [("auto", "fast"), ("reference", "reference")])
@pytest.mark.parametrize("added", [0, 3, 9])
def test_largest_id_counts_holes_and_added_tokens(wanted, engine, added):
    model = {"type": "BPE", "vocab": {"a": 0, "b": 7}, "merges": []}
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized", "special"], False)
    tokens = [{"id": 2 + number, "content": f"<{number}>", **flags} for number in range(added)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    json_bytes = json.dumps({"model": model, "pre_tokenizer": byte_level, "added_tokens": tokens}).encode()
    encoder = gm.Encoder.from_bytes(json_bytes, engine=wanted)
    assert encoder.engine == engine
    assert encoder.largest_id == max(reference(json_bytes).get_vocab(True).values()) == max(7, 1 + added)
    assert encoder.encode("b").tolist() == [7]
    assert encoder.vocab_size == 2 + added


def test_copies_pickles_and_gzip_are_the_same_encoder(encoder, tokenizer_json, tmp_path):
    assert copy.deepcopy(encoder) is encoder
    again = pickle.loads(pickle.dumps(encoder))
    assert (again.fingerprint, again.eos_id, again.bos_id) == (encoder.fingerprint, 1, 0)
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(tokenizer_json))
    assert gm.Encoder.from_file(tmp_path / "t.json.gz").fingerprint == encoder.fingerprint


def test_fingerprint_differs_between_tokenizers(encoder, tokenizer_json):
    other = json.loads(tokenizer_json)
    other["model"]["merges"].pop()
    assert gm.Encoder.from_bytes(json.dumps(other).encode()).fingerprint != encoder.fingerprint


def test_special_tokens_in_text_are_ids_or_text(tokenizer_json):
    theirs = reference(tokenizer_json)
    text = "a</s> b <s>c"
    assert (
        gm.Encoder.from_bytes(tokenizer_json).encode(text).tolist() == theirs.encode(text, add_special_tokens=False).ids
    )
    theirs.encode_special_tokens = True
    as_text = gm.Encoder.from_bytes(tokenizer_json, special_tokens_in_text="text")
    assert as_text.encode(text).tolist() == theirs.encode(text, add_special_tokens=False).ids
    assert 1 not in as_text.encode(text)
    assert as_text.fingerprint != gm.Encoder.from_bytes(tokenizer_json).fingerprint
    assert pickle.loads(pickle.dumps(as_text)).fingerprint == as_text.fingerprint


def test_reference_engine_can_be_chosen(tokenizer_json, texts):
    encoder = gm.Encoder.from_bytes(tokenizer_json, engine="reference")
    assert (encoder.engine, gm.Encoder.from_bytes(tokenizer_json).engine) == ("reference", "fast")
    np.testing.assert_array_equal(encoder.encode(texts[3]), gm.Encoder.from_bytes(tokenizer_json).encode(texts[3]))
    with pytest.raises(gm.ArgumentError, match="engine='quick': expected one of 'auto', 'reference'"):
        gm.Encoder.from_bytes(tokenizer_json, engine="quick")


def test_many_threads_share_an_encoder(encoder, texts):
    expected = [encoder.encode(text).tolist() for text in texts[:60]]
    wrong = []

    def work():
        if [encoder.encode(text).tolist() for text in texts[:60]] != expected:
            wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    "model",
    [
        tokenizers.models.WordLevel({"a": 0, "</s>": 1}, unk_token="<unk>"),
        tokenizers.models.WordPiece({"a": 0, "</s>": 1}, unk_token="<unk>"),
        tokenizers.models.Unigram([("a", -1.0), ("</s>", -1.0)], None),
        tokenizers.models.BPE({"a": 0, "</s>": 1}, [], unk_token="<unk>"),
    ],
    ids=lambda model: type(model).__name__,
)
def test_vocabulary_without_unknown_token_has_a_fingerprint(tmp_path, model):
    """Although it cannot encode the probe text, which has all scripts."""
    made = tokenizers.Tokenizer(model)
    encoder = gm.Encoder.from_bytes(made.to_str().encode())
    with pytest.raises(gm.TokenizerError, match="cannot encode this text"):
        encoder.encode("z")
    with pytest.raises(gm.TokenizerError, match="cannot encode this text"):
        encoder.encode_batch(["a", "z"])
    assert encoder.fingerprint == pickle.loads(pickle.dumps(encoder)).fingerprint
    made.add_tokens(["b"])
    assert gm.Encoder.from_bytes(made.to_str().encode()).fingerprint != encoder.fingerprint
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    dataset = gm.PackedDataset(tmp_path / "a.jsonl", tokenizer=encoder, eos="</s>", sequence_length=4)
    assert next(iter(dataset))["inputs"].tolist() == [0, 1, 0, 0]


class FastTokenizer:
    """Has the attribute by which tokenizers of transformers are recognized."""

    backend_tokenizer = None


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda e: e.encode(5), TypeError, "text=5: expected a string or bytes of UTF-8"),
        (
            lambda e: e.encode(b"a\xff"),
            ValueError,
            r"text=b'a\\xff': expected UTF-8, found 0xff at byte 1: invalid start",
        ),
        (
            lambda e: e.encode_batch(["a", b"\xe2\x82"]),
            ValueError,
            r"texts\[1\]=.*found 0xe2 at byte 0: unexpected end",
        ),
        (lambda e: e.encode("ab\ud800"), ValueError, r"text=.*found '\\ud800' at character 2"),
        (lambda e: e.encode_batch(["a", 3]), TypeError, r"texts\[1\]=3: expected a string or bytes of UTF-8"),
        (lambda e: e.encode_batch(["a", "\ud800"]), ValueError, r"texts\[1\]=.*without lone surrogates"),
        (lambda e: e.encode_batch(b"abc"), TypeError, "texts=b'abc': expected a list of strings or bytes"),
        (lambda e: e.encode_batch(5), TypeError, "texts=5: expected a list of strings or bytes"),
        (lambda e: e.decode([[1], [2, 3]]), TypeError, "expected integers in lists of one length, got list"),
        (lambda e: e.decode([1.5]), TypeError, "expected integers, got float64"),
        (lambda e: e.decode([3, -100]), ValueError, r"ids\[1\]=-100: expected ids from 0"),
        (lambda e: e.decode([2**32]), ValueError, r"ids\[0\]=4294967296"),
        (lambda e: e.token_to_id(5), TypeError, "token=5: expected a string"),
    ],
)
def test_values_that_cannot_be_encoded_or_decoded_are_named(encoder, call, error, message):
    with pytest.raises(error, match=message) as caught:
        call(encoder)
    assert isinstance(caught.value, gm.GristmillError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_too_large_cache_bytes_are_refused(tokenizer_json):
    with pytest.raises(gm.ArgumentError, match="cache_bytes=18446744073709551616"):
        gm.Encoder.from_bytes(tokenizer_json, cache_bytes=2**64)


def test_tokenizers_of_other_libraries_are_refused(shards, tokenizer_json):
    made = tokenizers.Tokenizer.from_str(tokenizer_json.decode())
    with pytest.raises(gm.ArgumentTypeError) as caught:
        gm.PackedDataset(shards, tokenizer=made)
    assert str(caught.value) == (
        "tokenizer=: expected the path of a tokenizer.json or an Encoder, got tokenizers.Tokenizer; use "
        "gm.Encoder.from_bytes(tokenizer.to_str().encode(), eos_token=...)"
    )
    gm.PackedDataset(shards, tokenizer=gm.Encoder.from_bytes(made.to_str().encode(), eos_token="</s>"))
    with pytest.raises(gm.ArgumentTypeError, match=r"json_bytes=: .*, got tokenizers\.Tokenizer; use gm\.Encoder"):
        gm.Encoder(made)
    with pytest.raises(gm.ArgumentTypeError, match=r"FastTokenizer; use .*\(tokenizer\.backend_tokenizer\.to_str\(\)"):
        gm.PackedDataset(shards, tokenizer=FastTokenizer())


@pytest.mark.parametrize("threads", [1, 4])
def test_batch_error_names_the_text(threads):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    encoder = gm.Encoder.from_bytes(tokenizer.to_str().encode())
    texts = ["a " * 5_000] * 20
    texts[13] = texts[17] = "a b"
    with pytest.raises(gm.TokenizerError, match=r"^texts\[13\]: the `tokenizers` library cannot encode this text"):
        encoder.encode_batch(texts, threads=threads)
    with pytest.raises(gm.TokenizerError, match=r"^the `tokenizers` library cannot encode this text"):
        encoder.encode("a b")


def test_cache_bytes_may_exceed_the_memory(tokenizer_json, texts):
    encoder = gm.Encoder.from_bytes(tokenizer_json, cache_bytes=2**40)
    assert encoder.encode(texts[0]).tolist() == gm.Encoder.from_bytes(tokenizer_json).encode(texts[0]).tolist()


@pytest.mark.slow
def test_first_encode_of_a_process_can_be_interrupted(tokenizer_file):
    code = """
        import os, signal, sys, threading, gristmill as gm
        encoder = gm.Encoder.from_file(sys.argv[1])
        text = "the quick " * 10_000_000
        try:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            encoder.encode(text)
        except KeyboardInterrupt:
            print("interrupted")
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tokenizer_file)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (process.stdout, process.stderr) == ("interrupted\n", "")


@pytest.mark.parametrize("threads", [1, 2])
def test_encode_batch_can_be_interrupted(tokenizer_json, texts, threads):
    # The reference engine is slow enough to be interrupted.
    encoder = gm.Encoder.from_bytes(tokenizer_json, engine="reference")

    def interrupt(number, frame):
        raise TimeoutError

    start = time.process_time()
    encoder.encode_batch(texts, threads)
    once = time.process_time() - start
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, once)
    start = time.process_time()
    try:
        with pytest.raises(TimeoutError):
            encoder.encode_batch(texts * 100, threads)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.process_time() - start < 50 * once


def test_dataset_refuses_a_tokenizer_with_dropout(tmp_path):
    """Its ids are random, so a run could not be reproduced."""
    json_bytes = tokenizers.Tokenizer(
        tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.5)
    ).to_str()
    encoder = gm.Encoder.from_bytes(json_bytes.encode())
    assert encoder.engine == "reference"
    assert {len(encoder.encode("ab")) for _ in range(100)} == {1, 2}
    assert len({gm.Encoder.from_bytes(json_bytes.encode()).fingerprint for _ in range(20)}) == 1
    (tmp_path / "a.jsonl").write_text('{"text": "ab"}\n')
    with pytest.raises(
        gm.ArgumentError, match=r"^tokenizer=: it uses BPE dropout \(0\.5\), .* set \"dropout\" to null"
    ):
        gm.PackedDataset(tmp_path / "a.jsonl", tokenizer=encoder, eos=False)


def test_dataset_refuses_added_tokens_that_normalize_alike(tmp_path):
    """The one that the reference engine finds is random at each load."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, unk_token="x"))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.add_tokens([tokenizers.AddedToken(token, normalized=True) for token in ("Quick", "quick")])
    loads = [gm.Encoder.from_bytes(tokenizer.to_str().encode()) for _ in range(60)]
    assert {tuple(encoder.encode("quick")) for encoder in loads} == {(1,), (2,)}
    assert len({encoder.fingerprint for encoder in loads}) == 1
    (tmp_path / "a.jsonl").write_text('{"text": "quick"}\n')
    message = "^tokenizer=: its added tokens 'Quick' and 'quick' are equal .* set its \"normalized\" to false there$"
    with pytest.raises(gm.ArgumentError, match=message):
        gm.PackedDataset(tmp_path / "a.jsonl", tokenizer=loads[0], eos=False)


def test_added_token_that_normalizes_to_nothing_is_refused(tmp_path):
    """The reference engine would loop forever on the first text."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, unk_token="x"))
    tokenizer.normalizer = tokenizers.normalizers.Strip()
    tokenizer.add_tokens([tokenizers.AddedToken("\n", normalized=True)])
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    with pytest.raises(
        gm.TokenizerError, match=r'tokenizer\.json: .* added token "\\n" .* set its "normalized" to false'
    ):
        gm.Encoder.from_file(tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a", "b"}, r"texts=.*: expected a list of strings or bytes, got set, which has no order: list\(\.\.\.\) or"),
        (frozenset(["a"]), "got frozenset, which has no order"),
        ({"text": ["a"]}, "expected a list of strings or bytes, got dict"),
        (memoryview(b"ab"), "expected a list of strings or bytes, got memoryview"),
        (bytearray(b"ab"), "expected a list of strings or bytes, got bytearray"),
        (["a", memoryview(b"b")], r"texts\[1\]=.*got memoryview; bytes\(\.\.\.\) gives its bytes"),
    ],
)
def test_collections_that_are_no_lists_of_texts_are_refused(encoder, given, message):
    with pytest.raises(gm.ArgumentTypeError, match=message):
        encoder.encode_batch(given)


def test_arrays_of_arrow_are_encoded(encoder):
    arrow = pytest.importorskip("pyarrow")
    texts = ["some words", "", "more"]
    expected = [array.tolist() for array in encoder.encode_batch(texts)]
    for array in (arrow.array(texts), arrow.chunked_array([texts[:1], texts[1:]]), arrow.array(texts, "large_binary")):
        assert [found.tolist() for found in encoder.encode_batch(array)] == expected
    with pytest.raises(gm.ArgumentTypeError, match=r"texts\[1\]=None: expected a string"):
        encoder.encode_batch(arrow.array(["a", None]))
    with pytest.raises(gm.ArgumentTypeError, match=r"text=.*; \.as_py\(\) gives its value"):
        encoder.encode(arrow.array(["a"])[0])


@pytest.mark.parametrize("name", ["\ud800", "\ud800/tokenizer.json"])
def test_path_that_no_file_can_have_is_an_error_of_gristmill(name):
    with pytest.raises(gm.MissingTokenizerError, match="no file has this name"):
        gm.Encoder.from_file(name)
    with pytest.raises(gm.TemplateError, match="cannot read the template"):
        gm.ChatTemplate.from_file(name)
