"""How long prompts are, as veRL's filter measures them."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill import ChatTemplate
from gristmill._util.cores import usable_cores
from gristmill._util.text import counted
from gristmill.errors import ShardError
from gristmill.integrations.verl.chat_tokenizer import ChatTokenizer
from gristmill.integrations.verl.config import RLConfig, TemplateOptions
from gristmill.integrations.verl.rows import Rows

_LOGGER = logging.getLogger("gristmill")

# The length of a prompt that could not be rendered.
NOT_RENDERED = int(np.iinfo(np.int64).max)


@dataclasses.dataclass(frozen=True)
class Renderer:
    """Renders conversations that Python has."""

    template: ChatTemplate
    options: TemplateOptions

    def text(self, messages: Any) -> str:
        """The text of a prompt."""
        return self.template.render(messages, self.options.tools, True, **self.options.render_arguments)

    def ids(self, messages: Any, tools: Any = None) -> "npt.NDArray[np.uint32]":
        """The ids of a prompt. `tools` replace those of the template's options."""
        tools = self.options.tools if tools is None else tools
        return self.template.encode(messages, tools, True, None, **self.options.render_arguments)[0].view(np.uint32)


@dataclasses.dataclass(frozen=True)
class Measured:
    """The tokens of some prompts, `NOT_RENDERED` of those that cannot be rendered; and these."""

    lengths: "npt.NDArray[np.int64]"
    unrendered: list[dict[str, Any]]


def measured(
    rows: Rows,
    selected: "npt.NDArray[np.int64]",
    messages_of: Callable[[int], Any],
    renderer: Renderer,
    options: RLConfig,
) -> Measured:
    """The lengths of prompts that are built in Python."""

    def length(row: int) -> "int | Exception":
        try:
            return len(renderer.ids(messages_of(row), options.tool_schemas))
        except Exception as error:  # a hook's own: veRL leaves the record out
            return error

    with ThreadPoolExecutor(options.reading.get("threads") or usable_cores()) as pool:
        found = list(pool.map(length, selected.tolist()))
    unrendered = []
    for row, one in zip(selected.tolist(), found, strict=True):
        if isinstance(one, Exception):
            shard, record = rows.source(row)
            unrendered.append({"shard": shard, "record": record, "byte": None, "reason": str(one)})
    if unrendered:
        _LOGGER.warning("%s cannot be rendered: dropped() lists them", counted(len(unrendered), "prompt"))
    lengths = [NOT_RENDERED if isinstance(one, Exception) else one for one in found]
    return Measured(np.array(lengths, np.int64), unrendered)


def measured_in_core(
    files: Sequence[str], tokenizer: ChatTokenizer, options: RLConfig
) -> "tuple[Rows, npt.NDArray[np.int64]]":
    """The records, and the length by which each is filtered.

    Raises:
      ShardError: a prompt cannot be rendered and prompts are not filtered, or none can be rendered.
    """
    chat = tokenizer.chat(options.prompt_key, options.template, add_generation_prompt=True)
    filters = options.filter_overlong_prompts
    reading = {"max_error_rate": 1.0, **options.reading, "on_error": "quarantine" if filters else "raise"}
    rows = Rows(files, tokenizer.encoder, chat, keeps_texts=options.return_full_prompt, **reading)
    if rows.counts["read"] and not len(rows):
        first = rows.quarantined[0]
        raise ShardError(first["shard"], first["record"], first["byte"], f"no record is usable: {first['reason']}")
    if options.tool_schemas is None or not filters:
        return rows, rows.lengths
    # veRL measures prompts with the tools, and renders items without them.
    with_tools = dataclasses.replace(options.template, tools=options.tool_schemas)
    chat = tokenizer.chat(options.prompt_key, with_tools, add_generation_prompt=True)
    measured = Rows(files, tokenizer.encoder, chat, keeps_records=False, **reading)
    by_number = np.full(rows.counts["read"], NOT_RENDERED)
    by_number[measured.numbers] = measured.lengths
    return rows, by_number[rows.numbers]
