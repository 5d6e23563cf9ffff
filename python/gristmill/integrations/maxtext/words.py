"""Errors in MaxText's words: `max_target_length` for what gristmill's own arguments are called."""

from gristmill.integrations.maxtext.settings import KEYS
from gristmill.integrations.words import Words

_COLUMNS = "train_data_columns (eval_data_columns)"
# The name of an argument of gristmill's in messages, and the key of MaxText's config that sets it.
_KEYS = (
    (r"\bsequence_length=", "max_target_length="),
    (r"\bbatch_size=", "global_batch_size_to_load="),
    (r"name the key that holds the text with text_field=|set text_field=", f"set {_COLUMNS}"),
    (
        r"(under the key \"[^\"]*\", found no such key|expected one of the columns \[.*\], found [^;]*)",
        rf"\1; set {_COLUMNS}",
    ),
    (r" of gm\.(Chat|Instruction|PackedDataset)\b", ""),
    (rf"(?<![\w.])({'|'.join(KEYS)})=", r"gristmill.\1="),
)

MAXTEXT = Words(_KEYS)
