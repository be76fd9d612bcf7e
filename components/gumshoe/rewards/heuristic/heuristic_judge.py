"""The judge that needs no model: values are compared as values, names as names, and the rest word by word.

The rules are asked in order, and the first that has something to say decides. They are strict where a policy could
learn to please a judge rather than answer: whoever names several candidates, does not commit, or quotes a whole message
is wrong, even where the right words are among them.
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

_COVERED = 0.7  # of a reference's words, so that an answer says what it says
_OVERLAP = 0.6  # token F1 that is enough as well
_ALL_VALUES = 0.75  # of a reference's values, where there are more than three
_MOST = 24  # content words that an answer may have beyond those of question and reference
_LONGEST = 800  # characters that an answer may have beyond the reference's
_RIVALS = 1  # other values beside the right one that are taken for context
_NEWS = 2  # content words that a sentence has which says something else
_PARTS = 2  # new short parts, or new names in a row, that make a list
_PART = 4  # words of a short part
_RESTATED = 0.5  # of a question's words, in an answer that says them again
_SHORT = 4  # content words of a reference that is a value or a name, and no sentence
_LISTED = 6  # of what is needed: whoever needs more is given a list anyway


@dataclass(frozen=True)
class JudgeCase:
    """One answer to judge."""

    question: NormalizedText
    reference: NormalizedText
    answer: NormalizedText
    as_written: str

    @cached_property
    def needed(self) -> list[Item]:
        """What the reference says beyond the question; all of it where that is nothing.

        Where it is asked who, the first names of the reference, and nothing that is said about them.
        """
        asked = [each for each in self.reference.items if not self.question.where(each)] or self.reference.items
        if not phrases.WHO.match(self.question.text):
            return asked
        new = [each for each in asked if isinstance(each, Word)]
        first = next((each for each in new if each.is_name), None)
        names = first and self.reference.names_from(first)
        return [each for each in asked if each in names] if names else asked

    @cached_property
    def given(self) -> list[tuple[Item, list[Item]]]:
        """What is needed, each with the places of the answer that say it."""
        return [(each, self.answer.where(each)) for each in self.needed]

    @cached_property
    def place(self) -> tuple[int, int] | None:
        """From where to where the answer says what is needed, if it does."""
        places = [found[0] for _, found in self.given if found]
        return (min(each.start for each in places), max(each.end for each in places)) if places else None

    def stands_beside(self, start: int, end: int) -> bool:
        """Whether a part of the answer stands in one sentence with what is needed, and nothing new between them."""
        if self.place is None or not any(
            first <= start < last for first, last in [self.answer.sentence(self.place[0])]
        ):
            return False
        first, last = (end, self.place[0]) if end <= self.place[0] else (self.place[1], start)
        return not any(first <= each.start < last and self.is_new(each) for each in self.answer.items)

    def is_new(self, item: Item) -> bool:
        """Whether neither question nor reference says it."""
        return not self.question.where(item) and not self.reference.where(item)


def judged(question: str, reference: str, answer: str, asked: date | None = None) -> Verdict:
    """Whether an answer says what the reference says, and which rule says so."""
    if len(answer) > _LONGEST + len(reference):
        return Verdict(correct=False, why=f"it has {len(answer):,} characters", rule="dump")
    case = JudgeCase(_read(question, asked), _read(reference, asked), NormalizedText(normalize(answer), asked), answer)
    for rule in _RULES:
        verdict = rule(case)
        if verdict is not None:
            return Verdict(*verdict, rule=rule.__name__.strip("_").replace("_", " "))
    raise AssertionError("the last rule always decides")


@lru_cache(maxsize=4096)
def _read(text: str, asked: date | None) -> NormalizedText:
    """A question or a reference, read once for all the answers to it."""
    return NormalizedText(normalize(text), asked)


class HeuristicJudge:
    """Judges without a model, and is the same everywhere. See `judged`."""

    async def verdict(self, asked: JudgedQuestion, answer: str) -> Verdict:
        """As `Judge.verdict`."""
        return judged(asked.question, asked.answer, answer, asked.query_date)

    async def aclose(self) -> None:
        """As `Judge.aclose`."""


_Decision = tuple[bool, str] | None
"""Whether the answer is right, and why; None where a rule has nothing to say."""


def _no_answer(case: JudgeCase) -> _Decision:
    if not case.answer.items and not phrases.YES_OR_NO.search(case.answer.text):
        return False, "it says nothing"
    unknown = phrases.UNKNOWN.search(case.answer.text)
    if unknown and not phrases.UNKNOWN.search(case.reference.text):
        return False, f"it says that it does not know ({unknown[0]})"
    return None


def _hedge(case: JudgeCase) -> _Decision:
    """Whoever commits to nothing is wrong, unless the reference does not commit itself either."""
    text = case.answer.text
    first, last = case.answer.sentence(case.place[0]) if case.place else (0, len(text))
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
    return (False, f"it says {new} things that were not asked") if new > _MOST else None


def _same_text(case: JudgeCase) -> _Decision:
    if not phrases.YES_OR_NO.search(case.reference.text) and is_exact(case.answer.text, case.reference.text):
        return True, "it is the reference answer"
    return None


def _yes_or_no(case: JudgeCase) -> _Decision:
    """Where the reference begins with yes or no, only that has to agree."""
    wanted, said = _polarity(case.reference.text), _polarity(case.answer.text)
    if not phrases.YES_OR_NO.match(case.reference.text) or wanted is None:
        return None
    beside = not any(case.question.where(each) or case.reference.where(each) for each in case.answer.words)
    if said is None and _restates(case):
        said = True
    if said is None or (beside and len(case.answer.words) > _SHORT):
        return False, "it says neither yes nor no to what was asked"
    other = _other_value(case)
    if said == wanted and other:
        return False, other
    return said == wanted, f"it says {'yes' if said else 'no'}"


def _change(case: JudgeCase) -> _Decision:
    """From one value to another: both are needed, and which came first."""
    parts = phrases.CHANGE.fullmatch(case.reference.text.rstrip(". "))
    if parts is None:
        return None
    halves = [
        JudgeCase(case.question, NormalizedText(part, case.reference.asked), case.answer, "") for part in parts.groups()
    ]
    for half in halves:
        missing = [each for each, found in half.given if not found]
        if missing:
            return False, f"{_shown(half.reference, missing[0])} is missing"
    old, new = (_compact(half) for half in halves)
    first, then = sorted((old, new))
    between, after = (
        phrases.BEFORE.sub("", case.answer.text[first[1] : then[0]]),
        case.answer.text[then[1] : then[1] + 30],
    )
    turned = bool(phrases.TURNED.search(between)) or (first == new and bool(phrases.TURNED.match(after.lstrip(" ,(-"))))
    return ((first == new) == turned), "both, " + ("in order" if (first == new) == turned else "the wrong way round")


def _values(case: JudgeCase) -> _Decision:
    """Of the values that are needed, all must be there (nearly all where there are many), and no other instead."""
    other = _other_value(case)
    if other:
        return False, other
    for each, found in case.given:
        for place in found if isinstance(each, Value) else []:
            text = case.answer.text
            if phrases.BOUND.search(text[: place.start]) and not phrases.BOUNDED.search(case.reference.text):
                return False, f"it only bounds {_shown(case.reference, each)}"
            if phrases.RANGE.match(text, place.end) and not phrases.BOUNDED.search(case.reference.text):
                return False, f"it gives a range from {_shown(case.reference, each)}"
    wanted = [(each, found) for each, found in case.given if isinstance(each, Value) and each.kind != "ordinal"]
    missing = [each for each, found in wanted if not found]
    if missing and (len(wanted) <= 3 or len(missing) > (1 - _ALL_VALUES) * len(wanted)):
        return False, f"{_shown(case.reference, missing[0])} is missing"
    return None


def _other_value(case: JudgeCase) -> str | None:
    """A value in the place of one that the reference has."""
    for other in filter(case.is_new, case.answer.values):
        own = [each for each in case.reference.values if (each.kind, each.unit) == (other.kind, other.unit)]
        said = [each for each in case.answer.values if case.reference.where(each)]
        lost = [each for each in own if not case.answer.where(each)]
        if lost or sum(each.kind == other.kind for each in said) < len(own):
            return f"{_shown(case.answer, other)} is not {_shown(case.reference, (lost or own)[0])}"
    return None


def _denied(case: JudgeCase) -> _Decision:
    """What the answer says not to be so, or to have been so, is not what it answers."""
    if case.place is None or phrases.SAYS_NOT.search(case.reference.text):
        return None
    text, (first, last) = case.answer.text, case.place
    if (phrases.WAS.search(text[:first]) or phrases.NOW.match(text, last)) and not phrases.PAST_WORDS.search(
        case.reference.text
    ):
        return False, "it says that it was so"
    if phrases.WRONG.search(text, last, case.answer.sentence(last)[1]) and not phrases.WRONG.search(
        case.reference.text
    ):
        return False, "it says that it is wrong"
    denials = phrases.DENIED.finditer(text, 0, first)
    if any(case.stands_beside(*match.span()) for match in denials) or phrases.NO_LONGER.match(text, last):
        return False, "it says that it is not so"
    return None


def _alternatives(case: JudgeCase) -> _Decision:
    """This or that is no answer."""
    for match in [] if phrases.OR.search(case.reference.text) else phrases.OR.finditer(case.answer.text):
        inside = any(each.start <= match.start() < each.end for each in case.answer.values)
        if not inside and case.stands_beside(*match.span()) and _parts_choices(case, match):
            return False, "it says what else it may be"
    return _other_choice(case)


def _parts_choices(case: JudgeCase, match: re.Match[str]) -> bool:
    """Whether "or" or a slash parts what is right from something else; a slash may be a "per", or part of a name."""
    if match[0] != "/" or case.answer.text[match.start() - 1 : match.end() + 1] == " / ":
        return True
    return any(abs(match.end() - start) <= 1 or abs(match.start() - end) <= 1 for start, end in _rivals(case))


def _other_choice(case: JudgeCase) -> _Decision:
    """Where the question lets one choose, the other choice is a rival too."""
    for match in phrases.OR.finditer(case.question.text):
        before = [each for each in case.question.items if each.end <= match.start()][-1:]
        after = [each for each in case.question.items if each.start >= match.end()][:1]
        for choice in (*before, *after):
            others = [] if case.reference.where(choice) else case.answer.where(choice)
            if case.place and any(not phrases.INSTEAD.search(case.answer.text[: each.start]) for each in others):
                return False, f"it says {_shown(case.question, choice)} as well"
    return None


def _candidates(case: JudgeCase) -> _Decision:
    """Other values of the kind, or other names, beside the right one: in a list with it, or said of the same."""
    if case.place is None or len(case.needed) > _LISTED:
        return None
    listed = _listed(case)
    if listed:
        return False, listed
    rivals = list(_rivals(case))
    for start, end in rivals:
        sentence = case.answer.sentence(start)
        new = [each for each in case.answer.words if sentence[0] <= each.start < sentence[1] and case.is_new(each)]
        said = [each for each in new if not start <= each.start < end]
        if phrases.PAST.search(case.answer.text[sentence[0] : start]):
            continue
        if _is_listed(case, start, end) or len(said) < _NEWS:
            return False, f"it names {case.answer.text[start:end]} as well"
    return (False, f"it names {len(rivals)} others as well") if len(rivals) > _RIVALS else None


def _words(case: JudgeCase) -> _Decision:
    """The reference's words, or enough that is the same on both sides."""
    needed = [(each, found) for each, found in case.given if isinstance(each, Word) and not _is_unit(case, each)]
    if not needed:
        if not any(isinstance(each, Value) and found for each, found in case.given):
            return False, "it is not the reference answer, which has no word to look for"
        return True, "the values are those of the reference"
    there = sum(bool(found) for _, found in needed)
    names = [each for each, found in needed if each.is_name and not found]
    if names and len(needed) <= _SHORT:
        return False, f"{_shown(case.reference, names[0])} is missing"
    covered = there / len(needed)
    said = sum(not case.question.where(each) for each in case.answer.words)
    overlap = 2 * there / (len(needed) + said) if said else 0
    if covered >= _COVERED or overlap >= _OVERLAP:
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


