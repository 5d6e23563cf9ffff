"""`EnergonFolder`: a split of a folder that `energon prepare` made, or its JSONL."""

import contextlib
import copy
import hashlib
import json
import os
import re
import struct
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import gristmill._core as _core
from gristmill._shards import energon_files
from gristmill._shards.address import Address
from gristmill._shards.counting import count_records
from gristmill._shards.energon_files import META
from gristmill._shards.manifest import Manifest
from gristmill._shards.place import Place
from gristmill._shards.stores import is_remote
from gristmill._util import checks
from gristmill._util.local_files import Pathish
from gristmill._util.text import counted, shortened
from gristmill.errors import ArgumentError, MissingShardError, ShardError

# The key of a member's name, and its extension, as the reader of tars divides them.
_NAME = re.compile(r"((?:.*/)?[^.]+)\.([^/]*)")
_METADATA = re.compile(r"__[^/]*__(/|\Z)")
# Energon's indexes of tars: where each sample begins, and where the last one ends.
_OFFSET = struct.Struct("<Q")
# A tar ends with zeros, by which it becomes a multiple of as many bytes.
_LONGEST_END = 10_240
# The indexes that are requested at once of a store.
_AT_ONCE = 16
_LINES = ".jsonl"


class EnergonFolder:
    """The shards of a split of a folder that Megatron-Energon has prepared, in place of `shards`.

    Tars are read as they are, and nothing is written. Samples and shards that `split.yaml` excludes are left out; the
    former count as `filtered`. Shards are sorted by path, as all shards are.

    A file `X.jsonl` beside its index `X.jsonl.idx` is one, too: it has one shard, and no splits.

    Args:
      path: the folder with `.nv-meta`, or its URL in a store. Its metadata and indexes are read once, and shards of
        which samples are excluded are fetched once to find these. Or a JSONL file.
      split: the split part: `"train"`, `"val"`, ... All of a JSONL file is in each, as in Energon.
      subset: a range of the samples in the order in which the split lists its shards: two numbers of samples, or two
        fractions from 0.0 to 1.0; None as the second stands for the end. Excluded samples count in it, as in Energon.
      split_config: the file in `.nv-meta` that lists the splits. None: `split.yaml`, or else `split.json`.
      dataset_config: the file in `.nv-meta` that says what samples are. None: `dataset.yaml`, if it is there.
      storage_options: how stores are reached, see `Manifest.find`.

    Raises:
      ArgumentError: the folder is not prepared, has no such split, or excludes what it does not have; or a file of it
        has a key that is not known, or that would change which samples there are and is not followed.
      ShardError: a shard has another number of samples than `.info.json` says: by its `.tar.idx`, if that is there and
        ends where the tar does; else the headers of the tar are read. Or a JSONL file has not the bytes of its index.
      GristmillError: the store cannot be reached, or denies access.
      MissingShardError: a shard does not exist.
      MissingExtraError: `split.yaml` needs PyYAML, which is not installed.
    """

    def __init__(
        self,
        path: Pathish,
        split: str = "train",
        subset: "tuple[float, float | None] | None" = None,
        split_config: str | None = None,
        dataset_config: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.path = checks.path("path", path)
        self._place = Place(Address.of(self.path, storage_options=storage_options))
        self.split = checks.text("split", split)
        for name, file in [("split_config", split_config), ("dataset_config", dataset_config)]:
            if file is not None:
                checks.text(name, file)
        if self.are_lines:
            self._read_lines(subset, split_config or dataset_config)
            return
        self._meta = self._place / META
        if not is_prepared(self._place):
            raise _not_prepared(self.path)
        self._counts = energon_files.read_counts(self._meta)
        parts, excludes = energon_files.read_splits(self._meta, split_config)
        self._config = energon_files.read_dataset(self._meta, dataset_config)
        if split not in parts:
            raise ArgumentError(
                f"split={split!r}: expected one of {', '.join(map(repr, parts)) or 'none'}", argument="split"
            )
        excluded = {*excludes}
        self._shards = [name for name in parts[split] if name not in excluded]
        if twice := [name for name, times in Counter(self._shards).items() if times > 1]:
            raise ArgumentError(f"{self._meta}: the split {split!r} lists {twice[0]!r} twice; list each shard once")
        shards = {name for names in parts.values() for name in names} | {*self._counts}
        self._excluded = sorted(excluded - shards)
        kept = dict(self._kept(subset))
        if not kept:
            raise ArgumentError(f"split={split!r}: expected samples in it, found none", argument="split")
        self.manifest = self._found(str(self._place / name) for name in kept)
        self._check_counts(kept)
        self._left_out = self._rows_left_out(kept)
        if not len(self):
            range_of = "" if subset is None else f", subset={subset!r}"
            raise ArgumentError(
                f"split={split!r}{range_of}: expected samples in it, found none: all of them are excluded",
                argument="split",
            )

    @property
    def are_lines(self) -> bool:
        """Whether its samples are the lines of a JSONL file."""
        return self.path.endswith(_LINES)

    @property
    def fields(self) -> "dict[str, str] | None":
        """The fields of `ImageText` that dataset.yaml names, as it writes them; None if it names none.

        Each is the part with exactly this extension, or of several with commas between them (`jpg,png`) the first that
        a sample has. `tools` are those of a conversation.
        """
        return self._config.fields and dict(self._config.fields)

    @property
    def sample_type(self) -> "energon_files.SampleType | None":
        """The class of its samples, by dataset.yaml, whose fields are read together; None of texts beside images."""
        return self._config.sample_type

    @property
    def subflavors(self) -> "dict[str, Any]":
        """The names that dataset.yaml gives to its samples."""
        return dict(self._config.subflavors)

    @property
    def unread(self) -> "dict[str, str]":
        """The fields that dataset.yaml names and of which nothing is read, with their parts."""
        return dict(self._config.left)

    @property
    def refusal(self) -> str | None:
        """Why `ImageText` does not read samples as dataset.yaml says, and what to do; None if it does."""
        return self._config.refusal

    @property
    def left_out(self) -> "FolderRows | None":
        """The rows of its shards that are left out; None if there are none."""
        return FolderRows(self._left_out) if any(self._left_out) else None

    def __len__(self) -> int:
        """The number of its samples."""
        return sum(self._sizes())

    def part(self, count: int) -> "EnergonFolder":
        """The same folder with only so many of its samples: of each shard its share, the first ones."""
        if self.are_lines:
            return self._lines_of(range(self._lines.start, self._lines.start + count))
        total, before, rows, kept = len(self), 0, [], []
        for path, left, size in zip(self.manifest.paths, self._left_out, self._sizes(), strict=True):
            share = (before + size) * count // total - before * count // total
            before += size
            if share:
                kept.append(path)
                there = sorted({*range(len(left) + size)} - {*left})
                rows.append(sorted([*left, *there[share:]]))
        changed = copy.copy(self)
        changed.manifest, changed._left_out = self._found(kept), rows
        return changed

    def _read_lines(self, subset: Any, config: str | None) -> None:
        """Finds the samples of a JSONL file."""
        if config is not None:
            raise ArgumentError(f"{self.path}: JSONL has no {META}, of which {config!r} would be a file; leave it out")
        self.manifest = self._found([self.path])
        ((path, size),) = self.manifest
        index = _Index.read(self._place)
        if index is None:
            raise ArgumentError(
                f"path={shortened(self.path)}: expected its index {_index_of(self._place).name!r} beside it, found "
                "none: run `energon prepare` on it, or name the lines as the shards of gm.PackedDataset"
            )
        count = index.samples
        if index.end != size or count < 1:
            name = _index_of(self._place).name
            reason = f"expected the {index.end} bytes of {name}, found {size}: run `energon prepare` on it again"
            raise ShardError(path, None, None, reason)
        self._config = energon_files.DatasetConfig()
        self._counts, self._left_out, self._lines = {path: count}, [[]], range(count)
        if subset is not None:
            kept = self._lines_of(range(*_range(subset, count)))
            self._left_out, self._lines = kept._left_out, kept._lines

    def _lines_of(self, kept: range) -> "EnergonFolder":
        """The same with some of the samples of a JSONL file alone. Rows count blank lines, which are no samples."""
        ((path, size),) = self.manifest
        with _local(self._place, size) as file, file.open("rb") as lines:
            total, blank = 0, set()
            for total, line in enumerate(lines, start=1):
                if line.isspace():
                    blank.add(total - 1)
        numbers: Sequence[int] = range(total)
        if blank:
            numbers = [number for number in numbers if number not in blank]
        changed = copy.copy(self)
        changed._lines = kept
        changed._left_out = [[*numbers[: kept.start], *numbers[kept.stop :]]]
        changed._counts = {path: len(numbers)}
        return changed

    def _found(self, paths: Iterable[str]) -> Manifest:
        return Manifest.find([*paths], dict(self._place.address.options))

    def _name_of(self, path: str) -> str:
        """The name by which the folder lists a shard of the manifest."""
        if self.are_lines:
            return path
        root = str(self._place / ".")
        if self._place.is_remote:
            return path.removeprefix(f"{root}/")
        return os.path.relpath(os.path.normpath(path), os.path.normpath(root))

    def _sizes(self) -> list[int]:
        """The number of samples of each shard of the manifest."""
        names = map(self._name_of, self.manifest.paths)
        return [self._counts[name] - len(left) for name, left in zip(names, self._left_out, strict=True)]

    def __repr__(self) -> str:
        return f"<EnergonFolder {self.path!r}, split {self.split!r}: {counted(len(self.manifest), 'shard')}>"

    def _kept(self, subset: Any) -> Iterator[tuple[str, range]]:
        """The shards of the subset, and which of their samples are in it."""
        if missing := [name for name in self._shards if name not in self._counts]:
            raise ArgumentError(f"{self._meta}: the split lists {missing[0]!r}, of which .info.json has no count")
        total = sum(self._counts[name] for name in self._shards)
        low, high = (0, total) if subset is None else _range(subset, total)
        start = 0
        for name in self._shards:
            end = start + self._counts[name]
            kept = range(max(low, start) - start, min(high, end) - start)
            if kept:
                yield name, kept
            start = end

    def _check_counts(self, names: Mapping[str, range]) -> None:
        by_name = {self._name_of(path): size for path, size in self.manifest}
        tars = [self._place / name for name in names]
        for name, tar, index in zip(names, tars, _indexes_of(tars), strict=True):
            _check_count(tar, by_name[name], self._counts[name], index)

    def _rows_left_out(self, kept: Mapping[str, range]) -> "list[list[int]]":
        """The rows of each shard of the manifest that are left out."""
        by_shard: dict[str, list[str]] = {}
        for name in self._excluded:
            shard = next((shard for shard in self._counts if name.startswith(f"{shard}/")), None)
            if shard is None:
                raise ArgumentError(f"{self._meta}: exclude names {name!r}, which is in no shard of the folder")
            by_shard.setdefault(shard, []).append(name[len(shard) + 1 :])
        rows = []
        for path, size in self.manifest:
            name = self._name_of(path)
            in_subset, count = kept[name], self._counts[name]
            left = {*range(in_subset.start), *range(in_subset.stop, count)}
            if name in by_shard:
                keys = _keys(self._place / name, size)
                for key in by_shard[name]:
                    if key not in keys:
                        raise ArgumentError(
                            f"{self._meta}: exclude names {key!r} of {name!r}, which has no such sample"
                        )
                    left.add(keys[key])
            rows.append(sorted(left))
        return rows


class Subset(NamedTuple):
    """A fraction of a subset, as subsets of blends make it.

    Attributes:
      ends: the subset, as `EnergonFolder` has it.
      of: the fractions of it at which the part begins and ends.
    """

    ends: Any
    of: tuple[float, float]


class FolderRows:
    """Rows that are left out of the shards of a folder, in place of those of a `RowList`."""

    is_numbered = True
    key_path = None

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.rows = rows

    @property
    def fingerprint(self) -> str:
        """The value that a stream's fingerprint has of it."""
        return hashlib.sha256(json.dumps(self.rows).encode()).hexdigest()[:16]

    @property
    def core(self) -> _core.RowList:
        """The list in memory."""
        return _core.RowList.of_rows([list(rows) for rows in self.rows])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FolderRows) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)


