"""The benchmark's result as charts: SVG files, drawn by matplotlib."""

from pathlib import Path
from typing import Any

from gristmill._bench.rounds import OURS

_OURS, _OTHERS, _PHASES = "#b5651d", "#8a97a6", ("#5b8db8", "#b5651d", "#7fa35a")


def draw_speeds(result: dict[str, Any], path: Path) -> None:
    """Tokens a second of each contender on each number of threads, and the share of each of gristmill's phases."""
    figure, (speeds, phases) = _figure(2, (10, 1.2 + 0.32 * len(result["contenders"]) * len(result["by_threads"])))
    entries = result["by_threads"]
    labels, values, colours = [], [], []
    for entry in reversed(entries):
        for name, medians in reversed(entry["summary"].items()):
            labels.append(f"{result['contenders'][name]['title']}, {entry['threads']} thr.")
            values.append(medians["tokens_per_second"] / 1e6)
            colours.append(_OURS if name == OURS else _OTHERS)
    bars = speeds.barh(labels, values, color=colours)
    speeds.bar_label(bars, [f"{value:,.2f}" for value in values], padding=3, fontsize=8)
    # Reading files is faster than packing them by orders of magnitude.
    speeds.set_xscale("log")
    speeds.set_xlabel("million tokens a second, gz to batches (log scale)")
    speeds.margins(x=0.25)
    names = [f"{entry['threads']} thr." for entry in entries]
    left = [0.0] * len(entries)
    for phase, colour in zip(("read", "encode", "pack"), _PHASES, strict=True):
        busy = [entry["summary"][OURS]["busy_seconds"] for entry in entries]
        shares = [100 * each[phase] / (sum(each.values()) or 1.0) for each in busy]
        phases.barh(names, shares, left=left, color=colour, label=phase)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    phases.set_xlabel("share of gristmill's time, %")
    phases.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, fontsize=8)
    _save(figure, path)


def draw_delays(latency: dict[str, Any], path: Path) -> None:
    """Every delay under continuous and paced consumption, in order of time and of size."""
    figure, (over_time, by_size) = _figure(2, (10, 3.6))
    for name, colour in (("continuous", _OTHERS), ("paced", _OURS)):
        delays = [1e3 * seconds for seconds in latency[name]["seconds"]]
        label = name if name == "continuous" else f"every {1e3 * latency['pace']:.1f} ms"
        over_time.plot(delays, ".", markersize=3, color=colour, label=label)
        shares = [100 * (place + 1) / len(delays) for place in range(len(delays))]
        by_size.step(sorted(delays), shares, color=colour, label=label)
    over_time.set_xlabel("batch")
    over_time.set_ylabel("time of next, ms")
    by_size.set_xlabel("time of next, ms")
    by_size.set_ylabel("% of batches that took at most this")
    for axes in (over_time, by_size):
        axes.legend(fontsize=8)
    _save(figure, path)


def _figure(columns: int, size: tuple[float, float]) -> Any:
    # Without pyplot, which would look for a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(1, columns)


def _save(figure: Any, path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(path, metadata={"Date": None})
