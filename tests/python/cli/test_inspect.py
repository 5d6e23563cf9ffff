"""`gristmill inspect`: tokenizers, shards, saved states, and the sources of a row."""

import errno
import gzip
import itertools
import json
import os
import random
import re
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import gristmill as gm
from chat_models import write_chatml
from command_line import checked, fails, run_json, shard_of
from gristmill._cli import main
from gristmill._demo import sample_text
from gristmill._inspect import contents, filtering


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer_file):
    """The demo's shards, and a small tokenizer that loads fast."""
    folder = Path(sample_text.prepare(tmp_path_factory.mktemp("demo"), 0.3).folder)
    shutil.copytree(tokenizer_file.parent, folder / "tokenizer")
    return folder


def dataset_of(folder):
    return gm.PackedDataset(
        str(folder / "*" / "*.gz"),
        tokenizer=folder / "tokenizer",
        text_field="raw_content",
        sequence_length=64,
        batch_size=16,
    )


def first_batches(folder):
    return list(itertools.islice(dataset_of(folder), 2))


@pytest.fixture
def state(tmp_path, folder):
    iterator = iter(dataset_of(folder))
    next(iterator)
    next(iterator)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(iterator.get_state()))
    iterator.close()
    return path


def state_options(folder):
    return ["--shards", folder / "*" / "*.gz", "--tokenizer", folder / "tokenizer"]


@pytest.mark.slow
def test_inspect_tokenizer(capsys):
    path = sample_text.tokenizer()
    encoder = gm.Encoder.from_file(path)
    found = run_json(capsys, "inspect", path, "--text", "Hello world")
    assert found["kind"] == "tokenizer"
    assert found["model"] == "BPE"
    assert found["fingerprint"] == encoder.fingerprint
    assert [part["id"] for part in found["encoded"]] == encoder.encode("Hello world").tolist()
    assert found["eos"] == {"id": encoder.eos_id, "token": encoder.id_to_token(encoder.eos_id)}
    assert run_json(capsys, "inspect", path.parent)["path"] == str(path)
    assert main.run(["inspect", str(path)]) == 0
    assert f"fingerprint    {encoder.fingerprint}" in capsys.readouterr().out


def test_inspect_skips_white_space_before_a_tokenizer(tmp_path, capsys):
    spaced = tmp_path / "spaced.json"
    spaced.write_bytes(b"\n" * 100_000 + sample_text.tokenizer().read_bytes())
    assert run_json(capsys, "inspect", spaced)["kind"] == "tokenizer"


def test_inspect_shard(tmp_path, capsys):
    path = shard_of(tmp_path, '{"id": 1, "text": "abc"}', "", '{"id": null, "text": "defgh", "meta": {}}')
    found = run_json(capsys, "inspect", path)
    assert found["kind"] == "shard"
    assert (found["records_read"], found["blank_lines"], found["whole_file_read"]) == (2, 1, True)
    assert found["inflated_bytes_read"] == len(gzip.decompress(path.read_bytes()))
    assert found["keys"] == {
        "text": {"types": {"string": 2}, "characters": 8},
        "id": {"types": {"number": 1, "null": 1}, "characters": 0},
        "meta": {"types": {"object": 1}, "characters": 0},
    }
    part = run_json(capsys, "inspect", path, "--records", 1)
    assert (part["records_read"], part["whole_file_read"]) == (1, False)
    assert main.run(["inspect", str(path)]) == 0
    assert "Most text is under text_field='text'." in capsys.readouterr().out


@pytest.fixture
def scored(tmp_path):
    """Two shards of records with scores, one of them bad."""
    rng = random.Random(2)
    for name in ("a", "b"):
        lines = []
        for number in range(100):
            score = None if number % 10 == 0 else rng.random() * 100
            record = {"score": score, "language": rng.choice("xy"), "lines": [1, 2, number]}
            lines.append(json.dumps(record))
        lines[50] = "bad"
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return tmp_path / "*.jsonl"


def test_inspect_filter_shows_clauses_and_values(scored, capsys):
    keep = "score >= 50 and (language == 'x' or score > 90) and sum(lines[*]) / len(lines) < 30"
    found = run_json(capsys, "inspect", scored, "--keep", keep, "--records", 150)
    assert (found["kind"], found["shards"], found["records_read"], found["bad"]) == ("filter", 2, 150, 1)
    assert found["kept"] == found["clauses"][-1]["kept_so_far"]
    texts = [clause["clause"] for clause in found["clauses"]]
    assert texts == ["score >= 50", "language == 'x' or score > 90", "sum(lines[*]) / len(lines) < 30"]
    so_far = [clause["kept_so_far"] for clause in found["clauses"]]
    assert so_far == sorted(so_far, reverse=True)
    assert so_far[0] == found["clauses"][0]["kept"] > so_far[-1] > 0
    values = {value["expression"]: value for value in found["values"]}
    assert list(values) == ["score", "language", "lines[*]", "lines", "sum(lines[*]) / len(lines)"]
    assert values["score"]["kinds"] == {"missing": 14, "number": 135}
    assert sum(found["count"] for found in values["score"]["bins"]) == 135
    assert {found["value"] for found in values["language"]["most_frequent"]} == {"x", "y"}
    assert values["lines[*]"]["kinds"] == {"number": 3 * 149}
    assert values["lines"]["kinds"] == {"array": 149}
    assert main.run(["inspect", str(scored), "--keep", keep]) == 0
    shown = capsys.readouterr().out
    assert "looked at  200 records of 2 shards, 2 bad ones among them" in shown
    assert "score: 18 missing, 180 number" in shown
    assert "####" in shown


