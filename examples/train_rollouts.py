r"""Trains GRPO's loss, or distillation from a teacher's top 8, on packed rollouts, and compares with the rows unpacked.

    python examples/train_rollouts.py --folder runs/rollouts --loss grpo
    python examples/train_rollouts.py --folder runs/rollouts --loss distill

A rollout is a record of ready ids, a mask of those that the model has generated, and for each id what its training
needs: the advantage, the log-probability when it was generated, and the 8 ids that a teacher finds most likely, with
their log-probabilities. gristmill packs all of it into rows, each value beside the token that it belongs to. Without
--rollouts, a small random model makes some.

It prints the loss and the largest gradient over an epoch of packed rows and of one rollout a row, which are the same
but for rounding, and how many elements each way computes; then it trains. The model is that of train.py, beside this
file. Besides gristmill it needs `optax`.
"""

import argparse
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from train import Batch, Params, init_state, logits_of

import gristmill as gm

TOP = 8
FIELDS = {
    "advantages": gm.Field(),
    "old_logprobs": gm.Field(),
    "top_ids": gm.Field(dtype="int32", shape=(TOP,)),
    "top_logprobs": gm.Field(dtype="bfloat16", shape=(TOP,)),
}
VOCABULARY = 64


def main() -> None:
    """The whole of a training script."""
    arguments = parse_arguments()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    optimizer = optax.adamw(3e-3)
    init = functools.partial(init_state, arguments=arguments, vocabulary=VOCABULARY, optimizer=optimizer)
    rollouts = arguments.rollouts or make_rollouts(arguments, init)
    state = init(jax.random.key(0))
    loss_of = functools.partial(LOSSES[arguments.loss], heads=arguments.heads)

    packed, padded = (
        epoch(state["params"], rows_of(rollouts, packing, arguments), loss_of) for packing in ("best_fit", "pad")
    )
    print(json.dumps({"packed": packed[0], "unpacked": padded[0], "gradients differ by": difference(packed, padded)}))

    @jax.jit
    def step(state: dict[str, Any], batch: Batch) -> tuple[dict[str, Any], jax.Array]:
        def mean(params: Params) -> jax.Array:
            total, count = loss_of(params, batch)
            return total / jnp.maximum(count, 1)

        loss, gradients = jax.value_and_grad(mean)(state["params"])
        updates, kept = optimizer.update(gradients, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": kept}, loss

    batches = rows_of(rollouts, "best_fit", arguments, epochs=None)
    for number, batch in zip(range(1, arguments.steps + 1), batches, strict=False):
        state, loss = step(state, batch)
        if number % 10 == 0 or number == arguments.steps:
            print(f"step {number:5d}  loss {float(loss):.4f}", flush=True)


def rows_of(rollouts: Path, packing: Any, arguments: argparse.Namespace, epochs: int | None = 1) -> Iterator[Batch]:
    """Batches of rollouts with all that travels with their tokens."""
    sample = gm.Tokens("input_ids", loss_mask="mask", fields=FIELDS)
    return iter(
        gm.PackedDataset(
            rollouts,
            sample=sample,
            sequence_length=arguments.length,
            batch_size=arguments.batch,
            packing=packing,
            truncation="error",
            epochs=epochs,
        )
    )


def grpo(params: Params, batch: Batch, heads: int) -> tuple[jax.Array, jax.Array]:
    """The sum of GRPO's clipped loss over the generated tokens, and their number."""
    logprobs = jax.nn.log_softmax(logits_of(params, batch, heads))
    own = jnp.take_along_axis(logprobs, batch["targets"][..., None], axis=-1)[..., 0]
    ratio, advantages = jnp.exp(own - batch["targets_old_logprobs"]), batch["targets_advantages"]
    losses = -jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages)
    is_trained = batch["targets_segmentation"] != 0
    return jnp.sum(losses, where=is_trained), is_trained.sum()


