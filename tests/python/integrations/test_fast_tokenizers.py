"""`fast` beside the tokenizer that it is made of, over many texts and calls; `make test-torch`."""

import copy
import gzip
import io
import logging
import pickle
import random

import numpy as np
import pytest
import tokenizers

from helpers import ROOT

transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-torch")
made = pytest.importorskip("gristmill.integrations.transformers.tokenizer")
pytestmark = pytest.mark.filterwarnings("ignore")

SHARED = ROOT.parent / "shared" / "tokenizers"
FILES = sorted(SHARED.glob("*.json.gz")) if SHARED.is_dir() else []
TEXTS = [
    "", " ", "a", "Hello, world!", "  two  spaces\t\n\ntabs ", "naïve café — “quotes” … 1234567890 3.14",
    "日本語のテキスト と 한국어 và tiếng Việt", "🙂🏳️‍🌈 emoji e\u0301 \u200b\u00a0x",
    "<s>text</s> [CLS] [SEP] <|endoftext|>", "<unk> [MASK]",
    "<|im_start|>user\nhi<|im_end|>\n<|begin_of_text|>", "def f(x):\n    return x ** 2  # comment\n",
    "x" * 300, "word " * 400,
    "\x00\x01\ufffd", "UPPER lower MiXeD", "http://example.org/path?query=1&other=two", "ﬁ ﬂ Å Å ½",
]  # fmt: skip


def wrapped(path):
    inner = tokenizers.Tokenizer.from_str(gzip.decompress(path.read_bytes()).decode())
    special = [token.content for token in inner.get_added_tokens_decoder().values() if token.special]
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner)
    tokenizer.pad_token = special[0] if special else inner.id_to_token(0)
    tokenizer.model_max_length = 512
    return tokenizer


@pytest.fixture(scope="module")
def own(tokenizer_json):
    """A tokenizer made for these tests, with a template that adds special tokens."""
    inner = tokenizers.Tokenizer.from_str(tokenizer_json.decode())
    inner.post_processor = tokenizers.processors.Sequence(
        [
            tokenizers.processors.ByteLevel(trim_offsets=False),
            tokenizers.processors.TemplateProcessing(
                single="<s> $A </s>",
                pair="<s> $A </s> $B:1 </s>:1",
                special_tokens=[("<s>", inner.token_to_id("<s>")), ("</s>", inner.token_to_id("</s>"))],
            ),
        ]
    )
    template = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="</s>", chat_template=template
    )


