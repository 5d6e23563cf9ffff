"""Texts compared with jinja2, set up as `transformers` does, on templates of models; and with `transformers` itself.

`tests/chat_templates/compare_conversations.py` compares many more conversations.
"""

import datetime
import importlib.util
import sys
from pathlib import Path

import pytest

import gristmill as gm
from gristmill._chat import template as module
from gristmill._chat.jinja import JinjaTemplate

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "chat_templates"))
from conversations import Conversations  # noqa: E402 - it is no package

CONVERSATIONS = 12
DATE = "2026-11-05T09:07:03"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def template_files():
    """The templates that `trl` ships, and those of ../shared/templates."""
    folders = [ROOT.parent / "shared" / "templates"]
    if spec := importlib.util.find_spec("trl"):
        folders.append(Path(spec.origin).parent / "chat_templates")
    return [path for folder in folders for path in sorted(folder.glob("*.jinja"))]


def requests(path):
    """Arguments of `render` for random conversations."""
    conversations = Conversations(path.name)
    for _ in range(CONVERSATIONS):
        request = conversations.request()
        request |= request.pop("kwargs", {})
        yield request.pop("messages"), request


def outcome(render):
    try:
        return render()
    except (gm.TemplateError, gm.ArgumentTypeError) as error:
        return type(error)


needs_templates = pytest.mark.skipif(not template_files(), reason="neither trl nor ../shared/templates is there")


@needs_templates
@pytest.mark.parametrize("path", template_files(), ids=lambda path: path.stem)
@pytest.mark.parametrize("none_fields", ["drop", "keep"])
def test_text_is_that_of_jinja2(path, none_fields):
    source = path.read_bytes().decode()
    template, jinja = gm.ChatTemplate(source, special_tokens=TOKENS), JinjaTemplate(source, TOKENS)
    assert template.template_engine == "core"
    for messages, given in requests(path):
        given |= {"date": DATE, "none_fields": none_fields}

        def expected(messages=messages, given=given):
            kwargs = dict(given)
            named = {name: kwargs.pop(name, None) for name in ("tools", "add_generation_prompt")}
            return jinja.render(module._conversation(messages, *named.values(), kwargs))[0]

        found = outcome(lambda messages=messages, given=given: template.render(messages, **given))
        assert found == outcome(expected), messages


@needs_templates
@pytest.mark.parametrize("path", template_files(), ids=lambda path: path.stem)
def test_text_is_that_of_transformers(path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models
    from transformers.utils import chat_template_utils

    class Then(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromisoformat(DATE)

    monkeypatch.setattr(chat_template_utils, "datetime", Then)
    words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **TOKENS)
    source = path.read_bytes().decode()
    template = gm.ChatTemplate(source, special_tokens=TOKENS)
    for messages, given in requests(path):
        try:
            expected = tokenizer.apply_chat_template(messages, chat_template=source, tokenize=False, **given)
        except Exception:
            expected = gm.TemplateError
        found = outcome(lambda messages=messages, given=given: template.render(messages, date=DATE, **given))
        assert found == expected, messages


def test_random_conversations_against_jinja2_without_files():
    source = (
        "{%- set ns = namespace(n=0) -%}{{ bos_token }}{% if tools %}{{ tools | tojson(indent=4) }}{% endif %}\n"
        "{% for m in messages %}\n  {% if m.role == 'assistant' and m.tool_calls %}\n{% for call in m.tool_calls %}\n"
        "{% set call = call.function or call %}{{ loop.index }}{{ call.name }}{{ call.arguments | tojson }}\n"
        "{% endfor %}{% elif m.content is string %}[{{ m.role }}]{{ m.content | trim }}"
        "{{ m.content.split('</think>')[-1] }}\n"
        "{% else %}{% set ns.n = ns.n + 1 %}{% for part in m.content %}{{ part.text or part }}{% endfor %}{% endif %}"
        "{{ m.reasoning_content }}{% for k, v in m | dictsort %}{{ k }}={{ v }},{% endfor %}{% endfor %}{{ ns.n }}"
    )
    template, jinja = gm.ChatTemplate(source, special_tokens=TOKENS), JinjaTemplate(source, TOKENS)
    texts = 0
    conversations = Conversations(0)
    for _ in range(300):
        request = conversations.request()
        given = request.pop("kwargs", {})
        named = [request["messages"], request.get("tools"), request["add_generation_prompt"]]
        found = outcome(lambda named=named, given=given: template.render(*named, **given))
        assert found == outcome(lambda named=named, given=given: jinja.render(module._conversation(*named, given))[0])
        texts += isinstance(found, str)
    assert texts > 100
