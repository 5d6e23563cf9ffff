"""`gristmill verify`: comparison of packed files with their source, encoded again by the reference engine."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gristmill._dataset.iterator import Element, PackedDatasetIterator
from gristmill._dataset.packed import PackedDataset, spec_of
from gristmill._files import units
from gristmill._files.folder import INDEX, Folder, damaged_index
from gristmill._files.pack import counts_of, first_steps, make_collector, make_index, packing_spec, resume_after
from gristmill._files.remote_folder import RemoteFolder, named_by_url, named_in
from gristmill._files.row_items import Collector, are_same, arrays_of
from gristmill._files.schema import COUNTED, OF_ITEMS, Counts, Index, Part, describe_changes
from gristmill._files.source import dataset_of, shards_of, sizes_of
from gristmill._mixture.fingerprint import is_mixture
from gristmill._shards.address import NOWHERE, Address
from gristmill._spec import fingerprints
from gristmill._spec.fields import first_token, id_fields, mark_field
from gristmill._state import states
from gristmill._util.atomic_files import DamagedError
from gristmill._util.progress import Progress
from gristmill._util.text import counted
from gristmill.errors import ArgumentError, ArgumentTypeError, GristmillError, MissingShardError, MissingTokenizerError

# The most entries of a row's provenance, of 16 bytes each.
_MOST_ENTRIES = 4096


def verify(
    path: Path,
    remote: RemoteFolder | None = None,
    *,
    shards: Address = NOWHERE,
    drop: str | None = None,
    tokenizer: Path | None = None,
    only: int | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Compares packed files with the stream of their source.

    Args:
      path: their folder, or a file in it.
      remote: the folder of a store that `path` stands for, if it is in one.
      shards: paths and globs of the shards, if they have moved; of a mixture, a file of it that names them; and how
        stores are reached.
      drop: the row list as text, if it has moved.
      tokenizer: path of the tokenizer, if it has moved.
      only: the number of the one part to compare; None: all.
      threads: worker threads; None: as many as this process has cores.

    Returns:
      `equal`, counts of what was compared, and the first `difference`: where it is, what was packed there and what
      the source says, or what is damaged.

    Raises:
      GristmillError: there is no packed folder, the source is another one, or there is no such part.
    """
    if units.is_finished(path):
        if only is not None:
            raise ArgumentError(f"--part {only}: {path} has units: name the folder of one, such as unit-00000")
        moved: dict[str, Any] = {"shards": shards, "drop": drop, "tokenizer": tokenizer, "threads": threads}
        return _verify_units(path, remote, moved)
    units.check_joined(path)
    found: dict[str, Any] = {"folder": str(path), "complete": False, "parts": 0, "items": 0}
    try:
        folder = Folder.open(path, remote)
        parts = folder.parts()
        dataset = _source_dataset(folder, parts, shards, drop, tokenizer, threads)
        _check_source(folder, dataset)
        folder.check_listed(parts)
        if only is not None and only >= len(parts):
            raise GristmillError(f"{folder.path} has {counted(len(parts), 'finished part')}, but no part {only}")
        found |= {"folder": str(folder.path), "complete": folder.is_complete(parts)}
        difference = _first_difference(folder, dataset, parts, only, found)
    except DamagedError as error:
        difference = {"what": str(error)}
    return {**found, "equal": difference is None, "difference": difference}


def verify_remote(address: Address, **given: Any) -> dict[str, Any]:
    """Compares packed files in a store as `verify` does; each part is fetched before, and removed after it.

    Raises:
      GristmillError: see `verify`; or the store cannot be reached.
    """
    remote = RemoteFolder.to_read(address)
    local = str(remote.local)
    with named_by_url(local, remote.url):
        found: dict[str, Any] = named_in(verify(remote.local, remote, **given), local, remote.url)
        return found


def _verify_units(path: Path, remote: RemoteFolder | None, moved: dict[str, Any]) -> dict[str, Any]:
    """Compares one unit after the other, up to the first difference."""
    found: dict[str, Any] = {"folder": str(path), "complete": True, "parts": 0, "items": 0}
    for folder in units.folders_of(path):
        own = verify(folder, remote and remote.inside(folder.name), **moved)
        found |= {
            "complete": found["complete"] and own["complete"],
            "parts": found["parts"] + own["parts"],
            "items": found["items"] + own["items"],
        }
        if not own["equal"]:
            return {**own, **found, "folder": str(folder)}
    return {**found, "equal": True, "difference": None}


