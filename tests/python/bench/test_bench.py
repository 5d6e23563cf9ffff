import errno
import gzip
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gristmill as gm
from chat_models import CHATML, write_chatml
from gristmill._bench import child, contenders, latency, report, rounds, run
from gristmill._cli import main
from gristmill._demo import sample_text
from gristmill._tokenizer import encoder
from gristmill._util import output
from helpers import PATIENCE, ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    sample = sample_text.prepare(tmp_path_factory.mktemp("bench"), 0.2)
    tokenizer = sample_text.tokenizer()
    return contenders.Job(
        shards=list(gm.Manifest.find(sample.glob).paths),
        text_field=sample_text.TEXT_FIELD,
        tokenizer=str(tokenizer),
        eos=gm.Encoder.from_file(tokenizer).eos_id,
        batch_size=8,
        sequence_length=128,
        threads=2,
    )


INSTALLED = rounds.available(formats=True)


def test_all_contenders_do_the_same_work(job):
    result = rounds.compare(job, 1, [2], INSTALLED)
    (entry,) = result["by_threads"]
    assert (result["same_work"], result["same_rows"]) == (True, True), report.describe(result)
    ran = set(entry["rounds"][0])
    assert {"gristmill", "datasets", "grain", "pretokenized", "inflate", "copy", "zstandard", "parquet"} <= ran
    for name, measured in entry["rounds"][0].items():
        if contenders.CONTENDERS[name].work is contenders.Work.ROWS:
            assert measured["rows"] * 128 >= entry["summary"][name]["tokens"] > 10_000
        assert 0 < measured["seconds_to_first_batch"] <= measured["seconds"]
        assert measured["peak_bytes"] > 10**7
    inflated = sum(len(gzip.decompress(Path(shard).read_bytes())) for shard in job.shards)
    assert entry["rounds"][0]["inflate"]["notes"] == {"bytes": inflated}
    compressed = sum(Path(shard).stat().st_size for shard in job.shards)
    assert entry["rounds"][0]["copy"]["notes"] == {"bytes": compressed}
    assert set(entry["summary"]["gristmill"]["busy_seconds"]) == {"read", "encode", "pack"}
    json.dumps(result)


def test_phases_script_prints_every_phase(job):
    """Runs the script that docs/benchmark.md shows."""
    shards = str(Path(job.shards[0]).parent.parent / "*" / "*.json.gz")
    script = ROOT / "benches" / "phases.py"
    command = [sys.executable, str(script), shards, job.tokenizer, "--text-field", job.text_field, "--rounds", "1"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line[:16].strip() for line in printed[:-1]] == [
        "inflate",
        "lines and JSON",
        "known pieces",
        "new pieces",
        "pack",
    ]
    assert printed[-1].startswith("all but new pieces take ")


def test_peak_memory_excludes_the_parent_process(job):
    held = np.ones(400_000_000, np.uint8)  # memory of this process, not of the contender's
    measured = run.in_child("copy", job)
    assert measured["peak_bytes"] < held.nbytes // 2


def test_contender_reads_thousands_of_shards(job):
    many = replace(job, shards=(job.shards * 3000)[:3000])
    assert sum(map(len, many.shards)) > 2**17  # longer than one argument of a process may be
    assert run.in_child("copy", many)["notes"]["bytes"] > 0


@pytest.fixture
def fake_rounds(monkeypatch):
    """Fake contenders with fixed seconds; returns the list of the contenders whose speed was measured."""
    seconds = {"gristmill": [3, 2, 4], "datasets": [18, 6, 32], "grain": [9, 18, 32], "inflate": [1, 1, 1]}
    ran = []

    def run(name, job, count):
        packs = name != "inflate"
        if count:
            assert not ran
            counts = {"tokens": 5001, "eos_tokens": 7, "id_sum": 1} if packs else dict.fromkeys(rounds._COUNTS, 0)
            return {"rows": 40, **counts}
        ran.append(name)
        spent = seconds[name][(ran.count(name) - 1) % 3]
        notes = {
            "busy_seconds": {"read": 1.0, "encode": 2.0, "pack": 1.0},
            "wait_seconds": 0.5,
            "text_bytes": 9000,
            "padding_tokens": 5001,
        }
        return {
            "seconds": float(spent),
            "cpu_seconds": spent / 2 if name == "gristmill" else float(spent),
            "seconds_to_first_batch": 1.0,
            "sleeps": 12,
            "peak_bytes": 10**8,
            "rows": 40,
            "notes": notes if name == "gristmill" else {},
        }

    monkeypatch.setattr(rounds, "in_child", run)
    monkeypatch.setattr(rounds, "available", lambda **_: list(seconds))
    return ran


