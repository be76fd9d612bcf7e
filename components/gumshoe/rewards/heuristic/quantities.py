"""Read numbers with their unit, sign and bound: "$1.2M", "€1.234,56", "3 1/2 percent", "fell by 5%", "5 or more"."""

import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache

from gumshoe.rewards.heuristic.expected import Expected
from gumshoe.rewards.heuristic.units import Unit, currency_marks, find_unit, is_pound
from gumshoe.rewards.heuristic.value import Bound, Sign, Value

_AMOUNT = re.compile(
    r"(?P<indian>\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?)(?![\d,])"
    r"|(?P<english>\d{1,3}(?:,\d{3})+(?:\.\d+)?)(?!\d|,\d)"
    r"|(?P<european>\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,})(?![\d.]\d)"
    r"|(?P<swiss>\d{1,3}(?:'\d{3})+(?:\.\d+)?)(?!\d)"
    r"|(?P<mixed>\d+[ -]\d+/\d+)(?![\d/])"
    r"|(?P<spaced>\d{1,3}(?: \d{3})+(?:[.,]\d+)?)(?! ?\d)"
    r"|(?P<comma>\d+,\d{1,2})(?!\d|,\d)"
    r"|(?P<plain>\d+(?:\.\d+)?|\.\d+)"
)
_TIMES = re.compile(
    r"(?:(?P<short>\s?(?:k|m|mm|mn|mil|mln|b|bn|bln|tn|trn|t))|[ -](?P<word>thousand|million|billion|trillion|lakhs?|"
    r"lacs?|crores?|dozen|hundred|1000|1000000|1000000000|1000000000000|100))(?![^\W_])",
    re.I,
)
_SPELT = re.compile(r" (?:1000|1000000|1000000000)$|[a-z]{5}$", re.I)
_MANY = {"k": 3, "thousand": 3, "m": 6, "mm": 6, "mn": 6, "mil": 6, "mln": 6, "million": 6, "b": 9, "bn": 9, "bln": 9}
_MANY |= {"billion": 9, "tn": 12, "trn": 12, "t": 12, "trillion": 12, "lakh": 5, "lac": 5, "crore": 7, "hundred": 2}
_WITH_POINT = frozenset({"USD", "GBP"})  # currencies with which "1.234" is hardly ever 1234
_THOUSANDS = re.compile(r"[1-9]\d{0,2}\.\d{3}")
_START = re.compile(r"(?<![\w.,/'#])(?:\d|\.\d)")
_NEXT = re.compile(
    r"[ -]?(?P<words>[%¢](?!\w)|[$£€¥₹₩](?!\s?[\d.])|\"|[^\W\d_°]+\$(?!\s?[\d.])"
    r"|[^\W\d_]{1,5}/(?:h|hr|s|sec)\b|°?[^\W\d_]+\.?(?:[^\W\d_]+\.?)*\d?)"
)
_RATE = re.compile(
    r"\s?(?:/|\b(?:per|an?|each|every)\s)\s?(?P<unit>[A-Za-z]+)\b|"
    r"\s(?P<adverb>p\.?a\b|annually|yearly|monthly|daily|hourly|weekly)",
    re.I,
)
_ADVERBS = {"pa": "year", "annually": "year", "yearly": "year", "monthly": "month", "daily": "day", "hourly": "hour"}
_RATES = {"yr": "year", "annum": "year", "mo": "month", "hr": "hour", "wk": "week", "person": "head", "h": "hour"}
_RATE_WORDS = frozenset("day week month year hour minute second night quarter annum".split())  # noqa: SIM905
_ABOUT = (
    r"(?:(?:about|around|approximately|approx\.?|roughly|nearly|almost|some|just|only|exactly|a|an|the|another|"
    r"a full|further|c\.|circa|~)\s?)*"
)
_OF = rf"(?:\s+(?:by|of|in|to be|is|was|were|at|came to|amount\w* to|totall?\w*))*[:\s]+{_ABOUT}$"
_FALLEN = (
    r"decreas(?:e|es|ed|ing)|declin(?:e|es|ed|ing)|drop(?:s|ped|ping)?|f[ae]ll(?:s|en|ing)?|reduc(?:e|es|ed|ing|tions?)|"
    r"shr[aiu]nk\w*|slip(?:s|ped)|loss(?:es)?|lost|lose[sd]?|negative|minus|deficit|shortfall|plung\w+|slid|tumbl\w+|"
    r"sank|contract(?:ed|ion)|lower(?:ed)?|cut|downgrade\w*|weaken\w*|write-?(?:down|off)|discount"
)
_RISEN = (
    r"income|earnings|increas(?:e|es|ed|ing)|rise[sn]?|rising|rose|gr[eo]w(?:s|n|th|ing)?|gain(?:s|ed)?|profits?|up|plus|positive|"
    r"climb\w*|jump\w*|surg\w+|advanc\w+|surplus|rais(?:e|ed)|higher|expan\w+|improv\w+|add(?:ed)?"
)
_BEFORE_SIGN = re.compile(rf"\b(?:(?P<fall>{_FALLEN}|down)|(?P<rise>{_RISEN})){_OF}", re.I)
_AFTER_SIGN = re.compile(
    r"\s?(?:(?:per year|a year|annual|overall|net|total|\w+ly)\s)?"
    rf"(?:(?P<fall>(?:{_FALLEN}|less|down|cheaper|below|smaller|fewer|shorter)\b)|"
    rf"(?P<rise>(?:{_RISEN}|more|dearer|above|bigger|larger|longer)\b))(?!\s+(?:to|from|\d))",
    re.I,
)
_BOUNDS: tuple[tuple[Bound, str, str], ...] = (
    (
        ">=",
        r"at least|(?:a )?minimum(?: of)?|min\.?|no (?:less|fewer) than|not (?:less|fewer) than|>=|≥|upwards? of|"
        r"starting (?:at|from)|no lower than|not under|not below",
        r"or (?:more|above|over|higher|greater|longer|later|better|up)|and (?:up|above|over|more)|"
        r"(?<! )\+|(?:\+|plus)(?=\s?(?:$|[.,;:!?)]))|minimum|min|at (?:the )?least|upwards?",
    ),
    (
        "<=",
        r"at (?:the )?most|up to|(?:a )?maximum(?: of)?|max\.?|no (?:more|greater|higher|longer|later) than|"
        r"not (?:more than|over|above|to exceed|exceeding)|<=|≤|capped at|as (?:many|much) as|limited to",
        r"or (?:less|fewer|under|below|lower|shorter|earlier)|and (?:under|below|less)|maximum|max|"
        r"at (?:the )?most|tops",
    ),
    (
        ">",
        r"more than|over|above|exceed(?:s|ed|ing)?|greater than|higher than|longer than|>|in excess of|north of|"
        r"beyond|after|later than",
        r"and counting",
    ),
    (
        "<",
        r"less than|fewer than|under|below|lower than|shorter than|<|south of|short of|before|earlier than|prior to",
        "",
    ),
)
_BEFORE_BOUND = re.compile(
    r"(?:"
    + "|".join(rf"(?P<b{n}>(?<![\w<>])(?:{before}))" for n, (_, before, _) in enumerate(_BOUNDS))
    + r")\s*(?:the\s|on\s|a\s|an\s|about\s|around\s)*$",
    re.I,
)
_AFTER_BOUND = re.compile(
    r"\s?(?:[a-z]{3,}\s)?(?:"
    + "|".join(rf"(?P<b{n}>(?:{after}))" for n, (_, _, after) in enumerate(_BOUNDS) if after)
    + r")(?!\w)",
    re.I,
)
_PLUS = re.compile(  # "50 plus people", unlike "50 plus tax"; beside a unit, or before a number, something is added
    r"[\s-]?(?:\+|plus)\s+(?!(?:an?|the|any|all|my|our|his|her|its|their|tax(?:es)?|vat|gst|fees?|expenses|costs|interest|"
    r"postage|shipping|delivery)\b)[a-z]",
    re.I,
)
# "after 3 weeks" says how long it took
_LATER = re.compile(r"\bafter\s+(?:the\s|a\s|an\s|about\s|around\s)*$", re.I)
_BEFORE_CHARACTERS, _AFTER_CHARACTERS = 60, 30
_LONGEST_UNIT = 3  # words


