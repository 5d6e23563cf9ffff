"""Manifests as files: one host lists the shards, and all others read what it found.

    {"kind": "gristmill manifest", "version": 1, "fingerprint": "8a1f...", "folder": "gs://bucket/data/",
     "shards": {"0000/en.json.gz": 1234, ...}, "sidecars": {"signals": [56, ...]}}

If shards move with their names as they are, `folder` alone changes: the fingerprint stays.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gristmill._shards.address import Address
from gristmill._util import atomic_files
from gristmill.errors import ArgumentError, GristmillError, MissingShardError

ENDING = ".manifest.json"
_KIND, _VERSION = "gristmill manifest", 1


class Saved(NamedTuple):
    """The content of a saved manifest: the attributes of a `Manifest`, with paths from the root, and URLs."""

    paths: Sequence[str]
    sizes: Sequence[int]
    sidecars: tuple[tuple[str, tuple[int | None, ...]], ...]
    fingerprint: str


def is_one(path: object) -> bool:
    """Whether a path is that of a saved manifest, by its name; no shard has such a name."""
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    return isinstance(name, str) and name.endswith(ENDING)


def write(address: Address, saved: Saved) -> None:
    """Writes a manifest, wholly or not at all.

    Raises:
      ArgumentError: the name has another ending.
      GristmillError: it cannot be written.
    """
    path = address.name
    if not is_one(path):
        raise ArgumentError(f"path={path!r}: expected a name that ends in {ENDING}, by which it is known")
    prefix = os.path.commonprefix(saved.paths)  # noqa: RUF071 - URLs keep both slashes
    folder = prefix[: prefix.rfind("/") + 1]
    value = {
        "kind": _KIND,
        "version": _VERSION,
        "fingerprint": saved.fingerprint,
        "folder": folder,
        "shards": {name[len(folder) :]: size for name, size in zip(saved.paths, saved.sizes, strict=True)},
        "sidecars": dict(saved.sidecars),
    }
    if address.is_remote:
        address.reach().write(path, json.dumps(value).encode())
        return
    file = Path(path)
    with atomic_files.writing_into(file.parent):
        atomic_files.write_json(file, value)


def read(address: Address) -> Saved:
    """Reads what `write` wrote.

    Raises:
      ArgumentError: it is no manifest, or that of another version.
      MissingShardError: there is none.
      GristmillError: it cannot be read.
    """
    path = address.name
    try:
        value = json.loads(_bytes(address))
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{path!r}: expected a saved manifest, found: {error}; save it again") from None
    if not isinstance(value, Mapping) or value.get("kind") != _KIND:
        raise ArgumentError(f"{path!r}: expected a manifest that Manifest.save wrote, found another file")
    if value.get("version") != _VERSION:
        raise ArgumentError(
            f"{path!r}: expected version {_VERSION} of saved manifests, found {value.get('version')!r}; save it again"
        )
    try:
        return _saved(value)
    except (KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(f"{path!r}: expected a saved manifest, found a damaged one: {error!r}") from None


def _saved(value: Mapping[str, Any]) -> Saved:
    folder: str = value["folder"]
    sidecars = tuple((name, tuple(sizes)) for name, sizes in value["sidecars"].items())
    shards: Mapping[str, int] = value["shards"]
    return Saved([folder + name for name in shards], [*shards.values()], sidecars, value["fingerprint"])


def _bytes(address: Address) -> bytes:
    path = address.name
    if address.is_remote:
        found = address.reach().read(path)
        if found is None:
            raise MissingShardError(f"no such object: {path!r}, a saved manifest")
        return found
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise MissingShardError(f"no such file: {path!r}, a saved manifest") from None
    except OSError as error:
        raise GristmillError(f"cannot read the manifest {path!r}: {error.strerror}") from error
