"""Packing in units: their bytes follow from the plan, and together they are the rows of the dataset."""

import json
import shutil

import numpy as np
import pytest

import gristmill as gm
from command_line import checked, fails, run_json
from gristmill._cli import main
from helpers import write_shard

TEXT = {"text_field": "raw_content", "sequence_length": 128}
LANES, ROWS = 4, 8


@pytest.fixture
def planned(tmp_path, shards, tokenizer_file):
    """Writes a plan of two units, and gives its folder."""

    def plan(*more, name="packed", units=2):
        folder = tmp_path / name
        arguments = [
            "pack", shards, "--tokenizer", tokenizer_file.parent, "--text-field", "raw_content", "--sequence-length",
            128, "--batch-size", ROWS, "--lanes", LANES, "--rows-per-file", 30, "--output", folder, "--plan", "--units",
            units, *more,
        ]  # fmt: skip
        assert main.run(list(map(str, arguments))) == 0
        return folder

    return plan


def unit(folder, number, *more):
    return main.run(["pack", "--output", str(folder), "--unit", str(number), *map(str, more)])


def finish(folder):
    return main.run(["pack", "--output", str(folder), "--finish"])


def files_of(folder):
    """The content of all packed files, without the time-dependent."""
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("unit-*/part-*"))}


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
@pytest.mark.parametrize("units", [1, 2, 4])
def test_units_are_the_rows_of_their_lanes(packing, units, planned, shards, encoder):
    folder = planned("--packing", packing, units=units)
    for number in reversed(range(units)):
        assert unit(folder, number) == 0
    assert finish(folder) == 0
    dataset = gm.PackedDataset(shards, tokenizer=encoder, batch_size=ROWS, lanes=LANES, packing=packing, **TEXT)
    batches = list(dataset)
    expected = []
    for number in range(units):
        own = slice(number * ROWS // units, (number + 1) * ROWS // units)
        rows = np.concatenate([batch["inputs"][own] for batch in batches])
        marks = np.concatenate([batch["inputs_segmentation"][own] for batch in batches])
        expected.append(rows[marks.any(axis=1)])
    rows = gm.PackedRows(folder)
    np.testing.assert_array_equal(np.stack([row["inputs"] for row in rows]), np.concatenate(expected))


def test_bytes_follow_from_the_plan(planned, tmp_path):
    one, other = planned(name="one"), planned(name="other")
    for number in (0, 1):
        assert unit(one, number, "--threads", 1) == 0
    for number in (1, 0):
        assert unit(other, number, "--threads", 2) == 0
    assert files_of(one) == files_of(other)
    assert len(files_of(one)) >= 8


def test_an_interrupted_unit_is_resumed(planned, capsys):
    whole, resumed = planned(name="whole"), planned(name="resumed")
    assert unit(whole, 0) == unit(resumed, 0) == 0
    expected = files_of(whole)
    folder = resumed / "unit-00000"
    notes = sorted(folder.glob("part-*.json"))
    for path in notes[1:]:  # a run that was killed in its second file
        path.unlink()
    index = json.loads((folder / "index.json").read_text())
    for name in ("complete", "totals", "parts"):
        del index[name]
    (folder / "index.json").write_text(json.dumps(index))
    capsys.readouterr()
    found = run_json(capsys, "pack", "--output", resumed, "--unit", "0")
    assert found["parts_of_earlier_runs"] == 1
    assert files_of(resumed) == expected


def test_finish_names_what_is_missing_and_may_be_repeated(planned, capsys):
    folder = planned()
    assert unit(folder, 1) == 0
    capsys.readouterr()
    line = fails(capsys, "pack", "--output", folder, "--finish")
    assert "1 unit of 2 not complete: 0" in line
    missing = f"{folder} has a plan of 2 units, of which 0 is missing: pack each with gristmill pack"
    with pytest.raises(gm.GristmillError, match=missing):
        gm.PackedRows(folder)
    for command in (["verify", folder], ["inspect", folder], ["view", folder, "--output", folder.parent / "a.html"]):
        assert missing in fails(capsys, *command)
    assert unit(folder, 0) == 0
    assert "nothing to do" not in capsys.readouterr().out
    assert unit(folder, 0) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert "2 units, which are not joined: run gristmill pack --output" in fails(capsys, "inspect", folder)
    first = run_json(capsys, "pack", "--output", folder, "--finish")
    index = (folder / "index.json").read_bytes()
    assert run_json(capsys, "pack", "--output", folder, "--finish") == first
    assert (folder / "index.json").read_bytes() == index
    assert main.run(["view", str(folder), "--output", str(folder.parent / "page.html")]) == 0
    capsys.readouterr()
    assert run_json(capsys, "inspect", folder)["items"] == first["items"] == len(gm.PackedRows(folder))


def test_verify_compares_all_units(planned, capsys):
    folder = planned()
    assert [unit(folder, number) for number in (0, 1)] == [0, 0]
    assert finish(folder) == 0
    capsys.readouterr()
    code, found = checked(capsys, "verify", folder)
    assert (code, found["equal"], found["complete"]) == (0, True, True)
    assert found["items"] == len(gm.PackedRows(folder))
    assert checked(capsys, "verify", folder / "unit-00001")[0] == 0
    part = folder / "unit-00001" / "part-00001.npy"
    content = bytearray(part.read_bytes())
    content[-4] ^= 1
    part.write_bytes(content)
    code, found = checked(capsys, "verify", folder)
    assert (code, found["equal"]) == (3, False)
    assert found["folder"].endswith("unit-00001")
    code, message = checked(capsys, "verify", folder, "--part", "0")
    assert code == 2
    assert "name the folder of one" in message


def test_changed_shards_are_noticed(planned, shard_folder, tmp_path, tokenizer_file, texts, capsys):
    copied = tmp_path / "shards"
    shutil.copytree(shard_folder, copied)
    folder = tmp_path / "own"
    arguments = ["pack", copied / "*/*.gz", "--tokenizer", tokenizer_file.parent, "--text-field", "raw_content"]
    assert main.run([*map(str, arguments), "--output", str(folder), "--plan", "--units", "2"]) == 0
    write_shard(copied / "0001" / "en_head.json.gz", texts[:3])
    capsys.readouterr()
    found = [checked(capsys, "pack", "--output", folder, "--unit", number) for number in (0, 1)]
    assert sorted(code for code, _ in found) == [0, 1]
    (message,) = (message for code, message in found if code)
    assert "0001/en_head.json.gz" in message
    assert "the file has changed since" in message


def test_lanes_of_a_plan_are_many(tmp_path, tokenizer_file, shards, capsys):
    arguments = ["pack", shards, "--tokenizer", tokenizer_file.parent, "--text-field", "raw_content", "--plan"]
    found = run_json(capsys, *arguments, "--output", tmp_path / "a", "--units", 2)
    assert (found["units"], found["lanes"]) == (2, 8)
    assert main.run(list(map(str, [*arguments, "--output", tmp_path / "a", "--units", 2]))) == 0
    assert "2 (0 to 1), 4 lanes each" in capsys.readouterr().out
    line = fails(capsys, *arguments, "--output", tmp_path / "a", "--units", 4)
    assert "is another plan: units was 2 and is 4. Choose" in line
    found = run_json(capsys, *arguments, "--output", tmp_path / "b", "--units", 3)
    assert found["lanes"] == 6
    found = run_json(capsys, *arguments, "--output", tmp_path / "c", "--units", 4, "--batch-size", 12)
    assert found["lanes"] == 4
    found = run_json(capsys, *arguments, "--output", tmp_path / "d", "--units", 100, "--split-bytes", 200)
    assert found["lanes"] % 100 == 0
    line = fails(capsys, *arguments, "--output", tmp_path / "e", "--units", 9, code=2)
    assert "expected at most 8" in line
    line = fails(capsys, *arguments, "--output", tmp_path / "f", "--units", 4, "--batch-size", 6, code=2)
    assert "--batch-size 6" in line
    line = fails(capsys, *arguments, "--output", tmp_path / "g", "--units", 3, "--lanes", 8, "--batch-size", 8, code=2)
    assert "must divide --lanes 8" in line


def test_schedulers_name_the_unit(planned, monkeypatch, capsys):
    folder = planned()
    names = ["SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX", "CLOUD_RUN_TASK_INDEX", "BATCH_TASK_INDEX"]
    for name in (*names, "AWS_BATCH_JOB_ARRAY_INDEX"):
        monkeypatch.delenv(name, raising=False)
    capsys.readouterr()
    assert "JOB_COMPLETION_INDEX (Kubernetes)" in fails(capsys, "pack", "--output", folder, "--unit", "auto", code=2)
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "x")
    assert "found 'x'" in fails(capsys, "pack", "--output", folder, "--unit", "auto", code=2)
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    assert unit(folder, "auto") == 0
    assert (folder / "unit-00001" / "index.json").exists()


