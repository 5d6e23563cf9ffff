"""Names and values as one readable string.

    manifest=8a1f... text_field=raw%20text lanes=8

Values are percent-encoded, so that a space parts two of them and nothing else.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote


def encode(values: Mapping[str, Any]) -> str:
    """Names and values as a string."""
    return " ".join(f"{name}={quote(str(value), safe='')}" for name, value in values.items())


def decode(text: str) -> dict[str, str]:
    """The names and values of a string, values as strings; parts of another form are ignored."""
    pairs = (part.partition("=") for part in text.split(" ") if "=" in part)
    return {name: unquote(value) for name, _, value in pairs}
