"""Find typed values in texts (dates, times, money, quantities, codes), so that different spellings compare equal."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from itertools import chain

from gumshoe.rewards.heuristic.calendar_dates import find_dates
from gumshoe.rewards.heuristic.clock_times import find_times
from gumshoe.rewards.heuristic.expected import Expected
from gumshoe.rewards.heuristic.normalization import normalize
from gumshoe.rewards.heuristic.quantities import find_quantities, with_sign_and_bound
from gumshoe.rewards.heuristic.ranges import complete_ranges
from gumshoe.rewards.heuristic.value import Kind, Value

__all__ = ["Kind", "Value", "find_values", "normalize"]

_ANYTHING = Expected()
_PARTS = {"half": 2, "halves": 2, "third": 3, "quarter": 4, "2nd": 2, "3rd": 3, "4th": 4, "5th": 5, "6th": 6}
_PARTS |= {"7th": 7, "8th": 8, "9th": 9, "10th": 10, "12th": 12, "20th": 20, "100th": 100}


def find_values(text: str, asked: date | None, expected: Expected = _ANYTHING) -> Iterator[Value]:
    """Return the values of a normalized text, in order.

    Dates without a year and words such as "tomorrow" refer to the date `asked`. Without it, a missing year may be any
    from 1950 to 2049. `expected` says which values the question asks for. Both ends of a range have its unit.
    """
    if not _MAY_HAVE_VALUES.search(text):
        return iter(())
    placed = complete_ranges(text, _find_each(text, asked, expected), lambda part: _find_each(part, asked, expected))
    return (with_sign_and_bound(text, _with_asked_unit(text, each, expected), expected) for each in placed)


def _with_asked_unit(text: str, value: Value, expected: Expected) -> Value:
    """Return a bare number of the reference in the unit that the question asks for: "15" in hours for "how many hours".

    An answer may leave out the unit, and so "million". It is then either what is written or millions.
    """
    if not expected.counted or value.kind != "number" or value.unit is not None or not _BARE_END.match(text, value.end):
        return value
    own = text[value.start : value.end]
    counted = _MULTIPLE.sub("", expected.counted) if re.search(r"[a-z ]", own, re.I) else expected.counted
    written = f"{own} {counted}"
    full = next((each for each in find_quantities(written, expected, has_unit=True) if each.start == 0), None)
    if full is None:
        return value
    if expected.is_reference:
        return replace(full, start=value.start, end=value.end)
    return replace(value, means=value.means | full.means) if _MULTIPLE.match(counted) else value


def _find_each(text: str, asked: date | None, expected: Expected) -> list[Value]:
    """Return the values of a text in order, each as it stands there alone."""
    found: list[Value] = []
    for value in chain.from_iterable(_find_all(text, asked, expected)):
        if all(value.end <= each.start or each.end <= value.start for each in found):
            found.append(value)
    return sorted(found, key=lambda each: each.start)


def _find_all(text: str, asked: date | None, expected: Expected) -> Iterator[Iterator[Value]]:
    """Yield the values of each kind. A part of a text is the first kind that reads it."""
    yield _matches("address", _ADDRESS, text, _read_address)
    yield _matches("code", _IDENTIFIER, text, _read_identifier)
    if expected.has_shares or not expected.has_dates:
        yield _find_fractions(text, expected)
    yield _matches("code", _VERSION, text, _read_version)
    if expected.has_codes:
        yield _matches("code", _DOTTED, text, _read_version)
    yield find_dates(text, asked)
    yield find_times(text)
    yield find_quantities(text, expected, has_unit=True)
    yield _find_spelt_fractions(text)
    if expected.has_codes and not expected.has_phones:
        yield _matches("code", _CODE, text, _read_code)
        yield _matches("code", _EXPECTED_CODE, text, _read_expected_code)
    yield _matches("code", _DOTTED, text, _read_version)
    yield _matches("code", _POSTCODE, text, _read_expected_code)
    yield _matches("phone", _PHONE, text, lambda match: re.sub(r"\D", "", match[0]))
    yield _matches("code", _CODE, text, _read_code)
    yield _matches("code", _ZEROS, text, lambda match: match[0])
    yield _matches("ordinal", _ORDINAL, text, lambda match: Decimal(match["amount"]).normalize())
    yield find_quantities(text, expected, has_unit=False)


def _matches(
    kind: Kind, pattern: re.Pattern[str], text: str, read: Callable[[re.Match[str]], object]
) -> Iterator[Value]:
    for match in pattern.finditer(text):
        yield Value(kind, frozenset({read(match)}), start=match.start(), end=match.end())


def _find_fractions(text: str, expected: Expected) -> Iterator[Value]:
    """Yield fractions in digits: those of a unit ("3/4 inch"), and all if the question asks for a share."""
    for match in _FRACTION.finditer(text):
        top, bottom = int(match["top"]), int(match["bottom"])
        if not 0 < top < bottom:
            continue
        if not match["whole"] and (match["of"] or expected.has_shares):
            yield _share(top, bottom, match.start(), match.end("bottom"))
            continue
        decimal = f"{int(match['whole'] or 0) + Decimal(top) / Decimal(bottom):.6f}"
        rest = f"{text[max(0, match.start() - 6) : match.start()]}{decimal}{text[match.end('bottom') :]}"
        moved = match.end("bottom") - match.start() - len(decimal)
        for value in find_quantities(rest, expected, has_unit=not match["whole"]):
            at = value.start + max(0, match.start() - 6)
            if at <= match.start() <= at + value.end - value.start:
                yield replace(value, start=at, end=max(0, match.start() - 6) + value.end + moved)
                break


def _find_spelt_fractions(text: str) -> Iterator[Value]:
    """Yield fractions in words, e.g. "half", "two thirds", "1 in 5"."""
    for match in _SPELT_FRACTION.finditer(text):
        if match["all"]:
            top, bottom = int(match["some"]), int(match["all"])
        else:
            part = (match["part"] or match["part2"]).casefold()
            counted = match["top"] or match["top2"] or "a"
            top = int(counted) if counted.isdigit() else 1
            bottom = _PARTS.get(part) or _PARTS[part.removesuffix("s")]
        if 0 < top < bottom:
            yield _share(top, bottom, match.start(), match.end())


def _share(top: int, bottom: int, start: int, end: int) -> Value:
    """Return a fraction as percent, exact and as it may be rounded."""
    exact = Decimal(100) * top / Decimal(bottom)
    rounded = {exact.normalize(), *(round(exact, places).normalize() for places in (0, 1, 2) if bottom % 3 == 0)}
    return Value("number", frozenset(rounded), unit="%", start=start, end=end)


def _read_address(match: re.Match[str]) -> str:
    """Return an address without what may be left out of one of the web."""
    return re.sub(r"^(?:https?://)?(?:www\.)?", "", match[0].casefold()).rstrip("./")


def _read_version(match: re.Match[str]) -> str:
    """Return a version with its dots, since 2.10 is not 2.1."""
    return re.sub(r"^\W*[a-z]*\W*", "", match["version"].casefold())


def _read_expected_code(match: re.Match[str]) -> str:
    """Return a code with its zeros and dots."""
    return re.sub(r"[\s-]", "", match[0].casefold().rstrip("."))


def _read_identifier(match: re.Match[str]) -> str:
    """Return an identifier such as PRJ_2024_17 as a code, or a file name with its dots."""
    return re.sub(r"[^\w.]|_", "", match[0].casefold())


def _read_code(match: re.Match[str]) -> str:
    letters = re.sub(r"[^a-z0-9]", "", match[0].casefold())
    return re.sub(r"^x(?=\d+$)", "", letters)  # x39804 is an extension


_MAY_HAVE_VALUES = re.compile(r"\d|@|://|www\.|day\b|tomorrow|noon|midnight|\b(?:half|halves|quarter)\b|\bq\b", re.I)
_MULTIPLE = re.compile(r"(?:thousand|million|billion|trillion)s?\b\s*", re.I)
_BARE_END = re.compile(
    r"\s?(?:$|[.,;:!?)|]|-\s?\d|(?:in|on|at|per|an?|each|of|for|to|and|or|if|with|by|as|so|since|because|altogether|"
    r"when|while|was|were|are|is|more|less|fewer)\b)",
    re.I,
)
_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+|(?:\w+://|www\.)[^\s<>\"')]+", re.I)
_IDENTIFIER = re.compile(r"(?<![\w.])(?=\w*\d)(?=\w*[^\W_]_+[^\W_])\w+(?:[-.]\w+)*", re.I)
_VERSION = re.compile(
    r"(?<![\w.,/-])(?:v(?:ersion|er|\.)?|release|build|rev(?:ision)?\.?)[ .]?"
    r"(?P<version>\d+(?:\.\d+)*(?:-?(?:alpha|beta|rc|[ab])\.?\d*)?)(?!\w|\.\d)",
    re.I,
)
_DOTTED = re.compile(r"(?<![\w.,/$£€-])(?<!\d )(?!\d{3}\.\d{3,4}\.\d{4}\b)(?P<version>\d+(?:\.\d+){2,})(?![\w,]|\.\d)")
_EXPECTED_CODE = re.compile(r"(?<![\w.,/$£€-])\d+(?:[ .-]?\d+)*(?![\w%]|[.,]\d)")
_POSTCODE = re.compile(r"\b(?-i:[A-Z]{1,2}\d[A-Z\d]? ?\d[A-Z]{2})\b")
_ZEROS = re.compile(r"(?<![\w.,:/$£€-])0\d+(?![\w%]|[.,:/]\d)")
_PHONE = re.compile(r"(?<![\w.])\+?\(?\d(?:[ ().-]{0,2}\d){6,14}(?!\w)")
_CODE = re.compile(
    r"\b(?:[a-z]{1,5}-|[a-z]+)\d[\w/-]*|\b(?-i:(?!PIN|ZIP|ID\b|NO\b|IS\b|OF\b|AT\b)[A-Z]{1,3}) #?\d{3,}[\w/-]*"
    r"|\b\d+[a-z]+\d[\w/-]*|\b\d+[/-]\d{4,}\b|\b\d+(?-i:[A-Z])\b",
    re.I,
)
_ORDINAL = re.compile(r"\b(?P<amount>\d+)(?:st|nd|rd|th)\b", re.I)
_FRACTION = re.compile(
    r"(?<![\w/.,-])(?:(?P<whole>\d+)[ -])?(?P<top>\d{1,3})/(?P<bottom>\d{1,3})(?![\d/])(?P<of> of\b)?"
)
_SPELT_FRACTION = re.compile(
    r"\b(?:(?P<top>an?|\d{1,2})[ -])?(?P<part>half|halves)\b(?! (?:past|an?\b|day))"
    r"|\b(?P<top2>a|\d{1,2})[ -](?P<part2>quarters?|thirds?|(?:3r|2n)ds?|(?:[4-9]|10|12|20|100)ths?)\b"
    r"(?=\s*(?:of\b|[.,;:!?)]|$))(?! of (?:\d{4}|the year))"
    r"|\b(?P<some>\d{1,3}) (?:in|out of(?: every)?) (?P<all>\d{1,3})\b",
    re.I,
)
