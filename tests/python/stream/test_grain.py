"""`PackedDataset` under Grain's interfaces and transformations."""

import contextlib
import copy
import gc
import itertools
import json
import logging
import pickle
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import cloudpickle
import grain
import numpy as np
import pytest
from grain._src.python.dataset import base as grain_base
from grain._src.python.dataset.transformations import prefetch as grain_prefetch

import gristmill as gm
from gristmill import _core
from gristmill._dataset import iterator as iterator_module
from gristmill._dataset import report
from gristmill._dataset.packed import spec_of, with_spec
from helpers import PATIENCE, assert_same_batches


@pytest.fixture
def rows(shards, encoder):
    """A dataset of single rows, small enough to restore at every step."""
    return gm.PackedDataset(
        shards, tokenizer=encoder, text_field="raw_content", sequence_length=2048, lanes=4, threads=2, prefetch=2
    )


@pytest.fixture
def batches(shards, encoder):
    return gm.PackedDataset(
        shards, tokenizer=encoder, text_field="raw_content", sequence_length=1024, batch_size=8, lanes=4, threads=2
    )


def test_grain_conformance_of_rows(rows):
    grain.experimental.assert_equal_output_after_checkpoint(rows)


def test_next_is_called_without_a_frame_of_grain(rows):
    """A signal handler that raises in such a frame would lose the element."""
    iterator = iter(rows)
    next(iterator)
    assert type(iterator).__next__.__code__.co_filename == iterator_module.__file__


def test_grain_conformance_of_batches(batches):
    grain.experimental.assert_equal_output_after_checkpoint(batches)


def test_grain_conformance_batched_by_grain(rows):
    grain.experimental.assert_equal_output_after_checkpoint(rows.batch(4))


def test_grain_conformance_under_thread_prefetch(batches):
    threaded = grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=3)
    grain.experimental.assert_equal_output_after_checkpoint(threaded)


@pytest.mark.slow
def test_grain_conformance_shuffled_over_epochs(shards, encoder):
    ds = gm.PackedDataset(
        shards, tokenizer=encoder, text_field="raw_content", sequence_length=4096, seed=11, shuffle_window=5, epochs=2
    )
    grain.experimental.assert_equal_output_after_checkpoint(ds)


def test_map_and_batch_see_the_rows(rows, batches):
    lengths = [int(n) for n in rows.map(lambda row: (row["inputs_segmentation"] > 0).sum())]
    assert sum(lengths) == sum(int((batch["inputs_segmentation"] > 0).sum()) for batch in batches)
    first = next(iter(rows.batch(4)))
    plain = list(itertools.islice(rows, 4))
    for key, value in first.items():
        np.testing.assert_array_equal(value, np.stack([row[key] for row in plain]))


def test_element_spec_matches_the_elements(rows, batches):
    for ds in (rows, batches, rows.batch(4)):
        spec = grain.experimental.get_element_spec(ds)
        element = next(iter(ds))
        assert list(spec) == list(element)
        for key, value in element.items():
            assert value.dtype == spec[key].dtype
            # Grain leaves the number of rows of the last batch open: None.
            assert all(want in (None, got) for want, got in zip(spec[key].shape, value.shape, strict=True))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda ds: pickle.loads(cloudpickle.dumps(ds)), copy.copy])
def test_copies_are_the_same_dataset(batches, again):
    other = again(batches)
    assert other.fingerprint == batches.fingerprint
    assert_same_batches(other, batches)


def test_set_slice_assigns_each_lane_to_one_worker(rows):
    def key(row):
        return row["inputs"].tobytes()

    expected = sorted(key(row) for row in rows if row["inputs_segmentation"].any())
    got = []
    for worker in range(6):  # more workers than lanes: two have no lane
        sliced = copy.deepcopy(rows)
        sliced.set_slice(slice(worker, None, 6))
        got.extend(key(row) for row in sliced if row["inputs_segmentation"].any())
    assert sorted(got) == expected


def test_set_slice_refuses_whole_batches(batches):
    with pytest.raises(gm.ArgumentError, match=r"leave batch_size out, and put \.batch\(\) after \.mp_prefetch\(\)"):
        batches.set_slice(slice(0, None, 2))


def test_sliced_iterator_takes_an_unsliced_state(rows):
    state = iter(rows).get_state()
    sliced = copy.deepcopy(rows)
    sliced.set_slice(slice(1, None, 2))
    iterator = iter(sliced)
    iterator.set_state(state)
    assert list(iterator.get_state()["lanes"]) == ["1", "3"]


