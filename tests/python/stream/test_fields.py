"""Ready ids, and fields that travel with tokens and samples: each value beside the token that provenance names."""

import json
import struct

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import feather, parquet

import gristmill as gm
from object_store import Server

FIELDS = {
    "advantage": gm.Field("adv"),
    "top": gm.Field("top_ids", "int32", (2, 3)),
    "half": gm.Field("adv", "float16"),
    "brain": gm.Field("adv", "bfloat16"),
    "reward": gm.Field(per="sample"),
    "code": gm.Field("codes", "uint8", (2,), per="sample"),
}
DTYPES = {"brain": ml_dtypes.bfloat16, "half": np.float16, "advantage": np.float32, "reward": np.float32,
          "top": np.int32, "code": np.uint8}  # fmt: skip
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def record_of(number, length, first=0):
    """A record whose values say which token of which record they belong to."""
    ids = [first + 100 * number + index for index in range(length)]
    return {
        "input_ids": ids,
        "mask": [(number + index) % 3 != 0 for index in range(length)],
        "adv": [number + index / 64 for index in range(length)],
        "top_ids": [[[token, 1, -2], [3, 4, token]] for token in ids],
        "reward": -number / 4,
        "codes": [number % 256, length],
    }


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def per_token(record):
    return {"advantage": record["adv"], "half": record["adv"], "brain": record["adv"], "top": record["top_ids"]}


def check_row(row, records, layout, kept):
    """Compares the fields of a row with the values of the records that its provenance names.

    Args:
      row: the row.
      records: those of each shard and number.
      layout: its layout.
      kept: how many tokens of a sample truncation keeps at most.
    """
    [length] = next(row[name] for name in ("inputs", "tokens", "input_ids") if name in row).shape
    owners = [None] * length
    at, segments = 0, []
    for shard, record, offset, count in row["provenance"].tolist():
        owners[at : at + count] = [(shard, record, offset + index) for index in range(count)]
        at += count
        if count:
            segments.append((shard, record))
    for name, field in FIELDS.items():
        key = f"targets_{name}" if layout == "maxtext" and field.per == "token" else name
        found = row[key]
        assert found.dtype == DTYPES[name], name
        expected = np.zeros_like(found)
        if field.per == "sample":
            for index, owner in enumerate(segments):
                record = records[owner]
                expected[index] = np.array(record["reward"] if name == "reward" else record["codes"])
        else:
            for index, owner in enumerate(owners):
                if owner is None:
                    continue
                *record, offset = owner
                values = per_token(records[tuple(record)])[name]
                if layout == "maxtext" and offset + 1 >= min(len(values), kept):
                    continue
                expected[index] = np.array(values[offset + (layout == "maxtext")], DTYPES[name])
        np.testing.assert_array_equal(found, expected, err_msg=f"{key} of {layout}")


@SETTINGS
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=12),
    layout=st.sampled_from(["maxtext", "grain", "hf", "varlen"]),
    packing=st.sampled_from(["concat", "best_fit", "pad"]),
    truncation=st.sampled_from([None, "right", "left", "drop"]),
    seed=st.sampled_from([None, 3]),
    masked=st.booleans(),
)
def test_values_are_beside_their_tokens(tmp_path, lengths, layout, packing, truncation, seed, masked):
    records = [record_of(number, length) for number, length in enumerate(lengths)]
    path = write_lines(tmp_path / "a.jsonl", records)
    by_place = {(0, number): record for number, record in enumerate(records)}
    sample = gm.Tokens(fields=FIELDS, loss_mask="mask" if masked else None, on_untrained="drop")
    options = {"sequence_length": 8, "batch_size": 2, "packing": packing, "truncation": truncation, "seed": seed}
    if packing != "pad":
        options["max_segments"] = 4
    rows = [
        {name: array[row] for name, array in batch.items()}
        for batch in gm.PackedDataset(path, sample=sample, layout=layout, provenance=True, **options)
        for row in range(2)
    ]
    cuts_ends = truncation == "right" or (truncation is None and packing == "pad")
    for row in rows:
        check_row(row, by_place, layout, kept=8 if cuts_ends else 20)
    assert rows or not any(lengths) or masked or truncation == "drop"


