"""Sidecars and row lists at random: the stream is that of a naive join, for any threads, hosts and restarts."""

import gzip
import json
import os
import random

import pytest

import gristmill as gm
from helpers import assert_same_batches
from red_pajama import read

LIMIT = 400
SUFFIXES = (".json.gz", ".signals.json.gz")


def document(base, row, rng):
    kind = rng.random()
    if kind < 0.05:
        return rng.choice(["", " \t"])
    if kind < 0.1:
        return rng.choice(
            ["no JSON", "[]", '{"text": 1}', '{"text": 1, "number": 1}', '{"text": "' + "x" * LIMIT + '"}']
        )
    return json.dumps({"text": f"{base} {row} " + "w " * rng.randrange(9), "number": row})


def signals(base, row, rng, is_blank):
    kind = rng.random()
    if is_blank:
        return "" if kind < 0.97 else "{}"
    if kind < 0.03:
        return ""
    if kind < 0.08:
        return rng.choice(
            ["no JSON", "[]", json.dumps({"id": f"x/{base}.json.gz/{row}"}), '{"a": "' + "x" * LIMIT + '"}']
        )
    record = {"score": rng.choice([0, 1, 2, None])}
    if rng.random() < 0.9:
        record["id"] = f"{base}.json.gz/{row if kind < 0.99 else row + 1}"
    return json.dumps(record)


def is_blank(line):
    return not line.strip(" \t\r")


def parsed(line):
    """The object of a line, or None."""
    try:
        found = json.loads(line) if len(line) <= LIMIT else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def join(base, documents, beside, missing, dropped):
    """The texts of a shard, and how many records are filtered, quarantined, and lose the rest of it."""
    texts, filtered, quarantined = [], 0, 0
    is_shifted = False
    for row, line in enumerate(documents):
        own = beside[row] if beside is not None and row < len(beside) else ""
        if is_blank(line):
            is_shifted |= not is_blank(own)
            continue
        if row in dropped:
            filtered += 1
            continue
        if len(line) > LIMIT:
            quarantined += 1
            continue
        if beside is not None and (is_shifted or all(map(is_blank, beside[row:]))):
            return texts, filtered, quarantined + 1, 1
        record, found = parsed(line), {} if beside is None else parsed(own)
        names = f"2023/{base}.json.gz/{row}"
        if record is None or found is None or not names.endswith(f"/{found.get('id', names.split('/', 1)[1])}"):
            quarantined += 1
            continue
        score = found.get("score")
        is_kept = missing == "keep" if beside is None else score is not None and score > 0
        if not (is_kept and record.get("number", 0) % 7):
            filtered += 1
        elif isinstance(record["text"], str):
            texts.append(record["text"])
        else:
            quarantined += 1
    if beside is not None and (is_shifted or not all(map(is_blank, beside[len(documents) :]))):
        return texts, filtered, quarantined + 1, 1
    return texts, filtered, quarantined, 0


def corpus(root, rng):
    """Writes shards, sidecars and a row list. Returns the result of a naive join, and the arguments of a dataset."""
    missing = rng.choice(["keep", "drop"])
    listed, texts, counts = [], [], [0, 0, 0]
    for number in range(rng.randrange(4, 7)):
        base = f"2023/{number:02d}"
        length = rng.randrange(1, 40)
        documents = [document(base, row, rng) for row in range(length)]
        beside = [signals(base, row, rng, is_blank(line)) for row, line in enumerate(documents)]
        fault = rng.random()
        if fault < 0.1:
            beside = beside[: rng.randrange(length)]
        elif fault < 0.2:
            beside.append("{}")
        elif fault < 0.35:
            beside = None
        dropped = set(rng.sample(range(length), length // 5))
        listed += [f"{base}.json.gz/{row}" for row in dropped]
        for folder, suffix, lines in [("documents", SUFFIXES[0], documents), ("signals", SUFFIXES[1], beside)]:
            path = root / folder / f"{base}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if lines is not None:
                path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
        found, *more = join(base, documents, beside, missing, dropped)
        texts += found
        counts = [a + b for a, b in zip(counts, more, strict=True)]
    (root / "list.txt").write_text("".join(f"{name}\n" for name in ["2023/99.json.gz/1000", *listed]))
    return (texts, *counts), {
        "shards": str(root / "documents" / "2023" / "*.json.gz"),
        "keep": "signals.score > 0 and number % 7 != 0",
        "sidecars": {"signals": gm.Sidecar("documents", "signals", *SUFFIXES, missing=missing)},
        "drop": gm.RowList(root / "list.txt"),
        "max_document_bytes": LIMIT,
        "on_error": "quarantine",
        "max_error_rate": 1.0,
        "sequence_length": 16,
        "provenance": 16,
    }


@pytest.mark.parametrize("seed", range(int(os.environ.get("GRISTMILL_CASES", "24"))))
def test_stream_is_that_of_a_naive_join(tmp_path, encoder, seed):
    rng = random.Random(seed)
    expected, arguments = corpus(tmp_path, rng)
    dataset = gm.PackedDataset(**arguments, tokenizer=encoder, lanes=1, threads=1)
    texts, stats = read(dataset)
    assert texts == expected[0]
    assert (stats["filtered"], stats["quarantined"], stats["lost_shards"]) == expected[1:]

    arguments |= {"lanes": 4, "batch_size": 4, "epochs": 2, "seed": rng.choice([None, 7]), "shuffle_window": 5}
    arguments |= {"packing": rng.choice(["concat", "best_fit", "pad"]), "fit_window": 9}
    iterator = iter(gm.PackedDataset(**arguments, tokenizer=encoder, threads=1))
    batches, states = [], [iterator.get_state()]
    for batch in iterator:
        batches.append(batch)
        states.append(iterator.get_state())
    for _ in range(4):
        step = rng.randrange(len(states))
        hosts = rng.choice([1, 2, 4])
        for host in range(hosts):
            resumed = iter(
                gm.PackedDataset(
                    **arguments, tokenizer=encoder, threads=rng.choice([1, 2, 3]), shard_index=host, shard_count=hosts
                )
            )
            resumed.set_state(json.loads(json.dumps(states[step])))
            own = [
                {name: array[host * 4 // hosts : (host + 1) * 4 // hosts] for name, array in b.items()} for b in batches
            ]
            found = list(resumed)
            # A host ends with its own lanes.
            assert_same_batches(found, own[step : step + len(found)])
            assert all(not batch["inputs_segmentation"].any() for batch in own[step + len(found) :])
            if hosts == 1:
                assert resumed.get_state() == states[-1]
            resumed.close()
