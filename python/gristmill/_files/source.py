"""The source of packed rows, as `index.json` describes it: the dataset's shards, or its mixture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from gristmill._dataset.packed import PackedDataset
from gristmill._files.schema import Source
from gristmill._mixture import mixture_file, syntax
from gristmill._mixture.mixture import Mixture, make
from gristmill._sample import named
from gristmill._shards.manifest import Manifest, sizes_by_path
from gristmill._shards.stores import is_remote
from gristmill._tokenizer.encoder import Encoder
from gristmill.errors import ArgumentError, TokenizerError


def sizes_of(dataset: PackedDataset) -> dict[str, int]:
    """The size of each shard by its path, of all sources."""
    sources = list(dataset.sources.values()) or [dataset]
    return {path: size for source in sources for path, size in sizes_by_path(source.manifest).items()}


def dataset_of(
    source: Source,
    *,
    shards: "list[str] | Mixture | None" = None,
    tokenizer: Path | None = None,
    engine: Literal["auto", "reference"] = "auto",
    **other: Any,
) -> PackedDataset:
    """The dataset of a source.

    Args:
      source: the source.
      shards: the first argument of the dataset, see `shards_of`. None: as they were; local ones that are of no mixture
        are then not listed again.
      tokenizer: the path of the tokenizer, if it has moved.
      engine: of the encoder.
      other: arguments in place of the source's.

    Raises:
      GristmillError: see `PackedDataset` and `Encoder.from_file`.
    """
    special = source["special_tokens_in_text"]
    path = tokenizer or source["tokenizer"]
    encoder = path and Encoder.from_file(path, config="ignore", engine=engine, special_tokens_in_text=special)
    arguments = {**source["arguments"], **other}
    if words := arguments.get("sample"):
        arguments["sample"] = named.make(words)
    found = _shards_as_they_were(source) if shards is None else shards
    return PackedDataset(found, tokenizer=encoder or None, **arguments)


def encoder_of(source: Source) -> Encoder | None:
    """The tokenizer that a source names, for the text of ids; None: it has moved, or the source has none."""
    try:
        return Encoder.from_file(source["tokenizer"], config="ignore") if source["tokenizer"] else None
    except TokenizerError:
        return None


def _shards_as_they_were(source: Source) -> list[str] | Mixture | Manifest:
    sizes = source["sizes"]
    is_listed = "mixture" in source or any(map(is_remote, source["shards"]))
    return shards_of(source, (), {}) if is_listed else Manifest(tuple(sizes), tuple(sizes.values()))


def without_storage_options(described: Mapping[str, Any]) -> dict[str, Any]:
    """A described mixture without the options of stores, which may be secrets."""
    sources = described["sources"].items()
    kept = {name: {key: own[key] for key in own if key != "storage_options"} for name, own in sources}
    return {**described, "sources": kept}


def shards_of(source: Source, moved: Sequence[str], other: dict[str, Any]) -> list[str] | Mixture:
    """The first argument of the dataset of a source.

    Args:
      source: the source.
      moved: where its shards are now, if they have moved: paths and globs, or of a mixture the path of its file.
      other: arguments of each source of a mixture that are to be others.

    Raises:
      ArgumentError: `moved` does not name a mixture file, and the source is a mixture, or the other way round; or the
        description of the mixture is damaged.
    """
    is_file = any(map(syntax.is_mixture_file, moved))
    if moved and (is_file != ("mixture" in source) or (is_file and len(moved) > 1)):
        kind = "a mixture: name its file" if "mixture" in source else "no mixture: name paths and globs"
        raise ArgumentError(f"--shards {' '.join(moved)}: the packed rows are of {kind}")
    if "mixture" not in source:
        return list(moved) or source["shards"]
    described = mixture_file.read(moved[0]).described if is_file else source["mixture"]
    try:
        sources = {name: {**own, **other} for name, own in described["sources"].items()}
        return make({**described, "sources": sources})
    except (KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(f"its mixture is not one: {error!r}") from None
