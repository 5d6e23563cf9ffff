"""gristmill grinds gzipped JSONL shards into packed token sequences for Grain and JAX.

A Rust core inflates the shards, tokenizes with exactly the ids of Hugging Face `tokenizers`, and fills a
ring of packed batches; `PackedDataset` is the Grain dataset that hands them out.
"""

from typing import TYPE_CHECKING, Any

from gristmill._core import __version__
from gristmill._encoder import Encoder
from gristmill._errors import (
    ArgumentError,
    ArgumentTypeError,
    GristmillError,
    MissingShardError,
    ShardError,
    StateError,
    TokenizerError,
)
from gristmill._manifest import Manifest
from gristmill._state import merge_states

if TYPE_CHECKING:
    from gristmill._dataset import PackedDataset, PackedDatasetIterator

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "Encoder",
    "GristmillError",
    "Manifest",
    "MissingShardError",
    "PackedDataset",
    "PackedDatasetIterator",
    "ShardError",
    "StateError",
    "TokenizerError",
    "__version__",
    "merge_states",
]

# Grain imports JAX, which takes most of a second: only what needs it loads it.
_NEEDS_GRAIN = ("PackedDataset", "PackedDatasetIterator")


def __getattr__(name: str) -> Any:
    if name in _NEEDS_GRAIN:
        from gristmill import _dataset

        return getattr(_dataset, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
