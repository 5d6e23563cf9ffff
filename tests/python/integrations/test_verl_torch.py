"""The veRL adapter with torch, torchdata's loader and OmegaConf; `make test-verl` installs them."""

import copy
import json

import pytest

from chat_models import write_chatml
from gristmill.integrations.verl import MultiTurnSFTDataset, ResumableSampler, RLHFDataset, collate_fn

torch = pytest.importorskip("torch", reason="torch is not installed: make test-verl")
loaders = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed: make test-verl")
omegaconf = pytest.importorskip("omegaconf", reason="OmegaConf is not installed: make test-verl")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

EPOCHS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_chatml(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def config():
    values = {"seed": 7, "shuffle": True, "train_batch_size": 4, "max_prompt_length": 64, "truncation": "left"}
    return omegaconf.OmegaConf.create({**values, "apply_chat_template_kwargs": {"enable_thinking": False}})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, model, config):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [{"prompt": [{"role": "user", "content": str(n)}], "extra_info": {"index": n}} for n in range(22)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RLHFDataset(omegaconf.ListConfig([str(path)]), model, config)


def indices(loader):
    return [batch["index"].tolist() for batch in loader]


def test_items_are_tensors_of_torch(dataset):
    assert isinstance(dataset, torch.utils.data.Dataset)
    batch = collate_fn([dataset[0], dataset[1]])
    for key in ("input_ids", "attention_mask", "position_ids"):
        assert (batch[key].dtype, batch[key].shape) == (torch.int64, (2, 64))


@pytest.mark.parametrize("workers", [0, 2])
def test_order_of_a_random_sampler_is_kept_by_workers(dataset, workers):
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=collate_fn)
    assert [index for batch in indices(loader) for index in batch] == list(range(22))


def test_order_is_that_of_torch(dataset, config):
    generator = torch.Generator()
    generator.manual_seed(7)
    theirs = torch.utils.data.RandomSampler(dataset, generator=generator)
    ours = ResumableSampler(dataset, config)
    for _ in range(EPOCHS):
        assert list(ours) == list(theirs)
    config = omegaconf.OmegaConf.merge(config, {"order": "torchdata"})
    generator.manual_seed(7)
    theirs = loaders.sampler.RandomSampler(dataset, generator=generator)
    ours = ResumableSampler(dataset, config)
    for _ in range(EPOCHS):
        assert list(ours) == list(theirs)


def test_stateful_loader_resumes_after_every_batch(dataset, config):
    def loader():
        sampler = ResumableSampler(dataset, config)
        options = {"batch_size": 4, "num_workers": 0, "drop_last": True, "collate_fn": collate_fn}
        return loaders.StatefulDataLoader(dataset, sampler=sampler, **options)

    whole, batches, states = loader(), [], []
    for _ in range(EPOCHS):
        for batch in whole:
            batches.append(batch["index"].tolist())
            states.append(copy.deepcopy(whole.state_dict()))
    per_epoch = len(batches) // EPOCHS
    for step, state in enumerate(states[:-1], 1):
        resumed = loader()
        resumed.load_state_dict(state)
        assert [found for _ in range(EPOCHS - step // per_epoch) for found in indices(resumed)] == batches[step:]


def test_conversations_are_tensors_of_torch(tmp_path, model):
    path = tmp_path / "talks.jsonl"
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    path.write_text(json.dumps({"messages": messages}) + "\n")
    item = MultiTurnSFTDataset(str(path), model, omegaconf.OmegaConf.create({"max_length": 40}))[0]
    expected = (torch.int64, (40,))
    keys = ["input_ids", "attention_mask", "position_ids", "loss_mask"]
    assert [(key, (value.dtype, tuple(value.shape))) for key, value in item.items()] == [
        (key, expected) for key in keys
    ]
