"""Parts of a dataset for each host, as adapters make them of a whole one."""

import numpy as np
import pytest

import gristmill as gm

FOUR = {"text_field": "raw_content", "sequence_length": 64, "batch_size": 8, "lanes": 4}


@pytest.fixture
def whole(shards, encoder):
    return gm.PackedDataset(shards, tokenizer=encoder, **FOUR)


@pytest.mark.parametrize("equal_steps", [False, True])
def test_part_of_a_host_is_that_of_its_arguments(whole, shards, encoder, equal_steps):
    for index in range(2):
        part = whole.for_hosts(index, 2, equal_steps=equal_steps)
        given = {"shard_index": index, "shard_count": 2, "equal_steps": equal_steps}
        expected = gm.PackedDataset(shards, tokenizer=encoder, **FOUR, **given)
        assert part.own_lanes == expected.own_lanes
        assert part.shapes == expected.shapes
        assert part.fingerprint == whole.fingerprint
        for batch, other in zip(part, expected, strict=True):
            assert all(np.array_equal(batch[name], other[name]) for name in batch | other)


def test_equal_steps_of_the_dataset_stay(whole):
    assert whole.for_hosts(0, 8, equal_steps=True).for_hosts(1, 8).shapes["inputs"] == (1, 64)


def test_states_of_parts_restore_on_another_number(whole):
    parts = [iter(whole.for_hosts(index, 4)) for index in range(4)]
    for part in parts:
        next(part)
    state = gm.merge_states([part.get_state() for part in parts])
    expected = iter(whole)
    next(expected)
    after = [iter(whole.for_hosts(index, 2)) for index in range(2)]
    for part in after:
        part.set_state(state)
    rows = np.concatenate([next(part)["inputs"] for part in after])
    assert np.array_equal(rows, next(expected)["inputs"])


def test_dataset_says_what_adapters_ask(whole, shards, encoder):
    assert (whole.batch_size, whole.ends, whole.own_lanes) == (8, True, [0, 1, 2, 3])
    assert set(whole.shapes.values()) == {(8, 64)}
    assert whole.shapes.keys() == next(iter(whole)).keys()
    endless = gm.PackedDataset(shards, tokenizer=encoder, epochs=None, **FOUR | {"batch_size": None})
    assert (endless.batch_size, endless.ends) == (None, False)
    assert set(endless.shapes.values()) == {(64,)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((0, 3), "shard_count=3: a host loads whole lanes, so it must divide lanes=4"),
        ((2, 2), "shard_index=2"),
        ((-1, 2), "shard_index=-1"),
        ((0, 0), "shard_count=0"),
    ],
)
def test_hosts_that_do_not_fit_are_refused(whole, given, message):
    with pytest.raises(gm.ArgumentError, match=message):
        whole.for_hosts(*given)


def test_equal_steps_need_rows_for_each_host(whole):
    with pytest.raises(gm.ArgumentError, match="shard_count=3 must divide batch_size=8"):
        whole.for_hosts(0, 3, equal_steps=True)