@SETTINGS
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=12),
    packing=st.sampled_from(["concat", "best_fit", "pad"]),
    masked=st.booleans(),
)
def test_expand_makes_the_fields_of_other_layouts(tmp_path, lengths, packing, masked):
    path = write_lines(tmp_path / "a.jsonl", [record_of(*numbered) for numbered in enumerate(lengths)])
    sample = gm.Tokens(fields=FIELDS, loss_mask="mask" if masked else None, on_untrained="drop")
    options = {"sample": sample, "sequence_length": 8, "batch_size": 2, "packing": packing}

    def batches(layout):
        return [*gm.PackedDataset(path, layout=layout, **options)]

    for layout in ["maxtext"] if masked else ["maxtext", "grain"]:
        for compact, expected in zip(batches("varlen"), batches(layout), strict=True):
            found = gm.expand(compact, layout)
            assert found.keys() == expected.keys()
            for name, array in expected.items():
                np.testing.assert_array_equal(np.asarray(found[name]), array, err_msg=name)


def test_middle_of_a_long_sample_is_cut_with_its_values(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [record_of(1, 11)])
    dataset = gm.PackedDataset(
        path, sample=gm.Tokens(fields=FIELDS), sequence_length=6, packing="pad", truncation="middle", layout="grain"
    )
    [row] = dataset
    assert row["tokens"].tolist() == [100, 101, 102, 108, 109, 110]
    assert row["advantage"].tolist() == [1 + index / 64 for index in (0, 1, 2, 8, 9, 10)]
    assert row["reward"].tolist() == [-0.25]


@pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
def test_ready_ids_make_the_rows_of_the_text_that_they_encode(tmp_path, encoder, packing):
    texts = ["The ant", "", "naïve 🙂 user " * 9, "b", "one two three four"]
    encoded = [encoder.encode(text).tolist() for text in texts]
    text = write_lines(tmp_path / "text.jsonl", [{"text": text} for text in texts])
    ids = write_lines(tmp_path / "ids.jsonl", [{"input_ids": own} for own in encoded])
    options = {"sequence_length": 16, "batch_size": 2, "packing": packing, "tokenizer": encoder}
    expected = [*gm.PackedDataset(text, eos=False, **options)]
    found = [*gm.PackedDataset(ids, sample=gm.Tokens(), **options)]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name, array in other.items():
            np.testing.assert_array_equal(one[name], array)


def test_labels_and_masks_say_what_is_trained(tmp_path):
    record = {"input_ids": [5, 6, 7], "labels": [-100, 6, -100], "mask": [0, 1, 0], "floats": [0.0, 1.0, 0.0]}
    path = write_lines(tmp_path / "a.jsonl", [record])
    for sample in (gm.Tokens(labels="labels"), gm.Tokens(loss_mask="mask"), gm.Tokens(loss_mask="floats")):
        for eos, trained in ((None, [0, 1, 0]), (9, [0, 1, 0, 0])):
            dataset = gm.PackedDataset(path, sample=sample, sequence_length=4, layout="grain", packing="pad", eos=eos)
            [row] = dataset
            assert row["tokens_loss_mask"].tolist()[: len(trained)] == trained
    last = write_lines(tmp_path / "last.jsonl", [{"input_ids": [5, 6], "mask": [0, 1]}])
    options = {"sequence_length": 4, "layout": "grain", "packing": "pad", "eos": 9, "bos": 8}
    [row] = gm.PackedDataset(last, sample=gm.Tokens(loss_mask="mask"), **options)
    assert (row["tokens"].tolist(), row["tokens_loss_mask"].tolist()) == ([8, 5, 6, 9], [0, 0, 1, 1])


