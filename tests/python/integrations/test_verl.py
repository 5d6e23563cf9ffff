"""veRL's data sets by its own names. Where torch is not installed, arrays of NumPy stand for its tensors."""

import copy
import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from chat_models import CHATML, write_chatml
from gristmill.integrations.verl import MultiTurnSFTDataset, ResumableSampler, RLHFDataset, collate_fn

PAD = "<|im_end|>"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_chatml(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def encoder(model):
    return gm.Encoder.from_pretrained(model)


@pytest.fixture(scope="module")
def records():
    return [
        {
            "data_source": "test",
            "prompt": [{"role": "user", "content": f"What is {number} + 1? " + "word " * (number % 9 * 4)}],
            "reward_model": {"style": "rule", "ground_truth": str(number + 1)},
            "extra_info": {"index": number} if number % 5 else {"index": number, "tools_kwargs": {"a": 1}},
        }
        for number in range(23)
    ]


@pytest.fixture(scope="module")
def files(records, tmp_path_factory):
    """Two files, listed in another order than that of their names."""
    folder = tmp_path_factory.mktemp("prompts")
    schema = pa.Table.from_pylist(records).schema
    paths = [str(folder / "b.parquet"), str(folder / "a.parquet")]
    for path, part in zip(paths, (records[:12], records[12:]), strict=True):
        pq.write_table(pa.Table.from_pylist(part, schema=schema), path)
    return paths


class HFTokenizer:
    """The part of a tokenizer of `transformers` that is used."""

    chat_template = CHATML
    pad_token_id = 5

    def __init__(self, model):
        self.model = model
        self.special_tokens_map = {"eos_token": PAD}

    @property
    def backend_tokenizer(self):
        import tokenizers

        return tokenizers.Tokenizer.from_file(f"{self.model}/tokenizer.json")


def rendered(messages):
    body = "".join(f"<|im_start|>{one['role']}\n{one['content'].strip()}<|im_end|>\n" for one in messages)
    return body + "<|im_start|>assistant\n"


def cut(ids, most, side):
    if len(ids) <= most:
        return ids
    middle = ids[: most // 2] + ids[len(ids) - (most - most // 2) :]
    return {"left": ids[-most:], "right": ids[:most], "middle": middle}[side]


def naive_item(record, encoder, most, side="error"):
    """The item of veRL 0.6 of a record as Arrow has it."""
    record = copy.deepcopy(record)
    ids = cut(encoder.encode(rendered(record.pop("prompt"))).tolist(), most, side)
    mask = [0] * (most - len(ids)) + [1] * len(ids)
    position = [max(sum(mask[: index + 1]) - 1, 0) for index in range(most)]
    pad = encoder.token_to_id(PAD)
    record |= {"input_ids": [pad] * (most - len(ids)) + ids, "attention_mask": mask, "position_ids": position}
    record["raw_prompt_ids"] = ids
    extra = record["extra_info"]
    record["index"] = extra["index"]
    record["tools_kwargs"], record["interaction_kwargs"] = extra.get("tools_kwargs", {}), {}
    return record


def as_plain(item):
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in item.items()}


def arrow(files):
    return [record for file in files for record in pq.read_table(file).to_pylist()]


@pytest.mark.parametrize("side", ["left", "right", "middle"])
def test_items_are_those_of_verl_06(files, model, encoder, side):
    config = {"max_prompt_length": 33, "truncation": side, "filter_overlong_prompts": False}
    dataset = RLHFDataset(files, model, config)
    expected = [naive_item(record, encoder, 33, side) for record in arrow(files)]
    assert [as_plain(dataset[number]) for number in range(len(dataset))] == expected
    assert str(dataset[0]["input_ids"].dtype).endswith("int64")


def test_overlong_prompts_are_filtered_and_listed(files, model, encoder):
    lengths = [len(encoder.encode(rendered(record["prompt"]))) for record in arrow(files)]
    most = sorted(lengths)[len(lengths) // 2]
    dataset = RLHFDataset(files, model, {"max_prompt_length": most})
    kept = [number for number, length in enumerate(lengths) if length <= most]
    assert [dataset[number]["index"] for number in range(len(dataset))] == kept
    assert dataset.counts() == {"read": 23, "kept": len(kept), "quarantined": 0, "overlong": 23 - len(kept)}
    assert [one["tokens"] for one in dataset.dropped()] == [length for length in lengths if length > most]


def test_overlong_item_is_an_error_where_it_is_taken(files, model):
    dataset = RLHFDataset(files, model, {"max_prompt_length": 8, "filter_overlong_prompts": False})
    with pytest.raises(NotImplementedError, match=r"^sequence_length=\d+ is larger than max_length=8$"):
        dataset[0]


def test_items_of_verl_07_keep_messages(files, model):
    dataset = RLHFDataset(files, model, {"prompt_items": "messages"})
    record = arrow(files)[3]
    item = dataset[3]
    assert item.pop("dummy_tensor").tolist() == [0]
    extra = {"index": 3, "tools_kwargs": None, "interaction_kwargs": {}}
    assert item == {**record, "raw_prompt": record["prompt"], **extra}


@pytest.mark.parametrize("shuffle", [True, False])
def test_samples_are_drawn_before_filtering(files, model, shuffle):
    dataset = RLHFDataset(files, model, {"shuffle": shuffle, "seed": 3}, max_samples=9)
    drawn = np.random.default_rng(3).choice(23, 9, replace=False) if shuffle else np.arange(9)
    assert [dataset[number]["index"] for number in range(9)] == drawn.tolist()
    assert len(dataset) == 9


def test_rows_that_cannot_be_rendered_are_left_out_by_the_filter(tmp_path, records, model, caplog):
    path = tmp_path / "prompts.jsonl"
    broken = [*records, {**records[0], "prompt": "no list of messages"}]
    path.write_text("".join(json.dumps(record) + "\n" for record in broken))
    with pytest.raises(
        gm.ShardError, match=r"record 23.*1 bad record of 24, more than data\.max_error_rate=0\.01 allows"
    ):
        RLHFDataset(str(path), model, {"max_error_rate": 0.01})
    dataset = RLHFDataset(str(path), model, {})
    assert "1 record quarantined of 24" in caplog.text
    assert (len(dataset), dataset.counts()["quarantined"]) == (23, 1)
    assert "expected" in dataset.dropped()[0]["reason"]
    with pytest.raises(gm.ShardError, match="record 23"):
        RLHFDataset(str(path), model, {"filter_overlong_prompts": False})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tools": "{"}, "expected JSON under the key 'tools'"),
        ({"messages": [{"content": "?"}]}, r"messages\[0\]: expected a role .*, found none"),
    ],
)
def test_conversations_that_cannot_be_masked_are_located(tmp_path, model, changes, message):
    path = tmp_path / "talks.jsonl"
    row = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}
    path.write_text(json.dumps(row) + "\n" + json.dumps({**row, **changes}) + "\n")
    with pytest.raises(gm.ShardError, match=rf"talks\.jsonl: record 1(, byte 88)?: {message}"):
        MultiTurnSFTDataset(str(path), model)


