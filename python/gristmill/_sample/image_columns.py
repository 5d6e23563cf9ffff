"""The keys of records whose images are no members of a tar: Parquet, Arrow and JSONL."""

import json
import logging
from typing import Any

from gristmill._core import Records
from gristmill._images.video import VideoModel
from gristmill._sample.image_fields import Fields, check_names_no_text, extensions, guess, key_of, with_field
from gristmill._sample.samples import Chat, Completion, ImageText, Preference, Text
from gristmill._shards.manifest import Manifest
from gristmill._util.local_files import utf8_path
from gristmill.errors import ArgumentError, GristmillError

_LOGGER = logging.getLogger("gristmill")

# The columns of images in public sets, where `fields=` names none; a record may have either.
_IMAGES = ("images", "image")
_VIDEOS = ("videos", "video")
_CONVERSATIONS = ("messages", "conversations", "conversation")


def first_of(shards: Manifest, max_document_bytes: int) -> Records | None:
    """The records of the first shard, if they have keys; None of a tar, and of a shard that a run will judge."""
    path, size = next(iter(shards))
    try:
        records = Records(utf8_path(path), size, max_document_bytes, storage=shards.storage_options)
    except GristmillError:
        return None
    return None if records.format == "tar" else records


def resolve(sample: ImageText, shards: Manifest, records: Records) -> Fields:
    """The keys that are read, as the sample says itself, or else the first record.

    Raises:
      ArgumentError: it cannot be told, or is named twice.
      ShardError: the first record cannot be read.
    """
    named, text = dict(sample.fields or {}), sample.text
    medium, default = ("videos", _VIDEOS) if isinstance(sample.model, VideoModel) else ("images", _IMAGES)
    images = extensions(named.pop(medium, default))
    if sample.record is not None:
        return Fields(images, Chat() if text is None else text, keys=images, record=sample.record)
    if isinstance(text, (Completion, Preference)):
        check_names_no_text(named)
        return Fields(images, text, keys=images)
    keys = {name: key_of(value) for name, value in named.items()}
    if "text" in keys:
        text = with_field(text, Text(keys["text"]), Text)
    if "conversation" in keys or text is None or (isinstance(text, Chat) and text.field == Chat.field):
        path = next(iter(shards))[0]
        text = _guess(path, _first_record(records), text, keys.get("conversation"))
    return Fields(images, text, keys=images)


def _first_record(records: Records) -> dict[str, Any]:
    found = records.record(0)
    record = json.loads(found[2]) if found else None
    return record if isinstance(record, dict) else {}


def _guess(path: str, record: dict[str, Any], text: "Text | Chat | None", conversation: str | None) -> "Text | Chat":
    """The text or conversation of the first record, which is said aloud unless it is named."""
    if conversation is not None:
        found: Text | Chat | None = Chat(field=conversation, format=_format(_inside(record, conversation)))
    else:
        lists = (key for key in _CONVERSATIONS if isinstance(record.get(key), list))
        chats = [Chat(field=key, format=_format(record[key])) for key in lists]
        texts = guess({key: _kind(value) for key, value in record.items() if key not in _CONVERSATIONS})
        found = next(iter(chats), None if text else texts)
    if found is None:
        raise ArgumentError(
            f"fields=None: the first record of {path} shows no {'conversation' if text else 'text'}, only the keys "
            f'{list(record)}; name it, such as fields={{"text": "caption"}} or {{"conversation": "messages"}}'
        )
    if conversation is None:
        what = "conversation" if isinstance(found, Chat) else "text"
        _LOGGER.warning(
            "fields=None: the first record of %s has the keys %s; the %s is taken from %r, and images from %s",
            path, list(record), what, found.field, " or ".join(map(repr, _IMAGES)),
        )  # fmt: skip
    return with_field(text, found, type(found))


def _format(messages: Any) -> Any:
    """The shape of messages."""
    first = messages[0] if isinstance(messages, list) and messages else None
    return "sharegpt" if isinstance(first, dict) and "from" in first and "role" not in first else "messages"


def _inside(record: Any, key: str) -> Any:
    """The value of a key, which may lead into objects."""
    if not isinstance(record, dict):
        return None
    if key in record:
        return record[key]
    outer, _, inner = key.partition(".")
    return _inside(record.get(outer), inner) if inner else None


def _kind(value: Any) -> str:
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "other"
