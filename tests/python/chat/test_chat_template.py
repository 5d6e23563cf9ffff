"""`ChatTemplate`: text, spans and masks of conversations."""

import functools
import json
import pickle

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
    # What the template's tokens part is encoded by itself: nothing but they is a special token.
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
