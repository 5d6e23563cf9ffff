"""Values in conversations: the same from JSON lines as from columns of JSON, structs and maps, and none changed."""

import datetime
import decimal
import itertools
import json

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gristmill as gm
from chat_models import write_chatml
from helpers import assert_same_batches

TEMPLATE = (
    "{{ tools | tojson if tools is not none else 'none' }}{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' }}{% set content = message.content %}"
    "{{ content if content is string else content | tojson }}"
    "{% for call in message.tool_calls or [] %}{{ call | tojson }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXT, JSON, LIST = datasets.Value("string"), datasets.Json(), datasets.List


def conversation(arguments, tool=None):
    return {
        "messages": [
            {"role": "user", "content": "naïve"},
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "ant", "arguments": arguments}}]},
            {"role": "assistant", "content": "ant"},
        ],
        "tools": [{"name": "ant", "parameters": arguments if tool is None else tool}],
    }


CALLS = LIST({"function": {"name": TEXT, "arguments": JSON}})
LAYOUTS = {
    "arguments": {
        "messages": LIST({"role": TEXT, "content": TEXT, "tool_calls": CALLS}),
        "tools": LIST({"name": TEXT, "parameters": JSON}),
    },
    "calls": {"messages": LIST({"role": TEXT, "content": TEXT, "tool_calls": JSON}), "tools": LIST(JSON)},
    "messages": {"messages": LIST(JSON), "tools": JSON},
    "all": {"messages": JSON, "tools": JSON},
}
ARGUMENTS = [
    {"city": "Oslo", "days": 3, "exact": 1.0, "of": [1, None, {"x": None, "y": []}], "none": None},
    {},
    {"text": '{"a": "b \\" \\n"}', "é\n": True, "big": 18446744073709551615, "deep": {"a": {"b": [[{}]]}}},
]


@pytest.fixture(scope="module", autouse=True)
def quiet():
    datasets.disable_progress_bars()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_chatml(tmp_path_factory.mktemp("models") / "chatml")


def write(path, records):
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


def parquet(path, table):
    pq.write_table(table, path, row_group_size=2)
    return path


def plain_parquet(path, table):
    """Without the schema of Arrow, so that only the types of Parquet say which column is JSON."""
    pq.write_table(table, path, store_schema=False)
    return path


def arrow_stream(path, table):
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


def arrow_file(path, table):
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    return path


def saved(path, table):
    datasets.Dataset(table).save_to_disk(path)
    return path


WRITERS = [parquet, plain_parquet, arrow_stream, arrow_file, saved]


def json_table(records, features):
    return datasets.Dataset.from_list(records, features=datasets.Features(features)).data.table


def prompts(shards, folder, field="messages", columns=False, **chat):
    """The rendered text of each record, and the columns beside it."""
    sample = gm.Chat(field, **{"template": TEMPLATE, "tools": "tools", "add_generation_prompt": True} | chat)
    dataset = gm.PromptDataset(
        shards, tokenizer=folder, prompt=sample, prompt_length=4096, batch_size=1, full_prompts=True, columns=columns
    )
    return [dataset[index] for index in range(len(dataset))]


def texts(shards, folder, **chat):
    return [item["full_prompts"] for item in prompts(shards, folder, **chat)]


def rows(shards, folder, sample, **arguments):
    given = {"packing": "pad", "sequence_length": 512, "layout": "grain"} | arguments
    return list(gm.PackedDataset(shards, tokenizer=folder, sample=sample, **given))


