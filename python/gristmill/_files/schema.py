"""The JSON files of a packed folder: the index and the notes of its parts."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, NotRequired, TypedDict, cast, get_args, get_origin, get_type_hints, is_typeddict

from gristmill._shards.manifest import below_common_folder, from_root
from gristmill._state.states import State
from gristmill._tokenizer.options import SpecialTokensInText

# Why rows of `ImageText` are refused.
IMAGES_NOT_WRITTEN = (
    "rows with images are not written to files, which would be many times as large as the images: train from the tars, "
    "whose images are decoded when their row is packed"
)
# The most shards that a message names.
_NAMED = 5

# Counts of the stream; for a part, between its start and that of the next.
Counted = Literal["documents", "tokens", "dropped_tokens", "filtered", "quarantined", "lost_shards"]
COUNTED: tuple[Counted, ...] = get_args(Counted)


class Counts(TypedDict):
    """Counts of the stream; `filtered` is left out if it is 0."""

    documents: int
    tokens: int
    dropped_tokens: int
    filtered: NotRequired[int]
    quarantined: int
    lost_shards: int


def total(counts: Iterable[Counts]) -> Counts:
    """The sums of counts."""
    counts = list(counts)
    return cast(Counts, {name: sum(one.get(name, 0) for one in counts) for name in COUNTED})


class Part(Counts):
    """The content of a part.

    Attributes:
      files: the sizes of its files by their names, in bytes.
      batches: how many were packed into it.
      items: how many rows, or documents, its files hold.
    """

    files: dict[str, int]
    batches: int
    items: int


class Note(Part):
    """The note of a part, written last.

    Attributes:
      number: of the part.
      state: of the stream after it.
      pending: documents that have begun in it and continue, by lane, see `Collector.pending`.
    """

    number: int
    state: State
    pending: list[str]


class Source(TypedDict):
    """The source of rows, with absolute paths.

    Attributes:
      shards: paths and globs.
      sizes: of the shards, by their paths.
      tokenizer: the path of the file.
      special_tokens_in_text: as for `Encoder`.
      arguments: those of `PackedDataset`.
      mixture: the mixture as a file describes it, if it is one; `shards` are then those of all sources.
    """

    shards: list[str]
    sizes: dict[str, int]
    tokenizer: str
    special_tokens_in_text: SpecialTokensInText
    arguments: dict[str, Any]
    mixture: NotRequired[dict[str, Any]]


# The entries of the index that describe the items.
OfItems = Literal["dtype", "fields", "sequence_length", "own_lanes"]
OF_ITEMS: tuple[OfItems, ...] = get_args(OfItems)


class Items(TypedDict):
    """The items of the files."""

    dtype: str
    fields: list[str]
    sequence_length: int
    own_lanes: list[int]


class Packing(Items):
    """The packing of a stream.

    Attributes:
      steps: how many of its steps are packed, if not all.
    """

    format: str
    rows_per_file: int
    fingerprint: str
    ids: str
    source: Source
    steps: NotRequired[int]


class Index(Packing):
    """The index of a packed folder; at its end also the list of parts, and the counts of the whole stream."""

    complete: NotRequired[bool]
    totals: NotRequired[Counts]
    parts: NotRequired[list[Part]]


def wrong(found: Any, form: type) -> list[str]:
    """The keys of a schema such as `Index` that are missing or of another type, such as `source.tokenizer`."""
    return list(_wrong(found if isinstance(found, dict) else {}, form))


def _wrong(found: dict[str, Any], form: type) -> Iterator[str]:
    required = form.__required_keys__  # type: ignore[attr-defined]
    for name, hint in get_type_hints(form).items():
        if name not in found:
            if name in required:
                yield name
        elif not _fits(found[name], hint):
            yield name
        elif is_typeddict(hint):
            yield from (f"{name}.{key}" for key in _wrong(found[name], hint))


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value of a JSON file is of a type; the keys of a dict are checked elsewhere."""
    kind, inside = get_origin(hint) or hint, get_args(hint)
    if hint is Any:
        return True
    if kind is Literal:
        return value in inside
    if is_typeddict(kind):
        return isinstance(value, dict)
    if type(value) is not kind:  # a boolean is not an integer
        return False
    items = value.values() if kind is dict else value if kind is list else []
    return all(_fits(item, inside[-1]) for item in items)


def describe_changes(packed: Source, now: Source) -> dict[str, str]:
    """Descriptions of a changed manifest and a changed tokenizer, to replace their fingerprints in messages.

    Args:
      packed: what the index says of the source.
      now: what it would say now.
    """
    before, special = packed["special_tokens_in_text"], now["special_tokens_in_text"]
    if before == special:
        tokenizer = "the tokenizer differs from the one that was used"
    else:
        tokenizer = f"special_tokens_in_text was {before!r} and is {special!r}"
    return {"manifest": _other_shards(packed["sizes"], now["sizes"]), "tokenizer": tokenizer}


def _other_shards(packed: Mapping[str, int], now: Mapping[str, int]) -> str:
    if packed.keys().isdisjoint(now):  # they have moved
        packed, now = (_below_common_folder(sizes) for sizes in (packed, now))
    found = {
        "missing": packed.keys() - now.keys(),
        "not packed": now.keys() - packed.keys(),
        "of another size": {path for path in packed.keys() & now.keys() if packed[path] != now[path]},
    }
    differences = "; ".join(f"{what}: {_some(paths)}" for what, paths in found.items() if paths)
    return f"the shards are not those that were packed ({differences})"


def _below_common_folder(sizes: Mapping[str, int]) -> dict[str, int]:
    paths = below_common_folder(from_root("", path) for path in sizes)
    return dict(zip(paths, sizes.values(), strict=True))


def _some(paths: Collection[str]) -> str:
    rest = len(paths) - _NAMED
    return ", ".join(sorted(paths)[:_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")
