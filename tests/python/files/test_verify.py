"""`gristmill verify` and `inspect` of packed files: equality with the source, and messages about damage."""

import builtins
import errno
import gzip
import io
import json
import os
import re
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from command_line import checked, shard_of
from gristmill._cli import main
from gristmill._dataset.iterator import PackedDatasetIterator
from gristmill._files import pack as pack_module
from gristmill._files.folder import REMEDY_OF_NOTE, Folder
from gristmill._util.progress import Progress
from megatron_reader import read_as_megatron_does


def text_of(source):
    """The text of the record that a reported difference names."""
    with gzip.open(source["shard"]) as lines:
        return json.loads(lines.read().splitlines()[source["record"]])["raw_content"]


def verified(capsys, *arguments):
    """The exit code of `verify`, and its sentence about the difference."""
    code, found = checked(capsys, "verify", *arguments)
    return code, found["difference"]["what"]


def test_damaged_megatron_index_is_named(tmp_path, pack, capsys):
    pack(tmp_path, "--format", "megatron")
    index = tmp_path / "part-00000.idx"
    whole = index.read_bytes()
    for damaged in (whole[:20], b"x" + whole[1:], whole[:-8], whole[:18] + b"\xa5" * 16 + whole[34:]):
        index.write_bytes(damaged)
        assert "is not a Megatron index, or is damaged" in checked(capsys, "inspect", index)[1]


@pytest.mark.parametrize(
    ("code", "dtype"),
    [*enumerate(["uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16"], start=1)],
)
@pytest.mark.parametrize("modes", [b"", b"\x00\x01\x01"])
def test_inspect_reads_megatron_indexes_of_all_dtypes(tmp_path, capsys, code, dtype, modes):
    """Three sequences in two documents."""
    width = np.dtype(dtype).itemsize
    np.arange(7, dtype=dtype).tofile(tmp_path / "a.bin")
    head = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, code, 3, 3)
    lists = struct.pack("<3i3q3q", 2, 4, 1, 0, 2 * width, 6 * width, 0, 2, 3)
    (tmp_path / "a.idx").write_bytes(head + lists + modes)
    found = checked(capsys, "inspect", tmp_path / "a.idx")[1]
    assert (found["dtype"], found["tokens"], found["first"]["ids"]) == (dtype, 7, [0, 1])
    assert (found["sequences"], found["documents"], found["has_modes"]) == (3, 2, bool(modes))
    assert main.run(["inspect", str(tmp_path / "a.idx")]) == 0
    shown = capsys.readouterr().out
    assert f"3 sequences of 2 documents, 7 tokens of type {dtype}" in shown
    assert shown.count("a mode of each sequence") == len(modes[:1])


@pytest.mark.parametrize("code", [0, 9])
def test_megatron_index_of_unknown_dtype_is_refused(tmp_path, pack, capsys, code):
    pack(tmp_path, "--format", "megatron")
    index = tmp_path / "part-00000.idx"
    index.write_bytes(index.read_bytes()[:17] + bytes([code]) + index.read_bytes()[18:])
    assert "is not a Megatron index, or is damaged" in checked(capsys, "inspect", index)[1]


def test_megatron_pair_may_have_dots_in_its_name(tmp_path, pack, capsys):
    pack(tmp_path, "--format", "megatron")
    expected = checked(capsys, "inspect", tmp_path / "part-00000.idx")[1]
    for suffix in (".bin", ".idx"):
        (tmp_path / f"part-00000{suffix}").rename(tmp_path / f"data-v1.0_text{suffix}")
    index = tmp_path / "data-v1.0_text.idx"
    assert checked(capsys, "inspect", index)[1] == {**expected, "path": str(index)}
    os.truncate(index.with_suffix(".bin"), 1001)
    assert re.search(r"data-v1.0_text.bin is truncated: it has 1,001 bytes", checked(capsys, "inspect", index)[1])
    index.with_suffix(".bin").unlink()
    for missing in (".bin", ".idx"):
        code, said = checked(capsys, "inspect", index)
        assert code == 1
        assert f"cannot read '{index.with_suffix(missing)}': No such file" in said
        index.unlink(missing_ok=True)


def test_damaged_note_is_named(tmp_path, pack, capsys):
    pack(tmp_path / "a")
    path = tmp_path / "a/part-00000.json"
    note = json.loads(path.read_text())
    for change, named in [({"items": "x", "state": None}, "items, state"), ({"files": {"a.npy": "x"}}, "files")]:
        path.write_text(json.dumps({**note, **change}))
        said = f"is not the note of a packed part: {named} is missing or has the wrong type; {REMEDY_OF_NOTE}"
        code, found = checked(capsys, "inspect", tmp_path / "a")
        assert (code, f"part-00000.json {said}" in found) == (1, True)
        code, found = verified(capsys, tmp_path / "a")
        assert (code, f"part-00000.json {said}" in found) == (3, True)


