"""Public values and methods of datasets that adapters of other programs build on."""

import threading

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gristmill as gm
from helpers import write_shard


@pytest.fixture
def folder(tmp_path):
    for number, count in enumerate([3, 3, 40, 3]):
        write_shard(tmp_path / f"{number}.json.gz", [f"{number} {index} some words of text" for index in range(count)])
    return tmp_path


def dataset_of(folder, encoder, **arguments):
    given = {"text_field": "raw_content", "sequence_length": 16, "batch_size": 8, "lanes": 4, **arguments}
    return gm.PackedDataset(f"{folder}/*.json.gz", tokenizer=encoder, **given)


class Votes:
    """Votes of hosts that are threads: the answers of a vote are there once all have taken part in it."""

    def __init__(self, hosts):
        self._hosts, self._given, self._all_there = hosts, {}, threading.Condition()

    def of_host(self):
        count = 0

        def vote(more):
            nonlocal count
            number, count = count, count + 1
            with self._all_there:
                self._given.setdefault(number, []).append(more)
                self._all_there.notify_all()
            return lambda: self._answer(number)

        return vote

    def _answer(self, number):
        with self._all_there:
            assert self._all_there.wait_for(lambda: len(self._given[number]) == self._hosts, timeout=60)
            return any(self._given[number])


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts_that_iterate_together_deliver_each_row_once_and_end_together(folder, encoder, hosts):
    whole = dataset_of(folder, encoder)
    expected = [step["inputs"] for step in whole]
    votes = Votes(hosts)
    found = {}

    def run(host):
        with whole.for_hosts(host, hosts).iterate_together(votes.of_host()) as rows:
            found[host] = [step["inputs"] for step in rows]

    threads = [threading.Thread(target=run, args=[host]) for host in range(hosts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(expected) > 4  # the lane of the large shard continues when the others have ended
    for host in range(hosts):
        rows = slice(host * 8 // hosts, (host + 1) * 8 // hosts)
        np.testing.assert_array_equal(np.array(found[host]), np.array([step[rows] for step in expected]))


def test_state_of_hosts_that_iterate_together_restores_on_one(folder, encoder):
    whole = dataset_of(folder, encoder)
    expected = [step["inputs"] for step in whole]
    with whole.iterate_together(Votes(1).of_host()) as rows:
        next(rows), next(rows)
        state = rows.get_state()
        rest = [step["inputs"] for step in rows]
        rows.set_state(state)
        again = [step["inputs"] for step in rows]
    assert rest[-1].tolist() == expected[-1].tolist()
    np.testing.assert_array_equal(np.array(rest), np.array(expected[2:]))
    np.testing.assert_array_equal(np.array(again), np.array(rest))


def test_endless_hosts_do_not_vote(folder, encoder):
    def vote(more):
        raise AssertionError

    with dataset_of(folder, encoder, epochs=None).iterate_together(vote) as rows:
        assert len(next(rows)["inputs"]) == 8


def test_equal_steps_are_not_iterated_together(folder, encoder):
    with pytest.raises(gm.ArgumentError, match="equal_steps=True: hosts end together already") as caught:
        dataset_of(folder, encoder, equal_steps=True).iterate_together(lambda more: lambda: more)
    assert caught.value.argument == "equal_steps"


@pytest.mark.parametrize("layout", ["maxtext", "varlen"])
def test_dtypes_and_shapes_are_those_of_elements(folder, encoder, layout):
    dataset = dataset_of(folder, encoder, layout=layout, provenance=True)
    element = next(iter(dataset))
    assert dataset.dtypes == {name: array.dtype for name, array in element.items()}
    assert dataset.shapes == {name: array.shape for name, array in element.items()}
    assert dataset.sequence_length == 16


def test_differences_of_streams_are_named(folder, encoder):
    one, other = dataset_of(folder, encoder, seed=1), dataset_of(folder, encoder, seed=2)
    assert other.differences(one.fingerprint) == "seed was 1 and is 2"
    assert other.differences(other.fingerprint) == ""


def test_lanes_of_processes_are_those_of_a_sharding(folder, encoder):
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("rows",)), PartitionSpec("rows"))
    assert dataset_of(folder, encoder).lanes_of_processes(sharding) == {0: [0, 1, 2, 3]}


def test_stages_after_a_state_continue_it_with_other_weights(folder, encoder):
    def mixture(weights, **more):
        sources = {
            name: gm.Source(f"{folder}/*.json.gz", weight=weight, text_field="raw_content")
            for name, weight in zip("ab", weights, strict=True)
        }
        return gm.PackedDataset(
            gm.Mixture(sources, **more), tokenizer=encoder, sequence_length=16, batch_size=8, lanes=4
        )

    with iter(mixture([1, 3])) as rows:
        next(rows), next(rows)
        state = rows.get_state()
        expected = next(rows)
    changed = mixture([3, 1])
    assert mixture([1, 3]).stages_after(state) == []
    stages = changed.stages_after(state)
    assert stages == [(0, {"a": 1.0, "b": 3.0}), (2, {"a": 3.0, "b": 1.0})]
    with iter(changed) as rows, pytest.raises(gm.StateError, match="the weights of step 0"):
        rows.set_state(state)
    with iter(mixture([3, 1], stages=stages)) as rows:
        rows.set_state(state)
        assert rows.get_state()["step"] == 2
        assert (next(rows)["inputs"] != expected["inputs"]).any()


def test_folder_of_an_encoder_is_that_of_its_file(tmp_path, tokenizer_json):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer_json)
    assert gm.Encoder.from_file(path).folder == tmp_path
    assert gm.Encoder.from_bytes(path.read_bytes()).folder is None


def test_arena_holds_the_ids_and_records_of_prompts(tmp_path, encoder):
    write_shard(tmp_path / "a.json.gz", ["one", "two and three"])
    prompts = gm.PromptDataset(
        f"{tmp_path}/a.json.gz", tokenizer=encoder, prompt=gm.Text("raw_content"), batch_size=1, prompt_length=8
    )
    assert prompts.shard_names == [str(tmp_path / "a.json.gz")]
    arena = prompts.arena
    assert [arena.prompt_ids(row, 0).tolist() for row in range(2)] == [
        encoder.encode("one").tolist(),
        encoder.encode("two and three").tolist(),
    ]
    assert arena.numbers.tolist() == arena.indices.tolist() == [0, 1]
    assert not arena.ids.flags.writeable
