"""Mixtures of prompts: exact weights in each batch, on any hosts, through stages, restarts and ends of sources."""

import itertools
import json

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gristmill as gm
from gristmill import _core
from mixture_rule import turn


@pytest.fixture
def make(number_encoder):
    """Makes a dataset of sources, of which each has (prompts, weight, epochs)."""

    def make(sources, *, mixture=None, **arguments):
        found, first = {}, 0
        for name, (count, weight, epochs) in sources.items():
            rows = [{"prompt": str(first + number)} for number in range(count)]
            found[name] = gm.Source(rows, weight=weight, epochs=epochs)
            first += count
        return gm.PromptDataset(
            gm.Mixture(found, **(mixture or {})),
            tokenizer=number_encoder,
            prompt=gm.Text("prompt"),
            **{"layout": "hf", "prompt_length": 1, "columns": False, **arguments},
        )

    return make


def model(sources, batch_size, seed, weights_at, on_exhausted="continue", drop_remainder=True, steps=1000):
    """The items of each batch, one prompt after another, and how many of each source came before."""
    names = list(sources)
    ends = itertools.accumulate(size for size, _, _ in sources.values())
    firsts = {name: end - sources[name][0] for name, end in zip(names, ends, strict=True)}
    delivered = dict.fromkeys(names, 0)
    for step in range(steps):
        batch = []
        for row in range(batch_size):
            left = [n for n in names if sources[n][2] is None or delivered[n] < sources[n][2] * sources[n][0]]
            if on_exhausted == "stop" and len(left) < len(names):
                break
            weights = {name: weight for name, weight in weights_at(step).items() if weight}
            if not weights.keys() & left:
                break
            name = turn(step, row, batch_size, weights, seed, exhausted={*names} - {*left})
            size = sources[name][0]
            epoch, place = divmod(delivered[name], size)
            order = range(size) if seed is None else _core.prompt_order("gristmill", size, seed, epoch).tolist()
            batch.append(firsts[name] + order[place])
            delivered[name] += 1
        if not batch or (len(batch) < batch_size and drop_remainder):
            return
        yield batch + [-1] * (batch_size - len(batch))


def items(batches):
    return [batch["index"].tolist() for batch in batches]


THREE = {"math": (40, 5, None), "code": (9, 3, None), "chat": (17, 1, None)}
STAGES = [(0, {"math": 3, "code": 1}), (4, {"chat": 1, "code": 1}), (9, {"chat": 2, "math": 2, "code": 1})]


def stage_weights(step):
    return next(weights for start, weights in reversed(STAGES) if start <= step)


def weights_of(sources):
    return {name: weight for name, (_, weight, _) in sources.items()}


@pytest.mark.parametrize("seed", [None, 3])
def test_batches_are_those_of_the_model(make, seed):
    dataset = make(THREE, batch_size=18, seed=seed)
    expected = list(model(THREE, 18, seed, lambda _: weights_of(THREE), steps=30))
    assert items(itertools.islice(dataset, 30)) == expected
    staged = make(THREE, batch_size=18, seed=seed, mixture={"stages": STAGES})
    assert items(itertools.islice(staged, 30)) == list(model(THREE, 18, seed, stage_weights, steps=30))
    assert len(dataset) == 66
    assert dataset[49]["input_ids"].tolist() == [49]


def test_ten_thousand_batches_are_at_most_one_prompt_off(make):
    dataset = make(THREE, batch_size=20, seed=1, source_arrays=True)
    iterator = iter(dataset)
    shares = np.array([5, 3, 1]) / 9
    totals = np.zeros(3)
    for batch in itertools.islice(iterator, 10_000):
        counts = np.bincount(batch["source"], minlength=3)
        assert np.abs(counts - 20 * shares).max() <= 1
        totals += counts
    assert np.abs(totals / totals.sum() - shares).max() < 1e-4
    stats = iterator.stats()["sources"]
    assert [own["prompts"] for own in stats.values()] == totals.tolist()
    assert stats["code"]["asked"] == pytest.approx(1 / 3)
    assert stats["code"]["given"] == totals[1] / 200_000
    assert stats["code"]["epochs"] == totals[1] / 9


FINITE = {"math": (40, 3, 1), "code": (9, 3, 2), "chat": (17, 2, 1)}


