"""Rule-based judge: compare values as values, names as names, and the rest word by word.

The rules are applied in order, and the first that returns a decision wins. They are strict, so that a policy cannot
learn to exploit the judge: an answer that names several candidates, does not commit itself, or quotes a whole message
is wrong, even if it contains the correct words.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import cached_property, lru_cache
from itertools import pairwise

from gumshoe.rewards.exact_match import is_exact
from gumshoe.rewards.heuristic import phrases
from gumshoe.rewards.heuristic.normalized_text import Item, NormalizedText, Word
from gumshoe.rewards.heuristic.values import Value, normalize
from gumshoe.rewards.judge import JudgedQuestion, Verdict

_MIN_COVERAGE = 0.7  # share of the reference's words that an answer must have
_MIN_OVERLAP = 0.6  # or minimum token F1
_MIN_VALUES = 0.75  # share of the reference's values that an answer must have, if there are more than three
_MAX_NEW_WORDS = 24  # maximum new content words, i.e. neither in the question nor in the reference
_MAX_EXTRA_CHARACTERS = 800  # maximum characters of an answer, in addition to those of the reference
_MAX_RIVALS = 1  # other values that are accepted as context
_MIN_NEW_WORDS = 2  # minimum new content words of a sentence about something else
_MIN_LIST = 2  # number of new short parts, or new names in a row, that make a list
_MAX_PART_WORDS = 4  # maximum words of a short part
_MIN_REPEATED = 0.5  # share of the question's words in an answer that repeats it
_MAX_SHORT_WORDS = 4  # maximum content words of a reference that is a value or a name, not a sentence
_MAX_REQUIRED = 6  # maximum required items; with more, every correct answer is a list


@dataclass(frozen=True)
class JudgeCase:
    """One answer to judge."""

    question: NormalizedText
    reference: NormalizedText
    answer: NormalizedText
    as_written: str

    @cached_property
    def required(self) -> list[Item]:
        """Items that the answer must have: those of the reference that are not in the question, or else all of them.

        For questions that ask who, only the first names of the reference.
        """
        missing = [each for each in self.reference.items if not self.question.find(each)] or self.reference.items
        if not phrases.WHO.match(self.question.text):
            return missing
        new = [each for each in missing if isinstance(each, Word)]
        first = next((each for each in new if each.is_name), None)
        names = first and self.reference.names_from(first)
        return [each for each in missing if each in names] if names else missing

    @cached_property
    def matches(self) -> list[tuple[Item, list[Item]]]:
        """Required items, each with its matches in the answer."""
        return [(each, self.answer.find(each)) for each in self.required]

    @cached_property
    def span(self) -> tuple[int, int] | None:
        """Start and end of the required items in the answer; None if it has none of them."""
        places = [found[0] for _, found in self.matches if found]
        return (min(each.start for each in places), max(each.end for each in places)) if places else None

    def is_in_same_sentence(self, start: int, end: int) -> bool:
        """Return True if a part of the answer is in one sentence with the required items, with nothing new between."""
        if self.span is None or not any(first <= start < last for first, last in [self.answer.sentence(self.span[0])]):
            return False
        first, last = (end, self.span[0]) if end <= self.span[0] else (self.span[1], start)
        return not any(first <= each.start < last and self.is_new(each) for each in self.answer.items)

    def is_new(self, item: Item) -> bool:
        """Return True if an item is neither in the question nor in the reference."""
        return not self.question.find(item) and not self.reference.find(item)


def judge_answer(question: str, reference: str, answer: str, asked: date | None = None) -> Verdict:
    """Judge an answer by the rules. The verdict names the rule that decided."""
    if len(answer) > _MAX_EXTRA_CHARACTERS + len(reference):
        return Verdict(correct=False, why=f"it has {len(answer):,} characters", rule="dump")
    case = JudgeCase(
        _normalize_cached(question, asked),
        _normalize_cached(reference, asked),
        NormalizedText(normalize(answer), asked),
        answer,
    )
    for rule in _RULES:
        verdict = rule(case)
        if verdict is not None:
            return Verdict(*verdict, rule=rule.__name__.strip("_").replace("_", " "))
    raise AssertionError("the last rule always decides")


@lru_cache(maxsize=4096)
def _normalize_cached(text: str, asked: date | None) -> NormalizedText:
    """Normalize a question or a reference. Cached for all answers to it."""
    return NormalizedText(normalize(text), asked)


class HeuristicJudge:
    """Judge by rules, without a model and with reproducible results."""

    async def verdict(self, asked: JudgedQuestion, answer: str) -> Verdict:
        """Decide if an answer is correct."""
        return judge_answer(asked.question, asked.answer, answer, asked.query_date)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""


_Decision = tuple[bool, str] | None
"""True if the answer is correct, and the reason; None if the rule does not apply."""


def _no_answer(case: JudgeCase) -> _Decision:
    if not case.answer.items and not phrases.YES_OR_NO.search(case.answer.text):
        return False, "it says nothing"
    unknown = phrases.UNKNOWN.search(case.answer.text)
    if unknown and not phrases.UNKNOWN.search(case.reference.text):
        return False, f"it says that it does not know ({unknown[0]})"
    return None


def _hedge(case: JudgeCase) -> _Decision:
    """Reject an answer that does not commit itself, unless the reference does not either."""
    text = case.answer.text
    first, last = case.answer.sentence(case.span[0]) if case.span else (0, len(text))
    for match in [*phrases.HEDGE.finditer(text), *phrases.MODAL.finditer(text, first, last)]:
        if not any(match[0].casefold() in text.text.casefold() for text in (case.reference, case.question)):
            return False, f"it does not commit itself ({match[0]})"
    return None


def _dump(case: JudgeCase) -> _Decision:
    if len(phrases.QUOTED.findall(case.as_written)) > 1 + len(phrases.QUOTED.findall(case.reference.text)) or (
        phrases.CLOSED.search(case.answer.text) and not phrases.CLOSED.search(case.reference.text)
    ):
        return False, "it quotes a message"
    if phrases.AGAIN.search(case.answer.text) and not phrases.AGAIN.search(case.reference.text):
        return False, "it says one word again and again"
    new = sum(map(case.is_new, case.answer.items))
    return (False, f"it says {new} things that were not asked") if new > _MAX_NEW_WORDS else None


def _same_text(case: JudgeCase) -> _Decision:
    if not phrases.YES_OR_NO.search(case.reference.text) and is_exact(case.answer.text, case.reference.text):
        return True, "it is the reference answer"
    return None


def _yes_or_no(case: JudgeCase) -> _Decision:
    """Compare yes or no only, if the reference begins with one of them."""
    wanted, own = _polarity(case.reference.text), _polarity(case.answer.text)
    if not phrases.YES_OR_NO.match(case.reference.text) or wanted is None:
        return None
    beside = not any(case.question.find(each) or case.reference.find(each) for each in case.answer.words)
    if own is None and _repeats_question(case):
        own = True
    if own is None or (beside and len(case.answer.words) > _MAX_SHORT_WORDS):
        return False, "it says neither yes nor no to what was asked"
    other = _find_other_value(case)
    if own == wanted and other:
        return False, other
    return own == wanted, f"it says {'yes' if own else 'no'}"


def _change(case: JudgeCase) -> _Decision:
    """Compare a change from one value to another: both are required, in the right order."""
    parts = phrases.CHANGE.fullmatch(case.reference.text.rstrip(". "))
    if parts is None:
        return None
    halves = [
        JudgeCase(case.question, NormalizedText(part, case.reference.asked), case.answer, "") for part in parts.groups()
    ]
    for half in halves:
        missing = [each for each, found in half.matches if not found]
        if missing:
            return False, f"{_quote(half.reference, missing[0])} is missing"
    old, new = (_shortest_span(half) for half in halves)
    first, then = sorted((old, new))
    between, after = (
        phrases.BEFORE.sub("", case.answer.text[first[1] : then[0]]),
        case.answer.text[then[1] : then[1] + 30],
    )
    turned = bool(phrases.TURNED.search(between)) or (first == new and bool(phrases.TURNED.match(after.lstrip(" ,(-"))))
    return ((first == new) == turned), "both, " + ("in order" if (first == new) == turned else "the wrong way round")


def _values(case: JudgeCase) -> _Decision:
    """Require all values of the reference (most of them if there are many), and reject others in their place."""
    other = _find_other_value(case)
    if other:
        return False, other
    for each, found in case.matches:
        for place in found if isinstance(each, Value) else []:
            text = case.answer.text
            if phrases.BOUND.search(text[: place.start]) and not phrases.BOUNDED.search(case.reference.text):
                return False, f"it only bounds {_quote(case.reference, each)}"
            if phrases.RANGE.match(text, place.end) and not phrases.BOUNDED.search(case.reference.text):
                return False, f"it gives a range from {_quote(case.reference, each)}"
    wanted = [(each, found) for each, found in case.matches if isinstance(each, Value) and each.kind != "ordinal"]
    missing = [each for each, found in wanted if not found]
    if missing and (len(wanted) <= 3 or len(missing) > (1 - _MIN_VALUES) * len(wanted)):
        return False, f"{_quote(case.reference, missing[0])} is missing"
    return None


def _find_other_value(case: JudgeCase) -> str | None:
    """Return the reason if the answer has another value in place of one of the reference, or None."""
    for other in filter(case.is_new, case.answer.values):
        own = [each for each in case.reference.values if (each.kind, each.unit) == (other.kind, other.unit)]
        matching = [each for each in case.answer.values if case.reference.find(each)]
        lost = [each for each in own if not case.answer.find(each)]
        if lost or sum(each.kind == other.kind for each in matching) < len(own):
            return f"{_quote(case.answer, other)} is not {_quote(case.reference, (lost or own)[0])}"
    return None


def _denied(case: JudgeCase) -> _Decision:
    """Reject an answer that denies the reference, or says that it is no longer true."""
    if case.span is None or phrases.SAYS_NOT.search(case.reference.text):
        return None
    text, (first, last) = case.answer.text, case.span
    if (phrases.WAS.search(text[:first]) or phrases.NOW.match(text, last)) and not phrases.PAST_WORDS.search(
        case.reference.text
    ):
        return False, "it says that it was so"
    if phrases.WRONG.search(text, last, case.answer.sentence(last)[1]) and not phrases.WRONG.search(
        case.reference.text
    ):
        return False, "it says that it is wrong"
    denials = phrases.DENIED.finditer(text, 0, first)
    if any(case.is_in_same_sentence(*match.span()) for match in denials) or phrases.NO_LONGER.match(text, last):
        return False, "it says that it is not so"
    return None


def _alternatives(case: JudgeCase) -> _Decision:
    """Reject an answer that offers alternatives."""
    for match in [] if phrases.OR.search(case.reference.text) else phrases.OR.finditer(case.answer.text):
        inside = any(each.start <= match.start() < each.end for each in case.answer.values)
        if not inside and case.is_in_same_sentence(*match.span()) and _separates_choices(case, match):
            return False, "it says what else it may be"
    return _find_other_choice(case)


def _separates_choices(case: JudgeCase, match: re.Match[str]) -> bool:
    """Return True if "or" or a slash separates the correct item from another. A slash may be part of a unit or name."""
    if match[0] != "/" or case.answer.text[match.start() - 1 : match.end() + 1] == " / ":
        return True
    return any(abs(match.end() - start) <= 1 or abs(match.start() - end) <= 1 for start, end in _find_rivals(case))


def _find_other_choice(case: JudgeCase) -> _Decision:
    """Reject an answer that also names the other choice of a question that offers two."""
    for match in phrases.OR.finditer(case.question.text):
        before = [each for each in case.question.items if each.end <= match.start()][-1:]
        after = [each for each in case.question.items if each.start >= match.end()][:1]
        for choice in (*before, *after):
            others = [] if case.reference.find(choice) else case.answer.find(choice)
            if case.span and any(not phrases.INSTEAD.search(case.answer.text[: each.start]) for each in others):
                return False, f"it says {_quote(case.question, choice)} as well"
    return None


def _candidates(case: JudgeCase) -> _Decision:
    """Reject other values of the same kind, or other names, in a list or the same sentence as the correct one."""
    if case.span is None or len(case.required) > _MAX_REQUIRED:
        return None
    listed = _find_list(case)
    if listed:
        return False, listed
    rivals = list(_find_rivals(case))
    for start, end in rivals:
        sentence = case.answer.sentence(start)
        new = [each for each in case.answer.words if sentence[0] <= each.start < sentence[1] and case.is_new(each)]
        others = [each for each in new if not start <= each.start < end]
        if phrases.PAST.search(case.answer.text[sentence[0] : start]):
            continue
        if _is_listed(case, start, end) or len(others) < _MIN_NEW_WORDS:
            return False, f"it names {case.answer.text[start:end]} as well"
    return (False, f"it names {len(rivals)} others as well") if len(rivals) > _MAX_RIVALS else None


def _words(case: JudgeCase) -> _Decision:
    """Require most of the reference's words, or enough overlap of both texts."""
    needed = [(each, found) for each, found in case.matches if isinstance(each, Word) and not _is_unit(case, each)]
    if not needed:
        if not any(isinstance(each, Value) and found for each, found in case.matches):
            return False, "it is not the reference answer, which has no word to look for"
        return True, "the values are those of the reference"
    there = sum(bool(found) for _, found in needed)
    names = [each for each, found in needed if each.is_name and not found]
    if names and len(needed) <= _MAX_SHORT_WORDS:
        return False, f"{_quote(case.reference, names[0])} is missing"
    covered = there / len(needed)
    new_words = sum(not case.question.find(each) for each in case.answer.words)
    overlap = 2 * there / (len(needed) + new_words) if new_words else 0
    if covered >= _MIN_COVERAGE or overlap >= _MIN_OVERLAP:
        return True, f"{there} of {len(needed)} words"
    return False, f"only {there} of {len(needed)} words"


