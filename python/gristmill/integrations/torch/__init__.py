"""A loader for PyTorch: tensors of packed rows and prompts, resumed exactly on any number of ranks."""

from gristmill.errors import MissingExtraError

try:
    from gristmill.integrations.torch.loader import Loader, WholeState
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "torch":
        raise
    raise MissingExtraError("gristmill.integrations.torch needs torch: pip install torch", name=error.name) from error

__all__ = ["Loader", "WholeState"]
