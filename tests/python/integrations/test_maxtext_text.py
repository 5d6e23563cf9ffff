"""`examples/maxtext_gristmill.py` beside MaxText's own Grain pipeline; `make test-maxtext` installs MaxText.

Without MaxText, its config is a namespace of the settings that the file reads, and only what needs no MaxText runs.
"""

import json
import runpy
from types import SimpleNamespace

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from chat_models import write_chatml
from helpers import ROOT, write_shard
from run_hosts import run_hosts

FILE = ROOT / "examples" / "maxtext_gristmill.py"
LENGTH = 128
KEYS = {f"{side}{what}" for side in ("inputs", "targets") for what in ("", "_segmentation", "_position")}

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def example():
    return SimpleNamespace(**runpy.run_path(str(FILE)))


@pytest.fixture(scope="module")
def mesh():
    return jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "fsdp"))


@pytest.fixture(scope="module")
def parquet(tmp_path_factory, texts):
    """Texts that fit into a row, in one file, which MaxText reads in order."""
    path = tmp_path_factory.mktemp("parquet") / "train.parquet"
    pq.write_table(pa.table({"text": [text[:200] for text in texts[:300]]}), path)
    return str(path)


@pytest.fixture(scope="module")
def tokenizer(tokenizer_file):
    """The folder of the tokenizer, as `transformers` reads it."""
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (tokenizer_file.parent / "tokenizer_config.json").write_text(json.dumps(names))
    return str(tokenizer_file.parent)


def settings(parquet, tokenizer, **more):
    return {
        "grain_train_files": parquet,
        "grain_eval_files": parquet,
        "grain_file_type": "parquet",
        "tokenizer_path": str(tokenizer),
        "tokenizer_type": "huggingface",
        "max_target_length": LENGTH,
        "enable_data_shuffling": False,
        "train_data_columns": ["text"],
        "eval_data_columns": ["text"],
        "packing": True,
        "grain_packing_type": "concat_then_split",
        "grain_worker_count": 0,
        "grain_worker_count_eval": 0,
        "add_bos": False,
        "add_eos": True,
        **more,
    }


@pytest.fixture
def config(parquet, tokenizer):
    def config(**more):
        defaults = {
            "grain_train_mixture_config_path": None,
            "global_batch_size_to_load": 8,
            "global_batch_size_to_load_eval": 4,
            "num_epoch": 1,
            "data_shuffle_seed": 3,
            "max_segments_per_seq": -1,
            "use_truncation": True,
            "use_sft": False,
            "sft_train_on_completion_only": True,
            "chat_template": "",
            "expansion_factor_real_data": -1,
        }
        return SimpleNamespace(**{**defaults, **settings(parquet, tokenizer), **more})

    return config


def test_train_and_eval_iterators_have_whole_batches(example, config, mesh):
    train = example.make_gristmill_train_iterator(config(), mesh, [0])
    first = next(train)
    assert set(first) == KEYS
    assert {array.shape for array in first.values()} == {(8, LENGTH)}
    evaluation = example.make_gristmill_eval_iterator(config(), mesh, [0])
    counts = [sum(1 for _ in evaluation) for _ in range(2)]  # each loop starts over
    assert counts[0] == counts[1] > 0
    evaluation.reset()
    assert next(evaluation)["inputs"].shape == (4, LENGTH)
    np.testing.assert_array_equal(next(iter(train))["inputs"], first["inputs"])
    for iterator in (train, evaluation):
        iterator.close()


def test_mixtures_are_those_of_the_settings(example, config, parquet, tmp_path):
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"text": ["zzz " * 30] * 50}), other)
    file = tmp_path / "mixture.json"
    file.write_text(json.dumps({"a": {"path": parquet, "weight": 3}, "b": {"path": str(other), "weight": 1}}))
    by_file = {"grain_train_files": "", "grain_train_mixture_config_path": str(file)}
    for more in ({"grain_train_files": f"{parquet},3;{other},1"}, by_file):
        own = config(**more)
        patterns = example._patterns(own.grain_train_files, own.grain_train_mixture_config_path)
        dataset = example.make_dataset(own, patterns, ["text"], batch_size=8, epochs=1)
        with iter(dataset) as batches:
            next(batches)
            assert [source["rows"] for source in batches.stats()["sources"].values()] == [6, 2]


def test_conversations_are_trained_on_answers(example, config, tmp_path):
    model = write_chatml(tmp_path / "model")
    messages = [{"role": "user", "content": "What is 1 + 1?"}, {"role": "assistant", "content": "It is 2."}]
    shard = tmp_path / "chats.jsonl"
    shard.write_text(json.dumps({"messages": messages}) + "\n")
    own = config(tokenizer_path=str(model), use_sft=True, grain_packing_type="best_fit")
    dataset = example.make_dataset(own, {str(shard): 1.0}, ["messages"], batch_size=1, epochs=1)
    batch = next(iter(dataset))
    trained = batch["targets"][batch["targets_segmentation"] != 0]
    assert "It is 2." in gm.Encoder.from_pretrained(model).decode(trained)
    assert "1 + 1" not in gm.Encoder.from_pretrained(model).decode(trained)


@pytest.mark.parametrize(
    "more", [{"use_dpo": True}, {"expansion_factor_real_data": 2}, {"train_data_columns": ["a", "b"]}]
)
def test_what_the_file_does_not_do_is_refused(example, config, mesh, more):
    with pytest.raises(ValueError, match=next(iter(more)).replace("train_data_", "data ")):
        example.make_gristmill_train_iterator(config(**more), mesh, [0])


