"""veRL's data sets as its users configure and derive them: without torch and veRL, of which fakes stand in."""

import datetime
import decimal
import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from chat_models import CHATML, write_chatml
from gristmill.integrations.verl import MultiTurnSFTDataset, RLHFDataset, config, sft_dataset, states
from gristmill.integrations.verl.words import VERL

MESSAGES = {"prompt_items": "messages", "filter_overlong_prompts": False}
ROLES = "{% if messages[0].role != 'user' %}{{ raise_exception('no such role') }}{% endif %}{{ messages[0].content }}"


@pytest.fixture(autouse=True)
def _without_verl(monkeypatch):
    """Items of tokens are the default, whatever veRL is installed."""
    monkeypatch.setattr(config, "is_before_07", lambda: True)
    monkeypatch.setattr(sft_dataset, "is_before_07", lambda: True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_chatml(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def encoder(model):
    return gm.Encoder.from_pretrained(model)


def rows(count):
    return [
        {"data_source": "d", "prompt": [{"role": "user", "content": f"ant {number}"}], "extra_info": {"index": number}}
        for number in range(count)
    ]


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


class Tokenizer:
    """The part of a tokenizer of `transformers` that is used."""

    chat_template = CHATML
    pad_token_id = 5

    def __init__(self, model):
        self.model = model
        self.special_tokens_map = {"eos_token": "<|im_end|>"}

    @property
    def backend_tokenizer(self):
        import tokenizers

        return tokenizers.Tokenizer.from_file(f"{self.model}/tokenizer.json")


class Processor:
    """One of a multimodal model, whose template is not that of its tokenizer."""

    chat_template = "{{ messages[0].content }}"
    image_processor = type("Qwen2VLImageProcessorFast", (), {})()

    def __init__(self, model):
        self.tokenizer = Tokenizer(model)


# -- the rendered texts ----------------------------------------------------------------------------------------------
def test_messages_that_are_not_filtered_are_not_rendered(tmp_path, model):
    records = [*rows(2), {**rows(1)[0], "prompt": "a string"}, {**rows(1)[0], "prompt": []}, {"extra_info": None}]
    kwargs = {"chat_template": "{{ strftime_now('%d') }}{% no template", "continue_final_message": True}
    options = {**MESSAGES, "max_prompt_length": None, "apply_chat_template_kwargs": kwargs}
    dataset = RLHFDataset(write(tmp_path / "a.jsonl", records), object(), options)
    assert [dataset[index]["raw_prompt"] for index in (0, 2, 3)] == [records[0]["prompt"], "a string", []]
    with pytest.raises(gm.ShardError, match=r"record 4: expected a list of messages .*data\.prompt_key.*found None"):
        dataset[4]
    assert dataset.counts() == {"read": 5, "kept": 5, "overlong": 0, "quarantined": 0}


@pytest.mark.parametrize("items", ["tokens", "messages"])
def test_length_is_needed_where_prompts_are_rendered(tmp_path, model, items):
    path = write(tmp_path / "a.jsonl", rows(1))
    with pytest.raises(gm.ArgumentTypeError, match=r"^data\.max_prompt_length=None: expected an integer"):
        RLHFDataset(path, model, {"prompt_items": items, "max_prompt_length": None})


@pytest.mark.parametrize("items", ["tokens", "messages"])
def test_filter_leaves_out_what_no_template_renders(tmp_path, model, items):
    changes = [{}, {"prompt": None}, {"prompt": []}, {"prompt": "a"}, {"prompt": [{"role": "x", "content": "a"}]}]
    path = write(tmp_path / "a.jsonl", [{**rows(1)[0], **change} for change in changes])
    options = {"prompt_items": items, "apply_chat_template_kwargs": {"chat_template": ROLES}}
    dataset = RLHFDataset(path, model, options)
    assert (len(dataset), dataset.counts()["quarantined"]) == (1, 4)
    assert [one["record"] for one in dataset.dropped()] == [1, 2, 3, 4]
    with pytest.raises(gm.ShardError, match=r"no record is usable"):
        RLHFDataset(write(tmp_path / "b.jsonl", [{"prompt": "a"}]), model, options)


@pytest.mark.parametrize("filters", [True, False])
def test_documents_are_rendered(tmp_path, model, encoder, filters):
    path = write(tmp_path / "a.jsonl", rows(3) + [{"prompt": None}] * filters)
    kwargs = {"chat_template": "{{ documents[0].text }}{{ messages[0].content }}", "documents": [{"text": "T"}]}
    options = {"apply_chat_template_kwargs": kwargs, "filter_overlong_prompts": filters, "return_full_prompt": True}
    dataset = RLHFDataset(path, model, options)
    assert [item["full_prompts"] for item in dataset] == ["Tant 0", "Tant 1", "Tant 2"]
    assert dataset[1]["raw_prompt_ids"] == encoder.encode("Tant 1").tolist()
    assert [one["record"] for one in dataset.dropped()] == [3] * filters
    longest = len(encoder.encode("Tant 1"))
    assert len(RLHFDataset(path, model, {**options, "max_prompt_length": longest - 1})) == (0 if filters else 3)


def test_continued_messages_are_refused_where_prompts_are_rendered(tmp_path, model):
    kwargs = {"continue_final_message": True}
    with pytest.raises(gm.ArgumentError, match=r"data\.apply_chat_template_kwargs\.continue_final_message"):
        RLHFDataset(write(tmp_path / "a.jsonl", rows(1)), model, {"apply_chat_template_kwargs": kwargs})


# -- processors ----------------------------------------------------------------------------------------------------
def test_template_of_a_processor_measures_prompts(tmp_path, model, encoder):
    path = write(tmp_path / "a.jsonl", [{**row, "images": None} for row in rows(3)])
    most = len(encoder.encode("ant 0"))
    options = {"prompt_items": "messages", "max_prompt_length": most}
    assert len(RLHFDataset(path, Tokenizer(model), options)) == 0
    dataset = RLHFDataset(path, Tokenizer(model), options, processor=Processor(model))
    assert [item["raw_prompt"] for item in dataset] == [row["prompt"] for row in rows(3)]
    with pytest.raises(NotImplementedError, match=r"processor=Processor: items of veRL 0\.6"):
        RLHFDataset(path, Tokenizer(model), {}, processor=Processor(model))
    images = write(tmp_path / "b.jsonl", [{**row, "images": ["a.png"]} for row in rows(1)])
    with pytest.raises(NotImplementedError, match=r"b\.jsonl: record 0: it has images, .*leave data\.custom_cls out"):
        RLHFDataset(images, Tokenizer(model), options, processor=Processor(model))


# -- derived classes -----------------------------------------------------------------------------------------------
class WithSystem(RLHFDataset):
    """Its prompts have a message more."""

    def _build_messages(self, example, key=None):
        return [{"role": "system", "content": "S"}, *example[key or self.prompt_key]]


class OfOldKind(RLHFDataset):
    """As in veRL 0.7 and before, where no key is given."""

    def _build_messages(self, example):
        return [{"role": "system", "content": "S"}, *example.pop("prompt")]


@pytest.mark.parametrize("derived", [WithSystem, OfOldKind])
@pytest.mark.parametrize("items", ["tokens", "messages"])
def test_messages_of_a_derived_class_are_delivered(tmp_path, model, encoder, derived, items):
    path = write(tmp_path / "a.jsonl", rows(2))
    kwargs = {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    dataset = derived(
        path, model, {"prompt_items": items, "apply_chat_template_kwargs": kwargs, "return_raw_chat": True}
    )
    assert dataset[1]["raw_prompt"] == [{"role": "system", "content": "S"}, *rows(2)[1]["prompt"]]
    if items == "tokens":
        assert dataset[1]["raw_prompt_ids"] == encoder.encode("Sant 1").tolist()


@pytest.mark.parametrize("processor", [None, Processor])
def test_filter_measures_what_verl_measures(tmp_path, model, encoder, processor):
    path = write(tmp_path / "a.jsonl", rows(2))
    kwargs = {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    options = {"prompt_items": "messages", "apply_chat_template_kwargs": kwargs}
    options["max_prompt_length"] = len(encoder.encode("ant 0"))
    made = processor and processor(model)
    assert len(WithSystem(path, Tokenizer(model), options, processor=made)) == (2 if processor is None else 0)


@pytest.mark.parametrize("name", ["maybe_filter_out_long_prompts", "_read_files_and_tokenize"])
def test_hooks_that_are_never_called_are_refused(tmp_path, model, name):
    hook = {name: lambda self, dataframe=None: dataframe}
    for derived in (type("Mine", (RLHFDataset,), hook), type("Mine", (type("Mixin", (), hook), RLHFDataset), {})):
        with pytest.raises(
            gm.ArgumentError, match=rf"^Mine overrides {name}, which gristmill's RLHFDataset never calls"
        ):
            derived(write(tmp_path / "a.jsonl", rows(1)), model, MESSAGES)


def test_attributes_are_those_of_verls_class(tmp_path, model):
    pytest.importorskip("datasets")
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_pylist(rows(6)), path)
    options = {**MESSAGES, "shuffle": True, "seed": 3}
    dataset = RLHFDataset(path, model, options, max_samples=4)
    assert (dataset.tokenizer, dataset.config, dataset.prompt_key, dataset.max_samples) == (model, options, "prompt", 4)
    drawn = np.random.default_rng(3).choice(6, 4, replace=False).tolist()
    assert [row["extra_info"]["index"] for row in dataset.dataframe] == drawn
    assert [row["extra_info"]["index"] for row in dataset.split(2)[1].dataframe] == drawn[2:]
    with pytest.raises(NotImplementedError, match=r"derive the class from veRL's own"):
        dataset.dataframe = None


def test_data_that_grows_is_refused(tmp_path, model):
    options = {**MESSAGES, "datagen": {"path": "gen.py", "name": "Gen"}}
    with pytest.raises(gm.ArgumentError, match=r"^data\.datagen\.path='gen\.py': DynamicGenDataset .*data\.custom_cls"):
        RLHFDataset(write(tmp_path / "a.jsonl", rows(1)), model, options)
    assert len(RLHFDataset(write(tmp_path / "a.jsonl", rows(1)), model, {**MESSAGES, "datagen": {"path": None}})) == 1


# -- records -------------------------------------------------------------------------------------------------------
def test_values_that_json_lacks_are_pythons(tmp_path, model):
    values = {
        "raw": b"\x00\xff", "day": datetime.date(2024, 2, 29), "lasted": datetime.timedelta(seconds=3),
        "price": decimal.Decimal("1.10"), "scores": [0.5, float("nan")],
    }  # fmt: skip
    record = rows(1)[0]
    record = {**record, **values, "extra_info": {**record["extra_info"], **values}}
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_pylist([record]), path)
    for options in (MESSAGES, {}):
        item = RLHFDataset(path, model, options)[0]
        assert repr({name: item[name] for name in values}) == repr(values)
        assert repr({name: item["extra_info"][name] for name in values}) == repr(values)


def test_structs_of_several_files_have_the_keys_of_all(tmp_path, model):
    infos = [{"index": 0, "b": {"x": 1}}, {"b": {"y": 2, "x": 3}, "index": 1, "c": [{"d": 1}]}]
    numbers = {name: pa.field(name, pa.int64()) for name in ("index", "x", "y", "d")}
    inner = [pa.struct([numbers["x"]]), pa.struct([numbers["y"], numbers["x"]])]
    lists = pa.list_(pa.struct([numbers["d"]]))
    types = [[numbers["index"], ("b", inner[0])], [("b", inner[1]), numbers["index"], ("c", lists)]]
    paths = [str(tmp_path / "0.parquet"), str(tmp_path / "1.parquet")]
    for path, info, fields in zip(paths, infos, types, strict=True):
        prompts = pa.Table.from_pylist([{"prompt": rows(1)[0]["prompt"]}])
        pq.write_table(prompts.append_column("extra_info", pa.array([info], pa.struct(fields))), path)
    found = [item["extra_info"] for item in RLHFDataset(paths, model, MESSAGES)]
    joined = [{"index": 0, "b": {"x": 1, "y": None}, "c": None}, {"index": 1, "b": {"x": 3, "y": 2}, "c": [{"d": 1}]}]
    assert json.dumps(found) == json.dumps(joined)


# -- states --------------------------------------------------------------------------------------------------------
def test_state_restores_where_items_are_the_same(tmp_path, model):
    path = write(tmp_path / "a.jsonl", rows(3))
    renamed = write(tmp_path / "b.jsonl", rows(3))
    for base in (MESSAGES, {}):
        state = RLHFDataset(path, model, {**base, "seed": 1}).state_dict()
        for file, changes in (
            (renamed, {}),
            (path, {"seed": 2}),
            (path, {"return_raw_chat": True}),
            (path, {"truncation": "left"}),
        ):
            RLHFDataset(file, model, {**base, **changes}).load_state_dict(json.loads(json.dumps(state)))
    messages = RLHFDataset(path, model, MESSAGES)
    RLHFDataset(path, model, {**MESSAGES, "max_prompt_length": 2048}).load_state_dict(messages.state_dict())


def test_state_of_other_items_names_the_cause(tmp_path, model):
    path = write(tmp_path / "a.jsonl", rows(3))
    state = RLHFDataset(path, model, {"max_prompt_length": 9, "truncation": "left", "filter_overlong_prompts": False})
    other = RLHFDataset(path, model, {"max_prompt_length": 5, "truncation": "left", "filter_overlong_prompts": False})
    with pytest.raises(gm.StateError, match=r"data\.max_prompt_length was 9 and is 5"):
        other.load_state_dict(state.state_dict())
    write(tmp_path / "a.jsonl", [*rows(2), {**rows(3)[2], "data_source": "x"}])
    with pytest.raises(gm.StateError, match="the files hold other records"):
        RLHFDataset(path, model, MESSAGES).load_state_dict(
            RLHFDataset(write(tmp_path / "b.jsonl", rows(3)), model, MESSAGES).state_dict()
        )
    with pytest.raises(gm.StateError, match=r"3 prompts where there are 2 now.*max_samples was -1 and is 2"):
        RLHFDataset(path, model, MESSAGES, max_samples=2).load_state_dict(
            RLHFDataset(path, model, MESSAGES).state_dict()
        )


def test_state_of_an_earlier_version_restores_with_a_warning(tmp_path, model, caplog):
    RLHFDataset(write(tmp_path / "a.jsonl", rows(3)), model, {}).load_state_dict({"fingerprint": "0123456789abcdef"})
    assert "of an earlier version" in caplog.text


@pytest.mark.parametrize("items", ["tokens", "messages"])
def test_run_of_today_resumes_on_another_day(tmp_path, model, monkeypatch, items):
    def made(day):
        clock = SimpleNamespace(now=lambda: datetime.datetime(2026, 11, day))
        module = SimpleNamespace(datetime=clock)
        monkeypatch.setattr("gristmill._sample.plans.datetime", module)
        monkeypatch.setattr(config, "datetime", module)
        kwargs = {"chat_template": "{{ strftime_now('%d') }}{{ messages[0].content }}"}
        options = {"prompt_items": items, "date": "today", "apply_chat_template_kwargs": kwargs}
        return RLHFDataset(write(tmp_path / "a.jsonl", rows(3)), model, options)

    state = made(28).state_dict()
    made(29).load_state_dict(state)
    assert states.state_of("", 3, {}) != state


# -- messages ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_memory": 10},
            r"^data\.max_memory=10: .*; raise data\.max_memory, or read fewer records with max_samples$",
        ),
        ({"max_document_bytes": 20}, r"; raise data\.max_document_bytes to read it"),
        ({"threads": 0}, r"^data\.threads=0: expected"),
        ({"truncation": "middle-out"}, r"^data\.truncation='middle-out': expected one of"),
        ({"max_prompt_length": 0}, r"^data\.max_prompt_length=0: expected"),
        ({"prompt_items": "ids"}, r"^data\.prompt_items='ids': expected"),
        ({"none_fields": "x"}, r"^data\.none_fields='x': expected"),
        (
            {"apply_chat_template_kwargs": {"chat_template": "{{ strftime_now('%d') }}"}},
            r"set data\.date, such as \+data",
        ),
    ],
)
def test_messages_name_the_keys_of_verl(tmp_path, model, options, message):
    with pytest.raises(gm.GristmillError, match=message):
        RLHFDataset(write(tmp_path / "a.jsonl", rows(1)), model, {"filter_overlong_prompts": False, **options})


