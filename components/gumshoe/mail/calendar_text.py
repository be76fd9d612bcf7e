"""Turn calendars (iCalendar, RFC 5545) into lines to read: what, when, where and who."""

from __future__ import annotations

import quopri
import re
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

from gumshoe.mail.message import clean, clean_line
from gumshoe.mail.text import decode, html_to_text

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_CALENDAR = 1 << 20  # characters
_MAX_REPAIRED = 1 << 17  # characters of a broken calendar
_MAX_EVENTS = 200
_MAX_PEOPLE = 100
_MAX_EXCEPTIONS = 50
_MAX_BUSY = 50
_KINDS = {"VEVENT": "Event", "VTODO": "Task", "VJOURNAL": "Journal", "VFREEBUSY": "Free/busy times"}
_METHODS = {
    "REQUEST": "Invitation", "CANCEL": "Cancelled", "REPLY": "Reply", "COUNTER": "Proposed change",
    "DECLINECOUNTER": "Declined change", "ADD": "Added dates", "REFRESH": "Request for the latest version",
}  # fmt: skip
_CONFERENCES = ("CONFERENCE", "X-GOOGLE-CONFERENCE", "X-MICROSOFT-SKYPETEAMSMEETINGURL")
_DAYS = {"MO": "Mon", "TU": "Tue", "WE": "Wed", "TH": "Thu", "FR": "Fri", "SA": "Sat", "SU": "Sun"}
_UNITS = {
    "SECONDLY": "second", "MINUTELY": "minute", "HOURLY": "hour", "DAILY": "day", "WEEKLY": "week",
    "MONTHLY": "month", "YEARLY": "year",
}  # fmt: skip
_ENTRY = re.compile(r"^BEGIN:V(?:EVENT|TODO|JOURNAL|FREEBUSY)\b", re.I | re.M)
_FOLD = re.compile(r"\n[ \t]")
_FOLDED_BYTES = re.compile(rb"\r?\n[ \t]")
_VALUE = r"(?:\"[^\"\n]*+\"|[^\";:,\n]*+)"
_LINE = re.compile(rf"[\w-]++(?:;[\w-]++={_VALUE}(?:,{_VALUE})*+)*+:")
_DAY = re.compile(r"([+-]?\d{1,2})?([A-Z]{2})")
# Forms that programs write though the standard does not allow them: values in quoted-printable (vCalendar 1.0), zones
# with colons but no quotation marks, and times with punctuation or without seconds.
_QUOTED_VALUE = re.compile(
    r"^([\w-]{1,60})[^:\n]{0,200};ENCODING=QUOTED-PRINTABLE[^:\n]{0,200}:((?:[^\n]*+(?<==)\n)*+[^\n]*+)", re.I | re.M
)
_BARE_ZONE = re.compile(r"(;TZID=)(\((?:UTC|GMT)[^)\n\"]{0,10}\)[^:;\n\"]{0,100})(?=[:;])", re.I)
# A text with line ends that are neither escaped nor folded. The names of properties are in capital letters.
_UNFOLDED_TEXT = re.compile(
    r"^((?:DESCRIPTION|COMMENT|LOCATION|SUMMARY)[;:][^\n]*+(?:\n[ \t][^\n]*+)*+)"
    r"((?:\n(?![A-Z][A-Z0-9-]*+[;:]|[ \t])[^\n]*+(?:\n[ \t][^\n]*+)*+)++)(?=\n[A-Z])",
    re.M,
)
_UNFOLDED_END = re.compile(r"\n(?![ \t])")
_LOOSE_TIME = re.compile(
    r"^((?:DTSTART|DTEND|DUE|RECURRENCE-ID)\b[^\n]{0,200}?:)(\d{4})-?(\d\d)-?(\d\d)"
    r"(?:[T ](\d\d):?(\d\d)(?::?(\d\d)(?:\.\d+)?)?(Z?))?[ \t]*$",
    re.I | re.M,
)


def decode_calendar(data: bytes, charset: str | None = None) -> str:
    """Return a calendar with its folded lines joined, which may be folded inside a character."""
    return decode(_FOLDED_BYTES.sub(b"", data), charset)


def calendar_to_text(text: str) -> str:
    """Return the events and tasks of a calendar as lines, or "" if it has none.

    Raises:
        ValueError: if it is not a calendar, or is too large.
        ImportError: if icalendar is not installed.
    """
    if len(text) > _MAX_CALENDAR:
        raise ValueError(f"larger than {_MAX_CALENDAR} characters")
    text = _standardize(text)
    with catch_warnings():
        simplefilter("ignore")  # the package warns about time zones that it guesses
        if len(text) > _MAX_REPAIRED or _ENTRY.search(text) is None:
            return _read_entries(text.strip())
        with suppress(ValueError):
            if lines := _read_entries(text.strip()):
                return lines
        return _read_entries(_repair(text))


