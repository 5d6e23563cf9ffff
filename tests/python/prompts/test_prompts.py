"""`PromptDataset`: items, layouts, what is left out, and its arguments, against the naive model of `prompt_oracle`."""

import contextlib
import copy
import datetime
import gzip
import inspect
import itertools
import json
import pickle
import signal
import sys
import time
from pathlib import Path
from typing import Literal, get_args, get_origin

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
import prompt_oracle as oracle
from chat_models import write_chatml
from gristmill._prompts.arguments import ARGUMENTS
from gristmill._shards.counting import count_records
from gristmill._spec import kinds
from gristmill._spec.arguments import REQUIRED

CHAT = gm.Chat("prompt", add_generation_prompt=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_chatml(tmp_path_factory.mktemp("models") / "chatml")


@pytest.fixture(scope="module")
def encode(folder):
    template = gm.ChatTemplate.from_pretrained(folder)

    def of(record):
        return template.encode(record["prompt"], add_generation_prompt=True, train_on=None)[0].tolist()

    return of


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_nothing_is_put_around_conversations(tmp_path, folder, name):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": [{"role": "user", "content": "a"}], "text": "b"}) + "\n")
    for value in (True, "<|im_start|>", 3):
        messages = set()
        for make in (
            lambda **ends: gm.PromptDataset(path, tokenizer=folder, prompt=CHAT, batch_size=1, **ends),
            lambda **ends: gm.PromptDataset(
                path, tokenizer=folder, prompt={"a": gm.Text("text"), "b": CHAT}, batch_size=1, **ends
            ),
            lambda **ends: gm.PackedDataset(path, tokenizer=folder, sample=gm.Chat("prompt"), **ends),
        ):
            with pytest.raises(
                gm.ArgumentError, match=f"{name}={value!r}: the chat template writes the tokens"
            ) as error:
                make(**{name: value})
            messages.add(str(error.value))
        assert len(messages) == 1
        with pytest.raises(gm.ArgumentError, match=f"source 'a': {name}={value!r}: the chat template writes"):
            gm.PromptDataset(
                gm.Mixture({"a": gm.Source(path, weight=1)}),
                tokenizer=folder,
                prompt=CHAT,
                batch_size=1,
                **{name: value},
            )


def make_records(count):
    return [
        {
            "prompt": [{"role": "system", "content": "Be brief."}] * (number % 2)
            + [{"role": "user", "content": f"naïve 🙂 {number} " + "ant " * (number % 7)}],
            "data_source": "ants",
            "reward_model": {"style": "rule", "ground_truth": str(number)},
            "extra_info": {"index": 100 + number, "tools_kwargs": None} if number % 3 else None,
        }
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def records():
    return make_records(23)


@pytest.fixture(scope="module")
def shard(tmp_path_factory, records):
    return oracle.write(tmp_path_factory.mktemp("shards") / "prompts.jsonl", records)


@pytest.mark.parametrize("overlong", ["drop", "left", "right", "middle"])
@pytest.mark.parametrize("layout", ["verl", "hf", "maxtext"])
def test_padded_layouts_are_those_of_the_model(shard, folder, records, encode, layout, overlong):
    length = 55
    dataset = gm.PromptDataset(
        shard,
        tokenizer=folder,
        prompt_length=length,
        overlong=overlong,
        layout=layout,
        batch_size=4,
        columns=False,
        pad=3,
    )
    kept = oracle.kept(records, encode, length, overlong)
    assert len(dataset) == len(kept)
    assert 0 < len(kept) < len(records) or overlong != "drop"
    found = list(dataset)
    expected = list(oracle.batches(len(kept), 4, 1, [range(len(kept))]))
    assert len(found) == len(expected) == dataset.steps_per_epoch
    dtype = np.int64 if layout == "verl" else np.int32
    for batch, items in zip(found, expected, strict=True):
        rows = [oracle.row_of(layout, kept[item][1], length, pad=3) for item in items]
        for key in rows[0]:
            np.testing.assert_array_equal(batch[key], [row[key] for row in rows])
            assert batch[key].dtype == dtype
        assert batch["index"].tolist() == items
        if layout == "verl":
            assert batch["raw_prompt_ids"].tolist() == [kept[item][1] for item in items]
    for item in (0, 5, -1):
        row = oracle.row_of(layout, kept[item][1], length, pad=3)
        assert {key: dataset[item][key].tolist() for key in row} == row


def test_layout_tunix_has_rendered_strings_and_flat_columns(shard, folder, records):
    template = gm.ChatTemplate.from_pretrained(folder)
    dataset = gm.PromptDataset(shard, tokenizer=folder, layout="tunix", batch_size=23)
    (batch,) = dataset
    assert batch["prompts"].tolist() == [template.render(r["prompt"], add_generation_prompt=True) for r in records]
    assert [json.loads(text) for text in batch["reward_model"]] == [r["reward_model"] for r in records]
    assert batch["data_source"].tolist() == ["ants"] * 23
    assert {array.shape for array in batch.values()} == {(23,)}
    with pytest.raises(gm.ArgumentError, match=r"overlong='left': layout 'tunix' delivers prompts as strings"):
        gm.PromptDataset(shard, tokenizer=folder, layout="tunix", overlong="left")


def test_layout_tunix_types_columns_of_numbers(tmp_path, folder):
    values = {"whole": [1, 2], "real": [1, 2.5], "flag": [True, False], "mixed": [1, "a"], "large": [2**70, 1]}
    rows = [{"prompt": "ant", **{name: both[i] for name, both in values.items()}} for i in range(2)]
    dataset = gm.PromptDataset(rows, tokenizer=folder, prompt=gm.Text("prompt"), layout="tunix", batch_size=2)
    (batch,) = dataset
    assert {name: batch[name].tolist() for name in values} == values
    assert [batch[name].dtype for name in values] == [np.int64, np.float64, np.bool_, object, object]


def test_layout_ragged_has_ids_and_offsets(shard, folder, records, encode):
    dataset = gm.PromptDataset(shard, tokenizer=folder, layout="ragged", batch_size=10, drop_remainder=False)
    found = []
    for batch in dataset:
        rows = np.split(batch["ids"], batch["offsets"][1:-1])
        found += [row.tolist() for row, index in zip(rows, batch["index"], strict=True) if index >= 0]
        assert [len(row) for row, index in zip(rows, batch["index"], strict=True) if index < 0] in ([], [0] * 7)
    assert found == [encode(record) for record in records]
    assert dataset[2]["ids"].tolist() == encode(records[2])


def test_verl_items_have_the_columns_of_verl(shard, folder, records, encode):
    dataset = gm.PromptDataset(shard, tokenizer=folder, raw_prompt=True, full_prompts=True, batch_size=23)
    (batch,) = dataset
    assert batch["raw_prompt"].tolist() == [record["prompt"] for record in records]
    assert [folder and text for text in batch["full_prompts"]] == [dataset.text(i) for i in range(23)]
    assert batch["reward_model"].tolist() == [record["reward_model"] for record in records]
    assert batch["extra_info"].tolist() == [record["extra_info"] or {} for record in records]
    assert batch["index"].tolist() == [100 + i if i % 3 else 0 for i in range(23)]
    assert batch["tools_kwargs"].tolist() == [None if i % 3 else {} for i in range(23)]
    assert batch["interaction_kwargs"].tolist() == [{}] * 23
    assert all(batch[key].dtype == object for key in ("index", "extra_info", "raw_prompt_ids"))
    item = dataset[7]
    assert set(item) == set(batch)
    assert item["raw_prompt_ids"] == encode(records[7])


def test_missing_columns_are_none(tmp_path, folder):
    rows = [{"prompt": "a", "x": [1]}, {"prompt": "b", "y": {"z": 1}}, {"prompt": "c"}]
    dataset = gm.PromptDataset(rows, tokenizer=folder, prompt=gm.Text("prompt"), layout="hf", batch_size=3)
    (batch,) = dataset
    assert dataset.columns == ("x", "y")
    assert (batch["x"].tolist(), batch["y"].tolist()) == ([[1], None, None], [None, {"z": 1}, None])


def test_columns_are_chosen_and_clashes_are_errors(folder):
    rows = [{"prompt": "a", "input_ids": 1, "b": 2}]
    options = {"tokenizer": folder, "prompt": gm.Text("prompt"), "batch_size": 1}
    with pytest.raises(gm.ArgumentError, match=r"the records have 'input_ids', the name of an array of layout 'hf'"):
        gm.PromptDataset(rows, layout="hf", **options)
    assert gm.PromptDataset(rows, layout="maxtext", **options).columns == ("input_ids", "b")
    assert gm.PromptDataset(rows, layout="hf", columns=["b"], **options).columns == ("b",)
    assert gm.PromptDataset(rows, layout="hf", columns=False, **options).columns == ()
    with pytest.raises(gm.ArgumentError, match=r"no record has \['c'\]"):
        gm.PromptDataset(rows, columns=["c"], **options)


def test_pairs_have_arrays_for_each(folder):
    template = gm.ChatTemplate.from_pretrained(folder)
    rows = [
        {
            "prompt": [{"role": "user", "content": f"ant {i}"}],
            "chosen": [{"role": "assistant", "content": "yes " * i}],
            "rejected": f"no {i}",
        }
        for i in range(3)
    ]
    prompt = {"prompt": CHAT, "chosen": gm.Chat("chosen"), "rejected": gm.Text("rejected")}
    expected = {
        "prompt": [template.encode(r["prompt"], add_generation_prompt=True, train_on=None)[0].tolist() for r in rows],
        "chosen": [template.encode(r["chosen"], train_on=None)[0].tolist() for r in rows],
        "rejected": [gm.Encoder.from_file(folder).encode(r["rejected"]).tolist() for r in rows],
    }
    sides = {"prompt": "left", "chosen": "right", "rejected": "right"}
    names = {"hf": ("{}_input_ids", "{}_attention_mask"), "tunix": ("{}_ids", "{}_mask")}
    for layout, (ids_name, mask_name) in names.items():
        dataset = gm.PromptDataset(rows, tokenizer=folder, prompt=prompt, layout=layout, batch_size=3, prompt_length=64)
        (batch,) = dataset
        for name, all_ids in expected.items():
            ids, mask = zip(
                *[oracle.padded(ids, 64, sides[name], dataset.encoder.eos_id) for ids in all_ids], strict=True
            )
            np.testing.assert_array_equal(batch[ids_name.format(name)], ids)
            np.testing.assert_array_equal(batch[mask_name.format(name)], mask)
    (batch,) = gm.PromptDataset(rows, tokenizer=folder, prompt=prompt, layout="ragged", batch_size=3)
    for name, all_ids in expected.items():
        found = np.split(batch[f"{name}_ids"], batch[f"{name}_offsets"][1:-1])
        assert [ids.tolist() for ids in found] == all_ids
    # A pair of which one is too long is left out as a whole.
    longest = [max(len(ids[i]) for ids in expected.values()) for i in range(3)]
    short = gm.PromptDataset(rows, tokenizer=folder, prompt=prompt, prompt_length=longest[0], batch_size=1, layout="hf")
    assert [entry["tokens"] for entry in short.dropped()] == [n for n in longest if n > longest[0]]


def test_bos_and_eos_survive_the_cut(folder):
    encoder = gm.Encoder.from_file(folder)
    rows = [{"text": "ant ant ant ant"}, {"text": "a"}, {"text": ""}]
    ids = [encoder.encode(row["text"]).tolist() for row in rows]
    bos, eos = encoder.token_to_id("<|im_start|>"), encoder.token_to_id("<|im_end|>")
    for overlong in ("left", "right", "middle"):
        dataset = gm.PromptDataset(
            rows, tokenizer=encoder, prompt=gm.Text("text"), prompt_length=5, overlong=overlong, bos="<|im_start|>",
            eos=True, layout="ragged", batch_size=3,
        )  # fmt: skip
        assert [dataset[i]["ids"].tolist() for i in range(3)] == [
            [bos, *oracle.cut(row, 3, overlong), eos] for row in ids
        ]


def test_empty_prompts_and_token_0_are_delivered(folder):
    encoder = gm.Encoder.from_file(folder)
    assert encoder.encode("!").tolist() == [0]
    rows = [{"prompt": ""}, {"prompt": "!"}]
    dataset = gm.PromptDataset(
        rows, tokenizer=encoder, prompt=gm.Text("prompt"), layout="maxtext", prompt_length=3, batch_size=2
    )
    (batch,) = dataset
    assert batch["prompt_segmentation"].tolist() == [[0, 0, 0], [1, 0, 0]]
    assert batch["prompt_true_length"].tolist() == [[0], [1]]
    assert dataset.counts()["empty"] == 1


BAD = [
    ('{"prompt": [{"role": "user", "content": "fine"}]}', None),
    ("", None),
    ('{"prompt": "a string"}', "expected a list of messages under the key"),
    ('{"prompt": null}', "expected a list of messages"),
    ('{"other": 1}', "expected a list of messages"),
    ('{"prompt": [{"content": "no role"}]}', "has no attribute 'role'"),
    ('{"prompt": [', "expected"),
    ("[1]", "expected a JSON object"),
    ('{"prompt": [{"role": "user", "content": "' + "ant " * 60 + '"}]}', "more than prompt_length=40 tokens"),
    ('{"prompt": [{"role": "user", "content": "fine too"}], "language": "de"}', None),
]


def test_every_reason_of_loss_is_located_and_counted(tmp_path, folder, encode):
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(line for line, _ in BAD))
    options = {"tokenizer": folder, "prompt_length": 40, "on_error": "quarantine", "max_error_rate": 1.0}
    dataset = gm.PromptDataset(path, keep="language is None", **options)
    counts = dataset.counts()
    assert counts == {
        "read": 9, "kept": 1, "overlong": 1, "filtered": 1, "quarantined": 6, "lost_shards": 0, "empty": 0
    }  # fmt: skip
    assert counts["read"] == sum(counts[name] for name in ("kept", "overlong", "filtered", "quarantined"))
    dropped = dataset.dropped()
    assert [entry["record"] for entry in dropped] == [i for i, (_, reason) in enumerate(BAD) if reason]
    for entry in dropped:
        assert entry["shard"] == str(path)
        assert BAD[entry["record"]][1] in entry["reason"]
        assert (entry["tokens"] is None) == (entry["record"] != 8)
    assert dropped[-1]["tokens"] == len(encode(json.loads(BAD[8][0])))
    assert dataset.source(0) == (str(path), 0)
    with pytest.raises(gm.ShardError, match=r"bad\.jsonl: record 2, byte \d+: expected a list of messages") as caught:
        gm.PromptDataset(path, tokenizer=folder, prompt_length=40)
    assert caught.value.record == 2
    with pytest.raises(gm.ShardError, match=r"6 bad records of 9, more than max_error_rate=0.1 allows"):
        gm.PromptDataset(path, **options | {"max_error_rate": 0.1})
    good = [i for i, (_, reason) in enumerate(line for line in BAD if line[0]) if reason is None]
    assert len(gm.PromptDataset(path, tokenizer=folder, prompt_length=40, select=good)) == len(good)


def test_overlong_error_names_the_record(shard, folder, records, encode):
    length = min(len(encode(record)) for record in records)
    first = next(i for i, record in enumerate(records) if len(encode(record)) > length)
    with pytest.raises(gm.ShardError, match=f"record {first}: expected a prompt of at most prompt_length={length}"):
        gm.PromptDataset(shard, tokenizer=folder, prompt_length=length, overlong="error")


def test_lost_shard_is_counted(tmp_path, folder, records):
    good = oracle.write(tmp_path / "a.jsonl", records[:5])
    bad = tmp_path / "b.json.gz"
    bad.write_bytes(b"\x1f\x8b damaged")
    dataset = gm.PromptDataset([good, bad], tokenizer=folder, on_error="quarantine", max_error_rate=0.2, batch_size=1)
    assert (len(dataset), dataset.counts()["lost_shards"], dataset.counts()["quarantined"]) == (5, 1, 1)
    with pytest.raises(gm.ShardError, match="1 bad shard of 2"):
        gm.PromptDataset([good, bad], tokenizer=folder, on_error="quarantine", max_error_rate=0.0)
    with pytest.raises(gm.ShardError, match=r"b\.json\.gz"):
        gm.PromptDataset([good, bad], tokenizer=folder)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_formats_change_nothing(tmp_path, folder, threads):
    records = make_records(3000)
    jsonl = oracle.write(tmp_path / "a.jsonl", records)
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet", row_group_size=700)
    half = [oracle.write(tmp_path / f"{n}.json", records[n * 1500 : (n + 1) * 1500]) for n in range(2)]
    options = {"tokenizer": folder, "prompt_length": 55, "batch_size": 100, "seed": 5, "threads": threads}
    one = gm.PromptDataset(jsonl, **options)
    assert 1000 < len(one) < 3000
    for other in (tmp_path / "a.parquet", half, records, (record for record in records)):
        dataset = gm.PromptDataset(other, **options)
        assert dataset.counts() == one.counts()
        for expected, found in zip(one, dataset, strict=True):
            assert expected.keys() == found.keys()
            for key in ("input_ids", "raw_prompt_ids", "reward_model", "index"):
                assert expected[key].tolist() == found[key].tolist(), key


def test_rows_of_python_become_what_files_hold(folder):
    day = datetime.datetime(2026, 1, 31, 12, 30)
    rows = [
        {"prompt": "a", "day": day, "bytes": b"x", "none": float("nan"), "array": np.arange(2), "deep": [{"a": np.nan}]}
    ]
    dataset = gm.PromptDataset(iter(rows), tokenizer=folder, prompt=gm.Text("prompt"), layout="hf", batch_size=1)
    item = dataset[0]
    found = {key: item[key] for key in rows[0] if key != "prompt"}
    nan = float("nan")
    assert repr(found) == repr({"day": day, "bytes": b"x", "none": nan, "array": [0, 1], "deep": [{"a": nan}]})
    assert dataset.source(0) == ("rows", 0)
    with pytest.raises(gm.ShardError, match=r"^rows: record 1, byte .*expected a string under the key \"prompt\""):
        gm.PromptDataset([{"prompt": "a"}, {"prompt": 1}], tokenizer=folder, prompt=gm.Text("prompt"))
    with pytest.raises(gm.ArgumentTypeError, match="rows of values that JSON"):
        gm.PromptDataset([{"prompt": object()}], tokenizer=folder)


@pytest.mark.parametrize(
    "chosen",
    [slice(5), slice(3, 20, 4), slice(-4, None), slice(None, None, -2), [7, 2, 21], [-1, 0], np.array([3, 1]), []],
)
@pytest.mark.parametrize("most", [None, 2])
def test_select_takes_records_in_its_order(shard, folder, records, chosen, most):
    dataset = gm.PromptDataset(shard, tokenizer=folder, select=chosen, max_samples=most, batch_size=1)
    wanted = np.arange(23)[chosen if isinstance(chosen, slice) else np.array(chosen, int)].tolist()[:most]
    assert [dataset.source(i)[1] for i in range(len(dataset))] == wanted
    assert dataset.counts()["read"] == len(wanted)


def test_max_samples_stops_reading(tmp_path, folder, records):
    path = oracle.write(tmp_path / "a.jsonl", records[:5])
    with path.open("a") as file:
        file.write("not JSON")
    assert len(gm.PromptDataset(path, tokenizer=folder, max_samples=5)) == 5


def test_rows_are_taken_up_to_max_samples(folder, records):
    taken = iter(itertools.cycle(records))
    dataset = gm.PromptDataset(taken, tokenizer=folder, max_samples=5)
    assert [dataset.source(i)[1] for i in range(len(dataset))] == [0, 1, 2, 3, 4]


def test_records_are_counted(shard, tmp_path, records):
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    assert count_records(gm.Manifest.find([shard, tmp_path / "a.parquet"])) == 46
    with shard.open() as file:
        assert count_records(gm.Manifest.find([shard])) == len(file.readlines())


def test_columns_that_python_cannot_hold_are_located(tmp_path, folder):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b", "n": ' + "1" * 5000 + "}\n")
    dataset = gm.PromptDataset(path, tokenizer=folder, prompt=gm.Text("prompt"), batch_size=2)
    with pytest.raises(gm.ShardError, match=r"record 1: its columns cannot become Python objects: .*columns=False"):
        next(iter(dataset))
    dataset = gm.PromptDataset(path, tokenizer=folder, prompt=gm.Text("prompt"), batch_size=2, columns=False)
    assert next(iter(dataset))["index"].tolist() == [0, 1]


