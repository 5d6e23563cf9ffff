"""Samples as the core takes them, with all that they need of files and of the tokenizer."""

import dataclasses
import datetime
import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, overload

import gristmill._core as _core
from gristmill._chat.template import (
    ChatTemplate,
    check_is_added,
    core_of_template,
    find_template,
    special_tokens_of,
    to_json,
    train_options,
)
from gristmill._sample.fields import described
from gristmill._sample.record_function import FunctionPlan
from gristmill._sample.samples import (
    Chat,
    Completion,
    FillInTheMiddle,
    ImageText,
    Instruction,
    Preference,
    Sample,
    Text,
    Tokens,
)
from gristmill._shards.manifest import Manifest
from gristmill._tokenizer import special_tokens
from gristmill._tokenizer.encoder import Encoder, check_special_tokens, core_of, token_id
from gristmill._util import checks
from gristmill._util.local_files import utf8_path
from gristmill.errors import ArgumentError, GristmillError, TemplateError

_LOGGER = logging.getLogger("gristmill")

# The tokens of known models that announce prefix, middle and suffix.
_SENTINELS = (
    ("<fim_prefix>", "<fim_middle>", "<fim_suffix>"),  # StarCoder
    ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),  # Qwen2.5-Coder, CodeGemma
    ("<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜fim▁hole｜>"),  # DeepSeek-Coder
    ("▁<PRE>", "▁<MID>", "▁<SUF>"),  # CodeLlama
)

_GENERATION_BLOCK = re.compile(r"\{%[-+]?\s*generation\b")

# Values that may change in a run; also inside of another sample, which quotes them once more. Strings of arguments were
# kept before there was a choice.
_POLICY = re.compile(r', (?:on_lost_reasoning=\\*"ignore|string_arguments=\\*"keep)\\*"')


@dataclass(frozen=True, eq=False, kw_only=True)
class FillPlan:
    """How texts are cut for fill-in-the-middle. The core reads it in `rust/python/sample.rs`.

    Attributes:
      prefix: the id of the token that announces what is before the gap; `middle` and `suffix` likewise.
      fingerprint: what defines the samples, readable.
    """

    has_mask: ClassVar[bool] = False
    makes_several: ClassVar[bool] = False
    rate: float
    spm_rate: float
    prefix: int
    middle: int
    suffix: int
    fingerprint: str


@dataclass(frozen=True, eq=False, kw_only=True)
class FieldsPlan:
    """A text of which nothing is said but the fields that travel with it. The core reads it in `rust/python/sample.rs`.

    Attributes:
      fingerprint: what defines the samples, readable.
    """

    has_mask: ClassVar[bool] = False
    makes_several: ClassVar[bool] = False
    has_only_fields: ClassVar[bool] = True
    fingerprint: str


@dataclass(frozen=True, eq=False, kw_only=True)
class PairPlan:
    """How records become pairs. The core reads it in `rust/python/sample.rs`."""

    has_mask: ClassVar[bool] = True
    makes_several: ClassVar[bool] = False
    chosen: "ChatPlan | CompletionPlan"
    rejected: "ChatPlan | CompletionPlan"

    @property
    def fingerprint(self) -> str:
        """The definition of the samples, readable."""
        return f"Preference({self.chosen.fingerprint}, {self.rejected.fingerprint})"


@dataclass(frozen=True, eq=False, kw_only=True)
class TokensPlan:
    """How records become ready ids. The core reads it in `rust/python/sample.rs`."""

    makes_several: ClassVar[bool] = False
    ids_field: str
    loss_mask: str | None
    labels: str | None
    dtype: str | None
    on_untrained: str
    fingerprint: str

    @property
    def has_mask(self) -> bool:
        """Whether samples say which of their tokens are trained on."""
        return self.loss_mask is not None or self.labels is not None


@dataclass(frozen=True, eq=False, kw_only=True)
class ChatPlan:
    """How records become conversations. The core reads it in `rust/python/sample.rs`.

    Attributes:
      chat_template: the template, with the dataset's tokenizer.
      completion_field: the key of further messages, which alone are trained on.
      columns: of an instruction under `field`, the keys of its input, the output and the system prompt.
      fixed_tools: the tools of all conversations, as JSON.
      tools_field: or the key of the record that holds its own.
      training: what is trained on.
      template_kwargs: further variables of the template, as JSON.
      kwargs_field: or the key of the record that holds its own.
      fingerprint: what defines the samples, readable.
    """

    has_mask: ClassVar[bool] = True
    chat_template: ChatTemplate
    field: str
    completion_field: str | None
    columns: tuple[str | None, str | None, str | None] | None
    fixed_tools: bytes | None
    tools_field: str | None
    training: dict[str, Any]
    add_generation_prompt: bool
    template_kwargs: bytes | None
    kwargs_field: str | None
    system_field: str | None
    string_arguments: str
    date: str | None
    none_fields: str
    samples: str
    format: str
    special_tokens_in_content: str
    on_untrained: str
    fingerprint: str

    @property
    def makes_several(self) -> bool:
        """Whether a record may become several samples."""
        return self.samples != "conversation"

    @property
    def template(self) -> _core.ChatTemplate:
        """The core's template."""
        return core_of_template(self.chat_template)

    @property
    def fields(self) -> set[str]:
        """The keys of its messages."""
        return {self.field} | ({self.completion_field} if self.completion_field else set())