@pytest.mark.parametrize("change", [lambda path: path.write_text("{"), lambda path: path.write_bytes(b"\xff")])
def test_unreadable_note_is_a_difference(tmp_path, pack, capsys, change):
    pack(tmp_path)
    change(tmp_path / "part-00001.json")
    for options in ((), ("--part", 0)):
        code, found = verified(capsys, tmp_path, *options)
        assert (code, f"{tmp_path}/part-00001.json is damaged: " in found) == (3, True)
        assert found.endswith(f"; {REMEDY_OF_NOTE}")


@pytest.mark.parametrize("offset", range(0, 128, 3))
def test_damaged_npy_header_is_a_difference(tmp_path, pack, capsys, offset):
    """NumPy evaluates a header as Python code, and raises any error of Python's parser."""
    pack(tmp_path)
    part = tmp_path / "part-00000.npy"
    content = bytearray(part.read_bytes())
    content[offset] ^= 4
    part.write_bytes(content)
    code, found = checked(capsys, "verify", tmp_path)
    # Some bytes are spaces that reserve room for the shape: other white space is equivalent.
    assert code == 3 or offset > 60, found
    assert checked(capsys, "inspect", tmp_path)[0] == 0


def test_note_that_contradicts_the_index_is_named(tmp_path, pack, packing, capsys):
    pack(tmp_path)
    note, index = tmp_path / "part-00001.json", tmp_path / "index.json"
    said = (
        f"{note} and index.json disagree about the part: one of them was changed; restore it, or remove "
        "the note and all later ones to write these parts again"
    )
    was = json.loads(note.read_text())
    note.write_text(json.dumps({**was, "items": was["items"] + 1}))
    assert verified(capsys, tmp_path) == (3, said)
    before = index.read_bytes()
    assert checked(capsys, *packing(tmp_path)) == (1, f"error: {said}\n")
    assert index.read_bytes() == before
    note.write_text(json.dumps(was))
    found = json.loads(index.read_text())
    for parts in (found["parts"][:1], None):
        index.write_text(json.dumps({**found, "parts": parts}))
        assert verified(capsys, tmp_path)[0] == 3
    for path in tmp_path.glob("part-*.json"):
        path.unlink()
    assert verified(capsys, tmp_path)[0] == 3


@pytest.mark.parametrize("name", ["part-00099.npy", "part-00000.npy.copy", "part-00000.bin"])
def test_file_that_belongs_to_no_part_is_a_difference(tmp_path, pack, capsys, name):
    """A reader of `part-*` would read it, too."""
    pack(tmp_path)
    (tmp_path / "part-notes.txt").touch()
    assert checked(capsys, "verify", tmp_path)[0] == 0
    shutil.copy(tmp_path / "part-00000.npy", tmp_path / name)
    code, found = verified(capsys, tmp_path)
    assert (code, found.startswith(f"{name}: in the folder, but part of none")) == (3, True)
    assert checked(capsys, "verify", tmp_path, "--part", 0)[0] == 0
    assert checked(capsys, "inspect", tmp_path)[1]["damaged"] == [f"{name} belongs to no part"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.pop("source"), "index.json is damaged: source is missing or has the wrong type"),
        (
            lambda index: index.update(source={"shards": []}),
            "index.json is damaged: source.sizes, source.tokenizer, source.special_tokens_in_text, source.arguments is",
        ),
        (lambda index: index.update(fields=None, fingerprint=5), "index.json is damaged: fields, fingerprint is"),
        (lambda index: index.update(format="zip"), "index.json is damaged: its format is 'zip'"),
        (lambda index: index["source"]["arguments"].update(sead=1), "is damaged: PackedDataset has no argument 'sead'"),
        (lambda index: index.update(fields=[7]), "is damaged: fields is missing or has the wrong type"),
        (
            lambda index: index["source"].update(shards=[7]),
            "is damaged: source.shards is missing or has the wrong type",
        ),
        (lambda index: index.update(fields=["zzz"]), r"is damaged: its fields is \['zzz'\], but its source has \["),
        (lambda index: index.update(dtype="junk"), "is damaged: its dtype is junk, but its source has <i4"),
        (lambda index: index.update(own_lanes=[5]), r"is damaged: its own_lanes is \[5\], but its source has"),
        (
            lambda index: index.pop("totals"),
            "is damaged: it says complete, but lacks its totals or parts",
        ),
        (
            lambda index: index["totals"].update(tokens="many"),
            "is damaged: totals.tokens is missing or has the wrong type",
        ),
        (
            lambda index: index["source"].update(sizes=dict.fromkeys(index["source"]["sizes"], 1)),
            "is damaged: its source.sizes do not match its source",
        ),
        (lambda index: index.update(sequence_length=0), "is damaged: its sequence_length is 0"),
        (lambda index: index.update(sequence_length=32), "is damaged: its sequence_length is 32, but its source"),
    ],
)
def test_damaged_index_is_named(tmp_path, pack, capsys, change, message):
    pack(tmp_path / "a")
    index = json.loads((tmp_path / "a/index.json").read_text())
    change(index)
    (tmp_path / "a/index.json").write_text(json.dumps(index))
    code, found = verified(capsys, tmp_path / "a")
    assert code == 3
    assert re.search(f"{message}.*; restore it, or pack again into another folder$", found)


