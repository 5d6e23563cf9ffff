"""The intervals of a stream: the steps between two borders, at which rows get another size or other records are read.

    step      0            10000                20000
    stages    1024 x 512   4096 x 128 ────────────────────
    edits     ───────────────────────────────── keep=...
    interval  0            1                    2

The core makes the rows of each interval by a spec of its own, and carries what a lane has begun over the border.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import gristmill._core as _core
from gristmill._filter.compiler import compile_filter
from gristmill._mixture.mixing import of_source
from gristmill._shards.energon_folder import FolderRows
from gristmill._shards.manifest import Manifest
from gristmill._shards.rows import DroppedRows
from gristmill._shards.sidecars import with_sidecars
from gristmill._spec.arguments import SourceSpec
from gristmill._spec.edits import Edit, EditedSource, Edits, FoundEdits, fingerprint, folder_of
from gristmill.errors import ArgumentError


@dataclass(frozen=True)
class Interval:
    """The steps that a spec is for. The core reads it in `rust/python/spec.rs`.

    Attributes:
      first: the first step.
      until: the border, the first step behind it; None: there is no other interval.
      keeps_windows: whether the next interval continues windows of documents, since only the number of rows differs.
      ends_stage: whether the counts of a mixture's stage begin anew with the next one, whose rows have other sizes.
    """

    first: int = 0
    until: int | None = None
    keeps_windows: bool = False
    ends_stage: bool = False


def edit_sources(
    sources: Sequence[SourceSpec], edits: Edits | None
) -> "tuple[FoundEdits | None, list[tuple[int, list[SourceSpec]]]]":
    """The sources from each step of an edit on, and the value of the edits for fingerprints.

    Raises:
      GristmillError: a file is not there or cannot be read, an edit names no source, or does not fit its source.
    """
    if edits is None:
        return None, []
    now, described = {source.name: source for source in sources}, []
    found: list[tuple[int, list[SourceSpec]]] = []
    for edit in edits:
        names = _names(edit, now)
        for name in names:
            with of_source(name):
                edited = _find(edit, now[name])
                now[name] = _apply(edited, now[name])
        described.append((edit, edited))
        if found and found[-1][0] == edit.step:
            found.pop()
        found.append((edit.step, [now[source.name] for source in sources]))
    return FoundEdits(fingerprint(described)), found


def with_pieces(
    first: Sequence[SourceSpec], edited: "Sequence[tuple[int, Sequence[SourceSpec]]]"
) -> "tuple[list[SourceSpec], list[tuple[int, list[SourceSpec]]]]":
    """The same sources with the index of their first piece, and the step at which shards are added to each."""
    firsts, count = {}, 0
    for source in edited[-1][1] if edited else first:
        firsts[source.name] = count
        count += len(source.pieces)

    def numbered(
        sources: Sequence[SourceSpec], later: "Sequence[tuple[int, Sequence[SourceSpec]]]"
    ) -> list[SourceSpec]:
        adds: dict[str, int] = {}
        for step, others in reversed(later):
            adds |= {
                other.name: step
                for other, own in zip(others, sources, strict=True)
                if len(other.added) > len(own.added)
            }
        return [replace(source, first_piece=firsts[source.name], adds_at=adds.get(source.name)) for source in sources]

    return numbered(first, edited), [
        (step, numbered(sources, edited[index + 1 :])) for index, (step, sources) in enumerate(edited)
    ]


def dealt(source: SourceSpec, lanes: int, seed: int | None, epoch: int) -> list[list[int]]:
    """The pieces of each lane in an epoch, by their index in the source, in the order in which it reads them."""
    pieces = source.pieces
    first = len(source.shards) - sum(source.added)
    groups = dict.fromkeys(source.shards.paths[:first], 0)
    for number, count in enumerate(source.added, 1):
        groups |= dict.fromkeys(source.shards.paths[first : first + count], number)
        first += count
    found: list[list[int]] = [[] for _ in range(lanes)]
    for _, group in itertools.groupby(range(len(pieces)), key=lambda index: groups[pieces[index].path]):
        numbers = [*group]
        sizes = [pieces[number].end - pieces[number].start for number in numbers]
        for lane, share in zip(found, _core.deal(sizes, lanes, seed, epoch), strict=True):
            lane += [numbers[index] for index in share]
    return found


def _names(edit: Edit, sources: Mapping[str, SourceSpec]) -> list[str]:
    if edit.source is None:
        if edit.shards is not None and len(sources) > 1:
            raise ArgumentError(
                f"gm.Edit({edit.step}, shards={folder_of(edit.shards)!r}): expected source=, to which the "
                f"shards are added, one of {', '.join(sources)}"
            )
        return [*sources]
    if edit.source not in sources or edit.source == "":
        known = ", ".join(filter(None, sources)) or "none: the dataset is no mixture"
        raise ArgumentError(f"gm.Edit({edit.step}, source={edit.source!r}): expected one of the sources: {known}")
    return [edit.source]


def _find(edit: Edit, source: SourceSpec) -> EditedSource:
    added = None
    if edit.shards is not None:
        if isinstance(source.drop, FolderRows):
            raise ArgumentError(
                f"gm.Edit({edit.step}, shards=...): the source is a prepared folder, whose index lists its shards; add "
                "a source to a mixture in its place"
            )
        added = Manifest.find(edit.shards, dict(source.shards.storage_options))
        added = with_sidecars(added, source.sidecars)
    keep = None if edit.keep is None else compile_filter("keep", edit.keep)
    return EditedSource(keep, DroppedRows(edit.drop, source.shards) if edit.drop else None, added)


def _apply(edited: EditedSource, source: SourceSpec) -> SourceSpec:
    if edited.keep:
        both = f"({source.keep.text}) and ({edited.keep.text})" if source.keep else edited.keep.text
        source = replace(source, keep=compile_filter("keep", both))
    if edited.drop:
        if source.split_bytes and edited.drop.is_numbered:
            raise ArgumentError(
                f"split_bytes={source.split_bytes}: a list that names rows by their number does not fit shards in "
                "pieces; list ids of a key"
            )
        source = replace(source, also_dropped=(*source.also_dropped, edited.drop))
    if edited.added:
        joined = source.shards.joined(edited.added)
        again = [DroppedRows(rows.named, joined) for rows in source.also_dropped]
        drop = DroppedRows(source.drop.named, joined) if isinstance(source.drop, DroppedRows) else source.drop
        added = (*source.added, len(edited.added))
        source = replace(source, shards=joined, also_dropped=tuple(again), drop=drop, added=added)
    return source
