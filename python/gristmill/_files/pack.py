"""`gristmill pack`: writes the rows of a dataset into files, part after part."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from gristmill._dataset.iterator import PackedDatasetIterator, position_of
from gristmill._dataset.packed import PackedDataset, spec_of
from gristmill._files import megatron
from gristmill._files.folder import INDEX, Folder, check_free
from gristmill._files.formats import FORMATS
from gristmill._files.row_items import Unit
from gristmill._files.schema import COUNTED, Counts, Index, Items, Packing, Part, Source, total
from gristmill._spec.fields import mark_field
from gristmill._spec.spec import Spec
from gristmill._state import states
from gristmill._util import atomic_files
from gristmill._util.folder_lock import locked
from gristmill._util.progress import Progress
from gristmill.errors import GristmillError

_SHOW_SECONDS = 0.2
# The usual ratio of text to its gzip, for the progress bar alone.
_USUAL_RATIO = 3


def pack(
    dataset: PackedDataset,
    path: Path,
    *,
    file_format: str,
    rows_per_file: int,
    source: Source,
    fields: Sequence[str] = (),
) -> dict[str, Any]:
    """Packs a dataset into a folder, or resumes after the last finished part of an earlier run.

    Args:
      dataset: what to pack; it has a `batch_size` and a finite number of epochs.
      path: the folder.
      file_format: a key of `FORMATS`.
      rows_per_file: a part ends with the batch that brings it to so many rows, or the first after it in which an item
        ends.
      source: where the dataset comes from, for `gristmill verify`.
      fields: the fields of rows to write; none: all.

    Returns:
      Figures of all parts, and of this run.

    Raises:
      GristmillError: the folder holds something else or cannot be written, or a shard has an error. Finished parts
        stay.
    """
    start = time.perf_counter()
    make_folder(path)
    with atomic_files.writing_into(path, "run the same command again to resume after the last finished part"):
        check_free(path)  # before a lock is written there
        with locked(path):
            atomic_files.recover(path / INDEX)
            index: Packing = {
                "format": file_format,
                **make_index(dataset, file_format, fields),
                "rows_per_file": rows_per_file,
                "fingerprint": dataset.fingerprint,
                "ids": dataset.encoder.ids_fingerprint,
                "source": source,
            }
            folder = Folder.create(path, index)
            parts = folder.parts(are_whole=True)
            folder.check_listed(parts)
            resumed = len(parts)
            if not folder.is_complete(parts):
                folder = folder.reopened()
                folder.remove_unfinished(resumed)
                totals = _write_parts(dataset, folder, parts)
                folder = folder.complete(parts, totals)
    seconds = time.perf_counter() - start
    return {
        "folder": str(path),
        "format": file_format,
        "parts": len(parts),
        "parts_of_earlier_runs": resumed,
        **folder.totals(parts),
        "seconds": seconds,
        "tokens_per_second": sum(part["tokens"] for part in parts[resumed:]) / seconds,
    }


def make_folder(path: Path) -> None:
    """Makes a folder unless it is there.

    Raises:
      GristmillError: it cannot be made.
    """
    with atomic_files.writing_into(path):
        path.mkdir(parents=True, exist_ok=True)


def make_unit(dataset: PackedDataset, index: Index) -> Unit:
    """The unit that turns the dataset's batches into the items of its files."""
    spec = spec_of(dataset)
    return FORMATS[index["format"]].unit(mark_field(spec.fields), index["fields"], len(spec.running.own_lanes))


def packable_fields(spec: Spec) -> list[str]:
    """The names of the fields that can be written: those with a number for each token."""
    shape = (spec.rows.sequence_length,)
    return [field.name for field in spec.fields if field.row_shape == shape and field.dtype == np.int32]


def make_index(dataset: PackedDataset, file_format: str, fields: Sequence[str]) -> Items:
    """The entries of the index that describe the items, with these fields or all."""
    spec = spec_of(dataset)
    of_documents = file_format == "megatron"
    known = packable_fields(spec)
    chosen = ["inputs"] if of_documents else [name for name in dict.fromkeys(fields or known) if name in known]
    return {
        "dtype": megatron.dtype_for(dataset.encoder) if of_documents else "<i4",
        "fields": chosen,
        "sequence_length": spec.rows.sequence_length,
        "own_lanes": list(spec.running.own_lanes),
    }


