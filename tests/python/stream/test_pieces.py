"""`split_bytes=`: few shards in many lanes. tests/rust has the property tests; here is what a user sees."""

import gzip
import itertools
import json
import os
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from gristmill._cli import main
from gristmill._inspect.locate import locate, run_from_start
from gristmill._shards.address import Address
from helpers import assert_same_batches, tar_of


def lines(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def write_plain(path, texts):
    path.write_bytes(lines(texts))


def write_zstd(path, texts):
    parts = (lines(texts[start : start + 9]) for start in range(0, len(texts), 9))
    path.write_bytes(b"".join(pa.compress(part, codec="zstd", asbytes=True) for part in parts))


def write_gzip(path, texts):
    path.write_bytes(gzip.compress(lines(texts), 1, mtime=0))


def write_parquet(path, texts):
    pq.write_table(pa.table({"text": texts}), path, compression="zstd", row_group_size=9)


def write_arrow(path, texts):
    table = pa.table({"text": texts})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=9)


def write_tar(path, texts):
    path.write_bytes(tar_of((str(i), {"text": text.encode()}) for i, text in enumerate(texts)))


WRITERS = {
    "jsonl": write_plain,
    "jsonl.zst": write_zstd,
    "json.gz": write_gzip,
    "parquet": write_parquet,
    "arrow": write_arrow,
    "tar": write_tar,
}


def make_dataset(path, encoder, **arguments):
    settings = {"sequence_length": 64, "batch_size": 8, "lanes": 8, "layout": "grain", "split_bytes": 3000}
    return gm.PackedDataset(path, tokenizer=encoder, **{**settings, **arguments})


@pytest.fixture(params=WRITERS)
def shard(request, tmp_path, texts):
    path = tmp_path / f"all.{request.param}"
    WRITERS[request.param](path, texts[:300])
    return path


def test_one_shard_in_many_lanes_has_each_document_once(shard, encoder, texts):
    dataset = make_dataset(shard, encoder, packing="pad", eos=False, sequence_length=16_384, seed=1, epochs=2)
    found = []
    for batch in dataset:
        for tokens, segments in zip(batch["tokens"], batch["tokens_segment_ids"], strict=True):
            if segments.any():
                found.append(encoder.decode(tokens[segments > 0]))
    expected = [text for text in texts[:300] if text]
    assert sorted(text for text in found if text) == sorted(expected * 2)
    for epoch in (0, 1):
        dealt = [name for lane in dataset.plan(epoch) for name in lane]
        assert sorted(dealt) == sorted(piece.name for piece in dataset.pieces)
        assert all(dataset.plan(epoch))
    assert dataset.plan(0) != dataset.plan(1)


def test_same_stream_on_any_hosts_and_from_any_state(shard, encoder):
    arguments = {"seed": 5, "shuffle_window": 11, "epochs": 2}
    iterator = iter(make_dataset(shard, encoder, threads=1, **arguments))
    saved, batches = [iterator.get_state()], []
    for batch in iterator:
        batches.append(batch)
        saved.append(iterator.get_state())
    assert len(batches) > 50
    for step in range(0, len(saved), 11):
        resumed = iter(make_dataset(shard, encoder, threads=3, prefetch=2, **arguments))
        resumed.set_state(saved[step])
        assert_same_batches(resumed, batches[step:])
    for host in range(4):
        own = [{name: array[2 * host : 2 * host + 2] for name, array in batch.items()} for batch in batches]
        found = list(make_dataset(shard, encoder, shard_index=host, shard_count=4, **arguments))
        assert_same_batches(found, own[: len(found)])
    other = iter(make_dataset(shard, encoder, **{**arguments, "split_bytes": 2999}))
    with pytest.raises(gm.StateError, match="split_bytes was 3000 and is 2999"):
        other.set_state(saved[3])