def splits_of(path: Pathish, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """The names of the splits of a folder.

    Raises:
      GristmillError: it has no readable list of them.
    """
    place = Place(Address.of(checks.path("path", path), storage_options=storage_options))
    parts, _ = energon_files.read_splits(place / META)
    return [*parts]


def is_prepared(folder: Place) -> bool:
    """Whether a folder has one of metadata. A store has no folders, but the files in them."""
    meta = folder / META
    if not meta.is_remote:
        return Path(str(meta)).is_dir()
    return any((meta / name).read() is not None for name in energon_files.COUNTS)


def _not_prepared(path: str) -> ArgumentError:
    """The error for what is no prepared folder."""
    start = f"path={shortened(path)}: expected a folder with {META}, as `energon prepare` makes"
    if "://" in path and not is_remote(path):
        return ArgumentError(f"{start}, found a URL of no store that is read: mount the store")
    if path.endswith((".yaml", ".yml")):
        return ArgumentError(f"{start}, found a file: gm.Mixture.from_energon reads metadatasets")
    return ArgumentError(start)


def _range(subset: Any, total: int) -> tuple[int, int]:
    """The first sample of a subset, and the one after its last."""
    if isinstance(subset, Subset):
        low, high = _range(subset.ends, total)
        first, last = (int((high - low) * end) for end in subset.of)
        if first >= last:
            raise ArgumentError(f"subset={subset!r}: expected a range of samples, found none")
        return low + first, low + last
    ends = checks.items("subset", subset, "two numbers of samples, or two fractions")
    if len(ends) != 2 or any(isinstance(end, bool) or not isinstance(end, (int, float, type(None))) for end in ends):
        raise checks.wrong_type("subset", subset, "two numbers of samples, or two fractions")
    low, high = (int(total * end) if isinstance(end, float) else end for end in (ends[0] or 0, ends[1]))
    high = total if high is None else high
    if not 0 <= low < high <= total:
        raise ArgumentError(f"subset={subset!r}: expected a range within the {total} samples of the split")
    return low, high


class _Index(NamedTuple):
    """The index that Energon writes beside a shard.

    Attributes:
      samples: their number.
      end: the end of the last one, in bytes; 0 of an empty index.
    """

    samples: int
    end: int

    @classmethod
    def read(cls, shard: Place, stores: "_core.Stores | None" = None) -> "_Index | None":
        """The index of a shard; None if there is none."""
        offsets = _index_of(shard).read(stores)
        if offsets is None:
            return None
        count = len(offsets) // _OFFSET.size
        end = int(_OFFSET.unpack_from(offsets, (count - 1) * _OFFSET.size)[0]) if count else 0
        return cls(max(count - 1, 0), end)


def _index_of(shard: Place) -> Place:
    return shard.parent / f"{shard.name}.idx"


def _indexes_of(shards: Sequence[Place]) -> "list[_Index | None]":
    """The indexes of shards of one folder, of those in a store some at once."""
    if not shards or not shards[0].is_remote:
        return [_Index.read(shard) for shard in shards]
    stores = shards[0].address.reach()
    readers = ThreadPoolExecutor(_AT_ONCE, "gristmill-index")
    try:
        return [*readers.map(lambda shard: _Index.read(shard, stores), shards)]
    finally:
        readers.shutdown(cancel_futures=True)


def _check_count(path: Place, size: int, expected: int, index: "_Index | None") -> None:
    """Checks the number of samples of a tar of some bytes: by its index, or without one by its headers.

    Raises:
      ShardError: it is another one. A run says where a tar is damaged.
    """

    def wrong(found: str, byte: int | None = None, advice: str = "prepare the folder again") -> ShardError:
        reason = f"expected {counted(expected, 'sample')}, as .info.json says, found {found}: {advice}"
        return ShardError(str(path), None, byte, reason)

    # In a store nothing is read at the end of a tar, but its size shows whether it continues.
    is_longer = index is not None and path.is_remote and size - index.end > _LONGEST_END
    if index is None or is_longer:
        try:
            found = count_records(Manifest.find([str(path)], dict(path.address.options)))
        except ShardError:
            return
        if found != expected:
            link = None if path.is_remote else _first_link(path)
            if link is not None:
                advice = "links are not followed, write the tar with --hard-dereference and --dereference"
                raise wrong(f"{found} in the tar with the link {link!r}", advice=advice)
            raise wrong(f"{found} in the tar")
        return
    name = _index_of(path).name
    if index.samples != expected:
        raise wrong(f"{index.samples} in {name}")
    if path.is_remote:
        return
    with Path(str(path)).open("rb") as file:
        file.seek(min(index.end, 1 << 62))
        header = file.read(512)
    # The index ends where the archive does, unless the tar was written anew since then.
    if header[257:262] == b"ustar":
        raise wrong(f"more in the tar, which continues where {name} ends", index.end)


@contextlib.contextmanager
def _local(place: Place, size: int) -> Iterator[Path]:
    """A file of some bytes on a disk: itself, or what is fetched of a store for a while."""
    if not place.is_remote:
        yield Path(str(place))
        return
    with tempfile.TemporaryDirectory(prefix="gristmill-read-") as folder:
        local = Path(folder) / place.name
        place.address.reach().download(str(place), size, str(local))
        yield local


def _keys(path: Place, size: int) -> dict[str, int]:
    """The record of each key of a tar of some bytes."""
    keys: dict[str, int] = {}
    last, count = None, -1
    with _local(path, size) as local:
        for member in _members(str(local)):
            found = divided(member.name) if not _METADATA.match(member.name) else None
            if not found:
                continue
            if found[0] != last:
                last, count = found[0], count + 1
            keys.setdefault(found[0], count)
    return keys


def divided(name: str) -> "tuple[str, str] | None":
    """The key of a member's name, and its extension; None if it has none."""
    found = _NAME.fullmatch(name)
    return (found[1], found[2]) if found else None


def _members(path: str) -> Iterator[tarfile.TarInfo]:
    """The files and links of a tar, without links to themselves."""
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                is_link = (member.islnk() or member.issym()) and member.linkname != member.name
                if member.isreg() or is_link:
                    yield member
    except (OSError, tarfile.TarError) as error:
        raise MissingShardError(f"{path!r}: expected a tar, found: {error}") from error


def _first_link(path: Place) -> str | None:
    """The name of the first link of a tar."""
    return next((member.name for member in _members(str(path)) if not member.isreg()), None)