def resume_after(folder: Folder, parts: list[Part], iterator: PackedDatasetIterator, unit: Unit) -> None:
    """Restores an iterator and a unit to the end of the last of some parts.

    Raises:
      DamagedError: the note of that part does not match them, or the parts.
    """
    number = len(parts) - 1
    note = folder.note(number)
    try:
        iterator.set_state(note["state"])
        unit.set_pending(note["pending"])
    except GristmillError as error:
        raise folder.damaged_note(number, str(error)) from None
    counts = iterator.stats()
    held = total(parts)
    if wrong := [name for name in COUNTED if counts[name] != held[name]]:
        name = wrong[0]
        raise folder.damaged_note(
            number, f"its state counts {name}={counts[name]:,}, but the parts hold {held[name]:,}"
        )


def _write_parts(dataset: PackedDataset, folder: Folder, parts: list[Part]) -> Counts:
    """Writes the parts after the given ones, and appends their contents.

    Returns:
      The counts of the stream, including those after the last row.
    """
    number = len(parts)
    unit = make_unit(dataset, folder.index)
    part: _Part | None = None
    with PackedDatasetIterator(spec_of(dataset)) as iterator, _PackingProgress(dataset) as shown:
        if number:
            resume_after(folder, parts, iterator, unit)
        before = iterator.stats()
        shown.begin(before["tokens"])
        try:
            while True:
                batch = next(iterator, None)
                if batch is not None:
                    part = part or _Part(folder, number)
                    part.write(unit.take(batch), unit.rows)
                    shown.show_position(iterator)
                    # No file is empty: it could not be mapped into memory.
                    if part.rows < folder.index["rows_per_file"] or not part.items:
                        continue
                if part is not None:
                    whole, part = part, None
                    stats = iterator.stats()
                    parts.append(whole.finish(counts_of(stats, before), iterator.get_state(), unit.pending()))
                    number, before = number + 1, stats
                if batch is None:
                    return counts_of(iterator.stats())
        finally:
            if part is not None:
                part.close()


def counts_of(stats: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Counts:
    """The counts of the stream, or their increase since `before`."""
    counts = {name: stats[name] - (before[name] if before else 0) for name in COUNTED}
    if not counts["filtered"]:
        del counts["filtered"]  # a note of a stream without a filter stays what it was before there were any
    return cast(Counts, counts)


class _Part:
    """A part that is being written."""

    def __init__(self, folder: Folder, number: int) -> None:
        self._folder = folder
        self._number = number
        index = folder.index
        self._writer = FORMATS[index["format"]].writer(
            folder.part_path(number), index["dtype"], (len(index["fields"]), index["sequence_length"])
        )
        self._batches = self.items = self.rows = 0

    def write(self, items: Any, rows: int) -> None:
        """Appends the items of a batch, of which `rows` rows hold tokens."""
        self._writer.write(items)
        self._batches += 1
        self.items += len(items)
        self.rows += rows

    def close(self) -> None:
        """Closes the files; without a note the part is not finished."""
        self._writer.close()

    def finish(self, counts: Counts, state: states.State, pending: list[str]) -> Part:
        """Completes the files, and then writes the note that finishes the part."""
        self.close()
        for path in self._writer.paths:
            atomic_files.finish(path)
        sizes = {path.name: path.stat().st_size for path in self._writer.paths}
        part: Part = {"files": sizes, "batches": self._batches, "items": self.items, **counts}
        self._folder.write_note({"number": self._number, **part, "state": state, "pending": pending})
        return part


class _PackingProgress(Progress):
    """Progress, by the positions of the lanes in their shards."""

    def __init__(self, dataset: PackedDataset) -> None:
        sizes = {piece.name: piece.end - piece.start for piece in dataset.pieces}
        plan = dataset.plan()
        spec = spec_of(dataset)
        # With a seed the lanes of later epochs hold other shards, of about the same size.
        self._sizes = {str(lane): [sizes[name] for name in plan[lane]] for lane in spec.running.own_lanes}
        super().__init__("packing", sum(map(sum, self._sizes.values())) * (spec.order.epochs or 1), "B")
        self._due = 0.0
        self.begin(0)

    def begin(self, tokens: int) -> None:
        """Starts to measure the rate, after `tokens` of earlier runs."""
        self._start, self._tokens = time.monotonic(), tokens

    def show_position(self, iterator: PackedDatasetIterator) -> None:
        """Shows the position of an iterator, a few times per second."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _SHOW_SECONDS
        done = 0
        for lane, cursor in position_of(iterator)["lanes"].items():
            position = states.cursor_numbers(cursor)
            shards = self._sizes[lane]
            done += position["epoch"] * sum(shards) + sum(shards[: position["shard"]])
            done += min(position["byte"] // _USUAL_RATIO, sum(shards[position["shard"] : position["shard"] + 1]))
        stats = iterator.stats()
        rate = (stats["tokens"] - self._tokens) / max(now - self._start, 1e-9)
        self.show(done, f"{rate / 1e6:.2f} M tokens/s, {stats['tokens']:,} tokens")
