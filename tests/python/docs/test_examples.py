"""The examples run unchanged, and do what they claim."""

import json
import os
import re
import runpy
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import gristmill as gm
from chat_models import write_vision
from helpers import PATIENCE, ROOT, tar_of, write_shard
from images import captions, image

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"
TINY = ["--batch", "8", "--length", "64", "--width", "16", "--layers", "1", "--heads", "2"]


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """A compilation cache that all programs share."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        environment.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        environment.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        yield


def start(folder, shards, tokenizer_file, steps, *more, devices=1):
    command = [
        sys.executable, str(EXAMPLES / "train.py"), "--shards", shards, "--tokenizer", str(tokenizer_file),
        "--folder", str(folder), "--steps", str(steps), "--save-every", "4", *TINY, *more,
    ]  # fmt: skip
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


@pytest.mark.parametrize("loss", ["grpo", "distill"])
def test_packed_rollouts_train_as_unpacked_ones(tmp_path, loss):
    command = [sys.executable, str(EXAMPLES / "train_rollouts.py"), "--folder", str(tmp_path), "--loss", loss]
    options = ["--count", "24", "--length", "32", "--width", "16", "--layers", "1", "--steps", "12"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True, env=environment)
    first, *steps = done.stdout.splitlines()
    compared = json.loads(first)
    packed, unpacked = compared["packed"], compared["unpacked"]
    assert packed["trained tokens"] == unpacked["trained tokens"] > 0
    assert packed["elements"] < unpacked["elements"]
    assert packed["loss"] == pytest.approx(unpacked["loss"], rel=1e-4)
    assert compared["gradients differ by"] < 1e-4
    assert len(steps) == 2


def start_two_hosts(*arguments):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return [start(*arguments, "--hosts", "2", "--host", str(host), "--coordinator", address) for host in range(2)]


def finish(*processes):
    """Waits for the processes and returns their output; kills all when one fails or time is up."""
    until = time.monotonic() + PATIENCE
    try:
        outputs = [process.communicate(timeout=max(1, until - time.monotonic()))[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    ends = "\n".join(output[-3000:] for output in outputs)
    assert [process.returncode for process in processes] == [0] * len(processes), ends
    return outputs


def losses(folder):
    return [json.loads(line) for line in (folder / "losses.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, shards, tokenizer_file):
    """The losses of an uninterrupted run on one host."""
    folder = tmp_path_factory.mktemp("whole")
    (output,) = finish(start(folder, shards, tokenizer_file, 14))
    whole = losses(folder)
    assert [entry["step"] for entry in whole] == list(range(1, 15))
    # The losses of neighbouring batches differ by that much.
    first, last = (statistics.mean(entry["loss"] for entry in some) for some in (whole[:5], whole[-5:]))
    assert last < first - 0.05
    assert "waited for input" in output
    assert " |*" in output  # the curve
    return whole


def test_killed_training_resumes_bit_for_bit(tmp_path, shards, tokenizer_file, whole):
    process = start(tmp_path / "killed", shards, tokenizer_file, 10**6)
    killer = threading.Timer(PATIENCE, process.kill)  # in case no step comes
    killer.start()
    for line in process.stdout:
        if line.startswith("step     6"):
            process.send_signal(signal.SIGKILL)
            break
    process.communicate(timeout=PATIENCE)
    killer.cancel()
    assert process.returncode == -signal.SIGKILL
    before = losses(tmp_path / "killed")
    assert len(before) >= 6
    finish(start(tmp_path / "killed", shards, tokenizer_file, 14))
    assert losses(tmp_path / "killed") == whole


def test_training_on_two_hosts_resumes_on_one(tmp_path, shards, tokenizer_file, whole):
    folder = tmp_path / "run"
    outputs = finish(*start_two_hosts(folder, shards, tokenizer_file, 4))
    assert "step     4" in outputs[0]
    assert "step" not in outputs[1]
    finish(start(folder, shards, tokenizer_file, 8, devices=2))
    together = losses(folder)
    assert [entry["step"] for entry in together] == list(range(1, 9))
    np.testing.assert_allclose([e["loss"] for e in together], [e["loss"] for e in whole[:8]], rtol=1e-4)


def test_rows_divided_between_two_hosts_have_the_same_losses(tmp_path, shards, tokenizer_file, whole):
    folder = tmp_path / "run"
    finish(*start_two_hosts(folder, shards, tokenizer_file, 8, "--context", "2"))
    divided = losses(folder)
    assert [entry["step"] for entry in divided] == list(range(1, 9))
    np.testing.assert_allclose([e["loss"] for e in divided], [e["loss"] for e in whole[:8]], rtol=1e-4)


def test_terminated_host_saves_and_ends_both(tmp_path, shards, tokenizer_file):
    folder = tmp_path / "run"
    both = start_two_hosts(folder, shards, tokenizer_file, 10**6, "--save-every", str(10**6))
    killers = [threading.Timer(PATIENCE, process.kill) for process in both]  # in case no step comes
    for killer in killers:
        killer.start()
    for line in both[0].stdout:
        if line.startswith("step     2"):
            both[1].send_signal(signal.SIGTERM)
            break
    finish(*both)
    for killer in killers:
        killer.cancel()
    last = losses(folder)[-1]["step"]
    assert [path.name for path in (folder / "checkpoints").iterdir() if path.name.isdigit()] == [str(last)]


def test_shard_error_on_one_host_ends_both(tmp_path, texts, tokenizer_file):
    for number in range(2):
        write_shard(tmp_path / f"{number}.jsonl", texts[:80])
    with (tmp_path / "1.jsonl").open("a") as shard:
        shard.write("bad\n")
    both = start_two_hosts(tmp_path / "run", str(tmp_path / "*.jsonl"), tokenizer_file, 10**6, "--lanes", "2")
    with pytest.raises(AssertionError, match="ShardError"):  # from finish: their exit codes
        finish(*both)
    assert all(process.returncode not in (0, -signal.SIGKILL) for process in both)
    assert len(losses(tmp_path / "run")) > 2


@pytest.fixture
def dataset(shards, encoder):
    return gm.PackedDataset(
        shards, tokenizer=encoder, text_field="raw_content", sequence_length=512, batch_size=8, lanes=4
    )


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


def test_maxtext_example_has_the_expected_interface(dataset):
    """Uses the iterator as MaxText's trainer does; tests/python/integrations/test_maxtext_text.py has all else."""
    example = runpy.run_path(str(EXAMPLES / "maxtext_gristmill.py"))
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "fsdp"))
    iterator = example["DataLoadIterator"](dataset, mesh)
    expected = list(dataset)
    assert all(same(next(iterator), batch) for batch in expected[:3])
    again = example["DataLoadIterator"](dataset, mesh)
    again.local_iterator.set_state(iterator.local_iterator.get_state())
    assert same(next(again), expected[3])
    again.close()
    assert same(next(iter(iterator)), expected[0])  # iter() starts over, as MaxText's does
    iterator.close()
    # MaxText's own class divides a host's rows evenly among its devices, in mesh order.
    loader = dataset.for_sharding(example["input_sharding"](mesh))
    assert same(next(iter(loader)), expected[0])


