"""`keep=`: which records are delivered, what is counted, and states of filtered streams."""

import contextlib
import gzip
import json
import random

import pytest

import filter_cases
import filter_oracle
import gristmill as gm
from gristmill._cli import main
from gristmill._state import states as saved_states
from helpers import assert_same_batches

KEEP = "score > 2 and count(lines[*][2] > 0) / len(lines) < 0.9"


@pytest.fixture
def folder(tmp_path):
    """Eight shards of records that the filter keeps or not, with bad lines among them."""
    rng = random.Random(3)
    for number in range(8):
        lines = []
        for record in range(60):
            lines.append(
                json.dumps(
                    {
                        "score": rng.randrange(6),
                        "lines": [[0, 1, rng.choice([0, 1, None])] for _ in range(rng.randrange(1, 5))],
                        "text": f"document {record} of {number} " * rng.randrange(1, 9),
                    }
                )
            )
        lines[rng.randrange(60)] = '{"score": 5, "lines": [[0, 0, 0]], "text": null}'
        lines[rng.randrange(60)] = '{"score": 0, "text": null}'
        lines[rng.randrange(60)] = "no JSON"
        (tmp_path / f"{number}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    return tmp_path


def make(folder, encoder, **arguments):
    defaults = {"sequence_length": 64, "batch_size": 8, "on_error": "quarantine", "max_error_rate": 0.5, "keep": KEEP}
    return gm.PackedDataset(str(folder / "*.jsonl.gz"), tokenizer=encoder, **{**defaults, **arguments})


def records(folder):
    """For each record whether it is kept, filtered or bad."""
    for path in sorted(folder.glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                yield "bad", line
                continue
            kept = filter_oracle.keeps(KEEP, line)
            yield "filtered" if not kept else "kept" if record["text"] is not None else "bad", line


@pytest.mark.parametrize("variant", [{}, {"packing": "best_fit", "fit_window": 7}, {"seed": 1, "shuffle_window": 5}])
def test_every_record_is_delivered_filtered_or_quarantined(folder, encoder, variant):
    iterator = iter(make(folder, encoder, epochs=2, lanes=1, **variant))
    batches = list(iterator)
    stats, kinds = iterator.stats(), [kind for kind, _ in records(folder)]
    assert {name: kinds.count(name) for name in ("kept", "filtered", "bad")} == {
        "kept": stats["documents"] / 2,
        "filtered": stats["filtered"] / 2,
        "bad": stats["quarantined"] / 2,
    }
    assert min(stats["documents"], stats["filtered"], stats["quarantined"]) > 10
    cursors = [saved_states.cursor_numbers(cursor) for cursor in iterator.get_state()["lanes"].values()]
    for cursor in cursors:
        assert cursor["records"] == cursor["documents"] + cursor["filtered"] + cursor["quarantined"]
    # The rows are those of shards that hold only what is kept.
    others = folder / "kept"
    others.mkdir()
    for path in sorted(folder.glob("*.jsonl.gz")):
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        kept = [line for line in lines if line.startswith("{") and filter_oracle.keeps(KEEP, line)]
        (others / path.name).write_bytes(gzip.compress("\n".join(kept).encode(), mtime=0))
    if "seed" not in variant:  # windows of shuffling begin at other records there
        assert_same_batches(batches, make(others, encoder, keep=None, epochs=2, lanes=1, **variant))


@pytest.mark.parametrize("variant", [{}, {"packing": "best_fit", "fit_window": 7}, {"seed": 1, "shuffle_window": 5}])
def test_state_of_any_step_restores_on_any_hosts(folder, encoder, variant):
    dataset = make(folder, encoder, **variant)
    iterator = iter(dataset)
    states, batches = [iterator.get_state()], []
    for batch in iterator:
        batches.append(batch)
        states.append(iterator.get_state())
    for step in range(0, len(states), 5):
        restored = iter(make(folder, encoder, threads=1 + step % 3, **variant))
        restored.set_state(states[step])
        assert_same_batches(list(restored), batches[step:])
        assert restored.stats()["filtered"] == iterator.stats()["filtered"]
    hosts = [iter(make(folder, encoder, shard_index=host, shard_count=4, **variant)) for host in range(4)]
    for host in hosts:
        host.set_state(states[7])
        while host.get_state()["step"] < len(batches):
            if next(host, None) is None:
                break
    merged = [saved_states.cursor_numbers(cursor) for host in hosts for cursor in host.get_state()["lanes"].values()]
    assert sum(cursor["filtered"] for cursor in merged) == iterator.stats()["filtered"]


def test_state_saved_with_another_expression_is_refused(folder, encoder):
    iterator = iter(make(folder, encoder))
    next(iterator)
    state = iterator.get_state()
    same = iter(make(folder, encoder, keep=f"({KEEP})  # a comment"))
    same.set_state(state)
    for other, said in [
        ("score>2", r"keep was score > 2 and .* < 0\.9 and is score > 2\."),
        (None, r"keep was score > 2 and .* < 0\.9 and is the default \(None\)\."),
    ]:
        with pytest.raises(gm.StateError, match=said):
            iter(make(folder, encoder, keep=other)).set_state(state)


def test_state_of_an_earlier_release_restores_and_has_filtered_nothing(folder, encoder):
    iterator = iter(make(folder, encoder, keep=None))
    next(iterator)
    state = iterator.get_state()
    assert "filtered" not in json.dumps(state)
    assert "keep" not in state["fingerprint"]
    restored = iter(make(folder, encoder, keep=None))
    restored.set_state(state)
    assert restored.stats()["filtered"] == 0


@pytest.mark.parametrize("seed", [None, 1])
def test_filter_that_keeps_nothing_ends_or_is_an_error(folder, encoder, seed, caplog):
    iterator = iter(make(folder, encoder, keep="score > 10", seed=seed, epochs=2))
    assert list(iterator) == []
    assert "no document is left, and 944 records filtered: see gristmill inspect" in caplog.text
    assert iterator.stats()["filtered"] == 2 * 8 * 59
    endless = iter(make(folder, encoder, keep="score > 10", seed=seed, epochs=None))
    with pytest.raises(gm.ArgumentError, match=r"no valid document .* keep= filtered 59 records.* Let keep= pass more"):
        next(endless)


def test_filter_is_judged_before_the_text(folder, encoder):
    path = folder / "mixed.jsonl"
    path.write_text('{"kind": "a", "text": "x"}\n{"kind": "b"}\n{"kind": "b", "text": 3}\n')
    with pytest.raises(gm.ShardError, match="record 1, byte 27: expected the key"):
        list(gm.PackedDataset(path, tokenizer=encoder, keep="kind != 'c'"))
    iterator = iter(gm.PackedDataset(path, tokenizer=encoder, keep="kind == 'a'"))
    assert len(list(iterator)) == 1
    assert (iterator.stats()["documents"], iterator.stats()["filtered"]) == (1, 2)


def test_filter_may_look_at_the_text(folder, encoder):
    iterator = iter(make(folder, encoder, keep="len(text) > 60 and 'of 3' in text"))
    list(iterator)
    lines = [json.loads(line) for kind, line in records(folder) if line.startswith("{")]
    texts = [record["text"] for record in lines if record["text"]]
    assert iterator.stats()["documents"] == sum(len(text) > 60 and "of 3" in text for text in texts)


def test_random_filters_leave_the_documents_of_the_oracle(tmp_path, encoder):
    for seed in range(20):
        rng = random.Random(seed)
        lines = [filter_cases.record(rng)[:-1] + ', "words": "some text"}' for _ in range(200)]
        lines = [line.replace("{,", "{") for line in lines]
        path = tmp_path / f"{seed}.jsonl"
        path.write_text("\n".join(lines))
        keep = filter_cases.expression(rng)
        iterator = iter(gm.PackedDataset(path, tokenizer=encoder, text_field="words", keep=keep, threads=2))
        kept = sum(filter_oracle.keeps(keep, line) for line in lines)
        # One that keeps nothing, and looks into a string with JSON, is an error at the end.
        with contextlib.nullcontext() if kept else contextlib.suppress(gm.ArgumentError):
            list(iterator)
        assert iterator.stats()["documents"] == kept, keep


def test_packed_folder_counts_and_verifies_filtered_records(folder, tokenizer_file, tmp_path, capsys):
    packed = tmp_path / "packed"

    def run(*arguments):
        code = main.run([str(argument) for argument in arguments])
        return code, capsys.readouterr()

    def pack(keep):
        settings = ["--sequence-length", 64, "--on-error", "quarantine", "--max-error-rate", 0.5, "--rows-per-file", 64]
        shards = folder / "*.jsonl.gz"
        return run("pack", shards, "--tokenizer", tokenizer_file, "--output", packed, "--keep", keep, *settings)

    kinds = [kind for kind, _ in records(folder)]
    code, said = pack(KEEP)
    assert code == 0
    assert f"{kinds.count('filtered')} filtered, {kinds.count('bad')} records quarantined" in said.out
    code, said = run("verify", packed, "--json")
    found = json.loads(said.out)
    assert (code, found["equal"], found["complete"]) == (0, True, True)
    found = json.loads(run("inspect", packed, "--json")[1].out)
    assert found["filtered"] == kinds.count("filtered") == sum(part.get("filtered", 0) for part in found["parts"])
    assert found["source"]["arguments"]["keep"] == KEEP
    code, said = pack("score > 1")
    assert code == 1
    assert "already holds files packed with other settings: keep was " in said.err
