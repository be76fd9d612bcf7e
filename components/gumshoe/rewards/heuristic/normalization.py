"""Write a text in one way: ASCII signs, single spaces, digits for numbers in words, and no marks of lists."""

import re
import unicodedata
from collections.abc import Callable

from text_to_num import alpha2digit

_DASHES = (0x2010, 0x2011, 0x2012, 0x2013, 0x2014, 0x2212)
_PLAIN = str.maketrans(dict.fromkeys(map(chr, _DASHES), "-") | {"\u2018": "'", "\u2019": "'", "\u2044": "/"})
_INVISIBLE = re.compile(
    r"[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e007f]"
)
_VULGAR = re.compile(r"(?<=\d)(?=[\u00bc-\u00be\u2150-\u215e])")
_MAX_LIST_LINE = 60  # characters of each line of a list without marks; wrapped text has longer ones
_MARKER = re.compile(r"^\s*(?:\(?(?P<number>\d{1,2})[.)]|[-*\u2022\u2023\u25e6])\s+")
_INLINE = re.compile(r"(?<!\S)\(?([1-9])[.)]\s+")
_STATES = {
    "AL": "Alabama", "AK": "Alaska", "AZ": "Arizona", "AR": "Arkansas", "CA": "California", "CO": "Colorado",
    "CT": "Connecticut", "DE": "Delaware", "DC": "District of Columbia", "FL": "Florida", "GA": "Georgia",
    "HI": "Hawaii", "ID": "Idaho", "IL": "Illinois", "IN": "Indiana", "IA": "Iowa", "KS": "Kansas", "KY": "Kentucky",
    "LA": "Louisiana", "ME": "Maine", "MD": "Maryland", "MA": "Massachusetts", "MI": "Michigan", "MN": "Minnesota",
    "MS": "Mississippi", "MO": "Missouri", "MT": "Montana", "NE": "Nebraska", "NV": "Nevada", "NH": "New Hampshire",
    "NJ": "New Jersey", "NM": "New Mexico", "NY": "New York", "NC": "North Carolina", "ND": "North Dakota",
    "OH": "Ohio", "OK": "Oklahoma", "OR": "Oregon", "PA": "Pennsylvania", "RI": "Rhode Island",
    "SC": "South Carolina", "SD": "South Dakota", "TN": "Tennessee", "TX": "Texas", "UT": "Utah", "VT": "Vermont",
    "VA": "Virginia", "WA": "Washington", "WV": "West Virginia", "WI": "Wisconsin", "WY": "Wyoming",
}  # fmt: skip
_WORDS = frozenset({"IN", "OR", "ME", "HI", "OK", "OH", "LA", "PA", "MA", "ID", "DE", "AL", "CO"})  # in lower case
_STATE = re.compile(
    rf"\b(?P<zip>{'|'.join(_STATES)}|(?i:{'|'.join(sorted(_STATES.keys() - _WORDS))}))\.?(?=,? \d{{5}}\b)"
    rf"|(?<=[a-z], )(?P<end>{'|'.join(_STATES)})(?=$|[,.;])"
)
_POINTS = {"N": "North", "S": "South", "E": "East", "W": "West"}
_POINT = re.compile(r"(?<=\d )([NSEW])\.? (?=[A-Z][a-z])")
_BOX = re.compile(r"\bP\.?\s?O\.? ?Box\b", re.I)
_UNIT_OF_TIME = (
    r"(?P<unit>hour|minute|day|week|month|year|mile|kilomet(?:er|re)|pound|ton|pint|million|billion|percent)"
)
_UNIT_ALONE = (
    r"(?:(?<=^)|(?<=\bin )|(?<=\bfor )|(?<=\btakes )|(?<=\babout )|(?<=\bonly )|(?<=\bof )|(?<=\bis )|"
    rf"(?<=\bthan )|(?<=\bleast )|(?<=\bmost ))an? {_UNIT_OF_TIME}\b"
    r"(?! (?:of|when|in which|today|tomorrow|ago|later|on)\b)"
)
_HALF_UNIT = rf"\b(?:half an?|1 half) {_UNIT_OF_TIME}\b|\ba half[ -]{_UNIT_OF_TIME.replace('unit', 'unit2')}\b"
_REWRITES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\bhalf a dozen\b", re.I), "6"),
    (re.compile(r"\b(?:a|1|one) dozen\b", re.I), "12"),
    (re.compile(rf"\b(\d+) and (?:a|1) half\b(?: (?:of )?(?={_UNIT_OF_TIME}))?", re.I), r"\1.5 "),
    (re.compile(r"\b(\d+) and (?:a|1) quarters?\b", re.I), r"\1.25"),
    (re.compile(r"\b(\d+) and 3 quarters\b", re.I), r"\1.75"),
    (re.compile(rf"\b(?:an?|1) {_UNIT_OF_TIME} and (?:a|1) half\b", re.I), r"1.5 \g<unit>s"),
    (re.compile(rf"\b(\d+) {_UNIT_OF_TIME}s? and (?:a|1) half\b", re.I), r"\1.5 \g<unit>s"),
    (re.compile(_HALF_UNIT, re.I), lambda match: f"0.5 {match['unit'] or match['unit2']}s"),
    (re.compile(rf"\b(?:a|1) quarter (?:of an? )?{_UNIT_OF_TIME}\b", re.I), r"0.25 \g<unit>s"),
    (re.compile(rf"\b3 quarters of an? {_UNIT_OF_TIME}\b", re.I), r"0.75 \g<unit>s"),
    (re.compile(_UNIT_ALONE, re.I), r"1 \g<unit>"),
    (re.compile(r"\ba fortnight\b", re.I), "1 fortnight"),
    (re.compile(r"\ba couple of\b", re.I), "2"),
)


