"""`gristmill inspect chats`: conversations of a shard with their trained tokens marked."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

import gristmill._core as _core
from gristmill._dataset.iterator import PackedDatasetIterator
from gristmill._dataset.packed import PackedDataset, spec_of, with_spec
from gristmill._sample.named import make_of
from gristmill._sample.plans import ChatPlan
from gristmill._sample.samples import Chat, Instruction
from gristmill._shards.address import Address
from gristmill._tokenizer.encoder import Encoder, text_of
from gristmill._util import checks
from gristmill._util.local_files import utf8_path
from gristmill._util.text import counted

# A longer conversation takes several rows here.
_ROW = 2**14
_MARKS = "⟦", "⟧"
_KINDS: dict[str, type[Chat]] = {"chat": Chat, "instruction": Instruction}


def inspect(
    shard: Address,
    settings: Mapping[str, Any],
    encoder: Encoder,
    *,
    records: int,
) -> dict[str, Any]:
    """The first conversations of a shard, as a run makes samples of them.

    Args:
      shard: the shard.
      settings: values of `gm.Chat`, or with `kind` "instruction" of `gm.Instruction`.
      encoder: the tokenizer.
      records: how many.

    Returns:
      A dict whose `kind` is "chat".

    Raises:
      GristmillError: a setting is not allowed, or a record is bad.
    """
    # The fault at which a run stops is shown here.
    own = {name: value for name, value in settings.items() if name != "kind"}
    kind = _KINDS[checks.choice("kind", settings.get("kind", "chat"), tuple(_KINDS))]
    sample = replace(make_of(kind, own, "--set"), on_lost_reasoning="ignore")
    dataset = PackedDataset(
        **shard.arguments,
        tokenizer=encoder,
        sample=sample,
        sequence_length=_ROW,
        packing="pad",
        truncation="split",
        layout="grain",
        provenance=True,
        prefetch=1,
        threads=1,
    )
    iterator = iter(with_spec(dataset, replace(spec_of(dataset), delivers_untrained=True)))
    try:
        found: list[dict[str, Any]] = []
        lines = _Lines(dataset)
        for (piece, record, *number), rows in itertools.groupby(_rows(iterator), key=_sample_of):
            if len({conversation["record"] for conversation in found} | {record}) > records:
                break
            own = {"sample": number[0]} if number else {}
            found.append(
                {"record": record, **own, **_conversation(encoder, rows), **lines.untrained(piece, record, *number)}
            )
    finally:
        iterator.close()
    return {"kind": "chat", "path": shard.name, "conversations": found}


def describe(found: dict[str, Any]) -> str:
    """The result of `inspect` for people: what is trained on is between marks."""
    begin, end = _MARKS
    blocks = []
    for conversation in found["conversations"]:
        text = text_with_marks(conversation["parts"])
        tokens, trained = conversation["tokens"], conversation["trained"]
        only_stops = ", and nothing that its messages say" if conversation["only_stops"] else ""
        of_record = f", sample {conversation['sample']}" if "sample" in conversation else ""
        notes = "".join(f"\n{note}" for note in _notes(conversation))
        blocks.append(
            f"record {conversation['record']}{of_record}: {counted(tokens, 'token')}, {trained:,} trained on, which "
            f"are between {begin} and {end}{only_stops}{notes}\n\n{text}"
        )
    return "\n\n".join(blocks + _summary(found["conversations"])) or "no records"


def _notes(conversation: Mapping[str, Any]) -> list[str]:
    """The parts of a conversation that are not trained on, or not in the text."""
    notes = [
        f"messages[{message}]: the template writes nothing of its content"
        for message in conversation["unwritten_messages"]
    ]
    notes += ["the template writes nothing of the tools"] if conversation["unwritten_tools"] else []
    notes += [
        f"messages[{lost['message']}]: the template does not write the reasoning of its {lost['field']!r}"
        for lost in conversation["lost_reasoning"]
    ]
    return notes + [
        f"messages[{message}]: no token at which the model stops is trained behind it: name it with stop_tokens=, or "
        "for the last turn with final_stop="
        for message in conversation["without_stop"]
    ]


def _summary(conversations: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many of the conversations lose reasoning, and what a run says of the first one."""
    losing = [conversation for conversation in conversations if conversation["lost_reasoning"]]
    return [
        f"{len(losing):,} of {counted(len(conversations), 'conversation')} lose reasoning; a run with "
        f'on_lost_reasoning="error" says of record {first["record"]}: {first["lost_reasoning_error"]}'
        for first in losing[:1]
    ]