@pytest.mark.parametrize(
    ("values", "bins"),
    [
        ([1, 1, 5], [(1, 1, 2), (5, 5, 1)]),
        ([], []),
        (list(range(100)), [(None, 10, 10), *((n, n + 10, 10) for n in range(10, 90, 10)), (90, None, 10)]),
        ([0.5] * 990 + [0.1 * n for n in range(11)], [(None, 0.5, 5), (0.5, None, 996)]),
    ],
)
def test_histogram_has_round_borders(values, bins):
    found = filtering._bins(sorted(values))
    assert [(part["from"], part["to"], part["count"]) for part in found] == bins


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 0.3, 1, 1e6, 1e300])
def test_histogram_counts_each_number_once(scale):
    rng = random.Random(1)
    for numbers in (
        sorted(rng.random() * scale for _ in range(500)),
        sorted(scale * 10 ** (6 * rng.random() - 3) for _ in range(500)),
        sorted(scale * (rng.random() - 0.5) for _ in range(500)),
        sorted([*(scale + n * scale * 1e-15 for n in range(20)), scale * 5]),
    ):
        bins = filtering._bins(numbers)
        assert sum(found["count"] for found in bins) == len(numbers)
        assert len(bins) <= 25


def test_inspect_filter_refuses_a_wrong_expression_and_other_files(scored, tmp_path, capsys):
    said = fails(capsys, "inspect", scored, "--keep", "score =", code=2)
    assert said.startswith("error: --keep 'score =': expected an expression, found invalid syntax")
    assert "no such file" in fails(capsys, "inspect", tmp_path / "none", "--keep", "score > 1")
    code, said = checked(capsys, "inspect", scored, "--keep", "score > 1", "--row", "0")
    assert (code, "No such option" in said) == (2, True)


def test_inspect_recommends_only_keys_with_text(tmp_path, capsys):
    numbers = shard_of(tmp_path, '{"id": 1, "ids": [1, 2]}')
    assert main.run(["inspect", str(numbers)]) == 0
    assert "text_field=" not in capsys.readouterr().out
    mixed = shard_of(tmp_path, '{"id": 1, "empty": ""}', name="mixed.json.gz")
    assert main.run(["inspect", str(mixed)]) == 0
    assert "Most text is under text_field='empty'." in capsys.readouterr().out


def test_inspect_recognizes_plain_and_one_record_shards(tmp_path, capsys):
    path = tmp_path / "one.jsonl"
    path.write_text('{"text": "a"}')
    found = run_json(capsys, "inspect", path)
    assert (found["kind"], found["compression"], found["records_read"]) == ("shard", "none", 1)
    path.write_text("")
    assert run_json(capsys, "inspect", path)["records_read"] == 0


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['{"text": "a"}', '{"text": '], "record 1, byte 14: expected a value, found the end of the line"),
        (['{"text": "a"}', "[1]"], "record 1, byte 14: expected a JSON object ('{'), found '['"),
    ],
)
def test_inspect_locates_a_malformed_record(lines, says, tmp_path, capsys):
    assert says in fails(capsys, "inspect", shard_of(tmp_path, *lines))


def test_inspect_accepts_the_records_that_a_run_accepts(tmp_path, capsys):
    deep = '{"text": "b", "meta": ' + "[" * 30_000 + "]" * 30_000 + "}"
    lines = ['{"text": "a"}', deep, '{"text": "c", "id": ' + "9" * 5000 + "}", '{"text": 1, "text": "\\ud83d\\ude00é"}']
    path = shard_of(tmp_path, *lines, '{"te\\u0078t": "\\ud800"}')
    run = iter(gm.PackedDataset(path, tokenizer=sample_text.tokenizer(), on_error="quarantine", max_error_rate=1.0))
    assert len(list(run)) == 1
    assert run.stats()["documents"] == 4
    found = run_json(capsys, "inspect", path)
    assert (found["records_read"], found["whole_file_read"]) == (5, True)
    assert found["keys"] == {
        "text": {"types": {"string": 4, "string with lone surrogates": 1}, "characters": 6},
        "meta": {"types": {"array": 1}, "characters": 0},
        "id": {"types": {"number": 1}, "characters": 0},
    }


def test_inspect_reads_no_more_than_the_wanted_records(tmp_path, capsys):
    path = shard_of(tmp_path, '{"text": "a"}', "", '{"text": ')
    found = run_json(capsys, "inspect", path, "--records", 1)
    assert (found["records_read"], found["whole_file_read"], found["inflated_bytes_read"]) == (1, False, 14)
    assert "record 2, byte 15: expected" in fails(capsys, "inspect", path)


