"""`gristmill pack`: the files hold the rows of the dataset, also after kills, interrupts and full disks."""

import base64
import errno
import gzip
import json
import os
import re
import shutil
import signal
import stat
import sys
import weakref
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import gristmill as gm
from command_line import checked, shard_of
from gristmill._cli import main
from gristmill._dataset.stream import Stream
from gristmill._files import megatron, parquet
from gristmill._files import pack as pack_module
from gristmill._files.folder import Folder
from gristmill._files.row_items import Documents
from gristmill._util import atomic_files
from gristmill._util.folder_lock import locked
from helpers import start_python
from megatron_reader import read_as_megatron_does

PACKING = [
    [],
    ["--packing", "best_fit", "--seed", "3", "--layout", "grain", "--shuffle-window", "40"],
    ["--packing", "pad", "--layout", "hf", "--truncation", "split", "--epochs", "2"],
    ["--packing", "best_fit", "--truncation", "middle"],
]


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name != ".lock"}


def dataset_of(shards, encoder, options, **more):
    arguments = {option[2:].replace("-", "_"): value for option, value in zip(options[::2], options[1::2], strict=True)}
    numbers = {name: int(value) for name, value in arguments.items() if value.isdigit()}
    return gm.PackedDataset(
        shards,
        tokenizer=encoder,
        text_field="raw_content",
        **{"sequence_length": 128, "batch_size": 16, **arguments, **numbers, **more},
    )


def test_quarantine_file_is_synced_once_per_part(tmp_path, pack, monkeypatch):
    """And not each time the progress is shown, which happens more often."""
    syncs = []
    monkeypatch.setattr(pack_module, "_SHOW_SECONDS", 0)
    monkeypatch.setattr(Stream, "sync", lambda stream: syncs.append(stream))
    parts = pack(tmp_path)["parts"]
    assert len(syncs) == parts > 2


@pytest.mark.parametrize("options", PACKING)
def test_npy_parts_hold_the_rows_of_the_dataset(tmp_path, pack, shards, encoder, options):
    found = pack(tmp_path, *options)
    index = json.loads((tmp_path / "index.json").read_text())
    assert index["complete"]
    parts = [np.load(tmp_path / name, mmap_mode="r") for part in index["parts"] for name in part["files"]]
    assert [len(part) for part in parts] == [part["items"] for part in index["parts"]]
    assert len(parts) > 2
    elements = list(dataset_of(shards, encoder, options))
    segments = next(name for name in index["fields"] if name.endswith(("segmentation", "segment_ids", "mask")))
    rows = sum(len(element[segments]) for element in elements)
    for column, name in enumerate(index["fields"]):
        expected = np.concatenate([element[name][element[segments].any(axis=1)] for element in elements])
        np.testing.assert_array_equal(np.concatenate([part[:, column] for part in parts]), expected)
    assert found["items"] == len(expected) <= rows
    assert found["tokens"] == sum(np.count_nonzero(element[segments]) for element in elements)