def _source_dataset(
    folder: Folder,
    parts: list[Part],
    shards: Address,
    drop: str | None,
    tokenizer: Path | None,
    threads: int | None,
) -> PackedDataset:
    """The dataset of the source, encoded by the reference, with provenance."""
    source = folder.index["source"]
    if lacking := _not_held(folder.index):
        raise GristmillError(
            f"{folder.path / INDEX}: the rows were packed from Python with {lacking}, which the index does not hold: "
            "verify cannot pack them again; compare them with the batches of their dataset, or pack a mixture file or "
            "--sample by gristmill pack"
        )
    if unknown := source["arguments"].keys() - inspect.signature(PackedDataset).parameters:
        raise damaged_index(folder.path / INDEX, f"PackedDataset has no argument {min(unknown)!r}")
    # An entry for each token, up to a bound: the record of tokens after the last entry is not known.
    entries = min(folder.index["sequence_length"], _MOST_ENTRIES)
    other: dict[str, Any] = {"threads": threads, "verify": 0.0, "quarantine_file": None, "provenance": entries}
    policy: dict[str, Any] = {"storage_options": dict(shards.options)} if shards.options else {}
    if folder.totals(parts)["quarantined"]:
        # A packing that was resumed may have a stricter error policy at its end than at its start.
        policy |= {"on_error": "quarantine", "max_error_rate": 1.0}
    if "mixture" not in source:
        other |= policy
    if drop is not None:
        other["drop"] = drop
    try:
        found = shards_of(source, shards.names, policy)
        return dataset_of(source, shards=found, tokenizer=tokenizer, engine="reference", **other)
    except (MissingShardError, MissingTokenizerError) as error:
        raise type(error)(f"{error}; if they have moved, pass --shards and --tokenizer") from error
    except (ArgumentError, ArgumentTypeError) as error:
        raise GristmillError(
            f"{folder.path / INDEX}: the source cannot be packed again with its arguments: {error}"
        ) from error


def _not_held(index: Index) -> str:
    """The part of an index's stream that its source lacks; empty if there is none."""
    source = index["source"]
    if is_mixture(index["fingerprint"]):
        return "" if "mixture" in source else "a mixture"
    given = fingerprints.arguments_of(index["fingerprint"])
    if given["sample"] is not None and not source["arguments"].get("sample"):
        return "a sample"
    has_lists = any(edit.keys() & {"drop", "shards"} for edit in given["edits"] or ())
    return "edits" if has_lists and source["arguments"].get("edits") == given["edits"] else ""


def _check_source(folder: Folder, dataset: PackedDataset) -> None:
    """Checks that a dataset is the stream that was packed.

    Raises:
      GristmillError: it is another one.
      DamagedError: the index describes items that do not follow from the stream.
    """
    # The error policy may have changed while packing.
    sizes = sizes_of(dataset)
    packed = fingerprints.without_policy(folder.index["fingerprint"])
    source = fingerprints.without_policy(dataset.fingerprint)
    if packed != source:
        changes = describe_changes(folder.index["source"], {**folder.index["source"], "sizes": sizes})
        of_sources = {f"{name}.manifest": f"of the source {name!r} {changes['manifest']}" for name in dataset.sources}
        reason = fingerprints.differences(packed, source, **changes, **of_sources)
        raise GristmillError(
            f"{folder.path} does not match this source: {reason}; name the right one with --shards and --tokenizer"
        )
    states.check_ids(folder.index["ids"], dataset.encoder.ids_fingerprint, f"{folder.path} was packed")
    items = make_index(dataset, folder.index["format"], folder.index["fields"])
    for name in OF_ITEMS:
        if folder.index[name] != items[name]:
            raise damaged_index(
                folder.path / INDEX, f"its {name} is {folder.index[name]}, but its source has {items[name]}"
            )
    # In the order of the manifest: the shards may have moved.
    if list(folder.index["source"]["sizes"].values()) != list(sizes.values()):
        raise damaged_index(folder.path / INDEX, "its source.sizes do not match its source")


