"""A trivial agent: search with as many of the question's words as possible, and take the first hit."""

import re
from itertools import combinations

from gumshoe.mail.index import MailIndex
from gumshoe.mail.search_results import Hit
from gumshoe.scenarios.scenario import Scenario

_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a about after am an and any are as at be been between by can come comes did do does doing done during each "
        "for from get gets going had has have having how i if in into is it its like long many may me much my need of "
        "on or our out should so some still take takes that the their them then there they this to under up us was we "
        "were what when where which who whom whose why will with would you your",
    )
)
_LEFT_OUT = 4  # maximum number of dropped words


def find_first_hit(index: MailIndex, scenario: Scenario) -> Hit | None:
    """Return the best match for the question's words, dropping as few as needed to find anything.

    Lower-case words are dropped before names.
    """
    assert scenario.inbox_address
    words = [word for word in re.findall(r"[\w'-]+", scenario.question) if word.casefold() not in _COMMON]
    words.sort(key=lambda word: word[:1].islower(), reverse=True)
    for count in range(min(_LEFT_OUT + 1, len(words))):
        for left_out in combinations(range(len(words)), count):
            kept = [word for place, word in enumerate(words) if place not in left_out]
            hits = index.search(scenario.inbox_address, kept, sent_before=scenario.visible_before, limit=1)
            if hits:
                return hits[0]
    return None
