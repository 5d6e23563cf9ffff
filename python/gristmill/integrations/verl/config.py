"""veRL's configuration: what of it is read, and with which defaults."""

import datetime
import importlib.metadata
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from gristmill._util import checks
from gristmill.errors import ArgumentError

_LOGGER = logging.getLogger("gristmill")

# Arguments of `apply_chat_template` that veRL sets itself.
_SET_BY_VERL = ("tokenize", "return_dict", "return_tensors", "add_generation_prompt")
# Its arguments that it does not take beside `add_generation_prompt=True`, or that a prompt has no use for.
_REFUSED = ("continue_final_message", "return_assistant_tokens_mask")


def plain(value: Any) -> Any:
    """A value of a configuration as dicts and lists, OmegaConf's containers included."""
    if isinstance(value, Mapping):
        return {key: plain(value[key]) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [plain(item) for item in value]
    return value


def file_list(files: Any) -> list[str]:
    """The files that `data_files` names, those of remote file systems copied by veRL."""
    return [os.fspath(file) for file in (plain(files) if _is_list(files) else [files])]


def local_copy(file: str, config: Any) -> str:
    """The local path of a file: veRL copies those of HDFS.

    Raises:
      ArgumentError: veRL is not installed.
    """
    if not file.startswith("hdfs://"):
        return file
    try:
        from verl.utils.fs import copy_to_local
    except ImportError as error:
        raise ArgumentError(f"data_files={file!r}: files of HDFS need veRL, which is not installed") from error
    cache = os.path.expanduser(config.get("cache_dir", "~/.cache/verl/rlhf"))  # noqa: PTH111 - veRL takes a string
    found: str = copy_to_local(src=file, cache_dir=cache, use_shm=config.get("use_shm", False))
    return found


@dataclass(frozen=True, kw_only=True)
class TemplateOptions:
    """How conversations are rendered.

    Attributes:
      source: the text of the template; None: the tokenizer's.
      tools: JSON schemas for the template.
      variables: further variables of the template.
      documents: what the template has as documents.
      date: what a template prints as today's date.
      none_fields: whether keys of messages that are None are left out (`"drop"`) or kept.
    """

    source: str | None
    tools: list[Any] | None
    variables: dict[str, Any]
    documents: list[Any] | None
    date: str | None
    none_fields: Any

    @classmethod
    def read(cls, config: Any, *, renders: bool = True) -> Self:
        """The options in `apply_chat_template_kwargs`, and `date` and `none_fields` beside it.

        Raises:
          ArgumentError: something is rendered, and an option is not supported.
        """
        variables = plain(config.get("apply_chat_template_kwargs", None) or {})
        for name in _SET_BY_VERL:
            variables.pop(name, None)
        for name in _REFUSED:
            if variables.pop(name, None) and renders:
                raise ArgumentError(
                    f"data.apply_chat_template_kwargs.{name}: transformers takes no such argument for prompts, which "
                    "ask for an answer (add_generation_prompt=True); leave it out"
                )
        return cls(
            source=variables.pop("chat_template", None),
            tools=variables.pop("tools", None),
            documents=variables.pop("documents", None),
            variables=variables,
            date=config.get("date", None),
            none_fields=checks.choice("data.none_fields", config.get("none_fields", _none_fields()), ("drop", "keep")),
        )

    @property
    def render_arguments(self) -> dict[str, Any]:
        """The arguments of `ChatTemplate.render` beside messages and tools."""
        more = {} if self.documents is None else {"documents": self.documents}
        return {**self.variables, **more, "date": self.rendered_date, "none_fields": self.none_fields}

    @property
    def rendered_date(self) -> str | None:
        """The date that the template prints."""
        return datetime.datetime.now().date().isoformat() if self.date == "today" else self.date


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The keys of veRL's `data` that all data sets read.

    Attributes:
      template: how conversations are rendered.
      truncation: which side of longer ones is cut.
      shuffle: whether `max_samples` records are drawn.
      seed: seeds that.
      reading: arguments of `gm.PromptDataset`, by gristmill's own keys.
    """

    template: TemplateOptions
    truncation: str
    shuffle: bool
    seed: int | None
    reading: dict[str, Any]


def _shared(config: Any, truncations: tuple[str, ...], *, renders: bool = True) -> dict[str, Any]:
    """The values of a `DataConfig`."""
    reading = ("max_document_bytes", "max_error_rate", "max_memory", "threads")
    return {
        "template": TemplateOptions.read(config, renders=renders),
        "truncation": checks.choice("data.truncation", config.get("truncation", "error"), truncations),
        "shuffle": bool(config.get("shuffle", False)),
        "seed": config.get("seed", None),
        "reading": {name: config.get(name) for name in reading if config.get(name, None) is not None},
    }


@dataclass(frozen=True, kw_only=True)
class RLConfig(DataConfig):
    """The keys that `RLHFDataset` reads, by veRL's names.

    Attributes:
      renders: whether prompts are rendered: for items of tokens, or to be filtered.
      max_prompt_length: 0 if there is none, which prompts that are not rendered do not need.
    """

    renders: bool
    prompt_key: str
    media_keys: tuple[str, ...]
    max_prompt_length: int
    filter_overlong_prompts: bool
    tool_schemas: list[Any] | None
    return_raw_chat: bool
    return_full_prompt: bool
    need_tools_kwargs: bool
    items: str

    @classmethod
    def read(cls, config: Any) -> Self:
        """The values of a configuration, a dict or OmegaConf's.

        Raises:
          ArgumentError: a value is not allowed.
        """
        items = checks.choice("data.prompt_items", config.get("prompt_items", _items()), ("tokens", "messages"))
        filters = bool(config.get("filter_overlong_prompts", True))
        renders = filters or items == "tokens"
        most = config.get("max_prompt_length", 1024)
        if renders or most is not None:
            hint = ", or data.filter_overlong_prompts=False" if items == "messages" else ""
            most = checks.integer("data.max_prompt_length", most, 1, 2**24, hint)
        if "datagen" in config and (config.get("datagen") or {}).get("path", None) is not None:
            raise ArgumentError(
                f"data.datagen.path={config['datagen']['path']!r}: DynamicGenDataset appends to its prompts while it "
                "trains, and this data set reads them once; leave data.custom_cls out, so that veRL takes its own class"
            )
        media = {"image_key": "images", "video_key": "videos"}
        if items == "messages":
            media["audio_key"] = "audios"
        return cls(
            **_shared(config, ("error", "left", "right", "middle"), renders=renders),
            prompt_key=config.get("prompt_key", "prompt"),
            media_keys=tuple(config.get(key, default) for key, default in media.items()),
            renders=renders,
            max_prompt_length=most or 0,
            filter_overlong_prompts=filters,
            tool_schemas=_tool_schemas(config),
            return_raw_chat=bool(config.get("return_raw_chat", False)),
            return_full_prompt=bool(config.get("return_full_prompt", False)),
            need_tools_kwargs=bool(config.get("need_tools_kwargs", False)),
            items=items,
        )


@dataclass(frozen=True, kw_only=True)
class SFTConfig(DataConfig):
    """The keys that `MultiTurnSFTDataset` reads, by veRL's names."""

    pad_mode: str
    max_length: int
    messages_key: str
    media_keys: tuple[str, ...]
    tools_key: str
    enable_thinking_key: str
    enable_thinking_default: bool | None
    on_untrained: str
    on_lost_reasoning: Any
    stop_tokens: tuple[str, ...]

    @classmethod
    def read(cls, config: Any) -> Self:
        """The values of a configuration: a dict, an OmegaConf object, or None.

        Raises:
          ArgumentError: a value is not allowed.
        """
        config = {} if config is None else config
        multiturn = config.get("multiturn", None) or {}  # where veRL 0.6 has the names of the columns

        def key(name: str, default: str) -> str:
            found: str = config.get(name, None) or multiturn.get(name, None) or default
            return found

        return cls(
            **_shared(config, ("error", "left", "right")),
            pad_mode=checks.choice("data.pad_mode", str(config.get("pad_mode", "right")), ("right", "no_padding")),
            max_length=checks.integer("data.max_length", config.get("max_length", 1024), 1, 2**24),
            messages_key=key("messages_key", "messages"),
            media_keys=(config.get("image_key", None) or "images", config.get("video_key", None) or "videos"),
            tools_key=key("tools_key", "tools"),
            enable_thinking_key=key("enable_thinking_key", "enable_thinking"),
            enable_thinking_default=_thinking_default(config.get("enable_thinking_default", None)),
            on_untrained=checks.choice("data.on_untrained", config.get("on_untrained", "error"), ("error", "drop")),
            on_lost_reasoning=checks.choice(
                "data.on_lost_reasoning", config.get("on_lost_reasoning", "error"), ("error", "ignore")
            ),
            stop_tokens=_tokens("data.stop_tokens", config.get("stop_tokens", None)),
        )


def _thinking_default(value: Any) -> bool | None:
    """The default as veRL has it, which makes True of any text, and writes `none` in its own configuration."""
    if isinstance(value, str):
        _LOGGER.warning(
            "data.enable_thinking_default=%r is a text, of which veRL makes True, and so does this data set; write "
            "null for no value, or true or false",
            value,
        )
    return None if value is None else bool(value)


def _tokens(name: str, value: Any) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else checks.items(name, value or (), "a list of tokens")
    return tuple(checks.text(name, token) for token in found)


def is_before_07() -> bool:
    """Whether items are those of veRL 0.6: so with that version, and where veRL is not installed."""
    try:
        found = importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        return True
    return _numbers(found) < [0, 7]


def _items() -> str:
    return "tokens" if is_before_07() else "messages"


def _none_fields() -> str:
    """The treatment by the installed `transformers` of message keys that are None."""
    try:
        return "drop" if _numbers(importlib.metadata.version("transformers")) >= [5, 24] else "keep"
    except importlib.metadata.PackageNotFoundError:
        return "keep"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:2] if part.isdigit()]


