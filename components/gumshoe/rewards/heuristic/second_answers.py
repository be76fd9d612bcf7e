"""Find a second answer beside the right one: in a list, in brackets, in another sentence, or without any connection."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from gumshoe.rewards.heuristic import phrases
from gumshoe.rewards.heuristic.judge_case import Decision, JudgeCase, drop_titles, is_title
from gumshoe.rewards.heuristic.normalized_text import Item, Word, is_past

_CUT = re.compile(
    r"\s*(?P<hard>\||\s/\s|[)\]}]\s*[(\[{])\s*|\s*(?P<bracket>[(\[)\]])\s*|(?:(?<=[.!?])\s+|\s*;\s*|\s-\s|(?P<joined>\s+and\s+))"
)
"""Separates segments. Hard separators are not used within an explanation."""
_TEMPLATE = re.compile(
    r"\W*(?:(?:and|but|or|also)\s)?(?:(?:the\s)?(?:\w+\s)?(?:answer|response|reply|respuesta|antwort|solution)\b.{0,12}?"
    r"(?:\bis\b|\bwas\b|\bes\b|\bist\b|:)|(?:it|this|that|he|she|they)(?:\s(?:is|was|are|were)|'s)\b|es ist\b|c'est\b|"
    r"\bes\b|la respuesta es\b)",
    re.I,
)
"""Introduces an answer."""
_STRUCTURE = re.compile(
    r"\b(?:is|are|was|were|be|been|being|has|have|had|do|does|did|will|would|can|could|should|must|may|it|its|they|"
    r"them|their|he|she|his|her|him|we|our|us|i|my|me|you|your|there|this|that|these|those|which|who|whose|where|when|"
    r"because|since|as|so|if|while|although|though|according|please)\b|n't\b|'(?:s|re|ve|ll)\b",
    re.I,
)
"""Words of a clause. A text without any is a bare phrase."""
_DATA = re.compile(r"\s*[{\[].*[\"']\s*:", re.S)
_MAX_BARE_NEW = 1  # new items that a bare phrase may add to the right answer, e.g. a place
_MIN_BRACKETED = 2  # words in brackets that may be an answer
_MAX_ANSWER = 5  # items of a segment that may be an answer
_ALSO = re.compile(r"\W*(?:aka|a\.k\.a\b|or|also|alternatively|otherwise|else|perhaps)\b", re.I)
_LISTED = re.compile(r"\s*(?:[,;|\n]|\s[-/]\s|[)\]}]\s*[(\[{]|\s[(\[](?:aka\b)?|\b(?:and|vs)\b)[\s*-]*")
_LISTED_END = re.compile(rf"(?:{_LISTED.pattern}|[.!?]\s+|[.!?]?$)")
_BELONGS = re.compile(
    r"\W*(?:because|since|as|so|if|while|although|though|but|which|who|whose|where|when|that|after|before|until|with|"
    r"without|from|for|to|of|in|on|at|by|via|per|near|next|beside|behind|under|over|between|about|around|according|"
    r"including|not|now|then|later|see|effective|it|its|they|he|she|this|these|those|we|you|\w+ing|\w+ed)\b",
    re.I,
)
_MIN_UNRELATED = 2  # words
_STATES = frozenset("texas california york florida oklahoma illinois georgia ohio oregon washington usa uk us".split())  # noqa: SIM905


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """A part of an answer between separators."""

    start: int
    end: int
    items: tuple[Item, ...]
    is_hard: bool
    """A hard separator is at its start or end."""
    is_bracketed: bool
    is_listed: bool
    """A semicolon is at its start or end."""


def second_answer(case: JudgeCase) -> Decision:
    """Reject an answer with a second answer in a list or after an introduction. In other places, it is undecided."""
    if _DATA.match(case.answer.text) and case.answer.text.count(":") > 1:
        return False, "it is data, not an answer"
    namesake = _find_namesake(case)
    if namesake:
        return False, f"it names {namesake} as well"
    titled = _find_other_title(case)
    if titled:
        return None, f"it says {titled!r}, who may be somebody else"
    segments = list(_segments(case))
    found = {id(place) for _, places in case.matches for place in places}
    if not any(id(item) in found for each in segments for item in each.items):
        return None
    introduced = sum(_TEMPLATE.match(case.answer.text, each.start) is not None for each in segments)
    aliens = [each for each in segments if each.items and all(_is_alien(case, item) for item in each.items)]
    is_listed = any(each.is_listed and any(id(item) in found for item in each.items) for each in segments)
    listed = [each for each in aliens if each.is_listed and is_listed]
    is_wordy = all(isinstance(each, Word) and not each.is_name for each in case.required)
    doubt: Decision = None
    for each in aliens:
        template = _TEMPLATE.match(case.answer.text, each.start, each.end)
        said = case.answer.text[each.start : each.end].strip()
        start = template.end() if template else each.start
        is_clause = _has_clause(case, each, start)
        is_answer = not is_clause and _is_answer(case, each)
        is_offered = each.is_bracketed and _ALSO.match(said) is not None
        is_separate = each.is_hard and not is_clause
        is_introduced = template is not None and (is_answer or introduced > 1)
        if is_separate or is_offered or is_introduced or (each in listed and len(listed) > 1):
            return False, f"it says {said!r} as well"
        if is_answer or (each.is_hard and is_wordy):
            doubt = None, f"it says {said!r} as well"
    if doubt is not None:
        return doubt
    unrelated = _find_unrelated(case)
    return (None, f"it says {unrelated!r} as well") if unrelated else _check_bare(case)


def _find_unrelated(case: JudgeCase) -> str | None:
    """Return what is listed beside the reference, if no word of it is in question or reference, or None.

    What follows a preposition, a conjunction, a pronoun or a participle belongs to the answer: "7 weeks, starting on
    Monday".
    """
    if phrases.WHO.match(case.question.text):
        return None  # a post may follow a name
    if case.whole_reference is None:
        return None
    text, (first, last) = case.answer.text, case.whole_reference
    is_wordy = 2 * sum(isinstance(each, Word) for each in case.required) > len(case.required)
    for start, end in _list_beside(text, first, last):
        if _BELONGS.match(text, start, end) or (not is_wordy and start > first and _STRUCTURE.search(text, start, end)):
            continue
        words = [each for each in case.answer.words if start <= each.start < end]
        is_phrase = len(words) >= _MIN_UNRELATED and not all(each.is_name for each in words)
        if is_phrase and all(map(case.is_new, words)):
            return text[start:end].strip()
    return None


def _list_beside(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield what a separator of lists divides from a part of a text, up to the next separator or end of a sentence."""
    after = _LISTED.match(text, end)
    if after:
        following = _LISTED_END.search(text, after.end())
        yield after.end(), following.start() if following else len(text)
    separators = list(_LISTED.finditer(text, 0, start))
    if separators and separators[-1].end() == start:
        last = separators[-1].start()
        ends = [match.end() for match in _LISTED_END.finditer(text, 0, last) if match.end() < last]
        yield (ends[-1] if ends else 0), last


