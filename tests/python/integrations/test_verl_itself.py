"""The veRL adapter beside veRL's own classes, where it is installed: 0.9.1 and 0.6.1 were.

It needs an older `transformers` than other tests have: `make test-verl-0.9.1` makes an environment for it.
"""

import datetime
import decimal
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
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
IS_06 = importlib.metadata.version("verl").startswith("0.6.")
ROLES = "{% if messages[0].role != 'user' %}{{ raise_exception('no such role') }}{% endif %}{{ messages[0].content }}"


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


@pytest.mark.skipif(IS_06, reason="veRL 0.6 reads no JSON")
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


# -- settings ------------------------------------------------------------------------------------------------------
def rows(count, **more):
    return [
        {
            "data_source": "d",
            "prompt": [{"role": "user", "content": f"What is {number}? " + "ant " * number}],
            "extra_info": {"index": number},
            **more,
        }
        for number in range(count)
    ]


def changed(at, **changes):
    return [{**row, **changes} if row["extra_info"]["index"] == at else row for row in rows(6)]


VALUES = {
    "raw": b"\x00\xff", "day": datetime.date(2024, 2, 29), "moment": datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
    "utc": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "clock": datetime.time(1, 2, 3),
    "lasted": datetime.timedelta(seconds=3), "price": decimal.Decimal("1.10"), "score": float("nan"),
    "scores": [0.5, float("nan"), None], "nested": {"raw": b"\xfe"},
}  # fmt: skip
FILES = {
    "typed": [[{**row, **VALUES, "extra_info": {**row["extra_info"], **VALUES}} for row in rows(3)]],
    "columns of files": [rows(3), rows(3, more="x")],
    "keys of structs": [rows(3), [{**row, "extra_info": {"a": 1, **row["extra_info"]}} for row in rows(3)]],
    "null": [changed(2, prompt=None)],
    "empty": [changed(2, prompt=[])],
    "role": [changed(2, prompt=[{"role": "developer", "content": "a"}])],
    "images": [rows(4, images=None)],
}


@pytest.mark.parametrize("filters", [True, False])
@pytest.mark.parametrize("name", FILES)
def test_items_of_files_are_those_of_verl(tokenizer, tmp_path, name, filters):
    if IS_06 and (name == "images" or (not filters and name in ("null", "empty", "role"))):
        pytest.skip("veRL 0.6 makes lists of parts of them, or fails at the item")
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    paths = [str(tmp_path / f"{number}.parquet") for number in range(len(FILES[name]))]
    for path, records in zip(paths, FILES[name], strict=True):
        pq.write_table(pa.Table.from_pylist(records), path)
    config = omegaconf.OmegaConf.create(
        {
            "max_prompt_length": 60, "filter_overlong_prompts": filters, "filter_overlong_prompts_workers": 1,
            "cache_dir": str(tmp_path), "truncation": "left", "return_raw_chat": True,
            "apply_chat_template_kwargs": {"chat_template": ROLES},
        }
    )  # fmt: skip

    def items(module):
        dataset = module.RLHFDataset(paths, tokenizer, config)
        found = []
        for index in range(len(dataset)):
            try:
                found.append(repr({key: plain(value) for key, value in dataset[index].items()}))
            except Exception:
                found.append("an error")
        return found

    assert items(own) == items(real)


def test_derived_classes_and_samplers_find_verls_class(file, tokenizer, tmp_path):
    config = omegaconf.OmegaConf.create({"max_prompt_length": 60, "cache_dir": str(tmp_path)})
    dataset = own.RLHFDataset(file, tokenizer, config)
    assert isinstance(dataset, real.RLHFDataset)
    assert [row["extra_info"]["index"] for row in dataset.dataframe] == [item["index"] for item in dataset]
    if not IS_06:
        assert callable(type(dataset).process_vision_info)


def test_shuffled_validation_has_the_order_of_verl(tokenizer, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_pylist(rows(11)), path)
    config = omegaconf.OmegaConf.create({"max_prompt_length": 999, "cache_dir": str(tmp_path)})

    def order(module):
        torch.manual_seed(5)
        dataset = module.RLHFDataset(path, tokenizer, config)
        loader = loaders.StatefulDataLoader(dataset, batch_size=3, shuffle=True, collate_fn=module.collate_fn)
        return [batch["index"].tolist() for _ in range(2) for batch in loader]

    assert order(own) == order(real)