# Of text in angle brackets, only tags are removed, not <ann@example.com> or <https://example.com>.
_HIDDEN = re.compile(
    r"<!--.*?(?:-->|$)|<(?:script|style)\b.*?(?:</(?:script|style)>|$)|</?[a-z][\w:-]*(?:\s[^<>]{0,99})?/?>",
    re.I | re.S,
)


def normalize(text: str) -> str:
    """Return a text with ASCII dashes and quotes, single spaces, and digits instead of spelled-out numbers."""
    text = unicodedata.normalize("NFKC", _VULGAR.sub(" ", _INVISIBLE.sub("", _HIDDEN.sub(" ", text))))
    plain = " ".join(_without_markers(text.translate(_PLAIN)).split())
    plain = _BOX.sub("PO Box", _POINT.sub(lambda match: f"{_POINTS[match[1]]} ", plain))
    plain = _STATE.sub(lambda match: _STATES[(match["zip"] or match["end"]).upper()], plain)
    plain = re.sub(r"\bhalf a dozen\b", "6", plain, flags=re.I)
    plain = re.sub(r"\bno[ -]one\b", "nobody", plain, flags=re.I)
    digits: str = alpha2digit(plain, "en", 0)
    for pattern, written in _REWRITES:
        digits = pattern.sub(written, digits)
    return digits


def _without_markers(text: str) -> str:
    """Return a list as its items, with | between them: without numbers (from 1) and bullets. Paragraphs are items."""
    lines = text.strip().splitlines()
    markers = [_MARKER.match(line) for line in lines]
    numbers = [int(each["number"]) for each in markers if each and each["number"]]
    bullets = [each for each in markers if each and not each["number"]]
    is_list = len(lines) > 1 and all(len(line) <= _MAX_LIST_LINE for line in lines)
    if (
        (bullets or is_list or len(numbers) > 1)
        and len(lines) > 1
        and numbers in ([], list(range(1, len(numbers) + 1)))
    ):
        items = [line[match.end() :] if match else line for line, match in zip(lines, markers, strict=True)]
        return " | ".join(item.strip().rstrip(",;") for item in items if item.strip())
    inline = [int(each) for each in _INLINE.findall(text)]
    if len(inline) > 1 and inline == list(range(1, len(inline) + 1)):
        return _INLINE.sub(" | ", text).lstrip("| ")
    return re.sub(r"(?<=\S)[ \t]*\n\s*\n\s*(?=\S)", " | ", text)
