"""Mutated states and odd arguments: either an error that names the fault, or a correct stream.

`GRISTMILL_CASES` sets the number of cases, `GRISTMILL_SEED` the first seed; a failure names its seed, which reproduces
it. `make fuzz` runs these with the other fuzz targets.
"""

import copy
import decimal
import fractions
import json
import math
import os
import pathlib
import random
import re
import traceback
from collections import Counter

import numpy as np
import pytest

import gristmill as gm
from gristmill import _core
from helpers import PATIENCE, write_shard

CASES = int(os.environ.get("GRISTMILL_CASES", "300"))
SEED = int(os.environ.get("GRISTMILL_SEED", "1"))

pytestmark = pytest.mark.timeout(3 * PATIENCE + CASES)


def check_all(case):
    """Runs `case` with a generator for each seed, prints the outcomes, and fails with the first findings."""
    outcomes, findings = Counter(), []
    for seed in range(SEED, SEED + CASES):
        try:
            outcomes[case(random.Random(seed))] += 1
        except Exception:
            findings.append(f"seed {seed}:\n{traceback.format_exc(limit=-3)}")
            if len(findings) == 10:
                break
    print(f"{CASES} cases:", ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())))
    assert not findings, "\n".join(findings)
    assert len(outcomes) > 1, "all cases have the same outcome"


# More digits than Python writes.
LONG_NUMBER = 10**5000
# Unexpected values, of every type that JSON and Python have.
ODD = [
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 2**64 - 1, 10**30, 0.0, 0.5, -0.5, 1.0,
    1e300, math.inf, -math.inf, math.nan, "", "0", "1", "text", "concat", "best_fit", "pad", "middle", "raise", "hf",
    "quarantine", "\0", "\ud800", "é", "</s>", "nowhere", "*", [], [1], [0] * 14, {}, {"a": 1}, (), b"", b"bytes", {1},
    1j, object(), int, len, np.int64(3), np.float32(0.5), np.array([1, 2]), np.array(5), pathlib.Path("nowhere"),
    LONG_NUMBER, -LONG_NUMBER, "x" * 300, [[1], [2, 3]], [{}], [[]], [None], {"state": {}},
    [{"state": None}], fractions.Fraction(1, 3), decimal.Decimal("0.5"), [LONG_NUMBER], ["a"], "\n", "/dev/null/x",
]  # fmt: skip