def test_extra_info_that_is_no_object_is_located(tmp_path, model):
    path = tmp_path / "prompts.jsonl"
    row = {"prompt": [{"role": "user", "content": "?"}]}
    path.write_text(json.dumps(row) + "\n" + json.dumps({**row, "extra_info": '{"index": 1}'}) + "\n")
    dataset = RLHFDataset(str(path), model, {})
    assert dataset[0]["extra_info"] == {}
    with pytest.raises(gm.ShardError, match=r"prompts\.jsonl: record 1: expected an object under the key 'extra_info'"):
        dataset[1]


def test_damaged_file_is_an_error_whatever_the_budget(tmp_path, files, model):
    path = tmp_path / "prompts.jsonl.gz"
    path.write_bytes(b"\x1f\x8bno gzip")
    with pytest.raises(gm.ShardError, match=r"prompts\.jsonl\.gz"):
        RLHFDataset([files[0], str(path)], model, {"max_error_rate": 1.0})


CONFIGS = {
    "prompt_key": {"prompt_key": "prompt"},
    "cache_dir": {"cache_dir": "~/nowhere", "use_shm": True},
    "media": {"image_key": "pictures", "video_key": "films", "audio_key": "sounds"},
    "workers": {"filter_overlong_prompts_workers": 4},
    "unused": {"chat_template_func": None, "filter_prompts": True, "return_raw_input_ids": False, "reward_fn_key": "a"},
    "multi_modal": {"return_multi_modal_inputs": True, "image_patch_size": 14},
    "kwargs": {"apply_chat_template_kwargs": {"enable_thinking": False, "tokenize": True, "return_dict": False}},
    "none_fields": {"none_fields": "drop", "date": "2026-11-27"},
    "limits": {"max_error_rate": 0.5, "max_memory": 2**30, "threads": 1},
    "tools": {"tool_config_path": None},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_keys_without_effect_change_nothing(files, model, name):
    plain = RLHFDataset(files, model, {"max_prompt_length": 64, "truncation": "left"})
    dataset = RLHFDataset(files, model, {"max_prompt_length": 64, "truncation": "left", **CONFIGS[name]})
    assert [as_plain(item) for item in dataset] == [as_plain(item) for item in plain]


def test_raw_chat_and_full_prompt_are_returned(files, model, encoder):
    dataset = RLHFDataset(files, model, {"return_raw_chat": True, "return_full_prompt": True})
    item, record = dataset[2], arrow(files)[2]
    assert item["raw_prompt"] == record["prompt"]
    assert item["full_prompts"] == rendered(record["prompt"])


def test_template_and_prompt_key_are_configured(tmp_path, model, encoder):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"chat": [{"role": "user", "content": "Hi"}]}) + "\n")
    template = "{{ messages[0].content + mark }}"
    kwargs = {"chat_template": template, "mark": "!"}
    dataset = RLHFDataset(str(path), model, {"prompt_key": "chat", "apply_chat_template_kwargs": kwargs})
    item = dataset[0]
    assert item["raw_prompt_ids"] == encoder.encode("Hi!").tolist()
    assert (item["extra_info"], item["index"], item["tools_kwargs"]) == ({}, 0, {})


