"""A folder of packed files and its index.

index.json        what the rows are and where they come from; at the end also the list of parts
part-00000.npy    a file of rows; in Megatron's format a pair, .bin and .idx
part-00000.json   what the part holds, and the state of the stream after it: written last, so what has one is whole
quarantine.jsonl  the records that were left out, if that is allowed
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

import gristmill._core as _core
from gristmill._files import same_stream
from gristmill._files.formats import FORMATS, Format
from gristmill._files.remote_folder import RemoteFolder
from gristmill._files.schema import COUNTED, Counts, Index, Note, Packing, Part, describe_changes, total, wrong
from gristmill._shards.outputs import find_shard
from gristmill._shards.stores import is_remote
from gristmill._state import states
from gristmill._util import atomic_files
from gristmill._util.atomic_files import DamagedError
from gristmill._util.folder_lock import LOCK
from gristmill._util.text import counted
from gristmill.errors import ArgumentError, GristmillError, MissingShardError

INDEX = "index.json"
PART = "part-"
_PART_FILE = re.compile(PART + r"(\d{5,})\.")
QUARANTINE = "quarantine.jsonl"
VERSION = 4
# Entries of the index that follow from the fingerprint.
_OF_STREAM = frozenset({"dtype", "fields", "sequence_length", "own_lanes", "fingerprint"})
_AT_THE_END = ("complete", "totals", "parts")
# Remedies for damaged files.
_REMEDY_OF_INDEX = "restore it, or pack again into another folder"
REMEDY_OF_NOTE = "restore it, or remove it and all later notes to write these parts again"


@dataclass(frozen=True)
class Folder:
    """A folder that `gristmill pack` writes or has written.

    Attributes:
      path: the folder.
      index: the content of its index: `format`, `fields`, `source`, `fingerprint`, ...
      remote: the folder of a store that its files are copied to; None: it is a local one.
    """

    path: Path
    index: Index
    remote: RemoteFolder | None = None

    @classmethod
    def open(cls, path: Path, remote: RemoteFolder | None = None) -> "Folder":
        """The packed folder at `path`, or that of the file at `path`.

        Raises:
          MissingShardError: there is none.
          GristmillError: its index is of another version, or cannot be read.
          DamagedError: its index is damaged.
        """
        index = (path.parent if path.is_file() else path) / INDEX
        if not index.is_file():
            what = f"it has no {INDEX}" if path.exists() else "no such folder"
            raise MissingShardError(f"no packed files in {str(path)!r}: {what}")
        found = read_index(index)
        if not is_index(found):
            raise GristmillError(f"{index} is not the index of packed files: restore it, or pack into another folder")
        if found.get("version") != VERSION:
            raise GristmillError(
                f"{index} has version {found.get('version')}, but this release of gristmill reads version {VERSION}"
            )
        if missing := wrong(found, Index):
            raise damaged_index(index, f"{', '.join(missing)} is missing or has the wrong type")
        if found["format"] not in FORMATS:
            raise damaged_index(index, f"its format is {found['format']!r}")
        if found.get("steps", 1) < 1:
            raise damaged_index(index, f"its steps are {found['steps']}")
        if found["sequence_length"] < 1:
            raise damaged_index(index, f"its sequence_length is {found['sequence_length']}")
        if found.get("complete") and not found.keys() >= {"totals", "parts"}:
            raise damaged_index(index, "it says complete, but lacks its totals or parts")
        return cls(index.parent, found, remote)

    @classmethod
    def create(cls, path: Path, index: Packing, remote: RemoteFolder | None = None) -> "Folder":
        """The folder at `path`: a new one, or one of the same stream, to be continued.

        Raises:
          GristmillError: the folder holds other files, or another packing.
        """
        wanted: dict[str, Any] = {"kind": "gristmill pack", "version": VERSION, **index}
        if (path / INDEX).exists():
            folder = cls.open(path, remote)
            if folder.index["fingerprint"] == wanted["fingerprint"]:
                states.check_ids(folder.index["ids"], wanted["ids"], f"{path} was packed")
            wanted["ids"] = folder.index["ids"]
            names = [*wanted, *({"steps"} - wanted.keys())]
            changed = [name for name in names if folder.index.get(name) != wanted.get(name)]
            if not changed:
                return folder
            if parts := folder.parts():
                # The same shards and tokenizer may be elsewhere by now.
                folder._check_same_packing(wanted, [name for name in changed if name != "source"], len(parts))
                if folder.is_complete(parts):
                    # Its arguments stay, so that the quarantine file is found.
                    arguments = folder.index["source"]["arguments"]
                    wanted = {"source": {**wanted["source"], "arguments": arguments}}
                else:
                    folder._check_same_quarantine_file(index["source"]["arguments"].get("quarantine_file"), parts)
                wanted = {**folder.index, **wanted}
            # Otherwise nothing was packed yet, and the folder may become another packing.
        else:
            check_free(path)
        wanted.setdefault("gristmill", _core.__version__)
        return cls(path, cast(Index, wanted), remote)._written()

    def _check_same_packing(self, wanted: dict[str, Any], changed: list[str], parts: int) -> None:
        saved, current = self.index["fingerprint"], wanted["fingerprint"]
        last = states.check(self.note(parts - 1)["state"])
        changes = describe_changes(self.index["source"], wanted["source"]) if saved != current else {}
        different = same_stream.incompatibilities(saved, current, states.has_quarantined(last), **changes)
        described = _OF_STREAM if different else {"fingerprint"}
        reasons = [different] if different else []
        reasons += [
            f"{name} was {self.index.get(name)} and is {wanted.get(name)}" for name in changed if name not in described
        ]
        if reasons:
            reason = ", ".join(reasons)
            raise GristmillError(
                f"{self.path} already holds files packed with other settings: {reason}. Choose another folder, or "
                "delete this one"
            )

    def _check_same_quarantine_file(self, wanted: str | None, parts: list[Part]) -> None:
        begun = self.index["source"]["arguments"].get("quarantine_file")
        if not wanted or not begun or not self.totals(parts)["quarantined"]:
            return
        # A file that does not exist was moved, perhaps with the folder.
        if Path(begun).is_file() and Path(begun).resolve() != Path(wanted).resolve():
            raise GristmillError(
                f"quarantine_file={wanted!r}: expected {begun!r}, which lists the records of the finished parts"
            )

    def parts(self, *, are_whole: bool = False) -> list[Part]:
        """The content of each finished part, in order: its note without the state after it, which may be large.

        Args:
          are_whole: whether the sizes of the files must be those that were written.

        Raises:
          DamagedError: a note or, if asked for, a file is damaged.
          GristmillError: a note cannot be read.
        """
        found: list[Part] = []
        while self.note_path(len(found)).is_file():
            note = self.note(len(found))
            named = {self.part_path(len(found)).with_suffix(suffix).name for suffix in self._format.suffixes}
            if note["number"] != len(found) or note["files"].keys() != named:
                raise DamagedError(
                    f"{self.note_path(len(found))} is the note of another part: number {note['number']}, with "
                    f"the files {', '.join(note['files']) or 'none'}; restore the right note, or remove it and all "
                    "later notes to write these parts again"
                )
            self._check_same_stream(note)
            if are_whole and (changed := self.wrong_size(note["files"])):
                raise DamagedError(
                    f"{self.path}: {changed}: restore it, or remove {self.note_path(len(found)).name} and all later "
                    "notes to write these parts again"
                )
            del note["number"], note["state"], note["pending"]
            found.append(note)
        matches = (_PART_FILE.match(path.name) for path in self.path.glob("*.json"))
        later = [int(part[1]) for part in matches if part and int(part[1]) > len(found)]
        if later:  # notes are written in order, also by a run that was killed
            raise DamagedError(
                f"{self.note_path(len(found))} is missing, but {self.note_path(min(later)).name} exists: restore it, "
                "or remove all later notes to write these parts again"
            )
        return found

    def _check_same_stream(self, note: Note) -> None:
        """Checks that the stream of a note continues as that of the index, which holds for all parts."""
        try:
            saved = states.check(note["state"])
        except GristmillError as error:
            raise self.damaged_note(note["number"], str(error)) from None
        of_note, of_index = saved["fingerprint"], self.index["fingerprint"]
        if different := same_stream.incompatibilities(of_note, of_index, states.has_quarantined(saved)):
            raise DamagedError(
                f"{self.note_path(note['number'])} and {INDEX} belong to different streams: {different}; one of them "
                "was changed: restore it, or pack again into another folder"
            )

    @property
    def _format(self) -> Format:
        return FORMATS[self.index["format"]]

    def read(self, number: int, part: Part) -> Any:
        """The items of a finished part.

        Args:
          number: its number.
          part: its content according to its note.

        Raises:
          DamagedError: a file of it is missing, truncated or damaged.
          GristmillError: the system refuses to read a file of it, or a library is not installed.
        """
        if wrong := self.wrong_size(part["files"]):
            raise DamagedError(wrong)
        if self.remote is not None:
            for name in part["files"]:
                self.remote.fetch(name)
        path, index = self.part_path(number), self.index
        self._format.check()
        try:
            items = self._format.read(path, index["dtype"], index["fields"], index["sequence_length"])
        except PermissionError as error:
            raise GristmillError(f"cannot read {str(error.filename or path)!r}: {error.strerror}") from error
        except Exception as error:  # NumPy reads a header with Python's own tokenizer, which raises errors of its own
            raise DamagedError(f"cannot be read: {' '.join(str(error).split())}") from error
        if len(items) != part["items"]:
            raise DamagedError(f"the file holds {counted(len(items), 'item')}, but {part['items']:,} were written")
        return items

    def forget(self, part: Part) -> None:
        """Removes the local files of a part that is in a store."""
        if self.remote is not None:
            for name in part["files"]:
                self.remote.forget(name)

    def named(self, text: str) -> str:
        """A text with the URL of the folder, if it is in a store, in place of its path."""
        return text if self.remote is None else text.replace(str(self.path), self.remote.url)

    def wrong_size(self, sizes: dict[str, int]) -> str | None:
        """A description of the first of these files that does not have its size; None if all have."""
        for name, size in sizes.items():
            path = self.path / name
            if self.remote is not None:
                found = self.remote.size(name)
            else:
                found = path.stat().st_size if path.is_file() else None
            if found is None:
                return f"{name} is missing"
            if found != size:
                return f"{name} has {counted(found, 'byte')}, but {size:,} were written"
        return None

    def note(self, number: int) -> Note:
        """The note of a finished part.

        Raises:
          DamagedError: it is damaged.
          GristmillError: it cannot be read.
        """
        path = self.note_path(number)
        note = atomic_files.read_json(path, REMEDY_OF_NOTE)
        if missing := wrong(note, Note):
            raise DamagedError(
                f"{path} is not the note of a packed part: {', '.join(missing)} is missing or has the wrong type; "
                f"{REMEDY_OF_NOTE}"
            )
        return cast(Note, note)

    def damaged_note(self, number: int, what: str) -> DamagedError:
        """The error for a note whose content cannot be right."""
        return DamagedError(f"{self.note_path(number)} is damaged: {what}; {REMEDY_OF_NOTE}")

    def write_note(self, note: Note) -> None:
        """Writes the note that finishes a part, whose files must be complete."""
        atomic_files.write_json(self.note_path(note["number"]), note)
        self.publish(self.note_path(note["number"]))

    def publish(self, path: Path) -> None:
        """Copies a file that is complete to the store, if there is one."""
        if self.remote is not None:
            self.remote.publish(path)

    def part_path(self, number: int) -> Path:
        """The path of a part's file, without its suffix."""
        return self.path / f"{PART}{number:05}"

    def note_path(self, number: int) -> Path:
        """The path of a part's note."""
        return self.path / f"{PART}{number:05}.json"

    def remove_unfinished(self, finished: int) -> None:
        """Removes the files that a killed run left after its last finished part."""
        for path in self.path.iterdir():
            part = _PART_FILE.match(path.name)
            if path.name.endswith(atomic_files.UNFINISHED) or (part and int(part[1]) >= finished):
                path.unlink()

    def missing_notes(self, parts: list[Part]) -> list[str]:
        """The notes that are missing: of parts that the index of a complete folder lists, after those that have one."""
        listed = self.index.get("parts", [])
        if not self.index.get("complete") or listed[: len(parts)] != parts:
            return []
        return [self.note_path(number).name for number in range(len(parts), len(listed))]

    def stray_files(self, parts: list[Part]) -> list[str]:
        """The files of a complete folder that are named like those of a part, and belong to none."""
        if not self.is_complete(parts):
            return []  # a killed run leaves some, and the next run removes them
        known = {name for part in parts for name in part["files"]}
        known |= {self.note_path(number).name for number in range(len(parts))}
        names = [path.name for path in self.path.iterdir()] if self.remote is None else self.remote.names
        return sorted(name for name in names if _PART_FILE.match(name) and name not in known)

    def check_listed(self, parts: list[Part]) -> None:
        """Checks that the index of a complete folder lists the parts as their notes do.

        Raises:
          DamagedError: they differ.
        """
        listed = self.index.get("parts", [])
        if not self.index.get("complete") or listed == parts or self.missing_notes(parts):
            return
        number = next((n for n, (one, other) in enumerate(zip_longest(listed, parts)) if one != other), 0)
        raise DamagedError(
            f"{self.note_path(number)} and {INDEX} disagree about the part: one of them was changed; restore "
            "it, or remove the note and all later ones to write these parts again"
        )

    def is_complete(self, parts: list[Part]) -> bool:
        """Whether the index is complete and lists exactly these parts."""
        return bool(self.index.get("complete")) and self.index.get("parts") == parts

    def reopened(self) -> "Folder":
        """The folder with an index that is not complete."""
        index = {name: value for name, value in self.index.items() if name not in _AT_THE_END}
        return self if index == self.index else replace(self, index=cast(Index, index))._written()

    def complete(self, parts: list[Part], totals: Counts) -> "Folder":
        """The folder with an index that lists all parts, and the counts of the whole stream."""
        index: Index = {**self.index, "complete": True, "totals": totals, "parts": parts}
        return replace(self, index=index)._written()

    def _written(self) -> "Folder":
        """It, once its index is written."""
        atomic_files.write_json(self.path / INDEX, self.index)
        self.publish(self.path / INDEX)
        return self

    def totals(self, parts: list[Part]) -> dict[str, int]:
        """`items` and `bytes` of all parts, and the counts of the stream, to its end if all parts are there."""
        counts = self.index["totals"] if self.is_complete(parts) else total(parts)
        return {
            "items": sum(part["items"] for part in parts),
            **{name: counts.get(name, 0) for name in COUNTED},
            "bytes": sum(size for part in parts for size in part["files"].values()),
        }


