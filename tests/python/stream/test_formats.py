"""The same documents give the same stream in each format; columns and files as other programs write them."""

import functools
import gzip
import itertools
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from gristmill._inspect import contents
from gristmill._state import states
from helpers import assert_same_batches, tar_of


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


def write_arrow(path, texts):
    table = pa.table({"id": range(len(texts)), "text": pa.array(texts, pa.large_string())})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=37)


def write_tar(path, texts):
    samples = ((str(i), {"jpg": b"\xff\xd8\0" * i, "text": text.encode()}) for i, text in enumerate(texts))
    path.write_bytes(tar_of(samples))


WRITERS = {
    "json.gz": write_gzip,
    "jsonl.zst": write_zstd,
    "parquet": write_parquet,
    "arrow": write_arrow,
    "tar": write_tar,
}


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


def ways_to_write():
    """Each way to write a file of texts: a name, and a function of path and texts."""
    codecs = "snappy", "zstd", "gzip", "lz4", "none"
    for codec, has_dictionary, version in itertools.product(codecs, (False, True), ("1.0", "2.0")):
        options = {"compression": codec, "use_dictionary": has_dictionary, "data_page_version": version}
        rows = {"row_group_size": 10**6, "data_page_size": 500, "write_batch_size": 2}
        if codec in ("zstd", "none"):
            rows = {"row_group_size": 1}
        options = {**options, **rows, "write_page_index": version == "2.0", "write_page_checksum": has_dictionary}
        yield f"{codec} {has_dictionary} {version} parquet", functools.partial(write_as_parquet, **options)
    for name in ("large_string", "string_view", "binary", "dictionary"):
        yield f"{name} parquet", functools.partial(write_as_parquet, kind=TYPES[name])
    for codec, new in itertools.product((None, "zstd", "lz4"), (pa.ipc.new_stream, pa.ipc.new_file)):
        yield f"{codec} {new.__name__} arrow", functools.partial(write_as_arrow, compression=codec, new=new)
    for name in TYPES:
        yield f"{name} arrow", functools.partial(write_as_arrow, kind=TYPES[name], new=pa.ipc.new_stream)
    yield "zst", write_zstd


def write_as_parquet(path, texts, kind=None, **options):
    column = pa.array(texts, pa.string()).cast(kind or pa.string())
    pq.write_table(pa.table({"id": range(len(texts)), "text": column}), path, **options)


def write_as_arrow(path, texts, new, kind=None, compression=None):
    column = pa.array(texts, pa.string()).cast(kind or pa.string())
    table = pa.table({"text": column, "id": range(len(texts))})
    with new(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=41)


@pytest.mark.slow
def test_same_rows_and_states_however_a_file_is_written(tmp_path, texts, encoder):
    texts = texts[:100]
    expected = None
    for name, write in [("gz", write_gzip), *ways_to_write()]:
        path = tmp_path / "shard"
        write(path, texts)
        dataset = make_dataset([path], encoder, lanes=1, epochs=1)
        iterator = iter(dataset)
        saved, batches = [iterator.get_state()], []
        for batch in iterator:
            batches.append(batch)
            saved.append(iterator.get_state())
        numbers = [counts(state) for state in saved]
        expected = expected or (batches, numbers)
        assert numbers == expected[1], name
        assert_same_batches(batches, expected[0])
        middle = len(saved) // 2
        resumed = iter(dataset)
        resumed.set_state(saved[middle])
        assert_same_batches(resumed, batches[middle:])


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


@pytest.mark.parametrize("name", [*TYPES, "binary_view"])
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("kind", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow_columns_of_every_string_type(tmp_path, encoder, name, compression, kind):
    path = tmp_path / "a.arrow"
    texts = ["one", "two", "one", "", "thr\u00e9e that is longer than a view"] * 9
    column = pa.array(texts, pa.string()).cast({**TYPES, "binary_view": pa.binary_view()}[name])
    table = pa.table({"other": pa.array([{"a": [text]} for text in texts]), "text": column})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with kind(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=7)
    found, entries = documents(path, encoder)
    assert not entries
    assert found == [text for text in texts if text]


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


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "lz4"])
def test_page_that_is_too_large_is_refused_with_advice(tmp_path, encoder, codec):
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["x" * 2**20] * 200})
    pq.write_table(table, path, use_dictionary=False, compression=codec)
    _, (entry,) = documents(path, encoder)
    assert entry["record"] == 0
    assert "expected a page of at most 135266304 bytes, found one of 209716" in entry["reason"]
    assert "write the file again with smaller pages (pyarrow: write_batch_size=16)" in entry["reason"]
    pq.write_table(table, path, use_dictionary=False, compression=codec, write_batch_size=16)
    assert len(documents(path, encoder, truncation="right")[0]) == 200


