"""The settings of model families in docs/fine-tuning.md, compared with what the families' templates train."""

import ast
import gzip
import json
import re

import numpy as np
import pytest

import gristmill as gm
from chat_models import write_chatml
from helpers import ROOT

SHARED = ROOT.parent / "shared"
PAGE = ROOT / "docs" / "fine-tuning.md"
_CHATML = "<|im_start|> <|im_end|>"
_DEEPSEEK = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
_GLM = "[gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|>"
_GEMMA = "<|turn> <turn|> <|tool_response> <tool_response|> <|tool_call> <tool_call|> <|channel> <channel|>"
# The template of each family, its token of the beginning, and further special tokens.
FAMILIES = {
    "Qwen3": ("trl--qwen3", None, _CHATML),
    "Qwen3.5": ("trl--qwen3_5_think", None, _CHATML),
    "Qwen3.6": ("trl--qwen3_6", None, _CHATML),
    "DeepSeek V3.2": ("llamacpp--deepseek-ai-DeepSeek-V3.2", *_DEEPSEEK),
    "DeepSeek V4": ("llamacpp--deepseek-ai-DeepSeek-V4", *_DEEPSEEK),
    "GLM-4.5, GLM-4.6": ("trl--glm4moe", None, _GLM),
    "GLM-4.7": ("llamacpp--GLM-4.7-Flash", None, _GLM),
    "Kimi K2": (
        "llamacpp--Kimi-K2-Instruct",
        None,
        "<|im_end|> <|im_user|> <|im_assistant|> <|im_middle|> <|im_system|>",
    ),
    "gpt-oss": ("trl--gptoss", None, "<|start|> <|end|> <|message|> <|channel|> <|call|> <|return|>"),
    "Gemma 4": ("llamacpp--google-gemma-4-31B-it", "<bos>", _GEMMA),
    "MiniMax M2": ("llamacpp--MiniMax-M2", None, "]~!b[ ]~b] [e~["),
    "Nemotron Nano v2": ("llamacpp--NVIDIA-Nemotron-Nano-v2", "<s>", "<SPECIAL_10> <SPECIAL_11> <SPECIAL_12>"),
    "Nemotron 3": ("trl--nemotron_3_nano", None, _CHATML),
    "Step 3.5": ("llamacpp--StepFun3.5-Flash", "<s>", _CHATML),
}
# Added tokens that are not special in these families' tokenizers.
OTHERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<｜User｜>", "<｜Assistant｜>"]
TOOL = {
    "name": "look_up",
    "description": "d",
    "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "e"}}, "required": ["x"]},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": {"x": "y"}}}


def turn(number):
    return [
        {"role": "user", "content": f"Q{number}"},
        {"role": "assistant", "content": f"A{number}", "reasoning_content": f"R{number}"},
    ]


ONE, TWO = turn(1), [*turn(1), *turn(2)]
CALLING = [
    turn(1)[0],
    {"role": "assistant", "content": "", "reasoning_content": "R1", "tool_calls": [CALL]},
    {"role": "tool", "name": "look_up", "tool_call_id": "c1", "content": "OUT"},
    turn(2)[1],
]


def rows():
    """The rows of the page's table: by family, the arguments, the way with several turns, and what is trained."""
    section = re.search(r"^## Settings of model families\n(.*?)^## ", PAGE.read_text(), re.DOTALL | re.MULTILINE)[1]
    found = {}
    for line in section.splitlines():
        if line.startswith("| ") and not line.startswith(("| family", "| ---")):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            family, given, several, one, call = (cell.replace("\\|", "|").strip("`") for cell in cells)
            arguments = {} if given == "none" else ast.parse(f"f({given})", mode="eval").body.keywords
            arguments = {word.arg: ast.literal_eval(word.value) for word in arguments or ()}
            found[family] = arguments, several.strip('"'), one.replace("\\n", "\n"), call
    return found


