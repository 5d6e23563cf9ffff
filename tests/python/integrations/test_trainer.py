"""`attach` on trainers of transformers and TRL, killed and resumed on 1 and 2 processes; `make test-torch`."""

import json
import pickle
import shutil

import numpy as np
import pytest

import gristmill as gm
from helpers import write_shard
from run_hosts import HostFailedError, run_hosts

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch")
pytest.importorskip("transformers", reason="transformers is not installed: make test-torch")
pytest.importorskip("accelerate", reason="accelerate is not installed: make test-torch")
trainers = pytest.importorskip("gristmill.integrations.transformers.trainer")
programs = pytest.importorskip("trainer_programs")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LENGTH = 64
BATCH = 8
STEPS = 9
SAVED = 3
KILLED = 5


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, texts, tokenizer_file):
    folder = tmp_path_factory.mktemp("shards")
    for number, (start, count) in enumerate(((0, 24), (24, 10), (34, 3), (37, 15))):
        write_shard(folder / f"{number}.json.gz", [text[:700] for text in texts[start : start + count]])
    return {
        "shards": str(folder / "*.json.gz"),
        "tokenizer": str(tokenizer_file.parent),
        "text_field": "raw_content",
        "sequence_length": LENGTH,
        "batch_size": BATCH,
        "lanes": 4,
        "seed": 5,
        "layout": "hf",
        "epochs": None,
    }


@pytest.fixture(scope="module")
def expected(dataset):
    """The labels of each global batch."""
    return [batch["labels"] for batch, _ in zip(gm.PackedDataset(**dataset), range(40), strict=False)]


def run(folder, processes, **calls):
    """The results of each call on so many processes, a list of those of all."""
    number = len(list(folder.iterdir()))
    results = run_hosts(
        folder / f"{processes}-{number}", "several", {"calls": calls}, hosts=processes, programs="trainer_programs.py"
    )
    return {name: [result[name] for result in results] for name in calls}


