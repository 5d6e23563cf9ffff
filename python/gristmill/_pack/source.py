"""How the source of packed files differs from what stands in its place now."""

from collections.abc import Collection, Mapping
from typing import Any

from gristmill._manifest import below_common_folder

# Of many shards, so many are named.
_NAMED = 5


def said_of_changes(packed: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, str]:
    """What to say of a manifest and a tokenizer with other fingerprints, in place of these.

    Args:
      packed: what the index says of the source.
      sizes: the shards that are there now: their sizes by their paths from the root.
    """
    return {
        "manifest": _other_shards(packed.get("sizes"), sizes),
        "tokenizer": "the tokenizer is not the one that was packed with",
    }


def _other_shards(packed: Any, now: Mapping[str, int]) -> str:
    said = "the shards are not those that were packed"
    if not isinstance(packed, dict) or not packed:  # An index made before they were noted lacks them.
        return said
    if packed.keys().isdisjoint(now):  # They are somewhere else by now.
        packed, now = (dict(zip(below_common_folder(sizes), sizes.values(), strict=True)) for sizes in (packed, now))
    found = {
        "missing": packed.keys() - now.keys(),
        "not packed": now.keys() - packed.keys(),
        "of another size": {path for path in packed.keys() & now.keys() if packed[path] != now[path]},
    }
    return f"{said} ({'; '.join(f'{what}: {_some(paths)}' for what, paths in found.items() if paths)})"


def _some(paths: Collection[str]) -> str:
    rest = len(paths) - _NAMED
    return ", ".join(sorted(paths)[:_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")
