"""gristmill as a `dataset_type` of MaxText: text or conversations from JSON lines and Parquet, resumed on any hosts.

The whole of it is this file, as `maxtext/input_pipeline/gristmill_data_processing.py`, and its name in five places;
docs/coming-from-maxtext.md has the lines. The settings are those of MaxText's Grain pipeline: `grain_train_files`,
`grain_eval_files`, `train_data_columns`, `packing`, `grain_packing_type`, `use_sft` and so on, as of MaxText 0.2.5.
Batches hold what MaxText's models read: `inputs`, `targets`, and the `_segmentation` and `_position` of both.

All hosts take the same number of whole batches, in evaluation too. MaxText's checkpoints hold one state of the whole
stream, which restores on any number of hosts, with packing, filters and mixtures.

One thing differs from MaxText's pipelines: the last token of a document has no target, where they train it on the
first token of the next document.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gristmill as gm


def make_gristmill_train_iterator(config: Any, global_mesh: Mesh, process_indices: list[int]) -> "DataLoadIterator":
    """The batches of training, as `make_grain_train_iterator` makes them."""
    _check(config, process_indices)
    dataset = make_dataset(
        config,
        _patterns(config.grain_train_files, config.grain_train_mixture_config_path),
        config.train_data_columns,
        batch_size=config.global_batch_size_to_load,
        epochs=config.num_epoch,
        seed=config.data_shuffle_seed if config.enable_data_shuffling else None,
    )
    return DataLoadIterator(dataset, global_mesh)


def make_gristmill_eval_iterator(config: Any, global_mesh: Mesh, process_indices: list[int]) -> "DataLoadIterator":
    """The batches of evaluation, one pass in order, as `make_grain_eval_iterator` makes them."""
    _check(config, process_indices)
    dataset = make_dataset(
        config,
        _patterns(config.grain_eval_files),
        config.eval_data_columns,
        batch_size=config.global_batch_size_to_load_eval,
        epochs=1,
    )
    return DataLoadIterator(dataset, global_mesh)


class DataLoadIterator:
    """The interface of MaxText's `MultiHostDataLoadIterator` over `gm.global_batches`."""

    def __init__(self, dataset: gm.PackedDataset, mesh: Mesh) -> None:
        self.dataloader = dataset
        self.global_mesh = mesh
        # MaxText saves and restores this.
        self.local_iterator = ElasticStream(dataset, input_sharding(mesh))

    def reset(self) -> None:
        """Returns to the start of the stream."""
        self.close()
        self.local_iterator = ElasticStream(self.dataloader, input_sharding(self.global_mesh))

    def close(self) -> None:
        """Ends the threads."""
        self.local_iterator.close()

    def __iter__(self) -> Iterator[dict[str, jax.Array]]:
        self.reset()
        return self

    def __next__(self) -> dict[str, jax.Array]:
        return next(self.local_iterator)


class ElasticStream(grain.experimental.ElasticIterator):
    """Global batches, with a state of the whole stream that is equal on all hosts.

    It is one of Grain's elastic iterators, of which MaxText's checkpoints hold one file, whatever the number of hosts.
    """

    def __init__(self, dataset: gm.PackedDataset, sharding: NamedSharding) -> None:
        grain.IterDataset.__init__(self)  # what it is elastic over is another thing
        self._batches = gm.global_batches(dataset, sharding)

    def __iter__(self) -> "ElasticStream":
        return self

    def __next__(self) -> dict[str, jax.Array]:
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """The state of all hosts' lanes: a collective, called on all hosts."""
        own = np.frombuffer(json.dumps(self._batches.get_state()).encode(), np.uint8)
        sizes = np.ravel(multihost_utils.process_allgather(np.array([own.size])))
        padded = np.pad(own, (0, sizes.max() - own.size))
        found = np.reshape(multihost_utils.process_allgather(padded), (len(sizes), -1))
        return gm.merge_states([json.loads(part[:size].tobytes()) for part, size in zip(found, sizes, strict=True)])

    def set_state(self, state: dict[str, Any]) -> None:
        """Moves to a state of `get_state`, from any number of hosts."""
        self._batches.set_state(state)

    def close(self) -> None:
        """Ends the threads."""
        self._batches.close()


