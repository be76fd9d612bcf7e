"""Words of several parts that are also written as one: e-mail, O'Neil, p.m., ABC-123 and 713-853-4218.

They are found only in ASCII, and not in addresses, in numbers with separators, or next to letters outside ASCII.
Contractions such as "don't", and short ranges of numbers such as 10-15, are not compounds.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

MIN_JOINED = 3
"""Characters that a compound must have to be searched for as one word: the U.S. are not "us"."""
MARK = "\x01"
"""Control character in texts with marks: the mark of a compound follows its first part and its last part."""
_PART = "[0-9A-Za-z]"
_HYPHENS, _APOSTROPHES = "-\u2010\u2011", "'\u2019"
_NEIGHBOURS = "\\x00-\\x7f\u2018\u2019\u201c\u201d\u2013\u2014\u2022\u2026\u00a0"
_SEPARATOR = re.compile(f"[{_HYPHENS}{_APOSTROPHES}.]")
# Looked for first, because it is fast.
_INNER_SEPARATOR = re.compile(rf"[{_HYPHENS}{_APOSTROPHES}.](?<={_PART}.)(?={_PART})")
_COMPOUND = re.compile(
    rf"(?<![\w@/\\=&?%#+~.])(?<!\w[{_HYPHENS}{_APOSTROPHES},])(?<![^{_NEIGHBOURS}])"
    rf"(?:{_PART}++(?:[{_HYPHENS}]{_PART}++){{1,3}}"
    rf"|[A-Za-z]{{1,2}}[{_APOSTROPHES}][A-Za-z]{{3,}}"
    r"|(?:[A-Za-z]\.){1,5}[A-Za-z])"
    rf"(?![\w@]|[{_HYPHENS}.,:]\w|[{_APOSTROPHES}](?![sS]\b)\w|[^{_NEIGHBOURS}])"
)
_MIN_DIGITS = 7  # of a compound of digits alone, such as a telephone number or a date


class Compound(NamedTuple):
    """A compound in a text."""

    start: int
    end: int
    parts: list[str]
    """Two to six, as they stand in the text."""
    has_apostrophe: bool

    @property
    def joined(self) -> str:
        """The compound as one word."""
        return "".join(self.parts)

    @property
    def mark(self) -> str:
        """The parts, each after a `MARK`."""
        return MARK + MARK.join(self.parts)


def find_compounds(text: str) -> Iterator[Compound]:
    """Yield the compounds of a text in order, in time linear in its length.

    >>> [each.joined for each in find_compounds("Re-send Ms. O'Neil's e-mail of 9 p.m. to 555-1234, pages 10-15.")]
    ['Resend', 'ONeil', 'email', 'pm', '5551234']
    """
    end = 0
    for separator in _INNER_SEPARATOR.finditer(text):
        start = separator.start()
        if start < end:
            continue
        begin = end
        while start > begin and text[start - 1].isascii() and text[start - 1].isalnum():
            start -= 1
        end = separator.end()  # the next one cannot begin before
        found = _COMPOUND.match(text, start)
        if found is None:
            continue
        end = found.end()
        parts = _SEPARATOR.split(found[0])
        compound = Compound(start, end, parts, found[0][len(parts[0])] in _APOSTROPHES)
        if not compound.joined.isdigit() or len(compound.joined) >= _MIN_DIGITS:
            yield compound


def join_compounds(text: str, is_wanted: Callable[[Compound], bool]) -> str:
    """Return a text with those of its compounds as one word each that are wanted."""
    pieces, end = list[str](), 0
    for each in find_compounds(text):
        if is_wanted(each):
            pieces += [text[end : each.start], each.joined]
            end = each.end
    return "".join([*pieces, text[end:]])


def list_marks(compounds: Iterable[Compound]) -> dict[int, str]:
    """Return the marks of compounds by the places of their first and last parts in the text."""
    return {place: each.mark for each in compounds for place in (each.start, each.end - len(each.parts[-1]))}


def mark_compounds(text: str, compounds: Iterable[Compound]) -> str:
    """Return a text with marks, and with spaces between the parts of compounds."""
    pieces, end = list[str](), 0
    for each in compounds:
        first, *middle, last = each.parts
        pieces += [text[end : each.start], first, each.mark, " ", *(f"{part} " for part in middle), last, each.mark]
        end = each.end
    return "".join([*pieces, text[end:]])
