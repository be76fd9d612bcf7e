"""Find typed values in texts (dates, times, money, numbers), so that different spellings of a value compare equal."""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Literal

from text_to_num import alpha2digit

Kind = Literal["address", "date", "time", "phone", "code", "ordinal", "number"]
Meanings = frozenset[object]

_AMOUNT = r"(?<![\d.,])(?P<amount>(?:\d{1,3}(?:,\d{3})+|\d++)(?:\.\d++)?)"
_TIMES = r"(?:(?:\s?(?P<times>k|m|mm|mn|mil|bn)|[ -](?P<spelt>thousand|million|billion|1000|1000000|1000000000))\b)?"
_DAY, _YEAR = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?P<year>\d{4}|'\d\d)"
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_WEEKDAY = r"\b(?P<weekday>mon|tue|wed|thu|fri|sat|sun)(?:s|nes|rs|ur)?days?\b"
_ON = r"(?:\b(?P<weekday>mon|tue|wed|thu|fri|sat|sun)(?:s|nes|r|rs|ur)?(?:day)?\b\.?,?\s+)?"
_HALF = (
    r"(?:\s?(?P<half>[ap])\.?m\b\.?|\s?h(?:rs|ours)?\b|\s+(?:in the|at)\s+(?P<told>morning|afternoon|evening|night)\b)"
)
_UNITS = {"$": "$", "us$": "$", "usd": "$", "dol": "$", "cen": "$", "£": "£", "gbp": "£", "pou": "£", "pen": "£"}
_UNITS |= {"qui": "£", "€": "€", "eur": "€", "%": "%", "per": "%", "pct": "%"}  # keyed by the first three letters
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_WEEKDAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
_MANY = {
    "k": 10**3,
    "thousand": 10**3,
    "million": 10**6,
    "m": 10**6,
    "mm": 10**6,
    "mil": 10**6,
    "mn": 10**6,
    "billion": 10**9,
    "bn": 10**9,
}
_NEAR = 45  # days before and after the question's date in which "the 15th" is searched
_HALF_DOZEN, _DOZEN = re.compile(r"\bhalf a dozen\b", re.I), re.compile(r"\b(?:a|1) dozen\b", re.I)
_DASHES = (0x2010, 0x2011, 0x2012, 0x2013, 0x2014, 0x2212)
_PLAIN = str.maketrans(dict.fromkeys(map(chr, _DASHES), "-") | {"\u2018": "'", "\u2019": "'"})


@dataclass(frozen=True, slots=True)
class Value:
    """A value in a text, independent of how it is written."""

    kind: Kind
    means: Meanings
    """All possible meanings: 5/8 is a day in May or in August."""
    weekday: int | None = None
    """Weekday of a date that names one, from 0 (Monday) to 6."""
    unit: str | None = None
    """Unit of a number: a currency, %, or a unit of time."""
    is_whole: bool = True
    """False for a date that is only a weekday."""
    start: int = 0
    """Start in the text."""
    end: int = 0
    """End in the text."""

    def agrees(self, reference: "Value") -> bool:
        """Return True if it matches a value of the reference. Missing parts of dates and units are ignored."""
        if self.kind != reference.kind:
            return {self.kind, reference.kind} <= _DIGITS and bool(self._digits() & reference._digits())
        if None not in (self.weekday, reference.weekday) and self.weekday != reference.weekday:
            return False
        if self.unit != reference.unit and (self.unit == "%" or None not in (self.unit, reference.unit)):
            return False
        if not reference.is_whole:
            return self.weekday is not None or reference.weekday in {
                day.weekday() for day in self.means if isinstance(day, date)
            }
        if self.kind == "phone":
            return any(_is_same_line(one, other) for one in self._digits() for other in reference._digits())
        return bool(self.means & reference.means)

    def has_kind_of(self, wanted: "Value") -> bool:
        """Return True if it has the kind and unit of `wanted`, so that it could be an answer in its place."""
        like = self.kind == wanted.kind or {self.kind, wanted.kind} <= {"number", "ordinal", "phone", "date"}
        return like and (self.unit == wanted.unit or None in (self.unit, wanted.unit))

    def _digits(self) -> set[str]:
        """Return its possible meanings as digits, if it has any."""
        written = {f"{each:f}" if isinstance(each, Decimal) else str(each) for each in self.means}
        return {each for each in written if each.isdigit()}