def test_close_twice_and_next_after_close(batches):
    iterator = iter(batches)
    kept = next(iterator)
    before = {key: value.copy() for key, value in kept.items()}
    iterator.close()
    iterator.close()
    with pytest.raises(ValueError, match="this iterator was closed"):
        next(iterator)
    for key, value in kept.items():
        np.testing.assert_array_equal(value, before[key])


def test_dataset_and_iterator_have_no_parent(batches):
    # MaxText 0.2.5 reads `_parent` of each iterator that it closes, and Grain's own property asserts in a source.
    assert not hasattr(batches, "_parent")
    assert not hasattr(iter(batches), "_parent")


def test_start_prefetch_fills_the_ring(batches, thread_count):
    iterator = iter(batches)
    before = thread_count()
    assert iterator.stats()["ring_ready"] == 0
    iterator.start_prefetch()
    assert thread_count() == before + 2
    next(iterator)
    iterator.close()
    assert thread_count() == before


def test_grain_mixtures_take_the_dataset(rows, batches):
    mixed = grain.IterDataset.mix([rows.batch(8).seed(1), batches], [0.5, 0.5])
    assert [element["inputs"].shape[0] for element in itertools.islice(mixed, 6)] == [8] * 6


def tokens_of(rows):
    return sorted(row["inputs"].tobytes() for row in rows if row["inputs_segmentation"].any())


@pytest.mark.slow
def test_mp_prefetch_yields_each_row_once_and_restores(rows, parsed_flags):
    expected = tokens_of(rows)
    for workers in (1, 3):
        options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=1)
        # One worker is not sliced; three share the four lanes unevenly.
        multiprocess = rows.mp_prefetch(options)
        iterator = iter(multiprocess)
        taken = [next(iterator) for _ in range(5)]
        state = json.loads(json.dumps(iterator.get_state()))
        rest = list(iterator)
        assert tokens_of(taken + rest) == expected, workers
        iterator.close()
        if workers == 3:
            again = iter(multiprocess)
            again.set_state(state)
            assert_same_batches(again, rest)
            again.close()


def own_threads():
    """The number of threads that work for iterators; those of Grain, of JAX and of clients of stores come and go."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            names.append((task / "comm").read_text())
    return sum(re.fullmatch(r"gristmill-\d+\n", name) is not None for name in names)


def test_worker_processes_share_the_cores(rows, monkeypatch):
    """Each of n processes takes 1/n of the cores; n is known only once Grain has set the context."""
    ds = gm.PackedDataset(rows.manifest, tokenizer=rows.encoder, text_field="raw_content", lanes=4)
    monkeypatch.setattr(_core, "usable_cores", lambda: 8)
    gc.collect()  # iterators that are parts of circles, as those in errors of other tests
    for processes, threads in ((1, 8), (3, 2), (100, 1)):
        iterator = iter(ds)
        iterator._ctx.mp_context = grain_base.MultiprocessingContext(process_index=0, process_count=processes)
        wait_for_threads(0)
        iterator.start_prefetch()
        wait_for_threads(threads)
        iterator.close()


def wait_for_threads(count):
    """Waits: a thread names itself when it begins to run, and is listed for a moment after it was joined."""
    until = time.monotonic() + PATIENCE
    while own_threads() != count:
        assert time.monotonic() < until, own_threads()


def elastic(ds, count, states=None):
    """Iterators of `count` hosts, as Grain's elastic iterator makes them, each with its slice of the lanes."""
    iterators = []
    for host in range(count):
        own = copy.deepcopy(ds)
        own.set_slice(slice(host, None, count))
        iterator = iter(own)
        assert isinstance(iterator, grain_prefetch.SupportsSlicedStateManagement)
        if states is not None:
            iterator.set_shard_states(states[host::count])
        iterators.append(iterator)
    return iterators


def shard_states(iterators):
    """The states of all hosts, in the order of the slices."""
    own = [iterator.get_shard_states() for iterator in iterators]
    return [state for group in itertools.zip_longest(*own) for state in group if state is not None]


