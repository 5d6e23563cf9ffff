"""`pad_segments_to`: each segment begins at a multiple, and the filling is nothing."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gristmill as gm

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(path, lengths):
    records = [
        {"input_ids": [100 * number + index + 1 for index in range(length)]} for number, length in enumerate(lengths)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def naive_concat(lengths, length, multiple):
    """Rows of `concat` as lists of (start, ids): the next document begins at a multiple, if the row has one left."""
    rows, row, filled = [], [], 0
    for number, count in enumerate(lengths):
        ids = [100 * number + index + 1 for index in range(count)]
        while ids:
            filled = -(-filled // multiple) * multiple
            if filled >= length:
                rows.append(row)
                row, filled = [], 0
            taken = ids[: length - filled]
            row.append((filled, taken))
            filled, ids = filled + len(taken), ids[len(taken) :]
            if filled == length:
                rows.append(row)
                row, filled = [], 0
    return rows + ([row] if row else [])


def segments_of(row):
    numbers = row["tokens_segment_ids"]
    starts = np.flatnonzero((np.diff(numbers, prepend=0) != 0) & (numbers > 0))
    return [(int(at), row["tokens"][numbers == numbers[at]].tolist()) for at in starts]


@SETTINGS
@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=12), multiple=st.sampled_from([1, 2, 4, 8]))
def test_concat_is_the_naive_packer(tmp_path, lengths, multiple):
    path = write(tmp_path / "a.jsonl", lengths)
    options = {"sample": gm.Tokens(), "sequence_length": 16, "layout": "grain"}
    iterator = iter(gm.PackedDataset(path, pad_segments_to=multiple, **options))
    rows = [*iterator]
    assert [segments_of(row) for row in rows] == naive_concat(lengths, 16, multiple)
    for row in rows:
        filling = row["tokens_segment_ids"] == 0
        assert not row["tokens"][filling].any()
        assert not row["tokens_positions"][filling].any()
    stats = iterator.stats()
    assert (stats["tokens"], stats["padding_tokens"]) == (sum(lengths), 16 * len(rows) - sum(lengths))


@SETTINGS
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=20),
    multiple=st.sampled_from([2, 4, 8]),
    max_segments=st.sampled_from([None, 2, 3]),
    seed=st.sampled_from([None, 1]),
)
def test_best_fit_keeps_documents_whole(tmp_path, lengths, multiple, max_segments, seed):
    path = write(tmp_path / "a.jsonl", lengths)
    options = {"sample": gm.Tokens(), "sequence_length": 16, "packing": "best_fit", "seed": seed,
               "max_segments": max_segments, "provenance": True}  # fmt: skip
    found, whole = [], []
    for row in gm.PackedDataset(path, pad_segments_to=multiple, layout="grain", **options):
        segments = segments_of(row)
        assert all(start % multiple == 0 for start, _ in segments)
        assert len(segments) <= (max_segments or 16)
        found += [token for _, ids in segments for token in ids]
        whole += [ids for _, ids in segments if len(ids) < 16]
        records = [entry[1] for entry in row["provenance"].tolist() if entry[3]]
        assert records == [(ids[0] - 1) // 100 for _, ids in segments]
    assert sorted(found) == [100 * number + index + 1 for number, count in enumerate(lengths) for index in range(count)]
    assert sorted(map(len, whole)) == sorted(count % 16 for count in lengths if count % 16)


def test_targets_and_labels_do_not_cross_the_filling(tmp_path):
    path = write(tmp_path / "a.jsonl", [3, 5, 2])
    options = {"sample": gm.Tokens(), "sequence_length": 16, "pad_segments_to": 4}
    [row] = gm.PackedDataset(path, **options)
    assert row["inputs"].tolist() == [1, 2, 3, 0, 101, 102, 103, 104, 105, 0, 0, 0, 201, 202, 0, 0]
    assert row["targets"].tolist() == [2, 3, 0, 0, 102, 103, 104, 105, 0, 0, 0, 0, 202, 0, 0, 0]
    assert row["inputs_segmentation"].tolist() == [1, 1, 1, 0, 2, 2, 2, 2, 2, 0, 0, 0, 3, 3, 0, 0]
    [row] = gm.PackedDataset(path, layout="hf", **options)
    assert row["labels"].tolist() == [-100, 2, 3, *[-100] * 2, 102, 103, 104, 105, *[-100] * 4, 202, -100, -100]
    [row] = gm.PackedDataset(path, boundary_targets=True, **options)
    assert row["targets"].tolist() == [2, 3, 101, 0, 102, 103, 104, 105, 201, 0, 0, 0, 202, 0, 0, 0]


def test_pairs_begin_at_multiples(tmp_path, encoder):
    records = [{"prompt": "a", "good": "bcd" * number, "bad": "ef"} for number in range(1, 6)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    sample = gm.Preference(gm.Completion("prompt", "good"), gm.Completion("prompt", "bad"))
    for row in gm.PackedDataset(path, tokenizer=encoder, sample=sample, sequence_length=32, packing="best_fit", eos=0,
                                truncation="drop", layout="grain", pad_segments_to=8):  # fmt: skip
        segments = segments_of(row)
        assert segments
        assert len(segments) % 2 == 0
        assert all(start % 8 == 0 for start, _ in segments)


def test_states_restore_with_filling(tmp_path):
    path = write(tmp_path / "a.jsonl", [number * 5 % 13 for number in range(40)])
    for packing in ("concat", "best_fit"):
        dataset = gm.PackedDataset(path, sample=gm.Tokens(), sequence_length=16, packing=packing, pad_segments_to=4,
                                   seed=1, shuffle_window=8)  # fmt: skip
        rows, iterator = [row["inputs"].tolist() for row in dataset], iter(dataset)
        for step in range(len(rows)):
            other = iter(dataset)
            other.set_state(iterator.get_state())
            assert next(other)["inputs"].tolist() == rows[step]
            next(iterator)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad_segments_to": 3}, "expected a number that divides sequence_length=16"),
        ({"pad_segments_to": 0}, "pad_segments_to=0"),
    ],
)
def test_what_cannot_be_filled_is_refused(tmp_path, options, message):
    path = write(tmp_path / "a.jsonl", [3])
    with pytest.raises(gm.ArgumentError, match=message):
        gm.PackedDataset(path, sample=gm.Tokens(), sequence_length=16, **options)


@SETTINGS
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=20),
    multiple=st.sampled_from([1, 2, 8]),
    packing=st.sampled_from(["concat", "best_fit"]),
)
def test_varlen_says_the_room_of_segments(tmp_path, lengths, multiple, packing):
    path = write(tmp_path / "a.jsonl", lengths)
    options = {"sample": gm.Tokens(fields={"same": gm.Field("input_ids", "int32")}), "sequence_length": 16,
               "batch_size": 2, "packing": packing, "max_segments": 8, "pad_segments_to": multiple}  # fmt: skip
    batches = [gm.PackedDataset(path, layout=layout, **options) for layout in ("maxtext", "varlen")]
    for expected, batch in zip(*batches, strict=True):
        expanded = gm.expand(batch)
        assert expanded.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(expanded[name], array, err_msg=name)
        assert ("seq_lens_padded" in batch) == (multiple > 1)
        begins = gm.cu_seqlens(batch)
        for row in range(2):
            starts = [start for start, _ in segments_of({"tokens": expanded["inputs"][row],
                      "tokens_segment_ids": np.asarray(expanded["inputs_segmentation"][row])})]  # fmt: skip
            assert begins[row, : len(starts)].tolist() == starts
        np.testing.assert_array_equal(np.diff(gm.cu_seqlens(batch, padded=False)), batch["seq_lens"])
        flat, tokens = (gm.cu_seqlens(batch, flat=True, padded=padded) for padded in (True, False))
        assert flat[-1] == batch["tokens"].size
        assert (np.diff(flat) >= np.diff(tokens)).all()
        assert (np.diff(flat) % multiple == 0).all()


def test_one_is_no_multiple(tmp_path):
    path = write(tmp_path / "a.jsonl", [3])
    options = {"sample": gm.Tokens(), "sequence_length": 16}
    assert (
        gm.PackedDataset(path, pad_segments_to=1, **options).fingerprint
        == gm.PackedDataset(path, **options).fingerprint
    )