@pytest.mark.parametrize("info", ["3", "[1]", '"x"', "true"])
def test_extra_info_that_is_no_object_is_located(tmp_path, folder, info):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a", "extra_info": ""}\n{"prompt": "b", "extra_info": ' + info + "}\n")
    dataset = gm.PromptDataset(path, tokenizer=folder, prompt=gm.Text("prompt"), batch_size=2)
    assert dataset[0]["extra_info"] == {}
    with pytest.raises(gm.ShardError, match=r"record 1: expected an object under the key 'extra_info', found .*"):
        next(iter(dataset))
    hf = gm.PromptDataset(path, tokenizer=folder, prompt=gm.Text("prompt"), batch_size=2, layout="hf")
    assert next(iter(hf))["extra_info"].tolist() == ["", json.loads(info)]


def test_rows_with_a_cycle_are_an_error(folder):
    row = {"prompt": "a"}
    row["self"] = row
    with pytest.raises(gm.ArgumentError, match="expected rows without cycles"):
        gm.PromptDataset([row], tokenizer=folder, prompt=gm.Text("prompt"))


def test_long_records_are_read_as_the_error_says(tmp_path, folder):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "ant " * 99}) + "\n")
    options = {"tokenizer": folder, "prompt": gm.Text("prompt"), "batch_size": 1}
    with pytest.raises(gm.ShardError, match=r"at most 99 bytes, found one of \d+; raise max_document_bytes="):
        gm.PromptDataset(path, max_document_bytes=99, **options)
    assert len(gm.PromptDataset(path, max_document_bytes=999, **options)) == 1
    with pytest.raises(gm.ShardError, match="raise max_document_bytes="):
        gm.PromptDataset(path, max_document_bytes=99, select=slice(-1, None), **options)


