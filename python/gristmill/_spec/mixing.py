"""`resolve` for a dataset of shards or of a `Mixture`, and the checked mixture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gristmill._mixture import fingerprint as mixture_fingerprint
from gristmill._mixture.fingerprint import SOURCE_ARGUMENTS
from gristmill._mixture.mixture import Mixture
from gristmill._mixture.stages import Stage, core_stages
from gristmill._sample.plans import ImageTextPlan
from gristmill._sample.samples import Chat, ImageText
from gristmill._spec import spec as specs
from gristmill._spec.arguments import ARGUMENTS, REQUIRED
from gristmill._spec.lanes import lanes_of_host
from gristmill._spec.spec import Spec
from gristmill._tokenizer.encoder import as_encoder
from gristmill._util import checks
from gristmill.errors import ArgumentError, ArgumentTypeError, MissingShardError, TemplateError


@dataclass(frozen=True, kw_only=True)
class Member:
    """A source of a mixture. The core reads it in `rust/python/spec.rs`.

    Attributes:
      name: its name.
      number: its index in the order in which the user has listed the sources.
      first_piece: the index of its first piece among those of all sources, in that order.
      spec: the stream of its records alone, with the lanes and the rows of the mixture.
    """

    name: str
    number: int
    first_piece: int
    spec: Spec


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """A checked mixture: its members in the order of their names, so that of the user does not matter."""

    members: Sequence[Member]
    stages: Sequence[Stage]
    weights_by: str
    on_exhausted: str

    @property
    def listed(self) -> list[Member]:
        """The members in the order in which the user has listed them."""
        return sorted(self.members, key=lambda member: member.number)

    @property
    def core_stages(self) -> list[tuple[int, list[int]]]:
        """The stages as the core takes them, with the weights in the order of the members."""
        return core_stages(self.stages, [member.name for member in self.members])

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the mixture."""
        return mixture_fingerprint.make(
            {member.name: member.spec.fingerprint for member in self.members},
            self.stages,
            self.weights_by,
            self.on_exhausted,
        )

    @property
    def ends(self) -> bool:
        """Whether a lane may end."""
        if self.on_exhausted == "error":
            return False
        may_end = any if self.on_exhausted == "stop" else all
        last = self.stages[-1].weights
        counted = self.members if self.on_exhausted == "stop" else [m for m in self.members if last.get(m.name)]
        return may_end(member.spec.order.epochs is not None for member in counted)


def resolve(given: Mapping[str, Any]) -> Spec:
    """The spec of a dataset with these arguments, of which each is there.

    Raises:
      GristmillError: see `PackedDataset`.
    """
    mixture = given["shards"]
    if isinstance(mixture, Mixture):
        return _resolve_mixture(mixture, given)
    if checks.boolean("source_arrays", given["source_arrays"]):
        raise ArgumentError("source_arrays=True: only the rows of a gm.Mixture have several sources; leave it out")
    return specs.resolve(given)


def _resolve_mixture(mixture: Mixture, given: Mapping[str, Any]) -> Spec:
    _check_common(given)
    _check_quarantine_file(mixture, given)
    given = {**given, "tokenizer": as_encoder(given["tokenizer"])}  # loaded once, for all sources
    found = {name: _resolve_source(mixture, name, given) for name in mixture.sources}
    _check_images(found)
    lanes = min(spec.order.lanes for spec in found.values())
    running = next(iter(found.values())).running
    own = lanes_of_host(lanes, running.shard_index, running.shard_count, equal_steps=running.equal_steps)
    members, first_piece = [], 0
    for number, (name, spec) in enumerate(found.items()):
        changed = replace(
            spec, order=replace(spec.order, lanes=lanes), running=replace(running, own_lanes=own, source_arrays=False)
        )
        members.append(Member(name=name, number=number, first_piece=first_piece, spec=changed))
        first_piece += len(spec.source.input.pieces)
    first = members[0].spec
    mixing = Mixing(
        members=sorted(members, key=lambda member: member.name),
        stages=mixture.stages,
        weights_by=mixture.weights_by,
        on_exhausted=mixture.on_exhausted,
    )
    on_error = "quarantine" if any(spec.source.faults.on_error == "quarantine" for spec in found.values()) else "raise"
    files = [spec.source.faults.quarantine_file for spec in found.values()]
    faults = replace(
        first.source.faults, on_error=on_error, quarantine_file=next((file for file in files if file), None)
    )
    return replace(
        first,
        source=replace(first.source, faults=faults),
        order=replace(first.order, epochs=None),
        running=replace(running, own_lanes=own),
        mixing=mixing,
    )


def _resolve_source(mixture: Mixture, name: str, given: Mapping[str, Any]) -> Spec:
    arguments = mixture.sources[name].arguments
    own = {**given, **arguments}
    if arguments["on_error"] != "quarantine":
        own["quarantine_file"] = None
    sample = arguments["sample"]
    if isinstance(sample, Chat) or (isinstance(sample, ImageText) and isinstance(sample.text, Chat)):
        own |= {"eos": None, "bos": False}
    try:
        return specs.resolve(own)
    except (ArgumentError, ArgumentTypeError, MissingShardError, TemplateError) as error:
        raise type(error)(f"source {name!r}: {error}") from error


def _check_images(specs_by_name: Mapping[str, Spec]) -> None:
    """Checks that rows of all sources with images hold the same of them.

    Raises:
      ArgumentError: they do not.
    """
    samples = ((name, spec.source.input.sample) for name, spec in specs_by_name.items())
    rows = {name: sample.rows for name, sample in samples if isinstance(sample, ImageTextPlan)}
    first = next(iter(rows), "")
    for name, other in rows.items():
        if other != rows[first]:
            raise ArgumentError(
                f"the sources {first!r} and {name!r} have other arrays of images: {rows[first]}, and {other}; rows of "
                "one mixture hold the same"
            )


def _check_common(given: Mapping[str, Any]) -> None:
    """Checks the arguments that all sources share, and that none is given that each source has of its own.

    Raises:
      ArgumentError: one is, or a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """
    for name, argument in ARGUMENTS.items():
        if name not in SOURCE_ARGUMENTS:
            argument.kind.check(name, given[name])
    for name in SOURCE_ARGUMENTS:
        default = ARGUMENTS[name].default
        if default is not REQUIRED and given[name] != default:
            raise ArgumentError(
                f"{name}={given[name]!r}: each source of a mixture has its own: gm.Source(..., {name}=...)"
            )


def _check_quarantine_file(mixture: Mixture, given: Mapping[str, Any]) -> None:
    quarantines = any(source.arguments["on_error"] == "quarantine" for source in mixture.sources.values())
    if given["quarantine_file"] is not None and not quarantines:
        raise ArgumentError(
            f"quarantine_file={given['quarantine_file']!r}: no source quarantines anything; set on_error='quarantine' "
            "of gm.Source"
        )
