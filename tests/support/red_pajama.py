"""RedPajama-v2's folders, small, and a plain join of them in Python."""

import gzip
import json
import random

import gristmill as gm
from gristmill import filters
from gristmill._cli import main

OPTION = "signals=documents/:quality_signals/:.json.gz:.signals.json.gz"
SIGNALS = {"signals": gm.Sidecar("documents/", "quality_signals/", ".json.gz", ".signals.json.gz")}
HEAD, MIDDLE = "2023-06/0000/en_head", "2023-06/0000/en_middle"


class RedPajama:
    """The folders of RedPajama-v2, small: documents without ids, and signals that name shard and row."""

    def __init__(self, root, shards=4, records=40, seed=0):
        self.root = root
        rng = random.Random(seed)
        self.documents, self.signals = {}, {}
        for number in range(shards):
            base = f"2023-06/{number // 2:04d}/en_{('head', 'middle')[number % 2]}"
            self.documents[base] = [
                {"url": f"https://{number}.org/{row}", "raw_content": f"document {number} {row} " * rng.randrange(1, 9)}
                for row in range(records)
            ]
            self.signals[base] = [self._signals(base, row, rng) for row in range(records)]
            self.write(base)

    def _signals(self, base, row, rng):
        scores = {
            "ccnet_nlines": 4,
            "rps_doc_word_count": rng.choice([20, 100, 500, 5000, 20_000, None]),
            "rps_doc_mean_word_length": rng.uniform(2.5, 11),
            "rps_doc_symbol_to_word_ratio": rng.choice([0, 0.05, 0.3]),
            "rps_doc_frac_chars_top_2gram": rng.uniform(0, 0.3),
        }
        bullets = [[0, 9, rng.randrange(2)] for _ in range(4)]
        signals = {name: [[0, 100, score]] for name, score in scores.items()}
        return {
            "id": f"{base}.json.gz/{row}",
            "id_int": rng.getrandbits(62),
            "metadata": {"url": self.documents[base][row]["url"]},
            "quality_signals": signals | {"rps_lines_start_with_bulletpoint": bullets},
        }

    def path(self, base):
        return self.root / "documents" / f"{base}.json.gz"

    def signals_path(self, base):
        return self.root / "quality_signals" / f"{base}.signals.json.gz"

    def lines(self, base):
        return [json.dumps(record) for record in self.documents[base]]

    def signals_lines(self, base):
        return [json.dumps(record) for record in self.signals[base]]

    def write(self, base, lines=None, signals=None):
        """Writes a shard and its sidecar, with these lines instead where some are given."""
        given = {
            self.path(base): lines or self.lines(base),
            self.signals_path(base): signals or self.signals_lines(base),
        }
        for path, written in given.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress("".join(f"{line}\n" for line in written).encode(), mtime=0))

    def glob(self):
        return str(self.root / "documents" / "*" / "*" / "*.json.gz")

    def dataset(self, encoder, **arguments):
        given = {"keep": filters.gopher, "sidecars": SIGNALS, "sequence_length": 32, "text_field": "raw_content"}
        given["provenance"] = 32
        return gm.PackedDataset(self.glob(), tokenizer=encoder, **{**given, **arguments})

    def kept(self):
        """The texts that the data card's rules keep, by a plain join in Python."""
        found = []
        for path in sorted((self.root / "documents").glob("*/*/*.json.gz")):
            name = str(path.relative_to(self.root / "documents")).replace(".json.gz", ".signals.json.gz")
            with gzip.open(path) as documents, gzip.open(self.root / "quality_signals" / name) as signals:
                pairs = zip(documents, signals, strict=True)
                found += [
                    json.loads(document)["raw_content"] for document, signal in pairs if gopher(json.loads(signal))
                ]
        return found


def gopher(record):
    """The data card's subset of Gopher's rules."""
    signals = record["quality_signals"]
    words = signals["rps_doc_word_count"][0][2]
    bullets = sum(line[2] for line in signals["rps_lines_start_with_bulletpoint"])
    return (
        words is not None
        and 50 <= words <= 10_000
        and 3 <= signals["rps_doc_mean_word_length"][0][2] <= 10
        and signals["rps_doc_symbol_to_word_ratio"][0][2] <= 0.1
        and bullets / signals["ccnet_nlines"][0][2] <= 0.9
        and signals["rps_doc_frac_chars_top_2gram"][0][2] <= 0.2
    )


def read(dataset):
    """The texts of all documents in the order of the shards, and the counts."""
    found = {}
    with iter(dataset) as iterator:
        for row in iterator:
            start = 0
            for shard, record, _, length in row["provenance"].tolist():
                found.setdefault((shard, record), []).extend(row["inputs"][start : start + length].tolist())
                start += length
        stats = iterator.stats()
    eos = dataset.encoder.eos_id
    ids = (found[key] for key in sorted(found) if key != (0, 0) or found[key])
    return [dataset.encoder.decode([i for i in document if i != eos]) for document in ids], stats


def run(capsys, *arguments):
    assert main.run([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)
