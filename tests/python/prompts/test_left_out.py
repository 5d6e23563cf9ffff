"""Prompts with sidecars, row lists and a quarantine file: the records that `PackedDataset` has, and restarts."""

import gzip
import itertools
import json
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from chat_models import write_chatml
from gristmill import filters
from helpers import PATIENCE
from red_pajama import HEAD, MIDDLE, SIGNALS, RedPajama

TEXT = gm.Text("raw_content")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_chatml(tmp_path_factory.mktemp("models") / "chatml")


@pytest.fixture
def corpus(tmp_path):
    return RedPajama(tmp_path)


def prompts(corpus, folder, **arguments):
    given = {"prompt": TEXT, "full_prompts": True, "prompt_length": 4096, "batch_size": 1, "layout": "hf"}
    return gm.PromptDataset(corpus.glob(), tokenizer=folder, **{**given, **arguments})


def texts(dataset):
    return [dataset[item]["full_prompts"] for item in range(len(dataset))]


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("threads", [1, 3])
def test_filter_sees_the_signals_of_each_record(corpus, folder, threads, columns):
    dataset = prompts(corpus, folder, keep=filters.gopher, sidecars=SIGNALS, threads=threads, columns=columns)
    assert texts(dataset) == corpus.kept()
    assert dataset.counts()["kept"] + dataset.counts()["filtered"] == dataset.counts()["read"] == 160


def test_selected_records_keep_their_sidecars(corpus, folder):
    keep, chosen = "signals.quality_signals.rps_doc_word_count[0][2] >= 500", [3, 41, 42, 100, 159]
    whole = prompts(corpus, folder, keep=keep, sidecars=SIGNALS)
    names = [whole.source(item) for item in range(len(whole))]
    order = {base: number for number, base in enumerate(sorted(corpus.documents))}
    numbers = [order[path.split("documents/")[1].removesuffix(".json.gz")] * 40 + record for path, record in names]
    dataset = prompts(corpus, folder, keep=keep, sidecars=SIGNALS, select=chosen)
    kept = [text for text, number in zip(texts(whole), numbers, strict=True) if number in chosen]
    assert texts(dataset) == kept
    assert dataset.counts()["read"] == len(chosen)


def test_columns_of_parquet_are_joined(corpus, folder, tmp_path):
    """The filter looks at columns that no prompt needs, and at the sidecar."""
    records = [{"raw_content": f"text {n}", "n": n} for n in range(30)]
    (tmp_path / "own").mkdir()
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "own" / "a.parquet")
    (tmp_path / "own" / "a.scores.jsonl").write_text("".join(json.dumps({"score": n % 4}) + "\n" for n in range(30)))
    sidecars = {"s": gm.Sidecar("", "", ".parquet", ".scores.jsonl")}
    for columns in (True, False):
        dataset = gm.PromptDataset(
            tmp_path / "own" / "a.parquet", tokenizer=folder, prompt=TEXT, keep="n >= 10 and s.score == 2",
            sidecars=sidecars, full_prompts=True, columns=columns, batch_size=1,
        )  # fmt: skip
        assert texts(dataset) == [f"text {n}" for n in range(10, 30) if n % 4 == 2]


def test_sidecars_out_of_step_are_located(corpus, folder):
    given = {"keep": filters.gopher, "sidecars": SIGNALS}
    corpus.write(HEAD, signals=corpus.signals_lines(HEAD)[:30])
    with pytest.raises(gm.ShardError, match=r"en_head\.json\.gz: record 30, .*the sidecar is shorter"):
        prompts(corpus, folder, **given)
    dataset = prompts(corpus, folder, **given, on_error="quarantine", max_error_rate=1.0)
    assert (dataset.counts()["quarantined"], dataset.counts()["lost_shards"]) == (1, 1)
    (entry,) = dataset.dropped()
    assert (entry["record"], "the sidecar is shorter" in entry["reason"]) == (30, True)
    corpus.write(HEAD, signals=["no JSON", *corpus.signals_lines(HEAD)[1:]])
    lines = corpus.lines(MIDDLE)
    corpus.write(MIDDLE, ["no JSON", *lines[1:]])
    dataset = prompts(corpus, folder, **given, on_error="quarantine", max_error_rate=1.0)
    assert (dataset.counts()["quarantined"], dataset.counts()["lost_shards"]) == (2, 0)
    assert dataset.counts()["read"] == 160


