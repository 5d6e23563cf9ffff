"""`attach`: the batches of a stream in a `Trainer`, whose checkpoints restore exactly on any number of processes.

    step of the stream      the rows of one update of all processes: batch_size
    a process's rows        batch_size / processes
    micro-batch             per_device_train_batch_size of them; gradient_accumulation_steps make an update

The trainer itself replays batches to find its position; here a checkpoint holds it. It is that of the updates that were
made, whatever was read ahead, and is written first: a checkpoint that the trainer has finished has it.
"""

import inspect
import json
import operator
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gristmill import PackedDataset
from gristmill._util import atomic_files
from gristmill.errors import ArgumentError, StateError
from gristmill.integrations.torch.loader import PartedLoader
from gristmill.integrations.torch.passes import Pass
from gristmill.integrations.torch.ranks import whole_state
from gristmill.integrations.torch.tensors import Tensors

STATE_FILE = "gristmill.json"
_STEP = "trained_steps"
# Names that models take as further keywords, beside those that `forward` names.
_OF_ATTENTION = frozenset({"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"})
# More updates than a trainer reads ahead.
_KEPT_STATES = 8


def attach(trainer: Any, dataset: Any, *, eval_dataset: Any = None, padding_free: bool | None = None) -> None:
    """Has a trainer of `transformers`, or a class of it such as TRL's `SFTTrainer`, train on a stream.

    The stream replaces `train_dataset`, whatever that is. `trainer.train()` begins at its start, and
    `trainer.train(resume_from_checkpoint=...)` continues exactly, on any number of processes: no batch is skipped,
    repeated, or read to be passed over. `args.max_steps` says where training ends; with finite epochs it ends with the
    stream, if that is shorter. A checkpoint has the state of all lanes once, in `gristmill.json`. Attach another stream
    later to replace this one.

    Args:
      trainer: the trainer; `args.ignore_data_skip` of it is set.
      dataset: what `Loader` takes, in the layout `hf` unless `padding_free`. Its `batch_size` is
        `per_device_train_batch_size` x processes x `gradient_accumulation_steps`: it is the same on another number of
        processes, and one of the others is not.
      eval_dataset: what is evaluated on, or a dict of such: a stream that ends. Its `batch_size` is a multiple of
        `per_device_eval_batch_size` x processes. All processes take equally many steps. None: the trainer's own, which
        may be of gristmill, too.
      padding_free: whether a batch is one row without padding, see `Loader`; for models whose attention takes
        `cu_seq_lens_q` and the like. None: as `SFTTrainer` has it, else False.

    Raises:
      ArgumentError: the batch is another one than the trainer's, its arrays are not those of `transformers`, messages
        have weights that the model does not take, or the dataset has an end that is not known and `max_steps` is not
        set.
      StateError: raised by `trainer.train`: a checkpoint has no state, or one of another stream.
    """
    is_flat = bool(getattr(trainer, "padding_free", False)) if padding_free is None else padding_free
    _TrainBatches(trainer, dataset, is_flat=is_flat)
    _EvalBatches(trainer, eval_dataset, is_flat=is_flat)


