"""Rule-based judge: compare values as values, names as names, and the rest word by word.

The rules are applied in order, and the first that returns a decision wins. If a rule cannot decide, a later rule may
still reject the answer, but not accept it. They are strict, so that a policy cannot
learn to exploit the judge: an answer that names several candidates, does not commit itself, or quotes a whole message
is wrong, even if it contains the correct words.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import lru_cache
from itertools import pairwise

from gumshoe.rewards.exact_match import is_exact
from gumshoe.rewards.heuristic import phrases
from gumshoe.rewards.heuristic.candidates import alternatives, candidates
from gumshoe.rewards.heuristic.exchanged_words import find_exchanged
from gumshoe.rewards.heuristic.expected import Expected, expect, expect_in_reference
from gumshoe.rewards.heuristic.judge_case import Decision, JudgeCase, quote
from gumshoe.rewards.heuristic.negation import NEGATOR, are_opposites, find_denied, is_negator
from gumshoe.rewards.heuristic.normalized_text import Item, NormalizedText, Word, is_past
from gumshoe.rewards.heuristic.quantities import is_quantity_word
from gumshoe.rewards.heuristic.roles import find_conflict
from gumshoe.rewards.heuristic.second_answers import second_answer
from gumshoe.rewards.heuristic.value_rules import change, values
from gumshoe.rewards.heuristic.values import Value, normalize
from gumshoe.rewards.heuristic.yes_or_no import yes_or_no
from gumshoe.rewards.judge import Judge, JudgedQuestion, Verdict

_MIN_COVERAGE = 0.7  # share of the reference's words that an answer must have
_MIN_OVERLAP = 0.6  # or minimum token F1
_MAX_NEW_WORDS = 24  # maximum new content words, i.e. neither in the question nor in the reference
_MAX_EXTRA_CHARACTERS = 800  # maximum characters of an answer, in addition to those of the reference
_MAX_SHORT_WORDS = 4  # maximum content words of a reference that is a value or a name, not a sentence
_MAX_REPEATED = 3  # times that an answer may say the same on average
_MAX_PARTS, _MAX_PART_WORDS = 6, 4  # of a list of items, each of which is required
_MANY_ITEMS = 12
_MAX_NEW_NUMBERS = 12  # numbers in digits that are not in the reference
_MIN_NAMES = 2  # names of a person: given name and family name
_INITIAL = re.compile(r"(?<!\w\. )(?<!\w )\b(?P<initial>[A-Z])\. (?P<family>[A-Z][a-z]+)")
_MIN_DOUBT = 0.3  # share of the reference's words at which an answer may say the same in other words


def judge_answer(question: str, reference: str, answer: str, asked: date | None = None) -> Verdict:
    """Judge an answer by the rules. The verdict names the rule that decided, or that could not decide."""
    if len(answer) > _MAX_EXTRA_CHARACTERS + len(reference):
        return Verdict(correct=False, why=f"it has {len(answer):,} characters", rule="dump")
    expected = expect(question, reference)
    case = JudgeCase(
        _normalize_cached(question, asked, expected),
        _normalize_cached(reference, asked, expect_in_reference(question, reference)),
        NormalizedText(normalize(answer), asked, expected),
        answer,
    )
    doubt: Verdict | None = None
    for rule in _RULES:
        decision = rule(case)
        if decision is None:
            continue
        correct, why = decision
        verdict = Verdict(
            correct is True, why, rule.__name__.strip("_").replace("_", " "), is_undecided=correct is None
        )
        if correct is False or (correct is True and doubt is None):
            return verdict
        doubt = doubt or verdict
        if correct is True:
            return doubt
    if doubt is None:
        raise AssertionError("the last rule always decides")
    return doubt


@lru_cache(maxsize=4096)
def _normalize_cached(text: str, asked: date | None, expected: Expected) -> NormalizedText:
    """Normalize a question or a reference. Cached for all answers to it."""
    return NormalizedText(normalize(text), asked, expected)


class HeuristicJudge:
    """Judge by rules, without a model and with reproducible results.

    `second` is the judge to ask if the rules cannot decide. Without it, such answers are wrong.
    """

    def __init__(self, second: Judge | None = None) -> None:
        self.second = second

    async def verdict(self, asked: JudgedQuestion, answer: str) -> Verdict:
        """Decide if an answer is correct.

        Raises:
            JudgeError: if the rules cannot decide, and the second judge gives no verdict.
        """
        verdict = judge_answer(asked.question, asked.answer, answer, asked.query_date)
        if self.second is None or not verdict.is_undecided:
            return verdict
        found = await self.second.verdict(asked, answer)
        return replace(found, rule="second judge")

    async def aclose(self) -> None:
        """Close the second judge, if any."""
        if self.second is not None:
            await self.second.aclose()


def _no_answer(case: JudgeCase) -> Decision:
    if not case.answer.items and not phrases.YES_OR_NO.search(case.answer.text):
        return False, "it says nothing"
    unknown = phrases.UNKNOWN.search(case.answer.text)
    if unknown and not phrases.UNKNOWN.search(case.reference.text):
        return False, f"it says that it does not know ({unknown[0]})"
    return None


def _hedge(case: JudgeCase) -> Decision:
    """Reject an answer that does not commit itself, unless the reference does not either."""
    text = case.answer.text
    first, last = case.answer.sentence(case.span[0]) if case.span else (0, len(text))
    ends = [last] if case.span else []
    if case.has_verdict:
        ends.append(len(text))
    if any(text[:end].rstrip().endswith("?") for end in ends) and "?" not in case.reference.text:
        return False, "it asks"
    for match in [*phrases.HEDGE.finditer(text), *phrases.MODAL.finditer(text, first, last)]:
        if not any(match[0].casefold() in text.text.casefold() for text in (case.reference, case.question)):
            return False, f"it does not commit itself ({match[0]})"
    return None


def _dump(case: JudgeCase) -> Decision:
    if len(phrases.QUOTED.findall(case.as_written)) > 1 + len(phrases.QUOTED.findall(case.reference.text)) or (
        phrases.CLOSED.search(case.answer.text) and not phrases.CLOSED.search(case.reference.text)
    ):
        return False, "it quotes a message"
    said = case.answer.items
    is_repeated = len(said) > _MAX_REPEATED * len({_key(each) for each in said}) and len(said) > _MANY_ITEMS
    if (is_repeated or phrases.AGAIN.search(case.answer.text)) and not phrases.AGAIN.search(case.reference.text):
        return False, "it says the same again and again"
    numbers = set(phrases.NUMBERS.findall(case.answer.text)) - set(phrases.NUMBERS.findall(case.reference.text))
    if len(numbers) > _MAX_NEW_NUMBERS:
        return False, f"it says {len(numbers)} other numbers"
    new = sum(map(case.is_new, case.answer.items))
    return (False, f"it says {new} things that were not asked") if new > _MAX_NEW_WORDS else None


def _key(item: Item) -> object:
    return item.key if isinstance(item, Word) else (item.kind, item.means)


def _flatly_denied(case: JudgeCase) -> Decision:
    """Reject the words of the reference with a denial directly before or after them, e.g. "X? No."."""
    if case.whole_reference is None:
        return None
    if NEGATOR.search(case.reference.text) and not case.has_verdict:
        return None
    text, (start, end) = case.answer.text, case.whole_reference
    is_asked = phrases.DENIED_BEFORE.match(case.question.text) or "reject" in case.question.text.casefold()
    if phrases.DENIED_NEXT.search(text[:start]) or (phrases.DENIED_BEFORE.match(text[end:]) and not is_asked):
        return False, "it says that it is not so"
    return None


def _same_text(case: JudgeCase) -> Decision:
    if not case.has_verdict and case.whole_reference and is_exact(case.answer.text, case.reference.text):
        return True, "it is the reference answer"
    return None


def _denied(case: JudgeCase) -> Decision:
    """Reject an answer that denies the reference, or says that it is no longer true."""
    if case.span is None or NEGATOR.search(case.reference.text):
        return None
    text, (first, last) = case.answer.text, case.span
    was = phrases.WAS.search(text[:first]) or phrases.NOW.match(text, last)
    if was and not case.asks_for_past and not phrases.PAST_WORDS.search(case.reference.text):
        return False, "it says that it was so"
    if phrases.WRONG.search(text, last, case.answer.sentence(last)[1]) and not phrases.WRONG.search(
        case.reference.text
    ):
        return False, "it says that it is wrong"
    denials = phrases.DENIED.finditer(text, 0, first)
    if any(case.is_in_same_sentence(*match.span()) for match in denials) or phrases.NO_LONGER.match(text, last):
        return False, "it says that it is not so"
    return None


def _negation(case: JudgeCase) -> Decision:
    """Reject an answer that denies what the reference says, or says what the reference denies."""
    words = [each for each in case.required if isinstance(each, Word)]
    denied = find_denied(case.reference, case.answer, words)
    if denied is None:
        return None
    return False, f"{quote(case.answer, denied[1])} says the opposite of {quote(case.reference, denied[0])}"


def _roles(case: JudgeCase) -> Decision:
    """Reject an answer with the names of the reference in other roles."""
    conflict = find_conflict(case.reference, case.answer)
    return (False if conflict.is_certain else None, f"other roles: {conflict.what}") if conflict else None


def _related(case: JudgeCase) -> Decision:
    """Return undecided if the answer only names somebody by the person who was asked for: "Ann Lee's deputy"."""
    asks_who = phrases.WHO.match(case.question.text) and not phrases.WHOSE.match(case.question.text)
    people = [each for each, found in case.matches if found and isinstance(each, Word) and each.is_name]
    if not asks_who or not people or phrases.POSSESSIVE.search(case.reference.text):
        return None
    text = case.answer
    ends = [each for each in case.answer.find(people[-1]) if isinstance(each, Word)]
    owned = [_find_owned(case, each.end) for each in ends]
    if all(owned):
        return None, f"it says {owned[0]} of the person"
    starts = [phrases.OF.search(text.text, 0, each.start) for each in case.answer.find(people[0])]
    nouns = [next((each for each in text.words if match and each.start == match.start(1)), None) for match in starts]
    if all(noun and case.is_new(noun) for noun in nouns):
        return None, "it says who belongs to the person"
    return None


def _find_owned(case: JudgeCase, end: int) -> str | None:
    """Return the new word after the possessive that ends at an offset, or None."""
    match = phrases.POSSESSIVE.match(case.answer.text, end)
    owned = [each for each in case.answer.words if match and each.start == match.end() and case.is_new(each)]
    return quote(case.answer, owned[0]) if owned else None


def _words(case: JudgeCase) -> Decision:
    """Require most of the reference's words, or enough overlap of both texts."""
    needed = [(each, found) for each, found in case.matches if isinstance(each, Word) and not _is_implied(case, each)]
    counted = _find_other_counted(case)
    if not needed:
        if any(isinstance(each, Value) and found for each, found in case.matches):
            return (None, counted) if counted else (True, "the values are those of the reference")
        if any(found for _, found in case.matches) and all(
            is_negator(case.answer, each) for each in case.answer.words if case.is_new(each)
        ):
            return True, "it denies the same"
        if case.has_verdict and not phrases.YES_OR_NO.search(case.answer.text):
            return None, "it says neither yes nor no"
        return False, "it is not the reference answer, which has no word to look for"
    missing = [each for each, found in needed if not found and not _is_said_otherwise(case, each)]
    there = len(needed) - len(missing)
    names = [each for each in missing if each.is_name]
    if _has_other_initial(case):
        return False, "it names somebody with another initial"
    if names and (len(needed) <= _MAX_SHORT_WORDS or _needs_names(case, needed, names)):
        return False, f"{quote(case.reference, names[0])} is missing"
    covered = there / len(needed)
    new_words = sum(not case.question.find(each) for each in case.answer.words)
    overlap = 2 * there / (len(needed) + new_words) if new_words else 0
    if covered >= _MIN_COVERAGE or (overlap >= _MIN_OVERLAP and there > 1):
        exchanged = counted or find_exchanged(case, missing) or _find_missing_part(case, missing)
        return (None, exchanged) if exchanged else (True, f"{there} of {len(needed)} words")
    why = f"only {there} of {len(needed)} words"
    return (None, why) if covered >= _MIN_DOUBT and not names else (False, why)


