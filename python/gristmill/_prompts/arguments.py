"""The arguments of `PromptDataset`: one table, from which their checks, fingerprints and docs/options.md derive.

The rows are those of `gristmill._spec.arguments`, of which many are the same. A new argument is a row here and a
parameter of `PromptDataset`, and has a default that leaves the stream as it was.
"""

import dataclasses
from typing import Any

import numpy as np

from gristmill._prompts.cutting import OVERLONG
from gristmill._prompts.layouts import LAYOUTS
from gristmill._prompts.order import ORDERS
from gristmill._spec.arguments import ARGUMENTS as OF_ROWS
from gristmill._spec.arguments import LARGEST_BATCH, LARGEST_LENGTH, REQUIRED, Argument
from gristmill._spec.kinds import Boolean, Choice, Integer, Kind, Other
from gristmill._util import checks

_LARGEST = 2**63 - 1


def _columns(name: str, columns: Any) -> "bool | tuple[str, ...]":
    expected = "True, False or a list of names"
    if isinstance(columns, (bool, np.bool_)):
        return bool(columns)
    if isinstance(columns, str):
        raise checks.wrong_type(name, columns, expected)
    return tuple(checks.text(name, column) for column in checks.items(name, columns, expected))


def _own(kind: Kind, default: Any, help: str, **more: Any) -> Argument:  # noqa: A002
    return Argument(kind, default, help, **{"absent": default, **more})


def _as_for_rows(name: str, **changes: Any) -> Argument:
    """An argument that is that of `PackedDataset`, but for what is said here."""
    return dataclasses.replace(OF_ROWS[name], **changes)


_ROWS = {
    "shards": _as_for_rows(
        "shards", help="A glob, a path, a list of either, a `Manifest`, a `Mixture`, or an iterable of dicts."
    ),
    "tokenizer": _as_for_rows("tokenizer", default=REQUIRED, none=""),
    "prompt": _own(Other(), REQUIRED, "What a prompt is made of: `gm.Chat`, `gm.Completion` or `gm.Text`, or a dict."),
    **{name: OF_ROWS[name] for name in ("keep", "sidecars", "drop", "storage_options", "max_document_bytes")},
    "prompt_length": _own(
        Integer(1, LARGEST_LENGTH), 1024, "Most tokens of a prompt, and elements of a row.", absent=REQUIRED
    ),
    "overlong": _own(Choice(OVERLONG), "drop", "What becomes of longer ones: left out, cut on a side, an error."),
    "padding": _own(Choice(("left", "right"), or_none=True), None, "Side of padding.", none="the layout's own"),
    "pad": _own(Other(), None, "Token or id of padding.", none="0 in `maxtext`, else the tokenizer's own"),
    "columns": _own(Other(_columns), True, "Columns that batches carry.", defines_stream=False),
    "raw_prompt": _own(Boolean(), False, "Whether batches have the prompt as the record has it.", defines_stream=False),
    "full_prompts": _own(Boolean(), False, "Whether batches have the rendered text.", defines_stream=False),
    "batch_size": _own(Integer(1, LARGEST_BATCH), 256, "Prompts of the global batch, over all hosts.", absent=REQUIRED),
    "num_generations": _own(Integer(1, LARGEST_BATCH), 1, "Adjacent rows of each prompt."),
    "layout": _own(
        Choice(LAYOUTS), "verl", "Names and meaning of the arrays.", absent=REQUIRED, see="prompts.md#layouts"
    ),
    "bos": _as_for_rows("bos", help="Token put before each prompt."),
    "eos": _as_for_rows("eos", default=False, help="Token put after each prompt."),
    "select": _own(Other(), None, "Slice or list of indices of records, in that order.", none="all"),
    "max_samples": _own(Integer(1, _LARGEST, or_none=True), None, "Most records that are read.", none="all"),
    "seed": _as_for_rows("seed", help="Seed of the order.", none="the order of the records", see=""),
    "order": _own(
        Choice(ORDERS), "gristmill", "Whose permutations.", needs={"seed": ()}, see="prompts.md#order-and-resuming"
    ),
    "epochs": _as_for_rows("epochs", help="How often all prompts are delivered.", defines_stream=False),
    "drop_remainder": _own(
        Boolean(), True, "Whether the prompts that do not fill a batch are left out; else rows of padding fill it."
    ),
    "source_arrays": _as_for_rows(
        "source_arrays", help="Whether prompts of a mixture carry the number of their source, and its weight."
    ),
    "max_memory": _own(Integer(0, _LARGEST), 2**34, "Most bytes of ids and records.", defines_stream=False),
    "on_error": _as_for_rows("on_error", defines_stream=False),
    "max_error_rate": _as_for_rows(
        "max_error_rate",
        help="Share of the records, and of the shards, that may be quarantined.",
        needs={},
        defines_stream=False,
    ),
    "quarantine_file": OF_ROWS["quarantine_file"],
    "shard_index": OF_ROWS["shard_index"],
    "shard_count": _as_for_rows("shard_count", help="Number of hosts."),
    "threads": _as_for_rows("threads", help="Worker threads while records are read."),
}

ARGUMENTS = {name: dataclasses.replace(row, name=name, scope="prompts") for name, row in _ROWS.items()}
"""The rows by name."""
