"""The files in `.nv-meta`: each of their keys is followed, known to change nothing here, or refused."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gristmill._shards.place import Place
from gristmill._util import unique_keys
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError

META = ".nv-meta"
# The files with the number of samples of each shard.
COUNTS = (".info.json", ".info.yaml")

# Keys that say how samples are called, by which the caller may choose how they are read.
NAMES = frozenset({"subflavors", "subflavor"})
# Keys of dataset.yaml that change neither which samples there are nor what is read of them: what Energon's encoders
# know samples by, in which order its workers read, and how it decodes what is not read here.
DATASET_IRRELEVANT = frozenset(
    {"parallel_shard_iters", "max_samples_per_sequence", "auto_decode",
     "ignore_decoder_errors", "av_decode", "video_decode_audio", "guess_content"}
)  # fmt: skip
DATASET_FOLLOWED = frozenset(
    {"__module__", "__class__", "sample_type", "field_map", "sample_loader", "part_filter", "decoder", "image_decode",
     "shuffle_over_epochs", *NAMES}
)  # fmt: skip
# Keys of a `decoder:`, which is Energon's SampleDecoder, of the same kind.
DECODER_IRRELEVANT = frozenset({"__module__", "__class__", "av_decode", "video_decode_audio", "guess_content"})
# Keys that would change which samples there are, and what says the same.
DATASET_REFUSED = {
    "path": "name the folder that has the samples",
    "split_part": "name it as split= of gm.EnergonFolder, or as split_part: of a metadataset",
    "split_config": "name it as split_config= of gm.EnergonFolder, or in a metadataset",
    "subset": "name it as subset= of gm.EnergonFolder, or in a metadataset",
    "training": "leave it out: epochs= and seed= of gm.PackedDataset say how samples are read",
    "worker_config": "leave it out",
    "inner_datasets": "join the folders in one: joins are not offered",
    "inner_dataset": "join the folders in one: joins are not offered",
}
# Fields of samples by Energon's and Megatron-Bridge's names.
_FIELDS = {
    "image": "images", "images": "images", "imgs": "images", "caption": "text", "text": "text",
    "conversation": "conversation", "tools": "tools", "video": "videos", "videos": "videos",
}  # fmt: skip
_UNSEEN = frozenset({"video", "videos", "audio", "audios", "vids"})
# The extensions of members that are videos.
VIDEOS = ("mp4", "m4v", "mov", "webm", "mkv", "avi", "mpg", "mpeg", "gif")
# Classes of samples, without `Sample` or `Webdataset` at the end, that are no texts beside images.
_OTHER_KINDS = {
    "Image": "has no text to train on",
    "VidQA": "has a video beside a question, of which a function makes messages, with a gm.VideoModel",
    "Joined": "is joined of several folders: join them in one",
    "MultiMixQA": "is made by code, which is not run",
}
# Classes of which one field is the text.
_CAPTIONS = {
    "OCR": {"text": "text"},
    "ImageClassification": {"label_name": "text"},
}
# Classes whose fields are read together: those that are read, of which the first must be there.
_SAMPLE_TYPES: Mapping[str, tuple[str, ...]] = {
    "VQA": ("context", "answers", "answer_weights"),
    "VQAOCR": ("context", "answers", "answer_weights"),
    "MultiChoiceVQA": ("context", "choices", "correct_choice_idx"),
    "Interleaved": ("sequence",),
    "SimilarityInterleaved": ("texts", "matched_text_indices", "similarity_matrix"),
}
# Fields of these classes, of which nothing is trained on: boxes, and the text of an image beside a question.
_LEFT = frozenset(
    {"text", "label", "block_boxes", "block_classes", "block_text", "lines_boxes", "lines_text", "words_boxes",
     "words_text", "chars_boxes", "chars_text"}
)  # fmt: skip
# How Energon decodes images to RGB; all others give grey values or alpha.
_TO_RGB = frozenset({"rgb8", "rgb", "torchrgb8", "torchrgb", "torch", "pil", "pilrgb"})
# Extensions of videos and sounds, with those that Megatron-Bridge gives to pickled lists of them.
MEDIA = frozenset(
    {"mp4", "m4v", "avi", "mov", "webm", "mkv", "flv", "mpg", "mpeg", "wmv", "mp4s", "videos", "wav", "flac", "mp3",
     "ogg", "opus", "m4a", "aac", "wavs", "audios"}
)  # fmt: skip

# No folder has as many shards, nor a range as many names.
_MOST_NAMES = 1_000_000
_FIELD = re.compile(r"([^\[\],]+)((?:\[[^\[\]]+\])*)")
_ADVICE = (
    "write its samples as captions or conversations, or say what is read: gm.ImageText(model, "
    'fields={"images": ["jpg"], "text": "txt"}), or "conversation" in place of "text", or '
    'record=gm.RecordFunction(cook, fields=["json"]), a function that makes messages of parts'
)


@dataclass(frozen=True)
class SampleType:
    """A class of samples whose fields are read together.

    Attributes:
      name: the class.
      fields: the parts of its fields.
    """

    name: str
    fields: dict[str, str]


@dataclass(frozen=True)
class DatasetConfig:
    """The fields of samples by dataset.yaml.

    Attributes:
      fields: the fields of `gm.ImageText` that it names, as it writes them; None if it names none.
      sample_type: the class of samples whose fields are read together; None if samples are texts beside images.
      subflavors: what it calls its samples.
      left: the fields that it names of which nothing is read, with their parts.
      refusal: why samples are not read as it says, and what to do; None if they are.
    """

    fields: dict[str, str] | None = None
    sample_type: "SampleType | None" = None
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    refusal: str | None = None


def read(meta: Place, what: str, *names: str, optional: bool = False) -> tuple[Place, dict[str, Any]]:
    """The first of some files of a folder's metadata that exists, and its values.

    Raises:
      ArgumentError: there is none, or it does not hold names and values.
      MissingExtraError: it is YAML, and PyYAML is not installed.
    """
    for name in names:
        file = meta / name
        content = file.read()
        if content is not None:
            found = _values(file, content)
            if not isinstance(found, Mapping):
                raise ArgumentError(f"{file}: expected names and values, found {type(found).__name__}")
            return file, dict(found)
    if optional:
        return meta / names[0], {}
    raise ArgumentError(f"path={shortened(str(meta.parent))}: expected {META}/{names[0]}, the {what} of the folder")


def _values(file: Place, content: bytes) -> Any:
    try:
        text = content.decode("utf-8")
    except ValueError as error:
        raise ArgumentError(f"{file}: expected JSON or YAML in UTF-8: {error}") from None
    if file.name.endswith(".json"):
        return unique_keys.json_of(str(file), text)
    return unique_keys.yaml_of(str(file), text)[0]


def check_keys(
    file: Place, values: Mapping[str, Any], known: Collection[str], refused: "Mapping[str, str] | None" = None
) -> None:
    """Checks that a file has no other keys than those known.

    Raises:
      ArgumentError: it has.
    """
    for key in values:
        if advice := (refused or {}).get(key):
            raise ArgumentError(f"{file}: the key {key!r} is not followed: {advice}")
        if key not in known:
            raise ArgumentError(
                f"{file}: expected the keys {', '.join(sorted(known))}, found {key!r}, which may change the samples; "
                "leave it out if it does not"
            )


def read_counts(meta: Place) -> dict[str, int]:
    """The number of samples of each shard."""
    file, values = read(meta, "info", *COUNTS)
    check_keys(file, values, ("energon_version", "shard_counts"))
    counts = values.get("shard_counts")
    if not isinstance(counts, Mapping) or any(type(count) is not int for count in counts.values()):
        raise ArgumentError(f"{file}: expected shard_counts, the number of samples of each shard: prepare it again")
    return dict(counts)


def read_splits(meta: Place, split_config: str | None = None) -> tuple[dict[str, list[str]], list[str]]:
    """The shards of each split, and what is excluded."""
    names = ("split.yaml", "split.json") if split_config is None else (split_config,)
    file, values = read(meta, "split", *names)
    check_keys(file, values, ("split_parts", "exclude"))
    parts = values.get("split_parts") or {}
    if not isinstance(parts, Mapping):
        raise ArgumentError(f"{file}: expected split_parts, lists of shards by name, found {shortened(parts)}")
    listed = {str(name): _names(file, f"split_parts: {name}", shards) for name, shards in parts.items()}
    return listed, _names(file, "exclude", values.get("exclude"))


def _names(file: Place, place: str, given: Any) -> list[str]:
    """The names of a list, in which braces stand for several."""
    if given is not None and (not isinstance(given, list) or any(not isinstance(name, str) for name in given)):
        raise ArgumentError(f"{file}: {place}: expected a list of names, found {shortened(given)}")
    try:
        return [name for text in given or () for name in braces(text)]
    except ValueError as error:
        raise ArgumentError(f"{file}: {place}: {error}") from None


def braces(text: str) -> list[str]:
    r"""The names that a text with braces stands for, as in bash: `s_{000..002}.tar`, `{a,b}.tar`, `{9..1..2}`.

    Raises:
      ValueError: braces are not balanced, or stand for too many names.
    """
    depth, position, cuts = 0, 0, [0]
    while position < len(text):
        sign = text[position]
        if sign == "{":
            depth += 1
            cuts = [position] if depth == 1 else cuts
        elif sign == "," and depth == 1:
            cuts.append(position)
        elif sign == "}":
            depth -= 1
            if depth <= 0:
                break
        position += 2 if sign == "\\" else 1
    if depth:
        raise ValueError(f"expected each brace to be closed in {text!r}")
    if position >= len(text):
        return [_unescaped(text)]
    ends = [*cuts[1:], position]
    parts = [text[start + 1 : end] for start, end in zip(cuts, ends, strict=True)]
    choices = [name for part in parts for name in braces(part)] if len(parts) > 1 else _span(parts[0])
    if choices is None:
        choices = [f"{{{name}}}" for name in braces(parts[0])]
    rest = braces(text[position + 1 :])
    if len(choices) * len(rest) > _MOST_NAMES:
        raise ValueError(f"expected braces of at most {_MOST_NAMES:,} names, found more in {text!r}")
    return [_unescaped(text[: cuts[0]]) + choice + end for choice in choices for end in rest]


_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _span(text: str) -> "list[str] | None":
    """The numbers or letters of `000..010`, `9..1..2` or `a..e`; None if it is no such range."""
    found = re.fullmatch(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.-?(\d+))?", text)
    if not found or found[1].isalpha() != found[2].isalpha():
        return None
    is_letters = found[1].isalpha()
    first, last = (_ALPHABET.index(end) if is_letters else int(end) for end in found.groups()[:2])
    step = int(found[3] or 1) or 1
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    if len(numbers) > _MOST_NAMES:
        raise ValueError(f"expected braces of at most {_MOST_NAMES:,} names, found {len(numbers):,} in {{{text}}}")
    if is_letters:
        return [_ALPHABET[number] for number in numbers]
    is_padded = any(re.match(r"-?0\d", end) for end in found.groups()[:2])
    width = max(len(found[1]), len(found[2])) if is_padded else 0
    return [f"{number:0{width}}" for number in numbers]


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def read_dataset(meta: Place, dataset_config: str | None = None) -> DatasetConfig:
    """The fields of samples by a folder's dataset.yaml, or by the file in its place.

    Raises:
      ArgumentError: it would change which samples there are, or has a key that is not known.
    """
    file, values = read(meta, "dataset", dataset_config or "dataset.yaml", optional=dataset_config is None)
    if not values:
        return DatasetConfig()
    check_keys(file, values, DATASET_IRRELEVANT | DATASET_FOLLOWED, DATASET_REFUSED)
    if values.get("shuffle_over_epochs", 1) not in (1, None):
        raise ArgumentError(
            f"{file}: shuffle_over_epochs: expected 1, each sample once an epoch, found "
            f"{shortened(values['shuffle_over_epochs'])}: leave it out"
        )
    try:
        found = _config_of(values)
    except ArgumentError as error:
        found = DatasetConfig(refusal=f"{file}: {error}; {_ADVICE}")
    return replace(found, subflavors=subflavors_of(file, values))


def subflavors_of(file: Place, values: Mapping[str, Any]) -> dict[str, Any]:
    """The names that a file or a node of it gives to its samples, of which the old `subflavor` is one.

    Raises:
      ArgumentError: they are no names and values.
    """
    found, old = values.get("subflavors") or {}, values.get("subflavor")
    if not isinstance(found, Mapping):
        raise ArgumentError(f"{file}: subflavors: expected names and values, found {shortened(found)}")
    return {**({} if old is None else {"__subflavor__": old}), **found}


def _config_of(values: Mapping[str, Any]) -> DatasetConfig:
    """The fields that samples have by their class and its field_map; none if code makes them of all parts.

    Raises:
      ArgumentError: they are not read as it says.
    """
    name = _class_of(values)
    if loaders := [key for key in ("sample_loader", "part_filter") if values.get(key) is not None]:
        raise ArgumentError(f"its {' and '.join(loaders)} say what a sample is, which is code and is not run")
    kind = re.sub(r"(Sample|Webdataset|WebdatasetFactory)$", "", name)
    if kind in _OTHER_KINDS:
        raise ArgumentError(f"its {name} is not read by gm.ImageText: it {_OTHER_KINDS[kind]}")
    _check_decoders(values)
    field_map = values.get("field_map")
    if field_map is None and kind == "Crude":
        return DatasetConfig()
    if not isinstance(field_map, Mapping) or not field_map:
        raise ArgumentError(f"expected a field_map, found {shortened(field_map)}")
    for field_name, part in field_map.items():
        if not isinstance(part, str):
            raise ArgumentError(f"its field {field_name!r}: expected a part, found {shortened(part)}")
    if kind in _SAMPLE_TYPES:
        return _of_sample_type(f"{kind}Sample", _SAMPLE_TYPES[kind], field_map)
    names = _CAPTIONS.get(kind, {})
    left = {own: part for own, part in field_map.items() if names and own in _LEFT and own not in names}
    named = {names.get(own, own): part for own, part in field_map.items() if own not in left}
    return DatasetConfig(fields=dict(_mapped(name, named)), left=left)


def _of_sample_type(name: str, read: Sequence[str], field_map: Mapping[str, str]) -> DatasetConfig:
    """The fields of a class of samples that are read together.

    Raises:
      ArgumentError: it has others, or lacks the first of them.
    """
    images = {own: part for own, part in field_map.items() if _FIELDS.get(own) == "images"}
    left = {own: part for own, part in field_map.items() if own in _LEFT}
    fields = {own: part for own, part in field_map.items() if own in read}
    if unknown := field_map.keys() - {*images, *left, *fields}:
        unseen = "is of videos or audio, which are not read" if unknown & _UNSEEN else f"of {name} is not read"
        raise ArgumentError(f"its field {min(map(str, unknown & _UNSEEN or unknown))!r} {unseen}")
    if read[0] not in fields:
        raise ArgumentError(f"expected the field {read[0]!r} of a {name}, found {', '.join(map(repr, field_map))}")
    for own, part in (images | fields).items():
        _check_part(own, _FIELDS.get(own, own), part)
    if not images and name != "InterleavedSample":
        raise ArgumentError(f"expected a field that is the image of a {name}")
    if len(images) > 1:
        raise ArgumentError(f"its fields {' and '.join(map(repr, images))} are both the images")
    found = dict(zip(["images"], images.values(), strict=False))
    return DatasetConfig(fields=found, sample_type=SampleType(name, fields), left=left)


def _class_of(values: Mapping[str, Any]) -> str:
    sample_type = values.get("sample_type")
    if sample_type is not None and not isinstance(sample_type, Mapping):
        raise ArgumentError(f"expected a sample_type with __module__ and __class__, found {shortened(sample_type)}")
    if unknown := (sample_type or {}).keys() - {"__module__", "__class__"}:
        raise ArgumentError(f"expected a sample_type with __module__ and __class__, found {sorted(map(str, unknown))}")
    return str((sample_type or values).get("__class__") or "")


def _check_decoders(values: Mapping[str, Any]) -> None:
    """Checks that Energon would decode images to RGB."""
    decoder = values.get("decoder")
    if decoder is not None and not isinstance(decoder, Mapping):
        raise ArgumentError(f"expected a decoder with __class__: SampleDecoder, found {shortened(decoder)}")
    if unknown := (decoder or {}).keys() - DECODER_IRRELEVANT - {"image_decode"}:
        raise ArgumentError(f"its decoder has {min(map(str, unknown))!r}, which is not known")
    if decoder and decoder.get("__class__", "SampleDecoder") != "SampleDecoder":
        raise ArgumentError(f"its decoder {decoder['__class__']} is code, which is not run")
    for found in (values.get("image_decode"), (decoder or {}).get("image_decode")):
        if found is not None and (not isinstance(found, str) or found not in _TO_RGB):
            raise ArgumentError(f"its image_decode {shortened(found)} is not offered: images are decoded to RGB")


def _mapped(name: str, field_map: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """The fields of `gm.ImageText` of a field_map.

    Raises:
      ArgumentError: it has others, or a part that cannot be what it stands for.
    """
    own: dict[str, str] = {}
    for own_name, part in field_map.items():
        if own_name in _UNSEEN and own_name not in _FIELDS:
            raise ArgumentError(f"its field {own_name!r} is of videos or audio, which are not read")
        if own_name not in _FIELDS:
            of_class = f" of {name}" if name else ""
            raise ArgumentError(f"its field {own_name!r}{of_class} is not read by gm.ImageText")
        if (kind := _FIELDS[own_name]) in own:
            raise ArgumentError(f"its fields {own[kind]!r} and {own_name!r} are both the {kind}")
        _check_part(own_name, kind, part)
        own[kind] = own_name
        yield kind, part
    if name.startswith("Captioning") and "images" not in own:
        raise ArgumentError(f"expected a field that is the image of a {name}")
    if {"images", "videos"} <= own.keys():
        raise ArgumentError(
            f"its fields {own['images']!r} and {own['videos']!r}: a sample has images or videos, not both"
        )
    if len({"text", "conversation"} & own.keys()) != 1:
        raise ArgumentError("expected a field that is a text or a conversation, and not both")


def _check_part(field: str, kind: str, part: str) -> None:
    for path in alternatives(part):
        extension = path[0].rsplit(".", 1)[-1].lower()
        if kind == "videos" and len(path) == 1 and extension not in VIDEOS:
            raise ArgumentError(f"its field {field!r} is in {path[0]!r}: expected files with the extensions of videos")
        if kind != "videos" and extension in MEDIA:
            raise ArgumentError(f"its field {field!r} is in {path[0]!r}: videos and audio are not read")
        if kind in ("images", "videos") and len(path) > 1:
            raise ArgumentError(f"its field {field!r} is inside of JSON, in {part!r}: expected members that are {kind}")


def alternatives(field: str) -> list[list[str]]:
    """The parts of which a field is the first that a sample has, each with the keys that lead into its JSON.

    ```text
    jpg,png               [[jpg], [png]]
    txt,json[meta][text]  [[txt], [json, meta, text]]
    ```

    Raises:
      ArgumentError: it cannot be read as such.
    """
    found = []
    for part in re.split("[,;]", field):
        matched = _FIELD.fullmatch(part.strip())
        if matched is None:
            raise ArgumentError(
                f"expected parts with commas between them, such as jpg,png or json[caption], found {field!r}"
            )
        found.append([matched[1], *re.findall(r"\[([^\[\]]+)\]", matched[2])])
    return found
