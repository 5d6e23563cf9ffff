"""Columns of all types: filters and values are those of the same records as JSON lines."""

import datetime
import decimal
import gzip
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from gristmill import _core
from gristmill._state import states
from helpers import assert_same_batches

UTC = datetime.UTC


def records(texts):
    """Records as RedPajama-v2 and others have them: signals, structs, lists, nulls, numbers of all types, times."""
    rows = []
    for i, text in enumerate(texts):
        some = i % 7 != 3
        rows.append(
            {
                "id": f"2023-14/0000/en_head.json.gz/{i}",
                "text": text if i % 50 != 49 else None,
                "language": ["en", "de", "fr"][i % 3] if i % 11 else None,
                "score": i % 23 / 4 if some else None,
                "count": i % 19 - 9,
                "is_html": [True, False, None][i % 3],
                "signals": {
                    "rps_doc_word_count": [[0, len(text), float(i % 97)]],
                    "rps_lines_num_words": [[j, j + 1, float(j) if j % 5 else None] for j in range(i % 9)]
                    if some
                    else None,
                    "rps_doc_ut1_blacklist": [[0, len(text), None]],
                },
                "tags": ["news", None, f"tag {i % 4}"][: i % 4],
                "messages": [{"role": "user", "content": text[:9]}, {"role": "assistant", "content": None}][: i % 3],
                "date": datetime.datetime(2013 + i % 12, 5, 18, 5, 48, i % 60, i % 2 * 500, tzinfo=UTC),
                "price": decimal.Decimal(i % 31) / 4,
            }
        )
    return rows


SPAN = pa.list_(pa.list_(pa.float64()))
SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "text": pa.large_string(),
        "language": pa.dictionary(pa.int32(), pa.string()),
        "score": pa.float32(),
        "count": pa.int8(),
        "is_html": pa.bool_(),
        "signals": pa.struct({"rps_doc_word_count": SPAN, "rps_lines_num_words": SPAN, "rps_doc_ut1_blacklist": SPAN}),
        "tags": pa.list_(pa.string()),
        "messages": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "date": pa.timestamp("us", tz="UTC"),
        "price": pa.decimal128(9, 2),
    }
)


def as_json(value):
    return value.isoformat() if isinstance(value, datetime.datetime) else float(value)


def write_gzip(path, rows):
    path.write_bytes(gzip.compress("".join(json.dumps(row, default=as_json) + "\n" for row in rows).encode(), mtime=0))


def write_parquet(path, rows, **options):
    options = {"row_group_size": 61, "data_page_size": 1500, "write_batch_size": 3, "compression": "zstd", **options}
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, **options)


def write_arrow(path, rows, new=pa.ipc.new_stream, batch=61, **options):
    table = pa.Table.from_pylist(rows, SCHEMA)
    with new(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=batch)


FILTERS = [
    "score >= 3",
    "not score > 3",
    "language in ('en', 'fr') and count != 0",
    "language is None",
    "is_html",
    "signals.rps_doc_word_count[0][2] >= 40 and signals.rps_doc_ut1_blacklist[0][2] is None",
    "sum(signals.rps_lines_num_words[*][2]) / len(signals.rps_lines_num_words) < 2.5",
    "'news' in tags or len(tags) == 0",
    "messages[0].role == 'user' and messages[-1].content is None",
    "date < '2019' and price * 4 % 2 == 1",
    "len(text) % 2 == 0",
    "missing is None and missing.a[3] != 1",
    "missing == 1",
]


def stream(path, encoder, keep, **arguments):
    dataset = gm.PackedDataset(
        str(path), tokenizer=encoder, layout="grain", packing="concat", sequence_length=64, batch_size=2, keep=keep,
        epochs=1, on_error="quarantine", max_error_rate=1.0, **arguments,
    )  # fmt: skip
    iterator = iter(dataset)
    saved, batches = [iterator.get_state()], []
    for batch in iterator:
        batches.append(batch)
        saved.append(iterator.get_state())
    return dataset, batches, saved, iterator


def counts(state):
    lanes = {lane: states.cursor_numbers(cursor) for lane, cursor in state["lanes"].items()}
    return state["step"], {lane: {**numbers, "byte": 0} for lane, numbers in lanes.items()}


