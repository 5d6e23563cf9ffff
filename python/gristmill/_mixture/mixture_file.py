"""Mixture files: a mixture and the stream that is made of it, under the names that the arguments have in Python.

    tokenizer = "tokenizer.json"        # arguments of PackedDataset and Mixture
    sequence_length = 2048

    [sources.web]                       # arguments of Source
    shards = "web/*.json.gz"
    weight = 0.7

A mixture *described* is the same in values that JSON and TOML have: what a file says of `Mixture`, with paths from the
root. Packed folders hold it, too.
"""

import difflib
import inspect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill._images.model import ImageModel
from gristmill._mixture import energon, syntax
from gristmill._mixture.source import Source
from gristmill._mixture.syntax import Keys
from gristmill._sample import named
from gristmill._sample.samples import FillInTheMiddle
from gristmill._shards.energon_folder import EnergonFolder
from gristmill._shards.listing import from_folder
from gristmill._shards.rows import RowList
from gristmill._shards.sidecars import Sidecar
from gristmill._spec.arguments import ARGUMENTS, SOURCE_ARGUMENTS
from gristmill._spec.edits import Edit
from gristmill._spec.stages import Stage, Stages
from gristmill._tokenizer import hub
from gristmill._util import checks
from gristmill._util.local_files import Pathish
from gristmill.errors import ArgumentError, ArgumentTypeError

# An argument of `Encoder`.
SPECIAL_TOKENS = "special_tokens_in_text"
# The arguments of `Mixture`, which imports this module.
_OF_MIXTURE = ("sources", "stages", "weights_by", "on_exhausted")
# The names that others give an argument.
_SYNONYMS = {"path": "shards", "paths": "shards", "files": "shards", "data": "shards", "filter": "keep"}


@dataclass(frozen=True)
class MixtureFile:
    """The content of a mixture file.

    Attributes:
      path: the file.
      described: the mixture.
      arguments: those of `PackedDataset` that the file has, and of `Encoder` `special_tokens_in_text`.
    """

    path: str
    described: Mapping[str, Any]
    arguments: Mapping[str, Any]

    @property
    def shards(self) -> list[str]:
        """The paths and globs of all sources, without what is neither."""
        given = (own["shards"] for own in self.described["sources"].values())
        names = (name for found in given for name in (found if isinstance(found, list) else [found]))
        return [name for name in names if isinstance(name, str)]

    @property
    def is_ready(self) -> bool:
        """Whether the samples of all sources are ready ids, which need no tokenizer."""
        return all(named.is_ready(own.get("sample")) for own in self.described["sources"].values())


def read(path: Pathish) -> MixtureFile:
    """Reads a mixture file.

    Raises:
      ArgumentError: it is not TOML or YAML, or has a key that is unknown, which the error names with its line.
      GristmillError: it cannot be read.
      MissingExtraError: it is YAML, and PyYAML is not installed.
    """
    name = checks.path("path", path)
    if not syntax.is_mixture_file(name):
        raise ArgumentError(f"path={name!r}: expected a mixture file, whose name ends in .toml, .yaml or .yml")
    values, lines = syntax.read(Path(name))
    if energon.is_one(values):
        raise ArgumentError(
            f"{name}: expected a mixture file, found a metadataset of Energon: gm.Mixture.from_energon reads it, "
            "gristmill inspect shows its folders, and examples/from_energon.py prints the lines"
        )
    checker = _Checker(name, lines)
    checker.check(values, [*_OF_MIXTURE, *stream_arguments(), SPECIAL_TOKENS], ())
    if "sources" not in values:
        raise ArgumentError(f"{name}: expected sources, each as a table such as [sources.web], found none")
    folder = str(Path(name).absolute().parent)
    described = {key: values[key] for key in _OF_MIXTURE if key in values}
    described["sources"] = {
        source: _absolute(folder, own, ("sources", source), checker)
        for source, own in checker.table(values["sources"], ("sources",)).items()
    }
    arguments = {key: value for key, value in values.items() if key not in described}
    if "stages" in values:
        described, arguments = _with_stages(described, arguments, checker)
    if "edits" in arguments:
        edits = checker.items(arguments["edits"], ("edits",))
        arguments["edits"] = [_edit(folder, checker.table(edit, ("edits",)), checker) for edit in edits]
    if "tokenizer" in arguments:
        arguments["tokenizer"] = _tokenizer(folder, arguments["tokenizer"])
    if isinstance(file := arguments.get("quarantine_file"), str):
        arguments["quarantine_file"] = str(Path(folder, file))
    return MixtureFile(name, described, arguments)


