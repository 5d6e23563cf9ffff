"""MaxText's trainers over gristmill, run as its users run them; `make test-maxtext` installs MaxText and Tunix.

Each run is a process, in a copy of MaxText with the diffs of docs/coming-from-maxtext.md, with models of some thousand
weights. The page's table of positions of the data names these tests.
"""

import importlib.util
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chat_models import write_chatml
from helpers import PATIENCE, ROOT

DISTILLATION = {"trainer": "post_train.distillation.train_distill", "base": "post_train/distillation.yml"}
LENGTH = 64
ROWS = 4

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("maxtext", "tunix"))),
        reason="MaxText and Tunix are not installed: make test-maxtext",
    ),
]


@pytest.fixture(scope="module")
def patched(tmp_path_factory):
    """A folder with a copy of MaxText that has the lines of the guide."""
    folder = tmp_path_factory.mktemp("patched")
    package = Path(importlib.util.find_spec("maxtext").origin).parent
    shutil.copytree(package, folder / "maxtext", ignore=shutil.ignore_patterns("__pycache__"))
    page = (ROOT / "docs" / "coming-from-maxtext.md").read_text()
    for block in re.findall(r"^```diff\n((?: # \S+\.py.*\n)(?:.*\n)*?)^```", page, re.MULTILINE):
        for path, lines in re.findall(r"^ # (\S+\.py).*\n((?:(?! # ).*\n)*)", block, re.MULTILINE):
            file = folder / "maxtext" / path
            old, new = ("".join(line[1:] + "\n" for line in lines.splitlines() if line[:1] in f" {s}") for s in "-+")
            if old:
                assert file.read_text().count(old) == 1, (path, old)
                file.write_text(file.read_text().replace(old, new))
            else:
                file.write_text(re.sub(r"(?<=\n)def create_data_iterator\(.*\n", rf"\g<0>{new}", file.read_text()))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A tokenizer, texts, conversations and pairs."""
    folder = tmp_path_factory.mktemp("data")
    model = write_chatml(folder / "model")
    # The id of "!" is 0: without packing, MaxText fills segment numbers too with the id of padding.
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "!"}
    (model / "tokenizer_config.json").write_text(json.dumps(names))
    records = [
        {
            "text": f"the ant {n} " * (1 + n % 5),
            "messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"ant {n}"}],
            "prompt": f"{n} + {n}? ",
            "chosen": f"{2 * n}",
            "rejected": "no ant",
        }
        for n in range(30)
    ]
    pq.write_table(pa.Table.from_pylist(records), folder / "train.parquet")
    return folder


@pytest.fixture
def train(patched, data, tmp_path):
    """Runs a trainer, and returns its batches and losses."""

    def train(trainer, base, limit=None, recipe=None, **more):
        sizes = {
            "base_emb_dim": 16,
            "base_num_query_heads": 1,
            "base_num_kv_heads": 1,
            "base_mlp_dim": 16,
            "base_num_decoder_layers": 1,
            "head_dim": 16,
            "vocab_size": 384,
        }
        values = {
            "run_name": "run",
            "base_output_directory": str(tmp_path),
            "hardware": "cpu",
            "skip_jax_distributed_system": True,
            "checkpoint_period": 2,
            "async_checkpointing": False,
            "enable_goodput_recording": False,
            "monitor_goodput": False,
            "dtype": "float32",
            "attention": "dot_product",
            **data_settings(data),
            "steps": 8,
            "eval_interval": -1,
            **sizes,
            **more,
        }
        weights = str(tmp_path / "teacher") if "distillation" in trainer else None
        if weights:
            values["teacher_overrides"] = {"model_name": "default", "load_parameters_path": weights}
            values["student_overrides"] = {"model_name": "default"}
        (tmp_path / "config.yml").write_text(json.dumps({"base_config": base, **values}))
        settings = {
            "trainer": f"maxtext.trainers.{trainer}",
            # Where a model has a name, its sizes are given way to on the command line alone.
            "arguments": [str(tmp_path / "config.yml"), *(f"{name}={size}" for name, size in sizes.items())],
            "teacher": weights,
            "recipe": recipe and str(recipe),
            "limit": limit,
            "result": str(tmp_path / "result"),
        }
        (tmp_path / "settings.json").write_text(json.dumps(settings))
        done = subprocess.run(
            [sys.executable, ROOT / "tests/support/maxtext_trainer.py", tmp_path / "settings.json"],
            env={
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "PYTHONPATH": os.pathsep.join([str(patched), str(ROOT / "python")]),
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == (0 if limit is None else 9), done.stderr[-4000:]
        return pickle.loads((tmp_path / "result").read_bytes())

    return train


def data_settings(data, **more):
    return {
        "dataset_type": "grain",
        "grain_file_type": "gristmill",
        "grain_train_files": str(data / "train.parquet"),
        "grain_eval_files": str(data / "train.parquet"),
        "grain_worker_count": 0,
        "grain_worker_count_eval": 0,
        "train_data_columns": ["text"],
        "eval_data_columns": ["text"],
        "tokenizer_path": str(data / "model"),
        "tokenizer_type": "huggingface",
        "add_bos": False,
        "add_eos": True,
        "max_target_length": LENGTH,
        "packing": True,
        "grain_packing_type": "concat_then_split",
        "enable_data_shuffling": False,
        "num_epoch": 1,
        "per_device_batch_size": ROWS,
        **more,
    }


def test_distillation_has_the_batches_and_losses_of_its_grain_pipeline(train):
    runs = [
        train(
            **DISTILLATION,
            run_name=kind,
            grain_file_type=kind,
            packing=False,
            eval_interval=3,
            num_epoch=2,
        )
        for kind in ("gristmill", "parquet")
    ]
    found, expected = runs
    assert len(found["losses"]) == len(found["train"]) == 15  # two epochs of 30 texts, beyond `steps`
    assert len(found["evaluation"]) == 8
    for name in ("train", "evaluation"):
        assert_equal(found[name], expected[name])
    assert found["losses"] == expected["losses"]
    assert found["losses"][-1] < found["losses"][0]


def test_distillation_resumes_at_the_next_batch(train, data):
    run = DISTILLATION | {"num_epoch": 4}
    whole = train(**run, run_name="whole")
    killed = train(**run, limit=5)
    resumed = train(**run)
    assert_equal(killed["train"], whole["train"][:5])
    assert_equal(resumed["train"], whole["train"][4:])  # from the checkpoint of step 4
    np.testing.assert_allclose(resumed["losses"], whole["losses"][4:], rtol=1e-5)


@pytest.mark.parametrize(
    ("trainer", "first"),
    [("pre_train.train", 5), ("post_train.sft.train_sft_native", 5), ("post_train.sft.train_sft", 0)],
)
def test_batch_that_a_trainer_resumes_at(train, trainer, first):
    """After five batches and a checkpoint; train_sft saves no position, and begins again."""
    run = {"trainer": trainer, "base": "base.yml", "model_name": "default", "num_epoch": 5}
    if "sft" in trainer:
        run |= {"base": "post_train/sft.yml", "train_data_columns": ["messages"]}
    whole = train(**run, run_name="whole")
    train(**run, limit=5)
    resumed = train(**run)
    assert len(whole["train"]) >= 8
    assert_equal(resumed["train"][:3], whole["train"][first : first + 3])


def test_preferences_train_on_the_recipe_of_the_guide_and_begin_again(train, data, tmp_path):
    page = (ROOT / "docs" / "coming-from-maxtext.md").read_text()
    (code,) = re.findall(r"^```python\n((?:(?!```).*\n)*?class DPOIterator(?:.*\n)*?)^```", page, re.MULTILINE)
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        f"import os\n\nos.chdir({str(tmp_path)!r})\n{code[: code.index('lengths = ')]}\n\n"
        "def create_data_iterator(config, mesh):\n"
        "    lengths = {'max_prompt_length': 24, 'max_target_length': config.max_target_length}\n"
        f"    pairs = DPOIterator({str(data / 'train.parquet')!r}, mesh, batch_size={ROWS}, seed=1,\n"
        "                        tokenizer=config.tokenizer_path, **lengths)\n"
        "    return pairs, None\n"
    )
    run = {
        "trainer": "post_train.dpo.train_dpo",
        "base": "base.yml",
        "recipe": recipe,
        "use_dpo": True,
        "dpo": {"algo": "dpo", "dpo_beta": 0.1, "max_prompt_length": 24},
        "packing": False,
        "model_name": "qwen3-0.6b",  # the trainer has to know the name
        "override_model_config": True,
    }
    found = train(**run, steps=5)
    assert len(found["losses"]) == 5
    assert np.isfinite(found["losses"]).all()
    assert {name: array.shape for name, array in found["train"][0].items()} == {
        f"{name}_{kind}": (ROWS, length)
        for name, length in (("prompt", 24), ("chosen", 40), ("rejected", 40))
        for kind in ("ids", "mask")
    }
    resumed = train(**run, steps=7)
    assert len(resumed["losses"]) == 2
    assert_equal(resumed["train"], found["train"][: len(resumed["train"])])


def assert_equal(found, expected):
    """Asserts that batches are equal in names, dtypes and values."""
    assert len(found) == len(expected) > 0
    for batch, other in zip(found, expected, strict=True):
        assert batch.keys() == other.keys()
        for name, array in batch.items():
            assert array.dtype == other[name].dtype
            np.testing.assert_array_equal(array, other[name], name)