@pytest.mark.slow
def test_state_saved_on_two_hosts_resumes_on_four_and_one(tmp_path, texts, tokenizer_file):
    for number, count in enumerate((40, 10, 3, 25)):
        write_shard(tmp_path / f"{number}.json.gz", [text[:700] for text in texts[: count + number]])
    arguments = {
        "file": str(FILE),
        "dataset": gm.PackedDataset(
            str(tmp_path / "*.json.gz"),
            tokenizer=str(tokenizer_file),
            text_field="raw_content",
            sequence_length=64,
            batch_size=8,
            lanes=4,
            seed=2,
            packing="best_fit",
        ),
        "after": 3,
    }
    two = run_hosts(tmp_path / "two", "maxtext_stream", {**arguments, "state": None}, hosts=2)
    assert two[0]["state"] == two[1]["state"]
    assert sorted(two[0]["state"]["lanes"]) == ["0", "1", "2", "3"]
    for hosts in (4, 1):
        resumed = run_hosts(
            tmp_path / f"{hosts}", "maxtext_stream", {**arguments, "state": two[0]["state"]}, hosts=hosts
        )
        for result in resumed:
            assert result["rest"] == two[0]["rest"]


class TestBesideMaxText:
    """MaxText's own pipeline, config and checkpoints."""

    @pytest.fixture(scope="class")
    def theirs(self):
        return pytest.importorskip(
            "maxtext.input_pipeline.input_pipeline_interface", reason="MaxText is not installed: make test-maxtext"
        )

    @pytest.fixture
    def initialize(self, theirs, parquet, tokenizer, tmp_path):
        """A config of MaxText, as its command line makes it, and its mesh."""
        from maxtext.configs import pyconfig

        def initialize(**more):
            values = {
                "run_name": "test",
                "base_output_directory": str(tmp_path),
                "dataset_type": "grain",
                "per_device_batch_size": 8,
                "skip_jax_distributed_system": True,
                "hardware": "cpu",
                **settings(parquet, tokenizer, **more),
            }
            path = pyconfig.__file__.replace("pyconfig.py", "base.yml")
            config = pyconfig.initialize(["", path], **values)
            devices = np.array(jax.devices()[:1]).reshape((1,) * len(config.mesh_axes))
            return config, jax.sharding.Mesh(devices, config.mesh_axes)

        return initialize

    @pytest.fixture
    def ours(self, theirs, example, monkeypatch):
        """MaxText's `create_data_iterator`, with the file in place of its Grain pipeline."""
        monkeypatch.setattr(theirs, "make_grain_train_iterator", example.make_gristmill_train_iterator)
        monkeypatch.setattr(theirs, "make_grain_eval_iterator", example.make_gristmill_eval_iterator)
        return theirs.create_data_iterator

    @pytest.mark.parametrize(
        "more",
        [
            {"grain_packing_type": "concat_then_split"},
            {"packing": False, "max_target_length": 64},
            {"packing": False, "max_target_length": 64, "use_truncation": False},
        ],
        ids=["concat", "pad", "split"],
    )
    def test_batches_are_those_of_its_grain_pipeline(self, initialize, theirs, example, more):
        config, mesh = initialize(**more)
        from maxtext.input_pipeline.grain_data_processing import make_grain_train_iterator

        expected = make_grain_train_iterator(config, mesh, [0])
        found = example.make_gristmill_train_iterator(config, mesh, [0])
        for _ in range(8):
            assert_same(next(found), next(expected))

    def test_its_checkpoints_hold_one_file_and_restore(self, initialize, ours, tmp_path):
        from maxtext.common import grain_utility
        from orbax.checkpoint import v1 as ocp

        config, mesh = initialize()
        iterator, _ = ours(config, mesh)
        for _ in range(3):
            next(iterator)
        with ocp.training.Checkpointer(tmp_path / "checkpoints") as checkpointer:
            checkpointer.save_checkpointables(3, {"iter": grain_utility.for_save(3, iterator, -1)})
        expected = [next(iterator) for _ in range(3)]
        assert [path.name for path in (tmp_path / "checkpoints/3/iter").glob("process*")] == ["process_0.json"]
        again, _ = ours(config, mesh)
        with ocp.training.Checkpointer(tmp_path / "checkpoints") as checkpointer:
            restore = {"iter": grain_utility.for_restore(checkpointer, 3, again, -1)}
            checkpointer.load_checkpointables(3, restore)
        for batch in expected:
            for name, array in next(again).items():
                np.testing.assert_array_equal(array, batch[name])


def assert_same(found, expected):
    """Asserts that ids, segments and positions are equal; and targets, where they are in the token's document."""
    assert found.keys() == expected.keys() == KEYS
    found, expected = ({name: np.asarray(array) for name, array in batch.items()} for batch in (found, expected))
    is_token = expected["inputs_segmentation"] != 0
    for name in ("inputs_segmentation", "inputs_position"):
        np.testing.assert_array_equal(found[name], expected[name], name)
    np.testing.assert_array_equal(found["inputs"][is_token], expected["inputs"][is_token])
    has_target = (found["targets_segmentation"] != 0) & (expected["targets_segmentation"] != 0)
    np.testing.assert_array_equal(found["targets"][has_target], expected["targets"][has_target])
    assert {name: array.dtype for name, array in found.items()} == {
        name: array.dtype for name, array in expected.items()
    }
    # Theirs alone: the first token of the next document; ours alone: the token after the row.
    segments = found["inputs_segmentation"]
    boundary = segments[:, :-1] != segments[:, 1:]
    differs = ((found["targets_segmentation"] != 0) != (expected["targets_segmentation"] != 0))[:, :-1]
    assert not (differs & ~boundary).any()
