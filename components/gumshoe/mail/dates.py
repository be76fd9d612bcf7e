"""Parse dates as programs and people write them in mail and in records.

A date with a year of four digits first is year, month, day. Otherwise the day comes first, as in mail (RFC 5322), so
that 03/04/2024 is 3 April; only if that is impossible, the month comes first, as in 04/23/2024. Nothing is guessed: a
text without a year, a month and a day is no date. Months may be written in the languages of common mail programs.
"""

import re
import unicodedata
from contextlib import suppress
from datetime import UTC, datetime

from gumshoe.mail.message import to_utc, validate_date

_MAX_LENGTH = 200  # characters
_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
# The same without accents in German, Dutch, Scandinavian, French, Spanish, Portuguese, Italian, Polish and Russian.
_FOREIGN_MONTHS = (
    "januar januari janvier enero janeiro gennaio stycznia января январь",
    "februar februari fevrier febrero fevereiro febbraio lutego февраля февраль",
    "marz mrz mars maart marzo marco marca марта март",
    "avril abril aprile kwietnia апреля апрель",
    "mai mei maj mayo maio maggio maja мая маи",
    "juni juin junio junho giugno czerwca июня июнь",
    "juli juillet julio julho luglio lipca июля июль",
    "augustus augusti aout agosto sierpnia августа август",
    "septembre septiembre setembro settembre wrzesnia сентября сентябрь",
    "oktober octobre octubre outubro ottobre pazdziernika октября октябрь",
    "novembre noviembre novembro listopada ноября ноябрь",
    "dezember desember decembre diciembre dezembro dicembre grudnia декабря декабрь",
)
_ALL_MONTHS = [(_MONTHS[number], *foreign.split()) for number, foreign in enumerate(_FOREIGN_MONTHS)]
_MARCH_OR_TUESDAY = "mar"  # of mardi, martedì, martes
_HALVES_OF_DAY = {
    "am": "am", "pm": "pm", "午前": "am", "午後": "pm", "上午": "am", "下午": "pm", "오전": "am", "오후": "pm",
}  # fmt: skip
_MIN_MONTH_LENGTH = 3
_ABBREVIATED = {name[:3].title(): number for number, name in enumerate(_MONTHS, 1)}
_ZONES = {
    zone: minutes
    for zones, minutes in {
        "ut utc gmt z wet": 0,
        "west bst cet met mez": 60,
        "cest mest mesz eet": 120,
        "eest": 180,
        "jst": 540,
        "adt": -180,
        "ast edt": -240,
        "est cdt": -300,
        "cst mdt": -360,
        "mst pdt": -420,
        "pst akdt": -480,
        "akst": -540,
        "hst": -600,
        "brt": -180,
        "sast": 120,
        "msk": 180,
        "msd": 240,
        "wib": 420,
        "hkt sgt awst": 480,
        "kst": 540,
        "aest": 600,
        "aedt": 660,
        "nzst": 720,
        "nzdt": 780,
    }.items()
    for zone in zones.split()
}
"""Minutes east of UTC. Names that mean several zones, such as IST, are left out."""
_STANDARD_TIMES = {
    "greenwich mean": 0, "gmt standard": 0, "british standard": 0, "western european": 0, "coordinated universal": 0,
    "central european": 60, "central european standard": 60, "central europe standard": 60, "w. europe standard": 60,
    "romance standard": 60, "mitteleuropaische": 60, "eastern european": 120, "eastern european standard": 120,
    "e. europe standard": 120, "fle standard": 120, "gtb standard": 120, "osteuropaische": 120, "israel standard": 120,
    "south africa standard": 120, "russian standard": 180, "arabian standard": 240, "india standard": 330,
    "china standard": 480, "singapore standard": 480, "taipei standard": 480, "w. australia standard": 480,
    "tokyo standard": 540, "japan standard": 540, "korea standard": 540, "aus eastern standard": 600,
    "australian eastern standard": 600, "e. australia standard": 600, "new zealand standard": 720,
    "atlantic standard": -240, "eastern standard": -300, "central standard": -360, "mountain standard": -420,
    "pacific standard": -480, "alaskan standard": -540, "hawaiian standard": -600,
}  # fmt: skip
"""Minutes east of UTC of zones in words, as Windows and browsers write them, without `time`."""

