"""Global batches, in one process."""

import copy
import functools
import gc
import itertools
import json
import os
import pickle
import signal
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import cloudpickle
import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gristmill as gm
from fakes import Uneven, sharding_of
from gristmill._dataset import report, stream
from gristmill._dataset.packed import spec_of, with_spec
from gristmill._jax import agreement, exchange, global_batches
from gristmill._jax.row_sharding import row_sharding
from helpers import PATIENCE, assert_same_batches


@pytest.fixture(scope="module")
def mesh():
    return Mesh(np.array(jax.devices()[:1]), ("data",))


@pytest.fixture(scope="module")
def sharding(mesh):
    return NamedSharding(mesh, PartitionSpec("data"))


@pytest.fixture
def dataset(shards, encoder):
    return gm.PackedDataset(
        shards, tokenizer=encoder, text_field="raw_content", sequence_length=512, batch_size=8, lanes=4, threads=2
    )


def test_wait_for_other_processes_can_be_interrupted():
    never = SimpleNamespace(is_ready=lambda: False)
    interrupt = threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        exchange._wait(never)
    interrupt.join()


def test_failed_exchange_raises_a_gristmill_error():
    failed = Mock(is_ready=lambda: True, __array__=Mock(side_effect=ValueError("connection reset")))
    with pytest.raises(gm.GristmillError, match=r"perhaps because one of them has ended: connection reset\. End all"):
        exchange._wait(failed)


def fill_ring(batches):
    batches.start_prefetch()
    until = time.monotonic() + PATIENCE
    while batches.stats()["ring_ready"] < 3:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_for_sharding_survives_copies_and_keeps_the_fingerprint(dataset, sharding, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 2)
    scattered = sharding_of([(0, 2)], [(4, 6)], [(2, 4), (6, 8)])
    own = dataset.for_sharding(scattered)
    assert own.fingerprint == dataset.fingerprint
    whole = next(iter(dataset))
    for again in (own, copy.deepcopy(own), pickle.loads(cloudpickle.dumps(own))):
        assert list(iter(again).get_state()["lanes"]) == ["1", "3"]
        assert again._element_spec["inputs"].shape == (4, 512)
        batch = next(iter(again))
        assert_same_batches([batch], [{key: value[[2, 3, 6, 7]] for key, value in whole.items()}])
    assert len(iter(dataset).get_state()["lanes"]) == 4  # the dataset itself is unchanged


def test_provenance_has_the_memory_kind_of_other_arrays(dataset, mesh):
    kinds = {memory.kind for memory in jax.devices()[0].addressable_memories()}
    assert len(kinds) > 1
    for kind in kinds:
        sharding = NamedSharding(mesh, PartitionSpec("data"), memory_kind=kind)
        with gm.global_batches(with_spec(dataset, spec_of(dataset).with_running(provenance=3)), sharding) as batches:
            batch = next(batches)
        assert {name: array.sharding.memory_kind for name, array in batch.items()} == dict.fromkeys(batch, kind)


def test_for_sharding_refuses_unsuitable_shardings(dataset, shards, encoder, mesh, sharding, monkeypatch):
    rows = gm.PackedDataset(shards, tokenizer=encoder, text_field="raw_content")
    with pytest.raises(gm.ArgumentError, match=r"batch_size=None: .*set the dataset's batch_size"):
        rows.for_sharding(sharding)
    with pytest.raises(TypeError, match=r"expected a jax\.sharding\.Sharding.*got Mesh"):
        dataset.for_sharding(mesh)
    with pytest.raises(gm.ArgumentError, match=r"does not fit batches of shape \(8, 512\) .*divisible by 3"):
        dataset.for_sharding(Uneven(()))
    with pytest.raises(gm.ArgumentError, match=r"does not fit batches of shape \(8, 512\) .*for arrays of 3 axes"):
        dataset.for_sharding(NamedSharding(mesh, PartitionSpec("data", None, None)))
    with pytest.raises(
        gm.ArgumentError, match=r"provenance, index, seq_lens: their rows cannot be divided as a Uneven .*NamedSharding"
    ):
        row_sharding(Uneven(()))
    monkeypatch.setattr(jax, "process_index", lambda: 7)
    with pytest.raises(gm.ArgumentError, match="no device of process 7: it spans the processes 0, 1"):
        dataset.for_sharding(sharding_of([(0, 4)], [(4, 8)]))


