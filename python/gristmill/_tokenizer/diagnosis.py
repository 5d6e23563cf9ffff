"""Hints on files that are not a tokenizer.json; they follow the error of the library."""

import json
import re
from collections.abc import Collection
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import gristmill._core as _core
from gristmill._util.text import shortened

_CONVERT = (
    "transformers writes a tokenizer.json from it: "
    "AutoTokenizer.from_pretrained(folder).save_pretrained(another_folder)"
)
_WRITE_AGAIN = f"; write it with tokenizers {_core.TOKENIZERS_VERSION}, or an earlier version"

# By their first bytes.
_BEGINNINGS = {
    b"version https://git-lfs": "a Git LFS pointer: download the file itself with git lfs pull",
    b"<!": "a web page: download the file again",
    b"<html": "a web page: download the file again",
    b"<?xml": "XML: download the file again",
    b"PK": "a zip archive: unpack it",
    b"GGUF": "a GGUF model; transformers writes a tokenizer.json from it: "
    "AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(another_folder)",
    b"\xff\xfe\0\0": "UTF-32: save it as UTF-8",
    b"\xff\xfe": "UTF-16: save it as UTF-8",
    b"\xfe\xff": "UTF-16: save it as UTF-8",
    b"\xef\xbb\xbf": "a file with a byte order mark: save it as UTF-8 without one",
    b"#version": f"the merges.txt of a tokenizer; {_CONVERT}",
}

_KEYS = {
    "version",
    "truncation",
    "padding",
    "added_tokens",
    "normalizer",
    "pre_tokenizer",
    "post_processor",
    "decoder",
    "model",
}

# The names in the library's messages of the parts of a tokenizer.json.
_PARTS = {
    "Model": "model",
    "Normalizer": "normalizer",
    "PreTokenizer": "pre_tokenizer",
    "PostProcessor": "post_processor",
    "Decoder": "decoder",
}

# Files of tokenizers that the library does not load.
_OTHERS = ("tokenizer.model", "spiece.model", "vocab.json", "merges.txt", "vocab.txt", "*.tiktoken")

# Larger files are not looked into: no tokenizer.json is, and parsing takes several times their size.
_MOST_PARSED = 2**26


def describe_bytes(data: bytes, message: str) -> str:
    """A hint on bytes that the library cannot load, given its message; empty if there is none."""
    if not message.startswith("the `tokenizers` library cannot load"):
        return ""
    data = data.lstrip()
    for beginning, kind in _BEGINNINGS.items():
        if data.startswith(beginning):
            return f"; this is {kind}"
    first = data[:_MOST_PARSED].split(b"\n", 1)[0].rstrip()
    if re.fullmatch(rb"[A-Za-z0-9+/]+=* [0-9]+", first):
        return f"; this is a tiktoken file; {_CONVERT}"
    if len(data) > len(first) + 2 and isinstance(_parsed(first), dict):
        return "; this is JSON lines, as in a shard: use the tokenizer.json of a model"
    found = _parsed(data) if len(data) <= _MOST_PARSED else None
    if isinstance(found, dict):
        return _describe_object(found, message)
    if found is not None:
        return f"; this is JSON, but not an object: {shortened(found)}"
    if b"<unk>" in data[:200] and not first.startswith(b"{"):
        return f"; this looks like a SentencePiece model; {_CONVERT}"
    if not data.startswith((b"{", b"[")):
        return "; this is not JSON: download the file again"
    return "; the file may be truncated: download it again" if "EOF while parsing" in message else ""


def _parsed(data: bytes) -> Any:
    """The value of JSON data; None if the data is not JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _describe_object(found: dict[str, Any], message: str) -> str:
    if "model" not in found:
        return f"; this is {_describe_other_object(found)}"
    unknown = sorted(found.keys() - _KEYS)
    if unknown:
        return f"; it has {_list_keys(unknown)}, which the library does not know{_WRITE_AGAIN}"
    refused = re.search(r": data did not match any variant of untagged enum (\w+)(?:Untagged|Wrapper)\b", message)
    part = _PARTS.get(refused[1], "") if refused else ""
    if part in found:
        return f"; its {part} is {shortened(found[part])}{_WRITE_AGAIN}"
    return _WRITE_AGAIN if ": Unknown tokenizer version" in message else ""


def _describe_other_object(found: dict[str, Any]) -> str:
    if "tokenizer_class" in found or "added_tokens_decoder" in found:
        return "a tokenizer_config.json: use the tokenizer.json in the same folder"
    if "model_type" in found or "architectures" in found:
        return "the config.json of a model: use the tokenizer.json in the same folder"
    if found and all(type(value) is int for value in found.values()):
        return f"a vocab.json; {_CONVERT}"
    return f"not a tokenizer.json, which has the key 'model'; this file has {_list_keys(found)}"


def _list_keys(keys: Collection[str]) -> str:
    some = ", ".join(shortened(key) for key in list(keys)[:5])
    return f"the key{'s' if len(keys) > 1 else ''} {some}{', ...' if len(keys) > 5 else ''}" if keys else "no keys"


def is_of_tokenizer(name: str) -> bool:
    """Whether a file has the name of a tokenizer that the library does not load."""
    return any(fnmatch(name, pattern) for pattern in _OTHERS)


def describe_folder(folder: Path) -> str:
    """A hint on a folder that lacks the requested tokenizer.json; empty if there is none."""
    if (folder / "tokenizer.json").exists():
        return "; the folder has a tokenizer.json"
    found = sorted(path.name for pattern in _OTHERS for path in folder.glob(pattern))
    return f"; the folder has {', '.join(found)}: {_CONVERT}" if found else ""
