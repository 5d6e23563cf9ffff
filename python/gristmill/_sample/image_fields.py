"""The parts of a WebDataset sample: which members are images, and where the text or the conversation is."""

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gristmill._core import Records
from gristmill._sample.samples import Chat, Text
from gristmill._shards.manifest import Manifest
from gristmill._util.local_files import utf8_path
from gristmill.errors import ArgumentError

_LOGGER = logging.getLogger("gristmill")

# The extensions of members that are images; Megatron-Bridge writes several as one pickled list, `jpgs`.
IMAGES = ("jpg", "jpeg", "png", "webp", "gif", "jpgs")
_CONVERSATIONS = ("conversations", "messages", "conversation")
_TEXTS = ("txt", "text", "caption", "json.caption", "json.text", "json.txt")


def resolve(
    fields: "Mapping[str, Any] | None", text: "Text | Chat | None", shards: Manifest, max_document_bytes: int
) -> "tuple[list[str], Text | Chat]":
    """The extensions of images, and the text or conversation beside them.

    Raises:
      ArgumentError: they cannot be told from the first record, or are named twice.
      ShardError: the first record cannot be read.
    """
    named = dict(fields or {})
    images = _extensions(named.pop("images", IMAGES))
    keys = {name: key_of(value) for name, value in named.items()}
    if "conversation" in keys:
        text = _with_field(text, Chat(field=keys["conversation"], format="chatml"), Chat)
    elif "text" in keys:
        text = _with_field(text, Text(keys["text"]), Text)
    if (isinstance(text, Chat) and text.field == Chat.field) or text is None:
        found = _guess(shards, max_document_bytes, text)
        text = replace(text, field=found.field) if isinstance(text, Chat) else found
    return images, text


def key_of(field: str) -> str:
    """A part, or a value in its JSON, as gristmill names keys: Energon's `json[caption]` is `json.caption`."""
    return re.sub(r"\[(\w+)\]", r".\1", field)


def _extensions(given: Any) -> list[str]:
    """Extensions of a list, or of Energon's `jpg;jpeg;png`."""
    listed = given.split(";") if isinstance(given, str) else list(given)
    return [extension.removeprefix(".") for extension in listed]


def _with_field(text: "Text | Chat | None", named: "Text | Chat", kind: type) -> "Text | Chat":
    if text is None:
        return named
    default = isinstance(text, Chat) and text.field == Chat.field
    if not isinstance(text, kind) or not (default or text.field == named.field):
        raise ArgumentError(
            f"fields= and text= name different keys: {named.field!r} and {text.field!r}; name one of them"
        )
    return replace(text, field=named.field)


def is_image(part: str) -> bool:
    """Whether a part is an image by its extension."""
    return part.rsplit(".", 1)[-1].lower() in IMAGES


def guess(kinds: Mapping[str, str]) -> "Text | Chat | None":
    """The conversation, or else the text, of a record whose parts have these kinds."""
    for part, kind in kinds.items():
        if part.rsplit(".", 1)[-1].lower() != "json" and part not in _CONVERSATIONS:
            continue
        if kind == "array" or any(kinds.get(f"{part}.{key}") == "array" for key in _CONVERSATIONS):
            return Chat(field=part, format="chatml")
    return next((Text(key) for key in _TEXTS if kinds.get(key) == "string"), None)


def _guess(shards: Manifest, max_document_bytes: int, text: "Chat | None") -> "Text | Chat":
    """The text or conversation of the first record, which is said aloud."""
    path, size = next(iter(shards))
    records = Records(utf8_path(path), size, max_document_bytes, storage=shards.storage_options)
    if records.format != "tar":
        raise ArgumentError(f"{path}: expected a tar, found {records.format}: gm.ImageText reads tars of WebDataset")
    kinds = {key: kind for key, kind, _ in records.next() or []}
    shown = ", ".join(f"{key} ({kind})" for key, kind in kinds.items())
    guessed = guess(kinds)
    if guessed is None or (isinstance(guessed, Text) and text is not None):
        raise ArgumentError(
            f"fields=None: the first record of {path} shows no {'conversation' if text else 'text'}, only "
            f'{shown or "nothing"}; name it, such as fields={{"text": "txt"}} or {{"conversation": "json"}}'
        )
    what = "conversation" if isinstance(guessed, Chat) else "text"
    _LOGGER.warning(
        "fields=None: the first record of %s has %s; images are %s, and the %s is taken from %r",
        path, shown, ", ".join(IMAGES), what, guessed.field,
    )  # fmt: skip
    return guessed
