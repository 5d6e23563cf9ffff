"""The stream of a `PromptDataset`: orders, epochs, hosts and restarts against the naive model; Grain's protocols."""

import itertools
import json

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gristmill as gm
import prompt_oracle as oracle
from gristmill import _core
from run_hosts import run_hosts


@pytest.fixture(scope="module")
def make(number_encoder):
    """Makes a dataset of texts whose ids say which prompt they are."""

    def of(count, **arguments):
        rows = [{"prompt": str(number)} for number in range(count)]
        given = {"layout": "hf", "prompt_length": 1, "columns": False} | arguments
        return gm.PromptDataset(rows, tokenizer=number_encoder, prompt=gm.Text("prompt"), **given)

    return of


def items(batches):
    """The items of the rows of each batch."""
    return [batch["index"].tolist() for batch in batches]


def hosts_of(make, hosts, count, **arguments):
    return [make(count, shard_index=host, shard_count=hosts, **arguments) for host in range(hosts)]


def global_batches(iterators):
    """The global batches of the iterators of all hosts."""
    for parts in zip(*iterators, strict=True):
        yield [item for part in parts for item in part["index"].tolist()]


def orders_of(count, epochs, seed, kind):
    """The order of each epoch by another implementation, but for gristmill's own."""
    if seed is None:
        return [list(range(count))] * epochs
    if kind == "gristmill":
        return [_core.prompt_order("gristmill", count, seed, epoch).tolist() for epoch in range(epochs)]
    generator, orders = oracle.torch_generator(seed), []
    for _ in range(epochs):
        orders.append(oracle.torch_permutation(generator, count))
        if kind == "torch":
            oracle.torch_permutation(generator, count)
    return orders


@pytest.mark.parametrize("kind", ["gristmill", "torch", "torchdata"])
@pytest.mark.parametrize("seed", [None, 0, 7, 67280421310721])
def test_orders_are_those_of_the_model(make, seed, kind):
    dataset = make(31, batch_size=4, seed=seed, order=kind, epochs=3)
    orders = orders_of(31, 3, seed, kind)
    assert items(dataset) == list(oracle.batches(31, 4, 1, orders))
    if seed is not None:
        assert len({tuple(order) for order in orders}) == 3


def test_torch_order_is_that_of_torch():
    """Written down from torch 2.8: `torch.randperm(10, generator=torch.Generator().manual_seed(42))`."""
    assert _core.prompt_order("torch", 10, 42, 0).tolist() == [2, 6, 1, 8, 4, 5, 0, 9, 3, 7]


def test_gristmill_order_never_changes():
    assert _core.prompt_order("gristmill", 10, 42, 0).tolist() == [0, 1, 5, 7, 6, 4, 2, 8, 3, 9]
    assert _core.prompt_order("gristmill", 10, 42, 1).tolist() == [6, 1, 0, 3, 2, 5, 4, 8, 9, 7]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_resume_on_any_hosts_continues_the_stream(make, data):
    """Hosts, epochs and restarts at random: the stream stays that of one host."""
    count, prompts = data.draw(st.integers(1, 20)), data.draw(st.sampled_from([1, 2, 3, 4, 6]))
    generations = data.draw(st.sampled_from([1, 2, 4]))
    epochs, drop = data.draw(st.integers(1, 4)), data.draw(st.booleans()) and count >= prompts
    kind = data.draw(st.sampled_from(["gristmill", "torch", "torchdata"]))
    seed = data.draw(st.none() | st.integers(0, 2**64 - 1))
    arguments = {
        "batch_size": prompts, "num_generations": generations, "epochs": epochs, "drop_remainder": drop, "seed": seed,
        "order": kind,
    }  # fmt: skip
    expected = list(
        oracle.batches(count, prompts, generations, orders_of(count, epochs, seed, kind), drop_remainder=drop)
    )
    rows = prompts * generations
    possible = st.sampled_from([n for n in range(1, rows + 1) if rows % n == 0])
    restarts = data.draw(st.lists(st.tuples(possible, st.integers(0, 5)), max_size=4))
    found, state = [], None
    for hosts, steps in [*restarts, (data.draw(possible), None)]:
        iterators = [iter(dataset) for dataset in hosts_of(make, hosts, count, **arguments)]
        for iterator in iterators if state else ():
            iterator.set_state(json.loads(json.dumps(state)))
            assert iterator.get_state() == state
        found += itertools.islice(global_batches(iterators), steps)
        states = [iterator.get_state() for iterator in iterators]
        assert all(other == states[0] for other in states)
        state = states[0]
    assert found == expected
    counts = state["counts"]
    assert counts["batches"] == len(expected)
    assert counts["prompts"] == sum(item >= 0 for batch in expected for item in batch) // generations
    assert counts["prompts"] + counts["left_out"] == count * epochs


def test_ids_are_those_of_the_index(make):
    for batch in make(9, batch_size=4, num_generations=2, seed=3, drop_remainder=False):
        real = batch["index"] >= 0
        assert batch["input_ids"][real, 0].tolist() == batch["index"][real].tolist()
        assert batch["attention_mask"][:, 0].tolist() == real.astype(int).tolist()


