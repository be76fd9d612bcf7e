"""Compare an answer with the reference answer word for word."""

import re
import unicodedata

_YES_OR_NO = re.compile(r"(yes|no)\b", re.I)


def is_exact(answer: str | None, reference: str) -> bool:
    """Return True if an answer equals the reference, ignoring case, spaces and punctuation at its ends.

    If the reference begins with yes or no, only that is compared.
    """
    if answer is None:
        return False
    verdict = _YES_OR_NO.match(_normalize(reference))
    if verdict:
        own = _YES_OR_NO.match(_normalize(answer))
        return own is not None and own[0] == verdict[0]
    return _normalize(answer) == _normalize(reference)


def _normalize(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(" .,;:!?\"'")
