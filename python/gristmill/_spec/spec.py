"""`Spec`: the checked arguments of a `PackedDataset`, and values that follow from them."""

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gristmill import _core
from gristmill._sample import plans
from gristmill._sample.samples import Chat, ImageText, Text, check_ends
from gristmill._shards.energon_folder import EnergonFolder
from gristmill._shards.indexes import warn_of_missing_indexes
from gristmill._shards.manifest import Manifest, patterns_of
from gristmill._shards.pieces import Piece, count_pieces, warn_of_empty_pieces
from gristmill._shards.rows import DroppedRows
from gristmill._shards.sidecars import with_sidecars
from gristmill._spec import effects, fingerprints, quarantine
from gristmill._spec.arguments import ARGUMENTS, Faults, Input, Order, Rows, Running, Tokenizing
from gristmill._spec.lanes import lane_count, lanes_of_host
from gristmill._spec.sharding import lanes_of_processes
from gristmill._tokenizer.encoder import as_encoder, check_is_function, special_token_id
from gristmill._util import checks
from gristmill.errors import ArgumentError

if TYPE_CHECKING:
    from gristmill._spec.mixing import Mixing

Group = TypeVar("Group")

# Many consumers count the elements of an array in 32 bits.
_MOST_ELEMENTS = 2**31


@dataclass(frozen=True, kw_only=True)
class Source:
    """The records and the treatment of bad ones. All else belongs to the stream or to the run."""

    input: Input
    faults: Faults


