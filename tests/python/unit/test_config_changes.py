"""Files beside a tokenizer.json change the ids of `AutoTokenizer`: this is warned of, shown, and followed if wanted.

The tokens of `ADDED` are what transformers 5.24 adds. Where it is installed, it is compared with on random files.
"""

import json
import logging
import random
import sys
import types

import pytest
import tokenizers

import gristmill as gm
from command_line import fails, run_json
from gristmill._cli import main

PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast"}
VOCABULARY = {"a": 0, "b": 1, "<": 2, "e": 3, "n": 4, "w": 5, ">": 6, "/": 7, "s": 8, " ": 9, "ab": 10}
SPLIT = {"split_special_tokens": True}


def tokenizer(**parts):
    model = {"type": "BPE", "vocab": VOCABULARY, "merges": [["a", "b"]]}
    return {"version": "1.0", "added_tokens": [{"id": 11, "content": "</s>", **PLAIN}], **parts, "model": model}


def write(folder, config=None, value=None, **others):
    """A tokenizer's folder; `others` are special_tokens_map and added_tokens."""
    files = {"tokenizer": value or tokenizer(), "tokenizer_config": config, **others}
    for name, content in files.items():
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def listed(encoder):
    """The added tokens of an encoder: their ids, their spelling, and the flags that are set."""
    tokens = json.loads(encoder._core.json)["added_tokens"]
    return [(token["id"], token["content"], *(flag for flag in PLAIN if token[flag])) for token in tokens]


NEW = (12, "<new>", "special")
ADDED = [
    ({"added_tokens_decoder": {"50": {"content": "<new>", **PLAIN}}}, {}, [NEW]),
    (
        {"added_tokens_decoder": {"50": {"content": "<w>", **PLAIN}, "9": {"content": "<new>", **PLAIN}}},
        {},
        [NEW, (13, "<w>", "special")],
    ),
    ({"extra_special_tokens": ["<new>"]}, {}, [NEW]),
    ({"extra_special_tokens": {"image_token": "<new>"}}, {}, [NEW]),
    ({"additional_special_tokens": ["<new>"]}, {}, [NEW]),
    ({"additional_special_tokens": ["<w>"], "extra_special_tokens": ["<new>"]}, {}, [NEW]),
    ({"pad_token": "<new>", "eos_token": "</s>"}, {}, [NEW]),
    ({"mask_token": "<w>", "bos_token": "<new>"}, {}, [NEW, (13, "<w>", "special")]),
    ({"image_token": "<w>", "unk_token": "<new>"}, {}, [NEW, (13, "<w>", "special")]),
    (
        {"pad_token": {"__type": "AddedToken", "content": "<new>", "lstrip": True, "normalized": True}},
        {},
        [(12, "<new>", "lstrip", "normalized", "special")],
    ),
    ({"pad_token": "ab"}, {}, [(10, "ab", "special")]),
    ({}, {"special_tokens_map": {"pad_token": "<new>"}}, [NEW]),
    ({"pad_token": "<w>"}, {"special_tokens_map": {"pad_token": {"content": "<new>", "lstrip": False}}}, [NEW]),
    ({}, {"added_tokens": {"<new>": 12}}, [(12, "<new>", "normalized")]),
    ({"pad_token": "<new>"}, {"added_tokens": {"<new>": 12}}, [NEW]),
]
UNCHANGED = [
    ({"eos_token": "</s>", "bos_token": None, "add_bos_token": True, "pad_token": ""}, {}),
    # With this list the other files are not read.
    ({"added_tokens_decoder": {}}, {"special_tokens_map": {"pad_token": "<new>"}, "added_tokens": {"<new>": 12}}),
    ({"added_tokens_decoder": {"11": {"content": "</s>", **PLAIN}}, "add_prefix_space": True}, {}),
    ({"split_special_tokens": False, "extra_special_tokens": []}, {}),
    # A token that no tokenizer has is no reason to fail.
    ({"added_tokens_decoder": {"x": {}, "1": 5}, "extra_special_tokens": [3], "unk_token": ["<new>"]}, {}),
]


@pytest.mark.parametrize(("config", "others", "added"), ADDED)
def test_tokens_of_the_config_are_warned_of_and_added_if_wanted(tmp_path, caplog, config, others, added):
    write(tmp_path, {**GENERIC, **config}, **others)
    with caplog.at_level(logging.WARNING, "gristmill"):
        usual = gm.Encoder.from_file(tmp_path)
    (record,) = caplog.records
    assert f"{tmp_path}/tokenizer.json: AutoTokenizer gives other ids than this encoder: the files" in record.message
    assert all(repr(token[1]) in record.message for token in added)
    assert listed(usual) == [(11, "</s>", "special")]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "gristmill"):
        applied = gm.Encoder.from_pretrained(tmp_path, config="apply")
        ignored = gm.Encoder.from_file(tmp_path, config="ignore")
    assert not caplog.records
    assert listed(applied) == sorted([(11, "</s>", "special"), *added])
    for token_id, content, *_ in added:
        assert applied.encode(f"a{content}b").tolist() == [0, token_id, 1]
    assert ignored.fingerprint == usual.fingerprint != applied.fingerprint


