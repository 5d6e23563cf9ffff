"""`RLHFDataset`: prompts for veRL's trainers."""

import copy
import hashlib
import logging
from collections.abc import Sequence
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from gristmill._prompts.batches import check_extra
from gristmill._prompts.cutting import cut
from gristmill._util.text import counted, shortened
from gristmill.errors import ArgumentError, ShardError
from gristmill.integrations.verl import frame, hooks, states
from gristmill.integrations.verl.chat_tokenizer import ChatTokenizer
from gristmill.integrations.verl.config import RLConfig, file_list, local_copy
from gristmill.integrations.verl.measuring import NOT_RENDERED, Measured, Renderer, measured, measured_in_core
from gristmill.integrations.verl.rows import Rows, chosen
from gristmill.integrations.verl.torch_compat import VerlDataset, tensor
from gristmill.integrations.verl.words import VERL

Ids: TypeAlias = "npt.NDArray[np.uint32]"
_LOGGER = logging.getLogger("gristmill")

# Attributes of veRL's class that are keys of its configuration, with their defaults there.
_ATTRIBUTES = {
    "cache_dir": "~/.cache/verl/rlhf", "prompt_key": "prompt", "image_key": "images", "video_key": "videos",
    "audio_key": "audios", "image_patch_size": 14, "max_prompt_length": 1024, "return_raw_chat": False,
    "return_full_prompt": False, "truncation": "error", "filter_overlong_prompts": True,
    "apply_chat_template_kwargs": {}, "mm_processor_kwargs": {}, "tool_config_path": None, "function_tool_path": None,
    "filter_overlong_prompts_workers": None, "use_shm": False, "chat_template_func": None, "need_tools_kwargs": False,
    "filter_prompts": True, "return_multi_modal_inputs": True, "shuffle": False, "seed": None,
}  # fmt: skip


