import json

import pytest

import gristmill as gm
from gristmill import _cli, _sample
from gristmill._bench import contenders, report, rounds


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    sample = _sample.prepare(tmp_path_factory.mktemp("bench"), 0.2)
    tokenizer = _sample.tokenizer()
    return contenders.Job(
        shards=list(gm.Manifest.find(sample.glob).paths),
        text_field=_sample.TEXT_FIELD,
        tokenizer=str(tokenizer),
        eos=gm.Encoder.from_file(tokenizer).eos_id,
        batch_size=8,
        sequence_length=128,
        threads=2,
    )


def test_all_contenders_do_the_same_work(job):
    result = rounds.compare(job, 1)
    assert result["same_work"], report.describe(result)
    assert set(result["rounds"][0]) == set(contenders.CONTENDERS)
    for measured in result["rounds"][0].values():
        assert measured["tokens"] > 10_000
        assert measured["rows"] * 128 >= measured["tokens"]
        assert 0 < measured["seconds_to_first_batch"] <= measured["seconds"]
    json.dumps(result)


@pytest.fixture
def paper(monkeypatch):
    """Contenders that only say they ran, with given speeds; gives the list of those that ran."""
    speeds = {"gristmill": [600, 900, 800], "datasets": [100, 300, 100], "grain": [200, 100, 100]}
    ran = []

    def run(name, job):
        ran.append(name)
        speed = speeds[name][ran.count(name) - 1]
        return {
            "tokens_per_second": float(speed),
            "tokens_per_cpu_second": 2.0 * speed if name == "gristmill" else float(speed),
            "seconds_to_first_batch": 1.0,
            "peak_bytes": 10**8,
            "tokens": 5000 if (name, speed) == ("grain", 200) else 5001,
            "eos_tokens": 7,
            "id_sum": 1,
        }

    monkeypatch.setattr(rounds, "_run", run)
    return ran


def test_rounds_alternate_and_ratios_are_of_pairs(job, paper):
    result = rounds.compare(job, 3)
    forth = list(contenders.CONTENDERS)
    assert paper == forth + forth[::-1] + forth
    assert result["summary"]["gristmill"]["tokens_per_second_ratio"] == 1
    # Of the rounds' ratios 6, 3, 8 and 3, 9, 8: not the ratios of the medians.
    assert result["summary"]["datasets"]["tokens_per_second_ratio"] == 6
    assert result["summary"]["grain"]["tokens_per_second_ratio"] == 8
    assert result["summary"]["grain"]["tokens_per_cpu_second_ratio"] == 16
    assert result["summary"]["datasets"]["tokens_per_second"] == 100


def test_unequal_work_is_shown(job, paper):
    result = rounds.compare(job, 1)
    assert not result["same_work"]
    assert "NO: gristmill 5,001 tokens with 7 EOS; datasets 5,001" in report.describe(result)


def test_the_command_writes_json_beside_the_table(tmp_path, paper, capsys):
    arguments = ["bench", "--folder", str(tmp_path), "--megabytes", "0.05", "--rounds", "2", "--threads", "1"]
    saved = tmp_path / "bench.json"
    assert _cli.run([*arguments, "--json", str(saved)]) == 0
    assert "4.5 times that" in capsys.readouterr().out  # The median of 6 and 3.
    assert len(json.loads(saved.read_text())["rounds"]) == 2
    paper.clear()
    assert _cli.run([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"]["threads"] == 1
    paper.clear()
    assert _cli.run([*arguments, "--json", str(tmp_path / "none" / "bench.json")]) == 2
    assert not paper


def test_own_shards(tmp_path, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(rounds, "compare", lambda job, rounds: seen.append(job) or {})
    (tmp_path / "a.jsonl").write_text('{"body": "hello"}\n')
    own = ["--shards", str(tmp_path / "*.jsonl"), "--text-field", "body", "--eos", "<｜begin▁of▁sentence｜>"]
    assert _cli.run(["bench", *own, "--json"]) == 0
    assert (seen[0].shards, seen[0].text_field, seen[0].eos) == ([str(tmp_path / "a.jsonl")], "body", 0)


def test_a_contender_that_fails_is_named(job):
    broken = contenders.Job(**{**vars(job), "text_field": "nothing"})
    with pytest.raises(
        gm.GristmillError, match=r"the contender gristmill failed with exit code 1: ShardError: .*nothing"
    ):
        rounds.compare(broken, 1)


def test_missing_packages_are_named(job, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(gm.GristmillError, match=r"datasets and tokenizers not installed: pip install"):
        rounds.compare(job, 1)
