"""`RLHFDataset`: prompts for veRL's trainers."""

import dataclasses
import hashlib
import logging
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gristmill._prompts.batches import check_extra
from gristmill._prompts.cutting import cut
from gristmill._prompts.reading import Ids
from gristmill._util.text import counted
from gristmill.errors import ArgumentError, ShardError, StateError
from gristmill.integrations.verl.chat_tokenizer import ChatTokenizer
from gristmill.integrations.verl.config import RLConfig, file_list, local_copy
from gristmill.integrations.verl.rows import Rows, chosen
from gristmill.integrations.verl.torch_compat import Dataset, tensor

_LOGGER = logging.getLogger("gristmill")


class RLHFDataset(Dataset):  # type: ignore[misc, unused-ignore]
    """veRL's `RLHFDataset`, read, rendered, tokenized and filtered in the core: a map-style data set.

    Items are those of the installed veRL, and of veRL 0.6 where none is installed. The configuration's `prompt_items`
    chooses:

    - `"tokens"` (veRL 0.6): the record without its prompt; `input_ids`, `attention_mask`, `position_ids`: int64
      `[max_prompt_length]`, padded on the left; `raw_prompt_ids`: a list; with `return_raw_chat` `raw_prompt`, with
      `return_full_prompt` `full_prompts`.
    - `"messages"` (veRL 0.7 and later): the record; `raw_prompt`: its messages; `dummy_tensor`: uint8 `[1]`.

    Both have `extra_info`, `index`, `tools_kwargs` and `interaction_kwargs`. Keys that a record lacks and another one
    has are None.

    Args:
      data_files: Parquet, JSONL or Arrow files, globs or folders; or a list of them, in whose order they are read.
      tokenizer: a fast tokenizer of `transformers`, or the path of its folder.
      config: veRL's `data`, a dict or an OmegaConf object. Keys of gristmill's own beside veRL's: `date` and
        `none_fields` of `gm.Chat`; `max_document_bytes`, `max_error_rate`, `max_memory` and `threads` of
        `gm.PromptDataset`; `tool_schemas`,
        in place of files of tools; and `prompt_items`.
      processor: must be None: there are no multimodal prompts.
      max_samples: the most records, drawn before any is left out. -1: all.

    Raises:
      NotImplementedError: there is a processor, or a record has images, videos or audio.
      ShardError: a record cannot be used: if `filter_overlong_prompts`, only if more than `max_error_rate` of the
        records cannot.
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
        if processor is not None:
            raise NotImplementedError(
                f"processor={type(processor).__name__}: this data set has text prompts only; use veRL's own class for "
                "multimodal ones"
            )
        self._config = options = RLConfig.read(config)
        found = ChatTokenizer.of(tokenizer)
        self._pad = found.pad_id if found.pad_id is not None else 0
        files = [local_copy(file, config) for file in file_list(data_files)]
        self._rows, lengths = _read(files, found, options)
        selected = chosen(self._rows, max_samples, shuffle=options.shuffle, seed=options.seed)
        most = options.max_prompt_length if options.filter_overlong_prompts else _NOT_RENDERED
        is_kept = lengths[selected] <= most
        self._items = selected[is_kept]
        self._overlong = [(int(row), int(lengths[row])) for row in selected[~is_kept]]
        self._check_media()
        _LOGGER.info("%s of %s are kept", counted(len(self), "prompt"), counted(self._rows.counts["read"], "record"))

    def __len__(self) -> int:
        """The number of prompts that are kept."""
        return len(self._items)

    def __getitem__(self, item: int) -> dict[str, Any]:
        """One item.

        Raises:
          ShardError: the `extra_info` of the record is not an object.
          NotImplementedError: the prompt is longer than `max_prompt_length`, and `truncation="error"`.
          KeyError: `need_tools_kwargs` is set, and the record has neither `tools_kwargs` nor `data_source`.
        """
        row, options = int(self._items[item]), self._config
        record = self._rows.record(row)
        try:
            check_extra(record.get("extra_info"))
        except ValueError as error:
            raise ShardError(*self._rows.source(row), None, str(error)) from None
        if options.items == "messages":
            record["raw_prompt"] = record[options.prompt_key]
            for key in options.media_keys:
                record.pop(key, None)
            record["dummy_tensor"] = tensor(np.zeros(1, np.uint8))
        else:
            messages = record.pop(options.prompt_key)
            ids = self._cut(self._rows.ids(row))
            record |= {key: tensor(array) for key, array in _padded(ids, options.max_prompt_length, self._pad).items()}
            record["raw_prompt_ids"] = ids.tolist()
            if options.return_raw_chat:
                record["raw_prompt"] = messages
            if options.return_full_prompt:
                record["full_prompts"] = self._rows.text(row)
        return self._with_extra(record)

    def counts(self) -> dict[str, int]:
        """What became of the records: `read`, `kept`, `overlong`, and `quarantined`, which could not be rendered."""
        return {**self._rows.counts, "kept": len(self), "overlong": len(self._overlong)}

    def dropped(self) -> list[dict[str, Any]]:
        """The records that were left out: dicts with `shard`, `record`, `reason`, and `tokens` of prompts too long."""
        most = self._config.max_prompt_length
        found = [
            {"shard": shard, "record": record, "reason": f"more than max_prompt_length={most} tokens", "tokens": tokens}
            for row, tokens in self._overlong
            for shard, record in [self._rows.source(row)]
        ]
        return found + [{**one, "tokens": None} for one in self._rows.quarantined]

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

    def resume_dataset_state(self) -> None:
        """Nothing: the data set keeps its records when it is pickled."""

    def state_dict(self) -> dict[str, str]:
        """Which prompts these are: `torchdata` saves it beside the position of its loader."""
        return {"fingerprint": self.fingerprint}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Checks that a loader's state was saved with the same prompts.

        Raises:
          StateError: it was saved with others.
        """
        if state.get("fingerprint", self.fingerprint) != self.fingerprint:
            raise StateError(
                "the state was saved with other prompts: the files, the tokenizer, its template or the configuration "
                "have changed, so its position means other prompts; use those of the run that saved it"
            )

    @property
    def fingerprint(self) -> str:
        """A hash of what defines the items and their order."""
        defining = dataclasses.replace(self._config, reading={})
        digest = hashlib.sha256(repr((self._rows.fingerprints, defining)).encode())
        digest.update(self._items.tobytes())
        return digest.hexdigest()[:16]

    def _part(self, part: slice) -> Self:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied._items = self._items[part]
        return copied

    def _cut(self, ids: Ids) -> Ids:
        most, side = self._config.max_prompt_length, self._config.truncation
        if len(ids) > most and side == "error":
            raise NotImplementedError(f"sequence_length={len(ids)} is larger than max_length={most}")
        return cut(ids, most, side, has_bos=False, has_eos=False)

    def _with_extra(self, record: dict[str, Any]) -> dict[str, Any]:
        if not record.get("extra_info"):
            record["extra_info"] = {}
        extra = record["extra_info"]
        index, tools_kwargs = extra.get("index", 0), extra.get("tools_kwargs", {})
        if extra.get("need_tools_kwargs", self._config.need_tools_kwargs) and not tools_kwargs:
            _LOGGER.warning("tools_kwargs is empty for index %s, data source: %s", index, record["data_source"])
        record |= {"index": index, "tools_kwargs": tools_kwargs}
        record["interaction_kwargs"] = extra.get("interaction_kwargs", {})
        return record

    def _check_media(self) -> None:
        keys = [key for key in self._config.media_keys if key in self._rows.keys]
        if not keys:
            return
        for row, record in zip(self._items.tolist(), self._rows.records(self._items), strict=True):
            if found := [key for key in keys if record[key]]:
                shard, number = self._rows.source(row)
                raise NotImplementedError(
                    f"{shard}: record {number}: it has {', '.join(found)}, but this data set has text prompts only; "
                    "use veRL's own class for multimodal ones"
                )


