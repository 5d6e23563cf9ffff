"""`ChatTemplate`: text, spans and masks of conversations."""

import dataclasses
import functools
import json
import pickle
import sys

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import gristmill as gm

CHATML = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content | trim }}"
    "{{ '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
CONVERSATION = [
    {"role": "user", "content": " Hé ☃ \n"},
    {"role": "assistant", "content": "One, naïve 🙂."},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "2"},
]
TEXT = (
    "<|im_start|>user\nHé ☃<|im_end|>\n<|im_start|>assistant\nOne, naïve 🙂.<|im_end|>\n"
    "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A byte-level tokenizer with the special tokens of ChatML, and its template, as `transformers` saves them."""
    path = tmp_path_factory.mktemp("model")
    alphabet = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    tokenizer = {
        "added_tokens": [
            {"id": 256 + index, "content": token, "special": True, "normalized": False}
            | {"single_word": False, "lstrip": False, "rstrip": False}
            for index, token in enumerate(["<|im_start|>", "<|im_end|>"])
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {char: index for index, char in enumerate(alphabet)}, "merges": []},
    }
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    (path / "chat_template.jinja").write_text(CHATML)
    return path


@pytest.fixture(scope="module")
def template(folder):
    return gm.ChatTemplate.from_pretrained(folder)


def test_text_is_that_of_the_template(template):
    assert template.render(CONVERSATION) == TEXT
    assert template.render(CONVERSATION, add_generation_prompt=True) == TEXT + "<|im_start|>assistant\n"


def test_text_equals_that_of_jinja2():
    sandbox = pytest.importorskip("jinja2.sandbox")
    source = (
        "{% set ns = namespace(n=0) %}{% for m in messages if m.role != 'system' %}{% set ns.n = ns.n + loop.index %}"
        "{{ m.role | upper }}{{ m.content[::-1] }}{{ ns.n / 3 }}{{ [m.content, none, 1.0, true] | tojson }}\n"
        "{% endfor %}{{ x | default('none') }}"
    )
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    expected = environment.from_string(source).render(messages=CONVERSATION, x=1e22)
    assert gm.ChatTemplate.from_string(source).render(CONVERSATION, x=1e22) == expected


def test_spans_cover_the_text_and_name_their_parts(template):
    spans = template.spans(CONVERSATION)
    assert [spans[0][0], *(end for _, end, *_ in spans)] == [0, *(start for start, *_ in spans[1:]), len(TEXT)]
    said = [(message, TEXT[start:end]) for start, end, message, part, _ in spans if part == "content"]
    assert said == [(0, "Hé ☃"), (1, "One, naïve 🙂."), (2, "Two?"), (3, "2")]
    assert [TEXT[start:end] for start, end, _, part, _ in spans if part == "role"] == ["user", "assistant"] * 2


@pytest.mark.parametrize(
    ("train_on", "expected"),
    [
        ("assistant", "One, naïve 🙂.<|im_end|>2<|im_end|>"),
        ("last", "2<|im_end|>"),
        ("all", TEXT),
        (["user"], "Hé ☃<|im_end|>Two?<|im_end|>"),
    ],
)
def test_mask_covers_the_trained_text(folder, template, train_on, expected):
    spans = template.spans(CONVERSATION, train_on=train_on)
    assert "".join(TEXT[start:end] for start, end, _, _, trained in spans if trained) == expected
    encoder = gm.Encoder.from_pretrained(str(folder))
    ids, mask = template.encode(CONVERSATION, train_on=train_on)
    assert (ids.dtype, mask.dtype) == (np.int32, np.bool_)
    assert ids.tolist() == encoder.encode(TEXT).tolist()
    assert encoder.decode(ids[mask]) == expected


def test_messages_are_taken_out_of_the_mask(template):
    changed = [*CONVERSATION[:1], {**CONVERSATION[1], "train": False}, *CONVERSATION[2:]]
    trained = [TEXT[start:end] for start, end, _, _, trained in template.spans(changed) if trained]
    assert "".join(trained) == "2<|im_end|>"


def test_reasoning_that_is_not_written_is_an_error(template):
    messages = [*CONVERSATION[:3], {**CONVERSATION[3], "reasoning_content": "R"}]
    for function in (template.encode, template.spans):
        with pytest.raises(gm.TemplateError, match=r"messages\[3\]: expected its \"reasoning_content\" in the text"):
            function(messages)
        function(messages, train_on=None)
        function(messages, train_reasoning=False)
        with pytest.raises(gm.ArgumentError, match="on_lost_reasoning='drop'"):
            function(messages, on_lost_reasoning="drop")
    assert template.spans(messages, on_lost_reasoning="ignore") == template.spans(CONVERSATION)


def test_final_stop_is_written_where_the_template_writes_none(folder, template):
    source = (
        "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}{{ '<|im_start|>' if add_generation_prompt }}"
    )
    without = gm.ChatTemplate.from_string(source, tokenizer=folder)
    stop = "<|im_start|>"
    ids, mask = without.encode(CONVERSATION, stop_tokens=[stop], final_stop=stop)
    encoder = gm.Encoder.from_pretrained(str(folder))
    assert encoder.decode(ids[mask]) == f"One, naïve 🙂.{stop}2{stop}"
    [*_, last] = without.spans(CONVERSATION, stop_tokens=[stop], final_stop=stop)
    assert last == (last[0], last[0] + len(stop), 3, "template", True)
    assert template.spans(CONVERSATION, final_stop=stop) == template.spans(CONVERSATION)
    for options, message in (
        ({"add_generation_prompt": True}, "the start of an answer"),
        ({"train_on": None}, "nothing is trained on with train_on=None"),
    ):
        with pytest.raises(gm.ArgumentError, match=message):
            without.spans(CONVERSATION, final_stop=stop, **options)
    with pytest.raises(gm.ArgumentError, match="expected an added token of the tokenizer"):
        without.encode(CONVERSATION, final_stop="2")


def test_conversation_without_trained_tokens_is_an_error(template):
    with pytest.raises(gm.TemplateError, match="no token of this conversation is trained on"):
        template.encode(CONVERSATION[:1])
    ids, mask = template.encode(CONVERSATION[:1], add_generation_prompt=True, train_on=None)
    assert len(ids) == len(mask) > 0 == mask.sum()


def test_templates_raise_where_jinja2_does():
    with pytest.raises(gm.TemplateError, match="roles must alternate"):
        gm.ChatTemplate.from_string("{{ raise_exception('roles must alternate') }}").render(CONVERSATION)
    with pytest.raises(gm.TemplateError, match="line 2 of the template"):
        gm.ChatTemplate.from_string("a\n{% for %}")


def test_conversations_of_other_values_are_refused(template):
    with pytest.raises(gm.ArgumentTypeError, match=r"messages: expected lists, dicts, .*set is not JSON"):
        template.render([{"role": "user", "content": {"a"}}])
    with pytest.raises(gm.ArgumentError, match=r"train_on=.assistent.: expected one of 'assistant', 'last'"):
        template.spans(CONVERSATION, train_on="assistent")
    with pytest.raises(gm.ArgumentError, match="encode needs the template's tokenizer"):
        gm.ChatTemplate.from_string(CHATML).encode(CONVERSATION)


def test_date_is_an_argument():
    template = gm.ChatTemplate.from_string("{{ strftime_now('%d %b %Y') }}")
    assert template.uses_date
    assert template.render(CONVERSATION, date="2026-11-26") == "26 Nov 2026"
    with pytest.raises(gm.TemplateError, match="date"):
        template.render(CONVERSATION)
    with pytest.raises(gm.ArgumentError, match=r"date=.tomorrow.: expected a date"):
        template.render(CONVERSATION, date="tomorrow")


def test_templates_of_a_folder_are_found_by_name(folder, tmp_path):
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert gm.ChatTemplate.from_pretrained(tmp_path).source == "a"
    assert gm.ChatTemplate.from_pretrained(tmp_path, name="tool_use").source == "b"
    with pytest.raises(gm.TemplateError, match="named 'rag', found default, tool_use"):
        gm.ChatTemplate.from_pretrained(tmp_path, name="rag")
    with pytest.raises(gm.TemplateError, match="cannot read the template"):
        gm.ChatTemplate.from_file(tmp_path / "none.jinja")


def test_template_pickles(template):
    again = pickle.loads(pickle.dumps(template))
    assert (again.source, again.render(CONVERSATION)) == (template.source, TEXT)
    assert again.spans(CONVERSATION) == template.spans(CONVERSATION)


PIECES = [
    "<|im_start|>",
    "<|im_end|>",
    "<|im_",
    "end|>",
    "<tool>",
    "<",
    "|>",
    "user",
    "\n",
    " ",
    "ant",
    "é",
    "<|im_end|>\n<|im_start|>",
]


@functools.cache
def with_plain_token(folder):
    """The template and encoder of a folder with a token that is not special; the library reads special ones as text."""
    value = json.loads((folder / "tokenizer.json").read_text())
    plain = {**value["added_tokens"][0], "id": 999, "content": "<tool>", "special": False}
    value["added_tokens"].append(plain)
    source = json.dumps(value)
    as_text = tokenizers.Tokenizer.from_str(source)
    as_text.encode_special_tokens = True
    encoder = gm.Encoder.from_bytes(source.encode())
    return gm.ChatTemplate.from_file(folder / "chat_template.jinja", tokenizer=encoder), encoder, as_text


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), min_size=1, max_size=4))
def test_special_tokens_in_content_are_text(folder, contents):
    template, encoder, as_text = with_plain_token(folder)
    messages = [{"role": "user", "content": content} for content in contents]
    # The part of the template's tokens is encoded by itself: nothing but they is a special token.
    expected = []
    for content in contents:
        expected += [encoder.token_to_id("<|im_start|>"), *as_text.encode(f"user\n{content.strip()}").ids]
        expected += [encoder.token_to_id("<|im_end|>")]
        expected += encoder.encode("\n").tolist()
    ids, _ = template.encode(messages, train_on="all", special_tokens_in_content="text")
    assert ids.tolist() == expected
    plain, _ = template.encode(messages, train_on="all")
    has_special = any(token in content for content in contents for token in ("<|im_start|>", "<|im_end|>"))
    assert (plain.tolist() == expected) == (not has_special)


