"""`gristmill audit`: what a run would make of a whole set of conversations, counted in one pass."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import gristmill._core as _core
from gristmill._prompts.reading import Reading
from gristmill._prompts.resolving import sources_of
from gristmill._sample import plans
from gristmill._sample.plans import ChatPlan, begins_with_a_list
from gristmill._sample.samples import Chat, Completion, Sample
from gristmill._shards.address import Address
from gristmill._shards.hive import with_folders
from gristmill._shards.manifest import Manifest
from gristmill._shards.rows import DroppedRows
from gristmill._shards.sidecars import with_sidecars
from gristmill._spec.arguments import ARGUMENTS
from gristmill._tokenizer.encoder import Encoder, check_is_function, core_of
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


def audit(
    shards: Address,
    sample: Sample,
    encoder: Encoder,
    *,
    sequence_length: int | None = None,
    **given: Any,
) -> dict[str, Any]:
    """Counts what is in conversations.

    Args:
      shards: paths and globs.
      sample: how records become conversations: `gm.Chat`, `gm.Instruction`, or `gm.Completion` of messages.
      encoder: the tokenizer.
      sequence_length: samples of more tokens are counted as cut behind it. None: none is.
      given: `keep`, `sidecars`, `drop`, `max_document_bytes` and `threads` of `PackedDataset`.

    Returns:
      A dict whose `kind` is "audit", see docs/json.md. No record ends it.

    Raises:
      GristmillError: an argument is not allowed, or shards or the template are not found.
    """
    values = {
        name: ARGUMENTS[name].kind.check(name, given.get(name, ARGUMENTS[name].default))
        for name in ("keep", "sidecars", "drop", "max_document_bytes", "threads")
    }
    check_is_function(encoder)
    manifest = with_sidecars(Manifest.find(list(shards.names), dict(shards.options)), values["sidecars"])
    plan = _plan(sample, encoder, manifest, values["max_document_bytes"])
    values["keep"] = with_folders(values["keep"], manifest)
    drop = DroppedRows(values["drop"], manifest) if values["drop"] else None
    reading = Reading(
        **sources_of(manifest, values["max_document_bytes"], values["keep"], values["sidecars"], drop),
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
        threads=values["threads"] or _core.usable_cores(),
    )
    before = [0, *itertools.accumulate(manifest.sizes)]
    with Progress("auditing", before[-1], "B") as progress:
        found = _core.audit_conversations(
            core_of(encoder),
            reading,
            lambda shard, conversations: progress.show(before[shard], counted(conversations, "conversation")),
        )
    names = manifest.paths
    return {
        "kind": "audit",
        "paths": list(shards.names),
        "sequence_length": sequence_length,
        "compared": found["compared"],
        "total": _figures(_sum(found["shards"])),
        "findings": [_finding(names, one) for one in found["findings"]],
        "reasons": [
            {
                "reason": reason,
                "records": count,
                "first": [
                    {"shard": names[shard], "record": record, "byte": byte, "reason": whole}
                    for shard, record, byte, whole in first
                ],
            }
            for reason, count, first in found["reasons"]
        ],
        "shards": [{"shard": name, **_figures(one)} for name, one in zip(names, found["shards"], strict=True)],
    }


def _plan(sample: Sample, encoder: Encoder, manifest: Manifest, max_document_bytes: int) -> ChatPlan:
    if isinstance(sample, Completion):
        has_messages = begins_with_a_list(sample.prompt_field, max_document_bytes, manifest)
        plan = plans.make(sample, encoder, has_messages=has_messages)
    elif isinstance(sample, Chat):
        plan = plans.make(sample, encoder)
    else:
        plan = None
    if not isinstance(plan, ChatPlan):
        raise ArgumentError(
            f"sample=gm.{type(sample).__name__}: an audit is of conversations: expected a chat, an instruction, or a "
            "completion of lists of messages"
        )
    return plan


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


def _finding(names: Sequence[str], one: Mapping[str, Any]) -> dict[str, Any]:
    found = {**one, "shard": names[one["shard"]]}
    first = found.pop("first")
    return found | {"first": None if first is None else {"shard": names[first[0]], "record": first[1]}}


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


def shards_of(shards: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The table of shards."""
    names = ("records", "filtered", "conversations", "tokens")
    rows = [
        (
            one["shard"],
            *(f"{one[name]:,}" for name in names),
            _share(one["trained_tokens"], one["tokens"]),
            *(f"{one[kind]:,}" for kind in KINDS),
        )
        for one in shards
    ]
    return [("shard", *names, "trained", *(kind.replace("_", " ") for kind in KINDS)), *rows]


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
