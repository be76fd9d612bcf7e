"""Compare an answer with the reference answer word for word."""

import re
import unicodedata

_YES_OR_NO = re.compile(r"(yes|no)\b", re.I)
_VERDICT = re.compile(
    r"(?:yes|yeah|yep|nope)\b|no\b(?:\W*$|\s*[,;:!?()\u2013\u2014]|\s+-|\.(?!\s*\d)|\s+(?:i|we|you|he|she|it|they|"
    r"this|that|these|those|there|the|an?|my|our|your|his|her|its|their|not|never|because|since|as|but|although|though|"
    r"unless|and|sorry|thanks|thank|actually|unfortunately)\b)",
    re.I,
)


def is_exact(answer: str | None, reference: str) -> bool:
    """Return True if an answer equals the reference, ignoring case, spaces and punctuation at its ends.

    If the reference begins with the verdict yes or no, only the verdict that the answer begins with is compared.
    """
    if answer is None:
        return False
    own, wanted = _normalize(answer), _normalize(reference)
    verdict = _find_verdict(wanted)
    return own == wanted if verdict is None else _find_verdict(own) == verdict


def begins_with_verdict(text: str) -> bool:
    """Return True if a text begins with a verdict: "No, Bob refused it", but not "No later than 15 May"."""
    return _VERDICT.match(text) is not None


def _find_verdict(text: str) -> str | None:
    """Return the yes or no that a text begins with as a verdict, or None."""
    found = _YES_OR_NO.match(text)
    return found[0] if found and begins_with_verdict(text) else None


def _normalize(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(" .,;:!?\"'")