def test_inspect_holds_no_whole_line_in_python(tmp_path, capsys):
    """As Python objects a line would take many times its size, and lines may be as long as a run accepts."""
    long = '{"text": "' + "a" * 2**25 + '"}'
    path = shard_of(tmp_path, long, '{"text": "b"}', long)
    tracemalloc.start()
    found = run_json(capsys, "inspect", path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**24
    assert (found["records_read"], found["whole_file_read"]) == (3, True)
    assert found["inflated_bytes_read"] == sum(map(len, (long, long))) + 16
    assert found["keys"] == {"text": {"types": {"string": 3}, "characters": 2**26 + 1}}


@pytest.mark.slow
def test_inspect_refuses_lines_that_a_run_refuses(tmp_path, capsys):
    path = shard_of(tmp_path, json.dumps({"text": "a" * 2**27}), '{"text": "b"}')
    said = fails(capsys, "inspect", path)
    assert "record 0, byte 0: expected a line of at most 134217728 bytes" in said
    assert "raise --max-document-bytes to read it" in said
    assert run_json(capsys, "inspect", path, "--max-document-bytes", 2**28)["records_read"] == 2


def test_inspect_escapes_keys_and_limits_their_number(tmp_path, capsys):
    """A terminal obeys control characters; and Python cannot print half of a surrogate pair."""
    keys = ["\x1b[31mred\x07\n", "k" * 500, *(f"key {number}" for number in range(200))]
    path = shard_of(tmp_path, json.dumps(dict.fromkeys(keys, "v")), '{"\\ud800k": "the longest of all the texts"}')
    assert run_json(capsys, "inspect", path)["keys"]["\\ud800k"]["types"] == {"under a key with lone surrogates": 1}
    assert main.run(["inspect", str(path)]) == 0
    said = capsys.readouterr().out
    assert r"'\x1b[31mred\x07\n'" in said
    assert said.isprintable() or set(filter(lambda c: not c.isprintable(), said)) == {"\n"}
    assert max(map(len, said.splitlines())) < 200
    assert "and 103 more" in said
    assert "text_field='\\x1b[31mred" in said


def test_inspect_names_a_truncated_shard(tmp_path, capsys):
    path = shard_of(tmp_path, *(json.dumps({"text": str(number)}) for number in range(5000)))
    path.write_bytes(path.read_bytes()[:-100])
    assert "the file is truncated" in fails(capsys, "inspect", path, "--records", 10**6)


def test_inspect_of_missing_file_and_empty_folder(tmp_path, capsys):
    assert "no such file" in fails(capsys, "inspect", tmp_path / "none.json")
    said = fails(capsys, "inspect", tmp_path)
    nothing = f"error: found nothing to inspect in the folder: '{tmp_path}'"
    assert said == f"{nothing}: expected tokenizer.json, packed files or saved states in this folder"


@pytest.mark.parametrize("data", [bytes(range(256)), b"plain text\n", b"[1, 2]", gzip.compress(b"\xff", mtime=0)])
def test_inspect_of_unknown_content_names_the_kinds(tmp_path, capsys, data):
    (tmp_path / "file").write_bytes(data)
    said = fails(capsys, "inspect", tmp_path / "file")
    assert f"{tmp_path}/file: record 0, byte 0: expected " in said
    assert said.endswith("; it was read as a shard, since it is not a tokenizer, saved state or packed file")


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("vocab.json", b'{"a": 1}', "this is a vocab.json"),
        ("merges.txt", b"#version: 0.2\na b\n", "this is the merges.txt of a tokenizer"),
        ("cl100k_base.tiktoken", b"IQ== 0\nIg== 1\n", "this is a tiktoken file"),
        ("tokenizer.model", b"\n\x0e\n\x05<unk>\x15\0\0\0\0", "this looks like a SentencePiece model"),
    ],
)
def test_inspect_names_tokenizer_files_of_other_formats(tmp_path, capsys, name, data, what):
    (tmp_path / name).write_bytes(data)
    said = fails(capsys, "inspect", tmp_path / name)
    assert said.startswith(f"error: {tmp_path / name}: the `tokenizers` library cannot load this tokenizer.json: ")
    assert f"; {what}; transformers writes a tokenizer.json from it: AutoTokenizer" in said


def test_inspect_of_several_shards_asks_for_one(folder, capsys):
    first = folder / "0000" / "en_head.json.gz"
    said = fails(capsys, "inspect", folder / "*" / "*.gz")
    assert said.endswith(f": a glob needs --row; to inspect a shard, name it, such as '{first}'")
    for shards, shard in ((folder, first), (first.parent, first)):
        said = fails(capsys, "inspect", shards)
        assert said.endswith(f"in this folder; to inspect a shard, name it, such as '{shard}'")
    assert fails(capsys, "inspect", folder / "nothing*").endswith("to inspect a shard, name it")


def test_inspect_of_an_empty_shard(tmp_path, capsys):
    path = tmp_path / "shard.json.gz"
    path.touch()
    assert "found an empty file" in fails(capsys, "inspect", path)


def test_inspect_state(state, folder, capsys):
    found = run_json(capsys, "inspect", state)
    assert (found["kind"], found["step"]) == ("state", 2)
    assert found["stream"]["sequence_length"] == "64"
    assert list(found["lanes"]) == [str(lane) for lane in range(8)]
    # 2,048 of them, but where the installation that the text is taken from is small.
    assert found["totals"]["tokens"] == sum(
        (batch["inputs_segmentation"] != 0).sum() for batch in first_batches(folder)
    )
    assert main.run(["inspect", str(state)]) == 0
    shown = capsys.readouterr().out
    assert "after step 2" in shown
    assert "up to the window" not in shown


