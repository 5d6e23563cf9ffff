"""Pairs: chosen and rejected in one row, next to each other, whole, with the ids and masks of each by itself."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gristmill as gm
from chat_models import write_chatml

SAMPLE = gm.Preference(
    gm.Chat("chosen", train_on="last", fields={"score": gm.Field("good", per="sample")}),
    gm.Chat("rejected", train_on="last", fields={"score": gm.Field("bad", per="sample")}),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_chatml(tmp_path_factory.mktemp("models") / "chatml")


def record_of(number, chosen, rejected):
    prompt = [{"role": "user", "content": f"question {number}"}]

    def answered(words):
        return [*prompt, {"role": "assistant", "content": "word " * words + str(number)}]

    return {"chosen": answered(chosen), "rejected": answered(rejected), "good": number + 0.5, "bad": -number}


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def segments_of(row):
    """The segments of a row: ids, mask, and their entry of the arrays for samples."""
    numbers = row["tokens_segment_ids"]
    return [
        (row["tokens"][numbers == number].tolist(), row["tokens_loss_mask"][numbers == number].tolist(), number - 1)
        for number in range(1, numbers.max() + 1)
    ]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=12),
    seed=st.sampled_from([None, 1]),
    max_segments=st.sampled_from([None, 2, 3, 6]),
)
def test_pairs_are_neighbours_and_whole(tmp_path, folder, lengths, seed, max_segments):
    records = [record_of(number, *own) for number, own in enumerate(lengths)]
    template, length = gm.ChatTemplate.from_pretrained(folder), 512
    encoded = [
        [
            tuple(part.tolist() for part in template.encode(record[key], train_on="last"))
            for key in ("chosen", "rejected")
        ]
        for record in records
    ]
    fits = [sum(len(ids) for ids, _ in pair) <= length for pair in encoded]
    path = write(tmp_path / "a.jsonl", records)
    dataset = gm.PackedDataset(path, tokenizer=folder, sample=SAMPLE, packing="best_fit", truncation="drop", seed=seed,
                               sequence_length=length, layout="grain", max_segments=max_segments)  # fmt: skip
    iterator, seen = iter(dataset), []
    for row in iterator:
        found = segments_of(row)
        assert len(found) % 2 == 0
        assert len(found) <= (max_segments or 10**6)
        expected_pairs = [number // 2 + 1 for number in range(len(found))]
        assert row["pair"].tolist() == expected_pairs + [0] * (len(row["pair"]) - len(found))
        for chosen, rejected in zip(found[::2], found[1::2], strict=True):
            number = encoded.index([chosen[:2], rejected[:2]])
            seen.append(number)
            assert row["score"][chosen[2]] == number + 0.5
            assert row["score"][rejected[2]] == -number
    assert sorted(seen) == [number for number, does in enumerate(fits) if does]
    stats = iterator.stats()
    assert (stats["documents"], stats["filtered"], stats["records"]) == (sum(fits), len(fits) - sum(fits), len(fits))


def test_targets_end_with_each_answer(tmp_path, folder):
    path = write(tmp_path / "a.jsonl", [record_of(0, 3, 5), record_of(1, 2, 2)])
    options = {"tokenizer": folder, "sample": SAMPLE, "packing": "best_fit", "truncation": "error"}
    [row] = gm.PackedDataset(path, sequence_length=1024, **options)
    [other] = gm.PackedDataset(path, sequence_length=1024, layout="varlen", **options)
    numbers = row["inputs_segmentation"]
    lasts = np.flatnonzero(np.append(numbers[1:], 0) != numbers)
    assert len(lasts) == 4
    assert not row["targets"][lasts].any()
    assert not row["targets_segmentation"][lasts].any()
    assert (row["inputs_position"][1:][numbers[1:] != numbers[:-1]] == 0).all()
    expanded = gm.expand(other)
    for name, array in row.items():
        np.testing.assert_array_equal(np.asarray(expanded[name])[: len(array)], array, err_msg=name)
    [labels] = gm.PackedDataset(path, sequence_length=1024, layout="hf", **options)
    starts = np.flatnonzero(np.diff(numbers, prepend=0))
    assert (labels["labels"][starts] == -100).all()


def test_completions_share_a_prompt(tmp_path, encoder):
    records = [{"prompt": "The ant", "good": " is one", "bad": " two"}, {"prompt": "a", "good": "b", "bad": "c"}]
    path = write(tmp_path / "a.jsonl", records)
    sample = gm.Preference(gm.Completion("prompt", "good"), gm.Completion("prompt", "bad"))
    dataset = gm.PackedDataset(path, tokenizer=encoder, sample=sample, packing="best_fit", truncation="drop", eos=0,
                               sequence_length=256, layout="grain")  # fmt: skip
    [row] = dataset
    texts = [encoder.decode(ids[:-1]) for ids, _, _ in segments_of(row)]
    assert texts == ["The ant is one", "The ant two", "ab", "ac"]
    assert all((ids[-1], mask[-1]) == (0, 1) for ids, mask, _ in segments_of(row))


def test_pairs_with_a_bad_half_are_bad_records(tmp_path, folder):
    bad = record_of(1, 1, 1) | {"rejected": [{"role": "user", "content": "no answer"}]}
    path = write(tmp_path / "a.jsonl", [record_of(0, 1, 1), bad, record_of(2, 1, 1)])
    options = {"tokenizer": folder, "sample": SAMPLE, "packing": "best_fit", "truncation": "drop", "layout": "grain"}
    with pytest.raises(gm.ShardError, match="record 1, byte"):
        [*gm.PackedDataset(path, **options)]
    iterator = iter(gm.PackedDataset(path, on_error="quarantine", max_error_rate=1.0, **options))
    [row] = iterator
    assert [number for number in row["pair"].tolist() if number] == [1, 1, 2, 2]
    assert row["score"][:4].tolist() == [0.5, 0, 2.5, -2]
    assert iterator.stats()["quarantined"] == 1


def test_pairs_resume_between_rows(tmp_path, folder):
    path = write(tmp_path / "a.jsonl", [record_of(number, number % 5, number % 3) for number in range(40)])
    dataset = gm.PackedDataset(path, tokenizer=folder, sample=SAMPLE, packing="best_fit", truncation="drop", seed=1,
                               sequence_length=512, batch_size=2, shuffle_window=8, provenance=True)  # fmt: skip
    batches, iterator = [*dataset], iter(dataset)
    for step in range(len(batches)):
        other = iter(dataset)
        other.set_state(iterator.get_state())
        for name, array in next(other).items():
            np.testing.assert_array_equal(array, batches[step][name])
        next(iterator)


def test_mixtures_have_pairs_beside_conversations(tmp_path, folder):
    pairs = write(tmp_path / "a.jsonl", [record_of(number, 3, 4) for number in range(8)])
    chats = write(tmp_path / "b.jsonl", [{"messages": record_of(0, 3, 3)["chosen"]}] * 8)
    mixture = gm.Mixture(
        {
            "pairs": gm.Source(pairs, weight=1, sample=SAMPLE, epochs=1),
            "chats": gm.Source(chats, weight=1, sample=gm.Chat(), epochs=1),
        }
    )
    seen = set()
    for row in gm.PackedDataset(mixture, tokenizer=folder, packing="best_fit", truncation="drop", sequence_length=512,
                                layout="grain", source_arrays=True):  # fmt: skip
        seen.add(bool(row["pair"].any()))
        assert row["pair"].any() == (row["source"] == 0)
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"packing": "concat"}, "both of a pair are in one row"),
        ({"packing": "best_fit"}, "pairs are never cut"),
        ({"packing": "best_fit", "truncation": "drop", "max_segments": 1}, "a pair has two segments"),
        ({"packing": "best_fit", "truncation": "drop", "boundary_targets": True}, "leave it out"),
        ({"packing": "best_fit", "truncation": "drop", "eos": "<|im_end|>"}, "the chat template writes the tokens"),
    ],
)
def test_rows_that_would_cut_pairs_are_refused(tmp_path, folder, options, message):
    path = write(tmp_path / "a.jsonl", [record_of(0, 1, 1)])
    with pytest.raises(gm.ArgumentError, match=message):
        gm.PackedDataset(path, tokenizer=folder, sample=SAMPLE, **options)


def test_halves_are_checked():
    for make, message in [
        (lambda: gm.Preference(gm.Chat("a"), gm.Completion()), "the same kind"),
        (lambda: gm.Preference(gm.Chat("a", samples="turns"), gm.Chat("b")), "leave samples= out"),
        (lambda: gm.Preference(gm.Chat("a"), "b"), "expected gm.Chat or gm.Completion"),
    ]:
        with pytest.raises((gm.ArgumentError, gm.ArgumentTypeError), match=message):
            make()


def test_long_pairs_stop_a_run_that_says_so(tmp_path, folder):
    path = write(tmp_path / "a.jsonl", [record_of(0, 40, 40)])
    dataset = gm.PackedDataset(path, tokenizer=folder, sample=SAMPLE, packing="best_fit", truncation="error",
                               sequence_length=400)  # fmt: skip
    with pytest.raises(gm.ShardError, match="chosen and rejected of at most sequence_length=400 tokens together"):
        list(dataset)
