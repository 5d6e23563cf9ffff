"""The programs of `run_hosts.run_hosts`: checks inside a real multi-process JAX program."""

import contextlib
import hashlib
import itertools
import json
import os
import pickle
import signal
import sys
import traceback
import unittest.mock
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gristmill as gm
from gristmill.integrations import maxtext

# For each mesh: a function of 8 devices as [host, device of the host] to axes and partition spec.
MESHES = {
    "data": lambda d: ((d.reshape(8), ("data",)), PartitionSpec("data")),
    "data x fsdp": lambda d: ((d.reshape(4, 2), ("data", "fsdp")), PartitionSpec(("data", "fsdp"))),
    "data x tensor in a host": lambda d: ((d.reshape(4, 2), ("data", "tensor")), PartitionSpec("data")),
    "data x tensor across hosts": lambda d: ((_across(d), ("data", "tensor")), PartitionSpec("data")),
    "data x context in a host": lambda d: ((d.reshape(4, 2), ("data", "context")), PartitionSpec("data", "context")),
    "data x context across hosts": lambda d: ((_across(d), ("data", "context")), PartitionSpec("data", "context")),
    "rows dealt in turn": lambda d: ((d.T.reshape(8), ("data",)), PartitionSpec("data")),
    "replicas alone": lambda d: ((d.reshape(8), ("tensor",)), PartitionSpec()),
}


