"""`commit`: states count what was trained on, in any order, and not what was delivered."""

import json
import random

import numpy as np
import pytest

import gristmill as gm
from gristmill._state.commits import Committed
from helpers import assert_same_batches, write_shard

STEPS = 18


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commit")
    for number in range(4):
        write_shard(folder / f"{number}.jsonl", [f"shard {number} text {index} " + "word " * 9 for index in range(12)])
    return folder


@pytest.fixture(scope="module")
def dataset(folder, encoder):
    return gm.PackedDataset(
        f"{folder}/*.jsonl", tokenizer=encoder, text_field="raw_content", sequence_length=32, batch_size=4, lanes=2,
        threads=1, prefetch=2, seed=1, packing="best_fit", fit_window=16,
    )  # fmt: skip


@pytest.fixture(scope="module")
def prompts(tmp_path_factory, number_encoder):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": str(number)}) + "\n" for number in range(1, 40)))
    return gm.PromptDataset(
        path,
        tokenizer=number_encoder,
        prompt=gm.Text("prompt"),
        prompt_length=4,
        batch_size=4,
        seed=3,
        epochs=2,
        drop_remainder=False,
    )


@pytest.fixture(scope="module")
def number_encoder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    vocab = {str(number): number for number in range(1000)}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "0"}
    path.write_text(json.dumps({"pre_tokenizer": {"type": "Whitespace"}, "model": model}))
    return gm.Encoder.from_file(path)


def plain(value):
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def run_with_kills(dataset, kills, seed, most_in_flight=6):
    """Trains with a queue, and is killed at random: returns the steps that were trained on, in their order."""
    chance = random.Random(seed)
    saved = (None, [])
    while True:
        state, trained = saved[0], [*saved[1]]
        iterator, queue, ended = iter(dataset), [], False
        if state is None:
            iterator.commit([])
        else:
            iterator.set_state(json.loads(json.dumps(state)))
        life = chance.randrange(1, 12) if kills > 0 else 10**9
        while life > 0:
            life -= 1
            if not ended and len(queue) < most_in_flight and chance.random() < 0.6:
                batch = next(iterator, None)
                ended = batch is None
                if not ended:
                    queue.append((iterator.step, batch))
            elif queue:
                step, batch = queue.pop(chance.randrange(len(queue)))
                trained.append((step, batch))
                iterator.commit(step)
            elif ended:
                return trained
            if chance.random() < 0.4:  # a checkpoint of the model and of the loader
                saved = (iterator.get_state(), [*trained])
        kills -= 1
        iterator.close()


def test_nothing_is_skipped_or_trained_twice_by_packed_rows(dataset):
    expected = list(dataset)
    for seed in range(8):
        trained = run_with_kills(dataset, 25, seed)
        assert sorted(step for step, _ in trained) == list(range(len(expected)))
        for step, batch in trained:
            assert_same_batches([batch], [expected[step]])


def test_nothing_is_skipped_or_trained_twice_by_prompts(prompts):
    expected = [batch["index"].tolist() for batch in prompts]
    for seed in range(50):
        trained = run_with_kills(prompts, 200, seed)
        assert sorted(step for step, _ in trained) == list(range(len(expected)))
        for step, batch in trained:
            assert batch["index"].tolist() == expected[step]


@pytest.mark.parametrize("name", ["dataset", "prompts"])
def test_rows_are_committed_by_their_ids(name, request):
    """Rollouts end one by one, and some are trained on before others of their batch."""
    dataset = request.getfixturevalue(name)
    chance = random.Random(7)
    whole = iter(dataset)
    expected = {}
    for batch in whole:
        for row, number in enumerate(whole.ids.tolist()):
            content = {key: plain(array[row]) for key, array in batch.items()}
            if content.get("index", 0) >= 0:
                expected[number] = content
    state, trained = None, {}
    for _ in range(400):
        iterator, queue = iter(dataset), []
        if state is not None:
            iterator.set_state(json.loads(json.dumps(state)))
        ended = False
        kept = dict(trained)
        for _ in range(chance.randrange(1, 14)):
            if not ended and chance.random() < 0.5:
                batch = next(iterator, None)
                ended = batch is None
                for row, number in enumerate([] if ended else iterator.ids.tolist()):
                    content = {key: plain(array[row]) for key, array in batch.items()}
                    is_padding = content.get("index") == -1 or not any(content.get("inputs_segmentation", [1]))
                    if number in kept:
                        assert is_padding, "a row comes again that was committed"
                    elif (number in expected and not is_padding) or name == "dataset":
                        queue.append((number, content))
            elif queue:
                chance.shuffle(queue)
                taken, queue = queue[:3], queue[3:]
                for number, content in taken:
                    assert number not in kept
                    assert content == expected[number]
                    kept[number] = content
                iterator.commit(np.array([number for number, _ in taken]))
        state, trained = iterator.get_state(), kept
        iterator.close()
        if ended and not queue and len(trained) == len(expected):
            break
    assert trained.keys() == expected.keys()