_USUAL = re.compile(
    rf"(?:[A-Z][a-z]{{2}}, )?(\d{{1,2}}) ({'|'.join(_ABBREVIATED)}) (\d{{4}}) "
    r"(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)"
    r"(?: \([A-Za-z ]{1,40}\))?"
)
_ISO = re.compile(r"\d{4}-|\d{4}W|\d{8}T")
_DIGITS = re.compile(r"\d{8,19}(?:\.\d{1,9})?")
_IGNORED = re.compile(r"\([^()]*+\)?| m=[+-].*")  # comments, and the clock that Go appends
_COMMENT = re.compile(r"\(([^()]*+)\)")
_ZONE_IN_WORDS = re.compile(r"(?:\b(?:am|pm|us|canada) )*\b([a-z][a-z. ]{2,40}?)(?: time|(sommer)?zeit)\b")
_SUMMER = re.compile(" (?:daylight|summer)$")
_EAST_ASIAN_DAY = re.compile(r"(\d{4}) ?[年년] ?(\d{1,2}) ?[月월] ?(\d{1,2}) ?[日일]?")
_MINUS = re.compile("[\u2010-\u2015\u2212]")
_DOTTED_HALF = re.compile(r"\b([ap])\. ?m\.", re.I)
_TIME_MARK = re.compile(r"(?<=\d)[Tt](?=\d\d:)")
_HOUR_MARK = re.compile(r"\b(\d{1,2})[Hh](?=\d\d\b)")  # 9h30
_PACKED_TIME = re.compile(r"([01]\d|2[0-3])([0-5]\d)([0-5]\d)?")
_TOKEN = re.compile(
    r"(?P<time>\d{1,2}:\d{1,2}(?::\d{1,2})?(?:[.,]\d{1,9})?)"
    r"|(?P<date>\d{1,4}(?P<mark>[/.-])\d{1,2}(?P=mark)\d{1,4})(?!\d)"
    r"|(?P<zone>[+-](?:\d{1,2}:\d\d(?::\d\d)?|\d{1,6}| \d{4})(?![\d/]))"
    r"|(?P<number>\d+)"
    r"|(?P<word>[^\W\d_]+(?:\d[A-Za-z]+)?)"  # also EST5EDT
)
_SECONDS_PER_UNIT = (1, 1_000, 1_000_000, 1_000_000_000)
_MAX_SECONDS = 10**11  # year 5138; larger numbers are milliseconds, and so on
_SECONDS_PER_DAY = 86_400
_NOON = 12
_CENTURY_LIMIT = 50  # years 00 to 49 are 2000 to 2049; other years of two or three digits count from 1900
_LONG_YEAR = 4  # digits
_MAX_UNSIGNED_ZONE = "1400"


def parse_date(text: str) -> tuple[int | None, int | None]:
    """Parse a date to seconds since 1970 (UTC) and the offset of its zone in minutes.

    Either is None if the text does not contain it. An impossible offset counts as unknown, and the date as UTC. See the
    description of this module for the forms that are read.
    """
    text = text.strip()
    try:
        if _ISO.match(text):
            with suppress(ValueError):
                return validate_date(*to_utc(datetime.fromisoformat(text)))
        if (usual := _USUAL.fullmatch(text)) is not None:
            return _read_usual(usual)
        if text.isascii() and _DIGITS.fullmatch(text):
            return _read_digits(text)
        return _DateReader(text[:_MAX_LENGTH]).read()
    except (ValueError, OverflowError):  # a day or a time that does not exist
        return None, None


