"""Small tokenizers with chat templates, as folders that `transformers` would save."""

import json
from pathlib import Path

CHATML = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content | trim }}"
    "{{ '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
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