@pytest.fixture(scope="module")
def shards(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("columns")
    rows = records(texts[:300])
    write_gzip(folder / "a.json.gz", rows)
    write_parquet(folder / "a.parquet", rows)
    write_parquet(folder / "v2.parquet", rows, data_page_version="2.0", use_dictionary=False, row_group_size=1000)
    write_arrow(folder / "a.arrow", rows)
    write_arrow(folder / "zstd.arrow", rows, pa.ipc.new_file, batch=1000, compression="zstd")
    return folder


@pytest.mark.parametrize("keep", FILTERS)
@pytest.mark.parametrize("name", ["a.parquet", "v2.parquet", "a.arrow", "zstd.arrow"])
def test_filters_keep_the_same_rows_as_of_lines(shards, encoder, name, keep):
    _, expected, states_expected, lines = stream(shards / "a.json.gz", encoder, keep)
    dataset, found, saved, columns = stream(shards / name, encoder, keep)
    assert_same_batches(found, expected)
    assert [counts(state) for state in saved] == [counts(state) for state in states_expected]
    keys = "documents", "filtered", "quarantined", "tokens"
    assert {key: columns.stats()[key] for key in keys} == {key: lines.stats()[key] for key in keys}
    assert [entry["record"] for entry in columns.quarantine()] == [entry["record"] for entry in lines.quarantine()]
    for step in range(0, len(saved), 9):
        resumed = iter(dataset)
        resumed.set_state(saved[step])
        assert_same_batches(resumed, found[step:])


def test_windows_of_filtered_rows(shards, encoder):
    arguments = {"seed": 5, "shuffle_window": 13}
    keep = "score >= 2"
    _, expected, states_expected, _ = stream(shards / "a.json.gz", encoder, keep, **arguments)
    _, found, saved, _ = stream(shards / "a.parquet", encoder, keep, **arguments)
    assert_same_batches(found, expected)
    assert [counts(state) for state in saved] == [counts(state) for state in states_expected]


def test_pages_without_a_remaining_row_are_not_inflated(tmp_path, encoder):
    path = tmp_path / "a.parquet"
    rows = 2000
    texts = [f"text {i} " * 20 for i in range(rows)]
    table = pa.table({"text": texts, "score": [i // 1000 for i in range(rows)]})
    pq.write_table(table, path, data_page_size=1000, write_batch_size=10, use_dictionary=False, compression="zstd")
    data = bytearray(path.read_bytes())
    # All pages of texts that the filter leaves out, but not their headers, are damaged.
    column = pq.read_metadata(path).row_group(0).column(0)
    magic = b"\x28\xb5\x2f\xfd"
    at, damaged = column.data_page_offset, 0
    end = column.data_page_offset + column.total_compressed_size * 2 // 5
    while (at := data.find(magic, at, end)) >= 0:
        data[at : at + 4] = b"\0\0\0\0"
        damaged += 1
    assert damaged > 10
    path.write_bytes(bytes(data))
    *_, iterator = stream(path, encoder, "score > 0")
    stats = iterator.stats()
    assert (stats["documents"], stats["filtered"], stats["quarantined"]) == (1000, 1000, 0)
    *_, iterator = stream(path, encoder, None)
    assert iterator.stats()["documents"] == 0


def test_bytes_that_are_no_text_cost_one_row_of_a_filter(tmp_path, encoder):
    path = tmp_path / "a.parquet"
    kind = pa.array([b"a", b"\xff", b"a"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": ["one", "two", "three"], "kind": kind}), path)
    *_, iterator = stream(path, encoder, "kind == 'a'")
    (entry,) = iterator.quarantine()
    assert entry["record"] == 1
    assert entry["reason"] == 'expected UTF-8 in the column "kind", found byte 0xff at byte 0 of a value'
    assert iterator.stats()["documents"] == 2


COLUMNS = {
    **{f"i{bits}": pa.array([-(2 ** (bits - 1)), None, 2 ** (bits - 1) - 1], f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": pa.array([0, None, 2**bits - 1], f"uint{bits}") for bits in (8, 16, 32, 64)},
    "f16": pa.array(np.array([0.5, math.inf, -65504], np.float16)),
    "f32": pa.array([0.1, None, -math.inf], pa.float32()),
    "f64": pa.array([0.1, math.nan, 1e-300]),
    "bool": pa.array([True, None, False]),
    "decimal": pa.array([decimal.Decimal("-0.05"), None, decimal.Decimal("9.99")], pa.decimal128(5, 2)),
    "decimal256": pa.array([decimal.Decimal("-5"), None, decimal.Decimal("123456789")], pa.decimal256(70, 20)),
    "date32": pa.array([datetime.date(1969, 12, 31), None, datetime.date(2024, 2, 29)], pa.date32()),
    "time32": pa.array([datetime.time(1, 2, 3), None, datetime.time(23, 59, 59, 999000)], pa.time32("ms")),
    "time64": pa.array([datetime.time(1, 2, 3), None, datetime.time(23, 59, 59, 999999)], pa.time64("us")),
    **{
        f"timestamp {unit} {zone}": pa.array([-1, None, 1_700_000_000], pa.timestamp(unit, tz=zone))
        for unit in ("ms", "us")
        for zone in (None, "UTC")
    },
    "string": pa.array(['a\n"\\\x1f', None, "\u00e9\U0001f600"]),
    "binary": pa.array([b"a", None, b""]),
    "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
    "large list": pa.array([[[1], None], None, [[]]], pa.large_list(pa.list_(pa.int32()))),
    "fixed list": pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2)),
    "struct": pa.array([{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": None}]),
    "map": pa.array([[("k", 1), ("l", None)], None, []], pa.map_(pa.string(), pa.int64())),
    "messages": pa.array([[{"role": "user", "content": None}], [], None]),
    "dictionary": pa.array(["a", None, "b"]).dictionary_encode(),
    "null": pa.nulls(3),
}


def plain(value):
    """A value of `to_pylist` as JSON has it."""
    match value:
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case bytes():
            return value.decode()
        case decimal.Decimal():
            return float(value)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case float() if math.isnan(value):
            return None
        case np.floating():
            return float(value)
    return value


def paths_of(value, path=()):
    """The scalars in a value, and their paths."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths_of(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from paths_of(item, (*path, index))
        yield (*path, len(value)), None
    else:
        yield path, value


def check_values(path, table):
    """Checks that each scalar in each row is that of pyarrow."""
    rows = [{key: plain(value) for key, value in row.items()} for row in table.to_pylist()]
    paths = sorted({path for row in rows for path, _ in paths_of(row)}, key=str)
    reader = _core.Records(
        str(path),
        path.stat().st_size,
        2**27,
        [list(path) for path in paths],
        [[("path", i)] for i in range(len(paths))],
    )
    for row in rows:
        found = reader.next_values()
        for path, ((kind, value),) in zip(paths, found, strict=True):
            expected = row
            for step in path:
                try:
                    expected = expected[step]
                except (TypeError, KeyError, IndexError):
                    expected = None
            if isinstance(expected, list | dict):
                assert kind == {list: "array", dict: "object"}[type(expected)]
            else:
                # Numbers are 64-bit floats, and strings are shown in part.
                if isinstance(expected, int) and not isinstance(expected, bool):
                    expected = float(expected)
                assert value == (expected[:80] if isinstance(expected, str) else expected), path
                if expected is None:
                    assert kind == "missing"
    assert reader.next_values() is None


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("name", COLUMNS)
def test_values_are_those_of_pyarrow(tmp_path, name, dictionary, version):
    path = tmp_path / "a.parquet"
    table = pa.table({name: COLUMNS[name]})
    pq.write_table(table, path, use_dictionary=dictionary, data_page_version=version)
    check_values(path, table)


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("name", [*COLUMNS, "views", "duration", "decimal32"])
def test_values_of_arrow_are_those_of_pyarrow(tmp_path, name, compression):
    path = tmp_path / "a.arrow"
    more = {
        "views": pa.array(["a", None, "longer than a view \u00e9"], pa.string_view()),
        "duration": pa.array([1, None, -5], pa.duration("s")),
        "decimal32": pa.array([decimal.Decimal("-0.5"), None, decimal.Decimal("9.9")], pa.decimal32(5, 2)),
    }
    column = {**COLUMNS, **more}[name]
    table = pa.table({"before": [1, 2, 3], name: column, "after": ["a", "b", "c"]})
    with pa.ipc.new_stream(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    if name == "duration":
        table = table.set_column(1, name, column.cast(pa.int64()))
    check_values(path, table)


def test_nanoseconds_and_the_oldest_timestamps(tmp_path):
    path = tmp_path / "a.parquet"
    times = pa.array([1_700_000_000_000_000_001, None, 0], pa.timestamp("ns"))
    for options in ({"version": "2.6"}, {"use_deprecated_int96_timestamps": True}):
        pq.write_table(pa.table({"t": times}), path, **options)
        reader = _core.Records(str(path), path.stat().st_size, 2**27, [["t"]], [[("path", 0)]])
        found = [reader.next_values()[0][0] for _ in range(3)]
        assert found == [
            ("string", "2023-11-14T22:13:20.000000001"), ("missing", None), ("string", "1970-01-01T00:00:00"),
        ]  # fmt: skip


def test_rows_of_many_columns(tmp_path, texts):
    path = tmp_path / "a.parquet"
    rows = records(texts[:200])
    table = pa.Table.from_pylist(rows, SCHEMA)
    write_parquet(path, rows)
    check_values(path, table)
    write_arrow(path, rows)
    check_values(path, table)
