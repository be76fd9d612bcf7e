"""Find what a person would search for in a question: keywords, people who wrote or received mail, and dates."""

import calendar
import re
from dataclasses import dataclass, replace
from datetime import date, timedelta
from itertools import pairwise

from gumshoe.rollouts.keyword_searcher import FUNCTION_WORDS

_WORD = re.compile(r"[^\W_]+(?:['\u2019&.@/-][^\W_]+)*")
_QUOTED = re.compile(r"""(?<!\w)["'\u201c\u2018]([^"\u201c\u201d]{3,60}?)["'\u201d\u2019](?!\w)""")
_POSSESSIVE = re.compile(r"['\u2019]s?$")
_IGNORED = FUNCTION_WORDS | frozenset(
    "after again also anyone anything away became because before being between both but current currently "  # noqa: SIM905
    "didn't doesn't done down during each else ever every everyone everything far get given gives go goes "
    "going gone got hers him just know let like long longer made make makes may might mine more most must no "
    "not now off once one only other ours out over own per please since so somebody someone something "
    "somewhere soon still such take taken takes through too took under until up use used using very whether "
    "while within without yes yet yours".split()
)
_GENERIC = frozenset(
    "according agree agreed agrees amount arrange arranged ask asked asking asks attend based begin best bring "  # noqa: SIM905
    "call called cause change changed chosen come comes coming concern concerns consider contact contacts cost "
    "count date day days decide decided decision describe described description detail details discuss discussed "
    "email emails end ends expect expected expecting fact find fine found group happen happened happening has "
    "held hold idea include included includes inform information informed invite invited involved issue issues "
    "item items keep kind last latest left list look looking mail main mean mention mentioned message name named "
    "names need needed needs new next note number numbers offer offered old part people person plan planned "
    "planning plans point possible process propose proposed provide provided purpose question questions reach "
    "ready reason receive received recent recommend recommended refer reference regarding related reply report "
    "request requested requests require required respond responded response responsible result role said say says "
    "schedule scheduled see send sending sends sent set share should show start started starts status suggest "
    "suggested take talk tell telling terms thing things think thinks thought time times today told tomorrow "
    "topic tried try trying type upcoming update want wanted wants way ways went working write written wrote year "
    "years yesterday".split()
)
_NUMBER = re.compile(r"\d{1,4}(?:st|nd|rd|th|%)?")  # also a day or a year
_NAME = r"[A-Z][\w'\u2019.-]*(?: [A-Z][\w'\u2019-]+)*"
_VERBS = (
    "say|write|send|tell|ask|request|suggest|propose|recommend|mention|want|think|forward|offer|inform|report|advise|"
    "invite|email|explain|describe|reply|respond|promise|need|prefer|confirm"
)
_SENDER = re.compile(rf"\b(?:did|does|has|had) ({_NAME}|I|my \w+) (?:{_VERBS})|\b(?:from|by) ({_NAME})")
_RECIPIENT = re.compile(rf"\b(?:tell|told|ask|asked|inform|advise|email|invite|offer|send|sent to|to) ({_NAME})")
_MONTHS = {name.casefold(): number for number, name in enumerate(calendar.month_name) if name}
_MONTH = "|".join(name for name in calendar.month_name if name)
_DAY = rf"(?:(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? )?(?P<month>{_MONTH})(?: (?P<day2>\d{{1,2}})(?:st|nd|rd|th)?)?"
_DATE = re.compile(
    r"\b(?P<how>in|on|during|of|before|until|by|after|since|as of) "
    rf"(?:{_DAY}(?:,? (?P<year>\d{{4}}))?|(?P<only>(?:19|20)\d\d))\b"
)

_PLAIN_COST, _PAIR_COST, _NUMBER_COST = 0.3, 0.4, 0.5  # see `Keyword.cost`
RARE_COST = 0.9
"""Cost of words that tell little, and of words of a date."""
MAX_PHRASE = 3
"""Maximum number of words of a phrase, except if the question has it in quotation marks."""


@dataclass(frozen=True, slots=True)
class Keyword:
    """A keyword for a search."""

    text: str
    places: range
    """Numbers of its words in the question, from 0; empty if it is not from the question."""
    cost: float
    """How unlikely a person is to search for it, from 0."""
    is_seen: bool = True
    """It is from the question, or from the result of an earlier search."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Arguments of a search that limit it to some messages, as far as a question names them."""

    arguments: tuple[tuple[str, str], ...] = ()
    places: frozenset[int] = frozenset()
    """Numbers of the words of the question that they replace as keywords."""

    @property
    def names(self) -> set[str]:
        """Names of the arguments."""
        return {name for name, _ in self.arguments}

    def __add__(self, other: "Filters") -> "Filters":
        return Filters(self.arguments + other.arguments, self.places | other.places)


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    start: int
    end: int
    is_date: bool = False
    """It is part of a date, which is when something happens, seldom a word of the mail."""

    @property
    def is_content(self) -> bool:
        is_ignored = self.text.casefold() in _IGNORED and self.text != "May"  # the month
        return not is_ignored and (len(self.text) > 1 or self.text.isdigit())

    @property
    def is_specific(self) -> bool:
        """True for names and numbers."""
        return self.is_content and (self.text[0].isupper() or any(map(str.isdigit, self.text)))

    @property
    def cost(self) -> float:
        if self.is_date or self.text.casefold() in _GENERIC:
            return RARE_COST
        if _NUMBER.fullmatch(self.text):
            return _NUMBER_COST
        return 0.0 if self.is_specific else _PLAIN_COST


