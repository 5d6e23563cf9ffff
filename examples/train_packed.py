r"""Trains from rows that `gristmill pack` has written, shuffled as a whole by Grain, with exact resume.

    gristmill pack 'demo-data/*/*.gz' --tokenizer demo-data/tokenizer --text-field raw_content \
        --sequence-length 256 --output packed
    python examples/train_packed.py --packed packed --folder runs/packed

Each epoch has all rows in another order. Started again with the same command, it continues after the last checkpoint
with the same losses, also on another number of hosts: step t has rows t * batch up to (t + 1) * batch of the shuffled
ones, whoever reads them. The model is that of train.py, beside this file. Besides gristmill it needs `optax`.
"""

import argparse
import functools
import json
from pathlib import Path

import grain
import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from train import init_state, train_step

import gristmill as gm


def main() -> None:
    """The whole of a training script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packed", required=True, help="the packed folder")
    parser.add_argument("--folder", type=Path, required=True, help="where checkpoints and losses go")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=20)
    for name, default in {"batch": 8, "width": 64, "layers": 2, "heads": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--host", type=int, default=0)
    parser.add_argument("--coordinator", default="127.0.0.1:7777")
    arguments = parser.parse_args()
    if arguments.hosts > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")  # other platforms have their own
        jax.distributed.initialize(arguments.coordinator, num_processes=arguments.hosts, process_id=arguments.host)
    mesh = Mesh(jax.devices(), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)

    rows = gm.PackedRows(arguments.packed)
    own = arguments.batch // jax.process_count()
    batches = grain.MapDataset.source(rows).seed(0).shuffle().repeat().batch(own)
    iterator = iter(batches[jax.process_index() :: jax.process_count()].to_iter_dataset())

    optimizer = optax.adamw(1e-3)
    vocabulary = 1 + max(int(row["inputs"].max()) for row in rows)  # with a tokenizer: encoder.largest_id + 1
    init = functools.partial(init_state, arguments=arguments, vocabulary=vocabulary, optimizer=optimizer)
    state = jax.jit(init, out_shardings=NamedSharding(mesh, PartitionSpec()))(jax.random.key(0))
    step_function = jax.jit(functools.partial(train_step, heads=arguments.heads, optimizer=optimizer), donate_argnums=0)

    with ocp.CheckpointManager(folder / "checkpoints", options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager:
        start = manager.latest_step() or 0
        if start:
            wanted = ocp.args.Composite(model=ocp.args.StandardRestore(state), data=ocp.args.JsonRestore())
            saved = manager.restore(start, args=wanted)
            state = saved["model"]
            iterator.set_state(saved["data"])
        log = folder / f"losses-{jax.process_index()}.jsonl"
        lines = log.read_text().splitlines(keepends=True)[:start] if log.exists() else []
        log.write_text("".join(lines))
        for step in range(start + 1, arguments.steps + 1):
            local = next(iterator)
            batch = {name: jax.make_array_from_process_local_data(sharding, np.asarray(local[name])) for name in local}
            state, loss = step_function(state, batch)
            with log.open("a") as file:
                file.write(json.dumps({"step": step, "loss": float(loss)}) + "\n")
            if step % arguments.save_every == 0 or step == arguments.steps:
                # The same on all hosts: the number of batches that each has read.
                data = ocp.args.JsonSave(iterator.get_state())
                manager.save(step, args=ocp.args.Composite(model=ocp.args.StandardSave(state), data=data))
                print(f"step {step:5d}  loss {float(loss):.4f}", flush=True)


if __name__ == "__main__":
    main()
