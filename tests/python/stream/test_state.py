"""Saved states: restoring at every step and on other numbers of hosts, and refusing states that do not fit."""

import copy
import itertools
import json
import pickle
import re
import shutil

import numpy as np
import pytest

import gristmill as gm
from gristmill._state import states as saved_states
from helpers import assert_same_batches, take_padding


def dataset(shards: str, encoder: gm.Encoder, **arguments: object) -> gm.PackedDataset:
    settings = {
        "tokenizer": encoder,
        "text_field": "raw_content",
        "sequence_length": 256,
        "batch_size": 16,
        "lanes": 8,
        "threads": 2,
    }
    return gm.PackedDataset(shards, **{**settings, **arguments})


VARIANTS = [
    {},
    {"batch_size": None},
    {"epochs": 2, "seed": 5, "shuffle_window": 7},
    {"seed": 1, "batch_size": None},
    {"bos": True, "boundary_targets": True, "lanes": 4},
    {"packing": "best_fit", "fit_window": 5, "seed": 7, "shuffle_window": 9, "epochs": 2},
    {"packing": "best_fit", "fit_window": 30},
    {"packing": "pad", "truncation": "split", "seed": 7, "shuffle_window": 4},
    {"packing": "pad", "truncation": "middle"},
    {"packing": "concat", "truncation": "middle", "seed": 7},
    {"packing": "best_fit", "fit_window": 50, "truncation": "left"},
]


