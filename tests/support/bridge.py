"""Megatron-Bridge's own files, as far as batches pass through them, with stand-ins for all that they import besides.

Megatron-Core and most of Bridge need a GPU's libraries to be installed. Steps, losses, visual inputs and the builder of
Energon's data run without: what they import of Megatron is a stand-in here, of which a class is an empty one and a
function returns None, unless `FUNCTIONS` has it.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

# The files that are run, if this version of Bridge has them.
OWN = (
    "training.vlm_step", "models.qwen_vl.qwen3_vl_step", "training.losses", "training.utils.visual_inputs",
    "training.utils.padding_utils", "training.utils.packed_seq_utils", "training.utils.flop_utils",
    "training.utils.pg_utils", "data.base", "data.builders.energon", "data.energon.energon_provider",
)  # fmt: skip


def _nothing(*_: Any, **__: Any) -> None:
    """A function that nobody needs the result of."""


class _PackedSeqParams(SimpleNamespace):
    """The values of Megatron-Core's class of that name."""


FUNCTIONS: dict[str, Any] = {
    "is_pp_first_stage": lambda group: True,
    "is_pp_last_stage": lambda group: True,
    "get_model_config": lambda model: model.config,
    "get_attr_wrapped_model": lambda model, name, **_: getattr(model, name),
    "get_batch_on_this_cp_rank": lambda batch, **_: batch,
    "get_rerun_state_machine": lambda: SimpleNamespace(validate_result=_nothing, is_unexpectedly_large=_nothing),
    "PackedSeqParams": _PackedSeqParams,
    "is_safe_repo": lambda **_: False,
}


class _StandIn(types.ModuleType):
    __path__: ClassVar[list[str]] = []
    __version__ = "0.18.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = FUNCTIONS.get(name) or (type(name, (), {}) if name[0].isupper() else _nothing)
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds Bridge's own files, and stand-ins for the rest of Megatron but for Energon."""

    def __init__(self, source: Path) -> None:
        self.source = source

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] != "megatron" or name.startswith("megatron.energon"):
            return None
        file = self.source.joinpath(*name.split(".")).with_suffix(".py")
        if name.removeprefix("megatron.bridge.") in OWN and file.is_file():
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is run."""


def source() -> Path | None:
    """The folder that has Bridge's package `megatron`: GRISTMILL_BRIDGE, or that of the installed one; else None."""
    folders = [os.environ["GRISTMILL_BRIDGE"]] if "GRISTMILL_BRIDGE" in os.environ else sys.path
    step = Path("megatron", "bridge", "training", "vlm_step.py")
    return next((Path(folder) for folder in folders if Path(folder, step).is_file()), None)


def installed() -> Callable[[], None]:
    """Has imports of Megatron find these files. Returns the function that ends it."""
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == "megatron"}
    found = source()
    assert found is not None
    finder = _Finder(found)
    sys.meta_path.insert(0, finder)

    def end() -> None:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
            del sys.modules[name]
        sys.modules.update(before)

    return end
