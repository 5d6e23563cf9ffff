"""torchtitan's dataloader on 1, 2 and 4 ranks of gloo; `make test-torchtitan` installs torch and torchtitan."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

import gristmill as gm
from helpers import write_shard
from run_hosts import run_hosts

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torchtitan")
pytest.importorskip("torchtitan", reason="torchtitan is not installed: make test-torchtitan")
titan = pytest.importorskip("gristmill.integrations.torchtitan")
rank_programs = pytest.importorskip("rank_programs")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LENGTH = 64
GLOBAL_BATCH = 8
KEYS = {"input": "inputs", "positions": "inputs_position", "labels": "targets"}


@pytest.fixture(scope="module")
def shards(tmp_path_factory, texts):
    """Four shards of very different sizes, so that lanes end at very different steps."""
    folder = tmp_path_factory.mktemp("shards")
    start = 0
    for number, count in enumerate((40, 10, 3, 25)):
        write_shard(folder / f"{number}.json.gz", [text[:700] for text in texts[start : start + count]])
        start += count
    return str(folder / "*.json.gz")


@pytest.fixture(scope="module")
def config(shards, tokenizer_file):
    return {
        "shards": shards,
        "global_batch_size": GLOBAL_BATCH,
        "repeat": False,
        "arguments": {"tokenizer": str(tokenizer_file.parent), "text_field": "raw_content", "lanes": 4, "seed": 5},
    }


@pytest.fixture(scope="module")
def expected(config):
    """The global batches of one host, with torchtitan's names and labels."""
    return [renamed(batch) for batch in dataset_of(config)]


def dataset_of(config, **more):
    return gm.PackedDataset(
        config["shards"], sequence_length=LENGTH, batch_size=GLOBAL_BATCH, **config["arguments"], **more
    )


def renamed(batch):
    arrays = {name: batch[key].astype(np.int64) for name, key in KEYS.items()}
    arrays["labels"][batch["targets_segmentation"] == 0] = -100
    return arrays


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


def train(config, rows, **more):
    return "train", {"config": config, "rows": rows, **more}


def run_ranks(folder, ranks, **calls):
    """The results of each call on so many ranks, a list of those of all ranks."""
    results = run_hosts(
        folder / f"{ranks}-{len(list(folder.iterdir()))}",
        "several",
        {"calls": calls},
        hosts=ranks,
        programs="rank_programs.py",
    )
    return {name: [result[name] for result in results] for name in calls}


@pytest.fixture(scope="module")
def two(folder, config, expected):
    """Runs on two ranks, which also save."""
    return run_ranks(
        folder,
        2,
        rows=train(config, 4, save=(4, f"{folder}/rows")),
        flat=train(config, 4, flat=True, save=(4, f"{folder}/flat")),
        microbatches=train(config, 2, save=(6, f"{folder}/microbatches")),
        endless=train({**config, "repeat": True}, 4, steps=2 * len(expected)),
        disagree=("disagree", {"config": config, "rows": 4}),
    )


@pytest.fixture(scope="module")
def four(two, folder, config, expected):
    """Runs on four ranks, some of which continue where two saved."""
    return run_ranks(
        folder,
        4,
        rows=train(config, 2, load=f"{folder}/rows"),
        flat=train(config, 2, flat=True, load=f"{folder}/flat"),
        microbatches=train(config, 2, load=f"{folder}/microbatches"),
        whole=train(config, 2, save=(len(expected) - 2, f"{folder}/late")),
    )


def assert_is_stream(results, expected, microbatches=1):
    """Asserts that the rows of all ranks together are those of the global batches."""
    for result in results:
        assert len(result["batches"]) == len(expected) * microbatches
    for step, batch in enumerate(expected):
        part = slice(step * microbatches, (step + 1) * microbatches)
        for name, array in batch.items():
            rows = [one[name].reshape(-1, LENGTH) for result in results for one in result["batches"][part]]
            np.testing.assert_array_equal(np.concatenate(rows), array)


def test_two_ranks_have_the_rows_of_one_stream(two, expected):
    assert_is_stream(two["rows"], expected)
    assert_is_stream(two["flat"], expected)
    assert_is_stream(two["microbatches"], expected, microbatches=2)
    for name, shape in (("rows", (4, LENGTH)), ("flat", (4 * LENGTH,))):
        batch = two[name][0]["batches"][0]
        assert {(array.shape, array.dtype) for array in batch.values()} == {(shape, np.dtype(np.int64))}


def test_saved_on_two_ranks_resumes_on_four(four, expected):
    assert_is_stream(four["rows"], expected[4:])
    assert_is_stream(four["flat"], expected[4:])
    assert_is_stream(four["microbatches"], expected[3:])


