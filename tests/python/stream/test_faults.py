"""Faults while running: killed processes, forks, failing disks, changing shards, arrays dropped at any time.

`GRISTMILL_KILLS` sets how often the run of the first test is killed.
"""

import gzip
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import gristmill as gm
from helpers import PATIENCE, take_padding

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("GRISTMILL_KILLS", "6"))


def run(code, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True, text=True, timeout=PATIENCE + 3 * KILLS, check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
    )  # fmt: skip


def test_rows_of_lanes_before_a_failed_one_are_delivered(tmp_path, encoder):
    (tmp_path / "0.jsonl").write_text(json.dumps({"text": "words " * 99}))
    (tmp_path / "1.jsonl").write_text("not JSON")
    dataset = gm.PackedDataset(
        [str(tmp_path / f"{number}.jsonl") for number in range(2)],
        tokenizer=encoder, sequence_length=16, lanes=2, eos=False,
    )  # fmt: skip
    # Single rows, lane after lane: the first row does not need the second shard.
    iterator = iter(dataset)
    assert next(iterator)["inputs_segmentation"].all()
    state = iterator.get_state()
    for _ in range(2):
        with pytest.raises(gm.ShardError, match=r"1\.jsonl: record 0, byte 0"):
            next(iterator)
    assert iterator.get_state() == state


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_row_whose_target_is_after_an_error_waits_for_it(tmp_path, encoder, packing, seed):
    """The row ends with its document; its last target is the first token of the next one, which cannot be read yet."""
    documents = ["one and two", "three or four", "five or six"]
    paths = [tmp_path / f"{number}.jsonl" for number in range(3)]
    for path, text in zip(paths, documents, strict=True):
        path.write_text(json.dumps({"text": text}) + "\n")
    lengths = {len(encoder.encode(text)) + 1 for text in documents}
    options = {"packing": packing, "seed": seed, "shuffle_window": 1, "fit_window": 1, "batch_size": 1, "lanes": 1}
    for length, is_away in itertools.product([*lengths, 5, 64], paths):
        dataset = gm.PackedDataset(
            paths, tokenizer=encoder, sequence_length=length, boundary_targets=True, **options
        )  # fmt: skip
        expected = [batch["targets"].tolist() for batch in dataset]
        is_away.rename(tmp_path / "away")
        iterator, got = iter(dataset), []
        with pytest.raises(gm.ShardError):
            got.extend(batch["targets"].tolist() for batch in iterator)
        state = iterator.get_state()
        iterator.close()
        (tmp_path / "away").rename(is_away)
        iterator = iter(dataset)
        iterator.set_state(state)
        assert got + [batch["targets"].tolist() for batch in iterator] == expected, (length, is_away)


def test_padding_batches_share_no_memory(shards, encoder):
    iterator = iter(gm.PackedDataset(shards, tokenizer=encoder, text_field="raw_content", batch_size=8))
    assert sum(1 for _ in iterator)
    padding = take_padding(iterator)
    assert not padding["inputs_segmentation"].any()
    padding["inputs_segmentation"][:] = 1
    assert not take_padding(iterator)["inputs_segmentation"].any()


@pytest.fixture
def folder(tmp_path, texts):
    """Six gzipped shards, each with a bad line, one of them truncated."""
    for number in range(6):
        lines = [json.dumps({"text": text[:2000]}) for text in texts[number * 90 : number * 90 + 90]]
        lines[40:40] = ["not JSON"]
        data = gzip.compress("\n".join(lines).encode(), mtime=0)
        (tmp_path / f"{number}.jsonl.gz").write_bytes(data[:-1000] if number == 4 else data)
    return tmp_path