def model_with(path, tokens, merges=(), **files):
    """A folder of a byte-level tokenizer with added tokens, (content, special, normalized) each, and merges."""
    path.mkdir()
    alphabet = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    vocab = [*alphabet, *(merge.replace(" ", "") for merge in merges)]
    added = [
        {"id": len(vocab) + index, "content": content, "special": special, "normalized": normalized}
        | {"single_word": False, "lstrip": False, "rstrip": False}
        for index, (content, special, normalized) in enumerate(tokens)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {token: index for index, token in enumerate(vocab)}, "merges": list(merges)}
    value = {"added_tokens": added, "pre_tokenizer": byte_level, "decoder": byte_level, "model": model, **files}
    (path / "tokenizer.json").write_text(json.dumps(value))
    return path


BY_ROLE = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}"
    "{% if m.role == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPOKEN = "hi<|assistant|>yes<|user|>no<|system|><|end|><|odd|>"


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}])
def test_tokens_that_the_template_writes_are_text_in_content(tmp_path, normalized, normalizer):
    roles = ("<|user|>", "<|assistant|>", "<|system|>", "<|odd|>")
    tokens = [("<|end|>", True, False), *((role, False, normalized) for role in roles), ("  ", False, normalized)]
    folder = model_with(tmp_path / "model", tokens, normalizer=normalizer)
    encoder = gm.Encoder.from_file(folder / "tokenizer.json")
    (folder / "chat_template.jinja").write_text(BY_ROLE)
    template = gm.ChatTemplate.from_pretrained(folder)
    # White space, and a token that the template does not write, have their ids as ever.
    content = SPOKEN + "  x"
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "ok"}]
    ids, mask = template.encode(messages, special_tokens_in_content="text")

    def written(ids):
        """The tokens of the template among some ids."""
        shown = [encoder.decode([token]) for token in ids]
        return [token for token in shown if token.startswith("<|") and token.endswith("|>")]

    assert written(ids.tolist()) == ["<|user|>", "<|odd|>", "<|assistant|>", "<|end|>"]
    assert encoder.token_to_id("  ") in ids.tolist()
    assert encoder.decode(ids) == f"<|user|>{content}<|assistant|>ok<|end|>"
    assert encoder.decode(ids[mask]) == "ok<|end|>"
    plain, _ = template.encode(messages)
    assert encoder.token_to_id("<|system|>") in plain.tolist()

    # The normalizer joins the accent with its letter.
    accented = [{"role": "user", "content": f"e\u0301{content}"}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"prompt": accented, "messages": messages}) + "\n")
    sample = gm.Chat(special_tokens_in_content="text")
    rows = gm.PackedDataset(
        str(tmp_path / "chats.jsonl"),
        tokenizer=encoder,
        sample=dataclasses.replace(sample, template=template),
        sequence_length=128,
        batch_size=1,
        packing="pad",
        layout="grain",
    )
    row = next(iter(rows))
    assert row["tokens"][0][row["tokens_segment_ids"][0] > 0].tolist() == ids.tolist()
    prompts = gm.PromptDataset(
        str(tmp_path / "chats.jsonl"),
        tokenizer=encoder,
        prompt=dataclasses.replace(sample, field="prompt", template=template, add_generation_prompt=True),
        prompt_length=128,
        batch_size=1,
        layout="hf",
    )
    batch = next(iter(prompts))
    prompt = batch["input_ids"][0][batch["attention_mask"][0] == 1].tolist()
    assert written(prompt) == ["<|user|>", "<|odd|>", "<|assistant|>"]
    accent = "\u00e9" if normalizer else "e\u0301"
    assert encoder.decode(prompt) == f"<|user|>{accent}{content}<|assistant|>"


