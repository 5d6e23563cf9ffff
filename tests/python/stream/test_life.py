"""Arguments, errors in shards, threads and signals over the life of an iterator."""

import copy
import gzip
import importlib.util
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import gristmill as gm
from gristmill import _core
from gristmill._dataset.packed import spec_of
from gristmill._util import grain_compat
from helpers import PATIENCE, ROOT, assert_same_batches, start_python, write_shard


def make(shards, encoder, **arguments):
    return gm.PackedDataset(shards, tokenizer=encoder, text_field="raw_content", **arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sequence_length": 0}, ValueError, "sequence_length=0: expected an integer from 1 to"),
        ({"sequence_length": "long"}, TypeError, "sequence_length='long': expected an integer"),
        ({"batch_size": -4}, ValueError, "batch_size=-4: expected"),
        (
            {"batch_size": 2**20, "sequence_length": 2**12},
            ValueError,
            "batch_size=1048576: .* more than 2147483648 elements",
        ),
        ({"quarantine_file": "/tmp", "on_error": "quarantine"}, ValueError, "'/tmp': expected a file, found a folder"),
        ({"batch_size": 0}, ValueError, "batch_size=0: expected an integer from 1 to 1048576, or None"),
        ({"threads": "2"}, TypeError, "threads='2': expected an integer from 1 to 1024, or None, got str"),
        ({"lanes": 9}, ValueError, "lanes=9: expected at most 8, the number of shards.*1, 2, 3, 4, 5, 6, 7, 8"),
        ({"lanes": 3, "batch_size": 8}, ValueError, "lanes=3.*divide batch_size=8.*1, 2, 4, 8"),
        ({"lanes": 4, "shard_count": 3}, ValueError, "shard_count=3.*divide lanes=4.*1, 2, 4"),
        ({"shard_index": 2, "shard_count": 2}, ValueError, "shard_index=2: expected an integer from 0 to 1"),
        ({"packing": "tetris"}, ValueError, "packing='tetris': expected one of 'concat'"),
        ({"epochs": 0}, ValueError, "epochs=0: expected"),
        ({"threads": 0}, ValueError, "threads=0: expected"),
        ({"prefetch": 0}, ValueError, "prefetch=0: expected"),
        ({"seed": True}, TypeError, "seed=True: expected an integer"),
        ({"boundary_targets": 1}, TypeError, "boundary_targets=1: expected True or False"),
        ({"on_error": "ignore"}, ValueError, "on_error='ignore': expected one of 'raise', 'quarantine'"),
        ({"max_error_rate": 2}, ValueError, "max_error_rate=2: expected a number from 0 to 1"),
        ({"text_field": ""}, ValueError, "text_field='': expected a non-empty string"),
        ({"eos": "<nope>"}, ValueError, "eos='<nope>': the vocabulary has no such token.*'<s>', '</s>'"),
        ({"eos": 10**6}, ValueError, "eos=1000000: the vocabulary has no such id"),
        ({"eos": "none"}, ValueError, "eos='none': expected a token, .* False for none; a token of this spelling by"),
        ({"bos": "True"}, ValueError, "bos='True': expected a token, an id, True for"),
        (
            {"eos": 1.5},
            TypeError,
            "eos=1.5: expected a token, an id, True or None for the tokenizer's own, or False for none",
        ),
        *(
            ({"bos": bos}, TypeError, f"bos={bos}: expected a token, an id, True for .* or False for none")
            for bos in (1.5, None)
        ),
        ({"lanes": 0}, ValueError, "lanes=0: expected an integer from 1 to 4294967296, or None"),
        ({"tokenizer": 5}, TypeError, "tokenizer=5: expected the path"),
        ({"tokenizer": "/nowhere/tokenizer.json"}, ValueError, "cannot read the tokenizer '/nowhere/tokenizer.json'"),
        (
            {"tokenizer": "org/Model-3.1-8B"},
            FileNotFoundError,
            r"'org/Model-3.1-8B': .*\(working folder: '.+'\); for a model on the Hugging Face hub: "
            r"gm\.Encoder\.from_pretrained\('org/Model-3.1-8B'\)$",
        ),
    ],
)
def test_wrong_arguments_raise_one_sentence(shards, encoder, arguments, error, message):
    with pytest.raises(error, match=message) as caught:
        gm.PackedDataset(shards, **{"tokenizer": encoder, **arguments})
    assert isinstance(caught.value, gm.GristmillError)
    assert "\n" not in str(caught.value)


