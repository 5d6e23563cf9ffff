"""Whether packing can continue into the folder of another stream, whose future stages may not differ either."""

from gristmill._mixture.fingerprint import is_mixture
from gristmill._spec import fingerprints
from gristmill._util.named_values import decode, encode


def incompatibilities(saved: str, current: str, has_quarantined: bool, **instead: str) -> str:
    """How two streams differ, but for what may change while one is packed; see `fingerprints.incompatibilities`."""
    if not (is_mixture(saved) and is_mixture(current)):
        return fingerprints.incompatibilities(saved, current, has_quarantined, None, **instead)
    before, after = _parts(saved), _parts(current)
    found = []
    for name in sorted(before.keys() & after.keys()):
        different = fingerprints.incompatibilities(before[name], after[name], has_quarantined, None, **instead)
        found.append(f"of the source {name!r} {different}" if name and different else different)
    return ", ".join(filter(None, found))


def _parts(fingerprint: str) -> dict[str, str]:
    """The fingerprint of each source by its name, and under "" what is common to all."""
    parts: dict[str, dict[str, str]] = {"": {}}
    for key, value in decode(fingerprint).items():
        name, _, own = key.rpartition(".")
        parts.setdefault(name, {})[own] = value
    return {name: encode(values) for name, values in parts.items()}
