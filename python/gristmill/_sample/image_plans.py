"""Samples with images or videos as the core takes them: `plans` has those of texts."""

import dataclasses
import re
from typing import Any

import gristmill._core as _core
from gristmill._images import video
from gristmill._images.function import ImageFunction, core_of_function
from gristmill._images.model import ImageModel, core_of_model
from gristmill._images.video import VideoModel, core_of_video
from gristmill._sample import image_columns, image_fields, plans
from gristmill._sample.plans import ChatPlan, CompletionPlan, ImageTextPlan
from gristmill._sample.record_function import FunctionPlan
from gristmill._sample.samples import Chat, Completion, ImageText, Text, halves_of
from gristmill._shards.energon_folder import EnergonFolder
from gristmill._shards.manifest import Manifest
from gristmill._tokenizer.encoder import Encoder, core_of
from gristmill.errors import ArgumentError


def make(
    sample: ImageText, encoder: Encoder, folder: EnergonFolder | None, shards: Manifest, max_document_bytes: int
) -> ImageTextPlan:
    """The plan of a sample with images, of a folder if there is one; the first of the shards may be read for its parts.

    Raises:
      ArgumentError: the tokenizer lacks the model's token of images, the model has no rows, or parts cannot be told.
      TemplateError: as for `plans.make`.
    """
    model = ImageModel(sample.model) if isinstance(sample.model, str) else sample.model
    core = _core_of(model)
    are_of_rules = isinstance(core, _core.ImageModel) and core.kind == "patches"
    has_patches = are_of_rules or isinstance(model, VideoModel) or getattr(model, "grid", None) is not None
    if sample.mrope and not are_of_rules:
        raise ArgumentError("mrope=True: only models that take images in patches have such positions; leave it out")
    if image_columns.are_in(shards, max_document_bytes) if folder is None else folder.are_lines:
        fields = image_columns.resolve(sample, shards, max_document_bytes)
    elif sample.image_root is not None:
        raise ArgumentError(f"image_root={sample.image_root!r}: the images of a tar are its members; leave it out")
    else:
        fields = image_fields.resolve(sample, folder, shards, max_document_bytes)
    halves = halves_of(fields.text)
    names_parts = fields.of_folder or bool({"images", "videos"} & (sample.fields or {}).keys())
    image_token, image_text, template_text, untrained = _image_tokens(core, encoder, sample)
    words = {} if image_token is None else _words(core, encoder, sample, image_token)
    texts = [_text(half, encoder, shards, max_document_bytes, is_made=fields.record is not None) for half in halves]
    fingerprints = [
        repr(half) if isinstance(made, str) else made.fingerprint for half, made in zip(halves, texts, strict=True)
    ]
    has_all_parts = names_parts or fields.keys is not None or isinstance(model, VideoModel)
    return ImageTextPlan(
        texts=texts,
        record_function=None if fields.record is None else FunctionPlan(fields.record, folder, shards.storage_options),
        parts=fields.parts if has_all_parts else [*fields.parts, *image_fields.OTHER_IMAGES],
        names_parts=names_parts,
        image_keys=fields.keys,
        unseen_keys=[] if names_parts or fields.keys is None else image_columns.other_keys(fields.keys),
        image_root=sample.image_root,
        first_of=fields.parts if fields.of_folder else None,
        paths=fields.paths,
        image_model=core,
        image_token=image_token,
        template_text=template_text if any(isinstance(made, ChatPlan) for made in texts) else "",
        image_text=image_text,
        untrained=untrained + [ids[0] for word, ids in words.items() if word.strip()][1:],
        words=list(words.values()),
        are_videos=isinstance(model, VideoModel),
        max_images=sample.max_images,
        max_patches=sample.max_patches if has_patches else None,
        images=sample.images,
        mrope=sample.mrope,
        row_model=_row_model(model, core),
        fingerprint=plans.described_of(
            sample,
            model=_named(model),
            fields=fields.described,
            text=fingerprints[0] if len(fingerprints) == 1 else f"Preference({', '.join(fingerprints)})",
            record=fields.record and fields.record.described,
            image_root=None,
        ),
    )