def plain(value):
    """A result in the form in which `==` compares it."""
    if isinstance(value, transformers.BatchEncoding):
        return {"data": {name: plain(item) for name, item in value.items()}, "keys": list(value)}
    if hasattr(value, "tolist"):
        return (str(value.dtype), value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def outcome(call):
    try:
        return plain(call())
    except BaseException as error:  # panics of the library, too
        return type(error).__name__, str(error)


def encodings(batch):
    return [
        (one.ids, one.type_ids, one.tokens, one.offsets, one.word_ids, one.special_tokens_mask, one.attention_mask)
        for one in batch.encodings
    ]


def calls(texts, seed=0):
    """Arguments of calls: those of each option, and random ones together."""
    pairs = [(texts[number], texts[-number - 1]) for number in range(len(texts))]
    singles = [((text,), {}) for text in texts]
    several = [
        ((texts,), {}),
        ((texts,), {"padding": True}),
        ((texts,), {"padding": True, "padding_side": "left", "return_special_tokens_mask": True}),
        ((texts,), {"padding": "max_length", "max_length": 16, "truncation": True}),
        ((texts,), {"padding": "max_length", "max_length": 600}),
        ((texts,), {"truncation": True, "max_length": 5, "return_token_type_ids": True}),
        ((texts,), {"truncation": "only_first", "max_length": 7, "return_length": True}),
        ((texts,), {"truncation": True, "max_length": 1}),
        ((texts,), {"truncation": True, "max_length": 8, "stride": 2, "return_overflowing_tokens": True}),
        ((texts,), {"padding": True, "pad_to_multiple_of": 8, "return_tensors": "np"}),
        ((texts,), {"add_special_tokens": False}),
        ((texts,), {"return_offsets_mapping": True}),
        ((texts,), {"split_special_tokens": True}),
        ((pairs,), {"padding": True, "return_special_tokens_mask": True, "return_token_type_ids": True}),
        ((texts, texts[::-1]), {"add_special_tokens": False, "return_token_type_ids": True}),
        ((pairs,), {"truncation": "longest_first", "max_length": 9}),
        ((pairs,), {"truncation": "only_second", "max_length": 9}),
        ((texts[3], texts[4]), {}),
        ((texts[3], ""), {}),
        (([],), {}),
        (([["two", "words"], ["x"]],), {"is_split_into_words": True}),
        ((texts,), {"return_attention_mask": False}),
        (("one text",), {"return_tensors": "np"}),
        (([1, 2],), {}),
        (("lone \ud800 surrogate",), {}),
    ]
    drawn = random.Random(seed)
    for _ in range(30):
        options = {
            "add_special_tokens": drawn.random() < 0.6,
            "padding": drawn.choice([False, True, "max_length"]),
            "truncation": drawn.choice([False, True, "only_first"]),
            "max_length": drawn.choice([3, 10, 33]),
            "pad_to_multiple_of": drawn.choice([None, 4]),
            "padding_side": drawn.choice([None, "left", "right"]),
            "return_special_tokens_mask": drawn.random() < 0.5,
            "return_token_type_ids": drawn.choice([None, True, False]),
        }
        several.append(((drawn.choice([drawn.sample(texts, 5), pairs[:3], texts[6]]),), options))
    return singles + several


def assert_same_results(reference, fast, texts=TEXTS):
    for arguments, options in calls(texts):
        wanted = outcome(lambda: reference(*arguments, **options))  # noqa: B023
        assert outcome(lambda: fast(*arguments, **options)) == wanted, (arguments, options)  # noqa: B023
    batch, other = (tokenizer(texts, padding=True) for tokenizer in (reference, fast))
    assert encodings(batch) == encodings(other)
    assert batch.word_ids(3) == other.word_ids(3)
    assert batch.char_to_token(3, 1) == other.char_to_token(3, 1)
    for text in texts:
        assert reference.tokenize(text) == fast.tokenize(text)
        assert reference.encode(text) == fast.encode(text)
        ids = reference.encode(text)
        for skips in (False, True):
            assert reference.decode(ids, skip_special_tokens=skips) == fast.decode(ids, skip_special_tokens=skips)


@pytest.fixture
def encoded(monkeypatch):
    """An item for each call whose ids gristmill has computed."""
    counts = []
    inner = made._Encoding._values
    monkeypatch.setattr(made._Encoding, "_values", lambda *given: counts.append(1) or inner(*given))
    return counts


def test_results_are_those_of_the_tokenizer(own, encoded):
    fast = made.fast(own)
    assert type(fast).__name__ == type(own).__name__
    assert isinstance(fast, type(own))
    assert_same_results(own, fast)
    assert len(encoded) > 40
    assert "_gristmill" not in own.__dict__


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES or [pytest.param(None, marks=pytest.mark.skip("../shared is absent"))])
def test_shared_tokenizers(path):
    try:
        reference = wrapped(path)
    except Exception as error:
        pytest.skip(f"transformers does not load it: {error}")
    assert_same_results(reference, made.fast(reference))


def test_chat_templates_are_tokenized(own, encoded):
    fast = made.fast(own)
    messages = [{"role": "user", "content": "hello there"}, {"role": "assistant", "content": "naïve ünïcode"}]
    for options in ({}, {"return_dict": True}, {"padding": True, "max_length": 9, "truncation": True}):
        for given in (messages, [messages, messages[:1]]):
            assert plain(fast.apply_chat_template(given, tokenize=True, **options)) == plain(
                own.apply_chat_template(given, tokenize=True, **options)
            )
    assert len(encoded) == 6
    sanitized = [tokenizer.apply_chat_template(messages, sanitize_control_tokens=True) for tokenizer in (fast, own)]
    assert plain(sanitized[0]) == plain(sanitized[1])


