"""Helpers of all tests: the longest wait, shards, child processes, and the comparison of streams."""

import gzip
import io
import itertools
import json
import os
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent.parent

# Seconds after which a process counts as hung. Most need a few; on a slow machine some need a hundred.
PATIENCE = 300


def write_shard(path: Path, documents: list[str]) -> None:
    """Writes documents as records of a shard; gzipped if the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"url": f"file:{i}", "raw_content": text, "nlines": 1}) + "\n" for i, text in enumerate(documents)
    ]
    data = "".join(lines).encode()
    path.write_bytes(gzip.compress(data, 6, mtime=0) if path.suffix == ".gz" else data)


def tar_of(records: Iterable[tuple[str, Mapping[str, bytes]]], kind: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar as WebDataset has them, of records: a key, and the members' contents by extension."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as archive:
        for key, members in records:
            for extension, content in members.items():
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def start_python(
    code: str, env: Mapping[str, str] | None = None, arguments: Sequence[object] = (), **more: Any
) -> "subprocess.Popen[str]":
    """Starts a Python process that runs `code` with these arguments."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **(env or {})},
        **more,
    )


def take_padding(iterator: Any) -> dict[str, Any]:
    """The batch of padding that an iterator which has ended gives for a step of other hosts."""
    core = iterator._stream.core
    taken = core.padding()
    core.delivered = taken.number
    return taken.arrays


def assert_resumes(dataset: Iterable[Mapping[str, Any]], steps: int) -> None:
    """Asserts that an iterator restored with the state of one after some steps continues like that one."""
    iterator, restored = iter(dataset), iter(dataset)
    for _ in range(steps):
        next(iterator)
    restored.set_state(iterator.get_state())
    assert_same_batches(restored, iterator)


def assert_same_batches(found: Iterable[Mapping[str, Any]], expected: Iterable[Mapping[str, Any]]) -> None:
    """Asserts that both have as many batches, with the same fields in the same order, of equal types and values."""
    for number, (batch, other) in enumerate(itertools.zip_longest(found, expected)):
        assert batch is not None, f"batch {number} is missing"
        assert other is not None, f"batch {number} is one too many"
        assert list(batch) == list(other), f"fields of batch {number}"
        for name in other:
            assert batch[name].dtype == other[name].dtype, f"{name} of batch {number}"
            np.testing.assert_array_equal(batch[name], other[name], err_msg=f"{name} of batch {number}", strict=True)
