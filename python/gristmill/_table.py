"""Plain text: columns, and how many there are of something."""

from collections.abc import Iterable, Sequence


def fields(pairs: Iterable[tuple[str, object]]) -> str:
    """Names and values, one pair a line."""
    return columns([(name, str(value)) for name, value in pairs], right=())


def columns(rows: Sequence[Sequence[str]], right: Iterable[int]) -> str:
    """Rows of equal length, with the columns in `right` aligned to the right."""
    right = frozenset(right)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def counted(number: int, noun: str, plural: str = "") -> str:
    """How many there are: `1 row`, `2,000 rows`, `3 batches`.

    Args:
      number: how many.
      noun: what one of them is called.
      plural: what any other number of them is called, if that is not `noun` with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