def labels(results, accumulate=1):
    """The labels of each global batch of those of all processes."""
    rows = [[inputs["labels"] for inputs in result["inputs"]] for result in results]
    return [
        np.concatenate([part for own in rows for part in own[step : step + accumulate]])
        for step in range(0, len(rows[0]), accumulate)
    ]


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def kill(folder, processes, arguments):
    """Runs until a process kills all after `KILLED` steps. Returns what each of them had until then."""
    left = folder / f"left-{len(list(folder.iterdir()))}"
    left.mkdir()
    with pytest.raises(HostFailedError):
        run(folder, processes, run={**arguments, "killed": (KILLED, str(left))})
    return [pickle.loads((left / f"rank-{rank}").read_bytes()) for rank in range(processes)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, dataset, expected):
    """A run on one process that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    arguments = {"dataset": dataset, "folder": f"{folder}/run", "rows": 4, "accumulate": 2, "steps": STEPS}
    found = run(folder, 1, run=arguments)["run"]
    assert_same(labels(found, 2), expected[:STEPS])
    return found[0]


def test_killed_on_one_process_has_the_same_losses(tmp_path, dataset, expected, whole):
    arguments = {"dataset": dataset, "folder": f"{tmp_path}/run", "rows": 4, "accumulate": 2, "steps": STEPS}
    assert_same(labels(kill(tmp_path, 1, arguments), 2), expected[:KILLED])
    state = json.loads((tmp_path / "run" / f"checkpoint-{SAVED}" / trainers.STATE_FILE).read_text())
    assert state["trained_steps"] == json.loads(state["stream"])["step"] == SAVED
    assert {name for name in state if name.startswith("lane_")} == {f"lane_{lane}" for lane in range(4)}
    resumed = run(tmp_path, 1, run={**arguments, "resume": True})["run"]
    assert_same(labels(resumed, 2), expected[SAVED:STEPS])
    assert resumed[0]["losses"] == whole["losses"]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (4, 2)])
def test_killed_and_resumed_on_other_numbers_of_processes(tmp_path, dataset, expected, whole, before, after):
    def arguments(processes, accumulate):
        return {
            "dataset": dataset,
            "folder": f"{tmp_path}/run",
            "rows": BATCH // processes // accumulate,
            "accumulate": accumulate,
            "steps": STEPS,
        }

    assert_same(labels(kill(tmp_path, before, arguments(before, 2)), 2), expected[:KILLED])
    resumed = run(tmp_path, after, run={**arguments(after, 1), "resume": True})["run"]
    assert_same(labels(resumed), expected[SAVED:STEPS])
    # Dropout differs with the number of processes, so losses are near one another and not the same.
    for step, loss in resumed[0]["losses"].items():
        assert abs(loss - whole["losses"][step]) < 0.05


def test_finite_epochs_end_together_and_resume_after_some_ranks_ended(tmp_path, dataset):
    finite = {**dataset, "epochs": 1}
    expected = [batch["labels"] for batch in gm.PackedDataset(**finite)]
    arguments = {"dataset": finite, "folder": f"{tmp_path}/run", "rows": 4, "steps": 1000}
    late = len(expected) - 2
    found = run(tmp_path, 2, run={**arguments, "save": late})["run"]
    assert_same(labels(found), expected)
    assert all(np.isfinite(list(result["losses"].values())).all() for result in found)
    resumed = {**arguments, "rows": 8, "resume": f"{tmp_path}/run/checkpoint-{late}"}
    assert_same(labels(run(tmp_path, 1, run=resumed)["run"]), expected[late:])


def test_padding_free_rows_and_masks(tmp_path, dataset, expected):
    arguments = {"dataset": dataset, "folder": f"{tmp_path}/a", "rows": 4, "accumulate": 2, "steps": 4}
    padded = {**dataset, "packing": "pad"}
    found = run(
        tmp_path,
        1,
        flat={**arguments, "padding_free": True},
        masks={**arguments, "folder": f"{tmp_path}/b", "dataset": padded},
        rows={**arguments, "folder": f"{tmp_path}/c"},
    )
    batches = zip(gm.PackedDataset(**dataset), range(4), strict=False)
    ids = [batch["input_ids"][part].reshape(-1) for batch, _ in batches for part in (slice(0, 4), slice(4, 8))]
    assert_same([inputs["input_ids"][0] for inputs in found["flat"][0]["inputs"]], ids)
    assert all("attention_mask" not in inputs for inputs in found["flat"][0]["inputs"])
    assert all(inputs["attention_mask"].any() for inputs in found["masks"][0]["inputs"])
    # The models see the same tokens of the same documents, so the losses are near one another.
    for step, loss in found["flat"][0]["losses"].items():
        assert abs(loss - found["rows"][0]["losses"][step]) < 0.02


def test_evaluation_takes_equally_many_steps_on_all_processes(tmp_path, dataset):
    small = {**dataset, "epochs": 1, "batch_size": 4, "shards": dataset["shards"].replace("*", "[23]")}
    arguments = {"dataset": dataset, "folder": f"{tmp_path}/a", "steps": 4, "evaluate": {**small, "lanes": 2}}
    one = run(tmp_path, 1, run={**arguments, "rows": 8})["run"][0]["evaluated"]
    two = run(tmp_path, 2, run={**arguments, "folder": f"{tmp_path}/b", "rows": 4})["run"]
    assert one.keys() == {4}
    assert two[0]["evaluated"] == two[1]["evaluated"]
    assert abs(one[4] - two[0]["evaluated"][4]) < 0.05


def test_trainers_epochs_of_packed_rows_begin_again(tmp_path, dataset):
    gm.pack(gm.PackedDataset(**{**dataset, "epochs": 1}), tmp_path / "packed", steps=1)
    rows = [row["labels"][None] for row in gm.PackedRows(tmp_path / "packed")]
    arguments = {
        "dataset": dataset, "folder": f"{tmp_path}/run", "packed": f"{tmp_path}/packed", "rows": 1, "steps": 0,
        "epochs": 2, "save": len(rows),
    }  # fmt: skip
    assert_same(labels(run(tmp_path, 1, run=arguments)["run"]), [*rows, *rows])
    shutil.rmtree(tmp_path / "run" / f"checkpoint-{2 * len(rows)}")
    assert_same(labels(run(tmp_path, 1, run={**arguments, "resume": True})["run"]), rows)


def test_deepspeed_resumes_with_the_same_losses(tmp_path, dataset, expected):
    for package in ("deepspeed", "ninja"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install deepspeed ninja")
    arguments = {
        "dataset": dataset, "folder": f"{tmp_path}/run", "rows": 2, "accumulate": 2, "steps": 6, "deepspeed": True,
    }  # fmt: skip
    found = run(tmp_path, 2, run=arguments)["run"]
    assert_same(labels(found, 2), expected[:6])
    shutil.rmtree(tmp_path / "run" / "checkpoint-6")
    resumed = run(tmp_path, 2, run={**arguments, "resume": True})["run"]
    assert_same(labels(resumed, 2), expected[3:6])
    assert resumed[0]["losses"] == found[0]["losses"]


@pytest.mark.parametrize("flat", [False, True])
def test_trl_trains_on_the_stream_and_resumes(tmp_path, dataset, expected, flat):
    pytest.importorskip("trl", reason="trl is not installed: make test-torch")
    arguments = {
        "dataset": dataset, "folder": f"{tmp_path}/run", "rows": 4, "accumulate": 2, "steps": 6, "trl": True,
        "padding_free": flat,
    }  # fmt: skip
    found = run(tmp_path, 1, run=arguments)["run"][0]
    assert ("cu_seq_lens_q" in found["inputs"][0]) == flat
    if not flat:
        assert_same(labels([found], 2), expected[:6])
    shutil.rmtree(tmp_path / "run" / "checkpoint-6")
    resumed = run(tmp_path, 1, run={**arguments, "resume": True})["run"][0]
    assert_same(labels([resumed], 2), labels([found], 2)[3:])
    assert resumed["losses"] == found["losses"]


def trainer_of(tmp_path, **more):
    from transformers import Trainer, TrainingArguments

    common = {"output_dir": str(tmp_path), "use_cpu": True, "report_to": [], "max_steps": 3}
    return Trainer(programs.model(), args=TrainingArguments(**common | more))


def test_a_stream_that_is_attached_later_takes_the_place_of_the_first(tmp_path, dataset):
    found = []
    for seeds in ((1, 5), (5,)):
        trainer = trainer_of(tmp_path / str(len(seeds)), save_steps=2, logging_steps=1)
        for seed in seeds:
            trainers.attach(trainer, gm.PackedDataset(**{**dataset, "seed": seed}))
        trainer.train()
        found.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        assert (tmp_path / str(len(seeds)) / "checkpoint-2" / trainers.STATE_FILE).exists()
    assert found[0] == found[1]


def test_predictions_of_a_stream_that_ends(tmp_path, dataset):
    trainer = trainer_of(tmp_path, per_device_eval_batch_size=4)
    trainers.attach(trainer, gm.PackedDataset(**dataset))
    small = gm.PackedDataset(**{**dataset, "epochs": 1, "lanes": 2, "shards": dataset["shards"].replace("*", "[23]")})
    found = trainer.predict(small)
    np.testing.assert_array_equal(found.label_ids, np.concatenate([batch["labels"] for batch in small]))
    assert trainer.evaluate(small)["eval_loss"] == pytest.approx(found.metrics["test_loss"])


class TestRefused:
    def trainer(self, tmp_path, **more):
        return trainer_of(tmp_path, **more)

    def test_weights_that_the_model_does_not_take(self, tmp_path, dataset):
        (tmp_path / "chats.jsonl").write_text(
            json.dumps(
                {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "w": 0.5}]}
            )
        )
        turns = "{% for message in messages %}<s>{{ message.role }}: {{ message.content }}</s>{% endfor %}"
        template = turns + "{% if add_generation_prompt %}<s>assistant: {% endif %}"
        chat = gm.Chat(template=template, train_key="w")
        weighted = {**dataset, "shards": str(tmp_path / "chats.jsonl"), "sample": chat, "lanes": 1}
        del weighted["text_field"]
        with pytest.raises(gm.ArgumentError, match=r"have weights \(train_key=\), which the model does not take"):
            trainers.attach(self.trainer(tmp_path), gm.PackedDataset(**weighted))
        kept = self.trainer(tmp_path, remove_unused_columns=False)
        trainers.attach(kept, gm.PackedDataset(**weighted))
        assert "weight" in next(iter(kept.get_train_dataloader()))

    def test_other_batch_sizes(self, tmp_path, dataset):
        with pytest.raises(gm.ArgumentError, match="batch_size=8: expected 2 rows per device x 1 process x 2 accum"):
            trainers.attach(
                self.trainer(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=2),
                gm.PackedDataset(**dataset),
            )
        with pytest.raises(gm.ArgumentError, match="batch_size=8 of the evaluation: expected a multiple of 3 rows"):
            trainers.attach(
                self.trainer(tmp_path, per_device_train_batch_size=8, per_device_eval_batch_size=3),
                gm.PackedDataset(**dataset),
                eval_dataset=gm.PackedDataset(**{**dataset, "epochs": 1}),
            )

    def test_other_layouts_and_no_end(self, tmp_path, dataset):
        with pytest.raises(gm.ArgumentError, match="take those of layout='hf'"):
            trainers.attach(self.trainer(tmp_path), gm.PackedDataset(**{**dataset, "layout": "maxtext"}))
        with pytest.raises(gm.ArgumentError, match="max_steps is not set"):
            trainers.attach(self.trainer(tmp_path, max_steps=-1), gm.PackedDataset(**dataset))

    def test_checkpoints_without_a_state(self, tmp_path, dataset):
        trainer = self.trainer(tmp_path, save_steps=1, max_steps=1)
        trainers.attach(trainer, gm.PackedDataset(**dataset))
        trainer.train()
        (tmp_path / "checkpoint-1" / trainers.STATE_FILE).unlink()
        with pytest.raises(gm.StateError, match="saved by a trainer without"):
            trainer.train(resume_from_checkpoint=True)