# Runs the stream in forked children, which are killed at random moments; each resumes from the last saved state.
KILLED = """
    import json, os, random, signal, sys, time, warnings, zlib
    import gristmill as gm
    warnings.simplefilter("ignore")
    folder, tokenizer, kills, name = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    os.chdir(folder)
    rng = random.Random(kills)
    dataset = gm.PackedDataset("*.jsonl.gz", tokenizer=tokenizer, sequence_length=64, batch_size=4, lanes=2, epochs=3,
                               seed=1, shuffle_window=16, prefetch=2, on_error="quarantine", max_error_rate=0.5,
                               quarantine_file=name + ".quarantine.jsonl")

    def consume():
        iterator = iter(dataset)
        if os.path.exists(name + ".state"):
            iterator.set_state(json.load(open(name + ".state")))
        log = open(name + ".log", "a")
        for batch in iterator:
            state = iterator.get_state()
            digest = zlib.crc32(b"".join(batch[key].tobytes() for key in sorted(batch)))
            print(state["step"], digest, file=log, flush=True)
            if state["step"] % 5 == 0:
                with open(name + ".next", "w") as file:
                    json.dump(state, file)
                os.replace(name + ".next", name + ".state")
            if kills:
                time.sleep(0.002)
        stats = iterator.stats()
        counts = [stats[key] for key in ("documents", "tokens", "quarantined", "lost_shards")]
        print("end", json.dumps(counts), file=log, flush=True)

    def logged():
        return os.path.getsize(name + ".log") if os.path.exists(name + ".log") else 0

    killed = 0
    while True:
        before, child = logged(), os.fork()
        if child == 0:
            consume()
            os._exit(0)
        if killed < kills:
            # Every other child is killed as soon as it has yielded a batch, however slow the machine is.
            until = time.monotonic() + (30 if killed % 2 else rng.uniform(0, 0.25))
            while time.monotonic() < until and not (killed % 2 and logged() > before):
                time.sleep(0.001)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            if os.waitstatus_to_exitcode(status) or killed >= kills:
                sys.exit(os.waitstatus_to_exitcode(status))
            os.remove(name + ".state")  # the stream ended: start over
        killed += 1
"""


@pytest.mark.timeout(3 * PATIENCE + 6 * KILLS)
def test_stream_is_unchanged_by_kills(folder, tokenizer_file):
    for kills, name in ((0, "whole"), (KILLS, "killed")):
        done = run(KILLED, folder, tokenizer_file, kills, name)
        assert done.returncode == 0, done.stderr
    expected = dict(line.split(" ", 1) for line in (folder / "whole.log").read_text().splitlines())
    lines = (folder / "killed.log").read_text().splitlines()
    for line in lines:
        step, digest = line.split(" ", 1)
        assert expected[step] == digest, f"step {step}"
    assert {line.split(" ", 1)[0] for line in lines} == set(expected)
    assert len(lines) > len(expected), "no step was yielded twice: nothing was killed"
    listed = [sorted(whole_lines(folder / f"{name}.quarantine.jsonl")) for name in ("whole", "killed")]
    assert listed[0] == listed[1]
    assert len(listed[0]) == 3 * 7


def whole_lines(path: Path) -> list[str]:
    """The lines of a quarantine file without those that a kill truncated."""

    def is_whole(line: str) -> bool:
        try:
            return isinstance(json.loads(line), dict)
        except ValueError:
            return False

    return [line for line in path.read_text().splitlines() if is_whole(line)]


FORKED = """
    import gc, json, os, sys, threading, time, warnings
    import gristmill as gm
    warnings.simplefilter("ignore")
    dataset = gm.PackedDataset(sys.argv[1] + "/[0-3].jsonl.gz", tokenizer=sys.argv[2], sequence_length=64, batch_size=4,
                               on_error="quarantine", max_error_rate=1.0, epochs=None, seed=1, provenance=True)
    iterator = iter(dataset)
    kept = [next(iterator) for _ in range(3)]
    for what in ("exit", "close", "look", "drop", "restore"):
        child = os.fork()
        if child == 0:
            if what == "close":
                iterator.close()
            elif what == "look":
                iterator.get_state(), iterator.stats(), iterator.quarantine()
                try:
                    next(iterator)
                except gm.GristmillError as error:
                    assert "after the fork" in str(error)
                else:
                    os._exit(3)
            elif what == "drop":
                del iterator, kept
                gc.collect()
            elif what == "restore":
                state = iterator.get_state()
                try:
                    iterator.set_state(state)
                except gm.GristmillError as error:
                    assert "after the fork" in str(error)
                else:
                    os._exit(3)
                mine = iter(dataset)
                mine.set_state(state)
                assert next(mine)["inputs"].any()
            sys.exit(0)  # not os._exit: the interpreter must shut down with all objects alive
        _, status = os.waitpid(child, 0)
        assert status == 0, (what, status)
        next(iterator)
    print("fine")
"""


def test_forked_child_ends_and_parent_continues(folder, tokenizer_file):
    done = run(FORKED, folder, tokenizer_file)
    assert done.stdout == "fine\n", done.stderr


