"""`Spec`: the definition of a stream by its sources, rows, order and running, and what follows from them."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gristmill._core as _core
from gristmill._dataset.intervals import Interval, edit_sources, with_pieces
from gristmill._mixture.mixing import Mixing, arguments_of_sources, of_source
from gristmill._sample import fields, samples
from gristmill._sample.fields import CarriedField
from gristmill._sample.plans import ImageTextPlan, PairPlan
from gristmill._sample.samples import Chat, ImageText, Tokens, fields_of, halves_of
from gristmill._shards.pieces import Piece, count_pieces
from gristmill._spec import fingerprints
from gristmill._spec.arguments import ARGUMENTS, Order, Rows, Running, SourceSpec, arguments_of
from gristmill._spec.checking import check
from gristmill._spec.lanes import check_equal_steps, lane_count, lanes_of_host
from gristmill._spec.rows import (
    check_sizes,
    has_mask_of_tokens,
    make_rows,
    most_segments,
    provenance_entries,
    rows_of_images,
)
from gristmill._spec.sharding import lanes_of_processes
from gristmill._spec.source import make_source
from gristmill._spec.stages import Stages, check_first
from gristmill._tokenizer.encoder import Encoder, as_encoder
from gristmill._util import checks
from gristmill.errors import ArgumentError

# The names in a mixture's fingerprint that each source has of its own. A conversation has no EOS and BOS.
_OWN_KEYS = frozenset(row.key for name, row in arguments_of(SourceSpec).items() if name != "tokenizer")


@dataclass(frozen=True, eq=False, kw_only=True)
class Spec:
    """The definition of an iterator's stream. The core reads it in `rust/python/spec.rs`.

    Attributes:
      sources: what is read, in the order in which the user has listed the sources of a mixture; else one.
      rows: how documents become rows and batches.
      order: the lanes, and the seed.
      running: what may differ between hosts and runs.
      mixing: how the sources of a mixture are mixed.
      delivers_untrained: whether also rows that train nothing are delivered, to be looked at.
      names_epochs: whether provenance names the sample and the epoch of each entry.
      stages: the steps at which rows get other sizes, with the rows and the entries of their provenance.
      edited: the steps of edits, with the sources from then on.
      whole_name: the `stream_name` of the stream, in the spec of an interval.
      interval: the steps that `rows`, `sources` and `running` are for, of those of the stream.
    """

    sources: Sequence[SourceSpec]
    rows: Rows
    order: Order
    running: Running
    mixing: Mixing | None = None
    delivers_untrained: bool = False
    names_epochs: bool = False
    stages: Sequence[tuple[int, Rows, int]] = ()
    edited: Sequence[tuple[int, Sequence[SourceSpec]]] = ()
    whole_name: str = ""
    interval: Interval = field(default_factory=Interval)

    @property
    def intervals(self) -> "list[Spec]":
        """The specs of the intervals of the stream, in order."""
        borders = sorted({0, *(step for step, *_ in self.stages), *(step for step, _ in self.edited)})
        found: list[Spec] = []
        for first in borders:
            stages = [(0, self.rows, self.running.provenance), *self.stages]
            _, rows, provenance = [stage for stage in stages if stage[0] <= first][-1]
            _, sources = [edit for edit in [(0, self.sources), *self.edited] if edit[0] <= first][-1]
            running = replace(self.running, provenance=provenance)
            own: dict[str, Any] = {"rows": rows, "running": running, "sources": sources}
            spec = replace(self, **own, whole_name=self.stream_name, interval=Interval(first))
            if found:
                before = found[-1]
                is_resized = _size(before.rows) != _size(rows)
                keeps = before.sources is sources and before.rows.sequence_length == rows.sequence_length
                border = Interval(before.interval.first, first, keeps and rows.balance is None, is_resized)
                found[-1] = replace(before, interval=border)
            found.append(spec)
        return found

    def at_step(self, step: int) -> "Spec":
        """The spec of the interval of a step."""
        return [spec for spec in self.intervals if spec.interval.first <= step][-1]

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the stream."""
        own = {source.name: self._fingerprint_of(source) for source in self.sources}
        return self.mixing.fingerprint(own, _OWN_KEYS) if self.mixing else own[""]

    def _fingerprint_of(self, source: SourceSpec) -> str:
        rows = rows_of_images(self.rows) if isinstance(source.sample, ImageTextPlan) else self.rows
        return fingerprints.make({**vars(source), **vars(rows), **vars(self.order), **vars(self.running)})

    @property
    def encoder(self) -> Encoder:
        """The tokenizer, which is the same of all sources."""
        return self.sources[0].tokenizer

    @property
    def pieces(self) -> list[Piece]:
        """The pieces that are dealt to lanes, of all sources, those that edits add included."""
        return [piece for source in self.last_sources for piece in source.pieces]

    @property
    def last_sources(self) -> Sequence[SourceSpec]:
        """The sources with all that edits add."""
        return self.edited[-1][1] if self.edited else self.sources

    @property
    def provenance_width(self) -> int:
        """The numbers of an entry of provenance: shard, record, offset, length, and sample and epoch where they are."""
        if self.names_epochs:
            return 6
        samples = [source.sample for source in self.sources]
        return 5 if any(sample is not None and sample.makes_several for sample in samples) else 4

    @property
    def ends(self) -> bool:
        """Whether a lane may end."""
        ends = {source.name: source.epochs is not None for source in self.sources}
        return self.mixing.ends(ends) if self.mixing else ends[""]

    @property
    def quarantines(self) -> bool:
        """Whether bad records of some source are quarantined."""
        return any(source.on_error == "quarantine" for source in self.sources)

    @property
    def stream_name(self) -> str:
        """Names the stream in a quarantine file."""
        return (
            self.whole_name or hashlib.sha256(fingerprints.without_policy(self.fingerprint).encode()).hexdigest()[:16]
        )

    @property
    def rows_per_lane(self) -> int:
        """Rows of each lane in a step."""
        return 1 if self.rows.batch_size is None else self.rows.batch_size // self.order.lanes

    @property
    def rows_per_step(self) -> int:
        """Rows of all lanes in a step."""
        return self.rows.batch_size or self.order.lanes

    @property
    def _rows_of_step(self) -> int:
        """Rows that this host delivers in a step."""
        if self.running.equal_steps:
            return self.rows_per_step // self.running.shard_count
        return len(self.running.own_lanes) * self.rows_per_lane

    @property
    def fields(self) -> list[_core.Field]:
        """The arrays of an element, in order."""
        samples = [source.sample for source in self.sources]
        has_mask = any(sample is not None and sample.has_mask for sample in samples)
        images = next((sample for sample in samples if isinstance(sample, ImageTextPlan)), None)
        rows, running = self.rows, self.running
        segments = most_segments(rows)
        fields = _core.layout_fields(
            rows.layout,
            rows.sequence_length,
            segments,
            (running.provenance, self.provenance_width),
            has_mask,
            running.source_arrays,
            images,
            self.carried_fields,
            any(isinstance(sample, PairPlan) for sample in samples),
            rows.pad_segments_to,
        )
        return [field for field in fields if running.attention_mask or field.content != "mask"]

    @property
    def carried_fields(self) -> list[CarriedField]:
        """The fields that travel with tokens or samples, of all sources."""
        return fields.union({source.name: source.fields for source in self.sources})

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
        plans = {
            step: lanes_of_processes(
                sharding,
                batch_size=rows.batch_size or 0,
                sequence_length=rows.sequence_length,
                lanes=self.order.lanes,
                shards=min(count_pieces(source.shards, source.split_bytes) for source in self.sources),
            )
            for step, rows, _ in ((0, self.rows, 0), *self.stages)
        }
        for step, plan in plans.items():
            if plan != plans[0]:
                raise ArgumentError(
                    f"stages: the sharding gives the processes other lanes from step {step} on than from step 0 on: "
                    "use a sharding that divides each batch_size= of the stages alike"
                )
        return plans[0]

    def with_running(self, **changes: Any) -> "Spec":
        """The same stream, run in another way."""
        return replace(self, running=replace(self.running, **changes))

    def for_hosts(self, index: int, count: int, *, equal_steps: bool) -> "Spec":
        """The same stream, of which host `index` of `count` loads its part.

        Raises:
          ArgumentError: `count` does not divide the lanes, or with `equal_steps` the batch; or `index` is out of range.
        """
        own = lanes_of_host(self.order.lanes, index, count, equal_steps=equal_steps)
        for _, rows, _ in ((0, self.rows, 0), *self.stages):
            check_equal_steps(rows.batch_size, count, equal_steps=equal_steps)
        return self.with_running(shard_index=index, shard_count=count, equal_steps=equal_steps, own_lanes=own)

    def alone(self, source: SourceSpec) -> "Spec":
        """The stream of one of the sources."""
        listed = self.running.quarantine_file if source.on_error == "quarantine" else None
        edited = [
            (step, [_with_keys(replace(own, name=""), own.fields) for own in sources if own.name == source.name])
            for step, sources in self.edited
        ]
        own = _with_keys(replace(source, name=""), source.fields)
        alone = replace(self, sources=[own], edited=edited, mixing=None)
        return alone.with_running(quarantine_file=listed, source_arrays=False)