def _find_missing_part(case: JudgeCase, missing: list[Word]) -> str | None:
    """Return the reason if the answer has no word of an item of a short list, e.g. of "eggs" in "milk and eggs"."""
    text = case.reference.text
    cuts = [match.span() for match in phrases.ITEMS.finditer(text)]
    bounds = list(zip([0, *(end for _, end in cuts)], [*(start for start, _ in cuts), len(text)], strict=True))
    is_list = re.search(r"\band\b|[&|]", text, re.I) and all(
        len(text[start:end].split()) <= _MAX_PART_WORDS for start, end in bounds
    )
    if not is_list or len(bounds) > _MAX_PARTS:
        return None
    for start, end in bounds:
        words = [each for each, _ in case.matches if isinstance(each, Word) and start <= each.start < end]
        if words and all(each in missing for each in words):
            return f"{text[start:end]!r} is missing"
    return None


def _is_said_otherwise(case: JudgeCase, word: Word) -> bool:
    """Return True if the answer has the initial of a given name, leaves out a middle name, or has an opposite.

    The polarity of opposites has been compared: "unpaid" for "not paid".
    """
    if not word.is_name:
        return any(are_opposites(own, word) for own in case.answer.words)
    if _is_middle_name(case, word):
        return True
    names = [each for each in case.reference.words if each.is_name and each != word]
    return word.is_given and case.answer.has_initial_of(word, names)


