"""`gristmill demo`: packs real text, and shows a packed row."""

import time
from contextlib import closing
from pathlib import Path
from typing import Any

from gristmill._dataset.iterator import Element
from gristmill._dataset.packed import PackedDataset
from gristmill._demo.sample_text import TEXT_FIELD, Sample
from gristmill._tokenizer.encoder import Encoder
from gristmill._util.progress import Progress
from gristmill._util.text import counted, format_columns, format_fields

# Tokens shown at a row's start, on each side of a boundary between documents, and at the row's end.
_START, _AROUND, _END = 3, 4, 3


def run(
    sample: Sample,
    tokenizer: Path,
    *,
    batch_size: int = 32,
    sequence_length: int = 1024,
    rows: int | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Packs the sample's text, and returns figures and the tokens of one row.

    Args:
      sample: the text.
      tokenizer: path of a tokenizer.json.
      batch_size: rows of a batch.
      sequence_length: tokens of a row.
      rows: number of rows after which to stop; None: all.
      threads: worker threads; None: as many as there are cores.
    """
    encoder = Encoder.from_file(tokenizer)
    dataset = PackedDataset(
        sample.glob,
        tokenizer=encoder,
        text_field=TEXT_FIELD,
        batch_size=batch_size,
        sequence_length=sequence_length,
        threads=threads,
        eos=False if encoder.eos_id is None else None,
    )
    first_batch: Element = {}
    seconds_to_first = 0.0
    with closing(iter(dataset)) as iterator, Progress("packing", sample.text_bytes, "B") as progress:
        start = time.perf_counter()
        for batch in iterator:
            seconds_to_first = seconds_to_first or time.perf_counter() - start
            first_batch = first_batch or batch
            stats = iterator.stats()
            rate = stats["tokens"] / (time.perf_counter() - start)
            progress.show(stats["text_bytes"], f"{rate / 1e6:.2f} M tokens/s, {stats['rows']:,} rows")
            if rows is not None and stats["rows"] >= rows:
                break
        seconds = time.perf_counter() - start
        stats = iterator.stats()
    return {
        "shards": len(dataset.manifest),
        "lanes": dataset.lanes,
        "tokenizer": str(tokenizer),
        "vocab_size": encoder.vocab_size,
        "engine": encoder.engine,
        "engine_reason": encoder.engine_reason,
        "batch_size": batch_size,
        "sequence_length": sequence_length,
        "seconds": seconds,
        "seconds_to_first_batch": seconds_to_first,
        "tokens_per_second": stats["tokens"] / seconds,
        "text_megabytes_per_second": stats["text_bytes"] / 1e6 / seconds,
        "fill": stats["tokens"] / max(1, stats["tokens"] + stats["padding_tokens"]),
        "stats": stats,
        "row": example_row(first_batch, encoder),
    }


def describe(sample: Sample, result: dict[str, Any]) -> str:
    """The result of `run` for people."""
    stats = result["stats"]
    busy = stats["busy_seconds"]
    all_busy = sum(busy.values()) or 1.0
    padding = "; the rest is padding of lanes that ended early" if stats["padding_tokens"] else ""
    summary = format_fields(
        [
            ("shards", f"{sample.glob} ({result['shards']} in {counted(result['lanes'], 'lane')})"),
            ("text", f"{counted(sample.documents, 'document')}, {sample.text_bytes / 1e6:.1f} MB"),
            ("tokenizer", f"{result['tokenizer']} ({result['vocab_size']:,} tokens)"),
            ("engine", f"{result['engine']}: {result['engine_reason']}"),
            ("packed", f"{counted(stats['documents'], 'document')}, {counted(stats['tokens'], 'token')}"),
            (
                "rows",
                f"{stats['rows']:,} of {counted(result['sequence_length'], 'token')}, in "
                f"{counted(stats['batches'], 'batch', 'batches')} of {result['batch_size']}, "
                f"{result['fill']:.2%} filled{padding}",
            ),
            ("first batch", f"after {result['seconds_to_first_batch']:.2f} s"),
            (
                "speed",
                f"{result['tokens_per_second']:,.0f} tokens/s, {result['text_megabytes_per_second']:.1f} MB/s of text, "
                f"{result['seconds']:.2f} s in all",
            ),
            (
                "time goes to",
                ", ".join(f"{phase} {seconds / all_busy:.0%}" for phase, seconds in busy.items()),
            ),
        ]
    )
    return f"{summary}\n\n{_describe_row(result['row'])}"


def example_row(batch: Element, encoder: Encoder) -> list[dict[str, Any]]:
    """The first row of `batch` in which one document ends and another begins, token by token."""
    segments = batch["inputs_segmentation"]
    row = next((row for row in range(len(segments)) if _boundary(segments[row]) is not None), 0)
    return [
        {
            "index": index,
            "token": encoder.decode([batch["inputs"][row, index]]),
            "segment": int(segments[row, index]),
            "position": int(batch["inputs_position"][row, index]),
            "target": encoder.decode([batch["targets"][row, index]])
            if batch["targets_segmentation"][row, index]
            else None,
        }
        for index in range(segments.shape[1])
        if segments[row, index]
    ]


def _describe_row(row: list[dict[str, Any]]) -> str:
    """The start of a row, its first boundary between documents, and its end."""
    lines = [("index", "token", "segment", "position", "target")]
    for token in shown_tokens(row):
        if token is None:
            lines.append(("...", "", "", "", ""))
        else:
            target = "- (the document ends)" if token["target"] is None else repr(token["target"])
            numbers = (str(token["segment"]), str(token["position"]))
            lines.append((str(token["index"]), repr(token["token"]), *numbers, target))
    segments = max((token["segment"] for token in row), default=0)
    return (
        f"One row: {counted(len(row), 'token')} of {counted(segments, 'document')}. A target is the next "
        "token of the same document, even across the end of the row.\n\n" + format_columns(lines, right=(0, 2, 3))
    )


def shown_tokens(row: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
    """The tokens of an example row that explain it: its start, a boundary, its end; None for a gap."""
    boundary = _boundary([token["segment"] for token in row]) or 0
    shown = sorted(
        index
        for index in {
            *range(_START),
            *range(boundary - _AROUND, boundary + _AROUND),
            *range(len(row) - _END, len(row)),
        }
        if 0 <= index < len(row)
    )
    tokens: list[dict[str, Any] | None] = []
    for before, index in zip([-1, *shown], shown, strict=False):
        if index != before + 1:
            tokens.append(None)
        tokens.append(row[index])
    return tokens


def _boundary(segments: Any) -> int | None:
    """The index at which the second document of a row begins."""
    return next((index for index, segment in enumerate(segments) if segment == 2), None)
