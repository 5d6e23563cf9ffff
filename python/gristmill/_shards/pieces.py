"""Pieces: the parts of large shards that lanes read as if they were shards."""

from typing import NamedTuple

from gristmill import _core
from gristmill._shards.manifest import Manifest
from gristmill._util.text import counted
from gristmill.errors import ArgumentError

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