def _tool_schemas(config: Any) -> list[Any] | None:
    """The schemas of the tools that veRL makes of its files, without those that cannot be made, as there."""
    paths = {key: config.get(key, None) for key in ("tool_config_path", "function_tool_path")}
    given = config.get("tool_schemas", None)
    if given is not None:
        found: list[Any] = plain(given)
        return found
    if not any(paths.values()):
        return None
    try:
        tools = _tools(**paths)
        return [tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in tools]
    except Exception as error:  # errors of veRL and of the tools' own modules: it continues without them
        _LOGGER.warning(
            "the tools of %s cannot be made, so that prompts are measured without them: %s",
            ", ".join(f"{key}={path!r}" for key, path in paths.items() if path),
            error,
        )
        return None


def _tools(tool_config_path: str | None, function_tool_path: str | None) -> Sequence[Any]:
    try:
        from verl.tools.tool_registry import load_all_tools
    except ImportError:
        from verl.tools.utils.tool_registry import initialize_tools_from_config

        found: Sequence[Any] = initialize_tools_from_config(tool_config_path)
        return found
    more: Sequence[Any] = load_all_tools(tool_config_path=tool_config_path, function_tool_path=function_tool_path)
    return more


def _is_list(files: Any) -> bool:
    return isinstance(files, Sequence) and not isinstance(files, (str, bytes))