def test_tools_lengthen_the_filter_and_not_the_item(tmp_path, model, encoder):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": [{"role": "user", "content": "a" * n}]}) + "\n" for n in (1, 9)))
    template = "{{ (tools | tojson) if tools else '' }}{{ messages[0].content }}"
    config = {"apply_chat_template_kwargs": {"chat_template": template}, "max_prompt_length": 12}
    assert len(RLHFDataset(str(path), model, config)) == 2
    dataset = RLHFDataset(str(path), model, {**config, "tool_schemas": [{}, {}]})
    assert len(dataset) == 1
    assert dataset[0]["raw_prompt_ids"] == encoder.encode("a").tolist()


def test_missing_tools_kwargs_are_warned_of(files, records, model, tmp_path, caplog):
    dataset = RLHFDataset(files, model, {"need_tools_kwargs": True})
    dataset[1]
    assert "tools_kwargs is empty for index 1, data source: test" in caplog.text
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": records[0]["prompt"]}) + "\n")
    with pytest.raises(KeyError, match="data_source"):
        RLHFDataset(str(path), model, {"need_tools_kwargs": True})[0]


def test_template_that_prints_the_date_needs_one(files, model):
    kwargs = {"chat_template": "{{ strftime_now('%Y') }}{{ messages[0].content }}"}
    with pytest.raises(gm.ArgumentError, match=r"\+data\.date="):
        RLHFDataset(files, model, {"apply_chat_template_kwargs": kwargs})
    config = {"apply_chat_template_kwargs": kwargs, "date": "1999-12-31", "return_full_prompt": True}
    assert RLHFDataset(files, model, config)[0]["full_prompts"].startswith("1999What")