def test_inspect_state_explains_counts_within_windows(tmp_path, folder, encoder, capsys):
    shards = str(folder / "*" / "*.gz")
    dataset = gm.PackedDataset(shards, tokenizer=encoder, text_field="raw_content", sequence_length=64, seed=1)
    iterator = iter(dataset)
    next(iterator)
    (tmp_path / "state.json").write_text(json.dumps(iterator.get_state()))
    assert main.run(["inspect", str(tmp_path / "state.json")]) == 0
    assert (
        "records, filtered, quarantined and lost_shards: up to the window that each lane is in"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize("name", ["state", "state.txt", "state.json.gz"])
def test_inspect_recognizes_a_state_by_content(state, folder, capsys, name):
    other = state.with_name(name)
    other.write_bytes(gzip.compress(state.read_bytes()) if name.endswith(".gz") else state.read_bytes())
    assert run_json(capsys, "inspect", other)["step"] == 2
    rows = [run_json(capsys, "inspect", path, "--row", 5, *state_options(folder)) for path in (state, other)]
    assert rows[0] == rows[1]
    assert "name its shards with --shards" in fails(
        capsys, "inspect", other, "--row", 0, "--tokenizer", sample_text.tokenizer(), code=2
    )


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.json.gz"])
def test_truncated_tokenizer_is_not_taken_for_a_shard(tmp_path, tokenizer_json, capsys, name):
    whole = gzip.compress(tokenizer_json) if name.endswith(".gz") else tokenizer_json
    (tmp_path / name).write_bytes(whole[: len(whole) * 2 // 3])
    message = fails(capsys, "inspect", tmp_path / name)
    assert f"{name} is a damaged tokenizer.json: it cannot be read to its end" in message


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("row", [[], ["--row", 0]])
def test_truncated_state_is_not_taken_for_a_shard(state, folder, capsys, row, zipped):
    os.truncate(state, 200)
    if zipped:
        whole = gzip.compress(state.read_bytes() + os.urandom(2000).hex().encode())
        state.write_bytes(whole[: len(whole) // 2])
    options = [*row, *state_options(folder)] if row else []
    assert "is a damaged saved state: it cannot be read to its end" in fails(capsys, "inspect", state, *options)


def test_shards_option_needs_a_state(folder, tmp_path, capsys):
    shard = shard_of(tmp_path, '{"text": "a"}')
    for path, found in ((shard, "another file"), (tmp_path / "none.json", "no such file")):
        said = fails(capsys, "inspect", path, "--row", 0, *state_options(folder))
        assert f"is not a saved state, whose shards --shards would name: found {found}" in said


def test_inspect_names_a_damaged_cursor(state, capsys):
    saved = json.loads(state.read_text())
    saved["lanes"]["3"] = "1 2"
    state.write_text(json.dumps(saved))
    assert "the state of lane 3 cannot be read: expected numbers as name=number" in fails(capsys, "inspect", state)


def check_row(folder, found, batches):
    """Asserts that each segment is at its offset in its record, and that the row is that of the stream."""
    encoder = gm.Encoder.from_file(folder / "tokenizer")
    row = batches[found["step"]]["inputs"][found["row"]].tolist()
    start = 0
    for part in found["segments"]:
        with gzip.open(part["shard"], "rt") as lines:
            text = json.loads(lines.read().splitlines()[part["record"]])["raw_content"]
        ids = [*encoder.encode(text).tolist(), encoder.eos_id][part["offset"] :][: part["length"]]
        assert part["start"] == start
        assert row[start : start + len(ids)] == ids
        assert encoder.decode(ids) == part["text"]
        start += len(ids)
    assert (start, found["padding"]) == (found["tokens"], len(row) - found["tokens"])


@pytest.mark.parametrize("single", [False, True])
def test_inspect_row(state, folder, tmp_path, capsys, single):
    # Packing, seed and the other arguments come from the state alone.
    dataset = gm.PackedDataset(
        str(folder / "*" / "*.gz"), tokenizer=folder / "tokenizer", text_field="raw_content", sequence_length=64,
        batch_size=None if single else 16, lanes=8, seed=7, packing="best_fit",
    )  # fmt: skip
    iterator = iter(dataset)
    for _ in range(2 * 8 + 3 if single else 2):
        next(iterator)
    state.write_text(json.dumps(iterator.get_state()))
    iterator.close()
    batches = list(dataset.batch(8) if single else dataset)
    for row, step in ((5, None), (7, 2), (6, 3)):
        found = run_json(
            capsys, "inspect", state, "--row", row, *(["--step", step] if step else []), *state_options(folder)
        )
        assert (found["kind"], found["step"], found["row"]) == ("row", step or 2, row)
        assert found["lane"] == (row if single else row // 2)
        check_row(folder, found, batches)
    rows, last = 8 if single else 16, len(batches) - 1
    ended = next(row for row in range(rows) if not batches[last]["inputs_segmentation"][row].any())
    found = run_json(capsys, "inspect", state, "--row", ended, "--step", last, *state_options(folder))
    assert (found["segments"], found["padding"]) == ([], 64)
    for step in (last + 1, 10**6):
        said = fails(capsys, "inspect", state, "--row", ended, "--step", step, *state_options(folder), code=2)
        assert said.endswith(f"no step {step}: the stream has {last + 1:,} steps, counted from 0, of {rows} rows")


def test_inspect_row_of_one_host_within_a_step(state, folder, capsys):
    arguments = {"tokenizer": folder / "tokenizer", "text_field": "raw_content", "sequence_length": 64, "lanes": 8}
    dataset = gm.PackedDataset(str(folder / "*" / "*.gz"), **arguments, shard_index=1, shard_count=2)
    iterator = iter(dataset)
    for _ in range(2 * 4 + 2):
        next(iterator)
    state.write_text(json.dumps(iterator.get_state()))
    iterator.close()
    batches = list(gm.PackedDataset(str(folder / "*" / "*.gz"), **arguments).batch(8))
    for row, first in ((4, 3), (5, 3), (6, 2), (7, 2)):
        found = run_json(capsys, "inspect", state, "--row", row, "--step", 3, *state_options(folder))
        check_row(folder, found, batches)
        options = ["inspect", state, "--row", row, "--step", first - 1, *state_options(folder)]
        assert f"the state is already at step {first}" in fails(capsys, *map(str, options), code=2)
    said = fails(capsys, "inspect", state, "--row", 4, "--step", 10**6, *state_options(folder), code=2)
    assert "there is no step 1000000: the lanes that the state holds, 4, 5, 6, 7, have " in said
    assert said.endswith("; lanes of other hosts may have more: use the folder with all states")


def test_inspect_row_of_shards(folder, capsys):
    dataset = gm.PackedDataset(
        str(folder / "*" / "*.gz"), tokenizer=folder / "tokenizer", text_field="raw_content", sequence_length=100,
        batch_size=4, seed=1,
    )  # fmt: skip
    settings = ["text_field=raw_content", "sequence_length=100", "batch_size=4", "seed=1"]
    arguments = ["inspect", folder / "*" / "*.gz", "--tokenizer", folder / "tokenizer", "--row", 3, "--step", 2]
    arguments += [part for setting in settings for part in ("--set", setting)]
    found = run_json(capsys, *arguments)
    check_row(folder, found, list(dataset))
    assert main.run(list(map(str, arguments))) == 0
    shown = capsys.readouterr().out
    assert "row    3 of the batch of step 2, filled by lane" in shown
    assert found["segments"][0]["shard"] in shown
    arguments[arguments.index("--step") + 1] = 10**6
    assert f"the stream has {len(list(dataset)):,} steps, counted from 0, of 4 rows" in fails(
        capsys, *arguments, code=2
    )


def test_inspect_row_of_compact_rows(folder, capsys):
    options = {"text_field": "raw_content", "sequence_length": 1000, "batch_size": 4, "max_segments": 3}
    dataset = gm.PackedDataset(str(folder / "*" / "*.gz"), tokenizer=folder / "tokenizer", layout="varlen", **options)
    step, row = next(
        (step, row) for step, batch in enumerate(dataset) for row in np.flatnonzero((batch["seq_lens"] > 0).sum(1) > 1)
    )
    arguments = ["inspect", folder / "*" / "*.gz", "--tokenizer", folder / "tokenizer", "--row", row, "--step", step]
    arguments += [part for name, value in options.items() for part in ("--set", f"{name}={value}")]
    found = run_json(capsys, *arguments, "--set", "layout=varlen")
    assert len(found["segments"]) > 1
    assert found == run_json(capsys, *arguments)


def test_inspect_row_of_a_checkpoint_folder(tmp_path, folder, capsys):
    def dataset(**host):
        return gm.PackedDataset(
            str(folder / "*" / "*.gz"), tokenizer=folder / "tokenizer", text_field="raw_content", sequence_length=64,
            batch_size=16, **host,
        )  # fmt: skip

    for process in range(2):
        iterator = iter(dataset(shard_index=process, shard_count=2))
        next(iterator)
        (tmp_path / f"process_{process}-of-2.json").write_text(json.dumps(iterator.get_state()))
        iterator.close()
    assert run_json(capsys, "inspect", tmp_path)["step"] == 1
    check_row(folder, run_json(capsys, "inspect", tmp_path, "--row", 15, *state_options(folder)), list(dataset()))
    one = tmp_path / "process_0-of-2.json"
    assert "lane 7 fills this row, but the state holds the lanes 0, 1, 2, 3" in fails(
        capsys, "inspect", one, "--row", 15, *state_options(folder)
    )


@pytest.mark.parametrize(
    ("code", "arguments", "says"),
    [
        (2, ["--row", 16], "--row 16: a global batch has the rows 0 to 15"),
        (2, ["--row", 0, "--step", 1], "--step 1: the state is already at step 2; use a state saved earlier"),
        (2, ["--row", 0, "--set", "seed=1"], "is a saved state, which already records the arguments: drop --set"),
        (
            2,
            ["--row", 0, "--set", "prefetch=2"],
            "--set prefetch=2: this command sets prefetch itself",
        ),
        (2, ["--row", 0, "--set", "seed=1", "--set", "seed=2"], "--set seed=2: seed was given twice"),
        (1, ["--row", 0, "--special-tokens-in-text", "text"], "pass the --special-tokens-in-text of its Encoder"),
    ],
)
def test_inspect_row_refuses_conflicting_options(state, folder, code, arguments, says, capsys):
    assert says in fails(capsys, "inspect", state, *arguments, *state_options(folder), code=code)


@pytest.mark.parametrize(
    ("code", "settings", "says"),
    [
        (2, ["batch_size=6", "lanes=4"], "--set lanes=4: each lane packs .* must divide --set batch_size=6; use"),
        (2, ["seed=x"], "--set seed='x': expected an integer from 0 to 18446744073709551615, or None, got str$"),
        (2, ["sead=1"], "--set sead=1: PackedDataset has no such argument$"),
        (1, ["text_field=words"], 'expected the key "words", found an object with the keys .* --set text_field='),
    ],
)
def test_inspect_row_errors_name_the_set_option(folder, code, settings, says, capsys):
    options = [part for setting in settings for part in ("--set", setting)]
    shards, *tokenizer = state_options(folder)[1:]
    assert re.search(says, fails(capsys, "inspect", shards, "--row", 0, *tokenizer, *options, code=code))


def test_inspect_row_of_other_shards_names_the_difference(state, folder, tmp_path, capsys):
    others = tmp_path / "others"
    shutil.copytree(folder, others)
    shutil.copytree(next(others.iterdir()), others / "one more")
    assert "another dataset: manifest was" in fails(capsys, "inspect", state, "--row", 0, *state_options(others))


@pytest.mark.slow
def test_inspect_row_needs_the_encoder_option_of_the_state(tmp_path, capsys):
    encoder = gm.Encoder.from_file(sample_text.tokenizer(), special_tokens_in_text="text")
    path = shard_of(tmp_path, json.dumps({"text": f"a {encoder.id_to_token(encoder.eos_id)} b"}))
    iterator = iter(gm.PackedDataset(path, tokenizer=encoder, sequence_length=32))
    (tmp_path / "state").write_text(json.dumps(iterator.get_state()))
    length = int((next(iterator)["inputs_segmentation"] > 0).sum())
    options = ["--row", 0, "--tokenizer", sample_text.tokenizer()]
    for way in ([tmp_path / "state", "--shards", path], [path, "--set", "sequence_length=32"]):
        found = run_json(capsys, "inspect", *way, *options, "--special-tokens-in-text", "text")
        assert [part["length"] for part in found["segments"]] == [length]
    said = fails(capsys, "inspect", tmp_path / "state", "--shards", path, *options)
    assert "another special_tokens_in_text=, which is part of its fingerprint" in said


@pytest.mark.parametrize("arguments", [["--row", "1"], ["--step", "1"]])
def test_inspect_row_without_its_options_is_wrong_usage(state, arguments, capsys):
    assert main.run(["inspect", str(state), *arguments]) == 2
    assert "Usage: gristmill" in capsys.readouterr().err


def test_inspect_text_needs_a_tokenizer(state, folder, tmp_path, capsys):
    row = ["--row", "0", *map(str, state_options(folder))]
    for arguments in ([shard_of(tmp_path, '{"text": "a"}')], [state], [state, *row]):
        assert main.run(["inspect", *map(str, arguments), "--text", "a"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert ("No such option" if "--row" in arguments else "--text needs a tokenizer") in captured.err


def test_record_with_a_tokenizer_key_is_a_shard(tmp_path, capsys):
    for model in ("gpt-4", {"name": "gpt-4"}):
        found = run_json(capsys, "inspect", shard_of(tmp_path, json.dumps({"model": model, "text": "a"})))
        assert (found["kind"], found["records_read"]) == ("shard", 1)


def test_shard_beside_a_foreign_index_is_a_shard(tmp_path, capsys):
    """Spark's files have names like those of packed parts."""
    (tmp_path / "index.json").write_text("no JSON")
    shard = shard_of(tmp_path, '{"text": "a"}', name="part-00000.json.gz")
    assert run_json(capsys, "inspect", shard)["kind"] == "shard"
    assert "index.json is damaged" in fails(capsys, "inspect", tmp_path / "index.json")


def test_inspect_row_of_a_field_named_none(tmp_path, capsys, tokenizer_file):
    shard = shard_of(tmp_path, *(json.dumps({"None": f"some words {number}"}) for number in range(30)))
    iterator = iter(
        gm.PackedDataset(shard, tokenizer=tokenizer_file, sequence_length=16, batch_size=2, text_field="None")
    )
    next(iterator)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(iterator.get_state()))
    found = run_json(capsys, "inspect", state, "--row", 1, "--shards", shard, "--tokenizer", tokenizer_file)
    assert found["segments"]


def test_inspect_of_unreadable_file_names_the_reason(tmp_path, monkeypatch, capsys):
    # Patched, since root may read every file.
    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(contents, "open_inflated", refuse)
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b"{}")
    assert main.run(["inspect", str(path)]) == 1
    assert capsys.readouterr().err == f"error: {str(path)!r}: Permission denied\n"


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ({"vocab": [["a", -1.0]], "unk_id": 0}, "Unigram"),
        ({"vocab": {"[UNK]": 0}, "unk_token": "[UNK]", "continuing_subword_prefix": "##",
          "max_input_chars_per_word": 9}, "WordPiece"),
        ({"vocab": {"a": 0}, "merges": []}, "BPE"),
        ({"vocab": {"a": 0}, "unk_token": "a"}, "WordLevel"),
    ],
)  # fmt: skip
def test_inspect_infers_model_type_from_its_fields(tmp_path, capsys, model, kind):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    assert run_json(capsys, "inspect", tmp_path)["model"] == kind


def test_inspect_chat_marks_trained_tokens(tmp_path, capsys):
    folder = write_chatml(tmp_path / "model")
    shard = tmp_path / "a.jsonl"
    turns = [
        {"role": "user", "content": "naïve?"},
        {"role": "assistant", "content": "one 🙂"},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": "two " * 6000},
    ]
    shard.write_text("".join(json.dumps({"turns": turns[:count]}) + "\n" for count in (2, 4, 2)))
    command = ["inspect", "chats", shard, "--tokenizer", folder, "--set", "field=turns"]
    assert main.run([*map(str, command), "--records", "1"]) == 0
    assert capsys.readouterr().out.partition("\n\n")[2] == (
        "<|im_start|>user\nnaïve?<|im_end|>\n<|im_start|>assistant\n⟦one 🙂<|im_end|>⟧\n\n"
    )
    found = run_json(capsys, *command, "--set", "train_on=last")["conversations"]
    assert [conversation["record"] for conversation in found] == [0, 1, 2]
    long = found[1]["parts"]
    assert [part["trained"] for part in long] == [False, True, False]
    assert long[1]["text"] == ("two " * 6000).strip() + "<|im_end|>"
    assert found[1]["tokens"] > 2**14
    assert [conversation["only_stops"] for conversation in found] == [False, False, False]


def test_inspect_chat_says_where_only_stops_are_trained(tmp_path, capsys):
    folder = write_chatml(tmp_path / "model")
    shard = tmp_path / "a.jsonl"
    answers = ("one", "", "two")
    turns = [[{"role": "user", "content": "ant"}, {"role": "assistant", "content": answer}] for answer in answers]
    shard.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in turns))
    command = ["inspect", "chats", shard, "--tokenizer", folder]
    found = run_json(capsys, *command)["conversations"]
    assert [conversation["only_stops"] for conversation in found] == [False, True, False]
    assert main.run([*map(str, command)]) == 0
    says = [line for line in capsys.readouterr().out.splitlines() if line.startswith("record ")]
    assert [line.endswith("between ⟦ and ⟧, and nothing that its messages say") for line in says] == [
        False,
        True,
        False,
    ]


def test_inspect_chat_shows_what_is_not_trained(tmp_path, capsys):
    folder = write_chatml(tmp_path / "model")
    shard = tmp_path / "a.jsonl"
    turns = [
        {"from": "human", "value": "Q1"},
        {"from": "gpt", "value": "<think>R1</think>A1"},
        {"from": "human", "value": "Q2"},
        {"from": "gpt", "value": "<think>R2</think>A2"},
    ]
    shard.write_text("".join(json.dumps({"turns": turns[:count]}) + "\n" for count in (2, 4, 4)))
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}: "
        "{{ m.content if loop.last else m.content.split('</think>')[-1] }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"
    )
    stop = "<|im_start|>"
    settings = {"field": "turns", "format": "sharegpt", "template": template, "stop_tokens": json.dumps([stop])}
    command = ["inspect", "chats", shard, "--tokenizer", folder]
    command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    assert main.run([*map(str, command)]) == 0
    shown = capsys.readouterr().out
    assert "assistant: ⟦A1<|im_start|>⟧user: Q2<|im_start|>assistant: ⟦<think>R2</think>A2⟧" in shown
    assert shown.count("messages[1]: the template does not write the reasoning of its 'content'\n") == 2
    assert "messages[1]: no token at which the model stops is trained behind it: name it" in shown
    assert '2 of 3 conversations lose reasoning; a run with on_lost_reasoning="error" says of record 1: ' in shown
    assert 'or train on the last turn alone (train_on="last")' not in shown.partition("does not write it: ")[0]
    found = run_json(capsys, *command)["conversations"]
    lost = [{"message": 1, "field": "content"}]
    assert [one["lost_reasoning"] for one in found] == [[], lost, lost]
    assert [one["without_stop"] for one in found] == [[1], [3], [3]]
    assert found[0]["lost_reasoning_error"] is None
    assert found[1]["lost_reasoning_error"].startswith('messages[1]: expected the reasoning in its "content"')
    found = run_json(capsys, *command, "--set", f"final_stop={stop}", "--set", "train_on=last")["conversations"]
    assert [(one["lost_reasoning"], one["without_stop"]) for one in found] == [([], [])] * 3
    assert found[2]["parts"][-1] == {"text": f"<think>R2</think>A2{stop}", "trained": True}


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--keep", "a"], 2, "No such option"),
        ([], 2, "Missing option '--tokenizer'"),
        (["--set", "train=last"], 2, "train"),
        (["--set", "train_on=end"], 2, "train_on='end': expected one of"),
        (["--set", "field=text"], 1, 'under the key "text", found no such key'),
    ],
)
def test_inspect_chat_refuses_what_does_not_fit(tmp_path, capsys, options, code, says):
    folder = write_chatml(tmp_path / "model")
    shard = tmp_path / "a.jsonl"
    shard.write_text('{"messages": []}\n')
    tokenizer = ["--tokenizer", folder] if "--set" in options else []
    found, said = checked(capsys, "inspect", shard, "--chat", *tokenizer, *options)
    assert (found, says in said) == (code, True), said