class RLHFDataset(VerlDataset):  # type: ignore[misc, unused-ignore]
    """veRL's `RLHFDataset`, read, rendered, tokenized and filtered in the core: a map-style data set.

    It is a subclass of the installed veRL's class. Items are those of that version, and of veRL 0.6 where none is
    installed. The configuration's `prompt_items` chooses:

    - `"tokens"` (veRL 0.6): the record without its prompt; `input_ids`, `attention_mask`, `position_ids`: int64
      `[max_prompt_length]`, padded on the left; `raw_prompt_ids`: a list; with `return_raw_chat` `raw_prompt`, with
      `return_full_prompt` `full_prompts`.
    - `"messages"` (veRL 0.7 and later): the record; `raw_prompt`: its messages; `dummy_tensor`: uint8 `[1]`. Nothing
      is rendered unless `filter_overlong_prompts` is set.

    Both have `extra_info`, `index`, `tools_kwargs` and `interaction_kwargs`. Keys that a record lacks and another one
    has are None.

    A derived class may override `_build_messages`, `_download` and `__getitem__`.

    Args:
      data_files: Parquet, JSONL or Arrow files, or globs; or a list of them, in whose order they are read.
      tokenizer: a fast tokenizer of `transformers`, or the path of its folder.
      config: veRL's `data`, a dict or an OmegaConf object. Keys of gristmill's own beside veRL's: `date` and
        `none_fields` of `gm.Chat`; `max_document_bytes`, `max_memory` and `threads` of `gm.PromptDataset`;
        `max_error_rate`, the share of records that the filter may leave out because they cannot be rendered, by
        default all but one; `tool_schemas`, in place of files of tools; and `prompt_items`.
      processor: of a multimodal model, whose template and tokenizer measure the prompts; only with items of messages.
      max_samples: the most records, drawn before any is left out. -1: all.

    Attributes:
      dataframe: the kept records as a `datasets.Dataset`, which is read when it is first asked for.
      tokenizer: as given.
      processor: as given.
      config: as given.

    Raises:
      NotImplementedError: a record has images, videos or audio, or there is a processor and items are of tokens.
      ArgumentError: a key of the configuration is not allowed, or a derived class overrides what is never called.
      ShardError: a record cannot be read; or, where prompts are rendered and not filtered, one cannot be rendered.
      GristmillError: as `gm.PromptDataset`.
    """

    def __init__(
        self,
        data_files: "str | Sequence[str]",
        tokenizer: Any,
        config: Any,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        hooks.check(type(self), RLHFDataset)
        self.tokenizer, self.config, self.processor, self.max_samples = tokenizer, config, processor, max_samples
        for name, default in _ATTRIBUTES.items():
            setattr(self, name, config.get(name, default))
        self._options = options = RLConfig.read(config)
        self.tool_schemas, self.serialize_dataset = options.tool_schemas, False
        if processor is not None and options.items == "tokens":
            raise NotImplementedError(
                f"processor={type(processor).__name__}: items of veRL 0.6 hold what the processor makes of a prompt, "
                "and this data set makes them of text only; use veRL's own class, or veRL 0.7 and later, where items "
                "are messages (data.prompt_items='messages')"
            )
        self.original_data_files = file_list(data_files)
        self.data_files = list(self.original_data_files)
        if not self.data_files:
            raise ArgumentError("data_files: expected at least one file")
        self._download()
        self._frame: Any = None
        with VERL.of_errors():
            self._read()
        self._check_media()
        _LOGGER.info("%s of %s are kept", counted(len(self), "prompt"), counted(self._rows.counts["read"], "record"))

    def __len__(self) -> int:
        """The number of prompts that are kept."""
        return len(self._items)

    def __getitem__(self, item: int) -> dict[str, Any]:
        """One item.

        Raises:
          ShardError: the prompt of the record is no list of messages, its `extra_info` is not an object, or Python
            cannot hold a value of it.
          NotImplementedError: the prompt is longer than `max_prompt_length`, and `truncation="error"`.
          KeyError: `need_tools_kwargs` is set, and the record has neither `tools_kwargs` nor `data_source`.
        """
        row, options = int(self._items[item]), self._options
        record = self._rows.record(row)
        try:
            check_extra(record.get("extra_info"))
        except ValueError as error:
            raise ShardError(*self._rows.source(row), None, str(error)) from None
        if options.items == "messages":
            record["raw_prompt"] = self._messages(row, record)
            for key in options.media_keys:
                record.pop(key, None)
            record["dummy_tensor"] = tensor(np.zeros(1, np.uint8))
        else:
            messages = self._messages(row, record)
            if not self._builds:
                del record[options.prompt_key]
            ids, text = self._rendered(row, messages)
            ids = self._cut(ids)
            record |= {key: tensor(array) for key, array in _padded(ids, options.max_prompt_length, self._pad).items()}
            record["raw_prompt_ids"] = ids.tolist()
            if options.return_raw_chat:
                record["raw_prompt"] = messages
            if options.return_full_prompt:
                record["full_prompts"] = text
        return self._with_extra(record)

    def counts(self) -> dict[str, int]:
        """The counts of the records: `read`, `kept`, `overlong`, and `quarantined`, which could not be rendered."""
        quarantined = self._rows.counts["quarantined"] + len(self._unrendered)
        counts = {**self._rows.counts, "quarantined": quarantined}
        return {**counts, "kept": len(self), "overlong": len(self._overlong)}

    def dropped(self) -> list[dict[str, Any]]:
        """The records that were left out: dicts with `shard`, `record`, `reason`, and `tokens` of prompts too long."""
        most = self._options.max_prompt_length
        found = [
            {"shard": shard, "record": record, "reason": f"more than max_prompt_length={most} tokens", "tokens": tokens}
            for row, tokens in self._overlong
            for shard, record in [self._rows.source(row)]
        ]
        return found + [{**one, "tokens": None} for one in (*self._rows.quarantined, *self._unrendered)]

    def split(self, num_splits: int) -> list[Self]:
        """As many data sets of equal length, one part after another; what is left over is in none.

        Raises:
          ValueError: `num_splits` is not a positive integer, or there are fewer prompts.
        """
        if not isinstance(num_splits, int) or num_splits <= 0:
            raise ValueError(f"num_splits must be a positive integer, got {num_splits}")
        size = len(self) // num_splits
        if not size:
            raise ValueError(f"num_splits={num_splits}: there are only {counted(len(self), 'prompt')}")
        return [self._part(slice(index * size, (index + 1) * size)) for index in range(num_splits)]

    @property
    def dataframe(self) -> Any:
        """See the class.

        Raises:
          MissingExtraError: `datasets` is not installed.
        """
        if self._frame is None:
            self._frame = frame.load(self._rows.paths).select(self._rows.numbers[self._items])
        return self._frame

    @dataframe.setter
    def dataframe(self, value: Any) -> None:
        del value
        raise NotImplementedError(
            "dataframe: this data set makes its items of its own memory, and of no datasets.Dataset; derive the class "
            "from veRL's own RLHFDataset, or filter the files beforehand"
        )

    def resume_dataset_state(self) -> None:
        """Nothing: the data set keeps its records when it is pickled."""

    def state_dict(self) -> dict[str, Any]:
        """The identity of the prompts: `torchdata` saves it beside the position of its loader."""
        return states.state_of(self._content(), len(self), self._settings)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Checks that a loader's state was saved with the same prompts.

        Raises:
          StateError: it was saved with others.
        """
        states.check(state, self.state_dict())

    @property
    def fingerprint(self) -> str:
        """A hash of the prompts and their order: of the records, and of the ids where items have them."""
        return self._content()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_frame": None}

    def _download(self, use_origin_parquet: bool = False) -> None:
        """Puts the paths of local copies into `data_files`: veRL copies files of HDFS."""
        files = self.original_data_files if use_origin_parquet else self.data_files
        self.data_files = [local_copy(file, self.config) for file in files]

    def _read(self) -> None:
        """Reads all records, and measures them if they are filtered."""
        options, filters = self._options, self._options.filter_overlong_prompts
        self._builds = hooks.overrides(type(self), RLHFDataset, "_build_messages")
        self._takes_key = hooks.takes_key(self._build_messages)
        self._renderer: Renderer | None = None
        found = ChatTokenizer.of(self.tokenizer, self.processor) if options.renders else None
        self._pad = 0 if found is None or found.pad_id is None else found.pad_id
        self._settings = states.settings_of(options, found, self.max_samples)
        # veRL measures what a hook has built only with a processor, and else the messages of the record.
        builds = self._builds and (options.items == "tokens" or self.processor is not None)
        if found is None:
            self._rows = Rows(self.data_files, **_without_rate(options.reading))
        elif builds or options.template.documents is not None:
            self._renderer = Renderer(found.template(options.template), options.template)
            self._rows = Rows(self.data_files, **_without_rate(options.reading))
        else:
            self._rows, lengths = measured_in_core(self.data_files, found, options)
        selected = chosen(self._rows, self.max_samples, shuffle=options.shuffle, seed=options.seed)
        if not filters:
            result = Measured(np.zeros(len(selected), np.int64), [])
        elif self._renderer is None:
            result = Measured(lengths[selected], [])
        else:
            result = measured(self._rows, selected, self._measured_messages, self._renderer, options)
        self._unrendered = result.unrendered
        most = options.max_prompt_length if filters else NOT_RENDERED
        is_kept = result.lengths <= most
        self._items = selected[is_kept]
        dropped = zip(selected[~is_kept].tolist(), result.lengths[~is_kept].tolist(), strict=True)
        self._overlong = [(row, tokens) for row, tokens in dropped if tokens != NOT_RENDERED or self._renderer is None]

    def _measured_messages(self, row: int) -> Any:
        """The messages that the filter measures."""
        record = self._rows.record(row)
        return self._messages(row, record) if self.processor is not None else record[self._options.prompt_key]

    def _messages(self, row: int, record: dict[str, Any]) -> Any:
        """The messages of a record, as a derived class builds them."""
        if self._builds:
            return (
                self._build_messages(record, self._options.prompt_key)
                if self._takes_key
                else self._build_messages(record)
            )
        found = record.get(self._options.prompt_key)
        if not isinstance(found, (list, str)):
            key = self._options.prompt_key
            reason = f"expected a list of messages under the key {key!r} (data.prompt_key), found {shortened(found)}"
            raise ShardError(*self._rows.source(row), None, reason)
        return found

    def _rendered(self, row: int, messages: Any) -> tuple[Ids, str]:
        """The ids and, if they are wanted, the text of a prompt."""
        if self._renderer is not None:
            return self._renderer.ids(messages), self._renderer.text(messages)
        return self._rows.ids(row), self._rows.text(row) if self._options.return_full_prompt else ""

    def _content(self) -> str:
        """See `fingerprint`. It is computed once: loaders ask for it with every batch."""
        found: str | None = self.__dict__.get("_hash")
        if found is None:
            digest = hashlib.sha256(self._rows.content(self._items))
            template = self._options.template
            if self._options.items == "tokens" and self._renderer is None and template.date != "today":
                for row in self._items.tolist():
                    ids = self._rows.ids(row)
                    digest.update((ids if self._is_refused(ids) else self._cut(ids)).tobytes())
            found = self.__dict__["_hash"] = digest.hexdigest()[:16]
        return found

    def _part(self, part: slice) -> Self:
        copied = copy.copy(self)
        copied._items, copied._frame = self._items[part], None
        copied.__dict__.pop("_hash", None)
        return copied

    def _is_refused(self, ids: Ids) -> bool:
        return self._options.truncation == "error" and len(ids) > (self._options.max_prompt_length)

    def _cut(self, ids: Ids) -> Ids:
        most = self._options.max_prompt_length
        if self._is_refused(ids):
            raise NotImplementedError(f"sequence_length={len(ids)} is larger than max_length={most}")
        return cut(ids, most, self._options.truncation, has_bos=False, has_eos=False)

    def _with_extra(self, record: dict[str, Any]) -> dict[str, Any]:
        if not record.get("extra_info"):
            record["extra_info"] = {}
        extra = record["extra_info"]
        index, tools_kwargs = extra.get("index", 0), extra.get("tools_kwargs", {})
        if extra.get("need_tools_kwargs", self._options.need_tools_kwargs) and not tools_kwargs:
            _LOGGER.warning("tools_kwargs is empty for index %s, data source: %s", index, record["data_source"])
        record |= {"index": index, "tools_kwargs": tools_kwargs}
        record["interaction_kwargs"] = extra.get("interaction_kwargs", {})
        return record

    def _check_media(self) -> None:
        keys = [key for key in self._options.media_keys if key in self._rows.keys]
        if not keys:
            return
        for row, record in zip(self._items.tolist(), self._rows.records(self._items), strict=True):
            if found := [key for key in keys if record[key]]:
                shard, number = self._rows.source(row)
                raise NotImplementedError(
                    f"{shard}: record {number}: it has {', '.join(found)}, but this data set has text prompts only; "
                    "use veRL's own class for multimodal ones (leave data.custom_cls out)"
                )


def _without_rate(reading: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in reading.items() if name != "max_error_rate"}


def _padded(ids: Ids, length: int, pad: int) -> "dict[str, npt.NDArray[np.int64]]":
    """The arrays of a prompt, padded on the left."""
    mask = np.zeros(length, np.int64)
    mask[length - len(ids) :] = 1
    padded = np.full(length, pad, np.int64)
    padded[length - len(ids) :] = ids
    return {"input_ids": padded, "attention_mask": mask, "position_ids": np.clip(np.cumsum(mask) - 1, 0, None)}
