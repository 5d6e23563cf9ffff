"""Data that the tests share: a small tokenizer, and shards of real text that every Python ships."""

import gzip
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np
import pytest
import tokenizers
from absl import flags

import gristmill as gm
from gristmill import _cli

sys.path.insert(0, str(Path(__file__).parent))

# Seconds after which what ends within a few on a usual machine counts as hung. Slow ones need a hundred.
PATIENCE = 300


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


def write_shard(path: Path, documents: list[str]) -> None:
    """Writes documents as records of a shard; gzipped if the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"url": f"file:{i}", "raw_content": text, "nlines": 1}) + "\n" for i, text in enumerate(documents)
    ]
    data = "".join(lines).encode()
    path.write_bytes(gzip.compress(data, 6, mtime=0) if path.suffix == ".gz" else data)


def start_python(
    code: str, env: Mapping[str, str] | None = None, arguments: Sequence[object] = (), **more: Any
) -> "subprocess.Popen[str]":
    """Starts code in a process of its own, with these arguments."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **(env or {})},
        **more,
    )


def assert_same_batches(found: Iterable[Mapping[str, Any]], expected: Iterable[Mapping[str, Any]]) -> None:
    """As many batches, with the same fields in the same order, of the same types and values."""
    for number, (batch, other) in enumerate(itertools.zip_longest(found, expected)):
        assert batch is not None, f"there is no batch {number}"
        assert other is not None, f"batch {number} is one too many"
        assert list(batch) == list(other), f"fields of batch {number}"
        for name in other:
            assert batch[name].dtype == other[name].dtype, f"{name} of batch {number}"
            np.testing.assert_array_equal(batch[name], other[name], err_msg=f"{name} of batch {number}", strict=True)


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
        assert _cli.run([*packing(folder, *more), "--json"]) == 0
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