def test_columns_of_parquet_and_arrow_have_the_values_of_lines(tmp_path):
    records = [record_of(number, length) for number, length in enumerate((3, 0, 7, 1))]
    columns = {name: [record[name] for record in records] for name in records[0]}
    kinds = {
        "input_ids": pa.large_list(pa.uint16()),
        "mask": pa.list_(pa.bool_()),
        "adv": pa.list_(pa.float64()),
        "top_ids": pa.list_(pa.list_(pa.list_(pa.int64(), 3), 2)),
        "reward": pa.float16(),
        "codes": pa.list_(pa.int8(), 2),
    }
    table = pa.table({name: pa.array(columns[name]).cast(kind) for name, kind in kinds.items()
                      if name != "reward"} | {"reward": pa.array(np.array(columns["reward"], np.float16))})  # fmt: skip
    parquet.write_table(table, tmp_path / "a.parquet")
    feather.write_feather(table, tmp_path / "a.arrow", compression="uncompressed")
    write_lines(tmp_path / "a.jsonl", records)
    options = {"sequence_length": 8, "batch_size": 2, "sample": gm.Tokens(loss_mask="mask", fields=FIELDS,
                                                                      on_untrained="drop")}  # fmt: skip
    expected = [*gm.PackedDataset(tmp_path / "a.jsonl", **options)]
    for name in ("a.parquet", "a.arrow"):
        found = [*gm.PackedDataset(tmp_path / name, **options)]
        for one, other in zip(found, expected, strict=True):
            for key, array in other.items():
                np.testing.assert_array_equal(one[key], array, err_msg=f"{name} {key}")


