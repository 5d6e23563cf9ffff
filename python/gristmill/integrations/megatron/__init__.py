"""A loader for Megatron-LM's `--dataloader-type external`: packed rows, resumed on any data-parallel size."""

from gristmill.errors import MissingExtraError

try:
    from gristmill.integrations.megatron.loader import ExternalLoader
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "torch":
        raise
    raise MissingExtraError(
        "gristmill.integrations.megatron needs torch: pip install torch", name=error.name
    ) from error

__all__ = ["ExternalLoader"]
