"""`MultiTurnSFTDataset`: conversations with loss masks, for veRL's SFT trainer."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gristmill import Chat, ChatTemplate
from gristmill._prompts.exact import as_json
from gristmill._util.cores import usable_cores
from gristmill._util.text import shortened
from gristmill.errors import GristmillError, ShardError, TemplateError
from gristmill.integrations.verl.chat_tokenizer import ChatTokenizer
from gristmill.integrations.verl.config import SFTConfig, file_list, is_before_07, local_copy, plain
from gristmill.integrations.verl.rows import Rows, chosen
from gristmill.integrations.verl.torch_compat import Dataset, tensor
from gristmill.integrations.verl.words import VERL

Ids: TypeAlias = "npt.NDArray[np.int32]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"

# Conversations that threads have in hand at once; the core encodes them without the GIL.
_AHEAD = 4096


class MultiTurnSFTDataset(Dataset):  # type: ignore[misc, unused-ignore]
    """veRL's `MultiTurnSFTDataset` with masks that are derived from the origin of every character.

    The ids are those of the whole conversation, encoded at once. `loss_mask` is 1 on the tokens that the model would
    have to generate: of each assistant message, from behind the generation prompt up to and with the token that ends
    the turn. A message's own `loss_mask` of 0 takes it out, and of 1 puts it in.

    Items are `input_ids`, `attention_mask`, `position_ids` and `loss_mask`: int64 `[max_length]`, padded on the right;
    with `pad_mode="no_padding"` int64 `[tokens]`, without `attention_mask`.

    All conversations are rendered, encoded and masked when the data set is made.

    Args:
      parquet_files: Parquet, JSONL or Arrow files, or globs; or a list of them, in whose order they are read.
      tokenizer: a fast tokenizer of `transformers`, or the path of its folder.
      config: veRL's `data`, a dict, an OmegaConf object or None. Keys of gristmill's own: `date`, `none_fields`,
        `stop_tokens`, `on_untrained` and `on_lost_reasoning` of `gm.Chat`; `max_document_bytes`, `max_error_rate`,
        `max_memory` and `threads` of `gm.PromptDataset`.
      processor: of a multimodal model, whose template and tokenizer are taken; conversations are of text only.
      max_samples: the most records. -1: all.

    Attributes:
      untrained: how many conversations `on_untrained="drop"` has left out.

    Raises:
      NotImplementedError: a record has images or videos.
      ShardError: a conversation cannot be rendered or masked, or nothing of it is trained on, also after truncation.
      GristmillError: as `gm.PromptDataset`.
    """

    def __init__(
        self,
        parquet_files: "str | Sequence[str]",
        tokenizer: Any,
        config: Any = None,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        self.tokenizer, self.config, self.processor, self.max_samples = tokenizer, config, processor, max_samples
        self._options = SFTConfig.read(config)
        # For Qwen's multimodal models veRL has position ids in four rows, which are equal where there is text alone.
        of_images = type(getattr(processor, "image_processor", None)).__name__
        self._position_rows = 4 if "Qwen2VLImageProcessor" in of_images else None
        with VERL.of_errors():
            self._read(file_list(parquet_files))

    def _read(self, parquet_files: Sequence[str]) -> None:
        options = self._options
        found = ChatTokenizer.of(self.tokenizer, self.processor)
        self._pad = found.pad_id if found.pad_id is not None else 0
        files = [local_copy(file, self.config or {}) for file in parquet_files]
        # It only reads: conversations are rendered below, with the tools and the thinking of each.
        counting = ChatTemplate.from_string("{{ messages | length }}", tokenizer=found.encoder)
        chat = Chat(options.messages_key, template=counting, add_generation_prompt=True)
        rows = Rows(files, found.encoder, chat, **options.reading)
        selected = chosen(rows, self.max_samples, shuffle=options.shuffle, seed=options.seed)
        template, variables = found.template(options.template), options.template.render_arguments
        self._ids: list[Ids] = []
        self._masks: list[Mask] = []
        self.untrained = 0
        for row, sample in zip(selected.tolist(), _encoded(template, rows, selected, options, variables), strict=True):
            if isinstance(sample, GristmillError):
                shard, number = rows.source(row)
                raise ShardError(shard, number, None, str(sample))
            ids, mask = sample
            if not mask[_window(len(ids), options)].any():
                if options.on_untrained == "error":
                    shard, number = rows.source(row)
                    raise ShardError(shard, number, None, _untrained(len(ids), mask, options))
                self.untrained += 1
                continue
            self._ids.append(ids)
            self._masks.append(mask)

    def __len__(self) -> int:
        """The number of conversations."""
        return len(self._ids)

    def __getitem__(self, item: int) -> dict[str, Any]:
        """One item.

        Raises:
          ValueError: the conversation is longer than `max_length`, and `truncation="error"`.
        """
        ids, mask, options = self._ids[item], self._masks[item], self._options
        if len(ids) > options.max_length and options.truncation == "error":
            raise ValueError(f"sequence_length={len(ids)} is larger than max_length={options.max_length}")
        window = _window(len(ids), options)
        # Since 0.7 positions are those of the whole conversation, also where its beginning is cut.
        first = 0 if is_before_07() else window.start
        ids, mask = ids[window], mask[window]
        length = options.max_length if options.pad_mode == "right" else len(ids)
        arrays = {
            "input_ids": _padded(ids, length, self._pad),
            "attention_mask": _padded(np.ones(len(ids)), length, 0),
            "position_ids": _padded(np.arange(first, first + len(ids)), length, 0),
            "loss_mask": _padded(mask, length, 0),
        }
        if options.pad_mode == "no_padding":
            del arrays["attention_mask"]
        if self._position_rows is not None:
            arrays["position_ids"] = np.tile(arrays["position_ids"], (self._position_rows, 1))
        return {key: tensor(array) for key, array in arrays.items()}


def _encoded(
    template: ChatTemplate,
    rows: Rows,
    selected: "npt.NDArray[np.int64]",
    options: SFTConfig,
    variables: Mapping[str, Any],
) -> "Iterator[tuple[Ids, Mask] | GristmillError]":
    """Ids and mask of each conversation, or the error."""

    def encode(row: int) -> "tuple[Ids, Mask] | GristmillError":
        try:
            record = as_json(rows.record(row))
            if found := [key for key in options.media_keys if record.get(key)]:
                raise NotImplementedError(
                    f"{rows.source(row)[0]}: record {rows.source(row)[1]}: it has {', '.join(found)}, but this data "
                    "set has text only; use veRL's own class for multimodal conversations (leave data.custom_cls out)"
                )
            return _encode(template, record, options, {**variables, **_thinking(record, options)})
        except GristmillError as error:
            return error

    with ThreadPoolExecutor(options.reading.get("threads") or usable_cores()) as pool:
        for start in range(0, len(selected), _AHEAD):
            yield from pool.map(encode, selected[start : start + _AHEAD].tolist())


def _encode(
    template: ChatTemplate, record: Mapping[str, Any], options: SFTConfig, variables: Mapping[str, Any]
) -> tuple[Ids, Mask]:
    messages, tools = record[options.messages_key], plain(record.get(options.tools_key))
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise TemplateError(f"expected JSON under the key {options.tools_key!r}: {error}") from None
    tools = options.template.tools if tools is None else tools
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise TemplateError(f"messages[{index}]: expected a role, found {shortened(message.get('role'))}")
    wanted = [_override(message) for message in messages]
    own = [message["role"] == "assistant" for message in messages]
    # It is followed here, and by no mask.
    unflagged = [{key: value for key, value in one.items() if key != "loss_mask"} for one in messages]

    def masked(trained: Sequence[bool], train_on: Any) -> tuple[Ids, Mask]:
        marked = [
            message if is_trained else {**message, "train": False}
            for message, is_trained in zip(unflagged, trained, strict=True)
        ]
        return template.encode(
            marked,
            tools=tools,
            train_on=train_on if any(trained) else None,
            stop_tokens=options.stop_tokens,
            on_lost_reasoning=options.on_lost_reasoning,
            **variables,
        )

    ids, mask = masked([is_own and want is not False for is_own, want in zip(own, wanted, strict=True)], "assistant")
    others = [want is True and not is_own for is_own, want in zip(own, wanted, strict=True)]
    if any(others):
        roles = {message["role"] for message, is_other in zip(messages, others, strict=True) if is_other}
        mask = mask | masked(others, sorted(roles))[1]
    return ids, mask


def _override(message: Mapping[str, Any]) -> bool | None:
    """The value of a message's own `loss_mask`; None if it has none."""
    value = message.get("loss_mask")
    if value is None:
        return None
    if type(value) is not int:
        raise TemplateError(f"loss_mask should be int, got {type(value)}")
    if value not in (0, 1):
        raise TemplateError(f"loss_mask should be 0 or 1, got {value}")
    return value == 1


