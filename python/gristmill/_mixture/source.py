"""`Source`: a part of a `Mixture`, as callers describe it."""

import numbers
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from gristmill._sample.samples import Sample
from gristmill._shards.energon_folder import EnergonFolder
from gristmill._shards.manifest import Manifest
from gristmill._shards.rows import RowList
from gristmill._shards.sidecars import Sidecar
from gristmill._spec.arguments import SOURCE_ARGUMENTS
from gristmill._util import checks
from gristmill._util.local_files import Pathish
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError


class Source:
    """Shards that are read in one way, as a part of a `Mixture`.

    The arguments other than `weight` are those of `PackedDataset`, and mean what they mean there.

    Args:
      shards: a glob, a path, a list of either, a `Manifest` or an `EnergonFolder`. Each lane reads every source, so
        there must be at least as many shards, or pieces of them (`split_bytes`), as lanes.
      weight: its share of the rows, next to the weights of the other sources. None: the stages of the mixture say it.
      epochs: number of passes over the shards, after which the source is exhausted. None: endless.
    """

    def __init__(
        self,
        shards: "Pathish | Iterable[Pathish] | Manifest | EnergonFolder",
        *,
        weight: float | None = None,
        text_field: str = "text",
        sample: "Sample | None" = None,
        keep: str | None = None,
        sidecars: "Mapping[str, Sidecar] | None" = None,
        drop: "RowList | None" = None,
        split_bytes: int = 0,
        storage_options: "Mapping[str, str] | None" = None,
        io_bytes: int = 2**28,
        cache_dir: "Pathish | None" = None,
        cache_bytes: int = 2**36,
        max_document_bytes: int = 2**27,
        shuffle_window: int = 1024,
        epochs: int | None = None,
        on_error: Literal["raise", "quarantine"] = "raise",
        max_error_rate: float = 0.01,
    ) -> None:
        self.arguments: dict[str, Any] = {name: value for name, value in locals().items() if name in SOURCE_ARGUMENTS}
        self.weight = None if weight is None else check_weight("weight", weight)

    def __repr__(self) -> str:
        return f"<Source of {shortened(self.arguments['shards'])}, weight={self.weight}>"


def check_weight(name: str, value: Any) -> float:
    """A weight as a float.

    Raises:
      ArgumentError: it is below 0 or not finite.
      ArgumentTypeError: it is no number.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise checks.wrong_type(name, value, "a number from 0 on")
    number = float(value)
    if not 0 <= number < float("inf"):
        raise ArgumentError(f"{name}={shortened(value)}: expected a finite number from 0 on")
    return number
