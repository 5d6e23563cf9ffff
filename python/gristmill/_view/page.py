"""The page: one HTML file that needs no server and no network."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path

from gristmill._core import __version__
from gristmill._tokenizer.encoder import Encoder
from gristmill._util.text import counted
from gristmill._view.charts import Chart
from gristmill._view.rows import Row, Segment, spellings

# Nothing is loaded, and nothing that a text contains is run.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_COLORS = 8
_EXCERPT = 400


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
      title: its heading.
      note: a sentence below it; empty if there is none.
      rows: the first is that of the columns' names.
    """

    title: str
    note: str
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Page:
    """The contents of a page.

    Attributes:
      title: its heading.
      facts: names and values.
      rows: rows of a batch.
      encoder: the tokenizer of their texts; None: ids are shown.
      charts: bar charts.
      tables: tables.
    """

    title: str
    facts: Sequence[tuple[str, str]]
    rows: Sequence[Row] = ()
    encoder: Encoder | None = None
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()

    def html(self) -> str:
        """The file's content."""
        facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in self.facts)
        charts = "".join(chart.html() for chart in self.charts)
        parts = [
            f"<header><h1>{escape(self.title)}</h1><dl>{facts}</dl></header><main>",
            self._rows() if self.rows else "",
            f"<section><h2>Figures</h2><div class=charts>{charts}</div></section>" if charts else "",
            *map(_table, self.tables),
            f"</main><footer>Made by gristmill {__version__}.</footer>",
        ]
        return (
            "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
            '<meta name=viewport content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{_resource('view.css')}</style></head>\n<body>"
            + "\n".join(filter(None, parts))
            + f"\n<script type=application/json id=data>{self._data()}</script>"
            f"<script>{_resource('view.js')}</script></body></html>\n"
        )

    def _rows(self) -> str:
        rows = "".join(self._row(number, row) for number, row in enumerate(self.rows))
        trained = any(row.trained is not None for row in self.rows)
        legend = "A color is a document; hatched is padding." + (
            " The dark line below shows what is trained on." if trained else ""
        )
        return (
            f"<section><h2>Rows</h2><p>{legend} Choose a segment to see its tokens; the keys ← → ↑ ↓ move between "
            f"segments and rows.</p><ol class=rows>{rows}</ol>"
            "<aside id=tokens aria-live=polite aria-label='Tokens of the chosen segment' hidden></aside></section>"
        )

    def _row(self, number: int, row: Row) -> str:
        held = f"{counted(row.length, 'token')} in {counted(len(row.segments), 'segment')}"
        padding = len(row.tokens) - row.length
        facts = [
            held,
            *([f"{padding:,} of padding"] if padding else []),
            *([f"source {row.source}"] if row.source else []),
        ]
        total = len(row.tokens) or 1
        buttons, places = [], []
        for index, segment in enumerate(row.segments):
            left, width = 100 * segment.start / total, 100 * segment.length / total
            label = f"segment {index + 1} of {len(row.segments)}: {counted(segment.length, 'token')}{_place(segment)}"
            buttons.append(
                f'<button type=button class="segment c{index % _COLORS}" data-row={number} data-segment={index} '
                f'style="left:{left:.4f}%;width:{width:.4f}%" title="{escape(label)}" aria-label="{escape(label)}">'
                "</button>"
            )
            text = self._text(row, segment)
            places.append(
                f"<tr><td>{segment.start:,} to {segment.start + segment.length - 1:,}</td>"
                f"<td>{escape(str(segment.place.get('shard', '')))}</td><td>{_number(segment, 'record')}</td>"
                f"<td>{_number(segment, 'offset')}</td><td><bdi>{escape(text)}</bdi></td></tr>"
            )
        columns = ("in row", "shard", "record", "from token", "text")
        head = "".join(f"<th scope=col>{column}</th>" for column in columns)
        images = "".join(
            f'<figure><img src="{picture.url}" alt="image at token {at:,}"><figcaption>token {at:,}, '
            f"{picture.width} x {picture.height}</figcaption></figure>"
            for at, picture in row.images
        )
        return (
            f"<li><h3>{escape(row.name)}</h3><p>{escape(', '.join(facts))}</p>"
            f"<div class=strip>{''.join(buttons)}{_trained_line(row)}</div>"
            + (f"<div class=images>{images}</div>" if images else "")
            + f"<details><summary>Segments as a table</summary><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{''.join(places)}</tbody></table></details></li>"
        )

    def _text(self, row: Row, segment: Segment) -> str:
        ids = row.tokens[segment.start : segment.start + segment.length][:_EXCERPT]
        text = " ".join(map(str, ids)) if self.encoder is None else self.encoder.decode(ids)
        return text[:_EXCERPT]

    def _data(self) -> str:
        """The facts about the rows that the script needs, as JSON that ends no element."""
        origins = sorted({name for row in self.rows for name in row.origins if name})
        numbers = {name: number for number, name in enumerate(origins)}
        rows = [
            {
                "name": row.name,
                "tokens": row.tokens,
                "trained": None if row.trained is None else "".join("01"[own] for own in row.trained),
                "positions": row.positions,
                "origins": [numbers.get(name, -1) for name in row.origins],
                "segments": [[own.start, own.length, _place(own)] for own in row.segments],
                "values": row.values,
                "of_samples": row.of_samples,
            }
            for row in self.rows
        ]
        value = {"rows": rows, "origins": origins, "texts": spellings(self.encoder, self.rows)}
        return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")


def write(page: Page, path: Path) -> None:
    """Writes a page.

    Raises:
      OSError: it cannot be written.
    """
    path.write_text(page.html(), "utf-8", errors="backslashreplace")


def _place(segment: Segment) -> str:
    place = segment.place
    if not place:
        return ""
    sample = f" sample {place['sample']:,}" if "sample" in place else ""
    return f", {place['shard']} record {place['record']:,}{sample} from token {place['offset']:,}"


def _number(segment: Segment, name: str) -> str:
    return f"{segment.place[name]:,}" if name in segment.place else ""


def _trained_line(row: Row) -> str:
    """Where tokens are trained on, as lines below the segments."""
    if row.trained is None:
        return ""
    total, lines, begin = len(row.tokens) or 1, [], None
    for index, is_trained in enumerate([*row.trained, False]):
        if is_trained and begin is None:
            begin = index
        elif not is_trained and begin is not None:
            lines.append(f'<i style="left:{100 * begin / total:.4f}%;width:{100 * (index - begin) / total:.4f}%"></i>')
            begin = None
    return f"<div class=trained aria-hidden=true>{''.join(lines)}</div>"


def _table(table: Table) -> str:
    head, *rows = table.rows
    names = "".join(f"<th scope=col>{escape(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    return (
        f"<section><h2>{escape(table.title)}</h2>{note}<div class=wide><table><thead><tr>{names}</tr></thead>"
        f"<tbody>{lines}</tbody></table></div></section>"
    )


def _resource(name: str) -> str:
    return resources.files("gristmill._view").joinpath(name).read_text("utf-8")
