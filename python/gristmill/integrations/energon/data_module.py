"""`EnergonMultiModalDataModule`: the loaders of a training run of Megatron-Bridge."""

import importlib
import inspect
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from gristmill import Encoder, EnergonFolder, ImageModel, ImageText, Mixture, PackedDataset, Source
from gristmill._util import checks
from gristmill.errors import ArgumentError, ArgumentTypeError
from gristmill.integrations.energon.loader import BatchLoader, EnergonDataloader
from gristmill.integrations.energon.task_encoder import Encoding, encoding_of

_LOGGER = logging.getLogger("gristmill")

# The arguments after path and tokenizer in the order of Bridge's releases, and in that of earlier ones.
_NOW = (
    "seq_length", "micro_batch_size", "num_workers", "num_val_workers", "pin_memory", "shuffle_buffer_size",
    "max_samples_per_sequence", "multimodal_sample_config", "task_encoder", "decoder_seq_length",
    "packing_buffer_size", "validation_task_encoder", "pg_collection",
)  # fmt: skip
_BEFORE = ("image_processor", "seq_length", "micro_batch_size", "global_batch_size", *_NOW[2:])
# Arguments of Energon's `get_train_dataset` that have no effect here, or one value only.
_WITHOUT_EFFECT = frozenset({"parallel_shard_iters", "batch_drop_last", "decoder", "watchdog_timeout_seconds"})
_FIXED: Mapping[str, tuple[Any, str]] = {
    "split_config": ("split.yaml", "folders are read with .nv-meta/split.yaml"),
    "dataset_config": ("dataset.yaml", "folders are read with .nv-meta/dataset.yaml; name parts with fields="),
    "virtual_epoch_length": (0, "epochs are passes over the samples"),
    "repeat": (True, "training does not end"),
}
# Arguments of `PackedDataset` that the module sets itself.
_OWN = frozenset(
    {"shards", "tokenizer", "sample", "text_field", "sequence_length", "batch_size", "packing", "layout", "provenance",
     "shard_index", "shard_count", "equal_steps", "epochs", "boundary_targets", "fit_window", "source_arrays"}
)  # fmt: skip
# The arguments that do not hold for validation, which is one pass in order.
_OF_TRAINING = frozenset({"seed", "shuffle_window", "lanes"})
_ARGUMENTS = frozenset(inspect.signature(PackedDataset).parameters)
_OF_SOURCES = frozenset(inspect.signature(Source).parameters)
_OF_IMAGES = ("max_images", "max_patches")


class WorkerConfig(NamedTuple):
    """The index of a loader among those of all ranks."""

    rank: int
    world_size: int
    num_workers: int


@dataclass(kw_only=True)
class _Arguments:
    image_processor: Any = None
    seq_length: int = 2048
    micro_batch_size: int = 1
    global_batch_size: int | None = None
    num_workers: int = 1
    num_val_workers: int | None = None
    pin_memory: bool = True
    shuffle_buffer_size: int | None = 100
    max_samples_per_sequence: int | None = None
    multimodal_sample_config: Any = None
    task_encoder: Any = None
    decoder_seq_length: int | None = None
    packing_buffer_size: int | None = None
    validation_task_encoder: Any = None
    pg_collection: Any = None
    tensors: bool | None = None


