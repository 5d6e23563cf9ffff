"""The spec of a `PromptDataset`: its arguments are checked, and all records are read."""

import functools
import hashlib
import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import gristmill._core as _core
from gristmill._chat.template import special_tokens_of
from gristmill._filter.compiler import Keep
from gristmill._mixture.mixing import Mixing, arguments_of_sources, of_source
from gristmill._mixture.mixture import Mixture
from gristmill._prompts.arguments import ARGUMENTS
from gristmill._prompts.cutting import kept
from gristmill._prompts.layouts import Layout, padding_of
from gristmill._prompts.reading import Arena, JoinedArena, Plan, Reading
from gristmill._prompts.rows import ROWS, as_rows, written
from gristmill._prompts.spec import EXTRA, PromptSource, PromptSpec
from gristmill._sample import plans
from gristmill._sample.plans import ChatPlan, CompletionPlan, begins_with_a_list
from gristmill._sample.samples import Chat, Completion, Text, check_ends
from gristmill._shards.counting import count_records
from gristmill._shards.hive import check_keeps_some, with_folders
from gristmill._shards.manifest import Manifest, patterns_of
from gristmill._shards.rows import DroppedRows
from gristmill._shards.selection import select as select_paths
from gristmill._shards.sidecars import with_sidecars
from gristmill._spec import fingerprints, quarantine
from gristmill._spec.arguments import ARGUMENTS as PACKED_ARGUMENTS
from gristmill._spec.arguments import REQUIRED
from gristmill._spec.checking import check
from gristmill._tokenizer.encoder import Encoder, as_encoder, check_is_function, core_of, special_token_id
from gristmill._util import checks
from gristmill._util.local_files import utf8_path
from gristmill._util.named_values import encode
from gristmill._util.text import counted, shortened
from gristmill.errors import ArgumentError, ShardError

_LOGGER = logging.getLogger("gristmill")

# The names in a mixture's fingerprint that each source has of its own.
_OWN_KEYS = frozenset({"records", "keep", "sidecars", "drop", "max_document_bytes", "prompt"})

# The fields of a `Reading` of whole records, of which no prompt is made.
_NO_PROMPTS: dict[str, Any] = {
    "prompts": (),
    "bos": None,
    "eos": None,
    "longest": None,
    "cut": None,
    "masks": (),
    "needs_trained": False,
    "selected": None,
    "keeps_records": True,
    "keeps_texts": False,
    "raises": True,
    "max_memory": 0,
    "threads": 1,
}


def resolve(given: Mapping[str, Any]) -> PromptSpec:
    """The spec of a dataset of records or of a `Mixture`.

    Raises:
      GristmillError: see `PromptDataset`.
    """
    given = {**given, "source_arrays": checks.boolean("source_arrays", given["source_arrays"])}
    listed = arguments_of_sources(given, ARGUMENTS)
    mixed = Mixing.of(given["shards"])
    if mixed is None:
        return _resolve_one(listed[""])
    found = _resolve_sources(given["shards"], given, listed)
    first, *_ = found.values()
    for name, spec in found.items():
        if spec.layout.masked != first.layout.masked:
            raise ArgumentError(
                f"source {name!r}: expected prompts that all have a loss mask, or none, in all sources: gm.Completion "
                "has one, gm.Text none, and gm.Chat has one unless add_generation_prompt=True"
            )
    arena = JoinedArena([spec.arena for spec in found.values()], [len(spec.shard_names) for spec in found.values()])
    columns = tuple(dict.fromkeys(column for spec in found.values() for column in spec.columns))
    _check_columns(given, columns, arena)
    records = np.cumsum([0, *(len(spec.arena) for spec in found.values())])
    items = np.cumsum([0, *(len(spec.rows) for spec in found.values())]).tolist()
    return replace(
        first,
        sources=[
            replace(spec.sources[0], name=name, first=start, epochs=given["shards"].sources[name].arguments["epochs"])
            for (name, spec), start in zip(found.items(), items, strict=False)
        ],
        shard_names=[shard for spec in found.values() for shard in spec.shard_names],
        manifest=None,
        columns=columns,
        fingerprint=mixed.fingerprint({name: spec.fingerprint for name, spec in found.items()}, _OWN_KEYS),
        arena=arena,
        rows=np.concatenate([spec.rows + start for spec, start in zip(found.values(), records, strict=False)]),
        source_arrays=given["source_arrays"],
        mixing=mixed,
    )


