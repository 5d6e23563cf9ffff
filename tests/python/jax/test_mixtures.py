"""Global batches and Orbax checkpoints of mixtures."""

import itertools

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gristmill as gm
from helpers import assert_same_batches


@pytest.fixture
def sharding():
    return NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))


@pytest.fixture
def dataset(shards, encoder):
    mixture = gm.Mixture(
        {
            "one": gm.Source(shards, weight=3, text_field="raw_content", epochs=1),
            "two": gm.Source(shards, weight=1, text_field="raw_content", epochs=1),
        },
        stages=[(0, {"one": 3, "two": 1}), (9, {"one": 1, "two": 1})],
    )
    return gm.PackedDataset(
        mixture, tokenizer=encoder, sequence_length=512, batch_size=8, lanes=4, threads=2, source_arrays=True
    )


def as_arrays(batches):
    return [{name: np.asarray(array) for name, array in batch.items()} for batch in batches]


def test_global_batches_are_those_of_the_dataset_and_restore(dataset, sharding):
    expected = list(dataset)
    with gm.global_batches(dataset, sharding) as batches:
        found = as_arrays(itertools.islice(batches, 12))
        state = batches.get_state()
        assert found[0]["source"].shape == found[0]["weight"].shape == (8,)
        assert_same_batches(found + as_arrays(batches), expected)
        batches.set_state(gm.merge_states([state]))
        assert_same_batches(as_arrays(batches), expected[12:])


def test_checkpoint_holds_the_mixture(tmp_path, dataset, sharding):
    expected = list(dataset)
    with ocp.CheckpointManager(tmp_path) as manager, gm.global_batches(dataset, sharding) as batches:
        list(itertools.islice(batches, 10))
        manager.save(10, args=ocp.args.Composite(data=gm.CheckpointSave(batches)))
        manager.wait_until_finished()
    with ocp.CheckpointManager(tmp_path) as manager, gm.global_batches(dataset, sharding) as batches:
        manager.restore(10, args=ocp.args.Composite(data=gm.CheckpointRestore(batches)))
        assert_same_batches(as_arrays(batches), expected[10:])