def test_truncated_index_error_says_what_to_do(tmp_path, pack, packing, capsys):
    pack(tmp_path)
    index = (tmp_path / "index.json").read_bytes()
    (tmp_path / "index.json").write_bytes(index[:-20])
    for command in (["inspect", tmp_path], packing(tmp_path)):
        code, said = checked(capsys, *command)
        assert (code, f"{tmp_path}/index.json is damaged: " in said) == (1, True)
        assert said.endswith("; restore it, or pack again into another folder\n")
    (tmp_path / "index.json").write_bytes(index)
    assert checked(capsys, "inspect", tmp_path)[0] == 0


def test_note_of_another_part_is_refused(tmp_path, pack, packing, capsys):
    pack(tmp_path / "a")
    one, two = (tmp_path / "a" / f"part-0000{number}.json" for number in (1, 2))
    was = two.read_text()
    two.write_text(one.read_text())
    expected = "part-00002.json is the note of another part: number 1, with the files part-00001.npy; restore"
    for command in (("inspect", tmp_path / "a"), packing(tmp_path / "a")):
        code, said = checked(capsys, *command)
        assert (code, expected in said) == (1, True)
    code, said = verified(capsys, tmp_path / "a")
    assert (code, expected in said) == (3, True)
    two.write_text(json.dumps({**json.loads(was), "files": {}}))
    assert "number 2, with the files none; restore" in verified(capsys, tmp_path / "a")[1]


def test_missing_note_is_named(tmp_path, pack, capsys):
    found = pack(tmp_path)
    last = tmp_path / f"part-{found['parts'] - 1:05}.json"
    last.unlink()
    code, result = checked(capsys, "verify", tmp_path)
    assert code == 3
    assert result["difference"]["what"].startswith(f"{last.name}: missing, but the index lists the part")
    assert checked(capsys, "verify", tmp_path, "--part", 0)[0] == 0
    assert checked(capsys, "inspect", tmp_path)[1]["damaged"] == [f"{last.name} is missing"]


def test_counts_that_differ_from_the_source_are_a_difference(tmp_path, pack, capsys):
    pack(tmp_path)
    index, note = tmp_path / "index.json", tmp_path / "part-00001.json"
    was = index.read_text(), note.read_text()
    result = json.loads(was[0])
    tokens = result["totals"]["tokens"]
    index.write_text(json.dumps({**result, "totals": {**result["totals"], "tokens": tokens + 1}}))
    code, found = checked(capsys, "verify", tmp_path)
    said = f"{index}: tokens is {tokens + 1:,}, but the source has {tokens:,}"
    assert (code, found["difference"]) == (3, {"what": said})
    assert checked(capsys, "verify", tmp_path, "--part", 1)[0] == 0

    documents = result["parts"][1]["documents"]
    result["parts"][1]["documents"] += 2
    index.write_text(json.dumps(result))
    note.write_text(json.dumps({**json.loads(was[1]), "documents": documents + 2}))
    for options in ((), ("--part", 1)):
        code, found = checked(capsys, "verify", tmp_path, *options)
        said = f"part-00001.json: documents is {documents + 2:,}, but the source has {documents:,}"
        assert (code, found["difference"]["what"]) == (3, said)


def test_note_with_an_invalid_state_is_named(tmp_path, pack, capsys):
    pack(tmp_path)
    path = tmp_path / "part-00000.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "state": {"a": 1}}))
    code, said = verified(capsys, tmp_path, "--part", 1)
    assert (code, "part-00000.json is damaged: a state has the keys" in said) == (3, True)
    assert said.endswith(f"; {REMEDY_OF_NOTE}")


@pytest.mark.parametrize("damaged", ["part-00000.json", "index.json"])
def test_note_and_index_of_different_streams_are_damage(tmp_path, pack, packing, capsys, damaged):
    pack(tmp_path)
    path = tmp_path / damaged
    path.write_text(path.read_text().replace(" lanes=", " lanez="))
    for options in ((), ("--part", 1)):
        code, said = verified(capsys, tmp_path, *options)
        assert (code, "part-00000.json and index.json belong to different streams: lanes was" in said) == (3, True)
    assert main.run(packing(tmp_path)) == 1
    assert "belong to different streams: lanes was" in capsys.readouterr().err