def _resolve_sources(
    mixture: Mixture, given: Mapping[str, Any], listed: Mapping[str, dict[str, Any]]
) -> dict[str, PromptSpec]:
    """The dataset of each source alone."""
    _check_mixture(mixture, given)
    encoder, memory = as_encoder(given["tokenizer"]), given["max_memory"]
    found: dict[str, PromptSpec] = {}
    prompts = {
        name: _prompts_of(source.arguments["sample"], given["prompt"]) for name, source in mixture.sources.items()
    }
    has_texts = any(not _are_chats(prompt) for prompt in prompts.values())
    for name, own in listed.items():
        own |= {"tokenizer": encoder, "max_memory": memory, "epochs": 1, "prompt": prompts[name]}
        if has_texts and _are_chats(prompts[name]):
            # A template writes its own tokens around a conversation: those given are of the texts of other sources.
            own |= {"bos": False, "eos": False}
        with of_source(name):
            found[name] = spec = _resolve_one(own, is_source=True)
            if not len(spec.rows):
                counts = ", ".join(f"{count} {what}" for what, count in spec.counts.items() if count)
                raise ArgumentError(f"there is no prompt; of its records: {counts or 'none'}")
        memory = max(0, memory - spec.arena.nbytes)
    return found


def _prompts_of(sample: Any, given: Any) -> Any:
    """The prompts of a source, which may have a sample of its own."""
    return given if sample is None else dict.fromkeys(_prompt_names(given), sample)


def _are_chats(prompt: Any) -> bool:
    return all(isinstance(one, Chat) for one in (prompt.values() if isinstance(prompt, Mapping) else [prompt]))


def _prompt_names(prompt: Any) -> list[str]:
    return list(_samples_of(prompt))


def _check_mixture(mixture: Mixture, given: Mapping[str, Any]) -> None:
    """Checks what goes together.

    Raises:
      ArgumentError: something does not.
    """
    for name in ("select", "max_samples"):
        if given[name] is not None:
            raise ArgumentError(f"{name}={given[name]!r}: a mixture has records of several sources; leave it out")
    if mixture.weights_by == "tokens":
        raise ArgumentError("weights_by='tokens': a batch of prompts has so many of each source; use 'rows'")
    for name, source in mixture.sources.items():
        for key, value in source.arguments.items():
            default = PACKED_ARGUMENTS[key].default
            if key not in ARGUMENTS and key != "sample" and default is not REQUIRED and value != default:
                raise ArgumentError(f"source {name!r}: {key}={value!r}: prompts have no such argument; leave it out")
        if source.arguments["sample"] is not None and len(_prompt_names(given["prompt"])) > 1:
            raise ArgumentError(
                f"source {name!r}: sample=: there are several prompts, which are the same of all sources"
            )


def _check_columns(given: Mapping[str, Any], columns: Sequence[str], arena: JoinedArena) -> None:
    unknown = [] if isinstance(given["columns"], bool) else [name for name in columns if name not in arena.keys]
    if unknown and len(arena):
        raise ArgumentError(f"columns={list(columns)!r}: no record has {unknown}; there are {arena.keys}")
    if given["source_arrays"] and (clash := [name for name in columns if name in ("source", "weight")]):
        raise ArgumentError(
            f"source_arrays=True: the records have {', '.join(map(repr, clash))}; list the columns that you need with "
            "columns=, or rename these"
        )