def marked(encoder: Encoder, ids: npt.NDArray[np.int32], trained: npt.NDArray[np.bool_]) -> list[dict[str, Any]]:
    """The texts of neighbouring tokens that are all trained on, or all not: dicts of `text` and `trained`."""
    borders = [0, *(np.flatnonzero(np.diff(trained)) + 1).tolist(), len(ids)]
    return [
        {"text": text_of(encoder, ids[start:end].tolist()), "trained": bool(trained[start])}
        for start, end in itertools.pairwise(borders)
    ]


def text_with_marks(parts: Iterable[Mapping[str, Any]]) -> str:
    """A text for people, with what is trained on between marks."""
    begin, end = _MARKS
    return "".join(f"{begin}{part['text']}{end}" if part["trained"] else part["text"] for part in parts)


def _sample_of(row: Mapping[str, Any]) -> tuple[int, ...]:
    """Shard and record of a row of one sample, and the sample where records may become several."""
    shard, record, _, _, *sample = row["provenance"][0].tolist()
    return shard, record, *sample


def _rows(iterator: PackedDatasetIterator) -> Iterator[dict[str, Any]]:
    """The rows, and whether one ends a conversation of which only the tokens are trained on that end messages."""
    before = 0
    for row in iterator:
        only_stops = iterator.stats()["only_stops"]
        yield {**row, "only_stops": only_stops > before}
        before = only_stops


class _Lines:
    """The records of a dataset's shards, each of which is read once, from its beginning on."""

    def __init__(self, dataset: PackedDataset) -> None:
        self._source = spec_of(dataset).sources[0]
        self._shards: dict[int, _core.Records] = {}
        self._last: tuple[tuple[int, int], Any] | None = None

    def untrained(self, shard: int, record: int, sample: int = 0) -> dict[str, Any]:
        """The parts of a sample that the template leaves out, the error about it, and messages without a stop token."""
        if self._last is None or self._last[0] != (shard, record):
            assert isinstance(self._source.sample, ChatPlan)
            self._last = (shard, record), _core.untrained_of(self._source.sample, self._line(shard, record))
        samples, error = self._last[1]
        lost, without_stop, messages, tools = samples[sample]
        return {
            "lost_reasoning": [{"message": message, "field": field} for message, field in lost],
            "lost_reasoning_error": error,
            "without_stop": without_stop,
            "unwritten_messages": messages,
            "unwritten_tools": tools,
        }

    def _line(self, shard: int, record: int) -> bytes:
        source = self._source
        if shard not in self._shards:
            path, size = utf8_path(source.shards.paths[shard]), source.shards.sizes[shard]
            storage = source.shards.storage_options
            self._shards[shard] = _core.Records(path, size, source.max_document_bytes, storage=storage)
        line = self._shards[shard].record(record)
        assert line is not None
        return line[2]


def _conversation(encoder: Encoder, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    tokens, mask, only_stops = [], [], False
    for row in rows:
        only_stops |= row["only_stops"]
        is_token = row["tokens_segment_ids"] > 0
        tokens.append(row["tokens"][is_token])
        mask.append(row["tokens_loss_mask"][is_token])
    ids, trained = np.concatenate(tokens), np.concatenate(mask) == 1
    parts = marked(encoder, ids, trained)
    return {"tokens": len(ids), "trained": int(trained.sum()), "only_stops": only_stops, "parts": parts}
