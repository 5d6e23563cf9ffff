"""MaxText's functions."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gristmill import Encoder
from gristmill.integrations.maxtext.batches import Batch, PromptBatches
from gristmill.integrations.maxtext.source import Ends, listed, tokenized
from gristmill.integrations.maxtext.tokenizers import hub_token


class SingleHostDataLoader:
    """Wraps an iterable: `iter` and `reset` start again from its beginning.

    Raises:
      ValueError: `dataloader` is not iterable.
    """

    def __init__(self, dataloader: Iterable[Batch], global_mesh: Any) -> None:
        if not isinstance(dataloader, Iterable):
            raise ValueError("Type error: dataloader should be an Iterable.")
        self.global_mesh = global_mesh
        self.dataloader = dataloader
        self.reset()

    def reset(self) -> None:
        """Starts again from the beginning."""
        if isinstance(self.dataloader, PromptBatches):
            self.dataloader.reset()
        self.local_iterator = iter(self.dataloader)

    def __iter__(self) -> "SingleHostDataLoader":
        self.reset()
        return self

    def __next__(self) -> Batch:
        return next(self.local_iterator)


def preprocessing_pipeline(
    dataloading_host_index: int,
    dataloading_host_count: int,
    global_mesh: Any,
    dataset: Any,
    data_column_names: Sequence[str],
    tokenize: bool,
    tokenizer_path: str,
    hf_access_token: str | None,
    global_batch_size: int,
    max_target_length: int,
    shuffle: bool = False,
    data_shuffle_seed: int = 0,
    add_bos: bool = True,
    add_eos: bool = True,
    num_threads: int = 1,
    drop_remainder: bool = False,
) -> PromptBatches:
    """The batches of prompts of this host: MaxText's, without its defects.

    All rows are read and tokenized here, on all cores.

    Args:
      dataloading_host_index: index of this host among those that load.
      dataloading_host_count: how many hosts load.
      global_mesh: the mesh.
      dataset: an `IterableDataset` or `Dataset` of `datasets`, or any iterable of dicts. Local files of JSON lines or
        Parquet that a streamed one reads as they are, are read by the core; else its rows are taken as they come.
      data_column_names: the columns that are taken.
      tokenize: whether they hold strings; else they hold lists of ids.
      tokenizer_path: a folder with a tokenizer.json, or a name on the Hugging Face hub.
      hf_access_token: token for the hub.
      global_batch_size: rows of all hosts.
      max_target_length: elements of a row; at most one fewer are ids of a text, BOS and EOS included.
      shuffle: whether the order is a permutation by seed; then it does not depend on the number of hosts. Else it is
        MaxText's: host h reads shards h, h + hosts, ...; of fewer shards than hosts rows h, h + hosts, ...
      data_shuffle_seed: the seed.
      add_bos: whether BOS precedes each text, if the tokenizer has one.
      add_eos: whether EOS follows it, likewise; truncation leaves it in place.
      num_threads: has no effect: all cores read, and lose nothing.
      drop_remainder: whether a last batch that is not full is left out.

    Returns:
      An iterator with `get_state` and `set_state`.

    Raises:
      ValueError: the devices of the mesh do not divide the batch.
      KeyError: a row lacks a column.
      GristmillError: as `gm.PromptDataset`.
    """
    del num_threads
    return _pipeline(
        dataloading_host_index,
        dataloading_host_count,
        global_mesh,
        dataset,
        data_column_names,
        tokenize=tokenize,
        tokenizer_path=tokenizer_path,
        token=hf_access_token,
        global_batch_size=global_batch_size,
        length=max_target_length,
        seed=data_shuffle_seed if shuffle else None,
        add_bos=add_bos,
        add_eos=add_eos,
        drop_remainder=drop_remainder,
        epochs=1,
    )


def make_hf_train_iterator(config: Any, global_mesh: Any, process_indices_train: Sequence[int]) -> PromptBatches:
    """The training prompts of MaxText's configuration, on a host that loads.

    Beside what MaxText's function reads, `enable_data_shuffling`, `data_shuffle_seed`, `add_bos`, `add_eos` and
    `num_epoch` have the effect that they are documented with.

    Args:
      config: MaxText's configuration.
      global_mesh: the mesh.
      process_indices_train: the JAX processes that load.

    Raises:
      GristmillError: as `preprocessing_pipeline`.
    """
    import datasets
    import jax

    dataset = datasets.load_dataset(
        config.hf_path,
        data_dir=config.hf_data_dir,
        data_files=config.hf_train_files,
        split="train",
        streaming=True,
        token=config.hf_access_token,
    )
    columns = config.train_data_columns
    is_shuffled = getattr(config, "enable_data_shuffling", False)
    return _pipeline(
        list(process_indices_train).index(jax.process_index()),
        len(process_indices_train),
        global_mesh,
        dataset,
        [columns] if isinstance(columns, str) else list(columns),
        tokenize=config.tokenize_train_data,
        tokenizer_path=config.tokenizer_path,
        token=config.hf_access_token,
        global_batch_size=config.global_batch_size_to_load,
        length=config.max_prefill_predict_length,
        seed=getattr(config, "data_shuffle_seed", 0) if is_shuffled else None,
        add_bos=getattr(config, "add_bos", True),
        add_eos=getattr(config, "add_eos", True),
        drop_remainder=False,
        epochs=getattr(config, "num_epoch", 1),
    )


def create_data_iterator(config: Any, mesh: Any) -> Iterator[Batch]:
    """The training prompts of MaxText's configuration, on any host.

    A host of which no device holds rows that are trained on gets batches of padding with the keys of the others, where
    MaxText's placeholder has other keys.

    Args:
      config: MaxText's configuration.
      mesh: the mesh.

    Raises:
      ValueError: `eval_interval` is positive.
      GristmillError: as `preprocessing_pipeline`.
    """
    import jax

    loading = _loading_processes(config, mesh)
    if config.eval_interval > 0:
        raise ValueError("GRPO input pipeline is not supported for eval data")
    if jax.process_index() in loading:
        return make_hf_train_iterator(config, mesh, loading)
    return _padding(config)


def _pipeline(
    host: int,
    hosts: int,
    mesh: Any,
    dataset: Any,
    columns: Sequence[str],
    *,
    tokenize: bool,
    tokenizer_path: str,
    token: str | None,
    global_batch_size: int,
    length: int,
    seed: int | None,
    add_bos: bool,
    add_eos: bool,
    drop_remainder: bool,
    epochs: int,
) -> PromptBatches:
    import jax

    if global_batch_size % mesh.size:
        raise ValueError("Batch size should be divisible number of global devices.")
    if tokenize:
        with hub_token(token):
            encoder = Encoder.from_pretrained(tokenizer_path, config="apply")
        ends = Ends(
            bos=encoder.bos_id if add_bos else None,
            eos=encoder.eos_id if add_eos else None,
            side=_truncation_side(encoder),
        )
        prompts = tokenized(dataset, columns, encoder, ends)
    else:
        ends = Ends(bos=None, eos=None, side="right")
        prompts = listed(dataset, columns)
    return PromptBatches(
        prompts,
        ends,
        length=length,
        most=length - 1 if tokenize else length,
        rows=global_batch_size // jax.process_count(),
        host=host,
        hosts=hosts,
        seed=seed,
        drop_remainder=drop_remainder,
        epochs=epochs,
    )


def _loading_processes(config: Any, mesh: Any) -> list[int]:
    """The processes all of whose rows of some device are trained on."""
    import jax

    axes = [tuple(name for name in _names(axis) if mesh.shape[name] > 1) for axis in config.data_sharding]
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*(axis or None for axis in axes)))
    spans = sharding.devices_indices_map((config.global_batch_size_to_load, config.max_target_length))
    trained = config.global_batch_size_to_train_on
    loading: set[int] = set()
    device: Any
    for device, (rows, *_) in spans.items():
        if not rows.stop or rows.stop <= trained:
            loading.add(device.process_index)
    return sorted(loading)


def _names(axis: Any) -> tuple[str, ...]:
    return () if axis is None else (axis,) if isinstance(axis, str) else tuple(axis)


def _padding(config: Any) -> Iterator[Batch]:
    """Endless batches of padding for a host that does not load."""
    import jax

    columns = config.train_data_columns
    ids: list[Mapping[str, Any]] = []
    names = [columns] if isinstance(columns, str) else list(columns)
    rows = config.global_batch_size_to_load // jax.process_count()
    prompts = listed(ids, names)
    maker = PromptBatches(
        prompts,
        Ends(bos=None, eos=None, side="right"),
        length=config.max_prefill_predict_length,
        most=config.max_prefill_predict_length,
        rows=rows,
        host=0,
        hosts=1,
        seed=None,
        drop_remainder=False,
        epochs=1,
    )
    while True:
        yield maker.padding()


def _truncation_side(encoder: Encoder) -> str:
    """The side that the tokenizer's own files name; the right one else."""
    file = None if encoder.folder is None else encoder.folder / "tokenizer_config.json"
    if file is None or not file.is_file():
        return "right"
    found = json.loads(file.read_bytes()).get("truncation_side", "right")
    return "left" if found == "left" else "right"
