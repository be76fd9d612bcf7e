"""Compare answers to questions of yes or no."""

import re

from gumshoe.rewards.heuristic import phrases
from gumshoe.rewards.heuristic.judge_case import Decision, JudgeCase
from gumshoe.rewards.heuristic.value_rules import find_other_value

_SENTENCE = re.compile(r"\b(Yes|No)[.,:;!]\s+(?=[^\W\d])")  # begins, although nothing ends the sentence before it
_MIN_REPEATED = 0.5  # share of the question's words in an answer that repeats it
_MAX_SHORT_WORDS = 4  # maximum content words of an answer that says yes or no without any word of the question


def yes_or_no(case: JudgeCase) -> Decision:
    """Compare yes or no only, if the reference begins with one of them as a verdict."""
    wanted, own = _polarity(case.reference.text), _polarity(_without_question(case))
    if not case.has_verdict or wanted is None:
        return None
    beside = not any(case.question.find(each) or case.reference.find(each) for each in case.answer.words)
    if own is None and not phrases.YES_OR_NO.search(case.answer.text) and _affirms(case):
        own = True
    if own is None or (beside and len(case.answer.words) > _MAX_SHORT_WORDS):
        return False, "it says neither yes nor no to what was asked"
    other = find_other_value(case)
    if own == wanted and other:
        return False, other
    return own == wanted, f"it says {'yes' if own else 'no'}"


def _affirms(case: JudgeCase) -> bool:
    """Return True if the answer repeats the question as a statement, e.g. "It has been signed"."""
    if _strip(case.question.text) in _strip(case.answer.text):
        return False  # it is the question
    asked = [each for each in case.question.words if each.key not in ("yes", "no")]
    repeated = sum(bool(case.answer.find(each)) for each in asked)
    least = _MIN_REPEATED * len(asked)
    return bool(asked) and (
        repeated > least or (repeated == least and phrases.STATES.match(case.answer.text) is not None)
    )


def _polarity(text: str) -> bool | None:
    """Return True if a text says yes, False if it says no, and None if it says neither or both."""
    if phrases.BOTH.search(text):
        return None
    said = [*phrases.YES_OR_NO.finditer(text), *_SENTENCE.finditer(text)]
    plainly = {match[1].casefold() not in phrases.NO for match in said}
    indirectly = {not phrases.NEGATED.search(text[: match.start()]) for match in phrases.AGREED.finditer(text)}
    indirectly |= {bool(phrases.NEGATED.search(text[: match.start()])) for match in phrases.REFUSED.finditer(text)}
    if len(plainly) == 1 and indirectly != {True not in plainly}:
        return plainly.pop()
    if plainly:
        return None
    if not indirectly and phrases.SAYS_NOT.search(text):
        return False
    if not indirectly and phrases.IT_DID.match(text):
        return True
    return indirectly.pop() if len(indirectly) == 1 else None


def _strip(text: str) -> str:
    return text.casefold().strip(" .?!")


def _without_question(case: JudgeCase) -> str:
    """Return the answer without the question, if it repeats it."""
    asked = re.escape(_strip(case.question.text))
    return re.sub(asked, "", case.answer.text, flags=re.I) if asked else case.answer.text