@dataclass(frozen=True, eq=False, kw_only=True)
class CompletionPlan:
    """How records become prompts with completions. The core reads it in `rust/python/sample.rs`."""

    has_mask: ClassVar[bool] = True
    makes_several: ClassVar[bool] = False
    prompt_field: str
    completion_field: str
    on_untrained: str
    fingerprint: str

    @property
    def field(self) -> str:
        """The key of the prompt."""
        return self.prompt_field

    @property
    def fields(self) -> set[str]:
        """The keys of both strings."""
        return {self.prompt_field, self.completion_field}


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageTextPlan:
    """How records become samples with images. The core reads it in `rust/python/sample.rs`.

    Attributes:
      texts: the key of the text, or how a conversation or completion is made; of a pair both.
      record_function: the function from the parts of a record to the one with these keys.
      parts: the extensions of images.
      first_of: those that are whole ones, of which a sample has the images of the first that it has, where a folder
        says that.
      paths: the parts that keys stand for, where these do not say it themselves.
      names_parts: whether the user or a folder named the extensions.
      image_keys: of records that are no groups of a tar, the keys of images.
      unseen_keys: of such records, the keys of other media, beside which a text is not trained on alone.
      image_root: where relative paths of images start; None: in the folder of their shard.
      image_model: the core's model.
      image_token: the id of the token that an image has many of; None if images have none.
      template_text: what the chat template writes for an image; empty if that is `image_text`.
      image_text: what stands for an image in a text, with one such token.
      untrained: further ids that are never trained on.
      words: the ids of each word that an image is written with; the first one is the image token.
      are_videos: whether its images are videos.
    """

    has_mask: ClassVar[bool] = True
    makes_several: ClassVar[bool] = False
    texts: "list[str | ChatPlan | CompletionPlan]"
    record_function: "FunctionPlan | None"
    parts: list[str]
    first_of: list[str] | None
    paths: dict[str, list[list[str]]]
    names_parts: bool
    image_keys: list[str] | None
    unseen_keys: list[str]
    image_root: str | None
    image_model: _core.ImageModel | _core.ImageFunction
    image_token: int | None
    template_text: str
    image_text: str
    untrained: list[int]
    words: list[list[int]]
    are_videos: bool
    max_images: int
    max_patches: int | None
    images: str
    mrope: bool
    row_model: str
    fingerprint: str

    @property
    def rows(self) -> str:
        """The arrays that rows hold of images, for a message; rows of one stream agree on it."""
        return (
            f"model={self.row_model}, max_images={self.max_images}, max_patches={self.max_patches}, "
            f"images={self.images!r}, mrope={self.mrope}"
        )


Plan = FillPlan | FieldsPlan | ChatPlan | CompletionPlan | PairPlan | TokensPlan | ImageTextPlan


def begins_with_a_list(field: str, max_document_bytes: int, manifest: Manifest) -> bool:
    """Whether the first record that can be read has a list under a key."""
    for path, size in manifest:
        try:
            records = _core.Records(utf8_path(path), size, max_document_bytes, storage=manifest.storage_options)
            members = records.next()
        except GristmillError:
            continue  # A run finds it, and says so.
        if members:
            return any(key == field and kind == "array" for key, kind, _ in members)
    return False


@overload
def make(sample: Chat, encoder: Encoder) -> ChatPlan: ...


@overload
def make(sample: Completion, encoder: Encoder, *, has_messages: bool = ...) -> CompletionPlan | ChatPlan: ...


@overload
def make(sample: Tokens, encoder: Encoder) -> TokensPlan: ...


@overload
def make(sample: Text, encoder: Encoder) -> FillPlan | FieldsPlan | None: ...


