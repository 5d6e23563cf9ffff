"""`EnergonFolder`: a split of a folder that `energon prepare` made."""

import copy
import hashlib
import json
import os
import re
import struct
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from gristmill import _core
from gristmill._shards.manifest import Manifest
from gristmill._util import checks
from gristmill._util.local_files import Pathish
from gristmill._util.text import counted, shortened
from gristmill.errors import ArgumentError, MissingExtraError, MissingShardError, ShardError

_META = ".nv-meta"
_SPLIT_FILES = ("split.yaml", "split.json")
# The fields of Energon's samples that are images, a text or a conversation.
_FIELDS = {
    "image": "images", "images": "images", "imgs": "images", "caption": "text", "text": "text",
    "conversation": "conversation",
}  # fmt: skip
# The key of a member's name, and its extension, as the reader of tars divides them.
_NAME = re.compile(r"((?:.*/)?[^.]+)\.([^/]*)")
_METADATA = re.compile(r"__[^/]*__(/|\Z)")
# Energon's indexes of tars: where each sample begins, and where the last one ends.
_OFFSET = struct.Struct("<Q")


class EnergonFolder:
    """The shards of a split of a folder that Megatron-Energon has prepared, in place of `shards`.

    Tars are read as they are, and nothing is written. Samples and shards that `split.yaml` excludes are left out; the
    former count as `filtered`. Shards are sorted by path, as all shards are.

    Args:
      path: the folder with `.nv-meta`.
      split: the split part: `"train"`, `"val"`, ...
      subset: a range of the samples in the order in which the split lists its shards: two numbers of samples, or two
        fractions from 0.0 to 1.0; None as the second stands for the end. Excluded samples count in it, as in Energon.

    Raises:
      ArgumentError: the folder is not prepared, has no such split, or excludes what it does not have.
      ShardError: a shard has another number of samples than `.info.json` says: by its `.tar.idx`, if that is there and
        ends where the tar does; else the headers of the tar are read.
      MissingShardError: a shard does not exist.
      MissingExtraError: `split.yaml` needs PyYAML, which is not installed.
    """

    def __init__(self, path: Pathish, split: str = "train", subset: "tuple[float, float | None] | None" = None) -> None:
        self.path = checks.path("path", path)
        self.split = checks.text("split", split)
        self._meta = Path(self.path) / _META
        if not self._meta.is_dir():
            raise ArgumentError(f"path={shortened(path)}: expected a folder with {_META}, as `energon prepare` makes")
        self._counts: dict[str, int] = self._read("info", ".info.json", ".info.yaml")["shard_counts"]
        splits = self._read("split", *_SPLIT_FILES)
        parts = splits.get("split_parts") or {}
        if split not in parts:
            raise ArgumentError(f"split={split!r}: expected one of {', '.join(map(repr, parts)) or 'none'}")
        excluded = {name for text in splits.get("exclude") or () for name in _braces(text)}
        listed = [name for text in parts[split] or () for name in _braces(text)]
        self._shards = [name for name in listed if name not in excluded]
        shards = {name for texts in parts.values() for text in texts or () for name in _braces(text)} | {*self._counts}
        self._excluded = sorted(excluded - shards)
        kept = dict(self._kept(subset))
        if not kept:
            raise ArgumentError(f"split={split!r}: expected samples in it, found none")
        self.manifest = Manifest.find([str(Path(self.path) / name) for name in kept])
        self._check_counts(kept)
        self._left_out = self._rows_left_out(kept)

    @cached_property
    def fields(self) -> "dict[str, Any] | None":
        """The fields of `ImageText` that dataset.yaml names; None if it names none."""
        found = self._read("dataset", "dataset.yaml", optional=True)
        field_map = found.get("field_map") or {}
        fields = {_FIELDS[name]: part for name, part in field_map.items() if name in _FIELDS and isinstance(part, str)}
        return fields or None

    @property
    def left_out(self) -> "FolderRows | None":
        """The rows of its shards that are left out; None if there are none."""
        return FolderRows(self._left_out) if any(self._left_out) else None

    def __len__(self) -> int:
        """The number of its samples."""
        return sum(self._sizes())

    def part(self, count: int) -> "EnergonFolder":
        """The same folder with only so many of its samples: of each shard its share, the first ones."""
        total, before, rows, kept = len(self), 0, [], []
        for path, left, size in zip(self.manifest.paths, self._left_out, self._sizes(), strict=True):
            share = (before + size) * count // total - before * count // total
            before += size
            if share:
                kept.append(path)
                there = sorted({*range(len(left) + size)} - {*left})
                rows.append(sorted([*left, *there[share:]]))
        changed = copy.copy(self)
        changed.manifest, changed._left_out = Manifest.find(kept), rows
        return changed

    def _sizes(self) -> list[int]:
        """The number of samples of each shard of the manifest."""
        root = os.path.normpath(self.path)
        names = (os.path.relpath(os.path.normpath(path), root) for path in self.manifest.paths)
        return [self._counts[name] - len(left) for name, left in zip(names, self._left_out, strict=True)]

    def __repr__(self) -> str:
        return f"<EnergonFolder {self.path!r}, split {self.split!r}: {counted(len(self.manifest), 'shard')}>"

    def _read(self, what: str, *names: str, optional: bool = False) -> dict[str, Any]:
        return _read(self._meta, what, *names, optional=optional)

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
        for name in names:
            _check_count(Path(self.path) / name, self._counts[name])

    def _rows_left_out(self, kept: Mapping[str, range]) -> "list[list[int]]":
        """The rows of each shard of the manifest that are left out."""
        root = os.path.normpath(self.path)
        by_shard: dict[str, list[str]] = {}
        for name in self._excluded:
            shard = next((shard for shard in self._counts if name.startswith(f"{shard}/")), None)
            if shard is None:
                raise ArgumentError(f"{self._meta}: exclude names {name!r}, which is in no shard of the folder")
            by_shard.setdefault(shard, []).append(name[len(shard) + 1 :])
        rows = []
        for path in self.manifest.paths:
            name = os.path.relpath(os.path.normpath(path), root)
            in_subset, count = kept[name], self._counts[name]
            left = {*range(in_subset.start), *range(in_subset.stop, count)}
            if name in by_shard:
                keys = _keys(path)
                for key in by_shard[name]:
                    if key not in keys:
                        raise ArgumentError(
                            f"{self._meta}: exclude names {key!r} of {name!r}, which has no such sample"
                        )
                    left.add(keys[key])
            rows.append(sorted(left))
        return rows


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


