"""The arguments of `PackedDataset`: one table, from which every other list of them derives.

The table is the fields of the classes below, in their order. A field names an argument and has the type of its value in
a spec; `_argument` adds the kind of value that the caller may give, the default, when it has an effect, whether it
defines the stream, and a line of help. A class says whose arguments they are: its `scope`. From the table derive

- the checks of the caller's values (`gristmill._spec.checking`),
- the arguments of `gm.Source`, the keys of mixture files, and those that a mixture refuses (`SOURCE_ARGUMENTS`),
- the arguments of `PromptDataset` that are the same (`gristmill._prompts.arguments`),
- the content of fingerprints, and the arguments that a fingerprint stands for (`gristmill._spec.fingerprints`),
- the options of the command line (`gristmill._cli.options`),
- the table in docs/options.md (`make options`).

So a new argument is a field here, a parameter of `PackedDataset` and, of a source, of `gm.Source`; the core reads it in
`rust/python/spec.rs`. Tests compare the signatures and docstrings with the table. A new argument needs a default that
leaves the stream as it was: then saved states fit as before. A default cannot change later without a new version of
states, because fingerprints leave defaults out.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import gristmill._core as _core
from gristmill._filter.compiler import Keep
from gristmill._sample.fields import CarriedField, union
from gristmill._sample.plans import Plan
from gristmill._shards.energon_folder import FolderRows
from gristmill._shards.manifest import Manifest
from gristmill._shards.pieces import Piece, cut
from gristmill._shards.rows import DroppedRows
from gristmill._shards.selection import Selection, select
from gristmill._shards.sidecars import Sidecars
from gristmill._shards.stores import StorageOptions
from gristmill._spec.cost import Cost, CostKind
from gristmill._spec.edits import EditsKind, FoundEdits
from gristmill._spec.kinds import (
    Boolean,
    Choice,
    FilePath,
    Filter,
    Fraction,
    Integer,
    Kind,
    Other,
    RowListKind,
    SampleKind,
    SidecarsKind,
    SpecialToken,
    StepRanges,
    Steps,
    StorageOptionsKind,
    Text,
)
from gristmill._spec.stages import Stages, StagesKind
from gristmill._tokenizer.encoder import Encoder
from gristmill._util import checks
from gristmill._util.checks import wrong_type
from gristmill._util.local_files import utf8_path

LARGEST_LENGTH = 2**24
LARGEST_BATCH = 2**20
LARGEST_LANES = 2**32
# Bounds what a window of very short documents holds; the core bounds the bytes of longer ones.
_LARGEST_WINDOW = 2**20

REQUIRED = dataclasses.MISSING
_ARGUMENT = "argument"

# Whose an argument is: each source has its own, the stream has one for all, or runs of one stream may differ in it.
# The scope of prompts is in `gristmill._prompts.arguments`.
Scope = Literal["source", "stream", "running", "prompts"]


@dataclass(frozen=True)
class Argument:
    """A row of the table.

    Attributes:
      kind: which values it takes.
      default: its default; `REQUIRED` if it has none.
      help: one line.
      none: the meaning of None, if it is allowed and not obvious.
      needs: the arguments on which its effect depends, and the values that they must have; an empty tuple stands for
        any value but None.
      defines_stream: whether another value leads to another stream, so that it is part of the fingerprint.
      absent: the checked value for which a fingerprint leaves it out; `REQUIRED` if each fingerprint has it.
      may_change: whether a saved state fits a dataset with another value: never, always, if the value is larger
        and no record was quarantined, or if all steps before the state are the same (`kind` is a `StepwiseKind`).
      see: the page, and the heading, of the documentation that has more.
      in_source: its default in `gm.Source`; `...`: the same.
      scope: whose it is.
      name: its name.
    """

    kind: Kind
    default: Any
    help: str
    none: str = ""
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defines_stream: bool = True
    absent: Any = None
    may_change: Literal["no", "yes", "if larger", "ahead"] = "no"
    see: str = ""
    in_source: Any = ...
    scope: Scope = "stream"
    name: str = ""

    @property
    def key(self) -> str:
        """Its name in a fingerprint."""
        # A mixture's fingerprint has `stages` of its own.
        return {"shards": "manifest", "stages": "row_stages"}.get(self.name, self.name)

    def unmet(self, values: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        """The entries of `needs` that these values of the other arguments do not meet."""
        return {
            other: allowed
            for other, allowed in self.needs.items()
            if (values[other] not in allowed if allowed else values[other] is None)
        }

    def is_effective(self, values: Mapping[str, Any]) -> bool:
        """Whether it has an effect together with these values of the other arguments."""
        return not self.unmet(values)


def _argument(kind: Kind, default: Any, help: str, **more: Any) -> Any:  # noqa: A002
    """A field for an argument. Fingerprints leave out its default, unless `absent` is another value."""
    return field(metadata={_ARGUMENT: Argument(kind, default, help, **{"absent": default, **more})})


def _function(name: str, value: Any) -> "Callable[[dict[str, Any]], None] | None":
    if value is not None and not callable(value):
        raise wrong_type(name, value, "a function that takes a dict, or None")
    found: Callable[[dict[str, Any]], None] | None = value
    return found


@dataclass(frozen=True, kw_only=True)
class Input:
    """The records of a source, and their text."""

    scope: ClassVar[Scope] = "source"
    shards: Manifest = _argument(
        Other(),
        REQUIRED,
        "A glob, a path, a list of either, a `Manifest`, an `EnergonFolder`, or a `Mixture`.",
    )
    text_field: str = _argument(Text(), "text", "Key or column that holds the text of a record.")
    sample: Plan | None = _argument(
        SampleKind(),
        None,
        "What a record becomes: `gm.Text`, also with `gm.FillInTheMiddle`, `gm.Chat`, `gm.Instruction`, "
        "`gm.Completion`, `gm.Preference`, `gm.Tokens`, `gm.ImageText`.",
        none="the text in `text_field`",
        see="fine-tuning.md",
    )
    keep: Keep | None = _argument(
        Filter(), None, "Condition on a record's keys; all other records are left out.", none="all", see="filters.md"
    )
    sidecars: Sidecars | None = _argument(
        SidecarsKind(),
        None,
        "Files beside the shards whose records the filter sees, by name.",
        none="none",
        needs={"keep": ()},
        see="filters.md#signals-in-files-of-their-own",
    )
    drop: DroppedRows | FolderRows | None = _argument(
        RowListKind(), None, "List of rows that are left out.", none="none", see="filters.md#lists-of-rows-to-leave-out"
    )
    split_bytes: int = _argument(
        Integer(0, 2**63 - 1),
        0,
        "Shards of more bytes are dealt to lanes in pieces; 0: whole.",
        see="scaling.md#few-shards",
    )
    storage_options: StorageOptions | None = _argument(
        StorageOptionsKind(),
        None,
        "How stores on the network are reached, by name.",
        none="from the environment",
        defines_stream=False,
        see="buckets.md",
    )
    io_bytes: int = _argument(
        Integer(1, 2**48),
        2**28,
        "Most bytes that are requested from stores on the network ahead of the lanes.",
        defines_stream=False,
        see="buckets.md",
    )
    cache_dir: str | None = _argument(
        FilePath(),
        None,
        "Folder in which shards of stores on the network are kept for the next epoch, run or process.",
        none="shards are fetched again",
        defines_stream=False,
        see="buckets.md",
    )
    cache_bytes: int = _argument(
        Integer(1, 2**62), 2**36, "Most bytes in the cache folder.", defines_stream=False, see="buckets.md"
    )
    max_document_bytes: int = _argument(
        Integer(1, 2**63 - 1),
        2**27,
        "Longest accepted record: a line, inflated, or a text of Parquet, Arrow or tar.",
        may_change="if larger",
    )

    # Not arguments: what edits of the stream have added up to here.
    also_dropped: Sequence[DroppedRows] = ()
    added: Sequence[int] = ()

    @property
    def selection(self) -> Selection:
        """The values that are extracted of records and sidecars, and the filter, as the core takes them."""
        return select(self.keep, self.sidecars, self.shards, self.drop, *self.also_dropped)

    @property
    def folder(self) -> str:
        """The folder that relative paths of shards start from."""
        return self.shards.folder

    @property
    def paths(self) -> list[str]:
        """The shards' paths as the core takes them."""
        return [utf8_path(path) for path in self.shards.paths]

    @property
    def sizes(self) -> Sequence[int]:
        """The shards' sizes in bytes."""
        return self.shards.sizes

    @property
    def e_tags(self) -> Sequence[str | None]:
        """The versions of the shards, as stores have them; empty if no shard is in a store."""
        return self.shards.e_tags

    @property
    def pieces(self) -> "list[Piece]":
        """The pieces that are dealt to lanes: the shards in order, the large ones in pieces."""
        return cut(self.shards, self.split_bytes)