def test_one_command_packs_all_units(planned, packing, tmp_path, capsys):
    folder, whole = planned(), tmp_path / "whole"
    assert [unit(folder, number) for number in (0, 1)] == [0, 0]
    more = ["--batch-size", ROWS, "--lanes", LANES, "--rows-per-file", 30, "--units", 2]
    assert main.run(list(map(str, packing(whole, *more)))) == 0
    assert files_of(whole).keys() == files_of(folder).keys()
    assert len(gm.PackedRows(whole)) > 0


def test_each_unit_lists_its_quarantined_records(tmp_path, tokenizer_file, capsys):
    for number in range(4):
        (tmp_path / f"{number}.jsonl").write_text('{"text": "some words"}\n' * 50 + "no record\n")
    folder = tmp_path / "packed"
    arguments = ["pack", tmp_path / "*.jsonl", "--tokenizer", tokenizer_file.parent, "--on-error", "quarantine"]
    more = ["--max-error-rate", "0.5", "--output", folder, "--plan", "--units", "2"]
    assert main.run([*map(str, arguments), *map(str, more)]) == 0
    assert [unit(folder, number) for number in (0, 1)] == [0, 0]
    capsys.readouterr()
    assert run_json(capsys, "pack", "--output", folder, "--finish")["quarantined"] == 4
    lists = [path.read_text().splitlines() for path in sorted(folder.glob("*/quarantine.jsonl"))]
    assert [len(lines) for lines in lists] == [2, 2]


