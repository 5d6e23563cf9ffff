"""The programs of `run_hosts.run_hosts` with ranks of `torch.distributed`, each with a `Loader`."""

import itertools
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import gristmill as gm
from gristmill.integrations.torch import Loader
from torch_main import group, run


def arrays(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch as NumPy arrays."""
    return {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def train(
    dataset: dict[str, Any],
    *,
    load: str | None = None,
    save: tuple[int, str] | None = None,
    steps: int | None = None,
    killed: str | None = None,
    **loader: Any,
) -> list[dict[str, Any]]:
    """The batches of this rank, saved by torch's distributed checkpoint after some of them, or loaded from there.

    With `killed`, the process ends as by `kill -9` two batches after it has saved. Its batches are in that folder then.
    """
    own = Loader(gm.PackedDataset(**dataset), **loader)
    if load is not None:
        dcp.load({"loader": own}, checkpoint_id=load)
    batches: list[dict[str, Any]] = []
    for batch in itertools.islice(own, steps):
        batches.append(arrays(batch))
        if save is not None and len(batches) == save[0]:
            dcp.save({"loader": own}, checkpoint_id=save[1])
        if save is not None and killed is not None and len(batches) == save[0] + 2:
            Path(killed, f"rank-{dist.get_rank()}").write_bytes(pickle.dumps(batches[:-2]))
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
    own.close()
    return batches


def disagree(dataset: dict[str, Any]) -> dict[str, str]:
    """The errors where ranks have different streams, resume at different steps, or are not the ranks they name."""
    rank, found = dist.get_rank(), {}
    own = gm.PackedDataset(**dataset)
    moved = Loader(own)
    start = moved.state_dict()
    next(moved)
    moved.load_state_dict(start if rank else moved.state_dict())
    wrong = {
        "stream": Loader(gm.PackedDataset(**{**dataset, "seed": rank})),
        "step": moved,
        "parts": Loader(own, rank=0, world_size=2),
    }
    for name, loader in wrong.items():
        try:
            next(loader)
        except gm.GristmillError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def shared(dataset: dict[str, Any]) -> list[dict[str, Any]]:
    """The batches of this rank, of which two neighbours have the same rows, as with tensor parallelism."""
    own = Loader(gm.PackedDataset(**dataset), rank=dist.get_rank() // 2, world_size=dist.get_world_size() // 2)
    return [arrays(batch) for batch in own]


def megatron(dataset: dict[str, Any], rows: int, *, cu_seqlens: bool, cp_size: int) -> dict[str, Any]:
    """A batch that Megatron-LM has broadcast from the first tensor-parallel rank to the others."""
    from megatron.core.utils import get_batch_on_this_tp_rank

    from gristmill.integrations.megatron import ExternalLoader

    own = gm.PackedDataset(**dataset)
    batch = dict(next(ExternalLoader(own, rows, 0, 1, cu_seqlens=cu_seqlens))) if dist.get_rank() == 0 else {}
    torch.cuda.current_device = lambda: "cpu"
    found = get_batch_on_this_tp_rank(
        batch, has_cu_seqlens=cu_seqlens, is_hybrid_cp=False, create_attention_mask_in_dataloader=False,
        broadcast_src_rank=0, broadcast_group=dist.group.WORLD, cp_size=cp_size, tp_rank=dist.get_rank(),
        micro_batch_size=rows, seq_length=own.sequence_length, mtp_on_this_rank=False,
    )  # fmt: skip
    return arrays({name: value for name, value in found.items() if value is not None})


def several(calls: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The results of several programs, since a start of torch takes seconds."""
    return {name: globals()[program](**arguments) for name, (program, arguments) in calls.items()}


if __name__ == "__main__":
    run(globals(), group)