def test_inspect_prompt_shows_every_token(tmp_path, capsys):
    folder = write_chatml(tmp_path / "model")
    shard = tmp_path / "a.jsonl"
    shard.write_text("".join(json.dumps({"prompt": [{"role": "user", "content": "ant 🙂"}]}) + "\n" for _ in range(5)))
    command = ["inspect", "prompts", shard, "--tokenizer", folder]
    assert main.run([*map(str, command), "--records", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("record 0: ")
    assert lines[2:5] == ["<|im_start|>user", "ant 🙂<|im_end|>", "<|im_start|>assistant"]
    assert [line.split()[-1] for line in lines[7:11]] == ["text", "'<|im_start|>'", "'user'", "'\\n'"]
    found = run_json(capsys, *command)["prompts"]
    encoder = gm.Encoder.from_file(folder)
    assert [prompt["record"] for prompt in found] == [0, 1, 2]
    assert [token["id"] for token in found[0]["tokens"]] == encoder.encode(found[0]["text"]).tolist()
    raw = run_json(capsys, *command, "--set", "add_generation_prompt=false")["prompts"]
    assert found[0]["text"] == raw[0]["text"] + "<|im_start|>assistant\n"


def test_options_of_releases_before_choose_the_same_commands(tmp_path, capsys, scored, state, folder):
    model = write_chatml(tmp_path / "model")
    shard = tmp_path / "a.jsonl"
    turns = [{"role": "user", "content": "ant"}, {"role": "assistant", "content": "bee"}]
    shard.write_text(json.dumps({"messages": turns, "prompt": turns[:1]}) + "\n")
    for name, options, old in [
        ("file", [shard], []),
        ("chats", [shard, "--tokenizer", model], ["--chat"]),
        ("prompts", [shard, "--tokenizer", model], ["--prompt"]),
        ("filter", [scored, "--keep", "score > 1"], []),
        ("row", [state, "--row=0", *state_options(folder)], []),
    ]:
        assert run_json(capsys, "inspect", *options, *old) == run_json(capsys, "inspect", name, *options)


def test_misspelled_command_is_not_taken_for_a_path(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("chats.jsonl").write_text(json.dumps({"text": "ant"}) + "\n")
    code, message = checked(capsys, "inspect", "chat", "chats.jsonl", "--tokenizer", "model")
    assert (code, "no command 'chat'; did you mean 'chats'?" in message) == (2, True)
    Path("chat").write_text(Path("chats.jsonl").read_text())
    assert run_json(capsys, "inspect", "chat", "--records", "1")["kind"] == "shard"


@pytest.mark.parametrize("key", ["prompt", "question"])
def test_inspect_prompt_shows_plain_strings(tmp_path, capsys, key):
    folder = write_chatml(tmp_path / "model")
    shard = tmp_path / "a.jsonl"
    shard.write_text("".join(json.dumps({key: f"ant {n}"}) + "\n" for n in range(4)))
    field = [] if key == "prompt" else ["--sample", "field=question"]
    command = ["inspect", shard, "--prompt", "--tokenizer", folder, "--sample", "text", *field]
    found = run_json(capsys, *command)["prompts"]
    assert [prompt["text"] for prompt in found] == ["ant 0", "ant 1", "ant 2"]
    row = ["--row", "0", "--set", "prompt_length=16", "--set", "batch_size=4"]
    assert run_json(capsys, *command, *row)["prompts"][0]["text"].startswith("ant ")


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--chat"], 2, "No such option"),
        (["--step", "1"], 2, "No such option"),
        (["--drop", "a.parquet"], 2, "No such option"),
        (["--row", "1", "--drop", "a.parquet"], 2, "--prompt cannot be combined with --drop"),
        (["--row", "1", "--keep", "a > 1"], 2, "No such option"),
        (["--row", "1"], 2, "--prompt needs --tokenizer"),
        (["--row", "1", "--shards", "b.jsonl", "--set", "seed=1"], 2, "is no saved state of prompts"),
        ([], 2, "Missing option '--tokenizer'"),
        (["--set", "field=text"], 1, 'under the key "text", found no such key'),
        (["--set", "field=a", "--set", "field=b"], 2, "--set field=b: field was given twice"),
    ],
)
def test_inspect_prompt_refuses_what_does_not_fit(tmp_path, capsys, options, code, says):
    folder = write_chatml(tmp_path / "model")
    shard = tmp_path / "a.jsonl"
    shard.write_text('{"prompt": []}\n')
    tokenizer = ["--tokenizer", folder] if "--set" in options else []
    found, said = checked(capsys, "inspect", shard, "--prompt", *tokenizer, *options)
    assert (found, says in said) == (code, True), said


@pytest.mark.parametrize("is_of_prompts", [False, True])
def test_row_of_a_state_names_all_that_is_missing(tmp_path, capsys, is_of_prompts):
    folder = write_chatml(tmp_path / "model")
    shard = tmp_path / "a.jsonl"
    shard.write_text("".join(json.dumps({"prompt": f"ant {n}", "text": "bee"}) + "\n" for n in range(4)))
    if is_of_prompts:
        settings = {"prompt": gm.Text("prompt"), "prompt_length": 16, "batch_size": 2}
        dataset = gm.PromptDataset([str(shard)], tokenizer=folder, **settings)
        says = "is a state of prompts: add --prompt"
    else:
        dataset = gm.PackedDataset(str(shard), tokenizer=folder, sequence_length=16, batch_size=1, eos=False)
        says = "--row needs --tokenizer and --shards, as PATH is a saved state"
    state = tmp_path / "state.json"
    state.write_text(json.dumps(iter(dataset).get_state()))
    commands = [["inspect", state, "--row", "0"]]
    if is_of_prompts:
        view = ["view", state, "--output", tmp_path / "page.html"]
        of_run = ["--tokenizer", folder, "--shards", shard]
        commands += [view, [*commands[0], *of_run], [*view, *of_run]]
    for command in commands:
        assert main.run([*map(str, command)]) in (1, 2)
        assert says in " ".join(capsys.readouterr().err.split())


def test_row_of_a_state_with_too_few_shards_asks_for_those_of_the_run(tmp_path, capsys):
    folder = write_chatml(tmp_path / "model")
    for number in range(4):
        (tmp_path / f"{number}.jsonl").write_text('{"text": "bee"}\n' * 9)
    shards = str(tmp_path / "*.jsonl")
    dataset = gm.PackedDataset(shards, tokenizer=folder, sequence_length=8, batch_size=4, lanes=4, eos=False)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(iter(dataset).get_state()))
    command = ["inspect", state, "--row", 0, "--tokenizer", folder, "--shards", tmp_path / "0.jsonl"]
    said = fails(capsys, *command)
    assert "was saved by a run of 4 lanes, and these shards allow 1: name the shards of the run" in said
    assert "split_bytes" not in said