def find_quantities(text: str, expected: Expected, *, has_unit: bool) -> Iterator[Value]:
    """Yield the numbers of a text that have a unit, a currency or a word such as "million", or all numbers.

    Sign and bound are left to `with_sign_and_bound`.
    """
    for start in _START.finditer(text):
        match = _AMOUNT.match(text, start.start())
        if match is None:
            continue
        value = _read_quantity(text, match, expected)
        if value is not None and (
            not has_unit or value.unit is not None or _SPELT.search(text, value.start, value.end)
        ):
            yield value


def with_sign_and_bound(text: str, value: Value, expected: Expected) -> Value:
    """Return the value with the sign and the bound that the text around it gives."""
    before = text[max(0, value.start - _BEFORE_CHARACTERS) : value.start]
    after = text[value.end : value.end + _AFTER_CHARACTERS]
    bound = "" if value.unit is not None and _LATER.search(before) else _find_bound(before, after)
    if value.kind != "number":
        return replace(value, bound=bound if bound in ("<", ">") and value.kind in ("date", "time") else "")
    if value.unit is None and _PLUS.match(after):
        bound = bound or ">="
    sign, is_written = _find_sign(text, value, before, after)
    return replace(value, sign=_with_default(sign, expected), is_sign_written=is_written, bound=bound or expected.bound)


