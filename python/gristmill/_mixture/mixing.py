"""How the sources of a stream are mixed, and the arguments of each; the same for rows and for prompts."""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill._mixture import fingerprint as fingerprints
from gristmill._mixture import syntax
from gristmill._mixture.mixture import Mixture
from gristmill._mixture.stages import Stage, core_stages
from gristmill._spec.arguments import SOURCE_ARGUMENTS, Argument
from gristmill.errors import ArgumentError, ArgumentTypeError, MissingShardError, TemplateError


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """How sources are mixed. The core reads it in `rust/python/spec.rs`.

    Attributes:
      names: the names of the sources, sorted, so that the order in which the user lists them does not matter.
      stages: the weights.
      weights_by: what they count.
      on_exhausted: what happens when a source has delivered its last epoch.
    """

    names: Sequence[str]
    stages: Sequence[Stage]
    weights_by: str
    on_exhausted: str

    @classmethod
    def of(cls, shards: Any) -> "Mixing | None":
        """The mixing of the first argument of a dataset; None if it is no mixture.

        Raises:
          ArgumentError: it is the name of a mixture file.
        """
        if isinstance(shards, (str, os.PathLike)) and syntax.is_mixture_file(str(shards)):
            raise ArgumentError(f"shards={str(shards)!r}: a mixture file is read by gm.Mixture.from_file")
        if not isinstance(shards, Mixture):
            return None
        return cls(
            names=sorted(shards.sources),
            stages=shards.stages,
            weights_by=shards.weights_by,
            on_exhausted=shards.on_exhausted,
        )

    @property
    def core_stages(self) -> list[tuple[int, list[int]]]:
        """The stages as the core takes them, with the weights in the order of the names."""
        return core_stages(self.stages, self.names)

    def fingerprint(self, sources: Mapping[str, str], own_keys: Collection[str]) -> str:
        """The fingerprint of the mixture, from those of its sources, in which each has `own_keys` of its own."""
        return fingerprints.make(sources, self.stages, self.weights_by, self.on_exhausted, own_keys)

    def ends(self, source_ends: Mapping[str, bool]) -> bool:
        """Whether a lane may end, by whether each source does."""
        if self.on_exhausted == "error":
            return False
        if self.on_exhausted == "stop":
            return any(source_ends.values())
        last = self.stages[-1].weights
        return all(ends for name, ends in source_ends.items() if last.get(name))


def arguments_of_sources(given: Mapping[str, Any], known: Mapping[str, Argument]) -> dict[str, dict[str, Any]]:
    """The arguments of a dataset of each source alone, by its name; without a mixture those given, of a source "".

    Args:
      given: the arguments of a dataset.
      known: the table of these.

    Raises:
      ArgumentError: one was given that each source has of its own, a quarantine file without anything to list, or
        arrays of sources where there is one.
    """
    mixture = given["shards"]
    if not isinstance(mixture, Mixture):
        if given["source_arrays"]:
            noun = "prompts" if "prompt" in known else "rows"
            raise ArgumentError(
                f"source_arrays=True: only the {noun} of a gm.Mixture have several sources; leave it out"
            )
        return {"": dict(given)}
    own = [name for name in SOURCE_ARGUMENTS if name in known]
    for name in own:
        if name != "shards" and given[name] != known[name].default:
            raise ArgumentError(
                f"{name}={given[name]!r}: each source of a mixture has its own: gm.Source(..., {name}=...)"
            )
    quarantining = {name for name, source in mixture.sources.items() if source.arguments["on_error"] == "quarantine"}
    if given["quarantine_file"] is not None and not quarantining:
        raise ArgumentError(
            f"quarantine_file={given['quarantine_file']!r}: no source quarantines anything; set on_error='quarantine' "
            "of gm.Source"
        )
    return {
        name: {
            **given,
            **{key: source.arguments[key] for key in own},
            "source_arrays": False,
            "quarantine_file": given["quarantine_file"] if name in quarantining else None,
        }
        for name, source in mixture.sources.items()
    }


@contextlib.contextmanager
def of_source(name: str) -> Iterator[None]:
    """Names the source that an error is about; without a name there is only one."""
    try:
        yield
    except (ArgumentError, ArgumentTypeError, MissingShardError, TemplateError) as error:
        if not name:
            raise
        raise error.reworded(lambda text: f"source {name!r}: {text}") from error