def test_no_prompts_at_all_are_an_error_of_their_own(tmp_path, folder):
    (tmp_path / "a.jsonl").touch()
    for keep, read in ((None, 0), ("n > 5", 1)):
        dataset = gm.PromptDataset(tmp_path / "a.jsonl", tokenizer=folder, keep=keep, drop_remainder=False)
        with pytest.raises(gm.ArgumentError, match=rf"there are no prompts, only {read} records?: dataset.counts\(\)"):
            next(iter(dataset))
        (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n')


@pytest.mark.parametrize("columns", [True, False])
def test_filter_chooses_records_of_all_formats(tmp_path, folder, records, columns):
    keep = "extra_info.index >= 110 and data_source == 'ants'"
    expected = [i for i, record in enumerate(records) if (record["extra_info"] or {"index": 0})["index"] >= 110]
    table = pa.Table.from_pylist(records)
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    for path in (oracle.write(tmp_path / "a.jsonl", records), tmp_path / "a.parquet", tmp_path / "a.arrow"):
        dataset = gm.PromptDataset(path, tokenizer=folder, keep=keep, columns=columns)
        assert [dataset.source(i)[1] for i in range(len(dataset))] == expected, path.name
        assert dataset.counts()["filtered"] == len(records) - len(expected)
        assert (set(dataset.columns) == {"data_source", "reward_model", "extra_info"}) == columns


def test_memory_is_bounded_by_an_error_that_says_the_size(shard, folder):
    size = gm.PromptDataset(shard, tokenizer=folder).nbytes
    with pytest.raises(
        gm.ArgumentError, match=r"max_memory=1000: the prompts of 23 records take (\d+) bytes"
    ) as caught:
        gm.PromptDataset(shard, tokenizer=folder, max_memory=1000)
    needed = int(str(caught.value).split("take ")[1].split(" bytes")[0])
    assert abs(needed - size) < 100
    gm.PromptDataset(shard, tokenizer=folder, max_memory=needed)
    assert gm.PromptDataset(shard, tokenizer=folder, columns=False).nbytes < size / 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt_length": 0}, "prompt_length=0: expected an integer from 1"),
        ({"overlong": "cut"}, "overlong='cut': expected one of 'drop', 'left'"),
        ({"layout": "trl"}, "layout='trl': expected one of"),
        ({"padding": "middle"}, "padding='middle': expected one of"),
        ({"layout": "ragged", "padding": "left"}, "padding='left': layout 'ragged' has no padding"),
        ({"prompt": "prompt"}, "prompt='prompt': expected gm.Chat, gm.Completion, gm.Text, or a dict"),
        ({"prompt": {}}, "expected at least one prompt"),
        ({"prompt": {"a": gm.ImageText("gemma3")}}, "expected gm.Chat, gm.Completion or gm.Text"),
        ({"columns": "data_source"}, "expected True, False or a list of names"),
        ({"select": [1, 1]}, "an index is listed twice"),
        ({"select": [-30]}, "there are only 23 records"),
        ({"select": [0, 22, 23, 900]}, "found no record at 2 of its 4 indices"),
        ({"select": 3}, "a slice or a list of indices"),
        ({"seed": -1}, "seed=-1"),
        ({"order": "numpy"}, "order='numpy'"),
        ({"shard_index": 1}, "shard_index=1"),
        ({"shard_count": 3}, "shard_count=3: it must divide the 256 rows"),
        ({"pad": "<nothing>"}, "pad='<nothing>': the vocabulary has no such token"),
        ({"keep": "("}, "keep="),
        ({"prompt": {"a": CHAT, "b": CHAT}, "raw_prompt": True}, "are of one prompt"),
    ],
)
def test_wrong_arguments_are_named(shard, folder, arguments, message):
    with pytest.raises((gm.ArgumentError, gm.ArgumentTypeError)) as caught:
        gm.PromptDataset(shard, tokenizer=folder, **arguments)
    assert message in str(caught.value)


