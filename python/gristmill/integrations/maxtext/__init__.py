"""MaxText's input pipeline for GRPO, by its own names and arguments (`maxtext.experimental.rl.grpo_input_pipeline`)."""

from gristmill.integrations.maxtext.batches import PromptBatches
from gristmill.integrations.maxtext.pipeline import (
    SingleHostDataLoader,
    create_data_iterator,
    make_hf_train_iterator,
    preprocessing_pipeline,
)

__all__ = [
    "PromptBatches",
    "SingleHostDataLoader",
    "create_data_iterator",
    "make_hf_train_iterator",
    "preprocessing_pipeline",
]
