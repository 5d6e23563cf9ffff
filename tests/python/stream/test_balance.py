"""`balance=`: the rows of `best_fit` in another order, in which hosts cost the same in each step."""

import json

import numpy as np
import pytest

import gristmill as gm

COST = gm.Cost(1.0, 1e-3)
ROWS = {"sample": gm.Tokens(), "sequence_length": 512, "batch_size": 16, "lanes": 4, "packing": "best_fit", "seed": 1,
        "layout": "varlen", "max_segments": 128}  # fmt: skip


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder, generator = tmp_path_factory.mktemp("shards"), np.random.default_rng(0)
    for shard in range(4):
        lengths = np.clip(generator.lognormal(4, 1.2, 1500), 1, 700).astype(int)
        lines = (
            json.dumps({"input_ids": [shard * 2000 + number] * int(length)}) for number, length in enumerate(lengths)
        )
        (folder / f"{shard}.jsonl").write_text("\n".join(lines))
    return str(folder / "*.jsonl")


def rows_of(dataset):
    return sorted(row.tobytes() for batch in dataset for row in batch["tokens"])


def ratios(dataset, hosts=4):
    """For each step whose rows are all filled, the cost of the costliest host beside the mean."""
    found = []
    for batch in dataset:
        lengths = batch["seq_lens"].astype(float)
        if lengths.sum(axis=1).all():
            costs = (COST.linear * lengths + COST.quadratic * lengths**2).sum(axis=1).reshape(hosts, -1).sum(axis=1)
            found.append(costs.max() / costs.mean())
    return np.array(found)


def test_rows_are_those_of_best_fit_and_cost_the_same(shards):
    plain, balanced = gm.PackedDataset(shards, **ROWS), gm.PackedDataset(shards, balance=COST, **ROWS)
    assert rows_of(balanced) == rows_of(plain)
    before, after = ratios(plain), ratios(balanced)
    assert len(after) > 30
    assert after.mean() - 1 < (before.mean() - 1) / 2
    assert after.mean() < 1.05


def test_order_is_one_for_all_hosts_and_restarts(shards):
    dataset = gm.PackedDataset(shards, balance=COST, **ROWS)
    batches = [batch["tokens"] for batch in dataset]
    for hosts in (2, 4):
        parts = [[batch["tokens"] for batch in dataset.for_hosts(index, hosts)] for index in range(hosts)]
        for step in range(min(map(len, parts))):
            np.testing.assert_array_equal(np.concatenate([part[step] for part in parts]), batches[step])
    iterator = iter(dataset)
    for step in range(0, len(batches), 7):
        other = iter(dataset)
        other.set_state(iterator.get_state())
        np.testing.assert_array_equal(next(other)["tokens"], batches[step])
        for _ in range(7):
            next(iterator, None)


def test_one_row_a_step_stays_as_it_is(shards):
    alone = {**ROWS, "batch_size": 4}
    plain, balanced = (gm.PackedDataset(shards, balance=cost, **alone) for cost in (None, COST))
    for one, other in zip(plain, balanced, strict=True):
        np.testing.assert_array_equal(one["tokens"], other["tokens"])


def test_cost_is_part_of_the_stream(shards):
    iterator = iter(gm.PackedDataset(shards, balance=COST, **ROWS))
    next(iterator)
    state = iterator.get_state()
    for other in (None, gm.Cost(1.0, 2e-3)):
        with pytest.raises(gm.StateError, match=r"balance was 1\.0,0\.001"):
            iter(gm.PackedDataset(shards, balance=other, **ROWS)).set_state(state)
    iter(gm.PackedDataset(shards, balance={"linear": 1, "quadratic": 1e-3}, **ROWS)).set_state(state)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gm.Cost(-1), "from 0 on"),
        (lambda: gm.Cost(0, 0), "cost something"),
        (lambda: gm.Cost(float("nan")), "finite"),
        (lambda: gm.Cost("1"), "a number"),
        (lambda: gm.PackedDataset("x", balance=1, sample=gm.Tokens()), "a gm.Cost or None"),
    ],
)
def test_costs_are_checked(make, message):
    with pytest.raises((gm.ArgumentError, gm.ArgumentTypeError), match=message):
        make()


def test_packed_rows_say_their_cost(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"input_ids": [1] * count}) + "\n" for count in range(1, 9)))
    options = {**ROWS, "batch_size": 4, "lanes": 1, "layout": "grain"}
    gm.pack(gm.PackedDataset(path, balance=gm.Cost(1, 0.5), **options), tmp_path / "packed")
    arguments = json.loads((tmp_path / "packed" / "index.json").read_text())["source"]["arguments"]
    fingerprints = [
        gm.PackedDataset(path, balance=balance, **options).fingerprint
        for balance in (arguments["balance"], "1,0.5", gm.Cost(1, 0.5))
    ]
    assert len(set(fingerprints)) == 1
    with pytest.raises(gm.ArgumentError, match="balance='1': expected the linear and the quadratic cost"):
        gm.PackedDataset(path, balance="1", **options)
