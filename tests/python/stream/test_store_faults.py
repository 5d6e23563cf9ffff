"""Faults of the network, and of the bytes that arrive, on a server on loopback: the stream stays that of the files."""

import gzip
import json
import os
import random
import threading
import time

import pytest

import gristmill as gm
from bucket import dataset
from helpers import assert_same_batches
from object_store import KINDS, STALLS, Faults, Server

PATTERN = "data/*/en.json.gz"


@pytest.mark.parametrize("seed", range(int(os.environ.get("GRISTMILL_CASES", 12))))
def test_network_faults_change_nothing(local, objects, encoder, seed):
    faults = Faults(seed, share=0.4, kinds=KINDS + STALLS)
    with Server(objects, faults=faults) as server:
        options = server.options(stall_timeout="0.2")
        remote = dataset(f"s3://bucket/{PATTERN}", encoder, storage_options=options)
        assert_same_batches(remote, local)
    assert faults.seen


@pytest.mark.parametrize("kind", STALLS)
def test_server_that_only_stalls_ends_the_run(objects, encoder, kind):
    with Server(objects) as server:
        options = server.options(stall_timeout="0.1", retry_timeout="0.5")
        remote = dataset(f"s3://bucket/{PATTERN}", encoder, storage_options=options)
        server.faults = Faults(0, share=1, kinds=(kind,))
        start = time.monotonic()
        with iter(remote) as iterator, pytest.raises(gm.GristmillError, match="the store did not answer"):
            next(iterator)
        assert time.monotonic() - start < 15


def test_token_that_expires_is_waited_for(local, objects, encoder, caplog):
    with Server(objects) as server:
        options = server.options(google_bearer_token="old")
        del options["google_skip_signature"]
        server.token = "old"
        remote = dataset(f"gs://bucket/{PATTERN}", encoder, storage_options=options)
        server.token = "new"
        # As if the provider of the token had renewed it.
        threading.Timer(1, lambda: setattr(server, "token", "old")).start()
        assert_same_batches(remote, local)
        server.token = "new"
        late = dataset(remote.manifest, encoder, storage_options={**options, "retry_timeout": "0.3"})
        with iter(late) as iterator, pytest.raises(gm.GristmillError, match=r"denied access.*renew the credentials"):
            next(iterator)


def gzip_shards(count, *, level=6, lines=20):
    rng = random.Random(count)
    texts = [[" ".join(str(rng.randrange(10**6)) for _ in range(90)) for _ in range(lines)] for _ in range(count)]
    return {
        f"bucket/{number}.json.gz": gzip.compress(
            "".join(json.dumps({"text": text}) + "\n" for text in some).encode(), level, mtime=0
        )
        for number, some in enumerate(texts)
    }


def write_all(folder, objects):
    for name, data in objects.items():
        (folder / name.removeprefix("bucket/")).write_bytes(data)


@pytest.mark.parametrize("seed", range(5))
def test_bit_flipped_on_the_way_is_fetched_again(tmp_path, encoder, caplog, seed):
    objects = gzip_shards(16)
    write_all(tmp_path, objects)
    local = list(dataset(f"{tmp_path}/*.gz", encoder, lanes=16, batch_size=16))
    faults = Faults(seed, share=1, kinds=("flip",))
    with Server(objects) as server:
        options = server.options()
        remote = dataset("s3://bucket/*.gz", encoder, lanes=16, batch_size=16, storage_options=options)
        server.faults = faults
        assert_same_batches(remote, local)
    assert faults.seen["flip"] >= 16
    assert "fetching it once more" in caplog.text


def test_damage_in_the_store_is_the_error_of_the_file(tmp_path, encoder):
    objects = gzip_shards(2, lines=2000)
    data = bytearray(objects["bucket/1.json.gz"])
    data[len(data) // 2] ^= 4
    objects["bucket/1.json.gz"] = bytes(data)
    write_all(tmp_path, objects)
    found = []
    with Server(objects) as server:
        for pattern, options in [(f"{tmp_path}/*.gz", None), ("s3://bucket/*.gz", server.options())]:
            damaged = dataset(
                pattern, encoder, storage_options=options, lanes=2, on_error="quarantine", max_error_rate=1
            )
            with iter(damaged) as iterator:
                batches = sum(1 for _ in iterator)
                errors = [(entry["record"], entry["reason"]) for entry in iterator.quarantine()]
            found.append((batches, errors))
    assert found[0] == found[1]
    assert found[0][1]


def test_batches_of_damaged_bytes_end_the_run(encoder):
    # Stored and not compressed: only the checksum at the end shows the damage.
    objects = gzip_shards(1, level=0, lines=3000)
    with Server(objects) as server:
        remote = dataset("s3://bucket/*.gz", encoder, lanes=1, storage_options=server.options())
        server.faults = Faults(0, share=1, kinds=("flip digit",))
        with iter(remote) as iterator, pytest.raises(gm.GristmillError, match="bytes arrived damaged") as raised:
            list(iterator)
        assert not isinstance(raised.value, gm.ShardError)


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "least"), [(PATTERN, 3), ("data/**", 2)])
def test_first_batch_takes_at_most_four_round_trips(objects, encoder, pattern, least):
    # A busy machine may send what belongs together over more time: then the server waits longer.
    for quiet in (1, 5, 20):
        with Server(objects, quiet=quiet) as server:
            remote = dataset(f"s3://bucket/{pattern}", encoder, storage_options=server.options())
            with iter(remote) as iterator:
                next(iterator)
            if server.round_trips <= 4:
                break
    assert least <= server.round_trips <= 4


def test_next_shard_is_requested_before_the_last_one_ends(tmp_path, encoder):
    objects = gzip_shards(12)
    write_all(tmp_path, objects)
    local = list(dataset(f"{tmp_path}/*.gz", encoder, lanes=1))
    with Server(objects, delay=0.1) as server:
        remote = dataset("s3://bucket/*.gz", encoder, lanes=1, storage_options=server.options())
        requests = len(server.requests)
        with iter(remote) as iterator:
            found = list(iterator)
            stats = iterator.stats()
        assert_same_batches(found, local)
        assert len(server.requests) - requests == stats["requests"] == 12
        assert server.most_at_once == 2
