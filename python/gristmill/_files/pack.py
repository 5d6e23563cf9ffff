"""`gristmill pack`: writes the rows of a dataset into files, part after part."""

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from gristmill._dataset.iterator import Element, PackedDatasetIterator, position_of
from gristmill._dataset.packed import PackedDataset, spec_of
from gristmill._dataset.spec import Spec
from gristmill._files import megatron
from gristmill._files.folder import INDEX, Folder, check_free
from gristmill._files.formats import FORMATS
from gristmill._files.remote_folder import RemoteFolder
from gristmill._files.row_items import Collector, describe_form
from gristmill._files.schema import COUNTED, IMAGES_NOT_WRITTEN, Counts, Index, Items, Packing, Part, Source, total
from gristmill._sample.plans import ImageTextPlan
from gristmill._shards.address import Address
from gristmill._spec.fields import VALUES, has_lengths, mark_field
from gristmill._state import states
from gristmill._util import atomic_files
from gristmill._util.folder_lock import locked
from gristmill._util.progress import Progress
from gristmill.errors import ArgumentError, GristmillError

_SHOW_SECONDS = 0.2
# The usual ratio of text to its gzip, for the progress bar alone.
_USUAL_RATIO = 3


def pack(
    dataset: PackedDataset,
    address: Address,
    *,
    file_format: str,
    rows_per_file: int,
    source: Source,
    fields: Sequence[str] = (),
    steps: int | None = None,
) -> dict[str, Any]:
    """Packs a dataset into a folder, or resumes after the last finished part of an earlier run.

    Args:
      dataset: what to pack; it has a `batch_size`, and an end unless `steps` says it.
      address: the folder, or the URL of one in a store.
      file_format: a key of `FORMATS`.
      rows_per_file: a part ends with the batch that brings it to so many rows, or the first after it in which an item
        ends.
      source: where the dataset comes from, for `gristmill verify`.
      fields: the fields of rows to write; none: all.
      steps: how many steps to pack; None: all.

    Returns:
      Figures of all parts, and of this run.

    Raises:
      ArgumentError: the dataset never ends, and `steps` is None.
      GristmillError: the folder holds something else or cannot be written, or a shard has an error. Finished parts
        stay.
    """
    start = time.perf_counter()
    check_packable(dataset, steps, file_format)
    packing = packing_of(dataset, file_format, rows_per_file, source, fields, steps)
    path = Path(address.name)
    if address.is_remote:
        with RemoteFolder.opened(address, INDEX) as remote:
            folder, parts, resumed = _pack(dataset, remote.local, packing, remote)
    else:
        make_folder(path)
        folder, parts, resumed = _pack(dataset, path, packing)
    seconds = time.perf_counter() - start
    return {
        "folder": address.name,
        "format": file_format,
        "parts": len(parts),
        "parts_of_earlier_runs": resumed,
        **folder.totals(parts),
        "seconds": seconds,
        "tokens_per_second": sum(part["tokens"] for part in parts[resumed:]) / seconds,
    }


def check_packable(dataset: PackedDataset, steps: int | None, file_format: str) -> None:
    """Checks that packing a dataset ends, writes each row once, and can write all of a row.

    Raises:
      ArgumentError: it does not.
    """
    if steps is None and not spec_of(dataset).ends:
        raise ArgumentError(
            "the mixture never ends: name the number of steps with --steps, or set epochs= of its sources (and "
            "on_exhausted='stop' to end with the first of them)"
        )
    if any(isinstance(source.sample, ImageTextPlan) for source in spec_of(dataset).sources):
        raise ArgumentError(f"sample=: {IMAGES_NOT_WRITTEN}")
    if has_lengths(spec_of(dataset).fields):
        raise ArgumentError(
            f"layout={spec_of(dataset).rows.layout!r}: files hold arrays with a number for each token; pack another "
            "layout, of which fields= may name the tokens and their segments alone"
        )
    if FORMATS[file_format].holds_documents:
        _check_holds_documents(spec_of(dataset), file_format)
    if spec_of(dataset).running.equal_steps:
        raise ArgumentError("equal_steps=True: each machine would write the rows of all; leave it out")


def _check_holds_documents(spec: Spec, file_format: str) -> None:
    """Checks that documents are all that rows hold: a format of documents has neither masks nor values of fields.

    Raises:
      ArgumentError: they are not.
    """
    rows = spec.rows
    for name, is_wrong in [
        ("packing", rows.packing != "concat"),
        ("layout", rows.layout != "maxtext"),
        ("truncation", rows.truncation == "middle"),
        ("pad_segments_to", rows.pad_segments_to is not None),
    ]:
        if is_wrong:
            raise ArgumentError(
                f"{name}={getattr(rows, name)!r}: format={file_format!r} writes whole documents of rows of 'concat' in "
                "the layout 'maxtext'; leave it out"
            )
    if spec.carried_fields or any(source.sample is not None and source.sample.has_mask for source in spec.sources):
        raise ArgumentError(
            f"sample=: format={file_format!r} writes ids alone, without masks and fields; use another format"
        )


