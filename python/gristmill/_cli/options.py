"""The arguments of `PackedDataset` as options of the command line, and other options of several commands.

It loads no Grain, so that `--help` is quick.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from gristmill._messages import Mention
from gristmill._mixture import syntax
from gristmill._sample import named
from gristmill._shards import stores
from gristmill._spec import kinds
from gristmill._spec.arguments import ARGUMENTS, REQUIRED
from gristmill._spec.cost import CostKind
from gristmill._spec.kinds import Kind
from gristmill._tokenizer import diagnosis, hub, special_tokens
from gristmill._tokenizer.load import tokenizer_file
from gristmill._util import checks
from gristmill._util.local_files import working_folder
from gristmill.errors import ArgumentError, ArgumentTypeError, GristmillError, MissingTokenizerError

Command = TypeVar("Command", bound=Callable[..., Any])


class SpecialToken(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A special token: `auto` (the tokenizer's own), `none`, an id, or its spelling."""

    name = "auto|none|id|token"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value that `PackedDataset` takes."""
        if isinstance(value, str) and value.lower() in special_tokens.WORDS and value not in ("auto", "none"):
            expected = "expected auto, none, an id or a token; a token of this spelling by its id"
            self.fail(f"{value!r}: {expected}", param, ctx)
        return kinds.SpecialToken().parse(value) if isinstance(value, str) else value


class PathType(click.Path):
    """A path, also as a `file://` URL. Not empty: that would mean the working folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path.

        Raises:
          ArgumentError: a URL names another host.
        """
        if value == "":
            self.fail("expected a non-empty path", param, ctx)
        return super().convert(checks.without_scheme(value) if isinstance(value, str) else value, param, ctx)


def _click_type(kind: Kind) -> Any:
    """The type of the option for an argument; None if no command takes it."""
    match kind:
        case kinds.Integer():
            return click.IntRange(kind.least)
        case kinds.Fraction():
            return click.FloatRange(0, 1)
        case kinds.Boolean():
            return bool
        case kinds.Choice():
            return click.Choice(kind.words)
        case (
            kinds.Text()
            | kinds.Filter()
            | kinds.SidecarsKind()
            | kinds.RowListKind()
            | kinds.StorageOptionsKind()
            | kinds.StepRanges()
            | CostKind()
        ):
            return str
        case kinds.FilePath():
            return PathType(dir_okay=False)
        case kinds.SpecialToken():
            return SpecialToken()
    return None


# The arguments that are options, and their types.
TYPES: Mapping[str, Any] = {
    name: kind for name, argument in ARGUMENTS.items() if (kind := _click_type(argument.kind)) is not None
}

# The form of a row list.
ROW_LIST = "FILES[:column=NAME][:key=KEY]"
# The form of the values of arguments that text expresses in one of their own.
_FORMS = {"balance": "LINEAR,QUADRATIC", "drop": ROW_LIST, "skip": "FIRST:END[,FIRST:END]..."}
# The arguments whose options may be repeated and have another name, and the form of their values.
_REPEATED = {"sidecars": "NAME=FOLDER:SIDECAR_FOLDER...", "storage_options": "NAME=VALUE"}


class _TokenizerFile(PathType):
    """The path of a tokenizer.json, of its folder, or the name of a model on the hub."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The tokenizer.json.

        Raises:
          TokenizerError: there is none.
        """
        path = tokenizer_file(super().convert(value, param, ctx))
        # Nothing is downloaded while a shell completes a line.
        if (ctx is not None and ctx.resilient_parsing) or os.path.exists(path):  # noqa: PTH110 - it never raises
            return path
        # A single word is more likely a misspelled folder.
        if "/" in value and hub.may_have(value) and not os.path.exists(value):  # noqa: PTH110
            return hub.download(value)
        raise MissingTokenizerError(
            f"no such file: {str(path)!r} (working folder: {working_folder()})" + diagnosis.describe_folder(path.parent)
        )


tokenizer_path = _TokenizerFile(readable=False)
# Paths and globs. Errors about missing and unreadable files come from the reader.
shard_path = PathType(readable=False)
# An argument of `Encoder`, as commands take it that make one.
special_tokens_option = click.option(
    "--special-tokens-in-text",
    type=click.Choice(["id", "text"]),
    default="id",
    show_default=True,
    help="How a special token that is spelled out in a text is encoded.",
)
# An argument of `PackedDataset` that is an object there.
sample_option = click.option(
    "--sample",
    "sample",
    multiple=True,
    metavar="KIND|NAME=VALUE",
    help=f"What a record becomes: {', '.join([*named.KINDS][:-1])} or {[*named.KINDS][-1]}, then arguments of gm.Text "
    "and so on; repeated.",
)
TOKENIZER = "A tokenizer.json, its folder, or a hub name."


def settings_option(of: str) -> Callable[[Command], Command]:
    """The option for arguments."""
    return click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help=f"An argument of {of}.")


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


def dataset_options(*names: str, none: Mapping[str, str] = {}, **defaults: Any) -> Callable[[Command], Command]:
    """Adds options to a command, whose errors then name them instead of the arguments of `PackedDataset`.

    Args:
      names: the arguments; none: all that are options.
      none: meanings of an absent option, if they differ from `PackedDataset`.
      defaults: defaults, if they differ from `PackedDataset`.
    """
    added = names or tuple(TYPES)

    def decorate(wrapped: Command) -> Command:
        @functools.wraps(wrapped)
        def command(*args: Any, **kwargs: Any) -> Any:
            if _names_mixture(kwargs):  # whose file has arguments, too
                return wrapped(*args, **kwargs)
            _check_effects(added, kwargs)
            with naming_options(added):
                return wrapped(*args, **kwargs)

        for name in reversed(added):
            command = dataset_option(name, defaults.get(name, REQUIRED), none.get(name))(command)
        return cast(Command, command)

    return decorate


def dataset_option(name: str, default: Any = REQUIRED, none: str | None = None) -> Callable[[Command], Command]:
    """The option for an argument of `PackedDataset`.

    Args:
      name: the argument.
      default: its default, if that differs from `PackedDataset`.
      none: the meaning of an absent option, if that is another one than in `PackedDataset`.
    """
    argument, kind = ARGUMENTS[name], TYPES[name]
    default = argument.default if default is REQUIRED else default
    text = argument.help
    if argument.needs:
        text = f"With {_conditions(argument.needs)}: {text[0].lower()}{text[1:]}"
    if isinstance(kind, SpecialToken):
        default = "none" if default is False else "auto"
        text = text.removesuffix(".") + "; auto: the tokenizer's own."
    elif default is None and (none or argument.none):
        text += f"  [default: {none or argument.none}]"
    if name in _REPEATED:
        callback = _storage_options if name == "storage_options" else _or_none
        form: Any = {"multiple": True, "metavar": _REPEATED[name], "callback": callback}
        return click.option(_flag(name), name, default=None, help=text, **form)
    if name in _FORMS:
        return click.option(_flag(name), name, metavar=_FORMS[name], default=default, help=text)
    if kind is bool:
        return click.option(_flag(name), name, is_flag=True, default=default, help=text)
    return click.option(_flag(name), name, type=kind, default=default, show_default=True, help=text)


def is_given(name: str) -> bool:
    """Whether the running command got an option, even with the value of its default."""
    return click.get_current_context().get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


def _names_mixture(values: Mapping[str, Any]) -> bool:
    """Whether a command got a mixture file."""
    paths = [*(values.get("shards") or ()), *(values.get("paths") or ())]
    return any(map(syntax.is_mixture_file, paths))


def _check_effects(names: Iterable[str], values: Mapping[str, Any]) -> None:
    """Checks that the given options have an effect; defaults need none.

    Raises:
      UsageError: one has none.
    """
    for name in filter(is_given, names):
        if unmet := ARGUMENTS[name].unmet(values):
            raise click.UsageError(f"{_flag(name)} has no effect without {_conditions(unmet)}")


def _conditions(needs: Mapping[str, tuple[str, ...]]) -> str:
    """Options and the values that another option needs them to have."""
    return " and ".join(
        " ".join([_flag(name), *filter(None, [" or ".join(allowed)])]) for name, allowed in needs.items()
    )


@contextlib.contextmanager
def naming_options(names: Iterable[str]) -> Iterator[None]:
    """Errors within name options in place of these arguments: `--batch-size 6` for `batch_size=6`."""
    known = frozenset(names)

    def spell(mention: Mention) -> str:
        if mention.name not in known or mention.owner:
            return str(mention)
        word = mention.value
        if isinstance(TYPES[mention.name], SpecialToken):
            word = {"None": "auto", "True": "auto", "False": "none"}.get(word, word)
        return " ".join(filter(None, (_flag(mention.name), word)))

    try:
        yield
    except GristmillError as error:
        # Without an option its argument is None; as a value no option takes it.
        raise error.spelled(spell).reworded(lambda text: text.removesuffix(", or None")) from error


@contextlib.contextmanager
def naming_settings(names: Iterable[str]) -> Iterator[None]:
    """Errors within name these arguments as `--set` gives them: `--set batch_size=6` for `batch_size=6`."""
    known = frozenset(names)
    try:
        yield
    except GristmillError as error:
        raise error.spelled(lambda mention: f"--set {mention}" if mention.name in known else str(mention)) from error


def _flag(name: str) -> str:
    return f"--{(name.removesuffix('s') if name in _REPEATED else name).replace('_', '-')}"


def _storage_options(context: click.Context, _: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    """The options of stores as public arguments have them.

    Raises:
      ArgumentError: one has no value.
    """
    return None if context.resilient_parsing or not values else dict(stores.parse_options("--storage-option", values))


def _or_none(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[str] | None:
    """The values of an option that may be repeated."""
    return list(values) or None


def is_wrong_usage(error: Exception) -> bool:
    """Whether an error is about arguments, and not about the content of files."""
    return isinstance(error, (ArgumentError, ArgumentTypeError))
