"""Sidecars: files beside the shards that say more about each record, found by renaming and joined by line.

    documents/2023-06/0000/en_head.json.gz                  a shard
    quality_signals/2023-06/0000/en_head.signals.json.gz    its sidecar

A sidecar is written `documents/:quality_signals/:.json.gz:.signals.json.gz:missing=drop` in fingerprints and on the
command line, after its name and an equals sign. A backslash comes before a colon, comma or backslash of a part.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, get_args

import gristmill._core as _core
from gristmill._filter.compiler import Keep, compile_filter, is_name
from gristmill._shards import stores
from gristmill._shards.manifest import Manifest, absolute, look
from gristmill._util import checks
from gristmill._util.checks import wrong_type
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError, MissingShardError

Missing = Literal["error", "keep", "drop"]
Match = str | tuple[str, str] | None

_FORM = "NAME=FOLDER:SIDECAR_FOLDER[:ENDING:SIDECAR_ENDING][:missing=error|keep|drop][:match=KEY]"


@dataclass(frozen=True)
class Sidecar:
    """Files beside the shards, one for each, whose record n says more about record n of the shard.

    The path of a shard's sidecar is the shard's own with `sidecar_folder` in place of `folder`, and `sidecar_ending` in
    place of `ending`:

        Sidecar("documents/", "quality_signals/", ".json.gz", ".signals.json.gz")    # RedPajama-v2
        Sidecar("documents/", "attributes/quality/")                                 # Dolma

    Attributes:
      folder: the folder, or several, in the path of each shard that is replaced; the last one of that name. Empty: the
        folder that holds the shard, below which `sidecar_folder` lies.
      sidecar_folder: what replaces it.
      ending: the ending of each shard's name that is replaced.
      sidecar_ending: what replaces it.
      missing: the treatment of shards that have no such sidecar. `"error"`: the dataset is not made. `"keep"`: of the
        filter, only those conditions count that do not name the sidecar. `"drop"`: their records are left out.
      match: what shows that two records are of the same row. A key: where both records have it, its values must be
        equal; where only the sidecar's has it and it names shard and row (`2023-06/0000/en_head.json.gz/17`), these
        must be the record's. A pair of keys or paths, in the record and in the sidecar's: both must be there, and be
        equal. None: nothing is compared.

    Raises:
      ArgumentError: an argument's value is not allowed.
      ArgumentTypeError: an argument is of the wrong type.
    """

    folder: str
    sidecar_folder: str
    ending: str = ""
    sidecar_ending: str = ""
    _: KW_ONLY
    missing: Missing = "error"
    match: Match = "id"

    def __post_init__(self) -> None:
        for name in ("folder", "sidecar_folder", "ending", "sidecar_ending"):
            checks.valid_text(name, getattr(self, name))
        for name in ("folder", "sidecar_folder"):
            if (path := getattr(self, name)) and not path.endswith("/"):
                object.__setattr__(self, name, f"{path}/")
        checks.choice("missing", self.missing, get_args(Missing))
        if isinstance(self.match, list):
            object.__setattr__(self, "match", tuple(self.match))
        self.match_paths()
        if (self.folder, self.ending) == (self.sidecar_folder, self.sidecar_ending):
            raise ArgumentError(f"Sidecar({self.text}): expected another folder or ending, found the shard's own")

    def match_paths(self) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
        """The paths of the two ids that must be equal, in the record and in the sidecar's."""
        match self.match:
            case None:
                return None
            case str():
                return _path(self.match), _path(self.match)
            case (str() as own, str() as other):
                return _path(own), _path(other)
        raise wrong_type("match", self.match, "a key, a pair of keys, or None")

    @property
    def text(self) -> str:
        """It as text."""
        parts = [self.folder, self.sidecar_folder]
        if self.ending or self.sidecar_ending:
            parts += [self.ending, self.sidecar_ending]
        if self.missing != "error":
            parts.append(f"missing={self.missing}")
        if self.match != "id":
            match = (self.match,) if isinstance(self.match, str) else self.match or ("",)
            parts.append(f"match={'='.join(match)}")
        return ":".join(re.sub(r"([\\:,])", r"\\\1", part) for part in parts)

    @classmethod
    def parse(cls, name: str, text: str) -> "Sidecar":
        """The sidecar of a text. `name` is that of the argument, for errors.

        Raises:
          ArgumentError: it is none.
        """
        parts = [re.sub(r"\\(.)", r"\1", part) for part in split(text, ":")]
        options: dict[str, Any] = {}
        while parts and (found := re.match(r"(missing|match)=", parts[-1])):
            value: Any = parts.pop()[found.end() :]
            if found[1] == "match":
                own, equals, other = value.partition("=")
                value = (own, other) if equals else own or None
            options.setdefault(found[1], value)
        if len(parts) not in (2, 4):
            raise ArgumentError(f"{name}={shortened(text)}: expected {_FORM}")
        return cls(*parts, **options)

    def path_of(self, shard: str) -> str:
        """The path of a shard's sidecar.

        Raises:
          ArgumentError: the shard has another folder or ending.
        """
        if not shard.endswith(self.ending):
            raise ArgumentError(f"the shard {shard!r}: expected a name with the sidecar's ending {self.ending!r}")
        path = shard[: len(shard) - len(self.ending)] + self.sidecar_ending
        if not self.folder:
            above, name = os.path.split(path)
            return os.path.join(above, self.sidecar_folder + name)
        start = len(path)
        while (start := path.rfind(self.folder, 0, start)) >= 0:
            if start == 0 or path[start - 1] == "/" or self.folder.startswith("/"):
                return path[:start] + self.sidecar_folder + path[start + len(self.folder) :]
            start += len(self.folder) - 1
        raise ArgumentError(f"the shard {shard!r}: expected the sidecar's folder {self.folder!r} in its path")


