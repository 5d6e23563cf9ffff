"""Filters over the names of folders and over JSON in strings, and filters that look elsewhere than where values are."""

import json
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from gristmill._shards.hive import with_folders
from helpers import assert_same_batches
from object_store import Server


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def parquet(*records):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([*records]), sink)
    return sink.getvalue().to_pybytes()


def arrow(*records):
    table = pa.Table.from_pylist([*records])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


FORMATS = [("jsonl", lines), ("parquet", parquet), ("arrow", arrow)]
FOLDERS = {
    "lang=en/year=2023": "a",
    "lang=de/year=2024": "b",
    "lang=en/year=2024": "c",
    "lang=__HIVE_DEFAULT_PARTITION__/year=2025": "d",
    "lang=a%3Ab/year=10": "e",
}


def dataset(shards, encoder, **arguments):
    given = {"sequence_length": 8, "packing": "pad", "batch_size": 1, "eos": False, "layout": "grain", **arguments}
    return gm.PackedDataset(shards, tokenizer=encoder, **given)


def texts(shards, encoder, **arguments):
    names = ("tokens", "tokens_segment_ids")
    rows = [row for batch in dataset(shards, encoder, **arguments) for row in zip(*map(batch.get, names), strict=True)]
    found = [encoder.decode(tokens[segments > 0].tolist()) for tokens, segments in rows]
    return sorted(text for text in found if text)


@pytest.fixture(params=FORMATS, ids=[name for name, _ in FORMATS])
def folder(request, tmp_path):
    ending, write = request.param
    for name, text in FOLDERS.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / f"part.{ending}").write_bytes(write({"text": text, "n": 1}, {"text": text, "n": 2}))
    return tmp_path


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        ("hive('lang') == 'en'", "aacc"),
        ("hive('lang') == 'en' and n > 1", "ac"),
        ("hive('year') >= 2024", "bbccdd"),
        ("hive('year') == '2024' and hive('lang') in ('de', 'fr')", "bb"),
        ("hive('year') in (2023, 10)", "aaee"),
        ("hive('lang') is None", "dd"),
        ("hive('lang') == 'a:b' and 'b' in hive('lang')", "ee"),
        ("hive('year') + n > 2025", "cbdd"),
    ],
)
def test_folders_have_values(folder, encoder, keep, expected):
    assert texts(f"{folder}/*/*/part.*", encoder, keep=keep) == sorted(expected)
    made = dataset(f"{folder}/*/*/part.*", encoder, keep=keep)
    with iter(made) as iterator:
        for _ in iterator:
            pass
        stats = iterator.stats()
    assert stats["documents"] + stats["filtered"] == stats["records"] == 10
    assert_same_batches(pickle.loads(pickle.dumps(made)), made)