@pytest.mark.slow
def test_fine_tuning_learns_answers_and_not_questions(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "fine_tune.py"), "--folder", str(tmp_path), "--steps", "150"],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"loss ([0-9.]+) of trained tokens, ([0-9.]+) of all others", done.stdout)
    (first, first_others), (last, last_others) = (tuple(map(float, losses[at])) for at in (0, -1))
    assert last < first / 3
    assert last_others > first_others / 2
    assert re.search(r"[0-9,]+ of [0-9,]+ tokens were trained on", done.stdout)


def test_code_blocks_of_the_training_guide_run(tmp_path, shard_folder, tokenizer_file):
    text = (EXAMPLES.parent / "docs" / "training.md").read_text()
    code = "".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    assert code.count("gm.") > 5
    (tmp_path / "demo-data").mkdir()
    for path in shard_folder.iterdir():
        (tmp_path / "demo-data" / path.name).symlink_to(path)
    (tmp_path / "demo-data/tokenizer").symlink_to(tokenizer_file.parent)
    script = tmp_path / "guide.py"
    script.write_text(code)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "340 documents" in done.stdout
    assert "waited for input" in done.stdout


@pytest.mark.slow
def test_captions_are_learnt_and_a_resumed_run_has_equal_losses(tmp_path):
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    for number in range(6):
        (photographs / f"{number}.png").write_bytes(image(40 + number, 30, number))
        (photographs / f"{number}.txt").write_text(f"Picture number {number}, of noise.")

    def run(folder, *more):
        done = subprocess.run(
            [
                sys.executable, str(EXAMPLES / "caption_photographs.py"), "--photographs", str(photographs),
                "--folder", str(tmp_path / folder), "--steps", "60", *more,
            ],
            capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return re.findall(r"step +([0-9]+): loss ([0-9.]+)", done.stdout), done.stdout

    whole, shown = run("whole")
    assert float(whole[-1][1]) < float(whole[0][1]) / 3
    assert re.search(r"[0-9,]+ images, [0-9,]+ of [0-9,]+ tokens were trained on", shown)
    first, _ = run("parts", "--stop-at", "30")
    rest, _ = run("parts")
    assert first + rest == whole


def test_energon_example_prints_lines_that_read_the_folder(tmp_path, capsys, monkeypatch):
    (tmp_path / ".nv-meta").mkdir()
    for name in ("train.tar", "val.tar"):
        (tmp_path / name).write_bytes(tar_of(captions(5)))
    splits = {"split_parts": {"train": ["train.tar"], "val": ["val.tar"], "test": []}}
    (tmp_path / ".nv-meta/split.yaml").write_text(json.dumps(splits))
    (tmp_path / ".nv-meta/.info.json").write_text(json.dumps({"shard_counts": {"train.tar": 5, "val.tar": 5}}))
    mix = {"__class__": "MetadatasetV2", "splits": {"train": {"path": "."}, "val": {"path": "."}}}
    (tmp_path / "mix.yaml").write_text(json.dumps(mix))
    tokenizer = write_vision(tmp_path / "model")
    example = runpy.run_path(str(EXAMPLES / "from_energon.py"))
    for path in (tmp_path, tmp_path / "mix.yaml"):
        options = ["--tokenizer", str(tokenizer), "--model", "qwen2-vl", "--sequence-length", "512"]
        example["main"]([str(path), *options, "--batch-size", "2"])
        printed = capsys.readouterr().out
        assert "# test: " in printed
        made = {}
        exec(printed, made)
        assert [int(batch["image_masks"].sum()) for batch in made["val"]] == [6]
        assert next(iter(made["train"]))["inputs"].shape == (2, 512)


def run_packed(folder, packed, steps, hosts=1):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    commands = [
        [
            sys.executable, str(EXAMPLES / "train_packed.py"), "--packed", str(packed), "--folder", str(folder),
            "--steps", str(steps), "--save-every", "4", "--width", "16", "--layers", "1", "--heads", "2",
            "--hosts", str(hosts), "--host", str(host), "--coordinator", address,
        ]
        for host in range(hosts)
    ]  # fmt: skip
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment}
    finish(*(subprocess.Popen(command, **options) for command in commands))
    return [json.loads(line)["loss"] for line in (folder / "losses-0.jsonl").read_text().splitlines()]


def test_training_from_packed_rows_resumes_on_two_hosts(tmp_path, pack):
    pack(tmp_path / "packed")
    whole = run_packed(tmp_path / "whole", tmp_path / "packed", 12)
    assert statistics.mean(whole[-4:]) < statistics.mean(whole[:4])
    resumed = run_packed(tmp_path / "resumed", tmp_path / "packed", 6)
    assert resumed == whole[:6]
    assert run_packed(tmp_path / "resumed", tmp_path / "packed", 12) == whole
    # Sums over devices may round in another order.
    np.testing.assert_allclose(run_packed(tmp_path / "two", tmp_path / "packed", 12, hosts=2), whole, rtol=1e-4)
