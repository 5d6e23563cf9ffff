"""Seek indexes of gzip shards, beside them or in GRISTMILL_INDEX_FOLDER, with which a lane finds its piece at once."""

import logging
import os
from pathlib import Path
from typing import Any

import gristmill._core as _core
from gristmill._shards import stores
from gristmill._shards.manifest import Manifest
from gristmill._util.atomic_files import finish, unfinished, writing_into
from gristmill._util.local_files import utf8_path
from gristmill._util.progress import Progress
from gristmill._util.text import counted
from gristmill.errors import ArgumentError

_LOGGER = logging.getLogger("gristmill")

_GZIP = b"\x1f\x8b"


def make_indexes(manifest: Manifest) -> dict[str, Any]:
    """Makes the index of each gzip shard that has none, or that of another file.

    Returns:
      `{"indexes": [{"shard", "index", "bytes", "made"}, ...], "other": [...]}`: sizes in bytes, whether each was made
      now, and the shards that are not gzip.

    Raises:
      ArgumentError: a shard is in a store.
      ShardError: a shard is damaged.
      GristmillError: an index cannot be written.
    """
    found: dict[str, Any] = {"indexes": [], "other": []}
    if remote := [path for path in manifest.paths if stores.is_remote(path)]:
        raise ArgumentError(f"{remote[0]}: an index lies beside a local shard; shards in stores have none")
    total = sum(manifest.sizes)
    done = 0
    with Progress("indexing", total, "B") as progress:
        for path, size in manifest:
            progress.show(done, path)
            if _is_gzip(path):
                index = Path(_core.index_path(utf8_path(path)))
                made = not _core.has_index(utf8_path(path), size)
                if made:
                    _make(path, size, index)
                entry = {"shard": path, "index": str(index), "bytes": index.stat().st_size, "made": made}
                found["indexes"].append(entry)
            else:
                found["other"].append(path)
            done += size
    return found


def describe(found: dict[str, Any]) -> str:
    """The result of `make_indexes` for people."""
    lines = [
        f"{entry['index']}: {entry['bytes']:,} bytes{'' if entry['made'] else ', was there'}"
        for entry in found["indexes"]
    ]
    if found["other"]:
        lines.append(f"{counted(len(found['other']), 'shard')} without gzip, which need no index")
    return "\n".join(lines)


def warn_of_missing_indexes(manifest: Manifest, split_bytes: int) -> None:
    """Warns if gzip shards are divided into pieces and have no index."""
    divided = [path for path, size in manifest if size > split_bytes > 0 and path.lower().endswith(".gz")]
    missing = [
        path
        for path in divided
        if not stores.is_remote(path) and not os.path.exists(_core.index_path(os.path.join(manifest.folder, path)))
    ]
    if missing:
        _LOGGER.warning(
            "gzip shards that are divided and have no index: %d of %d; a lane inflates one up to its piece: make them "
            "with gristmill index %s%s",
            len(missing),
            len(divided),
            missing[0],
            " ..." if len(missing) > 1 else "",
        )


def _is_gzip(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.read(len(_GZIP)) == _GZIP


def _make(path: str, size: int, index: Path) -> None:
    with writing_into(index.parent, elsewhere="name another folder for indexes in GRISTMILL_INDEX_FOLDER"):
        index.parent.mkdir(parents=True, exist_ok=True)
        unfinished(index).touch()
    try:
        _core.write_index(utf8_path(path), size, str(unfinished(index)))
    except BaseException:
        unfinished(index).unlink(missing_ok=True)
        raise
    finish(index)
