"""MaxText's input pipelines: of training and fine-tuning by its config, and of GRPO by its names and arguments."""

from gristmill.integrations.maxtext.batches import PromptBatches
from gristmill.integrations.maxtext.datasets import make_dataset
from gristmill.integrations.maxtext.hosts import LoadError
from gristmill.integrations.maxtext.iterators import (
    DataLoadIterator,
    ElasticStream,
    input_sharding,
    make_gristmill_eval_iterator,
    make_gristmill_iterators,
    make_gristmill_train_iterator,
)
from gristmill.integrations.maxtext.pipeline import (
    SingleHostDataLoader,
    create_data_iterator,
    make_hf_train_iterator,
    preprocessing_pipeline,
)

__all__ = [
    "DataLoadIterator",
    "ElasticStream",
    "LoadError",
    "PromptBatches",
    "SingleHostDataLoader",
    "create_data_iterator",
    "input_sharding",
    "make_dataset",
    "make_gristmill_eval_iterator",
    "make_gristmill_iterators",
    "make_gristmill_train_iterator",
    "make_hf_train_iterator",
    "preprocessing_pipeline",
]