def parse_timestamp(number: float) -> tuple[int | None, int | None]:
    """Return the date of a number of seconds since 1970, or of milli-, micro- or nanoseconds if it is that large.

    Raises:
        ValueError, OverflowError: if the number is not finite.
    """
    for unit in _SECONDS_PER_UNIT:
        if abs(number) < _MAX_SECONDS * unit:
            return validate_date(int(number) // unit, None)
    int(number)
    return None, None


def _read_usual(usual: re.Match[str]) -> tuple[int | None, int | None]:
    day, month, year, hour, minute, second, sign, zone_hours, zone_minutes = usual.groups()
    offset: int | None = int(zone_hours) * 60 + int(zone_minutes)
    if sign == "-":
        offset = -offset or None if offset else None
    return _to_seconds((int(year), _ABBREVIATED[month], int(day)), (int(hour), int(minute), int(second)), offset)


def _read_digits(text: str) -> tuple[int | None, int | None]:
    """Read digits only: a day or a time without punctuation, or a number of seconds or smaller units since 1970."""
    for length, form in ((8, "%Y%m%d"), (12, "%Y%m%d%H%M"), (14, "%Y%m%d%H%M%S")):
        if len(text) == length:
            try:
                return validate_date(*to_utc(datetime.strptime(text, form)))  # noqa: DTZ007 - counts as UTC
            except ValueError:
                pass
    whole = text.partition(".")[0]
    return (None, None) if len(whole) == 8 else parse_timestamp(int(whole))


def _to_seconds(
    day: tuple[int, int, int], time: tuple[int, int, int], offset: int | None
) -> tuple[int | None, int | None]:
    """Return a date as it is stored.

    Raises:
        ValueError: if the day or the time does not exist.
    """
    is_end_of_day = time == (24, 0, 0)
    hour, minute, second = (0, 0, 0) if is_end_of_day else time
    moment = datetime(*day, hour, minute, 59 if second == 60 else second, tzinfo=UTC)
    sent = int(moment.timestamp()) + is_end_of_day * _SECONDS_PER_DAY
    valid = validate_date(sent, offset)
    return valid if valid[1] is None else validate_date(sent - valid[1] * 60, valid[1])


def _simplify(text: str) -> str:
    """Return a date without accents, and with East Asian days and the signs of zones as in ASCII."""
    letters = (each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))
    composed = unicodedata.normalize("NFC", "".join(letters))
    return _EAST_ASIAN_DAY.sub(r"\1-\2-\3 ", _MINUS.sub("-", composed))


class _DateReader:
    """Reads the parts of one date in any order."""

    def __init__(self, text: str) -> None:
        plain = text if text.isascii() else _simplify(text)
        self._comments = _COMMENT.findall(plain)
        text = _HOUR_MARK.sub(r"\1:", _TIME_MARK.sub(" ", _IGNORED.sub(" ", plain)))
        self._text = _DOTTED_HALF.sub(r"\1m", text)
        self._day: tuple[int, int, int] | None = None
        self._month = 0
        self._may_be_tuesday = False  # the word for the month, because it stands in front
        self._numbers: list[str] = []
        self._time: tuple[int, int, int] | None = None
        self._zone: int | None = None
        self._has_numeric_zone = False
        self._zone_names: list[str] = []
        self._half_of_day = ""
        self._has_two = False

    def read(self) -> tuple[int | None, int | None]:
        """Return the date, as `parse_date` does.

        Raises:
            ValueError: if the day or the time does not exist.
        """
        for token in _TOKEN.finditer(self._text):
            self._take(token.lastgroup if token.lastgroup != "mark" else "date", token[0])
        day = self._day or self._find_day()
        if day is None or self._has_two or (self._day and (self._month or self._numbers)):
            return None, None
        return _to_seconds(day, self._find_time(), self._find_zone())

    def _take(self, kind: str | None, text: str) -> None:
        if kind == "date" and self._month:  # 5 Mar 2024 09.30.00
            kind, text = "time", text.replace(".", ":")
        if kind == "time":
            self._has_two |= self._time is not None
            hour, minute, second, *_ = (*(int(part) for part in re.split("[:.,]", text)), 0)
            self._time = hour, minute, second if text.count(":") > 1 else 0
        elif kind == "date":
            self._has_two |= self._day is not None
            self._day = _read_numeric_day(text)
        elif kind == "zone" and self._time:
            self._has_numeric_zone = True
            if self._zone is None:
                self._zone = _read_zone(text.replace(" ", ""))
        elif kind == "zone":  # 5-Mar-2024
            self._numbers.append(text[1:].lstrip())
        elif kind == "number" and self._is_unsigned_zone(text):
            self._zone = _read_zone(f"+{text}")
        elif kind == "number" and self._has_whole_day() and not self._time and (packed := _PACKED_TIME.fullmatch(text)):
            self._time = int(packed[1]), int(packed[2]), int(packed[3] or 0)
        elif kind == "number":
            self._numbers.append(text)
        else:
            self._take_word(text.lower())

    def _is_unsigned_zone(self, text: str) -> bool:
        """Return True for four digits behind a whole date and its time."""
        has_day = self._day or any(len(each) == _LONG_YEAR for each in self._numbers[1:])
        is_short = len(text) == _LONG_YEAR and text <= _MAX_UNSIGNED_ZONE
        return is_short and bool(has_day and self._time) and self._zone is None

    def _has_whole_day(self) -> bool:
        has_year = len(self._numbers) == 2 and any(len(each) == _LONG_YEAR for each in self._numbers)
        return self._day is not None or (self._month > 0 and has_year)

    def _take_word(self, word: str) -> None:
        months = [number for number, names in enumerate(_ALL_MONTHS, 1) if _begins_one(word, names)]
        if len(months) == 1:  # "jui" begins two
            month = months[0]
            self._has_two |= self._month > 0 and not self._may_be_tuesday
            self._may_be_tuesday = word == _MARCH_OR_TUESDAY and not self._month and not self._numbers
            self._month = month
        elif word in _HALVES_OF_DAY:
            self._half_of_day = _HALVES_OF_DAY[word]
        else:
            self._zone_names.append(word)

    def _find_day(self) -> tuple[int, int, int] | None:
        """Return the day that is written with the name of its month: 14 May 2001, May 14, 2001 or 2001 May 14."""
        if not self._month or len(self._numbers) != 2:
            return None
        first, second = self._numbers
        if len(first) >= _LONG_YEAR:
            first, second = second, first
        return _read_year(second), self._month, int(first) if len(first) <= 2 else 0

    def _find_time(self) -> tuple[int, int, int]:
        hour, minute, second = self._time or (0, 0, 0)
        if self._half_of_day and 1 <= hour <= _NOON:
            hour = hour % _NOON + (_NOON if self._half_of_day == "pm" else 0)
        return hour, minute, second

    def _find_zone(self) -> int | None:
        if self._zone is not None or self._time is None or self._has_numeric_zone:
            return self._zone
        names = (re.split(r"\d", name)[0] for name in self._zone_names)
        zones = (_read_zone_in_words(self._text), *map(_ZONES.get, names))
        comments = (_ZONES.get(each.strip().lower(), _read_zone_in_words(each)) for each in self._comments)
        return next((zone for zone in (*zones, *comments) if zone is not None), None)


