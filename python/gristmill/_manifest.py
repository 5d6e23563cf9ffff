"""The list of shards that a dataset reads."""

import functools
import glob
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gristmill import _glob
from gristmill._arguments import integer, items, utf8_path, working_folder, wrong_type
from gristmill._errors import ArgumentError, MissingShardError
from gristmill._once import once

Pathish: TypeAlias = "str | os.PathLike[str]"

_LARGEST_SIZE = 2**63 - 1


@dataclass(frozen=True)
class Manifest:
    """Shards, sorted bytewise by absolute path, with their sizes on disk.

    A manifest is part of what defines a stream of batches: keep one (it pickles, and `paths` and `sizes`
    are plain tuples) to be certain that a later run reads the same files.

    Attributes:
      paths: path of each shard.
      sizes: size of each shard in bytes, as stored (compressed).
      folder: what relative paths start from: the working folder when the manifest was made. Part of what makes two
        manifests equal; empty if there are no relative paths.
    """

    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    folder: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.paths) != len(self.sizes):
            raise ArgumentError(f"a manifest of {len(self.paths)} paths has {len(self.sizes)} sizes")
        if not self.paths:
            raise ArgumentError("a manifest needs at least one shard")
        for path, size in zip(self.paths, self.sizes, strict=True):
            _check_name(path)
            integer(f"the size of {path!r}", size, 0, _LARGEST_SIZE)
        object.__setattr__(self, "folder", "" if all(map(os.path.isabs, self.paths)) else _working_folder())
        # The order does not depend on how the paths are spelled. Links are followed nowhere: two names of one file may
        # be meant.
        absolute = self._absolute()
        order = sorted(range(len(self.paths)), key=lambda i: os.fsencode(absolute[i]))
        for before, after in itertools.pairwise(order):
            if absolute[before] == absolute[after]:
                raise ArgumentError(f"shard {self.paths[after]!r} is listed twice: name each file once")
        object.__setattr__(self, "paths", tuple(self.paths[i] for i in order))
        object.__setattr__(self, "sizes", tuple(int(self.sizes[i]) for i in order))

    @classmethod
    def find(cls, shards: "Pathish | Iterable[Pathish] | Manifest") -> "Manifest":
        """The manifest of a glob, a path, or several of either.

        A name that exists is taken as it is; any other is a glob, in which `**` matches folders of any
        depth. A shard that several of them match, or one over links to its folder, is listed once, as the first of
        them spells it; a link to a file is a file of its own.

        Raises:
          MissingShardError: a path does not exist, a glob matches no file, or a folder that it leads through cannot be
            read.
          ArgumentTypeError: `shards` is none of these.
        """
        if isinstance(shards, Manifest):
            return shards
        if isinstance(shards, (str, bytes, os.PathLike)):
            shards = [shards]
        expected = "a glob, a path, a list of either, or a Manifest"
        if hasattr(shards, "read") or isinstance(shards, Mapping):  # lists of lines, and of keys
            raise wrong_type("shards", shards, expected)
        patterns = items("shards", shards, expected)
        if not patterns:
            raise ArgumentError("shards=[]: expected at least one path or glob")
        spelled: dict[str, str] = {}
        real_folder = functools.cache(os.path.realpath)  # of many shards there are few
        for pattern in patterns:
            # In one pattern only a folder's link gives a file several names, and the shortest without it.
            for path in sorted(_matches(pattern), key=lambda path: (path.count(os.sep), path)):
                _check_name(path)  # before the message of another error has to spell it
                folder, name = os.path.split(path)
                spelled.setdefault(os.path.join(real_folder(folder), name), path)
        paths = spelled.values()
        try:
            return cls(tuple(paths), tuple(os.stat(path).st_size for path in paths))
        except FileNotFoundError as error:
            raise MissingShardError(f"{error.filename!r} was removed while the shards were listed") from error

    @property
    @once
    def fingerprint(self) -> str:
        """Hash of the paths below their common folder and the sizes: the same wherever the folder lies."""
        absolute = self._absolute()
        folder = os.path.commonpath([os.path.dirname(path) for path in absolute])
        below = len(folder.rstrip(os.sep)) + 1  # not relpath, which takes seconds for a hundred thousand paths
        digest = hashlib.sha256()
        for path, size in zip(absolute, self.sizes, strict=True):
            digest.update(os.fsencode(path[below:]) + b"\0" + str(size).encode() + b"\0")
        return digest.hexdigest()[:16]

    def _absolute(self) -> list[str]:
        return [os.path.normpath(os.path.join(self.folder, path)) for path in self.paths]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return zip(self.paths, self.sizes, strict=True)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"<Manifest of {len(self)} shards, {sum(self.sizes):,} bytes, {self.fingerprint}>"


def _matches(pattern: object) -> Sequence[str]:
    if not isinstance(pattern, (str, os.PathLike)):
        raise wrong_type("shards", pattern, "paths and globs")
    name = os.fspath(pattern)
    if not isinstance(name, str):
        raise wrong_type("shards", pattern, "paths and globs as strings")
    if os.path.isfile(name):
        return [name]
    if os.path.isdir(name):
        raise MissingShardError(
            f"{name!r} is a folder: name its shards, for example {os.path.join(name, '*.json.gz')!r}"
        )
    if os.path.lexists(name):
        raise MissingShardError(f"{name!r} is {_what_it_is(name)}: a shard is a regular file, or a link to one")
    matches = [path for path in _glob.matches(name) if os.path.basename(path) and not os.path.isdir(path)]
    for path in matches:
        if not os.path.isfile(path):
            raise MissingShardError(
                f"{path!r}, which matches {name!r}, is {_what_it_is(path)}: bring its file back, or name the shards so "
                "that it is not among them"
            )
    if matches:
        return matches
    what = "no file matches the glob" if glob.has_magic(name) else "no such file:"
    raise MissingShardError(f"{what} {name!r} (working folder: {working_folder()}){_hint(name)}")


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise MissingShardError("the working folder was removed, from which relative paths start") from None


def _what_it_is(path: str) -> str:
    try:
        os.stat(path)
    except OSError as error:
        is_gone = error.errno in _glob.NOTHING_THERE
        return "a link that leads to no file" if is_gone else f"out of reach ({error.strerror})"
    return "a pipe, a socket or a device"


def _hint(name: str) -> str:
    if "://" in name:
        return "; shards are local files: mount the bucket, or fetch them"
    return "; ~ is taken as it is: use os.path.expanduser" if name.startswith("~") else ""


def _check_name(path: object) -> None:
    if not isinstance(path, str):
        raise wrong_type("shards", path, "paths as strings")
    utf8_path(path)
