"""The list of shards that a dataset reads."""

import contextlib
import copy
import dataclasses
import functools
import glob
import hashlib
import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gristmill._shards import listing, saved_dataset, saved_manifest, stores
from gristmill._shards.address import Address
from gristmill._util.checks import integer, items, without_scheme, wrong_type
from gristmill._util.checks import path as path_argument
from gristmill._util.local_files import Pathish, utf8_path, working_folder
from gristmill._util.text import counted, shortened
from gristmill.errors import ArgumentError, MissingShardError

_LARGEST_SIZE = 2**63 - 1
_FOLDER = "a folder"


@dataclass(frozen=True)
class Manifest:
    """Shards, sorted bytewise by absolute path, with their sizes on disk.

    A manifest is part of what defines a stream of batches: keep one (`save` writes it, it pickles, and `paths` and
    `sizes` are plain tuples) to be certain that a later run reads the same files.

    Attributes:
      paths: path of each shard.
      sizes: size of each shard in bytes, as stored (compressed).
      sidecars: for each of the dataset's `sidecars`, its name and the sizes of all shards' files; None where a shard
        has none. `PackedDataset` adds those that a manifest lacks.
      storage_options: how stores on the network are reached, name by name; they change no fingerprint.
      e_tags: for each shard in a store, what changes with its content, as the store lists it; None for others. Empty if
        no shard has one. They change no fingerprint.
      folder: the folder that relative paths start from: the working folder when the manifest was made; empty if there
        are no relative paths. Two manifests are equal only if their folders are.
      fingerprint: hash of the paths below their common folder and the sizes, those of sidecars too: the same wherever
        the folder lies.

    Raises:
      ArgumentError: there is no path, or not one size for each; a path is listed twice, or is not UTF-8;
        or a size is negative.
      ArgumentTypeError: `paths` are not strings, or `sizes` not integers.
    """

    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    sidecars: tuple[tuple[str, tuple[int | None, ...]], ...] = ()
    storage_options: stores.StorageOptions = field(default=(), repr=False, compare=False)
    e_tags: tuple[str | None, ...] = field(default=(), repr=False, compare=False)
    folder: str = field(init=False, repr=False)
    fingerprint: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.paths, (str, bytes)):
            raise wrong_type("paths", self.paths, "a list of paths", "; for a glob or a path: Manifest.find")
        object.__setattr__(self, "paths", tuple(items("paths", self.paths, "a list of paths")))
        object.__setattr__(self, "sizes", tuple(items("sizes", self.sizes, "a list of sizes in bytes")))
        if len(self.paths) != len(self.sizes):
            paths, sizes = counted(len(self.paths), "path"), counted(len(self.sizes), "size")
            raise ArgumentError(f"a manifest of {paths} has {sizes}")
        if not self.paths:
            raise ArgumentError("a manifest needs at least one shard")
        for name, found in self.sidecars:
            if len(found) != len(self.paths):
                paths, sizes = counted(len(self.paths), "path"), counted(len(found), "size")
                raise ArgumentError(f"a manifest of {paths} has {sizes} of the sidecar {name!r}")
        for path, size in zip(self.paths, self.sizes, strict=True):
            _check_name(path)
            integer(f"the size of {path!r}", size, 0, _LARGEST_SIZE)
        object.__setattr__(self, "folder", "" if all(map(_is_absolute, self.paths)) else _working_folder())
        # The order does not depend on how the paths are spelled. Links are followed nowhere: two names of one file may
        # be meant.
        absolute = [from_root(self.folder, path) for path in self.paths]
        order = sorted(range(len(self.paths)), key=lambda i: os.fsencode(absolute[i]))
        for before, after in itertools.pairwise(order):
            if absolute[before] == absolute[after]:
                raise ArgumentError(f"shard {self.paths[after]!r} is listed twice: name each file once")
        if self.e_tags and len(self.e_tags) != len(self.paths):
            paths, e_tags = counted(len(self.paths), "path"), counted(len(self.e_tags), "ETag")
            raise ArgumentError(f"a manifest of {paths} has {e_tags}")
        object.__setattr__(self, "e_tags", tuple(self.e_tags[i] for i in order) if self.e_tags else ())
        object.__setattr__(self, "paths", tuple(self.paths[i] for i in order))
        object.__setattr__(self, "sizes", tuple(int(self.sizes[i]) for i in order))
        sidecars = tuple((name, tuple(sizes[i] for i in order)) for name, sizes in self.sidecars)
        object.__setattr__(self, "sidecars", sidecars)
        digest = hashlib.sha256()
        below = below_common_folder(absolute[i] for i in order)
        for path, size in zip(below, self.sizes, strict=True):
            digest.update(os.fsencode(path) + b"\0" + str(size).encode() + b"\0")
        for name, found in self.sidecars:
            digest.update(f"\0{name}\0{found}".encode())
        object.__setattr__(self, "fingerprint", digest.hexdigest()[:16])

    @classmethod
    def find(
        cls, shards: "Pathish | Iterable[Pathish] | Manifest", storage_options: Mapping[str, str] | None = None
    ) -> "Manifest":
        """The manifest of a glob, a path, or several of either.

        A name that exists is taken as it is; any other is a glob, in which `**` matches folders of any depth. A shard
        that several patterns match, or that is found through links to its folder, is listed once, under the name that
        the first pattern finds; a link to a file is a file of its own. A folder that `save_to_disk` of `datasets` wrote
        stands for its Arrow files. The JSON files beside these, which a glob may match, are no shards. URLs of stores
        (`gs://`, `s3://`, `az://`, `http(s)://`) and globs of them may stand beside paths; `file:///a/b` is the path
        /a/b. A path or URL that ends in `.manifest.json` stands for the manifest that `save` wrote there; globs leave
        such files out.

        Args:
          shards: paths, globs and URLs, or a manifest, which is returned as it is.
          storage_options: how stores are reached: a dict of strings, named as the `object_store` crate names them, and
            `retry_timeout`, the seconds that an outage is waited out.

        Raises:
          MissingShardError: a path does not exist, a glob matches no file, or a folder that it leads through cannot be
            read.
          ArgumentTypeError: `shards` is of another type.
        """
        patterns = patterns_of(shards)
        options = stores.check_options("storage_options", storage_options) or ()
        if isinstance(patterns, Manifest):
            return dataclasses.replace(patterns, storage_options=options) if options else patterns
        if any(map(saved_manifest.is_one, patterns)):
            if len(patterns) > 1:
                raise ArgumentError(f"shards={shortened(patterns)}: name a saved manifest alone, for all shards")
            return cls.load(patterns[0], dict(options))
        lister = stores.Lister(patterns, options)
        spelled: dict[str, tuple[str, int]] = {}
        missing: list[MissingShardError] = []
        real_folder = functools.cache(os.path.realpath)  # many shards lie in few folders
        for pattern in patterns:
            try:
                found = [match for match in _matches(pattern, lister) if not saved_manifest.is_one(match[0])]
            except MissingShardError as error:
                missing.append(error)
                continue
            # One pattern finds a file under several names only through links to folders; the shortest name has none.
            for path, size in sorted(found, key=lambda match: (match[0].count(os.sep), match)):
                _check_name(path)  # before the message of another error has to spell it
                if stores.is_remote(path):
                    spelled.setdefault(stores.usual(path), (path, size))
                    continue
                folder, name = os.path.split(path)
                spelled.setdefault(os.path.join(real_folder(folder), name), (path, size))
        if missing:
            others = f"; and {len(missing) - 1} more of the {len(patterns)} patterns" if len(missing) > 1 else ""
            raise MissingShardError(f"{missing[0]}{others}")
        paths, sizes = zip(*spelled.values(), strict=True)
        return cls(paths, sizes, storage_options=options, e_tags=lister.e_tags(paths))

    @classmethod
    def load(cls, path: Pathish, storage_options: Mapping[str, str] | None = None) -> "Manifest":
        """The manifest that `save` wrote. No shard is looked at.

        Args:
          path: the path or URL.
          storage_options: how stores are reached, those of the shards, too: a saved manifest has none.

        Raises:
          ArgumentError: it is no saved manifest, that of another version, or damaged.
          MissingShardError: there is none.
          GristmillError: it cannot be read.
        """
        name = path_argument("path", path)
        address = Address.of(name, storage_options=storage_options)
        saved = saved_manifest.read(address)
        found = cls(tuple(saved.paths), tuple(saved.sizes), saved.sidecars, address.options)
        if found.fingerprint != saved.fingerprint:
            raise ArgumentError(
                f"{name!r}: expected the shards of the fingerprint {saved.fingerprint}, found others, of "
                f"{found.fingerprint}: it was changed; save it again"
            )
        return found

    def save(self, path: Pathish, storage_options: Mapping[str, str] | None = None) -> None:
        """Writes the manifest as JSON, so that one host lists the shards, and all others load what it found.

        Paths are written from the root, and `storage_options` never.

        Args:
          path: a path or URL that ends in `.manifest.json`.
          storage_options: how the store is reached. None: as the shards are.

        Raises:
          ArgumentError: the name has another ending.
          GristmillError: it cannot be written.
        """
        options = stores.check_options("storage_options", storage_options)
        paths = [absolute(self.folder, path) for path in self.paths]
        saved = saved_manifest.Saved(paths, self.sizes, self.sidecars, self.fingerprint)
        address = Address((path_argument("path", path),), self.storage_options if options is None else options)
        saved_manifest.write(address, saved)

    def joined(self, added: "Manifest") -> "Manifest":
        """These shards, and others behind them: the numbers of these stay as they are.

        Raises:
          ArgumentError: a shard is in both.
        """
        here = [from_root(self.folder, path) for path in self.paths]
        there = [from_root(added.folder, path) for path in added.paths]
        for path in sorted(set(here) & set(there)):
            raise ArgumentError(f"shard {path!r} is added, and was there before: name each file once")
        folder = self.folder or added.folder
        spelled = there if added.folder not in ("", folder) else [*added.paths]
        digest = hashlib.sha256(f"{self.fingerprint} {added.fingerprint}".encode())
        sizes = dict(added.sidecars)
        found = {
            "paths": (*self.paths, *spelled),
            "sizes": (*self.sizes, *added.sizes),
            "sidecars": tuple((name, (*own, *sizes[name])) for name, own in self.sidecars),
            "e_tags": (*_e_tags(self), *_e_tags(added)) if self.e_tags or added.e_tags else (),
            "folder": folder,
            "fingerprint": digest.hexdigest()[:16],
        }
        joined = copy.copy(self)
        for name, value in found.items():
            object.__setattr__(joined, name, value)
        return joined

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return zip(self.paths, self.sizes, strict=True)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"<Manifest of {counted(len(self), 'shard')}, {counted(sum(self.sizes), 'byte')}, {self.fingerprint}>"


