"""Bad records and lost shards under `on_error="quarantine"`: listed, counted, bounded, and restored exactly."""

import gzip
import itertools
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import grain
import pytest

import gristmill as gm
from gristmill._state import states as saved_states
from helpers import PATIENCE, assert_same_batches


def line(number):
    return json.dumps({"text": f"document number {number} " * 8}).encode() + b"\n"


@pytest.fixture
def broken(tmp_path):
    """A folder with eight gzipped shards, each with a bad line, two of them truncated."""
    for number in range(8):
        lines = [line(100 * number + i) for i in range(60)]
        lines[20 + number : 20 + number] = [b'{"text": null}\n']
        data = gzip.compress(b"".join(lines), mtime=0)
        (tmp_path / f"{number}.jsonl.gz").write_bytes(data[: -len(data) // 3] if number in (2, 5) else data)
    return tmp_path


def make(folder, encoder, **arguments):
    defaults = {"sequence_length": 64, "batch_size": 4, "on_error": "quarantine", "max_error_rate": 0.5}
    return gm.PackedDataset(str(folder / "*.jsonl.gz"), tokenizer=encoder, **{**defaults, **arguments})


def listed(path: Path):
    """The entries of a quarantine file, without a last line that a worker is just writing."""
    return [json.loads(text) for text in path.read_text().split("\n")[:-1]]


def positions(entries):
    return sorted((entry["shard"], entry["record"], entry["byte"], entry["reason"]) for entry in entries)


def test_interrupted_next_keeps_the_quarantine_list(broken, encoder, monkeypatch):
    iterator = iter(make(broken, encoder))
    while not iterator.quarantine():
        next(iterator)
    before, state = iterator.quarantine(), iterator.get_state()
    while True:
        with monkeypatch.context() as patch:
            patch.setattr(iterator._stats, "record_output_spec", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                next(iterator)
        assert (iterator.quarantine(), iterator.get_state()) == (before, state)
        next(iterator)
        after, state = iterator.quarantine(), iterator.get_state()
        if len(after) > len(before):
            break
        before = after
    assert after[: len(before)] == before


def test_list_file_state_and_counts_of_quarantine_agree(broken, encoder, tmp_path):
    file = tmp_path / "quarantine.jsonl"
    iterator = iter(make(broken, encoder, quarantine_file=file, epochs=2))
    assert sum(1 for _ in iterator) > 10
    stats = iterator.stats()
    assert (stats["quarantined"], stats["lost_shards"]) == (20, 4)
    assert stats["documents"] + stats["quarantined"] == sum(
        saved_states.cursor_numbers(cursor)["records"] for cursor in iterator.get_state()["lanes"].values()
    )
    assert positions(iterator.quarantine()) == positions(listed(file))
    for epoch in (0, 1):
        entries = [entry for entry in listed(file) if entry["epoch"] == epoch]
        assert [Path(entry["shard"]).name[0] for entry in sorted(entries, key=lambda entry: entry["shard"])] == list(
            "0122345567"
        )
    for lane, cursor in iterator.get_state()["lanes"].items():
        numbers = [entry["number"] for entry in listed(file) if entry["lane"] == int(lane)]
        assert numbers == list(range(1, saved_states.cursor_numbers(cursor)["quarantined"] + 1))
    cut = [entry for entry in listed(file) if "the file is truncated" in entry["reason"]]
    assert [Path(entry["shard"]).name[0] for entry in sorted(cut, key=lambda entry: entry["shard"])] == list("2255")


def test_relative_quarantine_file_is_in_the_working_folder(broken, encoder, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    dataset = make(broken, encoder, quarantine_file="quarantine.jsonl")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert list(dataset)
    assert listed(tmp_path / "quarantine.jsonl")


def test_relative_quarantine_file_needs_a_utf_8_folder(broken, encoder, tmp_path, monkeypatch):
    folder = tmp_path / os.fsdecode(b"lat\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(gm.ArgumentError, match=r"quarantine_file=.*lone surrogates"):
        make(broken, encoder, quarantine_file="q.jsonl")
    folder.rmdir()
    with pytest.raises(gm.ArgumentError, match=r"quarantine_file='q\.jsonl': the working folder, .*, was removed"):
        make(broken, encoder, quarantine_file="q.jsonl")
    with pytest.raises(gm.MissingTokenizerError, match=r"\(working folder: removed\)"):
        gm.Encoder.from_file("tokenizer.json")


@pytest.mark.parametrize("seed", [None, 7])
def test_restored_runs_list_each_record_once(broken, encoder, tmp_path, seed):
    def dataset(file):
        return make(broken, encoder, quarantine_file=file, epochs=2, seed=seed, shuffle_window=16, prefetch=2)

    whole = tmp_path / "whole.jsonl"
    states = []
    iterator = iter(dataset(whole))
    states.append(iterator.get_state())
    for _ in iterator:
        states.append(iterator.get_state())
    expected = sorted(whole.read_text().splitlines())
    assert len(expected) == 20

    moved = tmp_path / "moved.jsonl"
    for stop in range(0, len(states) - 1, 3):
        # Each run resumes some batches before the end of the one before it.
        first = iter(dataset(moved))
        first.set_state(states[max(0, stop - 2)])
        for _ in range(3):
            next(first, None)
        first.close()
        assert set(moved.read_text().splitlines()) <= set(expected)
    last = iter(dataset(moved))
    last.set_state(states[0])
    for _ in last:
        pass
    assert sorted(moved.read_text().splitlines()) == expected
    # Back and forth in one iterator.
    for state in (states[5], states[-1], states[0]):
        last.set_state(state)
        for _ in last:
            pass
    assert sorted(moved.read_text().splitlines()) == expected
    # A state counts no more than the file holds, whenever it was saved.
    iterator = iter(dataset(tmp_path / "counted.jsonl"))
    for _ in iterator:
        saved = iterator.get_state()["lanes"]
        lines = listed(tmp_path / "counted.jsonl")
        assert all(
            sum(e["lane"] == int(lane) for e in lines) >= saved_states.cursor_numbers(cursor)["quarantined"]
            for lane, cursor in saved.items()
        )


def test_quarantine_files_of_two_hosts_add_up(broken, encoder, tmp_path):
    list(make(broken, encoder, quarantine_file=tmp_path / "one.jsonl"))
    for host in range(2):
        file = tmp_path / f"host-{host}.jsonl"
        list(make(broken, encoder, quarantine_file=file, shard_index=host, shard_count=2))
    joined = [(tmp_path / f"host-{host}.jsonl").read_text().splitlines() for host in range(2)]
    assert all(joined)
    assert sorted([*joined[0], *joined[1]]) == sorted((tmp_path / "one.jsonl").read_text().splitlines())


@pytest.mark.slow
def test_mp_prefetch_workers_share_a_quarantine_file(broken, encoder, tmp_path, parsed_flags):
    file = tmp_path / "quarantine.jsonl"
    dataset = make(broken, encoder, batch_size=None, lanes=4, quarantine_file=file)
    options = grain.MultiprocessingOptions(num_workers=2)
    for _ in dataset.mp_prefetch(options):
        pass
    assert len(listed(file)) == len(set(file.read_text().splitlines())) == 10


def test_wrong_quarantine_arguments_are_refused(broken, encoder, tmp_path):
    for arguments, error, message in [
        ({"quarantine_file": "q.jsonl", "on_error": "raise"}, ValueError, "use 'quarantine'"),
        ({"quarantine_file": tmp_path / "no" / "q.jsonl"}, ValueError, "its folder does not exist"),
        ({"quarantine_file": 5}, TypeError, "quarantine_file=5: expected a path"),
        ({"quarantine_file": ""}, ValueError, "non-empty"),
        ({"quarantine_file": "a\0b"}, ValueError, "without NUL"),
    ]:
        with pytest.raises(error, match=message) as caught:
            make(broken, encoder, **arguments)
        assert isinstance(caught.value, gm.GristmillError)


def test_too_long_quarantine_file_name_is_an_error(broken, encoder):
    with pytest.raises(gm.ArgumentError, match=r"quarantine_file='/x+/q': its folder does not exist"):
        make(broken, encoder, quarantine_file=f"/{'x' * 5000}/q")


def test_foreign_file_is_not_overwritten_by_quarantine(broken, encoder, tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("do not lose me\n")
    with pytest.raises(gm.GristmillError, match="does not hold quarantined records"):
        next(iter(make(broken, encoder, quarantine_file=other)))
    assert other.read_text() == "do not lose me\n"


def test_get_state_fails_if_the_quarantine_file_was_removed(broken, encoder, tmp_path):
    file = tmp_path / "quarantine.jsonl"
    iterator = iter(make(broken, encoder, quarantine_file=file))
    start = iterator.get_state()
    next(iterator)
    file.rename(tmp_path / "moved.jsonl")
    iterator.get_state()  # the open file was only renamed
    (tmp_path / "moved.jsonl").unlink()
    with pytest.raises(gm.GristmillError, match=r"quarantine_file=.* the file was removed during the run.*resume from"):
        iterator.get_state()
    iterator.set_state(start)  # the start counts no quarantined record
    assert iterator.get_state() == start
    next(iterator)
    assert iterator.get_state()["step"] == 1


def test_unwritable_quarantine_file_stops_the_run(broken, encoder, tmp_path):
    file = tmp_path / "quarantine.jsonl"
    iterator = iter(make(broken, encoder, quarantine_file=file))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(gm.GristmillError, match=r"cannot write to quarantine_file=.*File too large"):
            list(iterator)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_state_is_taken_before_the_file_is_synced(broken, encoder, monkeypatch):
    iterator = iter(make(broken, encoder))
    next(iterator)
    expected = iterator.get_state()
    # As if another thread called next meanwhile.
    monkeypatch.setattr(iterator._stream, "sync", lambda: next(iterator))
    assert iterator.get_state() == expected


@pytest.mark.parametrize("bad", [29, 57, 58])
def test_share_equal_to_the_rate_is_tolerated(tmp_path, encoder, bad):
    good = 100 - bad
    (tmp_path / "a.jsonl").write_text('{"text": "some words"}\n' * good + "bad\n" * bad)
    arguments = {"tokenizer": encoder, "on_error": "quarantine"}
    iterator = iter(gm.PackedDataset(tmp_path / "a.jsonl", **arguments, max_error_rate=bad / 100))
    list(iterator)
    assert iterator.stats()["quarantined"] == bad
    with pytest.raises(gm.ShardError, match=f"{bad} of the 100 records"):
        list(gm.PackedDataset(tmp_path / "a.jsonl", **arguments, max_error_rate=(bad - 0.5) / 100))


def test_too_many_lost_shards_end_the_run(broken, encoder):
    # Two lanes of four shards lose one shard each, which is tolerated. In one lane of eight, two are too many.
    assert len(list(make(broken, encoder, batch_size=2, max_error_rate=0.05))) > 0
    with pytest.raises(
        gm.ShardError, match=r"2 shards of lane 0 could not be read to the end.*at most 1 with max_error_rate=0\.05"
    ):
        list(make(broken, encoder, batch_size=1, max_error_rate=0.05))


@pytest.mark.slow
def test_quarantine_list_is_bounded_the_file_is_not(tmp_path, encoder, caplog):
    shard = tmp_path / "a.jsonl"
    shard.write_bytes(line(0) + b"{}\n" * 30_000 + line(1))
    file = tmp_path / "quarantine.jsonl"
    dataset = gm.PackedDataset(
        shard, tokenizer=encoder, sequence_length=16, on_error="quarantine", max_error_rate=1.0, quarantine_file=file,
        epochs=20,
    )  # fmt: skip
    iterator = iter(dataset)
    with caplog.at_level(logging.WARNING, logger="gristmill"):
        assert sum(1 for _ in iterator) > 1
    assert iterator.stats()["quarantined"] == 600_000
    assert len(iterator.quarantine()) == 10_000
    assert iterator.quarantine()[-1]["record"] == 30_000
    assert "600,000 in all" in caplog.text  # on a slow machine in several reports
    with file.open() as lines:
        assert sum(1 for _ in lines) == 600_000


def test_counted_record_may_drop_out_of_the_list(tmp_path, encoder, caplog):
    """Later entries of the same block push the details of the first out of the list."""
    (tmp_path / "a.jsonl").write_bytes(b"{}\n" + line(0) + b"{}\n" * 1500 + line(1) * 100)
    iterator = iter(
        gm.PackedDataset(
            tmp_path / "a.jsonl", tokenizer=encoder, sequence_length=16, on_error="quarantine", max_error_rate=1.0
        )
    )
    with caplog.at_level(logging.WARNING, logger="gristmill"):
        next(iterator)
        iterator.close()
    assert (iterator.stats()["quarantined"], iterator.quarantine()) == (1, [])
    assert caplog.messages == ["1 record was quarantined, 1 in all"]


def until_it_fails(iterator):
    """The batches before the error, the error, and the state after them."""
    batches = []
    while True:
        try:
            batches.append(next(iterator))
        except gm.ShardError as error:
            return batches, error, iterator.get_state()


@pytest.mark.parametrize("seed", [None, 7])
def test_stopped_run_resumes_under_another_error_policy(broken, encoder, tmp_path, seed):
    file = tmp_path / "quarantine.jsonl"
    whole = list(make(broken, encoder, lanes=1, seed=seed))
    first, error, state = until_it_fails(iter(make(broken, encoder, lanes=1, seed=seed, on_error="raise")))
    assert error.record is not None
    # As the error advises: first with a rate that is too low for all bad records, then with one that is not.
    iterator = iter(make(broken, encoder, lanes=1, seed=seed, max_error_rate=0.0, quarantine_file=file))
    iterator.set_state(state)
    more, error, state = until_it_fails(iterator)
    assert "max_error_rate=0" in error.reason
    iterator = iter(make(broken, encoder, lanes=1, seed=seed, max_error_rate=0.5, quarantine_file=file))
    iterator.set_state(state)
    assert_same_batches(first + more + list(iterator), whole)
    assert len(listed(file)) == iterator.stats()["quarantined"] == 10


def test_stopped_run_resumes_with_larger_max_document_bytes(tmp_path, encoder):
    lines = [line(number) for number in range(40)]
    lines[30] = json.dumps({"text": "long " * 100}).encode() + b"\n"
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"".join(lines)))
    first, error, state = until_it_fails(iter(make(tmp_path, encoder, on_error="raise", max_document_bytes=400)))
    assert error.record == 30
    longer = make(tmp_path, encoder, on_error="raise", max_document_bytes=1000)
    iterator = iter(longer)
    iterator.set_state(state)
    assert_same_batches(first + list(iterator), longer)
    with pytest.raises(gm.StateError, match="max_document_bytes was 400 and is 300"):
        iter(make(tmp_path, encoder, on_error="raise", max_document_bytes=300)).set_state(state)
    # A line that was quarantined for its length would be in the other stream.
    quarantined = iter(make(tmp_path, encoder, max_document_bytes=400))
    list(quarantined)
    with pytest.raises(gm.StateError, match="max_document_bytes was 400 and is 1000"):
        iter(make(tmp_path, encoder, max_document_bytes=1000)).set_state(quarantined.get_state())


ANOTHER_WINDOW = "record 0, byte 0: the state of lane 0 is inside the window of documents that begins here, but another"


@pytest.mark.parametrize("window", [{"packing": "best_fit", "fit_window": 64}, {"seed": 1, "shuffle_window": 64}])
@pytest.mark.parametrize("is_missing_first", [True, False])
def test_state_within_a_window_refuses_another_window(tmp_path, encoder, window, is_missing_first):
    for number, name in enumerate("ab"):
        lines = b"".join(line(100 * number + i) for i in range(20))
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines))
    dataset = make(tmp_path, encoder, lanes=1, max_error_rate=1.0, **window)
    shard, away = tmp_path / "b.jsonl.gz", tmp_path / "away"

    def set_missing(is_missing):
        if shard.exists() == is_missing:
            shard.rename(away) if is_missing else away.rename(shard)

    set_missing(is_missing_first)
    iterator = iter(dataset)
    next(iterator)
    state = iterator.get_state()
    set_missing(not is_missing_first)
    iterator.set_state(state)
    with pytest.raises(gm.StateError, match=ANOTHER_WINDOW):
        next(iterator)
    set_missing(is_missing_first)
    iterator.set_state(state)
    next(iterator)


@pytest.mark.parametrize("window", [{"packing": "best_fit", "fit_window": 64}, {"seed": 1, "shuffle_window": 64}])
def test_window_with_a_quarantined_record_must_not_change(tmp_path, encoder, window):
    """One more line in the window would shuffle or place all of them in another order."""
    lines = [line(number) for number in range(40)]
    lines[30] = json.dumps({"text": "long " * 100}).encode() + b"\n"
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"".join(lines)))

    def saved(**arguments):
        iterator = iter(make(tmp_path, encoder, max_document_bytes=400, **window, **arguments))
        states = [iterator.get_state()]
        if arguments.get("on_error") != "raise":
            next(iterator)
            states.append(iterator.get_state())
            assert iterator.stats()["quarantined"] == 0
        return states

    longer = iter(make(tmp_path, encoder, max_document_bytes=1000, **window))
    before, inside = saved()
    longer.set_state(before)
    longer.set_state(inside)
    with pytest.raises(gm.StateError, match=ANOTHER_WINDOW):
        next(longer)
    # Nor after a run that stopped at the long line.
    stopped = iter(make(tmp_path, encoder, max_document_bytes=400, on_error="raise", **window))
    stopped.set_state(inside)
    with pytest.raises(gm.ShardError, match="raise max_document_bytes="):
        next(stopped)
    longer.set_state(stopped.get_state())
    with pytest.raises(gm.StateError, match=ANOTHER_WINDOW):
        next(longer)
    longer.set_state(saved(on_error="raise")[0])
    lines[30] = line(30)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"".join(lines)))
    iterator = iter(make(tmp_path, encoder, max_document_bytes=400, on_error="raise", **window))
    next(iterator)
    longer = make(tmp_path, encoder, max_document_bytes=1000, **window)
    restored = iter(longer)
    restored.set_state(iterator.get_state())
    assert_same_batches(restored, itertools.islice(longer, 1, None))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize(
    "then",
    [
        "rest = list(iterator)",
        "for _ in range(40): next(iterator)",
        # As after an interrupt between taking a batch and delivering it; the file is opened again.
        "for _ in range(40): next(iterator)\ncore.take(); core.interrupted = 0; next(iterator)",
        "for _ in range(40): next(iterator)\ncore.take(); core.interrupted = 0",
        "for _ in range(40): next(iterator)\niterator.set_state(iterator._stream.position())",
    ],
)
def test_get_state_waits_until_the_file_is_synced(broken, encoder, tmp_path, then):
    """A preloaded library in front of libc reports each sync."""
    source = tmp_path / "count.c"
    source.write_text("""
        #include <unistd.h>
        static int report(const char *what) { return write(2, what, 7) == 7 ? 0 : -1; }
        int fdatasync(int fd) { (void)fd; return report("synced\\n"); }
        int fsync(int fd) { (void)fd; return report("folder\\n"); }
    """)
    library = tmp_path / "count.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    code = (
        """
import sys, gristmill as gm
dataset = gm.PackedDataset(sys.argv[1] + "/*.jsonl.gz", tokenizer=sys.argv[2], sequence_length=64, batch_size=4,
                           on_error="quarantine", max_error_rate=0.5, quarantine_file=sys.argv[1] + "/q", eos=False)
iterator = iter(dataset)
core = iterator._stream.core
"""
        + then
        + """
assert iterator.stats()["quarantined"]
iterator.get_state()
print("saved", file=sys.stderr, flush=True)
"""
    )
    (tmp_path / "tokenizer.json").write_bytes(encoder._core.json)
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path, tmp_path / "tokenizer.json"],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    before = done.stderr.partition("saved")[0]
    assert "synced" in before
    assert "folder" in before  # the folder is synced, too, since the file is new
