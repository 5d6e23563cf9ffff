"""Pairs for TRL's DPOTrainer, beside its own data sets and collator; `make test-trl` installs it."""

import importlib.util
import json
import re

import numpy as np
import pytest

import gristmill as gm
from chat_models import CHATML, write_chatml
from helpers import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("torch", "trl"))), reason="TRL is not installed: make test-trl"
    ),
]

LENGTH = 160
PAD = "<|im_start|>"
# As ChatML, but nothing follows the token that ends a turn.
CLOSED = CHATML.replace("<|im_end|>\\n", "<|im_end|>")

QUESTIONS = [
    [{"role": "user", "content": f"ant {n}?"}]
    if n % 2
    else [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": f"{n} + {n}?"},
    ]
    for n in range(4)
]
MESSAGES = [
    {
        "prompt": question,
        "chosen": [{"role": "assistant", "content": "yes " * n + f"{2 * n}"}],
        "rejected": [{"role": "assistant", "content": "no idea"}],
    }
    for n, question in enumerate(QUESTIONS)
]
STRINGS = [{"prompt": f"{n} + {n} =", "chosen": f" {2 * n}" * (n + 1), "rejected": " an ant"} for n in range(4)]
IMPLICIT = [{name: pair["prompt"] + pair[name] for name in ("chosen", "rejected")} for pair in MESSAGES]

LAST = {name: gm.Chat(name, train_on="last") for name in ("chosen", "rejected")}
COMPLETIONS = {name: gm.Completion("prompt", name) for name in ("chosen", "rejected")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_chatml(tmp_path_factory.mktemp("model") / "model")
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": PAD}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


@pytest.fixture(scope="module")
def for_trl():
    """The function of the guide."""
    page = (ROOT / "docs" / "prompts.md").read_text()
    (code,) = re.findall(r"^(def for_trl\(.*\n(?:(?: .*)?\n)*)", page, re.MULTILINE)
    names = {"np": np}
    exec(code, names)
    return names["for_trl"]


def trainer_of(folder, template, rows, path):
    """A trainer of a small model on TRL's own data set of these rows."""
    import datasets
    import torch
    import transformers
    import trl

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    tokenizer.chat_template = template
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=2, **sizes)
    options = {"report_to": "none", "use_cpu": True, "bf16": False, "per_device_train_batch_size": len(rows)}
    trainer = trl.DPOTrainer(
        transformers.LlamaForCausalLM(config),
        # The reference is another model, so that the loss tells batches apart.
        ref_model=transformers.LlamaForCausalLM(config),
        args=trl.DPOConfig(output_dir=str(path), max_length=LENGTH, **options),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    return trainer, trainer.data_collator([trainer.train_dataset[row] for row in range(len(rows))])


def batch_of(folder, template, rows, prompt, **options):
    (batch,) = gm.PromptDataset(
        rows,
        tokenizer=folder,
        prompt={
            name: gm.Chat(sample.field, train_on=sample.train_on, template=template)
            if isinstance(sample, gm.Chat)
            else sample
            for name, sample in prompt.items()
        },
        prompt_length=LENGTH,
        layout="hf",
        padding="right",
        batch_size=len(rows),
        **options,
    )
    return batch


def same_width(found, expected):
    """Both without the padding of the longer one."""
    width = expected["input_ids"].shape[1]
    assert not found["attention_mask"][:, width:].any()
    return {key: array[:, :width] for key, array in found.items()}


@pytest.mark.parametrize(
    ("rows", "prompt", "options"),
    [
        (IMPLICIT, LAST, {}),
        (MESSAGES, {name: gm.Completion("prompt", name, template=CLOSED) for name in COMPLETIONS}, {}),
        (STRINGS, COMPLETIONS, {"eos": True}),
    ],
    ids=["implicit prompt", "explicit prompt", "strings"],
)
def test_batch_and_loss_are_those_of_its_collator(tmp_path, folder, for_trl, rows, prompt, options):
    import torch

    trainer, expected = trainer_of(folder, CLOSED, rows, tmp_path)
    found = for_trl(batch_of(folder, CLOSED, rows, prompt, **options))
    assert found.keys() == expected.keys()
    for key, array in same_width(found, expected).items():
        np.testing.assert_array_equal(array, expected[key].numpy(), key)
        assert array.dtype == np.int64
    tensors = {key: torch.from_numpy(array) for key, array in found.items()}
    own, theirs = (float(trainer.compute_loss(trainer.model, batch)) for batch in (tensors, expected))
    assert own == pytest.approx(theirs, rel=1e-5)
    # Another mask has another loss, unless it differs in the prompt that both answers have.
    tensors["completion_mask"][len(rows) :] = 0
    assert float(trainer.compute_loss(trainer.model, tensors)) != pytest.approx(theirs, rel=1e-4)


def test_it_trains_the_line_end_behind_an_answer_too(tmp_path, folder, for_trl):
    _, expected = trainer_of(folder, CHATML, IMPLICIT, tmp_path)
    found = same_width(for_trl(batch_of(folder, CHATML, IMPLICIT, LAST)), expected)
    np.testing.assert_array_equal(found["input_ids"], expected["input_ids"].numpy())
    theirs, ours = expected["completion_mask"].numpy(), found["completion_mask"]
    assert (ours <= theirs).all()
    newline = gm.Encoder.from_pretrained(folder).encode("\n").tolist()
    assert found["input_ids"][theirs > ours].tolist() == newline * len(theirs)
