"""gristmill in MaxText: text or conversations from JSON lines, Parquet, Arrow and tar, resumed on any hosts.

Nothing needs to be copied: MaxText's `create_data_iterator` returns what `make_gristmill_iterators` makes of its
config, as docs/coming-from-maxtext.md shows. This file has the names for code that imports them from MaxText itself.
"""

from gristmill.integrations.maxtext import (
    DataLoadIterator,
    ElasticStream,
    LoadError,
    input_sharding,
    make_dataset,
    make_gristmill_eval_iterator,
    make_gristmill_iterators,
    make_gristmill_train_iterator,
)

__all__ = [
    "DataLoadIterator",
    "ElasticStream",
    "LoadError",
    "input_sharding",
    "make_dataset",
    "make_gristmill_eval_iterator",
    "make_gristmill_iterators",
    "make_gristmill_train_iterator",
]
