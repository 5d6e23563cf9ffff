"""Mixtures of prompts: the sources of a `Mixture` as one `PromptSpec`, in which each has its own items."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill._mixture import fingerprint as mixtures
from gristmill._mixture.mixture import Mixture
from gristmill._mixture.stages import Stage, core_stages, first_difference, is_used, mean_shares, stage_at
from gristmill._prompts import spec as specs
from gristmill._prompts.arguments import ARGUMENTS
from gristmill._prompts.reading import JoinedArena
from gristmill._prompts.spec import PromptSpec
from gristmill._sample.plans import ChatPlan
from gristmill._sample.samples import Chat, Text
from gristmill._spec.arguments import ARGUMENTS as PACKED_ARGUMENTS
from gristmill._spec.arguments import REQUIRED
from gristmill._state.prompt_states import PromptState
from gristmill._tokenizer.encoder import as_encoder
from gristmill._util import checks
from gristmill._util.named_values import decode
from gristmill.errors import ArgumentError, ArgumentTypeError, MissingShardError

# The arguments of `Source` that a source of prompts has; the other ones are of the reading of documents.
_OF_SOURCE = ("keep", "sidecars", "drop", "storage_options", "max_document_bytes", "on_error", "max_error_rate")
_OWN_KEYS = frozenset({"records", "keep", "sidecars", "drop", "max_document_bytes", "prompt"})


@dataclass(frozen=True, kw_only=True)
class Member:
    """A source.

    Attributes:
      name: its name.
      number: its index in the order in which the user has listed the sources.
      first: the first of its items, which are next to one another.
      size: how many they are.
      epochs: how often they are delivered. None: without end.
      plans: what its prompts are made of, by their names.
      counts: what became of its records.
    """

    name: str
    number: int
    first: int
    size: int
    epochs: int | None
    plans: Mapping[str, ChatPlan | Text]
    counts: Mapping[str, int]

    def left(self, delivered: int) -> int | None:
        """How many of its prompts come after so many. None: without end."""
        return None if self.epochs is None else max(0, self.epochs * self.size - delivered)


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """How the sources are mixed. The core reads it in `rust/python/prompts.rs`.

    Attributes:
      members: the sources in the order of their names, so that of the user does not matter.
      stages: the weights.
      on_exhausted: what happens when a source has delivered its last epoch.
    """

    members: Sequence[Member]
    stages: Sequence[Stage]
    on_exhausted: str

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [member.name for member in self.members]

    @property
    def core_stages(self) -> list[tuple[int, list[int]]]:
        """The stages as the core takes them."""
        return core_stages(self.stages, self.names)

    @functools.cached_property
    def _listed(self) -> list[Member]:
        return sorted(self.members, key=lambda member: member.number)

    @functools.cached_property
    def _firsts(self) -> "npt.NDArray[np.int64]":
        return np.array([member.first for member in self._listed])

    def _numbers_of(self, items: "npt.ArrayLike") -> "npt.NDArray[np.int32]":
        """The number of the source of each item; -1 of rows of padding."""
        return (np.searchsorted(self._firsts, items, side="right") - 1).astype(np.int32)

    def member_of(self, item: int) -> Member:
        """The source of an item."""
        return self._listed[self._numbers_of(item)]

    def arrays(self, items: Sequence[int], step: int) -> "dict[str, np.ndarray[Any, Any]]":
        """The number of the source of each item, and the share of all that its weight asks for at a step."""
        weights = self.stages[stage_at(self.stages, step)].weights
        numbers = self._numbers_of(items)
        shares = np.array([*(weights.get(member.name, 0) / sum(weights.values()) for member in self._listed), 0.0])
        return {"source": numbers, "weight": shares[numbers].astype(np.float32)}

    def stats(self, steps: int, counts: Sequence[int]) -> dict[str, dict[str, Any]]:
        """Figures of each source after so many steps with so many of its prompts."""
        shares, total = mean_shares(self.stages, steps), max(1, sum(counts))
        found: dict[str, dict[str, Any]] = {}
        delivered = dict(zip(self.names, counts, strict=True))
        for member in self._listed:
            count = delivered[member.name]
            found[member.name] = {
                **member.counts,
                "prompts": count,
                "epochs": count / member.size,
                "exhausted": member.left(count) == 0,
                "asked": shares.get(member.name, 0.0),
                "given": count / total,
            }
        return found


def resolve(given: Mapping[str, Any]) -> PromptSpec:
    """The spec of a dataset of records or of a `Mixture`.

    Raises:
      GristmillError: see `PromptDataset`.
    """
    mixture = given["shards"]
    given = {**given, "source_arrays": checks.boolean("source_arrays", given["source_arrays"])}
    if isinstance(mixture, Mixture):
        return _resolve_mixture(mixture, given)
    if given["source_arrays"]:
        raise ArgumentError("source_arrays=True: only the prompts of a gm.Mixture have several sources; leave it out")
    return specs.resolve(given)


def _resolve_mixture(mixture: Mixture, given: Mapping[str, Any]) -> PromptSpec:
    _check(mixture, given)
    given = {**given, "tokenizer": as_encoder(given["tokenizer"])}
    found: dict[str, PromptSpec] = {}
    memory = given["max_memory"]
    prompts = {
        name: _prompts_of(source.arguments["sample"], given["prompt"]) for name, source in mixture.sources.items()
    }
    has_texts = any(not _are_chats(of_source) for of_source in prompts.values())
    for name, of_source in prompts.items():
        # A template writes its own tokens around a conversation: those given are of the texts of other sources.
        ends = {"bos": False, "eos": False} if has_texts and _are_chats(of_source) else {}
        own = {**given, "prompt": of_source, "max_memory": memory, **ends}
        found[name] = _resolve_source(mixture, name, own)
        memory = max(0, memory - found[name].arena.nbytes)
    first, *_ = found.values()
    arena = JoinedArena([spec.arena for spec in found.values()], [len(spec.shard_names) for spec in found.values()])
    members, items, rows = [], 0, 0
    for number, (name, spec) in enumerate(found.items()):
        members.append(
            Member(
                name=name,
                number=number,
                first=items,
                size=len(spec.rows),
                epochs=mixture.sources[name].arguments["epochs"],
                plans=spec.plans,
                counts=spec.counts,
            )
        )
        items += len(spec.rows)
        rows += len(spec.arena)
    firsts = np.cumsum([0, *(len(spec.arena) for spec in found.values())])
    fingerprints = {name: spec.fingerprint for name, spec in found.items()}
    columns = tuple(dict.fromkeys(column for spec in found.values() for column in spec.columns))
    _check_columns(given, columns, arena)
    return replace(
        first,
        shard_names=[shard for spec in found.values() for shard in spec.shard_names],
        manifest=None,
        columns=columns,
        fingerprint=mixtures.make(
            fingerprints, mixture.stages, mixture.weights_by, mixture.on_exhausted, own_keys=_OWN_KEYS
        ),
        arena=arena,
        rows=np.concatenate([spec.rows + start for spec, start in zip(found.values(), firsts, strict=False)]),
        counts={key: sum(spec.counts[key] for spec in found.values()) for key in first.counts},
        epochs=None,
        source_arrays=given["source_arrays"],
        mixing=Mixing(
            members=sorted(members, key=lambda member: member.name),
            stages=mixture.stages,
            on_exhausted=mixture.on_exhausted,
        ),
    )


def _resolve_source(mixture: Mixture, name: str, given: Mapping[str, Any]) -> PromptSpec:
    arguments = mixture.sources[name].arguments
    own = {**given, "shards": arguments["shards"], "source_arrays": False, "epochs": 1}
    own |= {key: arguments[key] for key in _OF_SOURCE}
    if arguments["on_error"] != "quarantine":
        own["quarantine_file"] = None
    try:
        found = specs.resolve(own, is_source=True)
    except (ArgumentError, ArgumentTypeError, MissingShardError) as error:
        raise type(error)(f"source {name!r}: {error}") from error
    if not len(found.rows):
        counts = ", ".join(f"{count} {what}" for what, count in found.counts.items() if count)
        raise ArgumentError(f"source {name!r}: there is no prompt; of its records: {counts or 'none'}")
    return found


def _prompts_of(sample: "Chat | Text | None", given: Any) -> Any:
    """The prompts of a source, which may have a sample of its own."""
    if sample is None:
        return given
    (name,) = _prompt_names(given)
    return {name: sample}


def _are_chats(prompt: Any) -> bool:
    return all(isinstance(one, Chat) for one in (prompt.values() if isinstance(prompt, Mapping) else [prompt]))


def _prompt_names(prompt: Any) -> list[str]:
    return [prompt.field] if isinstance(prompt, (Chat, Text)) else list(prompt)


def _check(mixture: Mixture, given: Mapping[str, Any]) -> None:
    """Checks what goes together.

    Raises:
      ArgumentError: something does not.
    """
    for name in (*_OF_SOURCE, "epochs"):
        if given[name] != ARGUMENTS[name].default:
            raise ArgumentError(
                f"{name}={given[name]!r}: each source of a mixture has its own: gm.Source(..., {name}=...)"
            )
    for name in ("select", "max_samples"):
        if given[name] is not None:
            raise ArgumentError(f"{name}={given[name]!r}: a mixture has records of several sources; leave it out")
    quarantines = any(source.arguments["on_error"] == "quarantine" for source in mixture.sources.values())
    if given["quarantine_file"] is not None and not quarantines:
        raise ArgumentError("quarantine_file=: no source quarantines anything; set on_error='quarantine' of gm.Source")
    if mixture.weights_by == "tokens":
        raise ArgumentError("weights_by='tokens': a batch of prompts has so many of each source; use 'rows'")
    for name, source in mixture.sources.items():
        for key, value in source.arguments.items():
            default = PACKED_ARGUMENTS[key].default
            if key not in (*_OF_SOURCE, "epochs", "sample") and default is not REQUIRED and value != default:
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


def incompatibilities(state: PromptState, current: str) -> str:
    """Why the mixture of a state cannot continue as that of another fingerprint; empty if it can.

    Weights may differ from the state's step on, and so may sources that were not read until then, and all `epochs`.

    Raises:
      StateError: the fingerprint of the state is damaged.
    """
    if not mixtures.is_mixture(state["fingerprint"]):
        return "it was no mixture, and this dataset is one"
    before, after = mixtures.parse(state["fingerprint"]), mixtures.parse(current)
    steps: int = state["step"]
    found = [_changed("", before.common, after.common)]
    if difference := first_difference(before.stages, after.stages, steps):
        found.append(mixtures.weights_differ(*difference, steps))
    for name in sorted(before.sources):
        if not state["sources"].get(name) and not is_used(before.stages, name, steps):
            continue
        if name not in after.sources:
            found.append(mixtures.is_missing(name, steps))
        else:
            found.append(_changed(f"of the source {name!r} ", before.sources[name], after.sources[name]))
    return ", ".join(filter(None, found))


def _changed(prefix: str, saved: str, current: str) -> str:
    one, other = decode(saved), decode(current)
    changed = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    return ", ".join(
        f"{prefix}{name} was {one.get(name, 'the default')} and is {other.get(name, 'the default')}" for name in changed
    )