SPACED = (
    "{% for m in messages %}{{ 'USER: ' if m.role == 'user' else 'BOT: ' }}"
    "{% if m.role == 'user' %}{{ m.content + '\n' }}{% else %}"
    "{% generation %}{{ m.content + '<|end|>' }}{% endgeneration %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'BOT: ' }}{% endif %}"
)


@pytest.mark.parametrize("train_on", ["assistant", "last", "template", ["assistant"]])
def test_token_with_white_space_of_the_prompt_is_trained(tmp_path, train_on):
    folder = model_with(tmp_path / "model", [("<|end|>", True, False)], ["Ġ B"])
    encoder = gm.Encoder.from_file(folder / "tokenizer.json")
    messages = [{"role": "user", "content": "A or B"}, {"role": "assistant", "content": "B"}]

    def trained(source):
        template = gm.ChatTemplate.from_string(source, tokenizer=encoder)
        ids, mask = template.encode(messages, train_on=train_on)
        return [encoder.decode([token]) for token in ids[mask].tolist()]

    assert trained(SPACED) == [" B", "<|end|>"]
    # White space by itself is the prompt's.
    assert trained(SPACED.replace("BOT: ", "BOT:  ")) == [" B", "<|end|>"]


def test_token_with_white_space_before_a_block_of_jinja2_is_trained(tmp_path):
    folder = model_with(tmp_path / "model", [("<|end|>", True, False)], ["Ġ B"])
    encoder = gm.Encoder.from_file(folder / "tokenizer.json")
    template = gm.ChatTemplate.from_string("{% block start %}{% endblock %}" + SPACED, tokenizer=encoder)
    assert template.template_engine == "jinja2"
    messages = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]
    ids, mask = template.encode(messages, train_on="template")
    assert [encoder.decode([token]) for token in ids[mask].tolist()] == [" B", "<|end|>"]