def test_tokens_that_are_added_later_are_seen(own):
    reference, fast = copy.deepcopy(own), made.fast(own)
    text = "a <new> and <other> token, and </s>"
    before = fast(text)["input_ids"]
    steps = [
        lambda one: one.add_tokens(["<new>"]),
        lambda one: one.add_special_tokens({"additional_special_tokens": ["<other>"]}),
        lambda one: one.backend_tokenizer.add_tokens(["and"]),
        lambda one: setattr(one.backend_tokenizer, "normalizer", tokenizers.normalizers.Lowercase()),
        lambda one: setattr(one.backend_tokenizer, "post_processor", tokenizers.processors.ByteLevel()),
        lambda one: setattr(one._tokenizer, "normalizer", tokenizers.normalizers.Replace("u", "x")),
        lambda one: one._tokenizer.add_tokens(["token"]),
    ]
    for step in steps:
        step(reference)
        step(fast)
        assert_same_results(reference, fast, [*TEXTS[:6], text, "UPPER A"])
    assert fast(text)["input_ids"] != before
    assert own(text)["input_ids"] == before


def test_it_pickles_copies_and_saves(own, tmp_path):
    fast = made.fast(own)
    wanted = own(TEXTS)["input_ids"]
    fast(TEXTS)
    for other in (pickle.loads(pickle.dumps(fast)), copy.deepcopy(fast), copy.copy(fast), made.fast(fast)):
        assert type(other) is type(fast)
        assert other(TEXTS)["input_ids"] == wanted
    batch = fast(TEXTS)
    again = pickle.loads(pickle.dumps(batch))
    assert again.data == batch.data
    assert encodings(again) == encodings(batch)
    own.save_pretrained(tmp_path / "own")
    fast.save_pretrained(tmp_path / "fast")
    for path in (tmp_path / "own").iterdir():
        assert (tmp_path / "fast" / path.name).read_bytes() == path.read_bytes()
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "fast")
    assert loaded(TEXTS)["input_ids"] == wanted


def test_tensors_are_the_same(own):
    torch = pytest.importorskip("torch")
    fast = made.fast(own)
    found, wanted = (one(TEXTS, padding=True, return_tensors="pt") for one in (fast, own))
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    arrays = fast(TEXTS, padding=True, return_tensors="np")
    assert all(np.array_equal(arrays[name], wanted[name].numpy()) for name in wanted)


@pytest.mark.parametrize("given", [None, 1, True])
def test_arguments_of_other_types_are_refused_as_by_the_tokenizer(own, given):
    one, other = (outcome(lambda of=of: of("a b", add_special_tokens=given)) for of in (own, made.fast(own)))
    assert one == other


def test_what_the_encoder_cannot_is_said_once(own, caplog):
    class Other(type(own)):
        def _encode_plus(self, *args, **kwargs):
            return super()._encode_plus(*args, **kwargs)

    reference = copy.deepcopy(own)
    reference.__class__ = Other
    fast = made.fast(reference)
    with caplog.at_level(logging.WARNING, "gristmill"):
        assert [fast(text)["input_ids"] for text in TEXTS] == [own(text)["input_ids"] for text in TEXTS]
    said = [record.getMessage() for record in caplog.records if record.name == "gristmill"]
    fast = made.fast(own)
    with caplog.at_level(logging.WARNING, "gristmill"):
        assert [fast(text, other=1)["input_ids"] for text in TEXTS] == [own(text)["input_ids"] for text in TEXTS]
    assert "calls have options that are not known, other" in caplog.text
    assert said == [
        "Other: the tokenizers library encodes in place of gristmill: the class has a method _encode_plus of its own"
    ]


def test_dropout_is_the_references(own, caplog):
    inner = tokenizers.Tokenizer.from_str(own.backend_tokenizer.to_str())
    inner.model.dropout = 0.5
    fast = made.fast(transformers.PreTrainedTokenizerFast(tokenizer_object=inner))
    with caplog.at_level(logging.WARNING, "gristmill"):
        assert len({tuple(fast("some words and more words")["input_ids"]) for _ in range(20)}) > 1
    assert "its model has dropout" in caplog.text


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="expected a PreTrainedTokenizerFast, got StringIO"):
        made.fast(io.StringIO())