def test_tokenizer_without_named_eos_asks_for_eos(shards, tokenizer_json):
    encoder = gm.Encoder.from_bytes(tokenizer_json)
    with pytest.raises(gm.ArgumentError, match=r"eos=None: no file .* eos=False for none\. .*'</s>'"):
        make(shards, encoder)
    make(shards, encoder, eos="</s>")
    make(shards, encoder, eos=encoder.token_to_id("</s>"))
    make(shards, encoder, eos=False)


def test_numpy_booleans_are_accepted(shards, encoder):
    plain = make(shards, encoder, eos=False, bos=True, provenance=True)
    numpys = make(shards, encoder, eos=np.False_, bos=np.True_, provenance=np.True_)
    assert numpys.fingerprint == plain.fingerprint
    assert_same_batches(numpys, plain)


def record(text):
    return json.dumps({"raw_content": text}).encode() + b"\n"


GOOD = [record(f"document number {i} " * 20) for i in range(50)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"raw_content": "x"\n', "expected ',' or '}'"),
        (b'{"text": "x"}\n', "raw_content"),
        (b'{"raw_content": 5}\n', "string"),
        (b'{"raw_content": "\xff"}\n', "UTF-8"),
        (b'{"raw_content": "\\ud800"}\n', "surrogate"),
        (b'{"raw_content": "' + b"x" * 5000 + b'"}\n', "max_document_bytes"),
    ],
)
def test_bad_record_is_raised_after_all_earlier_rows(tmp_path, encoder, bad, reason):
    shard = tmp_path / "a.jsonl"
    shard.write_bytes(b"".join([*GOOD, b"\n", bad, *GOOD]))
    iterator = iter(make(shard, encoder, sequence_length=64, max_document_bytes=4096))
    tokens, states = [], []
    with pytest.raises(gm.ShardError, match=reason) as caught:  # noqa: PT012
        for row in iterator:
            tokens.append(row["inputs"])
            states.append(iterator.get_state())
    error = caught.value
    assert (error.shard, error.record) == (str(shard), 51)
    assert error.byte == sum(map(len, GOOD)) + 1
    expected = np.concatenate(
        [np.append(encoder.encode(json.loads(line)["raw_content"]), encoder.eos_id) for line in GOOD]
    )
    got = np.concatenate(tokens)
    assert len(expected) - 64 < len(got) <= len(expected)
    np.testing.assert_array_equal(got, expected[: len(got)])
    # The same error again, at the same state, also after a restore.
    for _ in range(2):
        with pytest.raises(gm.ShardError) as again:
            next(iterator)
        assert str(again.value) == str(error)
    assert iterator.get_state() == states[-1]
    iterator.set_state(states[-1])
    with pytest.raises(gm.ShardError) as again:
        next(iterator)
    assert str(again.value) == str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_truncated_gzip_is_an_error(tmp_path, encoder, keep):
    shard = tmp_path / "a.json.gz"
    whole = gzip.compress(b"".join(GOOD))
    shard.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(gm.ShardError, match=r"a\.json\.gz: record \d+, byte \d+"):
        list(make(shard, encoder, sequence_length=64))


def test_quarantine_skips_lists_and_counts_bad_records(tmp_path, encoder):
    lines = [*GOOD]
    lines[7:7] = [b"not json\n"]
    lines[30:30] = [b'{"raw_content": null}\n']
    shard = tmp_path / "a.jsonl"
    shard.write_bytes(b"".join(lines))
    ds = make(shard, encoder, sequence_length=64, on_error="quarantine", max_error_rate=0.5)
    iterator = iter(ds)
    rows = list(iterator)
    clean = tmp_path / "clean.jsonl"
    clean.write_bytes(b"".join(GOOD))
    expected = list(make(clean, encoder, sequence_length=64))
    assert_same_batches(rows, expected)
    stats = iterator.stats()
    assert (stats["documents"], stats["quarantined"]) == (50, 2)
    entries = iterator.quarantine()
    assert [entry["record"] for entry in entries] == [7, 30]
    assert entries[0]["byte"] == sum(map(len, lines[:7]))
    assert all(entry["shard"] == str(shard) and entry["reason"] for entry in entries)


