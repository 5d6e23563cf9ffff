"""`gristmill trace`: the oracle is the provenance of the whole stream."""

import json

import pytest

import gristmill as gm
from gristmill._cli import main
from helpers import write_shard

COUNTS = (9, 30, 14, 22)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    for number, count in enumerate(COUNTS):
        texts = [f"shard {number} text {index} " + "with words " * (index * 7 % 23) for index in range(count)]
        write_shard(folder / f"{number}.jsonl", texts)
    return folder


@pytest.fixture(scope="module")
def made(folder, encoder):
    def made(**arguments):
        given = {"text_field": "raw_content", "sequence_length": 48, "batch_size": 4, "lanes": 2, "epochs": 3}
        return gm.PackedDataset(f"{folder}/*.jsonl", tokenizer=encoder, **{**given, **arguments})

    return made


def oracle(dataset, steps):
    """The state after some steps, and for each record the epoch, step and row of each row that it is in."""
    iterator = iter(dataset)
    parts = []
    for step in range(steps):
        batch = next(iterator, None)
        if batch is None:
            break
        for row, entries in enumerate(batch["provenance"].tolist()):
            parts += [(shard, record, step, row, length) for shard, record, _, length in entries if length]
    return iterator.get_state(), parts


def expected(parts, lengths):
    """The rows of each record; its epoch is how often all of its tokens came before."""
    found, passed = {}, {}
    for shard, record, step, row, length in parts:
        before = passed.get((shard, record), 0)
        passed[shard, record] = before + length
        entry = (before // lengths[shard, record], step, row)
        rows = found.setdefault((shard, record), [])
        if entry not in rows:
            rows.append(entry)
    return {key: sorted(rows, key=lambda one: one[1:]) for key, rows in found.items()}


@pytest.fixture(scope="module")
def lengths(made):
    """The tokens of each record."""
    found = {}
    for batch in made(epochs=1, provenance=48):
        for entries in batch["provenance"].tolist():
            for shard, record, _, length in entries:
                found[shard, record] = found.get((shard, record), 0) + length
    return found


PACKINGS = [
    {"packing": "concat"},
    {"packing": "concat", "seed": 3, "shuffle_window": 10},
    {"packing": "best_fit", "fit_window": 12},
    {"packing": "best_fit", "seed": 3, "fit_window": 12, "shuffle_window": 20, "skip": [(3, 5)]},
    {"packing": "best_fit", "fit_window": 12, "stages": [gm.Stage(0, 48, 4), gm.Stage(6, 24, 8), gm.Stage(11, 48, 2)]},
]


def traced(capsys, *arguments):
    assert main.run(["trace", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("arguments", PACKINGS, ids=str)
def test_rows_are_those_of_the_provenance(made, lengths, folder, tokenizer_file, tmp_path, capsys, arguments):
    dataset = made(provenance=48 if "stages" not in arguments else 24, **arguments)
    batches = sum(1 for _ in dataset)
    for steps in (0, 7, batches // 2, batches):
        skip = dataset.skip
        state, parts = oracle(dataset, steps)
        if skip:
            parts = [(*part[:2], renumbered(part[2], skip), *part[3:]) for part in parts]
        path = tmp_path / f"{steps}.json"
        path.write_text(json.dumps(state))
        rows = expected(parts, lengths) if not skip else None
        for shard, record in [(0, 0), (0, 8), (1, 13), (2, 5), (3, 21)]:
            run = ["--state", path, "--shards", f"{folder}/*.jsonl", "--tokenizer", tokenizer_file]
            found = traced(capsys, f"{shard}.jsonl:{record}", *run)
            entries = [(one["epoch"], one["step"], one["row"]) for one in found]
            if rows is not None:
                assert entries == rows.get((shard, record), []), (steps, shard, record)
            else:
                assert [entry[1:] for entry in entries] == sorted(
                    {part[2:4] for part in parts if part[:2] == (shard, record)}
                )


@pytest.mark.parametrize("size", ["", "window_size=10"])
def test_run_from_before_windows_grew_is_traced_in_its_order(encoder, tokenizer_file, tmp_path, capsys, size):
    """Its states have no size of windows; where it began, all had the largest."""
    texts = [f"text {number} " + "with words " * 100 for number in range(200)]
    shard = tmp_path / "long.jsonl"
    write_shard(shard, texts)
    dataset = gm.PackedDataset(
        str(shard),
        text_field="raw_content",
        tokenizer=encoder,
        sequence_length=512,
        batch_size=4,
        seed=1,
        provenance=512,
    )
    iterator = iter(dataset)
    iterator.set_state(iterator.get_state() | {"lanes": {"0": size}})
    found = {}
    for step in range(8):
        for row, entries in enumerate(next(iterator)["provenance"].tolist()):
            for _, record, _, length in entries:
                if length:
                    found.setdefault(record, []).append((step, row))
    path = tmp_path / "state.json"
    path.write_text(json.dumps(iterator.get_state()).replace(" window_size=10", ""))
    run = ["--state", path, "--shards", shard, "--tokenizer", tokenizer_file]
    for record in (0, 40, 90, 150, 199):
        entries = [(one["step"], one["row"]) for one in traced(capsys, f"long.jsonl:{record}", *run)]
        assert entries == list(dict.fromkeys(found.get(record, [])))


def renumbered(index, skip):
    """The step of the element with an index, where steps are skipped."""
    step = -1
    for _ in range(index + 1):
        step += 1
        while any(first <= step < end for first, end in skip):
            step += 1
    return step


def test_earlier_states_and_keys_lead_to_the_same(made, folder, tokenizer_file, tmp_path, capsys):
    dataset = made(seed=2, shuffle_window=8)
    iterator = iter(dataset)
    paths = []
    for count in range(1, 31):
        next(iterator)
        if count % 10 == 0:
            paths.append(tmp_path / f"{count}.json")
            paths[-1].write_text(json.dumps(iterator.get_state()))
    run = ["--shards", f"{folder}/*.jsonl", "--tokenizer", tokenizer_file]
    found = traced(capsys, "1.jsonl:20", "--state", paths[-1], *run)
    assert found
    assert traced(capsys, "1.jsonl:20", *(part for path in paths for part in ("--state", path)), *run) == found
    by_key = traced(capsys, "--where", "url=file:20", "--state", paths[-1], *run)
    assert [one for one in by_key if one["shard"].endswith("1.jsonl")] == found
    assert {one["record"] for one in by_key} == {20}
    assert main.run(["trace", "1.jsonl:20", "--state", str(paths[-1]), *map(str, run)]) == 0
    assert "1.jsonl:20 was trained on in" in capsys.readouterr().out


def test_digests_are_those_of_the_batches(made, folder, tokenizer_file, tmp_path, capsys):
    dataset = made(packing="best_fit", provenance=True)
    iterator = iter(dataset)
    digests, paths = [], []
    for step in range(12):
        digests.append({"step": step, "digest": gm.batch_digest(next(iterator))})
        if step in (5, 11):
            paths.append(tmp_path / f"{step}.json")
            paths[-1].write_text(json.dumps(iterator.get_state()))
    run = ["--digests", "--shards", f"{folder}/*.jsonl", "--tokenizer", tokenizer_file]
    assert traced(capsys, "--state", paths[1], *run) == digests
    assert traced(capsys, "--state", paths[0], "--state", paths[1], *run) == digests[6:]
    assert len({one["digest"] for one in digests}) == 12


def test_only_committed_steps_were_trained_on(made, folder, tokenizer_file, tmp_path, capsys):
    iterator = iter(made(provenance=48))
    iterator.commit([])
    rows = {}
    for step in range(8):
        for row, entries in enumerate(next(iterator)["provenance"].tolist()):
            for shard, record, _, length in entries:
                rows.setdefault((shard, record), set()).update([(step, row)] if length else [])
    for step in (0, 3, 6):
        iterator.commit(step)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(iterator.get_state()))
    run = ["--state", path, "--shards", f"{folder}/*.jsonl", "--tokenizer", tokenizer_file]
    for shard, record in sorted(rows)[::3]:
        found = traced(capsys, f"{shard}.jsonl:{record}", *run)
        expected = sorted(one for one in rows[shard, record] if one[0] in (0, 3, 6))
        assert [(one["step"], one["row"]) for one in found] == expected


def test_edits_are_named(made, folder, tokenizer_file, tmp_path, capsys):
    edits = [{"step": 4, "keep": "url != 'file:20'"}]
    iterator = iter(made(edits=edits))
    for _ in range(20):
        next(iterator)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(iterator.get_state()))
    run = ["--state", path, "--shards", f"{folder}/*.jsonl", "--tokenizer", tokenizer_file]
    assert main.run(["trace", "1.jsonl:20", *map(str, run)]) == 2
    assert "--set 'edits=" in capsys.readouterr().err
    assert traced(capsys, "1.jsonl:20", *run, "--set", f"edits={json.dumps(edits)}") == []
    assert main.run(["trace", "1.jsonl:20", *map(str, run), "--set", f"edits={json.dumps(edits)}"]) == 0
    assert "was not trained on up to the state" in capsys.readouterr().out


SAMPLE = ["--sample", "tokens", "--sample", 'fields={"reward": {"per": "sample"}}']


@pytest.fixture
def rollouts(tmp_path):
    """Shards of ready ids, and the state of a run of them, which has no tokenizer; its rows by their records."""
    for shard in range(2):
        records = [{"input_ids": [shard * 50 + n + 1] * (n % 7 + 1), "reward": n / 4} for n in range(40)]
        (tmp_path / f"{shard}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    sample = gm.Tokens(fields={"reward": gm.Field(per="sample")})
    iterator = iter(gm.PackedDataset(f"{tmp_path}/*.jsonl", sample=sample, sequence_length=16, batch_size=4, lanes=2))
    rows = {}
    for step in range(3):
        for row, ids in enumerate(next(iterator)["inputs"].tolist()):
            for token in {*ids} - {0}:
                rows.setdefault(divmod(token - 1, 50), []).append((step, row))
    (tmp_path / "state.json").write_text(json.dumps(iterator.get_state()))
    return tmp_path, rows


def test_runs_of_ready_ids_need_no_tokenizer(rollouts, tokenizer_file, capsys):
    folder, rows = rollouts
    state, run = folder / "state.json", ["--shards", f"{folder}/*.jsonl", *SAMPLE]
    for shard, record in [*rows][::5]:
        found = traced(capsys, f"{shard}.jsonl:{record}", "--state", state, *run)
        assert [(one["step"], one["row"]) for one in found] == rows[shard, record]
    assert len(traced(capsys, "--digests", "--state", state, *run)) == 3
    for row in (["row", state, *run], ["row", f"{folder}/*.jsonl", *SAMPLE, "--set", "lanes=1"]):
        assert main.run(["inspect", *map(str, row), "--row", "0", "--full", "--json"]) == 0
        [first, *_] = json.loads(capsys.readouterr().out)["segments"]
        assert first["document"]["text"].split() == [first["text"].split()[0]] * len(first["document"]["text"].split())
        assert int(first["text"].split()[0]) > 0
    page = folder / "page.html"
    for drawn in ([state, *run], [f"{folder}/*.jsonl", *SAMPLE]):
        assert main.run(["view", *map(str, drawn), "--output", str(page)]) == 0
        assert "none: ids are shown" in page.read_text()
    given = [*map(str, run), "--tokenizer", str(tokenizer_file)]
    assert main.run(["trace", "0.jsonl:0", "--state", str(state), *given]) == 1
    assert "a run of ready ids, which had no tokenizer: leave --tokenizer out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["9.jsonl:0"], "found that of none of the shards"),
        (["1.jsonl:30"], "'1.jsonl:30': the shard has no such record; they count from 0"),
        (["jsonl"], "expected a shard and the number of a record"),
        (["1.jsonl:x"], "expected a shard and the number of a record"),
        (["--where", "url"], "expected KEY=VALUE"),
        (["--where", "url=none"], "expected a record whose 'url' has this value, found none"),
        ([], "expected one of SHARD:RECORD, --where and --digests"),
    ],
)
def test_what_names_no_record_is_refused(made, folder, tokenizer_file, tmp_path, capsys, arguments, message):
    iterator = iter(made())
    next(iterator)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(iterator.get_state()))
    run = ["--state", path, "--shards", f"{folder}/*.jsonl", "--tokenizer", tokenizer_file]
    assert main.run(["trace", *arguments, *map(str, run)]) in (1, 2)
    assert message in capsys.readouterr().err
