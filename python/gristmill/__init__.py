"""gristmill turns raw training data into the batches that language models are trained on.

A Rust core inflates the shards, tokenizes with exactly the ids of Hugging Face `tokenizers`, and fills a
ring of packed batches; `PackedDataset` is the Grain dataset that hands them out.
"""

import importlib.util
from typing import TYPE_CHECKING, Any

from gristmill import filters
from gristmill._chat.template import ChatTemplate
from gristmill._core import __version__, build_info
from gristmill._images.decoding import decode_image, image_size
from gristmill._images.function import ImageFunction
from gristmill._images.model import ImageModel, ImagePlan
from gristmill._images.video import VideoModel, VideoPlan
from gristmill._mixture.mixture import Mixture
from gristmill._mixture.source import Source
from gristmill._sample.fields import Field
from gristmill._sample.record_function import RecordFunction
from gristmill._sample.samples import (
    Chat,
    Completion,
    FillInTheMiddle,
    ImageText,
    Instruction,
    Preference,
    Text,
    Tokens,
)
from gristmill._shards.energon_folder import EnergonFolder
from gristmill._shards.manifest import Manifest
from gristmill._shards.rows import RowList
from gristmill._shards.sidecars import Sidecar
from gristmill._spec.cost import Cost
from gristmill._spec.edits import Edit
from gristmill._spec.stages import Stage
from gristmill._state.states import merge_states
from gristmill._tokenizer.encoder import Encoder
from gristmill.errors import (
    ArgumentError,
    ArgumentTypeError,
    GristmillError,
    ImageError,
    MissingExtraError,
    MissingShardError,
    MissingTokenizerError,
    ShardError,
    StateError,
    TemplateError,
    TokenizerError,
)

if TYPE_CHECKING:
    from gristmill._dataset.context_parallel import context_parallel, context_parallel_inverse
    from gristmill._dataset.cu_seqlens import cu_seqlens
    from gristmill._dataset.digest import batch_digest
    from gristmill._dataset.iterator import PackedDatasetIterator
    from gristmill._dataset.packed import PackedDataset
    from gristmill._files.packed_rows import PackedRows
    from gristmill._files.packing import pack
    from gristmill._jax.checkpoint import CheckpointHandler, CheckpointRestore, CheckpointSave
    from gristmill._jax.expand import expand
    from gristmill._jax.global_batches import GlobalBatches, global_batches
    from gristmill._jax.replicas import check_replicas
    from gristmill._prompts.dataset import PromptDataset
    from gristmill._prompts.iterator import PromptIterator

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "Chat",
    "ChatTemplate",
    "CheckpointHandler",
    "CheckpointRestore",
    "CheckpointSave",
    "Completion",
    "Cost",
    "Edit",
    "Encoder",
    "EnergonFolder",
    "Field",
    "FillInTheMiddle",
    "GlobalBatches",
    "GristmillError",
    "ImageError",
    "ImageFunction",
    "ImageModel",
    "ImagePlan",
    "ImageText",
    "Instruction",
    "Manifest",
    "MissingExtraError",
    "MissingShardError",
    "MissingTokenizerError",
    "Mixture",
    "PackedDataset",
    "PackedDatasetIterator",
    "PackedRows",
    "Preference",
    "PromptDataset",
    "PromptIterator",
    "RecordFunction",
    "RowList",
    "ShardError",
    "Sidecar",
    "Source",
    "Stage",
    "StateError",
    "TemplateError",
    "Text",
    "TokenizerError",
    "Tokens",
    "VideoModel",
    "VideoPlan",
    "__version__",
    "batch_digest",
    "build_info",
    "check_replicas",
    "context_parallel",
    "context_parallel_inverse",
    "cu_seqlens",
    "decode_image",
    "expand",
    "filters",
    "global_batches",
    "image_size",
    "merge_states",
    "pack",
]

# Their modules take time to load, and some need JAX: only the names that need them load them.
_LAZY = {
    "PackedDataset": "_dataset.packed",
    "batch_digest": "_dataset.digest",
    "PackedDatasetIterator": "_dataset.iterator",
    "PackedRows": "_files.packed_rows",
    "context_parallel": "_dataset.context_parallel",
    "context_parallel_inverse": "_dataset.context_parallel",
    "cu_seqlens": "_dataset.cu_seqlens",
    "pack": "_files.packing",
    "PromptDataset": "_prompts.dataset",
    "PromptIterator": "_prompts.iterator",
    "GlobalBatches": "_jax.global_batches",
    "global_batches": "_jax.global_batches",
    "check_replicas": "_jax.replicas",
    "expand": "_jax.expand",
    "CheckpointHandler": "_jax.checkpoint",
    "CheckpointRestore": "_jax.checkpoint",
    "CheckpointSave": "_jax.checkpoint",
}
# Libraries that these modules need and gristmill itself does not.
_OPTIONAL = {
    "_jax.expand": "jax",
    "_jax.global_batches": "jax",
    "_jax.replicas": "jax",
    "_jax.checkpoint": "orbax",
}


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
    """The public names whose libraries are installed: `help` and others access all that are listed."""
    needs = {name: _OPTIONAL.get(_LAZY.get(name, "")) for name in __all__}
    return [name for name, library in needs.items() if library is None or importlib.util.find_spec(library)]


if not TYPE_CHECKING:
    __all__ = __dir__()  # `from gristmill import *` takes all of them