def input_sharding(mesh: Mesh) -> NamedSharding:
    """How MaxText lays out its input: rows over all devices, in the order of all axes of the mesh."""
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names))


def make_dataset(
    config: Any,
    patterns: dict[str, float],
    columns: list[str],
    *,
    batch_size: int,
    epochs: int | None,
    seed: int | None = None,
) -> gm.PackedDataset:
    """The dataset that a config describes.

    Args:
      config: MaxText's.
      patterns: globs of shards, with their weights.
      columns: `["messages"]` with `use_sft`, else the column of the text.
      batch_size: rows of the global batch.
      epochs: passes over the shards.
      seed: that of shuffling. None: in order.

    Raises:
      ValueError: the config asks for what this file does not do.
    """
    if len(columns) != 1 or (config.use_sft and columns != ["messages"]):
        raise ValueError(f"data columns {columns}: expected one, which is 'messages' with use_sft")
    own: dict[str, Any]
    if config.use_sft:
        train_on = "assistant" if config.sft_train_on_completion_only else "all"
        own = {"sample": gm.Chat(columns[0], template=config.chat_template or None, train_on=train_on)}
    else:
        own = {"text_field": columns[0]}
    own |= {"epochs": epochs}
    arguments: dict[str, Any] = {}
    if len(patterns) > 1:
        sources = {
            f"source_{number}": gm.Source(pattern, weight=weight, **own)
            for number, (pattern, weight) in enumerate(patterns.items())
        }
        shards: Any = gm.Mixture(sources)
    else:
        shards, arguments = next(iter(patterns)), own
    encoder = gm.Encoder.from_pretrained(config.tokenizer_path)
    if not config.use_sft:  # templates write their own
        arguments |= {
            "bos": bool(config.add_bos) and encoder.bos_id is not None,
            "eos": None if config.add_eos and encoder.eos_id is not None else False,
        }
    return gm.PackedDataset(
        shards,
        tokenizer=encoder,
        sequence_length=config.max_target_length,
        batch_size=batch_size,
        seed=seed,
        **_packing(config),
        **arguments,
    )


def _packing(config: Any) -> dict[str, Any]:
    most = config.max_segments_per_seq
    if not config.packing:
        # Without truncation, MaxText cuts a text into rows.
        return {"packing": "pad", "truncation": "right" if config.use_truncation else "split"}
    packing = "concat" if config.grain_packing_type == "concat_then_split" else "best_fit"
    return {"packing": packing, "max_segments": most if most and most > 0 else None}


def _patterns(files: str, mixture_file: str | None = None) -> dict[str, float]:
    """Globs and weights, as MaxText writes them: `a*.parquet`, `a*,0.3;b*,0.7`, or a JSON file of a mixture."""
    if mixture_file:
        parts = json.loads(Path(mixture_file).read_text(encoding="utf-8"))
        return {part["path"]: float(part["weight"]) for part in parts.values()}
    if ";" not in files:
        return {files: 1.0}
    return {pattern: float(weight) for pattern, weight in (part.split(",") for part in files.split(";"))}


def _check(config: Any, process_indices: list[int]) -> None:
    """Refuses what this file does not do.

    Raises:
      ValueError: see there.
    """
    refused = ("use_dpo", "use_multimodal", "colocated_python_data_input")
    if found := [name for name in refused if getattr(config, name, False)]:
        raise ValueError(f"dataset_type=gristmill does not support {', '.join(found)}")
    if config.expansion_factor_real_data > 1 or len(process_indices) != jax.process_count():
        raise ValueError("dataset_type=gristmill loads on all hosts: leave out expansion_factor_real_data")