def test_endless_epochs_and_changed_epochs_resume(make):
    iterator = iter(make(5, batch_size=2, epochs=None, seed=1))
    endless = items(itertools.islice(iterator, 9))
    assert iterator.get_state()["epoch"] == 4
    assert items(make(5, batch_size=2, epochs=4, seed=1)) == endless[:8]
    ended = iter(make(5, batch_size=2, epochs=2, seed=1))
    assert items(ended) == endless[:4]
    assert ended.get_state() == ended.get_state()
    longer = iter(make(5, batch_size=2, epochs=4, seed=1))
    longer.set_state(ended.get_state())
    assert items(longer) == endless[4:8]


def test_state_of_another_stream_is_refused(make):
    iterator = iter(make(9, batch_size=2, seed=1))
    next(iterator)
    state = iterator.get_state()
    for arguments, message in [
        ({"seed": 2}, "seed was 1 and is 2"),
        ({"seed": 1, "order": "torch"}, "order was the default and is torch"),
        ({"seed": 1, "max_samples": 8}, "max_samples was the default and is 8"),
    ]:
        with pytest.raises(gm.StateError, match=message):
            iter(make(9, batch_size=2, **arguments)).set_state(state)
    with pytest.raises(gm.StateError, match="records was"):
        iter(make(8, batch_size=2, seed=1)).set_state(state)
    for change, message in [
        ({"place": 3}, "the state's place is 3: expected a multiple of batch_size=2"),
        ({"place": 8}, "the state's place is 8"),
        ({"epoch": -1}, "a state's epoch is an integer from 0 on, got -1"),
        ({"epoch": "0"}, "a state's epoch is an integer from 0 on, got '0'"),
        ({"version": 3}, "expected a state of prompts of version 1 or 2, found 3"),
        ({"version": 2}, "a state of prompts has the keys"),
        ({"ids": None}, "a state's ids is a string, got None"),
        ({"lanes": {}}, "a state of prompts has the keys"),
    ]:
        with pytest.raises(gm.StateError, match=message):
            iterator.set_state(state | change)
    with pytest.raises(gm.StateError, match="a state is a dict, got list"):
        iterator.set_state([])
    assert iterator.get_state() == state
    columns = iter(make(9, batch_size=2, seed=1, columns=True))
    columns.set_state(state)
    assert next(columns)["index"].tolist() == next(iterator)["index"].tolist()


def test_too_few_prompts_for_a_batch_are_an_error(make):
    with pytest.raises(gm.ArgumentError, match="there are only 3 prompts, so that no batch is full"):
        next(iter(make(3, batch_size=4)))
    assert items(make(3, batch_size=4, drop_remainder=False)) == [[0, 1, 2, -1]]
    with pytest.raises(gm.ArgumentError, match="there are no prompts"):
        next(iter(make(3, batch_size=4, drop_remainder=False, max_samples=1, keep="prompt == 'x'")))


def test_closed_iterator_is_an_error(make):
    with iter(make(9, batch_size=4)) as iterator:
        next(iterator)
    iterator.close()
    for call in (lambda: next(iterator), lambda: iterator.set_state({})):
        with pytest.raises(gm.ArgumentError, match="this iterator was closed"):
            call()


def test_grain_conformance(make):
    dataset = make(11, batch_size=2, seed=1, epochs=2)
    grain.experimental.assert_equal_output_after_checkpoint(dataset)
    grain.experimental.assert_equal_output_after_checkpoint(dataset.map(lambda batch: batch["index"]))
    threaded = grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=3)
    grain.experimental.assert_equal_output_after_checkpoint(threaded)


def test_grain_reads_it_by_index(make):
    dataset = make(11, batch_size=2)
    source = grain.MapDataset.source(dataset).shuffle(seed=1).repeat(2)
    indices = [int(item["index"]) for item in source]
    assert sorted(indices) == sorted([*range(11)] * 2)
    batched = grain.MapDataset.source(dataset).batch(4, drop_remainder=True)
    np.testing.assert_array_equal(batched[1]["input_ids"], [[4], [5], [6], [7]])
    loaded = grain.DataLoader(
        data_source=dataset,
        sampler=grain.samplers.IndexSampler(len(dataset), shard_options=grain.sharding.NoSharding(), num_epochs=1),
    )
    assert [int(item["index"]) for item in loaded] == list(range(11))


