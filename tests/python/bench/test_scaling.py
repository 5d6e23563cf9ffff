"""The model of benches/scaling.py on figures that can be worked out by hand."""

import json
import runpy
import sys

import pytest

from helpers import ROOT

SCRIPT = ROOT / "benches" / "scaling.py"


def bench(threads=(1, 2)):
    """40 ns a token: 10 for reading, 25 for encoding, 5 for packing; on two threads a tenth more."""
    return {
        "machine": {"usable_cores": 2},
        "job": {"batch_size": 10, "sequence_length": 1000},
        "shard_bytes": 2_000_000,
        "latency": {"batch_size": 20, "paced": {"p50": 1e-4}},
        "by_threads": [
            {
                "threads": count,
                "summary": {
                    "gristmill": {
                        "tokens": 1_000_000,
                        "text_bytes": 4_000_000,
                        "tokens_per_second": count * 20e6,
                        "tokens_per_cpu_second": 25e6 if count == 1 else 25e6 / 1.1,
                        "cpu_seconds": 0.04,
                        "seconds": 0.04 / count,
                        "sleeps": 10 * count,
                        "peak_bytes": 1e9 + (count - 1) * 1e8,
                        "busy_seconds": {"read": 2.0, "encode": 5.0, "pack": 1.0},
                    }
                },
            }
            for count in threads
        ],
    }


@pytest.fixture
def scaling(monkeypatch):
    # Dataclasses look their module up.
    monkeypatch.setitem(sys.modules, "scaling", type(sys)("scaling"))
    return runpy.run_path(str(SCRIPT), run_name="scaling")


def test_costs_come_from_the_round_on_one_thread(scaling):
    costs = scaling["Costs"].of(bench())
    assert [round(1e9 * cost, 6) for cost in (costs.read, costs.encode, costs.pack)] == [10, 25, 5]
    assert (costs.text_bytes, costs.stored_bytes, costs.batch_tokens) == (4, 2, 20_000)
    assert (costs.base_bytes, costs.thread_bytes) == (1e9, 1e8)
    with pytest.raises(SystemExit, match="--threads 1 --latency"):
        scaling["Costs"].of(bench(threads=(2,)))


@pytest.mark.parametrize(
    ("cores", "lanes", "machine", "first", "rate"),
    [
        (2, 8, {}, "cores", 50e6),
        (100, 1, {}, "lanes", 100e6),
        (100, 8, {}, "consumer", 200e6),
        (2, 8, {"storage": 10e6}, "storage", 5e6),
        (2, 8, {"memory": 70e6}, "memory bandwidth", 1e6),
        (2, 8, {"lock": 1e-3}, "schedule's lock", (512 << 10) / 4 / 5e-3),
    ],
)
def test_smallest_limit_is_the_bottleneck(scaling, cores, lanes, machine, first, rate):
    costs = scaling["Costs"].of(bench())
    given = scaling["Machine"](**{"memory": 1e12, "storage": 1e12, "lock": 1e-7, **machine})
    limits = scaling["limits"](costs, given, cores, lanes)
    # Memory: 5 * 4 bytes of text, 2 * 24 of rows and 2 as stored are 70 bytes a token.
    assert min(limits.values()) == pytest.approx(rate)
    assert limits[first] == pytest.approx(rate)


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize(
    ("cores", "machine", "needed"),
    [
        (2, {}, 1),  # 50 M tokens/s, at 10 ns each
        (200, {"storage": 10e6}, 1),
        (200, {"memory": 70 * 150e6}, 2),  # 150 M tokens/s, however many cores there are
    ],
)
def test_needed_lanes_are_capped_by_other_limits(scaling, cores, lanes, machine, needed):
    costs = scaling["Costs"].of(bench())
    given = scaling["Machine"](**{"memory": 1e12, "storage": 1e12, "lock": 1e-7, **machine})
    (row,) = [line for line in scaling["one_host"](costs, given, lanes).splitlines() if line.startswith(f"| {cores} |")]
    assert row.split(" | ")[4] == str(needed)


def test_scaling_prints_the_check_and_both_tables(tmp_path, scaling, monkeypatch, capsys):
    (tmp_path / "bench.json").write_text(json.dumps(bench()))
    monkeypatch.setattr(sys, "argv", ["scaling.py", str(tmp_path / "bench.json"), "--demand", "3e8"])
    scaling["main"]()
    out = capsys.readouterr().out
    assert "read 10.0, encode 25.0, pack 5.0; 25.0 M tokens/s a core" in out
    assert "| 2 | 44.0 ns | 40.0 ns | +10% | 2.00 | 40.00 | 50.00 | 2.62 |" in out
    # 300 M tokens/s take 12 cores and, at 10 ns a token, 3 lanes: 4 as a power of two.
    assert "| 64 | 19,200 | 12.00 | 4 | 256 | 256 | 38.40 | 3317.8 |" in out
