"""`edits=`: what is read from a step on. The oracle is a naive model of a lane."""

import json

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import gristmill as gm
from gristmill._cli import main
from helpers import assert_same_batches
from lane_model import Rules, documents_of, lane_steps

SHARDS = 4
RECORDS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edits")
    for shard in range(SHARDS + 3):
        kind = "old" if shard < SHARDS else "new"
        lines = [
            json.dumps({"input_ids": one.ids, "number": one.record, "id": f"id-{one.record}", "text": str(one.record)})
            for one in documents_of(shard, RECORDS)
        ]
        (folder / f"{kind}-{shard}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "odd.txt").write_text("\n".join(f"id-{number}" for number in range(SHARDS * RECORDS) if number % 2))
    (folder / "rows.txt").write_text("\n".join(f"old-0.jsonl/{number}" for number in range(20, 60)))
    return folder


@pytest.fixture(scope="module")
def made(folder):
    def made(**arguments):
        given = {"sample": gm.Tokens(), "layout": "grain", "lanes": 2, "threads": 2, "sequence_length": 32}
        return gm.PackedDataset(f"{folder}/old-*.jsonl", **{**given, "batch_size": 4, **arguments})

    return made


@pytest.fixture(scope="module")
def odd(folder):
    return gm.RowList(folder / "odd.txt", key="id")


PACKINGS = [
    {"packing": "concat"},
    {"packing": "concat", "seed": 5, "shuffle_window": 40},
    {"packing": "best_fit", "fit_window": 30},
    {"packing": "best_fit", "seed": 5, "fit_window": 30, "shuffle_window": 40},
    {"packing": "pad", "truncation": "split"},
    {"packing": "pad", "seed": 5, "shuffle_window": 40},
]


def segments(batch):
    rows = zip(batch["tokens"], batch["tokens_segment_ids"], strict=True)
    return [[ids[numbers == number].tolist() for number in range(1, numbers.max() + 1)] for ids, numbers in rows]


def numbers(batches):
    """The records of the batches' tokens."""
    return [(token - 1) // 100 for batch in batches for row in segments(batch) for segment in row for token in segment]


@hypothesis.settings(
    max_examples=12, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(
    steps=st.lists(st.integers(0, 30), min_size=1, max_size=3, unique=True),
    moduli=st.lists(st.integers(2, 5), min_size=3, max_size=3),
    packing=st.sampled_from(["concat", "pad", "best_fit"]),
    window=st.integers(1, 60),
    length=st.integers(8, 50),
)
def test_rows_are_those_of_the_model(made, steps, moduli, packing, window, length):
    edits = [gm.Edit(step, keep=f"number % {m} != 0") for step, m in zip(sorted(steps), moduli, strict=False)]

    def rules_of(step):
        past = [m for at, m in zip(sorted(steps), moduli, strict=False) if at <= step]
        return Rules(length, 2, lambda record: all(record % m for m in past), len(past))

    more = {"fit_window": window} if packing == "best_fit" else {}
    dataset = made(packing=packing, edits=edits, truncation="split", sequence_length=length, **more)
    expected = []
    for shards in dataset.plan():
        documents = [one for path in shards for one in documents_of(int(path.rpartition("-")[2][0]), RECORDS)]
        expected.append(list(lane_steps(documents, rules_of, packing, window)))
    found = [segments(batch) for batch in dataset]
    for step in range(max(map(len, expected))):
        rows = [row for lane in expected for row in (lane[step] if step < len(lane) else [[], []])]
        assert found[step] == rows, step
    assert len(found) == max(map(len, expected))


@pytest.mark.parametrize("arguments", PACKINGS, ids=str)
def test_past_is_the_same_and_nothing_left_out_comes_behind_it(made, odd, arguments):
    plain = list(made(**arguments))
    iterator = iter(made(edits=[gm.Edit(12, drop=odd)], **arguments))
    edited = list(iterator)
    assert_same_batches(edited[:12], plain[:12])
    assert all(number % 2 == 0 for number in numbers(edited[12:]))
    whole = {number for number in numbers(plain) if number % 2 == 0}
    assert {number for number in numbers(edited) if number % 2 == 0} == whole
    past, future = numbers(edited[:12]), numbers(edited[12:])
    even = [number for number in past + future if number % 2 == 0]
    assert sorted(even) == sorted(number for number in numbers(plain) if number % 2 == 0)
    stats = iterator.stats()
    assert stats["records"] == SHARDS * RECORDS == stats["documents"] + stats["filtered"]


@pytest.mark.parametrize("arguments", PACKINGS, ids=str)
def test_state_before_an_edit_restores_with_it(made, odd, folder, arguments):
    """As after a spike of the loss: the run goes back, and continues without some records."""
    plain = made(**arguments)
    iterator = iter(plain)
    states, batches = [iterator.get_state()], []
    for batch in iterator:
        batches.append(batch)
        states.append(iterator.get_state())
    edits = [gm.Edit(9, drop=odd), gm.Edit(14, keep="number % 3 != 0"), gm.Edit(16, shards=f"{folder}/new-*.jsonl")]
    dataset = made(edits=edits, **arguments)
    edited = list(dataset)
    assert_same_batches(edited[:9], batches[:9])
    for step in (0, 4, 8, 9):
        restored = iter(dataset)
        restored.set_state(json.loads(json.dumps(states[step])))
        for expected in edited[step:]:
            found = next(restored)
            for name, array in expected.items():
                assert np.array_equal(array, found[name]), (step, name)
    for step in (10, 13):
        with pytest.raises(gm.StateError, match="the first step that differs is 9, which is in the past"):
            iter(dataset).set_state(states[step])


@pytest.mark.parametrize("arguments", PACKINGS, ids=str)
def test_state_restores_at_all_points(made, odd, folder, arguments):
    edits = [gm.Edit(9, drop=odd), gm.Edit(11, keep="number % 3 != 0"), gm.Edit(14, shards=f"{folder}/new-*.jsonl")]
    stages = [gm.Stage(0, 32, 4), gm.Stage(10, 48, 2), gm.Stage(11, 24, 4)]
    dataset = made(edits=edits, stages=stages, **arguments)
    iterator = iter(dataset)
    states, batches = [iterator.get_state()], []
    for batch in iterator:
        batches.append(batch)
        states.append(iterator.get_state())
    stats = iterator.stats()
    assert stats["records"] == (SHARDS + 3) * RECORDS == stats["documents"] + stats["filtered"]
    for step in (*range(7, 18), 25, len(batches)):
        restored = iter(dataset)
        restored.set_state(json.loads(json.dumps(states[step])))
        assert_same_batches(restored, batches[step:])
        assert restored.get_state() == states[-1]
    hosts = [iter(dataset.for_hosts(index, 2)) for index in range(2)]
    for batch in batches[:16]:
        parts = [next(host) for host in hosts]
        assert np.array_equal(batch["tokens"], np.concatenate([part["tokens"] for part in parts]))
    assert gm.merge_states([host.get_state() for host in hosts]) == states[16]


@pytest.mark.parametrize("arguments", PACKINGS, ids=str)
def test_added_shards_are_read_once_an_epoch(made, folder, arguments):
    dataset = made(edits=[gm.Edit(5, shards=f"{folder}/new-*.jsonl")], epochs=2, provenance=True, **arguments)
    iterator = iter(dataset)
    batches = list(iterator)
    assert iterator.stats()["records"] == 2 * (SHARDS + 3) * RECORDS
    assert_same_batches(batches[:5], list(made(epochs=2, provenance=True, **arguments))[:5])
    assert [piece.name.rpartition("/")[2] for piece in dataset.pieces][SHARDS:] == [f"new-{n}.jsonl" for n in (4, 5, 6)]
    for batch in batches:
        for row, entries in zip(batch["tokens"], batch["provenance"], strict=True):
            passed = 0
            for shard, record, _, length in entries.tolist():
                number = int(dataset.pieces[shard].name.rpartition("-")[2][0]) * RECORDS + record
                assert length == 0 or row[passed] // 100 == number
                passed += length


def test_rows_are_named_by_their_number_too(made, folder):
    dataset = made(edits=[gm.Edit(3, drop=gm.RowList(folder / "rows.txt"))])
    future = numbers(list(dataset)[3:])
    assert not {*range(20, 60)} & {*future}
    both = made(drop=gm.RowList(folder / "odd.txt", key="id"), edits=[gm.Edit(3, drop=gm.RowList(folder / "rows.txt"))])
    assert {*numbers(both)} <= {number for number in range(SHARDS * RECORDS) if number % 2 == 0}
    assert not {*range(20, 60)} & {*numbers(list(both)[3:])}


def test_lanes_that_end_before_shards_are_added_are_an_error(made, folder):
    with pytest.raises(gm.ArgumentError, match=r"lane . ends before step 100000, from which on edits= adds shards"):
        list(made(edits=[gm.Edit(100_000, shards=f"{folder}/new-*.jsonl")]))


def test_an_edit_that_leaves_no_record_is_said(made, caplog):
    batches = list(made(edits=[gm.Edit(3, keep="numbr > 5")]))
    assert len(batches) == 3
    assert "the stream ends at step 3, from which on edits= has an edit that leaves no record" in caplog.text
    caplog.clear()
    assert len(list(made(edits=[gm.Edit(3, keep="number > 5")]))) > 3
    assert "leaves no record" not in caplog.text


def test_edits_of_one_source_of_a_mixture(folder):
    def made(edits):
        sources = {
            "a": gm.Source(f"{folder}/old-[01].jsonl", weight=1, sample=gm.Tokens(), epochs=2),
            "b": gm.Source(f"{folder}/old-[23].jsonl", weight=1, sample=gm.Tokens(), epochs=1),
        }
        return gm.PackedDataset(
            gm.Mixture(sources), edits=edits, layout="grain", lanes=2, seed=3, sequence_length=32, batch_size=4,
            packing="best_fit", source_arrays=True, provenance=True,
        )  # fmt: skip

    edits = [gm.Edit(8, keep="number % 2 == 0", source="b"), gm.Edit(12, shards=f"{folder}/new-*.jsonl", source="a")]
    dataset = made(edits)
    iterator = iter(dataset)
    states, batches = [iterator.get_state()], []
    for batch in iterator:
        batches.append(batch)
        states.append(iterator.get_state())
    plain = list(made(None))
    for batch, other in zip(batches[:8], plain[:8], strict=True):
        assert np.array_equal(batch["tokens"], other["tokens"])
    future = [number for number in numbers(batches[8:]) if 2 * RECORDS <= number < 4 * RECORDS]
    assert future
    assert all(number % 2 == 0 for number in future)
    sources = iterator.stats()["sources"]
    assert sources["a"]["documents"] == 2 * 5 * RECORDS
    assert {name: list(one.pieces)[-1].name.rpartition("/")[2] for name, one in dataset.sources.items()}
    for step in (7, 8, 9, 12, 13, 20):
        restored = iter(dataset)
        restored.set_state(states[step])
        assert_same_batches(restored, batches[step:])


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([{"step": 3}], "expected drop=, keep= or shards="),
        ([{"step": 3, "kep": "a"}], "found 'kep'"),
        ([{"step": -1, "keep": "a > 1"}], "step=-1"),
        ([{"step": 3, "keep": "a >"}], "keep='a >'"),
        (
            [{"step": 3, "keep": "a > 1", "source": "web"}],
            "expected one of the sources: none: the dataset is no mixture",
        ),
        ("[", "expected a list in JSON"),
    ],
)
def test_edits_that_do_not_fit_are_refused(made, edits, message):
    with pytest.raises(gm.ArgumentError, match=message):
        made(edits=edits)


def test_a_shard_cannot_be_added_twice(made, folder):
    with pytest.raises(gm.ArgumentError, match=r"old-0\.jsonl' is added, and was there before"):
        made(edits=[gm.Edit(3, shards=f"{folder}/old-0.jsonl")])
    with pytest.raises(gm.MissingShardError):
        made(edits=[gm.Edit(3, shards=f"{folder}/none-*.jsonl")])


def test_changed_edits_are_refused_with_the_first_step(made, odd):
    iterator = iter(made(edits=[gm.Edit(5, keep="number > 3"), gm.Edit(8, drop=odd)]))
    for _ in range(7):
        next(iterator)
    state = iterator.get_state()
    for edits, step in [
        (None, 5),
        ([gm.Edit(5, keep="number > 4")], 5),
        ([gm.Edit(2, keep="number > 1"), gm.Edit(5, keep="number > 3")], 2),
        ([gm.Edit(5, keep="number > 3"), gm.Edit(6, drop=odd)], 6),
    ]:
        with pytest.raises(gm.StateError, match=f"the first step that differs is {step}, which is in the past"):
            iter(made(edits=edits)).set_state(state)
    for edits in ([gm.Edit(5, keep="number > 3")], [gm.Edit(7, drop=odd), gm.Edit(5, keep="number > 3")]):
        restored = iter(made(edits=edits))
        restored.set_state(state)
        next(restored)


def test_inspect_shows_past_and_future(made, odd, tmp_path, capsys):
    iterator = iter(made(edits=[gm.Edit(5, keep="number > 3"), gm.Edit(80, drop=odd)], skip=[(2, 3)]))
    for _ in range(7):
        next(iterator)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(iterator.get_state()))
    assert main.run(["inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["edits"]["past"] == [{"step": 5, "keep": "number > 3"}]
    assert [edit["step"] for edit in found["edits"]["future"]] == [80]
    assert main.run(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "edits, past" in shown
    assert "from step 5 on keep=number > 3" in shown
