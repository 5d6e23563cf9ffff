"""`gristmill audit`: what a run would make of a whole set of conversations, counted in one pass."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import gristmill._core as _core
from gristmill._prompts.reading import Reading
from gristmill._sample.plans import ChatPlan
from gristmill._sample.samples import Sample
from gristmill._shards.address import Address
from gristmill._spec.arguments import ARGUMENTS, SourceSpec
from gristmill._spec.checking import check
from gristmill._spec.source import make_source
from gristmill._tokenizer.encoder import Encoder, core_of
from gristmill._util.progress import Progress
from gristmill._util.text import counted, format_columns, format_fields
from gristmill.errors import ArgumentError

# The shares of samples whose longest length is shown.
SHARES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
# The role of text that belongs to no message.
TEMPLATE = "(template)"
# The kinds of conversations that are listed, with what they are, in the order in which they are shown.
KINDS = {
    "refused": "cannot be used",
    "untrained": "train nothing",
    "only_stops": "train nothing but the tokens that end messages",
    "lost_reasoning": "have reasoning that the template does not write",
    "unwritten_messages": "have a message of which the template writes nothing, such as a system prompt",
    "unwritten_tools": "have tools of which the template writes nothing",
    "without_stop": "have an answer without a token at which the model stops",
    "cut": "are longer than sequence_length",
    "cut_untrained": "train nothing once they are cut",
    "duplicates": "are equal to an earlier one",
}
# Shards of a table in text.
_SHARDS = 20


def source_of(shards: Address, sample: Sample, encoder: Encoder, **given: Any) -> SourceSpec:
    """Shards that are audited by themselves.

    Args:
      shards: paths and globs.
      sample: how records become conversations: `gm.Chat`, `gm.Instruction`, or `gm.Completion` of messages.
      encoder: the tokenizer.
      given: `keep`, `sidecars`, `drop` and `max_document_bytes` of `PackedDataset`.

    Raises:
      GristmillError: an argument is not allowed, or shards or the template are not found.
    """
    defaults = {name: argument.default for name, argument in ARGUMENTS.items()}
    own = {**shards.arguments, "tokenizer": encoder, "sample": sample, "sequence_length": 1}
    return make_source("", check(ARGUMENTS, {**defaults, **own, **given}))


def audit(
    paths: Sequence[str], sources: Sequence[SourceSpec], *, sequence_length: int | None = None, threads: int | None
) -> dict[str, Any]:
    """Counts the conversations of sources.

    Args:
      paths: the paths that were given.
      sources: one of `source_of`, or those of a mixture, of which those without conversations are left out.
      sequence_length: samples of more tokens are counted as cut behind it. None: none is.
      threads: worker threads. None: all cores.

    Returns:
      A dict whose `kind` is "audit", see docs/json.md. No record ends it.

    Raises:
      GristmillError: no source has conversations, or a store cannot be reached.
    """
    audited = [(source, source.sample) for source in sources if isinstance(source.sample, ChatPlan)]
    if not audited:
        named = {type(source.given_sample).__name__ if source.given_sample else "Text": None for source in sources}
        raise ArgumentError(
            f"sample={' or '.join(f'gm.{name}' for name in named)}: an audit is of conversations: expected a chat, an "
            "instruction, or a completion of lists of messages"
        )
    workers = threads or _core.usable_cores()
    found = [(source, _audit(source, plan, sequence_length, workers)) for source, plan in audited]
    parts = [part for _, part in found]
    names = [source.name for source, _ in found]
    return {
        "kind": "audit",
        "paths": list(paths),
        "sequence_length": sequence_length,
        "compared": sum(part["compared"] for part in parts),
        "total": _figures(_sum([one for part in parts for one in part["shards"]])),
        "findings": [{**_named(source), **_finding(source, one)} for source, part in found for one in part["findings"]],
        "reasons": [{**_named(source), **_reason(source, *one)} for source, part in found for one in part["reasons"]],
        "sources": [{**_named(source), **_figures(_sum(part["shards"]))} for source, part in found if source.name],
        "not_audited": [source.name for source in sources if source.name not in names],
        "shards": [
            {**_named(source), "shard": path, **_figures(one)}
            for source, part in found
            for path, one in zip(source.shards.paths, part["shards"], strict=True)
        ],
    }


def _named(source: SourceSpec) -> dict[str, str]:
    """The name of a mixture's source, as part of what is of one."""
    return {"source": source.name} if source.name else {}