def _split(text: str) -> list[_Word]:
    return [
        _Word(_POSSESSIVE.sub("", each.group()), each.start(), each.start() + len(_POSSESSIVE.sub("", each.group())))
        for each in _WORD.finditer(text)
    ]


def find_keywords(question: str) -> list[Keyword]:
    """Return the keywords that a question offers, in its order: words, names of several words, and quoted phrases.

    >>> [each.text for each in find_keywords("When did Ann Lee sign the lease in Bergen?")]
    ['Ann Lee', 'Ann', 'Lee', 'sign', 'lease', 'Bergen']
    """
    words = _split(question)
    dates = [each.span() for each in _DATE.finditer(question)]
    words = [replace(each, is_date=any(start <= each.start < end for start, end in dates)) for each in words]
    found = [*_find_quoted(question, words), *_find_phrases(question, words)]
    found += [
        Keyword(each.text, range(number, number + 1), each.cost) for number, each in enumerate(words) if each.is_content
    ]
    unique = {each.text.casefold(): each for each in reversed(found)}
    return sorted(unique.values(), key=lambda each: (each.places.start, -len(each.places)))


def content_words(text: str) -> list[tuple[str, int]]:
    """Return the words of a text that carry meaning, with their offsets."""
    return [(each.text, each.start) for each in _split(text) if each.is_content]


def find_source_keywords(text: str) -> list[str]:
    """Return the words of a text that are worth a search, each once: names and numbers first."""
    words = [each for each in _split(text) if each.is_content and each.cost < RARE_COST]
    unique = {each.text.casefold(): each for each in reversed(words)}
    listed = sorted(unique.values(), key=lambda each: (not each.is_specific, each.start))
    return [each.text for each in listed]


def _find_quoted(question: str, words: list[_Word]) -> list[Keyword]:
    found = list[Keyword]()
    for quoted in _QUOTED.finditer(question):
        inside = [number for number, each in enumerate(words) if quoted.start() < each.start < quoted.end()]
        if len(inside) > 1:
            found.append(Keyword(quoted[1].strip(" ,.?"), range(inside[0], inside[-1] + 1), 0.0))
    return found


def _find_phrases(question: str, words: list[_Word]) -> list[Keyword]:
    """Return names of several words, and pairs of other words that follow each other."""
    found = list[Keyword]()
    for first in range(len(words)):
        for last in range(first + 1, min(first + MAX_PHRASE, len(words))):
            part = words[first : last + 1]
            is_joined = all(question[one.end : other.start] == " " for one, other in pairwise(part))
            is_name = all(each.is_specific and not each.is_date for each in part)
            is_pair = len(part) == 2 and all(each.is_content and each.cost < RARE_COST for each in part)
            if is_joined and (is_name or is_pair):
                text = question[part[0].start : part[-1].end]
                found.append(Keyword(text, range(first, last + 1), 0.0 if is_name else _PAIR_COST))
    return found


def find_filters(question: str, inbox: str, today: date | None) -> list[Filters]:
    """Return the filters that a question names: who wrote or received the mail, and when it was sent.

    `inbox` is the address of the owner, who asks the question on the day `today`.
    """
    words = _split(question)

    def places(start: int, end: int) -> frozenset[int]:
        return frozenset(number for number, each in enumerate(words) if start <= each.start < end)

    found = list[Filters]()
    for pattern, argument in ((_SENDER, "sender"), (_RECIPIENT, "recipient")):
        for match in pattern.finditer(question):
            number = match.lastindex or 1
            name = _POSSESSIVE.sub("", match[number])
            if name == "I":
                found.append(Filters(((argument, inbox),)))
            elif not name.startswith("my ") and name.casefold() not in _MONTHS:
                found.append(Filters(((argument, name),), places(*match.span(number))))
    if today is not None:
        for match in _DATE.finditer(question):
            if period := _read_period(match, today):
                found.append(Filters(period, places(*match.span())))
    return list(dict.fromkeys(found))


def _read_period(match: re.Match[str], today: date) -> tuple[tuple[str, str], ...]:
    """Return the arguments for a date in a question; empty if the period is not in the past."""
    year = int(match["only"] or match["year"] or today.year)
    day = int(match["day"] or match["day2"] or 0)
    month = _MONTHS[match["month"].casefold()] if match["month"] else 0
    if not match["only"] and not match["year"] and (month, day or 1) > (today.month, today.day):
        year -= 1
    try:
        first = date(year, month or 1, day or 1)
    except ValueError:
        return ()
    length = 1 if day else calendar.monthrange(year, month)[1] if month else 365 + calendar.isleap(year)
    end = first + timedelta(length)
    if first > today:
        return ()
    after, before = ("sent_after", str(first)), ("sent_before", str(end))
    match match["how"]:
        case "before":
            return (("sent_before", str(first)),)
        case "until" | "by" | "as of":
            return (before,)
        case "after" | "since":
            return (after,)
        case "on":
            return (before,)
        case _:
            return (after, before)