def _standardize(text: str) -> str:
    """Return a calendar with the forms of iCalendar in place of others that programs write."""
    text = text.replace("\r\n", "\n")
    if "QUOTED-PRINTABLE" in text.upper():
        text = _QUOTED_VALUE.sub(_decode_quoted_value, text)
    text = _UNFOLDED_TEXT.sub(lambda found: found[1] + _UNFOLDED_END.sub(r"\\n", found[2]), text)
    return _LOOSE_TIME.sub(_write_time, _BARE_ZONE.sub(r'\1"\2"', text))


def _decode_quoted_value(line: re.Match[str]) -> str:
    value = decode(quopri.decodestring(line[2].encode("utf-8", "replace")))
    return f"{line[1]}:" + clean(value).replace("\n", "\\n")


def _write_time(line: re.Match[str]) -> str:
    name, year, month, day, hour, minute, second, zone = line.groups()
    return f"{name}{year}{month}{day}" + (f"T{hour}{minute}{second or '00'}{zone}" if hour else "")


def _read_entries(text: str) -> str:
    """Return the events and tasks of a calendar as lines.

    Raises:
        ValueError: if it is not a calendar.
    """
    from icalendar import Calendar

    blocks = []
    try:
        calendars: list[Any] = list(Calendar.from_ical(text, multiple=True))
        for calendar in calendars:
            method = clean_line(str(calendar.get("METHOD", ""))).upper()
            entries = [each for each in calendar.walk() if each.name in _KINDS]
            blocks += ["\n".join(_describe(entry, method)) for entry in entries[:_MAX_EVENTS]]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a calendar ({error})"[:200]) from error
    return clean("\n\n".join(blocks))


def _repair(text: str) -> str:
    """Return a calendar without its broken lines, and with the ends that it lacks, e.g. because it is cut off."""
    lines: list[str] = []
    parts: list[str] = []
    for line in _FOLD.sub("", clean(text)).split("\n"):
        name, _, value = line.partition(":")
        value = value.strip().upper()
        if name.upper() == "BEGIN":
            parts.append(value)
        elif name.upper() == "END":
            if value not in parts[-1:]:
                continue
            parts.pop()
        elif not _LINE.match(line):
            continue
        lines.append(line)
    return "\r\n".join([*lines, *(f"END:{part}" for part in reversed(parts))])


def _describe(entry: Any, method: str) -> Iterator[str]:
    """Yield the lines of one event or task."""
    status = _text(entry, "STATUS").upper()
    is_cancelled = method == "CANCEL" or status == "CANCELLED"
    has_method = method in _METHODS and entry.name != "VFREEBUSY"
    kind = "Cancelled" if is_cancelled else _METHODS[method] if has_method else _KINDS[entry.name]
    if kind == "Invitation" and _text(entry, "SEQUENCE") not in {"", "0"}:
        kind = "Updated invitation"
    yield kind if entry.name == "VFREEBUSY" else f"{kind}: {_text(entry, 'SUMMARY') or 'no title'}"
    for label, describe in (("When", _describe_time), ("Busy", _describe_busy), ("Repeats", _describe_repetition)):
        with suppress(ValueError, OverflowError):  # a property that is broken
            if value := describe(entry):
                yield f"{label}: {value}"
    for label, name in (("Where", "LOCATION"), ("Status", "STATUS"), ("Link", "URL")):
        if value := _text(entry, name):
            yield f"{label}: {value}"
    if value := next(filter(None, (_text(entry, name) for name in _CONFERENCES)), ""):
        yield f"Join: {value}"
    if organizers := _people(entry, "ORGANIZER"):
        yield f"Organizer: {organizers[0]}"
    if attendees := _people(entry, "ATTENDEE"):
        yield f"Attendees: {', '.join(attendees)}"
    for name in ("DESCRIPTION" if _text(entry, "DESCRIPTION") else "X-ALT-DESC", "COMMENT"):
        for value in _list(entry, name):
            text = str(value)
            if name == "X-ALT-DESC" or text.lstrip()[:200].lower().startswith(("<html", "<!doctype", "<p", "<br")):
                text = html_to_text(text)
            if text.strip():
                yield text.strip()


def _list(entry: Any, name: str) -> list[Any]:
    value = entry.get(name)
    return [] if value is None else value if isinstance(value, list) else [value]


def _text(entry: Any, name: str) -> str:
    return clean_line(str(next(iter(_list(entry, name)), "")))


