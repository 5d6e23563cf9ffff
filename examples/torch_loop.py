"""A training loop in PyTorch, with checkpoints that restore on any number of processes: DDP or FSDP2, on GPUs or CPUs.

    python examples/torch_loop.py 'demo-data/*/en_head.json.gz' demo-data/tokenizer --folder run
    torchrun --nproc-per-node=4 examples/torch_loop.py SHARDS TOKENIZER --folder run --fsdp

`Loader` replaces a `DataLoader`: it has threads where a `DataLoader` has worker processes, and delivers whole
batches. Started again, the run continues from its newest checkpoint, on as many processes as there are then, and no row
is skipped or repeated. `torch.distributed.checkpoint` saves and restores the loader as the model.

The model is a small transformer. It keeps the documents of a row apart by their positions, which begin at 0 in each.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gristmill as gm
from gristmill.integrations.torch import Loader


class Model(nn.Module):
    """A decoder that predicts each next token of a document."""

    def __init__(self, vocabulary: int, length: int, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        document = (position_ids == 0).cumsum(1)
        apart = document[:, :, None] != document[:, None, :]
        mask = (apart | torch.ones_like(apart).triu(1)).repeat_interleave(self.heads, 0)
        hidden = self.tokens(input_ids) + self.positions(position_ids)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask)
        return self.head(hidden)


class Training:
    """The part of a checkpoint that torch's `Stateful` saves: model, optimizer, and the number of steps."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]


def newest_checkpoint(folder: Path) -> Path | None:
    """The last checkpoint that is complete: torch writes `.metadata` at its very end."""
    return max((path.parent for path in folder.glob("step-*/.metadata")), default=None)


def loss_of(model: nn.Module, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss over the trained tokens of all processes, and their number.

    Its gradient is the mean of the processes' gradients, as DDP and FSDP make it. A process whose rows are padding has
    no trained token, so a mean of its own would be no number.
    """
    logits, labels = model(batch["input_ids"], batch["position_ids"])[:, :-1], batch["labels"][:, 1:]
    total = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    count = (labels != -100).sum()
    dist.all_reduce(count)
    return total * dist.get_world_size() / count, count


def train(options: argparse.Namespace) -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dataset = gm.PackedDataset(
        options.shards,
        tokenizer=options.tokenizer,
        text_field=options.text_field,
        sequence_length=options.length,
        batch_size=options.batch,  # all processes together
        lanes=options.lanes,  # at least as many as processes
        seed=1,
        epochs=options.epochs,
        layout="hf",
    )
    loader = Loader(dataset, device=device)
    torch.manual_seed(0)
    model: nn.Module = Model(dataset.encoder.largest_id + 1, options.length).to(device)
    if options.fsdp:
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    training = Training(model, optimizer)
    saved = {"training": training, "loader": loader}
    if checkpoint := newest_checkpoint(options.folder):
        dcp.load(saved, checkpoint_id=checkpoint)

    for batch in loader:
        loss, count = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        training.step += 1
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {training.step}: loss {mean.item():.6f}, {count.item()} trained tokens", flush=True)
        if training.step % options.save_every == 0:
            dcp.save(saved, checkpoint_id=options.folder / f"step-{training.step:08}")
        if training.step == options.steps:
            break
    loader.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small transformer on packed rows.")
    parser.add_argument("shards")
    parser.add_argument("tokenizer")
    parser.add_argument("--folder", type=Path, required=True, help="where checkpoints are")
    parser.add_argument("--text-field", default="raw_content")
    parser.add_argument("--length", type=int, default=256, help="tokens of a row")
    parser.add_argument("--batch", type=int, default=16, help="rows of a step of all processes")
    parser.add_argument("--lanes", type=int, default=None)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=None, help="where to stop; by default after the epochs")
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--fsdp", action="store_true", help="shard the model (FSDP2) instead of copying it (DDP)")
    options = parser.parse_args()
    for name, alone in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1")):
        os.environ.setdefault(name, alone)  # torchrun sets them
    os.environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group("cuda:nccl,cpu:gloo" if torch.cuda.is_available() else "gloo")
    try:
        train(options)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
