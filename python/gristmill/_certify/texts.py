"""The texts that a tokenizer is compared on: given ones, those of the Python installation, and generated ones."""

import importlib.resources
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gristmill._certify import generated
from gristmill._demo import sample_text
from gristmill._shards.address import Address
from gristmill._tokenizer.encoder import Encoder, core_of
from gristmill.errors import ArgumentError, GristmillError

GIVEN = "given"
SAMPLE = "sample"

_PLAIN_TEXT = (".txt", ".md")
_SAMPLE_MEGABYTES = 64.0
# Tokens of the vocabulary that generated texts use, and texts that are mutated with their characters.
_TOKENS = 3000
_POOL = 2000
_POOLED_CHARACTERS = 4000
_ROW = 2**16
_END = 256


@dataclass
class Unread:
    """Records of given shards that could not be read.

    Attributes:
      records: how many, before the last text that was taken.
    """

    records: int = 0


def sources(
    encoder: Encoder,
    given: Address,
    text_field: str,
    seed: int,
    unread: Unread,
) -> dict[str, Iterator[str]]:
    """Texts by kind.

    Args:
      encoder: the tokenizer, some of whose tokens generated texts contain.
      given: paths, globs and URLs of shards, and paths of text files; may have none.
      text_field: the key of a shard's texts.
      seed: of the generated texts.
      unread: counts the records of the shards that cannot be read.
    """
    pool = importlib.resources.files("gristmill._tokenizer").joinpath("probe.txt").read_bytes().decode().split("\n")
    real: dict[str, Iterator[str]] = {SAMPLE: (text for _, text in sample_text.texts(_SAMPLE_MEGABYTES))}
    if given.names:
        real = {GIVEN: _given_texts(given, text_field, unread), **real}
    pooled = {kind: _pooling(texts, pool) for kind, texts in real.items()}
    added = [token["content"] for token in json.loads(core_of(encoder).json).get("added_tokens") or []]
    material = generated.Material(added, _vocabulary(encoder, seed), pool)
    return {**pooled, **generated.sources(material, seed)}


def _pooling(texts: Iterator[str], pool: list[str]) -> Iterator[str]:
    """The texts. The starts of the first of them are added to those that are mutated."""
    for text in texts:
        if len(pool) < _POOL:
            pool.append(text[:_POOLED_CHARACTERS])
        yield text


def _vocabulary(encoder: Encoder, seed: int) -> list[str]:
    source = random.Random(f"{seed} vocabulary")
    ids = [source.randrange(encoder.largest_id + 1) for _ in range(_TOKENS)]
    return [text for token in ids for text in (encoder.id_to_token(token), encoder.decode([token])) if text]


def _given_texts(given: Address, text_field: str, unread: Unread) -> Iterator[str]:
    files = [path for path in given.names if path.endswith(_PLAIN_TEXT)]
    shards = [path for path in given.names if path not in files]
    for path in files:
        try:
            yield Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise GristmillError(f"cannot read the text {path!r}: {error}") from error
    if shards:
        yield from _shard_texts(given.at(*shards), text_field, unread)


def _shard_texts(shards: Address, text_field: str, unread: Unread) -> Iterator[str]:
    """The texts of shards of any format, in their order.

    They are read as a run reads them, with a tokenizer whose ids are bytes: only so is memory bounded.
    """
    from gristmill._dataset.packed import PackedDataset

    dataset = PackedDataset(
        **shards.arguments,
        tokenizer=Encoder(json.dumps(_bytes_tokenizer()).encode(), special_tokens_in_text="text"),
        text_field=text_field,
        eos=_END,
        batch_size=1,
        sequence_length=_ROW,
        layout="hf",
        epochs=1,
        threads=1,
        prefetch=1,
        on_error="quarantine",
        max_error_rate=1.0,
    )
    begun, count = b"", 0
    iterator = iter(dataset)
    try:
        for batch in iterator:
            row = batch["input_ids"][0]
            unread.records = iterator.stats()["quarantined"]
            start = 0
            for end in np.flatnonzero(row == _END).tolist():
                yield (begun + row[start:end].astype(np.uint8).tobytes()).decode()
                begun, start, count = b"", end + 1, count + 1
            # Behind the last document there is padding only.
            begun += row[start:].astype(np.uint8).tobytes()
        unread.records = iterator.stats()["quarantined"]
    finally:
        iterator.close()
    if not count:
        raise ArgumentError(f"text_field={text_field!r}: no record of the shards has a text under this key")


def _bytes_tokenizer() -> dict[str, Any]:
    """A tokenizer.json whose ids are the bytes of the text, and the end of a text."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    spelled = [chr(byte if byte in printable else next(others)) for byte in range(256)]
    end = {"id": _END, "content": "<end>", "special": True, "normalized": False}
    return {
        "version": "1.0",
        "added_tokens": [{**end, "single_word": False, "lstrip": False, "rstrip": False}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {token: byte for byte, token in enumerate(spelled)}, "merges": []},
    }
