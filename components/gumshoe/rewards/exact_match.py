"""Whether an answer says just what the reference answer says."""

import re
import unicodedata

_YES_OR_NO = re.compile(r"(yes|no)\b", re.I)


def is_exact(answer: str | None, reference: str) -> bool:
    """Whether an answer is the reference, but for case, spaces and punctuation at its ends.

    Where the reference begins with yes or no, only that has to agree.
    """
    if answer is None:
        return False
    verdict = _YES_OR_NO.match(_plain(reference))
    if verdict:
        said = _YES_OR_NO.match(_plain(answer))
        return said is not None and said[0] == verdict[0]
    return _plain(answer) == _plain(reference)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(" .,;:!?\"'")