WRONG = [
    (
        {"input_ids": [1, -1]},
        'expected a list of ids, integers from 0 to 2147483647 under the key "input_ids", found -1',
    ),
    ({"input_ids": [2**31]}, "found 2147483648 at index 0"),
    ({"input_ids": [1, True]}, "found true at index 1"),
    ({"input_ids": [1.0]}, "found 1.0 at index 0"),
    ({"input_ids": "1 2"}, "found a string"),
    ({"input_ids": None}, "found null"),
    ({}, 'expected a list under the key "input_ids", found no such key'),
    ({"mask": [1, 0, 1]}, 'expected a list of 2 under the key "mask", as there are 2 ids, found one of 3'),
    ({"mask": [1, 2]}, "found 2 at index 1"),
    ({"adv": [1.0]}, 'expected a list of 2 numbers, one for each token for the field "advantage" under the key "adv"'),
    ({"adv": [1.0, "x"]}, "found a string"),
    ({"adv": [1.0, None]}, "found null"),
    ({"adv": [1.0, 1e39]}, "which is beyond that"),
    ({"top_ids": [[[1, 1, 1]], [[1, 1, 1], [1, 1, 1]]]}, "expected a list of 2 lists"),
    ({"top_ids": [[[1, 1], [1, 1, 1]], [[1, 1, 1], [1, 1, 1]]]}, "expected a list of 3 numbers"),
    ({"top_ids": [[[1, 1, 2**31], [1, 1, 1]], [[1, 1, 1], [1, 1, 1]]]}, "found 2147483648"),
    ({"top_ids": [[[1, 1, 1.5], [1, 1, 1]], [[1, 1, 1], [1, 1, 1]]]}, "found 1.5"),
    ({"reward": [1]}, "found a list"),
    ({"codes": [1, 256]}, "found 256"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_values_are_located_and_quarantined(tmp_path, change, message):
    records = [record_of(number, 2) for number in range(3)]
    bad = dict(records[1], **change)
    if not change:
        del bad["input_ids"]
    path = write_lines(tmp_path / "a.jsonl", [records[0], bad, records[2]])
    options = {"sample": gm.Tokens(loss_mask="mask", fields=FIELDS, on_untrained="drop"), "sequence_length": 8}
    with pytest.raises(gm.ShardError, match="record 1, byte") as error:
        [*gm.PackedDataset(path, **options)]
    assert message in str(error.value)
    iterator = iter(gm.PackedDataset(path, on_error="quarantine", max_error_rate=1.0, **options))
    rows = [*iterator]
    assert (len(rows), iterator.stats()["quarantined"], iterator.stats()["records"]) == (1, 1, 3)


def test_nan_in_a_column_is_a_bad_record(tmp_path):
    table = pa.table({"input_ids": [[1, 2]], "adv": [[0.5, float("nan")]]})
    parquet.write_table(table, tmp_path / "a.parquet")
    sample = gm.Tokens(fields={"adv": gm.Field()})
    with pytest.raises(gm.ShardError, match="found NaN"):
        [*gm.PackedDataset(tmp_path / "a.parquet", sample=sample, sequence_length=4)]


def test_infinite_values_stay(tmp_path):
    table = pa.table({"input_ids": [[1, 2]], "adv": [[float("-inf"), float("inf")]]})
    parquet.write_table(table, tmp_path / "a.parquet")
    [row] = gm.PackedDataset(
        tmp_path / "a.parquet", sample=gm.Tokens(fields={"adv": gm.Field()}), sequence_length=2, layout="grain"
    )
    assert row["adv"].tolist() == [float("-inf"), float("inf")]


def test_sources_without_a_field_have_zeros(tmp_path):
    with_fields = write_lines(tmp_path / "a.jsonl", [record_of(number, 5) for number in range(8)])
    without = write_lines(tmp_path / "b.jsonl", [{"input_ids": [7] * 5}] * 8)
    fields = {"advantage": FIELDS["advantage"], "reward": FIELDS["reward"]}
    mixture = gm.Mixture(
        {
            "a": gm.Source(with_fields, weight=1, sample=gm.Tokens(fields=fields), epochs=1),
            "b": gm.Source(without, weight=1, sample=gm.Tokens(), epochs=1),
        }
    )
    seen = set()
    for row in gm.PackedDataset(mixture, sequence_length=5, layout="grain", source_arrays=True):
        seen.add(int(row["source"]))
        is_other = row["source"] == 1
        assert (row["advantage"] == 0).all() == is_other or row["tokens"][0] < 100
        assert row["reward"][0] == (0 if is_other else -(row["tokens"][0] // 100) / 4)
    assert seen == {0, 1}
    other = gm.Source(without, weight=1, sample=gm.Tokens(fields={"reward": gm.Field(dtype="int32", per="sample")}))
    with pytest.raises(gm.ArgumentError, match="have other arrays 'reward'"):
        gm.PackedDataset(gm.Mixture({"a": mixture.sources["a"], "b": other}), sequence_length=5)


@pytest.mark.parametrize("kind", ["text", "fim", "completion"])
def test_samples_that_are_encoded_carry_values(tmp_path, encoder, kind):
    records = [{"text": f"word {number} " * 3, "prompt": "a", "completion": "b", "lang": number} for number in range(9)]
    path = write_lines(tmp_path / "a.jsonl", records)
    fields = {"lang": gm.Field(dtype="int64", per="sample")}
    sample = {
        "text": gm.Text("text", fields=fields),
        "fim": gm.Text("text", gm.FillInTheMiddle(1.0, prefix=1, middle=2, suffix=3), fields=fields),
        "completion": gm.Completion(fields=fields),
    }[kind]
    plain = {
        "text": None,
        "fim": gm.Text("text", gm.FillInTheMiddle(1.0, prefix=1, middle=2, suffix=3)),
        "completion": gm.Completion(),
    }[kind]
    options = {"tokenizer": encoder, "eos": False, "sequence_length": 64, "batch_size": 2, "packing": "best_fit",
               "provenance": True, "max_segments": 16, "keep": "lang != 4"}  # fmt: skip
    batches = [*gm.PackedDataset(path, sample=sample, **options)]
    expected = [*gm.PackedDataset(path, sample=plain, **options)]
    for batch, other in zip(batches, expected, strict=True):
        np.testing.assert_array_equal(batch["inputs"], other["inputs"])
        records, lengths = batch["provenance"][..., 1], batch["provenance"][..., 3]
        np.testing.assert_array_equal(batch["lang"], np.where(lengths > 0, records, 0))
        assert batch["lang"].dtype == np.int64


def test_resume_and_hosts_change_nothing(tmp_path):
    for shard in range(4):
        lines = [record_of(number, (number * 7 + shard) % 13, 1000 * shard) for number in range(20)]
        write_lines(tmp_path / f"{shard}.jsonl", lines)
    options = {"sample": gm.Tokens(fields=FIELDS), "sequence_length": 8, "batch_size": 4, "lanes": 4, "seed": 1,
               "shuffle_window": 4, "packing": "best_fit"}  # fmt: skip
    dataset = gm.PackedDataset(str(tmp_path / "*.jsonl"), **options)
    batches = [*dataset]
    iterator = iter(dataset)
    for step in range(len(batches)):
        state = iterator.get_state()
        other = iter(dataset)
        other.set_state(state)
        for name, array in next(other).items():
            np.testing.assert_array_equal(array, batches[step][name])
        next(iterator)
    halves = [[*dataset.for_hosts(index, 2, equal_steps=True)] for index in range(2)]
    for step, batch in enumerate(batches):
        for name, array in batch.items():
            joined = np.concatenate([half[step][name] for half in halves])
            np.testing.assert_array_equal(joined, array)


def write_megatron(prefix, documents, dtype="uint16", code=8):
    """Files of Megatron: each document is a list of sequences."""
    sequences = [sequence for document in documents for sequence in document]
    lengths = [len(sequence) for sequence in sequences]
    flat = np.array([token for sequence in sequences for token in sequence], dtype)
    prefix.with_suffix(".bin").write_bytes(flat.tobytes())
    offsets = np.cumsum([0, *lengths[:-1]] if lengths else []) * np.dtype(dtype).itemsize
    borders = np.cumsum([0, *map(len, documents)])
    prefix.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sequences), len(borders))
        + np.array(lengths, np.int32).tobytes() + offsets.astype(np.int64).tobytes()
        + borders.astype(np.int64).tobytes()
    )  # fmt: skip
    return prefix.with_suffix(".bin")


CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
DOCUMENTS = [[[1, 2, 3]], [[]], [[4], [5, 6]], [], [[7] * 20], [[8, 9]]] * 5
FLAT = [[token for sequence in document for token in sequence] for document in DOCUMENTS]


def documents_of(path, **options):
    """The documents that a file is read as."""
    dataset = gm.PackedDataset(path, **{"sample": gm.Tokens(), "lanes": 1, "sequence_length": 32, **options},
                               packing="pad", layout="varlen", truncation="error")  # fmt: skip
    iterator = iter(dataset)
    found = [row["tokens"][: row["seq_lens"].sum()].tolist() for row in iterator]
    return found, iterator.stats()


@pytest.mark.parametrize("dtype", CODES)
def test_files_of_megatron_hold_documents(tmp_path, dtype):
    path = write_megatron(tmp_path / "a", DOCUMENTS, dtype, CODES[dtype])
    found, stats = documents_of(path)
    assert found == [own for own in FLAT if own]
    assert (stats["records"], stats["documents"]) == (len(FLAT), len(FLAT))
    assert documents_of(path, eos=9)[0] == [[*own, 9] for own in FLAT if own]
    for split_bytes in (1, 7, 40):
        found, stats = documents_of(path, split_bytes=split_bytes)
        assert (found, stats["records"]) == ([own for own in FLAT if own], len(FLAT))


@pytest.mark.parametrize("name", ["saved.npy", "bare.npy", "bare.bin"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "uint32", "int64"])
def test_arrays_of_ids_have_borders(tmp_path, name, dtype):
    numbers = np.array([token for own in FLAT for token in [*own, 50]] + [1, 2], dtype)
    is_saved = name == "saved.npy"
    if is_saved:
        np.save(tmp_path / name, numbers)
    else:
        numbers.tofile(tmp_path / name)
    expected = [[*own, 50] for own in FLAT] + [[1, 2]]
    sample = gm.Tokens(dtype=None if is_saved else dtype)
    for split_bytes in (0, 1, 3, 64):
        assert documents_of(tmp_path / name, sample=sample, eos=50, split_bytes=split_bytes)[0] == expected
    missing = documents_of(tmp_path / name, sample=sample, eos=99, sequence_length=4096)[0]
    assert missing == [numbers.tolist()]


def test_long_documents_of_arrays_are_bad_records_and_not_held(tmp_path):
    np.save(tmp_path / "a.npy", np.array([1, 2, 9] + [3] * 200_000 + [9, 4, 9], np.uint16))
    options = {"eos": 9, "max_document_bytes": 1000, "on_error": "quarantine", "max_error_rate": 1.0}
    found, stats = documents_of(tmp_path / "a.npy", **options)
    assert (found, stats["quarantined"]) == ([[1, 2, 9], [4, 9]], 1)


def test_arrays_resume_between_documents(tmp_path):
    numbers = [token for own in FLAT for token in [*own, 50]]
    np.save(tmp_path / "a.npy", np.array(numbers, np.uint32))
    write_megatron(tmp_path / "b", DOCUMENTS)
    for path, eos in ((tmp_path / "a.npy", 50), (tmp_path / "b.bin", None)):
        dataset = gm.PackedDataset(path, sample=gm.Tokens(), eos=eos, sequence_length=8, batch_size=1)
        rows = [batch["inputs"].tolist() for batch in dataset]
        iterator = iter(dataset)
        for step in range(len(rows)):
            other = iter(dataset)
            other.set_state(iterator.get_state())
            assert [batch["inputs"].tolist() for batch in other] == rows[step:]
            next(iterator)


def damaged_index(change):
    def write(folder):
        path = write_megatron(folder / "a", DOCUMENTS)
        index = folder / "a.idx"
        index.write_bytes(change(index.read_bytes()))
        return path

    return write


def array(**options):
    def write(folder):
        np.save(folder / "a.npy", **options)
        return folder / "a.npy"

    return write


def cut_bin(folder):
    path = write_megatron(folder / "a", DOCUMENTS)
    path.write_bytes(path.read_bytes()[:-2])
    return path


def without_index(folder):
    path = write_megatron(folder / "a", DOCUMENTS)
    path.with_suffix(".idx").unlink()
    return path


FAULTS = [
    (without_index, "expected its index beside it"),
    (damaged_index(lambda index: b"x" + index[1:]), "found another file"),
    (damaged_index(lambda index: b"TNTIDX\0\0" + index[8:]), "fairseq's old format"),
    (damaged_index(lambda index: index[:20]), "a truncated one"),
    (damaged_index(lambda index: index[:-8]), "bytes where"),
    (damaged_index(lambda index: index[:17] + b"\x07" + index[18:]), "floats, which are no ids"),
    (damaged_index(lambda index: index[:17] + b"\x09" + index[18:]), "the type 9"),
    (damaged_index(lambda index: index[:9] + b"\x02" + index[10:]), "version 2"),
    (damaged_index(lambda index: index + bytes(30)), "modes of sequences"),
    (cut_bin, "it is truncated, or of another .idx"),
    (array(arr=np.zeros((2, 2), np.uint16)), "expected an array of one axis, found the shape (2, 2)"),
    (array(arr=np.zeros(2, np.float32)), "found the type '<f4'"),
    (array(arr=np.zeros(2, ">u2")), "found the type '>u2'"),
    (array(arr=np.array([5, -3, 9], np.int32)), "found -3 at index 1"),
]


@pytest.mark.parametrize(("write", "message"), FAULTS)
def test_damaged_files_of_ids_are_located(tmp_path, write, message):
    path = write(tmp_path)
    dataset = gm.PackedDataset(path, sample=gm.Tokens(), eos=9, sequence_length=8, packing="pad")
    with pytest.raises(gm.ShardError) as error:
        list(dataset)
    assert message in str(error.value).replace('"', "'")
    assert f"{path}: record " in str(error.value)


def test_what_files_of_ids_lack_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([1, 9], np.uint16))
    for options, message in [
        ({"sample": gm.Tokens()}, "set eos= to the one that ends each document"),
        ({"sample": gm.Tokens(loss_mask="mask"), "eos": 9}, "a file of ids has no keys"),
        ({"sample": gm.Tokens(fields={"reward": gm.Field(per="sample")}), "eos": 9}, "a file of ids has no keys"),
        ({"sample": gm.Tokens(), "eos": 9, "keep": "score > 1"}, "a file of ids has no keys"),
    ]:
        with pytest.raises(gm.ArgumentError, match=message):
            [*gm.PackedDataset(tmp_path / "a.npy", sequence_length=4, **options)]
    sample = gm.Tokens(dtype="uint32")
    with pytest.raises(gm.ShardError, match=r"expected uint32, as dtype= of .* says, found uint16"):
        [*gm.PackedDataset(tmp_path / "a.npy", sequence_length=4, sample=sample, eos=9)]


