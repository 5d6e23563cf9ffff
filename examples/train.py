"""Trains a small decoder-only transformer on packed rows, on one or many hosts, with checkpoints.

    python examples/train.py --shards 'demo-data/*/en_head.json.gz' --folder runs/first

Stop it at any time and start it again with the same command: it continues from the last checkpoint, and the losses
are bit for bit those of an uninterrupted run on the same machine. For several hosts (or several processes on one
machine, to try it), start it once per host:

    python examples/train.py --folder runs/two --hosts 2 --host 0 --coordinator 127.0.0.1:7777 &
    python examples/train.py --folder runs/two --hosts 2 --host 1 --coordinator 127.0.0.1:7777

With `--context 2` the tokens of a row are divided between two devices, early and late ones to both.

Besides gristmill it needs `optax` and, unless --tokenizer names a tokenizer, `tokenizers`.

The model is as plain as it can be: RMSNorm, rotary positions, tied embeddings. The parts worth reading are those
where packed rows matter: attention stays within a segment, positions start at 0 in each segment, and only tokens
with a target count in the loss.
"""

import argparse
import functools
import itertools
import json
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gristmill as gm

Params = dict[str, Any]
Batch = dict[str, jax.Array]


def main() -> None:
    """The whole of a training script."""
    arguments = parse_arguments()
    if arguments.hosts > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")  # other platforms have their own
        jax.distributed.initialize(arguments.coordinator, num_processes=arguments.hosts, process_id=arguments.host)
    mesh = Mesh(np.array(jax.devices()).reshape(-1, arguments.context), ("data", "context"))
    folder = arguments.folder.resolve()
    if jax.process_index() == 0:
        folder.mkdir(parents=True, exist_ok=True)
    encoder = gm.Encoder.from_file(arguments.tokenizer or make_tokenizer(folder, arguments))

    dataset = gm.PackedDataset(
        arguments.shards,
        tokenizer=encoder,
        text_field=arguments.text_field,
        sequence_length=arguments.length,
        batch_size=arguments.batch,
        lanes=arguments.lanes,
        epochs=arguments.epochs,
        seed=0,
        shuffle_window=64,  # small: a lane delivers its first row when a whole window is encoded
    )
    # Nothing here depends on --steps, so that a run may be started again with more of them.
    optimizer = optax.adamw(optax.linear_schedule(0, 3e-3, 20))
    init = jax.jit(
        functools.partial(init_state, arguments=arguments, vocabulary=encoder.largest_id + 1, optimizer=optimizer),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )
    state = init(jax.random.key(0))
    step_function = jax.jit(
        functools.partial(train_step, heads=arguments.heads, optimizer=optimizer, context=arguments.context),
        donate_argnums=0,
    )

    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    sharding = NamedSharding(mesh, PartitionSpec("data", "context"))
    with (
        ocp.CheckpointManager(folder / "checkpoints", options=options) as manager,
        gm.global_batches(dataset, sharding) as batches,
    ):
        start = manager.latest_step() or 0
        if start:
            saved = ocp.args.Composite(model=ocp.args.StandardRestore(state), data=gm.CheckpointRestore(batches))
            state = manager.restore(start, args=saved)["model"]
        log = LossLog(folder / "losses.jsonl", start)
        step = saved_step = start
        for batch in until_an_error(itertools.islice(batches, max(0, arguments.steps - start))):
            step += 1
            state, loss = step_function(state, batch)
            log.add(step, loss)
            # After a SIGTERM to any host: said to all of them behind the same step. A single process ends at once.
            is_preempted = manager.reached_preemption(step)
            if is_preempted or step % arguments.save_every == 0:
                save(manager, step, state, batches, log)
                saved_step = step
            if is_preempted:
                break
        if step > saved_step:
            save(manager, step, state, batches, log)
        report(log.path, batches.stats())