@pytest.mark.parametrize("arguments", VARIANTS)
def test_every_state_restores_the_rest_of_the_stream(shards, encoder, arguments):
    ds = dataset(shards, encoder, **arguments)
    iterator = iter(ds)
    states, elements = [iterator.get_state()], []
    for element in iterator:
        states.append(json.loads(json.dumps(iterator.get_state())))
        elements.append(element)
    assert len(elements) > 10
    for step in [*range(0, len(states), max(1, len(states) // 40)), len(states) - 1]:
        restored = iter(ds)
        restored.set_state(states[step])
        assert restored.get_state() == states[step]
        assert_same_batches(restored, elements[step:])
        assert restored.get_state() == states[-1]
        assert restored.stats()["tokens"] == iterator.stats()["tokens"]


def test_iterator_restores_in_any_order(shards, encoder):
    iterator = iter(dataset(shards, encoder))
    elements, states = [], []
    for element in iterator:
        elements.append(element)
        states.append(iterator.get_state())
    for step in (3, 0, len(states) - 1, 7):
        iterator.set_state(states[step])
        assert_same_batches(iterator, elements[step + 1 :])
        with pytest.raises(StopIteration):
            next(iterator)


@pytest.mark.parametrize("seed", [None, 3])
def test_state_restores_on_any_number_of_hosts(shards, encoder, seed):
    def hosts(count):
        return [
            iter(dataset(shards, encoder, seed=seed, epochs=None, shard_index=i, shard_count=count))
            for i in range(count)
        ]

    def step(iterators):
        parts = [next(iterator) for iterator in iterators]
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

    expected = list(itertools.islice(dataset(shards, encoder, seed=seed, epochs=None), 30))
    iterators, got = hosts(1), []
    for count in (4, 2, 8, 1, 4):
        state = gm.merge_states([iterator.get_state() for iterator in iterators])
        for iterator in iterators:
            iterator.close()
        iterators = hosts(count)
        for iterator in iterators:
            iterator.set_state(state)
        got.extend(step(iterators) for _ in range(6))
    assert_same_batches(got, expected)


def joined(iterators):
    """A step of all hosts as one batch; None when all have ended. A host that has ended yields padding."""
    parts = [next(iterator, None) for iterator in iterators]
    if not any(parts):
        return None
    parts = [take_padding(iterator) if part is None else part for iterator, part in zip(iterators, parts, strict=True)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def epoch_ends(states, epoch):
    """The steps just before, at and after those in which the first and the last lane enter an epoch."""
    entered = [
        next(
            (
                step
                for step, state in enumerate(states)
                if saved_states.cursor_numbers(state["lanes"][lane])["epoch"] >= epoch
            ),
            len(states) - 1,
        )
        for lane in states[0]["lanes"]
    ]
    steps = {step + offset for step in (min(entered), max(entered)) for offset in (-1, 0, 1)}
    return sorted(step for step in steps if 0 <= step < len(states))


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("seed", [None, 9])
@pytest.mark.parametrize(
    "packing",
    [{"packing": "concat"}, {"packing": "best_fit", "fit_window": 50}, {"packing": "pad", "truncation": "split"}],
    ids=lambda packing: packing["packing"],
)
@pytest.mark.parametrize("epochs", [2, None])
def test_restore_near_the_end_of_an_epoch(shards, encoder, packing, seed, hosts, epochs):
    arguments = {**packing, "seed": seed, "shuffle_window": 40, "epochs": epochs, "batch_size": 32}
    whole = iter(dataset(shards, encoder, **arguments))
    batches, states = [], [whole.get_state()]
    for batch in itertools.islice(whole, None if epochs else 60):
        batches.append(batch)
        states.append(whole.get_state())
    whole.close()
    # Also after the end, where every call says so again.
    steps = {*epoch_ends(states, 1), *(epoch_ends(states, 2) if epochs else []), len(states) - 1}
    iterators = [
        iter(dataset(shards, encoder, **arguments, shard_index=host, shard_count=hosts)) for host in range(hosts)
    ]
    assert len(steps) >= 4
    for step in sorted(steps):
        for iterator in iterators:
            iterator.set_state(states[step])
        for batch in batches[step : step + 4]:
            assert_same_batches([joined(iterators)], [batch])
        if epochs and step + 4 >= len(batches):
            assert joined(iterators) is None
            assert joined(iterators) is None
            assert gm.merge_states([iterator.get_state() for iterator in iterators]) == states[-1]
    for iterator in iterators:
        iterator.close()


def test_two_epochs_deliver_every_document_twice(shards, encoder, texts):
    for packing in ("concat", "best_fit"):
        for seed in (None, 4):
            iterator = iter(dataset(shards, encoder, packing=packing, seed=seed, epochs=2))
            for _ in iterator:
                pass
            stats = iterator.stats()
            assert stats["documents"] == 2 * 340
            assert stats["text_bytes"] == 2 * sum(len(text.encode()) for text in texts[:340])


def test_more_shards_are_refused_with_advice(shards, shard_folder, encoder, tmp_path):
    state = iter(dataset(shards, encoder)).get_state()
    grown = tmp_path / "grown"
    shutil.copytree(shard_folder, grown)
    shutil.copytree(grown / "0000", grown / "0008")
    with pytest.raises(gm.StateError, match=r"manifest was .* and is .*to add shards, use edits="):
        iter(dataset(str(grown / "*" / "en_head.json.gz"), encoder)).set_state(state)


def test_states_are_independent_json_values(shards, encoder):
    iterator = iter(dataset(shards, encoder))
    first = iterator.get_state()
    kept = copy.deepcopy(first)
    next(iterator)
    second = iterator.get_state()
    assert first == kept != second
    first["lanes"]["0"] = ""
    assert iterator.get_state() == second
    assert json.loads(json.dumps(second)) == second
    assert kept["lanes"].keys() == second["lanes"].keys()


def test_set_state_after_the_end_starts_no_thread(shards, encoder, thread_count):
    iterator = iter(dataset(shards, encoder))
    start = iterator.get_state()
    elements = list(iterator)
    before = thread_count()
    iterator.set_state(start)
    assert thread_count() == before
    assert_same_batches(iterator, elements)


def test_state_of_another_stream_names_the_arguments(shards, encoder):
    state = iter(dataset(shards, encoder)).get_state()
    other = iter(dataset(shards, encoder, sequence_length=128, seed=3))
    with pytest.raises(
        gm.StateError, match=r"seed was the default \(None\) and is 3, sequence_length was 256 and"
    ) as raised:
        other.set_state(state)
    assert "add shards" not in str(raised.value)


def test_state_restores_with_other_run_settings(shards, encoder):
    saved = iter(dataset(shards, encoder))
    next(saved)
    restored = iter(dataset(shards, encoder, threads=1, prefetch=9))
    restored.set_state(saved.get_state())
    assert_same_batches(restored, list(saved))


def test_merge_states_refuses_states_that_do_not_match(shards, encoder):
    hosts = [iter(dataset(shards, encoder, shard_index=i, shard_count=2)) for i in range(2)]
    states = [host.get_state() for host in hosts]
    merged = gm.merge_states(states[::-1])
    assert list(merged["lanes"]) == [str(lane) for lane in range(8)]
    with pytest.raises(gm.StateError, match=r"lanes 0, 1, 2, 3, and this iterator also needs 4, 5, 6, 7"):
        hosts[1].set_state(states[0])
    next(hosts[0])
    ahead = hosts[0].get_state()
    with pytest.raises(gm.StateError, match="different steps, 0 and 1"):
        gm.merge_states([ahead, states[1]])
    next(hosts[1])
    forged = {**ahead, "lanes": {**ahead["lanes"], "0": "record=1"}}
    with pytest.raises(gm.StateError, match="two states hold different cursors for lane 0"):
        gm.merge_states([ahead, forged])
    with pytest.raises(gm.StateError, match="got none"):
        gm.merge_states([])
    assert gm.merge_states([ahead, ahead]) == ahead


def test_states_within_a_step_do_not_merge(shards, encoder):
    hosts = [iter(dataset(shards, encoder, batch_size=None, lanes=8, shard_index=i, shard_count=2)) for i in range(2)]
    for host in hosts:
        next(host)
    with pytest.raises(
        gm.StateError, match="after row 1 of a step; states can only be merged at batch boundaries: save after"
    ):
        gm.merge_states([host.get_state() for host in hosts])


def test_merge_states_takes_the_step_of_the_last_host(shards, encoder):
    hosts = [iter(dataset(shards, encoder, shard_index=i, shard_count=8)) for i in range(8)]
    for host in hosts:
        for _ in host:
            pass
    states = [host.get_state() for host in hosts]
    steps = [state["step"] for state in states]
    assert len(set(steps)) > 1
    assert gm.merge_states(states)["step"] == max(steps)


def put(state, name, value):
    """Changes one of lane 0's numbers."""
    changed = {**saved_states.cursor_numbers(state["lanes"]["0"]), name: value}
    state["lanes"]["0"] = " ".join(f"{name}={value}" for name, value in changed.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: s.update(version=7),
            "has version 7, but this release of gristmill reads the versions 3 and, of mixtures, 4: update",
        ),
        (lambda s: s.pop("step"), "has the keys"),
        (lambda s: s.update(step=-1), "step is an integer"),
        (lambda s: s.update(version=True), "a state's version is an integer, got True"),
        (lambda s: s.update(version=2), "has version 2, of a release of gristmill before 0.1.0"),
        (lambda s: s.update(ids=5), "a state's ids is a string, got 5"),
        (lambda s: s.update(ids="tokenizers=0.1 probe=0"), "saved with the ids of tokenizers 0.1, and this release"),
        (lambda s: s.update(lanes=[]), "lanes are a dict"),
        (lambda s: s["lanes"].update({"00": s["lanes"]["0"]}), "named by their numbers as strings, got '00'"),
        (lambda s: s["lanes"].update({"9" * 5000: s["lanes"]["0"]}), "named by their numbers as strings, got '999"),
        (lambda s: s.update(step=10**5000), r"step is an integer from 0 to 2\*\*62, got <int>"),
        (lambda s: s["lanes"].update({"0": [0] * 15}), "lane 0 is a string of numbers, got"),
        (lambda s: s["lanes"].update({"0": " ".join("0" * 12)}), 'expected numbers as name=number, found "0"'),
        (lambda s: put(s, "epoch", 5), r"epoch 5, and epochs=1"),
        (lambda s: put(s, "shard", 9), r"shard 9 of 1"),
        (lambda s: put(s, "delivered", 9), "inside a window, and this stream has none"),
        (lambda s: put(s, "epoch", 1.5), 'expected epoch to be an integer from 0 to .*, found "1.5"'),
        (lambda s: put(s, "epoch", "٣"), "expected epoch to be an integer from 0 to"),
        (
            lambda s: put(s, "epoch", 2**62 + 1),
            r"lane 0 cannot be read: expected epoch to be an integer from 0 to 2\*\*62, found \"4611686018427387905\"",
        ),
        (lambda s: s.update(row=3), "within a step"),
        (
            lambda s: s.update(step=2**62),
            "the state's step is 4611686018427387904: expected at most 1125899906842624, ",
        ),
        (
            lambda s: s.update(step=2**50 + 1),
            "expected at most 1125899906842624, because no stream has more steps of 16 rows",
        ),
    ],
)
def test_damaged_states_are_refused(shards, encoder, change, message):
    iterator = iter(dataset(shards, encoder))
    next(iterator)
    state = iterator.get_state()
    change(state)
    with pytest.raises(gm.StateError, match=message):
        iterator.set_state(state)


def test_state_with_fewer_cursor_numbers_restores(shards, encoder):
    """A number that a release adds to cursors is 0 in states saved before it."""
    iterator = iter(dataset(shards, encoder, on_error="quarantine"))
    next(iterator)
    state = iterator.get_state()
    # As if `lost_shards` and `dropped` were new, and numbers had another order.
    for lane, cursor in state["lanes"].items():
        numbers = [part for part in cursor.split(" ") if not part.startswith(("lost_shards=", "dropped="))]
        state["lanes"][lane] = " ".join(reversed(numbers))
    restored = iter(dataset(shards, encoder, on_error="quarantine"))
    restored.set_state(state)
    assert restored.get_state() == iterator.get_state()
    assert_same_batches(restored, list(iterator))


def test_state_with_unknown_cursor_number_is_refused(shards, encoder):
    iterator = iter(dataset(shards, encoder))
    state = iterator.get_state()
    state["lanes"]["0"] = "record=0 newer=7"
    with pytest.raises(gm.StateError, match='found a number "newer", which this release does not know'):
        iterator.set_state(state)


def test_state_of_other_tokenizers_restores_if_probe_is_equal(shards, encoder):
    iterator = iter(dataset(shards, encoder))
    next(iterator)
    state = iterator.get_state()
    version, probe = state["ids"].split(" ")
    assert version == f"tokenizers={gm.build_info()['tokenizers_crate']}"
    iterator.set_state({**state, "ids": f"tokenizers=0.99.0 {probe}"})
    assert iterator.get_state() == state
    with pytest.raises(gm.StateError, match=r"of tokenizers 0\.99\.0, .* whose ids of a probe text differ"):
        iterator.set_state({**state, "ids": "tokenizers=0.99.0 probe=0123456789abcdef"})


@pytest.mark.parametrize(("batch_size", "rows"), [(16, 16), (None, 8)])
def test_stats_of_the_last_possible_step_do_not_overflow(shards, encoder, batch_size, rows):
    iterator = iter(dataset(shards, encoder, batch_size=batch_size))
    state = iterator.get_state()
    iterator.set_state({**state, "step": 2**62 // (rows * 256)})
    stats = iterator.stats()
    assert (stats["rows"], stats["padding_tokens"]) == (2**62 // 256, 2**62)


@pytest.mark.parametrize(("field", "value"), [("record", 1), ("byte", 17), ("offset", 10**9)])
def test_cursor_that_shards_contradict_fails_at_next(shards, encoder, field, value):
    iterator = iter(dataset(shards, encoder))
    state = iterator.get_state()
    put(state, field, value)
    iterator.set_state(state)
    with pytest.raises(gm.StateError):
        next(iterator)
    iterator.set_state(iter(dataset(shards, encoder)).get_state())
    next(iterator)


def test_values_that_are_not_states_are_refused(shards, encoder):
    iterator = iter(dataset(shards, encoder))
    state = iterator.get_state()
    with pytest.raises(gm.StateError, match=r"a state is a dict, got str: json\.loads it first"):
        iterator.set_state(json.dumps(state))
    with pytest.raises(gm.StateError, match=r"a state is a dict, got list$"):
        iterator.set_state([state])
    with pytest.raises(gm.ArgumentTypeError, match=r"states={.*expected a list of states, got dict"):
        gm.merge_states(state)


def test_errors_pickle():
    for error in (gm.StateError("x"), gm.ShardError("s", 3, 4, "r"), gm.ArgumentError("a"), gm.MissingShardError("m")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.__dict__) == (type(error), str(error), error.__dict__)


@pytest.mark.parametrize(
    ("options", "steps", "says"),
    [
        ({}, 2, r"the state of lane 0 is at token 32 of a document, but the document here has 2 tokens: it was saved"),
        (
            {"seed": 1, "packing": "best_fit"},
            2,
            r"the state of lane 0 is inside the window of documents that begins here, but another window is read now",
        ),
    ],
)
def test_state_of_changed_shards_names_lane_and_record(tmp_path, encoder, options, steps, says):
    """The manifest has only sizes: other content of the same size is found when it is read."""
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": " a" * 200}) + "\n" + json.dumps({"text": " a" * 10}) + "\n")
    dataset = gm.PackedDataset(path, tokenizer=encoder, sequence_length=16, batch_size=1, **options)
    iterator = iter(dataset)
    for _ in range(steps):
        next(iterator)
    state = iterator.get_state()
    iterator.close()
    path.write_text('{"text": "a"}'.ljust(path.stat().st_size - 1) + "\n")
    iterator = iter(dataset)
    iterator.set_state(state)
    with pytest.raises(gm.StateError, match=rf"^{re.escape(str(path))}: record 0, byte 0: {says}"):
        next(iterator)
