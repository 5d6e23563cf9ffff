"""Mixtures: which source each row is of, and that the rows of a source are those of the source alone."""

import itertools
import json
import random

import grain
import numpy as np
import pytest

import gristmill as gm
from helpers import assert_same_batches, write_shard
from mixture_rule import divided, furthest_behind, turn


@pytest.fixture(scope="module")
def folders(texts, tmp_path_factory):
    """Shards of three sources: a, b and c."""
    folder = tmp_path_factory.mktemp("sources")
    rest = iter(texts)
    for name, shares in {"a": (20, 9, 31, 8, 12), "b": (3, 30, 12, 7), "c": (25, 25, 2, 16, 9, 4)}.items():
        for number, share in enumerate(shares):
            write_shard(folder / name / f"{number}.json.gz", list(itertools.islice(rest, share)))
    return folder


@pytest.fixture
def make(folders, encoder):
    """Makes a dataset of a mixture, given arguments of each source."""

    def make(sources=None, *, mixture=None, **arguments):
        sources = sources or {"web": {"shards": "a", "weight": 5}, "code": {"shards": "b", "weight": 2}}
        found = {
            name: gm.Source(
                str(folders / own["shards"] / "*"),
                text_field="raw_content",
                **{key: value for key, value in own.items() if key != "shards"},
            )
            for name, own in sources.items()
        }
        return gm.PackedDataset(
            gm.Mixture(found, **(mixture or {})),
            tokenizer=encoder,
            **{"sequence_length": 32, "batch_size": 12, "lanes": 4, "threads": 1, **arguments},
        )

    return make


THREE = {
    "web": {"shards": "a", "weight": 0.6},
    "code": {"shards": "b", "weight": 0.25},
    "books": {"shards": "c", "weight": 0.15},
}


def rows_of(dataset, steps):
    """The rows of each lane of a dataset, without those of nothing but padding at its end."""
    lanes = [[] for _ in range(dataset.lanes)]
    for batch in itertools.islice(dataset, steps):
        per_lane = len(batch["inputs"]) // dataset.lanes
        for row in range(len(batch["inputs"])):
            if batch["inputs_segmentation"][row].any():
                lanes[row // per_lane].append({name: array[row] for name, array in batch.items()})
    return [iter(lane) for lane in lanes]


def mixed(dataset, steps, weights_at, seed=None, units_of=None, more=0):
    """The batches of a mixture whose sources are exhausted one after another, from the streams of each alone.

    `units_of` says how many tokens or samples of a row count, if the rows do not.
    """
    sources = {name: rows_of(source, steps) for name, source in dataset.sources.items()}
    following = {name: [next(lane, None) for lane in lanes] for name, lanes in sources.items()}
    rows = next(iter(dataset))["inputs"].shape[0]
    counts = None
    for step in range(steps):
        batch = []
        if units_of and (step == 0 or weights_at(step) != weights_at(step - 1)):
            # Lane k begins as if the rows of the lanes before it were its own.
            before = [divided(lane * rows // dataset.lanes, weights_at(step)) for lane in range(dataset.lanes)]
            counts = [{name: more * of_lane[name] for name in sources} for of_lane in before]
        for row in range(rows):
            lane = row * dataset.lanes // rows
            weights = weights_at(step)
            exhausted = {name for name in weights if following[name][lane] is None}
            if not any(weight for name, weight in weights.items() if name not in exhausted):
                batch.append(None)
                continue
            if counts:
                name = furthest_behind(weights, counts[lane], more, exhausted)
            else:
                name = turn(step, row, rows, weights, seed, exhausted)
            batch.append(following[name][lane])
            if counts:
                counts[lane][name] += units_of(following[name][lane])
            following[name][lane] = next(sources[name][lane], None)
        padding = {name: np.zeros_like(array[0]) for name, array in next(iter(dataset)).items()}
        if all(row is None for row in batch):
            return
        whole = [padding if row is None else row for row in batch]
        yield {name: np.stack([row[name] for row in whole]) for name in padding}


def weights_of(sources):
    return {name: own.get("weight", 0) for name, own in sources.items()}


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"boundary_targets": True},
        {"packing": "best_fit", "boundary_targets": True},
        {"packing": "pad", "truncation": "split"},
        {"truncation": "right"},
        {"packing": "best_fit", "truncation": "middle"},
        {"max_segments": 1},
    ],
)
def test_rows_are_those_of_each_source_alone_in_the_order_of_the_rule(make, seed, arguments):
    dataset = make(THREE, seed=seed, **arguments)
    found = list(itertools.islice(dataset, 40))
    assert_same_batches(found, list(mixed(dataset, 40, lambda _: weights_of(THREE), seed)))


