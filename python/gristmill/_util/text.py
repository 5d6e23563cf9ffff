"""Plain text for people: columns, counts, lists of numbers, and the start of a long value."""

from collections.abc import Iterable, Sequence

_SHOWN = 200


def format_fields(pairs: Iterable[tuple[str, object]]) -> str:
    """Names and values, one pair a line."""
    return format_columns([(name, str(value)) for name, value in pairs], right=())


def format_columns(rows: Sequence[Sequence[str]], right: Iterable[int]) -> str:
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
      noun: the singular.
      plural: the plural, if that is not `noun` with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def format_numbers(numbers: Iterable[int]) -> str:
    """Numbers for a message; of many, only the first and the last."""
    found: list[int | str] = list(numbers)
    return ", ".join(map(str, found if len(found) <= 12 else [*found[:6], "...", *found[-5:]]))


def shortened(value: object) -> str:
    """How Python writes a value, or the start of that, on one line."""
    try:
        shown = repr(value).replace("\n", " ")
    except ValueError:  # Python writes no integer of more than 4300 digits
        shown = f"<{type(value).__name__}>"
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