def make(sample: Text | Chat | Completion | Tokens, encoder: Encoder, *, has_messages: bool = False) -> Plan | None:
    """The plan of a sample with a tokenizer; None of a plain text. A completion may be of lists of messages.

    Raises:
      TemplateError: there is no template, it is not valid, or the core does not render it exactly.
      ArgumentError: the template prints the date, and there is none; or a date is not one; or the vocabulary lacks the
        tokens of fill-in-the-middle, or the final stop token.
      ArgumentTypeError: tools or variables hold what JSON cannot.
    """
    if isinstance(sample, Text):
        if sample.fim is not None:
            return _fill_plan(sample, sample.fim, encoder)
        return FieldsPlan(fingerprint=described_of(sample)) if sample.fields else None
    if isinstance(sample, Tokens):
        return TokensPlan(
            ids_field=sample.field,
            loss_mask=sample.loss_mask,
            labels=sample.labels,
            dtype=sample.dtype,
            on_untrained=sample.on_untrained,
            fingerprint=described_of(sample),
        )
    if isinstance(sample, Completion) and (has_messages or sample.options):
        chat, own = make(sample.chat(), encoder), json.dumps(sample.completion_field, ensure_ascii=False)
        fingerprint = chat.fingerprint.replace("Chat(", f"Completion(completion={own}, ", 1)
        return dataclasses.replace(chat, completion_field=sample.completion_field, fingerprint=fingerprint)
    if isinstance(sample, Completion):
        return CompletionPlan(
            prompt_field=sample.prompt_field,
            completion_field=sample.completion_field,
            on_untrained=sample.on_untrained,
            fingerprint=described_of(sample),
        )
    check_special_tokens(encoder, in_content=sample.special_tokens_in_content)
    if sample.final_stop is not None:
        check_is_added(encoder, sample.final_stop)
    template = _template(sample, encoder)
    core_of_template(template)
    is_by_blocks = sample.train_on == "template" and not sample.add_generation_prompt
    if is_by_blocks and not _GENERATION_BLOCK.search(template.source):
        raise ArgumentError(
            "train_on='template': the template has no generation block, so that nothing would be trained on; use "
            "another train_on=, such as 'assistant', or a template with such blocks"
        )
    date = _date(sample.date, template)
    tools_field = sample.tools if isinstance(sample.tools, str) else None
    has_fixed_tools = sample.tools is not None and tools_field is None
    fixed_tools = to_json("tools", sample.tools) if has_fixed_tools else None
    kwargs_field = sample.template_kwargs if isinstance(sample.template_kwargs, str) else None
    has_fixed_kwargs = sample.template_kwargs and kwargs_field is None
    kwargs = to_json("template_kwargs", sample.template_kwargs) if has_fixed_kwargs else None
    if sample.stop_tokens and sample.final_stop is None:
        _warn_of_missing_stop(sample, template, date)
    return ChatPlan(
        chat_template=template,
        field=sample.field,
        completion_field=None,
        columns=sample.columns if isinstance(sample, Instruction) else None,
        fixed_tools=fixed_tools,
        tools_field=tools_field,
        training=train_options(
            sample.train_on,
            sample.stop_tokens,
            sample.train_reasoning,
            sample.train_tool_calls,
            sample.on_lost_reasoning,
            sample.final_stop,
            sample.train_empty_reasoning,
            sample.train_key,
        ),
        add_generation_prompt=sample.add_generation_prompt,
        template_kwargs=kwargs,
        kwargs_field=kwargs_field,
        system_field=sample.system_field,
        string_arguments=sample.string_arguments,
        date=date,
        none_fields=sample.none_fields,
        samples=sample.samples,
        format=sample.format,
        special_tokens_in_content=sample.special_tokens_in_content,
        on_untrained=sample.on_untrained,
        fingerprint=described_of(
            sample,
            template=template.fingerprint,
            tools=_hash(fixed_tools) if fixed_tools else tools_field,
            template_kwargs=kwargs.decode() if kwargs else kwargs_field,
            date=date,
            train_on=sample.train_on if isinstance(sample.train_on, str) else list(sample.train_on or ()),
            stop_tokens=list(sample.stop_tokens) or (),
        ),
    )


def _fill_plan(sample: Text, fim: FillInTheMiddle, encoder: Encoder) -> FillPlan:
    prefix, middle, suffix = _sentinels(fim, encoder)
    if len({prefix, middle, suffix}) < 3:
        raise ArgumentError(
            f"prefix={fim.prefix!r}, middle={fim.middle!r}, suffix={fim.suffix!r}: expected three different tokens, "
            f"found the ids {prefix}, {middle} and {suffix}"
        )
    ids = f"prefix={prefix}, middle={middle}, suffix={suffix}"
    own = described(sample.fields)
    return FillPlan(
        rate=fim.rate,
        spm_rate=fim.spm_rate,
        prefix=prefix,
        middle=middle,
        suffix=suffix,
        fingerprint=f"FillInTheMiddle(rate={fim.rate}, spm_rate={fim.spm_rate}, {ids})"
        + (f" fields={json.dumps(own, ensure_ascii=False)}" if own else ""),
    )