def _e_tags(manifest: Manifest) -> tuple[str | None, ...]:
    return manifest.e_tags or (None,) * len(manifest)


def patterns_of(shards: "Pathish | Iterable[Pathish] | Manifest") -> "list[Pathish] | Manifest":
    """The paths and globs that `shards=` names, or the manifest that it is.

    Raises:
      ArgumentError: there are none.
      ArgumentTypeError: `shards` is none of these.
    """
    if isinstance(shards, Manifest):
        return shards
    if isinstance(shards, (str, bytes, os.PathLike)):
        shards = [shards]
    expected = "a glob, a path, a list of either, or a Manifest"
    # Lists of lines, of keys, and of the names of columns.
    if hasattr(shards, "read") or hasattr(shards, "columns") or isinstance(shards, Mapping):
        raise wrong_type("shards", shards, expected)
    patterns = items("shards", shards, expected)
    if not patterns:
        raise ArgumentError("shards=[]: expected at least one path or glob")
    return [without_scheme(name) if isinstance(name, str) else name for name in patterns]


def sizes_by_path(manifest: Manifest) -> dict[str, int]:
    """The size of each shard by its path from the root, or its URL."""
    return {absolute(manifest.folder, path): size for path, size in manifest}


def absolute(folder: str, path: str) -> str:
    """The path of a file from the root, or its URL."""
    return path if stores.is_remote(path) else os.path.normpath(os.path.join(folder, path))