def _describe_time(entry: Any) -> str:
    start, end, due = (_moment(entry, name) for name in ("DTSTART", "DTEND", "DUE"))
    length = _moment(entry, "DURATION")
    if end is None and isinstance(length, timedelta) and isinstance(start, date):
        with suppress(OverflowError):
            end = start + length
    if not isinstance(start, date):
        return f"due {_format_moment(due, '')}" if isinstance(due, date) else ""
    zone = _zone(entry, "DTSTART")
    shown = _format_moment(start, zone)
    if isinstance(end, date) and not isinstance(end, datetime) and not isinstance(start, datetime):
        end -= timedelta(days=1)  # the end of a whole day is the next day
    if not isinstance(end, date) or end == start:
        return shown
    end_zone = _zone(entry, "DTEND") or zone
    if isinstance(start, datetime) and isinstance(end, datetime) and (start.date(), zone) == (end.date(), end_zone):
        return f"{start:%a %Y-%m-%d %H:%M} to {_format_moment(end, zone).split(' ', 2)[2]}"
    return f"{shown} to {_format_moment(end, end_zone)}"


def _describe_busy(entry: Any) -> str:
    """Return the times at which somebody is busy, in UTC."""
    periods = [each for value in _list(entry, "FREEBUSY") for each in (value if isinstance(value, list) else [value])]
    busy = [each for each in periods if str(each.params.get("FBTYPE", "BUSY")).upper() != "FREE"]
    return ", ".join(
        f"{_format_moment(each.start, '')} to {each.end:%H:%M}"
        for each in busy[:_MAX_BUSY]
        if isinstance(each.start, datetime) and isinstance(each.end, datetime)
    )


def _moment(entry: Any, name: str) -> date | timedelta | None:
    value = getattr(next(iter(_list(entry, name)), None), "dt", None)
    return value if isinstance(value, date | timedelta) else None


def _zone(entry: Any, name: str) -> str:
    """Return the time zone that a property names, or ""."""
    parameters = getattr(next(iter(_list(entry, name)), None), "params", {})
    return clean_line(str(parameters.get("TZID", "")))


def _format_moment(moment: date, zone: str) -> str:
    """Return e.g. `Thu 2024-03-14 14:00 Europe/Berlin`, or the day alone."""
    if not isinstance(moment, datetime):
        return f"{moment:%a %Y-%m-%d}"
    if not zone and moment.tzinfo is not None:
        zone = "UTC" if moment.utcoffset() == timedelta() else moment.tzname() or f"{moment:%z}"
    return f"{moment:%a %Y-%m-%d %H:%M} {zone}".rstrip()


def _describe_repetition(entry: Any) -> str:
    """Return e.g. `every 2 weeks on Mon, Wed until 2024-06-30`."""
    rule = next(iter(_list(entry, "RRULE")), None)
    if rule is None:
        return ""
    unit = _UNITS.get(str(next(iter(rule.get("FREQ", [])), "")).upper())
    if unit is None:
        return ""
    interval = clean_line(str(next(iter(rule.get("INTERVAL", [])), 1)))
    words = [f"every {unit}" if interval == "1" else f"every {interval} {unit}s"]
    if days := [_format_day(str(day)) for day in rule.get("BYDAY", [])]:
        words.append(f"on {', '.join(days)}")
    if months := [str(day) for day in rule.get("BYMONTHDAY", [])]:
        words.append(f"on day {', '.join(months)}")
    for until in rule.get("UNTIL", [])[:1]:
        last = until.astimezone(UTC) if isinstance(until, datetime) and until.tzinfo else until
        words.append(f"until {last:%Y-%m-%d}" if isinstance(last, date) else "")
    if count := rule.get("COUNT"):
        words.append(f"{count[0]} times")
    if dates := _list_exceptions(entry):
        words.append(f"except {', '.join(dates)}")
    return clean_line(" ".join(words))


def _list_exceptions(entry: Any) -> list[str]:
    """Return the days on which an event does not repeat."""
    moments = [each.dt for value in _list(entry, "EXDATE") for each in getattr(value, "dts", [])]
    return [f"{moment:%Y-%m-%d}" for moment in moments[:_MAX_EXCEPTIONS] if isinstance(moment, date)]


def _format_day(day: str) -> str:
    found = _DAY.fullmatch(day.upper())
    if found is None:
        return day
    name = _DAYS.get(found[2], found[2])
    if found[1] == "-1":
        return f"last {name}"
    return f"{name} of week {found[1]}" if found[1] else name


def _people(entry: Any, name: str) -> list[str]:
    """Return `Name <address>` of each person, with the answer that an attendee gave."""
    people = []
    for value in _list(entry, name)[:_MAX_PEOPLE]:
        address = clean_line(str(value))
        address = address[7:] if address.lower().startswith("mailto:") else address
        parameters = getattr(value, "params", {})
        common = clean_line(str(parameters.get("CN", ""))).strip("\"'")
        shown = f"{common} <{address}>" if common and common.lower() != address.lower() else address
        answer = clean_line(str(parameters.get("PARTSTAT", ""))).lower()
        people.append(f"{shown} ({answer})" if answer in {"accepted", "declined", "tentative"} else shown)
    return people
