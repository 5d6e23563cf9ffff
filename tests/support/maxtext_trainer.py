"""Runs a trainer of MaxText in a process of its own, and writes down the batches and losses of its training.

    maxtext_trainer.py SETTINGS

SETTINGS is a file of JSON:

    trainer    a module of MaxText with a function `main`
    arguments  of that `main`: a file of settings, and single ones
    teacher    a folder in which weights are written first that `load_parameters_path` can name, or null
    recipe     a file of Python whose `create_data_iterator(config, mesh)` replaces MaxText's, or null
    limit      the batches after which the process ends as one that is killed does, or null
    result     the file that is written
"""

import importlib
import json
import os
import pickle
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from orbax.checkpoint import PyTreeCheckpointer
from orbax.checkpoint import v1 as ocp


class Checkpoints:
    """The class that MaxText 0.2.5's distillation extends: that of Tunix in development, which 0.1.7 does not have."""

    def __init__(self, root_directory: Any = None, options: Any = None) -> None:
        policy = ocp.training.save_decision_policies.FixedIntervalPolicy(options.save_interval_steps)
        self._checkpointer = ocp.training.Checkpointer(root_directory, save_decision_policy=policy)

    def latest_step(self) -> int | None:
        latest = self._checkpointer.latest
        return latest.step if latest else None

    def _save_checkpointables(self, step: int, checkpointables: Any, force: bool, custom_metadata: Any) -> Any:
        return self._checkpointer.save_checkpointables(
            step, checkpointables, force=force, custom_metadata=custom_metadata
        )

    def maybe_restore(self, model: Any, optimizer: Any, **_: Any) -> tuple[int, dict[str, Any]]:
        step = self.latest_step()
        if step is None:
            return 0, {}
        owners = {"model_params": model, "optimizer_state": optimizer}
        states = {"model_params": nnx.state(model), "optimizer_state": nnx.state(optimizer, nnx.optimizer.OptState)}
        found: Any = self._checkpointer.load_checkpointables(step, states)
        for name, owner in owners.items():
            nnx.update(owner, found[name])
        return step, {}

    def close(self) -> None:
        pass


def import_distillation() -> None:
    """Imports MaxText's distillation, with that class where the installed Tunix lacks it."""
    from tunix.sft import checkpoint_manager

    released = checkpoint_manager.CheckpointManager
    if not hasattr(released, "_save_checkpointables"):
        checkpoint_manager.CheckpointManager = Checkpoints
    importlib.import_module("maxtext.trainers.post_train.distillation.distillation_utils")
    checkpoint_manager.CheckpointManager = released


def write_teacher(folder: str, argv: list[str]) -> None:
    """Writes the weights of a model of the settings, from another seed than its own."""
    from maxtext.configs import pyconfig
    from maxtext.utils import maxtext_utils, model_creation_utils

    config = pyconfig.initialize(argv, load_parameters_path="", init_weights_seed=5)
    mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)
    model = model_creation_utils.from_pretrained(config, mesh=mesh)
    PyTreeCheckpointer().save(folder, _plain(nnx.state(model, nnx.Param)))


def _plain(weights: Any) -> Any:
    if isinstance(weights, nnx.Variable):
        return {"value": weights[...]}
    return {name: _plain(value) for name, value in weights.items()}


def record_batches(iterator: Any, batches: list[dict[str, Any]], limit: int | None, write: Callable[[], None]) -> None:
    """Makes an iterator note its batches, and end the process where one more than `limit` is asked for."""

    class Recording(type(iterator)):  # type: ignore[misc]
        def __next__(self) -> Any:
            if len(batches) == limit:
                write()
                os._exit(9)
            batch = super().__next__()
            batches.append({name: np.asarray(array) for name, array in batch.items()})
            return batch

    iterator.__class__ = Recording


def record_losses(losses: list[float]) -> None:
    """Makes Tunix note the losses of training."""
    from tunix.sft.metrics_logger import MetricsLogger

    log = MetricsLogger.log

    def note(self: Any, prefix: str, name: str, value: Any, mode: Any, step: int) -> None:
        if name == "loss" and str(mode) == "train":
            losses.append(float(value))
        log(self, prefix, name, value, mode, step)

    MetricsLogger.log = note


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_bytes())
    argv = ["", *settings["arguments"]]
    if settings["teacher"] and not Path(settings["teacher"]).exists():
        write_teacher(settings["teacher"], argv)
    found: dict[str, list[Any]] = {"train": [], "evaluation": [], "losses": []}

    def write() -> None:
        Path(settings["result"]).write_bytes(pickle.dumps(found))

    record_losses(found["losses"])
    if "distillation" in settings["trainer"]:
        import_distillation()
    from maxtext.input_pipeline import input_pipeline_interface

    create = input_pipeline_interface.create_data_iterator
    if settings["recipe"]:
        create = runpy.run_path(settings["recipe"])["create_data_iterator"]

    def create_recorded(*arguments: Any) -> Any:
        train, evaluation = create(*arguments)
        record_batches(train, found["train"], settings["limit"], write)
        if evaluation is not None:
            record_batches(evaluation, found["evaluation"], None, write)
        return train, evaluation

    input_pipeline_interface.create_data_iterator = create_recorded
    importlib.import_module(settings["trainer"]).main(argv)
    write()


if __name__ == "__main__":
    main()
