"""The answer "I don't know": the right one to a question that cannot be answered, and only to that."""

import re

UNKNOWN = "I don't know"
_UNKNOWN = re.compile(r"\W*i (?:do not|don['\u2019]?t) know\b", re.I)


def is_unknown(answer: str) -> bool:
    """Return True if an answer says that the answer is not known.

    >>> is_unknown("I do not know, sorry"), is_unknown("42; more I don't know")
    (True, False)
    """
    return _UNKNOWN.match(answer) is not None
