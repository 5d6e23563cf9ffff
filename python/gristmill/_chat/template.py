"""`ChatTemplate`: conversations to text, with the origin of every character and masks of trained tokens."""

import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

import gristmill._core as _core
from gristmill._tokenizer import hub, special_tokens
from gristmill._tokenizer.encoder import Encoder, as_encoder, check_special_tokens, core_of
from gristmill._util import checks
from gristmill._util.local_files import Pathish
from gristmill.errors import ArgumentError, ArgumentTypeError, MissingExtraError, TemplateError

if TYPE_CHECKING:
    from gristmill._chat.jinja import JinjaTemplate

TrainOn: TypeAlias = 'Literal["assistant", "last", "final", "all", "template"] | Sequence[str] | None'
OnLostReasoning: TypeAlias = Literal["error", "ignore"]
# Start and end in characters, message, part, and whether it is trained on.
Span: TypeAlias = tuple[int, int, int | None, str, bool]

_UNKNOWN_ORIGINS = "jinja2 renders the template, and does not say which message characters come from"
_CONFIG_FILES = ("special_tokens_map.json", "tokenizer_config.json")
# The names under which `transformers` passes special tokens to templates.
_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """A chat template, which renders conversations exactly as `transformers`' `apply_chat_template` does.

    It runs in the core, without Python and the GIL. A template that uses what the core does not render exactly is
    rendered by jinja2, if it is installed (`pip install 'gristmill[jinja]'`): `template_engine` says so. Then it is not
    known where characters come from; `train_on` is `"all"`, `"template"` or None, and datasets refuse the template.

    A conversation is a list of messages: dicts with `role`, `content` and so on, of values that JSON has.
    """

    def __init__(
        self,
        source: str,
        *,
        tokenizer: "Encoder | Pathish | None" = None,
        special_tokens: Mapping[str, Any] | None = None,
    ) -> None:
        """Use `from_pretrained`, `from_file` or `from_string`."""
        if not isinstance(source, str):
            raise ArgumentTypeError(f"source: expected the text of a template, got {type(source).__name__}")
        self.source = source
        self._encoder = None if tokenizer is None else as_encoder(tokenizer)
        self._special_tokens = dict(special_tokens or {})
        special, others = _added_tokens(self._encoder)
        special += [token for token in _flat(self._special_tokens.values()) if token not in special]
        self._unsupported = _core.ChatTemplate.unsupported(source)
        self._jinja_template: JinjaTemplate | None = None
        if self._unsupported is None:
            self._core = _core.ChatTemplate(source, list(self._special_tokens.items()), special, others)
        else:
            self._jinja(self._unsupported)

    @classmethod
    def from_string(
        cls, source: str, *, tokenizer: "Encoder | Pathish | None" = None, **special_tokens: "str | list[str]"
    ) -> Self:
        """A template from its text.

        Args:
          source: the text of the template.
          tokenizer: the tokenizer that `encode` and masks need.
          special_tokens: variables of the template such as `bos_token="<s>"`.

        Raises:
          TemplateError: the template is not valid.
          TokenizerError: the tokenizer cannot be loaded.
        """
        return cls(source, tokenizer=tokenizer, special_tokens=special_tokens)

    @classmethod
    def from_file(
        cls, path: Pathish, *, tokenizer: "Encoder | Pathish | None" = None, **special_tokens: "str | list[str]"
    ) -> Self:
        """A template from a file that holds its text, such as chat_template.jinja.

        Raises:
          TemplateError: the file cannot be read as text, or as for `from_string`.
          TokenizerError: the tokenizer cannot be loaded.
        """
        return cls(_read(Path(path)), tokenizer=tokenizer, special_tokens=special_tokens)

    @classmethod
    def from_pretrained(cls, folder: Pathish, *, name: str = "default", revision: str = "main") -> Self:
        """The template of a folder that `transformers` has saved, with its tokenizer and special tokens.

        Args:
          folder: holds chat_template.jinja, or tokenizer_config.json with `chat_template`; and tokenizer.json and the
            files that name special tokens. Or the name of a model on the Hugging Face hub, such as `"org/model"`.
          name: which template, where there are several.
          revision: branch, tag or commit on the hub.

        Raises:
          TemplateError: there is no such template; or as for `from_string`.
          TokenizerError: the tokenizer cannot be loaded.
        """
        found = checks.path("folder", folder)
        is_name = hub.may_have(found) and not os.path.isdir(found)  # noqa: PTH112 - it never raises
        root = hub.download(found, revision).parent if is_name else Path(found)
        config = _config(root)
        tokenizer = root if (root / "tokenizer.json").is_file() else None
        return cls(_pretrained_source(root, config, name), tokenizer=tokenizer, special_tokens=_special_tokens(config))

    @staticmethod
    def special_tokens_of(folder: Pathish) -> "dict[str, str | list[str]]":
        """The variables of templates that the files of a tokenizer's folder name, such as `bos_token`."""
        return special_tokens_of(Path(folder))

    def with_tokenizer(self, tokenizer: "Encoder | Pathish") -> Self:
        """The same template with another tokenizer, whose special tokens masks look for.

        Raises:
          TokenizerError: the tokenizer cannot be loaded.
        """
        return type(self)(self.source, tokenizer=tokenizer, special_tokens=self._special_tokens)

    @property
    def fingerprint(self) -> str:
        """A hash of the template's text and of the special tokens that are its variables."""
        return hashlib.sha256(json.dumps([self.source, self._special_tokens]).encode()).hexdigest()[:16]

    @property
    def uses_date(self) -> bool:
        """Whether the template may print today's date, and needs `date=`."""
        return self._core.uses_date if self._unsupported is None else "strftime_now" in self.source

    @property
    def template_engine(self) -> str:
        """The engine that renders conversations: `"core"`, or `"jinja2"`. Their texts are the same."""
        return "core" if self._unsupported is None else "jinja2"

    @property
    def template_engine_reason(self) -> str:
        """One sentence on why this engine was chosen: what the template uses that the core does not render exactly."""
        if self._unsupported is None:
            return "the core renders all that the template uses"
        return f"the core does not render exactly: {self._unsupported}"

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **kwargs: Any,
    ) -> str:
        """The text of a conversation.

        Args:
          messages: the conversation.
          tools: JSON schemas of tools.
          add_generation_prompt: whether the text ends with the start of an answer.
          kwargs: variables of the template; and `documents`, a list of dicts; `date`, such as `"2026-11-26"`, which
            `strftime_now` prints; `none_fields`, `"drop"` (keys of messages that are None are left out, as
            `transformers` 5.24 does) or `"keep"`.

        Raises:
          TemplateError: the template raises, where jinja2 does too.
          ArgumentTypeError: the conversation holds what JSON cannot.
          MissingExtraError: values of this conversation make the template do what the core does not render exactly, and
            jinja2 is not installed.
        """
        conversation = _conversation(messages, tools, add_generation_prompt, kwargs)
        reason = self._unsupported
        if reason is None:
            text, reason = self._core.render(conversation)
        return text if reason is None else self._jinja(reason).render(conversation)[0]

    def spans(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        train_on: TrainOn = "assistant",
        stop_tokens: Sequence[str] = (),
        train_reasoning: bool = True,
        train_tool_calls: bool = True,
        on_lost_reasoning: OnLostReasoning = "error",
        final_stop: str | None = None,
        **kwargs: Any,
    ) -> list[Span]:
        """Where every character of the text comes from, and whether it is trained on.

        Args:
          messages: the conversation; further arguments as for `render`.
          tools: as for `render`.
          add_generation_prompt: as for `render`.
          train_on: `"assistant"`: of each assistant message what the model would generate, from behind the generation
            prompt up to and with the token that ends the turn; `"last"`: of the last one; `"final"`: of those behind
            the last message of the user; `"all"`: everything; `"template"`: the template's `generation` blocks; a list
            of roles; None: nothing. A message's own `"train": False` or `"weight": 0` takes it out.
          stop_tokens: the tokens at which the model stops, for templates that write none after a message.
          train_reasoning: whether reasoning is trained on, where it is a field of a message.
          train_tool_calls: whether tool calls are.
          on_lost_reasoning: `"error"`: a trained message with reasoning of which the template writes nothing is an
            error; `"ignore"`: the rest of it is trained on.
          final_stop: a token that is written, and trained on, behind an assistant message at the end of the
            conversation, where the template writes no token there at which the model stops.
          kwargs: as for `render`.

        Returns:
          Tuples `(start, end, message, part, trained)` in order, which cover the text: `start` and `end` in characters;
          the index of the message, or None; `"template"`, `"role"`, `"content"`, `"reasoning_content"`,
          `"tool_calls"`, ..., the part of the message or the argument that the characters come from. With jinja2 the
          message is None and the part `"unknown"`.

        Raises:
          TemplateError: as for `render`; or the mask cannot be derived, or reasoning is lost.
          ArgumentError: `final_stop` is no added token of the tokenizer, or does not go with the other arguments.
          ArgumentTypeError: as for `render`.
        """
        conversation = _conversation(messages, tools, add_generation_prompt, kwargs)
        options = train_options(train_on, stop_tokens, train_reasoning, train_tool_calls, on_lost_reasoning, final_stop)
        self._check_final_stop(final_stop, train_on, add_generation_prompt=add_generation_prompt)
        if self._unsupported is None:
            return self._core.spans(conversation, options)[1]
        text, ranges = self._jinja_ranges(self._unsupported, conversation, options)
        borders = sorted({0, len(text), *itertools.chain.from_iterable(ranges)})
        inside = {start for start, end in ranges}
        return [(start, end, None, "unknown", start in inside) for start, end in itertools.pairwise(borders)]

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        train_on: TrainOn = "assistant",
        stop_tokens: Sequence[str] = (),
        train_reasoning: bool = True,
        train_tool_calls: bool = True,
        special_tokens_in_content: Literal["id", "text"] = "id",
        on_lost_reasoning: OnLostReasoning = "error",
        final_stop: str | None = None,
        **kwargs: Any,
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """The ids of a conversation's text, encoded as a whole, and the mask of its trained tokens.

        Args:
          messages: as for `spans`.
          tools: as for `spans`.
          add_generation_prompt: as for `spans`.
          train_on: as for `spans`. A token is trained on if its first byte is, or if what it has in front of what is
            trained on is white space of the template alone.
          stop_tokens: as for `spans`.
          train_reasoning: as for `spans`.
          train_tool_calls: as for `spans`.
          special_tokens_in_content: `"id"`: a special token that is spelled out in a message has its id; `"text"`: it
            has the ids of its characters, and only the template writes special tokens, and other added tokens that it
            writes anywhere.
          on_lost_reasoning: as for `spans`.
          final_stop: as for `spans`.
          kwargs: as for `spans`.

        Returns:
          `(ids, mask)`: int32 `[n]` and bool `[n]`.

        Raises:
          TemplateError: as for `spans`; or nothing is trained on, though `train_on` asks for it.
          ArgumentError: the template has no tokenizer; or as for `spans`.
          ArgumentTypeError: as for `render`.
        """
        if self._encoder is None:
            raise ArgumentError(
                "tokenizer=None: encode needs the template's tokenizer; give it to from_string or from_file"
            )
        checks.choice("special_tokens_in_content", special_tokens_in_content, ("id", "text"))
        check_special_tokens(self._encoder, in_content=special_tokens_in_content)
        conversation = _conversation(messages, tools, add_generation_prompt, kwargs)
        conversation["special_tokens_in_content"] = special_tokens_in_content
        options = train_options(train_on, stop_tokens, train_reasoning, train_tool_calls, on_lost_reasoning, final_stop)
        self._check_final_stop(final_stop, train_on, add_generation_prompt=add_generation_prompt)
        if self._unsupported is None:
            ids, mask = self._core.encode(core_of(self._encoder), conversation, options)
        elif special_tokens_in_content == "text":
            raise TemplateError(f"special_tokens_in_content='text': {_UNKNOWN_ORIGINS}: {self.template_engine_reason}")
        else:
            text, ranges = self._jinja_ranges(self._unsupported, conversation, options)
            ids, mask = _core.ChatTemplate.encode_text(core_of(self._encoder), text, ranges)
        if train_on is not None and not mask.any():
            raise TemplateError(
                f"train_on={train_on!r}: no token of this conversation is trained on; leave it out, or give "
                "train_on=None for a prompt"
            )
        return ids, mask

    def _jinja(self, reason: str) -> "JinjaTemplate":
        if self._jinja_template is None:
            try:
                from gristmill._chat.jinja import JinjaTemplate
            except ImportError as error:
                raise MissingExtraError(
                    f"the core does not render exactly: {reason}; jinja2 does: pip install 'gristmill[jinja]'"
                ) from error
            self._jinja_template = JinjaTemplate(self.source, self._special_tokens)
        return self._jinja_template

    def _check_final_stop(self, final_stop: str | None, train_on: TrainOn, *, add_generation_prompt: bool) -> None:
        if final_stop is None:
            return
        check_final_stop(final_stop, add_generation_prompt=add_generation_prompt)
        if train_on is None:
            raise ArgumentError(f"final_stop={final_stop!r}: nothing is trained on with train_on=None; leave it out")
        if self._unsupported is not None:
            raise TemplateError(f"final_stop={final_stop!r}: {_UNKNOWN_ORIGINS}: {self.template_engine_reason}")
        if self._encoder is not None:
            check_is_added(self._encoder, final_stop)

    def _jinja_ranges(
        self, reason: str, conversation: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[str, list[tuple[int, int]]]:
        train_on = options["train_on"]
        if not (train_on is None or train_on in ("all", "template")):
            raise TemplateError(
                f"train_on={train_on!r}: {_UNKNOWN_ORIGINS}, so it is 'all', 'template' or None: "
                f"{self.template_engine_reason}"
            )
        text, blocks = self._jinja(reason).render(conversation)
        if train_on is None:
            return text, []
        messages = json.loads(conversation["messages"])
        if options["train_reasoning"] and options["on_lost_reasoning"] == "error":
            _check_reasoning(messages, text)
        untrained = [index for index, message in enumerate(messages) if _is_off(message)]
        if untrained:
            raise TemplateError(f"messages[{untrained[0]}] is not to be trained on, but {_UNKNOWN_ORIGINS}")
        if train_on == "all":
            return text, [(0, len(text))] if text else []
        if blocks is None:
            raise TemplateError(
                "train_on='template': a generation block is inside of a macro or another block that collects its text, "
                "where transformers gets its place wrong"
            )
        return text, _joined(blocks)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (type(self), self.source, self._encoder, self._special_tokens)

    def __repr__(self) -> str:
        engine = "" if self._unsupported is None else ", jinja2"
        return f"<ChatTemplate of {len(self.source)} characters{engine}, {self._encoder or 'without a tokenizer'}>"


def _remake(
    cls: type[ChatTemplate], source: str, encoder: Encoder | None, special_tokens: Mapping[str, Any]
) -> ChatTemplate:
    return cls(source, tokenizer=encoder, special_tokens=special_tokens)


def _is_off(message: Mapping[str, Any]) -> bool:
    """Whether a message's own `train` or `weight` takes it out."""
    weight = message.get("weight")
    return message.get("train") is False or (weight == 0 and not isinstance(weight, bool))


def _check_reasoning(messages: Iterable[Mapping[str, Any]], text: str) -> None:
    """Checks that a text whose origins are not known has the words of all reasoning.

    Raises:
      TemplateError: it has not.
    """
    for index, message in enumerate(messages):
        found = {name: message.get(name) for name in ("reasoning_content", "thinking", "reasoning")}
        if isinstance(content := message.get("content"), str) and "</think>" in content:
            found["content"] = content.split("</think>")[0].split("<think>")[-1]
        for name, words in found.items():
            if message.get("role") == "assistant" and isinstance(words, str) and words.strip() not in text:
                raise TemplateError(
                    f"messages[{index}]: expected the reasoning of its {name!r} in the text, found that the template "
                    "does not write it: use a template that writes it; or train without it "
                    "(on_lost_reasoning='ignore')"
                )


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in order, those that touch as one, without empty ones."""
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = joined[-1][0], end
        elif start < end:
            joined.append((start, end))
    return joined


def _conversation(messages: Any, tools: Any, add_generation_prompt: bool, kwargs: dict[str, Any]) -> dict[str, Any]:
    variables = dict(kwargs)
    none_fields = variables.pop("none_fields", "drop")
    if none_fields not in ("drop", "keep"):
        raise ArgumentError(f"none_fields={none_fields!r}: expected 'drop' or 'keep'")
    documents, date = variables.pop("documents", None), variables.pop("date", None)
    return {
        "messages": to_json("messages", messages),
        "tools": None if tools is None else to_json("tools", tools),
        "documents": None if documents is None else to_json("documents", documents),
        "kwargs": to_json("the template's variables", variables) if variables else None,
        "add_generation_prompt": bool(add_generation_prompt),
        "date": None if date is None else str(date),
        "none_fields": none_fields,
        "special_tokens_in_content": "id",
    }


def to_json(name: str, value: Any) -> bytes:
    """A value as JSON.

    Raises:
      ArgumentTypeError: JSON cannot hold it.
    """
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentTypeError(
            f"{name}: expected lists, dicts, strings, numbers, booleans and None: {error}", argument=name
        ) from None


def check_final_stop(final_stop: Any, *, add_generation_prompt: bool) -> None:
    """Checks a final stop token beside the other arguments.

    Raises:
      ArgumentError: it is empty, or the text ends with the start of an answer.
      ArgumentTypeError: it is no string.
    """
    checks.text("final_stop", final_stop)
    if add_generation_prompt:
        raise ArgumentError(
            f"final_stop={final_stop!r}: with add_generation_prompt=True the text ends with the start of an answer, "
            "behind which no model stops; leave one of them out"
        )


def check_is_added(encoder: Encoder, final_stop: str) -> None:
    """Checks that a final stop token is one token wherever it stands.

    Raises:
      ArgumentError: it is no added token of the tokenizer.
    """
    special, others = _added_tokens(encoder)
    if final_stop not in special and final_stop not in others:
        raise ArgumentError(
            f"final_stop={final_stop!r}: expected an added token of the tokenizer, which is one token wherever it "
            f"stands. {special_tokens.describe(core_of(encoder).json)}"
        )


def train_options(
    train_on: Any,
    stop_tokens: Iterable[str],
    train_reasoning: bool,
    train_tool_calls: bool,
    on_lost_reasoning: OnLostReasoning,
    final_stop: str | None,
    train_empty_reasoning: bool = True,
    train_key: str | None = None,
) -> dict[str, Any]:
    """The parts that are trained on, as the core takes them.

    Raises:
      ArgumentError: `on_lost_reasoning` is no word that it may be.
    """
    return {
        "train_on": train_on if train_on is None or isinstance(train_on, str) else list(train_on),
        "stop_tokens": list(stop_tokens),
        "train_reasoning": bool(train_reasoning),
        "train_tool_calls": bool(train_tool_calls),
        "train_empty_reasoning": bool(train_empty_reasoning),
        "on_lost_reasoning": checks.choice("on_lost_reasoning", on_lost_reasoning, ("error", "ignore")),
        "final_stop": final_stop,
        "train_key": train_key,
    }


def core_of_template(template: ChatTemplate) -> _core.ChatTemplate:
    """The core's object of a template.

    Raises:
      TemplateError: jinja2 renders it.
    """
    if template.template_engine != "core":
        raise TemplateError(
            f"{template.template_engine_reason}: workers of a dataset run without Python, and cannot use jinja2; write "
            "the template without it, or encode the conversations beforehand with ChatTemplate.encode"
        )
    return template._core


def find_template(folder: Path, encoder: Encoder, *, has_tools: bool) -> ChatTemplate:
    """The template beside the tokenizer.json in a folder.

    Args:
      folder: that of tokenizer.json.
      encoder: the tokenizer.
      has_tools: whether conversations have tools: then it is the template named `tool_use`, if there is one, as
        `transformers` chooses.

    Raises:
      TemplateError: there is none, or it is not valid.
    """
    config = _config(folder)
    try:
        source = _pretrained_source(folder, config, "tool_use" if has_tools else "default")
    except TemplateError:
        if not has_tools:
            raise
        source = _pretrained_source(folder, config, "default")
    return ChatTemplate(source, tokenizer=encoder, special_tokens=_special_tokens(config))


def special_tokens_of(folder: Path) -> dict[str, Any]:
    """The variables of templates that the files of a folder name, such as `bos_token`."""
    return _special_tokens(_config(folder))


def _config(root: Path) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for file in _CONFIG_FILES:
        if (root / file).is_file():
            config.update(_read_json(root / file))
    return config


def _special_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {key: token for key in _TOKEN_NAMES if (token := _content(config.get(key))) is not None}
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens")
    if isinstance(extra, list):
        found["additional_special_tokens"] = [token for item in extra if (token := _content(item))]
    return found


def _added_tokens(encoder: Encoder | None) -> tuple[list[str], list[str]]:
    """The spellings of a tokenizer's special tokens, and of its other added tokens."""
    if encoder is None:
        return [], []
    added = _list_of_added_tokens(core_of(encoder).json)
    special = [token["content"] for token in added if token.get("special")]
    return special, [token["content"] for token in added if not token.get("special")]


def _list_of_added_tokens(tokenizer: bytes) -> list[dict[str, Any]]:
    """The list in a tokenizer.json. All of it is parsed, which takes half a second, only if the list is not found."""
    text = tokenizer.decode()
    found = list(re.finditer(r'"added_tokens"\s*:\s*(?=\[)', text))
    if len(found) == 1:
        listed: list[dict[str, Any]] = json.JSONDecoder().raw_decode(text, found[0].end())[0]
        return listed
    return json.loads(text).get("added_tokens") or []


def _flat(values: Iterable[Any]) -> Iterable[str]:
    for value in values:
        yield from [value] if isinstance(value, str) else value


def _content(token: Any) -> str | None:
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _pretrained_source(root: Path, config: Mapping[str, Any], name: str) -> str:
    file = root / "chat_template.jinja" if name == "default" else root / "additional_chat_templates" / f"{name}.jinja"
    if file.is_file():
        return _read(file)
    if name == "default" and (root / "chat_template.json").is_file():
        config = {**config, **_read_json(root / "chat_template.json")}
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found, known = named.get(name), ", ".join(map(str, named))
        if not isinstance(found, str):
            raise TemplateError(f"{root}: expected a chat template named {name!r}, found {known or 'none'}")
        return found
    if not isinstance(found, str) or name != "default":
        raise TemplateError(
            f"{root}: expected a chat template named {name!r} in chat_template.jinja, additional_chat_templates or "
            "tokenizer_config.json, found none; set template= of gm.Chat, or use ChatTemplate.from_file or from_string"
        )
    return found


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, ValueError) as error:
        raise TemplateError(f"cannot read the template {str(path)!r}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise TemplateError(f"cannot read {str(path)!r} as JSON: {error}") from error
    return found if isinstance(found, dict) else {}