def test_global_batches_require_a_packed_dataset(dataset, sharding):
    with pytest.raises(TypeError, match="expected a PackedDataset or PromptDataset, got "):
        gm.global_batches(dataset.map(lambda batch: batch), sharding)


def test_stages_are_announced_and_compiled_once_each(dataset, sharding):
    stages = [gm.Stage(0, 64, 8), gm.Stage(3, 128, 4), gm.Stage(5, None, 4), gm.Stage(6, 64, 8)]
    staged = gm.PackedDataset(
        dataset.manifest, tokenizer=dataset.encoder, text_field="raw_content", stages=stages, lanes=4, provenance=2
    )
    expected = list(staged)
    with gm.global_batches(staged, sharding) as batches:
        announced = dict(batches.announced)
        assert [(step, arrays["inputs"].shape) for step, arrays in announced.items()] == [
            (0, (8, 64)),
            (3, (4, 128)),
            (6, (8, 64)),
        ]
        step = jax.jit(lambda batch: {name: array.sum() for name, array in batch.items()})
        compiled = {first: step.lower(arrays).compile() for first, arrays in announced.items()}
        for number, (batch, other) in enumerate(zip(batches, expected, strict=True)):
            first = max(first for first in announced if first <= number)
            found = compiled[first](batch)  # raises for other shapes, types or shardings
            assert {name: int(total) for name, total in found.items()} == {
                name: int(array.sum()) for name, array in other.items()
            }
            if number in (2, 3, 5):
                state = json.loads(json.dumps(batches.get_state()))
                with gm.global_batches(staged, sharding) as restored:
                    restored.set_state(state)
                    assert_same_batches([next(restored)], expected[number + 1 : number + 2])


def test_batches_are_committed_in_any_order(dataset, sharding):
    expected = [next(batches) for batches in [iter(dataset)] for _ in range(8)]
    with gm.global_batches(dataset, sharding) as batches:
        batches.commit([])
        for _ in range(6):
            next(batches)
        assert batches.step == 5
        for step in (4, 0, 2):
            batches.commit(step)
        batches.commit([8 * 3 + 1])
        state = json.loads(json.dumps(batches.get_state()))
    assert (state["step"], state["committed"]) == (1, "2,3:1,4")
    with gm.global_batches(dataset, sharding) as batches:
        batches.set_state(state)
        found = [next(batches) for _ in range(4)]
    assert not np.asarray(found[1]["inputs_segmentation"])[1].any()
    assert_same_batches([found[0], *found[2:]], [expected[1], expected[5], expected[6]])


def test_states_count_delivered_batches(dataset, sharding):
    plain = iter(dataset)
    with gm.global_batches(dataset, sharding) as batches:
        assert batches.get_state() == plain.get_state()
        for batch, expected in itertools.zip_longest(batches, plain):
            assert_same_batches([batch], [expected])
            assert batches.get_state() == plain.get_state()
            assert {k: v for k, v in batches.stats().items() if k in COUNTS} == {
                k: v for k, v in plain.stats().items() if k in COUNTS
            }
            assert batches.get_state() is not batches.get_state()
        assert batches.stats()["elapsed_seconds"] >= batches.stats()["wait_seconds"] > 0


COUNTS = ["documents", "tokens", "text_bytes", "rows", "batches", "padding_tokens", "dropped_tokens", "quarantined"]