ENDING = """
    import os, signal, sys, threading, time
    import gristmill as gm
    dataset = gm.PackedDataset(sys.argv[1] + "/[0-3].jsonl.gz", tokenizer=sys.argv[2], sequence_length=64, batch_size=4,
                               on_error="quarantine", max_error_rate=1.0, epochs=None,
                               quarantine_file=sys.argv[1] + "/q.jsonl")
    iterator = iter(dataset)
    kept = [next(iterator) for _ in range(3)]
    how = sys.argv[3]
    if how in ("SIGINT", "SIGTERM"):
        threading.Timer(0.2, os.kill, (os.getpid(), getattr(signal, how))).start()
        for batch in iterator:
            pass
    elif how == "thread":
        def consume():
            for batch in iterator:
                pass
        threading.Thread(target=consume, daemon=True).start()
        time.sleep(0.2)
    elif how == "cycle":
        class Holder: pass
        holder = Holder()
        holder.self, holder.iterator, holder.kept = holder, iterator, kept
        del iterator, kept
    elif how == "error":
        raise RuntimeError("the training step failed")
"""


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ("SIGINT", -signal.SIGINT, "KeyboardInterrupt"),
        ("SIGTERM", -signal.SIGTERM, ""),
        ("thread", 0, ""),
        ("cycle", 0, ""),
        ("error", 1, "the training step failed"),
    ],
)
def test_process_can_end_in_mid_stream(folder, tokenizer_file, how, status, words):
    done = run(ENDING, folder, tokenizer_file, how)
    assert done.returncode == status, done.stderr
    assert words in done.stderr
    assert bool(done.stderr) == bool(words)
    assert len((folder / "q.jsonl").read_text().splitlines()) - len(whole_lines(folder / "q.jsonl")) <= 1


def test_arrays_may_be_dropped_any_time_by_other_threads(shards, encoder):
    dataset = gm.PackedDataset(
        shards, tokenizer=encoder, text_field="raw_content", sequence_length=64, batch_size=8, prefetch=2, epochs=2
    )
    expected = [batch["inputs"].copy() for batch in dataset]
    rng, lock, held, wrong = random.Random(1), threading.Lock(), [], []
    done = threading.Event()

    def drop():
        while not done.is_set() or held:
            with lock:
                step, array = held.pop(rng.randrange(len(held))) if held else (0, expected[0])
            if not np.array_equal(array, expected[step]):
                wrong.append(step)
            del array

    droppers = [threading.Thread(target=drop) for _ in range(3)]
    for thread in droppers:
        thread.start()
    iterator = iter(dataset)
    for step, batch in enumerate(iterator):
        with lock:
            held.append((step, batch["inputs"]))
        if rng.random() < 0.3:
            time.sleep(0.001)
    del iterator
    done.set()
    for thread in droppers:
        thread.join(timeout=PATIENCE)
    assert not wrong
    assert not held


def big_shard(path, documents=40_000):
    """Random text that does not compress: more than all buffers hold."""
    rng = random.Random(5)
    lines = (json.dumps({"text": f"{i} {rng.randbytes(60).hex()}"}) for i in range(documents))
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("a.jsonl", "shrink", "its size changed from .* while it was read"),
        ("a.jsonl", "grow", "its size changed from .* while it was read"),
        ("a.jsonl", "touch", None),
        ("a.jsonl.gz", "touch", None),
        ("a.jsonl", "vanish", None),
        ("a.jsonl", "replace", None),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "quarantine"])