def test_too_many_bad_records_end_the_run(tmp_path, encoder):
    shard = tmp_path / "a.jsonl"
    shard.write_bytes(b"".join([*GOOD, *GOOD, b"bad\n", b"bad\n", *GOOD]))
    with pytest.raises(gm.ShardError, match=r"max_error_rate=0\.01"):
        list(make(shard, encoder, sequence_length=64, on_error="quarantine"))


def test_rate_error_names_the_last_record_not_a_lost_shard(tmp_path, encoder):
    whole = gzip.compress(b"".join([b'{"raw_content": null}\n', b'{"raw_content": 5}\n', *GOOD]))
    (tmp_path / "s.jsonl.gz").write_bytes(whole[:-20])
    dataset = make(tmp_path / "s.jsonl.gz", encoder, sequence_length=64, on_error="quarantine", max_error_rate=0.01)
    with pytest.raises(gm.ShardError, match=r"2 of the .*; the last one: .* found a number") as caught:
        list(dataset)
    assert caught.value.record == 1


def test_endless_lane_without_documents_is_an_error(tmp_path, encoder):
    write_shard(tmp_path / "empty.jsonl", [])
    assert list(make(tmp_path / "empty.jsonl", encoder)) == []
    with pytest.raises(
        gm.ArgumentError,
        match=r"no valid document with a token in its 1 shard of epoch 0 \(.*\): .* forever\. Remove these shards$",
    ):
        next(iter(make(tmp_path / "empty.jsonl", encoder, epochs=None)))
    (tmp_path / "other.jsonl").write_bytes(b'{"other": "field"}\n' * 3)
    lenient = make(tmp_path / "other.jsonl", encoder, epochs=None, on_error="quarantine", max_error_rate=1.0)
    quarantined = r"forever; 3 records quarantined, the last one: .*other\.jsonl: record 2, byte 38: .*raw_content"
    with pytest.raises(gm.ArgumentError, match=quarantined):
        next(iter(lenient))


def test_shards_must_exist_and_keep_their_size(tmp_path, encoder):
    with pytest.raises(FileNotFoundError, match=r"no file matches the glob .*nothing\*"):
        make(tmp_path / "nothing*", encoder)
    with pytest.raises(gm.MissingShardError, match="is a folder"):
        make(tmp_path, encoder)
    shard = tmp_path / "a.jsonl"
    shard.write_bytes(b"".join(GOOD))
    ds = make(shard, encoder)
    shard.write_bytes(b"".join(GOOD[:-1]))
    with pytest.raises(gm.ShardError, match="bytes"):
        list(ds)
    shard.unlink()
    with pytest.raises(gm.ShardError, match=r"a\.jsonl"):
        list(ds)


def test_threads_end_with_the_iterator(tmp_path, shards, encoder, thread_count):
    bad = tmp_path / "a.jsonl"
    bad.write_bytes(b"".join([*GOOD, b"bad\n", *GOOD]))
    before = thread_count()
    for end in ("close", "drop", "exhaust", "fail"):
        iterator = iter(make(bad if end == "fail" else shards, encoder, sequence_length=64, threads=3))
        next(iterator)
        assert thread_count() == before + 3
        if end == "close":
            iterator.close()
        elif end == "exhaust":
            for _ in iterator:
                pass
        elif end == "fail":
            with pytest.raises(gm.ShardError):
                list(iterator)
        del iterator
        assert thread_count() == before, end


def test_iterator_is_a_context_manager(shards, encoder, thread_count):
    before = thread_count()
    with iter(make(shards, encoder, threads=3)) as iterator:
        next(iterator)
        assert thread_count() == before + 3
    with pytest.raises(gm.ArgumentError, match="closed"):
        next(iterator)
    with pytest.raises(StopIteration), iter(make(shards, encoder, threads=3)) as iterator:
        next(itertools.islice(iterator, 10**6, None))
    with pytest.raises(gm.ArgumentError, match="closed"):
        next(iterator)
    assert thread_count() == before