def _audit(source: SourceSpec, plan: ChatPlan, sequence_length: int | None, threads: int) -> dict[str, Any]:
    """All that the core counts of a source."""
    reading = Reading(
        folder=source.folder,
        storage=source.storage_options or (),
        paths=source.paths,
        sizes=source.sizes,
        selection=source.selection,
        max_document_bytes=source.max_document_bytes,
        prompts=[plan],
        bos=None,
        eos=None,
        longest=None,
        cut=None if sequence_length is None else (sequence_length, 0),
        masks=[True],
        needs_trained=False,
        selected=None,
        keeps_records=False,
        keeps_texts=False,
        raises=False,
        max_memory=0,
        threads=threads,
    )
    before = [0, *itertools.accumulate(source.sizes)]
    doing = f"auditing {source.name}".strip()
    with Progress(doing, before[-1], "B") as progress:
        found: dict[str, Any] = _core.audit_conversations(
            core_of(source.tokenizer),
            reading,
            lambda shard, conversations: progress.show(before[shard], counted(conversations, "conversation")),
        )
    return found


def _sum(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of all shards together."""
    total: dict[str, Any] = {name: sum(one[name] for one in shards) for name in _core.AUDIT_COUNTS}
    roles: dict[str, tuple[int, int, int]] = {}
    for one in shards:
        for role, own in one["roles"].items():
            roles[role] = tuple(map(sum, zip(own, roles.get(role, (0, 0, 0)), strict=True)))  # type: ignore[assignment]
    lengths: Counter[int] = Counter()
    for one in shards:
        lengths.update(one["lengths"])
    return total | {"roles": roles, "lengths": lengths}


def _figures(one: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a shard as JSON has them."""
    roles = {
        role or TEMPLATE: {"messages": messages, "tokens": tokens, "trained_tokens": trained}
        for role, (messages, tokens, trained) in one["roles"].items()
    }
    counts = {name: count for name, count in one.items() if name not in ("roles", "lengths")}
    return {
        **counts,
        "tokens": sum(own["tokens"] for own in roles.values()),
        "trained_tokens": sum(own["trained_tokens"] for own in roles.values()),
        "roles": roles,
        "lengths": _lengths(one["lengths"]),
    }


def _lengths(lengths: Mapping[int, int]) -> dict[str, Any]:
    """Quantiles of the lengths of samples, and how many there are from one power of two to the next."""
    total, below, quantiles = sum(lengths.values()), 0, {}
    shares = list(SHARES) if total else []
    bins: dict[int, int] = {}
    for length in sorted(lengths):
        below += lengths[length]
        while shares and below >= shares[0] * total:
            quantiles[str(shares.pop(0))] = length
        bins[length.bit_length()] = bins.get(length.bit_length(), 0) + lengths[length]
    return {
        "quantiles": quantiles,
        "bins": [
            {"from": 1 << bits >> 1, "to": (1 << bits) - 1, "count": bins.get(bits, 0)}
            for bits in (range(min(bins), max(bins) + 1) if bins else ())
        ],
    }


def _finding(source: SourceSpec, one: Mapping[str, Any]) -> dict[str, Any]:
    names = source.shards.paths
    found = {**one, "shard": names[one["shard"]]}
    first = found.pop("first")
    return found | {"first": None if first is None else {"shard": names[first[0]], "record": first[1]}}


def _reason(
    source: SourceSpec, reason: str, records: int, first: Sequence[tuple[int, int | None, int | None, str]]
) -> dict[str, Any]:
    places = [
        {"shard": source.shards.paths[shard], "record": record, "byte": byte, "reason": whole}
        for shard, record, byte, whole in first
    ]
    return {"reason": reason, "records": records, "first": places}


def describe(found: Mapping[str, Any]) -> str:
    """The result of `audit` for people."""
    total = found["total"]
    blocks = [format_fields(facts_of(found)), *map(_table, (roles_of(total), lengths_of(total)))]
    if problems := problems_of(found):
        blocks.append(_table([("conversations", "share", "that"), *problems], right=(0, 1)))
    for kind, what in KINDS.items():
        if places := [place_of(one) for one in found["findings"] if one["kind"] == kind]:
            blocks.append(_listed(f"conversations that {what}: {total[kind]:,}", places))
    for reason in found["reasons"]:
        places = list(map(_place, reason["first"]))
        blocks.append(_listed(f"{counted(reason['records'], 'record')}: {reason['first'][0]['reason']}", places))
    if found["sources"]:
        blocks.append(_table(sources_of(found)))
    if len(found["shards"]) > 1:
        rows = shards_of(found["shards"][:_SHARDS])
        more = len(found["shards"]) - _SHARDS
        blocks.append(_table(rows, right=range(1, len(rows[0]))))
        if more > 0:
            blocks.append(f"{counted(more, 'more shard')}, which --json lists")
    return "\n\n".join(blocks)


def facts_of(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The main figures, as names and values."""
    total = found["total"]
    facts = [
        ("records", f"{total['records']:,} in {counted(len(found['shards']), 'shard')}"),
        ("left out", f"{total['filtered']:,} filtered, {total['refused']:,} that cannot be used"),
        ("conversations", f"{total['conversations']:,}, {counted(total['samples'], 'sample')}"),
        ("answers", f"{total['answers']:,}"),
        ("tokens", f"{total['tokens']:,}, {_share(total['trained_tokens'], total['tokens'])} trained"),
    ]
    if found["sequence_length"] is not None:
        tokens, answers = total["cut_tokens"], total["cut_answers"]
        facts.append(
            (
                f"cut at {found['sequence_length']:,}",
                f"{counted(tokens, 'token')} ({_share(tokens, total['tokens'])}), "
                f"{total['cut_trained_tokens']:,} of them trained, of {counted(answers, 'answer')}",
            )
        )
    if found["not_audited"]:
        facts.append(("not audited", f"sources without conversations: {', '.join(found['not_audited'])}"))
    if found["compared"] < total["conversations"]:
        facts.append(("compared", f"{found['compared']:,} with those before them; no more fit into memory"))
    return facts


def roles_of(total: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The table of roles."""
    roles = sorted(total["roles"].items(), key=lambda role: -role[1]["tokens"])
    rows = [
        (
            role,
            f"{own['messages']:,}",
            f"{own['tokens']:,}",
            f"{own['trained_tokens']:,}",
            _share(own["trained_tokens"], own["tokens"]),
            _share(own["trained_tokens"], total["trained_tokens"]),
        )
        for role, own in roles
    ]
    return [("role", "messages", "tokens", "trained", "share of its own", "share of all trained"), *rows]


def lengths_of(total: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The table of lengths."""
    quantiles = [(f"{float(share):.0%} of samples", f"{own:,}") for share, own in total["lengths"]["quantiles"].items()]
    return [("at most", "tokens"), *quantiles]


def problems_of(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Counts of conversations that are worth a look, and their shares."""
    total = found["total"]
    rows: list[tuple[str, ...]] = []
    for kind, what in KINDS.items():
        if not total[kind]:
            continue
        of = total["records"] if kind == "refused" else total["conversations"]
        rows.append((f"{total[kind]:,}", _share(total[kind], of), what))
    return rows


def sources_of(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The table of the sources of a mixture."""
    return _figures_of("source", found["sources"])


def shards_of(shards: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The table of shards."""
    return _figures_of("shard", shards)


def _figures_of(noun: str, listed: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A table of the main figures of each shard or source."""
    names = ("records", "filtered", "conversations", "tokens")
    rows = [
        (
            one[noun],
            *(f"{one[name]:,}" for name in names),
            _share(one["trained_tokens"], one["tokens"]),
            *(f"{one[kind]:,}" for kind in KINDS),
        )
        for one in listed
    ]
    return [(noun, *names, "trained", *(kind.replace("_", " ") for kind in KINDS)), *rows]


def place_of(one: Mapping[str, Any]) -> str:
    """Where a finding is."""
    sample = f" sample {one['sample']}" if one["sample"] else ""
    message = "" if one["message"] is None else f" messages[{one['message']}]"
    like = f", as {_place(one['first'])}" if one["first"] else ""
    return f"{_place(one)}{sample}{message}{like}"


def _place(one: Mapping[str, Any]) -> str:
    return one["shard"] if one["record"] is None else f"{one['shard']}: record {one['record']:,}"


def _listed(title: str, places: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {place}" for place in places)])


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2%}" if whole else "none"


def _table(rows: Sequence[Sequence[str]], right: Any = None) -> str:
    return format_columns(rows, right=range(1, len(rows[0])) if right is None else right)
