"""Reject answers that offer several candidates: alternatives, lists, and other values or names beside the right one."""

import re
from collections.abc import Iterator
from itertools import pairwise

from gumshoe.rewards.heuristic import phrases
from gumshoe.rewards.heuristic.judge_case import Decision, JudgeCase, drop_titles, quote
from gumshoe.rewards.heuristic.normalized_text import LABELS, Word, is_past
from gumshoe.rewards.heuristic.value import Value

_MAX_RIVALS = 1  # other values that are accepted as context
_MIN_NEW_WORDS = 2  # minimum new content words of a sentence about something else
_MIN_LIST = 2  # number of new short parts, or new names in a row, that make a list
_MAX_PART_WORDS = 4  # maximum words of a short part
_MAX_REQUIRED = 6  # maximum required items; with more, every correct answer is a list
_DATED = frozenset({"date", "ordinal"})
_YEAR = re.compile(r"(?:19|20)\d\d")
_ASKS_FOR_YEAR = re.compile(r"\b(?:when|years?|since|until)\b", re.I)
_BEFORE_YEAR = re.compile(
    r"\b(?:in|since|during|until|by|for|of|year|early|late|mid|spring|summer|autumn|fall|winter|"
    r"(?:jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)[a-z]*\.?,?)[ -]$",
    re.I,
)
_PREPOSITION = re.compile(r"\b(?:on|in|at|by|since|until|during|for)\s+(?:the\s+|about\s+)?$", re.I)
_PAIRS = re.compile(r"\s?(?:-|\b(?:and|to|through)\b)\s?", re.I)
_LABEL = re.compile(
    rf"\b(?:on|in|at|from|for|of|to|with|under|by)\s+(?:the\s+)?(?:{LABELS}|account|bay|berth|block|box|bus|case|clause|"
    r"contract|deck|dock|file|flight|floor|form|gate|highway|invoice|item|lane|line|lot|number|order|page|paragraph|"
    r"platform|pier|policy|quarter|route|row|rule|seat|site|step|suite|table|ticket|track|train|volume|ward|week|"
    r"zone)\s+(?:no\.?\s?|number\s|#\s?)?$",
    re.I,
)
"""A noun with a number that names one of them, unlike the number of "in fact 26"."""
_CORRECTS = re.compile(
    r"[,;(-]\s*(?:(?:or|no|well|sorry)\W+)*(?:in (?:fact|total|all|reality|truth|sum)|actually|rather|altogether|"
    r"really|i mean|make that|no|sorry|namely|that is|i\.?e\.?)\W+$",
    re.I,
)
"""Says that the text after it is meant instead of the text before it, or says it again."""
_SEPARATES = re.compile(r"[,;|/&+()\[\]]|(?<=\s)-(?=\s)|\b(?:and|or|vs|versus)\b", re.I)
_LINK = re.compile(r"\b(?!(?:to|the|an|and|or|also)\b)[a-z]{2,}\b")


def alternatives(case: JudgeCase) -> Decision:
    """Reject an answer that offers alternatives."""
    for match in [] if phrases.OR.search(case.reference.text) else phrases.OR.finditer(case.answer.text):
        inside = any(each.start <= match.start() < each.end for each in case.answer.values)
        if not inside and case.is_in_same_sentence(*match.span()) and _separates_choices(case, match):
            return False, "it says what else it may be"
    if not phrases.OR.search(case.reference.text) and _is_beside_or(case):
        return False, "it says what else it may be"
    return _find_other_choice(case)


def _is_beside_or(case: JudgeCase) -> bool:
    """Return True if "or" stands directly before or after the reference, word for word."""
    if case.whole_reference is None:
        return False
    text, (start, end) = case.answer.text, case.whole_reference
    return bool(re.search(r"\bor(?: else)?,?\W*$", text[:start], re.I) or re.match(r"\W*or\b", text[end:], re.I))