def _resolve_one(given: Mapping[str, Any], *, is_source: bool = False) -> PromptSpec:
    """Checks the arguments, and reads all records. One of several sources need not have all columns."""
    values = check(ARGUMENTS, given)
    encoder = as_encoder(values["tokenizer"])
    check_is_function(encoder)
    samples = _samples_of(values["prompt"])
    made = _plans(samples, encoder)
    _check_chats(made, values)
    ends = {name: special_token_id(encoder, name, values[name]) for name in ("bos", "eos")}
    layout = Layout(
        name=values["layout"],
        columns=tuple(made),
        length=values["prompt_length"],
        padding=padding_of(values["layout"], values["padding"], len(made)),
        pad=_pad_id(encoder, values["pad"], values["layout"]),
        masked=[_has_mask(sample) and (values["layout"] != "tunix" or len(made) > 1) for sample in samples.values()],
    )
    _check_together(values, layout, ends)
    rows = as_rows(values["shards"])
    if rows is None:
        patterns = patterns_of(values["shards"])
        storage = dict(values["storage_options"] or ())
        manifest = with_sidecars(Manifest.find(patterns, storage), values["sidecars"])
        quarantine.check_is_no_shard(values["quarantine_file"], patterns)
        made = _as_the_first_record(made, samples, encoder, manifest, values)
        return _read(values, layout, encoder, made, ends, manifest, manifest.fingerprint, is_source=is_source)
    _check_rows(values)
    if values["select"] is None:
        rows = itertools.islice(rows, values["max_samples"])
    with written(rows) as file:
        manifest = Manifest((file.path,), (Path(file.path).stat().st_size,))
        try:
            made = _as_the_first_record(made, samples, encoder, manifest, values)
            spec = _read(values, layout, encoder, made, ends, manifest, file.digest, is_rows=True, is_source=is_source)
            spec.arena.pickled = file.pickled
            return spec
        except ShardError as error:
            raise ShardError(ROWS, error.record, error.byte, error.reason) from None


def read_records(
    shards: Any,
    *,
    max_document_bytes: int | None = None,
    max_memory: int | None = None,
    threads: int | None = None,
) -> tuple[Arena, tuple[str, ...]]:
    """All records of some shards, of which nothing is rendered, and the names of the shards.

    Raises:
      ShardError: a record cannot be read.
      MissingShardError: a shard does not exist, or a glob matches nothing.
      ArgumentError: they take more than `max_memory` bytes.
    """
    known = ARGUMENTS
    longest = known["max_document_bytes"].kind.check(
        "max_document_bytes", max_document_bytes or known["max_document_bytes"].default
    )
    memory = known["max_memory"].kind.check(
        "max_memory", known["max_memory"].default if max_memory is None else max_memory
    )
    workers = known["threads"].kind.check("threads", threads) or _core.usable_cores()
    manifest = Manifest.find(patterns_of(shards))
    reading = Reading(**sources_of(manifest, longest), **{**_NO_PROMPTS, "max_memory": memory, "threads": workers})
    return Arena.of(core_of(_no_tokenizer()), reading), tuple(manifest.paths)


@functools.cache
def _no_tokenizer() -> Encoder:
    """One that encodes nothing."""
    return Encoder.from_bytes(b'{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}')


def sources_of(
    manifest: Manifest, longest: int, keep: Any = None, sidecars: Any = None, drop: DroppedRows | None = None
) -> dict[str, Any]:
    """The fields of a `Reading` that say where records come from."""
    return {
        "folder": manifest.folder,
        "storage": manifest.storage_options,
        "paths": [utf8_path(path) for path in manifest.paths],
        "sizes": manifest.sizes,
        "selection": select_paths(keep, sidecars, manifest, drop),
        "max_document_bytes": longest,
    }