def test_multimodal_prompts_are_refused(tmp_path, records, model):
    path = tmp_path / "prompts.jsonl"
    lines = [{**records[0], "images": None}, {**records[1], "images": ["a.png"]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(NotImplementedError, match=r"record 1: it has images"):
        RLHFDataset(str(path), model, {})
    path.write_text(json.dumps(lines[0]) + "\n")
    assert RLHFDataset(str(path), model, {})[0]["images"] is None
    assert "images" not in RLHFDataset(str(path), model, {"prompt_items": "messages"})[0]


def test_tokenizer_of_transformers_is_taken(files, model, encoder):
    dataset = RLHFDataset(files, HFTokenizer(model), {"max_prompt_length": 200})
    item = dataset[0]
    assert item["input_ids"][0] == 5
    assert item["raw_prompt_ids"] == encoder.encode(rendered(arrow(files)[0]["prompt"])).tolist()
    with pytest.raises(gm.ArgumentTypeError, match="fast tokenizer"):
        RLHFDataset(files, object(), {})


def test_pickled_dataset_keeps_its_prompts(files, model):
    dataset = RLHFDataset(files, model, {})
    copied = pickle.loads(pickle.dumps(dataset))
    copied.resume_dataset_state()
    assert [as_plain(item) for item in copied] == [as_plain(item) for item in dataset]
    copied.load_state_dict(dataset.state_dict())
    other = RLHFDataset(files[0], model, {})
    with pytest.raises(gm.StateError, match="other prompts"):
        other.load_state_dict(dataset.state_dict())


def test_split_parts_are_equal(files, model):
    dataset = RLHFDataset(files, model, {})
    parts = dataset.split(4)
    assert [item["index"] for part in parts for item in part] == list(range(20))
    for wrong in (0, 24):
        with pytest.raises(ValueError, match="num_splits"):
            dataset.split(wrong)


def test_collated_batch_has_tensors_and_objects(files, model):
    dataset = RLHFDataset(files, model, {"max_prompt_length": 64})
    items = [dataset[number] for number in range(3)]
    batch = collate_fn(items)
    assert tuple(batch["input_ids"].shape) == (3, 64)
    assert [*batch][:3] == ["input_ids", "attention_mask", "position_ids"]
    assert batch["reward_model"].dtype == object
    assert batch["raw_prompt_ids"].tolist() == [item["raw_prompt_ids"] for item in items]
    with pytest.raises(gm.ArgumentError, match=r"item 1 of the batch lacks 'index'"):
        collate_fn([items[0], {key: value for key, value in items[1].items() if key != "index"}])


# -- order and resume ----------------------------------------------------------------------------------------------
class Loader:
    """`StatefulDataLoader` without workers: batches of a sampler's indices, and the sampler's state."""

    def __init__(self, dataset, sampler, size):
        self.dataset, self.sampler, self.size, self.state = dataset, sampler, size, None

    def __iter__(self):
        self.indices = iter(self.sampler)
        if self.state is not None:
            self.indices.load_state_dict(self.state)
            self.state = None
        while True:
            batch = [index for _, index in zip(range(self.size), self.indices, strict=False)]
            if len(batch) < self.size:
                return
            yield collate_fn([self.dataset[index] for index in batch])


@pytest.mark.parametrize("order", ["torch", "torchdata", "gristmill"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_resume_after_every_batch(files, model, shuffle, order):
    config = {"shuffle": shuffle, "seed": 7, "order": order, "train_batch_size": 4}
    dataset = RLHFDataset(files, model, config)

    def loader():
        return Loader(dataset, ResumableSampler(dataset, config), 4)

    whole, states, epochs = loader(), [], 3
    indices = []
    for _ in range(epochs):
        for batch in whole:
            indices.append(batch["index"].tolist())
            states.append(json.loads(json.dumps(whole.indices.state_dict())))
    per_epoch = len(indices) // epochs
    assert per_epoch == 5
    for step, state in enumerate(states[:-1], 1):
        resumed = loader()
        resumed.state = state
        left = epochs - step // per_epoch
        assert [batch["index"].tolist() for _ in range(left) for batch in resumed] == indices[step:]
    assert (indices[0] == indices[per_epoch]) == (not shuffle)


def test_state_of_another_number_of_prompts_is_refused(files, model):
    dataset = RLHFDataset(files, model, {})
    iterator = iter(ResumableSampler(dataset, {}))
    next(iterator)
    fewer = iter(ResumableSampler(dataset.split(2)[0], {}))
    with pytest.raises(gm.StateError, match="23 prompts"):
        fewer.load_state_dict(iterator.state_dict())


# -- conversations -------------------------------------------------------------------------------------------------
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "22"},
]


def write_talks(path, *talks, **more):
    path.write_text("".join(json.dumps({"messages": talk, **more}) + "\n" for talk in talks))
    return str(path)


def trained(encoder, item):
    ids = np.array(item["input_ids"].tolist())[np.array(item["loss_mask"].tolist()) == 1]
    return encoder.decode(ids.astype(np.int32))


def test_conversation_is_encoded_whole_and_trained_on_answers(tmp_path, model, encoder):
    path = write_talks(tmp_path / "talks.jsonl", TALK)
    item = MultiTurnSFTDataset(path, model, {"max_length": 120})[0]
    text = rendered(TALK).removesuffix("<|im_start|>assistant\n")
    ids = encoder.encode(text).tolist()
    assert list(item) == ["input_ids", "attention_mask", "position_ids", "loss_mask"]
    assert item["input_ids"].tolist() == ids + [encoder.token_to_id(PAD)] * (120 - len(ids))
    assert item["attention_mask"].tolist() == [1] * len(ids) + [0] * (120 - len(ids))
    assert item["position_ids"].tolist() == [*range(len(ids)), *[0] * (120 - len(ids))]
    assert trained(encoder, item) == "1<|im_end|>22<|im_end|>"


def test_item_without_padding_has_three_arrays(tmp_path, model, encoder):
    path = write_talks(tmp_path / "talks.jsonl", TALK)
    item = MultiTurnSFTDataset(path, model, {"pad_mode": "no_padding"})[0]
    assert list(item) == ["input_ids", "position_ids", "loss_mask"]
    text = rendered(TALK).removesuffix("<|im_start|>assistant\n")
    assert item["input_ids"].tolist() == encoder.encode(text).tolist()
    assert trained(encoder, item) == "1<|im_end|>22<|im_end|>"


@pytest.mark.parametrize("mode", ["right", "no_padding"])
def test_truncation_cuts_the_chosen_side(tmp_path, model, encoder, mode):
    path = write_talks(tmp_path / "talks.jsonl", TALK)
    config = {"max_length": 45, "pad_mode": mode}
    # Without padding veRL keeps the beginning in any case.
    length, kept = (23, "22<|im_end|>") if mode == "right" else (45, "1<|im_end|>")
    left = MultiTurnSFTDataset(path, model, {**config, "max_length": length, "truncation": "left"})[0]
    assert trained(encoder, left) == kept
    right = MultiTurnSFTDataset(path, model, {**config, "truncation": "right"})[0]
    assert trained(encoder, right) == "1<|im_end|>"
    assert (len(left["input_ids"]), len(right["input_ids"])) == (length, 45)
    dataset = MultiTurnSFTDataset(path, model, config)
    with pytest.raises(ValueError, match=r"^sequence_length=\d+ is larger than max_length=45$"):
        dataset[0]


def test_message_overrides_its_mask(tmp_path, model, encoder):
    talk = copy.deepcopy(TALK)
    talk[2]["loss_mask"], talk[3]["loss_mask"] = 0, 1
    path = write_talks(tmp_path / "talks.jsonl", talk)
    assert trained(encoder, MultiTurnSFTDataset(path, model)[0]) == "Two?<|im_end|>22<|im_end|>"
    for value in (2, "1", 0.5):
        talk[2]["loss_mask"] = value
        write_talks(tmp_path / "talks.jsonl", talk)
        with pytest.raises(gm.ShardError, match=r"record 0: loss_mask should be"):
            MultiTurnSFTDataset(path, model)


def test_untrained_conversation_is_an_error_or_counted(tmp_path, model, encoder):
    path = write_talks(tmp_path / "talks.jsonl", TALK, TALK[:2])
    with pytest.raises(gm.ShardError, match=r"talks\.jsonl: record 1: no token of it is trained on"):
        MultiTurnSFTDataset(path, model)
    dataset = MultiTurnSFTDataset(path, model, {"on_untrained": "drop"})
    assert (len(dataset), dataset.untrained) == (1, 1)
    with pytest.raises(gm.ShardError, match="max_length=10 cuts all of its trained tokens off"):
        MultiTurnSFTDataset(path, model, {"max_length": 10, "truncation": "right"})


def test_keys_tools_and_thinking_of_a_record_are_used(tmp_path, model, encoder):
    template = (
        "{{ tools | length if tools else 0 }}{{ 'T' if enable_thinking else 'F' }}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    path = tmp_path / "talks.jsonl"
    path.write_text(json.dumps({"talk": TALK[1:3], "functions": [{}, {}], "thinks": True}) + "\n")
    names = {"messages_key": "talk", "tools_key": "functions", "enable_thinking_key": "thinks"}
    kwargs = {"apply_chat_template_kwargs": {"chat_template": template}, "pad_mode": "no_padding"}
    for config in (names, {"multiturn": names}):
        item = MultiTurnSFTDataset(str(path), model, {**config, **kwargs})[0]
        text = encoder.decode(np.array(item["input_ids"].tolist()).astype(np.int32))
        assert text == "2T[user]One?<|im_end|>[assistant]1<|im_end|>"


def test_conversations_are_sampled(tmp_path, model):
    talks = [[{"role": "user", "content": "?"}, {"role": "assistant", "content": "x" * n}] for n in range(1, 9)]
    path = write_talks(tmp_path / "talks.jsonl", *talks)
    config = {"shuffle": True, "seed": 5, "pad_mode": "no_padding"}
    sizes = [len(item["input_ids"]) for item in MultiTurnSFTDataset(path, model, config)]
    found = [len(item["input_ids"]) for item in MultiTurnSFTDataset(path, model, config, max_samples=3)]
    assert found == [sizes[index] for index in np.random.default_rng(5).choice(8, 3, replace=False)]
