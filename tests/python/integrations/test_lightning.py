"""`DataModule` in trainers of Lightning, and `WholeState` with accelerate, killed and resumed; `make test-torch`."""

import pickle

import numpy as np
import pytest

import gristmill as gm
from helpers import write_shard
from run_hosts import HostFailedError, run_hosts

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

BATCH = 8
STEPS = 10
SAVED = 6
KILLED = 8


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, texts, tokenizer_file):
    folder = tmp_path_factory.mktemp("shards")
    for number, (start, count) in enumerate(((0, 24), (24, 10), (34, 3), (37, 15))):
        write_shard(folder / f"{number}.json.gz", [text[:700] for text in texts[start : start + count]])
    return {
        "shards": str(folder / "*.json.gz"),
        "tokenizer": str(tokenizer_file.parent),
        "text_field": "raw_content",
        "sequence_length": 64,
        "batch_size": BATCH,
        "lanes": 4,
        "seed": 5,
        "layout": "hf",
        "epochs": None,
    }


@pytest.fixture(scope="module")
def expected(dataset):
    return [batch["labels"] for batch, _ in zip(gm.PackedDataset(**dataset), range(STEPS), strict=False)]


def run(parent, processes, program, **arguments):
    number = len(list(parent.iterdir()))
    return run_hosts(
        parent / f"{processes}-{number}", program, arguments, hosts=processes, programs="lightning_programs.py"
    )


def labels(results, name="labels"):
    return [np.concatenate(parts) for parts in zip(*(result[name] for result in results), strict=True)]


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


class TestLightning:
    @pytest.fixture(autouse=True)
    def installed(self):
        pytest.importorskip("lightning", reason="lightning is not installed: make test-torch")

    @pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 1), (1, 2)])
    def test_killed_and_resumed(self, tmp_path, dataset, expected, before, after):
        arguments = {"dataset": dataset, "folder": f"{tmp_path}/run", "steps": STEPS}
        (tmp_path / "killed").mkdir()
        with pytest.raises(HostFailedError):
            run(tmp_path, before, "lightning", **arguments, killed=(KILLED, f"{tmp_path}/killed"))
        killed = [pickle.loads((tmp_path / "killed" / f"rank-{rank}").read_bytes()) for rank in range(before)]
        assert_same(labels(killed), expected[:KILLED])
        checkpoint = f"{tmp_path}/run/step={SAVED}.ckpt"
        (saved,) = torch.load(checkpoint, weights_only=False)["loops"]["fit_loop"]["state_dict"]["combined_loader"]
        assert f'"step": {SAVED}' in saved["stream"]  # one more was fetched
        assert {f"lane_{lane}" for lane in range(4)} < saved.keys()
        resumed = run(tmp_path, after, "lightning", **arguments, resume=checkpoint)
        assert_same(labels(resumed), expected[SAVED:STEPS])
        if before == after:
            whole = run(tmp_path, 1, "lightning", **{**arguments, "folder": f"{tmp_path}/whole"})
            assert whole[0]["losses"][:KILLED] == killed[0]["losses"]

    def test_epochs_begin_again_and_resume_at_their_end(self, tmp_path, dataset):
        finite = {**dataset, "epochs": 1, "shards": dataset["shards"].replace("*", "[123]"), "lanes": 2}
        wanted = [batch["labels"] for batch in gm.PackedDataset(**finite)]
        count = len(wanted)
        arguments = {"dataset": finite, "folder": f"{tmp_path}/run", "epochs": 2, "steps": -1}
        within = count + 3 - count % 3
        for processes, save in ((1, count), (2, 3)):
            own = {**arguments, "folder": f"{tmp_path}/{processes}", "save": save}
            assert_same(labels(run(tmp_path, processes, "lightning", **own)), [*wanted, *wanted])
        for checkpoint, step in ((f"1/step={count}", count), ("2/step=3", 3), (f"2/step={within}", within)):
            found = labels(run(tmp_path, 1, "lightning", **arguments, resume=f"{tmp_path}/{checkpoint}.ckpt"))
            assert_same(found, [*wanted, *wanted][step:])

    def test_validation_takes_equally_many_steps(self, tmp_path, dataset):
        validate = {**dataset, "epochs": 1, "batch_size": 4}
        wanted = [batch["labels"] for batch in gm.PackedDataset(**validate)]
        finite = {**dataset, "epochs": 1, "shards": dataset["shards"].replace("*", "[12]"), "lanes": 2}
        arguments = {"dataset": finite, "epochs": 1, "steps": -1, "validate": validate}
        found = run(tmp_path, 2, "lightning", **arguments, folder=f"{tmp_path}/run")
        assert_same(labels(found, "validated"), [wanted[0], *wanted])  # a first batch as a check of sanity

    def test_accumulation_counts_batches(self, tmp_path, dataset, expected):
        arguments = {"dataset": dataset, "folder": f"{tmp_path}/run", "steps": 5, "accumulate": 2}
        assert_same(labels(run(tmp_path, 1, "lightning", **arguments)), expected)
        resumed = run(tmp_path, 1, "lightning", **arguments, resume=f"{tmp_path}/run/step=3.ckpt")
        assert_same(labels(resumed), expected[6:])

    def test_streams_that_do_not_end_are_refused_for_validation(self, dataset):
        from gristmill.integrations.torch.passes import Pass

        with pytest.raises(gm.ArgumentError, match="an evaluation needs an end"):
            Pass(gm.PackedDataset(**dataset))


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 1), (1, 2)])
def test_accelerate_alone(tmp_path, dataset, expected, before, after):
    pytest.importorskip("accelerate", reason="accelerate is not installed: make test-torch")
    found = run(tmp_path, before, "accelerate", dataset=dataset, folder=f"{tmp_path}/run", steps=5)
    assert_same(labels(found), expected[:5])
    resumed = run(tmp_path, after, "accelerate", dataset=dataset, folder=f"{tmp_path}/run", steps=4, resume=True)
    assert_same(labels(resumed), expected[3:7])
    if before == after == 1:
        assert resumed[0]["losses"][:2] == found[0]["losses"][3:]