def _read(
    values: Mapping[str, Any],
    layout: Layout,
    encoder: Encoder,
    made: Mapping[str, Plan],
    ends: Mapping[str, int | None],
    manifest: Manifest,
    name: str,
    *,
    is_rows: bool = False,
    is_source: bool = False,
) -> PromptSpec:
    drop = DroppedRows(values["drop"], manifest) if values["drop"] else None
    values = {**values, "keep": with_folders(values["keep"], manifest)}
    keeps_records = values["columns"] is not False or values["raw_prompt"]
    reading = {
        **sources_of(manifest, values["max_document_bytes"], values["keep"], values["sidecars"], drop),
        "prompts": list(made.values()),
        **ends,
        "longest": values["prompt_length"] if values["overlong"] in ("drop", "error") else None,
        "cut": kept(
            values["prompt_length"],
            values["overlong"],
            has_bos=ends["bos"] is not None,
            has_eos=ends["eos"] is not None,
        ),
        "masks": layout.masked,
        "needs_trained": _needs_trained(made),
        "keeps_records": keeps_records,
        "keeps_texts": values["full_prompts"] or layout.is_text,
        "raises": values["on_error"] == "raise",
        "max_memory": values["max_memory"],
        "threads": values["threads"] or _core.usable_cores(),
    }
    wanted = _selected(values, lambda: count_records(manifest, values["max_document_bytes"]))
    selected = None if wanted is None else sorted(wanted)
    arena = Arena.of(core_of(encoder), Reading(**reading, selected=selected))
    names = (ROWS,) if is_rows else tuple(manifest.paths)
    fingerprint = _fingerprint({**values, **ends, "drop": drop}, encoder, made, name, wanted)
    _write_quarantined(values["quarantine_file"], fingerprint, arena, names)
    _check_left(values, wanted, arena, names)
    _warn_of_missing_ends(made, ends, arena)
    rows = _in_order(arena, wanted)
    _check_kept(values["keep"], _counts(arena), manifest, values["max_document_bytes"])
    return PromptSpec(
        sources=[
            PromptSource(size=len(rows), epochs=values["epochs"], plans=made, counts=_counts(arena)),
        ],
        encoder=encoder,
        shard_names=names,
        manifest=None if is_rows else manifest,
        columns=_columns(values, layout, made, arena, is_source=is_source),
        fingerprint=fingerprint,
        arena=arena,
        rows=rows,
        layout=layout,
        keeps_records=values["columns"] is not False,
        **{
            name: values[name]
            for name in (
                "overlong", "prompt_length", "batch_size", "num_generations", "raw_prompt", "full_prompts", "seed",
                "order", "drop_remainder", "source_arrays",
            )
        },
    )  # fmt: skip


def _check_kept(keep: Keep | None, counts: Mapping[str, int], manifest: Manifest, longest: int) -> None:
    """Checks that no filter leaves out all records because it looks for values elsewhere than where they are."""
    if keep and counts["filtered"] and not counts["kept"]:
        check_keeps_some(keep, manifest, longest)


def _samples_of(prompt: Any) -> dict[str, Chat | Completion | Text]:
    """The sample of each prompt, by its name: that of its field if there is one prompt."""
    kinds = (Chat, Completion, Text)
    if isinstance(prompt, kinds):
        prompt = {prompt.prompt_field if isinstance(prompt, Completion) else prompt.field: prompt}
    if not isinstance(prompt, Mapping):
        raise checks.wrong_type("prompt", prompt, "gm.Chat, gm.Completion, gm.Text, or a dict of several")
    if not prompt:
        raise ArgumentError("prompt={}: expected at least one prompt")
    for name, sample in prompt.items():
        if not isinstance(sample, kinds):
            raise checks.wrong_type(f"prompt[{name!r}]", sample, "gm.Chat, gm.Completion or gm.Text")
        checks.text("prompt", name)
    return dict(prompt)


def _has_mask(sample: Chat | Completion | Text) -> bool:
    """Whether a prompt has a loss mask: whether it has what a model is to learn, and no one is asked to answer."""
    return isinstance(sample, Completion) or (isinstance(sample, Chat) and not sample.add_generation_prompt)


