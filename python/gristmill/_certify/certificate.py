"""The certificate of a comparison: what it holds, whether it fits a tokenizer here, and tables of several."""

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gristmill._core import __version__, build_info
from gristmill._tokenizer.encoder import Encoder, core_of, special_tokens_in_text_of
from gristmill._util.text import counted, format_columns, format_fields
from gristmill.errors import GristmillError

_FORMAT = 1
_HASH = "certificate_sha256"
# The facts that ids depend on.
_COMPARED = (
    *("sha256", "special_tokens_in_text", "engine", "kernels"),
    *("versions.gristmill", "versions.commit", "versions.tokenizers_crate"),
)
_KEYS = frozenset(
    ("format", "tokenizer", "date", "interrupted", "differences", "totals", "versions", "engine_reason", _HASH)
).union(name for name in _COMPARED if "." not in name)
_COUNTS = ("texts", "characters", "bytes", "tokens", "differences", "refused", "refused_by_reference")


def identity(encoder: Encoder) -> dict[str, Any]:
    """The facts that ids depend on: the file, the option, versions, and the code that runs on this processor."""
    info = build_info()
    is_fast = encoder.engine == "fast"
    return {
        "sha256": hashlib.sha256(core_of(encoder).json).hexdigest(),
        "special_tokens_in_text": special_tokens_in_text_of(encoder),
        "engine": encoder.engine,
        "engine_reason": encoder.engine_reason,
        "kernels": info["instructions"] if is_fast else "those of the tokenizers crate",
        "system": info["system"],
        "versions": {
            "gristmill": __version__,
            "commit": info["commit"],
            "tokenizers_crate": info["tokenizers_crate"],
            "python": platform.python_version(),
        },
    }


def signed(certificate: Mapping[str, Any]) -> dict[str, Any]:
    """The certificate with its format, and the hash of all it says."""
    whole = {"format": _FORMAT, **certificate}
    return {**whole, _HASH: _hash(whole)}


def read(path: Path) -> dict[str, Any]:
    """A certificate.

    Raises:
      GristmillError: the file cannot be read, or is no certificate.
    """
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise GristmillError(f"cannot read the certificate {str(path)!r}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise GristmillError(f"{path} is no certificate: {error}") from error
    if not isinstance(found, dict) or not found.keys() >= _KEYS:
        raise GristmillError(f"{path} is no certificate: it lacks keys that every certificate has")
    if found["format"] != _FORMAT:
        raise GristmillError(f"{path} has the format {found['format']!r}: expected {_FORMAT}; make it again")
    return found


def misfits(certificate: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Why a certificate does not vouch for a tokenizer; empty if it does.

    Args:
      certificate: the certificate.
      here: `identity` of the tokenizer.
    """
    found = []
    if _hash({name: value for name, value in certificate.items() if name != _HASH}) != certificate[_HASH]:
        found.append("it was changed after it was written")
    if certificate.get("differences") != 0:
        found.append(f"it has {counted(certificate.get('differences') or 0, 'difference')}")
    if certificate.get("interrupted"):
        found.append("the comparison was interrupted")
    for name in _COMPARED:
        certified, own = _at(certificate, name), _at(here, name)
        if certified != own:
            found.append(f"{name.removeprefix('versions.')}: certified is {certified}, here is {own}")
    return found


def caveats(certificate: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The facts that `misfits` cannot compare; the arguments are its own."""
    commits = _at(certificate, "versions.commit"), _at(here, "versions.commit")
    if commits != (None, None):  # one that only one side knows is a misfit
        return []
    return [
        "the commit is unknown, here and in the certificate: only the version number says that the code is the same"
    ]


def describe(certificate: Mapping[str, Any]) -> str:
    """A certificate for people."""
    versions = certificate["versions"]
    kinds = [
        (kind, *(f"{counts[name]:,}" for name in ("texts", "characters", "tokens", "differences")))
        for kind, counts in [*certificate["kinds"].items(), ("all", certificate["totals"])]
    ]
    parts = [
        format_fields(
            [
                ("tokenizer", f"{certificate['tokenizer']}, sha256 {certificate['sha256']}"),
                ("engine", f"{certificate['engine']}: {certificate['engine_reason']}"),
                ("kernels", certificate["kernels"]),
                (
                    "versions",
                    f"gristmill {versions['gristmill']}, {_commit(versions)}, tokenizers {versions['reference']}",
                ),
                ("seed", f"{certificate['seed']}, {certificate['seconds']:.0f} s"),
            ]
        ),
        format_columns([("kind", "texts", "characters", "tokens", "differences"), *kinds], right=range(1, 5)),
        *map(_describe_example, certificate["examples"]),
        _outcome(certificate),
    ]
    return "\n\n".join(parts)


def describe_check(certificate: Mapping[str, Any], found: Sequence[str], limits: Sequence[str]) -> str:
    """The findings of `misfits` and `caveats`, for people."""
    compared = counted(certificate["totals"]["texts"], "text")
    outcome = (
        ["does not fit:", *(f"  {reason}" for reason in found)]
        if found
        else [f"fits: {compared} compared on {certificate['date']}, without a difference"]
    )
    return "\n".join([*outcome, *(f"caveat: {limit}" for limit in limits)])


def table(certificates: Iterable[Mapping[str, Any]]) -> str:
    """A Markdown table of certificates, sorted by name."""
    names = (
        "tokenizer",
        "engine",
        "texts",
        "characters",
        "tokens",
        "differences",
        "kernels",
        "sha256 of tokenizer.json",
    )
    rows = [names, ("---", "---", "---:", "---:", "---:", "---:", "---", "---")]
    for certificate in sorted(certificates, key=lambda certificate: str(certificate["tokenizer"]).lower()):
        counts = [f"{certificate['totals'][name]:,}" for name in ("texts", "characters", "tokens", "differences")]
        name = certificate["tokenizer"] + (" (interrupted)" if certificate["interrupted"] else "")
        kernels = certificate["kernels"] if certificate["engine"] == "fast" else "-"
        rows.append((name, certificate["engine"], *counts, kernels, f"`{certificate['sha256']}`"))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def totals(kinds: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """The sums of all kinds' counts."""
    return {name: sum(counts[name] for counts in kinds.values()) for name in _COUNTS}


def _describe_example(example: Mapping[str, Any]) -> str:
    found = "an error" if example["found"] is None else example["found"]
    lines = [("text", ascii(example["text"])), ("expected", example["expected"]), ("found", found)]
    if not example["alone"]:
        lines.append(("alone", "the text has the expected ids when it is encoded by itself"))
    return f"difference in text {example['number']} of {example['kind']}:\n{format_fields(lines)}"


def _commit(versions: Mapping[str, Any]) -> str:
    return "commit unknown" if versions["commit"] is None else f"commit {versions['commit']}"


def _outcome(certificate: Mapping[str, Any]) -> str:
    compared = counted(certificate["totals"]["texts"], "text")
    differences = certificate["differences"]
    outcome = f"{compared} compared: {counted(differences, 'difference') if differences else 'no difference'}"
    refused = certificate["totals"]["refused"] + certificate["totals"]["refused_by_reference"]
    unread = certificate["unread_records"]
    return (
        outcome
        + (f"; the reference encodes {refused:,} of them not" if refused else "")
        + (f"; {counted(unread, 'record')} of --texts could not be read" if unread else "")
        + ("; interrupted" if certificate["interrupted"] else "")
    )


def _at(certificate: Mapping[str, Any], name: str) -> Any:
    value: Any = certificate
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _hash(certificate: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(certificate, sort_keys=True).encode()).hexdigest()