def packing_of(
    dataset: PackedDataset,
    file_format: str,
    rows_per_file: int,
    source: Source,
    fields: Sequence[str],
    steps: int | None,
) -> Packing:
    """The packing of a dataset as the index describes it; the arguments are those of `pack`.

    Raises:
      MissingExtraError: the format needs a library that is not installed.
    """
    FORMATS[file_format].check()
    described = {
        "format": file_format,
        **make_index(dataset, file_format, fields),
        "rows_per_file": rows_per_file,
        "fingerprint": dataset.fingerprint,
        "ids": dataset.encoder.ids_fingerprint,
        "source": source,
        **({} if steps is None else {"steps": steps}),
    }
    return cast(Packing, described)


def _pack(
    dataset: PackedDataset, path: Path, packing: Packing, remote: RemoteFolder | None = None
) -> tuple[Folder, list[Part], int]:
    """Packs into a local folder, whose files are copied to `remote`.

    Returns:
      The folder, its parts, and how many of them earlier runs have written.
    """
    with atomic_files.writing_into(path, "run the same command again to resume after the last finished part"):
        check_free(path)  # before a lock is written there
        with locked(path):
            atomic_files.recover(path / INDEX)
            folder = Folder.create(path, packing, remote)
            parts = folder.parts(are_whole=True)
            folder.check_listed(parts)
            resumed = len(parts)
            if not folder.is_complete(parts):
                folder = folder.reopened()
                folder.remove_unfinished(resumed)
                totals = _write_parts(dataset, folder, parts)
                folder = folder.complete(parts, totals)
    return folder, parts, resumed


def make_folder(path: Path) -> None:
    """Makes a folder unless it is there.

    Raises:
      GristmillError: it cannot be made.
    """
    with atomic_files.writing_into(path):
        path.mkdir(parents=True, exist_ok=True)


def make_collector(dataset: PackedDataset, index: Index) -> Collector:
    """The collector that turns the dataset's batches into the items of its files."""
    spec = spec_of(dataset)
    names = list(dataset.sources) or [""]
    ranks = [sorted(names).index(name) for name in names]
    return FORMATS[index["format"]].collector(
        mark_field(packing_spec(dataset, index["format"]).fields), index["fields"], len(spec.running.own_lanes), ranks
    )


def packing_spec(dataset: PackedDataset, file_format: str) -> Spec:
    """The spec of the batches that `make_collector` takes: documents are told apart by their sources."""
    spec = spec_of(dataset)
    source_arrays = FORMATS[file_format].holds_documents and spec.mixing is not None
    return spec.with_running(source_arrays=source_arrays, attention_mask=True)


def packable_fields(spec: Spec) -> list[str]:
    """The names of the fields that can be written: those with a number for each token, and those of `fields`."""
    shape = (spec.rows.sequence_length,)
    return [
        field.name
        for field in spec.fields
        if (field.row_shape == shape and field.dtype == np.int32) or field.content in VALUES
    ]


def make_index(dataset: PackedDataset, file_format: str, fields: Sequence[str]) -> Items:
    """The entries of the index that describe the items, with these fields or all."""
    spec = spec_of(dataset)
    dataset.check_one_size("a packed folder, whose rows have one length,")
    of_documents = FORMATS[file_format].holds_documents
    known = packable_fields(spec)
    chosen = ["inputs"] if of_documents else [name for name in dict.fromkeys(fields or known) if name in known]
    arrays = {field.name: (field.dtype, tuple(field.row_shape)) for field in spec.fields}
    form = describe_form({name: arrays[name] for name in chosen}, spec.rows.sequence_length)
    return {
        "dtype": megatron.dtype_for(dataset.encoder) if of_documents else form,
        "fields": chosen,
        "sequence_length": spec.rows.sequence_length,
        "own_lanes": list(spec.running.own_lanes),
    }