def test_pieces_of_a_filtered_parquet_file_are_packed(tmp_path, texts, encoder, tokenizer_file, capsys):
    rows = [{"text": text, "n": number} for number, text in enumerate(texts)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "one.parquet", row_group_size=10)
    settings = {"keep": "n % 3 != 0", "split_bytes": 20_000, "lanes": 4, "batch_size": 4, "sequence_length": 64}
    options = [text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    files = [tmp_path / "one.parquet", "--tokenizer", tokenizer_file, "--output", tmp_path / "packed"]
    code, found = checked(capsys, "pack", *files, *options)
    assert (code, found["documents"]) == (0, sum(row["n"] % 3 != 0 for row in rows))
    dataset = gm.PackedDataset(tmp_path / "one.parquet", tokenizer=encoder, **settings)
    assert len(dataset.pieces) > 4
    expected = np.concatenate([element["inputs"][element["inputs_segmentation"].any(axis=1)] for element in dataset])
    np.testing.assert_array_equal(np.load(tmp_path / "packed/part-00000.npy")[:, 0], expected)
    assert checked(capsys, "verify", tmp_path / "packed")[0] == 0


def test_pack_writes_chosen_fields_in_their_order(tmp_path, pack, capsys):
    pack(tmp_path / "all")
    pack(tmp_path / "some", "--field", "targets", "--field", "inputs")
    rows, some = (np.load(tmp_path / name / "part-00001.npy") for name in ("all", "some"))
    np.testing.assert_array_equal(some, rows[:, [3, 0]])
    assert checked(capsys, "inspect", tmp_path / "some")[1]["fields"] == ["targets", "inputs"]
    assert checked(capsys, "verify", tmp_path / "some")[0] == 0


def test_array_records_hold_the_same_rows(tmp_path, pack):
    import grain

    pack(tmp_path / "npy")
    pack(tmp_path / "records", "--format", "array_record")
    source = grain.sources.ArrayRecordDataSource(sorted(map(str, (tmp_path / "records").glob("*.array_record"))))
    rows = np.concatenate([np.load(path) for path in sorted((tmp_path / "npy").glob("*.npy"))])
    assert len(source) == len(rows)
    for number in (0, 1, len(rows) // 2, len(rows) - 1):
        np.testing.assert_array_equal(np.frombuffer(source[number], "<i4").reshape(6, 128), rows[number])


def test_parquet_files_hold_the_same_rows(tmp_path, pack):
    import datasets

    pack(tmp_path / "npy")
    pack(tmp_path / "packed", "--format", "parquet")
    files = sorted(map(str, (tmp_path / "packed").glob("*.parquet")))
    rows = np.concatenate([np.load(path) for path in sorted((tmp_path / "npy").glob("*.npy"))])
    fields = gm.PackedRows(tmp_path / "npy").fields
    table = pq.read_table(files)
    assert tuple(table.column_names) == fields
    loaded = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    loaded = loaded.with_format("numpy")
    assert (len(table), len(loaded)) == (len(rows), len(rows))
    for number, name in enumerate(fields):
        assert str(table.schema.field(name).type) == "fixed_size_list<element: int32 not null>[128]"
        np.testing.assert_array_equal(table.column(name).to_pylist(), rows[:, number])
        np.testing.assert_array_equal(loaded[name], rows[:, number])


def test_row_groups_of_parquet_files_are_bounded(tmp_path, pack, monkeypatch):

    pack(tmp_path / "whole", "--format", "parquet")
    monkeypatch.setattr(parquet, "_GROUP_BYTES", 3 * 6 * 128 * 4 + 1)
    pack(tmp_path / "packed", "--format", "parquet")
    pack(tmp_path / "again", "--format", "parquet", "--threads", "1")
    for path in (tmp_path / "packed").glob("*.parquet"):
        found = pq.read_metadata(path)
        groups = [found.row_group(group).num_rows for group in range(found.num_row_groups)]
        assert groups == [3] * (found.num_rows // 3) + [found.num_rows % 3] * (found.num_rows % 3 > 0)
        assert found.row_group(0).column(0).compression == "ZSTD"
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
    rows, whole = gm.PackedRows(tmp_path / "packed"), gm.PackedRows(tmp_path / "whole")
    for number in np.random.default_rng(1).permutation(len(whole)):
        for name in whole.fields:
            np.testing.assert_array_equal(rows[number][name], whole[number][name])


def test_parquet_without_pyarrow_names_the_extra(tmp_path, packing, pack, monkeypatch, capsys):
    pack(tmp_path / "packed", "--format", "parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for arguments in (packing(tmp_path / "other", "--format", "parquet"), ("verify", tmp_path / "packed")):
        code, said = checked(capsys, *arguments)
        assert (code, "pip install 'gristmill[parquet]'" in said) == (1, True)
    assert not (tmp_path / "other").exists()
    with pytest.raises(gm.MissingExtraError, match="needs pyarrow"):
        gm.PackedRows(tmp_path / "packed")[0]


def test_parquet_of_other_columns_is_a_difference(tmp_path, pack, capsys):
    pack(tmp_path / "all", "--format", "parquet")
    pack(tmp_path / "some", "--format", "parquet", "--field", "inputs")
    note = tmp_path / "all/part-00001.json"
    content = (tmp_path / "some/part-00001.parquet").read_bytes()
    (tmp_path / "all/part-00001.parquet").write_bytes(content)
    noted = json.loads(note.read_text())
    noted["files"]["part-00001.parquet"] = len(content)
    note.write_text(json.dumps(noted))
    index = tmp_path / "all/index.json"
    listed = json.loads(index.read_text())
    listed["parts"][1]["files"] = noted["files"]
    index.write_text(json.dumps(listed))
    code, found = checked(capsys, "verify", tmp_path / "all", "--part", 1)
    assert (code, "expected columns inputs of " in found["difference"]["what"]) == (3, True)


def test_started_document_does_not_keep_its_batch_alive():
    unit = Documents("inputs_segmentation", ["inputs"], lanes=2)
    ones = np.ones((2, 8), np.int32)
    batch = {"inputs": ones.copy(), "inputs_segmentation": ones, "targets_segmentation": ones}
    kept = weakref.ref(batch["inputs"])
    assert unit.take(batch) == []
    del batch
    assert kept() is None
    ids = base64.b64encode(np.ones(8, "<i4").tobytes()).decode()
    assert unit.pending() == [ids] * 2


def test_megatron_files_hold_whole_documents(tmp_path, pack, texts, encoder, capsys):
    found = pack(tmp_path, "--format", "megatron", "--rows-per-file", 60)
    prefixes = sorted(path.with_suffix("") for path in tmp_path.glob("*.idx"))
    assert len(prefixes) > 2
    documents = [document for prefix in prefixes for document in read_as_megatron_does(prefix)]
    assert {document.dtype for document in documents} == {np.dtype(np.uint16)}  # a vocabulary of 600
    expected = sorted([*encoder.encode(text).tolist(), encoder.eos_id] for text in texts[:340])
    assert sorted(document.tolist() for document in documents) == expected
    assert found["items"] == 340
    code, shown = checked(capsys, "inspect", f"{prefixes[0]}.idx")
    assert (code, shown["kind"], shown["dtype"]) == (0, "megatron", "uint16")
    assert shown["documents"] == shown["sequences"] == len(read_as_megatron_does(prefixes[0]))
    assert main.run(["inspect", f"{prefixes[0]}.idx"]) == 0
    assert "begins with" in capsys.readouterr().out


@pytest.mark.parametrize("truncation", ["right", "left"])
def test_megatron_documents_are_cut(tmp_path, pack, texts, encoder, truncation):
    pack(tmp_path, "--format", "megatron", "--rows-per-file", 60, "--truncation", truncation, "--sequence-length", 40)
    prefixes = [path.with_suffix("") for path in tmp_path.glob("*.idx")]
    found = sorted(document.tolist() for prefix in prefixes for document in read_as_megatron_does(prefix))
    whole = ([*encoder.encode(text).tolist(), encoder.eos_id] for text in texts[:340])
    assert found == sorted(ids[:40] if truncation == "right" else ids[-40:] for ids in whole)


@pytest.mark.parametrize(("id_of_eos", "dtype"), [(65_499, np.uint16), (65_500, np.int32), (70_000, np.int32)])
def test_megatron_dtype_fits_the_largest_id(tmp_path, pack, tokenizer_json, id_of_eos, dtype):
    definition = json.loads(tokenizer_json)
    (added,) = [token for token in definition["added_tokens"] if token["content"] == "</s>"]
    added["id"] = definition["model"]["vocab"]["</s>"] = id_of_eos
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    pack(tmp_path / "packed", "--format", "megatron", "--tokenizer", tmp_path / "tokenizer.json", "--eos", "</s>")
    documents = read_as_megatron_does(tmp_path / "packed" / "part-00000")
    assert {document.dtype for document in documents} == {np.dtype(dtype)}
    assert {document[-1] for document in documents} == {id_of_eos}


def test_megatron_writer_refuses_ids_that_do_not_fit(tmp_path):
    writer = megatron.Writer(tmp_path / "part", "<u2", ["inputs"], 128)
    with pytest.raises(gm.GristmillError, match="the id 65536 does not fit into uint16"):
        writer.write([np.array([1, 2**16], np.int32)])
    writer.close()


@pytest.mark.slow
def test_every_megatron_part_holds_a_document(tmp_path, pack, capsys, monkeypatch):
    """Also where documents are longer than parts: readers cannot map an empty file into memory."""
    options = ["--format", "megatron", "--rows-per-file", 1, "--sequence-length", 16, "--batch-size", 8]
    pack(tmp_path / "whole", *options)
    parts = json.loads((tmp_path / "whole" / "index.json").read_text())["parts"]
    assert len(parts) > 50
    assert all(part["items"] > 0 and 0 not in part["files"].values() for part in parts)
    assert max(part["batches"] for part in parts) > 1
    assert checked(capsys, "verify", tmp_path / "whole")[1]["equal"]
    write_note = Folder.write_note

    def killed(folder, note):
        write_note(folder, note)
        if note["number"] == 20:
            raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "write_note", killed)
        with pytest.raises(KilledError):
            pack(tmp_path / "killed", *options)
    assert pack(tmp_path / "killed", *options)["parts_of_earlier_runs"] == 21
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


class KilledError(BaseException):
    """Like a kill: nothing in the package expects it."""


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["npy", "megatron", "array_record", "parquet"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_pack_resumes_after_a_kill_at_any_file(tmp_path, pack, packing, file_format, moment, monkeypatch):
    """Each run is killed before or after the next file is renamed, until the folder is complete."""
    options = ["--format", file_format, "--seed", "7", "--shuffle-window", "50"]
    pack(tmp_path / "whole", *options)
    finish = atomic_files.finish
    calls = []

    def killed(path):
        first_time = path.name not in calls
        calls.append(path.name)
        if moment == "before" and first_time:
            raise KilledError
        finish(path)
        if moment == "after" and first_time:
            raise KilledError

    monkeypatch.setattr(atomic_files, "finish", killed)
    ends = 0
    while True:
        try:
            result = pack(tmp_path / "killed", *options)
        except KilledError:
            ends += 1
            assert ends < 100
            continue
        break
    assert ends >= 5
    assert result["parts_of_earlier_runs"] == result["parts"] or moment == "before"
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_pack_resumes_killed_process_and_keeps_complete_folder(tmp_path, pack, packing):
    whole = pack(tmp_path / "whole", "--epochs", 6)
    folder = tmp_path / "killed"
    code = """
    import sys, time
    from gristmill._cli import main
    from gristmill._files import pack

    finish = pack._Part.finish

    def finish_and_linger(part, *behind):
        holds = finish(part, *behind)
        if part._number == 1:
            print("two parts", flush=True)
            time.sleep(100)
        return holds

    pack._Part.finish = finish_and_linger
    main.main(sys.argv[1:])
    """
    process = start_python(code, arguments=packing(folder, "--epochs", 6))
    assert process.stdout.readline() == "two parts\n", process.communicate()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    resumed = pack(folder, "--epochs", 6)
    assert resumed["parts_of_earlier_runs"] == 2
    assert contents(folder) == contents(tmp_path / "whole")
    times = {path: path.stat().st_mtime_ns for path in folder.glob("part*")}
    again = pack(folder, "--epochs", 6)
    assert again["parts_of_earlier_runs"] == again["parts"] == whole["parts"]
    assert {path: path.stat().st_mtime_ns for path in folder.glob("part*")} == times


def test_pack_resumes_after_a_full_disk(tmp_path, pack, packing, capsys, monkeypatch):
    pack(tmp_path / "whole")
    fsync, calls = os.fsync, []

    def full(file):
        calls.append(file)
        if len(calls) == 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    monkeypatch.setattr(os, "fsync", full)
    code, said = checked(capsys, *packing(tmp_path / "full"))
    assert code == 1
    assert "cannot write into" in said
    assert "No space left on device; run the same command again to resume after the last finished part" in said
    assert pack(tmp_path / "full")["parts_of_earlier_runs"] == 2
    assert contents(tmp_path / "full") == contents(tmp_path / "whole")


def test_files_do_not_depend_on_threads(tmp_path, pack):
    pack(tmp_path / "one", "--threads", 1)
    pack(tmp_path / "three", "--threads", 3, "--prefetch", 1)
    one, three = contents(tmp_path / "one"), contents(tmp_path / "three")
    del one["index.json"], three["index.json"]  # it holds the arguments
    assert one == three


def test_pack_refuses_other_settings_folders_and_options(tmp_path, pack, packing, capsys):
    pack(tmp_path / "packed")
    code, said = checked(capsys, *packing(tmp_path / "packed", "--sequence-length", 64))
    assert code == 1
    others = (
        f"error: {tmp_path / 'packed'} already holds files packed with other settings: %s. Choose another folder, "
        "or delete this one\n"
    )
    assert said == others % "sequence_length was 128 and is 64"
    code, said = checked(capsys, *packing(tmp_path / "packed", "--seed", 1))
    assert said == others % "seed was the default (None) and is 1"
    code, said = checked(capsys, *packing(tmp_path / "packed", "--lanes", 2, "--layout", "hf", "--rows-per-file", 10))
    assert (
        said
        == others % "lanes was 8 and is 2, layout was the default (maxtext) and is hf, rows_per_file was 50 and is 10"
    )
    # Another error policy does not count as a difference.
    code, said = checked(capsys, *packing(tmp_path / "packed", "--on-error", "quarantine", "--seed", 1))
    assert said == others % "seed was the default (None) and is 1"
    code, said = checked(capsys, *packing(tmp_path / "packed", "--on-error", "quarantine", "--format", "array_record"))
    assert said == others % "format was npy and is array_record"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    assert "is not empty and does not hold packed files" in checked(capsys, *packing(tmp_path / "other"))[1]
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.txt"]
    with locked(tmp_path / "packed"):
        assert "another process is writing" in checked(capsys, *packing(tmp_path / "packed"))[1]
    for options in (
        ["--packing", "pad"], ["--layout", "hf"], ["--boundary-targets"], ["--max-segments", "2"],
        ["--truncation", "middle"],
    ):  # fmt: skip
        assert checked(capsys, *packing(tmp_path / "new", "--format", "megatron", *options))[0] == 2
    assert checked(capsys, *packing(tmp_path / "new", "--format", "megatron", "--field", "inputs"))[0] == 2
    assert checked(capsys, *packing(tmp_path / "new", "--field", "nothing"))[0] == 2
    assert not (tmp_path / "new").exists()


def test_pack_names_a_shard_that_changed(tmp_path, packing, capsys, shard_folder):
    shutil.copytree(shard_folder, tmp_path / "shards")
    command = packing(tmp_path / "packed")
    command[1] = str(tmp_path / "shards" / "*" / "*.gz")
    assert checked(capsys, *command)[0] == 0
    larger = tmp_path / "shards" / "0005" / "en_head.json.gz"
    larger.write_bytes(larger.read_bytes() + gzip.compress(b"\n"))
    assert checked(capsys, *command) == (
        1,
        f"error: {tmp_path}/packed already holds files packed with other settings: the shards are not those that were "
        f"packed (of another size: {larger}). Choose another folder, or delete this one\n",
    )


def test_pack_checks_arguments_before_making_the_folder(tmp_path, packing, tokenizer_file, capsys):
    quarantine = ["--on-error", "quarantine"]
    (tmp_path / "file").touch()
    code, said = checked(capsys, *packing(tmp_path / "file" / "packed", *quarantine))
    assert (code, said.count("\n")) == (1, 1)
    assert f"cannot write into '{tmp_path}/file/packed': Not a directory; choose another folder" in said
    no_shards = ["pack", tmp_path / "none.gz", "--tokenizer", tokenizer_file, "--output", tmp_path / "new"]
    assert "no such file" in checked(capsys, *no_shards, *quarantine)[1]
    assert "--lanes 5: " in checked(capsys, *packing(tmp_path / "new", *quarantine, "--lanes", 5))[1]
    assert checked(capsys, *packing(tmp_path / "new", *quarantine, "--field", "nothing"))[0] == 2
    assert not (tmp_path / "new").exists()
    listed = ["--quarantine-file", tmp_path / "new" / "bad.jsonl"]
    assert checked(capsys, *packing(tmp_path / "new", *quarantine, *listed))[0] == 0


def test_pack_keeps_foreign_files(tmp_path, pack, packing, capsys):
    pack(tmp_path / "a")
    stray = tmp_path / "a/part-notes.txt"
    stray.write_text("mine")
    (tmp_path / "a/part-00001.json").write_text("{}")
    code, found = checked(capsys, "verify", tmp_path / "a")
    assert code == 3
    assert "part-00001.json is not the note of a packed part: documents, " in found["difference"]["what"]
    for note in sorted((tmp_path / "a").glob("part-*.json"))[1:]:
        note.unlink()
    index = json.loads((tmp_path / "a/index.json").read_text())
    del index["complete"], index["parts"]
    (tmp_path / "a/index.json").write_text(json.dumps(index))
    pack(tmp_path / "a")
    assert stray.read_text() == "mine"
    stray.unlink()
    pack(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_parts_after_a_missing_note_are_not_removed(tmp_path, pack, packing, capsys):
    """Unlike parts that a killed run leaves, which have no notes."""
    assert pack(tmp_path)["parts"] >= 4
    note = tmp_path / "part-00001.json"
    was = note.read_bytes()
    note.unlink()
    before = contents(tmp_path)
    expected = f"{note} is missing, but part-00002.json exists: restore it, or remove all later notes"
    for command in (packing(tmp_path), ("inspect", tmp_path), ("verify", tmp_path)):
        code, said = checked(capsys, *command)
        assert expected in (said if isinstance(said, str) else said["difference"]["what"])
        assert code == (3 if command[0] == "verify" else 1)
    assert contents(tmp_path) == before
    note.write_bytes(was)
    assert checked(capsys, "verify", tmp_path)[0] == 0


def test_parts_without_a_note_are_written_again(tmp_path, pack):
    whole = pack(tmp_path / "whole")
    pack(tmp_path / "a")
    notes = sorted((tmp_path / "a").glob("part-*.json"))
    for note in notes[1:]:
        note.unlink()
    (tmp_path / "a/part-99999.npy").write_bytes(b"of a run that wrote larger parts")
    assert pack(tmp_path / "a")["parts_of_earlier_runs"] == 1
    assert len(notes) == whole["parts"]
    assert contents(tmp_path / "a") == contents(tmp_path / "whole")


def test_missing_and_truncated_parts_are_errors(tmp_path, pack, packing, capsys):
    pack(tmp_path / "a")
    for change in (lambda path: os.truncate(path, 1000), Path.unlink):
        change(tmp_path / "a/part-00000.npy")
        code, message = checked(capsys, *packing(tmp_path / "a"))
        assert code == 1
        changed = r"part-00000\.npy (has 1,000 bytes, but [\d,]+ were written|is missing)"
        assert re.search(changed + ": restore it, or remove", message)
    for path in (tmp_path / "a").glob("part-*.json"):
        path.unlink()
    index = json.loads((tmp_path / "a/index.json").read_text())
    del index["complete"], index["parts"]
    (tmp_path / "a/index.json").write_text(json.dumps(index))
    pack(tmp_path / "a")
    pack(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_advice_of_a_damaged_part_restores_the_folder(tmp_path, pack, packing, capsys, monkeypatch):
    whole = pack(tmp_path / "whole")
    assert whole["parts"] >= 4
    pack(tmp_path / "a")
    os.truncate(tmp_path / "a/part-00001.npy", 1000)
    code, message = checked(capsys, *packing(tmp_path / "a"))
    assert code == 1
    assert "or remove part-00001.json and all later notes to write these parts again" in message
    for path in tmp_path.glob("a/part-*.json"):
        if path.name >= "part-00001.json":
            path.unlink()
    assert not checked(capsys, "inspect", tmp_path / "a")[1]["complete"]

    finish = atomic_files.finish

    def killed(path):
        if path.name.startswith("part-"):
            raise KilledError
        finish(path)

    with monkeypatch.context() as patch:
        patch.setattr(atomic_files, "finish", killed)
        with pytest.raises(KilledError):
            pack(tmp_path / "a")
    code, found = checked(capsys, "verify", tmp_path / "a")
    assert (code, found["complete"], found["parts"]) == (3, False, 1)
    again = pack(tmp_path / "a")
    assert (again["parts"], again["parts_of_earlier_runs"]) == (whole["parts"], 1)
    assert contents(tmp_path / "a") == contents(tmp_path / "whole")
    assert checked(capsys, "verify", tmp_path / "a")[0] == 0


def test_folder_without_parts_accepts_other_settings(tmp_path, pack, packing, capsys):
    wrong = [word for word in packing(tmp_path / "a") if word not in ("--text-field", "raw_content")]
    code, message = checked(capsys, *wrong)
    assert (code, message.endswith('--text-field; set --on-error "quarantine" to skip it\n')) == (1, True)
    code, found = checked(capsys, "verify", tmp_path / "a")
    assert (code, found["complete"]) == (3, False)
    pack(tmp_path / "a")
    assert checked(capsys, "verify", tmp_path / "a")[0] == 0


def test_pack_lists_quarantined_records(tmp_path, tokenizer_file, capsys):
    lines = [json.dumps({"text": f"document {n} " * 20}) if n % 50 else '{"text": 1}' for n in range(400)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    arguments = ["pack", tmp_path / "a.jsonl", "--tokenizer", tokenizer_file, "--output", tmp_path / "packed"]
    bad = ["--on-error", "quarantine", "--max-error-rate", "0.1", "--rows-per-file", "64", "--sequence-length", "128"]
    code, found = checked(capsys, *arguments, *bad)
    assert (code, found["quarantined"]) == (0, 8)
    shown = checked(capsys, "inspect", tmp_path / "packed")[1]
    assert shown["quarantined"] == sum(part["quarantined"] for part in shown["parts"]) == 8
    lines = (tmp_path / "packed" / "quarantine.jsonl").read_text().splitlines()
    assert shown["quarantine_file"] == str(tmp_path / "packed" / "quarantine.jsonl")
    assert [json.loads(line)["record"] for line in lines] == list(range(0, 400, 50))
    assert checked(capsys, "verify", tmp_path / "packed")[0] == 0
    assert (tmp_path / "packed" / "quarantine.jsonl").read_text().splitlines() == lines
    # The folder is complete: nothing is listed elsewhere.
    other = ["--quarantine-file", tmp_path / "other.jsonl"]
    assert checked(capsys, *arguments, *bad, *other)[0] == checked(capsys, *arguments, *bad[4:])[0] == 0
    assert checked(capsys, "inspect", tmp_path / "packed")[1] == shown


def test_quarantine_file_is_one_file_apart_from_the_parts(tmp_path, tokenizer_file, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "some words of a document"}\nbad\n' * 60)
    packed = tmp_path / "packed"
    options = ["--sequence-length", "16", "--batch-size", "2", "--rows-per-file", "4"]
    options += ["--on-error", "quarantine", "--max-error-rate", "1"]
    command = ["pack", tmp_path / "a.jsonl", "--tokenizer", tokenizer_file, "--output", packed, *options]
    for name in ("part-00000.npy", "part-00000.json", ".lock", "index.json", "index.json.unfinished"):
        code, said = checked(capsys, *command, "--quarantine-file", packed / name)
        assert (code, "expected another name: packed files have this one" in said) == (1, True)
        assert "--quarantine-file" in said
    assert not packed.exists()
    assert checked(capsys, *command)[0] == 0
    for path in sorted(packed.glob("part-*"))[2:]:
        path.unlink()
    index = json.loads((packed / "index.json").read_text())
    (packed / "index.json").write_text(json.dumps({**index, "complete": False}))
    listed = packed / "quarantine.jsonl"
    code, said = checked(capsys, *command, "--quarantine-file", tmp_path / "other.jsonl")
    assert (code, f"expected '{listed}', which lists the records of the finished parts" in said) == (1, True)
    # The folder was moved, and the list with it.
    packed.rename(tmp_path / "moved")
    command[command.index(packed)] = tmp_path / "moved"
    assert checked(capsys, *command)[0] == 0
    assert len((tmp_path / "moved/quarantine.jsonl").read_text().splitlines()) == 60


@pytest.mark.parametrize("rows_per_file", [4, 1000])
def test_dropped_tokens_are_counted_and_shown(tmp_path, tokenizer_file, capsys, rows_per_file):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": "word " * n}) for n in range(40)))
    arguments = ["pack", tmp_path / "a.jsonl", "--tokenizer", tokenizer_file, "--output", tmp_path / "packed"]
    arguments += ["--packing", "pad", "--sequence-length", 16, "--rows-per-file", rows_per_file, "--batch-size", 4]
    dataset = gm.PackedDataset(
        tmp_path / "a.jsonl", tokenizer=tokenizer_file, packing="pad", sequence_length=16, batch_size=4
    )
    iterator = iter(dataset)
    assert list(iterator)
    stats = iterator.stats()
    assert stats["dropped_tokens"] > 0
    expected = {name: stats[name] for name in ("documents", "tokens", "dropped_tokens", "quarantined")}
    for command in (arguments, ["inspect", tmp_path / "packed"]):
        found = checked(capsys, *command)[1]
        assert {name: found[name] for name in expected} == expected
        assert main.run(list(map(str, command))) == 0
        shown = capsys.readouterr().out
        assert f"{stats['dropped_tokens']:,} tokens dropped" in shown
        assert f"{stats['tokens'] / (40 * 16):.1%} full" in shown
    # The first row is shown without its padding.
    first = np.load(tmp_path / "packed" / "part-00000.npy")[0]
    length = np.count_nonzero(first[found["fields"].index("inputs_segmentation")])
    assert found["first"]["ids"] == first[found["fields"].index("inputs")][:length].tolist()


def test_lost_shards_are_counted_apart_from_records(tmp_path, tokenizer_file, capsys, caplog):
    whole = gzip.compress("\n".join(json.dumps({"text": f"document {n}"}) for n in range(100)).encode())
    (tmp_path / "a.jsonl.gz").write_bytes(whole)
    (tmp_path / "b.jsonl.gz").write_bytes(whole[:-40])
    command = ["pack", tmp_path / "*.gz", "--tokenizer", tokenizer_file, "--output", tmp_path / "packed"]
    command += ["--on-error", "quarantine", "--max-error-rate", "1", "--sequence-length", "16", "--lanes", 1]
    code, found = checked(capsys, *command)
    assert (code, found["quarantined"], found["lost_shards"]) == (0, 1, 1)
    assert "1 record was quarantined, 1 in all, 1 shard not read to the end; the first" in caplog.text
    assert main.run(list(map(str, command))) == 0
    assert "1 record quarantined, 1 shard not read to the end\n" in capsys.readouterr().out
    assert checked(capsys, "inspect", tmp_path / "packed")[1]["lost_shards"] == 1
    assert checked(capsys, "verify", tmp_path / "packed")[0] == 0


def test_interrupted_pack_says_how_to_resume(tmp_path, packing, capsys, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Documents, "take", interrupted)
    assert main.run(packing(tmp_path, "--format", "megatron")) == 130
    assert "stopped: run the same command again to resume after the last finished part\n" in capsys.readouterr().err


def test_interrupted_library_does_not_hide_the_interruption(tmp_path, packing, pack, capsys, monkeypatch):
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def write_table(library, *args, **kwargs):
        library.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(parquet.ParquetWriter, "write_table", write_table)
        assert main.run(packing(tmp_path / "stopped", "--format", "parquet")) == 130
    assert "Traceback" not in capsys.readouterr().err
    pack(tmp_path / "stopped", "--format", "parquet")
    pack(tmp_path / "whole", "--format", "parquet")
    names = [path.name for path in (tmp_path / "whole").glob("*.parquet")]
    assert names
    for name in names:
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("rows", [0, 100])
def test_records_quarantined_after_the_last_row_are_counted(tmp_path, tokenizer_file, capsys, rows):
    good = [json.dumps({"text": "good"})] * rows
    (tmp_path / "a.jsonl").write_text("\n".join(["{}", *good, *['{"text": 1}'] * 4]))
    arguments = ["pack", tmp_path / "a.jsonl", "--tokenizer", tokenizer_file, "--output", tmp_path / "packed"]
    bad = ["--on-error", "quarantine", "--max-error-rate", "1", "--sequence-length", "16", "--packing", "pad"]
    for _ in range(2):  # the second run reads the counts from the index
        code, found = checked(capsys, *arguments, *bad)
        assert (code, found["items"], found["quarantined"]) == (0, rows, 5)
    assert checked(capsys, "inspect", tmp_path / "packed")[1]["quarantined"] == 5
    assert checked(capsys, "verify", tmp_path / "packed")[0] == 0
    assert len((tmp_path / "packed" / "quarantine.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize("shards", ["*.jsonl", "a[1].jsonl", "../run[[]1]/a*"])
def test_working_folder_may_have_glob_characters(tmp_path, tokenizer_file, capsys, monkeypatch, shards):
    folder = tmp_path / "run[1]"
    folder.mkdir()
    (folder / "a[1].jsonl").write_text('{"text": "some words"}\n')
    monkeypatch.chdir(folder)
    arguments = ["pack", shards, "--tokenizer", tokenizer_file, "--sequence-length", "16"]
    assert checked(capsys, *arguments, "--output", "packed")[0] == 0
    monkeypatch.chdir(tmp_path)
    assert checked(capsys, "verify", folder / "packed")[1]["equal"]


def test_special_tokens_in_text(tmp_path, tokenizer_file, encoder, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "a </s> b"}\n')
    arguments = ["pack", tmp_path / "a.jsonl", "--tokenizer", tokenizer_file, "--sequence-length", "16"]
    for way, known in (("id", 2), ("text", 1)):
        output = tmp_path / way
        assert checked(capsys, *arguments, "--output", output, "--special-tokens-in-text", way)[0] == 0
        assert np.count_nonzero(np.load(output / "part-00000.npy")[0, 0] == encoder.eos_id) == known
        assert checked(capsys, "verify", output)[1]["equal"]
    code, said = checked(capsys, *arguments, "--output", output, "--special-tokens-in-text", "id")
    assert (code, "special_tokens_in_text was 'text' and is 'id'" in said) == (1, True)


def test_absolute_paths_need_no_working_folder(tmp_path, packing, capsys, monkeypatch):
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    assert checked(capsys, *packing(tmp_path / "packed"))[0] == 0
    monkeypatch.chdir(tmp_path)


def test_pack_of_a_complete_folder_does_nothing(tmp_path, packing, capsys):
    said = []
    for _ in range(2):
        assert main.run(packing(tmp_path)) == 0
        said.append(capsys.readouterr().out)
    assert re.search(r"^speed +[\d,]+ tokens/s, ", said[0], re.MULTILINE)
    assert re.search(r"^speed +nothing to do$", said[1], re.MULTILINE)


@pytest.fixture
def read_only(monkeypatch):
    """Makes a folder read-only, for root, too."""

    def make(folder):
        path_open, access = Path.open, os.access

        def refuse(path, mode="r", *more, **options):
            if mode not in ("r", "rb") and path.parent == folder:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return path_open(path, mode, *more, **options)

        monkeypatch.setattr(Path, "open", refuse)
        monkeypatch.setattr(os, "access", lambda path, mode: path != folder and access(path, mode))

    return make


def test_complete_read_only_folder_leaves_nothing_to_do(tmp_path, pack, packing, capsys, read_only):
    folder = tmp_path / "packed"
    whole = pack(folder)
    before = contents(folder)
    (folder / ".lock").unlink()
    read_only(folder)
    assert main.run(packing(folder)) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert pack(folder)["parts_of_earlier_runs"] == whole["parts"]
    assert contents(folder) == before
    assert not (folder / ".lock").exists()


def test_incomplete_read_only_folder_is_an_error(tmp_path, pack, packing, capsys, read_only):
    folder = tmp_path / "packed"
    whole = pack(folder)
    (folder / f"part-{whole['parts'] - 1:05}.json").unlink()
    (folder / "index.json").write_text(
        json.dumps({**json.loads((folder / "index.json").read_text()), "complete": False})
    )
    read_only(folder)
    code, said = checked(capsys, *packing(folder))
    assert code == 1
    assert "Read-only file system; make it writable, or choose another folder" in said


def test_rows_of_padding_do_not_count_for_a_part(tmp_path, tokenizer_file, capsys):
    """Seven of eight lanes end early, and then yield rows of padding."""
    for number, count in enumerate([100, *[1] * 7]):
        lines = [json.dumps({"text": "some words " * 20}) for _ in range(count)]
        shard_of(tmp_path, *lines, name=f"{number}.json.gz")
    for file_format, rows in (("npy", 100), ("megatron", 100)):
        folder = tmp_path / file_format
        code, _ = checked(
            capsys, "pack", tmp_path / "*.json.gz", "--tokenizer", tokenizer_file, "--output", folder,
            "--sequence-length", 16, "--batch-size", 8, "--rows-per-file", rows, "--format", file_format,
        )  # fmt: skip
        assert code == 0
        index = json.loads((folder / "index.json").read_text())
        tokens = [part["tokens"] for part in index["parts"]]
        assert len(tokens) > 2
        assert all(rows * 16 * 0.9 < count < (rows + 8) * 16 for count in tokens[:-1]), tokens
        assert checked(capsys, "verify", folder)[1]["equal"]


def test_file_is_synced_before_it_is_renamed(tmp_path, monkeypatch):
    done, fsync, replace = [], os.fsync, Path.replace

    def synced(file):
        done.append("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file")
        fsync(file)

    def renamed(path, to):
        done.append("name")
        return replace(path, to)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    atomic_files.write_json(tmp_path / "a.json", 1)
    assert done == ["file", "name", "folder"]