_RULES: tuple[Callable[[JudgeCase], _Decision], ...] = (
    _no_answer,
    _same_text,
    _hedge,
    _dump,
    _yes_or_no,
    _alternatives,
    _change,
    _values,
    _denied,
    _candidates,
    _words,
)


def _find_rivals(case: JudgeCase) -> Iterator[tuple[int, int]]:
    """Yield start and end of other values of a required kind, or of other names, in the answer."""
    wanted = [each for each in case.required if isinstance(each, Value) and each.kind != "ordinal"]
    for value in case.answer.values:
        if case.is_new(value) and any(map(value.has_kind_of, wanted)):
            yield value.start, value.end
    if all(isinstance(each, Word) and each.is_name for each in case.required):
        for name in case.answer.names():
            if all(map(case.is_new, name)) and not all(word.key in phrases.POSTS for word in name):
                yield name[0].start, name[-1].end


def _find_list(case: JudgeCase) -> str | None:
    """Return the reason if an answer is mostly a list of new short parts or new names, or None."""
    news = 0
    for first, last in _split_parts(case):
        new = any(case.is_new(each) for each in case.answer.items if first <= each.start < last)
        news += new and len(case.answer.text[first:last].split()) <= _MAX_PART_WORDS
    if news > _MIN_LIST:
        return f"it lists {news} other things"
    for name in case.answer.names():
        others = [word for word in name if case.is_new(word) and word.key not in phrases.POSTS]
        if _MIN_LIST <= len(others) < len(name) and case.span and name[0].start <= case.span[0] < name[-1].end:
            return f"it names {case.answer.text[others[0].start : others[-1].end]} as well"
    return None


