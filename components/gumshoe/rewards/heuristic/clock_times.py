"""Read times of the day, with their time zone."""

import re
from collections.abc import Iterator

from gumshoe.rewards.heuristic.value import Meanings, Value

_HOURS: dict[str, float] = {
    "UTC": 0,
    "GMT": 0,
    "Z": 0,
    "WET": 0,
    "WEST": 1,
    "BST": 1,
    "CET": 1,
    "CEST": 2,
    "EET": 2,
    "EEST": 3,
}
_HOURS |= {"MSK": 3, "SGT": 8, "HKT": 8, "JST": 9, "KST": 9, "AEST": 10, "AEDT": 11, "NZST": 12, "NZDT": 13}
_HOURS |= {"EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7, "HST": -10}
_HOURS |= {"AKST": -9, "AKDT": -8, "NST": -3.5, "AST": -4, "ADT": -3}
_SUMMER = frozenset({"WEST", "BST", "CEST", "EEST", "AEDT", "NZDT", "EDT", "CDT", "MDT", "PDT", "AKDT", "ADT"})
_ALWAYS = frozenset({"UTC", "GMT", "Z", "MSK", "SGT", "HKT", "JST", "KST", "HST"})  # no daylight saving time
_EITHER = {"ET": ("EST", "EDT"), "CT": ("CST", "CDT"), "MT": ("MST", "MDT"), "PT": ("PST", "PDT")}
_EITHER |= {"AKT": ("AKST", "AKDT")}
_REGIONS = {"eastern": "E", "central": "C", "mountain": "M", "pacific": "P", "central european": "CE"}
_REGIONS |= {"eastern european": "EE", "western european": "WE", "alaska": "AK"}
_ABBREVIATIONS = "|".join(sorted((*_HOURS, *_EITHER), key=len, reverse=True))
_ZONE = re.compile(
    rf"\s?[(\[]?(?:(?-i:(?P<short>{_ABBREVIATIONS}))\b(?P<away>\s?[+-]\d{{1,2}}(?::?[03]0)?(?!\d))?"
    r"|(?:us )?(?P<region>central european|eastern european|western european|eastern|central|mountain|pacific|alaska)"
    r"(?:(?: (?P<season>standard|daylight|summer))? time\b| (?P<alone>standard|daylight)\b|(?=\W*$|\s?[.,;:)]))"
    r"|(?P<world>greenwich mean time|coordinated universal time|universal time|zulu))[)\]]?",
    re.I,
)
_DAY = 1440  # minutes
_HALF = r"(?:\s?(?P<half>[ap])\.?m\b\.?|\s+(?:in the|at)\s+(?P<told>morning|afternoon|evening|night)\b)"
_PATTERNS = tuple(
    re.compile(pattern, re.I)
    for pattern in (
        rf"(?<![\d.:])(?P<hour>\d\d?)[:.](?P<minute>[0-5]\d)(?:{_HALF}|\s?h(?:rs|ours)?\b)",
        r"(?<![\d.:])(?P<hour>[01]?\d|2[0-4]):(?P<minute>[0-5]\d)(?::\d\d)?(?![\d:])",
        r"(?<=\bat )(?P<hour>\d\d?)\.(?P<minute>[0-5]\d)(?!\d)",
        rf"\b(?P<part>quarter|half|\d\d?)\s+(?:minutes\s+)?(?P<way>past)\s+(?P<hour>\d\d?)\b{_HALF}?",
        rf"\b(?P<part>quarter|\d\d?(?= minutes))\s+(?:minutes\s+)?(?P<way>to)\s+(?P<hour>\d\d?)\b{_HALF}?",
        rf"(?:(?<=\bat )|(?<=^))(?P<part>5|10|20|25)\s+(?P<way>to)\s+(?P<hour>[1-9]|1[0-2])\b"
        rf"(?:{_HALF}|(?=[\s.,;!?]*$))",
        rf"(?<![\d.:,])(?P<hour>\d\d?)(?:\s+o'clock)?(?:{_HALF}|(?<=o'clock))",
        r"(?<![\d.:,$])(?P<digits>[0-2]\d[0-5]\d)(?:\s?h\b|\s?hrs\b|\s?hours\b)",
        r"\b(?P<named>noon|midday|midnight)\b",
    )
)


def find_times(text: str) -> Iterator[Value]:
    """Yield the times of a text, the most specific patterns first."""
    for pattern in _PATTERNS:
        for match in pattern.finditer(text):
            value = _read_time(match)
            if value is not None:
                yield value


def _read_time(match: re.Match[str]) -> Value | None:
    """Read a match of a pattern; None if it is no time, such as 25:61."""
    groups = {name: text.casefold() for name, text in match.groupdict().items() if text}
    minutes = _read_minutes(groups)
    if minutes is None:
        return None
    zone = _ZONE.match(match.string, match.end())
    end = zone.end() if zone else match.end()
    zones = _in_utc(minutes, zone) if zone else frozenset()
    return Value("time", minutes, zone=zones, start=match.start(), end=end)


def _read_minutes(groups: dict[str, str]) -> Meanings | None:
    """Return the possible minutes of the day."""
    if "named" in groups:
        return frozenset({0 if groups["named"] == "midnight" else 720})
    if "digits" in groups:
        hour, minute = int(groups["digits"][:-2]), int(groups["digits"][-2:])
        return frozenset({hour * 60 + minute}) if hour < 24 and minute < 60 else None
    hour, minute = int(groups["hour"]), int(groups.get("minute", "0"))
    if "part" in groups:
        part = {"quarter": 15, "half": 30}.get(groups["part"]) or int(groups["part"])
        minute = part if groups["way"] == "past" else -part
    half = groups.get("half") or {"morning": "a", None: None}.get(groups.get("told"), "p")
    if not 0 <= hour <= 24 or (half and hour > 12):
        return None
    hours = {hour % 12} if half == "a" else {hour % 12 + 12} if half == "p" else {hour % 24}
    if not half and 1 <= hour <= 12 and not groups["hour"].startswith("0"):
        hours = {hour % 12, hour % 12 + 12}
    return frozenset((each * 60 + minute) % _DAY for each in hours)


def _in_utc(minutes: Meanings, zone: re.Match[str]) -> Meanings:
    """Return (minutes in UTC, daylight saving time or not), for both if the zone has none."""
    found = set[object]()
    for hours, is_summer in _read_offsets(zone):
        for season in (True, False) if is_summer is None else (is_summer,):
            found |= {((each - round(hours * 60)) % _DAY, season) for each in minutes if isinstance(each, int)}
    return frozenset(found)


def _read_offsets(zone: re.Match[str]) -> list[tuple[float, bool | None]]:
    """Return the possible hours ahead of UTC, each with True for daylight saving time, or None without a time zone."""
    if zone["world"]:
        return [(0, None)]
    if zone["away"] and zone["short"] in ("UTC", "GMT"):
        digits = re.sub(r"[\s:]", "", zone["away"])
        sign, hours = (-1 if digits[0] == "-" else 1), digits[1:]
        return [(sign * (int(hours[:2]) + (int(hours[2:]) / 60 if len(hours) > 2 else 0)), None)]
    if zone["short"]:
        names: tuple[str, ...] = _EITHER.get(zone["short"], (zone["short"],))
    else:
        start, season = _REGIONS[zone["region"].casefold()], (zone["season"] or zone["alone"] or "").casefold()
        summer = f"{start}ST" if start in ("CE", "EE", "WE") else f"{start}DT"
        standard = f"{start}T" if start in ("CE", "EE", "WE") else f"{start}ST"
        names = (summer,) if season in ("daylight", "summer") else (standard,) if season else (standard, summer)
    return [(_HOURS[name], None if name in _ALWAYS else name in _SUMMER) for name in names]