def _first_difference(
    folder: Folder, dataset: PackedDataset, parts: list[Part], only: int | None, found: dict[str, Any]
) -> dict[str, Any] | None:
    """The first difference of all parts or only one, if any; `found` counts the compared parts and items."""
    chosen = range(len(parts)) if only is None else [only]
    total = sum(parts[number]["batches"] for number in chosen)
    spec = packing_spec(dataset, folder.index["format"])
    with PackedDatasetIterator(spec) as iterator, Progress("verifying", total, " batches") as progress:
        collector = make_collector(dataset, folder.index)
        if only:
            resume_after(folder, parts[:only], iterator, collector)
        elif parts:
            # The rows before may have been packed when streams began in another order.
            iterator.set_state(states.start_of(folder.note(0)["state"]))
        comparison = _Comparison(folder, dataset, iterator, collector, progress, parts[: only or 0])
        for number in chosen:
            files = {"files": list(parts[number]["files"])}
            try:
                difference = comparison.compare_part(number, parts[number])
            except DamagedError as error:
                difference = {"what": str(error)}
            folder.forget(parts[number])
            found["items"] += parts[number]["items"]
            found["parts"] += 1
            if difference is not None:
                return {**files, **difference}
        if only is not None:
            return None
        if missing := folder.missing_notes(parts):
            return {"what": f"{', '.join(missing)}: missing, but the index lists the part"}
        if surplus := folder.stray_files(parts):
            return {"what": f"{', '.join(surplus)}: in the folder, but part of none that the index lists; remove it"}
        if found["complete"]:
            if not comparison.is_at_end():
                return {"what": "the source has more rows than the files"}
            if wrong := _wrong_counts(folder.totals(parts), counts_of(iterator.stats())):
                return {"what": f"{folder.path / INDEX}: {wrong}"}
    return None


class _Comparison:
    """Packed parts and the stream of their source, which is at the start of the next part."""

    def __init__(
        self,
        folder: Folder,
        dataset: PackedDataset,
        iterator: PackedDatasetIterator,
        collector: Collector,
        progress: Progress,
        before: Sequence[Part],
    ) -> None:
        self._folder = folder
        self._dataset = dataset
        self._iterator = iterator
        self._collector = collector
        self._progress = progress
        self._rest = first_steps(iterator, folder.index, before)
        self._batches = 0

    def is_at_end(self) -> bool:
        """Whether the stream has ended; takes a batch otherwise."""
        return next(self._rest, None) is None

    def compare_part(self, number: int, part: Part) -> dict[str, Any] | None:
        """The first difference of the next part, if any.

        Raises:
          DamagedError: one of its files is damaged, or its note.
        """
        packed = self._folder.read(number, part)
        before = self._iterator.stats()
        given = rows = 0
        for _ in range(part["batches"]):
            self._progress.show(self._batches)
            batch = next(self._rest, None)
            if batch is None:
                break
            self._batches += 1
            expected = self._collector.take(batch)
            for item, (got, wanted) in enumerate(zip(packed[given : given + len(expected)], expected, strict=False)):
                if not are_same(got, wanted):
                    return {"item": given + item, **self._describe_item(batch, item, got, wanted)}
            given += len(expected)
            rows += self._collector.rows
        if given != len(packed):
            return {"what": f"the file holds {counted(len(packed), 'item')}, but the source has {given:,} there"}
        if rows < self._folder.index["rows_per_file"] and not self.is_at_end():
            return {"what": f"the file ends after {counted(rows, 'row')}, but the source continues"}
        if wrong := _wrong_counts(part, counts_of(self._iterator.stats(), before)):
            return {"what": f"{self._folder.note_path(number).name}: {wrong}"}
        note = self._folder.note(number)
        # The note is of this stream, but its error policy and its release may differ.
        of_note = {name: note["state"][name] for name in ("fingerprint", "ids")}
        state = {**self._iterator.get_state(), **of_note}
        if (note["state"], note["pending"]) != (state, self._collector.pending()):
            raise self._folder.damaged_note(number, "its state is not that of the source after the part")
        return None

    def _describe_item(self, batch: Element, item: int, got: Any, wanted: Any) -> dict[str, Any]:
        """Where an item that ends in a batch differs, and the record that the token comes from."""
        row, last = self._collector.ends[item]
        found = _difference(self._dataset, self._folder.index, got, wanted)
        at = found.get("index", 0)
        fields = packing_spec(self._dataset, self._folder.index["format"]).fields
        first = first_token(batch[mark_field(fields)][row])
        token = max((at if last is None else last) - first, 0)
        source = _source(self._dataset, batch["provenance"][row], token)
        if last is not None and source is not None:
            source["token"] = at
        return {**found, "source": source}


