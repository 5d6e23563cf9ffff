"""The texts that are encoded, and the tokenizers, as files that every engine can read."""

import gzip
import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import peers
import tekken

from gristmill._demo import sample_text

_MISTRAL_COMMON = "mistral-common==1.13.1"
_TEXT_FIELDS = ("text", "raw_content")
# The split pattern of gpt-oss, whose vocabulary no package ships: put on another one.
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def packaged_tokenizers(folder: Path) -> list[Path]:
    """The tokenizers that Python packages ship: DeepSeek's, Mistral's Tekken, and that with o200k's split pattern."""
    source = peers.data_package(_MISTRAL_COMMON, folder) / "mistral_common" / "data" / "tekken_240911.json"
    made = {"tekken": None, "o200k-on-tekken": _O200K}
    for name, pattern in made.items():
        path = folder / f"{name}.json"
        if not path.is_file():
            path.write_text(json.dumps(tekken.tokenizer(source, pattern)))
    deepseek = folder / "deepseek.json"
    deepseek.write_bytes(sample_text.tokenizer().read_bytes())
    return [deepseek, *(folder / f"{name}.json" for name in made)]


def unpacked_tokenizer(path: Path, folder: Path) -> Path:
    """A tokenizer.json, inflated if need be, under a name that tells which it is."""
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    name = path.parent.name if path.name == "tokenizer.json" else path.name.split(".tokenizer.json")[0]
    unpacked = folder / f"{name.removesuffix('.json')}.json"
    unpacked.write_bytes(content)
    return unpacked


def sample_texts(folder: Path, megabytes: float) -> list[Path]:
    """The demo's text."""
    sample = sample_text.prepare(folder / "sample", megabytes)
    shards = sorted(Path(sample.folder).glob("*/*.json.gz"))
    return [_write(folder / "sample.bin", _shard_texts(shards), megabytes)]


def corpus_texts(corpus: Path, folder: Path, megabytes: float) -> list[Path]:
    """Texts of the shards below a folder; shards of one file name are one text."""
    shards: dict[str, list[Path]] = {}
    for shard in sorted(corpus.rglob("*.json.gz")):
        shards.setdefault(shard.name.removesuffix(".json.gz"), []).append(shard)
    if not shards:
        raise FileNotFoundError(f"no .json.gz below {corpus}")
    return [_write(folder / f"{name}.bin", _shard_texts(found), megabytes) for name, found in shards.items()]


def _shard_texts(shards: Iterable[Path]) -> Iterator[str]:
    for shard in shards:
        with gzip.open(shard) as lines:
            for line in lines:
                record = json.loads(line)
                yield next((record[field] for field in _TEXT_FIELDS if field in record), "")


def _write(path: Path, texts: Iterable[str], megabytes: float) -> Path:
    """Writes the first documents, so many that they exceed the size."""
    written = 0
    with path.open("wb") as file:
        for text in texts:
            document = text.encode("utf-8", "replace")
            written += file.write(struct.pack("<I", len(document)) + document)
            if written >= megabytes * 1e6:
                break
    return path