def test_folders_of_stores_and_relative_paths(folder, encoder, monkeypatch):
    objects = {f"bucket/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("part.*")}
    with Server(objects) as server:
        for scheme in ("gs", "gcs", "s3"):
            found = texts(
                f"{scheme}://bucket/*/*/part.*", encoder, keep="hive('lang') == 'en'", storage_options=server.options()
            )
            assert found == ["a", "a", "c", "c"]
    monkeypatch.chdir(folder)
    assert texts("lang=*/*/part.*", encoder, keep="hive('lang') == 'de'") == ["b", "b"]


def test_pieces_and_prompts_have_folders(tmp_path, encoder):
    (tmp_path / "k=7").mkdir()
    (tmp_path / "k=7" / "a.jsonl").write_bytes(lines(*({"text": "a"} for _ in range(100))))
    (tmp_path / "k=8").mkdir()
    (tmp_path / "k=8" / "a.jsonl").write_bytes(lines({"text": "b"}))
    assert (
        texts(f"{tmp_path}/*/*.jsonl", encoder, keep="hive('k') == 7", split_bytes=200, lanes=2, batch_size=2)
        == ["a"] * 100
    )
    prompts = gm.PromptDataset(
        f"{tmp_path}/*/*.jsonl", tokenizer=encoder, prompt=gm.Text("text"), layout="ragged", batch_size=1,
        keep="hive('k') > 7",
    )  # fmt: skip
    assert len(prompts) == 1


def test_key_that_no_folder_has_is_an_error(folder, encoder):
    message = r"keep=.*hive\('lan'\): expected shards in folders lan=\.\.\., found lang=\.\.\., year=\.\.\."
    with pytest.raises(gm.ArgumentError, match=message):
        dataset(f"{folder}/*/*/part.*", encoder, keep="hive('lan') == 'en'")
    with pytest.raises(gm.ArgumentError, match=message):
        gm.PromptDataset(
            f"{folder}/*/*/part.*", tokenizer=encoder, prompt=gm.Text("text"), layout="ragged", batch_size=1,
            keep="hive('lan') == 'en'",
        )  # fmt: skip


def test_folders_around_all_shards_are_in_the_fingerprint(tmp_path, encoder):
    fingerprints = set()
    for root in ("x/lang=en", "y/lang=en", "y/lang=de", "z"):
        for day in ("day=1", "day=2"):
            (tmp_path / root / day).mkdir(parents=True)
            (tmp_path / root / day / "a.jsonl").write_bytes(lines({"text": "a"}))
        keep = "hive('day') == 1 and hive('lang') == 'en'" if root != "z" else "hive('day') == 1"
        made = dataset(f"{tmp_path}/{root}/*/a.jsonl", encoder, keep=keep)
        fingerprints.add(made.fingerprint)
        assert ("%23%20lang%3Den" in made.fingerprint) == (root in ("x/lang=en", "y/lang=en"))
        # An expression as a fingerprint has it is one again.
        assert (
            dataset(f"{tmp_path}/{root}/*/a.jsonl", encoder, keep=f"{keep}  # lang=en").fingerprint == made.fingerprint
        )
    assert len(fingerprints) == 3


def test_filters_without_folders_stay_as_they_are(folder):
    keep = gm._filter.compiler.compile_filter("keep", "a > 1")
    assert with_folders(keep, gm.Manifest.find(f"{folder}/*/*/part.*")) is keep


@pytest.mark.parametrize(("ending", "write"), FORMATS, ids=[name for name, _ in FORMATS])
def test_filter_that_looks_into_a_string_is_an_error_if_it_keeps_nothing(tmp_path, encoder, ending, write):
    shard = tmp_path / f"a.{ending}"
    shard.write_bytes(write(*({"text": "a", "meta": json.dumps({"lang": "en", "n": n})} for n in range(3))))
    assert texts(shard, encoder, keep="json(meta).n > 0") == ["a", "a"]
    message = r"it keeps no record: meta is a string that holds JSON: write json\(meta\)"
    for epochs in (1, None):
        with pytest.raises(gm.ArgumentError, match=message):
            texts(shard, encoder, keep="meta.lang == 'en'", epochs=epochs)
    with pytest.raises(gm.ArgumentError, match=message):
        gm.PromptDataset(
            str(shard), tokenizer=encoder, prompt=gm.Text("text"), layout="ragged", batch_size=1,
            keep="meta.lang == 'en'",
        )  # fmt: skip
    # It keeps some, or has another reason to keep none.
    assert texts(shard, encoder, keep="meta.lang == 'en' or text == 'a'") == ["a"] * 3
    assert texts(shard, encoder, keep="json(meta).lang == 'fr'") == []
    assert texts(shard, encoder, keep="meta == 'x'") == []


def test_filter_that_looks_for_a_folder_in_records_is_an_error_if_it_keeps_nothing(folder, encoder):
    message = r"it keeps no record: lang is a folder of '.*' and no key of its records: write hive\('lang'\)"
    with pytest.raises(gm.ArgumentError, match=message):
        texts(f"{folder}/*/*/part.*", encoder, keep="lang == 'en'")
    assert texts(f"{folder}/*/*/part.*", encoder, keep="n > 5") == []
    (folder / "0.jsonl").write_bytes(lines({"text": "in no folder"}))
    with pytest.raises(gm.ArgumentError, match=message):
        texts([f"{folder}/0.jsonl", f"{folder}/*/*/part.*"], encoder, keep="lang == 'en'")