def resume_after(folder: Folder, parts: list[Part], iterator: PackedDatasetIterator, collector: Collector) -> None:
    """Restores an iterator and a collector to the end of the last of some parts.

    Raises:
      DamagedError: the note of that part does not match them, or the parts.
    """
    number = len(parts) - 1
    note = folder.note(number)
    try:
        iterator.set_state(note["state"])
        collector.set_pending(note["pending"])
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
    collector = make_collector(dataset, folder.index)
    part: _Part | None = None
    spec = packing_spec(dataset, folder.index["format"])
    with PackedDatasetIterator(spec) as iterator, _progress(dataset, folder.index) as shown:
        if number:
            resume_after(folder, parts, iterator, collector)
        before = iterator.stats()
        shown.begin(before["tokens"])
        batches = first_steps(iterator, folder.index, parts)
        try:
            while True:
                batch = next(batches, None)
                if batch is not None:
                    part = part or _Part(folder, number)
                    part.write(collector.take(batch), collector.rows)
                    shown.show_position(iterator)
                    # No file is empty: it could not be mapped into memory.
                    if part.rows < folder.index["rows_per_file"] or not part.items:
                        continue
                if part is not None:
                    whole, part = part, None
                    stats = iterator.stats()
                    parts.append(whole.finish(counts_of(stats, before), iterator.get_state(), collector.pending()))
                    number, before = number + 1, stats
                if batch is None:
                    return counts_of(iterator.stats())
        except BaseException:
            if part is not None:
                part.abandon()
            raise


def first_steps(iterator: PackedDatasetIterator, index: Index, parts: Sequence[Part]) -> Iterator[Element]:
    """The batches of an iterator, which is after some parts, up to the last step that is packed."""
    steps = index.get("steps")
    left = steps and max(0, steps - sum(part["batches"] for part in parts))
    return itertools.islice(iterator, left)


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
            folder.part_path(number), index["dtype"], index["fields"], index["sequence_length"]
        )
        self._batches = self.items = self.rows = 0

    def write(self, items: Any, rows: int) -> None:
        """Appends the items of a batch, of which `rows` rows hold tokens."""
        self._writer.write(items)
        self._batches += 1
        self.items += len(items)
        self.rows += rows

    def abandon(self) -> None:
        """Closes the files; without a note the part is not finished."""
        # The interruption of the writer may have left it unable to write the rest.
        with contextlib.suppress(Exception):
            self._writer.close()

    def finish(self, counts: Counts, state: states.State, pending: list[str]) -> Part:
        """Completes the files, and then writes the note that finishes the part."""
        self._writer.close()
        for path in self._writer.paths:
            atomic_files.finish(path)
        sizes = {path.name: path.stat().st_size for path in self._writer.paths}
        for path in self._writer.paths:
            self._folder.publish(path)
        part: Part = {"files": sizes, "batches": self._batches, "items": self.items, **counts}
        self._folder.write_note({"number": self._number, **part, "state": state, "pending": pending})
        return part


def _progress(dataset: PackedDataset, index: Index) -> "_PackingProgress":
    """The progress of packing: by steps if their number is known."""
    if "steps" in index:
        return _StepsProgress(index["steps"])
    return _PositionsProgress(dataset)


class _PackingProgress(Progress):
    """Progress with the rate at which tokens are packed."""

    _due = 0.0

    def begin(self, tokens: int) -> None:
        """Starts to measure the rate, after `tokens` of earlier runs."""
        self._start, self._tokens = time.monotonic(), tokens

    def show_position(self, iterator: PackedDatasetIterator) -> None:
        """Shows the position of an iterator, a few times per second."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _SHOW_SECONDS
        stats = iterator.stats()
        rate = (stats["tokens"] - self._tokens) / max(now - self._start, 1e-9)
        self.show(self._done(position_of(iterator)), f"{rate / 1e6:.2f} M tokens/s, {stats['tokens']:,} tokens")

    def _done(self, position: states.State) -> float:
        raise NotImplementedError


class _StepsProgress(_PackingProgress):
    """Progress by steps."""

    def __init__(self, steps: int) -> None:
        super().__init__("packing", steps, " steps")

    def _done(self, position: states.State) -> float:
        done: int = position["step"]
        return done


class _PositionsProgress(_PackingProgress):
    """Progress by the positions of the lanes in their shards, of each source that ends."""

    def __init__(self, dataset: PackedDataset) -> None:
        lanes = spec_of(dataset).running.own_lanes
        # With a seed the lanes of later epochs hold other shards, of about the same size.
        self._sizes = {
            (name, str(lane)): [sizes[shard] for shard in plan[lane]]
            for name, source in (dataset.sources or {"": dataset}).items()
            if spec_of(source).sources[0].epochs is not None
            for sizes in [{piece.name: piece.end - piece.start for piece in source.pieces}]
            for plan in [source.plan()]
            for lane in lanes
        }
        epochs = {source.name: source.epochs or 0 for source in spec_of(dataset).sources}
        total = sum(sum(sizes) * epochs[name] for (name, _), sizes in self._sizes.items())
        super().__init__("packing", total, "B")

    def _done(self, position: states.State) -> float:
        done = 0
        for lane, cursor in position["lanes"].items():
            for name, numbers in states.lane_numbers(cursor).items():
                if shards := self._sizes.get((name, lane)):
                    shard = numbers["shard"]
                    done += numbers["epoch"] * sum(shards) + sum(shards[:shard])
                    done += min(numbers["byte"] // _USUAL_RATIO, sum(shards[shard : shard + 1]))
        return done