def _sentinels(fim: FillInTheMiddle, encoder: Encoder) -> list[int]:
    """The ids that announce prefix, middle and suffix.

    Raises:
      ArgumentError: the vocabulary has no such tokens, or those of several models.
    """
    if fim.prefix is not None:
        return [token_id(encoder, name, getattr(fim, name)) for name in ("prefix", "middle", "suffix")]
    known_ids = ([encoder.token_to_id(token) for token in tokens] for tokens in _SENTINELS)
    found = [ids for known in known_ids if len(ids := [one for one in known if one is not None]) == len(known)]
    if len(found) == 1:
        return found[0]
    what = "has none of" if not found else "has several of"
    known = ", ".join(" ".join(tokens) for tokens in _SENTINELS)
    raise ArgumentError(
        f"fim=: the vocabulary {what} the known tokens for prefix, middle and suffix ({known}): pass prefix=, middle= "
        f"and suffix= of gm.FillInTheMiddle, tokens or ids. {special_tokens.describe(core_of(encoder).json)}"
    )


def _template(sample: Chat, encoder: Encoder) -> ChatTemplate:
    folder, given = encoder.folder, sample.template
    if isinstance(given, ChatTemplate):
        return given.with_tokenizer(encoder)
    if given is None:
        if folder is None:
            raise TemplateError(
                "template=None: the tokenizer was made from bytes, so there are no files beside it that hold a chat "
                "template; give its text, the path of a file or folder, or a ChatTemplate"
            )
        return find_template(folder, encoder, has_tools=sample.tools is not None)
    if isinstance(given, str) and ("{%" in given or "{{" in given):
        tokens = {} if folder is None else special_tokens_of(folder)
        return ChatTemplate.from_string(given, tokenizer=encoder, **tokens)
    path = Path(checks.path("template", given))
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir() raises for names that are too long
        return find_template(path, encoder, has_tools=sample.tools is not None)
    tokens = {} if folder is None else special_tokens_of(folder)
    return ChatTemplate.from_file(path, tokenizer=encoder, **tokens)


def _date(given: str | None, template: ChatTemplate) -> str | None:
    """The date that the template prints; None if it prints none."""
    if not template.uses_date:
        return None
    if given is None:
        raise ArgumentError(
            "date=None: the chat template may print today's date, and a stream must not change at midnight: set date= "
            "of gm.Chat to a date such as '2026-11-26', or to 'today', which is then part of the fingerprint"
        )
    return datetime.datetime.now().date().isoformat() if given == "today" else checks.text("date", given)


def _warn_of_missing_stop(sample: Chat, template: ChatTemplate, date: str | None) -> None:
    """Warns if the template ends a conversation without any of the stop tokens, as a short one shows."""
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    options = {"date": date, "none_fields": sample.none_fields, **_fixed_variables(sample)}
    train_on, stops = sample.train_on, tuple(sample.stop_tokens)
    try:
        text = template.render(messages, **options)
        spans = template.spans(messages, train_on=train_on, stop_tokens=stops, **options)
    except (GristmillError, TypeError):
        return  # The template takes other conversations.
    ends = [end for _, end, message, _, trained in spans if trained and message == 1]
    if ends and not text[: ends[-1]].endswith(stops):
        _LOGGER.warning(
            "stop_tokens=%s: the template writes none of them behind the last turn of a conversation, which then "
            "trains no token at which the model stops; final_stop= of gm.Chat writes one there",
            list(stops),
        )


def _fixed_variables(sample: Chat) -> Mapping[str, Any]:
    return sample.template_kwargs if isinstance(sample.template_kwargs, Mapping) else {}


def described_of(sample: Sample, **instead: Any) -> str:
    """A sample with those of its values that are not defaults: `Chat(field='turns', train_on='last')`."""
    if not isinstance(sample, (ImageText, Preference)):
        instead["fields"] = described(sample.fields)
    values = {
        field.name: instead.get(field.name, getattr(sample, field.name))
        for field in dataclasses.fields(sample)
        if field.init and instead.get(field.name, getattr(sample, field.name)) != field.default
    }
    inside = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return f"{type(sample).__name__}({inside})"


def without_policy(fingerprint: str) -> str:
    """A sample's fingerprint without what may change in a run."""
    return _POLICY.sub("", fingerprint)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