FAKES = ["gristmill", "datasets", "grain", "inflate"]


def test_order_alternates_and_ratios_are_per_round(job, fake_rounds):
    result = rounds.compare(job, 3, [1], FAKES)
    assert fake_rounds == FAKES + FAKES[::-1] + FAKES
    summary = result["by_threads"][0]["summary"]
    assert summary["gristmill"]["tokens_per_second_ratio"] == 1
    # The rounds' ratios are 6, 3, 8 and 3, 9, 8: not the ratios of the medians.
    assert summary["datasets"]["tokens_per_second_ratio"] == 6
    assert summary["grain"]["tokens_per_second_ratio"] == 8
    assert summary["grain"]["tokens_per_cpu_second_ratio"] == 16
    assert summary["datasets"]["tokens_per_second"] == 5001 / 18
    # A contender that makes no tokens is rated by the tokens of the same text.
    assert summary["inflate"]["tokens_per_second"] == 5001
    shown = report.describe(result)
    assert "6.0x" in shown
    assert "0.33x" in shown
    assert "gristmill's time: read 25%, encode 50%, pack 25%" in shown
    assert "50% padding" in shown


def test_each_thread_count_gets_its_rounds(job, fake_rounds):
    result = rounds.compare(job, 1, [1, 2, 4], FAKES)
    assert [entry["threads"] for entry in result["by_threads"]] == [1, 2, 4]
    assert len(fake_rounds) == 12
    # 3, 2 and 4 seconds.
    ratios = [entry["summary"]["gristmill"]["threads_ratio"] for entry in result["by_threads"]]
    assert ratios == [1, 1.5, 0.75]
    assert "gristmill's speed: 1.50 times that on 1" in report.describe(result)
    assert "threads" not in result["job"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": 5000}, "NO: gristmill 5,001 tokens with 7 EOS; datasets 5,001 tokens with 7 EOS; grain 5,000"),
        ({"rows": 39}, "NO: some yielded another number of rows"),
        ({}, "yes, all that pack yielded the same 5,001 tokens with 7 EOS"),
    ],
)
def test_unequal_work_is_reported(job, fake_rounds, monkeypatch, change, message):
    run = rounds.in_child
    monkeypatch.setattr(
        rounds,
        "in_child",
        lambda name, job, count: run(name, job, count) | (change if count and name == "grain" else {}),
    )
    assert f"Same work: {message}" in report.describe(rounds.compare(job, 1, [1], FAKES))


@pytest.mark.parametrize(("eos", "same"), [(0, True), (3, False)])
def test_work_without_eos_is_compared_without_eos(eos, same):
    ours = {"tokens": 1007, "eos_tokens": 7, "id_sum": 12345}
    other = {"tokens": 1000 + eos, "eos_tokens": 0, "id_sum": 12345}
    assert rounds._same_work({"gristmill": ours, "gigatoken": other}) is same
    assert not rounds._same_work({"gristmill": ours, "grain": {**ours, "tokens": 1000, "eos_tokens": 0}})


def test_command_prints_table_and_writes_json_and_charts(tmp_path, fake_rounds, capsys):
    arguments = ["bench", "--folder", str(tmp_path / "text"), "--megabytes", "0.05", "--rounds", "2", "--threads", "1"]
    assert main.run([*arguments, "--output", str(tmp_path / "out"), "--latency"]) == 0
    out = capsys.readouterr().out
    assert "4.5x" in out  # The median of 6 and 3.
    assert "first batch after the start" in out
    saved = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert len(saved["by_threads"][0]["rounds"]) == 2
    for name in ("speeds.svg", "delays.svg"):
        assert "<svg" in (tmp_path / "out" / name).read_text()
    delays = saved["latency"]
    assert (delays["lanes"], delays["threads"], delays["batch_size"]) == (64, 2, 64)
    for name in ("first", "continuous", "paced"):
        assert 0 <= delays[name]["p50"] <= delays[name]["p99"] <= delays[name]["max"] == max(delays[name]["seconds"])
    fake_rounds.clear()
    assert main.run([*arguments, "--json", "--only", "datasets"]) == 0
    assert json.loads(capsys.readouterr().out)["by_threads"][0]["threads"] == 1
    assert set(fake_rounds) == {"gristmill", "datasets"}
    fake_rounds.clear()
    (tmp_path / "file").touch()
    assert main.run([*arguments, "--output", str(tmp_path / "file" / "out")]) == 1
    assert main.run([*arguments, "--only", "nothing"]) == 2
    assert not fake_rounds