def test_next_transfer_begins_before_a_batch_is_delivered(dataset, sharding, monkeypatch):
    taken = []
    make = jax.make_array_from_process_local_data
    monkeypatch.setattr(jax, "make_array_from_process_local_data", lambda *args: taken.append(args[1]) or make(*args))
    with gm.global_batches(dataset, sharding) as batches:
        fill_ring(batches)
        next(batches)
        assert len(taken) == 2  # this batch and the next one, and no more
        next(batches)
        assert len(taken) == 3


def test_global_batches_restore_at_every_step(dataset, sharding):
    with gm.global_batches(dataset, sharding) as batches:
        states, elements = [batches.get_state()], []
        for batch in batches:
            elements.append(batch)
            states.append(batches.get_state())
        for step in [*range(0, len(states), 5), len(states) - 2, len(states) - 1]:
            batches.set_state(states[step])
            assert batches.get_state() == states[step]
            rest = list(batches)
            assert_same_batches(rest, elements[step:])
            assert batches.get_state() == states[-1]


def test_kept_arrays_do_not_change(dataset, sharding):
    with gm.global_batches(dataset, sharding) as batches:
        kept = list(batches)
        copies = [{key: np.array(value) for key, value in batch.items()} for batch in kept]
        start = iter(dataset).get_state()
        for _ in range(2):  # the ring's buffers are filled again
            batches.set_state(start)
            for _ in batches:
                pass
    assert_same_batches(kept, copies)


def test_arrays_share_the_memory_of_the_ring(dataset, sharding):
    """Without a copy on CPUs: a change of this should be deliberate."""
    element = next(iter(dataset))
    array = jax.make_array_from_process_local_data(sharding, element["inputs"], (8, 512))
    assert array.addressable_shards[0].data.unsafe_buffer_pointer() == element["inputs"].ctypes.data


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_donated_batch_does_not_write_into_the_ring(dataset, sharding):
    element = next(iter(dataset))
    before = element["inputs"].copy()
    array = jax.make_array_from_process_local_data(sharding, element["inputs"], (8, 512))
    result = jax.jit(lambda rows: rows + 1, donate_argnums=0)(array)
    np.testing.assert_array_equal(element["inputs"], before)
    del array, element
    for _ in dataset:  # fills the ring's memory again
        pass
    np.testing.assert_array_equal(result, before + 1)


def test_error_comes_after_all_earlier_batches(tmp_path, encoder, sharding):
    good = b'{"text": "some words of a document"}\n' * 400
    (tmp_path / "a.jsonl").write_bytes(good + b"{bad}\n" + good)
    ds = gm.PackedDataset(tmp_path / "a.jsonl", tokenizer=encoder, sequence_length=64, batch_size=2)
    plain_iterator = iter(ds)
    plain = _until_error(plain_iterator)
    with pytest.raises(gm.ShardError) as expected:
        next(plain_iterator)
    with gm.global_batches(ds, sharding) as batches:
        got = _until_error(batches)
        assert len(got) == len(plain) > 10
        assert_same_batches(got, plain)
        for _ in range(2):
            with pytest.raises(gm.ShardError) as error:
                next(batches)
            assert str(error.value) == str(expected.value)
        assert batches.get_state() == plain_iterator.get_state()


def _until_error(iterator):
    got = []
    try:
        got.extend(iterator)
    except gm.ShardError:
        return got
    raise AssertionError("no error came")


def test_interrupt_loses_no_batch(dataset, sharding, monkeypatch):
    expected = list(dataset)
    make = jax.make_array_from_process_local_data
    calls = itertools.count()

    def interrupted(*arguments):
        if next(calls) % 5 == 4:
            raise KeyboardInterrupt
        return make(*arguments)

    monkeypatch.setattr(jax, "make_array_from_process_local_data", interrupted)
    got, interrupts = [], 0
    with gm.global_batches(dataset, sharding) as batches:
        while True:
            try:
                got.append(next(batches))
            except KeyboardInterrupt:
                interrupts += 1
            except StopIteration:
                break
    assert interrupts >= 2
    assert_same_batches(got, expected)