def _with_stages(
    described: Mapping[str, Any], arguments: Mapping[str, Any], checker: "_Checker"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The mixture with the weights of stages, and the arguments with their lengths of rows and sizes of batches."""
    sizes = ("sequence_length", "batch_size")
    tables = [checker.table(stage, ("stages",)) for stage in checker.items(described["stages"], ("stages",))]
    for stage in tables:
        checker.check(stage, ["step", "weights", *sizes], ("stages",))
        needed = ["step"] if any(name in stage for name in sizes) else ["step", "weights"]
        checker.check({name: stage[name] for name in needed if name in stage}, needed, ("stages",), all_needed=True)
    weights = [{"step": stage["step"], "weights": stage["weights"]} for stage in tables if "weights" in stage]
    rows = [Stage(**{name: stage[name] for name in ("step", *sizes) if name in stage}) for stage in tables]
    rows = [stage for stage in rows if stage.sequence_length or stage.batch_size]
    mixture = {name: value for name, value in described.items() if name != "stages"}
    return (
        {**mixture, **({"stages": weights} if weights else {})},
        {**arguments, **({"stages": str(Stages(rows))} if rows else {})},
    )


def _edit(folder: str, edit: Mapping[str, Any], checker: "_Checker") -> dict[str, Any]:
    """An edit with paths from the root."""
    checker.check(edit, _parameters(Edit), ("edits",))
    found = dict(edit)
    if "shards" in found:
        found["shards"] = _patterns(folder, found["shards"])
    if "drop" in found:
        rows = checker.table(found["drop"], ("edits", "drop"))
        checker.check(rows, _parameters(RowList), ("edits", "drop"))
        found["drop"] = {**rows, "files": _patterns(folder, rows.get("files", []))}
    return found


def source(name: str, values: Mapping[str, Any]) -> Source:
    """The source that is described.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """
    given = dict(values)
    try:
        if isinstance(sample := given.get("sample"), Mapping):
            given["sample"] = named.make(sample)
        if isinstance(shards := given.get("shards"), Mapping):
            given["shards"] = EnergonFolder(**shards)
        if isinstance(sidecars := given.get("sidecars"), Mapping):
            given["sidecars"] = {key: Sidecar(**own) for key, own in sidecars.items()}
        if isinstance(rows := given.get("drop"), Mapping):
            given["drop"] = RowList(**rows)
        return Source(**given)
    except (ArgumentError, ArgumentTypeError) as error:
        raise error.reworded(lambda text: f"source {name!r}: {text}") from None
    except TypeError as error:
        raise ArgumentError(f"source {name!r}: {str(error).replace('.__init__()', '')}") from None


def _absolute(folder: str, values: Any, keys: Keys, checker: "_Checker") -> dict[str, Any]:
    """The values of a source with paths from the root."""
    own = dict(checker.table(values, keys))
    checker.check(own, _parameters(Source), keys)
    if "shards" not in own:
        raise ArgumentError(f"{checker.place(keys)} has no shards: name a path, a glob, or a list of either")
    own["shards"] = _shards(folder, own["shards"], keys, checker)
    if (sample := own.get("sample")) is not None:
        own["sample"] = named.resolved(_sample(sample, (*keys, "sample"), checker), folder)
    if (sidecars := own.get("sidecars")) is not None:
        for name, sidecar in checker.table(sidecars, (*keys, "sidecars")).items():
            place = (*keys, "sidecars", name)
            checker.check(checker.table(sidecar, place), _parameters(Sidecar), place)
    if (rows := own.get("drop")) is not None:
        checker.check(checker.table(rows, (*keys, "drop")), _parameters(RowList), (*keys, "drop"))
        own["drop"] = {**rows, "files": _patterns(folder, rows.get("files", []))}
    return own


def _sample(
    value: Any, keys: Keys, checker: "_Checker", allowed: Collection[str] = named.KINDS.keys()
) -> Mapping[str, Any]:
    values = checker.table(value, keys)
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in allowed:
        kinds = ", ".join(map(repr, allowed))
        raise ArgumentError(f"{checker.place(keys)}: expected a kind, one of {kinds}, found {kind!r}")
    checker.check(values, ["kind", *_parameters(named.KINDS[kind])], keys)
    if kind == "image_text" and isinstance(text := values.get("text"), Mapping):
        _sample(text, (*keys, "text"), checker, named.TEXTS)
    if kind == "image_text" and isinstance(model := values.get("model"), Mapping):
        checker.check(model, _parameters(ImageModel), (*keys, "model"))
    if (fim := values.get("fim")) is not None:
        checker.check(checker.table(fim, (*keys, "fim")), _parameters(FillInTheMiddle), (*keys, "fim"))
    return values


def _shards(folder: str, given: Any, keys: Keys, checker: "_Checker") -> Any:
    """Paths and globs from the root, or the arguments of an `EnergonFolder`."""
    if not isinstance(given, Mapping):
        return _patterns(folder, given)
    place = (*keys, "shards")
    checker.check(given, _parameters(EnergonFolder), place)
    if not isinstance(path := given.get("path"), str) or not path:
        raise ArgumentError(f"{checker.place(place)}: expected the path of a prepared folder, found {path!r}")
    return {**given, "path": str(Path(folder, path).absolute())}


def _patterns(folder: str, given: Any) -> Any:
    """Paths and globs from the root. A value that is neither stays as it is, and the dataset says so."""
    if isinstance(given, str) and given:
        return from_folder(given, folder)
    return [_patterns(folder, one) for one in given] if isinstance(given, list) else given


def _tokenizer(folder: str, given: Any) -> Any:
    if not isinstance(given, str) or not given:
        return given
    path = Path(folder, given)
    # A name of the hub stays one.
    return given if "/" in given and hub.may_have(given) and not path.exists() else str(path)


class _Checker:
    """Checks the form of a file's values; its errors name their lines."""

    def __init__(self, path: str, lines: Mapping[Keys, int]) -> None:
        self._path = path
        self._lines = lines

    def place(self, keys: Keys) -> str:
        """Where a value is, for a message."""
        line = self._lines.get(keys)
        return f"{self._path}{f', line {line}' if line else ''}: [{'.'.join(keys)}]"

    def table(self, value: Any, keys: Keys) -> Mapping[str, Any]:
        """A value that is a table."""
        if isinstance(value, Mapping):
            return value
        raise ArgumentError(f"{self.place(keys)}: expected a table of keys and values, found {value!r}")

    def items(self, value: Any, keys: Keys) -> list[Any]:
        """A value that is a list."""
        if isinstance(value, list):
            return value
        raise ArgumentError(f"{self.place(keys)}: expected a list, in TOML [[{'.'.join(keys)}]], found {value!r}")

    def check(self, values: Mapping[str, Any], known: Iterable[str], keys: Keys, *, all_needed: bool = False) -> None:
        """Checks that a table has no other keys than those known, or all of them.

        Raises:
          ArgumentError: it has; the message names the nearest key.
        """
        names = [*known]
        where = f"[{'.'.join(keys)}]" if keys else "the file"
        for key in values:
            if key not in names:
                line = self._lines.get((*keys, key))
                at = f", line {line}" if line else ""
                raise ArgumentError(
                    f"{self._path}{at}: {where} has the unknown key {key!r}: {_advice(key, names, keys)}"
                )
        if all_needed and (missing := [name for name in names if name not in values]):
            raise ArgumentError(f"{self.place(keys)} has no {missing[0]}: expected {' and '.join(names)}")


def _advice(key: str, names: list[str], keys: Keys) -> str:
    if key == "format":
        return "formats are recognised by content; leave it out"
    if not keys and key in _parameters(Source):
        return "each source has its own: put it below [sources.NAME]"
    if keys and keys[0] == "sources" and len(keys) == 2 and key in stream_arguments():
        return "it is the same for all sources: put it at the top of the file"
    near = [_SYNONYMS[key]] if _SYNONYMS.get(key) in names else difflib.get_close_matches(key, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(names)}"


def stream_arguments() -> list[str]:
    """The arguments of `PackedDataset` that belong to the stream, or to the run, and that text can express."""
    return [name for name in ARGUMENTS if name not in (*SOURCE_ARGUMENTS, "on_stats")]


def _parameters(kind: Any) -> list[str]:
    return [*inspect.signature(kind).parameters]