@dataclass(frozen=True, eq=False, kw_only=True)
class Spec:
    """The definition of an iterator's stream. The core reads it in `rust/python/spec.rs`.

    With `mixing` the stream is a mixture, whose sources have specs of their own: then `source`, `tokenizing` and
    `order.epochs` are not used, but for the faults, which sum up those of all sources.
    """

    source: Source
    tokenizing: Tokenizing
    rows: Rows
    order: Order
    running: Running
    mixing: "Mixing | None" = None
    # Also rows that train nothing are delivered, to be looked at.
    delivers_untrained: bool = False

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the stream."""
        return self.mixing.fingerprint if self.mixing else fingerprints.make(self._values)

    @property
    def sources(self) -> "list[Spec]":
        """The specs of its sources, in the order in which the user has listed them; itself if it is no mixture."""
        return [member.spec for member in self.mixing.listed] if self.mixing else [self]

    @property
    def pieces(self) -> list[Piece]:
        """What is dealt to lanes, of all sources."""
        return [piece for spec in self.sources for piece in spec.source.input.pieces]

    @property
    def ends(self) -> bool:
        """Whether a lane may end."""
        return self.mixing.ends if self.mixing else self.order.epochs is not None

    @property
    def stream_name(self) -> str:
        """Names the stream in a quarantine file."""
        return hashlib.sha256(fingerprints.without_policy(self.fingerprint).encode()).hexdigest()[:16]

    @property
    def rows_per_lane(self) -> int:
        """Rows of each lane in a step."""
        return 1 if self.rows.batch_size is None else self.rows.batch_size // self.order.lanes

    @property
    def rows_per_step(self) -> int:
        """Rows of all lanes in a step."""
        return self.rows.batch_size or self.order.lanes

    @property
    def own_rows(self) -> slice | None:
        """The rows of the own lanes' step that are delivered; None: all."""
        if not self.running.equal_steps:
            return None
        start = self.running.shard_index * self._rows_of_step
        return slice(start, start + self._rows_of_step)

    @property
    def _rows_of_step(self) -> int:
        """Rows that this host delivers in a step."""
        if self.running.equal_steps:
            return self.rows_per_step // self.running.shard_count
        return len(self.running.own_lanes) * self.rows_per_lane

    @property
    def fields(self) -> list[_core.Field]:
        """The arrays of an element, in order."""
        samples = [spec.source.input.sample for spec in self.sources]
        has_mask = any(sample is not None and sample.has_mask for sample in samples)
        images = next((sample for sample in samples if isinstance(sample, plans.ImageTextPlan)), None)
        rows, running = self.rows, self.running
        segments = _most_segments(vars(rows))
        return _core.layout_fields(
            rows.layout, rows.sequence_length, segments, running.provenance, has_mask, running.source_arrays, images
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each array of an element."""
        rows = () if self.rows.batch_size is None else (self._rows_of_step,)
        return {field.name: (*rows, *field.row_shape) for field in self.fields}

    def lanes_of_processes(self, sharding: Any) -> dict[int, list[int]]:
        """The lanes of every process that has a device in a sharding of the global batch.

        Raises:
          ArgumentError: there is no `batch_size`; or see `gristmill._spec.sharding`.
          ArgumentTypeError: `sharding` is not a sharding.
        """
        if self.rows.batch_size is None:
            raise ArgumentError(
                "batch_size=None: a sharding divides the rows of a global batch; set the dataset's batch_size"
            )
        return lanes_of_processes(
            sharding,
            batch_size=self.rows.batch_size,
            sequence_length=self.rows.sequence_length,
            lanes=self.order.lanes,
            shards=min(count_pieces(spec.source.input.shards, spec.source.input.split_bytes) for spec in self.sources),
        )

    def with_running(self, **changes: Any) -> "Spec":
        """The same stream, run in another way."""
        return replace(self, running=replace(self.running, **changes))

    @property
    def _values(self) -> dict[str, Any]:
        groups = (self.source.input, self.tokenizing, self.rows, self.order, self.source.faults, self.running)
        return {name: value for group in groups for name, value in vars(group).items()}


def resolve(given: Mapping[str, Any]) -> Spec:
    """The spec of a dataset with these arguments, of which each is there.

    Raises:
      GristmillError: see `PackedDataset`.
    """
    # Checks that need no files come first.
    values = {name: argument.kind.check(name, given[name]) for name, argument in ARGUMENTS.items()}
    values["quarantine_file"] = quarantine.checked_file(values["quarantine_file"], values["on_error"])
    folder = _take_folder(values)
    _take_text(values)
    effects.reset_arguments_without_effect(ARGUMENTS, values)
    effects.warn_of_unnamed_sidecars(values)
    _take_truncation(values)
    _take_max_segments(values)
    _check_images(values)
    check_equal_steps(values)
    values["provenance"] = _provenance_entries(values)
    _check_sizes(values)
    patterns = patterns_of(values["shards"])
    manifest = values["shards"] = with_sidecars(
        Manifest.find(patterns, dict(values["storage_options"] or ())), values["sidecars"]
    )
    values["drop"] = DroppedRows(values["drop"], manifest) if values["drop"] else folder and folder.left_out
    quarantine.check_is_no_shard(values["quarantine_file"], patterns)
    pieces = count_pieces(manifest, values["split_bytes"])
    if pieces > len(manifest):
        _check_may_be_divided(values)
    warn_of_missing_indexes(manifest, values["split_bytes"])
    warn_of_empty_pieces(manifest, values["split_bytes"], values["max_document_bytes"])
    shard_bytes = sum(manifest.sizes)
    lanes = values["lanes"] = lane_count(values["lanes"], values["batch_size"], pieces, shard_bytes=shard_bytes)
    values["own_lanes"] = lanes_of_host(
        lanes, values["shard_index"], values["shard_count"], equal_steps=values["equal_steps"]
    )
    encoder = values["tokenizer"] = as_encoder(values["tokenizer"])
    check_is_function(encoder)
    sample = values["sample"]
    if isinstance(sample, ImageText):
        plan = plans.make_with_images(sample, encoder, folder, manifest, values["max_document_bytes"])
        values["sample"] = plan
        _check_sizes(values, plan)
    elif sample is not None:
        values["sample"] = plans.make(sample, encoder)
    if isinstance(sample, Chat) or getattr(values["sample"], "chat", None):
        values["eos"] = False if values["eos"] is None else values["eos"]
        check_ends(values)
    values["eos"] = special_token_id(encoder, "eos", values["eos"])
    values["bos"] = special_token_id(encoder, "bos", values["bos"])

    def group(kind: type[Group]) -> Group:
        return kind(**{field.name: values[field.name] for field in dataclasses.fields(kind)})  # type: ignore[arg-type]

    return Spec(
        source=Source(input=group(Input), faults=group(Faults)),
        tokenizing=group(Tokenizing),
        rows=group(Rows),
        order=group(Order),
        running=group(Running),
    )


def _take_folder(values: dict[str, Any]) -> EnergonFolder | None:
    """Takes the shards from a folder of Energon, if they are one."""
    folder = values["shards"]
    if not isinstance(folder, EnergonFolder):
        return None
    if folder.left_out and values["drop"]:
        raise ArgumentError("drop=: the folder leaves out samples of its own, and there is one list of them")
    values["shards"] = folder.manifest
    return folder


def _check_may_be_divided(values: Mapping[str, Any]) -> None:
    """Checks that no record is known by its number in a shard: those of a piece are counted from its start."""
    drop = values["drop"]
    for name, is_numbered in [
        ("sidecars", values["sidecars"] is not None),
        ("drop", drop is not None and drop.is_numbered),
    ]:
        if is_numbered:
            raise ArgumentError(
                f"split_bytes={values['split_bytes']}: shards cannot be divided with {name}=, which knows records by "
                f"their number in the shard; leave split_bytes= or {name}= out"
            )


def _take_text(values: dict[str, Any]) -> None:
    """Takes the `text_field` from `gm.Text(field)`, which is long for it."""
    sample, field = values["sample"], values["text_field"]
    if sample is None:
        return
    default = ARGUMENTS["text_field"].default
    own = sample.field if isinstance(sample, Text) else default
    if field not in (default, own):
        raise ArgumentError(f"text_field={field!r}: the sample names the keys of a record; leave it out")
    values["text_field"] = own


def _take_truncation(values: dict[str, Any]) -> None:
    """Makes a truncation None that is what None stands for, so that fingerprints leave it out."""
    is_default = values["truncation"] == ("right" if values["packing"] == "pad" else "split")
    # Samples with images are never cut: one that is too long is a bad record.
    has_no_effect = isinstance(values["sample"], ImageText) and values["truncation"] in ("right", "error")
    if is_default or (has_no_effect and values["packing"] == "best_fit"):
        values["truncation"] = None


def _take_max_segments(values: dict[str, Any]) -> None:
    """Bounds the segments of a row in `varlen`, which has an array of them, and checks that lengths can describe a row.

    Raises:
      ArgumentError: they cannot.
    """
    if values["layout"] != "varlen":
        return
    if values["truncation"] == "middle":
        raise ArgumentError(
            "truncation='middle': layout='varlen' has lengths of segments, which do not say where one is cut inside; "
            "use 'right', 'left' or 'split', or another layout="
        )
    if isinstance(values["sample"], ImageText) and values["sample"].mrope:
        raise ArgumentError(
            "mrope=True: layout='varlen' has no array of positions, which gm.expand counts from 0 in each segment; use "
            "another layout="
        )
    if values["packing"] != "pad" and values["max_segments"] is None:
        values["max_segments"] = _default_segments(values["sequence_length"])


def _default_segments(sequence_length: int) -> int:
    """For how many segments of a row there is room if the user does not say: few rows have more."""
    return min(max(16, sequence_length // 16), sequence_length)


def _most_segments(values: Mapping[str, Any]) -> int:
    """The most segments that a row can have."""
    most: int = 1 if values["packing"] == "pad" else values["max_segments"] or values["sequence_length"]
    return most


def _check_images(values: Mapping[str, Any]) -> None:
    """Checks that samples with images are neither cut nor joined."""
    if not isinstance(values["sample"], ImageText):
        return
    wrong: dict[str, str] = {}
    if values["packing"] == "concat":
        wrong["packing"] = "samples with images are never cut: use 'best_fit' or 'pad'"
    elif values["truncation"] not in (None, "right", "error", "drop"):
        wrong["truncation"] = "samples with images are never cut: leave it out, or use 'drop'"
    elif values["boundary_targets"]:
        wrong["boundary_targets"] = "nothing is trained from one sample with images to the next; leave it out"
    for name, advice in wrong.items():
        raise ArgumentError(f"{name}={values[name]!r}: {advice}")


def check_equal_steps(values: Mapping[str, Any]) -> None:
    """Checks that hosts which take equally many steps have equally many rows.

    Raises:
      ArgumentError: they have not.
    """
    rows, hosts = values["batch_size"], values["shard_count"]
    if values["equal_steps"] and (rows is None or rows % hosts):
        raise ArgumentError(
            f"equal_steps=True: each host delivers the same number of rows of a batch, so shard_count={hosts} must "
            f"divide batch_size={rows}"
        )


def _check_sizes(values: Mapping[str, Any], images: "plans.ImageTextPlan | None" = None) -> None:
    rows = values["batch_size"]
    for field in _core.layout_fields(
        values["layout"], values["sequence_length"], _most_segments(values), values["provenance"], images=images
    ):
        if (rows or 1) * math.prod(field.row_shape) > _MOST_ELEMENTS:
            raise ArgumentError(
                f"batch_size={rows}: the array {field.name!r} with rows of shape {list(field.row_shape)} would have "
                f"more than {_MOST_ELEMENTS} elements; lower batch_size=, sequence_length= or "
                + ("max_images= or max_patches=" if images else "provenance=")
            )


def _provenance_entries(values: Mapping[str, Any]) -> int:
    """The entries of a row's provenance that the argument stands for; 0: rows have none."""
    provenance: bool | int = values["provenance"]
    length: int = values["sequence_length"]
    if not isinstance(provenance, (bool, np.bool_)):
        return checks.integer("provenance", provenance, 1, length, ", or True or False")
    if not provenance:
        return 0
    most: int = 1 if values["packing"] == "pad" else min(values["max_segments"] or _default_segments(length), length)
    return most + 1 if values["truncation"] == "middle" else most