def _is_middle_name(case: JudgeCase, word: Word) -> bool:
    """Return True if a word is a middle name of a person, whom the answer names by the first and the last name."""
    run = next((each for each in case.reference.names() if word in each), [])
    if len(run) <= _MIN_NAMES or word in (run[0], run[-1]) or not phrases.WHO.match(case.question.text):
        return False
    own = case.answer.words
    return any(one.agrees(run[0]) and other.agrees(run[-1]) for one, other in pairwise(own))


def _has_other_initial(case: JudgeCase) -> bool:
    """Return True if a name has another given name than the initial in the reference: "Ben Fastow" for "A. Fastow"."""
    for match in _INITIAL.finditer(case.reference.text):
        for run in case.answer.names():
            if run[-1].key == match["family"].casefold() and not run[0].key.startswith(match["initial"].casefold()):
                return True
    return False


def _needs_names(case: JudgeCase, needed: list[tuple[Word, list[Item]]], missing: list[Word]) -> bool:
    """Return True if names are missing and the reference is names only, or the answer has others in their place."""
    if all(each.is_name for each, _ in needed):
        return True
    return any(
        each.is_name and case.is_new(each) and not case.is_at_start(each) and each.key not in phrases.POSTS
        for each in case.answer.words
    ) and any(each.is_name for each in missing)


