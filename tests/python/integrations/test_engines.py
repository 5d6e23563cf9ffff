"""The recipes of docs/files.md for packing in units: the bytes are those of one machine."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

import gristmill as gm
from gristmill._cli import main
from helpers import PATIENCE, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
PAGE = (ROOT / "docs/files.md").read_text()
UNITS = 4
# Runs the tasks of an array one after the other, as SLURM does on many machines.
SBATCH = """#!/bin/sh
for word; do
  case $word in
    --array=0-*) last=${word#--array=0-} ;;
    --wrap) ;;
    --*) ;;
    *) command=$word ;;
  esac
done
for number in $(seq 0 "$last"); do SLURM_ARRAY_TASK_ID=$number sh -c "$command" || exit; done
"""


@pytest.fixture
def source(shards, tokenizer_file):
    options = ["--text-field", "raw_content", "--sequence-length", "128", "--rows-per-file", "40"]
    return [str(shards), "--tokenizer", str(tokenizer_file.parent), *options]


@pytest.fixture
def expected(source, tmp_path):
    assert main.run(["pack", *source, "--output", str(tmp_path / "expected"), "--units", str(UNITS)]) == 0
    return files_of(tmp_path / "expected")


@pytest.fixture
def planned(source, tmp_path):
    assert main.run(["pack", *source, "--output", str(tmp_path / "packed"), "--units", str(UNITS), "--plan"]) == 0
    return tmp_path / "packed"


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Makes `gristmill` and `sbatch` commands, which workers find, too."""
    (tmp_path / "bin").mkdir()
    path = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
    command = f'#!/bin/sh\nPYTHONPATH={shlex.quote(path)} exec {shlex.quote(sys.executable)} -m gristmill "$@"\n'
    for name, text in (("gristmill", command), ("sbatch", SBATCH)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    return tmp_path


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("unit-*/part-*"))}


def recipe(title, folder, **others):
    """The blocks of the page that pack each unit with an engine, on this machine."""
    [common] = re.findall(r"^```py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    [own] = re.findall(rf'^```py title="{title}"\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE)
    text = f"{common}\n\n{own}".replace("256", str(UNITS)).replace("/shared/packed", str(folder))
    for name, value in others.items():
        text = text.replace(name, value)
    return text


def run(text, environment):
    (environment / "recipe.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "recipe.py"], cwd=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr[-3000:]


def check_finished(planned, expected):
    assert main.run(["pack", "--output", str(planned), "--finish"]) == 0
    assert files_of(planned) == expected
    assert len(gm.PackedRows(planned)) > 100


def test_slurm(source, expected, environment):
    [block] = [
        block for block in re.findall(r"^```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) if "sbatch" in block
    ]
    said = shlex.join(source)
    block = block.replace("'pile/*.jsonl.gz' --tokenizer llama", said).replace("256", f"{UNITS}").replace("255", "3")
    done = subprocess.run(["sh", "-e"], input=block, cwd=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    check_finished(environment / "packed", expected)


def needs(module):
    is_missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(is_missing, reason=f"{module} is not installed: make test-engines")


@needs("distributed")
def test_dask(planned, expected, environment):
    import distributed

    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        run(recipe("Dask", planned, **{"scheduler:8786": cluster.scheduler_address}), environment)
    check_finished(planned, expected)


@needs("apache_beam")
def test_beam(planned, expected, environment):
    run(recipe("Beam", planned), environment)
    check_finished(planned, expected)


@needs("pyspark")
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs a Java")
def test_spark(planned, expected, environment):
    run(recipe("Spark", planned), environment)
    check_finished(planned, expected)