def check_free(path: Path) -> None:
    """Checks that packed files may be written into the folder at `path`: it is a packed folder, or empty.

    Raises:
      GristmillError: it holds other files.
    """
    index = path / INDEX
    unfinished = atomic_files.unfinished(index)
    if not index.exists() and not atomic_files.is_json(unfinished):
        atomic_files.check_empty(path, {unfinished.name}, "packed files", mark=INDEX)


def check_quarantine_name(path: Path, folder: Path) -> None:
    """Checks that a quarantine file at `path` does not have the name of a packed file of the folder.

    Raises:
      GristmillError: it has.
    """
    name = path.name
    is_own = name == INDEX or name.startswith(LOCK) or name.endswith(atomic_files.UNFINISHED) or _PART_FILE.match(name)
    if is_own and path.parent.resolve() == folder.resolve():
        raise GristmillError(f"quarantine_file={str(path)!r}: expected another name: packed files have this one")


def check_apart(path: str, file_format: str, shards: Sequence[str], list_of_quarantined: Path | None) -> None:
    """Checks that the paths and globs of the shards match no file that packing into the folder at `path` writes.

    Raises:
      ArgumentError: they match one.
    """
    names = [INDEX, *(f"{PART}{0:05}{suffix}" for suffix in (".json", *FORMATS[file_format].suffixes))]
    if not is_remote(path):
        names += [name + atomic_files.UNFINISHED for name in names]
    files = [os.path.join(path, name) for name in names]  # noqa: PTH118 - it may be a URL
    files += [str(list_of_quarantined)] if list_of_quarantined else []
    if found := find_shard(shards, files):
        raise ArgumentError(
            f"--output {path}: {found[0]!r} will be written, and {found[1]}; a resumed run would find other "
            "shards: write into another folder, or exclude it from the shards"
        )


def is_part(path: Path) -> bool:
    """Whether a file belongs to a finished part. Its name is not enough: shards may be called part-00000."""
    part = _PART_FILE.match(path.name)
    return part is not None and path.with_name(f"{PART}{part[1]}.json").is_file()


def is_index(value: Any) -> bool:
    """Whether a JSON value is the index of packed files."""
    return isinstance(value, dict) and value.get("kind") == "gristmill pack"


def read_index(path: Path) -> Any:
    """The value in a file that may be the index of packed files.

    Raises:
      DamagedError: the file is missing or is not JSON.
      GristmillError: it cannot be read.
    """
    return atomic_files.read_json(path, _REMEDY_OF_INDEX)


def damaged_index(path: Path, what: str) -> DamagedError:
    """The error for an index whose content cannot be right."""
    return DamagedError(f"{path} is damaged: {what}; {_REMEDY_OF_INDEX}")