def _across(devices: np.ndarray) -> np.ndarray:
    """Pairs of devices of neighbouring hosts."""
    hosts, own = devices.shape
    return devices.reshape(hosts // 2, 2, own).swapaxes(1, 2).reshape(4, 2)


def make_sharding(mesh: str) -> NamedSharding:
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    (grid, axes), spec = MESHES[mesh](np.array(devices).reshape(jax.process_count(), -1))
    return NamedSharding(Mesh(grid, axes), spec)


def maxtext_config(config: dict[str, Any], fails: str | None) -> dict[str, Any]:
    """Hashes of all batches of training and evaluation by a config of MaxText's, the states after each, and the error.

    The last host lacks its files, or is interrupted before the third batch, if `fails` says so.
    """
    is_last = jax.process_index() == jax.process_count() - 1 and fails is not None
    if is_last and fails == "file":
        config["grain_train_files"] = "missing.jsonl"
    found: dict[str, Any] = {"train": [], "evaluation": [], "states": [], "error": ""}
    mesh = Mesh(np.array(jax.devices()), ("data",))
    try:
        train, evaluation = maxtext.make_gristmill_iterators(SimpleNamespace(eval_interval=5, **config), mesh)
    except Exception as error:
        return {**found, "error": str(error)}
    try:
        with contextlib.suppress(StopIteration):
            while True:
                if is_last and fails == "interrupt" and len(found["train"]) == 2:
                    signal.raise_signal(signal.SIGINT)
                found["train"].append(_hash(next(train)))
                found["states"].append(train.local_iterator.get_state())
    except maxtext.LoadError as error:
        found["error"] = str(error)
    found["states"].append(train.local_iterator.get_state())
    if not found["error"]:
        for _ in range(2):
            found["evaluation"] += [_hash(batch) for batch in evaluation]
    return found


def _hash(batch: dict[str, jax.Array]) -> str:
    whole = multihost_utils.process_allgather(batch, tiled=True)
    return hashlib.sha256(b"".join(whole[name].tobytes() for name in sorted(whole))).hexdigest()


def maxtext_stream(dataset: Any, after: int, state: Any) -> dict[str, Any]:
    """Hashes of the batches after some, or after a state, of MaxText's iterator, and the state there."""
    iterator = maxtext.DataLoadIterator(dataset, Mesh(np.array(jax.devices()), ("data",)))
    if state is None:
        for _ in range(after):
            next(iterator)
    else:
        iterator.local_iterator.set_state(json.loads(json.dumps(state)))
    found = iterator.local_iterator.get_state()
    rest = []
    # Not a for loop, which starts over.
    with contextlib.suppress(StopIteration):
        while True:
            rest.append(_hash(next(iterator)))
    iterator.close()
    return {"state": found, "rest": rest}


def prompts(dataset: Any, expected: list[dict[str, np.ndarray]], state: Any, others: dict[int, Any]) -> dict[str, Any]:
    """Global batches of prompts on some meshes, resumed in the middle; and the error where a host has others."""
    found: dict[str, Any] = {}
    for mesh in MESHES:
        with gm.global_batches(dataset, make_sharding(mesh)) as batches:
            first = list(batches)
            batches.set_state(state)
            rest = list(batches)
            found[mesh] = [_prompt_difference(first, expected), _prompt_difference(rest, expected[-len(rest) :])]
            batches.set_state(state if jax.process_index() else state | {"place": 0, "epoch": 0})
            try:
                next(batches)
            except gm.StateError as error:
                found["steps"] = str(error)
    try:
        gm.global_batches(others.get(jax.process_index(), dataset), make_sharding("data"))
    except gm.ArgumentError as error:
        found["error"] = str(error)
    return found


def _prompt_difference(batches: list[dict[str, Any]], expected: list[dict[str, np.ndarray]]) -> str | None:
    """Where this process's rows differ from those of a single process, or None."""
    for step, (batch, whole) in enumerate(itertools.zip_longest(batches, expected)):
        if batch is None or whole is None:
            return f"{len(batches)} steps instead of {len(expected)}"
        rows = {i for shard in batch["index"].addressable_shards for i in range(len(whole["index"]))[shard.index[0]]}
        for name, array in batch.items():
            if isinstance(array, np.ndarray):
                if array.tolist() != whole[name][sorted(rows)].tolist():
                    return f"step {step}, {name}"
                continue
            for shard in array.addressable_shards:
                if not np.array_equal(shard.data, whole[name][shard.index]):
                    return f"step {step}, {name} {shard.index}"
    return None


def first_difference(batches: list[dict[str, jax.Array]], expected: list[dict[str, np.ndarray]]) -> str | None:
    """Where this process's parts of the global batches differ from the batches of a single process, or None."""
    for step, (batch, whole) in enumerate(itertools.zip_longest(batches, expected)):
        if batch is None or whole is None:
            return f"{len(batches)} steps instead of {len(expected)}"
        if list(batch) != list(whole):
            return f"step {step} has {list(batch)}"
        for name, array in batch.items():
            if array.shape != whole[name].shape or array.dtype != whole[name].dtype:
                return f"step {step}, {name}: {array.dtype} {array.shape}"
            for shard in array.addressable_shards:
                if not np.array_equal(shard.data, whole[name][shard.index]):
                    return f"step {step}, {name} {shard.index}"
    return None


def stream(dataset: gm.PackedDataset, expected: list, states: list, meshes: list[str], restore: list[int]) -> dict:
    """Takes the whole stream on each mesh, and again from some steps; keeps all arrays until the end."""
    outcomes: dict[str, Any] = {}
    for number, mesh in enumerate(meshes):
        sharding = make_sharding(mesh)
        # A training script may have set a mesh of its own, with devices in another order.
        context = contextlib.nullcontext() if number % 2 else jax.set_mesh(sharding.mesh)
        with context, gm.global_batches(dataset, sharding) as batches:
            kept, own_states = [], [batches.get_state()]
            for batch in batches:
                kept.append(batch)
                own_states.append(batches.get_state())
            for _ in range(2):  # the end is final
                assert next(batches, None) is None
            gm.check_replicas(kept[-1])
            stats = batches.stats()
            problems = [first_difference(kept, expected)]
            # From the state of all hosts, and from this one's own.
            for step, known in itertools.product(restore, (states, own_states)):
                batches.set_state(known[step])
                problems.append(first_difference(list(batches), expected[step:]))
                problems.append(None if batches.get_state() == own_states[-1] else f"the state after {step}")
            # Buffers have been reused since: earlier arrays must not have changed.
            problems.append(first_difference(kept, expected))
        outcomes[mesh] = {"problems": [p for p in problems if p], "states": own_states, "stats": stats}
    return outcomes


def expanded(dataset: gm.PackedDataset, expected: list, meshes: list[str]) -> dict[str, Any]:
    """Where the arrays that the devices make of compact batches differ from those of a single process, by mesh."""
    found: dict[str, Any] = {}
    expand = jax.jit(gm.expand)
    for mesh in meshes:
        with gm.global_batches(dataset, make_sharding(mesh)) as batches:
            arrays = map(expand, batches)
            batches_of_layout = [{name: batch[name] for name in expected[0]} for batch in arrays]
        found[mesh] = first_difference(batches_of_layout, expected)
    return found


def endless(dataset: gm.PackedDataset, expected: list, mesh: str) -> str | None:
    with gm.global_batches(dataset, make_sharding(mesh)) as batches:
        return first_difference(list(itertools.islice(batches, len(expected))), expected)


def train(
    dataset: gm.PackedDataset, expected: list, mesh: str, folder: str, until: int, die: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Adds up all tokens, as a model would learn from them, with a checkpoint after every other step.

    Resumes from the last checkpoint in `folder`. `die` names a host and the step in which it dies.
    """
    sharding = make_sharding(mesh)
    learn = jax.jit(lambda total, batch: total + batch["inputs"].sum())
    total = jax.device_put(np.int32(0), NamedSharding(sharding.mesh, PartitionSpec()))
    with ocp.CheckpointManager(folder) as manager, gm.global_batches(dataset, sharding) as batches:
        start = manager.latest_step() or 0
        if start:
            saved = ocp.args.Composite(
                model=ocp.args.StandardRestore({"total": total}), data=gm.CheckpointRestore(batches)
            )
            total = manager.restore(start, args=saved)["model"]["total"]
        taken = []
        for step, batch in zip(range(start, until), batches, strict=False):
            if die == (jax.process_index(), step):
                os._exit(9)
            total = learn(total, batch)
            taken.append(batch)
            if step % 2 or step + 1 == until:
                saving = ocp.args.Composite(
                    model=ocp.args.StandardSave({"total": total}), data=gm.CheckpointSave(batches)
                )
                manager.save(step + 1, args=saving)
        manager.wait_until_finished()
    problem = first_difference(taken, expected[start:until])
    return {"start": start, "problem": problem, "total": int(total.addressable_data(0))}


def differing_replicas() -> dict[str, str]:
    """The errors of `check_replicas` for replicas with different rows, and for values that are not JAX arrays."""
    sharding = make_sharding("data x tensor across hosts")
    rows = np.arange(16 * 8, dtype=np.int32).reshape(16, 8)
    good = jax.make_array_from_process_local_data(sharding, rows, rows.shape)
    gm.check_replicas(good)
    everywhere = NamedSharding(sharding.mesh, PartitionSpec())
    gm.check_replicas({"key": jax.jit(lambda: jax.random.key(0), out_shardings=everywhere)()})
    rows = rows.copy()
    if jax.process_index() == 1:
        rows[5, 3] = -1
        rows[14] = 0
    bad = jax.make_array_from_process_local_data(sharding, rows, rows.shape)
    said = {}
    for name, batch in {"differ": {"good": good, "inputs": bad}, "numpy": {"inputs": rows}}.items():
        try:
            gm.check_replicas(batch)
        except gm.GristmillError as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


def differing_streams(
    dataset: gm.PackedDataset, others: dict[int, gm.PackedDataset], releases: dict[int, str] | None = None
) -> str | None:
    """The error of `global_batches` where some hosts have other datasets, or other releases of gristmill."""
    release = (releases or {}).get(jax.process_index(), gm.__version__)
    try:
        with unittest.mock.patch("gristmill._core.__version__", release):
            gm.global_batches(others.get(jax.process_index(), dataset), make_sharding("data")).close()
    except gm.GristmillError as error:
        return f"{type(error).__name__}: {error}"
    return None


def differing_steps(dataset: gm.PackedDataset, expected: list, states: dict[int, dict], state: dict) -> list:
    """The errors of `next` where hosts were restored at different steps; then all are restored at one."""
    said = []
    with gm.global_batches(dataset, make_sharding("data")) as batches:
        batches.set_state(states[jax.process_index() % len(states)])
        for _ in range(2):
            try:
                next(batches)
            except gm.GristmillError as error:
                said.append(f"{type(error).__name__}: {error}")
        batches.set_state(state)
        return [*said, first_difference(list(batches), expected[state["step"] :])]


def replicas_with_other_shards(datasets: dict[int, gm.PackedDataset], meshes: list[str]) -> list:
    """For each mesh, the number of steps and the errors where one host quarantines records that others do not."""
    taken = []
    for mesh in meshes:
        with gm.global_batches(datasets[jax.process_index()], make_sharding(mesh)) as batches:
            steps, said = 0, []
            for _ in range(2):
                try:
                    for _ in batches:
                        steps += 1
                except gm.GristmillError as error:
                    said.append(f"{type(error).__name__}: {error}")
            taken.append((steps, said))
    return taken


def host_that_ends(dataset: gm.PackedDataset) -> str | None:
    """The error of `next` on the first host once the other has ended after three batches."""
    sharding = NamedSharding(Mesh(jax.devices(), ("data",)), PartitionSpec("data"))
    batches = gm.global_batches(dataset, sharding)
    for _ in range(3):
        next(batches)
    if jax.process_index() == 1:
        return None
    try:
        for _ in batches:
            pass
    except gm.GristmillError as error:
        return str(error)
    return "there was no error"


def several(programs: list[tuple[str, dict]]) -> list[Any]:
    """Runs several programs in one start of the processes, which takes seconds."""
    return [globals()[program](**arguments) for program, arguments in programs]


def main(program: str, folder: str, host: str, hosts: str, port: str) -> None:
    if int(hosts) > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=int(hosts), process_id=int(host))
    arguments = pickle.loads((Path(folder) / "arguments.pickle").read_bytes())
    result = globals()[program](**arguments)
    (Path(folder) / f"result-{host}").write_bytes(pickle.dumps(result))
    if program == "host_that_ends":
        os._exit(0)  # at once, as if the process had crashed


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # leaving in order would wait for the other hosts