def test_pending_ids_of_a_note_are_checked_for_each_lane(tmp_path, pack, capsys):
    pack(tmp_path, "--format", "megatron", "--rows-per-file", 20)
    note = tmp_path / "part-00000.json"
    was = json.loads(note.read_text())
    lanes = len(was["pending"])
    assert checked(capsys, "verify", tmp_path, "--part", 1)[0] == 0
    number = f"part-00000.json is damaged: expected in pending the ids of a started document for each of {lanes} lanes"
    kind = "part-00000.json is not the note of a packed part: pending is missing or has the wrong type"
    for pending, message in [
        ([], number),
        (was["pending"][1:], number),
        (["AAAAgA=="] * lanes, number),  # -2**31
        (["AAAA"] * lanes, number),
        (["not base 64"] * lanes, number),
        (["é"] * lanes, number),
        ([[1]] * lanes, kind),
    ]:
        note.write_text(json.dumps({**was, "pending": pending}))
        code, said = verified(capsys, tmp_path, "--part", 1)
        assert (code, message in said) == (3, True)


@pytest.mark.parametrize("more", [-1, 1])
def test_missing_or_extra_row_that_notes_count_is_a_difference(tmp_path, pack, capsys, more):
    pack(tmp_path)
    path, note, index = (tmp_path / name for name in ("part-00000.npy", "part-00000.json", "index.json"))
    rows = np.load(path)
    np.save(path, rows[:-1] if more < 0 else np.concatenate([rows, rows[-1:]]))
    of_part, of_all = json.loads(note.read_text()), json.loads(index.read_text())
    for part in (of_part, of_all["parts"][0]):
        part["items"] += more
        part["files"] = {path.name: path.stat().st_size}
    note.write_text(json.dumps(of_part))
    index.write_text(json.dumps(of_all))
    code, found = checked(capsys, "verify", tmp_path)
    assert code == 3
    assert "the source has" in found["difference"]["what"]


def test_npy_header_of_another_dtype_is_a_difference(tmp_path, pack, capsys):
    pack(tmp_path)
    part = tmp_path / "part-00001.npy"
    data = part.read_bytes()
    part.write_bytes(data.replace(b"'<i4'", b"'<u4'", 1))
    code, result = checked(capsys, "verify", tmp_path)
    assert code == 3
    assert "cannot be read: expected items [" in result["difference"]["what"]


@pytest.mark.parametrize(
    ("offset", "value", "says"),
    [
        (lambda count: 34 + 12 * count + 8, struct.pack("<q", 0), "expected one sequence for each document"),
        (lambda count: 34 + 12 * count + 8, struct.pack("<q", -1), None),
        (lambda count: 34, struct.pack("<i", -1), None),  # a length
        (lambda count: 34 + 4 * count + 8, struct.pack("<q", -4), None),  # an offset
        (lambda count: 34 + 4 * count + 8, struct.pack("<q", 3), None),
    ],
)
def test_megatron_index_with_impossible_numbers_is_damaged(tmp_path, pack, capsys, offset, value, says):
    pack(tmp_path, "--format", "megatron")
    path = tmp_path / "part-00001.idx"
    data = bytearray(path.read_bytes())
    at = offset(struct.unpack_from("<Q", data, 18)[0])
    data[at : at + len(value)] = value
    path.write_bytes(data)
    code, result = checked(capsys, "verify", tmp_path)
    assert code == 3
    assert (says or "part-00001.idx is not a Megatron index, or is damaged") in result["difference"]["what"]


