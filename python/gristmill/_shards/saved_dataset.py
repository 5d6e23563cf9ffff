"""Folders that `save_to_disk` of `datasets` writes: Arrow files, and JSON files that describe them."""

import json
import os
from collections.abc import Sequence
from typing import Any

from gristmill.errors import MissingShardError

# The files beside the Arrow files.
_NOTES = ("state.json", "dataset_info.json", "dataset_dict.json")


def data_files(folder: str) -> list[str]:
    """The Arrow files of a saved data set, as its `state.json` lists them; none if the folder is something else.

    Raises:
      MissingShardError: the folder holds several splits, each of which is a folder, or its `state.json` is damaged.
    """
    splits = _read(os.path.join(folder, "dataset_dict.json"))
    if splits is not None:
        names = [os.path.join(folder, str(name)) for name in splits.get("splits", [])]
        raise MissingShardError(f"{folder!r} holds several splits: name one of them: {', '.join(map(repr, names))}")
    state = _read(path := os.path.join(folder, "state.json"))
    if state is None or "_data_files" not in state:
        return []
    try:
        return [os.path.join(folder, os.fspath(file["filename"])) for file in state["_data_files"]]
    except (TypeError, KeyError) as error:
        raise MissingShardError(f"{path!r} does not list the files of a saved data set: {error!r}") from None


def without_notes(found: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Paths and sizes without the JSON files that lie beside Arrow files among them."""
    folders = {os.path.dirname(path) for path, _ in found if path.endswith(".arrow")}
    return [
        (path, size)
        for path, size in found
        if os.path.basename(path) not in _NOTES or not {os.path.dirname(path)} <= folders
    ]


def _read(path: str) -> dict[str, Any] | None:
    if not os.path.isfile(path):  # opening a pipe would wait for its writer
        return None
    try:
        with open(path, "rb") as file:
            value = json.load(file)
    except (OSError, ValueError) as error:
        raise MissingShardError(f"cannot read {path!r}, which lists the files of a saved data set: {error}") from None
    return value if isinstance(value, dict) else None