def without_none(value):
    """The change that people make to rows of `datasets` before they render them."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("write_columns", WRITERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_columns_of_json_are_values(tmp_path, folder, layout, write_columns):
    records = [conversation(arguments) for arguments in ARGUMENTS]
    lines = write(tmp_path / "a.jsonl", records)
    columns = write_columns(tmp_path / "columns", json_table(records, LAYOUTS[layout]))
    found = texts(columns, folder)
    assert found == texts(lines, folder)
    assert '"exact": 1.0, "of": [1, null, {"x": null, "y": []}], "none": null}' in found[0]
    sample = gm.Chat(template=TEMPLATE, tools="tools")
    assert_same_batches(rows(columns, folder, sample), rows(lines, folder, sample))


@pytest.mark.parametrize("storage", [pa.string(), pa.large_string(), pa.string_view()])
def test_json_of_every_string_type_is_a_value(tmp_path, folder, storage):
    if storage == pa.string_view():
        pytest.importorskip("pyarrow", "18")
    records = [conversation(arguments) for arguments in ARGUMENTS] * 2
    expected = texts(write(tmp_path / "a.jsonl", records), folder)
    columns = {key: [json.dumps(record[key], indent=1) for record in records] for key in ("messages", "tools")}
    table = pa.table({key: pa.array(values, pa.json_(storage)) for key, values in columns.items()})
    for write_columns in (parquet, arrow_stream):
        assert texts(write_columns(tmp_path / "columns", table), folder) == expected


@pytest.mark.parametrize("write_columns", [parquet, arrow_stream])
def test_texts_filters_and_columns_see_the_values(tmp_path, folder, write_columns):
    values = [json.dumps(value) for value in ('a "b"', "", "é")]
    data = [json.dumps({"score": score, "text": text}) for score, text in enumerate("xyz")]
    table = pa.table({
        "text": pa.array(values, pa.json_()), "data": pa.array(data, pa.json_()),
        "inside": pa.StructArray.from_arrays([pa.array(values, pa.json_())], ["text"]),
    })  # fmt: skip
    columns = write_columns(tmp_path / "columns", table)
    lines = write(
        tmp_path / "a.jsonl",
        [
            {"text": json.loads(value), "data": json.loads(other), "inside": {"text": json.loads(value)}}
            for value, other in zip(values, data, strict=True)
        ],
    )
    for arguments in (
        {"text_field": "text"},
        {"text_field": "inside.text"},
        {"text_field": "data.text"},
        {"text_field": "text", "keep": "data.score >= 1 and data.text != 'z'"},
        {"text_field": "data.text", "keep": "data.score >= 1"},
        {"sample": gm.Completion("data.text", "inside.text"), "keep": "text"},
    ):
        streams = [
            list(gm.PackedDataset(shards, tokenizer=folder, packing="pad", sequence_length=16, **arguments))
            for shards in (columns, lines)
        ]
        assert_same_batches(*streams)
        assert len(streams[0]) == {True: 3, False: 2}["keep" not in arguments] - ("z" in str(arguments))
    for shards in (columns, lines):
        dataset = gm.PromptDataset(shards, tokenizer=folder, prompt=gm.Text("text"), batch_size=1)
        assert dataset[1]["data"] == {"score": 1, "text": "y"}
    with pytest.raises(gm.ShardError, match=r'record 0.*expected a string under the key "data", found an object'):
        rows(columns, folder, None, text_field="data")


@pytest.mark.parametrize("write_columns", [parquet, arrow_stream])
@pytest.mark.parametrize(
    ("damaged", "found"),
    [
        ('{"a": 1', "expected ',' or '}' after a member, found the end of the value at byte 7 of the value"),
        ("", "expected a value"),
        ("NaN", "found NaN, which is not JSON"),
        ("[1] 2", "at byte 4 of the value"),
    ],
)
def test_damaged_json_is_a_bad_record(tmp_path, folder, write_columns, damaged, found):
    good = conversation({})["messages"]
    for values, beside in (([good, None, good], ["1", damaged, "null"]), ([good, damaged, good], ["1", "2", None])):
        messages = [json.dumps(value) if isinstance(value, list) else value for value in values]
        table = pa.table({"messages": pa.array(messages, pa.json_()), "beside": pa.array(beside, pa.json_())})
        columns = write_columns(tmp_path / "columns", table)
        with pytest.raises(gm.ShardError) as raised:
            prompts(columns, folder, columns=True)
        name = "beside" if damaged in beside else "messages"
        assert raised.value.record == 1
        assert f'expected JSON in the column "{name}": ' in str(raised.value)
        assert found in str(raised.value)
        dataset = gm.PackedDataset(
            columns, tokenizer=folder, sample=gm.Chat(template=TEMPLATE), packing="pad", provenance=True,
            on_error="quarantine", max_error_rate=1.0, sequence_length=512,
        )  # fmt: skip
        assert [row["provenance"][0][1] for row in dataset] == [0, 2]


@pytest.mark.parametrize("write_columns", WRITERS)
def test_nulls_that_structs_fill_in_are_no_keys(tmp_path, folder, write_columns):
    records = [
        {**conversation(arguments), "extra": arguments}
        for arguments in (
            {"city": "Oslo", "of": [None, "x"]},
            {"x": "1"},
            {"at": {"y": 1}, "list": [{"p": 1}, {"q": 2}]},
            {"at": {"z": 1}, "list": []},
        )
    ]
    schema = pa.Table.from_pylist(records).schema
    columns = write_columns(tmp_path / "columns", pa.Table.from_pylist(records, schema=schema))
    expected = texts(write(tmp_path / "a.jsonl", records), folder)
    found = prompts(columns, folder, columns=["extra"])
    assert [item["full_prompts"] for item in found] == expected
    assert '"arguments": {"city": "Oslo", "of": [null, "x"]}' in expected[0]
    # Columns beside the prompt are as pyarrow has them.
    assert [item["extra"] for item in found] == pa.Table.from_pylist(records, schema=schema)["extra"].to_pylist()
    kept = texts(columns, folder, none_fields="keep")
    assert '{"city": "Oslo", "of": [null, "x"], "x": null, "at": null, "list": null}' in kept[0]
    # The rows of `datasets` as people clean them for transformers.
    template = gm.ChatTemplate.from_string(TEMPLATE, tokenizer=folder)
    read = [without_none({**row, "extra": None}) for row in datasets.Dataset(pa.Table.from_pylist(records)).to_list()]
    of = [template.render(row["messages"], row["tools"], add_generation_prompt=True) for row in read]
    assert of == expected


@pytest.mark.parametrize("write_columns", [parquet, arrow_stream])
def test_nulls_that_json_says_are_arguments(tmp_path, folder, write_columns):
    arguments = [{"x": None, "y": {"z": None}}, {"x": 1}]
    records = [conversation(value) for value in arguments]
    columns = write_columns(tmp_path / "columns", json_table(records, LAYOUTS["arguments"]))
    for shards in (columns, write(tmp_path / "a.jsonl", records)):
        first, second = texts(shards, folder)
        assert first.count('{"x": null, "y": {"z": null}}') == 2
        assert "null" not in second


def test_nulls_of_dictionaries_are_no_keys(tmp_path, folder):
    for index in (0, None):  # null as a value of the dictionary, and as an index
        content = pa.DictionaryArray.from_arrays(pa.array([1, index, 1]), pa.array([None, "ant"]))
        names = pa.array(["user", "assistant", "user"]).dictionary_encode()
        calls = pa.array([None, [{"name": "f"}], None])
        message = pa.StructArray.from_arrays([names, content, calls], ["role", "content", "tool_calls"])
        table = pa.table({"messages": pa.ListArray.from_arrays(pa.array([0, 3]), message)})
        template = "{% for m in messages %}{{ m.role }} {{ m | length }} {{ m | tojson }};{% endfor %}"
        [found] = texts(arrow_stream(tmp_path / "a.arrow", table), folder, template=template)
        others = 'user 2 {"role": "user", "content": "ant"};'
        assert found == others + 'assistant 2 {"role": "assistant", "tool_calls": [{"name": "f"}]};' + others


@pytest.mark.parametrize("write_columns", [parquet, plain_parquet, arrow_stream])
def test_maps_in_messages_are_objects(tmp_path, folder, write_columns):
    values = [[("city", "Oslo"), ("x", None)], [], [('"', "1")]]
    calls = pa.list_(pa.struct({"name": pa.string(), "arguments": pa.map_(pa.string(), pa.string())}))
    message = pa.struct({"role": pa.string(), "content": pa.string(), "tool_calls": calls})
    messages = [
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": of}]},
        ]
        for of in values
    ]
    table = pa.table(
        {
            "messages": pa.array(messages, pa.list_(message)),
            "beside": pa.array(values, pa.map_(pa.string(), pa.string())),
        }
    )
    columns = write_columns(tmp_path / "columns", table)
    for record in messages:
        for call in record[1]["tool_calls"]:
            call["arguments"] = dict(call["arguments"])
    found = prompts(columns, folder, columns=True)
    lines = write(tmp_path / "a.jsonl", [{"messages": record} for record in messages])
    assert [item["full_prompts"] for item in found] == texts(lines, folder)
    assert found[0]["beside"] == [["city", "Oslo"], ["x", None]]
    other = pa.table(
        {
            "messages": pa.array(
                [[{"role": "user", "of": [(1, 2)]}]],
                pa.list_(pa.struct({"role": pa.string(), "of": pa.map_(pa.int8(), pa.int8())})),
            )
        }
    )
    with pytest.raises(gm.ShardError, match='expected a map with strings as its keys under "of"'):
        texts(write_columns(tmp_path / "columns", other), folder)


def test_map_that_no_key_leads_to_is_named_by_its_input(tmp_path, folder):
    tools = pa.array([[[(1, 2)]]], pa.list_(pa.map_(pa.int8(), pa.int8())))
    table = pa.table({"messages": pa.array([[{"role": "user", "content": "ant"}]]), "tools": tools})
    with pytest.raises(gm.ShardError, match="tools: expected a map with strings as its keys, found another"):
        texts(parquet(tmp_path / "a.parquet", table), folder)


TYPED = {
    "date": (pa.date32(), datetime.date(2026, 1, 31)),
    "time": (pa.time64("us"), datetime.time(12, 30)),
    "timestamp": (pa.timestamp("us", "UTC"), datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)),
    "duration": (pa.duration("s"), datetime.timedelta(1)),
    "decimal": (pa.decimal128(5, 2), decimal.Decimal("1.50")),
    "bytes": (pa.binary(), b"\xff"),
    "fixed bytes": (pa.binary(2), b"a\xff"),
    "NaN": (pa.float32(), float("nan")),
    "map": (pa.map_(pa.string(), pa.date32()), [("x", datetime.date(2026, 1, 31))]),
}


@pytest.mark.parametrize("write_columns", [parquet, arrow_stream])
@pytest.mark.parametrize("name", TYPED)
def test_values_that_json_lacks_are_refused_where_they_are_printed(tmp_path, folder, name, write_columns):
    kind, value = TYPED[name]
    messages = [[{"role": "user", "content": "a", "at": None}, {"role": "assistant", "content": "b", "at": value}]]
    message = pa.list_(pa.struct({"role": pa.string(), "content": pa.string(), "at": kind}))
    tools = pa.array([[{"name": "f", "of": [value]}]], pa.list_(pa.struct({"name": pa.string(), "of": pa.list_(kind)})))
    columns = write_columns(tmp_path / "columns", pa.table({"messages": pa.array(messages, message), "tools": tools}))
    unseen = "{% for m in messages %}{{ m.role }}{{ m.content }}{% if m.at is defined %}!{% endif %}{% endfor %}"
    assert texts(columns, folder, template=unseen) == ["useraassistantb!"]
    for template in (
        "{{ messages[1].at }}",
        "{{ messages | tojson }}",
        "{{ messages | tojson(ensure_ascii=True) }}",
        "{{ tools }}",
    ):
        with pytest.raises(
            gm.ShardError, match=r"record 0.*expected values that JSON has where the template prints them"
        ) as error:
            texts(columns, folder, template=template)
        assert '"of"; write' in str(error.value) or name == "map"


@pytest.mark.parametrize("write_columns", [parquet, arrow_stream])
def test_values_that_json_has_are_printed_as_python_has_them(tmp_path, folder, write_columns):
    types = {
        "u64": (pa.uint64(), 2**64 - 1),
        "i8": (pa.int8(), -128),
        "f32": (pa.float32(), np.float32(0.1).item()),
        "f64": (pa.float64(), 1e16),
        "inf": (pa.float64(), float("inf")),
        "one": (pa.float64(), 1.0),
        "bool": (pa.bool_(), False),
        "bytes": (pa.binary(), "é".encode()),
        "list": (pa.large_list(pa.int64()), [2**62, None]),
        "pair": (pa.list_(pa.int16(), 2), [1, 2]),
        "view": (pa.string_view(), "a" * 20),
    }
    values = {key: value for key, (_, value) in types.items()}
    schema = pa.schema(
        {
            "messages": pa.list_(
                pa.struct({"role": pa.string(), "of": pa.struct({k: kind for k, (kind, _) in types.items()})})
            )
        }
    )
    table = pa.Table.from_pylist([{"messages": [{"role": "user", "of": values}]}], schema=schema)
    template = "{% for k, v in messages[0].of.items() %}{{ k }}={{ v }};{% endfor %}{{ messages[0].of | tojson }}"
    [found] = texts(write_columns(tmp_path / "columns", table), folder, template=template)
    values["bytes"] = "é"  # binary columns are texts, as everywhere
    assert found == "".join(f"{key}={value};" for key, value in values.items()) + json.dumps(values, ensure_ascii=False)


keys = st.sampled_from(["a", "b", "c"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('a "\\\n\té🙂<', max_size=6)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab "é', max_size=3), inner, max_size=3),
    max_leaves=8,
)
# One shape, so that a struct can hold it: absent keys are filled in with null.
shaped = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(-(2**63), 2**63 - 1),
        "b": st.text('a "\\\n\té🙂<', max_size=6),
        "c": st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=3),
        "d": st.fixed_dictionaries(
            {}, optional={"a": st.booleans(), "b": st.fixed_dictionaries({"x": st.text(max_size=2)})}
        ),
    },
).map(lambda shape: {key: dict(sorted(item.items())) if key == "d" else item for key, item in sorted(shape.items())})
SHAPE = pa.struct({
    "a": pa.int64(), "b": pa.string(), "c": pa.list_(pa.float64()),
    "d": pa.struct({"a": pa.bool_(), "b": pa.struct({"x": pa.string()})}),
})  # fmt: skip
RECORD = pa.schema({
    "messages": pa.list_(pa.struct({
        "role": pa.string(), "content": pa.string(),
        "tool_calls": pa.list_(pa.struct({"function": pa.struct({"name": pa.string(), "arguments": SHAPE})})),
    })),
    "tools": pa.list_(pa.struct({"name": pa.string(), "parameters": SHAPE})),
})  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_conversations_do_not_depend_on_how_they_are_stored(tmp_path, folder, data):
    numbers = itertools.count()
    free = data.draw(
        st.lists(
            st.builds(conversation, st.dictionaries(keys, values), values.filter(lambda value: value is not None)),
            min_size=1,
            max_size=3,
        )
    )
    of_shape = data.draw(st.lists(st.builds(conversation, shaped, shaped), min_size=1, max_size=3))
    layout = data.draw(st.sampled_from(sorted(LAYOUTS)))
    write_columns = data.draw(st.sampled_from([parquet, plain_parquet, arrow_stream]))
    for records, table in (
        (free, json_text_table(free, layout)),
        (of_shape, pa.Table.from_pylist(of_shape, schema=RECORD)),
    ):
        name = str(next(numbers))
        columns = write_columns(tmp_path / f"{name}.columns", table)
        assert texts(columns, folder) == texts(write(tmp_path / f"{name}.jsonl", records), folder)


def json_text_table(records, layout):
    """A table of JSON columns that Python's `json` wrote: that of `datasets` rounds floats."""
    if layout == "all":
        columns = {
            key: pa.array([json.dumps(record[key]) for record in records], pa.json_()) for key in ("messages", "tools")
        }
        return pa.table(columns)
    features = datasets.Features(LAYOUTS[layout])
    return json_table([encoded(record, LAYOUTS[layout]) for record in records], features)


def encoded(value, feature):
    """A value in which those that are to be JSON are the text of it."""
    if isinstance(feature, datasets.Json):
        return json.dumps(value)
    if isinstance(feature, LIST):
        return [encoded(item, feature.feature) for item in value]
    if isinstance(feature, dict):
        return {key: encoded(item, feature[key]) for key, item in value.items()}
    return value