def _plans(samples: Mapping[str, Chat | Completion | Text], encoder: Encoder) -> dict[str, Plan]:
    """The plan of each prompt, by its name; of completions as if all were strings."""
    made: dict[str, Plan] = {}
    for name, sample in samples.items():
        if isinstance(sample, Text) and sample.fim is not None:
            raise ArgumentError(f"prompt[{name!r}]: prompts are not cut: leave fim= of gm.Text out")
        if isinstance(sample, Chat) and sample.samples != "conversation":
            raise ArgumentError(
                f"prompt[{name!r}]: samples={sample.samples!r}: a record is one prompt; leave it out of gm.Chat"
            )
        if isinstance(sample, Chat) and sample.add_generation_prompt:
            sample = replace(sample, on_lost_reasoning=Chat.on_lost_reasoning)  # on_lost_reasoning has no effect here
        made[name] = sample if isinstance(sample, Text) else plans.make(sample, encoder)
    return made


def _as_the_first_record(
    made: Mapping[str, Plan],
    samples: Mapping[str, Chat | Completion | Text],
    encoder: Encoder,
    manifest: Manifest,
    values: Mapping[str, Any],
) -> dict[str, Plan]:
    """The plans, of which completions are conversations if the first record has lists."""
    made = dict(made)
    for name, sample in samples.items():
        if isinstance(sample, Completion) and begins_with_a_list(
            sample.prompt_field, values["max_document_bytes"], manifest
        ):
            made[name] = plans.make(sample, encoder, has_messages=True)
    _check_chats(made, values)
    return made


def _check_chats(made: Mapping[str, Plan], values: Mapping[str, Any]) -> None:
    if any(isinstance(plan, ChatPlan) for plan in made.values()):
        check_ends(values)


def _needs_trained(made: Mapping[str, Plan]) -> bool:
    """Whether a prompt with a mask must train something. A single conversation may lack an answer."""
    first = next(iter(made.values()))
    is_prompt = len(made) == 1 and isinstance(first, ChatPlan) and first.completion_field is None
    return not is_prompt or (isinstance(first, ChatPlan) and first.on_untrained == "drop")


def _warn_of_missing_ends(made: Mapping[str, Plan], ends: Mapping[str, int | None], arena: Arena) -> None:
    """Warns of a conversation with neither an answer nor a generation prompt, and of completions without a stop."""
    first = next(iter(made.values()))
    if len(made) == 1 and isinstance(first, ChatPlan) and not first.add_generation_prompt:
        untrained = int((arena.trained_counts() == 0).sum()) if len(arena.trained) else len(arena)
        if untrained:
            _LOGGER.warning(
                "prompt=gm.Chat(...) without add_generation_prompt=True: no model is asked to answer, and %d of %d "
                "records have no token to train on",
                untrained,
                len(arena),
            )
    if ends["eos"] is None and any(isinstance(plan, CompletionPlan) for plan in made.values()):
        _LOGGER.warning(
            "prompt=gm.Completion(...) of strings without eos=: no token at which the model stops is trained; "
            "set eos=True"
        )


def _pad_id(encoder: Encoder, given: Any, layout: str) -> int:
    """The id of padding: 0 in `maxtext`; else the tokenizer's own, or its EOS token, or 0."""
    if isinstance(given, str):
        found = encoder.token_to_id(given)
        if found is None:
            raise ArgumentError(f"pad={given!r}: the vocabulary has no such token")
        return found
    if given is not None:
        return checks.integer("pad", given, 0, 2**31 - 1, ", a token, or None")
    if layout == "maxtext":
        return 0
    folder = encoder.folder
    token = None if folder is None else special_tokens_of(folder).get("pad_token")
    found = encoder.token_to_id(token) if isinstance(token, str) else None
    return found if found is not None else encoder.eos_id or 0