def test_threads_end_although_on_stats_raises(shards, encoder, thread_count):
    def fails(stats):
        raise RuntimeError("mine")

    before = thread_count()
    iterator = iter(make(shards, encoder, threads=3, on_stats=fails))
    next(iterator)
    with pytest.raises(RuntimeError, match="mine"):
        iterator.close()
    assert thread_count() == before


def test_delivered_arrays_are_never_written_again(shards, encoder):
    kept, copies = [], []
    for batch in make(shards, encoder, sequence_length=128, batch_size=8, prefetch=2):
        kept.append(batch)
        copies.append({key: value.copy() for key, value in batch.items()})
    assert len(kept) > 8
    for number, (batch, copied) in enumerate(zip(kept, copies, strict=True)):
        for key in batch:
            np.testing.assert_array_equal(batch[key], copied[key])
            assert not any(np.shares_memory(batch[key], other[key]) for other in kept[:number])
            assert batch[key].dtype == np.int32
            assert batch[key].ctypes.data % 64 == 0
            assert not batch[key].flags.owndata


WAITING = """
    import os, signal, sys, gristmill as gm
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a handler"))
    ds = gm.PackedDataset({shards!r}, tokenizer={tokenizer!r}, text_field="raw_content", threads=1)
    iterator = iter(ds)
    print("waiting", flush=True)
    {then}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "ended by a handler")]
)
def test_signals_are_handled_while_next_waits(blank_shard, tokenizer_file, number, expected):
    process = start_python(WAITING.format(shards=blank_shard, tokenizer=str(tokenizer_file), then="next(iterator)"))
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.5)
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert expected in errors


def test_close_from_another_thread_ends_next(blank_shard, encoder, thread_count):
    iterator = iter(make(blank_shard, encoder, threads=1))
    outcome = []

    def consume():
        try:
            next(iterator)
        except gm.GristmillError as error:
            outcome.append(error)

    before = thread_count()
    thread = threading.Thread(target=consume)
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while thread_count() < before + 2 and time.monotonic() < deadline:  # the consumer and a worker
        time.sleep(0.01)
    assert thread_count() == before + 2
    iterator.close()
    thread.join(timeout=PATIENCE)
    assert not thread.is_alive()
    assert "closed" in str(outcome[0])


@pytest.mark.slow
def test_batch_too_large_for_memory_is_an_error(shards, tokenizer_file):
    code = """
    import resource, gristmill as gm
    ds = gm.PackedDataset({shards!r}, tokenizer={tokenizer!r}, text_field="raw_content", batch_size=2**18,
                          sequence_length=2**10)
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    try:
        next(iter(ds))
    except gm.GristmillError as error:
        print(error)
    """
    process = start_python(code.format(shards=shards, tokenizer=str(tokenizer_file)))
    out, errors = process.communicate(timeout=PATIENCE)
    assert "not enough memory for a batch of 262144 rows, which takes 6442.5 MB: lower batch_size=" in out, errors


def test_shard_replaced_by_a_pipe_is_an_error(tmp_path, encoder):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "some words"}\n' * 1000)
    iterator = iter(gm.PackedDataset(path, tokenizer=encoder, sequence_length=64, epochs=None))
    next(iterator)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pipe").replace(path)
    with pytest.raises(gm.ShardError, match="expected a regular file, found a directory, a pipe or a device"):
        for _ in iterator:
            pass
    iterator.close()


def test_on_stats_may_close_the_iterator(shards, encoder):
    iterators = []
    called = []

    def on_stats(stats):
        called.append(stats)
        iterators[0].close()

    iterators.append(iter(make(shards, encoder, on_stats=on_stats)))
    next(iterators[0])
    iterators[0].close()
    assert len(called) == 1


def test_iterator_refuses_pickle_and_copy(shards, encoder):
    iterator = iter(make(shards, encoder))
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(gm.ArgumentTypeError, match="save its get_state"):
            way(iterator)


def test_panic_raises_the_same_error_again(shards, encoder):
    spec = spec_of(make(shards, encoder)).with_running(prefetch=0)  # a dataset refuses this value
    pipeline = _core.Pipeline(encoder._core, spec, [])
    for _ in range(2):
        with pytest.raises(gm.GristmillError, match="this is a bug in gristmill, please report it: assertion failed"):
            pipeline.take()
    pipeline.close()


def test_worker_panic_names_the_lane_and_ends_threads(shards, encoder, thread_count):
    before = thread_count()
    spec = spec_of(make(shards, encoder, threads=2, lanes=2)).with_running(own_lanes=[7])
    pipeline = _core.Pipeline(encoder._core, spec, [])
    for _ in range(2):
        with pytest.raises(gm.GristmillError, match=r"this is a bug in gristmill.*\(lane 7, read up to"):
            pipeline.take()
    assert thread_count() == before


def test_closed_core_pipeline_stays_closed(shards, encoder):
    spec = spec_of(make(shards, encoder))
    pipeline = _core.Pipeline(encoder._core, spec, [])
    step, row, lanes = pipeline.state()
    cursors = list(lanes.values())
    pipeline.take()
    pipeline.close()
    pipeline.interrupted = 0  # so that the next call takes the element back
    assert pipeline.begin() == 1
    for call in (pipeline.take, lambda: pipeline.restore(step, row, cursors, [])):
        with pytest.raises(gm.ArgumentError, match="closed"):
            call()


@pytest.mark.slow
def test_interpreter_exits_with_a_live_iterator(blank_shard, tokenizer_file):
    process = start_python(
        WAITING.format(shards=blank_shard, tokenizer=str(tokenizer_file), then="iterator.start_prefetch()")
    )
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors


@pytest.mark.slow
def test_interpreter_exits_while_daemon_threads_encode(tokenizer_file):
    process = start_python((ROOT / "tests/support/exit_program.py").read_text(), arguments=[tokenizer_file])
    output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output, errors) == (0, "ends\n", "")


@pytest.mark.slow
def test_import_loads_neither_grain_nor_jax():
    code = """
    import sys, gristmill
    assert gristmill.Encoder and gristmill.Manifest and gristmill.__version__
    assert gristmill.PackedDataset and gristmill.PromptDataset
    loaded = {"grain", "jax", "orbax", "datasets", "tokenizers", "huggingface_hub"} & set(sys.modules)
    assert not loaded, loaded
    """
    process = start_python(code)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors


def test_stats_account_for_every_document(shards, encoder, texts):
    iterator = iter(make(shards, encoder, sequence_length=100, batch_size=8))
    rows = sum(len(batch["inputs"]) for batch in iterator)
    stats = iterator.stats()
    used = texts[:340]
    assert stats["documents"] == len(used)
    assert stats["text_bytes"] == sum(len(text.encode()) for text in used)
    assert stats["tokens"] == sum(len(encoder.encode(text)) + 1 for text in used)
    assert stats["rows"] == rows
    assert stats["tokens"] + stats["padding_tokens"] == rows * 100
    assert stats["batches"] == rows // 8
    assert stats["quarantined"] == stats["dropped_tokens"] == 0
    assert set(stats["busy_seconds"]) == {"read", "encode", "pack"}
    assert stats["elapsed_seconds"] >= stats["wait_seconds"] > 0


def test_elapsed_time_starts_at_the_first_next(shards, encoder):
    iterator = iter(make(shards, encoder))
    iterator.start_prefetch()
    assert iterator.stats()["elapsed_seconds"] == iterator.stats()["wait_seconds"] == 0


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.2, 40, 100), (1.0, 340, 340)])
def test_verify_compares_a_share_and_keeps_the_stream(shards, encoder, share, least, most):
    dataset = make(shards, encoder, sequence_length=256, verify=share)
    plain = make(shards, encoder, sequence_length=256)
    assert dataset.fingerprint == plain.fingerprint
    iterator = iter(dataset)
    assert iterator.stats()["verified"] == 0
    assert_same_batches(iterator, plain)
    stats = iterator.stats()
    assert stats["documents"] == 340
    assert least <= stats["verified"] <= most
    # Like `busy_seconds`, the count is of this iterator's work, and not part of a state.
    again = iter(dataset)
    again.set_state(iterator.get_state())
    assert again.stats()["verified"] == 0


def test_verify_does_nothing_on_the_reference_engine(shards, tokenizer_json):
    encoder = gm.Encoder.from_bytes(tokenizer_json, engine="reference")
    iterator = iter(make(shards, encoder, eos="</s>", verify=1.0))
    next(iterator)
    assert iterator.stats()["documents"] > 0
    assert iterator.stats()["verified"] == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, gm.GristmillError, StopIteration])
def test_interrupt_inside_next_loses_no_element(shards, encoder, monkeypatch, error):
    """Also if the signal handler calls the iterator before it raises."""
    grain_compat.load()  # whose statistics are called inside `next`
    expected = [element["inputs"].tolist() for element in itertools.islice(make(shards, encoder, batch_size=4), 3)]
    iterator = iter(make(shards, encoder, batch_size=4))
    got = [next(iterator)["inputs"].tolist()]

    def snapshot():
        return iterator.get_state(), iterator.stats()["documents"], iterator.quarantine()

    before, heard = snapshot(), []

    def handler(*_):
        heard.append(snapshot())
        raise error

    # The handler runs after the core returned the element, and before `next` asks the core for one.
    for method in "record_output_spec", "record_self_time":
        with monkeypatch.context() as patch:
            patch.setattr(iterator._stats, method, handler)
            for _ in range(2):
                with pytest.raises(error):
                    next(iterator)
                assert snapshot() == before
    assert heard == [before] * 4
    rest = threading.Thread(target=lambda: got.extend(next(iterator)["inputs"].tolist() for _ in range(2)))
    rest.start()
    rest.join(PATIENCE)
    assert got == expected
    assert iterator.get_state()["step"] == 3


def test_two_threads_share_an_iterator(shards, encoder):
    """An element that one thread has not returned yet is not taken for an interrupted call of the other."""
    dataset = make(shards, encoder, batch_size=4, epochs=20)
    expected = sum(1 for _ in dataset)
    iterator, counts = iter(dataset), [0, 0]

    def consume(index):
        for _ in iterator:
            counts[index] += 1

    threads = [threading.Thread(target=consume, args=(index,)) for index in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    finally:
        sys.setswitchinterval(interval)
    assert sum(counts) == expected


def test_dir_lists_only_names_that_can_be_imported(monkeypatch):
    """`help` and others get every listed name, and expect it to exist."""
    assert {"CheckpointSave", "global_batches", "PackedDataset"} <= set(dir(gm))
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == "orbax" else find(name, *more))
    assert "CheckpointSave" not in dir(gm)
    assert {"global_batches", "PackedDataset"} <= set(dir(gm))


@pytest.mark.slow
def test_star_import_works_without_the_extras():
    code = """
