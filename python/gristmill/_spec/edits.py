"""`Edit`: a change of what is read, from a step on.

[{"step": 12000, "drop": "seen.txt:key=id"}, {"step": 20000, "keep": "score >= 3"}]     as text, in JSON
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from gristmill._filter.compiler import Keep, compile_filter
from gristmill._shards.manifest import Manifest, patterns_of
from gristmill._shards.rows import DroppedRows, RowList
from gristmill._util import checks
from gristmill._util.local_files import Pathish
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError, ArgumentTypeError

_LARGEST_STEP = 2**62


@dataclass(frozen=True)
class Edit:
    """A change of what is read from a step on, for the rest of the run. The steps before it stay as they are.

        gm.Edit(12_000, drop=gm.RowList("bad.txt", key="id"))
        gm.Edit(20_000, keep="language == 'en'")
        gm.Edit(30_000, shards="more/*.json.gz")

    From the step on, nothing of a record that it leaves out is delivered, not even the rest of one that was begun.

    Attributes:
      step: the first step that it holds for.
      drop: rows that are left out from then on, beside those of `drop=`.
      keep: a condition that records must satisfy from then on, too, beside `keep=`.
      shards: shards that are added: a path, a glob, a list of either, or a `Manifest`. Each lane reads its share of
        them after its other shards, in the epoch in which it is and in each after that. No lane may have ended before.
      source: the source of a mixture that it is about. None: each; shards are added to one.

    Raises:
      ArgumentError: a value is not allowed, or it changes nothing.
      ArgumentTypeError: a value is of the wrong type.
    """

    step: int
    drop: RowList | None = None
    keep: str | None = None
    shards: "Pathish | Iterable[Pathish] | Manifest | None" = None
    source: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", checks.integer("step", self.step, 0, _LARGEST_STEP))
        object.__setattr__(self, "drop", RowList.check("drop", self.drop))
        if self.keep is not None:
            object.__setattr__(self, "keep", compile_filter("keep", self.keep).text)
        if self.shards is not None:
            found = patterns_of(self.shards)
            object.__setattr__(self, "shards", found if isinstance(found, Manifest) else [*found])
        if self.source is not None:
            checks.text("source", self.source)
        if self.drop is None and self.keep is None and self.shards is None:
            raise ArgumentError(f"gm.Edit({self.step}): expected drop=, keep= or shards=, found none of them")


class Edits(tuple[Edit, ...]):
    """Edits in the order of their steps."""


@dataclass(frozen=True)
class EditedSource:
    """The change of one source at a step.

    Attributes:
      keep: the condition that it adds.
      drop: the rows that it leaves out.
      added: the shards that it adds.
    """

    keep: Keep | None
    drop: DroppedRows | None
    added: Manifest | None


@dataclass(frozen=True)
class FoundEdits:
    """Edits whose files were found. They are equal if they say the same of all steps.

    Attributes:
      fingerprint: the value that a stream's fingerprint has of them, in JSON: hashes in place of lists and shards.
    """

    fingerprint: str

    def __str__(self) -> str:
        return self.fingerprint


@dataclass(frozen=True)
class EditsKind:
    """A list of `Edit`, or text that is one in JSON; None, too, stands for no edit."""

    def check(self, name: str, value: Any) -> Edits | None:
        """See `Kind`."""
        if isinstance(value, str):
            value = _read(name, value)
        given = checks.items(name, () if value is None else value, "a list of gm.Edit")
        edits = [_edit(name, edit) for edit in given]
        return Edits(sorted(edits, key=lambda edit: edit.step)) or None

    def parse(self, text: str) -> list[dict[str, Any]] | None:
        """See `Kind`. A fingerprint has hashes in place of lists and shards."""
        if text == "None":
            return None
        found = json.loads(text)
        if not isinstance(found, list) or not all(isinstance(edit, dict) and "step" in edit for edit in found):
            raise ValueError(text)
        return found

    def first_difference(self, before: Any, after: Any) -> int | None:
        """See `StepwiseKind`. Edits of one step may be in any order."""
        sides = [by_step(side) for side in (before, after)]
        steps = sorted(set(sides[0]) | set(sides[1]))
        return next((step for step in steps if sides[0].get(step) != sides[1].get(step)), None)


def by_step(edits: Any) -> dict[int, list[str]]:
    """The edits of each step as text, sorted, as a fingerprint has them."""
    found: dict[int, list[str]] = {}
    for edit in json.loads(edits.fingerprint) if isinstance(edits, FoundEdits) else edits or ():
        found.setdefault(int(edit["step"]), []).append(json.dumps(edit, sort_keys=True))
    return {step: sorted(texts) for step, texts in found.items()}


def fingerprint(edits: Iterable[tuple[Edit, EditedSource]]) -> str:
    """The value that a stream's fingerprint has of edits, each with what was found for its first source."""
    described = []
    for edit, found in edits:
        values = {
            "step": edit.step,
            "keep": found.keep and found.keep.fingerprint,
            "drop": found.drop and found.drop.fingerprint,
            "shards": found.added and found.added.fingerprint,
            "source": edit.source,
        }
        described.append({name: value for name, value in values.items() if value is not None})
    return json.dumps(described, separators=(",", ":"))


def _edit(name: str, edit: Any) -> Edit:
    if isinstance(edit, Mapping):
        known = [field.name for field in fields(Edit)]
        if unknown := [key for key in edit if key not in known]:
            raise ArgumentError(f"{name}={shortened(edit)}: expected {', '.join(known)}, found {unknown[0]!r}")
        drop = edit.get("drop")
        edit = Edit(**{**edit, **({"drop": RowList(**drop)} if isinstance(drop, Mapping) else {})})
    if not isinstance(edit, Edit):
        raise ArgumentTypeError(f"{name}: expected gm.Edit, got {type(edit).__name__}")
    return edit


def _read(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ArgumentError(
            f"{name}={shortened(text)}: expected a list in JSON, such as "
            f'[{{"step": 12000, "drop": "seen.txt:key=id"}}]: {error}'
        ) from None


def folder_of(shards: Any) -> str:
    """The first of some paths, for a message."""
    return os.fspath(shards[0]) if isinstance(shards, list) else repr(shards)
