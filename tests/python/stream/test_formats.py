"""The same documents give the same stream in each format; columns and files as other programs write them."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from gristmill._inspect import contents
from gristmill._state import states
from helpers import assert_same_batches


def lines(texts):
    return "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)).encode()


def write_gzip(path, texts):
    path.write_bytes(gzip.compress(lines(texts), mtime=0))


def write_zstd(path, texts):
    half = len(texts) // 2
    parts = lines(texts[:half]), lines(texts[half:])
    path.write_bytes(b"".join(pa.compress(part, codec="zstd", asbytes=True) for part in parts))


def write_parquet(path, texts):
    table = pa.table({"id": range(len(texts)), "text": texts})
    pq.write_table(table, path, compression="zstd", row_group_size=37, data_page_size=2000, write_batch_size=4)


WRITERS = {"json.gz": write_gzip, "jsonl.zst": write_zstd, "parquet": write_parquet}


def make_dataset(paths, encoder, **arguments):
    arguments = {"packing": "concat", "sequence_length": 64, "batch_size": 4, **arguments}
    return gm.PackedDataset([str(path) for path in paths], tokenizer=encoder, layout="grain", **arguments)


def write_all(folder, texts, kinds):
    """Shards of the texts, of these kinds in turn. Their names sort alike, whatever the kinds are."""
    count = 5
    paths = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        paths.append(folder / f"{number}.{kind}")
        WRITERS[kind](paths[-1], texts[number::count])
    return paths


def counts(state):
    """The numbers of a state that do not depend on the format."""
    lanes = {lane: states.cursor_numbers(cursor) for lane, cursor in state["lanes"].items()}
    return state["step"], {lane: {**numbers, "byte": 0} for lane, numbers in lanes.items()}


@pytest.mark.parametrize("packing", [{}, {"seed": 3, "shuffle_window": 20}, {"packing": "best_fit"}])
def test_same_rows_and_states_from_every_format(tmp_path, texts, encoder, packing):
    texts = texts[:150]
    streams = {}
    for kinds in [*([kind] for kind in WRITERS), list(WRITERS)]:
        folder = tmp_path / "-".join(kinds)
        folder.mkdir()
        # Lanes get shards by their sizes, which differ.
        dataset = make_dataset(write_all(folder, texts, kinds), encoder, lanes=1, epochs=2, **packing)
        iterator = iter(dataset)
        saved, batches = [iterator.get_state()], []
        for batch in iterator:
            batches.append(batch)
            saved.append(iterator.get_state())
        streams["-".join(kinds)] = batches, [counts(state) for state in saved]
        for step in range(0, len(saved), 7):
            resumed = iter(dataset)
            resumed.set_state(saved[step])
            assert_same_batches(resumed, batches[step:])
    expected, states_expected = streams.pop("json.gz")
    assert len(expected) > 20
    for found, states_found in streams.values():
        assert_same_batches(found, expected)
        assert states_found == states_expected


def documents(path, encoder, **arguments):
    """The texts of a shard, decoded, and its entries."""
    dataset = make_dataset(
        [path], encoder, packing="pad", eos=False, on_error="quarantine", max_error_rate=1.0, epochs=1, **arguments
    )
    iterator = iter(dataset)
    found = []
    for batch in iterator:
        for row, segments in zip(batch["tokens"], batch["tokens_segment_ids"], strict=True):
            if segments.any():
                found.append(encoder.decode(row[segments > 0]))
    return found, iterator.quarantine()


TYPES = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["snappy", "zstd", "gzip", "lz4", "none"])
def test_columns_of_every_string_type(tmp_path, encoder, name, version, compression):
    path = tmp_path / "a.parquet"
    texts = ["one", "two", "one", "", "thr\u00e9e"] * 9
    column = pa.array(texts, pa.string()).cast(TYPES[name])
    pq.write_table(
        pa.table({"text": column}), path, compression=compression, data_page_version=version, write_page_index=True
    )
    found, entries = documents(path, encoder)
    assert not entries
    assert found == [text for text in texts if text]


def test_nulls_and_bytes_that_are_no_text_are_located(tmp_path, encoder):
    path = tmp_path / "a.parquet"
    values = [b"a", None, b"\xff", "\u00e9".encode()]
    pq.write_table(pa.table({"text": pa.array(values, pa.binary())}), path, row_group_size=2)
    found, entries = documents(path, encoder)
    assert found == ["a", "\u00e9"]
    assert [(entry["record"], entry["byte"], entry["reason"]) for entry in entries] == [
        (1, None, 'expected a string in the column "text", found null'),
        (2, None, 'expected UTF-8 in the column "text", found byte 0xff at byte 0 of the text'),
    ]
    with pytest.raises(gm.ShardError, match=r"a\.parquet: record 1: expected a string in the column") as raised:
        list(make_dataset([path], encoder))
    assert (raised.value.record, raised.value.byte) == (1, None)


def test_nested_columns_are_named_by_their_path(tmp_path, encoder):
    path = tmp_path / "a.parquet"
    rows = [{"meta": {"body": {"text": "inner"}}, "text": 1}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert documents(path, encoder, text_field="meta.body.text")[0] == ["inner"]
    _, entries = documents(path, encoder)
    assert (
        'expected a column of strings named "text", found one of INT64 values; set text_field=' in entries[0]["reason"]
    )
    _, entries = documents(path, encoder, text_field="other")
    assert 'found the columns "meta.body.text", "text"; set text_field=' in entries[0]["reason"]


def test_page_checksum_is_verified(tmp_path, encoder):
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["first" * 20, "second" * 20]})
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(table, path, write_page_checksum=True, row_group_size=1, **options)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"second", b"Second", 1))
    found, entries = documents(path, encoder)
    assert found == ["first" * 20]
    (entry,) = entries
    assert entry["record"] == 1
    assert "its CRC-32 is another than in its header (the page at byte " in entry["reason"]


def test_page_that_is_too_large_is_refused_with_advice(tmp_path, encoder):
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["x" * 2**20] * 200})
    pq.write_table(table, path, use_dictionary=False, compression="zstd")
    _, (entry,) = documents(path, encoder)
    assert entry["record"] == 0
    assert "expected a page of at most 135266304 bytes, found one of 209716" in entry["reason"]
    assert "write the file again with smaller pages (pyarrow: write_batch_size=16)" in entry["reason"]
    pq.write_table(table, path, use_dictionary=False, compression="zstd", write_batch_size=16)
    assert len(documents(path, encoder, truncation="right")[0]) == 200


def test_inspect_shows_the_columns_of_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    rows = [
        {"text": "ab", "n": i, "f": 0.5, "ok": True, "none": None, "list": [1, 2], "nested": {"a": "x"}, "raw": b"\xff"}
        for i in range(20)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=6)
    found = contents.inspect(path, records=15)
    assert (found["kind"], found["format"], found["records_read"], found["whole_file_read"]) == (
        "shard", "parquet", 15, False,
    )  # fmt: skip
    kinds = {key: next(iter(seen["types"])) for key, seen in found["keys"].items()}
    assert kinds == {
        "text": "string", "n": "number", "f": "number", "ok": "boolean", "none": "null", "list": "array",
        "nested": "object", "raw": "string",
    }  # fmt: skip
    assert 'Most text is under text_field="text"' in contents.describe(found).replace("'", '"')