# The core renders no template that defines blocks.
OUTSIDE = "{% block start %}{{ bos_token }}{% endblock %}"
GENERATION = OUTSIDE + (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}{{ m.content }};"
    "{% endgeneration %}{% else %}{{ m.content }};{% endif %}{% endfor %}{{ '[assistant]' if add_generation_prompt }}"
)


def test_template_outside_of_the_core_is_rendered_by_jinja2(folder):
    inside = gm.ChatTemplate.from_string(GENERATION.replace(OUTSIDE, "{{ bos_token }}"), bos_token="é")
    outside = gm.ChatTemplate.from_string(GENERATION, tokenizer=str(folder), bos_token="é")
    assert (inside.template_engine, outside.template_engine) == ("core", "jinja2")
    assert "the tag {% block %}" in outside.template_engine_reason
    text = outside.render(CONVERSATION, add_generation_prompt=True)
    assert text == inside.render(CONVERSATION, add_generation_prompt=True)
    assert "jinja2" in repr(outside)
    again = pickle.loads(pickle.dumps(outside))
    assert again.render(CONVERSATION, add_generation_prompt=True) == text

    def trained(template, train_on):
        spans = template.spans(CONVERSATION, train_on=train_on)
        assert [spans[0][0], *(end for _, end, *_ in spans)] == [0, *(start for start, *_ in spans[1:]), spans[-1][1]]
        whole = template.render(CONVERSATION)
        return "".join(whole[start:end] for start, end, _, _, trained in spans if trained)

    assert trained(outside, "template") == trained(inside, "template") == "One, naïve 🙂.;2;"
    assert trained(outside, "all") == outside.render(CONVERSATION)
    reasoned = [*CONVERSATION[:3], {**CONVERSATION[3], "reasoning": "R"}]
    outside.spans(reasoned, train_on="all", on_lost_reasoning="ignore")
    outside.spans(reasoned, train_on="all", train_reasoning=False)
    outside.spans([*CONVERSATION[:3], {"role": "assistant", "content": "<think>R</think>2"}], train_on="all")
    expected = inside.with_tokenizer(str(folder)).encode(CONVERSATION, train_on="template")
    for ours, theirs in zip(outside.encode(CONVERSATION, train_on="template"), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {},
            r"train_on='assistant': jinja2 renders the template, .* it is 'all', 'template' or",
        ),
        ({"train_on": ["user"]}, "jinja2 renders the template"),
        ({"train_on": "all", "special_tokens_in_content": "text"}, r"special_tokens_in_content='text': jinja2 renders"),
        (
            {"train_on": "all", "messages": [{"role": "user", "content": "a", "weight": 0}]},
            r"messages\[0\] is not to be",
        ),
        ({"train_on": "all", "messages": []}, "the conversation is empty"),
        (
            {"train_on": "all", "messages": [{"role": "assistant", "content": "a", "reasoning": "R"}]},
            r"messages\[0\]: expected the reasoning of its 'reasoning' in the text",
        ),
        (
            {"train_on": "template", "messages": [{"role": "assistant", "content": "a", "reasoning_content": "R"}]},
            r"messages\[0\]: expected the reasoning of its 'reasoning_content' in the text",
        ),
        ({"train_on": "all", "final_stop": "<|im_end|>"}, r"final_stop='<\|im_end\|>': jinja2 renders the template"),
    ],
)
def test_masks_that_need_origins_are_errors_with_jinja2(folder, arguments, message):
    template = gm.ChatTemplate.from_string(GENERATION, tokenizer=str(folder), bos_token="")
    with pytest.raises(gm.TemplateError, match=message):
        template.encode(**{"messages": CONVERSATION, **arguments})


