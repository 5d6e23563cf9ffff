"""The values that the core extracts of each record and its sidecars, and the filter that it evaluates."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import gristmill._core as _core
from gristmill._filter.compiler import Keep, Program, Steps, compile_filter
from gristmill._shards.energon_folder import FolderRows
from gristmill._shards.manifest import Manifest
from gristmill._shards.rows import DroppedRows
from gristmill._shards.sidecars import Sidecars, paths_of
from gristmill._util.local_files import utf8_path


@dataclass(frozen=True)
class SidecarFiles:
    """Sidecars of one kind. The core reads it in `rust/python/keep.rs`.

    Attributes:
      name: their name.
      paths: the paths that are looked at, from the keys of the sidecar's record on.
      files: path and size of each shard's, in the order of the manifest.
      matching: the number of the paths of the record's id and of the sidecar's, whether both are required, and the
        ending of names of shards in ids.
    """

    name: str
    paths: tuple[Steps, ...]
    files: Sequence[tuple[str, int] | None]
    matching: tuple[int, int, bool, str] | None


@dataclass(frozen=True)
class Selection:
    """The values that are wanted of records. The core reads it in `rust/python/keep.rs`.

    Attributes:
      paths: the paths that are looked at in the record itself. Paths in the sidecars are numbered after them.
      program: the filter.
      drop: the lists of rows that are left out.
      sidecars: the sidecars.
    """

    paths: tuple[Steps, ...]
    program: Program | None
    drop: list[_core.RowList]
    sidecars: tuple[SidecarFiles, ...]


def select(
    keep: Keep | None, sidecars: Sidecars | None, manifest: Manifest, *dropped: DroppedRows | FolderRows | None
) -> Selection:
    """The selection for a filter over shards with sidecars, whose sizes the manifest has, without some rows."""
    keep = keep and with_missing(keep, sidecars)
    lists = [rows for rows in dropped if rows]
    keyed = [(key, rows) for rows in lists if (key := rows.key_path)]
    numbering = Numbering(
        (*(keep.paths if keep else ()), *(key for key, _ in keyed)), sidecars if keep else None, manifest
    )
    program = numbering.program(keep.paths, keep.program) if keep else None
    for key, rows in reversed(keyed):
        unlisted = ("unlisted", numbering.number(key), rows.core)
        program = (unlisted, ("and", len(program)), *program) if program else (unlisted,)
    return Selection(numbering.own, program, [rows.core for rows in lists], numbering.sidecars)


class Numbering:
    """Numbers paths as the core does: those of the record, then those of each sidecar.

    Attributes:
      own: the paths of the record itself.
      sidecars: the sidecars with theirs.
    """

    def __init__(self, paths: Iterable[Steps], sidecars: Sidecars | None, manifest: Manifest) -> None:
        named = sidecars.named if sidecars else ()
        wanted = dict.fromkeys(paths)
        matches = {name: sidecar.match_paths() for name, sidecar in named}
        for name, match in matches.items():
            if match is not None:
                wanted |= dict.fromkeys((match[0], (name, *match[1])))
        self._numbers: dict[Steps, int] = {}
        self.own = self._add(steps for steps in wanted if steps[0] not in matches)
        of_sidecars = {name: self._add(steps for steps in wanted if steps[0] == name) for name in matches}
        sizes = dict(manifest.sidecars)
        self.sidecars = tuple(
            SidecarFiles(
                name,
                tuple(steps[1:] for steps in of_sidecars[name]),
                [
                    None if size is None else (utf8_path(path), size)
                    for path, size in zip(paths_of(manifest, sidecar), sizes[name], strict=True)
                ],
                (match := matches[name])
                and (
                    self._numbers[match[0]],
                    self._numbers[(name, *match[1])],
                    not isinstance(sidecar.match, str),
                    sidecar.ending,
                ),
            )
            for name, sidecar in named
        )

    def program(self, paths: Sequence[Steps], program: Program) -> Program:
        """A program that names `paths` by their indices, with these numbers in place."""
        return tuple(("path", self._numbers[paths[parts[1]]]) if parts[0] == "path" else parts for parts in program)

    def number(self, path: Steps) -> int:
        """The number of a path."""
        return self._numbers[path]

    def _add(self, paths: Iterable[Steps]) -> tuple[Steps, ...]:
        added = tuple(paths)
        self._numbers |= {steps: number for number, steps in enumerate(added, len(self._numbers))}
        return added


def with_missing(keep: Keep, sidecars: Sidecars | None) -> Keep:
    """The filter with the rules for shards that lack a sidecar, as conditions of its own language."""
    if sidecars is None:
        return keep
    clauses = [text for text, _ in keep.clauses]
    for name, sidecar in sidecars.named:
        if sidecar.missing == "keep":
            clauses = [f"{name} is None or ({text})" if name in _names(text) else text for text in clauses]
        elif sidecar.missing == "drop":
            clauses.insert(0, f"{name} is not None")
    return compile_filter("keep", " and ".join(f"({text})" for text in clauses))


def _names(clause: str) -> set[object]:
    """The first keys of the paths of a condition."""
    return {steps[0] for steps in compile_filter("keep", clause).paths}