def from_root(folder: str, path: str) -> str:
    """The path of a shard from the root; of a URL what stands for it."""
    return stores.absolute(path) if stores.is_remote(path) else absolute(folder, path)


def _is_absolute(path: str) -> bool:
    return stores.is_remote(path) or os.path.isabs(path)


def below_common_folder(paths: Iterable[str]) -> list[str]:
    """Paths from the root, from the folder on in which all of them lie."""
    # Not relpath, which takes seconds for a hundred thousand paths.
    paths = list(paths)
    start = len(os.path.commonpath([os.path.dirname(path) for path in paths]).rstrip(os.sep)) + 1
    return [path[start:] for path in paths]


def _glob_inside(folder: str) -> str:
    """A glob for files of the kind that the folder holds."""
    extensions = (".json", ".jsonl", ".gz", ".zst", ".parquet", ".arrow", ".tar")
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in itertools.islice(entries, 1000):
            stem, extension = os.path.splitext(entry.name)
            if extension in extensions:
                before = os.path.splitext(stem)[1] if extension in (".gz", ".zst") else ""
                return os.path.join(glob.escape(folder), f"*{before}{extension}")
    return os.path.join(glob.escape(folder), "*.json.gz")


def _matches(pattern: object, lister: stores.Lister) -> list[tuple[str, int]]:
    """The shards that a path or glob means, and their sizes in bytes; on a network file system each look counts."""
    if not isinstance(pattern, (str, os.PathLike)):
        raise wrong_type("shards", pattern, "paths and globs")
    name = os.fspath(pattern)
    if not isinstance(name, str):
        raise wrong_type("shards", pattern, "paths and globs as strings")
    _check_name(name)
    if stores.is_remote(name):
        return lister.matches(name)
    size, what = look(name)
    if size is not None:
        return [(name, size)]
    if what == _FOLDER and (files := saved_dataset.data_files(name)):
        escaped = [glob.escape(path) if glob.has_magic(path) else path for path in files]
        return [found for path in escaped for found in _matches(path, lister)]
    if what == _FOLDER:
        raise MissingShardError(f"{name!r} is a folder: name its shards, for example {_glob_inside(name)!r}")
    if os.path.lexists(name):
        raise MissingShardError(f"{name!r} is {what}: a shard is a regular file, or a link to one")
    matches = []
    for path in filter(os.path.basename, [*listing.matches(name)]):  # a folder that cannot be listed is an error first
        size, what = look(path)
        if size is not None:
            matches.append((path, size))
        elif what != _FOLDER:
            raise MissingShardError(
                f"{path!r}, which matches {name!r}, is {what}: fix or remove it, or name the shards so that it is not "
                "among them"
            )
    if matches:
        return saved_dataset.without_notes(matches)
    what = "no file matches the glob" if glob.has_magic(name) else "no such file:"
    raise MissingShardError(f"{what} {name!r} (working folder: {working_folder()}){_hint(name)}")


