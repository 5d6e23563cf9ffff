"""Megatron-Bridge's data module over Megatron-Energon, by its own names and arguments; torch is not needed."""

from gristmill.integrations.energon.batches import GenericVisualInputs
from gristmill.integrations.energon.data_module import EnergonMultiModalDataModule, WorkerConfig, attach
from gristmill.integrations.energon.loader import BatchLoader, EnergonDataloader, cyclic_iter
from gristmill.integrations.energon.task_encoder import QwenVLTaskEncoder

__all__ = [
    "BatchLoader",
    "EnergonDataloader",
    "EnergonMultiModalDataModule",
    "GenericVisualInputs",
    "QwenVLTaskEncoder",
    "WorkerConfig",
    "attach",
    "cyclic_iter",
]
