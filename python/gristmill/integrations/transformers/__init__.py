"""gristmill in `transformers`: the batches of a `Trainer` (`attach`), and the ids of a tokenizer (`fast`)."""

import importlib
from typing import TYPE_CHECKING, Any

from gristmill.errors import MissingExtraError

if TYPE_CHECKING:
    from gristmill.integrations.transformers.tokenizer import fast
    from gristmill.integrations.transformers.trainer import attach

__all__ = ["attach", "fast"]

# `fast` needs no torch.
_MODULES = {"attach": "trainer", "fast": "tokenizer"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("torch", "transformers"):
            raise
        raise MissingExtraError(
            f"{__name__}.{name} needs {missing}, which is not installed: pip install {missing}", name=error.name
        ) from error
    return getattr(module, name)
