"""The layout `varlen`: `expand` and `cu_seqlens`."""

import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gristmill as gm
from gristmill._dataset.packed import spec_of
from helpers import assert_resumes, assert_same_batches

EXPAND = jax.jit(gm.expand, static_argnames="layout")

documents = st.builds(lambda word, count: {"text": word * count}, st.sampled_from("ab é"), st.integers(0, 60))
completions = st.builds(
    lambda prompt, completion: {"prompt": "p" * prompt, "completion": "c" * completion},
    st.integers(0, 20),
    st.integers(1, 40),
)
packings = st.one_of(
    st.just({"packing": "concat"}),
    st.builds(lambda window: {"packing": "best_fit", "fit_window": window}, st.integers(1, 12)),
    st.builds(lambda cut: {"packing": "pad", "truncation": cut}, st.sampled_from(["right", "left", "split"])),
)
others = st.fixed_dictionaries(
    {
        "sequence_length": st.sampled_from([1, 2, 7, 24]),
        "max_segments": st.sampled_from([None, 1, 3]),
        "batch_size": st.sampled_from([None, 2, 4]),
        "seed": st.none() | st.integers(0, 99),
        "shuffle_window": st.integers(1, 6),
        "provenance": st.booleans(),
    }
)


def shards_of(folder, name, records):
    """Three shards of records, of which the last has few."""
    paths = [folder / f"{name}{number}.jsonl" for number in range(3)]
    for path, part in zip(paths, (records[0::2], records[1::2], records[:1]), strict=True):
        path.write_text("".join(json.dumps(record) + "\n" for record in part))
    return paths


def datasets(source, **arguments):
    """A dataset in `varlen`, and functions that make it in other layouts with the same rows."""
    compact = gm.PackedDataset(source, layout="varlen", **arguments)
    arguments["max_segments"] = spec_of(compact).rows.max_segments
    return compact, functools.partial(gm.PackedDataset, source, **arguments)


def arrays_of(batches, layout="maxtext"):
    """The arrays that `expand` makes under `jit`, of NumPy and in the order of the layout."""
    order = {"maxtext": MAXTEXT, "grain": GRAIN}[layout]
    for batch in batches:
        expanded = EXPAND(batch, layout=layout)
        rest = [name for name in batch if name in expanded and name not in order]
        yield {name: np.asarray(expanded.pop(name)) for name in [*order, *rest]}
        assert not expanded


MAXTEXT = [
    "inputs", "inputs_segmentation", "inputs_position", "targets", "targets_segmentation", "targets_position",
]  # fmt: skip
GRAIN = ["tokens", "tokens_segment_ids", "tokens_positions"]


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["text", "completion", "mixture"]), st.lists(documents, max_size=20),
    st.lists(completions, min_size=1, max_size=20), packings, others, st.integers(1, 2), st.integers(0, 40),
)  # fmt: skip
def test_expanded_batches_are_those_of_the_layout(
    tmp_path_factory, encoder, kind, texts, pairs, packing, other, epochs, step
):
    folder = tmp_path_factory.mktemp("shards")
    samples = {"text": (texts, None), "completion": (pairs, gm.Completion("prompt", "completion", on_untrained="drop"))}
    paths = {name: shards_of(folder, name, records) for name, (records, _) in samples.items()}
    arguments = {**packing, **other, "tokenizer": encoder}
    if kind == "mixture":
        shuffle_window = arguments.pop("shuffle_window")
        sources = {
            name: gm.Source(
                paths[name], weight=1 + (name == "text"), sample=sample, epochs=epochs, shuffle_window=shuffle_window
            )
            for name, (_, sample) in samples.items()
        }
        source, arguments = gm.Mixture(sources), {**arguments, "source_arrays": True}
    else:
        source, arguments = paths[kind], {**arguments, "sample": samples[kind][1], "epochs": epochs}
    compact, dataset = datasets(source, **arguments)
    batches = list(compact)
    assert_same_batches(arrays_of(batches), dataset(layout="maxtext"))
    if kind == "text":
        assert_same_batches(arrays_of(batches, "grain"), dataset(layout="grain"))
    assert_resumes(compact, min(step, len(batches)))


@pytest.fixture
def dataset(shards, encoder):
    return functools.partial(
        gm.PackedDataset, shards, tokenizer=encoder, text_field="raw_content", sequence_length=256, batch_size=8,
        lanes=4, packing="best_fit", seed=1, max_segments=5,
    )  # fmt: skip


def test_arrays_without_jit_and_of_single_rows(dataset):
    expected = next(iter(dataset()))
    batch = next(iter(dataset(layout="varlen")))
    found = gm.expand(batch)
    assert list(found) == list(expected) == MAXTEXT
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
        row = gm.expand({own: rows[3] for own, rows in batch.items()})
        np.testing.assert_array_equal(row[name], array[3])


def test_compact_batch_has_four_bytes_a_token(dataset):
    batch = next(iter(dataset(layout="varlen")))
    assert {name: (array.shape, array.dtype.name) for name, array in batch.items()} == {
        "tokens": ((8, 256), "int32"), "seq_lens": ((8, 5), "int32"), "next_token": ((8,), "int32"),
    }  # fmt: skip
    assert sum(array.nbytes for array in batch.values()) == 8 * (256 + 5 + 1) * 4


def test_default_max_segments_is_part_of_the_stream(dataset):
    given = [dataset(layout="varlen", sequence_length=length, max_segments=None) for length in (8, 256, 4096)]
    assert [spec_of(own).rows.max_segments for own in given] == [8, 16, 256]
    assert given[1].fingerprint == dataset(layout="varlen", max_segments=16).fingerprint
    padded = dataset(layout="varlen", packing="pad", max_segments=None)
    assert padded._element_spec["seq_lens"].shape == (8, 1)