def mutate(value, rng):
    """A copy of nested dicts and lists with a random change."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        changed = dict(value)
        match rng.randrange(12):
            case 0:
                del changed[key]
            case 1:
                changed[rng.choice(["0", "9", "x", "", 5, None, "-1", "٣", "9" * 5000])] = changed[key]
            case _:
                changed[key] = mutate(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.95:
        changed = list(value)
        index = rng.randrange(len(value))
        match rng.randrange(14):
            case 0:
                del changed[index]
            case 1:
                changed.insert(index, rng.choice(ODD))
            case _:
                changed[index] = mutate(value[index], rng)
        return changed
    if isinstance(value, int) and rng.random() < 0.8:
        return max(0, value + rng.choice([-1, 1, -2, 2, -10, 10, rng.randrange(-2000, 2000), 2**62]))
    if isinstance(value, str) and rng.random() < 0.7:
        at = rng.randrange(len(value) + 1)
        return value[:at] + rng.choice(["", "x", "=", " ", "0"]) + value[at + rng.randrange(2) :]
    return copy.copy(rng.choice(ODD))


VARIANTS = [
    {},
    {"packing": "best_fit", "fit_window": 5},
    {"packing": "pad", "truncation": "split"},
    {"packing": "concat", "truncation": "middle"},
    {"seed": 3, "shuffle_window": 4, "epochs": 2},
    {"batch_size": None, "lanes": 2},
]


@pytest.fixture(scope="module")
def streams(texts, encoder, tmp_path_factory):
    """Small datasets, each with an iterator, all states of its stream, and the row before each."""
    folder = tmp_path_factory.mktemp("states")
    for number in range(3):
        write_shard(folder / f"{number}.json.gz", [text[:120] for text in texts[number * 9 : number * 9 + 9]])
    with (folder / "3.jsonl").open("w") as shard:
        shard.write('{"raw_content": "one"}\n\nbad\n{"raw_content": ""}\n{"raw_content": "two two two"}')
    streams = []
    for variant in VARIANTS:
        arguments = {"sequence_length": 48, "batch_size": 2, "threads": 1, "prefetch": 1, **variant}
        dataset = gm.PackedDataset(
            [str(folder / "*.json.gz"), str(folder / "3.jsonl")],
            tokenizer=encoder, text_field="raw_content", on_error="quarantine", max_error_rate=1.0, **arguments,
        )  # fmt: skip
        iterator = iter(dataset)
        states, rows = [iterator.get_state()], [None]
        for element in iterator:
            states.append(iterator.get_state())
            rows.append(element["inputs"].tobytes())
        streams.append((dataset, iter(dataset), states, rows))
    return streams


def two_of(iterator):
    """The next two elements, or fewer and the error that ended the iterator."""
    elements = []
    try:
        for _ in range(2):
            elements.append(next(iterator))
    except (gm.StateError, gm.ShardError, StopIteration) as error:
        return elements, error
    return elements, None


def check_rows(element, vocab_size):
    """Asserts that rows are well formed: segments 1, 2 and so on, positions from 0 in each, then padding."""
    rows = {name: np.atleast_2d(array) for name, array in element.items()}
    learnt, targets = rows["targets_segmentation"], rows["targets"]
    assert ((learnt == 0) | (learnt == rows["inputs_segmentation"])).all()
    assert 0 <= targets.min() <= targets.max() < vocab_size
    names = ("inputs", "inputs_segmentation", "inputs_position")
    for ids, segments, positions in zip(*(rows[name] for name in names), strict=True):
        filled = np.count_nonzero(segments)
        assert not any(array[filled:].any() for array in (ids, segments, positions))
        steps = np.diff(segments[:filled], prepend=0)
        assert set(steps) <= {0, 1}
        indices = np.arange(filled)
        assert (positions[:filled] == indices - np.maximum.accumulate(indices * steps)).all()
        assert 0 <= ids.min() <= ids.max() < vocab_size


def test_mutated_states_are_refused_or_restore_a_stream(streams):
    def case(rng):
        dataset, iterator, states, rows = rng.choice(streams)
        step = rng.randrange(len(states))
        state = states[step]
        for _ in range(rng.choice([0, 1, 1, 1, 2, 5])):
            state = mutate(state, rng)
        if rng.random() < 0.3:
            try:
                state = json.loads(json.dumps(state))
            except (TypeError, ValueError):
                return "not JSON"
        try:
            iterator.set_state(state)
        except gm.StateError as error:
            assert 0 < len(str(error)) < 5000
            return "refused at once"
        kept = iterator.get_state()
        assert json.loads(json.dumps(kept)) == kept
        if state == states[step]:
            element = next(iterator, None)
            after = rows[step + 1] if step + 1 < len(rows) else None
            assert after == (element and element["inputs"].tobytes())
            return "as saved"
        fresh = iter(dataset)
        fresh.set_state(kept)
        (elements, end), (others, other_end) = two_of(iterator), two_of(fresh)
        fresh.close()
        assert repr(end) == repr(other_end)
        for element, other in zip(elements, others, strict=True):
            assert all(np.array_equal(element[name], other[name]) for name in element)
            check_rows(element, dataset.encoder.vocab_size)
        match end:
            case gm.StateError():
                return "refused when read"
            case gm.ShardError():
                assert "max_error_rate" in end.reason
                return "counts that stop the run"
            case StopIteration():
                return "ended"
        return "another position"

    check_all(case)


ARGUMENTS = {
    "text_field": ["text", "raw_content"],
    "keep": [None, "nlines == 1", "len(raw_content) > 5 and url is not None"],
    "sequence_length": [1, 7, 64, 2**24],
    "batch_size": [None, 1, 2, 3, 4, 6, 8],
    "lanes": [None, 1, 2, 3, 4],
    "packing": ["concat", "best_fit", "pad"],
    "fit_window": [1, 5, 2**20],
    "truncation": ["right", "left", "middle", "error", "split", None],
    "max_segments": [None, 1, 2],
    "layout": _core.LAYOUTS,
    "boundary_targets": [True, False],
    "eos": [None, False, "</s>", 1],
    "bos": [False, True, "<s>", 0],
    "seed": [None, 0, 2**64 - 1],
    "shuffle_window": [1, 10],
    "epochs": [1, 2, None],
    "shard_index": [0, 1],
    "shard_count": [1, 2],
    "on_error": ["raise", "quarantine"],
    "max_error_rate": [0, 0.01, 1.0],
    "quarantine_file": [None],
    "max_document_bytes": [1, 50, 2**27, 2**63 - 1],
    "threads": [None, 1, 2],
    "prefetch": [1, 4],
    "verify": [0.0, 0.1],
    "on_stats": [None, lambda stats: None],
}


# The words of errors about shards that do not repeat the argument's name.
NAMES_SHARDS = r"\bshards?\b|^no such file|^no file matches"


def is_made(**arguments):
    try:
        gm.PackedDataset(**arguments)
    except gm.GristmillError:
        return False
    return True


def test_odd_arguments_are_refused_by_name_or_yield_rows(shards, encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an odd value may be the name of a quarantine file
    manifest = gm.Manifest.find(shards)

    def case(rng):
        chosen = {name: rng.choice(ARGUMENTS[name]) for name in rng.sample(list(ARGUMENTS), rng.randrange(1, 5))}
        odd = [rng.choice(list(ARGUMENTS))] if rng.random() < 0.7 else []
        for name in odd:
            chosen[name] = rng.choice(ODD)
        chosen.setdefault("text_field", "raw_content")
        if callable(chosen.get("on_stats")):
            chosen["on_stats"] = lambda stats: None  # errors of a user's function pass through unchanged
        plain = {"shards": manifest if rng.random() < 0.9 else shards, "tokenizer": encoder}
        sources = dict(plain)
        if rng.random() < 0.1:
            odd.append(rng.choice(list(sources)))
            sources[odd[-1]] = rng.choice(ODD)
        try:
            dataset = gm.PackedDataset(**sources, **chosen)
        except gm.GristmillError as error:
            message = str(error)
            assert isinstance(error, (ValueError, TypeError, FileNotFoundError)), type(error)
            assert 0 < len(message) < 2000
            assert "\n" not in message
            assert any(name in message for name in ("shards", "tokenizer", "file", "tokens", *ARGUMENTS)), message
            others = {name: value for name, value in chosen.items() if name not in odd}
            if len(odd) == 1 and is_made(**{"text_field": "raw_content", **plain, **others}):
                assert re.search(NAMES_SHARDS if odd == ["shards"] else rf"\b{odd[0]}\b", message), (odd, message)
            return f"refused: {type(error).__name__}"
        # Batches of a gigabyte would take too long.
        if (chosen.get("batch_size") or 1) * chosen.get("sequence_length", 1024) > 2**16 or rng.random() < 0.97:
            return "made"
        iterator = iter(dataset)
        try:
            for _ in range(2):
                element = next(iterator)
                assert all(array.dtype == np.int32 for array in element.values())
        except StopIteration:
            return "ended"
        except gm.ShardError as error:
            assert error.reason
            return "stopped by a record"
        finally:
            iterator.close()
        return "yielded rows"

    check_all(case)


def test_odd_encoder_arguments_are_refused_or_used(encoder, tokenizer_json):
    texts = ["a b c", "", "\ud800", "naïve", "x" * 1000, 5, None, b"bytes", ["a"], object()]

    def case(rng):
        try:
            match rng.randrange(8):
                case 0:
                    gm.Encoder.from_bytes(rng.choice([*ODD, tokenizer_json, tokenizer_json[: rng.randrange(400)]]))
                case 1:
                    gm.Encoder.from_file(rng.choice(ODD))
                case 2:
                    assert encoder.encode(rng.choice(texts)).dtype == np.int32
                case 3:
                    batch = [rng.choice(texts) for _ in range(rng.randrange(4))]
                    ids, offsets = encoder.encode_batch(batch, threads=rng.choice([None, 1, 2, *ODD]))
                    assert len(offsets) == len(batch) + 1
                    assert offsets[-1] == len(ids)
                case 4:
                    encoder.token_to_id(rng.choice(ODD))
                case 5:
                    assert isinstance(encoder.decode(rng.choice(ODD)), str)
                case 6:
                    encoder.encode_batch(rng.choice(ODD))
                case _:
                    encoder.id_to_token(rng.choice(ODD))
        except gm.GristmillError as error:
            assert str(error)
            return f"refused: {type(error).__name__}"
        return "used"

    check_all(case)


def test_odd_arguments_of_other_calls_are_refused_or_used(streams):
    def case(rng):
        dataset, iterator, states, _ = rng.choice(streams)
        odd = mutate(rng.choice(ODD), rng) if rng.random() < 0.3 else rng.choice(ODD)
        try:
            match rng.randrange(5):
                case 0:
                    assert len(dataset.plan(odd)) == dataset.lanes
                case 1:
                    iterator.set_state(rng.choice(states))
                    iterator.set_shard_states(mutate(iterator.get_shard_states(), rng))
                case 2:
                    iterator.set_shard_states(odd)
                case 3:
                    gm.merge_states(odd)
                case _:
                    dataset.for_sharding(odd)
        except gm.GristmillError as error:
            assert 0 < len(str(error)) < 5000
            return f"refused: {type(error).__name__}"
        return "answered"

    check_all(case)