def _rivals(case: JudgeCase) -> Iterator[tuple[int, int]]:
    """Where the answer has other values of a kind that is needed, or other names."""
    wanted = [each for each in case.needed if isinstance(each, Value) and each.kind != "ordinal"]
    for value in case.answer.values:
        if case.is_new(value) and any(map(value.could_be, wanted)):
            yield value.start, value.end
    if all(isinstance(each, Word) and each.is_name for each in case.needed):
        for name in case.answer.names():
            if all(map(case.is_new, name)) and not all(word.key in phrases.POSTS for word in name):
                yield name[0].start, name[-1].end


def _listed(case: JudgeCase) -> str | None:
    """What is wrong with an answer that is a list of short parts, or of names in a row, most of them new."""
    news = 0
    for first, last in _parts(case):
        new = any(case.is_new(each) for each in case.answer.items if first <= each.start < last)
        news += new and len(case.answer.text[first:last].split()) <= _PART
    if news > _PARTS:
        return f"it lists {news} other things"
    for name in case.answer.names():
        others = [word for word in name if case.is_new(word) and word.key not in phrases.POSTS]
        if _PARTS <= len(others) < len(name) and case.place and name[0].start <= case.place[0] < name[-1].end:
            return f"it names {case.answer.text[others[0].start : others[-1].end]} as well"
    return None