def _check_together(values: Mapping[str, Any], layout: Layout, ends: Mapping[str, int | None]) -> None:
    rows, hosts = values["batch_size"] * values["num_generations"], values["shard_count"]
    checks.integer("shard_index", values["shard_index"], 0, hosts - 1)
    if rows % hosts:
        raise ArgumentError(f"shard_count={hosts}: it must divide the {rows} rows of a batch")
    if len(layout.columns) > 1 and (values["raw_prompt"] or values["full_prompts"]):
        raise ArgumentError("raw_prompt= and full_prompts= are of one prompt; columns= has the columns of several")
    if layout.is_text and values["overlong"] not in ("drop", "error"):
        raise ArgumentError(
            f"overlong={values['overlong']!r}: layout 'tunix' delivers prompts as strings, which are not cut; use "
            "'drop' or 'error'"
        )
    if values["prompt_length"] < (fewest := sum(token is not None for token in ends.values())):
        raise ArgumentError(f"prompt_length={values['prompt_length']}: expected at least {fewest}, for BOS and EOS")
    if len(set(layout.keys)) < len(layout.keys):
        raise ArgumentError(f"prompt: the arrays of two prompts have the same name: {layout.keys}")
    if values["layout"] == "ragged" and values["padding"] is not None:
        raise ArgumentError(f"padding={values['padding']!r}: layout 'ragged' has no padding")


def _check_rows(values: Mapping[str, Any]) -> None:
    """Checks the arguments that need shards."""
    if values["sidecars"] is not None:
        raise ArgumentError(
            "sidecars=: they lie beside shards; rows of Python have none, but may have keys of their own"
        )
    if values["drop"] is not None and values["drop"].key is None:
        raise ArgumentError(
            "drop=: its ids name shards and their rows, and rows of Python are in no shard; set key= of gm.RowList to "
            "the key that holds their ids"
        )


def _selected(values: Mapping[str, Any], count: Any) -> "Sequence[int] | None":
    """The indices of the records that are wanted, in the order in which they are. None: all."""
    chosen, most = values["select"], values["max_samples"]
    if chosen is None:
        return None if most is None else range(most)
    if isinstance(chosen, slice):
        parts = (chosen.start, chosen.stop, chosen.step)
        known = chosen.stop is not None and all(part is None or part >= 0 for part in parts)
        found: Sequence[int] = range(*chosen.indices(chosen.stop if known else count()))
    else:
        expected = "a slice or a list of indices"
        found = [checks.integer("select", index, -(2**62), 2**62) for index in checks.items("select", chosen, expected)]
        if found and min(found) < 0:
            total = count()
            found = [index + total if index < 0 else index for index in found]
        if found and min(found) < 0:
            raise ArgumentError(f"select={shortened(chosen)}: there are only {counted(total, 'record')}")
        if len(set(found)) < len(found):
            raise ArgumentError(f"select={shortened(chosen)}: an index is listed twice: name each record once")
    return found[:most]


def _in_order(arena: Arena, wanted: "Sequence[int] | None") -> "np.ndarray[Any, np.dtype[np.int64]]":
    """The records of the arena in the order in which they are wanted."""
    rows = np.arange(len(arena))
    if wanted is None or (isinstance(wanted, range) and wanted.step > 0):
        return rows
    places = {index: place for place, index in enumerate(wanted)}
    return rows[np.argsort([places[index] for index in arena.indices.tolist()], kind="stable")]


def _write_quarantined(path: str | None, fingerprint: str, arena: Arena, names: Sequence[str]) -> None:
    """Lists the bad records in the quarantine file, also where they are too many."""
    if path is not None:
        stream = hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
        _core.write_quarantined(
            path, stream, [(names[bad.shard], bad.record, bad.byte, bad.reason) for bad in arena.bad]
        )


