"""Packing in units on a Ray cluster of a head and two nodes on loopback: the bytes are those of one machine."""

import functools
import os
import threading
import time
from pathlib import Path

import pytest

# The name misleads: it lets a cluster of several nodes use 127.0.0.1.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray", reason="Ray is not installed: make test-ray")

import gristmill as gm  # noqa: E402
from gristmill._cli import main  # noqa: E402
from gristmill._files import ray as engine  # noqa: E402
from gristmill._files import units  # noqa: E402
from gristmill._shards.address import Address  # noqa: E402
from helpers import PATIENCE, ROOT  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
UNITS = 4


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    # The nodes' processes import what this one does.
    paths = [str(ROOT / "python"), str(ROOT / "tests/support"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    found = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 0, "include_dashboard": False})
    found.nodes = [found.add_node(**NODE) for _ in range(2)]
    ray.init(address=found.address, log_to_driver=False)
    found.wait_for_nodes()
    yield found
    ray.shutdown()
    found.shutdown()


@pytest.fixture
def dataset(shards, tokenizer_file):
    return gm.PackedDataset(
        shards, tokenizer=tokenizer_file.parent, text_field="raw_content", sequence_length=128, batch_size=8, lanes=8
    )


@pytest.fixture
def expected(dataset, tmp_path):
    gm.pack(dataset, tmp_path / "expected", units=UNITS, rows_per_file=40)
    return tmp_path / "expected"


def plan_as(folder, path):
    """A folder with the same plan."""
    path.mkdir()
    (path / units.PLAN).write_bytes((folder / units.PLAN).read_bytes())
    return path


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(Path(folder).rglob("unit-*/part-*"))}


def pack_but_sleep(dataset, path, sleeper, number, folder):
    """Packs a unit; the first task of one never ends, and has noted its node."""
    mark = path / f"mark-{number}"
    if number == sleeper and not mark.exists():
        unfinished = mark.with_suffix(".new")
        unfinished.write_text(ray.get_runtime_context().get_node_id())
        unfinished.rename(mark)
        time.sleep(PATIENCE)
    return units.pack_unit_of(dataset, Address.of(str(path)), number, folder)


def test_a_node_that_dies_in_a_unit_changes_nothing(cluster, dataset, expected, tmp_path):
    path = plan_as(expected, tmp_path / "packed")
    mark = path / "mark-1"

    def kill():
        while not mark.exists():
            time.sleep(0.1)
        node = next(node for node in cluster.nodes if node.node_id == mark.read_text())
        cluster.remove_node(node, allow_graceful=False)
        cluster.nodes[cluster.nodes.index(node)] = cluster.add_node(**NODE)

    killer = threading.Thread(target=kill)
    killer.start()
    engine.pack_units(functools.partial(pack_but_sleep, dataset, path, 1), path, UNITS)
    killer.join()
    assert units.finish(path)["units"] == UNITS
    assert files_of(path) == files_of(expected)


def test_a_slow_unit_is_given_to_a_second_task(cluster, dataset, expected, tmp_path):
    path = plan_as(expected, tmp_path / "packed")
    engine.pack_units(functools.partial(pack_but_sleep, dataset, path, 2), path, UNITS, slow_seconds=1)
    units.finish(path)
    assert files_of(path) == files_of(expected)
    assert not [*path.glob("second-*")]


def test_a_unit_with_a_bad_record_fails_alone(cluster, tmp_path, tokenizer_file):
    for number in range(4):
        bad = "no record\n" if number == 2 else ""
        (tmp_path / f"{number}.jsonl").write_text('{"text": "some words"}\n' * 200 + bad)
    options = {"tokenizer": tokenizer_file.parent, "sequence_length": 64, "batch_size": 4, "lanes": 4}
    dataset = gm.PackedDataset(tmp_path / "*.jsonl", **options)
    with pytest.raises(gm.GristmillError, match=r"1 unit of 4 failed.*2\.jsonl: record 200"):
        gm.pack(dataset, tmp_path / "packed", units=4, engine="ray")
    assert [units.is_complete(tmp_path / "packed", number) for number in range(4)].count(True) == 3


def test_command_line_and_python_pack_the_same(cluster, dataset, expected, tmp_path, shards, tokenizer_file):
    found = gm.pack(dataset, tmp_path / "python", units=UNITS, rows_per_file=40, engine="ray", cpus=1)
    assert files_of(tmp_path / "python") == files_of(expected)
    assert found["items"] == len(gm.PackedRows(expected))
    arguments = [
        "pack", shards, "--tokenizer", tokenizer_file.parent, "--text-field", "raw_content", "--sequence-length", 128,
        "--batch-size", 8, "--lanes", 8, "--rows-per-file", 40, "--units", UNITS, "--engine", "ray", "--output",
    ]  # fmt: skip
    assert main.run([*map(str, arguments), str(tmp_path / "command")]) == 0
    one, other = files_of(tmp_path / "command"), files_of(expected)
    assert {path: one[path] for path in one if path.suffix == ".npy"} == {
        path: other[path] for path in other if path.suffix == ".npy"
    }