def test_elastic_protocol_moves_lanes_between_hosts(rows):
    expected = tokens_of(rows)
    got, states = [], None
    for count in (1, 4, 2, 3):
        iterators = elastic(rows, count, states)
        # Each host takes one step, which is a row of each of its lanes, unless it has ended.
        for iterator in iterators:
            got += itertools.islice(iterator, len(iterator.get_state()["lanes"]))
        states = json.loads(json.dumps(shard_states(iterators)))
        assert [list(state["state"]["lanes"]) for state in states] == [["0"], ["1"], ["2"], ["3"]]
    assert {state["exhausted"] for state in states} == {True, False}
    (last,) = elastic(rows, 1, states)
    got += list(last)
    assert tokens_of(got) == expected
    assert all(state["exhausted"] for state in last.get_shard_states())


@pytest.mark.parametrize("taken", [(5, 4), (4, 5), (5, 5), (6, 5), (5, 6)])
def test_elastic_states_within_a_step_of_two_iterators(rows, taken):
    """One iterator can take over all lanes if no lane is a row ahead of an earlier one."""
    iterators = elastic(rows, 2)
    got = [row for iterator, rows in zip(iterators, taken, strict=True) for row in itertools.islice(iterator, rows)]
    states = json.loads(json.dumps(shard_states(iterators)))
    last = iter(rows)
    if taken in [(4, 5), (5, 6)]:  # lane 1 is ahead of lane 0, and lane 3 of lane 2
        with pytest.raises(gm.StateError, match="the states were saved at different steps, "):
            last.set_shard_states(states)
        return
    last.set_shard_states(states)
    got += [element for element in last if element["inputs_segmentation"].any()]
    assert tokens_of(got) == tokens_of(rows)


@pytest.mark.parametrize("long_lane", [0, 1])
def test_elastic_states_of_an_ended_host(tmp_path, encoder, long_lane):
    for lane in range(2):
        lines = 40 if lane == long_lane else 4
        text = json.dumps({"text": "a b " * 10}) + "\n" + '{"text": "c"}\n' * lines
        (tmp_path / f"{lane}.jsonl").write_text(text.ljust(1000, "\n"))  # equal sizes: one shard for each lane
    dataset = gm.PackedDataset(str(tmp_path / "*.jsonl"), tokenizer=encoder, sequence_length=16, batch_size=2, lanes=2)
    hosts = [with_spec(dataset, spec_of(dataset).with_running(own_lanes=[lane])) for lane in range(2)]
    iterators = [iter(host) for host in hosts]
    assert list(iterators[1 - long_lane])
    for _ in range(5):
        next(iterators[long_lane])
    states = shard_states(iterators)
    whole, merged = iter(dataset), iter(dataset)
    whole.set_shard_states(states)
    merged.set_state(gm.merge_states([iterator.get_state() for iterator in iterators]))
    assert whole.get_state() == merged.get_state()
    assert_same_batches(whole, merged)


def test_elastic_states_within_a_step_restore_the_same_lanes(rows):
    iterator = iter(rows)
    for _ in range(6):
        next(iterator)
    states = iterator.get_shard_states()
    rest = list(iterator)
    again = iter(rows)
    again.set_shard_states(states)
    assert again.get_shard_states() == states
    assert_same_batches(again, rest)
    got = list(itertools.chain.from_iterable(elastic(rows, 3, states)))
    assert tokens_of(got) == tokens_of(rest)
    with pytest.raises(gm.StateError, match=r"a dict with the key 'state', got \{\}"):
        again.set_shard_states([{}])
    with pytest.raises(gm.ArgumentTypeError, match="shard_states=5: expected a list"):
        again.set_shard_states(5)
    with pytest.raises(gm.StateError, match=r"^set_shard_states: expected at least one state, got none"):
        again.set_shard_states([])


def test_elastic_states_within_a_step_with_ended_lanes(tmp_path, encoder):
    for lane, documents in enumerate((6, 2, 1)):  # documents of one row each
        (tmp_path / f"{lane}.jsonl").write_text(('{"text": "a"}\n' * documents).ljust(1000, "\n"))
    dataset = gm.PackedDataset(str(tmp_path / "*.jsonl"), tokenizer=encoder, sequence_length=4, packing="pad", lanes=3)
    iterator = iter(dataset)
    for _ in range(17):
        next(iterator)
        plain, elastic = iter(dataset), iter(dataset)
        plain.set_state(iterator.get_state())
        elastic.set_shard_states(iterator.get_shard_states())
        assert elastic.get_state() == plain.get_state()
        assert_same_batches(elastic, plain)


