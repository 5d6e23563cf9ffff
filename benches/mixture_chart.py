"""How far batches are off the weights: gristmill's rule, Grain's mix, and independent draws.

python benches/mixture_chart.py --output docs/mixtures.svg
"""

import argparse
import math
from pathlib import Path

import grain
import numpy as np
import numpy.typing as npt

PHI = 0x9E3779B97F4A7C15
WEIGHTS = np.array([0.5, 0.25, 0.15, 0.07, 0.03])
ROWS, STEPS = 512, 200
COLORS = {"independent draws": "#c44e52", "Grain's mix": "#8c8c8c", "gristmill": "#1f5fa8"}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 340, 60, 40, 50

Sources = npt.NDArray[np.int64]


def of_gristmill() -> Sources:
    """The source of each row, by the rule of docs/mixtures.md."""
    multiplier = next(m for m in range(ROWS * PHI >> 64, ROWS) if math.gcd(m, ROWS) == 1)
    ends = np.cumsum(WEIGHTS)
    points = [
        [(step * PHI + (multiplier * row % ROWS << 64) // ROWS) % 2**64 / 2**64 for row in range(ROWS)]
        for step in range(STEPS)
    ]
    return np.minimum(np.searchsorted(ends, np.array(points), side="right"), len(WEIGHTS) - 1)


def of_grain() -> Sources:
    """The source of each row in Grain's mix of data sets that hold their own numbers."""
    sources = [grain.MapDataset.source([number]).repeat() for number in range(len(WEIGHTS))]
    mixed = grain.MapDataset.mix(sources, weights=list(WEIGHTS))
    return np.array([mixed[index] for index in range(ROWS * STEPS)]).reshape(STEPS, ROWS)


def of_draws() -> Sources:
    """The source of each row, drawn at random."""
    return np.random.default_rng(0).choice(len(WEIGHTS), (STEPS, ROWS), p=WEIGHTS)


def rows_off(sources: Sources) -> npt.NDArray[np.float64]:
    """The most rows by which each batch is off the weights."""
    counts = np.stack([(sources == number).sum(axis=1) for number in range(len(WEIGHTS))], axis=1)
    found: npt.NDArray[np.float64] = np.abs(counts - ROWS * WEIGHTS).max(axis=1)
    return found


def draw(curves: dict[str, npt.NDArray[np.float64]]) -> str:
    """The chart as SVG."""
    most = max(curve.max() for curve in curves.values())
    x_step, y_step = (WIDTH - LEFT - 20) / STEPS, (HEIGHT - TOP - BOTTOM) / most
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="20">rows off the weights, at most of {len(WEIGHTS)} sources, in batches of {ROWS}</text>',
    ]
    base = HEIGHT - BOTTOM
    for rows in range(0, int(most) + 1, 10):
        y = base - rows * y_step
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{rows}</text>')
    for index, (name, curve) in enumerate(curves.items()):
        points = " ".join(f"{LEFT + step * x_step:.1f},{base - off * y_step:.1f}" for step, off in enumerate(curve))
        color, x = COLORS[name], LEFT + 240 * index
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        text = f"{name}: {curve.mean():.1f} on average, at most {curve.max():.1f}"
        parts.append(f'<text x="{x}" y="{HEIGHT - 12}" fill="{color}">{text}</text>')
    parts.append(f'<text x="{WIDTH - 20}" y="{base + 18}" text-anchor="end">batch 0 to {STEPS - 1}</text></svg>')
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="the SVG file to write")
    arguments = parser.parse_args()
    found = {"independent draws": of_draws(), "Grain's mix": of_grain(), "gristmill": of_gristmill()}
    arguments.output.write_text(draw({name: rows_off(sources) for name, sources in found.items()}))


if __name__ == "__main__":
    main()