def test_failed_rewind_skips_no_batch(tmp_path, encoder, sharding, monkeypatch):
    """After an interrupted `next` the pipeline is ahead; it cannot rewind without its quarantine file."""
    shard, listed = tmp_path / "a.jsonl", tmp_path / "quarantine.jsonl"
    shard.write_text('{"text": "a"}\nbad\n' + '{"text": "some words of a document"}\n' * 200)
    ds = gm.PackedDataset(
        shard, tokenizer=encoder, sequence_length=32, batch_size=4, on_error="quarantine", quarantine_file=listed
    )
    make, interrupted = jax.make_array_from_process_local_data, threading.Event()

    def interrupt_once(*arguments):
        if len(got) == 2 and not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt
        return make(*arguments)

    monkeypatch.setattr(jax, "make_array_from_process_local_data", interrupt_once)
    monkeypatch.setattr(global_batches.GlobalBatches, "_take_ready", lambda batches: None)
    got = []
    with gm.global_batches(ds, sharding) as batches:
        got += itertools.islice(batches, 2)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        listed.unlink()
        for _ in range(3):
            with pytest.raises(gm.GristmillError, match="the file was removed during the run"):
                next(batches)


def test_failed_set_state_leaves_the_iterator_as_it_was(tmp_path, encoder, sharding):
    """Quarantined records must be on disk before another state counts them."""
    shard, listed = tmp_path / "a.jsonl", tmp_path / "quarantine.jsonl"
    shard.write_text('{"text": "a"}\nbad\n' + '{"text": "some words of a document"}\n' * 200)
    ds = gm.PackedDataset(
        shard, tokenizer=encoder, sequence_length=32, batch_size=4, on_error="quarantine", quarantine_file=listed
    )
    with gm.global_batches(ds, sharding) as batches:
        expected = list(batches)
    listed.unlink()
    with gm.global_batches(ds, sharding) as batches:
        got = list(itertools.islice(batches, 2))
        state = batches.get_state()
        got += itertools.islice(batches, 2)
        lines = listed.read_bytes()
        listed.unlink()
        for _ in range(2):
            with pytest.raises(gm.GristmillError, match="the file was removed during the run"):
                batches.set_state(state)
        listed.write_bytes(lines)
        got += batches
    assert_same_batches(got, expected)


def test_quarantine_covers_delivered_batches_only(tmp_path, encoder, sharding, monkeypatch):
    """Not batches that were taken but not delivered yet; also after interrupts."""
    for number in range(4):
        lines = [b'{"text": "some words of a document"}\n' * 30, b"bad\n" * (number + 1)] * 3
        (tmp_path / f"{number}.jsonl").write_bytes(b"".join(lines))
    ds = gm.PackedDataset(
        tmp_path / "*.jsonl", tokenizer=encoder, sequence_length=32, batch_size=4, on_error="quarantine",
        max_error_rate=1.0,
    )  # fmt: skip
    plain, make, calls = iter(ds), jax.make_array_from_process_local_data, itertools.count()

    def interrupted(*arguments):
        if next(calls) % 4 == 3:
            raise KeyboardInterrupt
        return make(*arguments)

    monkeypatch.setattr(jax, "make_array_from_process_local_data", interrupted)
    with gm.global_batches(ds, sharding) as batches:
        start = batches.get_state()
        while True:
            try:
                next(batches)
            except KeyboardInterrupt:
                continue
            except StopIteration:
                break
            next(plain)
            assert batches.quarantine() == plain.quarantine()
        assert len(batches.quarantine()) == 30
        batches.set_state(start)
        assert batches.quarantine() == []


def interrupt_at(line):
    """Raises an interrupt before the n-th line of this package's iteration that runs from now on."""
    lines = itertools.count()

    def local(frame, event, argument):
        if event == "line" and next(lines) == line:
            raise KeyboardInterrupt
        return local

    files = (global_batches.__file__, agreement.__file__, stream.__file__)
    sys.settrace(lambda frame, event, argument: local if frame.f_code.co_filename in files else None)


