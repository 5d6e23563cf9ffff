"""Bar charts as SVG, each with the table that it draws."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH = 640
_LABELS = 180
_BAR = 22


@dataclass(frozen=True)
class Chart:
    """A bar chart.

    Attributes:
      title: what it shows.
      labels: (what the bars are of, what their lengths are).
      bars: for each bar, its name and its length.
    """

    title: str
    labels: tuple[str, str]
    bars: Sequence[tuple[str, float]]

    def html(self) -> str:
        """The chart and its table."""
        of, amount = map(escape, self.labels)
        table = "".join(
            f"<tr><th scope=row>{escape(name)}</th><td>{_shown(value)}</td></tr>" for name, value in self.bars
        )
        return (
            f"<figure><figcaption>{escape(self.title)}</figcaption>{self._svg()}"
            f"<details><summary>As a table</summary><table><thead><tr><th scope=col>{of}</th>"
            f"<th scope=col>{amount}</th></tr></thead><tbody>{table}</tbody></table></details></figure>"
        )

    def _svg(self) -> str:
        largest = max((value for _, value in self.bars), default=0) or 1
        room, lines = _WIDTH - _LABELS - 90, []
        for number, (name, value) in enumerate(self.bars):
            top, length = number * _BAR, room * value / largest
            lines.append(
                f'<text x="{_LABELS - 8}" y="{top + 15}" text-anchor="end">{escape(_shortened(name))}</text>'
                f'<rect x="{_LABELS}" y="{top + 3}" width="{max(length, 1 if value else 0):.1f}" height="{_BAR - 6}"/>'
                f'<text x="{_LABELS + length + 6:.1f}" y="{top + 15}">{_shown(value)}</text>'
            )
        height = len(self.bars) * _BAR
        return f'<svg viewBox="0 0 {_WIDTH} {height}" aria-hidden="true">{"".join(lines)}</svg>'


def lengths(values: Sequence[int], title: str, what: str) -> Chart:
    """How many values there are of each size, from one power of two to the next."""
    counts = Counter(value.bit_length() for value in values)
    every = range(min(counts), max(counts) + 1) if counts else ()
    return Chart(title, (what, "how many"), [(_sizes(bits), counts[bits]) for bits in every])


def _sizes(bits: int) -> str:
    """The numbers of so many bits."""
    least, largest = 1 << bits >> 1, (1 << bits) - 1
    return f"{least:,}" if least == largest else f"{least:,} to {largest:,}"


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _shortened(name: str) -> str:
    return name if len(name) <= 26 else f"…{name[-25:]}"
