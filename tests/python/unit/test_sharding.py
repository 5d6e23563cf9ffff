"""Lanes from shardings, with fake meshes of many hosts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gristmill as gm
from fakes import sharding_of
from gristmill._spec.sharding import lanes_of_processes


def lanes(sharding, batch_size=16, lanes=8, shards=16):
    return lanes_of_processes(sharding, batch_size=batch_size, sequence_length=32, lanes=lanes, shards=shards)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([[(0, 8)], [(8, 16)]], {0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}),
        ([[(0, 4), (4, 8)], [(8, 12), (12, 16)]], {0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}),
        ([[(0, 1), (1, 2), (4, 6)], [(2, 4), (6, 16)]], {0: [0, 2], 1: [1, 3, 4, 5, 6, 7]}),
        ([[(0, 16)], [(0, 16)]], {0: list(range(8)), 1: list(range(8))}),
        (
            [[(0, 8)], [(8, 16)], [(8, 16)], [(0, 8)]],
            {0: [0, 1, 2, 3], 1: [4, 5, 6, 7], 2: [4, 5, 6, 7], 3: [0, 1, 2, 3]},
        ),
        ([[(8, 16)], [(0, 8)]], {0: [4, 5, 6, 7], 1: [0, 1, 2, 3]}),
        ([[(None, None)]], {0: list(range(8))}),
    ],
)
def test_processes_get_the_lanes_of_their_rows(spans, expected):
    assert lanes(sharding_of(*spans)) == expected


@given(st.data())
def test_lanes_of_each_process_cover_exactly_its_rows(data):
    per_lane = data.draw(st.integers(1, 3))
    count = data.draw(st.integers(1, 12))
    groups = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    copies = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    spans = [
        [(lane * per_lane, (lane + 1) * per_lane) for lane in range(count) if groups[lane] == group] for group in copies
    ]
    spans = [own for own in spans if own]
    plan = lanes(sharding_of(*spans), batch_size=count * per_lane, lanes=count)
    for process, own in enumerate(spans):
        rows = sorted(row for span in own for row in range(*span))
        assert [row for lane in plan[process] for row in range(lane * per_lane, (lane + 1) * per_lane)] == rows


def test_error_for_divided_lanes_names_numbers_that_fit():
    halves = sharding_of([(0, 2)], [(2, 4)], [(4, 6)], [(6, 8)])
    with pytest.raises(
        gm.ArgumentError, match=r"lanes=2: .* 4 rows each.*process 0 the rows 0-1.*possible numbers of lanes: 4, 8$"
    ):
        lanes(halves, batch_size=8, lanes=2)
    with pytest.raises(gm.ArgumentError, match=r"possible numbers of lanes: 4$"):
        lanes(halves, batch_size=8, lanes=2, shards=7)
    with pytest.raises(gm.ArgumentError, match="needs at least 4 shards"):
        lanes(halves, batch_size=8, lanes=2, shards=3)
    thirds = sharding_of([(0, 4)], [(4, 8)], [(8, 12)])
    with pytest.raises(gm.ArgumentError, match="possible numbers of lanes: 3, 6, 12"):
        lanes(thirds, batch_size=12, lanes=4)
    assert lanes(thirds, batch_size=12, lanes=6) == {0: [0, 1], 1: [2, 3], 2: [4, 5]}


@pytest.mark.parametrize(
    "spans",
    [
        [[(0, 8)], [(4, 12)], [(12, 16), (0, 4)]],
        [[(0, 16)], [(8, 16)]],
        [[(0, 4), (8, 12)], [(4, 8)], [(8, 12), (12, 16)]],
    ],
)
def test_partly_shared_rows_are_refused(spans):
    with pytest.raises(gm.ArgumentError, match=r"process \d the rows .*; process \d the rows .*overlap in part"):
        lanes(sharding_of(*spans))