@pytest.mark.parametrize(("config", "others"), UNCHANGED)
def test_a_config_that_changes_no_ids_is_passed_over(tmp_path, caplog, config, others):
    write(tmp_path, {**GENERIC, **config}, **others)
    with caplog.at_level(logging.WARNING, "gristmill"):
        usual = gm.Encoder.from_file(tmp_path)
        applied = gm.Encoder.from_file(tmp_path, config="apply")
    assert not caplog.records
    assert applied.fingerprint == usual.fingerprint


def test_other_flags_of_a_token_are_warned_of_and_taken(tmp_path, caplog):
    write(tmp_path, {**GENERIC, "added_tokens_decoder": {"11": {"content": "</s>", **PLAIN, "lstrip": True}}})
    usual = gm.Encoder.from_file(tmp_path)
    assert "the files beside it give '</s>' other flags" in caplog.text
    applied = gm.Encoder.from_file(tmp_path, config="apply")
    assert usual.encode("a </s>").tolist() == [0, 9, 11]
    assert applied.encode("a </s>").tolist() == [0, 11]


def test_special_tokens_that_are_split_are_warned_of_and_become_text(tmp_path, caplog):
    write(tmp_path, GENERIC | SPLIT)
    assert gm.Encoder.from_file(tmp_path).encode("</s>").tolist() == [11]
    assert "sets split_special_tokens" in caplog.text
    caplog.clear()
    applied = gm.Encoder.from_file(tmp_path, config="apply")
    as_text = gm.Encoder.from_file(tmp_path, special_tokens_in_text="text")
    assert applied.encode("</s>").tolist() == as_text.encode("</s>").tolist() == [2, 7, 8, 6]
    chosen = gm.Encoder.from_file(tmp_path, config="apply", special_tokens_in_text="id")
    assert chosen.encode("</s>").tolist() == [11]
    assert not caplog.records


def bert(**settings):
    usual = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    return tokenizer(normalizer={**usual, "strip_accents": None, "lowercase": True, **settings})


def metaspace(scheme):
    step = {"type": "Metaspace", "replacement": "a", "prepend_scheme": scheme, "split": False}
    return tokenizer(normalizer=None, pre_tokenizer={"type": "Sequence", "pretokenizers": [step]})


BYTES = tokenizer(
    pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
)
PREPENDED = tokenizer(normalizer={"type": "Prepend", "prepend": "a"})
OF_CLASSES = [
    ("LlamaTokenizer", {}, PREPENDED, "LlamaTokenizer has prepend_scheme='first'"),
    ("LlamaTokenizerFast", {"legacy": True}, metaspace("first"), "LlamaTokenizer has prepend_scheme='always'"),
    ("LlamaTokenizerFast", {"legacy": False}, metaspace("first"), None),
    ("LlamaTokenizer", {"add_prefix_space": False}, metaspace("first"), "prepend_scheme='never'"),
    # It is told by these steps, and is none of Llama's own.
    ("LlamaTokenizer", {"legacy": True, "add_prefix_space": True}, BYTES, None),
    ("GPT2Tokenizer", {"add_prefix_space": True}, BYTES, "GPT2Tokenizer has add_prefix_space=True"),
    ("GPT2Tokenizer", {}, BYTES, None),
    ("XLMRobertaTokenizer", {"add_prefix_space": False}, metaspace("always"), "add_prefix_space=False"),
    ("XLMRobertaTokenizer", {}, metaspace("always"), None),
    ("BertTokenizer", {"do_lower_case": False}, bert(), "BertTokenizer has do_lower_case=False"),
    ("BertTokenizer", {}, bert(lowercase=False), "do_lower_case=True"),
    ("BertTokenizer", {"strip_accents": True}, bert(), None),
    ("BertTokenizer", {"tokenize_chinese_chars": False}, bert(), "tokenize_chinese_chars=False"),
]


@pytest.mark.parametrize(("name", "config", "value", "said"), OF_CLASSES)
def test_settings_that_the_class_of_a_model_follows_are_warned_of(tmp_path, caplog, name, config, value, said):
    write(tmp_path, {"tokenizer_class": name, **config}, value)
    gm.Encoder.from_file(tmp_path)
    assert (f"{said}, and tokenizer.json does otherwise" in caplog.text) if said else not caplog.text


