"""Makes an environment of tests/environments.toml and runs its tests: `make test-NAME`.

    python tests/support/environments.py NAME [--print] [arguments of pytest]

Without a name it lists them. `--print` prints the commands and runs none. NEWER_PYTHON names the Python of environments
that need a newer version than .venv has, in place of `python3.12`.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
FILE = PROJECT / "tests" / "environments.toml"


def commands(name: str, environment: dict[str, Any], *more: str) -> list[tuple[list[str], dict[str, str]]]:
    """The commands that make an environment, where it is not there, and run its tests, with variables for each."""
    folder = PROJECT / "target" / name
    is_over = environment["kind"] == "over"
    python = sys.executable if is_over else str(folder / "bin" / "python")
    found: list[tuple[list[str], dict[str, str]]] = []
    if not is_over and not Path(python).exists():
        newer = os.environ.get("NEWER_PYTHON", f"python{environment.get('python')}")
        found.append(([newer if "python" in environment else sys.executable, "-m", "venv", str(folder)], {}))
    install = [python, "-m", "pip", "install", *(["--target", str(folder)] if is_over else [])]
    for key, options in (("packages", []), ("without_dependencies", ["--no-deps"])):
        if key in environment:
            found.append(([*install, *options, *environment[key]], {}))
    sources = folder / "sources"
    for requirement in environment.get("sources", []):
        name = requirement.partition("==")[0]
        options = ["--no-deps", "--no-binary", name, "--dest", str(sources)]
        found.append(([python, "-m", "pip", "download", *options, requirement], {}))
    others = {"own": [], "beside": [sysconfig.get_path("purelib")], "over": [str(folder)]}
    variables = {"PYTHONPATH": os.pathsep.join([str(PROJECT / "python"), *others[environment["kind"]]])}
    if "sources" in environment:
        variables["GRISTMILL_SOURCES"] = str(sources)
    found.append(([python, "-m", "pytest", *environment["tests"], *more], variables))
    return found


def main() -> None:
    environments = tomllib.loads(FILE.read_text())
    name, *more = sys.argv[1:] or [""]
    if name not in environments:
        listed = "".join(f"\n  make test-{key:12} {one['about']}; {one['takes']}" for key, one in environments.items())
        sys.exit(f"{name!r} is none of the environments in tests/environments.toml:{listed}")
    only_prints = "--print" in more
    for command, variables in commands(name, environments[name], *(one for one in more if one != "--print")):
        print("+", *(f"{key}={value}" for key, value in variables.items()), shlex.join(command), flush=True)
        if not only_prints:
            subprocess.run(command, cwd=PROJECT, env=os.environ | variables, check=True)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    except FileNotFoundError as error:
        sys.exit(f"{error.filename} is not installed: an environment needs that version of Python, or PATH lacks it")