class _TrainBatches:
    """The micro-batches of one process: what the trainer takes for its `DataLoader`."""

    def __init__(self, trainer: Any, dataset: Any, *, is_flat: bool) -> None:
        self.dataset, self._trainer = dataset, trainer
        args = trainer.args
        parts = args.gradient_accumulation_steps
        _check_layout(dataset, is_flat=is_flat)
        self._loader = PartedLoader(dataset, parts=parts, **_of_loader(trainer, is_flat=is_flat))
        self._check()
        # The updates of an epoch of the trainer's; None: it is not known, and the stream's epochs are its own.
        self._length = operator.length_hint(self._loader) or None
        if args.max_steps <= 0 and self._length is None:
            raise ArgumentError(
                "args.max_steps is not set: the number of batches of a stream is not known before its end; set "
                "max_steps, which the schedule of the learning rate needs"
            )
        self._names = _names(trainer)
        has_weights = isinstance(dataset, PackedDataset) and dataset.has_weights
        if has_weights and self._names is not None and "weight" not in self._names:
            raise ArgumentError(
                "the messages of the dataset have weights (train_key=), which the model does not take: set "
                "remove_unused_columns=False and a loss that multiplies by `weight`, or leave train_key out"
            )
        self._start = self._loader.state_dict()
        # The states after the last updates, by the number of updates that were made until then.
        self._states: dict[int, dict[str, Any]] = {}
        self._steps = 0
        args.ignore_data_skip = True
        trainer.train_dataset = dataset
        trainer.get_train_dataloader = lambda: self
        self._inner = _before(trainer._inner_training_loop, "_inner")
        trainer._inner_training_loop = self._train
        self._inner_save = _before(trainer._save_checkpoint, "_inner_save")
        trainer._save_checkpoint = self._save

    @property
    def batch_size(self) -> int:
        """Rows of a micro-batch."""
        return self._loader.batch_size // int(self._trainer.args.gradient_accumulation_steps)

    def _check(self) -> None:
        if self.batch_size != self._trainer._train_batch_size:
            ranks = self._loader.world_size
            parts, rows = self._trainer.args.gradient_accumulation_steps, self._trainer._train_batch_size
            raise ArgumentError(
                f"batch_size={self._loader.batch_size * ranks}: expected {rows} rows per device x "
                f"{ranks} {'process' if ranks == 1 else 'processes'} x {parts} accumulation steps = "
                f"{rows * ranks * parts}; set per_device_train_batch_size or gradient_accumulation_steps so, since the "
                "dataset's batch_size is part of the stream"
            )

    def __len__(self) -> int:
        return len(self._loader) * int(self._trainer.args.gradient_accumulation_steps)

    def _train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains, from a checkpoint or from the start."""
        bound = inspect.signature(self._inner).bind(*args, **kwargs).arguments
        checkpoint = bound.get("resume_from_checkpoint")
        self._check()
        self._load(None if checkpoint is None else Path(checkpoint))
        return self._inner(*args, **kwargs)

    def _load(self, checkpoint: Path | None) -> None:
        state, steps = self._start, 0
        if checkpoint is not None:
            path = checkpoint / STATE_FILE
            try:
                state = json.loads(path.read_text())
                steps = state.pop(_STEP)
            except (OSError, ValueError, KeyError, AttributeError) as error:
                raise StateError(
                    f"{path} is missing or damaged: the checkpoint was saved by a trainer without "
                    "gristmill.integrations.transformers.attach; resume from another one"
                ) from error
        self._loader.load_state_dict(state)
        self._steps, self._states = steps, {steps: self._loader.state_dict()}

    def __iter__(self) -> Iterator[Tensors]:
        """The rest of the stream; of a dataset with a length, the next epoch after its end."""
        if self._length is not None and self._steps % self._length == 0:
            self._loader.load_state_dict(self._start)
        while True:
            try:
                parts = self._loader.next_parts()
            except StopIteration:
                return
            self._steps += 1
            self._states[self._steps] = self._loader.state_dict()
            self._states.pop(self._steps - _KEPT_STATES, None)
            for part in parts:
                yield _named(part, self._names)

    def _save(self, model: Any, trial: Any, *args: Any, **kwargs: Any) -> Any:
        """Saves the state of all processes after the updates that were made, and then the rest of the checkpoint."""
        trainer = self._trainer
        step = trainer.state.global_step
        if step not in self._states:
            raise StateError(f"the trainer has made {step} updates, and has taken the batches of {self._steps}")
        state = whole_state(self._states[step])
        if trainer.args.should_save:
            folder = Path(trainer._get_output_dir(trial=trial), f"checkpoint-{step}")
            folder.mkdir(parents=True, exist_ok=True)
            atomic_files.write_json(folder / STATE_FILE, {_STEP: step, **state})
        return self._inner_save(model, trial, *args, **kwargs)


class _EvalBatches:
    """The door through which a trainer gets the batches of an evaluation."""

    def __init__(self, trainer: Any, given: Any, *, is_flat: bool) -> None:
        self._trainer, self._is_flat = trainer, is_flat
        self._inner = _before(trainer.get_eval_dataloader, "_inner")
        self._inner_test = _before(trainer.get_test_dataloader, "_inner_test")
        if given is not None:
            trainer.eval_dataset = given
        trainer.get_eval_dataloader = self._batches
        trainer.get_test_dataloader = self._test_batches
        for dataset in trainer.eval_dataset.values() if isinstance(trainer.eval_dataset, dict) else [given]:
            if isinstance(dataset, PackedDataset):
                self._parts(dataset)

    def _batches(self, eval_dataset: Any = None) -> Any:
        own = self._trainer.eval_dataset
        dataset = own[eval_dataset] if isinstance(eval_dataset, str) else own if eval_dataset is None else eval_dataset
        return self._pass(dataset) if isinstance(dataset, PackedDataset) else self._inner(eval_dataset)

    def _test_batches(self, test_dataset: Any) -> Any:
        return self._pass(test_dataset) if isinstance(test_dataset, PackedDataset) else self._inner_test(test_dataset)

    def _pass(self, dataset: PackedDataset) -> "_Pass":
        parts = self._parts(dataset)
        _check_layout(dataset, is_flat=self._is_flat)
        return _Pass(self._trainer, dataset, parts=parts, **_of_loader(self._trainer, is_flat=self._is_flat))

    def _parts(self, dataset: PackedDataset) -> int:
        ranks, rows = _place(self._trainer)[1], self._trainer.args.eval_batch_size
        parts, rest = divmod(dataset.batch_size or 0, ranks * rows)
        if rest or not parts:
            raise ArgumentError(
                f"batch_size={dataset.batch_size} of the evaluation: expected a multiple of {rows} rows per device x "
                f"{ranks} {'process' if ranks == 1 else 'processes'}"
            )
        return parts


def _before(method: Any, name: str) -> Any:
    """A trainer's method, where an earlier `attach` has replaced it the one of before."""
    owner = getattr(method, "__self__", None)
    return getattr(owner, name) if isinstance(owner, _TrainBatches | _EvalBatches) else method


