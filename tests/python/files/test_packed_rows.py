"""`PackedRows`: the rows of packed folders by their number."""

import concurrent.futures
import pickle
import re

import grain
import numpy as np
import pytest

import gristmill as gm
from gristmill._files import packed_rows
from megatron_reader import read_as_megatron_does


@pytest.fixture(autouse=True)
def few_open_parts(monkeypatch):
    monkeypatch.setattr(packed_rows, "_OPEN_PARTS", 2)


def npy_rows(folder):
    return np.concatenate([np.load(path) for path in sorted(folder.glob("*.npy"))])


@pytest.mark.parametrize("file_format", ["npy", "array_record", "parquet"])
def test_rows_are_those_of_the_files_in_order(tmp_path, pack, file_format):
    pack(tmp_path / "npy")
    expected = npy_rows(tmp_path / "npy")
    pack(tmp_path / "packed", "--format", file_format)
    rows = gm.PackedRows(tmp_path / "packed")
    assert (len(rows), rows.sequence_length) == (len(expected), 128)
    names = ("inputs", "inputs_segmentation", "inputs_position")
    assert rows.fields[:3] == tuple(sorted(names, key=rows.fields.index))
    for number in [*np.random.default_rng(1).permutation(len(rows)), np.int64(0), -1]:
        row = rows[number]
        assert list(row) == list(rows.fields)
        np.testing.assert_array_equal(np.stack(list(row.values())), expected[number])
        assert {(array.dtype, array.shape) for array in row.values()} == {(np.dtype(np.int32), (128,))}
    row["inputs"][:] = 0  # a copy
    np.testing.assert_array_equal(rows[-1]["inputs"], expected[-1][rows.fields.index("inputs")])


def test_documents_of_megatron_files(tmp_path, pack):
    pack(tmp_path, "--format", "megatron")
    expected = [ids for path in sorted(tmp_path.glob("*.idx")) for ids in read_as_megatron_does(path.with_suffix(""))]
    rows = gm.PackedRows(tmp_path)
    assert len(rows) == len(expected)
    for row, ids in zip(rows, expected, strict=True):
        assert row["inputs"].dtype == np.int32
        np.testing.assert_array_equal(row["inputs"], ids)


def test_folders_of_several_hosts_follow_one_another(tmp_path, pack):
    for host in range(2):
        pack(tmp_path / f"{host}", "--shard-index", str(host), "--shard-count", "2")
    expected = np.concatenate([npy_rows(tmp_path / f"{host}") for host in range(2)])
    rows = gm.PackedRows([tmp_path / "0", tmp_path / "1"])
    inputs = rows.fields.index("inputs")
    np.testing.assert_array_equal([row["inputs"] for row in rows], expected[:, inputs])


def test_grain_shuffles_and_every_number_of_hosts_continues(tmp_path, pack):
    pack(tmp_path)
    rows = gm.PackedRows(tmp_path)
    shuffled = grain.MapDataset.source(rows).seed(3).shuffle().repeat(2)

    def steps(hosts, begin, end):
        """The inputs of global batches of four rows, read by some hosts from a saved state."""
        iterators = []
        for host in range(hosts):
            iterator = iter(shuffled.batch(4 // hosts)[host::hosts].to_iter_dataset())
            iterator.set_state({**iterator.get_state(), "next_index": begin})
            iterators.append(iterator)
        return [np.concatenate([next(one)["inputs"] for one in iterators]) for _ in range(begin, end)]

    total = 2 * len(rows) // 4
    expected = steps(1, 0, total)
    assert sorted(map(bytes, np.concatenate(expected)[: len(rows)])) == sorted(row["inputs"].tobytes() for row in rows)
    np.testing.assert_array_equal(steps(2, 0, 5) + steps(4, 5, total - 3) + steps(1, total - 3, total), expected)


def test_rows_are_pickled_and_read_by_threads(tmp_path, pack):
    pack(tmp_path)
    rows = gm.PackedRows(tmp_path)
    copy = pickle.loads(pickle.dumps(rows))
    assert repr(copy) == repr(rows)
    numbers = np.random.default_rng(0).integers(len(rows), size=400).tolist()
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        found = list(threads.map(copy.__getitem__, numbers))
    np.testing.assert_array_equal([row["inputs"] for row in found], [rows[number]["inputs"] for number in numbers])


def test_failure_of_python_while_another_thread_parses_is_tried_again(tmp_path, pack, monkeypatch):
    pack(tmp_path / "packed")
    load, failures = np.load, iter(range(3))

    def failing(*arguments, **named):
        if next(failures, None) is not None:
            raise SystemError("AST constructor recursion depth mismatch (before=84, after=83)")
        return load(*arguments, **named)

    monkeypatch.setattr(np, "load", failing)
    assert gm.PackedRows(tmp_path / "packed")[0]["inputs"].shape == (128,)


def test_repr_names_the_rows_and_not_their_place(tmp_path, pack):
    pack(tmp_path / "a")
    before = repr(gm.PackedRows(tmp_path / "a"))
    (tmp_path / "a").rename(tmp_path / "b")
    assert repr(gm.PackedRows(tmp_path / "b")) == before


def test_rows_outside_are_index_errors(tmp_path, pack):
    pack(tmp_path)
    rows = gm.PackedRows(str(tmp_path))
    for number in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError, match=f"row {number} of {len(rows)}"):
            rows[number]
    with pytest.raises(TypeError):
        rows["inputs"]


def test_folder_that_cannot_be_read_is_named(tmp_path, pack):
    with pytest.raises(gm.MissingShardError, match="no packed files in"):
        gm.PackedRows(tmp_path / "none")
    with pytest.raises(gm.ArgumentError, match="at least one folder"):
        gm.PackedRows([])
    pack(tmp_path / "packed")
    index = tmp_path / "packed/index.json"
    index.write_text(index.read_text().replace('"complete": true', '"complete": false'))
    with pytest.raises(gm.GristmillError, match="is not complete: run the same gristmill pack command again"):
        gm.PackedRows(tmp_path / "packed")


@pytest.mark.parametrize(
    ("option", "name"), [(("--sequence-length", "64"), "sequence_length"), (("--field", "inputs"), "fields")]
)
def test_folders_of_other_rows_are_refused(tmp_path, pack, option, name):
    pack(tmp_path / "a")
    pack(tmp_path / "b", *option)
    with pytest.raises(gm.ArgumentError, match=rf"folder='{re.escape(str(tmp_path / 'b'))}': expected {name} "):
        gm.PackedRows([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize("file_format", ["npy", "array_record", "megatron", "parquet"])
def test_damaged_part_is_named_when_it_is_read(tmp_path, pack, file_format):
    pack(tmp_path, "--format", file_format)
    rows = gm.PackedRows(tmp_path)
    damaged = sorted(path for path in tmp_path.glob("part-00001.*") if path.suffix != ".json")[0]
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1])
    assert rows[0]["inputs"].size
    with pytest.raises(gm.GristmillError, match=r"part-00001, item 0: .*restore the file, or pack again"):
        rows[rows._ends[0]]
    damaged.unlink()
    with pytest.raises(gm.GristmillError, match=r"part-00001, item 0: .* is missing; restore"):
        rows[rows._ends[0]]
    damaged.write_bytes(whole)
    assert rows[rows._ends[0]]["inputs"].size
