"""The veRL adapter beside veRL's own classes, of 0.7 or later, where it is installed.

`pip install verl` brings an older `transformers` and `tokenizers` than other tests have: it needs an environment of its
own, with pytest, pytest-timeout and gristmill.
"""

import importlib.metadata
import json

import pytest

from chat_models import CHATML, write_chatml
from gristmill.integrations import verl as own

real = pytest.importorskip("verl.utils.dataset.rl_dataset", reason="veRL is not installed")
omegaconf = pytest.importorskip("omegaconf")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
loaders = pytest.importorskip("torchdata.stateful_dataloader")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(importlib.metadata.version("verl").startswith("0.6."), reason="other items"),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = write_chatml(tmp_path_factory.mktemp("model"))
    tokens = {"eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    made = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **tokens)
    made.chat_template = CHATML
    return made


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"What is {n} + {n}? " + "ant " * (n % 9 * 4)}],
            "reward_model": {"style": "rule", "ground_truth": str(2 * n)},
            "extra_info": {"index": n, "split": "train"},
        }
        for n in range(41)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def plain(value):
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize(("most", "seed"), [(-1, None), (-1, 1), (17, 1)])
def test_items_and_order_are_those_of_verl(file, tokenizer, tmp_path, most, seed):
    values = {
        "max_prompt_length": 60, "filter_overlong_prompts": True, "filter_overlong_prompts_workers": 1, "shuffle": True,
        "seed": seed, "train_batch_size": 4, "order": "torchdata", "cache_dir": str(tmp_path),
    }  # fmt: skip
    config = omegaconf.OmegaConf.create(values)

    def batches(module):
        dataset = module.RLHFDataset([file], tokenizer, config, max_samples=most)
        generator = torch.Generator()
        if seed is not None:
            generator.manual_seed(seed)
        is_own = module is own
        sampler = (
            own.ResumableSampler(dataset, config)
            if is_own
            else loaders.sampler.RandomSampler(dataset, generator=generator)
        )
        loader = loaders.StatefulDataLoader(
            dataset, batch_size=4, num_workers=0, drop_last=True, sampler=sampler, collate_fn=module.collate_fn
        )
        return [{key: plain(value) for key, value in batch.items()} for _ in range(2) for batch in loader]

    found, expected = batches(own), batches(real)
    assert found == expected
    assert len(expected) >= 4
