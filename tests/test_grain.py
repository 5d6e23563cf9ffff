"""`PackedDataset` as Grain sees it."""

import copy
import itertools
import pickle

import cloudpickle
import grain
import numpy as np
import pytest

import gristmill as gm


@pytest.fixture
def rows(shards, encoder):
    """A dataset of single rows, small enough to restore at every step."""
    return gm.PackedDataset(
        shards, tokenizer=encoder, text_field="raw_content", sequence_length=2048, lanes=4, threads=2, prefetch=2
    )


@pytest.fixture
def batches(shards, encoder):
    return gm.PackedDataset(
        shards, tokenizer=encoder, text_field="raw_content", sequence_length=1024, batch_size=8, lanes=4, threads=2
    )


def test_conformance_bare(rows):
    grain.experimental.assert_equal_output_after_checkpoint(rows)


def test_conformance_in_batches_of_our_own(batches):
    grain.experimental.assert_equal_output_after_checkpoint(batches)


def test_conformance_batched_by_grain(rows):
    grain.experimental.assert_equal_output_after_checkpoint(rows.batch(4))


def test_conformance_under_thread_prefetch(batches):
    threaded = grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=3)
    grain.experimental.assert_equal_output_after_checkpoint(threaded)


def test_conformance_shuffled_over_epochs(shards, encoder):
    ds = gm.PackedDataset(
        shards, tokenizer=encoder, text_field="raw_content", sequence_length=4096, seed=11, shuffle_window=5, epochs=2
    )
    grain.experimental.assert_equal_output_after_checkpoint(ds)


def test_map_and_batch_see_the_rows(rows, batches):
    lengths = [int(n) for n in rows.map(lambda row: (row["inputs_segmentation"] > 0).sum())]
    assert sum(lengths) == sum(int((batch["inputs_segmentation"] > 0).sum()) for batch in batches)
    first = next(iter(rows.batch(4)))
    plain = list(itertools.islice(rows, 4))
    for key, value in first.items():
        np.testing.assert_array_equal(value, np.stack([row[key] for row in plain]))


def test_element_spec_is_what_comes(rows, batches):
    for ds in (rows, batches, rows.batch(4)):
        spec = grain.experimental.get_element_spec(ds)
        element = next(iter(ds))
        assert list(spec) == list(element)
        for key, value in element.items():
            assert value.dtype == spec[key].dtype
            # Grain itself leaves open how many rows its last batch has.
            assert all(want in (None, got) for want, got in zip(spec[key].shape, value.shape, strict=True))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda ds: pickle.loads(cloudpickle.dumps(ds)), copy.copy])
def test_copies_are_the_same_dataset(batches, again):
    other = again(batches)
    assert other.fingerprint == batches.fingerprint
    for a, b in itertools.zip_longest(batches, other):
        assert all(np.array_equal(a[key], b[key]) for key in a)


def test_set_slice_gives_each_lane_to_one_worker(rows):
    def key(row):
        return row["inputs"].tobytes()

    expected = sorted(key(row) for row in rows if row["inputs_segmentation"].any())
    got = []
    for worker in range(6):  # more workers than lanes: two have nothing
        sliced = copy.deepcopy(rows)
        sliced.set_slice(slice(worker, None, 6))
        got.extend(key(row) for row in sliced if row["inputs_segmentation"].any())
    assert sorted(got) == expected


def test_set_slice_refuses_whole_batches(batches):
    with pytest.raises(gm.ArgumentError, match=r"leave batch_size out, and put \.batch\(\) after \.mp_prefetch\(\)"):
        batches.set_slice(slice(0, None, 2))


def test_a_sliced_iterator_takes_an_unsliced_state(rows):
    state = iter(rows).get_state()
    sliced = copy.deepcopy(rows)
    sliced.set_slice(slice(1, None, 2))
    iterator = iter(sliced)
    iterator.set_state(state)
    assert list(iterator.get_state()["lanes"]) == ["1", "3"]


def test_close_twice_and_next_after_close(batches):
    iterator = iter(batches)
    kept = next(iterator)
    before = {key: value.copy() for key, value in kept.items()}
    iterator.close()
    iterator.close()
    with pytest.raises(ValueError, match="closed iterator"):
        next(iterator)
    for key, value in kept.items():
        np.testing.assert_array_equal(value, before[key])


def test_start_prefetch_fills_the_ring(batches, thread_count):
    iterator = iter(batches)
    before = thread_count()
    assert iterator.stats()["ring_ready"] == 0
    iterator.start_prefetch()
    assert thread_count() == before + 2
    next(iterator)
    iterator.close()
    assert thread_count() == before


def test_mixtures_take_it(rows, batches):
    mixed = grain.IterDataset.mix([rows.batch(8).seed(1), batches], [0.5, 0.5])
    assert all(element["inputs"].shape[0] == 8 for element in itertools.islice(mixed, 6))
