"""Hosts that take equally many steps, each of which reads all lanes."""

import grain
import numpy as np
import pytest

import gristmill as gm
from helpers import assert_same_batches, write_shard


@pytest.fixture
def dataset(shards, encoder):
    def dataset(found=shards, **arguments):
        given = {"text_field": "raw_content", "sequence_length": 64, "batch_size": 12, "epochs": 1, **arguments}
        return gm.PackedDataset(found, tokenizer=encoder, **given)

    return dataset


@pytest.mark.parametrize("hosts", [1, 2, 3])
@pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
def test_hosts_deliver_the_parts_of_each_global_batch(dataset, hosts, packing):
    given = {"packing": packing, "provenance": True, "lanes": 4}
    whole = list(dataset(**given))
    parts = [
        dataset(**given, equal_steps=True, shard_index=host, shard_count=hosts, threads=host + 1)
        for host in range(hosts)
    ]
    assert {part.fingerprint for part in parts} == {dataset(**given).fingerprint}
    for _ in range(2):  # each `iter` begins at the first sample again
        found = [list(part) for part in parts]
        assert {len(steps) for steps in found} == {len(whole)}
        joined = (
            {name: np.concatenate([one[name] for one in step]) for name in step[0]} for step in zip(*found, strict=True)
        )
        assert_same_batches(joined, whole)
    described = grain.experimental.get_element_spec(parts[-1])
    assert {name: array.shape for name, array in found[-1][0].items()} == {
        name: entry.shape for name, entry in described.items()
    }


def test_rows_equal_those_of_hosts_with_lanes_of_their_own(dataset):
    for host in range(2):
        own = dataset(lanes=4, shard_index=host, shard_count=2)
        equal = list(dataset(lanes=4, shard_index=host, shard_count=2, equal_steps=True))
        steps = list(own)
        assert len(steps) <= len(equal)
        assert_same_batches(equal[: len(steps)], steps)
        assert not any(batch["inputs_segmentation"].any() for batch in equal[len(steps) :])


def test_samples_of_one_shard_are_enough_for_any_number_of_hosts(dataset, tmp_path):
    write_shard(tmp_path / "val.json.gz", ["one", "two", "three"])
    given = {"packing": "pad", "equal_steps": True, "shard_count": 12}
    hosts = [list(dataset(str(tmp_path / "val.json.gz"), shard_index=host, **given)) for host in range(12)]
    assert [len(steps) for steps in hosts] == [1] * 12
    trained = [int(steps[0]["inputs_segmentation"].any()) for steps in hosts]
    assert trained == [1] * 3 + [0] * 9


def test_state_fits_any_number_of_hosts(dataset):
    one = iter(dataset(equal_steps=True, shard_index=1, shard_count=2))
    steps = [next(one) for _ in range(3)]
    state = one.get_state()
    rest = list(one)
    other = iter(dataset(equal_steps=True, shard_index=5, shard_count=6))
    other.set_state(state)
    assert_same_batches(({name: array[-2:] for name, array in batch.items()} for batch in rest), other)
    alone = iter(dataset())
    alone.set_state(state)
    assert_same_batches(rest, ({name: array[6:] for name, array in batch.items()} for batch in alone))
    assert len(steps) + len(rest) == sum(1 for _ in dataset())


def test_mixtures_take_equally_many_steps(dataset, shards, encoder):
    sources = {
        name: gm.Source(shards, text_field="raw_content", weight=weight, epochs=1)
        for name, weight in [("a", 2), ("b", 1)]
    }

    def host(index, count):
        return gm.PackedDataset(
            gm.Mixture(sources), tokenizer=encoder, sequence_length=64, batch_size=6, lanes=2, source_arrays=True,
            equal_steps=True, shard_index=index, shard_count=count,
        )  # fmt: skip

    whole = list(host(0, 1))
    found = [list(host(index, 3)) for index in range(3)]
    joined = (
        {name: np.concatenate([one[name] for one in step]) for name in step[0]} for step in zip(*found, strict=True)
    )
    assert_same_batches(joined, whole)
    assert host(2, 3).sources["a"].shapes["inputs"] == (2, 64)


def test_hosts_that_do_not_divide_the_batch_are_refused(dataset, tmp_path):
    with pytest.raises(gm.ArgumentError, match=r"equal_steps=True: .* shard_count=5 must divide batch_size=12"):
        dataset(equal_steps=True, shard_count=5)
    with pytest.raises(gm.ArgumentError, match="must divide batch_size=None"):
        dataset(equal_steps=True, batch_size=None)
    with pytest.raises(gm.ArgumentTypeError, match="equal_steps=1: expected True or False"):
        dataset(equal_steps=1)