def _parts(case: JudgeCase) -> Iterator[tuple[int, int]]:
    """The parts of the sentence that says what is needed, as of a list; and the other sentences."""
    for first, last in case.answer.sentences:
        if case.place and first <= case.place[0] < last:
            cuts = [match.span() for match in phrases.LISTS.finditer(case.answer.text, first, last)]
            outside = [
                cut for cut in cuts if not any(each.start < cut[1] and cut[0] < each.end for each in case.answer.values)
            ]
            yield from pairwise([first, *(cut[1] for cut in outside), last])
        else:
            yield first, last


def _restates(case: JudgeCase) -> bool:
    """Whether the answer says again what was asked, as a fact."""
    asked = [each for each in case.question.words if each.key not in ("yes", "no")]
    said = sum(bool(case.answer.where(each)) for each in asked)
    return bool(asked) and said > _RESTATED * len(asked)


def _is_listed(case: JudgeCase, start: int, end: int) -> bool:
    """Whether a rival stands in a list with what is right: between them is little but a comma, "and" or "or"."""
    first, last = case.place or (start, end)
    if case.answer.sentence(first) != case.answer.sentence(start):
        return False
    between = case.answer.text[last:start] if start >= last else case.answer.text[end:first]
    return len(phrases.JOINING.sub("", between).split()) <= 1 or bool(phrases.OR.search(between))