def is_quantity_word(word: str) -> bool:
    """Return True if a word only gives the sign or the bound of a number, e.g. "increase" or "least"."""
    return _QUANTITY_WORD.fullmatch(word) is not None


_QUANTITY_WORD = re.compile(
    rf"{_FALLEN}|{_RISEN}|down|least|most|minimum|maximum|more|less|fewer|over|under|above|below|between|exceed\w*|"
    "greater|excess|upwards?|about|around|approximately|roughly|nearly|almost|change[sd]?|percent|points?",
    re.I,
)


def _with_default(sign: Sign, expected: Expected) -> Sign:
    return sign or expected.sign


def _read_quantity(text: str, match: re.Match[str], expected: Expected) -> Value | None:
    mark = _mark_before(text, match.start())
    currency = find_unit(mark) if mark else None
    start = match.start() - len(text[: match.start()]) + len(text[: match.start()].rstrip())
    start = start - len(mark) if mark else match.start()
    amounts, end = [_read_amount(match)], match.end()
    times = _TIMES.match(text, end)
    if times and not _is_unit_instead(times, currency, expected, text):
        word = (times["short"] or times["word"]).strip().casefold().rstrip("s")
        factor = Decimal(10) ** _MANY[word] if word in _MANY else Decimal(12 if word == "dozen" else word)
        amounts, end = [each * factor for each in amounts], times.end()
    if currency is None:
        found, end = _unit_after(text, end, expected)
        currency = found
    elif (after := _unit_after(text, end, expected))[0] is not None and after[0].name == currency.name:  # $5 USD
        end = after[1]
    if end < len(text) and (text[end].isalnum() or text[end] == "_") and currency is None:
        return None
    per, end = (
        _rate_after(text, end) if currency is not None and currency.name not in ("time", "months") else (None, end)
    )
    if times is None and currency is not None and _is_in_thousands(match, currency):
        amounts = [amounts[0] * 1000, *(amounts if per else [])]  # "€1.234 per litre" may be either
    means = frozenset(each.normalize() for each in amounts)
    value = Value("number", means, per=per, start=start, end=end)
    if currency is None:
        return value
    return replace(value, unit=currency.name, scale=currency.scale, offset=currency.offset, is_exact=currency.is_exact)


def _read_amount(match: re.Match[str]) -> Decimal:
    """Return the amount of a number, with a dot as the decimal point unless commas or other dots say otherwise."""
    text, form = match[0], match.lastgroup
    if form == "mixed":
        whole, top, bottom = map(int, re.split(r"[ /-]", text))
        return Decimal(whole) + Decimal(top) / Decimal(bottom) if bottom else Decimal(whole)
    if form == "european":
        return Decimal(text.replace(".", "").replace(",", "."))
    if form == "comma":
        return Decimal(text.replace(",", "."))
    return Decimal(re.sub(r"[,' ](?=\d{3}|\d{2},)", "", text).replace(",", "" if form != "spaced" else "."))


def _is_in_thousands(match: re.Match[str], currency: Unit) -> bool:
    """Return True if "1.234" is 1234, since the currency is of a country that writes it so."""
    is_currency = re.fullmatch(r"[A-Z]{3}", currency.name) is not None and currency.scale == 1
    return is_currency and currency.name not in _WITH_POINT and _THOUSANDS.fullmatch(match[0]) is not None


@lru_cache(maxsize=1)
def _marks() -> re.Pattern[str]:
    return re.compile(rf"(?<![\w$])(?P<mark>{'|'.join(map(re.escape, currency_marks()))})\s?-?$", re.I)


