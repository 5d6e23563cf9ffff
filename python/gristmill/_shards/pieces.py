"""Pieces: the parts of large shards that lanes read as if they were shards."""

import logging
import os
from typing import NamedTuple

import gristmill._core as _core
from gristmill._shards import stores
from gristmill._shards.manifest import Manifest
from gristmill._util.local_files import utf8_path
from gristmill._util.text import counted
from gristmill.errors import ArgumentError, GristmillError

_LOGGER = logging.getLogger("gristmill")

_PLURALS = {"record batch": "record batches"}
# Each takes about a hundred bytes.
_MOST = 2**20


class Piece(NamedTuple):
    """A shard, or a part of one.

    Attributes:
      path: path of the shard.
      start: offset in the file, as stored, of the piece's first byte.
      end: offset of the byte after its last one.
      name: its name in messages: the path; of a part with the bytes, as in `web.jsonl[0:1000]`.
    """

    path: str
    start: int
    end: int
    name: str


def cut(manifest: Manifest, split_bytes: int) -> list[Piece]:
    """The shards of a manifest in order, those of more than `split_bytes` bytes in pieces; 0: all whole."""
    return [
        Piece(path, start, end, path if end - start == size else f"{path}[{start}:{end}]")
        for path, size in manifest
        for start, end in (_core.piece_borders(size, split_bytes) if size > split_bytes > 0 else [(0, size)])
    ]


def warn_of_empty_pieces(manifest: Manifest, split_bytes: int) -> None:
    """Warns if the first local shard that is divided has fewer row groups, record batches or frames than pieces."""
    if not split_bytes:
        return
    local = ((path, size) for path, size in manifest if size > split_bytes and not stores.is_remote(path))
    for path, size in local:
        try:
            found = _core.shard_parts(utf8_path(os.path.join(manifest.folder, path)), size)
        except GristmillError:
            return  # whoever reads it says so
        if found is None:
            continue
        (parts, what), pieces = found, len(_core.piece_borders(size, split_bytes))
        # One frame alone is an error.
        if parts < pieces and (parts, what) != (1, "frame"):
            _LOGGER.warning(
                "split_bytes=%s: %s has %s, so that %s of its %s have no rows, and lanes without others deliver "
                "padding: write it with more %s, or leave split_bytes= out",
                split_bytes,
                path,
                counted(parts, what, _PLURALS.get(what, "")),
                pieces - parts,
                counted(pieces, "piece"),
                _PLURALS.get(what, f"{what}s"),
            )
        return


def count_pieces(manifest: Manifest, split_bytes: int) -> int:
    """The number of shards, each piece counted as one.

    Raises:
      ArgumentError: there are too many.
    """
    if not split_bytes:
        return len(manifest)
    pieces = sum(max(1, -(-size // split_bytes)) for size in manifest.sizes)
    if pieces > max(_MOST, len(manifest)):
        fewest = -(-sum(manifest.sizes) // _MOST)
        raise ArgumentError(
            f"split_bytes={split_bytes}: expected at most {_MOST} pieces, found {counted(pieces, 'piece')}; use at "
            f"least {2 * fewest}"
        )
    return pieces
