"""The cores that the ranks of a machine share."""

import pytest

from gristmill._util import cores


@pytest.mark.parametrize(
    ("ranks", "processes", "threads"),
    [(None, 1, 12), ("4", 1, 3), ("4", 2, 1), ("100", 1, 1), ("", 3, 4), ("0", 1, 12), ("many", 1, 12)],
)
def test_ranks_of_torchrun_share_the_cores(monkeypatch, ranks, processes, threads):
    monkeypatch.setattr(cores, "usable_cores", lambda: 12)
    if ranks is None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert cores.shared_cores(processes) == threads