def test_arguments_are_checked(tmp_path, encoder):
    path = write_lines(tmp_path / "a.jsonl", [record_of(0, 3)])
    wrong = [
        (lambda: gm.Field(dtype="float64"), "expected one of"),
        (lambda: gm.Field(shape=(1, 2, 3)), "expected at most two axes"),
        (lambda: gm.Field(shape=(0,)), "shape"),
        (lambda: gm.Field(per="row"), "per"),
        (lambda: gm.Tokens(loss_mask="a", labels="b"), "leave one of them out"),
        (lambda: gm.Tokens(dtype="float32"), "dtype"),
        (lambda: gm.Text("text", fields={"a": gm.Field()}), "expected per='sample'"),
        (lambda: gm.PackedDataset(path, sample=gm.Text("text")), "tokenizer=None"),
        (lambda: gm.PackedDataset(path, sample=gm.Tokens(), eos="</s>"), "ids without tokenizer= have no spellings"),
        (
            lambda: gm.PackedDataset(path, sample=gm.Tokens(fields={"inputs": gm.Field("reward", per="sample")})),
            "the batch has an array of that name already",
        ),
    ]
    for make, message in wrong:
        with pytest.raises((gm.ArgumentError, gm.ArgumentTypeError)) as error:
            make()
        assert message in str(error.value), message


