"""The parts of a WebDataset sample: which members are images, and where the text or the conversation is."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gristmill._core import Records
from gristmill._sample import energon_samples
from gristmill._sample.record_function import RecordFunction
from gristmill._sample.samples import Chat, Completion, ImageText, Preference, Text, medium_of
from gristmill._shards.energon_files import MEDIA, VIDEOS, alternatives
from gristmill._shards.energon_folder import EnergonFolder
from gristmill._shards.manifest import Manifest
from gristmill._util.local_files import utf8_path
from gristmill.errors import ArgumentError

_LOGGER = logging.getLogger("gristmill")

# The extensions of members that are images; Megatron-Bridge writes several as one pickled list, `jpgs`. Fingerprints
# hold them.
IMAGES = ("jpg", "jpeg", "png", "webp", "gif", "jpgs")
# Other names of formats that are decoded, and of those that are not.
_OTHER_NAMES = ("jpe", "jfif", "pjpeg", "pjp", "mpo", "apng", "bmp", "dib")
OTHER_IMAGES = (
    *_OTHER_NAMES, "tif", "tiff", "avif", "avifs", "heic", "heics",
    "heif", "heifs", "hif", "jp2", "j2k", "j2c", "jpc", "jpf", "jpx", "jpm", "jxl", "jxr", "wdp", "hdp", "svg",
    "svgz", "ico", "cur", "icns", "ppm", "pgm", "pbm", "pnm", "pam", "pfm", "psd", "psb", "tga", "pcx", "dds",
    "exr", "hdr", "qoi", "dng", "cr2", "cr3", "nef", "arw", "orf", "raf", "rw2", "wmf", "emf", "eps", "xbm", "xpm",
)  # fmt: skip
_CONVERSATIONS = ("conversations", "messages", "conversation")
_TEXTS = ("txt", "text", "caption", "json.caption", "json.text", "json.txt")
# Parts, or keys in their JSON, of samples whose text is not all that there is: questions with answers, choices.
_OF_QUESTIONS = frozenset(
    {"question", "questions", "answer", "answers", "answer_weights", "context", "choices", "correct_choice_idx",
     "correct_choice"}
)  # fmt: skip


@dataclass(frozen=True)
class Fields:
    """The parts of a sample that are read.

    Attributes:
      parts: the extensions of images.
      text: the text or conversation beside them.
      of_folder: whether dataset.yaml says both. Then each part is a whole extension, and a sample has the images of
        the first of them that it has.
      record: the function that makes the record with the keys of `text`.
      paths: by keys of `text`, the parts of which the value is the first that a sample has, with the keys that lead
        into its JSON. A key that is not here means what `gm.Text` says.
      keys: of records that are no groups of a tar, the keys of images; `parts` are the same.
    """

    parts: list[str]
    text: "Text | Chat | Completion | Preference"
    of_folder: bool = False
    record: RecordFunction | None = None
    paths: dict[str, list[list[str]]] = field(default_factory=dict)
    keys: list[str] | None = None

    @property
    def described(self) -> str:
        """The parts of images, as a fingerprint has them: one of a folder as one that the user names."""
        return ("|" if self.of_folder else ",").join(self.parts) or ",".join(IMAGES)


def resolve(sample: ImageText, folder: EnergonFolder | None, shards: Manifest, max_document_bytes: int) -> Fields:
    """The parts that are read, as the sample says itself, or else the folder, or else the first record.

    Raises:
      ArgumentError: it cannot be told, or is named twice.
      ShardError: the first record cannot be read.
    """
    medium = medium_of(sample)
    other, default = ("images", VIDEOS) if medium == "videos" else ("videos", IMAGES)
    if sample.record is not None:
        images = extensions((sample.fields or {}).get(medium, default))
        return Fields(images, Chat() if sample.text is None else sample.text, record=sample.record)
    if folder is not None and folder.refusal and not _names_all(sample):
        raise ArgumentError(folder.refusal)
    if folder is not None and other in (folder.fields or {}) and not _names_all(sample):
        advice = "videos need a gm.VideoModel" if other == "videos" else "name its videos and its text in fields="
        raise ArgumentError(
            f"model={sample.model!r}: the samples of {folder.path} have {other}, as dataset.yaml says: {advice}"
        )
    if folder is not None and folder.sample_type and not _names_all(sample):
        made = energon_samples.text_of(folder.sample_type, sample.text, "name what is read in fields= or record=")
        images = [part for (part,) in alternatives(folder.fields["images"])] if folder.fields else [*IMAGES]
        record = energon_samples.function_of(folder.sample_type)
        return Fields(images, made, of_folder=bool(folder.fields), record=record)
    if folder is not None and folder.fields and sample.fields is None:
        return _of_folder(folder.fields, sample.text, medium)
    named, text = dict(sample.fields or {}), sample.text
    names_images = medium in named or medium == "videos"
    images = extensions(named.pop(medium, default))
    if isinstance(text, (Completion, Preference)):
        check_names_no_text(named)
        return Fields(images, text)
    keys = {name: key_of(value) for name, value in named.items()}
    if "conversation" in keys:
        text = with_field(text, Chat(field=keys["conversation"], format="chatml"), Chat)
    elif "text" in keys:
        text = with_field(text, Text(keys["text"]), Text)
    if (isinstance(text, Chat) and text.field == Chat.field) or text is None:
        found = _guess(shards, max_document_bytes, text, looks_at_images=not names_images)
        text = replace(text, field=found.field) if isinstance(text, Chat) else found
    return Fields(images, text)


def _names_all(sample: ImageText) -> bool:
    """Whether a sample names its images and its text itself."""
    fields = sample.fields or {}
    return medium_of(sample) in fields and (sample.text is not None or len(fields) > 1)


def _of_folder(fields: Mapping[str, str], text: "Text | Chat | Completion | Preference | None", medium: str) -> Fields:
    """The fields of a folder, but for a text that the sample names."""
    paths: dict[str, list[list[str]]] = {}

    def key(field: str) -> str:
        found = alternatives(field)
        name = ",".join(map(".".join, found))
        paths[name] = found
        return name

    if isinstance(text, Chat) and text.field == Chat.field and "conversation" in fields:
        text = replace(text, field=key(fields["conversation"]))
    elif text is None or (isinstance(text, Chat) and text.field == Chat.field):
        if "conversation" in fields:
            text = Chat(field=key(fields["conversation"]), format="chatml")
        else:
            text = with_field(text, Text(key(fields["text"])), Text)
    if isinstance(text, Chat) and text.tools is None and "tools" in fields:
        text = replace(text, tools=key(fields["tools"]))
    parts = [part for (part,) in alternatives(fields[medium])] if medium in fields else []
    return Fields(parts, text, of_folder=True, paths=paths)


def key_of(field: str) -> str:
    """A part, or a value in its JSON, as gristmill names keys: Energon's `json[caption]` is `json.caption`."""
    return re.sub(r"\[(\w+)\]", r".\1", field)


