"""`split_bytes=`: few shards in many lanes. tests/rust has the property tests; here is what a user sees."""

import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from gristmill._inspect.locate import locate_from_start
from helpers import assert_same_batches


def lines(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def write_plain(path, texts):
    path.write_bytes(lines(texts))


def write_zstd(path, texts):
    parts = (lines(texts[start : start + 9]) for start in range(0, len(texts), 9))
    path.write_bytes(b"".join(pa.compress(part, codec="zstd", asbytes=True) for part in parts))


def write_parquet(path, texts):
    pq.write_table(pa.table({"text": texts}), path, compression="zstd", row_group_size=9)


def write_arrow(path, texts):
    table = pa.table({"text": texts})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=9)


WRITERS = {"jsonl": write_plain, "jsonl.zst": write_zstd, "parquet": write_parquet, "arrow": write_arrow}


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
    if shard.suffix in (".parquet", ".arrow"):
        # Rows count from the start of the file.
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
    found = locate_from_start(str(path), arguments, encoder, row=5, step=0)
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