def test_quantiles():
    assert latency.quantiles([float(n) for n in range(1, 101)]) == {"p50": 50.5, "p99": 99.0, "max": 100.0}
    assert latency.quantiles([3.0]) == {"p50": 3.0, "p99": 3.0, "max": 3.0}


class FullLog(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_no_charts_without_matplotlib(tmp_path, fake_rounds, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *more: None if name == "matplotlib" else find(name, *more)
    )
    arguments = ["bench", "--folder", str(tmp_path / "text"), "--megabytes", "0.05", "--rounds", "1", "--threads", "1"]
    assert main.run([*arguments, "--output", str(tmp_path / "out")]) == 0
    assert "no charts: matplotlib is not installed" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["bench.json"]
    fake_rounds.clear()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", FullLog())
        assert main.run([*arguments, "--output", str(tmp_path / "out")]) == 0


def test_tokenizer_is_loaded_once(tmp_path, monkeypatch, fake_rounds):
    """Once in the parent process: each contender loads it again in a process of its own."""
    loaded = []
    make = encoder._make_core
    monkeypatch.setattr(encoder, "_make_core", lambda *arguments: loaded.append(1) or make(*arguments))
    (tmp_path / "a.jsonl").write_text('{"text": "hello"}\n')
    assert main.run(["bench", "--shards", str(tmp_path / "a.jsonl"), "--rounds", "1", "--threads", "1"]) == 0
    assert loaded == [1]


def test_contenders_read_paths_with_glob_characters(job, tmp_path):
    folder = tmp_path / "run[1]"
    folder.mkdir()
    shutil.copy(job.shards[0], folder / "a?.json.gz")
    only = replace(job, shards=[str(folder / "a?.json.gz")], scratch=str(tmp_path))
    counts = {name: run.in_child(name, only, count=True) for name in INSTALLED}
    assert rounds._same_work(counts), counts


def test_own_shards_field_and_eos_reach_the_job(tmp_path, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(rounds, "compare", lambda job, rounds, threads, names: seen.append(job) or {})
    (tmp_path / "a.jsonl").write_text('{"body": "hello"}\n')
    (tmp_path / "b.json").write_text('{"body": "hello"}\n')
    globs = ["--shards", str(tmp_path / "*.jsonl"), "--shards", str(tmp_path / "b.json")]
    own = [*globs, "--text-field", "body", "--eos", "<｜begin▁of▁sentence｜>"]
    assert main.run(["bench", *own, "--json"]) == 0
    paths = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.json")]
    assert (seen[0].shards, seen[0].text_field, seen[0].eos) == (paths, "body", 0)


def test_bad_records_can_be_quarantined(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "hello"}\n{bad\n{worse\n')
    bench = ["bench", "--shards", str(tmp_path / "a.jsonl"), "--only", "datasets", "--rounds", "1", "--threads", "1"]
    assert main.run(bench) == 1
    assert 'set --on-error "quarantine" to skip it' in capsys.readouterr().err
    assert main.run([*bench, "--on-error", "quarantine", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["by_threads"][0]["summary"]["gristmill"]["eos_tokens"] == 1
    assert list(found["failed"]) == ["datasets"]


def test_results_are_printed_if_they_cannot_be_written(tmp_path, fake_rounds, capsys):
    (tmp_path / "bench.json").mkdir()
    assert main.run(["bench", "--rounds", "1", "--threads", "1", "--megabytes", "0.1", "--output", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "speedup" in shown.out
    assert f"cannot write into {str(tmp_path)!r}: Is a directory" in shown.err


def test_impossible_job_is_refused_before_any_round(tmp_path, job, capsys):
    shards = ["bench", "--shards", str(tmp_path / "a.jsonl"), "--tokenizer", job.tokenizer, "--only", "copy"]
    (tmp_path / "a.jsonl").touch()
    assert main.run([*shards, "--rounds", "1", "--threads", "1"]) == 1
    assert "the shards hold no text to measure with" in capsys.readouterr().err
    assert main.run([*shards, "--lanes", "16"]) == 2
    assert "--lanes 16" in capsys.readouterr().err


def test_contenders_read_plain_shards_with_blank_lines(job, tmp_path):
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(b"\n" + gzip.decompress(Path(job.shards[0]).read_bytes()) + b" \n")
    plain_job = replace(job, shards=[str(plain)], threads=1, scratch=str(tmp_path))
    counts = {name: run.in_child(name, plain_job, count=True) for name in INSTALLED}
    assert rounds._same_work(counts), counts
    assert counts["inflate"]["notes"]["bytes"] == counts["copy"]["notes"]["bytes"] == plain.stat().st_size


def test_failure_of_gristmill_ends_the_bench(job):
    broken = contenders.Job(**{**vars(job), "text_field": "nothing"})
    with pytest.raises(
        gm.GristmillError, match=r"the contender gristmill failed with exit code 1: ShardError: .*nothing"
    ):
        rounds.compare(broken, 1, [1], ["gristmill"])
    with pytest.raises(gm.GristmillError, match=r"measuring delays failed with exit code 1: ShardError: .*nothing"):
        latency.in_child(broken)


def test_failure_of_another_contender_skips_it(job, fake_rounds, monkeypatch):
    run = rounds.in_child

    def failing(name, job, count):
        if name == "grain":
            raise gm.GristmillError("the contender grain failed with exit code 1: no grain")
        return run(name, job, count)

    monkeypatch.setattr(rounds, "in_child", failing)
    result = rounds.compare(job, 2, [1, 2], FAKES)
    assert result["failed"] == {"grain": "the contender grain failed with exit code 1: no grain"}
    assert [set(entry["summary"]) for entry in result["by_threads"]] == [{"gristmill", "datasets", "inflate"}] * 2
    failed = {"grain": "no grain", "inflate": "no gzip"}
    assert "\n\nskipped: no grain\nskipped: no gzip" in report.describe({**result, "failed": failed})


def test_too_little_text_for_delays_keeps_other_results(tmp_path, job, capsys, fake_rounds):
    short = tmp_path / "short.jsonl"
    short.write_text('{"raw_content": "a few words"}\n')
    arguments = ["bench", "--shards", str(short), "--text-field", "raw_content", "--tokenizer", job.tokenizer]
    arguments += ["--only", "inflate", "--rounds", "1", "--threads", "1", "--latency", "--output", str(tmp_path)]
    assert main.run(arguments) == 1
    shown = capsys.readouterr()
    assert "delays need more than one batch in 64 lanes: use more text" in shown.err
    assert "decompression" in shown.out
    assert json.loads((tmp_path / "bench.json").read_text())["by_threads"]


def test_terminated_bench_removes_the_delays_folder(monkeypatch, job, tmp_path):
    def terminated(what, module, request):
        assert {Path(shard).parent.parent for shard in request["shards"]} == {tmp_path}
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(child, "measure", terminated)
    with pytest.raises(SystemExit), output.cleaning_up_when_terminated():
        latency.in_child(job)
    assert not list(tmp_path.iterdir())


def test_terminated_bench_leaves_no_files_or_processes(tmp_path, blank_shard):
    command = [sys.executable, "-m", "gristmill", "bench", "--shards", blank_shard, "--only", "copy", "--threads", "1"]
    process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE)

    def children():
        return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()

    deadline = time.monotonic() + PATIENCE
    while not (children() and list(tmp_path.iterdir())):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.001)  # also while a child is being started
    workers = children()
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert not list(tmp_path.iterdir())
    # The bench does not wait for a child that was just starting: that child ends by itself.
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_worker_processes_of_a_contender_end_with_the_bench(tmp_path):
    listed = tmp_path / "pid"
    (tmp_path / "spawning.py").write_text(
        "import pathlib, subprocess\n"
        "worker = subprocess.Popen(['sleep', '1000'])\n"
        f"pathlib.Path({str(listed)!r}).write_text(str(worker.pid))\n"
        "worker.wait()\n"
    )

    def interrupt(*_):
        if listed.exists() and listed.read_text():
            raise TimeoutError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(TimeoutError):
            child.measure("spawning", "spawning", {}, {**os.environ, "PYTHONPATH": str(tmp_path)})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    deadline = time.monotonic() + PATIENCE
    status = Path(f"/proc/{listed.read_text()}/status")
    while status.exists() and "State:\tZ" not in status.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """A shard of conversations, and a tokenizer whose template marks answers with `generation` blocks."""
    folder = tmp_path_factory.mktemp("chats")
    model = write_chatml(folder / "model")
    template = CHATML.replace(
        "{{ '<|im_start|>'", "{% if 0 %}{% generation %}{% endgeneration %}{% endif %}{{ '<|im_start|>'"
    )
    assert template != CHATML
    (model / "chat_template.jinja").write_text(template)
    with (folder / "chats.jsonl").open("w") as file:
        for number in range(40):
            messages = [
                {"role": "user", "content": f"ant {number}?"},
                {"role": "assistant", "content": "ant " * number},
            ]
            file.write(json.dumps({"turns": messages}) + "\n")
    return str(folder / "chats.jsonl"), str(model)


def test_conversations_are_compared(chats, capsys):
    path, model = chats
    command = ["bench", path, "--tokenizer", model, "--sample", "chat", "--sample", "field=turns", "--threads", "1"]
    assert main.run([*command, "--threads", "2", "--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["same_work"], found["same_rows"], found["failed"]) == (True, True, {})
    assert found["job"]["sample"] == {"kind": "chat", "field": "turns"}
    dataset = gm.PackedDataset(path, tokenizer=model, sample=gm.Chat("turns"), sequence_length=1024)
    with iter(dataset) as iterator:
        for _ in iterator:
            pass
        stats = iterator.stats()
    for entry in found["by_threads"]:
        assert set(entry["summary"]) >= {"gristmill", "inflate", "copy"}
        own = entry["summary"]["gristmill"]
        assert (own["tokens"], own["trained_tokens"]) == (stats["tokens"], stats["trained_tokens"])
        if importlib.util.find_spec("transformers"):
            # Its masks are those of the template's blocks, which hold nothing here.
            assert entry["summary"]["transformers"]["tokens"] == own["tokens"]
            assert entry["summary"]["transformers"]["trained_tokens"] == 0
    assert main.run([*command, "--rounds", "1", "--only", "copy"]) == 0
    shown = capsys.readouterr().out
    assert f"{stats['trained_tokens']:,}" in shown
    assert "chat field='turns'" in shown
    assert "trained on" in shown
    assert "Same work: yes, all yielded the same" in shown


def test_completions_are_measured_alone(tmp_path, chats, capsys):
    (tmp_path / "a.jsonl").write_text('{"prompt": "ant", "completion": " user"}\n' * 9)
    command = ["bench", str(tmp_path / "a.jsonl"), "--tokenizer", chats[1], "--sample", "completion"]
    assert main.run([*command, "--threads", "1", "--rounds", "1", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["by_threads"]
    assert set(entry["summary"]) == {"gristmill", "inflate", "copy"}
    assert entry["summary"]["gristmill"]["eos_tokens"] == 9


def test_options_of_conversations_are_checked(chats, capsys):
    path, model = chats
    chat = ["--sample", "chat", "--sample", "field=turns"]
    for arguments, message in [
        ([path, *chat], "--sample chat needs SHARDS and --tokenizer"),
        (["--tokenizer", model, *chat], "--sample chat needs SHARDS and --tokenizer"),
        ([path, "--tokenizer", model, *chat, "--text-field", "a"], "--text-field has no effect with --sample chat"),
        ([path, "--tokenizer", model, *chat, "--formats"], "--formats has no effect with --sample chat"),
        ([path, "--tokenizer", model, *chat, "--eos", "none"], "--eos has no effect with --sample chat"),
        ([path, "--tokenizer", model, *chat, "--only", "grain"], "--only grain has no effect with --sample chat"),
        ([path, "--tokenizer", model, "--only", "renderers"], "--only renderers has no effect with text"),
        ([path, "--tokenizer", model, *chat, "--sample", "train_on=nobody"], "train_on='nobody'"),
        (
            [path, "--tokenizer", model, "--sample", "poem"],
            "expected 'text', 'chat', 'instruction', 'completion', 'tokens', 'preference' or 'image_text'",
        ),
    ]:
        assert main.run(["bench", *arguments]) == 2, arguments
        assert message in capsys.readouterr().err


def test_settings_that_others_lack_leave_them_out(chats):
    path, model = chats
    job = contenders.Job(
        shards=[path], text_field="text", tokenizer=f"{model}/tokenizer.json", eos=None, batch_size=2,
        sequence_length=64, threads=1, sample={"kind": "chat", "field": "turns", "date": "2026-11-27"}, template=CHATML,
    )  # fmt: skip
    if importlib.util.find_spec("transformers"):
        with pytest.raises(gm.GristmillError, match="no counterpart of date"):
            run.in_child("transformers", job)