@pytest.mark.parametrize("file_format", ["npy", "megatron", "array_record", "parquet"])
def test_verify_finds_packed_files_equal_to_their_source(tmp_path, pack, capsys, file_format):
    found = pack(tmp_path, "--format", file_format, "--seed", 5)
    code, result = checked(capsys, "verify", tmp_path)
    assert (code, result["equal"], result["items"], result["parts"]) == (0, True, found["items"], found["parts"])
    code, result = checked(capsys, "verify", tmp_path, "--part", 1)
    assert (code, result["equal"], result["parts"]) == (0, True, 1)
    assert "has 3 finished parts" in checked(capsys, "verify", tmp_path, "--part", 99)[1].replace(
        str(found["parts"]), "3"
    )
    assert main.run(["verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("equal: ")


def test_verify_locates_a_differing_token(tmp_path, pack, capsys, encoder):
    pack(tmp_path)
    rows = np.load(tmp_path / "part-00001.npy", mmap_mode="r+")
    was = int(rows[37, 0, 11])
    rows[37, 0, 11] = 300
    rows.flush()
    code, result = checked(capsys, "verify", tmp_path)
    assert code == 3
    difference = result["difference"]
    assert difference["files"] == ["part-00001.npy"]
    assert {name: difference[name] for name in ("item", "field", "index", "packed", "expected")} == {
        "item": 37, "field": "inputs", "index": 11, "packed": 300, "expected": was,
    }  # fmt: skip
    assert difference["texts"] == {"packed": encoder.id_to_token(300), "expected": encoder.id_to_token(was)}
    source = difference["source"]
    assert main.run(["verify", str(tmp_path), "--part", "1"]) == 3
    out = capsys.readouterr().out
    assert f"inputs[11] is 300 ({encoder.id_to_token(300)!r}), expected {was}" in out
    assert f"from {source['shard']}: record {source['record']}, token {source['token']}" in out
    text = text_of(source)
    assert [*encoder.encode(text), encoder.eos_id][source["token"]] == was
    assert checked(capsys, "verify", tmp_path, "--part", 0)[0] == 0


def test_verify_locates_a_difference_after_many_documents(tmp_path, tokenizer_file, encoder, capsys):
    """The row has more documents than `provenance=True` has entries."""
    lines = [json.dumps({"raw_content": chr(ord("a") + number % 26)}) for number in range(400)]
    (tmp_path / "tiny.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    packed = tmp_path / "packed"
    arguments = [tmp_path / "tiny.jsonl.gz", "--tokenizer", tokenizer_file, "--text-field", "raw_content"]
    arguments += ["--output", packed, "--sequence-length", 64, "--batch-size", 1]
    assert main.run(["pack", *map(str, arguments)]) == 0
    capsys.readouterr()
    rows = np.load(packed / "part-00000.npy", mmap_mode="r+")
    rows[1, 0, 60] = 77
    rows.flush()
    source = checked(capsys, "verify", packed)[1]["difference"]["source"]
    # Each document is its letter and EOS.
    assert (source["record"], source["token"]) == ((64 + 60) // 2, 0)


def test_verify_locates_a_difference_in_a_document(tmp_path, pack, capsys, encoder):
    pack(tmp_path, "--format", "megatron", "--seed", 2)
    number = 17
    documents = read_as_megatron_does(tmp_path / "part-00000")
    begin = sum(map(len, documents[:number])) + 5
    ids = np.memmap(tmp_path / "part-00000.bin", np.uint16, "r+")
    was, ids[begin] = int(ids[begin]), 300
    ids.flush()
    code, result = checked(capsys, "verify", tmp_path)
    difference = result["difference"]
    assert (code, difference["item"], difference["index"], difference["expected"]) == (3, number, 5, was)
    source = difference["source"]
    assert source["token"] == 5
    text = text_of(source)
    assert [*encoder.encode(text).tolist(), encoder.eos_id] == documents[number].tolist()


def test_verify_names_missing_files_and_another_source(tmp_path, pack, capsys, shard_folder, tokenizer_file):
    pack(tmp_path)
    part = tmp_path / "part-00000.npy"
    data = part.read_bytes()
    part.write_bytes(data[:-4])
    assert "bytes, but" in checked(capsys, "verify", tmp_path)[1]["difference"]["what"]
    part.unlink()
    assert "part-00000.npy is missing" in checked(capsys, "verify", tmp_path)[1]["difference"]["what"]
    part.write_bytes(data)
    other = checked(capsys, "verify", tmp_path, "--shards", shard_folder / "0003" / "*.gz")
    assert other[0] == 1
    assert "does not match this source: the shards are not those that were packed (missing: " in other[1]
    assert other[1].endswith(", lanes was 8 and is 1; name the right one with --shards and --tokenizer\n")
    assert checked(capsys, "verify", tmp_path, "--tokenizer", tokenizer_file)[0] == 0
    index = json.loads((tmp_path / "index.json").read_text())
    for name, missing in [("shards", [str(tmp_path / "gone")]), ("tokenizer", str(tmp_path / "gone"))]:
        (tmp_path / "index.json").write_text(json.dumps({**index, "source": {**index["source"], name: missing}}))
        code, said = checked(capsys, "verify", tmp_path)
        advice = "; if they have moved, pass --shards and --tokenizer\n"
        assert (code, said.endswith(advice)) == (1, True), said
    assert "it has no index.json" in checked(capsys, "verify", tmp_path.parent)[1]


def test_verify_names_differences_of_another_source(tmp_path, packing, capsys, shard_folder, tokenizer_file):
    shutil.copytree(shard_folder, tmp_path / "shards")
    command = packing(tmp_path / "packed")
    command[1] = str(tmp_path / "shards" / "*" / "*.gz")
    assert checked(capsys, *command)[0] == 0
    definition = json.loads(tokenizer_file.read_text())
    definition["model"]["merges"].pop()
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    shutil.copy(tokenizer_file.with_name("tokenizer_config.json"), tmp_path)
    gone, larger = (tmp_path / "shards" / number / "en_head.json.gz" for number in ("0003", "0005"))
    larger.write_bytes(larger.read_bytes() + gzip.compress(b"\n"))
    shutil.copytree(gone.parent, tmp_path / "shards" / "new")
    gone.unlink()
    shutil.copytree(tmp_path / "shards", tmp_path / "moved")
    for folder, options in (("shards", ()), ("moved", ("--shards", tmp_path / "moved" / "*" / "*.gz"))):
        below = f"{tmp_path}/shards/" if folder == "shards" else ""
        code, said = checked(capsys, "verify", tmp_path / "packed", "--tokenizer", tmp_path, *options)
        assert code == 1
        assert said == (
            f"error: {tmp_path}/packed does not match this source: the shards are not those that were packed (missing: "
            f"{below}0003/en_head.json.gz; not packed: {below}new/en_head.json.gz; of another size: "
            f"{below}0005/en_head.json.gz), the tokenizer differs from the one that was used; name the right one with "
            "--shards and --tokenizer\n"
        )


@pytest.mark.parametrize(("name", "value"), [("sequence_length", 0), ("lanes", "eight"), ("text_field", None)])
def test_index_with_invalid_arguments_is_named(tmp_path, pack, capsys, name, value):
    pack(tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    index["source"]["arguments"][name] = value
    (tmp_path / "index.json").write_text(json.dumps(index))
    code, said = checked(capsys, "verify", tmp_path)
    assert code == 1
    assert said.startswith(
        f"error: {tmp_path}/index.json: the source cannot be packed again with its arguments: {name}="
    )


@pytest.mark.parametrize("name", ["index.json", "part-00000.json", "part-00001.npy"])
def test_unreadable_file_is_an_error_and_no_difference(tmp_path, pack, capsys, monkeypatch, name):
    pack(tmp_path)
    opened = io.open

    def refuse(file, *arguments, **options):
        if Path(file).name == name:
            raise PermissionError(errno.EACCES, "Permission denied", str(file))
        return opened(file, *arguments, **options)

    for module in (io, builtins):
        monkeypatch.setattr(module, "open", refuse)  # patched, since root may read every file
    assert checked(capsys, "verify", tmp_path) == (1, f"error: cannot read '{tmp_path}/{name}': Permission denied\n")


def test_state_of_another_part_is_a_difference(tmp_path, pack, packing, capsys):
    """A run that resumed from it would skip or repeat rows."""
    pack(tmp_path)
    notes = [tmp_path / f"part-{number:05}.json" for number in (1, 2)]
    note, later = (json.loads(path.read_text()) for path in notes)
    for name, value in [("lanes", later["state"]["lanes"]), ("step", note["state"]["step"] + 1)]:
        notes[0].write_text(json.dumps({**note, "state": {**note["state"], name: value}}))
        code, said = verified(capsys, tmp_path)
        assert (code, f"{notes[0]} is damaged: its state is not that of the source" in said) == (3, True)
    notes[0].write_text(json.dumps({**note, "state": {**note["state"], "lanes": later["state"]["lanes"]}}))
    assert "is damaged: its state counts documents=" in verified(capsys, tmp_path, "--part", 2)[1]
    for path in sorted(tmp_path.glob("part-*.json"))[2:]:
        path.unlink()
    code, said = checked(capsys, *packing(tmp_path))
    assert (code, f"{notes[0]} is damaged: its state counts documents=" in said) == (1, True)


# ArrayRecord has redundant blocks beside its records: damage there is harmless.
@pytest.mark.parametrize(
    ("suffix", "file_format", "shares"),
    [
        (".npy", "npy", (0, 0.5, 1)),
        (".idx", "megatron", (0, 0.2, 0.5, 1)),
        (".array_record", "array_record", (0.5,)),
        (".parquet", "parquet", (0, 0.2, 0.5, 1)),
    ],
)
def test_verify_reports_a_file_with_overwritten_bytes(tmp_path, pack, capsys, suffix, file_format, shares):
    pack(tmp_path, "--format", file_format)
    part = tmp_path / f"part-00001{suffix}"
    whole = part.read_bytes()
    for share in shares:
        begin = int(share * (len(whole) - 64))
        part.write_bytes(whole[:begin] + b"\xa5" * 64 + whole[begin + 64 :])
        code, result = checked(capsys, "verify", tmp_path, "--part", 1)
        assert code == 3, (share, result)
        assert part.name in result["difference"]["files"]
    part.write_bytes(whole)
    assert checked(capsys, "verify", tmp_path, "--part", 1)[0] == 0


def test_verify_uses_the_reference_engine(tmp_path, pack, capsys, monkeypatch):
    pack(tmp_path)
    engines = []
    made = pack_module.make_collector
    monkeypatch.setattr(
        "gristmill._files.verify.make_collector",
        lambda dataset, index: engines.append(dataset.encoder.engine) or made(dataset, index),
    )
    assert checked(capsys, "verify", tmp_path)[0] == 0
    assert engines == ["reference"]


def test_inspect_explains_a_packed_folder(tmp_path, pack, capsys, encoder):
    found = pack(tmp_path)
    code, result = checked(capsys, "inspect", tmp_path)
    assert (code, result["kind"], result["complete"]) == (0, "packed", True)
    assert (result["items"], result["tokens"]) == (found["items"], found["tokens"])
    assert result["stream"]["packing"] == "concat"
    first = np.load(tmp_path / "part-00000.npy")[0, 0, :32]
    assert result["first"] == {"ids": first.tolist(), "text": encoder.decode(first)}
    for name in ("index.json", "part-00000.npy", "part-00001.json"):
        assert checked(capsys, "inspect", tmp_path / name)[1] == result
    assert main.run(["inspect", str(tmp_path)]) == 0
    assert "part-00000.npy" in capsys.readouterr().out


@pytest.mark.parametrize(("file_format", "suffix"), [("npy", ".npy"), ("megatron", ".bin")])
def test_inspect_names_a_missing_or_damaged_first_part(tmp_path, pack, capsys, file_format, suffix):
    pack(tmp_path, "--format", file_format)
    part = tmp_path / f"part-00000{suffix}"
    (tmp_path / f"part-00001{suffix}").unlink()
    changes = [(lambda: os.truncate(part, 1000), " has 1,000 bytes, but "), (part.unlink, " is missing")]
    if suffix == ".npy":
        changes.insert(0, (lambda: part.write_bytes(b"x" * part.stat().st_size), ": cannot be read: "))
    for change, says in changes:
        change()
        code, result = checked(capsys, "inspect", tmp_path)
        assert (code, result["first"]) == (0, None)
        assert [text.startswith(part.name + says) for text in result["damaged"]] == [True, False]
        assert main.run(["inspect", str(tmp_path)]) == 0
        assert f"DAMAGED        {part.name}{says}" in capsys.readouterr().out


def test_inspect_names_a_first_part_with_invalid_ids(tmp_path, pack, capsys):
    pack(tmp_path)
    rows = np.load(tmp_path / "part-00000.npy", mmap_mode="r+")
    rows[0, 0, 3] = -7
    rows.flush()
    code, result = checked(capsys, "inspect", tmp_path)
    assert (code, result["first"]) == (0, None)
    assert result["damaged"] == ["part-00000.npy: its first item holds -7, which is not an id"]


def test_verify_takes_any_file_of_a_packed_folder(tmp_path, pack, capsys):
    pack(tmp_path)
    for name in ("index.json", "part-00000.npy", "part-00001.json"):
        assert checked(capsys, "verify", tmp_path / name)[1]["equal"]
    (tmp_path.parent / "stray.txt").touch()
    assert "it has no index.json" in checked(capsys, "verify", tmp_path.parent / "stray.txt")[1]


def test_verify_accepts_a_changed_error_policy(tmp_path, tokenizer_file, capsys, monkeypatch):
    lines = [json.dumps({"text": f"words of document {number}"}) for number in range(300)]
    lines[7] = "{"
    shard = shard_of(tmp_path, *lines)
    folder = tmp_path / "packed"
    command = [
        "pack", shard, "--tokenizer", tokenizer_file, "--output", folder, "--sequence-length", 64, "--batch-size", 1,
        "--rows-per-file", 20,
    ]  # fmt: skip
    write_note = Folder.write_note

    def then_killed(self, note):
        write_note(self, note)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "write_note", then_killed)
        assert checked(capsys, *command, "--on-error", "quarantine", "--max-error-rate", 0.5)[0] == 130
    code, found = checked(capsys, *command)
    assert (code, found["quarantined"], found["parts_of_earlier_runs"]) == (0, 1, 1)
    assert checked(capsys, "verify", folder)[1]["equal"]


def test_pack_records_the_paths_of_the_last_run(tmp_path, packing, pack, capsys, shard_folder):
    for name in ("a", "b"):
        shutil.copytree(shard_folder, tmp_path / name)
    arguments = [packing(tmp_path / "packed", *more) for more in ([], ["--quarantine-file", tmp_path / "q"])]
    for name, command in zip(("a", "b"), arguments, strict=True):
        command[1] = f"{tmp_path / name}/*/*.gz"
        if name == "b":
            command[-2:] = ["--threads", "1"]
        assert checked(capsys, *command)[0] == 0
    shutil.rmtree(tmp_path / "a")
    assert checked(capsys, "inspect", tmp_path / "packed")[1]["source"]["shards"] == [arguments[1][1]]
    assert checked(capsys, "verify", tmp_path / "packed")[1]["equal"]


def test_verify_takes_relative_and_absolute_shards(tmp_path, packing, pack, capsys, shard_folder, monkeypatch):
    """Relative and absolute spellings sort differently."""
    paths = sorted(shard_folder.glob("*/*.gz"))
    monkeypatch.chdir(paths[0].parent)
    command = packing(tmp_path / "packed")
    command[1:2] = [paths[0].name, *map(str, paths[1:])]
    assert checked(capsys, *command)[0] == 0
    assert checked(capsys, "verify", tmp_path / "packed")[1]["equal"]


def test_fields_without_ids_are_shown_as_numbers(tmp_path, pack, capsys, encoder):
    pack(tmp_path / "hf", "--layout", "hf", "--field", "labels", "--field", "input_ids")
    rows = np.load(tmp_path / "hf/part-00000.npy", mmap_mode="r+")
    first = rows[0, 1, :32].tolist()
    assert checked(capsys, "inspect", tmp_path / "hf")[1]["first"] == {"ids": first, "text": encoder.decode(first)}
    row, index = np.argwhere(rows[:, 0] == -100)[0]
    rows[row, 0, index] = 1
    rows.flush()
    result = checked(capsys, "verify", tmp_path / "hf", "--part", 0)[1]["difference"]
    assert result["texts"] == {"packed": "</s>", "expected": None}
    assert main.run(["verify", str(tmp_path / "hf"), "--part", "0"]) == 3
    assert "-100" in capsys.readouterr().out
    pack(tmp_path / "segments", "--field", "inputs_segmentation")
    assert checked(capsys, "inspect", tmp_path / "segments")[1]["first"] is None


def test_verify_takes_a_folder_name_that_is_not_utf_8(tmp_path, packing, pack, capsys, shard_folder, monkeypatch):
    folder = tmp_path / os.fsdecode(b"x\xff")
    shutil.copytree(shard_folder, folder / "shards")
    monkeypatch.chdir(folder)
    command = packing(tmp_path / "packed")
    command[1] = "shards/*/*.gz"
    assert checked(capsys, *command)[0] == 0
    assert checked(capsys, "verify", tmp_path / "packed", "--shards", command[1])[1]["equal"]


def test_inspect_lists_missing_and_truncated_parts(tmp_path, pack, capsys):
    pack(tmp_path)
    assert checked(capsys, "inspect", tmp_path)[1]["damaged"] == []
    (tmp_path / "part-00001.npy").unlink()
    os.truncate(tmp_path / "part-00002.npy", 1000)
    damaged = checked(capsys, "inspect", tmp_path)[1]["damaged"]
    assert [text.partition(" ")[0] for text in damaged] == ["part-00001.npy", "part-00002.npy"]
    assert main.run(["inspect", str(tmp_path)]) == 0
    assert "part-00002.npy has 1,000 bytes, but" in capsys.readouterr().out


def test_counts_of_one_are_printed_in_the_singular(tmp_path, tokenizer_file, capsys):
    shard, folder = shard_of(tmp_path, '{"text": "a"}'), tmp_path / "packed"
    options = ["--tokenizer", tokenizer_file, "--output", folder, "--batch-size", 1]
    assert main.run(["pack", *map(str, [shard, *options])]) == 0
    for arguments in (["inspect", folder], ["verify", folder], ["inspect", shard]):
        assert main.run([*map(str, arguments)]) == 0
    shown = capsys.readouterr().out
    for phrase in ("1 row of 1,024, 2 tokens", "1 document, 0 tokens", "equal: 1 item in 1 part", "all 1 record"):
        assert phrase in shown
    assert re.search(r"\b1 (tokens|documents|rows|records|items|parts|bytes)\b(?!/s)", shown) is None
    assert "has 1 finished part, but no part 9" in checked(capsys, "verify", folder, "--part", 9)[1]


def test_progress_is_shown_within_a_part(tmp_path, pack, capsys, monkeypatch):
    pack(tmp_path, "--rows-per-file", 10**6)
    shown = []
    monkeypatch.setattr(Progress, "show", lambda progress, done: shown.append(done / progress._total))
    found = checked(capsys, "verify", tmp_path)[1]
    assert found["parts"] == 1
    assert len(shown) > 5
    assert shown == sorted(shown)
    assert 0.5 < shown[-1] < 1


def test_folder_from_before_windows_grew_is_verified_in_its_order(tmp_path, packing, pack, capsys, monkeypatch):
    """The states of its notes have no size of windows."""

    def with_large_windows(spec):
        iterator = PackedDatasetIterator(spec)
        iterator.set_state(iterator.get_state() | {"lanes": {"0": "window_size=10"}})
        return iterator

    folder, text = tmp_path / "packed", tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"raw_content": f"{number} " + "grain " * 300}) + "\n" for number in range(100)))
    more = [text, "--seed", 1, "--lanes", 1]
    with monkeypatch.context() as patched:
        patched.setattr(pack_module, "PackedDatasetIterator", with_large_windows)
        pack(folder, *more)
    notes = sorted(folder.glob("part-*.json"))
    for note in notes:
        note.write_text(note.read_text().replace(" window_size=10", ""))
    assert checked(capsys, "verify", folder)[0] == 0
    for part in range(len(notes)):
        assert checked(capsys, "verify", folder, "--part", part)[0] == 0
    grown = tmp_path / "grown"
    pack(grown, *more)
    assert checked(capsys, "verify", grown)[0] == 0
    assert (grown / "part-00000.npy").read_bytes() != (folder / "part-00000.npy").read_bytes()