def test_on_stats_is_called_under_wrapped_iterators(shards, encoder, monkeypatch):
    monkeypatch.setattr(report, "_REPORT_SECONDS", 0.0)
    seen = []
    ds = gm.PackedDataset(shards, tokenizer=encoder, text_field="raw_content", lanes=4, on_stats=seen.append)
    iterator = iter(ds.batch(4))
    steps = len(list(iterator))
    iterator.close()
    assert len(seen) >= 4 * steps
    assert [stats["rows"] for stats in seen] == sorted(stats["rows"] for stats in seen)
    assert (seen[0]["rows"], seen[-1]["rows"]) == (0, 4 * steps)
    assert seen[-1]["documents"] == 340
    assert ds.fingerprint == gm.PackedDataset(shards, tokenizer=encoder, text_field="raw_content", lanes=4).fingerprint
    with pytest.raises(TypeError, match="on_stats=5: expected a function"):
        gm.PackedDataset(shards, tokenizer=encoder, on_stats=5)


def test_end_is_reported_once(shards, encoder):
    seen = []
    ds = gm.PackedDataset(shards, tokenizer=encoder, text_field="raw_content", batch_size=8, on_stats=seen.append)
    iterator = iter(ds)
    start = iterator.get_state()
    for reports in (1, 2):
        steps = len(list(iterator))
        for _ in range(3):
            assert next(iterator, None) is None
        assert [stats["batches"] for stats in seen] == [steps] * reports
        iterator.set_state(start)


def test_stop_iteration_of_on_stats_is_an_error(shards, encoder, monkeypatch):
    monkeypatch.setattr(report, "_REPORT_SECONDS", 0.0)
    errors = [StopIteration]

    def ends(stats):
        if errors:
            raise errors.pop()

    dataset = gm.PackedDataset(shards, tokenizer=encoder, text_field="raw_content", batch_size=8, on_stats=ends)
    with pytest.raises(RuntimeError, match="on_stats raised StopIteration"):
        list(dataset)


@pytest.mark.parametrize("good_calls", [0, 1, 4])
@pytest.mark.parametrize("error", [RuntimeError, StopIteration])
def test_error_of_on_stats_loses_no_batch_and_comes_once(shards, encoder, monkeypatch, good_calls, error):
    monkeypatch.setattr(report, "_REPORT_SECONDS", 0.0)
    calls = []

    def fails_late(stats):
        calls.append(stats)
        if len(calls) > good_calls:
            raise error("full")

    arguments = {"tokenizer": encoder, "text_field": "raw_content", "batch_size": 8, "lanes": 4}
    ds = gm.PackedDataset(shards, **arguments, on_stats=fails_late)
    iterator = iter(ds)
    got = list(itertools.islice(iterator, good_calls))
    with pytest.raises(RuntimeError, match="full" if error is RuntimeError else "on_stats raised StopIteration"):
        next(iterator)
    got += iterator
    iterator.close()
    assert len(calls) == good_calls + 1
    assert_same_batches(got, gm.PackedDataset(shards, **arguments))


def test_on_stats_is_called_again_after_an_interrupt(shards, encoder, monkeypatch):
    monkeypatch.setattr(report, "_REPORT_SECONDS", 0.0)
    calls = []

    def interrupted(stats):
        calls.append(stats)
        if len(calls) == 1:
            raise KeyboardInterrupt

    iterator = iter(gm.PackedDataset(shards, tokenizer=encoder, text_field="raw_content", on_stats=interrupted))
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    next(iterator)
    iterator.close()
    assert len(calls) == 3


def test_quarantined_records_are_logged(tmp_path, encoder, caplog):
    good = b'{"text": "some words"}\n'
    (tmp_path / "a.jsonl").write_bytes(b"bad\n" + good * 50 + b"worse\n" + good * 50)
    ds = gm.PackedDataset(tmp_path / "a.jsonl", tokenizer=encoder, on_error="quarantine", max_error_rate=0.5)
    with caplog.at_level(logging.WARNING, logger="gristmill"):
        list(ds.batch(2))
    (record,) = caplog.records
    assert "2 records were quarantined" in record.getMessage()
    assert "a.jsonl: record 0, byte 0" in record.getMessage()
    iterator = iter(ds)
    state = iterator.get_state()
    for _ in range(2):  # each time from the start, so each time both are logged
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="gristmill"):
            list(iterator)
        assert [record.getMessage()[:26] for record in caplog.records] == ["2 records were quarantined"]
        iterator.set_state(state)


