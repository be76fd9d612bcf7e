"""Compare values: each of the reference must be in the answer, and no other in its place."""

from collections.abc import Sequence

from gumshoe.rewards.heuristic import phrases
from gumshoe.rewards.heuristic.judge_case import Decision, JudgeCase, quote
from gumshoe.rewards.heuristic.normalized_text import Item, NormalizedText
from gumshoe.rewards.heuristic.units import TIMES
from gumshoe.rewards.heuristic.value import Value

_MIN_VALUES = 0.75  # share of the reference's values that an answer must have, if there are many
_MAX_FEW_VALUES = 3  # number of values of which all are required


def change(case: JudgeCase) -> Decision:
    """Compare a change from one value to another: both are required, in the right order."""
    parts = phrases.CHANGE.fullmatch(case.reference.text.rstrip(". "))
    if parts is None:
        return None
    halves = [
        JudgeCase(case.question, NormalizedText(part, case.reference.asked, case.reference.expected), case.answer, "")
        for part in parts.groups()
    ]
    alone, together = [each for half in halves for each in half.reference.values], case.reference.values
    if any(map(_is_completed, alone, together)):
        return _check_order(case, together[0], together[-1])
    for half in halves:
        missing = [each for each, found in half.matches if not found]
        if missing:
            return False, f"{quote(half.reference, missing[0])} is missing"
    old, new = (_shortest_span(half) for half in halves)
    is_in_order = _is_in_order(case, old, new)
    return is_in_order, "both, " + ("in order" if is_in_order else "the wrong way round")


def _is_completed(alone: Value, together: Value) -> bool:
    """Return True if an end of a range has more in the range than alone: a unit, a month, or "million"."""
    return (alone.kind, alone.unit, alone.means) != (together.kind, together.unit, together.means)


def _check_order(case: JudgeCase, old: Value, new: Value) -> Decision:
    """Return undecided if the answer has both ends of a range the wrong way round: it may describe another change."""
    first, last = case.answer.find(old), case.answer.find(new)
    if not first or not last or _is_in_order(case, (first[0].start, first[0].end), (last[0].start, last[0].end)):
        return None
    return None, "it has both, the wrong way round"


def _is_in_order(case: JudgeCase, old: tuple[int, int], new: tuple[int, int]) -> bool:
    """Return True if the answer says that something changed from the old value to the new one, in any order."""
    is_from = [phrases.FROM.search(case.answer.text, 0, start) is not None for start, _ in (old, new)]
    if is_from[0] != is_from[1]:
        return is_from[0]  # "to 10% from 5%"
    first, then = sorted((old, new))
    between, after = (
        phrases.BEFORE.sub("", case.answer.text[first[1] : then[0]]),
        case.answer.text[then[1] : then[1] + 30],
    )
    turned = bool(phrases.TURNED.search(between)) or (first == new and bool(phrases.TURNED.match(after.lstrip(" ,(-"))))
    return (first == new) == turned


def values(case: JudgeCase) -> Decision:
    """Require all values of the reference (most of them if there are many), and reject others in their place."""
    wanted = [(each, found) for each, found in case.matches if isinstance(each, Value) and each.kind != "ordinal"]
    missing = [each for each, found in wanted if not found]
    for each in missing:
        if len(wanted) <= _MAX_FEW_VALUES and _is_nearly_found(case, each):
            return None, f"it has {quote(case.reference, each)} without the direction or the bound, or with another"
    other = find_other_value(case)
    if other:
        return False, other
    if missing and (len(wanted) <= _MAX_FEW_VALUES or len(missing) > (1 - _MIN_VALUES) * len(wanted)):
        return False, f"{quote(case.reference, missing[0])} is missing"
    return _check_bounds(case, wanted)


def _is_nearly_found(case: JudgeCase, wanted: Value) -> bool:
    """Return True if the answer has a value with the amount wanted, and only one of both texts says in which direction.

    A sign that is written with a number ("-5%") is not in doubt.
    """
    near = [each for each in case.answer.values if each.has_amount_of(wanted) and not each.agrees(wanted)]
    return any(
        "" in (each.sign, wanted.sign)
        and each.sign != wanted.sign
        and not (each.is_sign_written or wanted.is_sign_written)
        for each in near
    )


def _check_bounds(case: JudgeCase, wanted: Sequence[tuple[Item, list[Item]]]) -> Decision:
    """Reject a bound or a range in place of a value. A value in place of a bound is undecided."""
    for each, found in wanted:
        if not isinstance(each, Value) or any(isinstance(own, Value) and own.bound == each.bound for own in found):
            continue
        for own in found:
            if isinstance(own, Value) and own.bound and not phrases.BOUNDED.search(case.reference.text):
                if own.unit in TIMES and phrases.DURING.search(case.answer.text, 0, own.start):
                    return None, f"it may bound {quote(case.reference, each)}, or say that it takes as long"
                return False, f"it only bounds {quote(case.reference, each)}"
        if each.kind == "number" and each.bound and found:
            return None, f"it has {quote(case.reference, each)} without the bound"
    for _, found in wanted:
        if any(phrases.RANGE.match(case.answer.text, own.end) for own in found) and not phrases.BOUNDED.search(
            case.reference.text
        ):
            return False, "it gives a range"
    return None


def find_other_value(case: JudgeCase) -> str | None:
    """Return the reason if the answer has another value in place of one of the reference, or None."""
    for other in filter(case.is_new, case.answer.values):
        own = [each for each in case.reference.values if (each.kind, each.unit) == (other.kind, other.unit)]
        matching = [each for each in case.answer.values if case.reference.find(each)]
        lost = [each for each in own if not case.answer.find(each)]
        if lost or sum(each.kind == other.kind for each in matching) < len(own):
            return f"{quote(case.answer, other)} is not {quote(case.reference, (lost or own)[0])}"
    return None


def _shortest_span(half: JudgeCase) -> tuple[int, int]:
    """Return start and end of the shortest part of the answer with the words of one half."""
    places = [found for _, found in half.matches]
    anchor = max(places, key=lambda found: -len(found))[0]
    near = [min(found, key=lambda each: abs(each.start - anchor.start)) for found in places]
    return min(each.start for each in near), max(each.end for each in near)
