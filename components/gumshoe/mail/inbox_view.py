"""All that one inbox holds, through the segments of an index, and the matching of queries against it."""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gumshoe.mail.postings import NO_DATE, InboxPostings, TermMatches
from gumshoe.mail.search_arguments import Order
from gumshoe.mail.segment import IndexSegments

# Okapi BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009), over subject and body.
_K1, _B = 1.2, 0.75

Phrase = tuple[tuple[int, int], ...]
"""Terms that must appear together, each with its distance from the first."""


class MatchedMessage(NamedTuple):
    """A message that matches a query. Smaller is better."""

    score: float
    """The negative BM25 score; 0 if matches are sorted by date."""
    age: int
    """The negative date."""
    message: int


@dataclass(frozen=True, slots=True)
class Query:
    """A query of one inbox: all phrases and all filters must match."""

    phrases: tuple[Phrase, ...]
    filters: tuple[int, ...] = ()
    """Terms that must be present, such as that of a sender."""
    after: int | None = None
    before: int | None = None


@dataclass(frozen=True, slots=True)
class _InboxPart:
    """The part of an inbox in one segment."""

    postings: InboxPostings
    alive: NDArray[np.bool_] | None
    """[messages]: False for those that a later segment removed. None means that all count."""

    def count(self, found: TermMatches) -> int:
        return len(found.ordinals) if self.alive is None else int(self.alive[found.ordinals].sum())