def test_rows_of_fields_are_written_to_files(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [record_of(number, number % 9) for number in range(30)])
    for layout in ("maxtext", "grain", "hf"):
        options = {"sample": gm.Tokens(fields=FIELDS), "sequence_length": 8, "batch_size": 2, "layout": layout,
                   "packing": "best_fit"}  # fmt: skip
        dataset = gm.PackedDataset(path, **options)
        expected = [{name: array[row] for name, array in batch.items()} for batch in dataset for row in range(2)]
        for form in ("npy", "parquet"):
            folder = tmp_path / f"{layout}-{form}"
            gm.pack(dataset, folder, format=form)
            rows = gm.PackedRows(folder)
            filled = [row for row in expected if any(array.any() for array in row.values())]
            assert len(rows) == len(filled)
            for number, other in enumerate(filled):
                found = rows[number]
                assert found.keys() == other.keys()
                for name, values in other.items():
                    assert found[name].dtype == values.dtype
                    np.testing.assert_array_equal(found[name], values)


def test_files_of_ids_are_read_from_stores(tmp_path):
    for number in range(3):
        write_megatron(tmp_path / f"{number}", DOCUMENTS)
    np.save(tmp_path / "a.npy", np.array([token for own in FLAT for token in [*own, 50]], np.uint16))
    options = {"sample": gm.Tokens(), "sequence_length": 8, "batch_size": 1, "split_bytes": 64}
    with Server({f"bucket/{path.name}": path.read_bytes() for path in tmp_path.iterdir()}) as server:
        for pattern, eos in (("*.bin", None), ("a.npy", 50)):
            remote = gm.PackedDataset(
                f"s3://bucket/{pattern}", storage_options=server.options(), eos=eos, lanes=1, **options
            )
            local = gm.PackedDataset(str(tmp_path / pattern), eos=eos, lanes=1, **options)
            assert [batch["inputs"].tolist() for batch in remote] == [batch["inputs"].tolist() for batch in local]
    with Server({"bucket/a.bin": (tmp_path / "0.bin").read_bytes()}) as server:
        remote = gm.PackedDataset("s3://bucket/a.bin", storage_options=server.options(), **options | {"split_bytes": 0})
        with pytest.raises(gm.ShardError, match=r"expected its index beside it, found no s3://bucket/a\.idx"):
            list(remote)
