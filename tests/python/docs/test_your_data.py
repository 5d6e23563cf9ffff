"""The page "Your data": each block reads a small corpus of its layout, and leaves out the records that it should."""

import gzip
import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

import gristmill as gm
from helpers import ROOT, tar_of

SECTIONS = dict(
    re.findall(
        r"^## ([^\n]*)\n(?:(?!^## ).)*?^```python\n(.*?)^```",
        (ROOT / "docs/your-data.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
)
ROWS = 40


def texts(**columns):
    """Records with a text each, and columns that map a record's number to a value."""
    return [{"text": f"text {row} " * 3} | {key: value(row) for key, value in columns.items()} for row in range(ROWS)]


def write_lines(path, records):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    if path.suffix == ".zst":
        data = pa.Codec("zstd").compress(data, asbytes=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_parquet(path, records, rows_a_group=10):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(records), path, row_group_size=rows_a_group)


def fineweb():
    rows = texts(int_score=lambda row: row % 6, language=lambda _: "en", token_count=lambda row: row)
    for number in range(2):
        write_parquet(f"fineweb-edu/data/CC-MAIN-2024-10/00{number}_00000.parquet", rows)
    return 2 * sum(row["int_score"] >= 4 for row in rows)


def dclm():
    score = "fasttext_openhermes_reddit_eli5_vs_rw_v2_bigram_200k_train_prob"
    rows = texts(**{score: lambda row: row / ROWS}, metadata=lambda _: {"WARC-Type": "response"})
    write_lines("dclm-baseline/global-shard_01_of_10/local-shard_0_of_10/shard_00000000_processed.jsonl.zst", rows)
    return sum(row[score] > 0.1 for row in rows)


def dolma():
    rows = texts(id=str, source=lambda row: "common-crawl" if row % 2 else "wiki")
    write_lines("dolma/documents/cc/0000.json.gz", rows)
    scores = [{"id": row["id"], "attributes": {"score": [[0, 9, number % 4 / 4]]}} for number, row in enumerate(rows)]
    write_lines("dolma/attributes/quality/cc/0000.json.gz", scores)
    return sum(number % 4 == 3 for number in range(ROWS))


def red_pajama():
    shard = "2023-14/0000/en_head.json.gz"
    root = "redpajama-v2"
    write_lines(f"{root}/documents/{shard}", [{"raw_content": f"page {row} " * 9} for row in range(ROWS)])
    write_lines(f"{root}/documents/2023-14/0001/en_head.json.gz", [{"raw_content": "without signals"}])
    scores = {
        "rps_doc_mean_word_length": 5.0,
        "rps_doc_symbol_to_word_ratio": 0.0,
        "rps_doc_frac_chars_top_2gram": 0.1,
        "ccnet_nlines": 2,
    }
    signals = [
        {
            "id": f"{shard}/{row}",
            "quality_signals": {
                **{name: [[0, 90, score]] for name, score in scores.items()},
                "rps_doc_word_count": [[0, 90, 40 + row]],
                "rps_lines_start_with_bulletpoint": [[0, 40, 0.0], [40, 90, 1.0]],
            },
        }
        for row in range(ROWS)
    ]
    write_lines(f"{root}/quality_signals/2023-14/0000/en_head.signals.json.gz", signals)
    duplicates = [{"shard_id": shard, "doc_id": f"{shard}/{row}", "digest": "0"} for row in (0, 20, 30)]
    write_parquet(f"{root}/duplicates/2023-14/0000/en_head.duplicates.parquet", duplicates)
    return 30 - 2


def slim_pajama():
    rows = texts(meta=lambda row: {"redpajama_set_name": ["RedPajamaBook", "RedPajamaC4"][row % 2]})
    for chunk in (1, 2):
        write_lines(f"slimpajama/train/chunk{chunk}/example_train_0.jsonl.zst", rows)
    return ROWS


def c4():
    write_lines("c4/en/c4-train.00000-of-01024.json.gz", texts(url=lambda _: "https://example.org"))
    return ROWS


def the_stack():
    rows = [
        {"content": f"x = {row}", "lang": ["Python", "Rust", "C"][row % 3], "max_stars_count": row if row % 2 else None}
        for row in range(ROWS)
    ]
    write_parquet("the-stack/data/python/train-00000-of-00001.parquet", rows)
    return sum(row["lang"] != "C" and (row["max_stars_count"] or 0) >= 10 for row in rows)


def nemotron():
    for quality in ("high", "low"):
        write_lines(f"nemotron-cc/quality={quality}/kind=actual/kind2=actual/part-0.jsonl.zst", texts())
    return ROWS


def pile():
    for number in range(2):
        write_lines(f"pile-deduped/{number:02}.jsonl.zst", texts())
    return 2 * ROWS


def web_dataset():
    for number in range(2):
        records = (
            (
                f"{row:05}",
                {
                    "jpg": b"\xff\xd8\0" * 99,
                    "json": json.dumps({"width": 100 * row, "caption": f"text {row}"}).encode(),
                    "txt": f"text {row}".encode(),
                },
            )
            for row in range(ROWS)
        )
        path = Path(f"captions/{number:05}.tar")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(tar_of(records))
    return 2 * sum(100 * row >= 256 for row in range(ROWS))


def mine():
    write_lines("mine.jsonl", 50 * texts())
    return 50 * ROWS


CORPORA = {
    "FineWeb, FineWeb-Edu, FineWeb-2": fineweb,
    "DCLM-baseline": dclm,
    "Dolma": dolma,
    "RedPajama-v2": red_pajama,
    "SlimPajama": slim_pajama,
    "C4": c4,
    "The Stack": the_stack,
    "Nemotron-CC": nemotron,
    "The Pile, deduplicated": pile,
    "WebDataset": web_dataset,
    "Your own": mine,
}


def test_every_section_has_a_corpus():
    assert list(SECTIONS) == list(CORPORA)


@pytest.mark.parametrize("name", CORPORA)
def test_lines_of_the_page_read_the_corpus(name, tmp_path, tokenizer_file, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tokenizer").symlink_to(tokenizer_file.parent)
    documents = CORPORA[name]()
    names = {"gm": gm}
    exec(SECTIONS[name], names)
    with iter(names["dataset"]) as iterator:
        assert sum(1 for _ in iterator) > 0
        stats = iterator.stats()
    assert (stats["documents"], stats["quarantined"]) == (documents, 0)
