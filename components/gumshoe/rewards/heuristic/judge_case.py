"""An answer to judge, with the question and the reference answer."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, takewhile

from gumshoe.rewards.exact_match import begins_with_verdict
from gumshoe.rewards.heuristic import phrases
from gumshoe.rewards.heuristic.normalized_text import Item, NormalizedText, Word

Decision = tuple[bool | None, str] | None
"""True if the answer is correct, False if it is wrong, None if that cannot be decided; with the reason. None as a whole
if the rule does not apply."""


@dataclass(frozen=True)
class JudgeCase:
    """One answer to judge."""

    question: NormalizedText
    reference: NormalizedText
    answer: NormalizedText
    as_written: str

    @cached_property
    def has_verdict(self) -> bool:
        """True if the reference begins with yes or no as a verdict, which "No later than 15 May" does not."""
        word = phrases.YES_OR_NO.match(self.reference.text)
        return word is not None and (
            begins_with_verdict(self.reference.text[word.start(1) :])
            or phrases.ASKS_YES_OR_NO.match(self.question.text) is not None
        )

    @cached_property
    def asks_for_past(self) -> bool:
        """True if the question asks for what was before, or where something began.

        "When does it start?" asks for the new date of an answer that describes a change: "moved from May 8 to May 9".
        """
        question = self.question.text
        if self.asks_for_replaced or phrases.ASKS_FOR_PAST.search(question):
            return True
        has_changed = phrases.CHANGED.search(self.answer.text) is not None
        if phrases.ASKS_FOR_ORIGIN.search(question):
            return not has_changed or phrases.CHANGES.search(question) is not None
        is_start = phrases.ASKS_FOR_START.search(question) is not None
        return is_start and not has_changed and phrases.REPLACED.search(self.answer.text) is None

    @cached_property
    def asks_for_replaced(self) -> bool:
        """True if the question asks who or what was replaced."""
        return phrases.ASKS_FOR_REPLACED.search(self.question.text) is not None

    @cached_property
    def required(self) -> list[Item]:
        """Items that the answer must have: those of the reference that are not in the question, or else all of them.

        For questions that ask who, only the first names of the reference, without titles and posts.
        """
        missing = [each for each in self.reference.items if not self.question.find(each)] or self.reference.items
        if not phrases.WHO.match(self.question.text):
            return missing
        new = [each for each in missing if isinstance(each, Word)]
        first = next((each for each in new if each.is_name), None)
        names = first and self.reference.names_from(first)
        people = self._without_titles(names) if names else []
        return [each for each in missing if each in people] or missing

    def _without_titles(self, names: list[Word]) -> list[Word]:
        """Return names of the reference without titles before a name, and posts in a part of their own after it.

        All of them if no other name is left, or if the question asks for the post as well.
        """
        text, parts = self.reference.text, [names[:1]]
        for one, other in pairwise(names):
            if text[one.end : other.start].isspace():
                parts[-1].append(other)
            else:
                parts.append([other])
        kept = [word for part in parts for word in drop_titles(part)]
        return kept if kept and not phrases.ASKS_FOR_POST.search(self.question.text) else names

    @cached_property
    def matches(self) -> list[tuple[Item, list[Item]]]:
        """Required items, each with its matches in the answer."""
        return [(each, self.answer.find(each)) for each in self.required]

    @cached_property
    def span(self) -> tuple[int, int] | None:
        """Start and end of the required items in the answer; None if it has none of them."""
        places = [found[0] for _, found in self.matches if found]
        return (min(each.start for each in places), max(each.end for each in places)) if places else None

    @cached_property
    def whole_reference(self) -> tuple[int, int] | None:
        """Start and end of the reference in the answer, word for word; None if the answer does not contain it.

        The case of letters does not matter: `STRASSE` is `Straße`. The places are those before case folding, which may
        lengthen a text.
        """
        wanted = self.reference.text.rstrip(". ").casefold()
        letters = [each.casefold() for each in self.answer.text]
        place = "".join(letters).find(wanted) if wanted else -1
        if place < 0:
            return None
        starts = list(accumulate(map(len, letters), initial=0))
        return bisect_right(starts, place) - 1, bisect_left(starts, place + len(wanted))

    def is_in_same_sentence(self, start: int, end: int) -> bool:
        """Return True if a part of the answer is in one sentence with the required items, with nothing new between."""
        if self.span is None or not any(first <= start < last for first, last in [self.answer.sentence(self.span[0])]):
            return False
        first, last = (end, self.span[0]) if end <= self.span[0] else (self.span[1], start)
        return not any(first <= each.start < last and self.is_new(each) for each in self.answer.items)

    def is_at_start(self, word: Word) -> bool:
        """Return True if a word of the answer begins a sentence, so that its capital says nothing."""
        before = self.answer.text[: word.start].rstrip()
        return not before or before[-1] in ".!?:;"

    def is_new(self, item: Item) -> bool:
        """Return True if an item is neither in the question nor in the reference.

        A date is not known by a weekday of the reference if that has dates, which the weekday only explains.
        """
        if self.question.find(item):
            return False
        if isinstance(item, Word):
            return not (self.reference.find(item) or any(item.agrees(each) for each in self.reference.words))
        dates = [each for each in self.reference.values if each.kind == "date" and each.is_whole]
        known = dates if item.kind == "date" and item.is_whole and dates else self.reference.values
        return not any(each.agrees(item) or item.agrees(each) for each in known)


def drop_titles(name: list[Word]) -> list[Word]:
    """Return a name without the titles before it; nothing if it has only words of titles and posts."""
    titles = list(takewhile(is_title, name))
    is_whole = len(titles) == len(name) and any(_singular(each) not in phrases.ONLY_IN_POSTS for each in name)
    return name[len(titles) :] if titles and (is_whole or titles[-1].key in phrases.TITLES) else name


def is_title(word: Word) -> bool:
    """Return True if a word of a name may be a part of a title or post."""
    return _singular(word) in phrases.POSTS | phrases.TITLES | phrases.ONLY_IN_POSTS


def _singular(word: Word) -> str:
    return word.key.removesuffix("s")


def quote(text: NormalizedText, item: Item) -> str:
    """Return an item as it stands in a text, in quotation marks."""
    return repr(text.text[item.start : item.end])
