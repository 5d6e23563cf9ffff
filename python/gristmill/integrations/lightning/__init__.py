"""The batches of a stream in a `Trainer` of Lightning, whose checkpoints restore exactly on any number of processes."""

from gristmill.errors import MissingExtraError

try:
    from gristmill.integrations.lightning.data_module import DataModule
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing not in ("torch", "lightning", "pytorch_lightning"):
        raise
    raise MissingExtraError(
        f"gristmill.integrations.lightning needs torch and lightning: {error}; pip install torch lightning",
        name=error.name,
    ) from error

__all__ = ["DataModule"]
