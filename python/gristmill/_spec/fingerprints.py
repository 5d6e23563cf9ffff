"""Fingerprints: the definition of a stream as a readable string of names and values.

    manifest=8a1f... tokenizer=04d2... sequence_length=2048 lanes=8 ...

The names are those of the table of arguments, in its order. An argument is left out if it has its default, or no effect
together with the others. So a fingerprint stays the same when a release adds an argument, and older states fit.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from gristmill._sample import plans
from gristmill._spec.arguments import ARGUMENTS, REQUIRED, Argument
from gristmill._spec.kinds import SpecialToken, StepwiseKind
from gristmill._util.named_values import decode, encode

_WORDS = "{name} was {before} and is {after}"


def make(values: Mapping[str, Any]) -> str:
    """The fingerprint of a stream, from the checked values of all arguments."""
    return encode(
        {
            ARGUMENTS[name].key: getattr(value, "fingerprint", value)
            for name, value in defining(ARGUMENTS, values).items()
        }
    )


def defining(arguments: Mapping[str, Argument], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that define the stream: defaults, and what has no effect, are left out."""
    return {
        name: values[name]
        for name, argument in arguments.items()
        if argument.defines_stream
        and argument.is_effective(values)
        and (argument.absent is REQUIRED or values[name] != argument.absent)
    }


def values_of(fingerprint: str) -> dict[str, Any]:
    """The values that a fingerprint stands for, by argument; those of the shards and the tokenizer are hashes.

    A fingerprint comes from a file and may be damaged. A required value that it lacks is None, and one that cannot be
    read stays a string.
    """
    found = decode(fingerprint)
    return {
        name: _read(argument, found[argument.key])
        if argument.key in found
        else (None if argument.absent is REQUIRED else argument.absent)
        for name, argument in _defining()
    }


def describe(fingerprint: str) -> dict[str, str]:
    """All arguments that have an effect in the stream of a fingerprint, with their values as text."""
    values = values_of(fingerprint)
    given = decode(fingerprint)
    known = {
        argument.key: given.get(argument.key, str(values[name]))
        for name, argument in _defining()
        if argument.is_effective(values)
    }
    return known | given


def arguments_of(fingerprint: str) -> dict[str, Any]:
    """The arguments of `PackedDataset` for the stream of a fingerprint, without `shards` and `tokenizer`.

    Names that this release does not know come with their values as strings.
    """
    given = decode(fingerprint)
    known = {
        name: False if name in ("eos", "bos") and value is None else value
        for name, value in values_of(fingerprint).items()
        if name not in ("shards", "tokenizer")
    }
    return known | {name: value for name, value in given.items() if name not in _keys()}


def without_policy(fingerprint: str) -> str:
    """A fingerprint without the arguments that may change in a run: they decide when it stops, not what it yields."""
    free = {argument.key for _, argument in _defining() if argument.may_change in ("yes", "ahead")}
    # The arguments of a mixture's sources have the source's name before them.
    found = {}
    for name, value in decode(fingerprint).items():
        own = name.rpartition(".")[2]
        if own not in free:
            found[name] = plans.without_policy(value) if own == "sample" else value
    return encode(found)


def incompatibilities(saved: str, current: str, has_quarantined: bool, steps: int | None = None, **instead: str) -> str:
    """Why a stream cannot continue as another one: how the two differ up to where the first was saved.

    Errors, and conversations that lose reasoning, may be handled in another way from there on. Longer lines may be
    accepted if no record was quarantined before. An argument that says something of some steps may differ in those to
    come.

    Args:
      saved: the fingerprint of the first stream.
      current: the fingerprint of the other one.
      has_quarantined: whether the first has quarantined records.
      steps: the steps up to there, one that was begun included; None: all that there are.
      instead: sentences that replace the values of some names.

    Returns:
      The differences in words; empty if the stream can continue.
    """
    before, after = values_of(saved), values_of(current)

    def matters(argument: Argument) -> bool:
        if argument.may_change != "if larger" or has_quarantined:
            return argument.may_change != "yes"
        old, new = before[argument.name], after[argument.name]
        return not (isinstance(old, int) and isinstance(new, int) and old < new)

    keys = {argument.key for _, argument in _defining() if not matters(argument)}
    for name, argument in _defining():
        if argument.may_change != "ahead" or before[name] == after[name]:
            continue
        step = _first_difference(argument, before[name], after[name])
        if step is None or (steps is not None and step >= steps):
            keys.add(argument.key)
        else:
            words = _describe(saved, current, {argument.key}, _WORDS, {})
            past = f"the first step that differs is {step}, which is in the past: go back to a state from before it"
            instead.setdefault(argument.key, f"{words}: {past}")
    if plans.without_policy(str(before["sample"])) == plans.without_policy(str(after["sample"])):
        keys.add("sample")
    return _describe(saved, current, _changed(saved, current) - keys, _WORDS, instead)


def differences(one: str, other: str, words: str = _WORDS, **instead: str) -> str:
    """How two streams differ, each difference in these words, or in those that replace some names' values."""
    return _describe(one, other, _changed(one, other), words, instead)


def _changed(one: str, other: str) -> set[str]:
    """The names whose values differ; of arguments, those that have an effect in both streams."""
    before, after = values_of(one), values_of(other)
    changed = {
        argument.key
        for name, argument in _defining()
        if before[name] != after[name] and argument.is_effective(before) and argument.is_effective(after)
    }
    first, second = decode(one), decode(other)
    unknown = (first.keys() | second.keys()) - _keys()
    return changed | {name for name in unknown if first.get(name) != second.get(name)}


def _first_difference(argument: Argument, before: Any, after: Any) -> int | None:
    """The first step in which two values differ; the first of all where one cannot be read."""
    if isinstance(before, str) or isinstance(after, str):
        return 0
    return cast(StepwiseKind, argument.kind).first_difference(before, after)


def _describe(one: str, other: str, changed: set[str], words: str, instead: Mapping[str, str]) -> str:
    first, second = decode(one), decode(other)
    found = [sentence for name, sentence in instead.items() if name in changed]
    found += [
        words.format(name=name, before=_shown(name, first), after=_shown(name, second))
        for name in sorted(changed - instead.keys())
    ]
    return ", ".join(found)


def _shown(key: str, found: Mapping[str, str]) -> str:
    """A value for a message."""
    if key in found:
        return found[key]
    argument = next((argument for _, argument in _defining() if argument.key == key), None)
    if argument is None or argument.absent is REQUIRED:
        return "missing"
    if isinstance(argument.kind, SpecialToken):
        return "none"
    return f"the default ({argument.absent})"


def _read(argument: Argument, text: str) -> Any:
    try:
        return argument.kind.parse(text)
    except ValueError:
        return text


def _keys() -> set[str]:
    return {argument.key for _, argument in _defining()}


def _defining() -> Iterator[tuple[str, Argument]]:
    return ((name, argument) for name, argument in ARGUMENTS.items() if argument.defines_stream)
