"""`gristmill inspect --chat`: conversations of a shard with their trained tokens marked."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill._dataset.packed import PackedDataset, spec_of, with_spec
from gristmill._sample.named import make_of
from gristmill._sample.samples import Chat
from gristmill._shards import stores
from gristmill._tokenizer.encoder import Encoder
from gristmill._util.text import counted

# A longer conversation takes several rows here.
_ROW = 2**14
_MARKS = "⟦", "⟧"


def inspect(
    path: str,
    settings: Mapping[str, Any],
    encoder: Encoder,
    *,
    records: int,
    storage_options: stores.StorageOptions | None = None,
) -> dict[str, Any]:
    """The first conversations of a shard, as a run makes samples of them.

    Args:
      path: the shard.
      settings: values of `gm.Chat`.
      encoder: the tokenizer.
      records: how many.
      storage_options: how stores are reached.

    Returns:
      A dict whose `kind` is "chat".

    Raises:
      GristmillError: a setting is not allowed, or a record is bad.
    """
    dataset = PackedDataset(
        path,
        tokenizer=encoder,
        storage_options=dict(storage_options or ()),
        sample=make_of(Chat, settings, "--set"),
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
        by_record = itertools.groupby(iterator, key=lambda row: int(row["provenance"][0, 1]))
        found = [_conversation(encoder, record, rows) for record, rows in itertools.islice(by_record, records)]
    finally:
        iterator.close()
    return {"kind": "chat", "path": path, "conversations": found}


def describe(found: dict[str, Any]) -> str:
    """The result of `inspect` for people: what is trained on is between marks."""
    begin, end = _MARKS
    blocks = []
    for conversation in found["conversations"]:
        text = text_with_marks(conversation["parts"])
        tokens, trained = conversation["tokens"], conversation["trained"]
        blocks.append(
            f"record {conversation['record']}: {counted(tokens, 'token')}, {trained:,} trained on, which are between "
            f"{begin} and {end}\n\n{text}"
        )
    return "\n\n".join(blocks) or "no records"


def marked(encoder: Encoder, ids: npt.NDArray[np.int32], trained: npt.NDArray[np.bool_]) -> list[dict[str, Any]]:
    """The texts of neighbouring tokens that are all trained on, or all not: dicts of `text` and `trained`."""
    borders = [0, *(np.flatnonzero(np.diff(trained)) + 1).tolist(), len(ids)]
    return [
        {"text": encoder.decode(ids[start:end]), "trained": bool(trained[start])}
        for start, end in itertools.pairwise(borders)
    ]


def text_with_marks(parts: Iterable[Mapping[str, Any]]) -> str:
    """A text for people, with what is trained on between marks."""
    begin, end = _MARKS
    return "".join(f"{begin}{part['text']}{end}" if part["trained"] else part["text"] for part in parts)


def _conversation(encoder: Encoder, record: int, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    tokens, mask = [], []
    for row in rows:
        is_token = row["tokens_segment_ids"] > 0
        tokens.append(row["tokens"][is_token])
        mask.append(row["tokens_loss_mask"][is_token])
    ids, trained = np.concatenate(tokens), np.concatenate(mask) == 1
    parts = marked(encoder, ids, trained)
    return {"record": record, "tokens": len(ids), "trained": int(trained.sum()), "parts": parts}