def normalize(text: str) -> str:
    """Return a text with ASCII dashes and quotes, single spaces, and digits instead of spelled-out numbers."""
    plain = " ".join(unicodedata.normalize("NFKC", text).translate(_PLAIN).split())
    digits: str = alpha2digit(_HALF_DOZEN.sub("6", plain), "en", 0)
    return _DOZEN.sub("12", digits)


def find_values(text: str, asked: date | None) -> Iterator[Value]:
    """Return the values of a normalized text, in order.

    Dates without a year and words such as "tomorrow" refer to the date `asked`. Without it, a missing year may be any
    from 1950 to 2049.
    """
    found: list[Value] = []
    for kind, pattern, read in _RULES:
        for match in pattern.finditer(text):
            start, end = match.span()
            if all(end <= each.start or each.end <= start for each in found):
                value = read(match, asked)
                if value is not None:
                    found.append(replace(value, kind=kind, start=start, end=end))
    return iter(sorted(found, key=lambda each: each.start))


def _read_groups(match: re.Match[str]) -> dict[str, str]:
    """Return the groups of a match that are not empty, in lower case."""
    return {name: text.casefold() for name, text in match.groupdict().items() if text}


def _address(match: re.Match[str], _: date | None) -> Value:
    return Value("address", frozenset({match[0].casefold().rstrip(".")}))


def _number(match: re.Match[str], _: date | None) -> Value:
    groups = _read_groups(match)
    times = groups.get("times") or groups.get("spelt") or "1"
    amount = Decimal(groups["amount"].replace(",", "")) * (_MANY.get(times) or int(times))
    unit = groups.get("unit", "")
    if unit.startswith(("cent", "pence")):
        amount /= 100
    return Value("number", frozenset({amount.normalize()}), unit=_UNITS.get(unit[:3].strip(), unit) or None)


def _phone(match: re.Match[str], _: date | None) -> Value:
    return Value("phone", frozenset({re.sub(r"\D", "", match[0])}))


def _code(match: re.Match[str], _: date | None) -> Value:
    letters = re.sub(r"[^a-z0-9]", "", match[0].casefold())
    return Value("code", frozenset({re.sub(r"^x(?=\d+$)", "", letters)}))  # x39804 is an extension


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


def _time(match: re.Match[str], _: date | None) -> Value | None:
    groups = _read_groups(match)
    if "named" in groups:
        return Value("time", frozenset({0 if groups["named"] == "midnight" else 720}))
    hour, minute = int(groups["hour"]), int(groups.get("minute", "0"))
    if "part" in groups:
        part = {"quarter": 15, "half": 30}.get(groups["part"]) or int(groups["part"])
        minute = part if groups["way"] == "past" else -part
    half = groups.get("half") or {"morning": "a", None: None}.get(groups.get("told"), "p")
    if not 0 <= hour <= 24 or (half and hour > 12):
        return None
    hours = {hour % 12} if half == "a" else {hour % 12 + 12} if half == "p" else {hour % 24}
    if not half and 1 <= hour <= 12:
        hours = {hour % 12, hour % 12 + 12}
    return Value("time", frozenset((each * 60 + minute) % 1440 for each in hours))


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


def _is_same_line(one: str, other: str) -> bool:
    """Return True if two numbers are the same telephone number, with or without country or area code."""
    short, long = sorted((one.lstrip("0"), other.lstrip("0")), key=len)
    return len(short) >= _MIN_PHONE_DIGITS and long.endswith(short)


