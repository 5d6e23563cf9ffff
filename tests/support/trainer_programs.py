"""The programs of `run_hosts.run_hosts` with processes of a `Trainer` of transformers, TRL or Lightning, on CPUs."""

import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import gristmill as gm
from gristmill.integrations.transformers import attach
from torch_main import run, variables

_DEEPSPEED = {
    "zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto",
    "gradient_accumulation_steps": "auto", "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
}  # fmt: skip


def model() -> LlamaForCausalLM:
    """A small model with dropout, so that the state of the random generator matters, too."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=600, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, attention_dropout=0.1, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return LlamaForCausalLM(config)


class Killing(TrainerCallback):
    """Ends the process as `kill -9` does, after a step."""

    def __init__(self, step: int, leave: Any) -> None:
        self._step, self._leave = step, leave

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._step:
            self._leave()
            if torch.distributed.is_initialized():
                torch.distributed.barrier()
            os.kill(os.getpid(), signal.SIGKILL)


def train(
    dataset: dict[str, Any],
    folder: str,
    *,
    rows: int,
    steps: int,
    accumulate: int = 1,
    resume: bool | str = False,
    killed: tuple[int, str] | None = None,
    padding_free: bool | None = None,
    evaluate: dict[str, Any] | None = None,
    trl: bool = False,
    packed: str | None = None,
    epochs: float | None = None,
    save: int = 3,
    deepspeed: bool = False,
) -> dict[str, Any]:
    """Trains on the stream. Returns the labels of each step, `[rows of this process, length]` each, and the losses."""
    common: dict[str, Any] = {
        "output_dir": folder, "per_device_train_batch_size": rows, "per_device_eval_batch_size": 2,
        "gradient_accumulation_steps": accumulate, "max_steps": -1 if epochs else steps, "save_steps": save,
        "logging_steps": 1, "report_to": [], "use_cpu": True, "disable_tqdm": True, "learning_rate": 1e-3,
        "num_train_epochs": epochs or 1, "logging_nan_inf_filter": True,
    }  # fmt: skip
    if deepspeed:
        common |= {"deepspeed": _DEEPSPEED, "optim": "adamw_torch"}
    stream: Any = gm.PackedRows(packed) if packed else gm.PackedDataset(**dataset)
    validation = None if evaluate is None else gm.PackedDataset(**evaluate)
    if trl:
        import datasets
        from trl import SFTConfig, SFTTrainer

        demanded = datasets.Dataset.from_dict({"text": ["a text that is not trained on"] * 3})
        tokenizer = pretrained(dataset["tokenizer"])
        arguments = SFTConfig(**common, padding_free=bool(padding_free), max_length=None, bf16=False)
        trainer = SFTTrainer(model=model(), args=arguments, train_dataset=demanded, processing_class=tokenizer)
    else:
        if validation is not None:
            common |= {"eval_strategy": "steps", "eval_steps": 4}
        trainer = Trainer(
            model(), args=TrainingArguments(**common), eval_dataset=validation if validation is not None else None
        )
    attach(trainer, stream, padding_free=None if trl else padding_free)

    found: list[Any] = []
    inner = trainer.training_step

    def training_step(own: Any, inputs: Any, *more: Any, **kwargs: Any) -> Any:
        found.append(dict(inputs))
        return inner(own, inputs, *more, **kwargs)

    trainer.training_step = training_step

    def result() -> dict[str, Any]:
        logs = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
        evaluated = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
        arrays = [
            {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
            for inputs in found
        ]
        return {"inputs": arrays, "losses": logs, "evaluated": evaluated}

    if killed is not None:
        step, path = killed
        rank = os.environ["RANK"]
        trainer.add_callback(Killing(step, lambda: Path(path, f"rank-{rank}").write_bytes(pickle.dumps(result()))))
    trainer.train(resume_from_checkpoint=resume)
    return result()


def pretrained(folder: str) -> Any:
    """A tokenizer of transformers."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json", eos_token="</s>", bos_token="<s>")
    tokenizer.pad_token = "</s>"
    return tokenizer


def several(calls: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The results of several runs, since a start of torch takes seconds."""
    return {name: train(**arguments) for name, arguments in calls.items()}


if __name__ == "__main__":
    # DeepSpeed compiles its collectives of CPUs by the ninja beside this Python.
    os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    run(globals(), variables)