# The length of a prompt that could not be rendered with its tools.
_NOT_RENDERED = np.iinfo(np.int64).max


def _read(files: Sequence[str], tokenizer: ChatTokenizer, options: RLConfig) -> "tuple[Rows, npt.NDArray[np.int64]]":
    """The records, and the length by which each is filtered."""
    chat = tokenizer.chat(options.prompt_key, options.template, add_generation_prompt=True)
    reading = {**options.reading, "on_error": "quarantine" if options.filter_overlong_prompts else "raise"}
    if not files:
        raise ArgumentError("data_files: expected at least one file")
    rows = Rows(files, tokenizer.encoder, chat, keeps_texts=options.return_full_prompt, **reading)
    if rows.counts["read"] and not len(rows):
        first = rows.quarantined[0]
        raise ShardError(first["shard"], first["record"], first["byte"], f"no record is usable: {first['reason']}")
    if options.tool_schemas is None or not options.filter_overlong_prompts:
        return rows, rows.lengths
    # veRL measures prompts with the tools, and renders items without them.
    with_tools = dataclasses.replace(options.template, tools=options.tool_schemas)
    chat = tokenizer.chat(options.prompt_key, with_tools, add_generation_prompt=True)
    measured = Rows(files, tokenizer.encoder, chat, keeps_records=False, **reading)
    by_number = np.full(rows.counts["read"], _NOT_RENDERED)
    by_number[measured.numbers] = measured.lengths
    return rows, by_number[rows.numbers]


def _padded(ids: Ids, length: int, pad: int) -> "dict[str, npt.NDArray[np.int64]]":
    """The arrays of a prompt, padded on the left."""
    mask = np.zeros(length, np.int64)
    mask[length - len(ids) :] = 1
    padded = np.full(length, pad, np.int64)
    padded[length - len(ids) :] = ids
    return {"input_ids": padded, "attention_mask": mask, "position_ids": np.clip(np.cumsum(mask) - 1, 0, None)}