@pytest.mark.parametrize("on_exhausted", ["continue", "stop"])
@pytest.mark.parametrize("drop_remainder", [True, False])
def test_exhausted_sources_leave_their_prompts_to_the_others(make, on_exhausted, drop_remainder):
    dataset = make(FINITE, batch_size=10, seed=5, drop_remainder=drop_remainder, mixture={"on_exhausted": on_exhausted})
    iterator = iter(dataset)
    found = items(iterator)
    expected = list(model(FINITE, 10, 5, lambda _: weights_of(FINITE), on_exhausted, drop_remainder))
    assert found == expected
    with pytest.raises(StopIteration):
        next(iterator)
    if on_exhausted == "continue" and not drop_remainder:
        assert sorted(item for batch in found for item in batch if item >= 0) == sorted(
            [*range(40), *range(40, 49), *range(40, 49), *range(49, 66)]
        )
        assert all(own["exhausted"] for own in iterator.stats()["sources"].values())


def test_error_names_the_exhausted_source_and_more_epochs_go_on(make):
    arguments = {"batch_size": 10, "mixture": {"on_exhausted": "error"}}
    iterator = iter(make(FINITE, **arguments))
    with pytest.raises(gm.ArgumentError, match='the source "code" is exhausted, and step'):
        list(iterator)
    state = iterator.get_state()
    assert state["step"] == state["counts"]["batches"] > 3
    restored = iter(make({**FINITE, "code": (9, 3, 3)}, **arguments))
    restored.set_state(state)
    next(restored)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_resume_on_any_hosts_continues_the_stream(make, data):
    """Sources, stages, hosts and restarts at random: the stream stays that of one host."""
    names = ["a", "b", "c"][: data.draw(st.integers(1, 3))]
    one = st.tuples(st.integers(1, 12), st.integers(1, 9), st.sampled_from([None, 1, 2]))
    sources = {name: data.draw(one) for name in names}
    weights = st.fixed_dictionaries({name: st.integers(0, 5) for name in names})
    stages = [(0, weights_of(sources))]
    for step in data.draw(st.lists(st.integers(1, 9), unique=True, max_size=2).map(sorted)):
        stages.append((step, data.draw(weights.filter(lambda weights: any(weights.values())))))
    mixture = {"stages": stages, "on_exhausted": data.draw(st.sampled_from(["continue", "stop"]))}
    prompts, generations = data.draw(st.sampled_from([1, 2, 3, 4, 6])), data.draw(st.sampled_from([1, 2]))
    seed, drop = data.draw(st.none() | st.integers(0, 2**64 - 1)), data.draw(st.booleans())
    arguments = {"batch_size": prompts, "num_generations": generations, "seed": seed, "drop_remainder": drop}
    rows = prompts * generations

    def play(iterators, steps):
        found = []
        try:
            for parts in itertools.islice(zip(*iterators, strict=True), steps):
                found.append([item for part in parts for item in part["index"].tolist()])
        except gm.ArgumentError:  # only a later stage has sources that are not exhausted
            pass
        return found

    expected = play([iter(make(sources, mixture=mixture, **arguments))], 15)
    whole = model(
        sources, prompts, seed, lambda step: next(weights for start, weights in reversed(stages) if start <= step),
        mixture["on_exhausted"], drop, 15,
    )  # fmt: skip
    assert expected == [[item for item in batch for _ in range(generations)] for batch in whole][: len(expected)]
    possible = st.sampled_from([n for n in range(1, rows + 1) if rows % n == 0])
    found, state = [], None
    for hosts, steps in [*data.draw(st.lists(st.tuples(possible, st.integers(0, 5)), max_size=4)), (1, 15)]:
        iterators = [
            iter(make(sources, mixture=mixture, shard_index=host, shard_count=hosts, **arguments))
            for host in range(hosts)
        ]
        for iterator in iterators if state else ():
            iterator.set_state(json.loads(json.dumps(state)))
            assert iterator.get_state() == state
        found += play(iterators, min(steps, 15 - len(found)))
        state = gm.merge_states([iterator.get_state() for iterator in iterators])
    assert found == expected