def test_saved_on_two_ranks_resumes_on_one(two, folder, config, expected):
    for flat, name in ((False, "rows"), (True, "flat")):
        resumed = rank_programs.train(config, GLOBAL_BATCH, flat=flat, load=f"{folder}/{name}")
        assert_is_stream([resumed], expected[4:])


def test_finite_epochs_end_together_and_deliver_every_document(four, expected):
    """The last steps of most ranks are padding without labels."""
    assert_is_stream(four["whole"], expected)
    assert sum(result["documents"] for result in four["whole"]) == 40 + 10 + 3 + 25
    last = [result["batches"][-1] for result in four["whole"]]
    assert sorted((batch["labels"] != -100).any() for batch in last) == [False, False, False, True]


def test_saved_after_some_ranks_ended_resumes_on_one(four, folder, config, expected):
    resumed = rank_programs.train(config, GLOBAL_BATCH, load=f"{folder}/late")
    assert_is_stream([resumed], expected[-2:])


def test_endless_streams_do_not_end(two, config, expected):
    endless = itertools.islice(dataset_of(config, epochs=None), 2 * len(expected))
    assert_is_stream(two["endless"], [renamed(batch) for batch in endless])


def test_ranks_that_disagree_raise_on_all_ranks(two):
    for found in two["disagree"]:
        assert "ranks 0 and 1 have different streams" in found["stream"]
        assert "seed" in found["stream"]
        assert "different steps, [1, 0]" in found["step"]


class TestOneProcess:
    """Tests that need no other ranks."""

    def build(self, config, rows=2, **more):
        return rank_programs.loader({**config, **more}, rows)

    def test_state_within_a_step(self, config):
        own = self.build(config)
        for _ in range(6):
            next(iter(own))
        state = json.loads(json.dumps(own.state_dict()))
        assert state["delivered"] == 2
        resumed = self.build(config)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        following = [labels for _, labels in resumed]
        for found, (_, labels) in zip(following, own, strict=True):
            assert torch.equal(found, labels)
        with pytest.raises(gm.StateError, match="save after whole optimizer steps"):
            resumed.load_state_dict({**state, "dp_world_size": 2})

    def test_a_loaded_start_begins_again(self, config):
        own = self.build(config)
        start = own.state_dict()
        first = [labels for _, labels in own]
        assert list(own) == []
        own.load_state_dict(start)
        assert all(map(torch.equal, [labels for _, labels in own], first))
        own.load_state_dict({})
        assert list(own) == []

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"version": 2}, "version 2"),
            ({"stream": "{"}, "expected a state_dict"),
            ({"delivered": 4}, "after 4 batches of a step of 4"),
            ({"lane_3": None}, "lane 3 is a string"),
        ],
    )
    def test_damaged_states_are_refused(self, config, change, message):
        own = self.build(config)
        with pytest.raises(gm.StateError, match=message):
            own.load_state_dict({**own.state_dict(), **change})

    def test_state_of_another_degree_needs_all_lanes(self, config):
        own = self.build(config)
        state = own.state_dict()
        del state["lane_2"]
        with pytest.raises(gm.StateError, match="also needs 2"):
            own.load_state_dict(state)

    def test_arguments_that_the_trainer_says_are_refused(self, config):
        with pytest.raises(gm.ArgumentError, match="batch_size"):
            self.build(config, arguments={"batch_size": 4})
        with pytest.raises(gm.ArgumentError, match="multiple of the 3 rows"):
            self.build(config, rows=3)

    def test_validation_sets_the_name_of_its_release(self, config):
        finite = titan.GristmillDataLoader.Config(**{**config, "repeat": True})
        assert dataclasses.replace(finite, infinite=False).infinite is False
        assert finite.to_dict()["global_batch_size"] == GLOBAL_BATCH

    def test_ids_are_those_of_the_trainers_tokenizer(self, config, tokenizer_file, texts):
        """Inputs and labels of all tokens with a label are torchtitan's: each document's ids, shifted."""
        from torchtitan.components.tokenizer import HuggingFaceTokenizer

        tokenizer = HuggingFaceTokenizer(tokenizer_path=str(tokenizer_file.parent))
        own = titan.GristmillDataLoader.Config(
            shards=config["shards"], repeat=False, arguments={"text_field": "raw_content", "lanes": 1}
        ).build(dp_world_size=1, dp_rank=0, tokenizer=tokenizer, seq_len=LENGTH, local_batch_size=2)
        found = [(inputs["input"], labels) for inputs, labels in own]
        inputs, labels = (torch.cat([pair[side].flatten() for pair in found]) for side in (0, 1))
        documents = [tokenizer.encode(text[:700], add_bos=True, add_eos=True) for text in texts[:78]]
        is_trained = labels != -100
        assert inputs[is_trained].tolist() == [token for document in documents for token in document[:-1]]
        assert labels[is_trained].tolist() == [token for document in documents for token in document[1:]]
