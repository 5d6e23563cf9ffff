"""Fingerprints: what defines a stream, as a readable string of names and values.

    manifest=8a1f... tokenizer=04d2... text_field=text sequence_length=1024 ...

Values are percent-encoded, so that a space parts two of them and nothing else.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

# They say when a run stops, not what it gives until then.
_POLICY = frozenset({"on_error", "max_error_rate"})
_WORDS = "{name} was {before} and is {after}"


def make(parts: Mapping[str, Any]) -> str:
    """The fingerprint of these values."""
    return " ".join(f"{name}={quote(str(value), safe='')}" for name, value in parts.items())


def parse(fingerprint: str) -> dict[str, str]:
    """The values of a fingerprint as strings; anything that does not look like one is left out."""
    return {name: unquote(value) for name, _, value in _pairs(fingerprint)}


def without_policy(fingerprint: str) -> str:
    """What it says of the stream, and not of what stops it."""
    return " ".join(f"{name}={value}" for name, _, value in _pairs(fingerprint) if name not in _POLICY)


def incompatibilities(saved: str, current: str, has_left_out: bool, **said: str) -> str:
    """Why a stream cannot go on as another one: what makes the two differ up to where the first was saved.

    Errors may be handled in another way from there on. Longer lines may be accepted if no record was left out
    before. Empty if it can go on. First is what is `said` of some names in place of their values.
    """
    before, after = parse(saved), parse(current)
    changed = _changed(before, after) - _POLICY
    if "max_document_bytes" in changed and not has_left_out:
        old, new = before.get("max_document_bytes", ""), after.get("max_document_bytes", "")
        if old.isdecimal() and new.isdecimal() and int(old) < int(new):
            changed.remove("max_document_bytes")
    return _told(before, after, changed, _WORDS, said)


def differences(one: str, other: str, words: str = _WORDS, **said: str) -> str:
    """What two fingerprints do not share, each of it in these words; first what is said of some names in its place."""
    before, after = parse(one), parse(other)
    return _told(before, after, _changed(before, after), words, said) or f"{one!r} and {other!r}"


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def _told(
    before: Mapping[str, str], after: Mapping[str, str], changed: set[str], words: str, said: Mapping[str, str]
) -> str:
    told = [what for name, what in said.items() if name in changed]
    told += [
        words.format(name=name, before=before.get(name, "not there"), after=after.get(name, "not there"))
        for name in sorted(changed - said.keys())
    ]
    return ", ".join(told)


def _pairs(fingerprint: str) -> list[tuple[str, str, str]]:
    return [part.partition("=") for part in fingerprint.split(" ") if "=" in part]