def test_words_of_values_stay():
    for message, said in [
        ("expected max_length=3", "expected max_length=3"),
        ("no stop token; set stop_tokens= of gm.Chat", "no stop token; set data.stop_tokens"),
        ("prompt_length=0: expected more", "data.max_prompt_length=0: expected more"),
        ('set template_kwargs={"a": 1}, or', 'set data.apply_chat_template_kwargs={"a": 1}, or'),
    ]:
        assert str(VERL.said(gm.TemplateError(message))) == said


def test_errors_in_the_words_of_verl_are_about_the_same_argument():
    found = VERL.said(gm.ArgumentError("max_memory=10: they take 20 bytes; raise max_memory=, or keep fewer"))
    assert (type(found), found.argument) == (gm.ArgumentError, "max_memory")
    assert str(found) == (
        "data.max_memory=10: they take 20 bytes; raise data.max_memory, or read fewer records with max_samples"
    )


# -- conversations -------------------------------------------------------------------------------------------------
TALK = [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "1"}]
THINKS = (
    "{{ enable_thinking }}{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def test_default_of_thinking_is_true_for_any_text(tmp_path, model, encoder, caplog):
    path = write(tmp_path / "talks.jsonl", [{"messages": TALK}])
    for default, shown in (("none", "True"), ("false", "True"), (False, "False"), (None, "None")):
        options = {"enable_thinking_default": default, "pad_mode": "no_padding"}
        item = MultiTurnSFTDataset(path, model, {**options, "apply_chat_template_kwargs": {"chat_template": THINKS}})[0]
        assert encoder.decode(item["input_ids"].tolist()).startswith(f"{shown}[user]")
        assert ("veRL makes True" in caplog.text) == isinstance(default, str)
        caplog.clear()


def test_stop_tokens_of_a_template_without_them(tmp_path, model, encoder):
    path = write(tmp_path / "talks.jsonl", [{"messages": TALK}])
    plain = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    kwargs = {"apply_chat_template_kwargs": {"chat_template": plain}, "pad_mode": "no_padding"}
    with pytest.raises(gm.ShardError, match="stop_tokens"):
        MultiTurnSFTDataset(path, model, kwargs)
    item = MultiTurnSFTDataset(path, model, {**kwargs, "stop_tokens": ["\n"]})[0]
    assert item["loss_mask"].tolist()[-2:] == [1, 1]


def test_positions_of_a_qwen_processor_have_four_rows(tmp_path, model):
    path = write(tmp_path / "talks.jsonl", [{"messages": TALK}])
    kwargs = {"apply_chat_template_kwargs": {"chat_template": THINKS}, "max_length": 50}
    one = MultiTurnSFTDataset(path, Tokenizer(model), kwargs)[0]
    four = MultiTurnSFTDataset(path, Tokenizer(model), kwargs, processor=Processor(model))[0]
    assert four["position_ids"].tolist() == [one["position_ids"].tolist()] * 4
    assert four["input_ids"].tolist() == one["input_ids"].tolist()
    images = write(tmp_path / "images.jsonl", [{"messages": TALK, "images": ["a.png"]}])
    with pytest.raises(NotImplementedError, match=r"images\.jsonl: record 0: it has images"):
        MultiTurnSFTDataset(images, Tokenizer(model), kwargs, processor=Processor(model))
