"""The keys of records whose images are no members of a tar: Parquet, Arrow and JSONL."""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gristmill._core import Records
from gristmill._sample.image_fields import (
    Fields,
    check_names_no_text,
    extensions,
    guess,
    is_image,
    key_of,
    with_field,
)
from gristmill._sample.samples import (
    Chat,
    Completion,
    ImageText,
    Instruction,
    Preference,
    Text,
    halves_of,
    medium_of,
)
from gristmill._shards.energon_files import VIDEOS
from gristmill._shards.manifest import Manifest
from gristmill._util.local_files import utf8_path
from gristmill.errors import ArgumentError, ShardError

_LOGGER = logging.getLogger("gristmill")

# The columns of images in public sets, where `fields=` names none; a record may have either. Likewise of other media.
_KEYS = {"images": ("images", "image"), "videos": ("videos", "video"), "audio": ("audios", "audio")}
# The records of a shard among which one is looked for that is an object, or has an image under another key.
_MOST_LOOKED_AT = 64
_CONVERSATIONS = ("messages", "conversations", "conversation")


def are_in(shards: Manifest, max_document_bytes: int) -> bool:
    """Whether images are in the keys of records, as the first shard that can be opened shows.

    Raises:
      ShardError: none can, and the first one is no tar by its name.
    """
    failure = None
    for path, size in shards:
        try:
            records = Records(utf8_path(path), size, max_document_bytes, storage=shards.storage_options)
        except ShardError as error:
            failure = failure or error  # A run finds it, and says so.
        else:
            return records.format != "tar"
    if failure is not None and ".tar" not in next(iter(shards))[0]:
        raise failure
    return False


def other_keys(keys: list[str]) -> list[str]:
    """The keys of media that are not read, beside those of these."""
    return [key for own in _KEYS.values() for key in own if tuple(keys) != own]


def resolve(sample: ImageText, shards: Manifest, max_document_bytes: int) -> Fields:
    """The keys that are read, as the sample says itself, or else the first record.

    Raises:
      ArgumentError: it cannot be told, or is named twice.
      ShardError: no record can be read that shows it.
    """
    named, text = dict(sample.fields or {}), sample.text
    medium = medium_of(sample)
    images = extensions(named.pop(medium, _KEYS[medium]))
    if sample.record is not None:
        # A path may be a name in a store of the function, which lists all images then.
        own = [] if sample.record.aux and medium not in (sample.fields or {}) else images
        return Fields(own, Chat() if text is None else text, keys=own, record=sample.record)
    path, record, others, failure, has_columns = _first_object(shards, max_document_bytes)
    if isinstance(text, (Completion, Preference)):
        check_names_no_text(named)
    else:
        keys = {name: key_of(value) for name, value in named.items()}
        if "text" in keys:
            text = with_field(text, Text(keys["text"]), Text)
        if "conversation" in keys or text is None or (isinstance(text, Chat) and text.field == Chat.field):
            if not record:
                raise failure or ArgumentError(
                    f"fields=None: expected a record with keys in {path}, or in a shard behind it, to find its text, "
                    "found none: shards are tars, Parquet, Arrow or lines of JSON; or name the keys in fields="
                )
            text = _guess(path, record, text, keys.get("conversation"), medium, images)
        elif isinstance(text, Chat) and (text.format, _format(_inside(record, text.field))) == ("messages", "sharegpt"):
            raise ArgumentError(
                f"format='messages': the first record of {path} has messages of ShareGPT under {text.field!r}; set "
                'format="sharegpt" of gm.Chat'
            )
    if medium not in (sample.fields or {}):
        if not (set(images) & record.keys()):
            for number, one in enumerate([record, *others]):
                _check_has_no_images(f"record {number} of {path}", one, medium, text)
    elif has_columns and not any({key, key.partition(".")[0]} & record.keys() for key in images):
        raise ArgumentError(
            f"fields[{medium!r}]={images}: expected a column of {path}, found {list(record)}; name the one of {medium}"
        )
    return Fields(images, text, keys=images)


def _first_object(
    shards: Manifest, max_document_bytes: int
) -> "tuple[str, dict[str, Any], Iterator[dict[str, Any]], ShardError | None, bool]":
    """The shard of the first record that is an object, this record and others; an empty one, and why, if there is none.

    The last value is whether all records of the shard have the same keys, those of columns. A shard is read up to the
    first record that cannot be, which a run finds, too.
    """
    failure = None
    for path, size in shards:
        try:
            records = Records(utf8_path(path), size, max_document_bytes, storage=shards.storage_options)
            objects = _objects(records)
            if (first := next(objects, None)) is not None:
                return path, first, objects, None, records.format != "jsonl"
        except ShardError as error:
            failure = failure or error
    return next(iter(shards))[0], {}, iter(()), failure, False


def _objects(records: Records) -> Iterator[dict[str, Any]]:
    """The first records that are objects.

    Raises:
      ShardError: the first of them cannot be read.
    """
    has_found = False
    for number in range(_MOST_LOOKED_AT):
        try:
            found = records.record(number)
        except ShardError:
            if not has_found:
                raise
            return
        if found is None:
            return
        if isinstance(record := _parsed(found[2]), dict):
            has_found = True
            yield record


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _check_has_no_images(
    place: str, record: dict[str, Any], medium: str, text: "Text | Chat | Completion | Preference"
) -> None:
    """Checks that a record has no images under another key than the usual ones, beside which its text would be alone.

    The messages of a conversation have a placeholder for each image.

    Raises:
      ArgumentError: a key, or a value under it, is that of an image or a video.
    """
    halves = halves_of(text)
    if all(isinstance(half, Chat) and not isinstance(half, Instruction) for half in halves):
        return
    own = {key for half in halves for key in vars(half).values() if isinstance(key, str)}
    own.update(*_KEYS.values())  # Each record is asked for these.
    for key, value in record.items():
        item = value[0] if isinstance(value, list) and value else value
        names = [key, *item, *item.values()] if isinstance(item, dict) else [key, item]
        if key not in own and any(isinstance(name, str) and _is_of_media(name) for name in names):
            keys = " or ".join(map(repr, _KEYS[medium]))
            raise ArgumentError(
                f"fields=None: {place} has no key {keys}, and its text would be trained on without "
                f"{key!r}, which looks like {medium}: name it, such as "
                f'fields={{"{medium}": {key!r}}}, or leave it out of the records'
            )


def _is_of_media(name: str) -> bool:
    is_path = name.rsplit(".", 1)[-1].lower() in VIDEOS or is_image(name)
    return is_path or name == "bytes" or name.startswith(("data:image/", "data:video/"))


def _guess(
    path: str,
    record: dict[str, Any],
    text: "Text | Chat | None",
    conversation: str | None,
    medium: str,
    images: list[str],
) -> "Text | Chat":
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
            "fields=None: the first record of %s has the keys %s; the %s is taken from %r, and %s from %s",
            path, list(record), what, found.field, medium, " or ".join(map(repr, images)),
        )  # fmt: skip
    named = with_field(text, found, type(found))
    if isinstance(named, Chat) and isinstance(found, Chat) and named.format == "messages":
        return replace(named, format=found.format)
    return named


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
