"""`context_parallel`: which tokens each rank gets, and that nothing is lost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gristmill as gm


@pytest.fixture(scope="module")
def batches(shards, encoder):
    def of(**options):
        dataset = gm.PackedDataset(shards, tokenizer=encoder, text_field="raw_content", sequence_length=48,
                                   batch_size=4, lanes=4, **options)  # fmt: skip
        return next(iter(dataset))

    return of


def tokens_of_rank(length, size, order, rank):
    """The rule, one token at a time."""
    if order == "striped":
        return [token for token in range(length) if token % size == rank]
    if order == "contiguous":
        return [token for token in range(length) if token // (length // size) == rank]
    chunk = length // (2 * size)
    return [token for token in range(length) if token // chunk == rank] + [
        token for token in range(length) if token // chunk == 2 * size - 1 - rank
    ]


@pytest.mark.parametrize("order", ["zigzag", "striped", "contiguous"])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("layout", ["maxtext", "grain", "hf"])
def test_ranks_get_their_tokens(batches, order, size, layout):
    batch = batches(layout=layout, provenance=True)
    moved = gm.context_parallel(batch, size, order)
    part = 48 // size
    for name, array in batch.items():
        if name == "provenance":
            np.testing.assert_array_equal(moved[name], array)
            continue
        for rank in range(size):
            expected = array[:, tokens_of_rank(48, size, order, rank)]
            np.testing.assert_array_equal(moved[name][:, rank * part : (rank + 1) * part], expected)
    for name, array in gm.context_parallel_inverse(moved, size, order).items():
        np.testing.assert_array_equal(array, batch[name])


def test_zigzag_is_the_order_of_maxtext():
    row = gm.context_parallel({"inputs": np.arange(16)[None]}, 4)["inputs"][0]
    assert row.tolist() == [0, 1, 14, 15, 2, 3, 12, 13, 4, 5, 10, 11, 6, 7, 8, 9]


def test_it_runs_under_jit_on_a_mesh(batches):
    batch = batches()
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "context"))
    sharding = NamedSharding(mesh, PartitionSpec("data", "context"))
    placed = {name: jax.device_put(array, sharding) for name, array in batch.items()}
    moved = jax.jit(lambda arrays: gm.context_parallel(arrays, 2))(placed)
    for name, array in gm.context_parallel(batch, 2).items():
        np.testing.assert_array_equal(np.asarray(moved[name]), array)


def test_attention_by_positions_has_the_same_loss(batches):
    """A loss over attention that knows tokens by segment and position alone is the same in each order."""
    batch = batches()
    table = jax.random.normal(jax.random.key(0), (int(batch["inputs"].max()) + 1, 8))

    def loss(arrays):
        segments, positions = arrays["inputs_segmentation"], arrays["inputs_position"]
        x = table[arrays["inputs"]]
        visible = (segments[:, :, None] == segments[:, None]) & (positions[:, :, None] >= positions[:, None])
        scores = jnp.where(visible, jnp.einsum("bqd,bkd->bqk", x, x), -1e9)
        mixed = jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), x)
        logprobs = jax.nn.log_softmax(mixed @ table.T)
        own = jnp.take_along_axis(logprobs, arrays["targets"][..., None], axis=-1)[..., 0]
        return -jnp.sum(own, where=arrays["targets_segmentation"] != 0)

    expected = loss(batch)
    for order in ("zigzag", "striped"):
        np.testing.assert_allclose(loss(gm.context_parallel(batch, 4, order)), expected, rtol=1e-5)


def test_fields_move_with_their_tokens():
    batch = {
        "tokens": np.arange(8).reshape(2, 4),
        "adv": np.arange(16).reshape(2, 4, 2),
        "pair": np.arange(8).reshape(2, 4),
        "reward": np.arange(6).reshape(2, 3),
    }
    moved = gm.context_parallel(batch, 2)
    assert moved["tokens"].tolist() == [[0, 3, 1, 2], [4, 7, 5, 6]]
    np.testing.assert_array_equal(moved["adv"], batch["adv"][:, [0, 3, 1, 2]])
    assert moved["pair"] is batch["pair"]
    assert moved["reward"] is batch["reward"]
    single = gm.context_parallel({name: array[0] for name, array in batch.items()}, 2)
    np.testing.assert_array_equal(single["adv"], batch["adv"][0, [0, 3, 1, 2]])


def test_what_cannot_be_divided_is_refused(batches):
    for batch, options, message in [
        (batches(), {"size": 5}, "cannot be divided into 10 equal parts"),
        (batches(layout="varlen"), {"size": 2}, "gm.expand makes other arrays"),
        ({"rewards": np.zeros(3)}, {"size": 2}, "expected the tokens of a row"),
        (batches(), {"size": 2, "order": "spiral"}, "order='spiral'"),
        (batches(), {"size": 0}, "size=0"),
    ]:
        with pytest.raises(gm.ArgumentError, match=message):
            gm.context_parallel(batch, **options)
