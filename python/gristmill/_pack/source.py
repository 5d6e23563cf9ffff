"""How the source of packed files differs from what stands in its place now."""

from collections.abc import Collection, Mapping

from gristmill._manifest import below_common_folder
from gristmill._pack.forms import Source

# Of many shards, so many are named.
_NAMED = 5


def said_of_changes(packed: Source, now: Source) -> dict[str, str]:
    """What to say of a manifest and a tokenizer with other fingerprints, in place of these.

    Args:
      packed: what the index says of the source.
      now: what it would say now.
    """
    before, special = packed["special_tokens_in_text"], now["special_tokens_in_text"]
    if before == special:
        tokenizer = "the tokenizer is not the one that was packed with"
    else:
        tokenizer = f"special_tokens_in_text was {before!r} and is {special!r}"
    return {"manifest": _other_shards(packed["sizes"], now["sizes"]), "tokenizer": tokenizer}


def _other_shards(packed: Mapping[str, int], now: Mapping[str, int]) -> str:
    if packed.keys().isdisjoint(now):  # They are somewhere else by now.
        packed, now = (dict(zip(below_common_folder(sizes), sizes.values(), strict=True)) for sizes in (packed, now))
    found = {
        "missing": packed.keys() - now.keys(),
        "not packed": now.keys() - packed.keys(),
        "of another size": {path for path in packed.keys() & now.keys() if packed[path] != now[path]},
    }
    differences = "; ".join(f"{what}: {_some(paths)}" for what, paths in found.items() if paths)
    return f"the shards are not those that were packed ({differences})"


def _some(paths: Collection[str]) -> str:
    rest = len(paths) - _NAMED
    return ", ".join(sorted(paths)[:_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")
