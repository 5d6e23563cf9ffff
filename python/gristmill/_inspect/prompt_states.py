"""`gristmill inspect` of a saved state of prompts."""

from pathlib import Path
from typing import Any

from gristmill._state import prompt_states
from gristmill._util.named_values import decode
from gristmill._util.text import format_fields
from gristmill.errors import StateError


def inspect(path: Path, state: Any) -> dict[str, Any]:
    """The content of a state.

    Returns:
      A dict whose `kind` is "prompt state".

    Raises:
      StateError: it is damaged.
    """
    try:
        checked = prompt_states.check(state)
    except StateError as error:
        raise StateError(f"{path}: {error}") from None
    counts = {str(name): count for name, count in dict(checked["counts"]).items()}
    stream = decode(checked["fingerprint"])
    kept: dict[str, Any] = {
        name: checked[name] for name in ("version", "epoch", "place", "step", "sources") if name in checked
    }
    return {"kind": "prompt state", "path": str(path), **kept, "counts": counts, "stream": stream}


def describe(found: dict[str, Any]) -> str:
    """The result of `inspect` for people."""
    if "sources" in found:
        sources = ", ".join(f"{count:,} of {name}" for name, count in found["sources"].items())
        position = f"step {found['step']:,}, after {sources or 'nothing'}"
    else:
        position = f"epoch {found['epoch']:,}, after {found['place']:,} of its prompts"
    summary = format_fields([("state", f"{found['path']} (version {found['version']})"), ("position", position)])
    counts = format_fields((f"  {name}", count) for name, count in found["counts"].items())
    stream = format_fields((f"  {name}", value) for name, value in found["stream"].items())
    return f"{summary}\n\nSo far\n{counts}\n\nOf the stream\n{stream}"
