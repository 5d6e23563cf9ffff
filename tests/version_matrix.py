"""Runs the Python tests with several versions of Python, JAX and Grain: `make test-matrix`.

    python tests/version_matrix.py dist/gristmill-*.whl [--folder target/matrix] [--only 3.13] [pytest's arguments]

Each environment gets the wheel with its `test` extra and the pins of its line below. A Python that is not on PATH is
listed as absent. The exit status is that of the worst environment.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

# MaxText and Levanter ask for Python 3.12 or newer, and pin one of these lines of JAX. JAX 0.10 is the last one with
# Python 3.11, and 0.12 the first with Python 3.14 among them.
ENVIRONMENTS: list[tuple[str, tuple[str, ...]]] = [
    ("3.11", ("jax==0.10.*", "grain==0.2.18")),
    ("3.12", ("jax==0.10.*",)),
    ("3.12", ("jax==0.11.*",)),
    ("3.13", ("jax==0.12.*",)),
    ("3.14", ("jax==0.12.*",)),
]
PACKAGES = ("jax", "grain", "orbax-checkpoint", "numpy")
PROJECT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--folder", type=Path, default=PROJECT / "target" / "matrix", help="of the environments")
    parser.add_argument("--only", action="append", help="one of the versions of Python; may be repeated")
    arguments, for_pytest = parser.parse_known_args()
    rows, worst = [], 0
    for version, pins in ENVIRONMENTS:
        if arguments.only and version not in arguments.only:
            continue
        status, row = test(version, pins, arguments.wheel.resolve(), arguments.folder, for_pytest)
        rows.append(row)
        worst = max(worst, abs(status))
    print("\n| Python | " + " | ".join(PACKAGES) + " | tests |\n|" + " --- |" * (len(PACKAGES) + 2))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    sys.exit(worst)


def test(
    version: str, pins: tuple[str, ...], wheel: Path, folder: Path, for_pytest: list[str]
) -> tuple[int, list[str]]:
    """The status of the tests in an environment of these versions, and its row of the table."""
    interpreter = find_python(version)
    if interpreter is None:
        return 0, [version, *["-"] * len(PACKAGES), f"python{version} is not on PATH"]
    environment = folder / re.sub(r"[^\w.]+", "-", "-".join((version, *pins))).strip("-")
    shutil.rmtree(environment, ignore_errors=True)
    subprocess.run([interpreter, "-m", "venv", str(environment)], check=True)
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"{wheel}[test]", *pins], check=True)
    tests = [python, "-m", "pytest", "-q", *(for_pytest or ["-m", "not slow"])]
    done = subprocess.run(tests, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=False)
    print(f"== {environment.name}\n{done.stdout}", flush=True)
    listed = "import platform, sys; from importlib.metadata import version; print(platform.python_version(), "
    listed += "*map(version, sys.argv[1:]))"
    versions = subprocess.run([python, "-c", listed, *PACKAGES], check=True, capture_output=True, text=True).stdout
    return done.returncode, [*versions.split(), done.stdout.rstrip().rpartition("\n")[2].strip("= ")]


def find_python(version: str) -> str | None:
    """The path of an interpreter of this version, if there is one that runs."""
    path = shutil.which(f"python{version}")
    if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
        return path
    return None


if __name__ == "__main__":
    main()