def _find_namesake(case: JudgeCase) -> str | None:
    """Return another name that ends as a name of the reference does, e.g. of another person of the family, or None.

    A family name alone may have any given name: "Governor Gray Davis" for "Governor Davis".
    """
    for wanted in map(drop_titles, case.reference.names()):
        if len(wanted) <= 1:
            continue
        for own in filter(None, map(drop_titles, case.answer.names())):
            same_end = own[-1].agrees(wanted[-1]) and len(own) > 1
            if same_end and not own[0].agrees(wanted[0]) and case.is_new(own[0]) and own[0].key[0] != wanted[0].key[0]:
                text = case.answer.text[own[0].start : own[-1].end]
                return None if phrases.PAST.search(case.answer.text[: own[0].start]) else text
    return None


def _find_other_title(case: JudgeCase) -> str | None:
    """Return a name with another title than in the reference, which has only a title and a family name, or None."""
    for wanted in case.reference.names():
        if len(wanted) == 1 or len(drop_titles(wanted)) != 1:
            continue
        for own in case.answer.names():
            titles = takewhile(is_title, own[:-1])
            if own[-1].agrees(wanted[-1]) and not all(any(map(each.agrees, wanted)) for each in titles):
                return case.answer.text[own[0].start : own[-1].end]
    return None