def _check_left(values: Mapping[str, Any], wanted: "Sequence[int] | None", arena: Arena, names: Sequence[str]) -> None:
    """Checks that the records that were left out may be, and that those of a list exist."""
    if values["overlong"] == "error" and len(arena.overlong_tokens):
        shard, record, tokens = next(arena.overlong())
        raise ShardError(
            names[shard],
            record,
            None,
            f"expected a prompt of at most prompt_length={values['prompt_length']} tokens, found {tokens}; raise "
            "prompt_length=, or set overlong='drop', 'left', 'right' or 'middle'",
        )
    lost = [bad for bad in arena.bad if bad.is_lost]
    if isinstance(wanted, list) and arena.read < len(wanted) and not lost:
        raise ArgumentError(
            f"select={shortened(values['select'])}: found no record at {len(wanted) - arena.read:,} of its "
            f"{counted(len(wanted), 'index', 'indices')}"
        )
    bad = len(arena.bad) - len(lost)
    rate = values["max_error_rate"]
    for count, total, noun, always in (
        (bad, arena.read, "record", 0),
        (len(lost), len(names), "shard", int(rate > 0)),
    ):
        if count > always and count / total > rate:
            last = (lost if noun == "shard" else [one for one in arena.bad if not one.is_lost])[-1]
            raise ShardError(
                names[last.shard],
                last.record,
                last.byte,
                f"{counted(count, f'bad {noun}')} of {total}, more than max_error_rate={rate} allows; the last one: "
                f"{last.reason}",
            )
    if arena.bad:
        _LOGGER.warning("%s quarantined of %s: dropped() lists them", counted(len(arena.bad), "record"), arena.read)


def _counts(arena: Arena) -> dict[str, int]:
    lost = sum(bad.is_lost for bad in arena.bad)
    return {
        "read": arena.read,
        "kept": len(arena),
        "overlong": len(arena.overlong_tokens),
        "filtered": arena.filtered,
        "quarantined": len(arena.bad),
        "lost_shards": lost,
        "empty": int((arena.lengths == 0).any(axis=1).sum()),
    }


def _columns(
    values: Mapping[str, Any], layout: Layout, made: Mapping[str, Plan], arena: Arena, *, is_source: bool
) -> tuple[str, ...]:
    """The names of the columns that are delivered: without those that hold a prompt."""
    wanted = values["columns"]
    if wanted is False:
        return ()
    fields = {field for plan in made.values() for field in ({plan.field} if isinstance(plan, Text) else plan.fields)}
    names = tuple(key for key in arena.keys if key not in fields) if wanted is True else wanted
    unknown = [] if wanted is True or is_source else [name for name in names if name not in arena.keys]
    if unknown and len(arena):
        raise ArgumentError(f"columns={list(names)!r}: no record has {unknown}; there are {arena.keys}")
    own = {*layout.keys, *(EXTRA if layout.name == "verl" else ("index",))}
    own |= {name for name in ("raw_prompt", "full_prompts") if values[name]}
    if clash := [name for name in names if name in own]:
        raise ArgumentError(
            f"columns: the records have {', '.join(map(repr, clash))}, the name of an array of layout "
            f"{layout.name!r}; list the columns that you need with columns=, or rename these"
        )
    return names


def _fingerprint(
    values: Mapping[str, Any],
    encoder: Encoder,
    made: Mapping[str, Plan],
    records: str,
    wanted: "Iterable[int] | None",
) -> str:
    """The arguments that define the stream, readable."""
    values = dict(values)
    prompts = [
        f"{name}: {f'Text({plan.field!r})' if isinstance(plan, Text) else plans.without_policy(plan.fingerprint)}"
        for name, plan in made.items()
    ]
    instead = {"shards": records, "tokenizer": encoder.fingerprint, "prompt": ", ".join(prompts)}
    for argument in ("keep", "sidecars", "drop"):
        if values[argument] is not None:
            instead[argument] = values[argument].fingerprint
    if values["select"] is not None:  # with it, max_samples is a shorter list
        chosen = hashlib.sha256(repr(list(wanted or ())).encode()).hexdigest()[:16]
        values |= {"select": chosen, "max_samples": None}
    names = {"shards": "records"}
    return encode(
        {
            names.get(name, name): instead.get(name, value)
            for name, value in fingerprints.defining(ARGUMENTS, values).items()
        }
    )