@pytest.fixture
def no_garbage():
    """Keeps garbage of other tests, which may hold iterators, from being collected during this test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.usefixtures("no_garbage")
def test_interrupt_at_any_line_keeps_hosts_in_step(shard_folder, encoder, sharding, monkeypatch):
    # Always a batch ahead, however fast the threads are, so that lines run in the same order in all rounds.
    monkeypatch.setattr(global_batches.GlobalBatches, "_take_ready", global_batches.GlobalBatches._take)
    dataset = gm.PackedDataset(
        shard_folder / "0002" / "en_head.json.gz", tokenizer=encoder, text_field="raw_content", batch_size=2,
        sequence_length=32, threads=1,
    )  # fmt: skip
    expected = [batch["inputs"] for batch in dataset]
    assert 2 < len(expected) < 9
    votes, steps, ends = [], [], Counter()

    def vote(yes, position):
        votes.append(yes)
        return lambda: yes

    with gm.global_batches(dataset, sharding) as batches:
        start = batches.get_state()
        for line in itertools.count():
            batches._agreement = agreement.Agreement(steps.append, vote)
            batches.set_state(start)
            votes.clear()
            steps.clear()
            got, end = take_with_an_interrupt(batches, line)
            ends[end] += 1
            assert all(map(np.array_equal, got, expected))
            assert votes == [True] * len(expected) + [False] if end != "lost" else len(votes) <= len(got) + 1
            assert len(batches._agreement._by_step) <= 3
            assert steps == [0] if end != "lost" else len(steps) <= 1
            if end == "never interrupted":
                break
            assert end == "lost" or len(got) == len(expected), line
    # The step, a vote before the first batch, and one with each batch: an interrupt in these lines may lose the vote.
    assert 0 < ends["lost"] <= 4 + 2 * (len(expected) + 1)
    assert ends["continued"] > 20 * len(expected)


@pytest.mark.parametrize("error", [KeyboardInterrupt, gm.GristmillError])
def test_error_of_a_signal_handler_loses_no_batch(dataset, sharding, monkeypatch, error):
    # Always takes a batch ahead, however slow the threads are: each call then makes arrays.
    monkeypatch.setattr(global_batches.GlobalBatches, "_take_ready", global_batches.GlobalBatches._take)
    expected = [batch["inputs"] for batch in itertools.islice(dataset, 3)]
    make, heard = jax.make_array_from_process_local_data, []

    def handler(*_):
        heard.append(batches.get_state())
        raise error

    with gm.global_batches(dataset, sharding) as batches:
        got = []
        for _ in expected:
            before = batches.get_state()
            monkeypatch.setattr(jax, "make_array_from_process_local_data", handler)
            for _ in range(2):
                # If the batch was taken before, the interrupt hits the transfer of the next one.
                with pytest.raises(error):
                    next(batches)
                assert batches.get_state() == before == heard[-1]
            monkeypatch.setattr(jax, "make_array_from_process_local_data", make)
            got.append(next(batches)["inputs"])
    assert all(map(np.array_equal, got, expected))


@pytest.mark.slow
@pytest.mark.usefixtures("no_garbage")
def test_interrupted_rewind_loses_no_batch(dataset, sharding, monkeypatch):
    monkeypatch.setattr(global_batches.GlobalBatches, "_take_ready", global_batches.GlobalBatches._take)
    expected = [batch["inputs"] for batch in itertools.islice(dataset, 3)]
    with gm.global_batches(dataset, sharding) as batches:
        start = batches.get_state()
        for first, second in itertools.product(range(0, 60, 5), range(20)):
            batches.set_state(start)
            got, interrupts = [], iter([second, -1])
            interrupt_at(first)
            try:
                while len(got) < len(expected):
                    try:
                        got.append(next(batches)["inputs"])
                    except KeyboardInterrupt:
                        interrupt_at(next(interrupts))
            finally:
                sys.settrace(None)
            assert next(interrupts, None) is None
            assert all(map(np.array_equal, got, expected)), (first, second)


def take_with_an_interrupt(batches, line):
    """The batches delivered with an interrupt before a line, and how the stream ended."""
    got, end = [], "never interrupted"
    interrupt_at(line)
    try:
        while True:
            try:
                got.append(next(batches)["inputs"])
            except KeyboardInterrupt:
                end = "continued"
            except StopIteration:
                return got, end
            except gm.GristmillError:
                batches.set_state(batches.get_state())
                with pytest.raises(gm.GristmillError, match="was interrupted, or another one ended, during a vote"):
                    next(batches)
                return got, "lost"
    finally:
        sys.settrace(None)


def test_close_ends_threads_and_keeps_arrays(dataset, sharding, thread_count):
    iterator = gm.global_batches(dataset, sharding)
    next(iterator)  # JAX's own threads have started
    iterator.close()
    before = thread_count()
    batches = gm.global_batches(dataset, sharding)
    kept = next(batches)
    copied = {key: np.array(value) for key, value in kept.items()}
    batches.close()
    batches.close()
    assert thread_count() == before
    assert_same_batches([kept], [copied])
    with pytest.raises(ValueError, match="this iterator was closed"):
        next(batches)
    with pytest.raises(ValueError, match="this iterator was closed"):
        batches.set_state({})


def test_close_completes_although_on_stats_raises(shards, encoder, sharding):
    def broken(stats):
        raise RuntimeError("on_stats is broken")

    dataset = gm.PackedDataset(shards, tokenizer=encoder, text_field="raw_content", batch_size=8, on_stats=broken)
    batches = gm.global_batches(dataset, sharding)
    fill_ring(batches)
    next(batches)
    assert batches._ahead is not None
    with pytest.raises(RuntimeError, match="on_stats is broken"):
        batches.close()
    with pytest.raises(gm.ArgumentError, match="this iterator was closed"):
        next(batches)
    batches.close()


def test_global_batches_refuse_pickle_and_copy(dataset, sharding):
    with gm.global_batches(dataset, sharding) as batches:
        next(batches)
        for way in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(gm.ArgumentTypeError, match="save its get_state"):
                way(batches)
        gc.collect()  # half-made copies must not close the original
        next(batches)


def test_quarantine_without_any_batch_is_counted(tmp_path, encoder, sharding):
    (tmp_path / "0.gz").write_bytes(b"no gzip")
    (tmp_path / "1.jsonl").write_text('{"text": ""}\n')
    dataset = gm.PackedDataset(
        tmp_path / "*", tokenizer=encoder, batch_size=8, lanes=1, eos=False, on_error="quarantine", max_error_rate=1.0
    )
    plain = iter(dataset)
    assert list(plain) == []
    with gm.global_batches(dataset, sharding) as batches:
        for _ in range(2):
            assert list(batches) == []
            assert batches.get_state() == plain.get_state()
            assert batches.quarantine() == plain.quarantine()
            for name in ("documents", "quarantined", "lost_shards", "batches"):
                assert batches.stats()[name] == plain.stats()[name] == {"batches": 0}.get(name, 1)


def test_hosts_vote_only_where_they_can_differ():
    halves, replicas, both = {0: [0], 1: [1]}, {0: [0], 1: [0]}, {0: [0], 1: [0], 2: [1]}
    for lanes, ends, quarantines, expected in [
        (halves, True, False, (True, False)),
        (halves, False, True, (False, False)),
        (replicas, True, False, (False, False)),
        (replicas, False, True, (True, True)),
        (both, False, False, (False, False)),
        (both, True, True, (True, True)),
    ]:
        assert agreement.collectives_needed(lanes, ends=ends, quarantines=quarantines) == expected


def test_failed_construction_prints_one_error(dataset, mesh, capfd):
    """Grain closes a half-made iterator in `__del__`, which must not print a second error."""
    with pytest.raises(gm.ArgumentError):
        gm.global_batches(
            gm.PackedDataset(dataset.manifest, tokenizer=dataset.encoder), NamedSharding(mesh, PartitionSpec())
        )
    gc.collect()
    assert "ignored" not in capfd.readouterr().err


@pytest.fixture
def half_bad(tmp_path, encoder):
    """A function that makes a dataset of 63 records, 33 of which are quarantined."""
    lines = [json.dumps({"text": "word " * 40 if number % 2 == 0 else None}) + "\n" for number in range(60)]
    lines += ['{"text": 5}\n'] * 3
    (tmp_path / "s.jsonl").write_text("".join(lines))
    return functools.partial(
        gm.PackedDataset, tmp_path / "s.jsonl", tokenizer=encoder, sequence_length=16, batch_size=8, lanes=1,
        on_error="quarantine", max_error_rate=1,
    )  # fmt: skip


def test_quarantined_records_reported_with_batch(half_bad, sharding, monkeypatch, caplog):
    """The stream inside is a batch ahead: its counts and entries are not those of the delivered batches."""
    monkeypatch.setattr(global_batches.GlobalBatches, "_take_ready", global_batches.GlobalBatches._take)
    monkeypatch.setattr(report, "_REPORT_SECONDS", 0)
    reported = []
    with gm.global_batches(half_bad(on_stats=reported.append), sharding) as batches:
        start = batches.get_state()
        for _ in range(2):
            caplog.clear()
            for _ in batches:
                pass
            listed = [entry["record"] for entry in batches.quarantine()]
            assert reported[-1]["quarantined"] == batches.stats()["quarantined"] == len(listed) == 33
            position = 0
            for message in caplog.messages:
                assert f"record {listed[position]}, " in message
                position += int(message.split()[0])
            assert position == len(listed)
            assert len(caplog.messages) > 5
            batches.set_state(start)


def test_interrupt_loses_no_quarantine_report(half_bad, sharding, monkeypatch, caplog):
    with gm.global_batches(half_bad(), sharding) as batches:
        for _ in range(7):
            next(batches)
        before = batches.stats()["quarantined"]
        with monkeypatch.context() as patch:
            patch.setattr(batches, "_take_ready", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(batches)
        for _ in batches:
            pass
    assert [message.split()[:5] for message in caplog.messages] == [["33", "records", "were", "quarantined,", "33"]]
    assert before > 5
    caplog.clear()
    with gm.global_batches(half_bad(), sharding) as batches:
        for _ in range(7):
            next(batches)
        middle = batches.get_state()
    with gm.global_batches(half_bad(), sharding) as batches:
        caplog.clear()
        batches.set_state(middle)
        for _ in batches:
            pass
    assert [int(message.split()[0]) for message in caplog.messages] == [33 - before], (
        "reported by the iterator that saved the state"
    )


def _interrupted() -> None:
    raise KeyboardInterrupt


def test_on_stats_counts_delivered_batches(shards, encoder, sharding, monkeypatch):
    monkeypatch.setattr(global_batches.GlobalBatches, "_take_ready", global_batches.GlobalBatches._take)
    reported = []
    dataset = gm.PackedDataset(
        shards, tokenizer=encoder, text_field="raw_content", batch_size=8, on_stats=reported.append
    )  # fmt: skip
    with gm.global_batches(dataset, sharding) as batches:
        next(batches)
        batches._reporter.report(batches.stats, batches._stream)
        assert reported[-1]["batches"] == 1
        count = 1 + sum(1 for _ in batches)
        final = batches.stats()
    # Also at the end, which the stream inside reaches a batch earlier, and on close.
    assert [stats["batches"] for stats in reported] == [1, count, count]
    assert reported[-1]["padding_tokens"] == final["padding_tokens"]