def test_future_may_change_and_the_past_may_not(make):
    two = {name: THREE[name] for name in ("math", "code")}
    iterator = iter(make(two, batch_size=12, seed=1))
    list(itertools.islice(iterator, 6))
    state = iterator.get_state()
    joins = [(0, {"math": 5, "code": 3}), (8, {"math": 1, "code": 1, "chat": 1})]
    restored = iter(make(THREE, batch_size=12, seed=1, mixture={"stages": joins}))
    restored.set_state(state)

    def weights_at(step):
        return joins[step >= 8][1]

    expected = list(model(THREE, 12, 1, weights_at, steps=20))
    assert items(itertools.islice(restored, 14)) == expected[6:]
    earlier = [(0, {"math": 5, "code": 3}), (5, {"math": 1})]
    with pytest.raises(gm.StateError, match="the weights of step 5, which is in the past of step 6"):
        iter(make(THREE, batch_size=12, seed=1, mixture={"stages": earlier})).set_state(state)
    with pytest.raises(gm.StateError, match="the source 'code' is missing: keep it"):
        iter(make({"math": THREE["math"]}, batch_size=12, seed=1)).set_state(state)
    with pytest.raises(gm.StateError, match="of the source 'code' records was"):
        iter(make({**two, "code": (8, 3, None)}, batch_size=12, seed=1)).set_state(state)
    with pytest.raises(gm.StateError, match="batch_size was 12 and is 6"):
        iter(make(two, batch_size=6, seed=1)).set_state(state)
    for damaged in ({**state, "sources": 1}, {**state, "sources": {"math": -1}}, {**state, "version": 1}, {"place": 1}):
        with pytest.raises(gm.StateError):
            iterator.set_state(damaged)


def test_sources_have_their_own_records_prompts_and_columns(number_encoder, tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"prompt": str(n), "answer": n}) + "\n" for n in range(8)))
    lines = [json.dumps({"question": str(100 + n), "tests": [n]}) for n in range(8)]
    (tmp_path / "b.jsonl").write_text("\n".join([*lines, '{"question": 5}', '{"question": "1 2 3 4"}']) + "\n")
    mixture = gm.Mixture(
        {
            "math": gm.Source(tmp_path / "a.jsonl", weight=1, keep="answer != 3"),
            "code": gm.Source(
                tmp_path / "b.jsonl",
                weight=1,
                sample=gm.Text("question"),
                on_error="quarantine",
                max_error_rate=0.5,
            ),
        }
    )
    dataset = gm.PromptDataset(
        mixture,
        tokenizer=number_encoder,
        prompt=gm.Text("prompt"),
        prompt_length=3,
        batch_size=4,
        layout="maxtext",
        raw_prompt=True,
        source_arrays=True,
    )
    assert dataset.counts() == {
        "read": 18, "kept": 15, "overlong": 1, "filtered": 1, "quarantined": 1, "lost_shards": 0, "empty": 0,
    }  # fmt: skip
    assert dataset.columns == ("answer", "tests")
    assert [(entry["shard"], entry["record"]) for entry in dataset.dropped()] == [
        (str(tmp_path / "b.jsonl"), 8),
        (str(tmp_path / "b.jsonl"), 9),
    ]
    assert dataset.source(7) == (str(tmp_path / "b.jsonl"), 0)
    assert dataset.text(7) == "100"
    batch = next(iter(dataset))
    for row, number in enumerate(batch["source"]):
        token = int(batch["prompt"][row, 0])
        assert (token >= 100) == number
        assert batch["raw_prompt"][row] == str(token)
        assert (batch["answer"][row] is None) == bool(number)
        assert (batch["tests"][row] is None) == (not number)
    np.testing.assert_array_equal(batch["weight"], np.full(4, 0.5, np.float32))
    stats = iter(dataset).stats()["sources"]
    assert [(own["read"], own["kept"]) for own in stats.values()] == [(8, 7), (10, 8)]


def test_global_batches_are_those_of_the_dataset(make):
    dataset = make(FINITE, batch_size=8, seed=2, source_arrays=True, drop_remainder=False)
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))
    batches = gm.global_batches(dataset, sharding)
    list(itertools.islice(batches, 3))
    state = batches.get_state()
    found = [{name: np.asarray(array) for name, array in batch.items()} for batch in batches]
    expected = list(dataset)[3:]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name in ("input_ids", "source", "weight", "index"):
            np.testing.assert_array_equal(one[name], other[name])
    again = iter(dataset)
    again.set_state(gm.merge_states([state]))
    assert items(again) == items(expected)