def _thinking(record: Mapping[str, Any], options: SFTConfig) -> dict[str, Any]:
    """The variable `enable_thinking`, which veRL 0.6 always sets, and later versions if there is a value."""
    value = record.get(options.enable_thinking_key)
    value = options.enable_thinking_default if value is None else bool(value)
    return {} if value is None and not is_before_07() else {"enable_thinking": value}


def _window(length: int, options: SFTConfig) -> slice:
    """The tokens of a conversation that truncation keeps."""
    if length <= options.max_length:
        return slice(0, length)
    # Without padding veRL keeps the beginning, also where the left side is to be cut.
    if options.truncation == "left" and options.pad_mode == "right":
        return slice(length - options.max_length, length)
    return slice(0, length if options.truncation == "error" else options.max_length)


def _untrained(length: int, mask: Mask, options: SFTConfig) -> str:
    cause = (
        f"data.max_length={options.max_length} cuts all of its trained tokens off ({length} tokens)"
        if mask.any()
        else "no token of it is trained on"
    )
    return f"{cause}; raise data.max_length, or leave such conversations out with data.on_untrained=drop"


def _padded(values: "npt.NDArray[Any]", length: int, pad: int) -> "npt.NDArray[np.int64]":
    padded = np.full(length, pad, np.int64)
    padded[: len(values)] = values
    return padded
