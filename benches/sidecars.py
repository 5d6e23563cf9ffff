"""How fast a filter on signals in files of their own is, beside no filter, and beside the data card's way in Python.

python benches/sidecars.py [--megabytes 64] [--threads 1]

Writes the demo's text in RedPajama-v2's folders, with all of its signals: those of the document, and six with an entry
for each line. Then reads it without a filter, with signals beside it and no filter on them, with the Gopher filter, and
with the Gopher filter that keeps nothing. The yardsticks filter as the data card does and encode nothing: `json` over
both files, and the same through a streaming dataset, whose loader writes the signals as a string that the card's
function parses again.
"""

import argparse
import gzip
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gristmill as gm
from gristmill import filters
from gristmill._demo import sample_text

SHARDS = 8
SIDECARS = {"signals": gm.Sidecar("documents/", "quality_signals/", ".json.gz", ".signals.json.gz")}
OF_DOCUMENT = [
    *("ccnet_bucket", "ccnet_language_score", "ccnet_length", "ccnet_original_length", "ccnet_original_nlines"),
    *("ccnet_perplexity", "rps_doc_books_importance", "rps_doc_openwebtext_importance"),
    *("rps_doc_wikipedia_importance", "rps_doc_curly_bracket", "rps_doc_frac_all_caps_words"),
    *("rps_doc_frac_lines_end_with_ellipsis", "rps_doc_frac_no_alph_words", "rps_doc_frac_unique_words"),
    *("rps_doc_lorem_ipsum", "rps_doc_ldnoobw_words", "rps_doc_ml_palm_score", "rps_doc_ml_wikipedia_score"),
    *("rps_doc_ml_wikiref_score", "rps_doc_num_sentences", "rps_doc_stop_word_fraction", "rps_doc_unigram_entropy"),
    *("rps_doc_ut1_blacklist", *(f"rps_doc_frac_chars_dupe_{n}grams" for n in range(5, 11))),
    *("rps_doc_frac_chars_top_3gram", "rps_doc_frac_chars_top_4gram"),
]
OF_LINES = ["ending_with_terminal_punctution_mark", "javascript_counts", "num_words", "numerical_chars_fraction"]
OF_LINES += ["start_with_bulletpoint", "uppercase_letter_fraction"]


# The corpus