def test_templates_of_jinja2_raise_typed_errors():
    def error(source, **kwargs):
        with pytest.raises(gm.TemplateError) as found:
            gm.ChatTemplate.from_string(OUTSIDE + source, bos_token="").render(CONVERSATION, **kwargs)
        return str(found.value)

    assert "roles must alternate" in error("{{ raise_exception('roles must alternate') }}")
    assert "give a date" in error("{{ strftime_now('%d') }}")
    assert "unsupported operand" in error("{{ 1 + 'a' }}")
    assert "line 2 of the template" in error("\n{% for %}")
    assert "unsafe" in error("{{ ''.__class__.__mro__ }}")
    dated = gm.ChatTemplate.from_string(OUTSIDE + "{{ strftime_now('%d %b %Y') }}", bos_token="")
    assert dated.uses_date
    assert dated.render(CONVERSATION, date="2026-11-26") == "26 Nov 2026"
    macro = "{% macro m() %}a{% generation %}a{% endgeneration %}{% endmacro %}{{ m() }}"
    with pytest.raises(gm.TemplateError, match="inside of a macro"):
        gm.ChatTemplate.from_string(OUTSIDE + macro, bos_token="").spans(CONVERSATION, train_on="template")


def test_values_outside_of_the_core_are_rendered_by_jinja2():
    # The core does not know digits beyond ASCII.
    template = gm.ChatTemplate.from_string("{{ messages[0].content | int + 1 }}")
    assert template.template_engine == "core"
    assert template.render([{"role": "user", "content": "٤١"}]) == "42"
    with pytest.raises(gm.TemplateError, match=r"the core does not render exactly: .*digits beyond ASCII"):
        template.spans([{"role": "user", "content": "٤١"}], train_on="all")