_MIN_PHONE_DIGITS = 7  # minimum digits of a telephone number without country and area code
_DIGITS = frozenset({"number", "phone", "code"})  # an extension may be any of these
_Reader = Callable[[re.Match[str], date | None], Value | None]
_PATTERNS: tuple[tuple[Kind, str, _Reader], ...] = (
    ("address", r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+|(?:\w+://|www\.)[^\s<>\"')]+", _address),
    ("date", r"(?<!\d)(?P<year>\d{4})[-/](?P<month>\d\d?)[-/](?P<day>\d\d?)(?!\d)", _date),
    (
        "date",
        rf"{_ON}(?<![\d/.])(?P<day>\d\d?)(?P<between>[/.-])(?P<month>\d\d?)(?P=between)(?P<year>\d{{4}}|\d\d)(?![\d-])",
        _date,
    ),
    ("date", rf"{_ON}(?<![\d/.])(?P<day>\d\d?)(?P<between>/)(?P<month>\d\d?)(?![\d/])", _date),
    ("date", rf"{_ON}(?:the\s+)?\b{_DAY}(?:\s+of\s+|\s+|-){_MONTH}(?:(?:,?\s+|-){_YEAR}\b)?", _date),
    ("date", rf"{_ON}\b{_MONTH}(?:\s+|(?<=\.))(?:the\s+)?{_DAY}\b(?!:)(?:,?\s+{_YEAR}\b(?!:))?", _date),
    (
        "date",
        rf"{_ON}the\s+(?P<day>\d\d?)(?:st|nd|rd|th)(?=\s*(?:[.,;:)]|$|at\b|from\b|for\b|to\b|and\b))",
        _day_of_month,
    ),
    ("date", rf"(?:(?:next|this|coming)\s+)?{_WEEKDAY}", _weekday),
    ("date", r"\b(?:the day after tomorrow|(?:a week )?(?:today|tomorrow)|yesterday)\b", _relative),
    ("time", rf"(?<![\d.:])(?P<hour>\d\d?)[:.](?P<minute>[0-5]\d){_HALF}", _time),
    ("time", r"(?<![\d.:])(?P<hour>[01]?\d|2[0-4]):(?P<minute>[0-5]\d)(?![\d:])", _time),
    ("time", r"(?<=\bat )(?P<hour>\d\d?)\.(?P<minute>[0-5]\d)(?!\d)", _time),
    ("time", rf"\b(?P<part>quarter|half|\d\d?)\s+(?P<way>past|to)\s+(?P<hour>\d\d?)\b{_HALF}?", _time),
    ("time", rf"(?<![\d.:,])(?P<hour>\d\d?)(?:\s+o'clock)?(?:{_HALF}|(?<=o'clock))", _time),
    ("time", r"\b(?P<named>noon|midday|midnight)\b", _time),
    ("number", rf"(?P<unit>[$£€]|\b(?:us\$|usd|gbp|eur)\s?){_AMOUNT}{_TIMES}", _number),
    (
        "number",
        rf"{_AMOUNT}{_TIMES}\s?(?P<unit>[£€]|(?:dollar|pound|euro|quid|usd|gbp|eur|cents?\b|pence))s?(?!\w)",
        _number,
    ),
    ("number", rf"{_AMOUNT}\s?(?P<unit>%|percent\b|per cent\b|pct\b)", _number),
    ("number", rf"{_AMOUNT}[ -](?P<unit>minute|hour|day|night|week|month|year)s?\b", _number),
    ("number", rf"{_AMOUNT} (?P<spelt>1000|1000000|1000000000)\b", _number),
    ("phone", r"(?<![\w.])\+?\(?\d(?:[ ().-]{0,2}\d){6,}(?!\w)", _phone),
    (
        "code",
        r"\b(?:[a-z]{1,5}-|[a-z]+)\d[\w/-]*|\b(?-i:[A-Z]{1,3}) #?\d{3,}[\w/-]*|\b\d+[a-z]+\d[\w/-]*"
        r"|\b\d+[/-]\d{4,}\b|\b\d+(?-i:[A-Z])\b",
        _code,
    ),
    ("ordinal", r"\b(?P<amount>\d+)(?:st|nd|rd|th)\b", _number),
    ("number", rf"(?<!\w){_AMOUNT}{_TIMES}(?!\w)", _number),
)
_RULES = tuple((kind, re.compile(pattern, re.I), read) for kind, pattern, read in _PATTERNS)