def _mark_before(text: str, start: int) -> str:
    """Return the symbol or code of a currency before an amount, or nothing."""
    before = text[max(0, start - 8) : start]
    if not before or not (before[-1] in " -.$£€¥₹₩₽₺₴฿₪₱₫" or before[-1].isalpha()):
        return ""
    match = _marks().search(before)
    return match["mark"] if match else ""


def _is_unit_instead(times: re.Match[str], currency: Unit | None, expected: Expected, text: str) -> bool:
    """Return True if "m" is metres, "mm" millimetres, "b" or "t" nothing, since there is no currency."""
    short = (times["short"] or "").strip()
    if not short or currency is not None:
        return False
    following = _unit_after(text, times.end(), expected)[0]
    if following is not None and short.casefold() != "t":
        return False
    return short in ("mm", "t", "T", "b", "B") or (short == "m" and expected.has_lengths)


def _unit_after(text: str, start: int, expected: Expected) -> tuple[Unit | None, int]:
    """Return the unit at an offset and its end, the longest of up to three words."""
    ends, at = list[int](), start
    while len(ends) < _LONGEST_UNIT and (match := _NEXT.match(text, at)):
        ends.append(match.end())
        at = match.end()
    if not ends:
        return None, start
    first = start + (text[start] in " -")
    for end in reversed(ends):
        words = text[first:end]
        unit = Unit("[mass]", *_pound()) if is_pound(words) and expected.has_weights else _checked(words, expected)
        if unit is not None and (words[-1] in '%°¢$£€¥₹₩"' or end >= len(text) or not text[end].isalnum()):
            return unit, end - (words[-1] == "." and len(words) > 1 and find_unit(words[:-1]) is not None)
        stripped = words.rstrip(".")
        if stripped != words and (unit := _checked(stripped, expected)) is not None:
            return unit, first + len(stripped)
    return None, start


def _checked(words: str, expected: Expected) -> Unit | None:
    """Return a unit, unless the words are one in another case or context only."""
    if words in ("C", "F") and not expected.has_temperatures:
        return None
    if words in ("in", "In", "a", "A", "at", "m", "M", "bar", "K", "N", "mil", "second", "Second", "quarter", "points"):
        return find_unit("metre") if words == "m" and expected.has_lengths else None
    if words.isupper() and len(words) == 1 and words not in ("C", "F"):
        return None
    if len(words) == 3 and words.isalpha() and words.islower() and find_unit(words.upper()) and words not in _LOWER:
        unit = find_unit(words)
        return None if unit is not None and unit.name == words.upper() else unit
    return find_unit(words)


_LOWER = frozenset({"usd", "gbp", "eur", "jpy", "chf", "cad", "aud"})


def _pound() -> tuple[Decimal, Decimal, bool]:
    unit = find_unit("lb")
    return (unit.scale, unit.offset, unit.is_exact) if unit else (Decimal(1), Decimal(0), False)


def _rate_after(text: str, end: int) -> tuple[str | None, int]:
    """Return the unit after "per", and the end of the value."""
    match = _RATE.match(text, end)
    if match is None:
        return None, end
    if match["adverb"]:
        return _ADVERBS.get(match["adverb"].casefold().replace(".", "")), match.end()
    word = match["unit"].casefold().removesuffix("s")
    word = _RATES.get(word, word)
    plainly = match[0].lstrip().casefold().startswith(("/", "per"))
    return (word, match.end()) if plainly or word in _RATE_WORDS else (None, end)


def _find_sign(text: str, value: Value, before: str, after: str) -> tuple[Sign, bool]:
    """Return the sign of a number, and True if it is written with it."""
    own = text[value.start : value.end]
    written = re.search(r"(?:^\s*([-+])\s?|[^\w.)%-]([-+]))$", before) or re.search(r"^\D*?([-+])(?=[\d.])", own)
    if written:
        return ("-" if "-" in written[0] else "+"), True
    in_brackets = re.search(r"(?:^|[:=]|\b(?:of|was|is|were|to|by)) ?\($", before) and re.match(r"\s?\)", after)
    if in_brackets and value.unit is not None:
        return "-", True
    for match in (_BEFORE_SIGN.search(before), _AFTER_SIGN.match(after)):
        if match:
            return ("-" if match["fall"] else "+"), re.match(r"minus|negative|plus", match[0], re.I) is not None
    return "", False


def _find_bound(before: str, after: str) -> Bound:
    for match in (_BEFORE_BOUND.search(before), _AFTER_BOUND.match(after)):
        if match:
            return next(bound for n, (bound, _, _) in enumerate(_BOUNDS) if match.groupdict().get(f"b{n}"))
    return ""