def _separates_choices(case: JudgeCase, match: re.Match[str]) -> bool:
    """Return True if "or" or a slash separates the correct item from another. A slash may be part of a unit or name."""
    if match[0] != "/" or case.answer.text[match.start() - 1 : match.end() + 1] == " / ":
        return True
    return any(abs(match.end() - start) <= 1 or abs(match.start() - end) <= 1 for start, end in _find_rivals(case))


def _find_other_choice(case: JudgeCase) -> Decision:
    """Reject an answer that also names the other choice of a question that offers two."""
    for match in phrases.OR.finditer(case.question.text):
        before = [each for each in case.question.items if each.end <= match.start()][-1:]
        after = [each for each in case.question.items if each.start >= match.end()][:1]
        for choice in (*before, *after):
            others = [] if case.reference.find(choice) else case.answer.find(choice)
            if case.span and any(not phrases.INSTEAD.search(case.answer.text[: each.start]) for each in others):
                return False, f"it says {quote(case.question, choice)} as well"
    return None


def candidates(case: JudgeCase) -> Decision:
    """Reject other values of the same kind, or other names, in a list or the same sentence as the correct one."""
    if case.span is None or len(case.required) > _MAX_REQUIRED:
        return None
    listed = _find_list(case) or _find_listed_names(case)
    if listed:
        return False, listed
    rivals = [each for each in _find_rivals(case) if not _gave_way(case, each)]
    for start, end in rivals:
        sentence = case.answer.sentence(start)
        new = [each for each in case.answer.words if sentence[0] <= each.start < sentence[1] and case.is_new(each)]
        others = [each for each in new if not start <= each.start < end]
        if phrases.PAST.search(case.answer.text, _start_of_context(case, start), start):
            continue
        is_meant = _CORRECTS.search(case.answer.text, 0, start) is not None
        if is_meant or _is_listed(case, start, end) or len(others) < _MIN_NEW_WORDS:
            return False, f"it names {case.answer.text[start:end]} as well"
    if len(rivals) > _MAX_RIVALS:
        return False, f"it names {len(rivals)} others as well"
    return _check_old(case)


def _start_of_context(case: JudgeCase, start: int) -> int:
    """Return where the text begins that says of a rival that it is past: after the correct item, if that is before it.

    Who sends something "from" somebody stays a sender, to whomever it goes.
    """
    first, last = case.span or (start, start)
    sentence = case.answer.sentence(start)[0]
    is_sent = phrases.WHO.match(case.question.text) and phrases.FROM.search(case.answer.text, sentence, first)
    return sentence if last > start or is_sent or case.asks_for_past else max(sentence, last)


def _gave_way(case: JudgeCase, rival: tuple[int, int]) -> bool:
    """Return True if the correct item took the place of a rival, or the other way round if that is asked."""
    span = case.span or (0, 0)
    return _was_replaced(case, span, rival) if case.asks_for_replaced else _was_replaced(case, rival, span)


def _was_replaced(case: JudgeCase, old: tuple[int, int], new: tuple[int, int]) -> bool:
    """Return True if an answer such as "Ann Lee was replaced by Bo Ek" says that `new` took the place of `old`."""
    text = case.answer.text
    return bool(
        phrases.REPLACED_BY.search(text, old[1], max(old[1], new[0]))
        or phrases.REPLACES.search(text, new[1], max(new[1], old[0]))
    )


