"""`Settings`: the arguments of a `PackedDataset` once checked, and what follows from them."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gristmill import _core
from gristmill._shards.manifest import Manifest
from gristmill._spec import fingerprints
from gristmill._spec.sharding import lanes_of_processes
from gristmill._tokenizer.encoder import Encoder
from gristmill._util.local_files import utf8_path
from gristmill.errors import ArgumentError

PROVENANCE = "provenance"


@dataclass(frozen=True, eq=False, kw_only=True)
class Settings:
    """What an iterator is to give. The core reads the attributes that `rust/python/pipeline.rs` names."""

    manifest: Manifest
    encoder: Encoder
    text_field: str
    sequence_length: int
    batch_size: int | None
    lanes: int
    # Those that this process loads, in the order of its rows.
    own_lanes: Sequence[int]
    packing: str
    fit_window: int
    truncation: str
    max_segments: int | None
    layout: str
    boundary_targets: bool
    eos: int | None
    bos: int | None
    seed: int | None
    shuffle_window: int
    epochs: int | None
    on_error: str
    max_error_rate: float
    quarantine_file: str | None
    max_document_bytes: int
    threads: int | None
    prefetch: int
    verify: float
    # Entries of a row's provenance; 0: the rows have none.
    provenance_entries: int
    on_stats: Callable[[dict[str, Any]], None] | None

    # What defines the stream: all that changes it, and nothing that its packing does not use.
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        fingerprint = fingerprints.make(
            {
                "manifest": self.manifest.fingerprint,
                "tokenizer": self.encoder.fingerprint,
                "text_field": self.text_field,
                "sequence_length": self.sequence_length,
                "batch_size": self.batch_size,
                "lanes": self.lanes,
                "packing": self.packing,
                "fit_window": self.fit_window if self.packing == "best_fit" else None,
                "truncation": self.truncation if self.packing == "pad" else None,
                "max_segments": None if self.packing == "pad" else self.max_segments,
                "layout": self.layout,
                "boundary_targets": self.boundary_targets,
                "eos": self.eos,
                "bos": self.bos,
                "seed": self.seed,
                "shuffle_window": None if self.seed is None else self.shuffle_window,
                "epochs": self.epochs,
                "on_error": self.on_error,
                "max_error_rate": None if self.on_error == "raise" else self.max_error_rate,
                "max_document_bytes": self.max_document_bytes,
            }
        )
        object.__setattr__(self, "fingerprint", fingerprint)

    @property
    def stream_name(self) -> str:
        """Names the stream in a quarantine file."""
        return hashlib.sha256(fingerprints.without_policy(self.fingerprint).encode()).hexdigest()[:16]

    @property
    def paths(self) -> list[str]:
        """The shards, as the core takes them."""
        return [utf8_path(path) for path in self.manifest.paths]

    @property
    def folder(self) -> str:
        """What relative paths of shards start from."""
        return self.manifest.folder

    @property
    def sizes(self) -> Sequence[int]:
        """The shards' sizes in bytes."""
        return self.manifest.sizes

    @property
    def rows_per_lane(self) -> int:
        """Rows of each lane in a step."""
        return 1 if self.batch_size is None else self.batch_size // self.lanes

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The arrays of an element, in order, and the shape of each."""
        rows = () if self.batch_size is None else (len(self.own_lanes) * self.rows_per_lane,)
        shapes = dict.fromkeys(_core.LAYOUTS[self.layout], (*rows, self.sequence_length))
        if self.provenance_entries:
            shapes[PROVENANCE] = (*rows, self.provenance_entries, _core.PROVENANCE_NUMBERS)
        return shapes

    def lanes_of_processes(self, sharding: Any) -> dict[int, list[int]]:
        """The lanes of every process that has a device in a sharding of the global batch.

        Raises:
          ArgumentError: there is no `batch_size`; or see `_sharding.lanes_of_processes`.
          ArgumentTypeError: it is no sharding.
        """
        if self.batch_size is None:
            raise ArgumentError(
                "batch_size=None: a sharding divides the rows of a global batch; give the dataset its batch_size"
            )
        return lanes_of_processes(
            sharding,
            batch_size=self.batch_size,
            sequence_length=self.sequence_length,
            lanes=self.lanes,
            shards=len(self.manifest),
        )