def test_pieces_are_dealt_by_size_alone(tmp_path, encoder, texts):
    path = tmp_path / "a.jsonl"
    write_plain(path, texts[:100])
    write_plain(tmp_path / "b.jsonl", texts[100:102])
    size = path.stat().st_size
    dataset = make_dataset(str(tmp_path / "*.jsonl"), encoder, split_bytes=size // 3 - 1, lanes=None)
    borders = [size * number // 4 for number in range(5)]
    assert [tuple(piece)[:3] for piece in dataset.pieces[:-1]] == [
        (str(path), start, end) for start, end in itertools.pairwise(borders)
    ]
    assert dataset.pieces[0].name == f"{path}[0:{borders[1]}]"
    assert dataset.pieces[-1].name == str(tmp_path / "b.jsonl")
    assert dataset.lanes == 4
    assert f"split_bytes={size // 3 - 1}" in dataset.fingerprint


def test_large_enough_pieces_change_nothing(tmp_path, encoder, texts):
    path = tmp_path / "a.jsonl"
    write_plain(path, texts[:50])
    whole = make_dataset(path, encoder, split_bytes=0, lanes=1)
    assert "split_bytes" not in whole.fingerprint
    assert_same_batches(make_dataset(path, encoder, split_bytes=path.stat().st_size, lanes=1), list(whole))


def test_provenance_names_the_piece(shard, encoder, texts):
    dataset = make_dataset(shard, encoder, provenance=True, packing="best_fit")
    whole = make_dataset(shard, encoder, provenance=True, packing="best_fit", split_bytes=0, lanes=1)
    rows = []
    for batch in dataset:
        for row, tokens in zip(batch["provenance"], batch["tokens"], strict=True):
            start = 0
            for piece, record, offset, length in row[row[:, 3] > 0].tolist():
                rows.append((piece, record, offset, tokens[start : start + length].tolist()))
                start += length
    if shard.suffix in (".parquet", ".arrow", ".gz", ".tar"):
        # Records count from the start of the file.
        for _, record, offset, tokens in rows:
            ids = [*encoder.encode(texts[record]).tolist(), encoder.eos_id]
            assert ids[offset : offset + len(tokens)] == tokens
    else:
        first = {}
        count = 0
        for piece in range(len(dataset.pieces)):
            first[piece] = count
            count += 1 + max((record for other, record, *_ in rows if other == piece), default=-1)
        for piece, record, offset, tokens in rows:
            ids = [*encoder.encode(texts[first[piece] + record]).tolist(), encoder.eos_id]
            assert ids[offset : offset + len(tokens)] == tokens
    assert len(rows) >= 300
    assert len(list(whole)) > 0


def test_bad_records_of_a_piece_are_located(tmp_path, encoder, texts):
    path = tmp_path / "a.jsonl"
    data = lines(texts[:20]) + b'{"text": 1}\n' + lines(texts[20:40])
    path.write_bytes(data)
    at = data.index(b'{"text": 1}')
    dataset = make_dataset(
        path, encoder, lanes=4, on_error="quarantine", max_error_rate=1.0, split_bytes=len(data) // 4
    )
    iterator = iter(dataset)
    for _ in iterator:
        pass
    (entry,) = iterator.quarantine()
    piece = next(piece for piece in dataset.pieces if piece.start <= at < piece.end)
    assert (entry["shard"], entry["byte"]) == (piece.name, at)
    assert entry["record"] == data[:at].count(b"\n") - data[: piece.start].count(b"\n") - (piece.start > 0)
    stats = iterator.stats()
    assert (stats["documents"], stats["quarantined"]) == (40, 1)
    with pytest.raises(gm.ShardError, match=rf"a.jsonl\[{piece.start}:{piece.end}\]: record"):
        list(make_dataset(path, encoder, lanes=4, split_bytes=len(data) // 4))


def test_a_row_is_found_in_its_piece(tmp_path, encoder, texts):
    path = tmp_path / "a.jsonl"
    write_plain(path, texts[:100])
    dataset = make_dataset(path, encoder)
    arguments = {"sequence_length": 64, "batch_size": 8, "lanes": 8, "split_bytes": 3000}
    found = locate(run_from_start(Address.of(str(path)), arguments, encoder), row=5, step=0)
    names = {piece.name for piece in dataset.pieces}
    assert {segment["shard"] for segment in found["segments"]} <= names


def test_too_few_shards_for_the_lanes(tmp_path, encoder, texts):
    path = tmp_path / "a.jsonl"
    write_plain(path, texts[:100])
    size = path.stat().st_size
    with pytest.raises(gm.ArgumentError, match=f"expected at most 1, .*; use 1, or split_bytes={size // 8}, which"):
        make_dataset(path, encoder, split_bytes=0)
    assert make_dataset(path, encoder, split_bytes=size // 8).lanes == 8
    with pytest.raises(gm.ArgumentError, match=r"expected at most 1048576 pieces, found .*; use at least"):
        gm.PackedDataset(gm.Manifest([str(path)], [2**50]), tokenizer=encoder, split_bytes=2**20)


def test_shards_that_are_read_from_the_start_are_refused(shards, encoder, tmp_path, texts):
    path = tmp_path / "one.jsonl.zst"
    path.write_bytes(pa.compress(lines(texts[:100]), codec="zstd", asbytes=True))
    dataset = make_dataset(path, encoder, split_bytes=path.stat().st_size // 2, lanes=2, on_error="quarantine")
    with pytest.raises(gm.ArgumentError, match=r"divides .*one.jsonl.zst into pieces, but it is one Zstandard frame"):
        list(dataset)


def make_blocks(path):
    """A gzip shard of one member with many blocks, its texts, and the arguments for pieces of it."""
    generator = np.random.default_rng(1)
    texts = [" ".join(map(str, numbers)) for numbers in generator.integers(0, 10**6, (3000, 20))]
    path.write_bytes(gzip.compress(lines(texts), 6, mtime=0))
    return texts, {"split_bytes": path.stat().st_size // 6, "lanes": 4, "sequence_length": 512}


def test_index_changes_no_batch_and_is_asked_for(tmp_path, encoder, capsys, caplog):
    path = tmp_path / "a.json.gz"
    texts, arguments = make_blocks(path)
    without = list(make_dataset(path, encoder, provenance=True, **arguments))
    assert "divided and have no index: 1 of 1;" in caplog.text
    assert len({int(row[0]) for batch in without for row in batch["provenance"].reshape(-1, 4) if row[3]}) > 4
    caplog.clear()
    assert main.run(["index", str(tmp_path / "*")]) == 0
    index = tmp_path / ".a.json.gz.gristmill-index"
    assert capsys.readouterr().out == f"{index}: {index.stat().st_size:,} bytes\n"
    assert main.run(["index", str(path)]) == 0
    assert capsys.readouterr().out.endswith("bytes, was there\n")
    assert len(gm.Manifest.find(str(tmp_path / "*"))) == 1
    dataset = make_dataset(path, encoder, provenance=True, **arguments)
    assert not caplog.text
    assert_same_batches(dataset, without)
    data = gzip.decompress(path.read_bytes())
    records = {int(row[1]) for batch in without for row in batch["provenance"].reshape(-1, 4) if row[3]}
    assert records == set(range(len(texts)))
    assert data.count(b"\n") == len(texts)
    index.unlink()
    os.mkfifo(index)
    with pytest.raises(gm.ArgumentError, match="it is not a regular file"):
        list(make_dataset(path, encoder))
    index.unlink()
    index.write_bytes(b"something else")
    with pytest.raises(gm.ArgumentError, match="it is not the index of this file; make it again with gristmill index"):
        list(make_dataset(path, encoder, **arguments))
    assert main.run(["index", str(path)]) == 0
    assert_same_batches(dataset, without)


def test_indexes_in_a_folder_of_their_own(tmp_path, encoder, monkeypatch, caplog):
    path = tmp_path / "data" / "a.json.gz"
    path.parent.mkdir()
    _, arguments = make_blocks(path)
    without = list(make_dataset(path, encoder, **arguments))
    folder = tmp_path / "indexes"
    monkeypatch.setenv("GRISTMILL_INDEX_FOLDER", str(folder))
    assert main.run(["index", str(path)]) == 0
    index = folder / path.parent.relative_to("/") / ".a.json.gz.gristmill-index"
    assert index.exists()
    assert [found.name for found in path.parent.iterdir()] == ["a.json.gz"]
    caplog.clear()
    assert_same_batches(make_dataset(path, encoder, **arguments), without)
    assert not caplog.text
    index.write_bytes(b"something else")
    with pytest.raises(gm.ArgumentError, match="it is not the index of this file"):
        list(make_dataset(path, encoder, **arguments))


def test_index_that_cannot_be_written_names_the_variable(tmp_path, monkeypatch, capsys):
    path = tmp_path / "a.json.gz"
    make_blocks(path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRISTMILL_INDEX_FOLDER", str(tmp_path / "file"))
    assert main.run(["index", str(path)]) == 1
    assert "name another folder for indexes in GRISTMILL_INDEX_FOLDER" in capsys.readouterr().err


def test_damaged_shards_have_no_index(tmp_path, capsys):
    path = tmp_path / "a.json.gz"
    make_blocks(path)
    path.write_bytes(path.read_bytes()[:-9])
    assert main.run(["index", str(path)]) == 1
    assert "a.json.gz: expected more gzip data, found the end of the file" in capsys.readouterr().err
    assert [found.name for found in tmp_path.iterdir()] == ["a.json.gz"]


def test_pieces_without_a_record(tmp_path, encoder):
    path = tmp_path / "a.jsonl"
    long = "word " * 5000
    write_plain(path, [long, "short"])
    found = list(make_dataset(path, encoder, packing="pad", split_bytes=1000, sequence_length=2**15))
    assert sum(int(np.count_nonzero(batch["tokens_segment_ids"].any(axis=1))) for batch in found) == 2


def test_shards_with_sidecars_are_not_divided(tmp_path, encoder, texts):
    path = tmp_path / "documents" / "a.jsonl"
    path.parent.mkdir()
    (tmp_path / "signals").mkdir()
    write_plain(path, texts[:100])
    write_plain(tmp_path / "signals" / "a.jsonl", texts[:100])
    arguments = {"sidecars": {"signals": gm.Sidecar("documents/", "signals/")}, "keep": "signals.text != ''"}
    with pytest.raises(gm.ArgumentError, match="shards cannot be divided with sidecars="):
        make_dataset(path, encoder, **arguments)
    assert list(make_dataset(path, encoder, split_bytes=2**20, lanes=1, **arguments))


@pytest.mark.parametrize("rows", [1000, 50])
def test_parquet_with_fewer_row_groups_than_pieces_is_warned_of(tmp_path, encoder, caplog, rows):
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"text {number}" for number in range(1000)]})
    pq.write_table(table, path, row_group_size=rows, compression="none", use_dictionary=False)
    size = path.stat().st_size
    gm.PackedDataset(str(path), tokenizer=encoder, sequence_length=16, batch_size=4, lanes=4, split_bytes=size // 4 + 1)
    expected = (
        "a.parquet has 1 row group, so that 3 of its 4 pieces have no rows, and lanes without others deliver padding"
    )
    assert (expected in caplog.text) == (rows == 1000)


@pytest.mark.parametrize("parts", [1, 2, 40])
@pytest.mark.parametrize("kind", ["arrow", "zst"])
def test_few_record_batches_and_frames_are_warned_of(tmp_path, encoder, caplog, kind, parts):
    path = tmp_path / f"a.{kind}"
    rng = random.Random(0)
    table = pa.table({"text": [f"{rng.getrandbits(200):x}" for _ in range(2000)]})
    if kind == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=2000 // parts)
    else:
        lines = [f'{{"text": "{text}"}}\n' for text in table["text"].to_pylist()]
        chunks = ("".join(lines[at : at + 2000 // parts]) for at in range(0, 2000, 2000 // parts))
        path.write_bytes(b"".join(pa.compress(chunk.encode(), codec="zstd", asbytes=True) for chunk in chunks))
    split_bytes = path.stat().st_size // 4 + 1
    gm.PackedDataset(str(path), tokenizer=encoder, sequence_length=16, batch_size=4, lanes=4, split_bytes=split_bytes)
    what = {"arrow": ("record batch", "record batches"), "zst": ("frame", "frames")}[kind][parts > 1]
    expected = f"a.{kind} has {parts} {what}, so that {4 - parts} of its 4 pieces have no rows"
    # One frame cannot be divided at all, which is an error.
    assert (expected in caplog.text) == (parts < 4 and (kind, parts) != ("zst", 1))
