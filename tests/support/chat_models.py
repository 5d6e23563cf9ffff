"""Small tokenizers with chat templates, as folders that `transformers` would save."""

import json
from pathlib import Path

import gristmill as gm

CHATML = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content | trim }}"
    "{{ '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)

# Writes the reasoning behind the last question; with `preserve_thinking` all.
REASONING = (
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}{%- for m in messages %}"
    "{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.reasoning_content and (preserve_thinking or loop.index0 > ns.last) %}"
    "{{- '<think>' + m.reasoning_content + '</think>' }}{%- endif %}"
    "{{- m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def write_chatml(path: Path) -> Path:
    """A byte-level tokenizer with some merges and the special tokens of ChatML, and that template."""
    alphabet = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    merges = ["a n", "an t", "Ġ t", "e r", "u s", "us er", "Ċ Ċ", "i m"]
    products = [merge.replace(" ", "") for merge in merges]
    vocab = {token: index for index, token in enumerate([*alphabet, *products])}
    flags = {"special": True, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
    tokenizer = {
        "added_tokens": [
            {"id": len(vocab) + index, "content": token} | flags
            for index, token in enumerate(["<|im_start|>", "<|im_end|>"])
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    (path / "chat_template.jinja").write_text(CHATML)
    return path


# As that of Qwen3-VL, of parts that are images or texts.
VISION_CHATML = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.content is string %}{{ message.content }}{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{%- else %}{{ part.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}{{ '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
_VISION_TOKENS = (
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<start_of_image>", "<image_soft_token>", "<end_of_image>",
    "<|image_start|>", "<|image_end|>", "<|image|>", "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>",
)  # fmt: skip


def write_vision(path: Path) -> Path:
    """The same with the tokens that Qwen-VL, Gemma 3 and Llama 4 have for images, and a template for these of Qwen."""
    file = write_chatml(path) / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokens = tokenizer["added_tokens"]
    for content in _VISION_TOKENS:
        tokens.append({**tokens[-1], "id": tokens[-1]["id"] + 1, "content": content})
    file.write_text(json.dumps(tokenizer))
    (path / "chat_template.jinja").write_text(VISION_CHATML)
    return path


def turns(count, *, reasoning=True):
    """Questions and answers that are numbered, with reasoning."""
    messages = []
    for number in range(1, count + 1):
        own = {"reasoning_content": f"R{number}"} if reasoning else {}
        messages += [
            {"role": "user", "content": f"Q{number}"},
            {"role": "assistant", "content": f"A{number}", **own},
        ]
    return messages


def trained_texts(folder, rows):
    """The text that each row trains on."""
    encoder = gm.Encoder.from_pretrained(str(folder))
    return [encoder.decode(row["tokens"][row["tokens_loss_mask"] == 1]) for row in rows]
