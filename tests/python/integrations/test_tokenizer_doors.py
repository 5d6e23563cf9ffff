"""examples/fast_tokenizers: the ids of Megatron-LM, NeMo-RL and SGLang with and without gristmill; `make test-torch`.

Megatron-LM's and SGLang's own loaders make the tokenizers. NeMo-RL is on no registry, so its function is written anew.
The example for Dynamo is a crate with tests of its own.
"""

import importlib.util
import json
import logging
import pickle
import subprocess
import sys
import types

import pytest

from helpers import ROOT

transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-torch")
made = pytest.importorskip("gristmill.integrations.transformers.tokenizer")
pytestmark = pytest.mark.filterwarnings("ignore")

EXAMPLES = ROOT / "examples" / "fast_tokenizers"
TEXTS = ["Hello, world!", "", "  two  spaces\n", "naïve — 日本語 🙂", "</s> in a text <s>", "word " * 300]
MESSAGES = [{"role": "user", "content": text} for text in TEXTS]
TEMPLATE = "{% for message in messages %}<s>{{ message.content }}</s>{% endfor %}"


def example(name):
    spec = importlib.util.spec_from_file_location(f"fast_tokenizers_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer_file):
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_file), bos_token="<s>", eos_token="</s>", pad_token="</s>", chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def encoded(monkeypatch):
    """Counts the calls whose ids gristmill has computed."""
    counts = []
    inner = made._Encoding._values
    monkeypatch.setattr(made._Encoding, "_values", lambda *given: counts.append(1) or inner(*given))
    return counts


@pytest.mark.parametrize("adds", [True, False])
def test_megatron_lm(folder, encoded, adds):
    megatron = pytest.importorskip("megatron.core.tokenizers", reason="megatron-core is not installed: make test-torch")

    def build():
        return megatron.MegatronTokenizer.from_pretrained(
            str(folder), metadata_path={"library": "huggingface"}, include_special_tokens=adds, use_fast=True
        )

    plain, own = build(), example("megatron_lm").with_gristmill(build())
    for text in TEXTS:
        ids = plain.tokenize(text)
        assert own.tokenize(text) == ids
        assert own.detokenize(ids) == plain.detokenize(ids)
    assert len(encoded) == len(TEXTS)
    for name in ("vocab_size", "eod", "pad", "bos", "eos_id", "vocab", "unique_identifiers"):
        assert getattr(own, name) == getattr(plain, name)
    assert own.apply_chat_template(MESSAGES, TEMPLATE, tokenize=True) == plain.apply_chat_template(
        MESSAGES, TEMPLATE, tokenize=True
    )


def assert_same(own, plain):
    assert [own(text)["input_ids"] for text in TEXTS] == [plain(text)["input_ids"] for text in TEXTS]
    assert [own.encode(text) for text in TEXTS] == [plain.encode(text) for text in TEXTS]
    assert own(TEXTS, padding=True).data == plain(TEXTS, padding=True).data
    assert own.apply_chat_template(MESSAGES) == plain.apply_chat_template(MESSAGES)
    for text in TEXTS:
        ids = plain.encode(text)
        assert own.decode(ids) == plain.decode(ids)


def test_nemo_rl(folder, encoded, monkeypatch, caplog):
    nemo = example("nemo_rl")
    utils = types.ModuleType("nemo_rl.algorithms.utils")

    def get_tokenizer(config, get_processor=False):
        tokenizer = transformers.AutoTokenizer.from_pretrained(config["name"])
        return types.SimpleNamespace(tokenizer=tokenizer) if get_processor else tokenizer

    utils.get_tokenizer = get_tokenizer
    for name, module in (("nemo_rl", None), ("nemo_rl.algorithms", None), (utils.__name__, utils)):
        monkeypatch.setitem(sys.modules, name, module or types.ModuleType(name))
    plain = get_tokenizer({"name": folder})
    nemo.install()
    own = utils.get_tokenizer({"name": folder})
    assert_same(own, plain)
    assert len(encoded) > len(TEXTS)
    assert_same(pickle.loads(pickle.dumps(own)), plain)  # as Ray sends it to its actors
    assert isinstance(utils.get_tokenizer({"name": folder}, get_processor=True).tokenizer, made._Encoding)

    for override, enabled, wanted in ((None, False, False), ("1", False, True), ("0", True, False)):
        if override is not None:
            monkeypatch.setenv("NRL_USE_GRISTMILL", override)
        assert isinstance(nemo.maybe_fast(plain, enabled), made._Encoding) == wanted
    monkeypatch.delenv("NRL_USE_GRISTMILL")
    with caplog.at_level(logging.WARNING):
        monkeypatch.setitem(sys.modules, "gristmill.integrations.transformers", None)
        assert nemo.maybe_fast(plain, True) is plain
    assert "encodes as before" in caplog.text


def test_sglang(folder, encoded):
    loading = pytest.importorskip(
        "sglang.srt.utils.hf_transformers.tokenizer", reason="sglang is not installed: make test-torch"
    )
    sglang = example("sglang")
    plain = loading.get_tokenizer(str(folder))
    own = sglang.with_gristmill(plain, "a model")
    assert_same(own, plain)
    assert len(encoded) > len(TEXTS)
    assert vars(own).keys() - {"_gristmill"} == vars(plain).keys()  # also what SGLang has attached
    with pytest.raises(RuntimeError, match=r"'a model' cannot encode by gristmill: .*--tokenizer-backend"):
        sglang.with_gristmill(object(), "a model")


@pytest.mark.slow
def test_the_benchmark_compares_before_it_times(folder, texts, tmp_path):
    lines = tmp_path / "texts.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:80]))
    command = [sys.executable, str(EXAMPLES / "benchmark.py"), str(folder), str(lines), "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = [line[:16].strip() for line in done.stdout.splitlines()[1:]]
    assert names == ["documents", "conversations", "a long prompt", "a padded batch"]