class EnergonMultiModalDataModule:
    """Megatron-Bridge's data module by its name and arguments. Batches are arrays under Bridge's keys.

    They are CPU tensors, which Bridge's steps take, where the program has imported torch, and NumPy arrays elsewhere.

    Each rank of the data-parallel group gets its rows of each global batch; which samples these are depends on neither
    ranks nor workers. Training is shuffled and endless. Validation is one unshuffled pass, with as many steps on each
    rank, which begins again at each `iter`. docs/coming-from-energon.md has what else differs.

    Args:
      path: a folder that `energon prepare` made, a metadataset (a YAML file of `MetadatasetV2`), or tars by a glob.
      tokenizer: a path, a fast tokenizer of `transformers`, an object that has one as `tokenizer`, or a `gm.Encoder`.
      args: the other arguments by position, in the order of Bridge's releases or, with `image_processor` first, in
        that of earlier ones.
      kwargs: these, and any of `gm.PackedDataset` that say nothing of rows and hosts, such as `seed` (0), `lanes`,
        `on_error`, `keep`, `split_bytes`, `truncation` (`"drop"`) or `prefetch` (2); `max_images` and `max_patches`
        of a row; and of Energon's `get_train_dataset` `shuffle_over_epochs_multiplier`, 1 or None (no shuffling).

        image_processor: without a `task_encoder`, the name of a model or a `gm.ImageModel`.
        seq_length: the length of a row, unless a `QwenVLTaskEncoder` says it.
        micro_batch_size: rows of a batch of one rank.
        global_batch_size: rows of a step of all ranks. None: a batch of each rank. It is part of the stream: with it,
          states restore on other numbers of ranks.
        num_workers: threads of a rank.
        num_val_workers: those of validation. None: as many.
        shuffle_buffer_size: samples that are permuted together.
        packing_buffer_size: samples that are packed together. None: a sample is a row.
        task_encoder: a `gm.ImageText`, or a `QwenVLTaskEncoder` of this module or of Bridge.
        validation_task_encoder: that of validation. None: the same.
        pg_collection: an object whose `dp` has `rank()` and `size()`. None: the ranks of `torch.distributed` if that
          runs, else one.
        tensors: whether batches hold tensors. None: where torch is imported.
        pin_memory: has no effect, as `max_samples_per_sequence`, `multimodal_sample_config`, `decoder_seq_length`.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: an argument is unknown, is there twice, or is of the wrong type.
    """

    def __init__(self, path: Any, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        order = _BEFORE if args and not isinstance(args[0], int) else _NOW
        if len(args) > len(order):
            raise ArgumentTypeError(f"expected at most {len(order) + 2} arguments by position, got {len(args) + 2}")
        given = dict(zip(order, args, strict=False))
        if twice := given.keys() & kwargs.keys():
            raise ArgumentTypeError(f"{', '.join(sorted(twice))}: given by position and by name")
        given |= {name: kwargs.pop(name) for name in (*_BEFORE, "tensors") if name in kwargs}
        values = _Arguments(**given)
        self.path = path
        self.tokenizer = tokenizer
        for name, value in vars(values).items():
            setattr(self, name, value)
        self.seq_length = checks.integer("seq_length", values.seq_length, 1, 2**24)
        self.micro_batch_size = checks.integer("micro_batch_size", values.micro_batch_size, 1, 2**20)
        self.global_batch_size = checks.optional_integer("global_batch_size", values.global_batch_size, 1, 2**20)
        self.packing_buffer_size = checks.optional_integer("packing_buffer_size", values.packing_buffer_size, 1, 2**20)
        self.num_workers = checks.integer("num_workers", values.num_workers, 0, 1024)
        self.num_val_workers = values.num_val_workers or self.num_workers
        self.shuffle_buffer_size = values.shuffle_buffer_size
        self.pg_collection = values.pg_collection
        self.image_processor = values.image_processor
        self.task_encoder = values.task_encoder
        self.validation_task_encoder = values.validation_task_encoder or self.task_encoder
        self.tensors = None if values.tensors is None else checks.boolean("tensors", values.tensors)
        self.kwargs = kwargs
        self.init_global_step = 0
        self.train_dataloader_object: EnergonDataloader | None = None
        self.val_dataloader_object: EnergonDataloader | None = None
        if self.packing_buffer_size is not None and self.micro_batch_size != 1:
            raise ArgumentError(
                f"micro_batch_size={self.micro_batch_size}: expected 1 with packing_buffer_size=, as a packed row is a "
                "batch"
            )
        self._options = _options(kwargs)

    def datasets_provider(self, worker_config: Any, split: str = "val") -> BatchLoader:
        """The batches of one rank.

        Args:
          worker_config: an object with `rank`, `world_size` and `num_workers`.
          split: `"train"`, `"val"` or `"test"`.

        Raises:
          ArgumentError: `split` is another one, the data have no such split, or ranks do not divide the batch.
          GristmillError: see `gm.PackedDataset`.
        """
        if split not in ("train", "val", "test"):
            raise ArgumentError(f"split={split!r}: expected 'train', 'val' or 'test'")
        encoding = self._encoding(self.task_encoder if split == "train" else self.validation_task_encoder)
        ranks = worker_config.world_size
        step = self.global_batch_size or self.micro_batch_size * ranks
        if step % (ranks * self.micro_batch_size):
            raise ArgumentError(
                f"global_batch_size={step}: expected a multiple of micro_batch_size={self.micro_batch_size} times "
                f"{ranks}, the number of ranks"
            )
        whole = self._dataset(split, encoding, step, max(1, worker_config.num_workers))
        return BatchLoader(
            _part(whole, worker_config.rank, ranks, is_training=split == "train"),
            encoding.form,
            self.micro_batch_size,
            ranks,
        )

    def build(self) -> "tuple[EnergonDataloader, EnergonDataloader]":
        """The loaders of training and of validation."""
        return self.train_dataloader(), self.val_dataloader()

    def train_dataloader(self) -> EnergonDataloader:
        """The loader of training: endless, and made once."""
        if self.train_dataloader_object is None:
            self.train_dataloader_object = self._loader("train", self.num_workers)
        return self.train_dataloader_object

    def val_dataloader(self) -> EnergonDataloader:
        """The loader of validation, made once; `iter` begins at the first sample again."""
        if self.val_dataloader_object is None:
            self.val_dataloader_object = self._loader("val", self.num_val_workers)
        return self.val_dataloader_object

    def test_dataloader(self) -> "EnergonDataloader | None":
        """The loader of the split `test`, as that of validation; None, with a warning, if there is none."""
        try:
            return self._loader("test", self.num_val_workers)
        except ArgumentError as error:
            if error.argument != "split":
                raise
            _LOGGER.warning("there is no split 'test': %s", error)
            return None

    def _loader(self, split: str, num_workers: int) -> EnergonDataloader:
        return EnergonDataloader(self.datasets_provider(self._build_worker_config(num_workers, split), split))

    def _build_worker_config(self, num_workers: int, split: str = "train") -> WorkerConfig:
        """The index among the ranks of the pure data-parallel group; others of a replica read the same."""
        del split
        group = getattr(self.pg_collection, "dp", None)
        if group is not None:
            return WorkerConfig(group.rank(), group.size(), num_workers)
        distributed = getattr(sys.modules.get("torch"), "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return WorkerConfig(distributed.get_rank(), distributed.get_world_size(), num_workers)
        return WorkerConfig(0, 1, num_workers)

    @cached_property
    def _encoder(self) -> Encoder:
        return _encoder_of(self._tokenizer)

    @property
    def _tokenizer(self) -> Any:
        """The tokenizer, or where Bridge passes none that is of `transformers`, that of its task encoder."""
        is_given = isinstance(self.tokenizer, (Encoder, str, os.PathLike)) or _of_transformers(self.tokenizer)
        own = (getattr(self.task_encoder, name, None) for name in ("hf_tokenizer", "tokenizer", "image_processor"))
        return self.tokenizer if is_given else next(filter(_of_transformers, own), self.tokenizer)

    def _encoding(self, task_encoder: Any) -> Encoding:
        if task_encoder is None:
            if not isinstance(self.image_processor, (str, ImageModel)):
                raise ArgumentTypeError(
                    "task_encoder=None: expected a gm.ImageText or a QwenVLTaskEncoder, or as image_processor the name "
                    "of a model such as 'qwen3-vl'"
                )
            task_encoder = ImageText(self.image_processor, images="float32")
        return encoding_of(
            task_encoder,
            template=getattr(_of_transformers(self._tokenizer), "chat_template", None)
            or getattr(getattr(self.task_encoder, "image_processor", None), "chat_template", None),
            seq_length=self.seq_length,
            packs=self.packing_buffer_size is not None,
            max_segments=self._options.get("max_segments"),
            tensors=self.tensors,
            **{name: self.kwargs.get(name) for name in _OF_IMAGES},
        )

    def _dataset(self, split: str, encoding: Encoding, step: int, threads: int) -> PackedDataset:
        """The rows of all ranks."""
        is_training = split == "train"
        window = max(self.shuffle_buffer_size or 1, self.packing_buffer_size or 1)
        options = {name: value for name, value in self._options.items() if is_training or name not in _OF_TRAINING}
        arguments = {
            "truncation": "drop",
            "prefetch": 2,
            "threads": threads,
            **({"seed": 0, "shuffle_window": window} if is_training else {"lanes": 1}),
            **options,
            "tokenizer": self._encoder,
            "sample": encoding.sample,
            "sequence_length": encoding.row_length,
            "batch_size": step,
            "packing": "best_fit" if encoding.packs else "pad",
            "layout": "grain",
            "provenance": True,
            "epochs": None if is_training else 1,
        }
        if encoding.packs:
            arguments |= {"fit_window": self.packing_buffer_size, "max_segments": encoding.max_segments}
        path = os.fspath(self.path)
        if not path.endswith((".yaml", ".yml")):
            is_prepared = (Path(path) / ".nv-meta").is_dir() or not _is_glob(path)
            stores = arguments.get("storage_options")
            folder = EnergonFolder(path, split=split, storage_options=stores) if is_prepared else path
            return PackedDataset(folder, **arguments)
        of_sources = {name: arguments.pop(name) for name in _OF_SOURCES if name in arguments}
        return PackedDataset(Mixture.from_energon(path, split, **of_sources), **arguments)


def _part(whole: PackedDataset, rank: int, ranks: int, *, is_training: bool) -> PackedDataset:
    """The rows of a rank: of lanes of its own, or if there are too few of them, or they may end, of all lanes."""
    lanes = whole.lanes
    reads_all = not is_training or lanes % ranks != 0
    if is_training and reads_all and ranks > 1:
        _LOGGER.warning(
            "%d lanes are not a multiple of %d ranks: each rank reads all shards and decodes all images, of which it "
            "delivers its part; use more shards, or split_bytes=, and lanes=",
            lanes, ranks,
        )  # fmt: skip
    return whole.for_hosts(rank, ranks, equal_steps=reads_all)


def _options(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `PackedDataset` among keyword arguments.

    Raises:
      ArgumentError: a value of Energon's is not offered.
      ArgumentTypeError: a name is unknown.
    """
    options: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name in _FIXED:
            only, why = _FIXED[name]
            if value not in (only, None):
                raise ArgumentError(f"{name}={value!r}: expected {only!r}: {why}")
        elif name == "shuffle_over_epochs_multiplier":
            if value not in (1, None):
                raise ArgumentError(
                    f"{name}={value!r}: expected 1, each sample once an epoch, or None for no shuffling"
                )
            if value is None:
                options["seed"] = None
        elif name in _ARGUMENTS and name not in _OWN:
            options[name] = value
        elif name in _WITHOUT_EFFECT:
            _LOGGER.info("%s=%r has no effect", name, value)
        elif name not in _OF_IMAGES:
            raise ArgumentTypeError(
                f"{name}=: unknown, or set by the data module; see docs/coming-from-energon.md for what each becomes"
            )
    return options


def _encoder_of(tokenizer: Any) -> Encoder:
    """The encoder of a tokenizer.

    Raises:
      ArgumentTypeError: it does not use the `tokenizers` library.
    """
    if isinstance(tokenizer, Encoder):
        return tokenizer
    if isinstance(tokenizer, (str, os.PathLike)):
        return Encoder.from_pretrained(tokenizer)
    if (found := _of_transformers(tokenizer)) is not None:
        return Encoder.from_bytes(found.backend_tokenizer.to_str().encode())
    raise ArgumentTypeError(
        f"tokenizer={type(tokenizer).__name__}: expected a path, a gm.Encoder, or a fast tokenizer of transformers"
    )


def _of_transformers(tokenizer: Any) -> Any:
    """The fast tokenizer of `transformers` that an object is or has, as Megatron wraps it; None if there is none."""
    found = [tokenizer]
    for _ in range(3):
        if own := next((one for one in found if getattr(one, "backend_tokenizer", None)), None):
            return own
        found = [getattr(one, name, None) for one in found for name in ("tokenizer", "_tokenizer")]
    return None


def attach() -> None:
    """Has Megatron-Bridge's `EnergonDatasetBuilder` make `EnergonMultiModalDataModule` of this module.

    Then an `EnergonDatasetConfig` is read by gristmill. Its `dataset_kwargs` are arguments of the module, such as
    `global_batch_size`, `seed` and `on_error`.

    Raises:
      ImportError: Megatron-Bridge is not installed.
    """
    theirs: Any = importlib.import_module("megatron.bridge.data.energon.base_energon_datamodule")
    theirs.EnergonMultiModalDataModule = EnergonMultiModalDataModule


def _is_glob(path: str) -> bool:
    return any(sign in path for sign in "*?[") or path.endswith(".tar")
