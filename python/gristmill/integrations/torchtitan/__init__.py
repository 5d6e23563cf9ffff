"""A dataloader for torchtitan's trainer: packed text, resumed on any data-parallel degree, with equal finite epochs."""

from gristmill.errors import MissingExtraError

try:
    from gristmill.integrations.torchtitan.batches import RankBatches, TrainerBatch
    from gristmill.integrations.torchtitan.loader import GristmillDataLoader
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"gristmill.integrations.torchtitan needs torch and torchtitan: {error}; pip install torch torchtitan"
    ) from error

__all__ = ["GristmillDataLoader", "RankBatches", "TrainerBatch"]
