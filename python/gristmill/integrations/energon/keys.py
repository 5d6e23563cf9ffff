"""The keys of samples, as Energon has them: the name of a sample's members without their extensions."""

import struct
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt


class SampleKeys:
    """The keys of samples by shard and record. They are in the tars, where `.tar.idx` says; of JSONL they are numbers.

    Args:
      pieces: the shards, as `PackedDataset.pieces` lists them.
    """

    def __init__(self, pieces: Sequence[Any]) -> None:
        self._pieces = pieces

    def of(self, provenance: "npt.NDArray[Any]") -> list[str]:
        """The keys of the samples of rows, in order; without an index `shard.tar/#record`."""
        entries = provenance.reshape(-1, provenance.shape[-1])
        return [self._key(int(shard), int(record)) for shard, record, _, length, *_ in entries if length]

    def _key(self, shard: int, record: int) -> str:
        piece = self._pieces[shard]
        path, name = piece.path, piece.name.rpartition("/")[2]
        if piece.start:  # whose records are counted from there
            return f"{name}/#{record}"
        if path.endswith(".jsonl") and Path(f"{path}.idx").is_file():
            return str(record)
        try:
            with open(f"{path}.idx", "rb") as index, open(path, "rb") as file:  # noqa: PTH123
                index.seek(8 * record)
                (offset,) = struct.unpack("<Q", index.read(8))
                file.seek(offset)
                with tarfile.open(fileobj=file, mode="r:") as archive:
                    member = archive.next()
        except (OSError, struct.error, tarfile.TarError):
            return f"{name}/#{record}"
        if member is None:
            return f"{name}/#{record}"
        folder, _, base = member.name.rpartition("/")
        key = base.partition(".")[0]
        return f"{folder}/{key}" if folder else key