@dataclass(frozen=True)
class Sidecars:
    """The sidecars of a dataset, by the names that filters have for them."""

    named: tuple[tuple[str, Sidecar], ...]

    @property
    def fingerprint(self) -> str:
        """The value that a stream's fingerprint has of them."""
        return ",".join(f"{name}={sidecar.text}" for name, sidecar in self.named)

    @classmethod
    def check(cls, argument: str, value: Any) -> "Sidecars | None":
        """The sidecars of a dict, or of texts.

        Raises:
          ArgumentError: a name or a text is wrong.
          ArgumentTypeError: it is something else.
        """
        if value is None:
            return None
        if isinstance(value, str):
            value = split(value, ",")
        if isinstance(value, (list, tuple)) and all(isinstance(text, str) for text in value):
            pairs = [text.partition("=") for text in value]
            value = {name: Sidecar.parse(argument, rest) for name, _, rest in pairs}
            if len(value) < len(pairs):
                raise ArgumentError(f"{argument}: expected each name once")
        if not isinstance(value, Mapping):
            raise wrong_type(argument, value, "a dict of names and Sidecars")
        for name, sidecar in value.items():
            if not isinstance(name, str) or not is_name(name):
                raise ArgumentError(f"{argument}={shortened(name)}: expected a name as Python's variables have it")
            if not isinstance(sidecar, Sidecar):
                raise wrong_type(f"{argument}[{name!r}]", sidecar, "a Sidecar")
        return cls(tuple(value.items())) if value else None


def with_sidecars(manifest: Manifest, sidecars: Sidecars | None) -> Manifest:
    """A manifest with the sizes of these sidecars; those that it has are not looked for again.

    Raises:
      ArgumentError: a shard has another folder or ending than its sidecar needs.
      MissingShardError: a shard has no sidecar, and that is an error.
    """
    known = dict(manifest.sidecars)
    named = sidecars.named if sidecars else ()
    for name, sidecar in named:
        if name not in known:
            known[name] = _sizes(paths_of(manifest, sidecar), manifest.storage_options)
        missing = [shard for shard, size in zip(manifest.paths, known[name], strict=True) if size is None]
        if missing and sidecar.missing == "error":
            path = sidecar.path_of(absolute(manifest.folder, missing[0]))
            others = f", and {len(missing) - 1} more shards have none" if len(missing) > 1 else ""
            raise MissingShardError(
                f"no such file: {path!r}, the sidecar {name!r} of {missing[0]!r}{others}; download it, or set the "
                'sidecar\'s missing="keep" or "drop"'
            )
    found = tuple((name, known[name]) for name, _ in named)
    return manifest if found == manifest.sidecars else replace(manifest, sidecars=found)


def paths_of(manifest: Manifest, sidecar: Sidecar) -> list[str]:
    """The path of each shard's sidecar, whether it is there or not.

    Raises:
      ArgumentError: a shard has another folder or ending.
    """
    return [sidecar.path_of(absolute(manifest.folder, path)) for path in manifest.paths]


def _sizes(paths: list[str], options: stores.StorageOptions) -> tuple[int | None, ...]:
    """The size of each file in bytes; None of one that is not there."""
    remote = stores.sizes(filter(stores.is_remote, paths), options)
    return tuple(remote[path] if path in remote else look(path)[0] for path in paths)


def split(text: str, separator: str) -> list[str]:
    """The parts of a text between separators without a backslash before them; they keep their backslashes.

    The colon of a URL, as in `gs://bucket`, is no separator.
    """
    parts = [""]
    for char in re.findall(rf"\\.|(?:{'|'.join(_core.STORE_SCHEMES)})://|.", text, re.DOTALL):
        if char == separator:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _path(text: str) -> tuple[Any, ...]:
    compiled: Keep = compile_filter("match", text)
    if compiled.program != (("path", 0),):
        raise ArgumentError(f"match={shortened(text)}: expected a key, or a path such as metadata.url")
    return compiled.paths[0]
