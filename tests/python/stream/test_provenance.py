"""`provenance=`: where each row's tokens come from. `test_packing` compares its values with the naive model, and
tests/rust/stream checks them over random streams; the tests here use it as a user does.
"""

import gzip
import json

import numpy as np
import pytest

import gristmill as gm
from helpers import assert_same_batches


def dataset(shards, encoder, **arguments):
    settings = {
        "tokenizer": encoder,
        "text_field": "raw_content",
        "sequence_length": 256,
        "batch_size": 16,
        "lanes": 8,
        "threads": 2,
        "provenance": True,
    }
    return gm.PackedDataset(shards, **{**settings, **arguments})


def ids_of(encoder, path, record, bos=()):
    """The ids of one record, read independently of gristmill."""
    with gzip.open(path, "rt") as lines:
        text = json.loads(lines.read().splitlines()[record])["raw_content"]
    return [*bos, *encoder.encode(text).tolist(), encoder.eos_id]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"packing": "best_fit", "seed": 3, "epochs": 2},
        {"packing": "pad", "truncation": "middle", "bos": True, "layout": "hf"},
        {"packing": "pad", "truncation": "left", "layout": "grain"},
        {"packing": "concat", "truncation": "middle"},
        {"packing": "best_fit", "truncation": "left", "layout": "hf"},
        {"packing": "pad", "truncation": "split", "seed": 1, "shuffle_window": 7},
    ],
)
def test_provenance_locates_every_token(shards, encoder, arguments):
    ds = dataset(shards, encoder, **arguments)
    bos = (encoder.bos_id,) if arguments.get("bos") else ()
    documents = {}
    name = next(iter(ds._element_spec))
    checked = 0
    for batch in ds:
        for row, tokens in zip(batch["provenance"], batch[name], strict=True):
            # The formula of PackedDataset's docstring.
            shard, record, offset, length = row.T
            for i in range(0, length.sum(), 17):
                entry = np.searchsorted(length.cumsum(), i, side="right")
                path, line = ds.manifest.paths[shard[entry]], int(record[entry])
                if (path, line) not in documents:
                    documents[path, line] = ids_of(encoder, path, line, bos)
                assert documents[path, line][offset[entry] + i - length[:entry].sum()] == tokens[i]
                checked += 1
    assert checked > 500
    assert len({path for path, _ in documents}) == 8


def test_provenance_has_an_entry_for_each_segment(shards, encoder):
    for batch in dataset(shards, encoder, provenance=256):
        for row, segments in zip(batch["provenance"], batch["inputs_segmentation"], strict=True):
            lengths = row[row[:, 3] > 0, 3]
            assert np.repeat(np.arange(1, len(lengths) + 1), lengths).tolist() == segments[segments > 0].tolist()


def test_few_entries_list_the_first_segments_only(shards, encoder):
    whole, few = (dataset(shards, encoder, provenance=entries) for entries in (256, 2))
    without_entry = 0
    for batch, short in zip(whole, few, strict=True):
        np.testing.assert_array_equal(short["provenance"], batch["provenance"][:, :2])
        listed = short["provenance"][..., 3].sum(axis=1)
        without_entry += int((listed < (batch["inputs_segmentation"] > 0).sum(axis=1)).sum())
    assert without_entry > 10


@pytest.mark.parametrize(
    ("arguments", "entries"),
    [
        ({}, 16),
        ({"sequence_length": 2048}, 128),
        ({"sequence_length": 7}, 7),
        ({"max_segments": 3}, 3),
        ({"packing": "best_fit", "max_segments": 300}, 256),
        ({"packing": "pad"}, 1),
        ({"packing": "pad", "truncation": "middle", "max_segments": 9}, 2),
        ({"provenance": 5}, 5),
    ],
)
def test_provenance_shapes(shards, encoder, arguments, entries):
    for batch_size, rows in ((16, (16,)), (None, ())):
        ds = dataset(shards, encoder, batch_size=batch_size, **arguments)
        element = next(iter(ds))
        assert element["provenance"].shape == (*rows, entries, 4) == ds._element_spec["provenance"].shape
        assert element["provenance"].dtype == np.int32
        assert {k: v.shape for k, v in element.items()} == {k: s.shape for k, s in ds._element_spec.items()}


def test_grain_batches_provenance(shards, encoder):
    own = list(dataset(shards, encoder, batch_size=8))
    batched = list(dataset(shards, encoder, batch_size=None).batch(8))
    assert [batch["provenance"].shape for batch in batched] == [(8, 16, 4)] * len(own)
    for batch, other in zip(batched, own, strict=True):
        np.testing.assert_array_equal(batch["provenance"], other["provenance"])


@pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
def test_provenance_is_not_part_of_the_stream(shards, encoder, packing):
    arguments = {"packing": packing, "truncation": "split", "seed": 5}
    bare = iter(dataset(shards, encoder, provenance=False, **arguments))
    full = dataset(shards, encoder, **arguments)
    assert full.fingerprint == bare.get_state()["fingerprint"]
    provenance = [batch["provenance"] for batch in full]
    # A run may switch provenance on when it resumes, also in the middle of documents.
    states, batches = [bare.get_state()], []
    for batch in bare:
        assert "provenance" not in batch
        batches.append(batch)
        states.append(bare.get_state())
    restored = iter(full)
    for step in range(0, len(batches), 5):
        restored.set_state(states[step])
        batch = next(restored)
        np.testing.assert_array_equal(batch.pop("provenance"), provenance[step])
        assert_same_batches([batch], [batches[step]])


def test_provenance_of_padding_is_zero(shards, encoder):
    last = list(dataset(shards, encoder))[-1]
    padding = last["inputs_segmentation"][:, 0] == 0
    assert padding.any()
    assert not last["provenance"][padding].any()


@pytest.mark.parametrize(
    ("provenance", "error"),
    [(0, gm.ArgumentError), (257, gm.ArgumentError), (None, gm.ArgumentTypeError), ("yes", gm.ArgumentTypeError)],
)
def test_provenance_argument_is_checked(shards, encoder, provenance, error):
    message = f"provenance={provenance!r}: expected an integer from 1 to 256, or True or False"
    with pytest.raises(error, match=message):
        dataset(shards, encoder, provenance=provenance)


def test_provenance_too_large_for_32_bits_is_refused(shards, encoder):
    """The tokens alone would fit."""
    arguments = {"batch_size": 128, "sequence_length": 2**24}
    with pytest.raises(
        gm.ArgumentError, match=r"batch_size=128: the array 'provenance' .*\[16777216, 4\] .* more than 2147483648 el"
    ):
        dataset(shards, encoder, **arguments, provenance=2**24)
    assert dataset(shards, encoder, **arguments, provenance=2**22).lanes == 8