def _polarity(text: str) -> bool | None:
    """Whether a text says yes or no; None where it says neither, or both."""
    if phrases.BOTH.search(text):
        return None
    plainly = {not match[1].casefold().startswith("n") for match in phrases.YES_OR_NO.finditer(text)}
    told = {not phrases.NEGATED.search(text[: match.start()]) for match in phrases.AGREED.finditer(text)}
    told |= {bool(phrases.NEGATED.search(text[: match.start()])) for match in phrases.REFUSED.finditer(text)}
    if len(plainly) == 1 and told != {True not in plainly}:
        return plainly.pop()
    if plainly:
        return None
    if not told and phrases.SAYS_NOT.search(text):
        return False
    if not told and phrases.IT_DID.match(text):
        return True
    return told.pop() if len(told) == 1 else None


def _compact(half: JudgeCase) -> tuple[int, int]:
    """Where the words of one half stand closest together."""
    places = [found for _, found in half.given]
    anchor = max(places, key=lambda found: -len(found))[0]
    near = [min(found, key=lambda each: abs(each.start - anchor.start)) for found in places]
    return min(each.start for each in near), max(each.end for each in near)


def _is_unit(case: JudgeCase, word: Word) -> bool:
    """Whether a word only says what is counted."""
    return not word.is_name and any(
        each.kind == "number" and case.reference.text[each.end : word.start].strip() == "" and each.end < word.start
        for each in case.reference.values
    )


def _shown(text: NormalizedText, item: Item) -> str:
    return repr(text.text[item.start : item.end])