class _Pass(Pass):
    """An evaluation, of which the model gets the arrays that it takes."""

    def __init__(self, trainer: Any, dataset: Any, **more: Any) -> None:
        super().__init__(dataset, **more)
        self._names = _names(trainer)

    def __iter__(self) -> Iterator[Tensors]:
        return (_named(batch, self._names) for batch in super().__iter__())


def _place(trainer: Any) -> tuple[int, int]:
    """The data-parallel rank of this process, and the number of such ranks.

    Processes that share a batch, by tensor, sequence or context parallelism, are neighbours.
    """
    sizes = (getattr(trainer, f"get_{kind}_size", lambda: 1)() for kind in ("tp", "sp", "cp"))
    shared = 1
    for size in sizes:
        shared *= size
    return trainer.args.process_index // shared, trainer.args.world_size // shared


def _of_loader(trainer: Any, *, is_flat: bool) -> dict[str, Any]:
    """The arguments of a loader that the trainer knows."""
    rank, world_size = _place(trainer)
    return {"rank": rank, "world_size": world_size, "device": trainer.args.device, "padding_free": is_flat}


def _check_layout(dataset: Any, *, is_flat: bool) -> None:
    if isinstance(dataset, PackedDataset) and not is_flat and "input_ids" not in dataset.shapes:
        raise ArgumentError(
            f"the dataset has the arrays {', '.join(dataset.shapes)}: models of transformers take those of layout='hf'"
        )


def _names(trainer: Any) -> frozenset[str] | None:
    """The names of arrays that the model takes; None: all."""
    if not trainer.args.remove_unused_columns:
        return None
    model = trainer.accelerator.unwrap_model(trainer.model)
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    parameters = inspect.signature(model.forward).parameters.values()
    named = {one.name for one in parameters if one.kind is not inspect.Parameter.VAR_KEYWORD}
    return frozenset({*named, "labels", "input_ids", *_OF_ATTENTION}) if "input_ids" in named else None


def _named(batch: Mapping[str, Any], names: frozenset[str] | None) -> Tensors:
    return dict(batch) if names is None else {name: value for name, value in batch.items() if name in names}