def test_template_outside_of_the_core_needs_jinja2(monkeypatch):
    monkeypatch.setitem(sys.modules, "gristmill._chat.jinja", None)
    with pytest.raises(gm.MissingExtraError, match=r"the tag {% block %}.*pip install 'gristmill\[jinja\]'"):
        gm.ChatTemplate.from_string(OUTSIDE)


def test_dataset_refuses_a_template_outside_of_the_core(folder, tmp_path):
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": CONVERSATION}) + "\n")
    sample = gm.Chat(template=GENERATION, train_on="template")
    with pytest.raises(gm.TemplateError, match=r"the tag {% block %}.*workers of a dataset run without Python"):
        gm.PackedDataset(
            tmp_path / "chats.jsonl", tokenizer=str(folder), sample=sample, sequence_length=64, batch_size=1
        )


@pytest.mark.parametrize("none_fields", ["drop", "keep"])
def test_engines_render_random_conversations_alike(none_fields):
    source = (
        "{% for m in messages %}{% for key, value in m.items() %}{{ key }}={{ value }};{% endfor %}\n"
        "  {% if loop.last %}\n!{% endif %}{{ m.thinking is defined }}{% endfor %}{{ tools | tojson(indent=2) }}"
        "{{ x }}{{ '%.3f' | format(1/3) }}"
    )
    core, jinja = (gm.ChatTemplate.from_string(start + source, bos_token="") for start in ("{{ bos_token }}", OUTSIDE))
    values = [None, True, 0, -1.5, 747526608712544.25, 1e22, 2**70, "é\n\x1c<b>'\"", ["a", None], {"k": [1]}, ""]
    for index, value in enumerate(values):
        messages = [
            {"role": "user", "content": value, "reasoning": None},
            {"role": "assistant", "content": "a", "reasoning": value, "name": None, "thinking": values[index - 1]},
        ]
        given = {"tools": [{"name": value}], "x": value, "none_fields": none_fields}
        assert core.render(messages, **given) == jinja.render(messages, **given)
