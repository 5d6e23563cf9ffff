"""Global batches in real multi-process JAX programs, compared with those of a single process."""

import itertools
import json
import re

import pytest

import gristmill as gm
from chat_models import write_chatml
from host_programs import MESHES
from run_hosts import HostFailedError, run_hosts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dataset(shards, encoder):
    # Five provenance entries: a number that no mesh divides.
    return gm.PackedDataset(
        shards, tokenizer=encoder, text_field="raw_content", sequence_length=768, batch_size=16, lanes=8, threads=1,
        provenance=5,
    )  # fmt: skip


@pytest.fixture(scope="module")
def single(dataset):
    """All batches of one process, the states before and after each, and the final stats."""
    iterator = iter(dataset)
    states, batches = [iterator.get_state()], []
    for batch in iterator:
        batches.append(batch)
        states.append(iterator.get_state())
    assert len(batches) > 8
    return batches, states, iterator.stats()


@pytest.fixture(scope="module")
def different(shards, encoder, tokenizer_json):
    """For each number of hosts: arguments with other datasets on some hosts, and the error that all hosts raise."""

    def dataset(paths=shards, tokenizer=encoder, **arguments):
        arguments = {"text_field": "raw_content", "batch_size": 16, "eos": "</s>", **arguments}
        return gm.PackedDataset(paths, tokenizer=tokenizer, **arguments)

    # So few shards that there are fewer lanes than hosts: all hosts report that, too.
    fewer = dataset(dataset().manifest.paths[:1])
    other = dataset(tokenizer=gm.Encoder.from_bytes(tokenizer_json, special_tokens_in_text="text"))
    return {
        2: (
            {"dataset": dataset(provenance=True), "others": {1: dataset()}, "releases": {1: "0.0.9+local"}},
            rf".*process 1: gristmill is 0\.0\.9\+local instead of {re.escape(gm.__version__)}, "
            r"provenance is 0 instead of 64; compared with process 0\. Give all of them .* release of gristmill",
        ),
        4: (
            {"dataset": dataset(), "others": {0: fewer, 2: other}},
            r"ArgumentError: the processes of the sharding have different streams: "
            r"process 0: lanes is 1 instead of 8, manifest is \w+ instead of \w+; "
            r"process 2: tokenizer is \w+ instead of \w+; compared with process 1, 3\. Give all of them .*",
        ),
    }


# The meshes that are worth a test on four hosts.
_WIDE = ["data", "data x tensor across hosts", "data x context across hosts", "rows dealt in turn"]


