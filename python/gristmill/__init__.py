"""gristmill grinds gzipped JSONL shards into packed token sequences for Grain and JAX.

A Rust core inflates the shards, tokenizes with exactly the ids of Hugging Face `tokenizers`, and fills a
ring of packed batches; `PackedDataset` is the Grain dataset that hands them out.
"""

import importlib.util
from typing import TYPE_CHECKING, Any

from gristmill._core import __version__, build_info
from gristmill._encoder import Encoder
from gristmill._errors import (
    ArgumentError,
    ArgumentTypeError,
    GristmillError,
    MissingExtraError,
    MissingShardError,
    MissingTokenizerError,
    ShardError,
    StateError,
    TokenizerError,
)
from gristmill._manifest import Manifest
from gristmill._state import merge_states

if TYPE_CHECKING:
    from gristmill._checkpoint import CheckpointHandler, CheckpointRestore, CheckpointSave
    from gristmill._dataset import PackedDataset
    from gristmill._global import GlobalBatches, global_batches
    from gristmill._iterator import PackedDatasetIterator
    from gristmill._replicas import check_replicas

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "CheckpointHandler",
    "CheckpointRestore",
    "CheckpointSave",
    "Encoder",
    "GlobalBatches",
    "GristmillError",
    "Manifest",
    "MissingExtraError",
    "MissingShardError",
    "MissingTokenizerError",
    "PackedDataset",
    "PackedDatasetIterator",
    "ShardError",
    "StateError",
    "TokenizerError",
    "__version__",
    "build_info",
    "check_replicas",
    "global_batches",
    "merge_states",
]

# Grain imports JAX, which takes most of a second: only what needs them loads them.
_LAZY = {
    "PackedDataset": "_dataset",
    "PackedDatasetIterator": "_iterator",
    "GlobalBatches": "_global",
    "global_batches": "_global",
    "check_replicas": "_replicas",
    "CheckpointHandler": "_checkpoint",
    "CheckpointRestore": "_checkpoint",
    "CheckpointSave": "_checkpoint",
}
# Libraries that these modules need and gristmill itself does not.
_OPTIONAL = {"_global": "jax", "_replicas": "jax", "_checkpoint": "orbax"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"gristmill.{_LAZY[name]}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing not in _OPTIONAL.values():
            raise
        raise MissingExtraError(
            f"gristmill.{name} needs {missing}, which is not installed: pip install 'gristmill[jax]'", name=error.name
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    """What can be had here: `help` and others get all that is listed."""
    needs = {name: _OPTIONAL.get(_LAZY.get(name, "")) for name in __all__}
    return [name for name, library in needs.items() if library is None or importlib.util.find_spec(library)]


if not TYPE_CHECKING:
    __all__ = __dir__()  # `from gristmill import *` takes all of them