def test_prompt_without_generation_prompt_is_warned_of(shard, folder, caplog):
    gm.PromptDataset(shard, tokenizer=folder, prompt=gm.Chat("prompt"))
    assert "without add_generation_prompt=True" in caplog.text


def test_copies_share_the_prompts_and_pickles_hold_them(shard, folder):
    dataset = gm.PromptDataset(shard, tokenizer=folder, batch_size=5)
    assert copy.deepcopy(dataset)._spec.arena is dataset._spec.arena
    for dumps in (pickle.dumps, cloudpickle.dumps):
        other = pickle.loads(dumps(dataset))
        assert other.fingerprint == dataset.fingerprint
        for expected, found in zip(dataset, other, strict=True):
            assert expected["raw_prompt_ids"].tolist() == found["raw_prompt_ids"].tolist()


def test_index_is_like_that_of_a_list(shard, folder):
    dataset = gm.PromptDataset(shard, tokenizer=folder)
    assert dataset[-1]["raw_prompt_ids"] == dataset[22]["raw_prompt_ids"] == dataset[np.int64(22)]["raw_prompt_ids"]
    for index in (23, -24):
        with pytest.raises(IndexError, match="there are 23 prompts"):
            dataset[index]
    with pytest.raises(TypeError):
        dataset["a"]


