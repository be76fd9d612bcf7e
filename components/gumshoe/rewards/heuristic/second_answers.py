"""Find a second answer beside the right one: in a list, in brackets, in another sentence, or without any connection."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gumshoe.rewards.heuristic import phrases
from gumshoe.rewards.heuristic.judge_case import Decision, JudgeCase
from gumshoe.rewards.heuristic.normalized_text import Item, Word

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
_MAX_WITH_UNIT = 2  # items of a value with a unit
_STATES = frozenset("texas california york florida oklahoma illinois georgia ohio oregon washington usa uk us".split())  # noqa: SIM905


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of an answer between separators."""

    start: int
    end: int
    items: tuple[Item, ...]
    is_hard: bool
    """A hard separator is at its start or end."""
    is_bracketed: bool


def second_answer(case: JudgeCase) -> Decision:
    """Reject an answer with a second answer in a list or after an introduction. In other places, it is undecided."""
    if _DATA.match(case.answer.text) and case.answer.text.count(":") > 1:
        return False, "it is data, not an answer"
    segments = list(_segments(case))
    found = {id(place) for _, places in case.matches for place in places}
    if not any(id(item) in found for each in segments for item in each.items):
        return None
    introduced = sum(_TEMPLATE.match(case.answer.text, each.start) is not None for each in segments)
    for each in segments:
        if not each.items or not all(_is_alien(case, item) for item in each.items):
            continue
        template = _TEMPLATE.match(case.answer.text, each.start, each.end)
        is_bare = not _STRUCTURE.search(case.answer.text, template.end() if template else each.start, each.end)
        said = case.answer.text[each.start : each.end].strip()
        is_answer = is_bare and _is_answer(case, each)
        if each.is_hard or (template and (is_answer or introduced > 1)):
            return False, f"it says {said!r} as well"
        if is_answer:
            return None, f"it says {said!r} as well"
    return _check_bare(case)


def _check_bare(case: JudgeCase) -> Decision:
    """Return undecided for a bare phrase that adds several names or values to the right answer."""
    if _STRUCTURE.search(case.answer.text):
        return None
    known = [*case.reference.items, *case.required]
    others = [each for each in case.answer.items if not any(_is_same(each, one) for one in known)]
    if any(isinstance(each, Word) and not each.is_name for each in others):
        return None  # it is a sentence, although without a common verb
    if sum(_is_alien(case, each) for each in others) > _MAX_BARE_NEW:
        return None, f"it adds {len(others)} things to the answer without saying what they are"
    return None


def _is_same(one: Item, other: Item) -> bool:
    return isinstance(one, Word) == isinstance(other, Word) and one.agrees(other)  # type: ignore[arg-type] # one kind


def _is_answer(case: JudgeCase, segment: Segment) -> bool:
    """Return True if a bare segment may be an answer: names and values, a value with its unit, or words if required."""
    items = segment.items
    if segment.is_bracketed and all(isinstance(each, Word) for each in items) and len(items) < _MAX_WITH_UNIT:
        return False  # a word in brackets explains
    named = [each for each in items if not isinstance(each, Word) or (each.is_name and not case.is_at_start(each))]
    if len(named) == len(items) or (not isinstance(items[0], Word) and len(items) <= _MAX_WITH_UNIT):
        return True
    if isinstance(items[0], Word) and items[0].is_name and len(items) > 1 and len(named) == len(items) - 1:
        return True
    is_wordy = all(isinstance(each, Word) and not each.is_name for each in (*case.required, *items))
    return is_wordy and 1 < len(items) <= len(case.reference.items) + 1


def _is_alien(case: JudgeCase, item: Item) -> bool:
    """Return True if an item is new, and no title or state."""
    if isinstance(item, Word) and (item.key in phrases.POSTS or item.key in _STATES):
        return False
    return case.is_new(item)


def _segments(case: JudgeCase) -> Iterator[Segment]:
    text, start, was_hard, is_open = case.answer.text, 0, False, False
    for match in [*_CUT.finditer(text), None]:
        end = match.start() if match else len(text)
        if match and any(each.start < match.end() and match.start() < each.end for each in case.answer.values):
            continue
        if match and match["joined"] and (case.span is None or not _is_in(case, match.start(), case.span[0])):
            continue  # only in the sentence with the right answer
        is_hard = bool(match and match["hard"])
        items = tuple(each for each in case.answer.items if start <= each.start < end)
        yield Segment(start, end, items, was_hard or is_hard, is_open)
        start, was_hard = (match.end() if match else end), is_hard
        is_open = bool(match and match["bracket"] in ("(", "["))


def _is_in(case: JudgeCase, start: int, place: int) -> bool:
    first, last = case.answer.sentence(place)
    return first <= start < last
