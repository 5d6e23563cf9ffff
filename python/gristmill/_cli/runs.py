"""The run that a command replays: shards, a mixture or a saved state, and the options that go with them."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from gristmill._cli import mixture_files
from gristmill._cli.options import (
    ROW_LIST,
    Command,
    dataset_option,
    naming_settings,
    sample_option,
    settings_option,
    shard_path,
    special_tokens_option,
    tokenizer_path,
)
from gristmill._mixture.mixture import mixture_of
from gristmill._mixture.mixture_file import SPECIAL_TOKENS, MixtureFile
from gristmill._sample import named
from gristmill._sample.samples import Sample
from gristmill._shards import stores
from gristmill._shards.address import Address
from gristmill._spec.arguments import ARGUMENTS
from gristmill._tokenizer.encoder import Encoder
from gristmill._tokenizer.options import SpecialTokensInText
from gristmill.errors import ArgumentError, StateError

if TYPE_CHECKING:  # Loads Grain, which --help need not wait for.
    from gristmill._inspect.locate import Run
    from gristmill._prompts.dataset import PromptDataset
    from gristmill._state.prompt_states import PromptState
    from gristmill._state.states import State

# Arguments of a dataset that these commands set by other options, or themselves.
_SET_ALREADY = frozenset({"shards", "tokenizer", "prefetch", "provenance", "storage_options"})


@dataclass(frozen=True)
class RunOptions:
    """The options of a command that say of which run a path is, as `run_options` adds them."""

    shards: tuple[str, ...]
    drop: str | None
    tokenizer: Path | None
    special_tokens_in_text: SpecialTokensInText
    sample: tuple[str, ...]
    settings: tuple[str, ...]
    storage_options: dict[str, str] | None

    def mixture_file(self, *paths: str) -> MixtureFile | None:
        """The mixture file that paths name, with the options in place of what it says; None if they name shards.

        Raises:
          GristmillError: see `mixture_files.find`.
        """
        return mixture_files.find_own(paths, self.tokenizer, self.special_tokens_in_text, self.storage_options)

    def address(self, *paths: str) -> Address:
        """The shards that paths name."""
        return Address.of(*paths, storage_options=self.storage_options)

    def lacks_tokenizer(self, state: "State | None") -> bool:
        """Whether the run needs a tokenizer that no option names: it is not of ready ids alone, nor of a mixture file.

        Args:
          state: its saved state; None: it is of shards.

        Raises:
          ArgumentError: see `named.parse`.
        """
        from gristmill._state.states import has_tokenizer

        if self.tokenizer is not None or mixture_files.find(self.shards) is not None:
            return False
        return not named.is_ready(named.parse(self.sample)) if state is None else has_tokenizer(state)

    @property
    def encoder(self) -> Encoder | None:
        """The tokenizer, if an option names one.

        Raises:
          TokenizerError: it cannot be read.
        """
        if self.tokenizer is None:
            return None
        special = self.special_tokens_in_text
        return Encoder.from_file(self.tokenizer, config="ignore", special_tokens_in_text=special)


def run_options(*, shards: str, drop: str, tokenizer: str, settings: str) -> Callable[[Command], Command]:
    """Adds the options of a `RunOptions`, which the command gets as `run`. The arguments are the help of some."""
    added = [
        click.option("--shards", multiple=True, type=shard_path, help=shards),
        click.option("--drop", metavar=ROW_LIST, help=drop),
        click.option("--tokenizer", type=tokenizer_path, help=tokenizer),
        special_tokens_option,
        sample_option,
        settings_option(settings),
        dataset_option("storage_options"),
    ]

    def decorate(wrapped: Command) -> Command:
        @functools.wraps(wrapped)
        def command(*args: Any, **given: Any) -> Any:
            run = RunOptions(**{field.name: given.pop(field.name) for field in fields(RunOptions)})
            return wrapped(*args, run=run, **given)

        for option in reversed(added):
            command = option(command)
        return cast(Command, command)

    return decorate


@contextlib.contextmanager
def opened(path: str, run: RunOptions) -> "Iterator[Run]":
    """The run of a path: a saved state of it, or its shards. Errors within name options.

    Raises:
      GristmillError: the options do not match.
    """
    from gristmill._inspect import mixtures
    from gristmill._inspect.locate import run_from_start, run_from_state, run_of

    arguments = parse_settings(run.settings)
    made = named.make(named.parse(run.sample))
    state = state_of(path)
    if (file := run.mixture_file(*run.shards)) is not None:
        if state is None or arguments or run.sample or run.drop:
            raise ArgumentError(
                f"--shards {file.path} names the mixture of a saved state: found {path}, or other options"
            )
        yield run_of(mixtures.dataset_of(file, mixture_files.tokenizer_if_needed(file), {}), state)
        return
    encoder = run.encoder
    if state is None:
        if run.shards or run.drop:
            raise StateError(
                f"{path} is not a saved state, whose shards --shards would name: found "
                f"{'another file' if Path(path).is_file() else 'no such file'}; without a state, name the shards "
                "as PATH and leave out --shards, and name a row list with --set drop="
            )
        with naming_settings(ARGUMENTS.keys() - _SET_ALREADY):
            yield run_from_start(run.address(path), {**arguments, "sample": made}, encoder)
        return
    if arguments.keys() - {"edits"}:
        raise ArgumentError(
            f"{path} is a saved state, which already records the arguments: drop --set, but for --set edits="
        )
    if not run.shards:
        raise ArgumentError(f"{path} is a saved state: name its shards with --shards")
    of_run, edits = run.address(*run.shards), arguments.get("edits")
    yield run_from_state(Path(path), state, of_run, run.drop, encoder, sample=made, edits=edits)


def state_of(path: str) -> "State | None":
    """The saved state of a path; None if it is of shards.

    Raises:
      StateError: it is damaged, or a state of prompts.
    """
    from gristmill._inspect import contents, prepared_folder

    is_shards = stores.is_remote(path) or prepared_folder.is_one(Address.of(path))
    return None if is_shards else contents.saved_state(Path(path))


def needed_state(path: str) -> "State":
    """The saved state of a path.

    Raises:
      StateError: it is none, or damaged.
    """
    state = state_of(path)
    if state is None:
        raise StateError(f"{path}: expected a saved state of packed rows, found another file, or none")
    return state


def opened_prompts(path: str, run: RunOptions) -> "tuple[PromptDataset, PromptState | None]":
    """The prompts of a path, which is shards, a mixture file, or a saved state of either.

    Raises:
      GristmillError: the options do not match.
    """
    from gristmill._inspect import contents, prompts
    from gristmill._prompts.arguments import ARGUMENTS as OF_PROMPTS

    values = named.read_values(run.settings, lambda setting: f"--set {setting}")
    state = None if stores.is_remote(path) else contents.saved_prompt_state(Path(path))
    if state is None and run.shards:
        raise ArgumentError(f"{path} is no saved state of prompts, whose shards --shards would name: leave it out")
    if state is not None and not run.shards:
        raise ArgumentError(f"{path} is a saved state of prompts: name its shards with --shards")
    names = run.shards or (path,)
    if (file := run.mixture_file(*names)) is None:
        if (encoder := run.encoder) is None:
            raise ArgumentError("--prompt needs --tokenizer")
        made = prompt_sample(run.sample)
        return prompts.dataset_of(run.address(*names), values, encoder, sample=made), state
    if run.sample:
        raise ArgumentError("--sample: each source of a mixture has its own: set it in the file")
    special = file.arguments.get(SPECIAL_TOKENS, "id")
    encoder = Encoder.from_file(mixture_files.tokenizer_of(file), config="ignore", special_tokens_in_text=special)
    of_file = {name: value for name, value in file.arguments.items() if name in OF_PROMPTS.keys() - {"tokenizer"}}
    return prompts.dataset_of(mixture_of(file), {**of_file, **values}, encoder), state


def prompt_sample(words: tuple[str, ...]) -> Sample | None:
    """The sample of prompts that `--sample` options name; a text is that of the key "prompt" unless they say another.

    Raises:
      ArgumentError: see `named.parse` and `named.make`.
    """
    described = named.parse(words)
    if described is not None and described["kind"] == "text":
        described.setdefault("field", "prompt")
    return named.make(described)


def naming_setting(error: click.ClickException) -> click.ClickException:
    """An error that also says, of an unknown option, that the command of a run takes this argument by `--set`."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error
    name = error.option_name.lstrip("-").replace("-", "_")
    is_of_run = any("--shards" in option.opts for option in error.ctx.command.params)
    if not is_of_run or name not in ARGUMENTS.keys() - _SET_ALREADY:
        return error
    return click.UsageError(f"{error.format_message()} Use --set {name}=VALUE.", error.ctx)


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """The arguments of `PackedDataset` in `--set` options."""
    arguments: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ArgumentError(f"--set {setting}: expected name=value, such as sequence_length=2048")
        if name not in ARGUMENTS:
            raise ArgumentError(f"--set {setting}: PackedDataset has no such argument")
        if name in _SET_ALREADY:
            raise ArgumentError(f"--set {setting}: this command sets {name} itself")
        if name in arguments:
            raise ArgumentError(f"--set {setting}: {name} was given twice")
        try:
            arguments[name] = ARGUMENTS[name].kind.parse(value)
        except ValueError:
            arguments[name] = value  # the dataset raises an error that names the allowed values
    return arguments