def test_inspect_shows_what_the_config_changes(tmp_path, capsys, caplog):
    folder = write(tmp_path, {**GENERIC, **SPLIT, "pad_token": "<new>"})
    pad, split = run_json(capsys, "inspect", folder)["differs_from_auto_tokenizer"]
    assert "'<new>'" in pad
    assert "split_special_tokens" in split
    assert main.run(["inspect", str(folder)]) == 0
    assert capsys.readouterr().out.count("AutoTokenizer  other ids: ") == 2
    assert not caplog.records
    (folder / "tokenizer_config.json").unlink()
    assert run_json(capsys, "inspect", folder)["differs_from_auto_tokenizer"] == []


def test_a_file_that_breaks_off_is_named(tmp_path, capsys):
    write(tmp_path)
    (tmp_path / "added_tokens.json").write_text('{"<new>"')
    assert f"{tmp_path}/added_tokens.json is not JSON" in fails(capsys, "inspect", tmp_path)
    with pytest.raises(gm.ArgumentError, match="config='follow': expected one of 'warn', 'apply', 'ignore'"):
        gm.Encoder.from_file(tmp_path, config="follow")


@pytest.mark.parametrize("damage", ["{", "[]", "{}", '{"model": {"vocab": 3}}', '{"model": {}, "added_tokens": [1]}'])
@pytest.mark.parametrize("config", ["warn", "apply"])
def test_damaged_tokenizer_is_named_with_any_config_beside_it(tmp_path, damage, config):
    write(tmp_path, {**GENERIC, "pad_token": "<new>"})
    (tmp_path / "tokenizer.json").write_text(damage)
    with pytest.raises(gm.TokenizerError, match=r"tokenizer\.json: the `tokenizers` library cannot load"):
        gm.Encoder.from_file(tmp_path, config=config)


class FakeTokenizer:
    """Stands in for what AutoTokenizer gives."""

    eos_token, bos_token = "</s>", None

    def __init__(self, value):
        self.backend_tokenizer = tokenizers.Tokenizer.from_str(json.dumps(value))
        self.backend_tokenizer.encode_special_tokens = True


@pytest.fixture
def fake_transformers(monkeypatch):
    """A module `transformers` whose AutoTokenizer notes how it is called."""
    module = types.ModuleType("transformers")
    module.calls = []
    module.made = FakeTokenizer(tokenizer(normalizer={"type": "Lowercase"}))

    def from_pretrained(*arguments, **options):
        module.calls.append((arguments, options))
        if isinstance(module.made, Exception):
            raise module.made
        return module.made

    module.AutoTokenizer = types.SimpleNamespace(from_pretrained=from_pretrained)
    monkeypatch.setitem(sys.modules, "transformers", module)
    return module