def test_table_has_the_parameters_and_words_of_the_dataset():
    parameters = inspect.signature(gm.PromptDataset).parameters
    defaults = {name: REQUIRED if p.default is p.empty else p.default for name, p in parameters.items()}
    assert defaults.pop("prompt") == CHAT
    found = {name: argument.default for name, argument in ARGUMENTS.items()}
    assert found.pop("prompt") is REQUIRED
    assert found == defaults
    for name, argument in ARGUMENTS.items():
        if isinstance(argument.kind, kinds.Choice):
            (shown,) = [
                part
                for part in (parameters[name].annotation, *get_args(parameters[name].annotation))
                if get_origin(part) is Literal
            ]
            assert get_args(shown) == tuple(argument.kind.words)


@contextlib.contextmanager
def alarm(seconds):
    """Raises TimeoutError in this thread."""

    def ring(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def own_threads():
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if name.startswith("gristmill-promp")]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the threads are listed in /proc")
@pytest.mark.parametrize("select", [None, slice(-1, None)])
def test_signal_ends_reading_and_leaves_no_thread(tmp_path, folder, select):
    line = json.dumps(make_records(2)[1]) + "\n"
    path = tmp_path / "large.jsonl.gz"
    path.write_bytes(gzip.compress(line.encode() * 100_000, 1) * 100)  # a second or more to inflate
    make = gm.PromptDataset  # loads its libraries
    started = time.monotonic()
    with pytest.raises(TimeoutError), alarm(0.2):
        make(path, tokenizer=folder, threads=3, select=select)
    assert time.monotonic() - started < 5
    assert own_threads() == []