_RULES: tuple[Callable[[JudgeCase], Decision], ...] = (
    _hedge,
    _flatly_denied,
    _same_text,
    _no_answer,
    _dump,
    yes_or_no,
    second_answer,
    alternatives,
    change,
    values,
    _denied,
    _negation,
    _roles,
    candidates,
    _related,
    _words,
)


def _is_implied(case: JudgeCase, word: Word) -> bool:
    """Return True if a word is the unit, sign or bound of a value, a negation, or yes, which other rules compare."""
    if is_negator(case.reference, word):
        return True
    verdict = phrases.YES_OR_NO.match(case.reference.text) if case.has_verdict else None
    if verdict and word.start == verdict.start(1) and not phrases.YES_OR_NO.search(case.answer.text):
        return True  # a statement need not say yes
    if word.is_name:
        return False
    if not phrases.EARLIEST.search(case.answer.text) and any(
        word.start in (match.start(1), match.start(2)) for match in phrases.LATEST.finditer(case.reference.text)
    ):
        return True
    if any(
        phrases.THROUGH.fullmatch(case.reference.text, one.end, other.start) and one.end < word.start < other.start
        for one, other in pairwise(case.reference.values)
    ):
        return True
    numbers = any(each.kind == "number" for each in case.reference.values)
    return (numbers and is_quantity_word(word.key)) or any(word == each for _, each in _find_counted(case.reference))


def _find_counted(text: NormalizedText) -> list[tuple[Value, Word]]:
    """Return the numbers of a text, each with the word directly after it, which is what they count."""
    return [
        (one, other)
        for one, other in pairwise(text.items)
        if isinstance(one, Value)
        and one.kind == "number"
        and isinstance(other, Word)
        and one.end < other.start
        and not text.text[one.end : other.start].strip()
    ]


def _find_other_counted(case: JudgeCase) -> str | None:
    """Return the reason if the answer counts something else: "12 tables" for "12 chairs". A number alone is no reason.

    What is counted is known if the question asks how many.
    """
    if phrases.HOW_MANY.search(case.question.text):
        return None
    wanted, said = _find_counted(case.reference), _find_counted(case.answer)
    other = [
        (count, each)
        for count, each in said
        if not is_past(each.key) and not any(count.agrees(number) and each.agrees(word) for number, word in wanted)
    ]  # without verbs: "500 arrived"
    for number, word in wanted:
        own = [each for count, each in other if count.agrees(number)]
        if word not in case.required or word.is_name:
            continue
        others = [each for each in own if case.is_new(each)] if not case.answer.find(word) else []
        others += [each for each in own if any(each.agrees(noun) for _, noun in wanted)]
        if others:
            return f"it says {quote(case.answer, others[0])} instead of {quote(case.reference, word)}"
    return None