def test_order_of_the_sources_does_not_matter(make):
    dataset, other = make(THREE), make(dict(reversed(THREE.items())))
    assert dataset.fingerprint == other.fingerprint
    assert_same_batches(itertools.islice(dataset, 20), itertools.islice(other, 20))


def test_weights_of_another_scale_are_the_same_stream(make):
    tenfold = {name: {**own, "weight": own["weight"] * 10} for name, own in THREE.items()}
    dataset, other = make(THREE), make(tenfold)
    iterator = iter(dataset)
    next(iterator)
    restored = iter(other)
    restored.set_state({**iterator.get_state()})
    assert_same_batches(itertools.islice(restored, 5), itertools.islice(iterator, 5))


@pytest.mark.slow
def test_ten_thousand_batches_are_at_most_one_row_off(make):
    weights = {"web": 0.7, "code": 0.17, "books": 0.13}
    sources = {name: {**own, "weight": weights[name]} for name, own in THREE.items()}
    dataset = make(sources, sequence_length=4, batch_size=100, source_arrays=True)
    totals = np.zeros(3)
    iterator = iter(dataset)
    for batch in itertools.islice(iterator, 10_000):
        counts = np.bincount(batch["source"], minlength=3)
        assert np.abs(counts - 100 * np.array(list(weights.values()))).max() <= 1
        totals += counts
    assert np.abs(totals / totals.sum() - list(weights.values())).max() < 1e-4
    stats = iterator.stats()["sources"]
    assert list(stats) == list(weights)
    for (name, weight), total in zip(weights.items(), totals, strict=True):
        assert stats[name]["rows"] == total
        assert stats[name]["asked"] == pytest.approx(weight)
        assert stats[name]["given"] == total / 1e6
        assert stats[name]["tokens"] == 4 * total