import sys
sys.modules.update(jax=None, orbax=None)
from gristmill import *
print(Encoder, PackedDataset, "global_batches" in globals())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""  # without Grain's warning that there is no profiler
    assert (
        done.stdout
        == "<class 'gristmill._tokenizer.encoder.Encoder'> <class 'gristmill._dataset.packed.PackedDataset'> False\n"
    )


@pytest.mark.slow
def test_broken_numpy_is_an_import_error(tmp_path):
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy/__init__.py").write_text("raise ImportError('a library is missing')")
    code = """
    import sys
    sys.path.insert(0, {folder!r})
    try:
        import gristmill
    except ImportError as error:
        print(error)
    """
    out, errors = start_python(code.format(folder=str(tmp_path))).communicate(timeout=PATIENCE)
    assert out == "a library is missing\n", out + errors


@pytest.mark.slow
def test_shard_names_do_not_depend_on_the_locale(tmp_path, tokenizer_file):
    """Python decodes names by the locale, the core as UTF-8."""
    folder = tmp_path / "dätä"
    write_shard(folder / "ü.json.gz", ["some words"])
    code = """
    import os, gristmill as gm
    folder = os.fsdecode({folder!r})
    ds = gm.PackedDataset(folder + "/*.gz", tokenizer={tokenizer!r}, text_field="raw_content", sequence_length=16)
    assert sum(1 for _ in ds) == 1
    print("done")
    """
    code = code.format(folder=os.fsencode(folder), tokenizer=str(tokenizer_file))
    process = start_python(code, env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    out, errors = process.communicate(timeout=PATIENCE)
    assert out == "done\n", errors
