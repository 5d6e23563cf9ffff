"""The source of a stream, of its checked arguments: its shards are found, and its sample is planned."""

from collections.abc import Mapping
from typing import Any

from gristmill._sample import image_plans, plans
from gristmill._sample.samples import Completion, ImageText, Preference, Text, Tokens, check_ends, fields_of, halves_of
from gristmill._shards.energon_folder import EnergonFolder, FolderRows
from gristmill._shards.hive import with_folders
from gristmill._shards.indexes import warn_of_missing_indexes
from gristmill._shards.manifest import Manifest, patterns_of
from gristmill._shards.pieces import count_pieces, warn_of_empty_pieces
from gristmill._shards.rows import DroppedRows
from gristmill._shards.sidecars import with_sidecars
from gristmill._spec import quarantine
from gristmill._spec.arguments import ARGUMENTS, SourceSpec, arguments_of
from gristmill._tokenizer.encoder import as_encoder, check_is_function, special_token_id
from gristmill.errors import ArgumentError


def make_source(name: str, values: Mapping[str, Any]) -> SourceSpec:
    """The source with a name, of checked arguments.

    Raises:
      GristmillError: see `PackedDataset`.
    """
    folder = values["shards"] if isinstance(values["shards"], EnergonFolder) else None
    left_out = None if folder is None else folder.left_out
    if left_out and values["drop"]:
        raise ArgumentError("drop=: the folder leaves out samples of its own, and there is one list of them")
    text_field = _text_field(values)
    patterns = patterns_of(values["shards"] if folder is None else folder.manifest)
    manifest = with_sidecars(Manifest.find(patterns, dict(values["storage_options"] or ())), values["sidecars"])
    keep = with_folders(values["keep"], manifest)
    drop = DroppedRows(values["drop"], manifest) if values["drop"] else left_out
    quarantine.check_is_no_shard(values["quarantine_file"], patterns)
    if count_pieces(manifest, values["split_bytes"]) > len(manifest):
        _check_may_be_divided(values, drop)
    warn_of_missing_indexes(manifest, values["split_bytes"])
    warn_of_empty_pieces(manifest, values["split_bytes"])
    are_ready = isinstance(values["sample"], Tokens)
    encoder = as_encoder(values["tokenizer"], is_needed=not are_ready)
    check_is_function(encoder)
    plan = _plan(values, encoder, folder, manifest)
    if values["truncation"] == "turns" and not isinstance(plan, plans.ChatPlan):
        raise ArgumentError(
            "truncation='turns': only conversations have turns that can be left out: use sample=gm.Chat(...), or cut "
            "documents with truncation='right' or 'left'"
        )
    eos = False if are_ready and values["eos"] is None else values["eos"]
    half = plan.chosen if isinstance(plan, plans.PairPlan) else plan
    half = plan.texts[0] if isinstance(plan, plans.ImageTextPlan) else half
    if isinstance(half, plans.ChatPlan):
        eos = False if eos is None else eos
        check_ends({**values, "eos": eos})
    found = {
        "text_field": text_field,
        "shards": manifest,
        "storage_options": manifest.storage_options,
        "keep": keep,
        "drop": drop,
        "tokenizer": encoder,
        "sample": plan,
        "eos": special_token_id(encoder, "eos", eos),
        "bos": special_token_id(encoder, "bos", values["bos"]),
    }
    own = {key: found.get(key, values[key]) for key in _ARGUMENTS}
    sample = values["sample"]
    carried = [fields_of(half) for half in halves_of(sample)]
    return SourceSpec(name=name, given_sample=sample, sample_fields=carried, **own)


_ARGUMENTS = tuple(arguments_of(SourceSpec))


def _plan(values: Mapping[str, Any], encoder: Any, folder: EnergonFolder | None, manifest: Manifest) -> Any:
    """The plan of the sample; None of a plain text."""
    sample = values["sample"]
    if isinstance(sample, Preference):
        halves = (
            _plan({**values, "sample": half}, encoder, folder, manifest) for half in (sample.chosen, sample.rejected)
        )
        chosen, rejected = halves
        return plans.PairPlan(chosen=chosen, rejected=rejected)
    if isinstance(sample, ImageText):
        return image_plans.make(sample, encoder, folder, manifest, values["max_document_bytes"])
    if isinstance(sample, Completion):
        has_messages = plans.begins_with_a_list(sample.prompt_field, values["max_document_bytes"], manifest)
        return plans.make(sample, encoder, has_messages=has_messages)
    return None if sample is None else plans.make(sample, encoder)


def _text_field(values: Mapping[str, Any]) -> str:
    """The `text_field`, or that of `gm.Text(field)`, which is long for it."""
    sample, field = values["sample"], str(values["text_field"])
    if sample is None:
        return field
    default = ARGUMENTS["text_field"].default
    own: str = sample.field if isinstance(sample, Text) else default
    if field not in (default, own):
        raise ArgumentError(f"text_field={field!r}: the sample names the keys of a record; leave it out")
    return own


def _check_may_be_divided(values: Mapping[str, Any], drop: DroppedRows | FolderRows | None) -> None:
    """Checks that no record is known by its number in a shard: those of a piece are counted from its start."""
    for name, is_numbered in [
        ("sidecars", values["sidecars"] is not None),
        ("drop", drop is not None and drop.is_numbered),
    ]:
        if is_numbered:
            raise ArgumentError(
                f"split_bytes={values['split_bytes']}: shards cannot be divided with {name}=, which knows records by "
                f"their number in the shard; leave split_bytes= or {name}= out"
            )