def test_lost_shard_with_a_sidecar_is_one_entry(corpus, folder, encoder):
    """Where the shard itself is damaged, nothing is said about its sidecar, which has more records."""
    whole = corpus.path(HEAD).read_bytes()
    corpus.path(HEAD).write_bytes(whole[: len(whole) // 2])
    given = {"keep": filters.gopher, "sidecars": SIGNALS, "on_error": "quarantine", "max_error_rate": 1.0}
    dataset = prompts(corpus, folder, **given)
    assert (dataset.counts()["quarantined"], dataset.counts()["lost_shards"]) == (1, 1)
    with iter(corpus.dataset(encoder, lanes=1, **given)) as iterator:
        for _ in iterator:
            pass
        stats = iterator.stats()
    assert (stats["quarantined"], stats["lost_shards"]) == (1, 1)


def test_missing_sidecars_follow_their_rule(corpus, folder):
    corpus.signals_path(HEAD).unlink()
    with pytest.raises(gm.MissingShardError, match="the sidecar 'signals'"):
        prompts(corpus, folder, keep=filters.gopher, sidecars=SIGNALS)
    for missing, more in (("keep", 40), ("drop", 0)):
        sidecar = gm.Sidecar("documents/", "quality_signals/", ".json.gz", ".signals.json.gz", missing=missing)
        dataset = prompts(corpus, folder, keep=filters.gopher, sidecars={"signals": sidecar})
        own = [text for text in texts(dataset) if text.startswith("document 0 ")]
        assert len(own) == more


def test_row_lists_leave_rows_out(corpus, folder, tmp_path):
    rows = [("2023-06/0000/en_head", row) for row in (0, 5, 39)] + [("2023-06/0001/en_middle", 7)]
    (tmp_path / "seen.txt").write_text("".join(f"{base}.json.gz/{row}\n" for base, row in rows))
    dataset = prompts(corpus, folder, drop=gm.RowList(str(tmp_path / "seen.txt")))
    assert dataset.counts()["filtered"] == 4
    assert len(dataset) == 156
    found = {dataset.source(item) for item in range(156)}
    assert not found & {(str(corpus.path(base)), row) for base, row in rows}
    # A row that is left out may be bad.
    lines = corpus.lines(HEAD)
    corpus.write(HEAD, ["no JSON", *lines[1:]])
    assert len(prompts(corpus, folder, drop=gm.RowList(str(tmp_path / "seen.txt")))) == 156


@pytest.mark.parametrize("as_rows", [True, False])
def test_row_lists_of_a_key(folder, tmp_path, as_rows):
    records = [{"prompt": f"text {n}", "id": f"id-{n}"} for n in range(9)]
    (tmp_path / "ids.txt").write_text("id-3\nid-8\nid-100\n")
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    dataset = gm.PromptDataset(
        records if as_rows else path, tokenizer=folder, prompt=gm.Text("prompt"), batch_size=1,
        drop=gm.RowList(str(tmp_path / "ids.txt"), key="id"),
    )  # fmt: skip
    assert [item["id"] for item in (dataset[n] for n in range(len(dataset)))] == [
        f"id-{n}" for n in range(9) if n not in (3, 8)
    ]
    assert "drop" in dataset.fingerprint


def test_rows_of_python_refuse_what_needs_shards(folder, tmp_path):
    (tmp_path / "ids.txt").write_text("a.jsonl/3\n")
    for given, message in [
        ({"drop": gm.RowList(str(tmp_path / "ids.txt"))}, "drop=: its ids name shards"),
        ({"sidecars": SIGNALS, "keep": "signals.a > 1"}, "sidecars=: they lie beside shards"),
    ]:
        with pytest.raises(gm.ArgumentError, match=message):
            gm.PromptDataset([{"prompt": "a"}], tokenizer=folder, prompt=gm.Text("prompt"), **given)


def test_arguments_without_effect_are_warned_of(corpus, folder, caplog):
    prompts(corpus, folder, sidecars=SIGNALS)
    assert "has no effect without keep=" in caplog.text
    prompts(corpus, folder, sidecars=SIGNALS, keep="len(url) > 0")
    assert "keep= does not name the sidecar 'signals'" in caplog.text


def test_states_know_sidecars_and_lists(corpus, folder, tmp_path):
    (tmp_path / "seen.txt").write_text("2023-06/0000/en_head.json.gz/3\n")
    given = {"keep": filters.gopher, "sidecars": SIGNALS, "drop": gm.RowList(str(tmp_path / "seen.txt")), "seed": 1}
    whole = [batch["full_prompts"].tolist() for batch in prompts(corpus, folder, **given, epochs=2)]
    for step in (1, len(whole) // 2, len(whole) // 2 + 3, len(whole)):
        iterator = iter(prompts(corpus, folder, **given, epochs=2))
        for _ in itertools.islice(iterator, step):
            pass
        state = json.loads(json.dumps(iterator.get_state()))
        resumed = iter(prompts(corpus, folder, **given, epochs=2, threads=1))
        resumed.set_state(state)
        assert [batch["full_prompts"].tolist() for batch in resumed] == whole[step:]
    for name in ("drop", "sidecars"):
        changed = {key: value for key, value in given.items() if key != name}
        changed |= {"keep": "len(url) > 0"} if name == "sidecars" else {}
        with pytest.raises(gm.StateError, match=f"{name} was"):
            iter(prompts(corpus, folder, **changed)).set_state(state)


BROKEN = ['{"raw_content": 1}', "no JSON", '{"raw_content": "fine"}']


def quarantined(path):
    return [
        (entry["shard"], entry["record"], entry["reason"]) for entry in map(json.loads, path.read_text().splitlines())
    ]


def test_quarantine_file_lists_every_bad_record_once(corpus, folder, tmp_path):
    corpus.write(HEAD, [*BROKEN, *corpus.lines(HEAD)[3:]])
    whole = corpus.path(MIDDLE).read_bytes()
    corpus.path(MIDDLE).write_bytes(whole[: len(whole) // 2])
    path = tmp_path / "quarantine.jsonl"
    given = {"on_error": "quarantine", "max_error_rate": 0.5, "quarantine_file": path, "seed": 1}
    dataset = prompts(corpus, folder, **given)
    expected = [(entry["shard"], entry["record"], entry["reason"]) for entry in dataset.dropped()]
    assert quarantined(path) == expected
    assert len(expected) == dataset.counts()["quarantined"] == 3
    iterator = iter(dataset)
    next(iterator)
    # Another host, a restart, and the same run again: no line is written twice.
    for more in ({}, {"shard_index": 1, "shard_count": 2, "batch_size": 2}, {"threads": 1, "columns": False}):
        again = prompts(corpus, folder, **{**given, **more})
        if not more:
            resumed = iter(again)
            resumed.set_state(iterator.get_state())
            assert next(resumed)["full_prompts"].tolist() == next(iterator)["full_prompts"].tolist()
    streams = {json.loads(line)["stream"] for line in path.read_text().splitlines()}
    assert len(quarantined(path)) == 3 * len(streams)
    assert len(streams) == 2  # batch_size=2 is another stream


def test_quarantine_file_is_written_if_there_are_too_many(corpus, folder, tmp_path):
    corpus.write(HEAD, [*BROKEN, *corpus.lines(HEAD)[3:]])
    path = tmp_path / "quarantine.jsonl"
    with pytest.raises(gm.ShardError, match="2 bad records of 160, more than max_error_rate"):
        prompts(corpus, folder, on_error="quarantine", max_error_rate=0.001, quarantine_file=path)
    assert [record for _, record, _ in quarantined(path)] == [0, 1]


def test_quarantine_file_is_checked(corpus, folder, tmp_path):
    given = {"on_error": "quarantine"}
    (tmp_path / "notes.txt").write_text("my notes\n")
    for path, message in [
        (tmp_path / "nowhere" / "q.jsonl", "its folder does not exist"),
        (tmp_path, "expected a file, found a folder"),
        (corpus.path(HEAD).parent / "q.json.gz", "the glob .* of the shards matches it"),
        (tmp_path / "notes.txt", "it does not hold quarantined records"),
    ]:
        with pytest.raises(gm.GristmillError, match=message):
            prompts(corpus, folder, **given, quarantine_file=path)
    with pytest.raises(gm.ArgumentError, match="on_error='raise' quarantines nothing"):
        prompts(corpus, folder, quarantine_file=tmp_path / "q.jsonl")
    assert (tmp_path / "notes.txt").read_text() == "my notes\n"


PROGRAM = """
import json, pathlib, sys
import gristmill as gm
shard, folder, out = sys.argv[1:]
dataset = gm.PromptDataset(
    shard, tokenizer=folder, prompt=gm.Text("prompt"), batch_size=3, seed=5, epochs=4, layout="hf", prompt_length=8,
    on_error="quarantine", quarantine_file=out + "/quarantine.jsonl", max_error_rate=0.5,
)
iterator = iter(dataset)
state, done = pathlib.Path(out, "state.json"), pathlib.Path(out, "done.txt")
if state.exists():
    iterator.set_state(json.loads(state.read_text()))
for batch in iterator:
    with done.open("a") as file:
        file.write(json.dumps(batch["index"].tolist()) + "\\n")
    new = state.with_suffix(".new")
    new.write_text(json.dumps(iterator.get_state()))
    new.rename(state)
    print("step", flush=True)
print("end", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_killed_run_continues_its_stream(tmp_path, folder, ending):
    """A batch that was delivered and not yet saved comes again, as after any kill; none is missing."""
    shard = tmp_path / "a.jsonl.gz"
    lines = [json.dumps({"prompt": f"text {n}"}) for n in range(50)]
    shard.write_bytes(gzip.compress("\n".join([*lines, "no JSON"]).encode()))
    runs = {}
    for name, steps in (("whole", []), ("killed", [1, 9])):
        out = tmp_path / name
        out.mkdir()
        for step in [*steps, None]:
            command = [sys.executable, "-c", PROGRAM, str(shard), str(folder), str(out)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
                for number, _ in enumerate(process.stdout, 1):
                    if number == step:
                        process.send_signal(ending)
                code = process.wait(timeout=PATIENCE)
            assert (code == 0) == (step is None)
        done = [json.loads(line) for line in (out / "done.txt").read_text().splitlines()]
        runs[name] = [batch for batch, _ in itertools.groupby(done)]
        assert len((out / "quarantine.jsonl").read_text().splitlines()) == 1
    assert runs["killed"] == runs["whole"]
    assert len(runs["whole"]) == 4 * 16
