"""The run that a command replays: shards, a mixture or a saved state, and the options that go with them."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill._cli import mixture_files
from gristmill._cli.options import naming_settings
from gristmill._mixture.mixture import mixture_of
from gristmill._mixture.mixture_file import SPECIAL_TOKENS
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


@contextlib.contextmanager
def opened(
    path: str,
    shards: tuple[str, ...],
    drop: str | None,
    tokenizer: Path | None,
    special_tokens_in_text: SpecialTokensInText,
    sample: tuple[str, ...],
    settings: tuple[str, ...],
    storage_options: dict[str, str] | None,
) -> "Iterator[Run]":
    """The run of a path: a saved state of it, or its shards. Errors within name options.

    Raises:
      GristmillError: the options do not match.
    """
    from gristmill._inspect import mixtures
    from gristmill._inspect.locate import run_from_start, run_from_state, run_of

    arguments = parse_settings(settings)
    made = named.make(named.parse(sample))
    state = state_of(path)
    if (file := mixture_files.find(shards)) is not None:
        if state is None or arguments or sample or drop:
            raise ArgumentError(
                f"--shards {file.path} names the mixture of a saved state: found {path}, or other options"
            )
        own = {"tokenizer": tokenizer, SPECIAL_TOKENS: special_tokens_in_text, "storage_options": storage_options}
        file = mixture_files.with_options(file, own)
        yield run_of(mixtures.dataset_of(file, mixture_files.tokenizer_if_needed(file), {}), state)
        return
    encoder = None
    if tokenizer is not None:
        encoder = Encoder.from_file(tokenizer, config="ignore", special_tokens_in_text=special_tokens_in_text)
    if state is None:
        if shards or drop:
            raise StateError(
                f"{path} is not a saved state, whose shards --shards would name: found "
                f"{'another file' if Path(path).is_file() else 'no such file'}; without a state, name the shards "
                "as PATH and leave out --shards, and name a row list with --set drop="
            )
        with naming_settings(ARGUMENTS.keys() - _SET_ALREADY):
            shard = Address.of(path, storage_options=storage_options)
            yield run_from_start(shard, {**arguments, "sample": made}, encoder)
        return
    if arguments.keys() - {"edits"}:
        raise ArgumentError(
            f"{path} is a saved state, which already records the arguments: drop --set, but for --set edits="
        )
    if not shards:
        raise ArgumentError(f"{path} is a saved state: name its shards with --shards")
    of_run = Address.of(*shards, storage_options=storage_options)
    edits = arguments.get("edits")
    yield run_from_state(Path(path), state, of_run, drop, encoder, sample=made, edits=edits)


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


def needs_tokenizer(state: "State | None", shards: tuple[str, ...], sample: tuple[str, ...]) -> bool:
    """Whether a run needs `--tokenizer`: its mixture file has none of its own, and it is not of ready ids alone.

    Args:
      state: its saved state; None: it is of shards.
      shards: those that `--shards` names.
      sample: its `--sample`.

    Raises:
      ArgumentError: see `named.parse`.
    """
    from gristmill._state.states import has_tokenizer

    if mixture_files.find(shards) is not None:
        return False
    return not named.is_ready(named.parse(sample)) if state is None else has_tokenizer(state)


def opened_prompts(
    path: str,
    shards: tuple[str, ...],
    tokenizer: Path | None,
    special_tokens_in_text: SpecialTokensInText,
    sample: tuple[str, ...],
    settings: tuple[str, ...],
    storage_options: dict[str, str] | None,
) -> "tuple[PromptDataset, PromptState | None]":
    """The prompts of a path, which is shards, a mixture file, or a saved state of either.

    Raises:
      GristmillError: the options do not match.
    """
    from gristmill._inspect import contents, prompts
    from gristmill._prompts.arguments import ARGUMENTS as OF_PROMPTS

    values = named.read_values(settings, lambda setting: f"--set {setting}")
    state = None if stores.is_remote(path) else contents.saved_prompt_state(Path(path))
    if state is None and shards:
        raise ArgumentError(f"{path} is no saved state of prompts, whose shards --shards would name: leave it out")
    if state is not None and not shards:
        raise ArgumentError(f"{path} is a saved state of prompts: name its shards with --shards")
    names = list(shards) or [path]
    if (file := mixture_files.find(names)) is None:
        if tokenizer is None:
            raise ArgumentError("--prompt needs --tokenizer")
        encoder = Encoder.from_file(tokenizer, config="ignore", special_tokens_in_text=special_tokens_in_text)
        made = prompt_sample(sample)
        return prompts.dataset_of(
            Address.of(*names, storage_options=storage_options), values, encoder, sample=made
        ), state
    if sample:
        raise ArgumentError("--sample: each source of a mixture has its own: set it in the file")
    own = {"tokenizer": tokenizer, SPECIAL_TOKENS: special_tokens_in_text, "storage_options": storage_options}
    file = mixture_files.with_options(file, own)
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