def test_continued_document_has_its_next_token(tmp_path, encoder):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "a" * 7}) + "\n" + json.dumps({"text": "bb"}) + "\n")
    rows = list(gm.PackedDataset(path, tokenizer=encoder, eos="</s>", sequence_length=5, layout="varlen"))
    ids = np.concatenate([row["tokens"] for row in rows])
    ends = [int(row["next_token"]) for row in rows]
    assert [row["seq_lens"][row["seq_lens"] > 0].tolist() for row in rows] == [
        row_lengths(row, encoder) for row in rows
    ]
    for number, end in enumerate(ends):
        goes_on = rows[number]["tokens"][-1] != encoder.token_to_id("</s>") and number + 1 < len(rows)
        assert end == (ids[5 * (number + 1)] if goes_on else -1)


def row_lengths(row, encoder):
    """The lengths of a row's segments, each of which ends with EOS or at the row's end."""
    tokens = row["tokens"][: row["seq_lens"].sum()].tolist()
    eos = encoder.token_to_id("</s>")
    ends = [index + 1 for index, token in enumerate(tokens) if token == eos or index + 1 == len(tokens)]
    return np.diff([0, *ends]).tolist()


def test_what_lengths_cannot_say_is_refused(dataset):
    with pytest.raises(gm.ArgumentError, match=r"truncation='middle': layout='varlen' has lengths of segments"):
        dataset(layout="varlen", packing="pad", truncation="middle")
    sample = gm.ImageText("qwen3-vl", mrope=True)
    with pytest.raises(gm.ArgumentError, match=r"mrope=True: layout='varlen' has no array of positions"):
        dataset(layout="varlen", sample=sample, text_field="text")
    with pytest.raises(gm.ArgumentError, match=r"layout='varlen': files hold arrays with a number for each token"):
        gm.pack(dataset(layout="varlen"), "packed")
    batch = next(iter(dataset(layout="varlen")))
    with pytest.raises(gm.ArgumentError, match=r"layout='hf': expected one of 'maxtext', 'grain'"):
        gm.expand(batch, "hf")
    with pytest.raises(gm.ArgumentError, match=r"batch has no 'tokens', but 'inputs', .*layout='varlen'"):
        gm.expand(next(iter(dataset())))
    with pytest.raises(gm.ArgumentError, match=r"layout='grain': its tokens_loss_mask says .*; use 'maxtext'"):
        gm.expand({**batch, "targets_loss_mask": batch["tokens"]}, "grain")
    with pytest.raises(gm.ArgumentError, match=r"batch has 'inputs', .*: expected 'tokens' and 'seq_lens'"):
        gm.cu_seqlens(next(iter(dataset())))
    with pytest.raises(gm.ArgumentError, match=r"found a single one, of shape \[256\]; use batch_size="):
        gm.cu_seqlens(next(iter(dataset(layout="varlen", batch_size=None))))


BATCH = {"tokens": np.zeros((2, 6), np.int32), "seq_lens": np.array([[2, 3, 0], [1, 2, 3]], np.int32)}


@pytest.mark.parametrize("library", [np, jnp])
def test_offsets_of_segments(library):
    batch = {name: library.asarray(array) for name, array in BATCH.items()}
    rows, flat = gm.cu_seqlens(batch), gm.cu_seqlens(batch, flat=True)
    assert rows.tolist() == [[0, 2, 5, 5], [0, 1, 3, 6]]
    assert flat.tolist() == [0, 2, 5, 5, 6, 7, 9, 12, 12]
    for found in (rows, flat):
        assert isinstance(found, jax.Array if library is jnp else np.ndarray)
        assert found.dtype == np.int32
    in_jit = jax.jit(gm.cu_seqlens, static_argnames="flat")
    assert in_jit(batch, flat=True).tolist() == flat.tolist()


@pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
def test_offsets_give_the_attention_of_the_segments(dataset, packing):
    """A naive kernel over the flat offsets, and one over those of each row, compute what the segment ids say."""
    batch = next(iter(dataset(layout="varlen", packing=packing, max_segments=None)))
    segments = np.asarray(gm.expand(batch)["inputs_segmentation"])
    values = np.random.default_rng(0).normal(size=segments.size)
    expected = [
        values.reshape(segments.shape)[row][segments[row] == segments[row, index]].sum()
        for row, index in np.ndindex(segments.shape)
    ]
    flat = gm.cu_seqlens(batch, flat=True)
    assert flat[0] == 0
    assert flat[-1] == segments.size
    found = np.concatenate([np.full(end - start, values[start:end].sum()) for start, end in itertools.pairwise(flat)])
    np.testing.assert_allclose(found, expected)
    for row, ends in enumerate(gm.cu_seqlens(batch)):
        numbers = np.searchsorted(ends, np.arange(ends[-1]), side="right")
        np.testing.assert_array_equal(numbers, segments[row, : ends[-1]])
        assert not segments[row, ends[-1] :].any()


def test_global_batches_expand_and_restore(dataset):
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))
    expected = list(dataset(epochs=1, provenance=2))
    with gm.global_batches(dataset(layout="varlen", provenance=2), sharding) as batches:
        found = list(arrays_of(itertools.islice(batches, 5)))
        state = batches.get_state()
        assert_same_batches([*found, *arrays_of(batches)], expected)
        batches.set_state(state)
        assert_same_batches(arrays_of(batches), expected[5:])
