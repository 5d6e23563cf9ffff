"""veRL's data sets, by its own names and arguments: `data.custom_cls.path=pkg://gristmill.integrations.verl`.

Tensors are torch's where torch is installed, else NumPy arrays of the same shapes and types.
"""

from gristmill.integrations.verl.collate import collate_fn
from gristmill.integrations.verl.rl_dataset import RLHFDataset
from gristmill.integrations.verl.sampler import ResumableSampler
from gristmill.integrations.verl.sft_dataset import MultiTurnSFTDataset

__all__ = ["MultiTurnSFTDataset", "RLHFDataset", "ResumableSampler", "collate_fn"]
