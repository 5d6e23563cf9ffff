"""The arguments of `PackedDataset` as options of the command line: one table for all commands.

The table repeats no more than names, defaults and a line of help, and loads no Grain, so that `--help` is quick; a test
holds it against the signature of `PackedDataset`.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from gristmill import _arguments, _core

Command = TypeVar("Command", bound=Callable[..., Any])


class SpecialToken(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A special token: `auto` (the one named beside the tokenizer), `none`, an id, or its spelling."""

    name = "auto|none|id|token"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """What `PackedDataset` takes for it."""
        del param, ctx
        if not isinstance(value, str):
            return value
        if value in ("auto", "none"):
            return value == "auto"
        return int(value) if value.isascii() and value.isdigit() else value


_COUNT = click.IntRange(1)
_SHARE = click.FloatRange(0, 1)

# Name: type, default, help. The order is that of `PackedDataset`.
TABLE: Mapping[str, tuple[Any, Any, str]] = {
    "text_field": (str, "text", "Key of the record that holds the text."),
    "sequence_length": (_COUNT, 1024, "Tokens of a row."),
    "batch_size": (_COUNT, None, "Rows of a batch."),
    "lanes": (_COUNT, None, "Ordered streams that the shards are dealt to."),
    "packing": (click.Choice(_core.PACKINGS), "concat", "How documents become rows."),
    "fit_window": (_COUNT, 1024, "Documents that best_fit places together."),
    "truncation": (click.Choice(_core.TRUNCATIONS), "right", "What pad cuts from a longer document."),
    "max_segments": (_COUNT, None, "Segments of a row at most."),
    "layout": (click.Choice(list(_core.LAYOUTS)), "maxtext", "Names and meaning of a row's fields."),
    "boundary_targets": (bool, False, "Let a document's end predict the next one's start."),
    "eos": (SpecialToken(), "auto", "Token behind each document."),
    "bos": (SpecialToken(), "none", "Token before each document."),
    "seed": (click.IntRange(0), None, "Shuffle by it."),
    "shuffle_window": (_COUNT, 1024, "Documents that are permuted together."),
    "epochs": (_COUNT, 1, "How often the shards are read."),
    "shard_index": (click.IntRange(0), 0, "Which of the hosts this is."),
    "shard_count": (_COUNT, 1, "Number of hosts."),
    "on_error": (click.Choice(["raise", "quarantine"]), "raise", "What a record that cannot be used does."),
    "max_error_rate": (_SHARE, 0.01, "Share of a lane's records, and of its shards, that may be lost."),
    "quarantine_file": (click.Path(dir_okay=False), None, "File to which each of them is appended."),
    "max_document_bytes": (_COUNT, 2**27, "Longest accepted line of a shard."),
    "threads": (_COUNT, None, "Worker threads, by default one for each core."),
    "prefetch": (_COUNT, 4, "Batches prepared ahead."),
    "verify": (_SHARE, 0.0, "Share of the documents to compare with the reference while running."),
}  # fmt: skip


class _TokenizerFile(click.Path):
    """The path of a tokenizer.json, given by its own name or by that of its folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return Path(os.fsdecode(super().convert(_arguments.tokenizer_file(value), param, ctx)))


tokenizer_file = _TokenizerFile(exists=True)
# An argument of `Encoder`, as commands take it that make one.
special_tokens = click.option(
    "--special-tokens-in-text",
    type=click.Choice(["id", "text"]),
    default="id",
    show_default=True,
    help="What a special token spelled out in a text becomes.",
)


def dataset_options(*names: str, **defaults: Any) -> Callable[[Command], Command]:
    """Adds options to a command.

    Args:
      names: which of the table's; none: all.
      defaults: where a command's default is another one than that of `PackedDataset`.
    """

    def decorate(command: Command) -> Command:
        for name in reversed(names or tuple(TABLE)):
            kind, default, text = TABLE[name]
            default = defaults.get(name, default)
            flag = f"--{name.replace('_', '-')}"
            if kind is bool:
                option = click.option(flag, name, is_flag=True, default=default, help=text)
            else:
                option = click.option(flag, name, type=kind, default=default, show_default=True, help=text)
            command = option(command)
        return command

    return decorate
