"""Data that the tests share: a small tokenizer, and shards of real text that every Python ships."""

import gzip
import json
import os
import signal
import time
from pathlib import Path
from pydoc_data import topics

import pytest
import tokenizers
from absl import flags

import gristmill as gm
from gristmill._cli import main
from helpers import write_shard
from optional_packages import (  # noqa: F401  # pytest finds its hooks here
    pytest_make_collect_report,
    pytest_runtest_call,
    pytest_runtest_setup,
)


def pytest_configure() -> None:
    # Test processes that JAX is loaded into must not look for accelerators.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # A shell has what it runs in the background ignore Ctrl-C, and processes hand that on: those of tests, too.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Real prose: the help topics of Python's own documentation, cut into documents of many lengths."""
    documents = []
    for index, name in enumerate(sorted(topics.topics)):
        text = topics.topics[name]
        size = (50, 700, 4000, 20_000)[index % 4]
        documents.extend(text[start : start + size] for start in range(0, min(len(text), 24_000), size))
    return documents[:600]


@pytest.fixture(scope="session")
def tokenizer_json(texts: list[str]) -> bytes:
    """A byte-level BPE tokenizer of 600 tokens, trained on the texts."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str().encode()


@pytest.fixture(scope="session")
def tokenizer_file(tokenizer_json: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer in a folder, with the file that names its special tokens."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "tokenizer.json").write_bytes(tokenizer_json)
    settings = {"eos_token": {"content": "</s>"}, "bos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder / "tokenizer.json"


@pytest.fixture(scope="session")
def encoder(tokenizer_file: Path) -> gm.Encoder:
    return gm.Encoder.from_file(tokenizer_file)


@pytest.fixture(scope="session")
def shard_folder(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight gzipped shards of different sizes in the RedPajama-v2 shape."""
    folder = tmp_path_factory.mktemp("shards")
    start = 0
    for number, share in enumerate((3, 41, 8, 120, 60, 17, 90, 1)):
        write_shard(folder / f"{number:04}" / "en_head.json.gz", texts[start : start + share])
        start += share
    return folder


@pytest.fixture(scope="session")
def shards(shard_folder: Path) -> str:
    return str(shard_folder / "*" / "en_head.json.gz")


@pytest.fixture
def packing(shards, tokenizer_file):
    """The arguments of a `pack` into a folder."""

    def arguments(folder, *more):
        options = ["--text-field", "raw_content", "--sequence-length", "128", "--batch-size", "16", "--threads", "2"]
        source = [shards, "--tokenizer", str(tokenizer_file.parent), "--output", str(folder)]
        return ["pack", *source, "--rows-per-file", "50", *options, *map(str, more)]

    return arguments


@pytest.fixture
def pack(packing, capsys):
    """Packs into a folder, and gives what the command says of it."""

    def pack(folder, *more):
        assert main.run([*packing(folder, *more), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return pack


@pytest.fixture
def thread_count():
    """Counts the operating system's threads of this process. One that was joined may be listed a moment longer."""

    def count():
        counts = []
        for _ in range(5):
            counts.append(len(list(Path("/proc/self/task").iterdir())))
            time.sleep(0.005)
        return min(counts)

    return count


@pytest.fixture
def parsed_flags():
    """Grain's worker processes read flags, which a program without absl's `app.run` never parses."""
    was_parsed = flags.FLAGS.is_parsed()
    flags.FLAGS.mark_as_parsed()
    yield
    if not was_parsed:
        flags.FLAGS.unparse_flags()


@pytest.fixture(scope="session")
def blank_shard(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Gigabytes of blank lines, which are not read in as long as a test takes: the consumer waits for the first row."""
    path = tmp_path_factory.mktemp("blank") / "shard.json.gz"
    # At the lowest level: before a reader stops, it inflates what it has read of the file.
    path.write_bytes(64 * gzip.compress(b"\n" * 2**26, 1, mtime=0))
    return str(path)