class InboxView:
    """The messages of one inbox. Thread-safe."""

    def __init__(self, segments: IndexSegments, inbox: str) -> None:
        self.inbox = inbox
        self._parts: list[_InboxPart] = []
        removed: list[int] = []
        for segment in reversed(segments.segments):
            postings = segment.open_inbox(inbox)
            if postings is not None:
                alive = ~np.isin(postings.messages, removed) if removed else None
                self._parts.append(_InboxPart(postings, None if alive is None or alive.all() else alive))
            removed += segment.list_removed(inbox)
        self._parts.reverse()
        self.messages = sum(len(each.postings) if each.alive is None else int(each.alive.sum()) for each in self._parts)
        words = sum(
            each.postings.words if each.alive is None else int(each.postings.lengths[each.alive].sum())
            for each in self._parts
        )
        self._average = max(words / max(self.messages, 1), 1.0)

    def list_messages(self) -> Iterator[tuple[int, int | None]]:
        """Yield number and date of all messages."""
        for part in self._parts:
            numbers, dates = part.postings.messages, part.postings.sent
            if part.alive is not None:
                numbers, dates = numbers[part.alive], dates[part.alive]
            for number, sent in zip(numbers.tolist(), dates.tolist(), strict=True):
                yield number, None if sent == NO_DATE else sent

    def find_term(self, term: int) -> list[int]:
        """Return the messages that have a term, in the order in which they were indexed."""
        return sorted(number for number, _ in self.find_dated(term))

    def find_dated(self, term: int) -> list[tuple[int, int]]:
        """Return number and date of the messages that have a term. The date of those without one is `NO_DATE`."""
        found: list[tuple[int, int]] = []
        for part in self._parts:
            ordinals = part.postings.find(term).ordinals
            if part.alive is not None:
                ordinals = ordinals[part.alive[ordinals]]
            if len(ordinals):
                dates = part.postings.sent[ordinals].tolist()
                found += zip(part.postings.messages[ordinals].tolist(), dates, strict=True)
        return found

    def search(self, query: Query, order: Order, limit: int) -> list[int]:
        """Return the best or newest messages that match a query."""
        found = [_find_phrases(part, query) for part in self._parts]
        weights = self._weigh(found) if order == "relevance" else []
        best: list[MatchedMessage] = []
        for part, matches in zip(self._parts, found, strict=True):
            best += self._rank(part, _select(part, query, matches), matches, weights, limit)
        return [each.message for each in heapq.nsmallest(limit, best)]

    def count(self, query: Query) -> int:
        """Return the number of messages that match a query."""
        return sum(len(_select(part, query, _find_phrases(part, query))) for part in self._parts)

    def search_any(self, query: Query, limit: int) -> list[int]:
        """Return the messages that contain most of a query's phrases, weighted by how rare they are."""
        found = [_find_phrases(part, query) for part in self._parts]
        weights = self._weigh(found)
        best: list[MatchedMessage] = []
        for part, matches in zip(self._parts, found, strict=True):
            has_any = np.zeros(len(part.postings), np.bool_)
            for each in matches:
                has_any[each.ordinals] = True
            allowed = _select(part, query, ())
            best += self._rank(part, allowed[has_any[allowed]], matches, weights, limit)
        return [each.message for each in heapq.nsmallest(limit, best)]

    def _weigh(self, found: Sequence[Sequence[TermMatches]]) -> list[float]:
        """Return the inverse document frequency of each phrase in this inbox, for its matches in each part."""
        counts = [
            sum(part.count(each) for part, each in zip(self._parts, matches, strict=True))
            for matches in zip(*found, strict=True)
        ]
        return [max(math.log((self.messages - count + 0.5) / (count + 0.5)), 1e-6) for count in counts]

    def _rank(
        self,
        part: _InboxPart,
        ordinals: NDArray[np.intp],
        found: Sequence[TermMatches],
        weights: list[float],
        limit: int,
    ) -> list[MatchedMessage]:
        """Return the best of some messages: by score if there are weights, otherwise the newest."""
        postings = part.postings
        scores: NDArray[np.float64] = np.zeros(0)
        if not weights:
            ordinals = ordinals[-limit:]
        elif len(ordinals):
            scores = self._score(postings, ordinals, found, weights)
            if len(ordinals) > limit:
                worst = np.partition(scores, len(scores) - limit)[len(scores) - limit]
                kept = np.flatnonzero(scores >= worst)  # all with an equal score: the date decides between them
                ordinals, scores = ordinals[kept], scores[kept]
        dates, numbers = postings.sent[ordinals].tolist(), postings.messages[ordinals].tolist()
        negative = (-scores).tolist() if weights else [0.0] * len(numbers)
        rows = zip(negative, dates, numbers, strict=True)
        return [MatchedMessage(score, -sent, number) for score, sent, number in rows]

    def _score(
        self, postings: InboxPostings, ordinals: NDArray[np.intp], found: Sequence[TermMatches], weights: list[float]
    ) -> NDArray[np.float64]:
        norms = _K1 * (1 - _B) + (_K1 * _B / self._average) * postings.lengths[ordinals]
        scores = np.zeros(len(ordinals))
        for each, weight in zip(found, weights, strict=True):
            all_frequencies = np.zeros(len(postings))
            all_frequencies[each.ordinals] = each.weights
            frequencies = all_frequencies[ordinals]
            scores += weight * frequencies / (frequencies + norms)
        return scores * (_K1 + 1)


def _find_phrases(part: _InboxPart, query: Query) -> list[TermMatches]:
    return [part.postings.find_phrase(phrase) for phrase in query.phrases]


def _select(part: _InboxPart, query: Query, found: Sequence[TermMatches]) -> NDArray[np.intp]:
    """Return the ordinals, ascending, that have all filters of a query and are in all matches `found`."""
    first, last = _find_period(part.postings.sent, query.after, query.before)
    selected = np.ones(len(part.postings), np.bool_) if part.alive is None else part.alive
    for matches in (*map(part.postings.find, query.filters), *found):
        contains = np.zeros(len(part.postings), np.bool_)
        contains[matches.ordinals] = True
        selected = selected & contains
    return np.flatnonzero(selected[first:last]) + first


def _find_period(sent: NDArray[np.int64], after: int | None, before: int | None) -> tuple[int, int]:
    """Return the range of ordinals of a period. Messages without a date are in no period."""
    if after is None and before is None:
        return 0, len(sent)
    first = int(np.searchsorted(sent, NO_DATE + 1 if after is None else after))
    last = len(sent) if before is None else int(np.searchsorted(sent, before))
    return first, last