def _check_old(case: JudgeCase) -> Decision:
    """Return undecided if another name or value took the place of the correct item: "moved from Rome to Paris".

    If the question asks who was replaced, it must not be the other one.
    """
    if case.span is None or (case.asks_for_past and not case.asks_for_replaced):
        return None
    text, (first, last) = case.answer.text, case.span
    sentence = case.answer.sentence(first)
    kinds = [each for each in case.required if isinstance(each, Value)]
    others = [
        each
        for each in case.answer.items
        if sentence[0] <= each.start < sentence[1]
        and case.is_new(each)
        and (any(map(each.has_kind_of, kinds)) if isinstance(each, Value) else each.is_name and not kinds)
    ]
    if case.asks_for_replaced:
        was = [each for each in others if _was_replaced(case, (each.start, each.end), case.span)]
        return (None, f"it says that {quote(case.answer, was[0])} was replaced") if was else None
    moved = phrases.FROM.search(text, sentence[0], first) and not phrases.WHO.match(case.question.text)
    chosen = None if kinds else phrases.OVER.search(text, sentence[0], first)
    for each in others:
        if (
            (moved and phrases.TO.search(text, last, max(last, each.start)))
            or (chosen and each.end <= first and phrases.CHOSEN.fullmatch(text, each.end, chosen.start()))
            or phrases.REPLACED_BY.search(text, last, max(last, each.start))
            or (kinds and phrases.CHANGED_TO.search(text, last, max(last, each.start)))
            or (phrases.SO.search(text, last, max(last, each.start)) and not text[each.end : sentence[1]].strip(" .!"))
        ):
            return None, f"it says that {quote(case.answer, each)} took its place"
    return None


def _find_rivals(case: JudgeCase) -> Iterator[tuple[int, int]]:
    """Yield start and end of other values of a required kind, or of other names, in the answer."""
    wanted = [each for each in case.required if isinstance(each, Value) and each.kind != "ordinal"]
    alike = [
        (value, each)
        for value in case.answer.values
        if case.is_new(value)
        for each in wanted
        if value.has_kind_of(each)
    ]
    beside = [value for value, each in alike if _is_beside(case, value, each)]
    is_plain = len(beside) == len(alike) and sum(value.kind not in _DATED for value in beside) <= _MAX_RIVALS
    yield from dict.fromkeys((value.start, value.end) for value, _ in alike if not is_plain)
    if all(isinstance(each, Word) and each.is_name for each in case.required):
        for name in case.answer.names():
            is_attribute = case.answer.text[name[-1].end :].startswith((" one", " 1"))  # "the Orchard Quay one"
            if all(map(case.is_new, name)) and not is_attribute and drop_titles(name):
                yield name[0].start, name[-1].end


def _is_beside(case: JudgeCase, value: Value, wanted: Value) -> bool:
    """Return True if a value says something else beside the wanted one: its date, or another count in its sentence.

    With no word that links it to the sentence, it is another candidate: "25, May 8", "$5 million 6 tables".
    """
    text, span = case.answer.text, case.span or (value.start, value.end)
    ends = {each.end + 1 for each in case.reference.values}
    if any(isinstance(each, Word) and each.start not in ends for each in case.required):
        return False  # not only a value, and what it counts, is wanted
    first, last = case.answer.sentence(span[0])
    counted = next((each for each in case.answer.words if each.start >= value.end), None)
    counts_other = counted is not None and counted.start == value.end + 1 and case.is_new(counted)
    is_dated = value.kind == "date" or (value.kind == "ordinal" and wanted.kind == "number")
    if not (is_dated and wanted.kind not in _DATED) and not _is_other_year(
        case, value, wanted, is_counted=counts_other
    ):
        is_other = value.unit != wanted.unit if value.unit else counts_other or _LABEL.search(text, 0, value.start)
        is_hour = wanted.kind == "date" and text[: value.start].endswith(" at ")
        is_count = value.kind == "number" and wanted.kind in ("number", "date")
        if not is_count or not (is_other or is_hour) or not first <= value.start < last:
            return False
    begin = value.start
    for each in reversed(case.answer.values):
        if each.kind == value.kind and _PAIRS.fullmatch(text, each.end, begin) and not case.reference.find(each):
            begin = each.start
    return _is_linked(case, begin, value.end)


