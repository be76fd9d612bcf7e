"""Read dates and quarters. Dates without a year refer to the day on which the question is asked."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, timedelta

from gumshoe.rewards.heuristic.value import Value

_DAY, _YEAR = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?P<year>\d{4}|'\d\d)"
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_WEEKDAY = r"\b(?P<weekday>mon|tue|wed|thu|fri|sat|sun)(?:s|nes|rs|ur)?days?\b"
_ON = r"(?:\b(?P<weekday>mon|tue|wed|thu|fri|sat|sun)(?:s|nes|r|rs|ur)?(?:day)?\b\.?,?\s+)?"
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_WEEKDAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
_NEAR = 45  # days before and after the question's date in which "the 15th" is searched


def _read_groups(match: re.Match[str]) -> dict[str, str]:
    """Return the groups of a match that are not empty, in lower case."""
    return {name: text.casefold() for name, text in match.groupdict().items() if text}


def _date(match: re.Match[str], asked: date | None) -> Value | None:
    groups = _read_groups(match)
    month, day = groups["month"], int(groups["day"])
    number = int(month) if month.isdigit() else _MONTHS.index(month[:3]) + 1
    orders = {(number, day), (day, number)} if "between" in groups else {(number, day)}
    days = {
        each
        for year in _possible_years(groups.get("year"), asked)
        for order in orders
        for each in _valid_dates(year, *order)
    }
    return _limit_to_weekday(groups, days)


def _limit_to_weekday(groups: dict[str, str], days: set[date]) -> Value | None:
    """Return a date limited to the named weekday. If none of the days is that weekday, the mismatch is kept."""
    if not days:
        return None
    weekday = _WEEKDAYS.index(groups["weekday"]) if "weekday" in groups else None
    right = {each for each in days if each.weekday() == weekday}
    return Value("date", frozenset(right or days), weekday)


def _day_of_month(match: re.Match[str], asked: date | None) -> Value | None:
    groups = _read_groups(match)
    near = _days_around(asked, -_NEAR, _NEAR)
    return _limit_to_weekday(groups, {each for each in near if each.day == int(groups["day"])})


def _weekday(match: re.Match[str], asked: date | None) -> Value:
    weekday = _WEEKDAYS.index(_read_groups(match)["weekday"])
    days = frozenset(each for each in _days_around(asked, 1, 7) if each.weekday() == weekday)
    return Value("date", days, weekday, is_whole=False)


def _relative(match: re.Match[str], asked: date | None) -> Value | None:
    away = {"yesterday": -1, "today": 0, "tomorrow": 1, "a week today": 7, "a week tomorrow": 8}.get(
        match[0].casefold(), 2
    )
    return Value("date", frozenset(_days_around(asked, away, away))) if asked else None


def _valid_dates(year: int, month: int, day: int) -> Iterator[date]:
    try:
        yield date(year, month, day)
    except ValueError:
        return


def _possible_years(text: str | None, asked: date | None) -> range:
    if text is None:
        return range(max(1, asked.year - 1), min(9999, asked.year + 1) + 1) if asked else range(1950, 2050)
    year = int(text.removeprefix("'"))
    if year < 100:
        year += 2000 if year < 50 else 1900
    return range(year, year + 1)


def _days_around(asked: date | None, first: int, last: int) -> list[date]:
    if asked is None or not date.min.year < asked.year < date.max.year:
        return []
    return [asked + timedelta(days) for days in range(first, last + 1)]


def _period(match: re.Match[str], asked: date | None) -> Value:
    groups = _read_groups(match)
    part = f"half {groups['half']}" if "half" in groups else f"quarter {groups['quarter']}"
    year = groups.get("year") or groups.get("before")
    return Value("period", frozenset((each, part) for each in _possible_years(year, asked)))


_Reader = Callable[[re.Match[str], date | None], Value | None]
_PATTERNS: tuple[tuple[str, _Reader], ...] = (
    (
        rf"\b(?:(?P<before>\d{{4}})[ -])?(?:q(?P<quarter>[1-4])|h(?P<half>[12]))\b(?:(?:,? of|,)?\s?{_YEAR}\b)?",
        _period,
    ),
    (rf"\b(?P<quarter>[1-4])q\b(?:(?:,? of|,)?\s?{_YEAR}\b)?", _period),
    (rf"\b(?P<quarter>[1-4])(?:st|nd|rd|th) quarter\b(?:(?: of|,)?\s?{_YEAR}\b)?", _period),
    (rf"\b(?P<half>[12])(?:st|nd) half of {_YEAR}\b", _period),
    (r"(?<!\d)(?P<year>\d{4})[-/](?P<month>\d\d?)[-/](?P<day>\d\d?)(?:T(?=\d\d:))?(?!\d)", _date),
    (
        rf"{_ON}(?<![\d/.])(?P<day>\d\d?)(?P<between>[/.-])(?P<month>\d\d?)(?P=between)(?P<year>\d{{4}}|\d\d)(?![\d-])",
        _date,
    ),
    (rf"{_ON}(?<![\d/.])(?P<day>\d\d?)(?P<between>/)(?P<month>\d\d?)(?![\d/])", _date),
    (rf"{_ON}(?:the\s+)?\b{_DAY}(?:\s+of\s+|\s+|-){_MONTH}(?:(?:,?\s+|-){_YEAR}\b)?", _date),
    (rf"{_ON}\b{_MONTH}(?:\s+|(?<=\.))(?:the\s+)?{_DAY}\b(?!:)(?:,?\s+{_YEAR}\b(?!:))?", _date),
    (
        rf"{_ON}the\s+(?P<day>\d\d?)(?:st|nd|rd|th)(?=\s*(?:[.,;:)]|$|at\b|from\b|for\b|to\b|and\b))",
        _day_of_month,
    ),
    (rf"(?:(?:next|this|coming)\s+)?{_WEEKDAY}", _weekday),
    (r"\b(?:the day after tomorrow|(?:a week )?(?:today|tomorrow)|yesterday)\b", _relative),
)
_READERS = tuple((re.compile(pattern, re.I), read) for pattern, read in _PATTERNS)


def find_dates(text: str, asked: date | None) -> Iterator[Value]:
    """Yield the dates and quarters of a text, the most specific patterns first.

    Dates without a year and words such as "tomorrow" refer to the date `asked`. Without it, a missing year may be any
    from 1950 to 2049.
    """
    for pattern, read in _READERS:
        for match in pattern.finditer(text):
            value = read(match, asked)
            if value is not None:
                yield replace(value, start=match.start(), end=match.end())