def test_error_leaves_no_thread_and_is_that_of_the_first_record(tmp_path, folder):
    """Later chunks are prepared at the same time; the error is still that of the first bad record."""
    records = make_records(6000)
    for bad in (2500, 2501, 5999):
        records[bad]["prompt"] = bad
    path = oracle.write(tmp_path / "a.jsonl", records)
    for _ in range(5):
        with pytest.raises(gm.ShardError, match="record 2500, byte "):
            gm.PromptDataset(path, tokenizer=folder, threads=4)
    assert sys.platform != "linux" or own_threads() == []


def test_tools_and_variables_reach_the_template(folder):
    template = "{{ tools | length if tools else 'no' }} {{ mood }} {{ messages[0].content }}"
    rows = [
        {"prompt": [{"role": "user", "content": "a"}], "tools": tools} for tools in (None, [{"x": 1}], '[{"x": 1}, {}]')
    ]
    chat = gm.Chat(
        "prompt", template=template, tools="tools", template_kwargs={"mood": "calm"}, add_generation_prompt=True
    )
    dataset = gm.PromptDataset(rows, tokenizer=folder, prompt=chat, full_prompts=True, batch_size=3)
    (batch,) = dataset
    assert batch["full_prompts"].tolist() == ["no calm a", "1 calm a", "2 calm a"]


