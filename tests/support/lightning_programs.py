"""The programs of `run_hosts.run_hosts` with processes of a `Trainer` of Lightning, and of accelerate, on CPUs."""

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gristmill as gm
from torch_main import run, variables


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of trained tokens, over the number of all: a number also without any."""
    total = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum")
    return total / labels.numel()


def lightning(
    dataset: dict[str, Any],
    folder: str,
    *,
    steps: int,
    resume: str | None = None,
    killed: tuple[int, str] | None = None,
    validate: dict[str, Any] | None = None,
    epochs: int = -1,
    accumulate: int = 1,
    save: int = 3,
) -> dict[str, Any]:
    """Trains on the stream, and saves after each third step. Returns the labels of each batch and the losses."""
    from lightning.pytorch import LightningModule, Trainer, seed_everything
    from lightning.pytorch.callbacks import ModelCheckpoint

    from gristmill.integrations.lightning import DataModule

    found: dict[str, Any] = {"labels": [], "losses": [], "validated": []}

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Embedding(600, 8), nn.Dropout(0.1), nn.Linear(8, 600))

        def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
            loss = loss_of(self.layers(batch["input_ids"]), batch["labels"])
            found["labels"].append(batch["labels"].numpy())
            found["losses"].append(loss.item())
            return loss

        def on_train_batch_end(self, *values: Any) -> None:
            if killed is not None and len(found["labels"]) == killed[0]:
                Path(killed[1], f"rank-{os.environ['RANK']}").write_bytes(pickle.dumps(found))
                self.trainer.strategy.barrier()
                os.kill(os.getpid(), signal.SIGKILL)

        def validation_step(self, batch: dict[str, Any], index: int) -> None:
            found["validated"].append(batch["labels"].numpy())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    seed_everything(1)
    ranks = int(os.environ["WORLD_SIZE"])
    saving = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=save, save_top_k=-1)
    trainer = Trainer(
        accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto", max_steps=steps, max_epochs=epochs,
        callbacks=[saving], logger=False, enable_progress_bar=False, num_sanity_val_steps=1,
        enable_model_summary=False, accumulate_grad_batches=accumulate, default_root_dir=folder,
    )  # fmt: skip
    validation = None if validate is None else gm.PackedDataset(**validate)
    trainer.fit(Model(), datamodule=DataModule(train=gm.PackedDataset(**dataset), val=validation), ckpt_path=resume)
    return found


def accelerate(dataset: dict[str, Any], folder: str, *, steps: int, resume: bool = False) -> dict[str, Any]:
    """Trains with accelerate alone, and saves after the third step."""
    from accelerate import Accelerator

    from gristmill.integrations.torch import Loader, WholeState

    accelerator = Accelerator(cpu=True)
    loader = Loader(gm.PackedDataset(**dataset), device=accelerator.device)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(600, 8), nn.Linear(8, 600))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    accelerator.register_for_checkpointing(WholeState(loader))
    if resume:
        accelerator.load_state(folder)
    labels, losses = [], []
    for batch in loader:
        loss = loss_of(model(batch["input_ids"]), batch["labels"])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        labels.append(batch["labels"].numpy())
        losses.append(loss.item())
        if len(labels) == 3 and not resume:
            accelerator.save_state(folder)
        if len(labels) == steps:
            break
    loader.close()
    return {"labels": labels, "losses": losses}


if __name__ == "__main__":
    os.environ |= {"TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0"}
    run(globals(), variables)