def _split_parts(case: JudgeCase) -> Iterator[tuple[int, int]]:
    """Yield the parts of the sentence with the required items, split as a list, and the other sentences."""
    for first, last in case.answer.sentences:
        if case.span and first <= case.span[0] < last:
            cuts = [match.span() for match in phrases.LISTS.finditer(case.answer.text, first, last)]
            outside = [
                cut for cut in cuts if not any(each.start < cut[1] and cut[0] < each.end for each in case.answer.values)
            ]
            yield from pairwise([first, *(cut[1] for cut in outside), last])
        else:
            yield first, last


def _repeats_question(case: JudgeCase) -> bool:
    """Return True if the answer repeats the question as a statement."""
    asked = [each for each in case.question.words if each.key not in ("yes", "no")]
    repeated = sum(bool(case.answer.find(each)) for each in asked)
    return bool(asked) and repeated > _MIN_REPEATED * len(asked)


def _is_listed(case: JudgeCase, start: int, end: int) -> bool:
    """Return True if a rival is in a list with the correct item: only a comma, "and" or "or" is between them."""
    first, last = case.span or (start, end)
    if case.answer.sentence(first) != case.answer.sentence(start):
        return False
    between = case.answer.text[last:start] if start >= last else case.answer.text[end:first]
    return len(phrases.JOINING.sub("", between).split()) <= 1 or bool(phrases.OR.search(between))


def _polarity(text: str) -> bool | None:
    """Return True if a text says yes, False if it says no, and None if it says neither or both."""
    if phrases.BOTH.search(text):
        return None
    plainly = {not match[1].casefold().startswith("n") for match in phrases.YES_OR_NO.finditer(text)}
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


def _shortest_span(half: JudgeCase) -> tuple[int, int]:
    """Return start and end of the shortest part of the answer with the words of one half."""
    places = [found for _, found in half.matches]
    anchor = max(places, key=lambda found: -len(found))[0]
    near = [min(found, key=lambda each: abs(each.start - anchor.start)) for found in places]
    return min(each.start for each in near), max(each.end for each in near)


def _is_unit(case: JudgeCase, word: Word) -> bool:
    """Return True if a word is the unit of a number."""
    return not word.is_name and any(
        each.kind == "number" and case.reference.text[each.end : word.start].strip() == "" and each.end < word.start
        for each in case.reference.values
    )


def _quote(text: NormalizedText, item: Item) -> str:
    return repr(text.text[item.start : item.end])