def test_worker_processes_share_the_batches(make):
    whole = items(make(FINITE, batch_size=7, seed=2))
    workers = []
    for index in range(3):
        dataset = make(FINITE, batch_size=7, seed=2)
        dataset.set_slice(slice(index, None, 3))
        iterator = iter(dataset)
        found = items(itertools.islice(iterator, 1))
        restored = iter(dataset)
        restored.set_state(iterator.get_state())
        workers.append(found + items(restored))
    assert [batch for batches in itertools.zip_longest(*workers) for batch in batches if batch is not None] == whole


def test_checkpoint_holds_the_sources(make, tmp_path):
    dataset = make(FINITE, batch_size=8, seed=2)
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))
    with ocp.CheckpointManager(tmp_path) as manager, gm.global_batches(dataset, sharding) as batches:
        list(itertools.islice(batches, 4))
        manager.save(4, args=ocp.args.Composite(data=gm.CheckpointSave(batches)))
        manager.wait_until_finished()
    with ocp.CheckpointManager(tmp_path) as manager, gm.global_batches(dataset, sharding) as batches:
        manager.restore(4, args=ocp.args.Composite(data=gm.CheckpointRestore(batches)))
        assert [np.asarray(batch["index"]).tolist() for batch in batches] == items(dataset)[4:]


def test_state_is_inspected(make, tmp_path, capsys):
    from gristmill._inspect import prompt_states

    iterator = iter(make(THREE, batch_size=9))
    list(itertools.islice(iterator, 2))
    found = prompt_states.inspect(tmp_path / "state.json", iterator.get_state())
    assert (found["step"], found["sources"]) == (2, {"chat": 2, "code": 6, "math": 10})
    assert "step 2, after 2 of chat, 6 of code, 10 of math" in prompt_states.describe(found)


@pytest.mark.parametrize(
    ("arguments", "mixture", "message"),
    [
        ({"epochs": 2}, {}, "epochs=2: each source of a mixture has its own"),
        ({"keep": "a > 1"}, {}, "each source of a mixture has its own"),
        ({"select": [1]}, {}, "a mixture has records of several sources"),
        ({}, {"weights_by": "tokens"}, "use 'rows'"),
    ],
)
def test_wrong_arguments_are_named(make, arguments, mixture, message):
    with pytest.raises(gm.ArgumentError, match=message):
        make(THREE, mixture=mixture, **arguments)


def test_mixtures_without_prompts_are_refused(make, number_encoder):
    few = iter(make({"a": (3, 1, 1), "b": (2, 1, 1)}, batch_size=6))
    for _ in range(2):
        with pytest.raises(gm.ArgumentError, match="batch_size=6: the sources have only 5 prompts"):
            next(few)
    empty = {"a": gm.Source([{"prompt": "1"}], weight=1), "b": gm.Source([{"prompt": "1 2"}], weight=0)}
    with pytest.raises(gm.ArgumentError, match="source 'b': there is no prompt; of its records: 1 read, 1 overlong"):
        gm.PromptDataset(gm.Mixture(empty), tokenizer=number_encoder, prompt=gm.Text("prompt"), prompt_length=1)


def test_hundreds_of_sources_of_one_prompt(make):
    sources = {f"s{number}": (1, 1 + number % 3, None) for number in range(300)}
    dataset = make(sources, batch_size=600, seed=1, source_arrays=True)
    batch = next(iter(dataset))
    weights = np.array([1 + number % 3 for number in range(300)])
    counts = np.bincount(batch["source"], minlength=300)
    assert np.abs(counts - weights).max() <= 1
    assert (batch["index"] == batch["source"]).all()
    np.testing.assert_allclose(batch["weight"], (weights / 600)[batch["source"]], rtol=1e-6)


def test_arguments_of_documents_are_refused(number_encoder):
    source = gm.Source([{"prompt": "1"}], weight=1, split_bytes=100)
    with pytest.raises(gm.ArgumentError, match="source 'a': split_bytes=100: prompts have no such argument"):
        gm.PromptDataset(gm.Mixture({"a": source}), tokenizer=number_encoder, prompt=gm.Text("prompt"))
    with pytest.raises(gm.ArgumentError, match="source_arrays=True"):
        gm.PromptDataset([{"prompt": "1"}], tokenizer=number_encoder, prompt=gm.Text("prompt"), source_arrays=True)
    mixture = gm.Mixture({"a": gm.Source([{"prompt": "1"}], weight=1)})
    dataset = gm.PromptDataset(mixture, tokenizer=number_encoder, prompt=gm.Text("prompt"))
    with pytest.raises(gm.ArgumentError, match="epochs of their own"):
        _ = dataset.steps_per_epoch
