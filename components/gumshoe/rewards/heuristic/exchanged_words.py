"""Find words that stand in the place of others: "the filter was cleaned" for "the filter was clogged"."""

from collections.abc import Sequence

from gumshoe.rewards.heuristic.judge_case import JudgeCase, quote
from gumshoe.rewards.heuristic.normalized_text import Item, NormalizedText, Word


def find_exchanged(case: JudgeCase, missing: Sequence[Word]) -> str | None:
    """Return the reason if a new word stands in the place of a missing one, beside the same word or value, or None."""
    for word in missing:
        for own in _neighbours(case.reference, word):
            for place in case.answer.find(own):
                new = [
                    each
                    for each in _neighbours(case.answer, place)
                    if isinstance(each, Word)
                    and case.is_new(each)
                    and (each.start < place.start) == (word.start < own.start)
                    and _are_adjacent(case.answer, each, place)
                ]
                if new:
                    return f"it says {quote(case.answer, new[0])} instead of {quote(case.reference, word)}"
    return None


def _are_adjacent(text: NormalizedText, one: Item, other: Item) -> bool:
    """Return True if at most an article stands between two items."""
    return text.text[min(one.end, other.end) : max(one.start, other.start)].strip().casefold() in ("", "a", "an", "the")


def _neighbours(text: NormalizedText, item: Item) -> list[Item]:
    """Return the items before and after an item."""
    place = text.items.index(item)
    return [*text.items[max(0, place - 1) : place], *text.items[place + 1 : place + 2]]
