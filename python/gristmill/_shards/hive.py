"""Values in the names of folders, as Hive, Spark and others write them: `data/lang=en/year=2024/part.parquet`.

A filter looks at them as `hive("lang")`. The core finds a value in the path of the shard: `rust/format/keep/hive.rs`.
"""

import json
import urllib.parse
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from gristmill._core import Records
from gristmill._filter.compiler import Keep, Steps, is_name, path_text
from gristmill._shards.manifest import Manifest, absolute
from gristmill._util.local_files import utf8_path
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError, GristmillError

# Records that are looked at for the reason why none is kept.
_LOOKED_AT = 20


def with_folders(keep: Keep | None, manifest: Manifest) -> Keep | None:
    """A filter over these shards, with the folders of its keys that are around all of them.

    Raises:
      ArgumentError: no shard lies in a folder of one of the keys.
    """
    if keep is None or not keep.hive_keys:
        return keep
    folders = [path.split("/")[:-1] for path in manifest.paths]
    known = {key for names in folders for key, _ in _pairs(names)}
    for key in keep.hive_keys:
        if key not in known:
            found = ", ".join(f"{name}=..." for name in sorted(known)) or "none"
            raise ArgumentError(
                f"keep={shortened(keep.text)}: hive({key!r}): expected shards in folders {key}=..., found {found}"
            )
    of_all = dict(_pairs(_common(folders)))
    return replace(keep, of_all=tuple(f"{key}={of_all[key]}" for key in keep.hive_keys if key in of_all))


def _pairs(folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The keys of folders, and what is behind them."""
    for folder in folders:
        key, sign, value = folder.partition("=")
        if sign:
            yield urllib.parse.unquote(key), value


def _common(folders: list[list[str]]) -> list[str]:
    """The first folders of all paths, as far as they are the same."""
    first, last = min(folders), max(folders)
    same = next((n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return first[: min(len(first), len(last))] if same is None else first[:same]


def check_keeps_some(keep: Keep, manifest: Manifest, longest: int) -> None:
    """Checks that a filter which has kept no record does not look for values elsewhere than where they are.

    Args:
      keep: the filter.
      manifest: the shards, of which the records of the first one are looked at.
      longest: the longest record that is read.

    Raises:
      ArgumentError: a key that it names is one of a folder, or is inside of a string with JSON.
    """
    if reason := _reason(keep, manifest, longest):
        raise ArgumentError(f"keep={shortened(keep.text)}: it keeps no record: {reason}")


def _reason(keep: Keep, manifest: Manifest, longest: int) -> str | None:
    path, size = next(iter(manifest))
    folders = {key: shard for shard in manifest.paths for key, _ in _pairs(shard.split("/")[:-1])}
    try:
        records = Records(utf8_path(absolute(manifest.folder, path)), size, longest, storage=manifest.storage_options)
        found = [json.loads(record[2]) for number in range(_LOOKED_AT) if (record := records.record(number))]
    except (GristmillError, ValueError):
        return None
    for steps in keep.paths:
        for record in found:
            if is_name(str(steps[0])) and steps[0] in folders and steps[0] not in record:
                folder = folders[steps[0]]
                return f"{steps[0]} is a folder of {folder!r} and no key of its records: write hive({str(steps[0])!r})"
            if inside := _json_on_the_way(record, steps):
                return f"{path_text(inside)} is a string that holds JSON: write {path_text((*inside, ...))}"
    return None


def _json_on_the_way(value: Any, steps: Steps) -> Steps | None:
    """The steps to a string with JSON, through which further steps go."""
    for number, step in enumerate(steps):
        if isinstance(value, str):
            try:
                return steps[:number] if isinstance(json.loads(value), (dict, list)) else None
            except ValueError:
                return None
        try:
            value = value[step]
        except (TypeError, LookupError):
            return None
    return None
