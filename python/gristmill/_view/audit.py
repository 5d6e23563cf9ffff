"""The page of an audit, as `gristmill audit --json` prints it."""

import json
from pathlib import Path
from typing import Any

from gristmill._inspect.audit import (
    KINDS,
    facts_of,
    lengths_of,
    place_of,
    problems_of,
    roles_of,
    shards_of,
    sources_of,
)
from gristmill._util.local_files import open_inflated
from gristmill._view.charts import Chart
from gristmill._view.page import Page, Table
from gristmill._view.pages import listed

# The bytes at the start of a file that say what it is.
_HEAD = 100
_SHARDS = 500


def read(path: Path) -> dict[str, Any] | None:
    """An audit; None if a file holds none.

    Raises:
      OSError: the file cannot be read.
    """
    if not path.is_file():
        return None
    try:
        with open_inflated(path) as file:
            head = file.read(_HEAD)
            if b'"audit"' not in head:
                return None
            found = json.loads(head + file.read())
    except (EOFError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("kind") == "audit" else None


def of_audit(found: dict[str, Any], *, title: str) -> Page:
    """The page of an audit."""
    total = found["total"]
    roles = sorted(total["roles"].items(), key=lambda role: -role[1]["tokens"])
    charts = [
        Chart("Tokens by role", ("role", "tokens"), [(role, own["tokens"]) for role, own in roles]),
        Chart("Trained tokens by role", ("role", "tokens"), [(role, own["trained_tokens"]) for role, own in roles]),
        Chart(
            "Lengths of samples",
            ("tokens", "samples"),
            [(f"{own['from']:,} to {own['to']:,}", own["count"]) for own in total["lengths"]["bins"]],
        ),
        Chart("Worth a look", ("kind", "conversations"), [(kind.replace("_", " "), total[kind]) for kind in KINDS]),
    ]
    places = [(one["kind"].replace("_", " "), place_of(one), _count(one["tokens"])) for one in found["findings"]]
    bad = [first for reason in found["reasons"] for first in reason["first"]]
    shards = found["shards"]
    left = len(shards) - _SHARDS
    tables = [
        Table("Roles", "", roles_of(total)),
        Table("Lengths of samples", "", lengths_of(total)),
        Table("Conversations", "", [("conversations", "share", "that"), *problems_of(found)]),
        Table("The first of each kind", "", [("kind", "where", "tokens"), *places]),
        listed("The first records that cannot be used, for each reason", bad),
        *([Table("Sources", "", sources_of(found))] if found.get("sources") else []),
        Table("Shards", f"{left:,} more are not listed." if left > 0 else "", shards_of(shards[:_SHARDS])),
    ]
    return Page(title, facts_of(found), charts=charts, tables=tables)


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