@pytest.mark.parametrize("reason", ["class", "config.json", "code"])
def test_a_tokenizer_with_a_class_of_its_own_comes_from_transformers(tmp_path, fake_transformers, reason):
    config = {"class": {"tokenizer_class": "BertTokenizer"}, "code": {**GENERIC, "auto_map": {"AutoTokenizer": [1, 2]}}}
    write(tmp_path, config.get(reason, GENERIC))
    if reason == "config.json":
        (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    encoder = gm.Encoder.from_file(tmp_path, config="apply")
    assert encoder.encode("AB</s>").tolist() == [10, 2, 7, 8, 6]
    assert (encoder.eos_id, encoder.bos_id) == (11, None)
    assert fake_transformers.calls == [((str(tmp_path),), {"trust_remote_code": False})]
    other = gm.Encoder.from_file(tmp_path, config="apply", special_tokens_in_text="id", bos_token="a")
    assert other.encode("AB</s>").tolist() == [10, 11]
    assert other.bos_id == 0


def test_a_model_on_the_hub_comes_from_transformers(fake_transformers):
    encoder = gm.Encoder.from_pretrained("org/model", revision="v2", config="apply")
    assert encoder.encode("AB").tolist() == [10]
    assert fake_transformers.calls == [(("org/model",), {"trust_remote_code": False, "revision": "v2"})]


def test_tokenizer_that_transformers_cannot_convert_is_an_error_with_advice(tmp_path, fake_transformers, monkeypatch):
    write(tmp_path, {"tokenizer_class": "BertTokenizer"})
    fake_transformers.made = object()
    with pytest.raises(gm.TokenizerError, match="does not use the tokenizers library; config='warn' takes"):
        gm.Encoder.from_file(tmp_path, config="apply")
    fake_transformers.made = OSError("it is broken")
    with pytest.raises(gm.TokenizerError, match=r"AutoTokenizer cannot load .*: it is broken; config='warn' takes"):
        gm.Encoder.from_file(tmp_path, config="apply")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(gm.MissingExtraError, match="pip install transformers"):
        gm.Encoder.from_file(tmp_path, config="apply")
    (tmp_path / "tokenizer.json").rename(tmp_path / "other.json")
    with pytest.raises(gm.TokenizerError, match=r"AutoTokenizer reads files called tokenizer\.json only"):
        gm.Encoder.from_file(tmp_path / "other.json", config="apply")


CONTENTS = ["</s>", "<n>", "ab", "<new>", "e", "<w>", "<e>", "a", "s ", "<", "<nb>"]
NAMES = [
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "mask_token",
    "cls_token",
    "sep_token",
    "image_token",
    "x_token",
]


class RandomFiles:
    """Files beside a tokenizer.json, as few tokenizers have them."""

    def __init__(self, seed):
        self._random = random.Random(seed)

    def chance(self, share):
        return self._random.random() < share

    def content(self):
        return self._random.choice(CONTENTS)

    def flags(self):
        return {flag: self.chance(0.3) for flag in PLAIN}

    def token(self):
        if self.chance(0.6):
            return self.content()
        some = {flag: value for flag, value in self.flags().items() if self.chance(0.7)}
        return {"__type": "AddedToken", "content": self.content(), **some}

    def config(self):
        config = {**GENERIC, **{name: self.token() for name in NAMES if self.chance(0.25)}}
        if self.chance(0.3):
            config["extra_special_tokens"] = [self.token() for _ in range(self._random.randrange(3))]
        elif self.chance(0.2):
            config["extra_special_tokens"] = {"one_token": self.content(), "other_token": self.content()}
        if self.chance(0.3):
            config["additional_special_tokens"] = [self.token() for _ in range(self._random.randrange(3))]
        if self.chance(0.4):
            ids = self._random.sample(range(30), self._random.randrange(4))
            config["added_tokens_decoder"] = {
                str(number): {"content": self.content(), **self.flags()} for number in ids
            }
        return config | (SPLIT if self.chance(0.3) else {})

    def others(self):
        found = {}
        if self.chance(0.4):
            named = {name: self.content() for name in NAMES if self.chance(0.25)}
            flags = ("lstrip", "rstrip", "normalized", "single_word")
            for name in filter(lambda _: self.chance(0.4), list(named)):
                named[name] = {"content": named[name], **{flag: self.chance(0.3) for flag in flags}}
            lists = ("additional_special_tokens", "extra_special_tokens")
            found["special_tokens_map"] = named | {name: [self.content()] for name in lists if self.chance(0.3)}
        if self.chance(0.3):
            first, other = self._random.sample(range(20), 2)
            found["added_tokens"] = {self.content(): first, self.content(): other}
        return found

    def text(self):
        return "".join(self._random.choice([*CONTENTS, "b", "a", " "]) for _ in range(8))


@pytest.mark.parametrize("seed", range(100))
def test_same_ids_as_auto_tokenizer_with_random_files(tmp_path, seed, caplog):
    transformers = pytest.importorskip("transformers")
    files = RandomFiles(seed)
    value = tokenizer(normalizer={"type": "Lowercase"} if files.chance(0.3) else None)
    value["added_tokens"].append({"id": 12, "content": "<n>", **PLAIN, "special": False, "normalized": True})
    write(tmp_path, files.config(), value, **files.others())
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    usual = gm.Encoder.from_file(tmp_path)
    is_warned_of = bool(caplog.records)
    applied = gm.Encoder.from_file(tmp_path, config="apply")
    assert applied.vocab_size == len(theirs)
    for _ in range(20):
        text = files.text()
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert applied.encode(text).tolist() == expected, text
        assert is_warned_of or usual.encode(text).tolist() == expected, text


@pytest.mark.parametrize(("name", "config", "value", "said"), OF_CLASSES)
def test_same_ids_as_auto_tokenizer_of_a_class(tmp_path, name, config, value, said):
    transformers = pytest.importorskip("transformers")
    if "Bert" in name or "XLM" in name:
        pytest.skip("its class has another model")
    write(tmp_path, {"tokenizer_class": name, **config}, value)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    applied = gm.Encoder.from_file(tmp_path, config="apply")
    for text in ("ab", " a b", "a</s>b", "  </s> ab"):
        assert applied.encode(text).tolist() == theirs(text, add_special_tokens=False)["input_ids"], text