@dataclass(frozen=True, kw_only=True)
class Tokenizing:
    """The tokens of a document. A conversation has no EOS and BOS but those of its template."""

    scope: ClassVar[Scope] = "stream"
    tokenizer: Encoder = _argument(
        Other(),
        None,
        "The path of a tokenizer.json or its folder, or an `Encoder`.",
        none="none, with `gm.Tokens`",
        absent=REQUIRED,
    )
    eos: int | None = _argument(
        SpecialToken(),
        None,
        "Token appended to each document.",
        absent=None,
    )
    bos: int | None = _argument(
        SpecialToken(),
        False,
        "Token put before each document.",
        absent=None,
    )


@dataclass(frozen=True, kw_only=True)
class Rows:
    """How documents become rows and batches."""

    scope: ClassVar[Scope] = "stream"
    sequence_length: int = _argument(Integer(1, LARGEST_LENGTH), 1024, "Tokens in a row.")
    batch_size: int | None = _argument(
        Integer(1, LARGEST_BATCH, or_none=True), None, "Rows of the global batch, over all hosts.", none="single rows"
    )
    packing: str = _argument(
        Choice(_core.PACKINGS),
        "concat",
        "How documents become rows: joined, whole, or one a row.",
        see="packing.md",
    )
    # Checked: those after the first one that change something.
    stages: Stages | None = _argument(
        StagesKind(),
        None,
        "Lengths of rows and sizes of batches from a step on, each a `gm.Stage`.",
        none="the same in all steps",
        may_change="ahead",
        see="stages.md",
    )
    fit_window: int = _argument(
        Integer(1, _LARGEST_WINDOW), 1024, "Documents that are placed together.", needs={"packing": ("best_fit",)}
    )
    # Checked: None, too, if it is what None stands for.
    truncation: str | None = _argument(
        Choice(_core.TRUNCATIONS, or_none=True),
        None,
        "The part that is packed of a document longer than a row; `split`: all, in several rows; `drop`: nothing; "
        "`turns`: a conversation's system prompt and last turns.",
        none="`right` in `pad`, else `split`",
        see="packing.md#documents-longer-than-a-row",
    )
    max_segments: int | None = _argument(
        Integer(1, LARGEST_LENGTH, or_none=True),
        None,
        "Segments in a row at most.",
        none="any number; in `varlen`, and with fields of samples, one for 16 tokens, and at least 16",
        needs={"packing": ("concat", "best_fit")},
    )
    pad_segments_to: int | None = _argument(
        Integer(1, LARGEST_LENGTH, or_none=True),
        None,
        "The first token of each segment is at a multiple of this; it divides `sequence_length`.",
        none="segments follow one another",
        needs={"packing": ("concat", "best_fit")},
        see="packing.md#context-parallelism",
    )
    balance: Cost | None = _argument(
        CostKind(),
        None,
        "Cost of rows, `gm.Cost`: those of a window are put in an order in which steps cost the same.",
        none="the order of the stream",
        needs={"packing": ("best_fit",)},
        see="packing.md#balance",
    )
    layout: str = _argument(
        Choice(_core.LAYOUTS), "maxtext", "Names and meaning of the arrays.", see="packing.md#layouts"
    )
    boundary_targets: bool = _argument(
        Boolean(),
        False,
        "Whether a document's last token has the next one's first as its target.",
        needs={"packing": ("concat", "best_fit"), "layout": ("maxtext",)},
    )


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of the documents."""

    scope: ClassVar[Scope] = "stream"
    lanes: int = _argument(
        Integer(1, LARGEST_LANES, or_none=True),
        None,
        "Ordered streams that the shards are assigned to.",
        none="from the batch and the shards",
        absent=REQUIRED,
        see="training.md#choosing-lanes",
    )
    seed: int | None = _argument(
        Integer(0, 2**64 - 1, or_none=True),
        None,
        "Seed that shuffles shards and documents.",
        none="no shuffling",
        see="shuffling.md",
    )
    skip: Steps | None = _argument(
        StepRanges(),
        None,
        "Ranges of steps that are not delivered, each a first step and an end.",
        none="none",
        may_change="ahead",
        see="resume.md#skipping-steps",
    )
    # Checked: with the hashes of their files.
    edits: FoundEdits | None = _argument(
        EditsKind(),
        None,
        "Rows that are left out, filters, and shards that are added, from a step on, each a `gm.Edit`.",
        none="none",
        may_change="ahead",
        see="edits.md",
    )


@dataclass(frozen=True, kw_only=True)
class Passes:
    """How often, and in which windows, the documents of a source are read."""

    scope: ClassVar[Scope] = "source"
    shuffle_window: int = _argument(
        Integer(1, _LARGEST_WINDOW), 1024, "Documents that are shuffled together.", needs={"seed": ()}
    )
    epochs: int | None = _argument(
        Integer(1, 2**32, or_none=True), 1, "How often the shards are read.", none="forever", in_source=None
    )


@dataclass(frozen=True, kw_only=True)
class Faults:
    """The treatment of bad records of a source."""

    scope: ClassVar[Scope] = "source"
    on_error: str = _argument(
        Choice(_core.ON_ERRORS),
        "raise",
        "At a bad record: stop, or quarantine it and continue.",
        may_change="yes",
        see="quarantine.md",
    )
    max_error_rate: float = _argument(
        Fraction(),
        0.01,
        "Share of a lane's records, and of its shards, that may be quarantined.",
        needs={"on_error": ("quarantine",)},
        may_change="yes",
    )


@dataclass(frozen=True, kw_only=True)
class Running:
    """Settings that may differ between hosts and runs of one stream."""

    scope: ClassVar[Scope] = "running"
    quarantine_file: str | None = _argument(
        FilePath(), None, "File to which each quarantined record is appended.", none="no file", defines_stream=False
    )
    shard_index: int = _argument(Integer(0, LARGEST_LANES), 0, "Index of this host.", defines_stream=False)
    shard_count: int = _argument(
        Integer(1, LARGEST_LANES), 1, "Number of hosts; it must divide the lanes.", defines_stream=False
    )
    equal_steps: bool = _argument(
        Other(checks.boolean),
        False,
        "Whether all hosts take equally many steps, each reading all shards: for validation.",
        defines_stream=False,
        see="training.md#equal-steps-without-jax",
    )
    threads: int | None = _argument(
        Integer(1, 1024, or_none=True), None, "Worker threads.", none="one for each core", defines_stream=False
    )
    prefetch: int = _argument(Integer(1, 1024), 4, "Batches prepared ahead.", defines_stream=False)
    verify: float = _argument(
        Fraction(),
        0.0,
        "Share of the documents whose ids are compared with those of the `tokenizers` library.",
        defines_stream=False,
    )
    # Checked: the entries of a row's provenance; 0 for none.
    provenance: int = _argument(
        Other(), False, "Whether rows carry where they come from.", defines_stream=False, see="packing.md#provenance"
    )
    source_arrays: bool = _argument(
        Other(checks.boolean),
        False,
        "Whether rows of a mixture carry the number of their source, and its weight.",
        defines_stream=False,
        see="mixtures.md#loss-per-source",
    )
    # Checked: whether rows have it.
    attention_mask: bool = _argument(
        Other(checks.optional_boolean),
        None,
        "Whether rows of the layout `hf` have the array `attention_mask`, 1 on each token.",
        none="where a row has one document",
        needs={"layout": ("hf",)},
        defines_stream=False,
        see="packing.md#layouts",
    )
    on_stats: "Callable[[dict[str, Any]], None] | None" = _argument(
        Other(_function),
        None,
        "Function that is called with `stats()` every ten seconds.",
        none="none",
        defines_stream=False,
    )
    # Not an argument: the lanes that this process loads, in the order of its rows.
    own_lanes: Sequence[int]


@dataclass(frozen=True, eq=False, kw_only=True)
class SourceSpec(Input, Tokenizing, Passes, Faults):
    """A source of a stream: shards that are read in one way. The core reads it in `rust/python/spec.rs`.

    Attributes:
      name: its name in a mixture; empty if it is the only one.
      given_sample: the sample as it was given, of which `sample` is the plan; None: a plain text.
      sample_fields: its fields that travel with tokens or samples; of pairs those of each of both.
      field_keys: for each field of the stream the key of the records; None if the source lacks it.
      second_keys: of pairs the same of the second of both.
      also_dropped: rows that edits leave out.
      added: how many shards each of some edits has added; they are the last ones of `shards`.
      adds_at: the step at which an edit adds more.
      first_piece: the index of its first piece among those of all sources.
    """

    name: str = ""
    given_sample: Any = None
    sample_fields: Sequence[Sequence[CarriedField]] = ((),)
    field_keys: Sequence[str | None] = ()
    second_keys: Sequence[str | None] = ()
    adds_at: int | None = None
    first_piece: int = 0

    @property
    def fields(self) -> list[CarriedField]:
        """Its fields, of both samples of a pair."""
        return union(dict(zip(("chosen", "rejected"), self.sample_fields, strict=False)))


GROUPS = (Input, Tokenizing, Rows, Order, Passes, Faults, Running)


def arguments_of(group: Any) -> dict[str, Argument]:
    """The rows of the table in one of its classes."""
    return {
        entry.name: dataclasses.replace(entry.metadata[_ARGUMENT], name=entry.name, scope=group.scope)
        for entry in dataclasses.fields(group)
        if _ARGUMENT in entry.metadata
    }


ARGUMENTS: dict[str, Argument] = {name: row for group in GROUPS for name, row in arguments_of(group).items()}
SOURCE_ARGUMENTS = tuple(name for name, row in ARGUMENTS.items() if row.scope == "source")