def _begins_one(word: str, names: tuple[str, ...]) -> bool:
    return len(word) >= _MIN_MONTH_LENGTH and any(name.startswith(word) for name in names)


def _read_zone_in_words(text: str) -> int | None:
    """Return the minutes of `W. Europe Daylight Time` or `Mitteleuropäische Zeit`, or None if no such zone is named."""
    for found in _ZONE_IN_WORDS.finditer(text.lower()):
        name = found[1].strip()
        standard = _SUMMER.sub(" standard", name)
        minutes = _STANDARD_TIMES.get(standard, _STANDARD_TIMES.get(standard.removesuffix(" standard")))
        if minutes is not None:
            return minutes + (60 if standard != name or found[2] else 0)
    return None


def _read_numeric_day(text: str) -> tuple[int, int, int]:
    """Read a day such as 1999/01/31, 31.01.1999, 31-01-99 or 01/31/1999."""
    first, second, third = re.split("[/.-]", text)
    if len(first) >= _LONG_YEAR or int(first) > 31:
        return _read_year(first), int(second), int(third)
    day, month = int(first), int(second)
    if month > 12:
        day, month = month, day
    return _read_year(third), month, day


def _read_year(text: str) -> int:
    """Read a year, also of two or three digits (RFC 5322, section 4.3).

    Raises:
        ValueError: if it has another number of digits.
    """
    if not 2 <= len(text) <= _LONG_YEAR:
        raise ValueError(text)
    year = int(text)
    if len(text) == _LONG_YEAR:
        return year
    return year + (2000 if len(text) == 2 and year < _CENTURY_LIMIT else 1900)


def _read_zone(text: str) -> int | None:
    """Return the minutes of +0100, +01:00 or +1. None for -0000, which means that the zone is unknown."""
    hours, _, minutes = text[1:].partition(":")
    if not minutes and len(hours) > 2:
        hours, minutes = hours[:-2], hours[-2:]
    offset = int(hours) * 60 + int(minutes[:2] or 0)
    if text[0] == "-":
        return -offset or None
    return offset