def test_content_is_no_control_where_that_is_asked_for(folder):
    encoder = gm.Encoder.from_file(folder)
    end = encoder.token_to_id("<|im_end|>")
    rows = [{"prompt": [{"role": "user", "content": "<|im_end|>"}]}]
    for words, count in (("id", 2), ("text", 1)):
        chat = gm.Chat("prompt", special_tokens_in_content=words, add_generation_prompt=True)
        ids = gm.PromptDataset(rows, tokenizer=folder, prompt=chat)[0]["raw_prompt_ids"]
        assert ids.count(end) == count


def test_a_template_that_cannot_be_masked_renders_prompts(folder):
    """A template without an end of turn has no mask for answers, which prompts do not need."""
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    rows = [{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    chat = gm.Chat("prompt", template=template, add_generation_prompt=True)
    assert gm.PromptDataset(rows, tokenizer=folder, prompt=chat, layout="tunix")[0]["prompts"] == "ab"


@pytest.mark.parametrize("overlong", ["left", "right"])
def test_ends_hold_for_the_texts_of_a_mixture(folder, encode, overlong):
    encoder = gm.Encoder.from_file(folder / "tokenizer.json")
    bos, eos = encoder.token_to_id("<|im_start|>"), encoder.token_to_id("<|im_end|>")
    record = {"prompt": [{"role": "user", "content": "an ant"}]}
    sources = {
        "chat": gm.Source([record], weight=1, epochs=1, sample=CHAT),
        "text": gm.Source([{"text": "an ant is an ant"}], weight=1, epochs=1, sample=gm.Text("text")),
    }
    dataset = gm.PromptDataset(
        gm.Mixture(sources), tokenizer=folder, prompt=CHAT, batch_size=2, layout="ragged", columns=False,
        prompt_length=6, overlong=overlong, bos="<|im_start|>", eos="<|im_end|>",
    )  # fmt: skip
    found = [dataset[item]["ids"].tolist() for item in range(2)]
    words = encoder.encode("an ant is an ant").tolist()
    assert found == [oracle.cut(encode(record), 6, overlong), [bos, *oracle.cut(words, 4, overlong), eos]]