def distill(params: Params, batch: Batch, heads: int) -> tuple[jax.Array, jax.Array]:
    """The sum of the divergence from the teacher's top ids over the generated tokens, and their number."""
    logprobs = jax.nn.log_softmax(logits_of(params, batch, heads))
    student = jnp.take_along_axis(logprobs, batch["targets_top_ids"], axis=-1)
    teacher = batch["targets_top_logprobs"].astype(jnp.float32)
    losses = jnp.sum(jnp.exp(teacher) * (teacher - student), axis=-1)
    is_trained = batch["targets_segmentation"] != 0
    return jnp.sum(losses, where=is_trained), is_trained.sum()


LOSSES = {"grpo": grpo, "distill": distill}


def epoch(params: Params, batches: Iterator[Batch], loss_of: Any) -> tuple[dict[str, Any], Any]:
    """The mean loss over all batches, its gradients, and the elements that were computed."""
    both = jax.jit(jax.value_and_grad(loss_of, has_aux=True))
    loss, trained, elements = 0.0, 0, 0
    gradients = jax.tree.map(lambda array: np.zeros(array.shape, np.float64), params)
    for batch in batches:
        (total, count), own = both(params, batch)
        loss, trained, elements = loss + float(total), trained + int(count), elements + batch["inputs"].size
        gradients = jax.tree.map(lambda array, more: array + np.asarray(more, np.float64), gradients, own)
    gradients = jax.tree.map(lambda array: array / trained, gradients)
    largest = max(float(np.abs(array).max()) for array in jax.tree.leaves(gradients))
    shown = {"loss": loss / trained, "largest gradient": largest, "trained tokens": trained, "elements": elements}
    return shown, gradients


def difference(one: Any, other: Any) -> float:
    """The largest difference of gradients, as a share of the largest gradient."""
    pairs = zip(jax.tree.leaves(one[1]), jax.tree.leaves(other[1]), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs) / float(one[0]["largest gradient"])


def make_rollouts(arguments: argparse.Namespace, init: Any) -> Path:
    """Rollouts of a random policy, with the log-probabilities of it and of a random teacher."""
    path: Path = arguments.folder / "rollouts.jsonl"
    generator = np.random.default_rng(0)
    policy, teacher = (init(jax.random.key(seed))["params"] for seed in (1, 2))
    logprobs = jax.jit(lambda params, batch: jax.nn.log_softmax(logits_of(params, batch, arguments.heads)))
    with path.open("w") as file:
        for _ in range(arguments.count):
            prompt, answer = generator.integers(2, 12), generator.integers(1, arguments.length - 12)
            ids = generator.integers(0, VOCABULARY, prompt + answer)
            padded = np.zeros((1, arguments.length), np.int32)
            padded[0, : len(ids)] = ids
            positions = np.arange(arguments.length, dtype=np.int32)[None]
            batch = {
                "inputs": padded,
                "inputs_position": positions,
                "inputs_segmentation": (positions < len(ids)).astype(np.int32),
            }
            # The first token has nothing before it that predicts it.
            old, of_teacher = (np.asarray(logprobs(params, batch))[0, : len(ids) - 1] for params in (policy, teacher))
            top = np.argsort(of_teacher, axis=-1)[:, ::-1][:, :TOP]
            record = {
                "input_ids": ids.tolist(),
                "mask": [0] * int(prompt) + [1] * int(answer),
                "advantages": [float(generator.normal())] * len(ids),
                "old_logprobs": [0.0, *old[np.arange(len(old)), ids[1:]].tolist()],
                "top_ids": [[0] * TOP, *top.tolist()],
                "top_logprobs": [[0.0] * TOP, *np.take_along_axis(of_teacher, top, axis=-1).tolist()],
            }
            file.write(json.dumps(record) + "\n")
    return path


def parse_arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where rollouts are written")
    parser.add_argument("--rollouts", type=Path, help="JSONL, Parquet or Arrow of rollouts")
    parser.add_argument("--loss", choices=tuple(LOSSES), default="grpo")
    parser.add_argument("--steps", type=int, default=40)
    for name, default in {"count": 64, "length": 64, "batch": 4, "width": 32, "layers": 2, "heads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


if __name__ == "__main__":
    main()