def _core_of(model: ImageModel | ImageFunction | VideoModel) -> _core.ImageModel | _core.ImageFunction:
    if isinstance(model, VideoModel):
        return core_of_video(model)
    return core_of_function(model) if isinstance(model, ImageFunction) else core_of_model(model)


def _row_model(model: ImageModel | ImageFunction | VideoModel, core: _core.ImageModel | _core.ImageFunction) -> str:
    """The part of a model that the arrays of rows depend on: images and videos as equal patches have the same ones."""
    if isinstance(model, VideoModel):
        patch: Any = (*model.shape, *model.normalization)
    else:
        patch = core.patch if isinstance(core, _core.ImageModel) and not core.by_pixels else None
    if patch is None:
        return _named(model)
    values, mean, std = patch
    return f"patches of {values} values with mean {tuple(mean)} and deviation {tuple(std)}"


def _text(
    half: "Text | Chat | Completion", encoder: Encoder, shards: Manifest, max_document_bytes: int, *, is_made: bool
) -> "str | ChatPlan | CompletionPlan":
    """The plan of the text beside images. `is_made`: of a record that a function makes, of which nothing is known."""
    if isinstance(half, Text):
        return half.field
    if isinstance(half, Chat):
        return plans.make(half, encoder)
    has_messages = not is_made and plans.begins_with_a_list(half.prompt_field, max_document_bytes, shards)
    return plans.make(half, encoder, has_messages=has_messages)


def _named(model: ImageModel | ImageFunction | VideoModel) -> str:
    """A model with those of its values that are set: `ImageModel(name='qwen3-vl', pillow=13)`."""
    if not isinstance(model, ImageModel):
        return model.described
    values = {field.name: getattr(model, field.name) for field in dataclasses.fields(model) if field.name != "_"}
    inside = ", ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)
    return f"ImageModel({inside})"


def _image_tokens(
    core: _core.ImageModel | _core.ImageFunction, encoder: Encoder, sample: ImageText
) -> tuple[int | None, str, str, list[int]]:
    """The id of the image token, an image in a text and in a template's, and ids around it that are not trained on."""
    shown = sample.model
    if isinstance(sample.model, VideoModel):
        before, after = video.AROUND
        ids = [_token(encoder, sample, word) for word in (video.TOKEN, before, after)]
        return ids[0], before + video.TOKEN + after, before + video.TOKEN + after, ids
    placeholder, token, before, after, *around = core.markup if isinstance(core, _core.ImageModel) else [""] * 6
    if sample.image_token is not None:
        if token:
            raise ArgumentError(f"image_token={sample.image_token!r}: the model's own is {token!r}; leave it out")
        placeholder = token = sample.image_token
    elif not token:
        if core.has_tokens:
            raise ArgumentError(
                f"model={shown!r}: its images have tokens: set image_token= to the one of the tokenizer"
            )
        return None, "", "", []
    image_token = _token(encoder, sample, token)
    image_text, template_text = before + token + after, placeholder
    if sample.image_token is not None:
        template_text = ""
    elif not before and not after:
        # Templates write the tokens around it.
        before, after = around
        image_text, template_text = before + token + after, ""
    words = [placeholder, *re.findall("<[^<>]+>", before + after)]
    found = [core_of(encoder).token_to_id(word) for word in words]
    return image_token, image_text, template_text, [known for known in found if known is not None]


def _words(
    core: _core.ImageModel | _core.ImageFunction, encoder: Encoder, sample: ImageText, image_token: int
) -> dict[str, list[int]]:
    """The ids of the words that an image is written with: its token first, then others, and line ends between them."""
    _, *others = core.words if isinstance(core, _core.ImageModel) else [""]
    ids = {
        word: [_token(encoder, sample, word)] if word.strip() else [int(found) for found in encoder.encode(word)]
        for word in others
    }
    return {"the image": [image_token], **ids}


def _token(encoder: Encoder, sample: ImageText, token: str) -> int:
    """The id of a token that stands for images.

    Raises:
      ArgumentError: the vocabulary lacks it.
    """
    found = core_of(encoder).token_to_id(token)
    if found is None:
        raise ArgumentError(
            f"model={sample.model!r}: the tokenizer has no token {token!r}, which stands for images; use the model's "
            "tokenizer"
        )
    return found
