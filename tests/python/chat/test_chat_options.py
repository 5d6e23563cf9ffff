"""Options of `gm.Chat` about what a record holds beside its messages, and inside of them."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from chat_models import trained_texts, write_chatml

# Prints arguments as templates of models do: strings as they are, else as JSON.
CALLING = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}"
    "{%- for call in m.tool_calls or [] %}{%- set f = call.function or call %}{{ f.name + ':' }}"
    "{{ f.arguments if f.arguments is string else f.arguments | tojson }}{%- endfor %}"
    "{%- if m.function_call %}{%- set a = m.function_call.arguments %}{{ m.function_call.name }}"
    "{{ a if a is string else 'object ' + a | tojson }}{%- endif %}"
    "{{ (tail or '') + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
# Writes an empty reasoning in front of the last answer, as Qwen3's.
THINKING = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{%- if loop.last and m.role == 'assistant' %}"
    "{{ '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}{%- endif %}"
    "{{ m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
QUESTION, ANSWER = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_chatml(tmp_path_factory.mktemp("models") / "chatml")


def write(path, *records):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def rows(path, folder, **options):
    sample = options.pop("sample", None) or gm.Chat(**{"template": CALLING} | options)
    return list(
        gm.PackedDataset(path, tokenizer=folder, sample=sample, sequence_length=256, packing="pad", layout="grain")
    )


def texts(path, folder, **options):
    encoder = gm.Encoder.from_pretrained(str(folder))
    return [encoder.decode(row["tokens"][row["tokens_segment_ids"] > 0]) for row in rows(path, folder, **options)]


def call(arguments):
    return {
        "messages": [
            QUESTION,
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]},
        ]
    }


@pytest.mark.parametrize(
    ("arguments", "decoded"),
    [
        ('{"b":1,  "a": [1.50, "\\u00e9"]}', '{"b": 1, "a": [1.5, "é"]}'),
        (' {} ', "{}"),
        ("[1]", "[1]"),
        ('{"a": 1} x', '{"a": 1} x'),
        ("{a: 1}", "{a: 1}"),
        ('"{}"', '"{}"'),
        ("", ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_arguments_that_are_strings_of_objects_are_these(tmp_path, folder, arguments, decoded, name):
    path = write(tmp_path / name, call(arguments))
    assert texts(path, folder)[0].split("f:")[1] == decoded + "<|im_end|>\n"
    assert texts(path, folder, string_arguments="keep")[0].split("f:")[1] == arguments + "<|im_end|>\n"


def test_other_strings_stay(tmp_path, folder):
    said = {"role": "assistant", "content": '{"arguments": "{}"}', "arguments": "{}"}
    path = write(tmp_path / "a.jsonl", {"messages": [QUESTION, said]})
    assert '{"arguments": "{}"}' in texts(path, folder)[0]
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}}
    path = write(tmp_path / "b.jsonl", {"messages": [QUESTION, old]})
    assert texts(path, folder)[0].endswith('object {"a": 1}<|im_end|>\n')
    assert texts(path, folder, string_arguments="keep")[0].endswith('{"a": 1}<|im_end|>\n')


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_variables_of_a_record(tmp_path, folder, name):
    records = [{"messages": [QUESTION, ANSWER], "extra": extra} for extra in ({"tail": "!"}, None, {"tail": "?"})]
    path = write(tmp_path / name, *records)
    found = texts(path, folder, template_kwargs="extra")
    assert [text.count("!<|im_end|>") for text in found] == [2, 0, 0]
    assert [text.count("?<|im_end|>") for text in found] == [0, 0, 2]


def test_variables_of_a_record_as_a_string_or_not_at_all(tmp_path, folder):
    messages = [QUESTION, ANSWER]
    path = write(tmp_path / "a.jsonl", {"messages": messages, "extra": '{"tail": "!"}'}, {"messages": messages})
    assert [text.count("!") for text in texts(path, folder, template_kwargs="extra")] == [2, 0]
    path = write(tmp_path / "b.jsonl", {"messages": messages, "extra": ["tail"]})
    with pytest.raises(
        gm.ShardError, match=r'an object of variables of the template under the key "extra".*found a list'
    ):
        rows(path, folder, template_kwargs="extra")
    path = write(tmp_path / "c.jsonl", {"messages": messages, "extra": {"messages": []}})
    with pytest.raises(gm.ShardError, match="messages has an argument of its own"):
        rows(path, folder, template_kwargs="extra")


@pytest.mark.parametrize("name", ["template_kwargs", "tools"])
@pytest.mark.parametrize("value", [5, 0, False, [1], b"x"])
def test_variables_and_tools_of_another_type_are_refused(name, value):
    with pytest.raises(gm.ArgumentTypeError, match=f"^{name}=") as raised:
        gm.Chat(**{name: value})
    assert raised.value.argument == name


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_system_prompt_beside_the_messages(tmp_path, folder, name):
    path = write(tmp_path / name, *({"chat": {"m": [QUESTION, ANSWER], "s": s}} for s in ("S", "", None)))
    found = texts(path, folder, field="chat.m", system_field="chat.s")
    assert [text.startswith("<|im_start|>system\nS<|im_end|>\n") for text in found] == [True, False, False]
    assert found[0].removeprefix("<|im_start|>system\nS<|im_end|>\n") == found[1]


def test_two_system_prompts_are_one_if_they_are_equal(tmp_path, folder):
    own = [{"role": "system", "content": "S"}, QUESTION, ANSWER]
    path = write(tmp_path / "a.jsonl", {"messages": own, "s": "S"}, {"messages": own, "s": "T"})
    with pytest.raises(gm.ShardError, match="another one beside the messages than in message 0") as raised:
        rows(path, folder, system_field="s")
    assert raised.value.record == 1
    turns = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]
    path = write(tmp_path / "b.jsonl", {"conversations": turns, "prompt": "S", "system": "other"})
    sample = gm.Chat("conversations", format="sharegpt", system_field="prompt", template=CALLING)
    assert texts(path, folder, sample=sample)[0].startswith("<|im_start|>system\nS<|im_end|>\n")


def test_empty_reasoning_is_not_trained_on(tmp_path, folder):
    thought = ANSWER | {"reasoning_content": "R"}
    said = ANSWER | {"content": "A<think> </think> B"}
    code = ANSWER | {"content": "\n    A"}
    path = write(tmp_path / "a.jsonl", *({"messages": [QUESTION, one]} for one in (ANSWER, thought, said, code)))
    trained = [
        trained_texts(folder, rows(path, folder, template=THINKING, train_empty_reasoning=on)) for on in (True, False)
    ]
    assert trained[0][0] == "<think>\n\n</think>\n\nA<|im_end|>"
    assert trained[1][0] == "A<|im_end|>"
    assert trained[0][1] == trained[1][1] == "<think>\nR\n</think>\n\nA<|im_end|>"
    assert trained[1][2] == "AB<|im_end|>"
    assert trained[1][3] == "\n    A<|im_end|>"


def test_options_are_part_of_the_fingerprint_unless_they_are_defaults(tmp_path, folder):
    path = write(tmp_path / "a.jsonl", {"messages": [QUESTION, ANSWER]})

    def fingerprint(**options):
        return gm.PackedDataset(path, tokenizer=folder, sample=gm.Chat(**options)).fingerprint

    changed = [
        {"string_arguments": "keep"},
        {"system_field": "s"},
        {"train_empty_reasoning": False},
        {"template_kwargs": "k"},
    ]
    assert len({fingerprint(), *(fingerprint(**options) for options in changed)}) == 5
    assert fingerprint() == fingerprint(string_arguments="decode", train_empty_reasoning=True)


def test_prompt_has_the_options(tmp_path, folder):
    path = write(tmp_path / "a.jsonl", {"messages": [QUESTION], "s": "S", "k": {"tail": "!"}})
    sample = gm.Chat(template=CALLING, system_field="s", template_kwargs="k", add_generation_prompt=True)
    dataset = gm.PromptDataset(path, tokenizer=folder, prompt=sample, batch_size=1, full_prompts=True)
    batch = next(iter(dataset))
    assert any("S!<|im_end|>" in str(value) for value in batch.values())


def test_state_of_before_continues_with_arguments_kept(tmp_path, folder):
    path = write(tmp_path / "a.jsonl", *[call('{"a":1}')] * 3)

    def dataset(**options):
        sample = gm.Chat(template=CALLING, **options)
        return gm.PackedDataset(
            path, tokenizer=folder, sample=sample, sequence_length=64, packing="pad", layout="grain"
        )

    kept = dataset(string_arguments="keep")
    iterator = iter(kept)
    expected = [next(iterator)["tokens"].tolist() for _ in range(3)]
    iterator = iter(kept)
    next(iterator)
    state = iterator.get_state()
    before = state | {"fingerprint": dataset().fingerprint}  # as a release without the argument saved it
    for saved in (state, before):
        resumed = iter(kept)
        resumed.set_state(saved)
        assert [row["tokens"].tolist() for row in resumed] == expected[1:]


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ({"role": "user", "text": "words"}, r"its words under the key \"content\", .* those under \"text\""),
        ({"role": "user", "id": "1", "value": "words"}, r"leaves out those under \"value\""),
        ({"role": "user", "content": {"text": "words"}}, "prints the object as Python spells it"),
        ({"role": "user", "content": ["words"]}, "prints the list as Python spells it"),
        ({"role": "user"}, None),
        ({"role": "user", "id": "1", "text": " "}, None),
        ({"role": "user", "content": None, "model": "other words"}, None),
        ({"role": "user", "content": None, "text": "words"}, r"leaves out those under \"text\""),
        ({"role": "tool", "tool_call_id": "1", "result": {"is": "fine"}}, r"leaves out those under \"result\""),
        ({"role": "assistant", "value": "words", "choices": ["some"]}, r"leaves out those under \"value\""),
    ],
)
def test_words_elsewhere_than_in_the_content_are_an_error(tmp_path, folder, message, found):
    path = write(tmp_path / "a.jsonl", {"messages": [message, ANSWER]})
    template = "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor %}"
    sample = gm.Chat(template=template, train_on="all", none_fields="keep")
    if found is None:
        assert len(rows(path, folder, sample=sample)) == 1
        return
    with pytest.raises(gm.ShardError, match=rf"record 0, byte 0: messages\[0\]: .*{found}"):
        rows(path, folder, sample=sample)
    written = template.replace("m.content", "(m.content or m.text or m.value or m.result) | tojson")
    assert len(rows(path, folder, sample=gm.Chat(template=written, train_on="all"))) == 1


HEAD, TAIL = "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}", "{{ '<|im_end|>\\n' }}{%- endfor %}"
STRINGS_ALONE = "{%- if m.content is string %}{{ m.content }}{%- endif %}"
TEXT = {"type": "text", "text": "Some"}
TEXTS = (
    "{%- if m.content is string %}{{ m.content }}{%- else %}{{ m.content | map(attribute='text') | join }}{%- endif %}"
)
PARTS_ALONE = "{%- if m.content is not string %}{%- for part in m.content %}{{ part.text }}{%- endfor %}{%- endif %}"
TYPED_PARTS_ALONE = PARTS_ALONE.replace("in m.content", "in m.content if part.type == 'text'")
EACH_ITEM = "{%- if m.content is string %}{{ m.content }}{%- else %}{%- for item in m.content %}{{ item | tojson }}"
EACH_ITEM += "{%- endfor %}{%- endif %}"
KEYS = "{{ m.content if m.content is string else m.content | join }}"
FIRST_ITEM = "{{ m.content if m.content is string else m.content[0] | tojson }}"
NO_HUMANS = "{%- if m.role != 'human' %}{{ m.content }}{%- endif %}"
NO_TOOLS = "{%- if m.role != 'tool' %}{{ m.content | tojson }}{%- endif %}"


@pytest.mark.parametrize(
    ("role", "content", "template", "found"),
    [
        ("user", {"words": "some"}, STRINGS_ALONE, "takes no objects and leaves it out: .* such as its JSON"),
        ("user", {"number": 5}, STRINGS_ALONE, "takes no objects and leaves it out"),
        ("tool", {"weather": {"is": "fine"}}, STRINGS_ALONE, "takes no objects and leaves it out"),
        ("tool", [{"weather": "fine"}], STRINGS_ALONE, "takes no parts and leaves out part 0: .* its texts joined"),
        ("user", 5, STRINGS_ALONE, "takes no numbers and leaves it out: write the content as one string, or"),
        ("assistant", 5.5, STRINGS_ALONE, "takes no numbers and leaves it out"),
        ("assistant", True, STRINGS_ALONE, "takes no booleans and leaves it out"),
        ("human", 5, NO_HUMANS, 'a role that the template knows .*, found "human"'),
        ("tool", [5, 7], STRINGS_ALONE, "takes no parts and leaves out part 0"),
        ("tool", [["fine"], [5]], STRINGS_ALONE, "takes no parts and leaves out part 0"),
        # Only the keys of an object are written.
        ("user", {"words": "some"}, EACH_ITEM, "takes no objects and leaves it out"),
        ("tool", {"weather": {"is": "fine"}, "at": 5}, EACH_ITEM, "takes no objects and leaves it out"),
        ("tool", [{"weather": "fine"}, {"weather": "windy"}], FIRST_ITEM, "leaves out part 1"),
        ("user", [TEXT, {"type": "refusal", "refusal": "No"}], TEXTS, 'it leaves out part 1, of type "refusal"'),
        ("assistant", [TEXT, {"type": "tool_use", "input": {"city": "X"}}], TEXTS, 'part 1, of type "tool_use"'),
        ("user", [{"type": "text", "content": "words"}], TEXTS, "leaves out part 0"),
        ("user", "words", PARTS_ALONE, "leaves it out: write the content as a list of parts"),
        ("user", ["words"], TYPED_PARTS_ALONE, "leaves out the text of part 0: write the content as a list of parts"),
        ("tool", {"at": 5}, PARTS_ALONE, "leaves it out: write the content as a list of parts"),
        ("user", [TEXT, {"type": "thinking", "thinking": "other words"}], TEXTS, None),
        ("user", [TEXT, {"type": "text", "text": ""}, {"type": "text", "text": None}], TEXTS, None),
        ("tool", {"is_fine": True, "at": None}, KEYS, None),
        ("user", 5, "{{ m.content }}", None),
        ("user", ["some", "words"], STRINGS_ALONE, "takes no parts and leaves out the text of part 0"),
        ("tool", "fine", NO_TOOLS, 'expected a role that the template knows .*, found "tool"'),
        ("tool", {"weather": "fine"}, NO_TOOLS, 'expected a role that the template knows .*, found "tool"'),
        ("tool", [{"type": "text", "text": "fine"}], NO_TOOLS, 'a role that the template knows .*, found "tool"'),
        ("tool", {"weather": "fine"}, "{{ m.content | tojson }}", None),
        ("tool", {"weather": "fine", "at": 5}, "{{ m.content.weather or m.content }}", None),
        ("tool", [{"weather": "fine"}], "{{ m.content | tojson }}", None),
        ("user", {"weather": "fine"}, "{{ m.content }}", "prints the object as Python spells it"),
        *(
            ("assistant", content, "{{ m.content }}", "prints the list as Python spells it")
            for content in (["words"], ["it's"], [], [1, 2], [None], [["words"]])
        ),
        ("user", {"it's": "so"}, "{{ m.content }}", "prints the object as Python spells it"),
        ("assistant", {}, "{{ m.content }}", "prints the object as Python spells it"),
        ("user", ["words"], "{{ m.content | tojson }}", None),
        ("tool", {"weather": "fine"}, "{{ m.content }}", None),
        ("tool", ["fine", "windy"], "{{ m.content }}", None),
        ("tool", [{"weather": "fine"}], "{{ m.content }}", "prints the list as Python spells it"),
        ("user", {}, STRINGS_ALONE, None),
        ("user", [], STRINGS_ALONE, None),
        ("user", [{"type": "thinking", "thinking": "other words"}], STRINGS_ALONE, None),
    ],
)
def test_content_that_is_no_string_is_not_left_out_in_silence(tmp_path, folder, role, content, template, found):
    path = write(tmp_path / "a.jsonl", {"messages": [{"role": role, "content": content}, ANSWER]})
    sample = gm.Chat(template=HEAD + template + TAIL, train_on="all")
    if found is None:
        assert len(rows(path, folder, sample=sample)) == 1
        return
    with pytest.raises(gm.ShardError, match=rf"record 0, byte 0: messages\[0\]: .*{found}"):
        rows(path, folder, sample=sample)


FIRST_CALL = (
    "{%- if m.tool_calls %}{%- set f = m.tool_calls[0].function or m.tool_calls[0] %}{{ f.name }}"
    "{%- if f.arguments is mapping %}{{ f.arguments | tojson }}{%- endif %}{%- endif %}{{ m.content or '' }}"
)
KEYS_OF_CALL = "{%- for call in m.tool_calls or [] %}{{ call.name }}{%- for key in call.arguments %}{{ key }}"
KEYS_OF_CALL += "{%- endfor %}{%- endfor %}{{ m.content or '' }}"
NO_CALLS = "{{ m.content }}"
IDS_OF_CALLS = "{%- for call in m.tool_calls or [] %}{{ call.id }}{{ call.function.arguments | tojson }}{%- endfor %}"
IDS_OF_CALLS += "{{ m.content or '' }}"


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize(
    ("calls", "template", "found"),
    [
        ([{"name": "f", "arguments": {"x": 1}}], FIRST_CALL, None),
        ([{"name": "f", "arguments": {"x": "", "y": None, "z": True}}], KEYS_OF_CALL, None),
        ([{"name": "f", "arguments": {"x": "words"}}], KEYS_OF_CALL, "tool_calls[0].arguments"),
        ([{"name": "f", "arguments": {"x": [{"y": 5}]}}], KEYS_OF_CALL, "tool_calls[0].arguments"),
        ([{"name": "f", "parameters": {"x": 1}}], FIRST_CALL, "tool_calls[0].parameters"),
        ([{"function": {"name": "f", "arguments": ["x"]}}], FIRST_CALL, "tool_calls[0].function.arguments"),
        ([{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}], FIRST_CALL, "tool_calls[1]"),
        (json.dumps([{"name": "f"}]), KEYS_OF_CALL, "tool_calls"),
        ([{"name": "f"}], NO_CALLS, "tool_calls[0]"),
        ([{"id": "functions.f:0", "function": {"name": "f", "arguments": {"x": 1}}}], IDS_OF_CALLS, None),
        ([{"id": "call_1", "function": {"name": "f", "arguments": {"x": 1}}}], IDS_OF_CALLS, "tool_calls[0]"),
    ],
)
def test_calls_that_a_template_leaves_out_are_an_error(tmp_path, folder, calls, template, found, trained):
    message = {"role": "assistant", "content": "Words", "tool_calls": calls, "train": trained}
    path = write(tmp_path / "a.jsonl", {"messages": [QUESTION, message, QUESTION, ANSWER]})
    sample = gm.Chat(template=HEAD + template + TAIL, train_on="all")
    if found is None:
        assert len(rows(path, folder, sample=sample)) == 1
        return
    expected = f"messages[1]: expected its calls in the text, found that the template leaves out {found}: write each as"
    with pytest.raises(gm.ShardError, match=re.escape(expected)):
        rows(path, folder, sample=sample)


def test_empty_list_of_calls_is_none_or_an_error(tmp_path, folder):
    path = write(tmp_path / "a.jsonl", {"messages": [QUESTION | {"tool_calls": []}, ANSWER | {"tool_calls": []}]})
    assert len(rows(path, folder, template=HEAD + FIRST_CALL + TAIL, train_on="all")) == 1
    listed = "{{ m.content }}{%- if m.tool_calls is defined %}{{ m.tool_calls | tojson }}{%- endif %}"
    expected = (
        r'messages\[0\]: expected calls under its key "tool_calls", found an empty list, which the template does not'
    )
    with pytest.raises(gm.ShardError, match=expected):
        rows(path, folder, template=HEAD + listed + TAIL, train_on="all")
    first = listed.replace("m.tool_calls |", "m.tool_calls[0].name |")
    advice = r'the template takes the conversation if the "tool_calls" of messages\[0\], an empty list, are left out'
    with pytest.raises(gm.ShardError, match=advice):
        rows(path, folder, template=HEAD + first + TAIL, train_on="all")
    path = write(tmp_path / "b.jsonl", {"messages": [QUESTION, ANSWER | {"tool_calls": None}]})
    assert len(rows(path, folder, template=HEAD + listed + TAIL, train_on="all")) == 1


def test_name_in_a_header_is_not_trained_on(tmp_path, folder):
    template = (
        "{%- for m in messages %}{{ '<|im_start|>' + (m.name or m.role) + '\\n' + m.content }}"
        "{{ '<|im_end|>\\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
    )
    path = write(tmp_path / "a.jsonl", {"messages": [QUESTION | {"name": "Ann"}, ANSWER | {"name": "assistant"}]})
    assert trained_texts(folder, rows(path, folder, template=template)) == ["A<|im_end|>"]
    path = write(tmp_path / "b.jsonl", {"messages": [QUESTION, ANSWER | {"name": "Bot"}]})
    with pytest.raises(gm.ShardError, match=r'messages\[1\]: it begins with "'):
        rows(path, folder, template=template)


@pytest.mark.parametrize(
    ("content", "template", "advice"),
    [
        ([TEXT], "{{ m.role + m.content }}", "if the content of messages[0] is one string"),
        (5, "{{ m.role + m.content }}", "if the content of messages[0] is one string"),
        (None, "{{ m.role + m.content }}", 'if the content of messages[0] is ""'),
        (
            "words",
            "{{ m.content[0].text + '' }}",
            'if the content of messages[0] is a list of parts, [{"type": "text", ',
        ),
        (
            "words",
            "{%- for tool in tools %}{{ tool }}{%- endfor %}{{ m.content }}",
            "if its tools are an empty list, [], where",
        ),
        ("words", "{{ m.role + 1 }}", None),
        (5, PARTS_ALONE, None),
        (
            "words",
            "{{ raise_exception('no tools') if tools is none }}{{ m.content }}",
            "if its tools are an empty list, [], where",
        ),
    ],
)
def test_error_of_a_template_names_what_it_takes(tmp_path, folder, content, template, advice):
    path = write(tmp_path / "a.jsonl", {"messages": [{"role": "user", "content": content}, ANSWER]})
    with pytest.raises(gm.ShardError, match="line 1 of the template") as error:
        rows(path, folder, template=HEAD + template + TAIL, train_on="all")
    assert str(error.value).partition("; the template takes the conversation ")[2].startswith(advice or "")
    assert ("; the template takes the conversation " in str(error.value)) == bool(advice)


def test_list_of_messages_in_another_shape_is_named(tmp_path, folder):
    path = write(tmp_path / "a.jsonl", {"messages": json.dumps([QUESTION, ANSWER])})
    with pytest.raises(gm.ShardError, match="found a string: write the list itself"):
        rows(path, folder)
    path = write(tmp_path / "b.jsonl", {"messages": {"role": ["user"], "content": ["Q"]}})
    with pytest.raises(gm.ShardError, match="found an object of lists: write a list of objects"):
        rows(path, folder)
    path = write(tmp_path / "c.jsonl", {"messages": ANSWER})
    with pytest.raises(gm.ShardError, match="found an object: write a list of one message"):
        rows(path, folder)
    path = write(tmp_path / "d.jsonl", {"messages": "Q"})
    with pytest.raises(gm.ShardError, match=r"found a string; gm[.]Text reads texts that are no conversations"):
        rows(path, folder)
    path = write(tmp_path / "e.jsonl", {"prompt": [QUESTION], "completion": "A"})
    with pytest.raises(gm.ShardError, match='under the key "completion", found a string: write it as a message, '):
        rows(path, folder, sample=gm.Completion("prompt", "completion", template=CALLING))


def test_completion_that_repeats_its_prompt_is_an_error(tmp_path, folder):
    sample = gm.Completion("prompt", "completion", template=CALLING)
    for prompt in ([QUESTION], [{"role": "system", "content": "S"}, QUESTION]):
        path = write(tmp_path / "a.jsonl", {"prompt": prompt, "completion": [*prompt, ANSWER]})
        with pytest.raises(
            gm.ShardError, match=r'behind the prompt under the key "completion", found .* gm.Chat\("comp'
        ):
            rows(path, folder, sample=sample)
    path = write(tmp_path / "b.jsonl", {"prompt": [QUESTION, ANSWER, QUESTION], "completion": [ANSWER]})
    assert len(rows(path, folder, sample=sample)) == 1
    path = write(tmp_path / "c.jsonl", {"prompt": "Q", "completion": [QUESTION, ANSWER]})
    expected = r'a string under the key "completion", found a list; gm.Chat\("completion", train_on="last"\) reads'
    with pytest.raises(gm.ShardError, match=expected):
        rows(path, folder, sample=gm.Completion("prompt", "completion"))


def test_part_of_an_image_without_a_type_is_an_error(tmp_path, folder):
    parts = [{"image": "a.png"}, {"text": "Q"}]
    path = write(tmp_path / "a.jsonl", {"messages": [{"role": "user", "content": parts}, ANSWER]})
    with pytest.raises(gm.ShardError, match=r'messages\[0\]: expected parts of texts, found something under "image"'):
        rows(path, folder, template=HEAD + TEXTS + TAIL)
    parts = [{"image": None, "text": "Q"}]
    path = write(tmp_path / "b.jsonl", {"messages": [{"role": "user", "content": parts}, ANSWER]})
    assert len(rows(path, folder, template=HEAD + TEXTS + TAIL, train_on="all")) == 1


PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("{{ m.content }}", "prints the list as Python spells it"),
        ("{%- for part in m.content %}{{ part }}{%- endfor %}", "prints the list as Python spells it"),
        ("{%- if m.content is string %}{{ m.content }}{%- endif %}", "leaves out the text of part 0"),
        ("{{ m.content if m.content is string else m.content[0].text }}", "leaves out the text of part 1"),
        ("{{ m.content if m.content is string else m.content | map(attribute='text') | join }}", None),
        ("{{ m.content | tojson }}", None),
        # A template that leaves out such messages anyway.
        ("{%- if m.role == 'assistant' %}{{ m.content }}{%- endif %}", None),
    ],
)  # fmt: skip
def test_content_in_parts_that_a_template_does_not_take_is_an_error(tmp_path, folder, content, found):
    messages = [{"role": "user", "content": PARTS}, ANSWER]
    path = write(tmp_path / "a.jsonl", {"messages": messages})
    template = HEAD + content + TAIL
    sample = gm.Chat(template=template, train_on="all")

    def prompts():
        return gm.PromptDataset(path, tokenizer=folder, prompt=gm.Chat(template=template), batch_size=1)

    if found is None:
        assert len(rows(path, folder, sample=sample)) == len(prompts()) == 1
        return
    message = rf"messages\[0\]: .* takes no parts and {found}: write the content as one string"
    with pytest.raises(gm.ShardError, match=message):
        rows(path, folder, sample=sample)
    with pytest.raises(gm.ShardError, match=message):
        prompts()
    # The text of transformers can still be had.
    assert gm.ChatTemplate.from_string(template, tokenizer=gm.Encoder.from_pretrained(str(folder))).render(messages)


@pytest.mark.parametrize(
    ("key", "values", "kept"),
    [
        ("loss", (True, False), [0]),
        ("loss", (1, 0.0), [0]),
        ("loss", (None, False), [0]),
        ("masked", (True, False), [1]),
        ("mine", (False, True), [1]),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_flag_that_train_key_names_is_followed(tmp_path, folder, key, values, kept, name):
    answers = [{"role": "assistant", "content": f"A{number}", key: value} for number, value in enumerate(values)]
    messages = [message for answer in answers for message in (QUESTION, answer)]
    path = write(tmp_path / name, {"messages": messages})
    assert trained_texts(folder, rows(path, folder, train_key=key)) == [f"A{number}<|im_end|>" for number in kept]
    turns = [
        {"from": {"user": "human"}.get(one["role"], "gpt"), "value": one["content"]} | {key: one.get(key)}
        for one in messages
    ]
    path = write(tmp_path / f"turns-{name}", {"turns": turns})
    sample = gm.Chat("turns", format="sharegpt", template=CALLING, train_key=key)
    assert trained_texts(folder, rows(path, folder, sample=sample)) == [f"A{number}<|im_end|>" for number in kept]


def test_flags_that_train_key_does_not_name_must_not_contradict(tmp_path, folder):
    for flags, found in (({"loss": True, "train": False}, "train"), ({"loss": False, "masked": False}, "masked")):
        path = write(tmp_path / "a.jsonl", {"messages": [QUESTION, ANSWER | flags, QUESTION, ANSWER]})
        with pytest.raises(gm.ShardError, match=f'under its key "loss", found "{found}", which is not followed'):
            rows(path, folder, train_key="loss")
    path = write(tmp_path / "b.jsonl", {"messages": [QUESTION, ANSWER | {"loss": "x"}]})
    with pytest.raises(gm.ShardError, match='expected true, false, 1, 0 or null under its key "loss", or a weight'):
        rows(path, folder, train_key="loss")


# Passes over messages of roles that it does not know, as Qwen3's.
KNOWN_ROLES = (
    "{%- for m in messages %}{%- if m.role in ['user', 'assistant'] %}"
    "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)


@pytest.mark.parametrize("role", [{}, {"role": None}, {"role": 5}, {"role": "human"}, {"role": "User"}])
def test_message_of_a_role_that_the_template_passes_over_is_an_error(tmp_path, folder, role):
    path = write(tmp_path / "a.jsonl", {"messages": [{"content": "Q", **role}, ANSWER]})
    found = f'"{role["role"]}"' if isinstance(role.get("role"), str) else "none"
    expected = rf'messages\[0\]: expected a role that the template knows under its key "role", found {found}, and'
    with pytest.raises(gm.ShardError, match=expected):
        rows(path, folder, template=KNOWN_ROLES)
    assert texts(path, folder, template="{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", train_on="all")
    write(path, {"messages": [{"content": " ", **role}, QUESTION, ANSWER]})
    assert len(rows(path, folder, template=KNOWN_ROLES)) == 1


@pytest.mark.parametrize("role", ["system", "developer"])
def test_prompts_that_a_template_does_not_take_are_left_out(tmp_path, folder, role):
    path = write(tmp_path / "a.jsonl", {"messages": [{"role": role, "content": "Be brief."}, QUESTION, ANSWER]})
    assert len(rows(path, folder, template=KNOWN_ROLES)) == 1


@pytest.mark.parametrize("samples", ["conversation", "rounds"])
def test_conversation_of_which_the_template_writes_nothing_trains_nothing(tmp_path, folder, samples):
    sharegpt = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]
    path = write(tmp_path / "a.jsonl", {"conversations": sharegpt}, {"conversations": [QUESTION, ANSWER]})
    given = {"field": "conversations", "template": KNOWN_ROLES, "samples": samples}
    with pytest.raises(gm.ShardError, match=r"record 0, byte 0: expected a .* to train on, found none"):
        rows(path, folder, **given)
    assert len(rows(path, folder, on_untrained="drop", **given)) == 1
    path = write(tmp_path / "b.jsonl", {"conversations": sharegpt})
    assert len(rows(path, folder, format="sharegpt", **given)) == 1