def splits_of(path: Pathish) -> list[str]:
    """The names of the splits of a folder.

    Raises:
      GristmillError: it has no readable list of them.
    """
    return [*(_read(Path(checks.path("path", path)) / _META, "split", *_SPLIT_FILES).get("split_parts") or {})]


def _read(meta: Path, what: str, *names: str, optional: bool = False) -> dict[str, Any]:
    """The first of some files of a folder's metadata that exists."""
    for name in names:
        file = meta / name
        if not file.is_file():
            continue
        if name.endswith(".json"):
            found = json.loads(file.read_text(encoding="utf-8"))
        else:
            try:
                import yaml  # type: ignore[import-untyped]
            except ImportError as error:
                raise MissingExtraError(f"{file} is YAML, which needs PyYAML: pip install pyyaml") from error
            found = yaml.safe_load(file.read_text(encoding="utf-8"))
        if not isinstance(found, Mapping):
            raise ArgumentError(f"{file}: expected names and values, found {type(found).__name__}")
        return dict(found)
    if optional:
        return {}
    raise ArgumentError(f"path={shortened(str(meta.parent))}: expected {_META}/{names[0]}, the {what} of the folder")


def _braces(text: str) -> list[str]:
    """The names that a text with brace ranges stands for: `s_{000..002}.tar`."""
    found = re.search(r"\{([^{}]*)\}", text)
    if not found:
        return [text]
    span = re.fullmatch(r"(\d+)\.\.(\d+)", found[1])
    if span:
        width = len(span[1]) if span[1].startswith("0") else 0
        choices = [str(number).zfill(width) for number in range(int(span[1]), int(span[2]) + 1)]
    else:
        choices = found[1].split(",")
    start, end = found.span()
    return [name for choice in choices for name in _braces(text[:start] + choice + text[end:])]


def _range(subset: Any, total: int) -> tuple[int, int]:
    """The first sample of a subset, and the one after its last."""
    ends = checks.items("subset", subset, "two numbers of samples, or two fractions")
    if len(ends) != 2 or any(isinstance(end, bool) or not isinstance(end, (int, float, type(None))) for end in ends):
        raise checks.wrong_type("subset", subset, "two numbers of samples, or two fractions")
    low, high = (int(total * end) if isinstance(end, float) else end for end in (ends[0] or 0, ends[1]))
    high = total if high is None else high
    if not 0 <= low < high <= total:
        raise ArgumentError(f"subset={subset!r}: expected a range within the {total} samples of the split")
    return low, high


def _check_count(path: Path, expected: int) -> None:
    """Checks the number of samples of a tar: by its index, or without one by its headers.

    Raises:
      ShardError: it is another one. Of a tar that is damaged, a run says where.
    """

    def wrong(found: str, byte: int | None = None) -> ShardError:
        reason = f"expected {counted(expected, 'sample')}, as .info.json says, found {found}: prepare the folder again"
        return ShardError(str(path), None, byte, reason)

    index = Path(f"{path}.idx")
    if not index.is_file():
        from gristmill._prompts.spec import count_records  # that package imports this one

        try:
            found = count_records(path)
        except ShardError:
            return
        if found != expected:
            raise wrong(f"{found} in the tar")
        return
    offsets = index.read_bytes()
    count = len(offsets) // _OFFSET.size - 1
    if count != expected:
        raise wrong(f"{max(count, 0)} in {index.name}")
    (end,) = _OFFSET.unpack_from(offsets, count * _OFFSET.size)
    with path.open("rb") as file:
        file.seek(min(end, 1 << 62))
        header = file.read(512)
    # The index ends where the archive does, unless the tar was written anew since then.
    if header[257:262] == b"ustar":
        raise wrong(f"more in the tar, which goes on where {index.name} ends", end)


def _keys(path: str) -> dict[str, int]:
    """The record of each key of a tar."""
    keys: dict[str, int] = {}
    last, count = None, -1
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                found = _NAME.fullmatch(member.name) if member.isreg() and not _METADATA.match(member.name) else None
                if not found:
                    continue
                if found[1] != last:
                    last, count = found[1], count + 1
                keys.setdefault(found[1], count)
    except (OSError, tarfile.TarError) as error:
        raise MissingShardError(f"{path!r}: expected a tar, found: {error}") from error
    return keys
