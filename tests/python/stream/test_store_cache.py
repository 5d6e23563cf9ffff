"""`cache_dir=`, and versions of objects: shards of stores that are kept, and those that change."""

import pickle
import subprocess
import sys

import pytest

import gristmill as gm
from bucket import dataset
from helpers import assert_same_batches
from object_store import Server

URL = "s3://bucket/data/*/en.json.gz"


def requests_of(dataset, local):
    """Reads a dataset, and returns how often it asked a store."""
    with iter(dataset) as iterator:
        assert_same_batches(iterator, local)
        return iterator.stats()["requests"]


def kept(folder):
    return sorted(path.name for path in folder.glob("*.shard"))


def test_second_run_makes_no_requests(tmp_path, local, objects, encoder):
    with Server(objects) as server:
        cached = dataset(URL, encoder, storage_options=server.options(), cache_dir=tmp_path / "cache")
        assert requests_of(cached, local) >= len(objects)
        assert len(kept(tmp_path / "cache")) == len(objects)
        assert requests_of(cached, local) == 0
        # Neither do other processes; a manifest holds the versions.
        again = dataset(pickle.loads(pickle.dumps(cached.manifest)), encoder, cache_dir=tmp_path / "cache")
        server.is_out = True
        assert requests_of(again, local) == 0
    assert cached.fingerprint == dataset(cached.manifest, encoder).fingerprint


def test_object_of_equal_size_that_changed_is_a_bad_shard(local, objects, encoder):
    key = "bucket/data/0003/en.json.gz"
    with Server(objects) as server:
        remote = dataset(URL, encoder, storage_options=server.options(retry_timeout="0.2"))
        server.objects[key] = objects[key][:-1] + b"x"
        with iter(remote) as iterator, pytest.raises(gm.ShardError, match="expected the ETag") as raised:
            list(iterator)
        assert raised.value.shard == f"s3://{key}"


def test_changed_object_is_not_taken_from_the_cache(tmp_path, objects, encoder):
    other = {**objects, "bucket/data/0003/en.json.gz": objects["bucket/data/0007/en.json.gz"]}
    with Server(objects) as server:
        arguments = {"storage_options": server.options(), "cache_dir": tmp_path}
        list(dataset(URL, encoder, **arguments))
        server.objects = other
        want = list(dataset(URL, encoder, storage_options=server.options()))
        assert_same_batches(dataset(URL, encoder, **arguments), want)


def test_damaged_file_of_the_cache_is_fetched_again(tmp_path, local, objects, encoder, caplog):
    with Server(objects) as server:
        cached = dataset(URL, encoder, storage_options=server.options(), cache_dir=tmp_path)
        requests_of(cached, local)
        names = kept(tmp_path)
        for number, name in enumerate(names):
            path = tmp_path / name
            data = bytearray(path.read_bytes())
            data[len(data) * number // len(names)] ^= 1
            path.write_bytes(data[:-1] if number == 0 else data)
        assert requests_of(cached, local) >= len(objects)
        assert "damaged in the cache" in caplog.text
        assert requests_of(cached, local) == 0
    assert kept(tmp_path) == names


def test_cache_is_bounded_and_keeps_what_it_has(tmp_path, local, objects, encoder):
    most = sum(map(len, objects.values())) // 2
    with Server(objects) as server:
        arguments = {"storage_options": server.options(), "cache_dir": tmp_path, "cache_bytes": most}
        first = requests_of(dataset(URL, encoder, **arguments), local)
        second = requests_of(dataset(URL, encoder, **arguments), local)
    names = kept(tmp_path)
    assert 0 < len(names) < len(objects)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= most + 1000 * len(names)
    assert second < first


def test_folder_that_cannot_be_written_stops_nothing(tmp_path, local, objects, encoder, caplog):
    (tmp_path / "file").write_text("")
    with Server(objects) as server:
        cached = dataset(URL, encoder, storage_options=server.options(), cache_dir=tmp_path / "file")
        assert requests_of(cached, local) >= len(objects)
    assert "continuing without it" in caplog.text


FULL_DISK = """
import resource, signal, sys
import gristmill as gm
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
url, tokenizer, cache, options = sys.argv[1], sys.argv[2], sys.argv[3], eval(sys.argv[4])
dataset = gm.PackedDataset(url, tokenizer=tokenizer, sequence_length=64, batch_size=8, lanes=4, storage_options=options,
                           cache_dir=cache)
print(sum(int(batch["inputs"].sum()) for batch in dataset))
"""


@pytest.mark.slow
def test_full_disk_stops_nothing(tmp_path, local, objects, tokenizer_file):
    # A file that may not grow further fails as one on a full disk does.
    with Server(objects) as server:
        arguments = [URL, str(tokenizer_file), str(tmp_path), repr(server.options())]
        done = subprocess.run(
            [sys.executable, "-c", FULL_DISK, *arguments], capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == sum(int(batch["inputs"].sum()) for batch in local)
    assert not any(path.stat().st_size > 5000 for path in tmp_path.iterdir())


@pytest.mark.slow
def test_processes_share_the_cache(tmp_path, local, objects, tokenizer_file):
    code = FULL_DISK.replace("5000", "resource.RLIM_INFINITY")
    with Server(objects) as server:
        arguments = [URL, str(tokenizer_file), str(tmp_path), repr(server.options())]
        command = [sys.executable, "-c", code, *arguments]
        runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        sums = {int(run.communicate(timeout=120)[0]) for run in runs}
    assert sums == {sum(int(batch["inputs"].sum()) for batch in local)}
    assert len(kept(tmp_path)) == len(objects) == len(list(tmp_path.iterdir()))
