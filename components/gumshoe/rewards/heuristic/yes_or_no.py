"""Compare answers to questions of yes or no."""

import re
from collections.abc import Iterator

from gumshoe.rewards.heuristic import phrases
from gumshoe.rewards.heuristic.exchanged_words import find_exchanged
from gumshoe.rewards.heuristic.judge_case import Decision, JudgeCase, quote
from gumshoe.rewards.heuristic.negation import (
    NEGATOR,
    are_opposites,
    differ_by_place,
    find_clause,
    find_clauses,
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
    indirectly = set(_find_decisions(case, text, is_plain=bool(plainly)))
    if len(plainly) == 1 and indirectly != {True not in plainly}:
        return plainly.pop()
    if plainly:
        return None
    return indirectly.pop() if len(indirectly) == 1 else None


def _find_decisions(case: JudgeCase, text: str, *, is_plain: bool) -> Iterator[bool]:
    """Yield True for each word of approval and False for each of refusal, or the other way round if that is asked.

    A noun of the question decides nothing: "Was the permit issued?". Beside a plain yes or no, other nouns do not
    either, and verbs only if they are about the question.
    """
    is_yes = not phrases.REFUSED.search(case.question.text) or bool(phrases.AGREED.search(case.question.text))
    for match in phrases.AGREED.finditer(text):
        start, end = match.span()
        is_noun = _is_noun(text, match)
        if is_plain and (is_noun or not _is_about_question(case, text, match)):
            continue
        if is_noun and (_is_asked_noun(case, match) or _is_open(text, start, end)):
            continue
        last = find_clause(text, start, end)[1]
        yield is_yes != (_is_negated(text, start) or (is_noun and phrases.NOT.search(text, end, last) is not None))
    for match in phrases.REFUSED.finditer(text):
        if not is_plain or _is_about_question(case, text, match):
            yield is_yes == _is_negated(text, match.start())


def _is_noun(text: str, match: re.Match[str]) -> bool:
    """Return True if a match of `AGREED` is a noun by which nobody agrees: "they wait for approval"."""
    return phrases.AGREEMENT.fullmatch(match[0]) is not None and not phrases.AGREEING.search(text, 0, match.start())


def _is_asked_noun(case: JudgeCase, match: re.Match[str]) -> bool:
    return re.search(rf"\b{re.escape(match[0])}\b", case.question.text, re.I) is not None


def _is_open(text: str, start: int, end: int) -> bool:
    """Return True if the clause of a noun says that nobody has agreed yet, or that somebody refused to."""
    first, last = find_clause(text, start, end)
    return bool(phrases.OPEN.search(text, first, last) or phrases.REFUSED.search(text, first, start))


def _is_about_question(case: JudgeCase, text: str, match: re.Match[str]) -> bool:
    """Return True if a clause with a verb of approval or refusal has a word of the question, or only names beside it.

    It is also about the question if that has such a verb itself. What happened before something else, or would have to
    happen, is about something else.
    """
    if phrases.SUBORDINATE.search(text, 0, match.start()):
        return False
    question = case.question.text
    agreed = [each for each in phrases.AGREED.finditer(question) if not _is_noun(question, each)]
    if agreed or phrases.REFUSED.search(question):
        return True
    first, last = find_clause(text, *match.span())
    own = NormalizedText(text[first : match.start()] + " " + text[match.end() : last], case.answer.asked)
    is_known = bool(phrases.OBJECT.search(own.text)) or any(map(case.question.find, own.words))
    return is_known or all(each.is_name for each in own.words)


def _is_negated(text: str, place: int) -> bool:
    """Return True if a negation stands before a place, with at most three words between."""
    return phrases.NEGATED.search(text[:place]) is not None or any(
        phrases.NEAR.fullmatch(text, match.end(), place) for match in NEGATOR.finditer(text, 0, place)
    )


def _statement(case: JudgeCase, text: str) -> bool | None:
    """Return True if an answer without yes or no states what was asked, False if it denies that, None if neither."""
    agreed = any(not (_is_noun(text, each) and _is_asked_noun(case, each)) for each in phrases.AGREED.finditer(text))
    if agreed or phrases.REFUSED.search(text):
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
    if phrases.SAYS_NOT.search(text):
        return _denies_something_else(case) and any(_repeats(case, *each) for each in find_clauses(case.answer.text))
    if ends and any(map(case.answer.find, _asked(case))):  # "Bob failed to."
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


def _denies_something_else(case: JudgeCase) -> bool:
    """Return True if each negation of the answer denies something new: "but did not date it", not "he did not"."""
    text = case.answer
    denials = [each for each in find_clauses(text.text) if phrases.SAYS_NOT.search(text.text, *each)]
    return all(
        any(
            case.is_new(each) and not (isinstance(each, Word) and (is_negator(text, each) or _is_no_topic(each)))
            for each in text.items
            if first <= each.start < last
        )
        for first, last in denials
    )


def _is_no_topic(word: Word) -> bool:
    is_month = word.key == "may" and word.is_name
    return word.key in phrases.NO_TOPIC and not is_month


def _repeats(case: JudgeCase, first: int, last: int) -> bool:
    """Return True if a clause of the answer states what was asked. Pronouns may stand for subject and object."""
    text, asked = case.answer.text, _asked(case)
    if phrases.WHETHER.search(text, 0, first) or text.startswith("?", last):
        return False
    own = [each for each in case.answer.words if first <= each.start < last and not is_negator(case.answer, each)]
    found = [each for each in asked if any(word.agrees(each) for word in own)]
    unreal = {match[0].casefold() for match in phrases.UNREAL.finditer(text, first, last)}
    verbs = [each for each in own if not each.is_name and case.question.find(each)]
    is_aim = any(text[: each.start].casefold().endswith("to ") for each in verbs)
    if not found or phrases.SAYS_NOT.search(text, first, last) or unreal - set(case.question.text.casefold().split()):
        return False
    subject = _subject(case) or asked[:1]
    is_pronoun = phrases.PRONOUN.match(text, first) is not None
    missing = [each for each in asked if each not in found and not (is_pronoun and each in subject)]
    return not is_aim and len(missing) <= len(phrases.OBJECT.findall(text, own[0].end, last))


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
