"""Shards in stores on the network, on a server on loopback: the same stream whatever the network does."""

import itertools
import re
import threading
import time

import numpy as np
import pytest

import gristmill as gm
from bucket import objects_of, write_bucket
from helpers import assert_same_batches
from object_store import Server

SETTINGS = {"sequence_length": 64, "batch_size": 4, "lanes": 4}


@pytest.fixture(scope="module")
def mount(tmp_path_factory):
    """A folder with the shards of a bucket, in every format."""
    folder = tmp_path_factory.mktemp("bucket")
    write_bucket(folder, records=150, words=900)
    return folder


@pytest.fixture(scope="module")
def objects(mount):
    return objects_of(mount)


def dataset(shards, tokenizer, **more):
    return gm.PackedDataset(shards, tokenizer=tokenizer, **SETTINGS, **more)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_stream_is_that_of_the_mounted_bucket(mount, objects, encoder, scheme):
    local = dataset(f"{mount}/data/*/en.json.gz", encoder)
    with Server(objects, page=3) as server:
        remote = dataset(f"{scheme}://bucket/data/*/en.json.gz", encoder, storage_options=server.options())
        assert_same_batches(remote, local)
        assert iter(remote).get_state()["fingerprint"] == iter(local).get_state()["fingerprint"]


@pytest.mark.slow
def test_web_server_needs_no_options_but_names_each_shard(mount, objects, encoder):
    local = dataset(f"{mount}/data/*/en.json.gz", encoder)
    with Server(objects) as server:
        remote = dataset([f"{server.url}/{key}" for key in objects], encoder)
        assert_same_batches(remote, local)


@pytest.mark.parametrize(
    "pattern",
    ["data/*/en.json.gz", "data/**/*.gz", "**", "data/000[0-3]/en*", "data/0004/*", "data/0005/en.json.gz", "*/*/*"],
)
def test_globs_match_as_in_a_folder(mount, objects, pattern):
    local = gm.Manifest.find(f"{mount}/{pattern}")
    more = {
        "bucket/data/0001/.hidden.gz": b"x",
        "bucket/.hidden/0001/en.json.gz": b"x",
        "bucket2/data/0/en.json.gz": b"",
    }
    with Server({**objects, **more}, page=3) as server:
        remote = gm.Manifest.find(f"s3://bucket/{pattern}", server.options())
        assert [path.removeprefix("s3://bucket/") for path in remote.paths] == [
            path.removeprefix(f"{mount}/") for path in local.paths
        ]
        assert remote.sizes == local.sizes


def test_name_behind_folders_is_asked_for_without_listing_them(objects):
    with Server(objects) as server:
        gm.Manifest.find("s3://bucket/data/*/en.json.gz", server.options())
        assert sum(method == "GET" for method, *_ in server.requests) == 1
        assert sum(method == "HEAD" for method, *_ in server.requests) == 8


@pytest.mark.slow
def test_outage_is_waited_out(mount, objects, encoder, caplog):
    local = dataset(f"{mount}/data/*/en.json.gz", encoder)
    with Server(objects) as server:
        options = server.options()
        remote = dataset("s3://bucket/data/*/en.json.gz", encoder, storage_options=options)
        server.is_out = True
        threading.Timer(7, lambda: setattr(server, "is_out", False)).start()
        assert_same_batches(remote, local)
    assert "trying again" in caplog.text


@pytest.mark.slow
def test_outage_beyond_its_time_stops_the_run_with_a_good_state(mount, objects, encoder):
    want = list(dataset(f"{mount}/data/*/en.json.gz", encoder))
    with Server(objects, bytes_per_second=3e6) as server:
        options = server.options(retry_timeout="0.5")
        remote = dataset("s3://bucket/data/*/en.json.gz", encoder, storage_options=options, io_bytes=1)
        found = []
        with iter(remote) as iterator:
            found += itertools.islice(iterator, 3)
            server.is_out = True
            with pytest.raises(gm.GristmillError, match="continue from the last saved state") as raised:
                found.extend(iterator)
            assert not isinstance(raised.value, gm.ShardError)
            state, stats = iterator.get_state(), iterator.stats()
        assert stats["quarantined"] == 0
        server.is_out = False
        with iter(remote) as iterator:
            iterator.set_state(state)
            found += iterator
    assert len(found) == len(want)
    for one, other in zip(found, want, strict=True):
        np.testing.assert_array_equal(one["inputs"], other["inputs"])


def test_outage_quarantines_nothing(objects, encoder):
    with Server(objects) as server:
        remote = dataset(
            "s3://bucket/data/*/en.json.gz",
            encoder,
            storage_options=server.options(retry_timeout="0.2"),
            on_error="quarantine",
            max_error_rate=1,
        )
        server.is_out = True
        with iter(remote) as iterator, pytest.raises(gm.GristmillError, match="the store did not answer"):
            next(iterator)