def write(folder: Path, megabytes: int) -> int:
    """Writes documents and signals unless they are there. Returns the inflated bytes of text."""
    root = folder / f"sidecars-{megabytes}"
    done = root / "bytes"
    if done.exists():
        return int(done.read_text())
    sample = sample_text.prepare(folder / "sample", megabytes)
    texts = []
    for path in sorted(Path(sample.folder).glob("*/en_head.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)[sample_text.TEXT_FIELD] for line in lines]
    # Pages of the web are shorter than modules, and have longer lines: the signals of RedPajama-v2 have 0.3 times the
    # bytes of its documents.
    texts = [
        "\n".join(" ".join(lines[at : at + 8]) for at in range(0, len(lines), 8))
        for lines in (text.split("\n") for text in texts)
    ]
    pages = [text[start : start + 4000] for text in texts for start in range(0, len(text), 4000)]
    rng = random.Random(0)
    for number in range(SHARDS):
        base = f"2023-06/{number:04d}/en_head"
        own = pages[number::SHARDS]
        _write(root / "documents" / f"{base}.json.gz", ({"url": base, "raw_content": page} for page in own))
        signals = (_signals(f"{base}.json.gz/{row}", page, rng) for row, page in enumerate(own))
        _write(root / "quality_signals" / f"{base}.signals.json.gz", signals)
    size = sum(len(page.encode()) for page in pages)
    done.write_text(str(size))
    return size


def _write(path: Path, records: Iterator[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", 6, encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")


def _signals(name: str, page: str, rng: random.Random) -> dict[str, Any]:
    length, lines, words = len(page), page.split("\n"), page.split()
    score = {signal: round(rng.random(), 8) for signal in OF_DOCUMENT}
    score |= {
        "ccnet_nlines": len(lines),
        "rps_doc_word_count": len(words),
        "rps_doc_mean_word_length": round(sum(map(len, words)) / max(len(words), 1), 8),
        "rps_doc_symbol_to_word_ratio": round(rng.random() * 0.11, 8),
        "rps_doc_frac_chars_top_2gram": round(rng.random() * 0.22, 8),
    }
    found: dict[str, Any] = {signal: [[0, length, value]] for signal, value in score.items()}
    for signal in OF_LINES:
        start, spans = 0, []
        for line in lines:
            spans.append([start, start + len(line), float(rng.randrange(2))])
            start += len(line) + 1
        found[f"rps_lines_{signal}"] = spans
    return {"id": name, "id_int": rng.getrandbits(62), "metadata": {"url": "u"}, "quality_signals": found}


# The contenders: each returns the number of documents that it keeps.


def grind(documents: str, encoder: gm.Encoder, threads: int, **arguments: Any) -> int:
    """Rows of gristmill."""
    dataset = gm.PackedDataset(
        documents,
        tokenizer=encoder,
        text_field="raw_content",
        sequence_length=2048,
        batch_size=SHARDS,
        threads=threads,
        **arguments,
    )
    with iter(dataset) as iterator:
        for _ in iterator:
            pass
        return int(iterator.stats()["documents"])


def gopher_rules_pass(signals: dict[str, Any]) -> bool:
    """The data card's function."""
    words = signals["rps_doc_word_count"][0][2]
    if words < 50 or words > 10_000:
        return False
    mean = signals["rps_doc_mean_word_length"][0][2]
    if mean < 3 or mean > 10:
        return False
    if signals["rps_doc_symbol_to_word_ratio"][0][2] > 0.1:
        return False
    bullets = sum(line[2] for line in signals["rps_lines_start_with_bulletpoint"])
    if bullets / signals["ccnet_nlines"][0][2] > 0.9:
        return False
    return bool(signals["rps_doc_frac_chars_top_2gram"][0][2] <= 0.2)


def pairs(root: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Documents with their signals."""
    for path in sorted((root / "documents").glob("*/*/*.json.gz")):
        name = str(path.relative_to(root / "documents")).replace(".json.gz", ".signals.json.gz")
        with gzip.open(path) as documents, gzip.open(root / "quality_signals" / name) as signals:
            for document, signal in zip(documents, signals, strict=True):
                yield json.loads(document), json.loads(signal)


def filter_in_python(root: Path) -> int:
    """Python's json over both files."""
    return sum(gopher_rules_pass(signals["quality_signals"]) for _, signals in pairs(root))


def filter_streamed(root: Path) -> int:
    """A streaming dataset, as the card's loader yields records, and the card's loop."""
    from datasets import IterableDataset

    def records() -> Iterator[dict[str, str]]:
        for document, signals in pairs(root):
            quality = json.dumps(signals["quality_signals"])
            yield {"raw_content": document["raw_content"], "doc_id": signals["id"], "quality_signals": quality}

    stream = IterableDataset.from_generator(records)
    return sum(gopher_rules_pass(json.loads(sample["quality_signals"])) for sample in stream)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("target/bench"))
    options = parser.parse_args()
    size = write(options.folder, options.megabytes)
    root = options.folder / f"sidecars-{options.megabytes}"
    documents = str(root / "documents" / "*" / "*" / "*.json.gz")
    encoder = gm.Encoder.from_file(sample_text.tokenizer())

    def rows(keep: str | None = None, **arguments: Any) -> Callable[[], int]:
        return lambda: grind(documents, encoder, options.threads, keep=keep, **arguments)

    contenders: dict[str, Callable[[], int]] = {
        "no filter": rows(),
        "filter on the text": rows("url != 'x'"),
        "signals, all kept": rows("signals.id != 'x'", sidecars=SIDECARS),
        "signals, Gopher": rows(filters.gopher, sidecars=SIDECARS),
        "signals, none kept": rows(f"{filters.gopher} and 1 > 2", sidecars=SIDECARS),
        "json, no ids": lambda: filter_in_python(root),
        "datasets, no ids": lambda: filter_streamed(root),
    }
    compressed = {
        name: sum(path.stat().st_size for path in (root / name).glob("*/*/*")) / 1e6
        for name in ("documents", "quality_signals")
    }
    print(
        f"{size / 1e6:.0f} MB of text; compressed: "
        + ", ".join(f"{name} {mb:.1f} MB" for name, mb in compressed.items())
    )
    print(f"{'':20} {'seconds':>8} {'CPU seconds':>12} {'MB of text/CPU s':>17} {'documents kept':>15}")
    best: dict[str, tuple[float, float]] = {}
    kept: dict[str, int] = {}
    for _ in range(options.rounds):
        for name, run in contenders.items():
            try:
                start, cpu = time.perf_counter(), time.process_time()
                kept[name] = run()
            except ImportError:
                continue
            spent = time.process_time() - cpu, time.perf_counter() - start
            best[name] = min(best.get(name, spent), spent)
    for name, (cpu, seconds) in best.items():
        print(f"{name:20} {seconds:8.2f} {cpu:12.2f} {size / cpu / 1e6:17.1f} {kept[name]:15,}")


if __name__ == "__main__":
    main()
