"""transformers' own tests of tokenizers over `fast`; `make test-torch` fetches its source distribution."""

import importlib
import os
import sys
import tarfile
import unittest
from pathlib import Path

import pytest
import tokenizers

transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-torch")
made = pytest.importorskip("gristmill.integrations.transformers.tokenizer")
pytest.importorskip("parameterized", reason="parameterized is not installed: make test-torch")
ARCHIVES = sorted(Path(os.environ.get("GRISTMILL_SOURCES", "/nowhere")).glob("transformers-*.tar.gz"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not ARCHIVES, reason="GRISTMILL_SOURCES has no source of transformers: make test-torch"),
]
NAMES = ("test_tokenization_common", "test_tokenizers_backend_mixin", "test_sentencepiece_backend_mixin")


@pytest.fixture(scope="module")
def mixins(tmp_path_factory, texts):
    """The classes whose tests any tokenizer passes."""
    folder = tmp_path_factory.mktemp("source")
    with tarfile.open(ARCHIVES[-1]) as archive:
        for member in archive:
            if Path(member.name).stem in NAMES:
                member.name = f"tests/{Path(member.name).name}"
                archive.extract(member, folder, filter="data")
    (folder / "tests" / "__init__.py").touch()
    (folder / "tests" / "fixtures").mkdir()
    (folder / "tests" / "fixtures" / "sample_text.txt").write_text("\n\n".join(texts[:20]))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("HF_HUB_OFFLINE", "1")
        for loaded in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            patch.delitem(sys.modules, loaded)
        common, backend, _ = (importlib.import_module(f"tests.{name}") for name in NAMES)
        yield common.TokenizerTesterMixin, backend.TokenizersBackendTesterMixin
        for loaded in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[loaded]


def byte_level(tokenizer_json, texts):
    inner = tokenizers.Tokenizer.from_str(tokenizer_json.decode())
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "<s>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **special)


def word_piece(tokenizer_json, texts):
    inner = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = tokenizers.normalizers.BertNormalizer()
    inner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    inner.train_from_iterator(texts[:100], trainer)
    return transformers.BertTokenizer(vocab=inner.get_vocab())


def unigram(tokenizer_json, texts):
    inner = tokenizers.Tokenizer(tokenizers.models.Unigram())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=400, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    inner.train_from_iterator(texts[:100], trainer)
    vocabulary = sorted(inner.get_vocab().items(), key=lambda item: item[1])
    return transformers.T5Tokenizer(vocab=[(token, -float(rank)) for token, rank in vocabulary], extra_ids=3)


def failures(mixins, tokenizer_class, folder):
    """How many tests ran with a class, and those that failed."""
    attributes = {"tokenizer_class": tokenizer_class, "rust_tokenizer_class": tokenizer_class}
    # Their own tests are methods of a class that has the folder of a tokenizer where others name one of the hub.
    case = type("Tests", (*mixins, unittest.TestCase), attributes | {"from_pretrained_id": str(folder)})
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    failed = {test.id().rpartition(".")[2]: text for test, text in result.failures + result.errors}
    return result.testsRun - len(result.skipped), failed


@pytest.mark.parametrize("make", [byte_level, word_piece, unigram])
def test_fast_passes_what_the_tokenizer_passes(make, mixins, tokenizer_json, texts, tmp_path, monkeypatch):
    tokenizer = make(tokenizer_json, texts)
    tokenizer.save_pretrained(tmp_path)
    ran, wanted = failures(mixins, type(tokenizer), tmp_path)
    counts = []
    inner = made._Encoding._values
    monkeypatch.setattr(made._Encoding, "_values", lambda *given: counts.append(1) or inner(*given))
    own, found = failures(mixins, type(made.fast(tokenizer)), tmp_path)
    assert found.keys() <= wanted.keys(), "\n".join(text for name, text in found.items() if name not in wanted)
    assert own >= ran > 40
    assert len(wanted) < 10
    assert len(counts) > 500
