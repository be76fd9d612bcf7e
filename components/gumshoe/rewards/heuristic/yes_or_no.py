"""Compare answers to questions of yes or no."""

import re

from gumshoe.rewards.heuristic import phrases
from gumshoe.rewards.heuristic.exchanged_words import find_exchanged
from gumshoe.rewards.heuristic.judge_case import Decision, JudgeCase, quote
from gumshoe.rewards.heuristic.negation import (
    NEGATOR,
    are_opposites,
    differ_by_place,
    is_denied,
    is_negating_verb,
    is_negator,
    stem_of_negation,
)
from gumshoe.rewards.heuristic.normalized_text import NormalizedText, Word, stem_of
from gumshoe.rewards.heuristic.value_rules import find_other_value

_SENTENCE = re.compile(r"\b(Yes|No)[.,:;!]\s+(?=[^\W\d])")  # begins, although nothing ends the sentence before it
_MIN_REPEATED = 0.5  # share of the question's words in an answer that repeats it
_MAX_SHORT_WORDS = 4  # maximum content words of an answer that says yes or no without any word of the question


def yes_or_no(case: JudgeCase) -> Decision:
    """Compare yes or no only, if the reference begins with one of them as a verdict."""
    text = _without_question(case)
    wanted, own = _polarity(case, case.reference.text), _polarity(case, text)
    if not case.has_verdict or wanted is None:
        return None
    beside = not any(case.question.find(each) or case.reference.find(each) for each in case.answer.words)
    if not phrases.YES_OR_NO.search(case.answer.text):
        if own is None:
            own = _statement(case, text)
        other = _find_other_topic(case) if own else None
        if other:
            return None, other
    if own is None or (beside and len(case.answer.words) > _MAX_SHORT_WORDS):
        return False, "it says neither yes nor no to what was asked"
    other = find_other_value(case)
    if own == wanted and other:
        return False, other
    return own == wanted, f"it says {'yes' if own else 'no'}"


def _polarity(case: JudgeCase, text: str) -> bool | None:
    """Return True if a text says yes or approves, False if it says no or refuses, and None if it says neither or both.

    If the question asks about a refusal, the refusal says yes.
    """
    if phrases.BOTH.search(text):
        return None
    said = [*phrases.YES_OR_NO.finditer(text), *_SENTENCE.finditer(text)]
    plainly = {match[1].casefold() not in phrases.NO for match in said}
    is_yes = not phrases.REFUSED.search(case.question.text) or bool(phrases.AGREED.search(case.question.text))
    indirectly = {is_yes != _is_negated(text, match.start()) for match in phrases.AGREED.finditer(text)}
    indirectly |= {is_yes == _is_negated(text, match.start()) for match in phrases.REFUSED.finditer(text)}
    if len(plainly) == 1 and indirectly != {True not in plainly}:
        return plainly.pop()
    if plainly:
        return None
    return indirectly.pop() if len(indirectly) == 1 else None


def _is_negated(text: str, place: int) -> bool:
    """Return True if a negation stands before a place, with at most three words between."""
    return phrases.NEGATED.search(text[:place]) is not None or any(
        phrases.NEAR.fullmatch(text, match.end(), place) for match in NEGATOR.finditer(text, 0, place)
    )


def _statement(case: JudgeCase, text: str) -> bool | None:
    """Return True if an answer without yes or no states what was asked, False if it denies that, None if neither."""
    if phrases.AGREED.search(text) or phrases.REFUSED.search(text):
        return None
    polarities = set(_compare_polarities(case))
    if polarities:
        return polarities.pop() if len(polarities) == 1 else None
    stems = {stem_of(each.key) for each in case.question.words}
    ends = [
        match
        for match in NEGATOR.finditer(text)
        if not text[match.end() :].strip(" .!") and stem_of_negation(match) not in stems  # not for "Has it stopped?"
    ]
    if phrases.SAYS_NOT.search(text) or (ends and any(map(case.answer.find, _asked(case)))):  # "Bob failed to."
        return False
    return True if phrases.IT_DID.match(text) or _affirms(case) else None


