"""Draw curves in a terminal, with braille characters: each has two columns and four rows of dots."""

import math
from collections.abc import Mapping, Sequence

_BLANK = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # [column][row from the top]
_COLUMNS, _ROWS = 2, 4


def draw_curve(values: Mapping[int, float], width: int, height: int, low: float, high: float) -> list[str]:
    """Draw values by step as `height` lines of `width` characters, the lowest step at the left.

    Steps that share a column of dots are averaged. Values outside `low` to `high` are drawn at the edge.
    """
    dots = [[0] * width for _ in range(height)]
    before: tuple[int, int] | None = None
    for column, value in _average(values, width * _COLUMNS):
        share = (value - low) / (high - low) if high > low else 0.5
        row = round((1 - min(1.0, max(0.0, share))) * (height * _ROWS - 1))
        for x, y in _join(before, (column, row)):
            dots[y // _ROWS][x // _COLUMNS] |= _DOTS[x % _COLUMNS][y % _ROWS]
        before = column, row
    return ["".join(chr(_BLANK + each) for each in line) for line in dots]


def find_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the vertical axis: the least and the greatest value, or around a value that is alone."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - (abs(low) or 1) / 10, high + (abs(high) or 1) / 10)


def _average(values: Mapping[int, float], columns: int) -> list[tuple[int, float]]:
    """Return the mean value of each column that has values, from the left."""
    steps = sorted(values)
    if not steps:
        return []
    span = max(1, steps[-1] - steps[0])
    found: dict[int, list[float]] = {}
    for step in steps:
        found.setdefault(math.floor((step - steps[0]) / span * (columns - 1)), []).append(values[step])
    return [(column, sum(each) / len(each)) for column, each in found.items()]


def _join(start: tuple[int, int] | None, end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the dots of a straight line between two dots, without the first; the second alone without a first."""
    if start is None:
        return [end]
    (x, y), (to_x, to_y) = start, end
    count = max(abs(to_x - x), abs(to_y - y), 1)
    return [
        (round(x + (to_x - x) * each / count), round(y + (to_y - y) * each / count)) for each in range(1, count + 1)
    ]
