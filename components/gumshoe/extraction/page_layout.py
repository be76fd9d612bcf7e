"""Put the characters of a page in reading order: lines, columns one after another, and words without line ends."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

_LINE_SHIFT = 0.5  # of the height of a character: what is farther up or down is another line
_WIDE_GAP = 1.2  # of the height: what is farther to the right is another part of the line
_MIN_GUTTER = 0.6  # of the height: space between two columns
_MIN_COLUMN_LINES = 3
_MIN_FILLED = 0.55  # of its column's width that the median line fills
_MIN_LINE_LENGTH = 12  # characters of the median line of a column; cells of a table are shorter
_MAX_SPANNING = 0.5  # share of lines that go over both columns, e.g. titles
_MAX_COLUMNS = 4
_MAX_PARTS = 2_000  # of a page with columns; a page with more is a table or a drawing
_MAX_GUTTERS = 20  # places that are tried
_MIN_PART_LENGTH = 3  # characters, on average; below, the page is written in another direction
_HYPHENS = "-\u00ad\u2010\u0002\ufffe"
_SOFT_HYPHEN = "\u00ad"
_LAST_WORD = re.compile(rf"(\w[\w'\u2019]*)([{_HYPHENS}])$")
_FIRST_WORD = re.compile(r"([^\W\d_][\w'\u2019]*)")
_WORD = re.compile(r"\w[\w'\u2019]*(?:-\w[\w'\u2019]*)*")


class Character(NamedTuple):
    """A character and its box on the page, in points from the lower left corner."""

    text: str
    left: float
    right: float
    bottom: float
    top: float
    is_hyphen: bool
    """True for a hyphen at the end of a line."""


@dataclass(slots=True)
class Part:
    """A part of a line without a wide gap."""

    characters: list[str]
    left: float
    right: float
    bottom: float
    top: float

    @property
    def text(self) -> str:
        return "".join(self.characters).strip()

    @property
    def height(self) -> float:
        return max(self.top - self.bottom, 1.0)


def order_lines(characters: Sequence[Character]) -> list[str]:
    """Return the lines of a page in reading order. Parts of a line that are far apart are separated by a tab."""
    parts = [each for each in _split_parts(characters) if each.text]
    if not parts:
        return []
    if sum(len(each.text) for each in parts) < _MIN_PART_LENGTH * len(parts) and len(parts) > _MIN_PART_LENGTH:
        return _join_plain(characters)
    return list(_join_rows(_order(parts, _MAX_COLUMNS)))


def _join_plain(characters: Iterable[Character]) -> list[str]:
    """Return the lines as the file has them."""
    text = "".join(each.text for each in characters)
    return [line.strip() for line in text.replace("\r\n", "\n").split("\n") if line.strip()]


def _split_parts(characters: Iterable[Character]) -> Iterator[Part]:
    """Yield parts of lines in the order of the file."""
    part: Part | None = None
    pending = False
    for each in characters:
        if not each.text or each.text.isspace():
            pending = True
        else:
            if part is not None and _continues(part, each):
                part.characters.append(f" {each.text}" if pending else each.text)
                _extend(part, each)
            else:
                if part is not None:
                    yield part
                part = Part([each.text], each.left, each.right, each.bottom, each.top)
            pending = False
    if part is not None:
        yield part


def _continues(part: Part, each: Character) -> bool:
    height = max(part.height, each.top - each.bottom)
    is_same_line = (each.bottom < part.top and part.bottom < each.top) or abs(
        each.bottom - part.bottom
    ) < _LINE_SHIFT * height
    return is_same_line and -0.5 * height < each.left - part.right < _WIDE_GAP * height


def _extend(part: Part, each: Character) -> None:
    part.left, part.right = min(part.left, each.left), max(part.right, each.right)
    part.bottom, part.top = min(part.bottom, each.bottom), max(part.top, each.top)


def _order(parts: list[Part], columns: int) -> list[Part]:
    """Return parts in reading order: columns from left to right, between lines that go over all of them."""
    gutter = _find_gutter(parts, columns)
    if gutter is None:
        return parts
    ordered: list[Part] = []
    band: list[Part] = []

    def end_band() -> None:
        for side in (
            [each for each in band if each.right <= gutter],
            [each for each in band if each.left >= gutter],
        ):
            ordered.extend(_order(side, columns - 1))
        band.clear()

    for each in sorted(parts, key=lambda part: (-part.top, part.left)):
        if each.left < gutter < each.right:
            end_band()
            ordered.append(each)
        else:
            band.append(each)
    end_band()
    return ordered


def _find_gutter(parts: list[Part], columns: int) -> float | None:
    """Return the middle of the space between two columns of text, or None. A table is no columns of text."""
    if columns < 2 or not 2 * _MIN_COLUMN_LINES <= len(parts) <= _MAX_PARTS:
        return None
    height = median(each.height for each in parts)
    best: tuple[int, float] | None = None
    for place in _candidate_gutters(parts, height):
        left = [each for each in parts if each.right <= place]
        right = [each for each in parts if each.left >= place]
        spanning = len(parts) - len(left) - len(right)
        if spanning > _MAX_SPANNING * len(parts) or not left or not right or not _overlap(left, right):
            continue
        are_columns = all(_is_column(each) or _find_gutter(each, columns - 1) is not None for each in (left, right))
        if are_columns and (best is None or spanning < best[0]):
            best = spanning, place
    return best[1] if best else None


def _candidate_gutters(parts: list[Part], height: float) -> Iterator[float]:
    """Yield places in front of parts with space on their left."""
    seen: set[int] = set()
    rights = sorted(each.right for each in parts)
    for left in sorted({each.left for each in parts}):
        before = bisect_right(rights, left)
        if before and left - rights[before - 1] >= _MIN_GUTTER * height and round(left) not in seen:
            seen.add(round(left))
            yield (rights[before - 1] + left) / 2
        if len(seen) >= _MAX_GUTTERS:
            return


def _is_column(parts: list[Part]) -> bool:
    if len(parts) < _MIN_COLUMN_LINES:
        return False
    width = max(each.right for each in parts) - min(each.left for each in parts)
    is_filled = median(each.right - each.left for each in parts) >= _MIN_FILLED * width
    return is_filled and median(len(each.text) for each in parts) >= _MIN_LINE_LENGTH


def _overlap(left: list[Part], right: list[Part]) -> bool:
    """Return True if two groups of lines are beside each other, and not one above the other."""
    top = min(max(each.top for each in left), max(each.top for each in right))
    bottom = max(min(each.bottom for each in left), min(each.bottom for each in right))
    return top > bottom


def _join_rows(parts: Iterable[Part]) -> Iterator[str]:
    """Yield lines. Parts that follow each other on the same line are one line."""
    row: list[Part] = []
    for part in parts:
        last = row[-1] if row else None
        is_same = (
            last is not None and part.left >= last.right and abs(part.bottom - last.bottom) < _LINE_SHIFT * last.height
        )
        if row and not is_same:
            yield "\t".join(each.text for each in row)
            row = []
        row.append(part)
    if row:
        yield "\t".join(each.text for each in row)


def join_hyphenated(pages: Sequence[str]) -> list[str]:
    """Join words that are hyphenated at the end of a line, or of a page, e.g. `deduct-` and `ible`.

    A hyphen stays if the text has the word with it elsewhere, e.g. `well-known`, and not without it.
    """
    lines = [page.split("\n") for page in pages]
    inner = [line for page in lines for line in page]
    known = {word.casefold() for line in inner for word in _WORD.findall(line)}
    for page, following in zip(lines, [*lines[1:], [""]], strict=True):
        for place, line in enumerate(page):
            next_lines, next_place = (page, place + 1) if place + 1 < len(page) else (following, 0)
            joined = _join_lines(line, next_lines[next_place], known)
            if joined:
                page[place], next_lines[next_place] = joined
    return [
        "\n".join(line for line in page if line or len(page) == 1).replace("\u0002", "-").replace("\ufffe", "-")
        for page in lines
    ]


def _join_lines(line: str, following: str, known: set[str]) -> tuple[str, str] | None:
    """Return two lines with the divided word whole in the first one, or None without a divided word."""
    last, first = _LAST_WORD.search(line), _FIRST_WORD.match(following)
    if last is None or first is None:
        return None
    start, hyphen, end = last[1], last[2], first[1]
    if not start[-1].isalpha():
        return None
    with_hyphen, whole = f"{start}-{end}", f"{start}{end}"
    if hyphen != _SOFT_HYPHEN:
        is_known = whole.casefold() in known
        if not end[0].islower() or (with_hyphen.casefold() in known and not is_known):
            whole = with_hyphen
    rest = following[first.end() :]
    punctuation = re.match(r"[^\w\s]*", rest)
    behind = punctuation[0] if punctuation else ""
    return line[: last.start()] + whole + behind, rest[len(behind) :].lstrip()