def model(path, family):
    """A folder of the family's template, with its tokenizer if that is there, else one with its special tokens."""
    name, bos, special = FAMILIES[family]
    variables = {} if bos is None else {"bos_token": bos}
    write_chatml(path)
    file = path / "tokenizer.json"
    own = SHARED / "tokenizers" / f"{family.lower()}.tokenizer.json.gz"
    if own.is_file():
        file.write_bytes(gzip.decompress(own.read_bytes()))
    else:
        tokenizer = json.loads(file.read_text())
        flags = {"normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
        first = len(tokenizer["model"]["vocab"])
        tokenizer["added_tokens"] = [
            {"id": first + index, "content": token, "special": token not in OTHERS, **flags}
            for index, token in enumerate([*special.split(), *variables.values(), *OTHERS])
        ]
        file.write_text(json.dumps(tokenizer))
    (path / "tokenizer_config.json").write_text(json.dumps(variables))
    (path / "chat_template.jinja").write_bytes((SHARED / "templates" / f"{name}.jinja").read_bytes())
    return path


def trained(path, messages, tools=None, **chat):
    """The stretches of a conversation that a dataset trains on."""
    shard = path / "a.jsonl"
    shard.write_text(json.dumps({"messages": messages, "tools": tools}) + "\n")
    dataset = gm.PackedDataset(
        shard,
        tokenizer=path,
        sample=gm.Chat(tools="tools", **chat),
        packing="pad",
        layout="grain",
        sequence_length=4096,
    )
    rows = list(dataset)
    assert len(rows) == 1 or "samples" in chat
    tokens, masks = (np.concatenate([row[name] for row in rows]).tolist() for name in ("tokens", "tokens_loss_mask"))
    stretches, before = [], 0
    for token, is_trained in zip(tokens, masks, strict=True):
        if is_trained and not before:
            stretches.append([])
        if is_trained:
            stretches[-1].append(token)
        before = is_trained
    return [dataset.encoder.decode(stretch) for stretch in stretches]


needs_templates = pytest.mark.skipif(
    not (SHARED / "templates").is_dir(), reason="../shared/templates, the templates of the families, is not there"
)


def test_each_family_has_a_template():
    assert rows().keys() == FAMILIES.keys()


@needs_templates
@pytest.mark.parametrize("family", FAMILIES)
def test_family_trains_what_the_page_says(tmp_path, family):
    path = model(tmp_path / "model", family)
    arguments, several, one, end_of_call = rows()[family]
    ignored = arguments | {"on_lost_reasoning": "ignore"}

    def answer(number):
        return re.sub(r"\b([RA])\b", rf"\g<1>{number}", one)

    assert several in ("kept", "rounds", "ignore")
    if several == "ignore":
        with pytest.raises(gm.ShardError, match="on_lost_reasoning"):
            trained(path, ONE, **arguments)
    assert trained(path, ONE, **(ignored if several == "ignore" else arguments)) == [answer(1)]

    if several == "kept":
        assert trained(path, TWO, **arguments) == [answer(1), answer(2)]
    else:
        with pytest.raises(gm.ShardError, match=r"messages\[1\]: expected its \"reasoning_content\" in the text"):
            trained(path, TWO, **arguments)
    if several == "rounds":
        assert trained(path, TWO, samples="rounds", **arguments) == [answer(1), answer(2)]
        assert trained(path, TWO, samples="turns", **arguments) == [answer(1), answer(2)]
        assert trained(path, TWO, train_on="last", **arguments) == [answer(2)]
    without = trained(path, TWO, **ignored)
    assert len(without) == 2
    assert all("A" in text for text in without)
    assert several != "ignore" or without == [answer(1), answer(2)]

    # The error names the variables that the page names.
    if variables := arguments.pop("template_kwargs", None):
        with pytest.raises(gm.ShardError) as raised:
            trained(path, TWO, **arguments)
        assert all(f'"{name}": {value}' in str(raised.value) for name, value in variables.items()), raised.value

    if end_of_call == "fails":
        with pytest.raises(gm.ShardError, match="'append' of 'list' object is unsafe"):
            trained(path, CALLING, [{"type": "function", "function": TOOL}], **ignored)
        return
    call, last = trained(path, CALLING, [{"type": "function", "function": TOOL}], **ignored)
    assert "look_up" in call
    assert call.endswith(end_of_call)
    assert last.endswith(re.split(r"\bA\b", one)[1])
    assert "OUT" not in call + last
