"""The arguments of `PackedDataset` as options of the command line: one table for all commands.

The table repeats no more than names, defaults and a line of help, and loads no Grain, so that `--help` is quick; a test
holds it against the signature of `PackedDataset`.
"""

import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from gristmill import _core
from gristmill._tokenizer import diagnosis, hub
from gristmill._tokenizer.load import tokenizer_file
from gristmill._util.local_files import working_folder
from gristmill.errors import ArgumentError, ArgumentTypeError, GristmillError, MissingTokenizerError

Command = TypeVar("Command", bound=Callable[..., Any])


_MOST_DIGITS = 20


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
        # More digits than an id has are a spelling, which no vocabulary has.
        return int(value) if value.isascii() and value.isdigit() and len(value) < _MOST_DIGITS else value


class PathType(click.Path):
    """A path, not empty: that would mean the working folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        if value == "":
            self.fail("expected a path, found an empty one", param, ctx)
        return super().convert(value, param, ctx)


_COUNT = click.IntRange(1)
_SHARE = click.FloatRange(0, 1)

# Name: type, default, help. The order is that of `PackedDataset`.
TABLE: Mapping[str, tuple[Any, Any, str]] = {
    "text_field": (str, "text", "Key of the record that holds the text."),
    "sequence_length": (_COUNT, 1024, "Tokens in a row."),
    "batch_size": (_COUNT, None, "Rows in a batch."),
    "lanes": (_COUNT, None, "Ordered streams that the shards are dealt to.  [default: from the batch and the shards]"),
    "packing": (click.Choice(_core.PACKINGS), "concat", "How documents become rows: joined, whole, or one a row."),
    "fit_window": (_COUNT, 1024, "With --packing best_fit: documents that are placed together."),
    "truncation": (click.Choice(_core.TRUNCATIONS), "right", "With --packing pad: where a longer document is cut."),
    "max_segments": (_COUNT, None, "Segments in a row at most.  [default: any number]"),
    "layout": (click.Choice(list(_core.LAYOUTS)), "maxtext", "Names and meaning of a row's fields."),
    "boundary_targets": (bool, False, "Let a document's last token predict the next one's first."),
    "eos": (SpecialToken(), "auto", "Token appended to each document; auto: the one named beside the tokenizer."),
    "bos": (SpecialToken(), "none", "Token put before each document; auto: as named beside the tokenizer."),
    "seed": (click.IntRange(0), None, "Seed for shuffling; without it, no shuffling."),
    "shuffle_window": (_COUNT, 1024, "With --seed: documents that are shuffled together."),
    "epochs": (_COUNT, 1, "How often the shards are read."),
    "shard_index": (click.IntRange(0), 0, "Which of the hosts this is, from 0."),
    "shard_count": (_COUNT, 1, "Number of hosts; it must divide the lanes."),
    "on_error": (click.Choice(_core.ON_ERRORS), "raise", "At a bad record: stop, or leave it out and list it."),
    "max_error_rate": (_SHARE, 0.01, "Share of a lane's records, and of its shards, that may be left out."),
    "quarantine_file": (
        PathType(dir_okay=False), None, "List of what is left out.  [default: quarantine.jsonl in the folder]"
    ),
    "max_document_bytes": (_COUNT, 2**27, "Longest accepted line of a shard, inflated."),
    "threads": (_COUNT, None, "Worker threads.  [default: one for each core]"),
    "prefetch": (_COUNT, 4, "Batches prepared ahead."),
    "verify": (_SHARE, 0.0, "Share of the documents whose ids are compared with the reference's while running."),
}  # fmt: skip


# The options without which another one has no effect, and the values that they must have; none: any.
EFFECTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "text_field": {"shards": ()},
    "fit_window": {"packing": ("best_fit",)},
    "truncation": {"packing": ("pad",)},
    "max_segments": {"packing": ("concat", "best_fit")},
    "boundary_targets": {"packing": ("concat", "best_fit"), "layout": ("maxtext",)},
    "shuffle_window": {"seed": ()},
    "max_error_rate": {"on_error": ("quarantine",)},
}


class _TokenizerFile(PathType):
    """The path of a tokenizer.json, given by its own name, by that of its folder, or by that of a model on the hub."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The tokenizer.json.

        Raises:
          TokenizerError: there is none.
        """
        path = tokenizer_file(super().convert(value, param, ctx))
        # Nothing is fetched while a shell completes a line.
        if (ctx is not None and ctx.resilient_parsing) or os.path.exists(path):  # noqa: PTH110 - it never raises
            return path
        # A word alone is rather a folder that is misspelled.
        if "/" in value and hub.may_have(value) and not os.path.exists(value):  # noqa: PTH110
            return hub.download(value)
        raise MissingTokenizerError(
            f"no such file: {str(path)!r} (working folder: {working_folder()})" + diagnosis.of_folder(path.parent)
        )


tokenizer_path = _TokenizerFile(readable=False)
# Paths and globs. That one leads nowhere, or cannot be read, is said by what reads it.
shard_path = PathType(readable=False)
# An argument of `Encoder`, as commands take it that make one.
special_tokens_option = click.option(
    "--special-tokens-in-text",
    type=click.Choice(["id", "text"]),
    default="id",
    show_default=True,
    help="What a special token spelled out in a text becomes.",
)
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


def dataset_options(*names: str, **defaults: Any) -> Callable[[Command], Command]:
    """Adds options to a command, whose errors then speak of them instead of the arguments of `PackedDataset`.

    Args:
      names: which of the table's; none: all.
      defaults: where a command's default is another one than that of `PackedDataset`.
    """
    added = names or tuple(TABLE)

    def decorate(wrapped: Command) -> Command:
        @functools.wraps(wrapped)
        def command(*args: Any, **kwargs: Any) -> Any:
            _check_effects(added, kwargs)
            try:
                return wrapped(*args, **kwargs)
            except GristmillError as error:
                raise reworded(error, in_options(str(error), added)) from error

        for name in reversed(added):
            kind, default, text = TABLE[name]
            default = defaults.get(name, default)
            flag = _flag(name)
            if kind is bool:
                option = click.option(flag, name, is_flag=True, default=default, help=text)
            else:
                option = click.option(flag, name, type=kind, default=default, show_default=True, help=text)
            command = option(command)
        return cast(Command, command)

    return decorate


def is_given(name: str) -> bool:
    """Whether an option was given to the command that runs, be it with the value of its default."""
    return click.get_current_context().get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


def _check_effects(names: Iterable[str], values: Mapping[str, Any]) -> None:
    """Checks that the options that were given have an effect; defaults need none.

    Raises:
      UsageError: one has none.
    """
    for name in filter(is_given, names):
        for other, allowed in EFFECTS.get(name, {}).items():
            if values[other] in (None, ()) or (allowed and values[other] not in allowed):
                needed = " ".join([_flag(other), *filter(None, [" or ".join(allowed)])])
                raise click.UsageError(f"{_flag(name)} has no effect without {needed}")


def in_options(message: str, names: Iterable[str]) -> str:
    """An error's message with options for arguments: `--batch-size 6` for `batch_size=6`."""
    argument = rf"{_argument(names)}(?:(None|True|False)\b)?(?=(\w|['\"-])?)"

    def option(found: re.Match[str]) -> str:
        name, word, more = found.groups()
        if word and isinstance(TABLE[name][0], SpecialToken):
            word = "none" if word == "False" else "auto"
        return " ".join(filter(None, (_flag(name), word))) + (" " if more else "")

    # Without an option its argument is None; as a value no option takes it.
    return re.sub(argument, option, message).removesuffix(", or None")


def in_settings(message: str, names: Iterable[str]) -> str:
    """An error's message as `--set` gives arguments: `--set batch_size=6` for `batch_size=6`."""
    return re.sub(_argument(names), r"--set \1=", message)


def _argument(names: Iterable[str]) -> str:
    """The pattern of an argument in a message: not in the folders of a path, nor in quotes."""
    return rf"(?<![\w/'\"=.-])({'|'.join(names)})="


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def is_wrong_usage(error: Exception) -> bool:
    """Whether the caller is to blame, and not what there is in files."""
    return isinstance(error, (ArgumentError, ArgumentTypeError))


def reworded(error: GristmillError, message: str) -> GristmillError:
    """An error that says the same in other words."""
    return ArgumentError(message) if is_wrong_usage(error) else GristmillError(message)