@pytest.mark.slow
@pytest.mark.parametrize(("packing", "length"), [("pad", 64), ("best_fit", 64), ("concat", 16)])
def test_ten_thousand_batches_by_tokens_are_one_row_off_in_each_lane(make, packing, length):
    dataset = make(
        THREE, mixture={"weights_by": "tokens"}, packing=packing, sequence_length=length, batch_size=8, seed=1,
        source_arrays=True, layout="grain",
    )  # fmt: skip
    shares = np.array([0.6, 0.25, 0.15])
    # Lane k begins as if the rows of the lanes before it were its own.
    begins = [divided(2 * lane, weights_of(THREE)) for lane in range(4)]
    begin = length * np.array([[of_lane[name] for name in THREE] for of_lane in begins], float)
    had = np.zeros((4, 3))
    iterator = iter(dataset)
    for batch in itertools.islice(iterator, 10_000):
        tokens = (batch["tokens_segment_ids"] > 0).sum(axis=1)
        np.add.at(had, (np.arange(8) // 2, batch["source"]), tokens)
        whole = had + begin
        assert np.abs(whole - shares * whole.sum(axis=1, keepdims=True)).max() <= length
    stats = iterator.stats()["sources"]
    assert [own["tokens"] for own in stats.values()] == had.sum(axis=0).tolist()
    given = np.array([own["given"] for own in stats.values()])
    assert np.abs(given - shares).max() <= 4 * length / had.sum()


STAGES = [(0, {"web": 3, "code": 1}), (5, {"web": 1, "books": 1}), (11, {"code": 2, "books": 2, "web": 1})]


def stage_weights(step):
    weights = next(weights for start, weights in reversed(STAGES) if start <= step)
    return {name: weights.get(name, 0) for name in THREE}


def test_stages_begin_at_their_steps(make):
    dataset = make(THREE, mixture={"stages": STAGES}, seed=3)
    assert_same_batches(itertools.islice(dataset, 25), mixed(dataset, 25, stage_weights, 3))


def tokens_of(row):
    return int((row["inputs_segmentation"] > 0).sum())


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize(
    ("weights_by", "arguments"),
    [
        ("tokens", {}),
        ("tokens", {"max_segments": 1}),
        ("tokens", {"packing": "best_fit"}),
        ("tokens", {"packing": "pad", "truncation": "split"}),
        ("tokens", {"packing": "pad", "sequence_length": 512}),
        ("samples", {"packing": "pad"}),
    ],
)
def test_row_is_of_the_source_that_is_furthest_behind(make, weights_by, arguments, seed):
    options = {"seed": seed, "sequence_length": 64, **arguments}
    units_of, more = (tokens_of, options["sequence_length"]) if weights_by == "tokens" else (lambda _: 1, 1)
    dataset = make(THREE, mixture={"weights_by": weights_by, "stages": STAGES}, **options)
    found = list(itertools.islice(dataset, 40))
    assert_same_batches(found, list(mixed(dataset, 40, stage_weights, seed, units_of, more)))
    finite = make(FINITE, mixture={"weights_by": weights_by}, **options)
    assert_same_batches(finite, mixed(finite, 10_000, lambda _: weights_of(FINITE), seed, units_of, more))


FINITE = {
    "web": {"shards": "a", "weight": 3, "epochs": 1},
    "code": {"shards": "b", "weight": 2, "epochs": 2},
    "books": {"shards": "c", "weight": 1, "epochs": 1},
}


@pytest.mark.parametrize("seed", [None, 5])
def test_exhausted_source_leaves_its_rows_to_the_others(make, seed, caplog):
    dataset = make(FINITE, seed=seed, sequence_length=256)
    iterator = iter(dataset)
    found = list(iterator)
    assert_same_batches(found, mixed(dataset, 10_000, lambda _: weights_of(FINITE), seed))
    stats = iterator.stats()
    assert [own["exhausted_lanes"] for own in stats["sources"].values()] == [4, 4, 4]
    assert [own["epochs"] for own in stats["sources"].values()] == [1, 2, 1]
    for name in FINITE:
        assert f"the source {name!r} is exhausted in 4 of 4 lanes: the others share its rows" in caplog.messages
    for name, source in dataset.sources.items():
        alone = iter(source)
        for _ in alone:
            pass
        for key in ("documents", "tokens", "quarantined"):
            assert stats["sources"][name][key] == alone.stats()[key]


def test_stop_ends_a_lane_with_its_first_exhausted_source(make):
    sources = {"web": {"shards": "a", "weight": 1}, "code": {"shards": "b", "weight": 1, "epochs": 1}}
    dataset = make(sources, mixture={"on_exhausted": "stop"}, sequence_length=512)
    found, iterator = [], iter(dataset)
    states = []
    for batch in iterator:
        found.append(batch)
        states.append(iterator.get_state())
    assert [own["exhausted_lanes"] for own in iterator.stats()["sources"].values()] == [0, 4]
    # A lane that has ended stays so, also where it is restored.
    for step, state in enumerate(states, 1):
        restored = iter(dataset)
        restored.set_state(json.loads(json.dumps(state)))
        assert_same_batches(restored, found[step:])


def test_error_names_the_exhausted_source(make):
    sources = {"web": {"shards": "a", "weight": 1}, "code": {"shards": "b", "weight": 1, "epochs": 1}}
    dataset = make(sources, mixture={"on_exhausted": "error"})
    iterator = iter(dataset)
    with pytest.raises(gm.ArgumentError, match=r'the source "code" is exhausted, and step [0-9]+ needs another row'):
        list(iterator)
    # The state is the one before, and continues where the mixture says how.
    state = iterator.get_state()
    restored = iter(make(sources, mixture={"on_exhausted": "continue"}))
    restored.set_state(state)
    next(restored)


def test_weight_zero_until_a_stage_needs_the_source(make):
    sources = {**FINITE, "web": {"shards": "a", "weight": 1, "epochs": 1}}
    dataset = make(sources, mixture={"stages": [(0, {"code": 1}), (10_000, {"web": 1})]})
    with pytest.raises(gm.ArgumentError, match="the stage that has others begins at step 10000"):
        list(dataset)


OF_HOST = 12


def own_rows(batches, index, hosts):
    """The rows of one of some hosts."""
    own = slice(OF_HOST // hosts * index, OF_HOST // hosts * (index + 1))
    return [{name: array[own] for name, array in batch.items()} for batch in batches]


def assert_is_part(found, whole):
    """Asserts that a host yields its rows of the stream up to its own end, after which they are padding."""
    assert_same_batches(found, whole[: len(found)])
    assert not any(batch["inputs_segmentation"].any() for batch in whole[len(found) :])


@pytest.mark.slow
@pytest.mark.parametrize(
    "mixture",
    [{"stages": STAGES}, {}, {"on_exhausted": "stop"}, {"weights_by": "tokens"}, {"weights_by": "samples"}],
)
@pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
def test_stream_continues_on_any_hosts_with_any_threads(make, mixture, packing):
    sources = THREE if "stages" in mixture else FINITE
    options = {"sources": sources, "mixture": mixture, "seed": 1, "source_arrays": True, "packing": packing}
    whole = list(itertools.islice(make(**options), 40))
    rng = random.Random(packing)
    for _ in range(6):
        step = rng.randrange(min(len(whole), 30))
        hosts, others = rng.choice([1, 2, 4]), rng.choice([1, 2, 4])
        states = []
        for index in range(hosts):
            iterator = iter(make(**options, shard_index=index, shard_count=hosts, threads=rng.choice([1, 3])))
            assert_is_part(list(itertools.islice(iterator, step)), own_rows(whole[:step], index, hosts))
            states.append(iterator.get_state())
        state = json.loads(json.dumps(gm.merge_states(states)))
        for index in range(others):
            iterator = iter(make(**options, shard_index=index, shard_count=others, threads=rng.choice([1, 4])))
            iterator.set_state(state)
            assert_is_part(list(itertools.islice(iterator, 40 - step)), own_rows(whole[step:], index, others))


def test_future_may_change_and_the_past_may_not(make):
    before = {name: THREE[name] for name in ("web", "code")}
    iterator = iter(make(before))
    list(itertools.islice(iterator, 6))
    state = iterator.get_state()
    # A source joins at step 9, in the middle of the names, and another weight changes.
    later = [(0, {"web": 0.6, "code": 0.25}), (9, {"web": 1, "code": 1, "books": 1})]
    dataset = make({"web": THREE["web"], "books": THREE["books"], "code": THREE["code"]}, mixture={"stages": later})
    restored = iter(dataset)
    restored.set_state(state)
    expected = list(itertools.islice(dataset, 20))
    assert_same_batches(itertools.islice(restored, 14), expected[6:])
    for stages, message in [
        (
            [(0, {"web": 0.6, "code": 0.25}), (5, {"web": 1})],
            "the weights of step 5, which is in the past of step 6, were",
        ),
        ([(0, {"web": 0.6, "code": 0.26})], "the weights of step 0, which is in the past of step 6"),
    ]:
        with pytest.raises(gm.StateError, match=message):
            iter(make(THREE, mixture={"stages": stages})).set_state(state)
    with pytest.raises(gm.StateError, match="the source 'code' is missing: keep it, with the weight 0 from step 6 on"):
        iter(make({"web": {"shards": "a", "weight": 0.6}})).set_state(state)
    with pytest.raises(gm.StateError, match="of the source 'code' manifest was"):
        iter(make({"web": THREE["web"], "code": {"shards": "c", "weight": 0.25}})).set_state(state)
    with pytest.raises(gm.StateError, match="sequence_length was 32 and is 16"):
        iter(make(before, sequence_length=16)).set_state(state)


def test_future_of_weights_by_tokens_may_change(make):
    def dataset(stages, weights_by="tokens"):
        return make(THREE, mixture={"stages": stages, "weights_by": weights_by}, packing="pad", sequence_length=256)

    iterator = iter(dataset([(0, {"web": 1, "code": 1}), (4, {"web": 1, "code": 3})]))
    list(itertools.islice(iterator, 6))
    state = iterator.get_state()
    # A stage that begins where the state is, one later, and one whose weights are those of the stage before.
    same = [(0, {"web": 2, "code": 2}), (4, {"web": 1, "code": 3})]
    for stages in [
        [*same, (6, {"books": 1, "code": 1})],
        [*same, (8, {"books": 1, "code": 1})],
        [*same, (5, {"web": 2, "code": 6}), (6, {"web": 3, "code": 9}), (7, {"books": 2, "code": 2, "web": 1})],
    ]:
        other = dataset(stages)
        restored = iter(other)
        restored.set_state(state)
        assert_same_batches(itertools.islice(restored, 12), list(itertools.islice(other, 18))[6:])
    with pytest.raises(gm.StateError, match="weights_by was tokens and is rows"):
        iter(dataset(same, "rows")).set_state(state)


def test_source_that_was_not_read_may_change(make):
    stages = [(0, {"web": 1}), (9, {"web": 1, "code": 1})]
    sources = {name: THREE[name] for name in ("web", "code")}
    iterator = iter(make(sources, mixture={"stages": stages}))
    list(itertools.islice(iterator, 3))
    other = make({"web": THREE["web"], "code": {"shards": "c", "weight": 1}}, mixture={"stages": stages})
    restored = iter(other)
    restored.set_state(iterator.get_state())
    assert_same_batches(itertools.islice(restored, 12), list(itertools.islice(other, 15))[3:])


def test_state_is_that_of_a_mixture(make, folders, encoder):
    iterator = iter(make(THREE))
    next(iterator)
    state = iterator.get_state()
    assert state["version"] == 4
    assert state["fingerprint"].startswith(
        "mixture=books%2Ccode%2Cweb stages=0%3Abooks%3A0.15%2Ccode%3A0.25%2Cweb%3A0.6 "
    )
    assert state["lanes"]["0"].startswith("books: ")
    plain = gm.PackedDataset(
        str(folders / "a" / "*"), text_field="raw_content", tokenizer=encoder, lanes=4, batch_size=12
    )
    with pytest.raises(gm.StateError, match="it was a mixture, and this dataset is not"):
        iter(plain).set_state(state)
    with pytest.raises(gm.StateError, match="it was no mixture, and this dataset is one"):
        iterator.set_state(iter(plain).get_state())
    with pytest.raises(gm.StateError, match="one of its fingerprint has version 4"):
        iterator.set_state({**state, "version": 3})
    with pytest.raises(gm.StateError, match="expected cursors as source: name=number"):
        iterator.set_state({**state, "lanes": {**state["lanes"], "0": "web:record=1"}})


@pytest.mark.parametrize("weights_by", ["rows", "tokens", "samples"])
def test_grain_restores_at_every_step(make, weights_by):
    dataset = make(FINITE, mixture={"weights_by": weights_by}, batch_size=None, lanes=2, sequence_length=4096)
    grain.experimental.assert_equal_output_after_checkpoint(dataset)


@pytest.mark.parametrize("weights_by", ["rows", "tokens", "samples"])
def test_states_of_single_lanes_merge(make, weights_by):
    mixture = {"weights_by": weights_by, "stages": [(0, weights_of(FINITE)), (2, {"web": 1, "code": 1, "books": 3})]}
    dataset = make(FINITE, mixture=mixture, batch_size=None, lanes=4, sequence_length=256)
    whole = list(dataset)
    iterator = iter(dataset)
    for stop in (0, 3, 6, len(whole)):
        iterator = iter(dataset)
        list(itertools.islice(iterator, stop))
        shard_states = iterator.get_shard_states()
        restored = iter(dataset)
        restored.set_shard_states(shard_states[::-1])
        assert_same_batches(restored, whole[stop:])
    with pytest.raises(StopIteration):
        next(iterator)
    assert all(entry["exhausted"] for entry in iterator.get_shard_states())


def test_arrays_name_the_source_and_its_weight(make):
    dataset = make(THREE, mixture={"stages": STAGES}, source_arrays=True)
    names = list(THREE)
    assert {name: spec.shape for name, spec in dataset._element_spec.items()}["source"] == (12,)
    for step, batch in enumerate(itertools.islice(dataset, 14)):
        weights = stage_weights(step)
        expected = [turn(step, row, 12, weights) for row in range(12)]
        assert [names[number] for number in batch["source"]] == expected
        shares = [weights[name] / sum(weights.values()) for name in expected]
        np.testing.assert_allclose(batch["weight"], np.array(shares, np.float32))
        assert (batch["source"].dtype, batch["weight"].dtype) == (np.int32, np.float32)
    last = list(make(FINITE, source_arrays=True))[-1]
    is_padding = ~last["inputs_segmentation"].any(axis=1)
    assert is_padding.any()
    assert (last["source"][is_padding] == -1).all()
    assert (last["weight"][is_padding] == 0).all()


def test_provenance_counts_pieces_of_all_sources(make, encoder):
    dataset = make(THREE, provenance=True, source_arrays=True)
    first = 0
    ranges = {}
    for name, source in dataset.sources.items():
        ranges[name] = range(first, first + len(source.pieces))
        assert dataset.pieces[first].name == source.pieces[0].name
        first += len(source.pieces)
    for batch in itertools.islice(dataset, 10):
        for row, number in enumerate(batch["source"]):
            entries = batch["provenance"][row]
            pieces = set(entries[entries[:, 3] > 0, 0])
            assert pieces
            assert all(piece in ranges[list(THREE)[number]] for piece in pieces)
            assert entries[:, 3].sum() == (batch["inputs_segmentation"][row] > 0).sum()


def test_sources_quarantine_their_own_records(make, folders, tmp_path):
    bad = tmp_path / "bad"
    bad.mkdir()
    for number in range(4):
        lines = [json.dumps({"raw_content": f"text {number} {line} " * 20}) for line in range(30)]
        lines[7] = "{"
        (bad / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    sources = {
        "clean": {"shards": "a", "weight": 1, "epochs": 1},
        "bad": {"shards": str(bad), "weight": 1, "epochs": 1, "on_error": "quarantine", "max_error_rate": 0.5},
    }
    file = tmp_path / "quarantine.jsonl"
    dataset = make(sources, quarantine_file=file)
    iterator = iter(dataset)
    list(itertools.islice(iterator, 3))
    state = iterator.get_state()
    list(iterator)
    stats = iterator.stats()
    assert (stats["quarantined"], stats["sources"]["bad"]["quarantined"]) == (4, 4)
    lines = file.read_text().splitlines()
    assert len(lines) == 4
    assert all(json.loads(line)["stream"].endswith(".bad") for line in lines)
    restored = iter(dataset)
    restored.set_state(state)
    list(restored)
    assert file.read_text().splitlines() == lines


def test_samples_with_and_without_a_mask(folders, encoder, tmp_path):
    for number in range(2):
        records = [json.dumps({"q": f"question {i} ", "a": f"answer {i}"}) for i in range(200)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(records) + "\n")
    mixture = gm.Mixture(
        {
            "text": gm.Source(str(folders / "a" / "*"), weight=1, text_field="raw_content"),
            "pairs": gm.Source(str(tmp_path / "*"), weight=1, sample=gm.Completion("q", "a")),
        }
    )
    dataset = gm.PackedDataset(
        mixture, tokenizer=encoder, sequence_length=32, batch_size=8, lanes=2, layout="grain", source_arrays=True
    )
    iterator = iter(dataset)
    for batch in itertools.islice(iterator, 10):
        masks = batch["tokens_loss_mask"].mean(axis=1)
        assert (masks[batch["source"] == 0] == 1).all()
        assert (masks[batch["source"] == 1] < 0.9).all()
    stats = iterator.stats()["sources"]
    assert stats["text"]["trained_tokens"] == stats["text"]["tokens"]
    assert 0 < stats["pairs"]["trained_tokens"] < stats["pairs"]["tokens"]


@pytest.mark.parametrize("weights_by", ["rows", "tokens", "samples"])
def test_hundreds_of_sources_and_weights_far_apart(encoder, tmp_path, weights_by):
    for lane in range(2):
        write_shard(tmp_path / "small" / f"{lane}.json.gz", ["the only document"])
        write_shard(tmp_path / "large" / f"{lane}.json.gz", [f"document {n}" for n in range(50)])
    weights = [1e300, 5e-324, *(1e300 * (1 + number % 3) for number in range(200))]
    sources = {
        f"s{number}": gm.Source(
            tmp_path / ("small" if number % 2 else "large") / "*", weight=weight, text_field="raw_content"
        )
        for number, weight in enumerate(weights)
    }
    dataset = gm.PackedDataset(
        gm.Mixture(sources, weights_by=weights_by), tokenizer=encoder, sequence_length=16, batch_size=40, lanes=2,
        packing="pad", threads=2,
    )  # fmt: skip
    iterator = iter(dataset)
    list(itertools.islice(iterator, 200))
    stats = iterator.stats()["sources"]
    assert max(abs(own["asked"] - own["given"]) for own in stats.values()) < 1e-3
    assert stats["s1"]["rows"] == 0
    restored = iter(dataset)
    restored.set_state(json.loads(json.dumps(iterator.get_state())))
    assert_same_batches(itertools.islice(restored, 5), itertools.islice(iterator, 5))


def test_sources_share_one_encoder(folders, tokenizer_json, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    sources = {name: gm.Source(folders / name / "*", weight=1, text_field="raw_content") for name in "abc"}
    dataset = gm.PackedDataset(gm.Mixture(sources), tokenizer=tmp_path / "tokenizer.json", eos=False)
    assert {id(source.encoder) for source in dataset.sources.values()} == {id(dataset.encoder)}


def test_lanes_are_as_many_as_the_smallest_source_allows(make):
    assert make(THREE, lanes=None, batch_size=64).lanes == 4
    with pytest.raises(gm.ArgumentError, match=r"source 'code': lanes=5: expected at most 4, .*split_bytes="):
        make(THREE, lanes=5, batch_size=20)
    assert make({**THREE, "code": {**THREE["code"], "split_bytes": 500}}, lanes=5, batch_size=20).lanes == 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gm.Mixture({}), "expected at least one source"),
        (lambda: gm.Mixture({"a b": gm.Source("x", weight=1)}), "the name 'a b'"),
        (lambda: gm.Mixture({"a": "x"}), "expected a gm.Source"),
        (lambda: gm.Mixture(["a"]), "a dict of gm.Source by name"),
        (lambda: gm.Mixture({"a": gm.Source("x")}), "the source 'a' has no weight"),
        (lambda: gm.Mixture({"a": gm.Source("x", weight=0)}), "all weights are 0 from step 0 on"),
        (lambda: gm.Source("x", weight=-1), "weight=-1: expected a finite number from 0 on"),
        (lambda: gm.Source("x", weight="1"), "expected a number from 0 on"),
        (lambda: gm.Mixture({"a": gm.Source("x")}, stages=[(0, {"b": 1})]), "step 0 names 'b'"),
        (lambda: gm.Mixture({"a": gm.Source("x")}, stages=[(0, {"a": 1}), (0, {"a": 2})]), "expected rising steps"),
        (lambda: gm.Mixture({"a": gm.Source("x")}, stages=[0]), "pairs of a step and a dict"),
        (lambda: gm.Mixture({"a": gm.Source("x", weight=1)}, weights_by="bytes"), "weights_by='bytes'"),
        (lambda: gm.Mixture({"a": gm.Source("x", weight=1)}, on_exhausted="x"), "on_exhausted='x'"),
    ],
)
def test_wrong_mixtures_are_refused(call, message):
    with pytest.raises((gm.ArgumentError, gm.ArgumentTypeError)) as raised:
        call()
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"keep": "nlines > 1"},
            r"keep='nlines > 1': each source of a mixture has its own: gm.Source\(..., keep=...\)",
        ),
        ({"epochs": 2}, "epochs=2: each source of a mixture has its own"),
        ({"quarantine_file": "q.jsonl"}, "no source quarantines anything"),
    ],
)
def test_arguments_of_sources_are_refused_for_all(make, arguments, message):
    with pytest.raises(gm.ArgumentError, match=message):
        make(THREE, **arguments)


def test_source_arrays_need_a_mixture(folders, encoder):
    with pytest.raises(gm.ArgumentError, match=r"only the rows of a gm\.Mixture"):
        gm.PackedDataset(str(folders / "a" / "*"), tokenizer=encoder, source_arrays=True)
