"""Errors in MaxText's words: `max_target_length` for what gristmill's own arguments are called."""

from gristmill.integrations.maxtext.settings import KEYS
from gristmill.integrations.words import Words

_COLUMNS = "train_data_columns (eval_data_columns)"

MAXTEXT = Words(
    {
        **{name: f"gristmill.{name}=" for name in KEYS},
        "sequence_length": "max_target_length=",
        "batch_size": "global_batch_size_to_load=",
        **dict.fromkeys(("text_field", "field", "instruction", "output", "sample"), _COLUMNS),
    },
)