def test_object_that_is_gone_or_has_changed_is_a_bad_shard(objects, encoder):
    key = "bucket/data/0003/en.json.gz"
    for data, message in [(None, "expected the object of the manifest, found none"), (b"x" * 10, "found 10")]:
        with Server(objects) as server:
            options = server.options(retry_timeout="0.2")
            remote = dataset("s3://bucket/data/*/en.json.gz", encoder, storage_options=options)
            server.objects[key] = data
            if data is None:
                del server.objects[key]
            with iter(remote) as iterator, pytest.raises(gm.ShardError, match=message) as raised:
                list(iterator)
        assert raised.value.shard == "s3://bucket/data/0003/en.json.gz"
        assert "disk" not in str(raised.value)


def test_listing_ends_when_the_store_does_not_answer(objects):
    with Server(objects) as server:
        server.is_out = True
        for pattern in ["s3://bucket/data/*/en.json.gz", "gs://bucket/**", "s3://bucket/data/0003/en.json.gz"]:
            with pytest.raises(gm.GristmillError, match="the store did not answer"):
                gm.Manifest.find(pattern, server.options(retry_timeout="0.2"))


def test_objects_that_two_schemes_name_are_listed_once(objects):
    with Server(objects) as server:
        patterns = ["gs://bucket/data/*/en.json.gz", "gcs://bucket/data/*/en.json.gz"]
        both, one = (gm.Manifest.find(names, server.options()) for names in (patterns, patterns[0]))
        assert both == one


def test_urls_without_globs_are_asked_for_at_once(objects):
    with Server(objects, delay=0.2) as server:
        found = gm.Manifest.find([f"{server.url}/{key}" for key in objects])
        assert server.most_at_once > 1
        assert len(found) == len(server.requests) == len(objects)


def test_closing_does_not_wait_for_the_network(objects, encoder):
    with Server(objects) as server:
        remote = dataset("s3://bucket/data/*/en.json.gz", encoder, storage_options=server.options())
        server.is_out = True
        iterator = iter(remote)
        iterator.start_prefetch()
        time.sleep(0.3)
        start = time.monotonic()
        iterator.close()
        assert time.monotonic() - start < 5


def test_first_batch_waits_for_a_few_of_many_small_shards(encoder):
    line = b'{"text": "a few words of a small shard"}'
    objects = {f"bucket/{number:03d}.jsonl": line for number in range(300)}
    with Server(objects) as server:
        dataset = gm.PackedDataset(
            "s3://bucket/*", tokenizer=encoder, sequence_length=8, batch_size=1, prefetch=1, eos=False,
            storage_options=server.options(),
        )  # fmt: skip
        server.delay = 0.02
        with iter(dataset) as iterator:
            next(iterator)
            assert len(server.requests) < len(objects) / 2


def test_missing_objects_and_unknown_options_are_errors(objects, encoder):
    with Server(objects) as server:
        with pytest.raises(gm.MissingShardError, match=r"no such object: 's3://bucket/none\.gz'$"):
            dataset("s3://bucket/none.gz", encoder, storage_options=server.options())
        for folder in ("s3://bucket", "gs://bucket/", "s3://bucket/data", "gs://bucket/data/"):
            glob = re.escape(folder.rstrip("/") + "/*.jsonl")
            with pytest.raises(gm.MissingShardError, match=f"no such object: '{folder}': name the objects .*'{glob}'"):
                dataset(folder, encoder, storage_options=server.options())
        with pytest.raises(gm.MissingShardError, match="no object matches the glob"):
            dataset("s3://bucket/none/*.gz", encoder, storage_options=server.options())
        for url in ("s3://bucket/{a,b}.gz", "gs://bucket/{0..9}/*.gz", f"{server.url}/bucket/{{0..9}}.gz"):
            with pytest.raises(gm.MissingShardError, match="; braces are no part of a glob: list the names"):
                dataset(url, encoder, storage_options=server.options())
        with pytest.raises(gm.ArgumentError, match='"regoin": expected an option of object_store'):
            dataset("s3://bucket/*", encoder, storage_options={"regoin": "x"})


def test_state_moves_between_mount_and_store(mount, objects, encoder):
    local = dataset(f"{mount}/data/*/en.json.gz", encoder)
    want = list(local)
    with Server(objects) as server:
        remote = dataset("gs://bucket/data/*/en.json.gz", encoder, storage_options=server.options())
        with iter(local) as iterator:
            for _ in range(len(want) // 2):
                next(iterator)
            state = iterator.get_state()
        with iter(remote) as iterator:
            iterator.set_state(state)
            rest = list(iterator)
    for one, other in zip(rest, want[len(want) // 2 :], strict=True):
        np.testing.assert_array_equal(one["inputs"], other["inputs"])