def look(path: str) -> tuple[int | None, str]:
    """The size in bytes of a regular file, or None and a description of the thing at this path."""
    try:
        found = os.stat(path)
    except OSError as error:
        is_gone = error.errno in listing.NOTHING_THERE
        return None, "a dangling link" if is_gone else f"not accessible ({error.strerror})"
    if stat.S_ISREG(found.st_mode):
        return found.st_size, "a file"
    return None, _FOLDER if stat.S_ISDIR(found.st_mode) else "a pipe, a socket or a device"


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise MissingShardError("the working folder, which relative paths start from, was removed") from None


def _hint(name: str) -> str:
    if "://" in name:
        return "; a shard is a local file, or an object of gs://, s3://, az://, hf:// or http(s)://"
    if glob.has_magic(folder := os.path.dirname(name)) and os.path.isdir(folder):
        return f"; the folder {folder!r} exists: glob.escape escapes its name"
    return "; ~ is not expanded: use os.path.expanduser" if name.startswith("~") else stores.braces_advice(name)


def _check_name(path: object) -> None:
    if not isinstance(path, str):
        raise wrong_type("shards", path, "paths as strings")
    if "\0" in path:
        raise ArgumentError(f"shards={shortened(path)}: expected paths and globs without NUL")
    utf8_path(path)


def manifest_at(address: Address) -> Manifest:
    """The manifest of the shards of an address.

    Raises:
      GristmillError: see `Manifest.find`.
    """
    return Manifest.find(list(address.names), dict(address.options))