def test_wrong_usage_is_named(planned, shards, tokenizer_file, tmp_path, capsys):
    folder = planned()

    def says(*arguments, code=2):
        capsys.readouterr()
        assert main.run(list(map(str, arguments))) == code
        return capsys.readouterr().err

    assert "--batch-size does not go with --unit" in says("pack", "--output", folder, "--unit", 0, "--batch-size", 8)
    assert "do not go together" in says("pack", "--output", folder, "--unit", 0, "--finish")
    assert "has the units 0 to 1" in says("pack", "--output", folder, "--unit", 2)
    assert "expected a number from 0, or auto" in says("pack", "--output", folder, "--unit", "-1")
    assert "no plan.json" in says("pack", "--output", tmp_path / "none", "--unit", 0, code=1)
    assert "--plan needs --units" in says("pack", shards, "--output", tmp_path / "a", "--plan")
    assert "--engine needs --units" in says("pack", shards, "--output", tmp_path / "a", "--engine", "ray")
    assert "--cpus needs --engine" in says("pack", shards, "--output", tmp_path / "a", "--units", 2, "--cpus", 2)
    assert "Missing argument 'SHARDS...'" in says("pack", "--output", tmp_path / "a")
    plan = ["pack", shards, "--tokenizer", tokenizer_file.parent, "--plan", "--units", 2, "--output"]
    line = says(*plan, folder, code=1)
    assert "is another plan: " in line
    assert "sequence_length was 128 and is" in line
    assert "rows_per_file was 30 and is 65536" in line
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    assert "is not empty and does not hold units" in says(*plan, tmp_path / "full", code=1)
    text = (folder / "plan.json").read_text()
    (folder / "plan.json").write_text(text[:-9])
    assert "plan.json" in says("pack", "--output", folder, "--unit", 0, code=1)
    (folder / "plan.json").write_text(json.dumps({**json.loads(text), "units": "two"}))
    assert "units is missing or has the wrong type" in says("pack", "--output", folder, "--unit", 0, code=1)