def test_inspect_shows_columns(tmp_path):
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
    types = {column["name"]: column["type"] for column in found["columns"]}
    assert types == {
        "text": "string", "n": "int64", "f": "float64", "ok": "bool", "none": "int32", "list": "list<int64>",
        "nested": "struct<a: string>", "raw": "binary",
    }  # fmt: skip
    assert found["row_groups"] == [6, 6, 6, 2]
    described = contents.describe(found)
    assert "parquet, 20 rows in 4 row groups of at most 6" in described
    assert "struct<a: string>" in described
    table = pq.read_table(path)
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    arrow = contents.inspect(tmp_path / "a.arrow", records=15)
    assert (arrow["format"], arrow["keys"], arrow["row_groups"]) == ("arrow", found["keys"], [])
    assert arrow["columns"] == [
        {**column, "type": "null"} if column["name"] == "none" else column for column in found["columns"]
    ]
    assert 'Most text is under text_field="text"' in contents.describe(found).replace("'", '"')


def test_saved_dataset_is_a_folder_of_shards(tmp_path, texts, encoder):
    datasets = pytest.importorskip("datasets")
    folder = tmp_path / "saved"
    rows = [{"text": text, "meta": {"source": "docs"}} for text in texts[:60]]
    datasets.Dataset.from_list(rows).save_to_disk(folder, num_shards=3)
    # The files that `map` leaves in the folder are no part of the data set.
    (folder / "cache-0123456789abcdef.arrow").write_bytes((folder / "data-00000-of-00003.arrow").read_bytes())
    manifest = gm.Manifest.find(folder)
    assert [path.rsplit("/", 1)[1] for path in manifest.paths] == [f"data-0000{i}-of-00003.arrow" for i in range(3)]
    (folder / "cache-0123456789abcdef.arrow").unlink()
    for pattern in (folder / "*", folder / "*.arrow", tmp_path / "**" / "*"):
        assert gm.Manifest.find(str(pattern)).paths == manifest.paths
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(texts[:60]))
    arguments = {"tokenizer": encoder, "sequence_length": 64, "lanes": 1, "batch_size": 4}
    found = [*gm.PackedDataset(folder, keep="meta.source == 'docs'", **arguments)]
    assert_same_batches(found, [*gm.PackedDataset(path, **arguments)])
    # A state.json without Arrow files beside it is a file like any other.
    (tmp_path / "state.json").write_text("{}")
    assert gm.Manifest.find(tmp_path / "*.json").paths == (str(tmp_path / "state.json"),)


def test_saved_splits_are_named(tmp_path):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": ["a"]})
    datasets.DatasetDict(train=data, test=data).save_to_disk(tmp_path / "all")
    with pytest.raises(
        gm.MissingShardError, match=r"holds several splits: name one of them: '.*all/train', '.*all/test'"
    ):
        gm.Manifest.find(tmp_path / "all")
    assert len(gm.Manifest.find(tmp_path / "all" / "train")) == 1


def test_damaged_list_of_a_saved_dataset_is_reported(tmp_path):
    (tmp_path / "state.json").write_text('{"_data_files": [{"name": "a"}]}')
    with pytest.raises(gm.MissingShardError, match="does not list the files of a saved data set"):
        gm.Manifest.find(tmp_path)
    (tmp_path / "state.json").write_text('{"_data_files": [')
    with pytest.raises(gm.MissingShardError, match="cannot read"):
        gm.Manifest.find(tmp_path)


def test_batch_that_is_too_large_is_refused_with_advice(tmp_path, encoder):
    path = tmp_path / "a.arrow"
    table = pa.table({"text": ["x" * 2**20] * 200})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(path, table.schema, options=options) as writer:
        writer.write_table(table)
    _, (entry,) = documents(path, encoder)
    assert entry["record"] == 0
    assert "expected the columns of a record batch to have at most 135266304 bytes, found more" in entry["reason"]
    assert "write the file again with fewer rows in each (pyarrow: max_chunksize=)" in entry["reason"]
    with pa.ipc.new_stream(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=100)
    assert len(documents(path, encoder, truncation="right")[0]) == 200


def test_dotted_text_field_leads_into_objects_of_both_formats(tmp_path, encoder):
    rows = [{"doc": {"text": f"text {number}"}} for number in range(20)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "b.parquet")
    settings = {"tokenizer": encoder, "text_field": "doc.text", "sequence_length": 64, "eos": False}
    for keep in (None, "doc.text != 'text 3'"):
        paths = (tmp_path / "a.jsonl", tmp_path / "b.parquet")
        lines, columns = (list(gm.PackedDataset(path, keep=keep, **settings)) for path in paths)
        assert_same_batches(lines, columns)
