"""Errors in MaxText's words: `max_target_length` for what gristmill's own arguments are called."""

import contextlib
import re
from collections.abc import Iterator

from gristmill.errors import GristmillError, ShardError
from gristmill.integrations.maxtext.settings import KEYS

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


def in_maxtexts_words(message: str) -> str:
    """A message of gristmill's with the keys of MaxText's config."""
    for pattern, key in _KEYS:
        message = re.sub(pattern, key, message)
    return message


@contextlib.contextmanager
def maxtexts_words() -> Iterator[None]:
    """Raises errors of gristmill's in MaxText's words.

    Raises:
      GristmillError: the same error.
    """
    try:
        yield
    except ShardError as error:
        raise ShardError(error.shard, error.record, error.byte, in_maxtexts_words(error.reason)) from error.__cause__
    except GristmillError as error:
        raise type(error)(in_maxtexts_words(str(error))) from error.__cause__
