"""The arguments of `PromptDataset`: one table, from which their checks, fingerprints and docs/options.md derive.

The rows are those of `gristmill._spec.arguments`. A new argument is a row here and a parameter of `PromptDataset`, and
has a default that leaves the stream as it was.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from gristmill import _core
from gristmill._prompts.cutting import OVERLONG
from gristmill._prompts.layouts import LAYOUTS
from gristmill._prompts.order import ORDERS
from gristmill._spec.arguments import ARGUMENTS as OF_ROWS
from gristmill._spec.arguments import LARGEST_BATCH, LARGEST_LANES, LARGEST_LENGTH, REQUIRED, Argument
from gristmill._spec.kinds import Boolean, Choice, Fraction, Integer, Kind, Other, SpecialToken
from gristmill._util import checks

_LARGEST = 2**63 - 1


def _columns(name: str, columns: Any) -> "bool | tuple[str, ...]":
    expected = "True, False or a list of names"
    if isinstance(columns, (bool, np.bool_)):
        return bool(columns)
    if isinstance(columns, str):
        raise checks.wrong_type(name, columns, expected)
    return tuple(checks.text(name, column) for column in checks.items(name, columns, expected))


def _argument(kind: Kind, default: Any, help: str, **more: Any) -> Argument:  # noqa: A002
    return Argument(kind, default, help, **{"absent": default, **more})


_ROWS = {
    "shards": _argument(
        Other(), REQUIRED, "A glob, a path, a list of either, a `Manifest`, a `Mixture`, or an iterable of dicts."
    ),
    "tokenizer": _argument(Other(), REQUIRED, "The path of a tokenizer.json or its folder, or an `Encoder`."),
    "prompt": _argument(
        Other(),
        REQUIRED,
        "What a prompt is made of: `gm.Chat` or `gm.Text`, or a dict of several.",
        none="",
    ),
    **{name: OF_ROWS[name] for name in ("keep", "sidecars", "drop", "storage_options", "max_document_bytes")},
    "prompt_length": _argument(
        Integer(1, LARGEST_LENGTH), 1024, "Most tokens of a prompt, and elements of a row.", absent=REQUIRED
    ),
    "overlong": _argument(Choice(OVERLONG), "drop", "What becomes of longer ones: left out, cut on a side, an error."),
    "padding": _argument(Choice(("left", "right"), or_none=True), None, "Side of padding.", none="the layout's own"),
    "pad": _argument(Other(), None, "Token or id of padding.", none="0 in `maxtext`, else the tokenizer's own"),
    "columns": _argument(Other(_columns), True, "Columns that batches carry.", defines_stream=False),
    "raw_prompt": _argument(
        Boolean(), False, "Whether batches have the prompt as the record has it.", defines_stream=False
    ),
    "full_prompts": _argument(Boolean(), False, "Whether batches have the rendered text.", defines_stream=False),
    "batch_size": _argument(
        Integer(1, LARGEST_BATCH), 256, "Prompts of the global batch, over all hosts.", absent=REQUIRED
    ),
    "num_generations": _argument(Integer(1, LARGEST_BATCH), 1, "Adjacent rows of each prompt."),
    "layout": _argument(
        Choice(LAYOUTS), "verl", "Names and meaning of the arrays.", absent=REQUIRED, see="prompts.md#layouts"
    ),
    "bos": _argument(SpecialToken(), False, "Token put before each prompt.", absent=None),
    "eos": _argument(SpecialToken(), False, "Token put after each prompt.", absent=None),
    "select": _argument(Other(), None, "Slice or list of indices of records, in that order.", none="all"),
    "max_samples": _argument(Integer(1, _LARGEST, or_none=True), None, "Most records that are read.", none="all"),
    "seed": _argument(Integer(0, 2**64 - 1, or_none=True), None, "Seed of the order.", none="the order of the records"),
    "order": _argument(
        Choice(ORDERS), "gristmill", "Whose permutations.", needs={"seed": ()}, see="prompts.md#order-and-resuming"
    ),
    "epochs": _argument(
        Integer(1, 2**32, or_none=True), 1, "How often all prompts are delivered.", none="forever", defines_stream=False
    ),
    "drop_remainder": _argument(
        Boolean(), True, "Whether the prompts that do not fill a batch are left out; else rows of padding fill it."
    ),
    "source_arrays": _argument(
        Boolean(),
        False,
        "Whether prompts of a mixture carry the number of their source, and its weight.",
        defines_stream=False,
        see="mixtures.md#loss-per-source",
    ),
    "max_memory": _argument(Integer(0, _LARGEST), 2**34, "Most bytes of ids and records.", defines_stream=False),
    "on_error": _argument(
        Choice(_core.ON_ERRORS), "raise", "At a bad record: stop, or quarantine it and go on.", defines_stream=False
    ),
    "max_error_rate": _argument(
        Fraction(), 0.01, "Share of the records, and of the shards, that may be quarantined.", defines_stream=False
    ),
    "quarantine_file": OF_ROWS["quarantine_file"],
    "shard_index": _argument(Integer(0, LARGEST_LANES), 0, "Index of this host.", defines_stream=False),
    "shard_count": _argument(Integer(1, LARGEST_LANES), 1, "Number of hosts.", defines_stream=False),
    "threads": _argument(
        Integer(1, 1024, or_none=True),
        None,
        "Worker threads while records are read.",
        none="one for each core",
        defines_stream=False,
    ),
}  # fmt: skip

ARGUMENTS = {name: dataclasses.replace(row, name=name) for name, row in _ROWS.items()}
"""The rows by name."""


def check(given: Mapping[str, Any]) -> dict[str, Any]:
    """The checked values of all arguments.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """
    return {name: argument.kind.check(name, given[name]) for name, argument in ARGUMENTS.items()}


def defining(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that define the stream: defaults, and what has no effect, are left out."""
    return {
        name: values[name]
        for name, argument in ARGUMENTS.items()
        if argument.defines_stream
        and argument.is_effective(values)
        and (argument.absent is REQUIRED or values[name] != argument.absent)
    }
