"""Mixture files on the command line: finding them, options in place of what they say, and `--print-config`."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gristmill._cli import options
from gristmill._core import __version__
from gristmill._mixture import mixture_file, syntax
from gristmill._mixture.mixture import resolved
from gristmill._mixture.mixture_file import SPECIAL_TOKENS, MixtureFile
from gristmill._tokenizer.options import SpecialTokensInText
from gristmill._util import checks
from gristmill._util.text import counted
from gristmill.errors import ArgumentError

if TYPE_CHECKING:  # Loads Grain, which --help need not wait for.
    from gristmill._dataset.packed import PackedDataset

print_config_option = click.option(
    "--print-config", is_flag=True, help="With a mixture: print it as TOML, all defaults and paths resolved, and stop."
)


def find(paths: Iterable[str]) -> MixtureFile | None:
    """The mixture file that a command's paths name; None if they name shards.

    Raises:
      ArgumentError: it is named beside others, or is not valid.
      GristmillError: it cannot be read.
    """
    names = [*paths]
    files = [name for name in names if syntax.is_mixture_file(name)]
    if not files:
        return None
    if len(names) > 1:
        raise ArgumentError(f"{files[0]} is a mixture file: name it alone, and all shards in it")
    return mixture_file.read(files[0])


def find_own(
    paths: Iterable[str],
    tokenizer: Path | None,
    special_tokens_in_text: SpecialTokensInText,
    storage_options: dict[str, str] | None,
) -> MixtureFile | None:
    """The mixture file of `find`, with options of the running command in place of what it says.

    Raises:
      GristmillError: see `find`.
    """
    file = find(paths)
    own = {"tokenizer": tokenizer, SPECIAL_TOKENS: special_tokens_in_text, "storage_options": storage_options}
    return file and with_options(file, own)


def with_options(file: MixtureFile, given: Mapping[str, Any]) -> MixtureFile:
    """The file with the options that the running command got in place of what it says.

    Args:
      file: the file.
      given: all options of the command that are arguments of `PackedDataset` or `Encoder`, by name. Options of stores
        are for the sources that have none of their own.
    """
    own = {name: value for name, value in given.items() if options.is_given(name)}
    described = dict(file.described)
    if storage := own.pop("storage_options", None):
        sources = described["sources"].items()
        described["sources"] = {name: {"storage_options": storage, **source} for name, source in sources}
    return replace(file, described=described, arguments={**file.arguments, **own})


def tokenizer_of(file: MixtureFile) -> Path:
    """The tokenizer.json that a file names.

    Raises:
      ArgumentError: it names none.
      TokenizerError: there is no such file.
    """
    given = file.arguments.get("tokenizer")
    if given is None:
        raise ArgumentError(f"{file.path} has no tokenizer: add one, or name it with --tokenizer")
    return options.tokenizer_path.convert(checks.path("tokenizer", given), None, None)


def tokenizer_if_needed(file: MixtureFile) -> Path | None:
    """The tokenizer.json that a file names; None if it names none, and all of its sources are ready ids.

    Raises:
      ArgumentError: it names none, and a source has other samples.
      TokenizerError: there is no such file.
    """
    return None if file.is_ready and file.arguments.get("tokenizer") is None else tokenizer_of(file)


def check_print_config(file: MixtureFile | None, *, as_json: bool) -> None:
    """Checks that `--print-config` goes with the other options.

    Raises:
      UsageError: it does not.
    """
    if file is None:
        raise click.UsageError("--print-config needs a mixture file")
    if as_json:
        raise click.UsageError("--print-config prints TOML: it takes no --json")


def config(file: MixtureFile, dataset: "PackedDataset") -> str:
    """A mixture file that describes the dataset of another one in full."""
    from gristmill._dataset.packed import spec_of

    spec = spec_of(dataset)
    # A conversation has no EOS and BOS of its own.
    samples = ((own, own.sample) for own in spec.sources)
    plain = next(
        (own for own, of in samples if not hasattr(getattr(of, "chat", None) or of, "chat_template")), spec.sources[0]
    )
    groups = (plain, spec.rows, spec.order, spec.running)
    values = {name: value for group in groups for name, value in vars(group).items()}
    values |= {name: False for name in ("eos", "bos", "provenance") if values[name] in (None, 0)}
    stream: dict[str, Any] = {name: values[name] for name in mixture_file.stream_arguments()}
    tokenizer = tokenizer_if_needed(file)
    stream["tokenizer"] = tokenizer and str(tokenizer.absolute())
    stream[SPECIAL_TOKENS] = file.arguments.get(SPECIAL_TOKENS, "id")
    stream["balance"] = spec.rows.balance and spec.rows.balance.fingerprint
    # As the file has them: the dataset has hashes of edits, and a mask where the layout has none.
    stream |= {name: file.arguments.get(name) for name in ("edits", "attention_mask")}
    described = {**file.described, "stages": _stages(file, dataset)}
    shards = sum(len(source.manifest) for source in dataset.sources.values())
    return (
        f"# {file.path}, resolved by gristmill {__version__}: {counted(len(dataset.sources), 'source')} of "
        f"{counted(shards, 'shard')} in {counted(dataset.lanes, 'lane')}\n"
        f"# {dataset.fingerprint}\n" + syntax.write({**stream, **resolved(described)})
    )


def _stages(file: MixtureFile, dataset: "PackedDataset") -> list[dict[str, Any]] | None:
    """The stages of weights, and of rows where there are several, as a file has them; None if there are none."""
    found = {stage["step"]: dict(stage) for stage in file.described.get("stages") or ()}
    for stage in dataset.stages if len(dataset.stages) > 1 else ():
        found.setdefault(stage.step, {}).update(vars(stage))
    return [found[step] for step in sorted(found)] or None