def _is_linked(case: JudgeCase, begin: int, end: int) -> bool:
    """Return True if a word links a value to its part of the sentence, and no "and" lists it with the right answer."""
    text, span = case.answer.text, case.span or (begin, end)
    is_after = begin >= span[1]
    if _CORRECTS.search(text, 0, begin):
        return False
    cuts = [each for each in _SEPARATES.finditer(text) if not any(_overlaps(each, own) for own in case.answer.values)]
    between = [each for each in cuts if min(end, span[1]) <= each.start() and each.end() <= max(begin, span[0])]
    if not between:
        first, last = (span[1], begin) if is_after else (end, span[0])
    else:
        first = max((each.end() for each in cuts if each.end() <= begin), default=0)
        last = min((each.start() for each in cuts if each.start() >= end), default=len(text))
        if between[-1 if is_after else 0][0].isalpha():
            verbs = [each for each in case.answer.words if first <= each.start < last and is_past(each.key)]
            return any(map(case.is_new, verbs))  # "and met on May 8"
    if _PREPOSITION.search(text, 0, begin):
        return True
    counted = {each.end + 1 for each in case.answer.values}
    return any(
        link.start() not in counted and not any(_overlaps(link, each) for each in case.answer.values)
        for link in _LINK.finditer(text, first, last)
    )


def _overlaps(match: re.Match[str], value: Value) -> bool:
    return value.start < match.end() and match.start() < value.end


def _is_other_year(case: JudgeCase, value: Value, wanted: Value, *, is_counted: bool) -> bool:
    """Return True if a value is a year, and the question asks for no year."""
    text = case.answer.text
    return (
        value.kind == "number"
        and not _has_year(case, wanted)
        and not is_counted
        and _YEAR.fullmatch(text, value.start, value.end) is not None
        and _BEFORE_YEAR.search(text, 0, value.start) is not None
        and not _ASKS_FOR_YEAR.search(case.question.text)
    )


def _has_year(case: JudgeCase, wanted: Value) -> bool:
    """Return True if a value of the reference is a year, or a date with one. "How many?" asks for no year."""
    is_year = wanted.kind in _DATED or (wanted.unit is None and not phrases.HOW_MANY.search(case.question.text))
    return is_year and _YEAR.search(case.reference.text, wanted.start, wanted.end) is not None


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


def _find_listed_names(case: JudgeCase) -> str | None:
    """Return the reason if the correct name is in a list with other names, also of one word, or None.

    One other name after a comma may be a place: "Tulsa, Oklahoma".
    """
    if case.span is None or not all(isinstance(each, Word) and each.is_name for each in case.required):
        return None
    first, last = case.answer.sentence(case.span[0])
    cuts = [match.span() for match in phrases.NAMES.finditer(case.answer.text, first, last)]
    bounds = list(zip([first, *(cut[1] for cut in cuts)], [*(cut[0] for cut in cuts), last], strict=True))
    parts = [[each for each in case.answer.items if start <= each.start < end] for start, end in bounds]
    is_new = [
        bool(part)
        and all(isinstance(each, Word) and each.is_name and case.is_new(each) for each in part)
        and not all(isinstance(each, Word) and each.key in phrases.POSTS for each in part)
        for part in parts
    ]
    joined = any(
        new and "," not in case.answer.text[slice(*cut)]
        for cut, *sides in zip(cuts, is_new, is_new[1:], strict=False)
        for new in sides
    )
    new = [part for part, other in zip(parts, is_new, strict=True) if other]
    if len(new) >= _MIN_LIST or (new and joined):
        return f"it names {case.answer.text[new[0][0].start : new[0][-1].end]} as well"
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


def _is_listed(case: JudgeCase, start: int, end: int) -> bool:
    """Return True if a rival is in a list with the correct item: only a comma, "and" or "or" is between them."""
    first, last = case.span or (start, end)
    if case.answer.sentence(first) != case.answer.sentence(start):
        return False
    between = case.answer.text[last:start] if start >= last else case.answer.text[end:first]
    return len(phrases.JOINING.sub("", between).split()) <= 1 or bool(phrases.OR.search(between))
