"""Checkpoints of the stream with Orbax, beside the model's, for any number of processes.

    manager.save(step, args=ocp.args.Composite(model=..., data=gm.CheckpointSave(batches)))
    manager.restore(step, args=ocp.args.Composite(model=..., data=gm.CheckpointRestore(batches)))

Each process writes one small file with the state of its own lanes; on restoring, each reads all of them.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import jax
import orbax.checkpoint as ocp

from gristmill._dataset.iterator import PackedDatasetIterator
from gristmill._dataset.packed import PackedDataset
from gristmill._jax.global_batches import GlobalBatches
from gristmill._prompts.dataset import PromptDataset
from gristmill._prompts.iterator import PromptIterator
from gristmill._state.checkpoint_files import file_name, read_merged
from gristmill.errors import ArgumentTypeError

_Iterator = PackedDatasetIterator | GlobalBatches | PromptIterator


class CheckpointHandler(ocp.AsyncCheckpointHandler):
    """Writes and reads the state of an iterator; Orbax finds it by the arguments below."""

    async def async_save(self, directory: Any, args: "CheckpointSave") -> list[ocp.future.Future]:
        """Takes the state now, and writes it while training continues."""
        path, text = _file_of(directory, args)

        async def write() -> None:
            await asyncio.to_thread(path.write_text, text)

        return [ocp.future.CommitFutureAwaitingContractedSignals(write(), name="gristmill_state")]

    def save(self, directory: Any, args: "CheckpointSave") -> None:
        """Takes the state and writes it before it returns."""
        path, text = _file_of(directory, args)
        path.write_text(text)

    def restore(self, directory: Any, args: "CheckpointRestore") -> _Iterator:
        """Joins the states of all processes that saved, and sets the iterator to it."""
        args.item.set_state(read_merged(directory))
        return args.item


@ocp.args.register_with_handler(CheckpointHandler, for_save=True)
@dataclass
class CheckpointSave(ocp.args.CheckpointArgs):
    """Saves the state of `item` at the call of `save`; `item` may continue while Orbax writes.

    Attributes:
      item: the iterator of `gm.global_batches(...)` or `iter(dataset)`.
    """

    item: _Iterator

    def __post_init__(self) -> None:
        _check_item(self.item, "CheckpointSave")


@ocp.args.register_with_handler(CheckpointHandler, for_restore=True)
@dataclass
class CheckpointRestore(ocp.args.CheckpointArgs):
    """Restores `item` to the saved state, whatever number of processes saved it.

    Attributes:
      item: an iterator of the same dataset, on any sharding. Restoring raises a StateError if the checkpoint is
        damaged, lacks a process's state, or is of another stream.
    """

    item: _Iterator

    def __post_init__(self) -> None:
        _check_item(self.item, "CheckpointRestore")


def _file_of(directory: Any, args: CheckpointSave) -> tuple[Any, str]:
    """The file that this process writes, and its text: the present state."""
    text = json.dumps(args.item.get_state())
    return directory / file_name(jax.process_index(), jax.process_count()), text


def _check_item(item: Any, name: str) -> None:
    if isinstance(item, _Iterator):
        return
    if isinstance(item, PackedDataset | PromptDataset):
        got = "the dataset itself"
    else:
        got = (
            f"{type(item).__name__}; for an iterator with Grain's transformations, use grain.checkpoint.{name} and the "
            "same number of processes"
        )
    raise ArgumentTypeError(f"{name}: expected an iterator of gm.global_batches(...) or iter(dataset), got {got}")
