"""`GristmillDataLoader`: the component that a config of torchtitan names as its `dataloader`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from tokenizers import Tokenizer

from gristmill import Chat, Encoder, Mixture, PackedDataset
from gristmill.errors import ArgumentError
from gristmill.integrations.torchtitan.batches import RankBatches, TrainerBatch, rows_of

try:
    from torchtitan.components.data.loader import BaseDataLoader
except ModuleNotFoundError:  # before August 2026
    from torchtitan.components.dataloader import BaseDataLoader

# Arguments of `PackedDataset` that the loader sets itself.
_OWN = frozenset(
    {"shards", "sequence_length", "batch_size", "layout", "epochs", "shard_index", "shard_count",
     "equal_steps", "source_arrays", "provenance"}
)  # fmt: skip


class GristmillDataLoader(BaseDataLoader):
    """Packed text for torchtitan's trainer and validator.

    The rows of a step depend neither on the data-parallel degree nor on the number of threads. States are saved
    and loaded by torchtitan's checkpoints, and restore on any data-parallel degree that divides the lanes. Finite
    epochs end at the same step on all ranks, and deliver each record once.

        config.dataloader = GristmillDataLoader.Config(shards="gs://bucket/*.json.gz", global_batch_size=512)
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """The shards that are read, and how.

        Attributes:
          shards: see `gm.PackedDataset`: a glob, a path, a list, a `Manifest`, an `EnergonFolder`, or a `Mixture`.
          global_batch_size: rows of an optimizer step of all ranks. It is part of the stream: with it, states restore
            on another data-parallel degree. None: one batch of each rank.
          repeat: whether the stream is endless.
          infinite: the name that torchtitan 0.3 has for `repeat`; both must be true.
          epochs: passes over the shards if it is not endless.
          arguments: further arguments of `gm.PackedDataset`, such as `seed`, `packing`, `sample`, `keep`, `lanes`.
            Without a `tokenizer`, it is that of the trainer, with its BOS and EOS around documents.
        """

        shards: Annotated[Any, tyro.conf.Suppress]
        global_batch_size: int | None = None
        repeat: bool = True
        infinite: bool = True
        epochs: int = 1
        arguments: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: Any,
        seq_len: int | None = None,
        local_batch_size: int | None = None,
        max_context_length: int | None = None,
        num_tokens_per_batch: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Made by `Config.build`, on all ranks.

        Args:
          config: what is read.
          dp_world_size: data-parallel ranks.
          dp_rank: this one.
          tokenizer: the trainer's.
          seq_len: tokens of a row; with `local_batch_size`, batches are `[local_batch_size, seq_len]`.
          local_batch_size: rows of a batch.
          max_context_length: tokens of a row; with `num_tokens_per_batch`, batches are `[num_tokens_per_batch]`.
          num_tokens_per_batch: tokens of a batch.
          kwargs: have no effect.

        Raises:
          ArgumentError: a value is not allowed, or the batch is no whole rows.
          GristmillError: see `gm.PackedDataset`.
        """
        del kwargs
        if own := _OWN & config.arguments.keys():
            raise ArgumentError(f"arguments= has {', '.join(sorted(own))}, which the trainer or the config itself says")
        if num_tokens_per_batch is not None and max_context_length is not None:
            length, rows = max_context_length, rows_of(num_tokens_per_batch, max_context_length)
        elif seq_len is not None and local_batch_size is not None:
            length, rows = seq_len, local_batch_size
        else:
            raise ArgumentError("expected seq_len and local_batch_size, or max_context_length and num_tokens_per_batch")
        arguments = dict(config.arguments)
        if "tokenizer" not in arguments:
            arguments["tokenizer"] = _encoder_of(tokenizer)
            if not isinstance(arguments.get("sample"), Chat):  # a template writes its own
                # As its `encode(..., add_bos=True, add_eos=True)`.
                arguments.setdefault("bos", False if tokenizer.bos_id is None else tokenizer.bos_id)
                arguments.setdefault("eos", False if tokenizer.eos_id is None else tokenizer.eos_id)
        if not isinstance(config.shards, Mixture):  # whose sources have their own
            arguments["epochs"] = None if config.repeat and config.infinite else config.epochs
        self.dataset = PackedDataset(
            config.shards,
            sequence_length=length,
            batch_size=rows * dp_world_size if config.global_batch_size is None else config.global_batch_size,
            shard_index=dp_rank,
            shard_count=dp_world_size,
            **arguments,
        )
        self._batches = RankBatches(
            self.dataset, rows=rows, dp_world_size=dp_world_size, is_flat=num_tokens_per_batch is not None
        )

    def __iter__(self) -> Iterator[TrainerBatch]:
        """The rest of the stream, see `RankBatches`: each call continues where the last one stopped."""
        return self._batches

    def state_dict(self) -> dict[str, Any]:
        """See `RankBatches.state_dict`."""
        return self._batches.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `RankBatches.load_state_dict`."""
        self._batches.load_state_dict(state_dict)

    def stats(self) -> dict[str, Any]:
        """See `RankBatches.stats`."""
        return self._batches.stats()

    def close(self) -> None:
        """Stops and joins the threads. Delivered batches stay valid."""
        self._batches.close()


def _encoder_of(tokenizer: Any) -> Encoder:
    """The encoder of the trainer's tokenizer, which may have more special tokens than its file.

    Raises:
      ArgumentError: it is not a tokenizer of `tokenizers`.
    """
    inner = getattr(tokenizer, "tokenizer", None)
    if not isinstance(inner, Tokenizer):
        raise ArgumentError(
            f"the trainer's tokenizer is a {type(tokenizer).__name__}, not torchtitan's HuggingFaceTokenizer: set "
            '"tokenizer" in the config\'s arguments to a tokenizer.json or a gm.Encoder'
        )
    path = Path(tokenizer.tokenizer_path, "tokenizer.json")
    # The bytes of the file are part of the stream's fingerprint, and those of to_str() may change with its version.
    if path.is_file() and Tokenizer.from_file(str(path)).to_str() == inner.to_str():
        return Encoder.from_file(path)
    return Encoder.from_bytes(inner.to_str().encode())