def test_dropped_tokens_are_logged_once(tmp_path, encoder, caplog):
    shard = tmp_path / "a.jsonl"
    shard.write_text('{"text": "more words than a row has room for"}\n' * 3)
    rows = gm.PackedDataset(shard, tokenizer=encoder, sequence_length=4, packing="pad", truncation="right")
    with caplog.at_level(logging.WARNING, logger="gristmill"):
        with contextlib.closing(iter(rows)) as iterator:
            assert len(list(iterator)) == 3
            dropped = iterator.stats()["dropped_tokens"]
        list(gm.PackedDataset(shard, tokenizer=encoder, sequence_length=4, packing="pad", truncation="split"))
    (message,) = caplog.messages
    share = 100 * dropped / (dropped + 12)
    cause = "by truncation=, or with rows that train nothing"
    assert message == f"{dropped:,} tokens are dropped so far, {share:.1f} % of all, {cause}"


def test_log_of_an_unopened_shard_has_no_record(tmp_path, encoder, caplog):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"text": "some words"}\n')
    ds = gm.PackedDataset(tmp_path / "*.jsonl", tokenizer=encoder, on_error="quarantine", max_error_rate=0.5)
    (tmp_path / "a.jsonl").write_text('{"text": "other words"}\n')
    with caplog.at_level(logging.WARNING, logger="gristmill"):
        list(ds)
    assert "a.jsonl: expected the 23 bytes of the manifest, found 24" in caplog.text
    assert "None" not in caplog.text


@pytest.mark.slow
def test_interpreter_exits_silently_although_on_stats_raises(shards, tokenizer_file):
    code = f"""
    import gristmill as gm
    ds = gm.PackedDataset({shards!r}, tokenizer={str(tokenizer_file)!r}, text_field="raw_content",
                          on_stats=lambda stats: 1 / 0)
    iterator = iter(ds)
    next(iterator)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")


LATE = """
import copy, pickle, sys

import gristmill as gm

ids, prompts = sys.argv[1:]
dataset = gm.PackedDataset(ids, sample=gm.Tokens("ids"), sequence_length=8, batch_size=2)
iterator = iter(dataset)
first, state = next(iterator), iterator.get_state()
iterator.set_state(state)
wanted = [batch["inputs"].tolist() for batch in dataset]
for other in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
    assert [batch["inputs"].tolist() for batch in other] == wanted
prompt = gm.PromptDataset(prompts, tokenizer=sys.argv[1].replace("ids.jsonl", "tokenizer.json"),
                          prompt=gm.Text("prompt"), prompt_length=8, batch_size=2, layout="hf", columns=False, pad=0)
count = sum(1 for _ in prompt)
iterator.close()
assert not {"grain", "jax"} & sys.modules.keys(), "loaded too early"

iterator = iter(dataset)
if sys.argv[0] == "-c":
    import grain
    assert isinstance(dataset, grain.IterDataset) and isinstance(iterator, grain.DatasetIterator)
    assert isinstance(prompt, grain.IterDataset) and issubclass(gm.PackedDataset, grain.IterDataset)
mapped = dataset.map(lambda batch: batch["inputs"].tolist())
import grain
assert isinstance(iterator, grain.DatasetIterator)
assert list(mapped) == wanted == [batch["inputs"].tolist() for batch in iterator]
grain.experimental.assert_equal_output_after_checkpoint(dataset)
grain.experimental.assert_equal_output_after_checkpoint(prompt)
spec = grain.experimental.get_element_spec(dataset)
assert {name: value.shape for name, value in spec.items()} == dataset.shapes
assert grain.experimental.get_element_spec(prompt)
threaded = grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=2)
assert [batch["inputs"].tolist() for batch in threaded] == wanted
assert len(list(prompt.map(lambda batch: batch))) == count > 0
"""


def test_grain_is_loaded_by_who_uses_it(tmp_path, tokenizer_json):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    ids, prompts = tmp_path / "ids.jsonl", tmp_path / "prompts.jsonl"
    ids.write_text("".join(json.dumps({"ids": list(range(1, 2 + n % 11))}) + "\n" for n in range(40)))
    prompts.write_text("".join(json.dumps({"prompt": f"number {n}"}) + "\n" for n in range(9)))
    program = tmp_path / "late.py"
    program.write_text(LATE)
    for command in (["-c", LATE], [str(program)]):  # loaded by the program, and by `map`
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *command, str(ids), str(prompts)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