def test_slices_deal_batches_in_turn(make):
    whole = items(make(11, batch_size=2, seed=1, epochs=2))
    parts = []
    for number in range(3):
        dataset = make(11, batch_size=2, seed=1, epochs=2)
        dataset.set_slice(slice(number, None, 3))
        parts.append(items(dataset))
        grain.experimental.assert_equal_output_after_checkpoint(dataset)
    assert [parts[step % 3][step // 3] for step in range(len(whole))] == whole


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_mp_prefetch_yields_the_same_stream_and_restores(make, parsed_flags, workers):
    dataset = make(23, batch_size=2, num_generations=2, seed=1, epochs=2, columns=True, drop_remainder=False)
    whole = [{key: array.tolist() for key, array in batch.items()} for batch in dataset]
    multiprocess = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=1))
    iterator = iter(multiprocess)
    taken = [next(iterator) for _ in range(7)]
    state = json.loads(json.dumps(iterator.get_state()))
    found = [{key: array.tolist() for key, array in batch.items()} for batch in [*taken, *iterator]]
    iterator.close()
    assert found == whole
    again = iter(multiprocess)
    again.set_state(state)
    assert items(again) == [batch["index"] for batch in whole[7:]]
    again.close()


@pytest.mark.slow
def test_mp_prefetch_by_index_yields_the_same_stream(make, parsed_flags):
    dataset = make(11, batch_size=2)
    source = grain.MapDataset.source(dataset).shuffle(seed=1).to_iter_dataset()
    expected = [int(item["index"]) for item in source]
    iterator = iter(source.mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))
    assert [int(item["index"]) for item in iterator] == expected
    iterator.close()


def test_element_spec_matches_the_arrays(make):
    for layout in ("hf", "verl", "maxtext"):
        dataset = make(4, batch_size=2, num_generations=2, layout=layout)
        spec = grain.experimental.get_element_spec(dataset)
        batch = next(iter(dataset))
        for key, value in spec.items():
            assert (batch[key].shape, batch[key].dtype) == (value.shape, value.dtype)


def test_sharding_makes_the_rows_of_this_process(make):
    mesh = jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    dataset = make(8, batch_size=4, num_generations=len(jax.devices()))
    assert items(dataset.for_sharding(sharding)) == items(dataset)


@pytest.mark.parametrize("layout", ["hf", "verl", "maxtext"])
def test_global_batches_move_arrays_and_keep_columns(make, layout):
    sharding = jax.sharding.NamedSharding(jax.make_mesh((1,), ("data",)), jax.sharding.PartitionSpec("data"))
    dataset = make(9, batch_size=2, num_generations=2, layout=layout, full_prompts=True, seed=1, epochs=2)
    with gm.global_batches(dataset, sharding) as batches:
        found = list(itertools.islice(batches, 3))
        state = batches.get_state()
        for expected, batch in zip(dataset, found, strict=False):
            assert list(batch) == list(expected)
            for name, array in expected.items():
                assert isinstance(batch[name], np.ndarray if array.dtype == object else jax.Array)
                assert batch[name].tolist() == array.tolist()
        rest = [batch["full_prompts"].tolist() for batch in batches]
        batches.set_state(state)
        assert [batch["full_prompts"].tolist() for batch in batches] == rest
    with pytest.raises(gm.ArgumentError, match="layout='ragged'"):
        gm.global_batches(make(9, batch_size=2, layout="ragged"), sharding)


def test_checkpoint_restores_prompts(make, tmp_path):
    dataset = make(9, batch_size=2, seed=1, epochs=3)
    iterator = iter(dataset)
    for _ in range(6):
        next(iterator)
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(0, args=ocp.args.Composite(data=gm.CheckpointSave(iterator)))
        manager.wait_until_finished()
        restored = iter(dataset)
        manager.restore(0, args=ocp.args.Composite(data=gm.CheckpointRestore(restored)))
    assert items(restored) == items(iterator)


def test_states_of_all_hosts_are_one(make):
    iterators = [iter(dataset) for dataset in hosts_of(make, 2, 9, batch_size=4)]
    for iterator in iterators:
        next(iterator)
    states = [iterator.get_state() for iterator in iterators]
    assert gm.merge_states(states) == states[0]
    next(iterators[1])
    with pytest.raises(
        gm.StateError, match=r"merge_states: the states differ, at epoch and place \[\(0, 4\), \(1, 0\)\]"
    ):
        gm.merge_states([iterators[0].get_state(), iterators[1].get_state()])
    packed = {"version": 3, "lanes": {}}
    with pytest.raises(gm.StateError):
        gm.merge_states([states[0], packed])


@pytest.mark.slow
def test_hosts_yield_one_stream(make, tmp_path):
    arguments = {
        "batch_size": 8, "num_generations": 2, "seed": 1, "epochs": 2, "drop_remainder": False, "columns": True,
        "prompt_length": 2, "full_prompts": True,
    }  # fmt: skip
    dataset = make(21, **arguments)
    iterator = iter(dataset)
    expected = [next(iterator) for _ in range(4)]
    state = iterator.get_state()
    expected += iterator
    given = {"dataset": dataset, "expected": expected, "state": state, "others": {1: make(20, **arguments)}}
    for found in run_hosts(tmp_path / "hosts", "prompts", given, hosts=2):
        assert "process 1: " in found.pop("error")
        assert "resumed at different steps: process 0 at step 0, process 1 at step 4" in found.pop("steps")
        assert all(differences == [None, None] for differences in found.values()), found