def until_an_error(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The batches. An error of this host's shards ends the process at once.

    The other hosts wait in a collective until this process has gone, and an ordinary exit would wait for them.
    """
    try:
        yield from batches
    except gm.GristmillError:
        traceback.print_exc()
        os._exit(1)


def save(
    manager: ocp.CheckpointManager, step: int, state: dict[str, Any], batches: gm.GlobalBatches, log: "LossLog"
) -> None:
    """Saves model and data together, after everything that was logged."""
    log.close()
    model = ocp.args.StandardSave(state)
    manager.save(step, args=ocp.args.Composite(model=model, data=gm.CheckpointSave(batches)))


def init_state(key: jax.Array, arguments: argparse.Namespace, vocabulary: int, optimizer: Any) -> dict[str, Any]:
    """Parameters and what the optimizer keeps of them."""
    width = arguments.width

    def matrix(key: jax.Array, rows: int, columns: int) -> jax.Array:
        return jax.random.normal(key, (rows, columns)) * rows**-0.5

    keys = iter(jax.random.split(key, 1 + 4 * arguments.layers))
    layers = [
        {
            "qkv": matrix(next(keys), width, 3 * width),
            "out": matrix(next(keys), width, width),
            "up": matrix(next(keys), width, 4 * width),
            "down": matrix(next(keys), 4 * width, width),
            "attention_norm": jnp.ones(width),
            "mlp_norm": jnp.ones(width),
        }
        for _ in range(arguments.layers)
    ]
    embedding = jax.random.normal(next(keys), (vocabulary, width)) * width**-0.5
    params = {"embedding": embedding, "layers": layers, "norm": jnp.ones(width)}
    return {"params": params, "optimizer": optimizer.init(params)}


def train_step(
    state: dict[str, Any], batch: Batch, heads: int, optimizer: Any, context: int = 1
) -> tuple[dict[str, Any], jax.Array]:
    """One step of the optimizer, and the mean loss before it."""
    batch = gm.context_parallel(batch, context)
    loss, gradients = jax.value_and_grad(loss_of)(state["params"], batch, heads)
    updates, kept = optimizer.update(gradients, state["optimizer"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "optimizer": kept}, loss


def loss_of(params: Params, batch: Batch, heads: int) -> jax.Array:
    """Mean cross-entropy over the tokens that have a target: no padding, no token that ends a document."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits_of(params, batch, heads), batch["targets"])
    counts = batch["targets_segmentation"] != 0
    return jnp.sum(losses * counts) / jnp.maximum(jnp.sum(counts), 1)


def logits_of(params: Params, batch: Batch, heads: int) -> jax.Array:
    """The logits of `inputs`: `[rows, length, vocabulary]`."""
    segments, positions = batch["inputs_segmentation"], batch["inputs_position"]
    # A token sees those before it in its own segment, in any order of tokens; padding (segment 0) sees only padding.
    visible = (segments[:, :, None] == segments[:, None, :]) & (positions[:, :, None] >= positions[:, None, :])
    x = params["embedding"][batch["inputs"]]
    for layer in params["layers"]:
        x = x + attention(layer, norm(x, layer["attention_norm"]), positions, visible, heads)
        x = x + jax.nn.gelu(norm(x, layer["mlp_norm"]) @ layer["up"]) @ layer["down"]
    return norm(x, params["norm"]) @ params["embedding"].T


def attention(layer: Params, x: jax.Array, positions: jax.Array, visible: jax.Array, heads: int) -> jax.Array:
    """Causal attention that does not look across documents."""
    rows, length, width = x.shape
    q, k, v = jnp.split((x @ layer["qkv"]).reshape(rows, length, 3 * heads, width // heads), 3, axis=2)
    q, k = rotate(q, positions), rotate(k, positions)
    scores = jnp.einsum("rqhd,rkhd->rhqk", q, k) * (width // heads) ** -0.5
    weights = jax.nn.softmax(jnp.where(visible[:, None], scores, -1e30))
    return jnp.einsum("rhqk,rkhd->rqhd", weights, v).reshape(rows, length, width) @ layer["out"]


def rotate(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Rotary positions, which in packed rows count from the start of each segment."""
    half = x.shape[-1] // 2
    angles = positions[:, :, None, None] * 10_000.0 ** (-jnp.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * jnp.cos(angles) - b * jnp.sin(angles), b * jnp.cos(angles) + a * jnp.sin(angles)], -1)


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """RMSNorm."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


class LossLog:
    """The loss of every step, one JSON line each, written by the first process.

    A step's loss is fetched when the next step is under way, so that the devices never wait for it.
    """

    def __init__(self, path: Path, start: int) -> None:
        self.path = path
        self._pending: tuple[int, jax.Array] | None = None
        if jax.process_index() == 0:
            # Steps logged after the last checkpoint will run again.
            lines = path.read_text().splitlines(keepends=True)[:start] if path.exists() else []
            path.write_text("".join(lines))

    def add(self, step: int, loss: jax.Array) -> None:
        """Takes a step's loss, and writes the one before it."""
        self.close()
        self._pending = (step, loss)

    def close(self) -> None:
        """Writes the last loss."""
        if self._pending is None:
            return
        step, loss = self._pending
        self._pending = None
        value = float(loss.addressable_data(0))
        if jax.process_index() == 0:
            with self.path.open("a") as lines:
                lines.write(json.dumps({"step": step, "loss": value}) + "\n")
            print(f"step {step:5d}  loss {value:.4f}", flush=True)


def report(path: Path, stats: dict[str, Any]) -> None:
    """Draws the curve, and answers whether the run was bound by its input."""
    if jax.process_index() != 0:
        return
    losses = [json.loads(line)["loss"] for line in path.read_text().splitlines()]
    if losses:
        print(drawn(losses))
    waited, elapsed = stats["wait_seconds"], stats["elapsed_seconds"]
    print(
        f"this host delivered {stats['tokens']:,} tokens of {stats['documents']:,} documents; "
        f"waited for input {waited:.2f} s of {elapsed:.1f} s ({waited / max(elapsed, 1e-9):.1%})"
    )
    try:
        from matplotlib import pyplot
    except ImportError:
        return
    pyplot.plot(range(1, len(losses) + 1), losses)
    pyplot.xlabel("step")
    pyplot.ylabel("loss")
    pyplot.savefig(path.with_suffix(".png"))


def drawn(losses: list[float], width: int = 64, height: int = 12) -> str:
    """The losses as a curve of text."""
    columns = min(width, len(losses))
    bounds = [round(i * len(losses) / columns) for i in range(columns + 1)]
    means = [sum(losses[a:b]) / (b - a) for a, b in itertools.pairwise(bounds)]
    low, high = min(means), max(means)
    levels = [round((mean - low) / (high - low or 1) * (height - 1)) for mean in means]
    rows = ["".join("*" if level == row else " " for level in levels) for row in reversed(range(height))]
    labels = {0: f"{high:8.4f}", height - 1: f"{low:8.4f}"}
    return "\n".join(f"{labels.get(i, ''):>8} |{row}" for i, row in enumerate(rows)) + f"\n{'':>8} +{'-' * columns}"


def make_tokenizer(folder: Path, arguments: argparse.Namespace) -> Path:
    """A byte-level BPE of 4096 tokens, trained on some of the text: small enough for a model this small."""
    path = folder / "tokenizer.json"
    if jax.process_index() == 0 and not path.exists():
        import gzip

        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=4096,
            special_tokens=["</s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        texts = []
        for shard in gm.Manifest.find(arguments.shards).paths[:4]:
            with gzip.open(shard, "rt", encoding="utf-8") as lines:
                texts += [json.loads(line)[arguments.text_field] for _, line in zip(range(500), lines, strict=False)]
        tokenizer.train_from_iterator(texts, trainer)
        (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
        tokenizer.save(str(path))
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("tokenizer")
    return path


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", default="demo-data/*/en_head.json.gz", help="a glob of gzipped JSONL files")
    parser.add_argument("--text-field", default="raw_content", help="key of a record that holds its text")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json; without it, a small one is trained")
    parser.add_argument("--folder", type=Path, default=Path("runs/example"), help="losses and checkpoints")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--epochs", type=int, help="endless without it")
    parser.add_argument("--batch", type=int, default=16, help="rows of the global batch")
    parser.add_argument("--lanes", type=int, help="a multiple of every number of hosts the run may ever have")
    parser.add_argument("--length", type=int, default=256, help="tokens of a row")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=1, help="devices that divide the tokens of a row")
    parser.add_argument("--hosts", type=int, default=1, help="number of processes")
    parser.add_argument("--host", type=int, default=0, help="which of them this is")
    parser.add_argument("--coordinator", help="address:port of the first one")
    return parser.parse_args()


if __name__ == "__main__":
    main()