def resolve(given: Mapping[str, Any]) -> Spec:
    """The spec of a dataset with these arguments, of which each is there.

    Raises:
      GristmillError: see `PackedDataset`.
    """
    mixed = Mixing.of(given["shards"])
    given = {**given, "source_arrays": checks.boolean("source_arrays", given["source_arrays"])}
    sources, lanes, files = [], [], []
    of_sources = _arguments_of_sources(given) if mixed else arguments_of_sources(given, ARGUMENTS)
    has_sample_fields = any(_has_sample_fields(name, own["sample"]) for name, own in of_sources.items())
    for name, own in of_sources.items():
        with of_source(name):
            values = check(ARGUMENTS, own)
            stages = _stages(values, has_sample_fields=has_sample_fields)
            for _, rows, provenance in stages:
                check_equal_steps(rows.batch_size, values["shard_count"], equal_steps=values["equal_steps"])
                check_sizes(rows, provenance)
            source = make_source(name, values)
            for _, rows, provenance in stages:
                if isinstance(source.sample, ImageTextPlan):
                    check_sizes(rows, provenance, source.sample)
            pieces, shard_bytes = count_pieces(source.shards, source.split_bytes), sum(source.shards.sizes)
            lanes.append(_lanes(values["lanes"], [rows for _, rows, _ in stages], pieces, shard_bytes))
            sources.append(source)
            files.append(values["quarantine_file"])
    _check_images(sources)
    carried = fields.union({source.name: source.fields for source in sources})
    for _, rows, provenance in stages:
        check_sizes(rows, provenance, fields=carried)
    later = stages[1:]
    _, rows, provenance = stages[0]
    edits, edited = edit_sources([_with_keys(source, carried) for source in sources], values["edits"])
    sources, edited = with_pieces([_with_keys(source, carried) for source in sources], edited)
    given_order = {name: values[name] for name in arguments_of(Order)}
    order = Order(**{**given_order, "lanes": min(lanes), "edits": edits})
    fixed: dict[str, Any] = {
        "quarantine_file": next(filter(None, files), None),
        "provenance": provenance,
        "source_arrays": given["source_arrays"],
        "attention_mask": has_mask_of_tokens(rows) if values["attention_mask"] is None else values["attention_mask"],
    }
    running = Running(
        **{name: fixed.get(name, values[name]) for name in arguments_of(Running)},
        own_lanes=lanes_of_host(
            order.lanes, values["shard_index"], values["shard_count"], equal_steps=values["equal_steps"]
        ),
    )
    return Spec(sources=sources, rows=rows, order=order, running=running, mixing=mixed, stages=later, edited=edited)


