"""The job of `gristmill pack`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gristmill._files.schema import Source
from gristmill._mixture.mixture import mixture_of
from gristmill._mixture.mixture_file import MixtureFile
from gristmill._sample import named
from gristmill._shards.listing import from_folder
from gristmill._shards.rows import DroppedRows
from gristmill._spec.arguments import ARGUMENTS
from gristmill._tokenizer.options import SpecialTokensInText

if TYPE_CHECKING:  # Loads Grain.
    from gristmill._dataset.packed import PackedDataset
    from gristmill._tokenizer.encoder import Encoder


@dataclass(frozen=True)
class Job:
    """The stream that is packed, as the command line or a mixture file names it.

    Attributes:
      shards: paths and globs of all shards.
      tokenizer: the path of the tokenizer.json; None: ids are ready.
      special_tokens_in_text: as for `Encoder`.
      arguments: those of `PackedDataset`, of types that JSON has.
      sample: the sample of shards, see `named.parse`.
      file: the mixture file, if it is one.
    """

    shards: list[str]
    tokenizer: Path | None
    special_tokens_in_text: SpecialTokensInText
    arguments: dict[str, Any]
    sample: dict[str, Any] | None = None
    file: MixtureFile | None = None

    @property
    def quarantines(self) -> bool:
        """Whether bad records are quarantined."""
        sources = [self.arguments] if self.file is None else self.file.described["sources"].values()
        return any(source.get("on_error") == "quarantine" for source in sources)

    def value(self, name: str) -> Any:
        """An argument of `PackedDataset`, or its default."""
        return self.arguments.get(name, ARGUMENTS[name].default)

    def dataset(self, encoder: "Encoder | None") -> "PackedDataset":
        """The dataset.

        Raises:
          GristmillError: see `PackedDataset`.
        """
        from gristmill._dataset.packed import PackedDataset

        if self.file is not None:
            return PackedDataset(mixture_of(self.file), tokenizer=encoder, **self.arguments)
        sample = {} if self.sample is None else {"sample": named.make(self.sample)}
        return PackedDataset(self.shards, tokenizer=encoder, **{**self.arguments, **sample})

    def source(self, dataset: "PackedDataset") -> Source:
        """The index's source. Relative names would mean something else wherever `verify` is called."""
        from gristmill._dataset.packed import spec_of
        from gristmill._files.source import sizes_of, without_storage_options

        # Storage options may be secrets.
        arguments = {name: value for name, value in self.arguments.items() if name != "storage_options"}
        if self.file is None:
            rows = spec_of(dataset).sources[0].drop
            sample = {} if self.sample is None else {"sample": self.sample}
            arguments = {
                **arguments,
                "drop": rows.named.absolute.text if isinstance(rows, DroppedRows) else None,
                **sample,
            }
        source: Source = {
            "shards": [from_folder(shard) for shard in self.shards],
            "sizes": sizes_of(dataset),
            "tokenizer": "" if self.tokenizer is None else str(absolute(self.tokenizer)),
            "special_tokens_in_text": self.special_tokens_in_text,
            "arguments": arguments,
        }
        if self.file is not None:
            source["mixture"] = without_storage_options(self.file.described)
        return source


def check_fields(fields: tuple[str, ...], known: list[str]) -> None:
    """Checks that all fields can be packed.

    Raises:
      UsageError: one cannot.
    """
    if unknown := [name for name in fields if name not in known]:
        raise click.BadParameter(f"{unknown[0]!r}: expected one of {', '.join(known)}", param_hint="--field")


def absolute(path: Path) -> Path:
    """The absolute form of a path; an absolute one needs no working folder."""
    return path if path.is_absolute() else Path.cwd() / path
