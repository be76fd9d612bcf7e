"""Read from a question which values its answer should have: codes, the direction of a change, a bound, a share."""

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from gumshoe.rewards.heuristic.value import Bound, Sign

_CODE = re.compile(
    r"\b(?:codes?|pins?|zip|post ?code|pass ?(?:word|code)|password|combination|id|ids|identifier|serial|sku|isbn|"
    r"versions?|release|build|firmware|revision|extension|user ?names?|log-?in|"
    r"(?:account|invoice|order|case|ticket|po|purchase order|reference|ref|serial|flight|policy|contract|job|booking|"
    r"confirmation|tracking|part|model|room|gate|licen[cs]e|docket|deal|file|routing|batch|bus|train|section|clause|"
    r"chapter|item|form|badge|locker|track|platform|suite|lot) "
    r"(?:number|numbers|no\b\.?|nr|#|id|code)|"
    r"(?:which|what) (?:flight|room|gate|bus|train|section|clause|suite|floor|platform|model|edition|account))\b",
    re.I,
)
_FALL = re.compile(
    r"\b(?:loss|losses|lose|lost|decreas\w+|declin\w+|drop\w*|f[ae]ll\w*|reduc\w+|shr[aiu]nk\w*|cut|lower\w*|"
    r"sav(?:e|ed|ings?)|discount|deficit|write-?(?:down|off)s?|below|under budget|cheaper|down|shortfall)\b",
    re.I,
)
_CHANGE = re.compile(r"\b(?:increas\w+|rise|rose|gr[eo]w\w*|gain\w*|profit\w*|up|higher|chang\w+)\b", re.I)
_LEAST = re.compile(r"\b(?:minimum|at least|(?:the )?least|fewest|lowest|lower limit|floor for)\b", re.I)
_MOST = re.compile(r"\b(?:maximum|at most|(?:the )?most|highest|limit|cap|capped|ceiling|up to)\b", re.I)
_SHARE = re.compile(r"\b(?:share|fraction|portion|proportion|percentage|percent|part of|ratio|stake)\b", re.I)
_WEIGHT = re.compile(r"\b(?:weigh\w*|heavy|lbs?|kg|kilos?|kilograms?|ounces|payload|tonnage)\b", re.I)
_LENGTH = re.compile(r"\b(?:far|tall|high|wide|deep|distance|height|width|depth|length|thick|metres?|meters?)\b", re.I)
_WHEN = re.compile(r"\b(?:when|what (?:day|date|time)|which (?:day|date)|by when|until when|date)\b", re.I)
_WARMTH = re.compile(r"\b(?:warm|hot|cold|cool|temperatures?|degrees?|celsius|fahrenheit)\b|°", re.I)
_HOW_MANY = re.compile(
    r"\bhow (?:many|much)\s+(?:(?:more|additional|other|extra|full|whole|total)\s+)*"
    r"(?:(?:out )?of\s+(?:(?:the|these|those|my|our|his|her|its|their)\s+)?"
    r"(?:\d[\d.,]*\s+(?:(?:thousand|million|billion|trillion)\s+)?)?)?"  # the number that it is a part of
    r"(?P<counted>(?!\d)[^?.,;]{1,40})",
    re.I,
)
_PERCENTAGE = re.compile(r"\b(?:what|which)(?: (?:is|was|were|are))?(?: the| an?)? (?:percentage|per ?cent)\b", re.I)
_PHONE = re.compile(r"\b(?:(?:tele)?phone|mobile|cell|fax|dial|call|ring|reach)\b", re.I)


@dataclass(frozen=True, slots=True)
class Expected:
    """The values that a question asks for."""

    has_codes: bool = False
    """Numbers are codes or versions, in which zeros and dots count."""
    sign: Sign = ""
    """Sign of numbers without one: "-" if the question is about a loss or a decrease."""
    bound: Bound = ""
    """Bound of numbers without one: ">=" if the question asks for a minimum."""
    has_shares: bool = False
    has_weights: bool = False
    has_lengths: bool = False
    has_temperatures: bool = False
    has_dates: bool = False
    has_phones: bool = False
    counted: str = ""
    """The rest of a question after "how many", with the unit of bare numbers, e.g. "million dollars did they pay"."""
    is_reference: bool = False
    """The text is the reference, whose numbers have the unit of the question. An answer may have another one."""


@lru_cache(maxsize=4096)
def expect(question: str, reference: str) -> Expected:
    """Return the values that a question with this reference answer leads to expect."""
    both = f"{question} {reference}"
    least, most = _LEAST.search(question), _MOST.search(question)
    return Expected(
        has_codes=_CODE.search(question) is not None,
        sign="-" if _FALL.search(question) and not _CHANGE.search(question) else "",
        bound=">=" if least and not most else "<=" if most and not least else "",
        has_shares=_SHARE.search(question) is not None,
        has_weights=_WEIGHT.search(both) is not None,
        has_lengths=_LENGTH.search(both) is not None,
        has_temperatures=_WARMTH.search(both) is not None,
        has_phones=_PHONE.search(question) is not None,
        has_dates=_WHEN.search(question) is not None,
        counted=_find_counted(question),
    )


@lru_cache(maxsize=4096)
def expect_in_reference(question: str, reference: str) -> Expected:
    """Return the values that a question leads to expect in its reference answer."""
    return replace(expect(question, reference), is_reference=True)


def _find_counted(question: str) -> str:
    """Return what a question asks the number of, with the words after it; empty if it asks for several numbers."""
    found = [match["counted"] for match in _HOW_MANY.finditer(question)]
    found += ["percent"] * len(_PERCENTAGE.findall(question))
    return found[0] if len(found) == 1 else ""
