"""Orbax checkpoints of the stream in one process; `test_hosts` has those of several."""

import asyncio
import json
import subprocess
import sys
import textwrap
import threading

import grain
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gristmill as gm
from gristmill._state.checkpoint_files import file_name, read_merged
from helpers import PATIENCE, assert_same_batches


@pytest.fixture(scope="module")
def sharding():
    return NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))


@pytest.fixture
def dataset(shards, encoder):
    return gm.PackedDataset(
        shards, tokenizer=encoder, text_field="raw_content", sequence_length=512, batch_size=8, lanes=4, threads=2
    )


@pytest.mark.parametrize("kind", ["global", "bare"])
def test_composite_checkpoint_holds_model_and_stream(tmp_path, dataset, sharding, kind):
    def make():
        return gm.global_batches(dataset, sharding) if kind == "global" else iter(dataset)

    expected = list(dataset)
    batches = make()
    with ocp.CheckpointManager(tmp_path, options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager:
        for step in range(1, 8):
            next(batches)
            model = {"weights": jnp.full((4,), float(step))}
            composite = ocp.args.Composite(model=ocp.args.StandardSave(model), data=gm.CheckpointSave(batches))
            manager.save(step, args=composite)
        # save() takes the state when it is called: batches that are delivered meanwhile do not change it.
        rest = list(batches)
        manager.wait_until_finished()
        assert manager.all_steps() == [6, 7]
    assert len(rest) == len(expected) - 7
    batches.close()
    with ocp.CheckpointManager(tmp_path) as manager:
        for step in (6, 7):
            again = make()
            restored = manager.restore(
                step,
                args=ocp.args.Composite(
                    model=ocp.args.StandardRestore({"weights": jnp.zeros(4)}), data=gm.CheckpointRestore(again)
                ),
            )
            assert restored["model"]["weights"].tolist() == [step] * 4
            assert restored["data"] is again
            assert_same_batches(again, expected[step:])
            again.close()


def test_saving_does_not_wait_for_the_disk(tmp_path, dataset, monkeypatch):
    """While a slow save runs, the stream continues; the state saved is that of the call."""
    iterator = iter(dataset)
    next(iterator)
    state = iterator.get_state()
    may_write = threading.Event()
    path_type = type(epath.Path(tmp_path))
    write = path_type.write_text

    def slow(self, *arguments, **keywords):
        if self.name.startswith("process_"):
            assert may_write.wait(60)
        return write(self, *arguments, **keywords)

    monkeypatch.setattr(path_type, "write_text", slow)
    with ocp.AsyncCheckpointer(gm.CheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "x", args=gm.CheckpointSave(iterator))
        rest = list(iterator)
        assert rest
        may_write.set()
        checkpointer.wait_until_finished()
        assert json.loads((tmp_path / "x" / "process_0-of-1.json").read_text()) == state
        again = iter(dataset)
        checkpointer.restore(tmp_path / "x", args=gm.CheckpointRestore(again))
    assert_same_batches(again, rest)


@pytest.mark.parametrize("kind", ["global", "bare", "batched by grain"])
def test_grain_checkpoint_arguments_work(tmp_path, dataset, sharding, kind):
    make = {
        "global": lambda: gm.global_batches(dataset, sharding),
        "bare": lambda: iter(dataset),
        "batched by grain": lambda: iter(dataset.map(lambda batch: dict(batch)).batch(2, drop_remainder=True)),
    }[kind]
    iterator = make()
    for _ in range(3):
        next(iterator)
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(3, args=ocp.args.Composite(data=grain.checkpoint.CheckpointSave(iterator)))
        manager.wait_until_finished()
        rest = list(iterator)
        again = make()
        manager.restore(3, args=ocp.args.Composite(data=grain.checkpoint.CheckpointRestore(again)))
        assert_same_batches(again, rest)
        if kind != "batched by grain":  # gristmill's handler reads the files that Grain's wrote
            ours = make()
            manager2 = ocp.Checkpointer(gm.CheckpointHandler())
            manager2.restore(tmp_path / "3" / "data", args=gm.CheckpointRestore(ours))
            assert_same_batches(ours, rest)


def test_error_for_wrapped_iterators_names_grain_checkpoint(dataset):
    with pytest.raises(TypeError, match=r"use grain\.checkpoint\.CheckpointSave and the same number"):
        gm.CheckpointSave(iter(dataset.map(lambda batch: batch)))
    with pytest.raises(TypeError, match=r"use grain\.checkpoint\.CheckpointRestore"):
        gm.CheckpointRestore(iter(dataset.map(lambda batch: batch)))


def save_by_hand(folder, states):
    folder.mkdir()
    for process, state in enumerate(states):
        (folder / f"process_{process}-of-{len(states)}.json").write_text(json.dumps(state))


@pytest.fixture
def states(shards, encoder):
    """The states of two hosts after two steps."""
    found = []
    for host in range(2):
        iterator = iter(
            gm.PackedDataset(
                shards, tokenizer=encoder, text_field="raw_content", sequence_length=512, batch_size=8, lanes=4,
                shard_index=host, shard_count=2,
            )
        )  # fmt: skip
        next(iterator), next(iterator)
        found.append(iterator.get_state())
    return found


def test_files_of_all_processes_are_merged(tmp_path, dataset, states):
    save_by_hand(tmp_path / "x", states)
    expected = list(dataset)[2:]
    restored = iter(dataset)
    ocp.Checkpointer(gm.CheckpointHandler()).restore(tmp_path / "x", args=gm.CheckpointRestore(restored))
    assert_same_batches(restored, expected)

    with ocp.Checkpointer(gm.CheckpointHandler()) as checkpointer:  # the synchronous one
        checkpointer.save(tmp_path / "y", args=gm.CheckpointSave(restored))
    assert json.loads((tmp_path / "y" / "process_0-of-1.json").read_text()) == restored.get_state()

    async def save(folder):  # in a program that runs an event loop, such as a notebook
        folder.mkdir()
        gm.CheckpointHandler().save(folder, gm.CheckpointSave(restored))

    asyncio.run(save(tmp_path / "z"))
    assert json.loads((tmp_path / "z" / "process_0-of-1.json").read_text()) == restored.get_state()

    async def load(iterator, folder):  # the call of Orbax's newer interface
        await (await iterator.load(folder))

    restored = iter(dataset)
    asyncio.run(load(restored, tmp_path / "x"))
    assert_same_batches(restored, expected)


def test_files_of_all_processes_are_read_in_parallel(tmp_path, states, monkeypatch):
    """Each read waits until another one has begun, too."""
    save_by_hand(tmp_path / "x", states)
    both = threading.Barrier(len(states), timeout=PATIENCE)
    path_type = type(epath.Path(tmp_path))
    read = path_type.read_text

    def with_another(path):
        both.wait()
        return read(path)

    monkeypatch.setattr(path_type, "read_text", with_another)
    assert read_merged(epath.Path(tmp_path / "x")) == gm.merge_states(states)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "process_1-of-2.json").unlink(), "process_1-of-2.json is missing from the 2 states"),
        (
            lambda folder: (folder / "process_1-of-2.json").rename(folder / "process_7-of-2.json"),
            "process_1-of-2.json is missing from the 2 states",
        ),
        (
            lambda folder: [path.rename(folder / f"{path.stem}{'9' * 11}.json") for path in [*folder.iterdir()]],
            "process_2-of-299999999999.json, .* are missing from the 299999999999 states",
        ),
        (lambda folder: (folder / "process_0-of-3.json").write_text("{}"), "expected the states of one save"),
        (lambda folder: [path.unlink() for path in folder.iterdir()], "got none"),
        (lambda folder: (folder / "process_0-of-2.json").write_text('{"version": '), "of-2.json: not a saved state"),
        (lambda folder: set_step(folder / "process_1-of-2.json", 7), "/x: the states were saved at different steps, "),
    ],
)
def test_damaged_checkpoint_folder_is_refused(tmp_path, dataset, states, damage, message):
    save_by_hand(tmp_path / "x", states)
    damage(tmp_path / "x")
    iterator = iter(dataset)
    next(iterator)
    before = iterator.get_state()
    with pytest.raises(gm.StateError, match=message):
        ocp.Checkpointer(gm.CheckpointHandler()).restore(tmp_path / "x", args=gm.CheckpointRestore(iterator))
    assert iterator.get_state() == before