@pytest.mark.parametrize("file_format", ["npy", "array_record", "megatron", "parquet"])
def test_python_packs_as_the_command_line(file_format, pack, tmp_path, shards, tokenizer_file):
    pack(tmp_path / "one", "--format", file_format)
    dataset = gm.PackedDataset(shards, tokenizer=tokenizer_file.parent, batch_size=16, **TEXT)
    found = gm.pack(dataset, tmp_path / "other", format=file_format, rows_per_file=50)
    of_command, of_python = gm.PackedRows(tmp_path / "one"), gm.PackedRows(tmp_path / "other")
    assert found["items"] == len(of_python) == len(of_command)
    for one, other in zip(of_command, of_python, strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert main.run(["verify", str(tmp_path / "other")]) == 0


def test_python_packs_in_units_with_a_sample_that_no_command_line_names(tmp_path, tokenizer_file):
    messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    (tmp_path / "a.jsonl").write_text((json.dumps({"messages": messages}) + "\n") * 200)
    template = gm.ChatTemplate(
        "{% for m in messages %}{{ m.role + m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}assistant{% endif %}"
    )
    dataset = gm.PackedDataset(
        tmp_path / "a.jsonl", tokenizer=tokenizer_file.parent, sample=gm.Chat(template=template), sequence_length=64,
        batch_size=4, lanes=4, split_bytes=4000, packing="best_fit", layout="hf",
    )  # fmt: skip
    found = gm.pack(dataset, tmp_path / "packed", units=2, fields=["input_ids", "labels"])
    rows = gm.PackedRows(tmp_path / "packed")
    assert rows.fields == ("input_ids", "labels")
    assert found["units"] == 2
    expected = [row for batch in dataset for row in batch["input_ids"] if row.any()]
    assert sorted(row["input_ids"].tolist() for row in rows) == sorted(row.tolist() for row in expected)


def test_wrong_arguments_in_python(tmp_path, shards, encoder):
    dataset = gm.PackedDataset(shards, tokenizer=encoder, batch_size=8, lanes=4, **TEXT)
    for error, says, arguments in [
        (gm.ArgumentError, "format='csv'", {"format": "csv"}),
        (gm.ArgumentError, "fields='words'", {"fields": ["words"]}),
        (gm.ArgumentError, "units=3", {"units": 3}),
        (gm.ArgumentError, "rows_per_file=0", {"rows_per_file": 0}),
    ]:
        with pytest.raises(error, match=says):
            gm.pack(dataset, tmp_path / "packed", **arguments)
    with pytest.raises(gm.ArgumentTypeError, match="expected a PackedDataset"):
        gm.pack([1], tmp_path / "packed")
    with pytest.raises(gm.ArgumentError, match="batch_size=None"):
        gm.pack(gm.PackedDataset(shards, tokenizer=encoder, **TEXT), tmp_path / "packed")
    part = gm.PackedDataset(shards, tokenizer=encoder, batch_size=8, lanes=4, shard_index=1, shard_count=2, **TEXT)
    with pytest.raises(gm.ArgumentError, match="all its lanes"):
        gm.pack(part, tmp_path / "packed", units=2)
    assert not (tmp_path / "packed").exists()
