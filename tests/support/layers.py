"""Checks that packages of python/gristmill import those of lower layers alone.

    python tests/support/layers.py [FOLDER]

Imports within functions, and those for types, count as all others. Packages of one layer do not import one another, and
modules within a package form no cycle. Adapters import public names, and of other modules those alone that are listed
here. The stub of the core names types of all layers, and is not looked at.
"""

import ast
import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path

# From the lowest layer to the highest.
LAYERS = """
    _messages
    errors filters _core
    _util
    _tokenizer _images _filter
    _chat _shards
    _sample
    _spec
    _mixture
    _state
    _dataset _prompts
    _jax _files
    _bench _demo _inspect
    _certify _view
    gristmill
    integrations
    _cli
    __main__
"""
# The private modules that adapters may import, and why the public classes do not have the same.
OF_ADAPTERS = {
    "_util": "helpers that know nothing of streams",
    "_messages": "the form in which errors name arguments, which adapters spell as the keys of their program",
    "_jax.agreement": "processes compare themselves as those of gm.global_batches do, with the same message",
    "_jax.exchange": "its computations are compiled once for each set of devices, also beside gm.global_batches",
    "_prompts.batches": "the check of veRL's extra_info, which the layout verl of gm.PromptDataset makes, too",
    "_prompts.cutting": "a function of ids alone",
    "_prompts.exact": "a function of values alone",
    "_prompts.order": "orders of numbers: also of prompts that another program holds",
    "_prompts.reading": "the type of gm.PromptDataset.arena",
    "_prompts.resolving": "records of which nothing is rendered, for hooks of veRL that make prompts in Python",
}


def check(folder: Path) -> list[str]:
    """The imports that are not of a lower layer, each with its file and line; and a cycle of modules."""
    layer_of = {name: layer for layer, line in enumerate(LAYERS.split("\n")) for name in line.split()}
    modules = {_name(path.relative_to(folder.parent)): path for path in sorted(folder.rglob("*.py"))}
    found, within = [], {}
    for name, path in modules.items():
        imported = [*_imports(path, {*modules, f"{folder.name}._core"})]
        own = _package(name)
        within[name] = {other for other, _ in imported if _package(other) == own and other != name}
        for other, line in imported:
            package = _package(other)
            if package not in layer_of or own not in layer_of:
                found.append(f"{path}:{line}: {own} imports {package}, of which one is in no layer: see {__file__}")
            elif package != own and layer_of[package] >= layer_of[own]:
                found.append(f"{path}:{line}: {own} imports {other}, which is not in a lower layer")
            elif own == "integrations" and not _is_for_adapters(other.removeprefix(f"{folder.name}.")):
                found.append(f"{path}:{line}: an adapter imports {other}: use public names, see {__file__}")
    try:
        graphlib.TopologicalSorter(within).prepare()
    except graphlib.CycleError as error:
        found.append(f"{folder}: these import one another: {' <- '.join(error.args[1])}")
    return found


def _is_for_adapters(module: str) -> bool:
    """Whether an adapter may import a module, which is named from the package on."""
    return not module.startswith("_") or any(f"{module}.".startswith(f"{listed}.") for listed in OF_ADAPTERS)


def _name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _package(module: str) -> str:
    return [*module.split("."), module][1]


def _imports(path: Path, known: set[str]) -> Iterator[tuple[str, int]]:
    """The modules that a file imports, each with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ImportFrom(module=str(module)):
                names = (f"{module}.{alias.name}" for alias in node.names)
                found = dict.fromkeys(name if name in known else module for name in names)
                yield from ((name, node.lineno) for name in found if name in known)
            case ast.Import():
                yield from ((alias.name, node.lineno) for alias in node.names if alias.name in known)


if __name__ == "__main__":
    wrong = check(Path(*sys.argv[1:] or ["python/gristmill"]))
    print("\n".join(wrong) or "all imports are of lower layers")
    sys.exit(bool(wrong))
