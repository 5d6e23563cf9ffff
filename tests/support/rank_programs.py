"""The programs of `run_hosts.run_hosts` with ranks of `torch.distributed`, each with torchtitan's dataloader."""

import itertools
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import gristmill as gm
from gristmill.integrations.torchtitan import GristmillDataLoader
from torch_main import group, run


def loader(config: dict[str, Any], rows: int, *, flat: bool = False, length: int = 64) -> GristmillDataLoader:
    """The dataloader of this rank, as the trainer builds it."""
    sizes = (
        {"max_context_length": length, "num_tokens_per_batch": rows * length}
        if flat
        else {"seq_len": length, "local_batch_size": rows, "snapshot_every_n_steps": 1}
    )
    initialized = dist.is_initialized()
    return GristmillDataLoader.Config(**config).build(
        dp_world_size=dist.get_world_size() if initialized else 1,
        dp_rank=dist.get_rank() if initialized else 0,
        tokenizer=None,
        **sizes,
    )


def arrays(batch: Any) -> dict[str, Any]:
    """A batch as NumPy arrays."""
    found, labels = batch
    return {**{name: tensor.numpy() for name, tensor in found.items()}, "labels": labels.numpy()}


def train(
    config: dict[str, Any],
    rows: int,
    *,
    flat: bool = False,
    save: tuple[int, str] | None = None,
    load: str | None = None,
    steps: int | None = None,
) -> dict[str, Any]:
    """All batches of this rank, saved by torch's distributed checkpoint after some of them, or loaded from there."""
    own = loader(config, rows, flat=flat)
    if load is not None:
        dcp.load({"dataloader": own}, checkpoint_id=load)
    batches: list[Any] = []
    for batch in itertools.islice(own, steps):
        batches.append(arrays(batch))
        if save is not None and len(batches) == save[0]:
            dcp.save({"dataloader": own}, checkpoint_id=save[1])
    stats = own.stats()
    own.close()
    return {"batches": batches, "documents": stats["documents"]}


def disagree(config: dict[str, Any], rows: int) -> dict[str, str]:
    """The errors where one rank has another stream, and where one resumes at another step."""
    rank = dist.get_rank()
    found = {}
    other = loader({**config, "arguments": {**config["arguments"], "seed": rank}}, rows)
    try:
        next(iter(other))
    except gm.ArgumentError as error:
        found["stream"] = str(error)
    own = loader(config, rows)
    start = own.state_dict()
    next(iter(own))
    own.load_state_dict(start if rank else own.state_dict())
    try:
        next(iter(own))
    except gm.StateError as error:
        found["step"] = str(error)
    return found


def several(calls: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The results of several programs, since a start of torch takes seconds."""
    return {name: globals()[program](**arguments) for name, (program, arguments) in calls.items()}


if __name__ == "__main__":
    run(globals(), group)