def extensions(given: Any) -> list[str]:
    """Extensions of a list, or of a text such as WebDataset's `jpg;jpeg;png` or Energon's `jpg,png`."""
    listed = re.split("[,;]", given) if isinstance(given, str) else list(given)
    return [extension.strip().removeprefix(".") for extension in listed]


def check_names_no_text(named: Mapping[str, Any]) -> None:
    """The parts that a sample names beside its images are none, since its text names keys itself.

    Raises:
      ArgumentError: there are some.
    """
    if named:
        raise ArgumentError(f"fields={sorted(named)!r}: text= names the keys of the texts; leave them out")


def with_field(text: "Text | Chat | None", named: "Text | Chat", kind: type) -> "Text | Chat":
    """The text of a sample with the field that `fields=` names, which is of this kind.

    Raises:
      ArgumentError: it names another one itself.
    """
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
    return part.rsplit(".", 1)[-1].lower() in (*IMAGES, *OTHER_IMAGES)


def guess(kinds: Mapping[str, str]) -> "Text | Chat | None":
    """The conversation, or else the text, of a record whose parts have these kinds.

    None where it is not known, as of a question with an answer: either may be the text.
    """
    for part, kind in kinds.items():
        if part.rsplit(".", 1)[-1].lower() != "json" and part not in _CONVERSATIONS:
            continue
        if kind == "array" or any(kinds.get(f"{part}.{key}") == "array" for key in _CONVERSATIONS):
            return Chat(field=part, format="chatml")
    if any(name in _OF_QUESTIONS for key in kinds for name in key.lower().split(".")):
        return None
    return next((Text(key) for key in _TEXTS if kinds.get(key) == "string"), None)


def _guess(shards: Manifest, max_document_bytes: int, text: "Chat | None", *, looks_at_images: bool) -> "Text | Chat":
    """The text or conversation of the first record, which is said aloud."""
    path, size = next(iter(shards))
    records = Records(utf8_path(path), size, max_document_bytes, storage=shards.storage_options)
    if records.format != "tar":
        raise ArgumentError(f"{path}: expected a tar, found {records.format}: gm.ImageText reads tars of WebDataset")
    kinds = {key: kind for key, kind, _ in records.next() or []}
    shown = ", ".join(f"{key} ({kind})" for key, kind in kinds.items())
    files = [key for key, kind in kinds.items() if kind in ("binary", "not UTF-8")]
    endings = {part: part.rsplit(".", 1)[-1].lower() for part in files}
    others = {*OTHER_IMAGES, *MEDIA} - {*_OTHER_NAMES}
    unread = [part for part, ending in endings.items() if ending in others]
    if looks_at_images and unread and not any(ending in (*IMAGES, *_OTHER_NAMES) for ending in endings.values()):
        raise ArgumentError(
            f"fields=None: the first record of {path} has no image that is read, only {unread[0]!r}, and its text "
            f"would be trained on alone: found {shown}; write JPEG, PNG, WebP, GIF or BMP, or name what is read in "
            'fields=, with gm.ImageFunction(input="bytes") for other formats of images, and gm.VideoModel for videos'
        )
    guessed = guess(kinds)
    if guessed is None or (isinstance(guessed, Text) and text is not None):
        raise ArgumentError(
            f"fields=None: the first record of {path} shows no {'conversation' if text else 'text'}, only "
            f'{shown or "nothing"}; name it, such as fields={{"text": "txt"}} or {{"conversation": "json"}}'
        )
    what = "conversation" if isinstance(guessed, Chat) else "text"
    _LOGGER.warning(
        "fields=None: the first record of %s has %s; its images are %s, and the %s is taken from %r",
        path, shown, ", ".join(filter(is_image, kinds)) or "none of these", what, guessed.field,
    )  # fmt: skip
    return guessed