def _stages(values: Mapping[str, Any], *, has_sample_fields: bool) -> list[tuple[int, Rows, int]]:
    """The rows of each stage, and the entries of their provenance; the first one begins at step 0.

    Raises:
      ArgumentError: they are not possible; or concatenated conversations that lose turns change their length.
    """
    given = {name: values[name] for name in ("sequence_length", "batch_size")}
    first, later = (values["stages"] or Stages()).after(given["sequence_length"], given["batch_size"])
    for name, value in given.items():
        check_first(name, value, ARGUMENTS[name].default, getattr(first, name))
    found = []
    for stage in (first, *later):
        try:
            sizes = {"sequence_length": stage.sequence_length, "batch_size": stage.batch_size}
            rows = make_rows({**values, **sizes, "stages": later or None}, has_sample_fields=has_sample_fields)
            found.append((stage.step, rows, provenance_entries(values["provenance"], rows)))
        except ArgumentError as error:
            raise error.reworded(_from_step(stage.step) if later else str) from None
    lengths = {rows.sequence_length for _, rows, _ in found}
    if len(lengths) > 1 and rows.packing == "concat" and rows.truncation == "turns":
        raise ArgumentError(
            "truncation='turns': with packing='concat' a row may end in a conversation, of which another "
            "sequence_length= keeps other turns; use 'best_fit' or 'pad', or one length in all stages="
        )
    return found


