"""Complete ranges whose ends share a unit, a month or am and pm: "2-3 pm", "May 8-10", "$5 to 10 million"."""

import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from gumshoe.rewards.heuristic.value import Value

_JOINS = re.compile(r"\s?-\s?|\s(?:to|through|thru|until|till)\s(?:the\s)?")
_AND = re.compile(r"\s(?:and|&)\s(?:the\s)?")
_BETWEEN = re.compile(r"\bbetween\s(?:the\s)?$", re.I)
_NUMBER = re.compile(r"\d[\d,.:]*(?<=\d)(?:st|nd|rd|th)?", re.I)
_LAST_NUMBER = re.compile(r"(?<![\d,.:])\d[\d,.:]*(?<=\d)(?:st|nd|rd|th)?$", re.I)
_BARE, _TIMED = frozenset({"number", "ordinal"}), frozenset({"date", "time"})
_DAY = re.compile(r"\d\d?(?:st|nd|rd|th)?", re.I)
_COUNTS = re.compile(  # a number before a word counts something, and is no day or hour
    r"\s?(?!(?:from|until|and|with|are|was|were|will|but|this|next|each|every|which|when)\b)[^\W\d_]{3,}", re.I
)
_TAIL = 30  # characters after a range that may belong to its unit
_HALF_DAY = 720  # minutes

Find = Callable[[str], list[Value]]


def complete_ranges(text: str, values: list[Value], find: Find) -> list[Value]:
    """Return the values of a text in order, with the unit of its neighbour for each end of a range that has none.

    `find` returns the values of a text, each as it stands there alone.
    """
    done: list[Value] = []
    for value in values:
        if done and value.start < done[-1].end:
            continue  # a year that belongs to the range before it
        if done and _is_range(text, done[-1], value):
            done[-1:] = _complete(text, done[-1], value, find)
        else:
            done.append(value)
    return done


def _is_range(text: str, one: Value, other: Value) -> bool:
    """Return True if two values are joined as a range, or as a pair of dates or times, and one of them is bare."""
    joint = text[one.end : other.start]
    kinds = {one.kind, other.kind}
    if kinds.isdisjoint(_BARE) or not kinds <= _BARE | _TIMED:
        return False
    is_pair = _AND.fullmatch(joint) is not None
    is_between = is_pair and (_BETWEEN.search(text, 0, one.start) is not None or not kinds.isdisjoint(_TIMED))
    return is_between or _JOINS.fullmatch(joint) is not None


def _complete(text: str, one: Value, other: Value, find: Find) -> tuple[Value, Value]:
    """Return both ends of a range: the first with what follows the second, the second with what precedes the first."""
    first = _NUMBER.search(text, other.start, other.end)
    if first is None:
        return one, other
    last, leading = _LAST_NUMBER.search(text, one.start, one.end), _NUMBER.match(text, one.start, one.end)
    own = text[one.start : one.end]
    full = _first(find, own + text[first.end() : other.end + _TAIL]) if last else None
    if first.start() == other.start and not (one.kind in _TIMED and _COUNTS.match(text, other.end)):
        added, after = _before_number(own, one, last.start() - one.start) if last else "", ""
        if last is None and leading is not None:
            after = own[leading.end() - one.start :]
        moved = _first(find, f"{added}{first[0]}{after}{text[first.end() : other.end + _TAIL]}")
        if moved is not None and _is_fuller(moved, other, one, first[0]):
            other = replace(moved, start=other.start, end=max(other.start + moved.end - len(added + after), other.end))
    if full is not None and _is_fuller(full, one, other, own):
        if _is_written_out(one, full, other):
            full = replace(full, means=one.means)
        one = _merge(full, one, other)
    return one, other


def _before_number(own: str, value: Value, start: int) -> str:
    """Return what stands before the number of a value, e.g. a currency, or the month before a day at an offset."""
    amount = _NUMBER.search(own) if value.kind == "number" else None
    return own[: amount.start() if amount else start]  # of "$1.2 1000000", the number is 1.2


def _first(find: Find, text: str) -> Value | None:
    """Return the value at the start of a text."""
    return next((each for each in find(text) if each.start == 0), None)


def _is_fuller(value: Value, bare: Value, neighbour: Value, written: str) -> bool:
    """Return True if a value is a bare end of a range, as it is written, with the kind and unit of its neighbour."""
    if value.kind != neighbour.kind:
        return False
    if value.kind == "number":
        return bare.kind == "number" and bare.unit in (None, neighbour.unit) and value.unit == neighbour.unit
    is_bare = bare.kind in _BARE and (value.kind == "time" or _DAY.fullmatch(written) is not None)
    return is_bare or bare.kind == value.kind == "date"


def _is_written_out(bare: Value, full: Value, end: Value) -> bool:
    """Return True if the first end needs no word such as "million" of the second: "800,000 to 1.2 million".

    Then the bare amount is nearer to that of the second end, and the completed one exceeds it.
    """
    first, completed, last = map(_amount, (bare, full, end))
    return completed > last and completed * first > last * last


def _amount(value: Value) -> Decimal:
    """Return the amount of a number, the greatest if it may have several; 0 for other values."""
    return max((each for each in value.means if isinstance(each, Decimal)), default=Decimal(0))


def _merge(full: Value, bare: Value, end: Value) -> Value:
    """Return the first end of a range at its place. "11-1 pm" begins before noon; "$5 to $10 million" may mean $5."""
    means = full.means
    if full.kind == "number" and bare.unit is not None:
        means |= bare.means
    if full.kind == "time":
        stop = max((each for each in end.means if isinstance(each, int)), default=0)
        means = frozenset(
            (each - _HALF_DAY) % (2 * _HALF_DAY) if isinstance(each, int) and each > stop else each for each in means
        )
    return replace(full, means=means, start=bare.start, end=bare.end)
