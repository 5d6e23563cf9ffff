"""Values that JSON lacks, in the columns of prompts: as pyarrow's `to_pylist` gives them."""

import copy
import datetime
import decimal
import json
import pickle
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from chat_models import write_chatml

pytest.importorskip("pandas", reason="pandas, which pyarrow has nanoseconds as and datasets brings, is not installed")

DECIMALS = [decimal.Decimal("1.10"), None, decimal.Decimal("-0.01")]
COLUMNS = {
    "bytes": pa.array([b"\x00\xff", None, b""]),
    "large": pa.array([b"\xfe" * 10, None, b"a"], pa.large_binary()),
    "views": pa.array([b"\xfe" * 20, None, b"a"], pa.binary_view()),
    "fixed": pa.array([b"abc", None, b"\x80\x81\x82"], pa.binary(3)),
    "day": pa.array([datetime.date(2024, 2, 29), None, datetime.date(1, 1, 1)]),
    "day64": pa.array([datetime.date(2024, 2, 29), None, datetime.date(1960, 1, 1)], pa.date64()),
    "clock": pa.array([datetime.time(1, 2, 3, 4), None, datetime.time(0)]),
    "clock32": pa.array([datetime.time(1, 2, 3), None, datetime.time(23, 59, 59)], pa.time32("ms")),
    "clock_ns": pa.array([12345, None, 0], pa.time64("ns")),
    "price": pa.array(DECIMALS, pa.decimal128(10, 2)),
    "small_price": pa.array(DECIMALS, pa.decimal128(5, 2)),
    "wide_price": pa.array([decimal.Decimal("-123456789012345678901234567890.100"), None, 7], pa.decimal256(50, 3)),
    "score": pa.array([float("nan"), None, float("-inf")]),
    "score32": pa.array([float("nan"), None, 0.1], pa.float32()),
    "score16": pa.array([float("nan"), None, 1.5], pa.float16()),
    "scores": pa.array([[0.5, float("nan"), None], None, []]),
    "days": pa.array([[datetime.date(2020, 1, 1), None], None, []]),
    "nested": pa.array([{"a": {"b": b"\xff"}}, None, {"a": None}]),
    "lasted": pa.array([12345678, None, -5], pa.duration("us")),
    "pauses": pa.array([[5, None], None, []], pa.list_(pa.duration("ms"))),
    "lasted_ns": pa.array([12345678, None, -5], pa.duration("ns")),
    "text": pa.array(["é", "x", None]),
    "number": pa.array([1, None, 2**60]),
    **{
        f"{unit} {zone}": pa.array([1709168523 * per_second + 5, None, -12345], pa.timestamp(unit, zone))
        for unit, per_second in {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}.items()
        for zone in (None, "UTC", "Europe/Berlin", "+05:30", "-02:00")
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_chatml(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def table():
    index = pa.array([0, 1, 2])
    extra = pa.StructArray.from_arrays([index, *COLUMNS.values()], ["index", *COLUMNS])
    return pa.table({"prompt": ["a", "b", "c"], **COLUMNS, "extra_info": extra})


def dataset_of(shards, model, **more):
    options = {"prompt": gm.Text("prompt"), "prompt_length": 16, "batch_size": 1, "layout": "verl"}
    return gm.PromptDataset(shards, tokenizer=model, **{**options, **more})


def check(dataset, expected):
    # By their text: NaN is not equal to itself, and 1 is to Decimal("1").
    for index, row in enumerate(expected):
        item = dataset[index]
        for name in COLUMNS:
            if name in row:
                assert repr(item[name]) == repr(row[name]), name
        for name, value in (row.get("extra_info") or {}).items():
            assert repr(item["extra_info"][name]) == repr(value), name


@pytest.mark.parametrize("kind", ["parquet", "arrow file", "arrow stream", "rows"])
def test_values_are_those_of_to_pylist(tmp_path, model, table, kind):
    shards = str(tmp_path / "rows")
    expected = table.to_pylist()
    if kind == "rows":
        shards = expected
    elif kind == "parquet":
        pq.write_table(table, shards)
        expected = pq.read_table(shards).to_pylist()
    else:
        new_writer = pa.ipc.new_file if kind == "arrow file" else pa.ipc.new_stream
        with pa.OSFile(shards, "wb") as file, new_writer(file, table.schema) as writer:
            writer.write_table(table)
    dataset = dataset_of(shards, model)
    check(dataset, expected)
    check(pickle.loads(pickle.dumps(dataset)), expected)


@pytest.mark.parametrize("options", [{"store_schema": False}, {"use_deprecated_int96_timestamps": True}])
def test_values_are_those_of_other_writers_of_parquet(tmp_path, model, table, options):
    path = str(tmp_path / "rows.parquet")
    pq.write_table(table.drop_columns(["extra_info"]), path, **options)
    check(dataset_of(path, model), pq.read_table(path).to_pylist())


def test_uuids_of_parquet_are_objects(tmp_path, model):
    path, known = str(tmp_path / "rows.parquet"), [uuid.UUID(int=5), uuid.UUID(int=2**100)]
    column = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([one.bytes for one in known], pa.binary(16)))
    pq.write_table(pa.table({"prompt": ["a", "b"], "id": column}), path)
    dataset = dataset_of(path, model)
    assert [item["id"] for item in dataset] == known


def test_rows_without_such_values_are_kept_as_they_were(tmp_path, model):
    rows = [{"prompt": "a", "n": np.int64(1), "list": np.array([1, 2]), "x": (1.5, None)}, {"prompt": "b", "n": 2}]
    plain = [{"prompt": "a", "n": 1, "list": [1, 2], "x": [1.5, None]}, {"prompt": "b", "n": 2}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in plain))
    ours, file = dataset_of(rows, model), dataset_of(tmp_path / "rows.jsonl", model)
    assert ours.nbytes == file.nbytes
    assert [ours[index]["list"] for index in range(2)] == [[1, 2], None]


def test_items_are_fresh_objects(tmp_path, model, table):
    dataset = dataset_of(table.to_pylist(), model)
    before = copy.deepcopy(dataset[0]["nested"])
    dataset[0]["nested"]["a"]["b"] = b""
    assert dataset[0]["nested"] == before


def test_filters_read_them_as_json_and_templates_refuse_them(tmp_path, model):
    day = datetime.date(2024, 2, 29)
    table = pa.table(
        {"prompt": [[{"role": "user", "content": "a", "day": day}]], "day": [day], "score": [float("nan")]}
    )
    path = str(tmp_path / "rows.parquet")
    pq.write_table(table, path)

    def read(text):
        template = gm.ChatTemplate.from_string(text, tokenizer=model)
        chat = gm.Chat("prompt", template=template, add_generation_prompt=True)
        return dataset_of(path, model, prompt=chat, keep='day == "2024-02-29" and not score > 0', full_prompts=True)

    dataset = read("{{ messages[0].content }}")
    assert [item["full_prompts"] for item in dataset] == ["a"]
    assert dataset[0]["day"] == day
    with pytest.raises(gm.ShardError, match=r'found a date, .* under "day"'):
        read("{{ messages[0].day }}")


def test_nested_columns_of_tunix_are_json(tmp_path, model, table):
    path = str(tmp_path / "rows.parquet")
    pq.write_table(table, path)
    batch = next(iter(dataset_of(path, model, layout="tunix")))
    assert (batch["day"][0], json.loads(batch["days"][0])) == (datetime.date(2024, 2, 29), ["2020-01-01", None])


def test_value_that_python_lacks_is_a_located_error(tmp_path, model):
    path = str(tmp_path / "rows.parquet")
    pq.write_table(pa.table({"prompt": ["a"], "day": pa.array([10**9], pa.date32())}), path)
    with pytest.raises(
        gm.ShardError, match=r"rows\.parquet: record 0: its columns cannot become Python objects: .*days"
    ):
        dataset_of(path, model)[0]