def set_step(path, step):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"step": step}))


@pytest.mark.parametrize("make", [gm.CheckpointSave, gm.CheckpointRestore])
def test_checkpoint_of_a_dataset_is_refused(dataset, make):
    with pytest.raises(gm.ArgumentTypeError, match="got the dataset itself"):
        make(dataset)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "library"), [("CheckpointSave", "orbax"), ("global_batches", "jax")])
def test_missing_library_error_names_the_extra(name, library):
    code = f"""
    import sys, gristmill as gm
    sys.modules[{library!r}] = None
    if {library!r} == "orbax":
        gm.global_batches, gm.PackedDataset
    try:
        gm.{name}
    except gm.MissingExtraError as error:
        assert isinstance(error, ImportError)
        print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert "pip install 'gristmill[jax]'" in done.stdout, done.stderr
    assert f"gristmill.{name} needs {library}" in done.stdout


def test_state_within_a_step_of_one_process_is_read_unchanged(tmp_path, shards, encoder):
    iterator = iter(gm.PackedDataset(shards, tokenizer=encoder, text_field="raw_content"))
    next(iterator)
    state = iterator.get_state()
    assert state["row"] == 1
    (tmp_path / file_name(0, 1)).write_text(json.dumps(state))
    assert read_merged(epath.Path(tmp_path)) == state