def test_state_is_as_before_without_a_commit(dataset):
    iterator, other = iter(dataset), iter(dataset)
    for _ in range(3):
        next(iterator)
        next(other)
    assert iterator.step == 2
    iterator.commit(0)
    state = iterator.get_state()
    assert (state["step"], state["committed"]) == (0, "0")
    iterator.commit([4, 5, 6, 7])
    iterator.commit(2)
    assert iterator.get_state() == {**other.get_state(), "committed": ""}
    assert "committed" not in other.get_state()


def test_steps_in_flight_come_again(dataset):
    expected = list(dataset)
    iterator = iter(dataset)
    next(iterator)
    iterator.commit(0)
    for _ in range(5):
        next(iterator)
    iterator.commit(2)
    iterator.commit(4)
    iterator.commit([4 * 5 + 1])
    state = iterator.get_state()
    assert (state["step"], state["committed"]) == (1, "2,4,5:1")
    restored = iter(dataset)
    restored.set_state(state)
    assert restored.get_state() == state
    batches = list(restored)
    assert_same_batches(batches[:2], [expected[1], expected[3]])
    assert_same_batches(batches[3:], expected[6:])
    blank = {name: np.array(array) for name, array in expected[5].items()}
    for array in blank.values():
        array[1] = 0
    assert_same_batches([batches[2]], [blank])
    restored.commit(2)  # again
    with pytest.raises(gm.StateError, match="first step that differs is 4"):
        iter(dataset_with(dataset, skip=[(4, 5)])).set_state(state)


def dataset_with(dataset, **arguments):
    return gm.PackedDataset(
        dataset.manifest, tokenizer=dataset.encoder, text_field="raw_content", sequence_length=32, batch_size=4,
        lanes=2, seed=1, packing="best_fit", fit_window=16, **arguments,
    )  # fmt: skip


def test_skipped_steps_and_stages_are_passed(dataset):
    staged = dataset_with(dataset, skip=[(2, 4)], stages=[gm.Stage(0, 32, 4), gm.Stage(5, 16, 2)])
    iterator = iter(staged)
    seen = []
    for _ in range(6):
        next(iterator)
        seen.append((iterator.step, iterator.ids.tolist()))
        iterator.commit(0)
    assert [step for step, _ in seen] == [0, 1, 4, 5, 6, 7]
    assert seen[3] == (5, [20, 21])
    for step in (1, 4):
        iterator.commit(step)
    iterator.commit([22, 23])
    state = iterator.get_state()
    assert (state["step"], state["committed"]) == (5, "6")
    restored = iter(staged)
    restored.set_state(state)
    next(restored)
    next(restored)
    assert restored.step == 7


def test_states_of_hosts_are_merged(dataset):
    hosts = [iter(dataset.for_hosts(index, 2)) for index in range(2)]
    for host in hosts:
        for _ in range(4):
            next(host)
        host.commit(1)
        host.commit(host.ids)
    state = gm.merge_states([host.get_state() for host in hosts])
    assert state["committed"] == "1,3:0-3"
    whole = iter(dataset)
    whole.set_state(state)
    next(whole)
    next(whole)
    assert whole.step == 2
    next(whole)
    hosts[1].commit(2)
    with pytest.raises(gm.StateError, match="commit the same steps on every host"):
        gm.merge_states([host.get_state() for host in hosts])


@pytest.mark.parametrize(
    ("what", "error"),
    [(5, gm.ArgumentError), ([99], gm.ArgumentError), (-1, gm.ArgumentError), ("x", TypeError), ([1.5], TypeError)],
)
def test_only_delivered_steps_are_committed(dataset, prompts, what, error):
    for made in (dataset, prompts):
        iterator = iter(made)
        next(iterator)
        with pytest.raises(error):
            iterator.commit(what)
        assert "committed" not in iterator.get_state()


def test_single_rows_have_no_steps_to_commit(folder, encoder):
    iterator = iter(gm.PackedDataset(f"{folder}/*.jsonl", tokenizer=encoder, text_field="raw_content"))
    next(iterator)
    with pytest.raises(gm.ArgumentError, match="set the dataset's batch_size"):
        iterator.commit(0)


@pytest.mark.parametrize("text", ["a", "1,,2", "3-2", "1:", "1:2-1", "01", 5, "1-99999999999"])
def test_damaged_states_are_refused(dataset, text):
    iterator = iter(dataset)
    with pytest.raises(gm.StateError, match="a state's committed are steps and rows"):
        iterator.set_state({**iterator.get_state(), "committed": text})


def test_text_holds_all_that_is_committed():
    chance = random.Random(1)
    for _ in range(200):
        committed = Committed()
        for _ in range(chance.randrange(1, 20)):
            committed.add_step(chance.randrange(40))
        for _ in range(chance.randrange(5)):
            committed.add_rows(chance.randrange(60), [chance.randrange(8) for _ in range(4)], 9)
        again = Committed.read(str(committed))
        assert (again.steps, again.rows) == (committed.steps, committed.rows)