def test_shard_that_changes_while_it_is_read(tmp_path, encoder, name, change, words, on_error):
    shard = tmp_path / name
    big_shard(shard)
    dataset = gm.PackedDataset(shard, tokenizer=encoder, on_error=on_error, prefetch=1, threads=1)
    whole = [element["inputs"].copy() for element in dataset]
    iterator = iter(dataset)
    rows = [next(iterator)["inputs"].copy()]
    if change == "shrink":
        os.truncate(shard, shard.stat().st_size // 2)
    elif change == "grow":
        with shard.open("a") as file:
            file.write('{"text": "late"}\n')
    elif change == "touch":
        os.utime(shard)
    elif change == "vanish":
        shard.unlink()
    elif change == "replace":
        other = tmp_path / "b.jsonl"
        big_shard(other, 10)
        other.replace(shard)
    try:
        rows.extend(element["inputs"].copy() for element in iterator)
    except gm.ShardError as error:
        assert on_error == "raise"
        assert words
        message = str(error)
    else:
        message = "".join(entry["reason"] for entry in iterator.quarantine())
        assert (on_error == "quarantine") == bool(message) or not words
    if words:
        assert len(rows) < len(whole)
        assert re.search(words, message), message
    else:
        # An open file keeps its content when its name is removed or reused.
        assert len(rows) == len(whole)
    full = rows if on_error == "raise" or not words else rows[:-1]
    assert all(np.array_equal(row, right) for row, right in zip(full, whole, strict=False))


FAILING_READ = r"""
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <errno.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <unistd.h>

    /* Reads of files whose path holds $FAIL_PATH fail from byte $FAIL_AFTER on. */
    ssize_t pread64(int fd, void *buffer, size_t length, off_t offset) {
        static ssize_t (*next)(int, void *, size_t, off_t);
        if (!next) next = (ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread64");
        const char *wanted = getenv("FAIL_PATH"), *after = getenv("FAIL_AFTER");
        char link[64], path[4096];
        if (wanted && after) {
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            ssize_t size = readlink(link, path, sizeof path - 1);
            path[size > 0 ? size : 0] = 0;
            if (strstr(path, wanted)) {
                off_t left = atoll(after) - offset;
                if (left <= 0) { errno = EIO; return -1; }
                if ((size_t)left < length) length = left;
            }
        }
        return next(fd, buffer, length, offset);
    }
"""

READING = """
    import json, sys
    import gristmill as gm
    dataset = gm.PackedDataset(sys.argv[1], tokenizer=sys.argv[2], sequence_length=64, lanes=1, on_error=sys.argv[3],
                               max_error_rate=0.5)
    iterator = iter(dataset)
    try:
        rows = sum(1 for _ in iterator)
    except gm.ShardError as error:
        print(json.dumps([error.shard, error.record, error.byte, error.reason]))
    else:
        print(json.dumps([rows, iterator.stats(), iterator.quarantine()]))
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_failed_disk_is_named_and_loses_the_rest_of_the_shard(folder, tokenizer_file):
    source, shim = folder / "failing.c", folder / "failing.so"
    source.write_text(textwrap.dedent(FAILING_READ))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    size = (folder / "2.jsonl.gz").stat().st_size
    environment = {"LD_PRELOAD": str(shim), "FAIL_PATH": "2.jsonl.gz", "FAIL_AFTER": str(size // 4)}
    done = run(READING, folder / "2.jsonl.gz", tokenizer_file, "raise", **environment)
    shard, record, byte, reason = json.loads(done.stdout or pytest.fail(done.stderr))
    assert Path(shard).name == "2.jsonl.gz"
    assert reason.startswith(
        "expected to read more of the file, found: Input/output error (os error 5); check the disk"
    )
    assert record > 10
    assert byte > 1000
    done = run(READING, folder / "[0-3].jsonl.gz", tokenizer_file, "quarantine", **environment)
    _, stats, entries = json.loads(done.stdout or pytest.fail(done.stderr))
    assert stats["lost_shards"] == 1
    kept = reason.removesuffix('; set on_error="quarantine" to skip the rest of this shard')
    assert kept != reason
    assert [shard, record, byte, kept] in [list(entry.values()) for entry in entries]
    assert stats["quarantined"] == len(entries)


TOO_FEW_FILES = """
    import resource, sys
    import gristmill as gm
    dataset = gm.PackedDataset(sys.argv[1] + "/*.jsonl", tokenizer=sys.argv[2], sequence_length=512, lanes=32,
                               on_error=sys.argv[3])
    iterator = iter(dataset)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (20, hard))
    try:
        for _ in iterator:
            pass
    except gm.GristmillError as error:
        print(type(error).__name__, error)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    iterator.set_state(iterator.get_state())
    for _ in iterator:
        pass
    stats = iterator.stats()
    print(stats["documents"], stats["quarantined"])
"""


@pytest.mark.parametrize("on_error", ["raise", "quarantine"])
def test_limit_of_open_files_loses_no_shard(tmp_path, tokenizer_file, on_error):
    for number in range(32):
        (tmp_path / f"{number:02}.jsonl").write_text((json.dumps({"text": "of a good shard " * 20}) + "\n") * 400)
    done = run(TOO_FEW_FILES, tmp_path, tokenizer_file, on_error)
    error, counts = done.stdout.splitlines() or pytest.fail(done.stderr)
    assert re.search(
        r"^GristmillError .*\d\d\.jsonl: expected to open the file, found: Too many open files .*"
        r"; raise the limit of open files \(ulimit -n\), or use fewer lanes=$",
        error,
    ), error
    assert counts == "12800 0"