def _wrong_counts(noted: Mapping[str, int] | Counts, given: Counts) -> str:
    """A description of the counts that differ; empty if none does."""
    return ", ".join(
        f"{name} is {noted.get(name, 0):,}, but the source has {given.get(name, 0):,}"
        for name in COUNTED
        if noted.get(name, 0) != given.get(name, 0)
    )


def _difference(dataset: PackedDataset, index: Index, got: Any, wanted: Any) -> dict[str, Any]:
    """The index at which two items differ first, and both values."""
    if got.shape != wanted.shape:
        packed = counted(got.shape[-1], "token was", "tokens were")
        return {"what": f"{packed} packed, but the source has {wanted.shape[-1]:,}"}
    packed_arrays, of_source = (arrays_of(item, index["dtype"], index["fields"]) for item in (got, wanted))
    field, at = next(
        (name, different[0])
        for name, array in packed_arrays.items()
        if len(different := np.argwhere(array != of_source[name]))
    )
    values = {"packed": packed_arrays[field][tuple(at)].item(), "expected": of_source[field][tuple(at)].item()}
    found: dict[str, Any] = {"field": field, "index": int(at[0]), **values}
    if field in id_fields(spec_of(dataset).fields):
        # Labels may be negative, where there is no token.
        tokens = {name: dataset.encoder.id_to_token(value) for name, value in values.items() if value >= 0}
        found["texts"] = {name: tokens.get(name) for name in values}
    return found


def _source(dataset: PackedDataset, entries: Any, index: int) -> dict[str, Any] | None:
    """The document of a row's token, or the row's last document if the row is shorter; None if it is not listed.

    Args:
      dataset: the dataset, with provenance.
      entries: provenance of the row.
      index: the token, counted from the row's first.
    """
    shard, record, offset, length = entries.T[:4]
    listed = np.count_nonzero(length)
    entry = min(np.searchsorted(length.cumsum(), index, side="right"), listed - 1)
    if entry < 0 or (listed == len(entries) and index >= length.sum()):
        return None
    token = offset[entry] + index - length[:entry].sum()
    return {"shard": dataset.pieces[shard[entry]].name, "record": int(record[entry]), "token": int(token)}


def describe(found: dict[str, Any]) -> str:
    """The result of `verify` for people."""
    extent = f"{counted(found['items'], 'item')} in {counted(found['parts'], 'part')}"
    if found["equal"]:
        rest = "" if found["complete"] else "; packing is not complete"
        return f"equal: {extent}, compared with the source encoded by the reference engine{rest}"
    return "DIFFERENT: " + "\n".join(_lines(found["difference"]))


def _lines(difference: dict[str, Any]) -> list[str]:
    named = difference.get("files", [])
    files = ", ".join(named)
    item = f", item {difference['item']:,}" if "item" in difference else ""
    if "what" in difference:
        head = difference["what"]
    else:
        texts = difference.get("texts", {})
        said = {
            name: f"{difference[name]}" + (f" ({texts[name]!r})" if texts.get(name) else "")
            for name in ("packed", "expected")
        }
        head = f"{difference['field']}[{difference['index']}] is {said['packed']}, expected {said['expected']}"
    lines = [f"{files}{item}: {head}" if files and not head.startswith(tuple(named)) else head]
    if source := difference.get("source"):
        lines.append(f"  from {source['shard']}: record {source['record']}, token {source['token']} of its document")
    return lines