def _from_step(step: int) -> Callable[[str], str]:
    return lambda text: f"from step {step} on: {text}"


def _lanes(lanes: int | None, stages: Sequence[Rows], pieces: int, shard_bytes: int) -> int:
    """The number of lanes, which divides each size of batches."""
    sizes = [rows.batch_size for rows in stages]
    if None in sizes and any(sizes):
        raise ArgumentError("stages: expected a batch_size= in the first stage, as a later one has one")
    if lanes is not None:
        for size in sizes:
            lane_count(lanes, size, pieces, shard_bytes=shard_bytes)
    common = None if sizes[0] is None else math.gcd(*(size or 0 for size in sizes))
    return lane_count(lanes, common, pieces, shard_bytes=shard_bytes)


def _size(rows: Rows) -> tuple[int, int | None]:
    return rows.sequence_length, rows.batch_size


def _arguments_of_sources(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The arguments of each source of a mixture. The tokenizer is loaded once; conversations have no EOS or BOS."""
    for name, row in ARGUMENTS.items():
        if row.scope != "source":
            row.kind.check(name, given[name])
    own = arguments_of_sources(given, ARGUMENTS)
    are_ready = all(isinstance(arguments["sample"], Tokens) for arguments in own.values())
    encoder = as_encoder(given["tokenizer"], is_needed=not are_ready)
    for arguments in own.values():
        sample = arguments["sample"]
        is_chat = isinstance(sample, Chat) or (
            isinstance(sample, ImageText) and any(isinstance(half, Chat) for half in halves_of(sample))
        )
        arguments |= {"tokenizer": encoder, **({"eos": None, "bos": False} if is_chat else {})}
    return own


def _with_keys(source: SourceSpec, of_stream: Sequence[CarriedField]) -> SourceSpec:
    """A source with the keys that its records have for each field of the stream."""
    keys = [
        [next((own.key for own in of_half if own.name == field.name), None) for field in of_stream]
        for of_half in source.sample_fields
    ]
    return replace(source, field_keys=keys[0], second_keys=keys[1] if len(keys) > 1 else ())


def _has_sample_fields(name: str, sample: Any) -> bool:
    """Whether rows have arrays of a value for each segment, for the sample of a source."""
    with of_source(name):
        found = samples.check("sample", sample)
        return len(halves_of(found)) > 1 or any(field.per == "sample" for field in fields_of(found))


def _check_images(sources: Sequence[SourceSpec]) -> None:
    """Checks that rows of all sources with images hold the same of them.

    Raises:
      ArgumentError: they do not.
    """
    rows = {source.name: source.sample.rows for source in sources if isinstance(source.sample, ImageTextPlan)}
    first = next(iter(rows), "")
    for name, other in rows.items():
        if other != rows[first]:
            raise ArgumentError(
                f"the sources {first!r} and {name!r} have other arrays of images: {rows[first]}, and {other}; rows of "
                "one mixture hold the same"
            )