def _check_bare(case: JudgeCase) -> Decision:
    """Return undecided for a bare phrase that adds several names or values to the right answer."""
    if _STRUCTURE.search(case.answer.text):
        return None
    known = [*case.reference.items, *case.required]
    others = [each for each in case.answer.items if not any(_is_same(each, one) for one in known)]
    if any(isinstance(each, Word) and not each.is_name for each in others):
        return None  # it is a sentence, although without a common verb
    new = [each for each in others if _is_alien(case, each)]
    if len(new) > _MAX_BARE_NEW or any(not isinstance(each, Word) for each in new):
        return None, f"it adds {len(others)} things to the answer without saying what they are"
    return None


def _is_same(one: Item, other: Item) -> bool:
    return isinstance(one, Word) == isinstance(other, Word) and one.agrees(other)  # type: ignore[arg-type] # one kind


def _has_clause(case: JudgeCase, segment: AnswerPart, start: int) -> bool:
    """Return True if a segment is a clause: it has one of the common words of clauses, or a name with a verb."""
    if _STRUCTURE.search(case.answer.text, start, segment.end):
        return True
    is_named = any(isinstance(each, Word) and each.is_name for each in segment.items)
    return is_named and any(isinstance(each, Word) and is_past(each.key) for each in segment.items)


def _is_answer(case: JudgeCase, segment: AnswerPart) -> bool:
    """Return True if a bare segment may be an answer: it has a value, a name, or words only as the reference does."""
    items = segment.items
    if segment.is_bracketed and all(isinstance(each, Word) for each in items) and len(items) < _MIN_BRACKETED:
        return False  # a word in brackets explains
    named = [each for each in items if not isinstance(each, Word) or (each.is_name and not case.is_at_start(each))]
    if named and 2 * len(named) >= len(items):
        return len(items) <= _MAX_ANSWER or len(items) <= len(case.reference.items) + 1
    is_wordy = all(isinstance(each, Word) and not each.is_name for each in (*case.required, *items))
    return is_wordy and 1 < len(items) <= len(case.reference.items) + 1


def _is_alien(case: JudgeCase, item: Item) -> bool:
    """Return True if an item is new, and no title or state."""
    if isinstance(item, Word) and (item.key in phrases.POSTS or item.key in _STATES):
        return False
    return case.is_new(item)


def _segments(case: JudgeCase) -> Iterator[AnswerPart]:
    text, start, was_hard, is_open, was_listed = case.answer.text, 0, False, False, False
    for match in [*_CUT.finditer(text), None]:
        end = match.start() if match else len(text)
        if match and any(each.start < match.end() and match.start() < each.end for each in case.answer.values):
            continue
        is_local = bool(match and (match["joined"] or match["bracket"]))
        if match and is_local and (case.span is None or not _is_in(case, match.start(), case.span[0])):
            continue  # only in the sentence with the right answer
        is_hard = bool(match and match["hard"])
        items = tuple(each for each in case.answer.items if start <= each.start < end)
        is_listed = bool(match and ";" in match[0])
        yield AnswerPart(start, end, items, was_hard or is_hard, is_open, was_listed or is_listed)
        start, was_hard, was_listed = (match.end() if match else end), is_hard, is_listed
        is_open = bool(match and match["bracket"] in ("(", "["))


def _is_in(case: JudgeCase, start: int, place: int) -> bool:
    first, last = case.answer.sentence(place)
    return first <= start < last