@pytest.mark.parametrize(("hosts", "meshes"), [(2, list(MESHES)), (4, _WIDE)])
def test_hosts_yield_one_stream_and_end_together(tmp_path, dataset, single, different, hosts, meshes):
    batches, states, stats = single
    count = len(batches)
    restore = [0, count // 2, count - 1, count]
    endless = gm.PackedDataset(
        dataset.manifest, tokenizer=dataset.encoder, text_field="raw_content", sequence_length=768, batch_size=16,
        lanes=8, epochs=None, seed=3, provenance=5,
    )  # fmt: skip
    programs = [
        ("stream", {"dataset": dataset, "expected": batches, "states": states, "meshes": meshes, "restore": restore}),
        ("endless", {"dataset": endless, "expected": list(itertools.islice(endless, 12)), "mesh": "data"}),
        ("differing_replicas", {}),
        ("differing_streams", {"dataset": dataset, "others": {1: endless}}),
        (
            "differing_steps",
            {"dataset": dataset, "expected": batches, "states": {0: states[3], 1: states[5]}, "state": states[4]},
        ),
        ("differing_streams", different[hosts][0]),
    ]
    results = run_hosts(tmp_path, "several", {"programs": programs}, hosts=hosts)
    for mesh in meshes:
        outcomes = [result[0][mesh] for result in results]
        assert [outcome["problems"] for outcome in outcomes] == [[]] * hosts, mesh
        for step, merged in enumerate(map(gm.merge_states, zip(*(o["states"] for o in outcomes), strict=True))):
            assert merged == states[step], (mesh, step)
        # Each group of replicas counts once.
        groups = {tuple(outcome["states"][0]["lanes"]): outcome["stats"] for outcome in outcomes}
        for figure in ("documents", "tokens", "text_bytes", "rows", "padding_tokens"):
            assert sum(group[figure] for group in groups.values()) == stats[figure], (mesh, figure)
    assert [result[1] for result in results] == [None] * hosts
    for result in results:
        assert "batch['inputs']: process 0 (device" in result[2]["differ"]
        assert "hold different rows: 5" in result[2]["differ"] or "hold different rows: 14" in result[2]["differ"]
        assert "batch['inputs'] is a ndarray" in result[2]["numpy"]
        assert (
            "process 1: epochs is None instead of the default (1), seed is 3 instead of the default (None)" in result[3]
        )
        *said, difference = result[4]
        assert difference is None
        even, odd = {2: ("0", "1"), 4: ("0, 2", "1, 3")}[hosts]
        both = f"resumed at different steps: process {even} at step 3, process {odd} at step 5. Restore all of them"
        assert len(said) == 2
        assert all(error.startswith(f"StateError: the processes of the sharding {both}") for error in said)
        assert result[5] == results[0][5]
    assert re.fullmatch(different[hosts][1], results[0][5]), results[0][5]


def test_hosts_expand_compact_batches(tmp_path, shards, encoder):
    arguments = {
        "tokenizer": encoder, "text_field": "raw_content", "sequence_length": 768, "batch_size": 16, "lanes": 8,
        "threads": 1, "packing": "best_fit", "seed": 1, "max_segments": 5,
    }  # fmt: skip
    compact = gm.PackedDataset(shards, layout="varlen", **arguments)
    iterator = iter(compact)
    states, batches = [iterator.get_state()], []
    for batch in iterator:
        batches.append(batch)
        states.append(iterator.get_state())
    expected = list(gm.PackedDataset(shards, **arguments))
    assert len(expected) == len(batches) > 8
    restore = [0, len(batches) // 2]
    programs = [
        ("expanded", {"dataset": compact, "expected": expected, "meshes": list(MESHES)}),
        (
            "stream",
            {"dataset": compact, "expected": batches, "states": states, "meshes": ["data"], "restore": restore},
        ),
    ]
    for found, streamed in run_hosts(tmp_path, "several", {"programs": programs}, hosts=2):
        assert found == dict.fromkeys(MESHES)
        assert streamed["data"]["problems"] == []


def test_hosts_end_together_where_the_last_rows_train_nothing(tmp_path):
    """Such rows are left out, and no host takes a step for them."""
    model = write_chatml(tmp_path / "model")
    for number in range(8):
        roles = ["user", "assistant", "user"]
        contents = [["us " * (20 * n % 70), "the ant", "er " * 90 * (n == 9)] for n in range(10 - number % 3)]
        records = [[{"role": role, "content": text} for role, text in zip(roles, own, strict=True)] for own in contents]
        lines = [json.dumps({"messages": messages}) + "\n" for messages in records]
        (tmp_path / f"{number}.jsonl").write_text("".join(lines))
    arguments = {
        "tokenizer": model, "sample": gm.Chat(on_untrained="drop"), "sequence_length": 32, "batch_size": 16, "lanes": 8,
        "threads": 1, "max_segments": 8,
    }  # fmt: skip
    expected = list(gm.PackedDataset(tmp_path / "*.jsonl", **arguments))
    assert all(batch["targets_segmentation"].any() for batch in expected)
    compact = gm.PackedDataset(tmp_path / "*.jsonl", layout="varlen", **arguments)
    meshes = ["data", "replicas alone"]
    programs = [("expanded", {"dataset": compact, "expected": expected, "meshes": meshes})]
    for (found,) in run_hosts(tmp_path / "hosts", "several", {"programs": programs}, hosts=2):
        assert found == dict.fromkeys(meshes)


def test_hosts_yield_one_stream_of_a_mixture(tmp_path, shards, encoder):
    sources = {
        "one": gm.Source(shards, weight=3, text_field="raw_content", epochs=1),
        "two": gm.Source(shards, weight=1, text_field="raw_content", epochs=1, keep="language != 'de'"),
    }
    stages = [(0, {"one": 3, "two": 1}), (4, {"one": 1, "two": 1})]
    programs, runs = [], []
    for weights_by in ("rows", "tokens"):
        dataset = gm.PackedDataset(
            gm.Mixture(sources, stages=stages, weights_by=weights_by), tokenizer=encoder, sequence_length=768,
            batch_size=16, lanes=8, packing="best_fit", threads=1, seed=1, source_arrays=True,
        )  # fmt: skip
        iterator = iter(dataset)
        states, batches = [iterator.get_state()], []
        for batch in iterator:
            batches.append(batch)
            states.append(iterator.get_state())
        runs.append((batches, states))
        restore = [0, len(batches) // 2, len(batches)]
        meshes = ["data", "data x tensor across hosts"]
        arguments = {"dataset": dataset, "expected": batches, "states": states, "meshes": meshes, "restore": restore}
        programs.append(("stream", arguments))
    results = run_hosts(tmp_path, "several", {"programs": programs}, hosts=2)
    for number, (batches, states) in enumerate(runs):
        assert len(batches) > 8
        for mesh in meshes:
            outcomes = [result[number][mesh] for result in results]
            assert [outcome["problems"] for outcome in outcomes] == [[], []]
            merged = map(gm.merge_states, zip(*(outcome["states"] for outcome in outcomes), strict=True))
            assert list(merged) == states


@pytest.mark.parametrize("epochs", [1, None])
def test_replicas_with_different_quarantine_stop(tmp_path, encoder, epochs):
    """Each host has its own copy of the shards, of equal sizes; one copy has a bad line in its third shard."""
    line = b'{"text": "some words of a document that is long enough for some tokens"}\n'
    for copy, number in itertools.product(range(2), range(8)):
        lines = [line] * 200
        if (copy, number) == (1, 2):
            lines[100] = line.replace(b"{", b"x")
        (tmp_path / str(copy)).mkdir(exist_ok=True)
        (tmp_path / str(copy) / f"{number}.jsonl").write_bytes(b"".join(lines))
    datasets = {
        copy: gm.PackedDataset(
            tmp_path / str(copy) / "*.jsonl", tokenizer=encoder, sequence_length=64, batch_size=16, lanes=8,
            epochs=epochs, threads=1, on_error="quarantine",
        )
        for copy in range(2)
    }  # fmt: skip
    meshes = ["replicas alone", "data x tensor across hosts", "data"]
    stopped = [0, 1] if epochs is None else [0, 1, 2]
    program = {"datasets": datasets, "meshes": [meshes[mesh] for mesh in stopped]}
    results = run_hosts(tmp_path, "replicas_with_other_shards", program, hosts=2)
    assert results[0] == results[1]
    for steps, said in results[0][:2]:
        assert 0 < steps < 64
        assert len(set(said)) == 1, "the second call raises the same"
        assert said[0].startswith(
            "GristmillError: processes 0 and 1 load the same lanes, and are at different positions"
        )
    if epochs:
        # Without replicas one host reads each lane, and its quarantine holds for the stream.
        assert results[0][2][1] == []


@pytest.mark.parametrize("devices", [2, 4])
def test_end_of_another_process_is_a_gristmill_error(tmp_path, dataset, devices):
    # With two devices each process has one: there JAX computes synchronously.
    said, left = run_hosts(tmp_path, "host_that_ends", {"dataset": dataset}, hosts=2, devices=devices)
    assert left is None
    assert said.startswith(
        "a computation of the processes of the sharding failed, perhaps because one of them has ended: "
    )


def test_run_resumes_on_other_hosts_and_after_losing_one(tmp_path, dataset, single):
    expected = single[0]
    count = len(expected)
    checkpoints = str(tmp_path / "checkpoints")

    def run(name, *, hosts, until, mesh="data", die=None):
        arguments = {
            "dataset": dataset, "expected": expected, "mesh": mesh, "folder": checkpoints, "until": until, "die": die,
        }  # fmt: skip
        results = run_hosts(tmp_path / name, "train", arguments, hosts=hosts)
        assert [result["problem"] for result in results] == [None] * hosts
        assert {result["total"] for result in results} == {
            sum(int(batch["inputs"].sum()) for batch in expected[:until])
        }
        return results[0]["start"]

    assert run("four", hosts=4, until=4) == 0
    with pytest.raises(HostFailedError, match="host 1, exit 9"):
        run("one is lost", hosts=2, until=count, mesh="data x fsdp", die=(1, 7))
    # The loss may have cut off the save after step 6.
    assert run("two", hosts=2, until=8) in (4, 6)
    assert run("one", hosts=1, until=count) == 8  # a single host continues the same stream


def test_failed_host_ends_run_hosts_at_once(tmp_path):
    with pytest.raises(HostFailedError, match="KeyError"):
        run_hosts(tmp_path, "no_such_program", {}, hosts=2)
