"""A dataloader for torchtitan's trainer: packed text, resumed on any data-parallel degree, with equal finite epochs."""

from gristmill.integrations.torchtitan.batches import RankBatches, TrainerBatch
from gristmill.integrations.torchtitan.loader import GristmillDataLoader

__all__ = ["GristmillDataLoader", "RankBatches", "TrainerBatch"]
