"""A tokenizer.json from the vocabulary that `mistral-common` ships (Tekken).

It lists the bytes of tokens by rank. A merge list follows from that: for each token all pairs of tokens that make it
up, the token's rank first.
"""

import base64
import json
from pathlib import Path
from typing import Any


def tokenizer(source: Path, pattern: str | None = None) -> dict[str, Any]:
    """The tokenizer.json.

    Args:
      source: a tekken file.
      pattern: a split pattern to use instead of its own.
    """
    tekken = json.loads(source.read_bytes())
    config = tekken["config"]
    count = config["default_vocab_size"] - config["default_num_special_tokens"]
    tokens = [base64.b64decode(entry["token_bytes"]) for entry in tekken["vocab"][:count]]
    spelled = {token: spell(token) for token in tokens}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": pattern or config["pattern"]},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": {spelled[token]: rank for rank, token in enumerate(tokens)},
            "merges": [[spelled[left], spelled[right]] for left, right in merges(tokens)],
        },
    }


def merges(tokens: list[bytes]) -> list[tuple[bytes, bytes]]:
    """The merges behind tokens in the order of their ranks."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    found = []
    for token in tokens:
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        whole = [pair for pair in pairs if pair[0] in ranks and pair[1] in ranks]
        found += sorted(whole, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    return found


def spell(token: bytes) -> str:
    """A token as byte-level tokenizers write it: printable bytes as themselves, the others from U+0100 on."""
    return "".join(_SPELLING[byte] for byte in token)


def _spelling() -> list[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


_SPELLING = _spelling()
