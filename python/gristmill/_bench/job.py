"""The job that all compared pipelines do, and what they yield."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Tokens: TypeAlias = "npt.NDArray[np.int32]"
# Rows of token ids, and an array that is 0 on padding (None: no padding). The generator's return value is a note.
Batches: TypeAlias = "Generator[tuple[Tokens, npt.NDArray[Any] | None], None, dict[str, Any] | None]"


@dataclass(frozen=True)
class Job:
    """The job of every contender.

    Attributes:
      shards: paths of JSONL files, gzipped or not.
      text_field: key of the text.
      sample: what a record becomes, as `gristmill._sample.named.parse` returns it; None: the text.
      template: the chat template of conversations; None: there are none.
      tokenizer: path of a tokenizer.json.
      eos: id put after each document; None: none.
      batch_size: rows of a batch.
      sequence_length: tokens of a row.
      threads: threads that may encode at once.
      lanes: lanes of gristmill's stream; None: its default.
      on_error: `raise` or `quarantine`, for gristmill; most others stop at a bad record.
      shard_bytes: bytes of all shards.
      storage_options: how stores are reached, where gristmill alone reads from them.
      scratch: folder for files that a contender writes once and reads in later rounds; None: it does not run.
    """

    shards: list[str]
    text_field: str
    tokenizer: str
    eos: int | None
    batch_size: int
    sequence_length: int
    threads: int
    lanes: int | None = None
    on_error: Literal["raise", "quarantine"] = "raise"
    shard_bytes: int = 0
    storage_options: dict[str, str] | None = None
    scratch: str | None = None
    sample: dict[str, Any] | None = None
    template: str | None = None

    @property
    def kind(self) -> str:
        """The kind of sample that a record becomes: `text`, `chat` or `completion`."""
        return "text" if self.sample is None else str(self.sample["kind"])
