"""Memory and open files of a whole process on hostile shards; benches/soak.py has the large ones."""

import gzip
import json
import os
import subprocess
import sys
import textwrap

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import PATIENCE

pytestmark = pytest.mark.slow

READ = """
    import json, pathlib, sys
    import gristmill as gm
    iterator = iter(gm.PackedDataset(sys.argv[1], tokenizer=sys.argv[2], **json.loads(sys.argv[3])))
    files = 0
    for _ in iterator:
        files = max(files, sum(1 for _ in pathlib.Path("/proc/self/fd").iterdir()))
    status = pathlib.Path("/proc/self/status").read_text().splitlines()
    memory = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    print(json.dumps([iterator.stats(), memory // 1024, files]))
"""


def read(shards, tokenizer, **arguments):
    """The counts, peak MiB, and most open files of a process that reads the shards.

    glibc raises its threshold for mmap once a mapped block was freed; blocks below it stay with the arena of the thread
    that frees them. A fixed threshold keeps freed memory out of the count.
    """
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
    command = [sys.executable, "-c", textwrap.dedent(READ), str(shards), str(tokenizer), json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_gzip_bomb_costs_no_memory(tmp_path, tokenizer_file):
    good = b'{"text": "a"}\n'
    (tmp_path / "small.jsonl").write_bytes(good)
    arguments = {"max_document_bytes": 2**22, "on_error": "quarantine", "max_error_rate": 0.5, "threads": 2}
    _, plain, _ = read(tmp_path / "small.jsonl", tokenizer_file, **arguments)
    members = [gzip.compress(good), *[gzip.compress(bytes(2**24))] * 16, gzip.compress(b"\n" + good)]
    (tmp_path / "bomb.jsonl.gz").write_bytes(b"".join(members))
    assert (tmp_path / "bomb.jsonl.gz").stat().st_size < 2**18 + 2**16
    stats, memory, _ = read(tmp_path / "bomb.jsonl.gz", tokenizer_file, **arguments)
    assert (stats["documents"], stats["quarantined"]) == (2, 1)
    assert memory < plain + 32


@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "lz4"])
@pytest.mark.parametrize("name", ["bomb.parquet", "bomb.arrow"])
def test_bombs_in_columns_cost_no_memory(tmp_path, tokenizer_file, name, codec):
    small = pa.table({"text": ["a"]})
    table = pa.table({"text": ["x" * 2**20] * 300})
    arguments = {"on_error": "quarantine", "max_error_rate": 1.0, "threads": 2}
    if name.endswith(".parquet"):
        pq.write_table(small, tmp_path / "small", compression=codec)
        pq.write_table(table, tmp_path / name, use_dictionary=False, compression=codec)
    elif codec in ("zstd", "lz4"):
        for data, file in (small, "small"), (table, name):
            options = pa.ipc.IpcWriteOptions(compression=codec)
            with pa.ipc.new_stream(tmp_path / file, data.schema, options=options) as writer:
                writer.write_table(data)
    else:
        pytest.skip("Arrow has no such codec")
    _, plain, _ = read(tmp_path / "small", tokenizer_file, **arguments)
    stats, memory, _ = read(tmp_path / name, tokenizer_file, **arguments)
    assert (stats["documents"], stats["quarantined"]) == (0, 1)
    assert memory < plain + 32


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize("keep", [None, "score < 1000"])
def test_columns_of_large_files_take_little_memory(tmp_path, tokenizer_file, name, keep):
    """300 MB of text: of Parquet in one row group, whose pages have 1 MiB; of Arrow in batches of 1,000 rows."""
    rows = 20_000
    text = "the quick brown fox jumps over the lazy dog " * 350
    memory = {}
    for count in rows // 20, rows:
        texts = pa.array([f"{number} {text}" for number in range(count)], pa.large_string())
        table = pa.table({"text": texts, "score": range(count)})
        if name.endswith(".parquet"):
            pq.write_table(
                table, tmp_path / name, row_group_size=rows, use_dictionary=False, compression="snappy",
                write_batch_size=16,
            )  # fmt: skip
            assert pq.read_metadata(tmp_path / name).num_row_groups == 1
        else:
            with pa.ipc.new_stream(tmp_path / name, table.schema) as writer:
                writer.write_table(table, max_chunksize=1000)
        arguments = {"threads": 1, "batch_size": 8, "packing": "pad", "truncation": "right", "keep": keep}
        stats, memory[count], _ = read(tmp_path / name, tokenizer_file, **arguments)
        assert stats["documents"] == (count if keep is None else 1000)
    assert memory[rows] < memory[rows // 20] + 64


def test_thousand_shards_are_not_open_at_once(tmp_path, tokenizer_file):
    for number in range(1000):
        (tmp_path / f"{number}.jsonl").write_bytes(b'{"text": "a few words"}\n')
    stats, _, files = read(tmp_path / "*.jsonl", tokenizer_file, batch_size=8, sequence_length=16, threads=2)
    assert stats["documents"] == 1000
    assert files < 40


def test_threads_without_work_cost_no_memory(tmp_path, tokenizer_file):
    (tmp_path / "shard.jsonl").write_bytes(b'{"text": "a few words"}\n')
    memory = {threads: read(tmp_path / "shard.jsonl", tokenizer_file, threads=threads)[1] for threads in (1, 64)}
    assert memory[64] < memory[1] + 64


def test_read_ahead_of_large_documents_is_bounded(tmp_path, tokenizer_file):
    """The last document of a block may have any size, and eight threads read seventeen blocks of a lane ahead."""
    memory = {}
    for documents, words in (5120, 2**10), (20, 2**18):  # 4 MiB of text, and 16 of ids
        record = json.dumps({"text": words * "qjxzkvwbqjxzkvwb "}) + "\n"
        (tmp_path / "shard.jsonl").write_text(documents * record)
        stats, memory[documents], _ = read(tmp_path / "shard.jsonl", tokenizer_file, batch_size=64, threads=8)
        assert stats["documents"] == documents
    assert memory[20] < memory[5120] + 150


def test_bad_lines_within_a_window_cost_no_memory(tmp_path, tokenizer_file):
    """A window holds hundreds of blocks, whose bad lines must not be kept."""
    (tmp_path / "shard.jsonl.gz").write_bytes(256 * gzip.compress(b'{"text": "a"}\n' + 16_500 * b"{}\n"))
    arguments = {"on_error": "quarantine", "max_error_rate": 1.0, "threads": 1}
    memory = {}
    for seed in None, 1:
        stats, memory[seed], _ = read(tmp_path / "shard.jsonl.gz", tokenizer_file, seed=seed, **arguments)
        assert (stats["documents"], stats["quarantined"]) == (256, 256 * 16_500)
    assert memory[1] < memory[None] + 16