def _compare_polarities(case: JudgeCase) -> list[bool]:
    """Return True for each word of the question that question and answer both deny, False if only one of them does.

    An opposite denies a word: "closed" for "open". A word that neither of them denies says nothing yet. Neither does a
    negation that both have in other places or forms: "VAT was excluded" for "Did they exclude VAT?". "Didn't she sign?"
    asks the same as "Did she sign?".
    """
    found = []
    for word in _asked(case):
        same = case.answer.find(word)
        own = [each for each in case.answer.words if each in same or (not same and are_opposites(each, word))]
        for each in own:
            is_contrary = is_denied(case.answer, each) != (each not in same)
            is_asked = is_denied(case.question, word) and not phrases.NOT.search(case.question.text)
            if is_contrary != is_asked and each in same and differ_by_place(case.question, word, case.answer, each):
                continue
            if is_contrary or is_asked or each not in same:
                found.append(is_contrary == is_asked)
    return found


def _asked(case: JudgeCase) -> list[Word]:
    """Return the content words of the question. A verb such as "excluded" is one of them if it denies no other."""
    text = case.question
    return [
        each
        for each in text.words
        if each.key not in ("yes", "no")
        and (not is_negator(text, each) or (is_negating_verb(text, each) and not text.text[each.end :].strip(" .?!")))
    ]


def _affirms(case: JudgeCase) -> bool:
    """Return True if the answer repeats the question as a statement, e.g. "It has been signed"."""
    if _strip(case.question.text) in _strip(case.answer.text):
        return False  # it is the question
    asked = _asked(case)
    repeated = sum(bool(case.answer.find(each)) for each in asked)
    least = _MIN_REPEATED * len(asked)
    return bool(asked) and (
        repeated > least or (repeated == least and phrases.STATES.match(case.answer.text) is not None)
    )


def _find_other_topic(case: JudgeCase) -> str | None:
    """Return the reason if a statement has another value, name or word in the place of one of the question, or None."""
    asked = JudgeCase(case.reference, case.question, case.answer, case.as_written)
    value = find_other_value(asked)
    if value:
        return value
    missing, subject = _missing(case), _subject(case)
    if phrases.PRONOUN.match(case.answer.text):
        missing = [each for each in missing if each not in subject]
    if phrases.AGREED.search(case.answer.text):  # it need not repeat the question, but who approves counts
        missing = [each for each in missing if each in subject]
    roles = {"" if each in subject else _word_before(case.question, each): each for each in missing if each.is_name}
    for name in case.answer.words:
        role = _word_before(case.answer, name)
        wanted = roles.get("" if role == "by" else role)
        is_addressed = case.answer.text.startswith(",", name.end)
        if wanted and name.is_name and case.is_new(name) and not is_addressed:
            return f"it says {quote(case.answer, name)}, not {quote(case.question, wanted)}"
    return find_exchanged(asked, missing)


def _word_before(text: NormalizedText, word: Word) -> str:
    """Return the word before another, without an article; empty if the text begins with it, as with its subject."""
    match = phrases.WORD_BEFORE.search(text.text, 0, word.start)
    return match[1].casefold() if match else ""


def _missing(case: JudgeCase) -> list[Word]:
    """Return the words of the question that the answer does not have. One word of a name is enough."""
    named = [each for run in case.question.names() if any(map(case.answer.find, run)) for each in run]
    return [each for each in _asked(case) if not case.answer.find(each) and each not in named]


def _subject(case: JudgeCase) -> list[Word]:
    """Return the name that follows the auxiliary verb of the question."""
    found, end = list[Word](), case.question.text.find(" ")
    for word in case.question.words:
        if word.is_name and word.start >= end and not case.question.text[end : word.start].strip():
            found.append(word)
            end = word.end
    return found


def _strip(text: str) -> str:
    return text.casefold().strip(" .?!")


def _without_question(case: JudgeCase) -> str:
    """Return the answer without the question, if it repeats it."""
    asked = re.escape(_strip(case.question.text))
    return re.sub(asked, "", case.answer.text, flags=re.I) if asked else case.answer.text
