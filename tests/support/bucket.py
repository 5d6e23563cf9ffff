"""The shards of a bucket, in every format, in a folder that is as if it were mounted."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import gristmill as gm


def write_bucket(folder: Path, *, records: int, words: int) -> None:
    """Writes 8 shards of so many records of up to so many words, `data/0000/en.json.gz` and so on."""
    rng = random.Random(0)
    for shard in range(8):
        texts = [" ".join(str(rng.randrange(10**6)) for _ in range(rng.randrange(1, words))) for _ in range(records)]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        path = folder / f"data/{shard:04d}/en.json.gz"
        path.parent.mkdir(parents=True)
        if shard % 4 == 0:
            path.write_bytes(gzip.compress(lines, 1, mtime=0))
        elif shard % 4 == 1:
            path.write_bytes(pa.compress(lines, codec="zstd", asbytes=True))
        elif shard % 4 == 2:
            pq.write_table(pa.table({"text": texts}), path, row_group_size=40, compression="snappy")
        else:
            middle = len(lines) // 3
            path.write_bytes(gzip.compress(lines[:middle], 1) + gzip.compress(lines[middle:], 1))


def objects_of(folder: Path) -> dict[str, bytes]:
    """The files below a folder, as the objects of a bucket."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {f"bucket/{path.relative_to(folder)}": path.read_bytes() for path in files}


def dataset(shards: Any, tokenizer: gm.Encoder, **more: Any) -> gm.PackedDataset:
    """A dataset of short rows in four lanes."""
    settings = {"sequence_length": 64, "batch_size": 8, "lanes": 4, "threads": 2, **more}
    return gm.PackedDataset(shards, tokenizer=tokenizer, **settings)
