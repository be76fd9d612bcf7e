"""All that one inbox holds, through the segments of an index, and the matching of queries against it."""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gumshoe.mail.postings import NO_DATE, TIE_BITS
from gumshoe.mail.postings_reader import FEW, InboxPostings, TermMatches, intersect
from gumshoe.mail.search_arguments import MailSearchError, Order
from gumshoe.mail.segment import IndexSegment, IndexSegments, OwnCopy, sort_copies

# Okapi BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009), over subject and body.
_K1, _B = 1.2, 0.75
MAX_POSTINGS = 20_000_000
"""Maximum number of occurrences of a search's words in its inbox, which take about a second to read."""
_BLOCK, _GROWTH = 64, 4  # messages looked at first in a search for the newest, and how many times more then

Phrase = tuple[tuple[int, int], ...]
"""Terms that must appear together, each with its distance from the first."""
Keyword = tuple[Phrase, ...]
"""Phrases of which one must appear: a keyword, and other ways to write it."""


class MatchedMessage(NamedTuple):
    """A message that matches a query. Smaller is better."""

    score: float
    """The negative BM25 score; 0 if matches are sorted by date."""
    age: int
    """The negative `sort_key`."""
    message: int


class ScoredMessages(NamedTuple):
    """Messages of an inbox, with their scores for some words."""

    messages: NDArray[np.int64]
    """[messages], ascending."""
    times: NDArray[np.int64]
    """[messages]: see `sort_key`."""
    scores: NDArray[np.float64]
    """[messages]: BM25. 0 if the message has none of the words."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of one inbox: all keywords and all filters must match."""

    keywords: tuple[Keyword, ...]
    filters: tuple[int, ...] = ()
    """Terms that must be present, such as that of a sender."""
    after: int | None = None
    before: int | None = None

    @property
    def phrases(self) -> list[Phrase]:
        """The phrases of all keywords."""
        return [phrase for keyword in self.keywords for phrase in keyword]

    @property
    def terms(self) -> set[int]:
        """The terms of all keywords."""
        return {term for phrase in self.phrases for term, _ in phrase}


@dataclass(frozen=True, slots=True)
class _InboxPart:
    """The part of an inbox in one segment."""

    postings: InboxPostings
    alive: NDArray[np.bool_] | None
    """[messages]: False for those that a later segment removed. None means that all count."""
    first: int
    last: int
    """Range of the ordinals that are visible."""

    @property
    def messages(self) -> int:
        visible = slice(self.first, self.last)
        return self.last - self.first if self.alive is None else int(self.alive[visible].sum())

    @property
    def words(self) -> int:
        if self.alive is None and self.last - self.first == len(self.postings):
            return self.postings.words
        visible = slice(self.first, self.last)
        lengths = self.postings.lengths[visible]
        return int(lengths.sum() if self.alive is None else lengths[self.alive[visible]].sum())

    @property
    def newest(self) -> int:
        """`sort_key` of the newest visible message. If none is visible, smaller than the key of every message."""
        return int(self.postings.times[self.last - 1]) if self.last > self.first else (NO_DATE - 1) << TIE_BITS

    def keep_visible(self, ordinals: NDArray[Any]) -> NDArray[Any]:
        """Return those of some ordinals, ascending, that are visible and count."""
        ordinals = _cut(ordinals, self.first, self.last)
        return ordinals if self.alive is None else ordinals[self.alive[ordinals]]

    def locate(self, messages: Mapping[int, int]) -> dict[int, int]:
        """Return the messages that are in this part, by their ordinals. They are given with their dates."""
        times, numbers = self.postings.times, self.postings.messages
        dates = np.array(list(messages.values()), np.int64)
        starts, ends = (np.searchsorted(times, each << TIE_BITS).tolist() for each in (dates, dates + 1))
        found: dict[int, int] = {}
        for message, start, end in zip(messages, starts, ends, strict=True):
            for ordinal in np.flatnonzero(numbers[start:end] == message).tolist() if start < end else ():
                found[start + ordinal] = message
        return found if self.alive is None else {each: found[each] for each in found if self.alive[each]}


class DatedMessages(NamedTuple):
    """Messages of an inbox."""

    messages: NDArray[np.int64]
    """[messages]"""
    times: NDArray[np.int64]
    """[messages]: see `sort_key`."""

    def sort(self) -> list[int]:
        """Return the messages, oldest first."""
        messages: list[int] = self.messages[np.lexsort((self.messages, self.times))].tolist()
        return messages


class InboxView:
    """The messages of one inbox, or those that were sent before a time. Thread-safe.

    `until` is in seconds since 1970. With it, no statistic counts a later message or one without a date.
    """

    def __init__(self, segments: IndexSegments, inbox: str, until: int | None = None) -> None:
        self.inbox, self.until = inbox, until
        self._parts: list[_InboxPart] = []
        own: list[IndexSegment] = []
        having: list[IndexSegment] = []  # of each part
        removed: list[int] = []
        for segment in reversed(segments.segments):
            postings, gone = segment.open_inbox(inbox)
            if postings is not None:
                alive = ~np.isin(postings.messages, removed) if removed else None
                period = _find_period(postings.times, None, until)
                having.append(segment)
                self._parts.append(_InboxPart(postings, None if alive is None or alive.all() else alive, *period))
            if postings is not None or gone:
                own.append(segment)
            removed += gone
        self._parts.reverse()
        self._having = having[::-1]
        self._own, self._split = IndexSegments(reversed(own)), frozenset(removed)
        self.messages = sum(each.messages for each in self._parts)
        self._average = max(sum(each.words for each in self._parts) / max(self.messages, 1), 1.0)

    def read_copies(self, messages: Iterable[int]) -> dict[int, list[OwnCopy]]:
        """Return the copies of messages that the inbox holds, in order, from its own segments only.

        They are looked up where the inbox has their words, so that it takes the same steps wherever their texts are.
        """
        wanted = np.array(list(messages), np.int64)
        found: dict[int, list[OwnCopy]] = {}
        for part, segment in zip(self._parts, self._having, strict=True):
            numbers = [each for each in part.postings.find_messages(wanted) if each not in self._split]
            if numbers:
                found |= segment.read_own_copies(self.inbox, numbers)
        split = [each for each in wanted.tolist() if each not in found]
        found |= self._own.read_split_copies(self.inbox, split)
        return {message: sort_copies(found[message]) for message in wanted.tolist()}

    def list_messages(self) -> Iterator[tuple[int, int | None]]:
        """Yield number and date of all messages."""
        for part in self._parts:
            visible = part.keep_visible(np.arange(len(part.postings)))
            dates = (part.postings.times[visible] >> TIE_BITS).tolist()
            numbers = part.postings.messages[visible].tolist()
            for number, sent in zip(numbers, dates, strict=True):
                yield number, None if sent == NO_DATE else sent

    def find_term(self, term: int) -> list[int]:
        """Return the messages that have a term, oldest first."""
        return self.find_terms([term])[term].sort()

    def find_terms(self, terms: Iterable[int]) -> dict[int, DatedMessages]:
        """Return the messages that have each term."""
        wanted = list(dict.fromkeys(terms))
        found: dict[int, list[tuple[NDArray[Any], NDArray[Any]]]] = {term: [] for term in wanted}
        for part in self._parts:
            for term, ordinals in part.postings.find_each(wanted):
                visible = part.keep_visible(ordinals)
                found[term].append((part.postings.messages[visible], part.postings.times[visible]))
        nothing = (np.zeros(0, np.int64), np.zeros(0, np.int64))
        return {
            term: DatedMessages(*map(np.concatenate, zip(*several, strict=True)) if len(several) > 1 else several[0])
            for term, several in ((term, several or [nothing]) for term, several in found.items())
        }

    def find_occurrences(self, messages: Mapping[int, int], terms: Iterable[int]) -> dict[int, list[tuple[int, int]]]:
        """Return where some terms are in messages, given with their dates. See `InboxPostings.find_occurrences`.

        Words are numbered from the first one after the subject.
        """
        found: dict[int, list[tuple[int, int]]] = {}
        wanted = set(terms)
        for part in self._parts:
            ordinals = part.locate(messages)
            if not ordinals:
                continue
            for ordinal, places in part.postings.find_occurrences(wanted, ordinals).items():
                first = part.postings.count_subject(ordinal) + 1
                found[ordinals[ordinal]] = [(place - first, term) for place, term in places if place >= first]
        return found

    def search(self, query: Query, order: Order, limit: int) -> list[int]:
        """Return the best or newest messages that match a query."""
        if order == "date":
            return self._find_newest(query, limit)
        found = [_find_keywords(part, query) for part in self._parts]
        weights = self._weigh(found)
        best: list[MatchedMessage] = []
        for part, matches in zip(self._parts, found, strict=True):
            best += self._rank(part, _select(part, query, matches), matches, weights, limit)
        return [each.message for each in heapq.nsmallest(limit, best)]

    def _find_newest(self, query: Query, limit: int) -> list[int]:
        best: list[MatchedMessage] = []
        for part in sorted(self._parts, key=lambda each: each.newest, reverse=True):
            if len(best) == limit and part.newest < -best[-1].age:
                break
            ordinals = _match_newest(part, query, limit)
            if not len(ordinals):
                continue
            times, numbers = part.postings.times[ordinals].tolist(), part.postings.messages[ordinals].tolist()
            best += [MatchedMessage(0.0, -time, number) for time, number in zip(times, numbers, strict=True)]
            best = heapq.nsmallest(limit, best)
        return [each.message for each in best]

    def check_size(self, query: Query) -> None:
        """Check that a query does not have to read too much of the postings of this inbox.

        Raises:
            MailSearchError: if it does.
        """
        terms = Counter(term for phrase in query.phrases for term, _ in phrase)
        in_phrases = Counter(term for phrase in query.phrases if len(phrase) > 1 for term, _ in phrase)
        terms.update(query.filters)
        size = sum(part.postings.measure(terms, in_phrases) for part in self._parts)
        if size > MAX_POSTINGS:
            raise MailSearchError(
                "mail.search-too-broad",
                f"the words of the search occur about {size:,} times in this inbox; use fewer or rarer words",
            )

    def count_each(self, query: Query) -> list[int]:
        """Return, for each keyword of a query, the number of messages that contain it and pass the filters.

        Filters are read once, so that the work stays within the limit of `check_size`.
        """
        counts = [0] * len(query.keywords)
        for part in self._parts:
            is_allowed = np.zeros(len(part.postings), np.bool_)
            is_allowed[_select(part, query, ())] = True
            for number, matches in enumerate(_find_keywords(part, query)):
                counts[number] += int(is_allowed[matches.ordinals].sum())
        return counts

    def search_any(self, query: Query, limit: int) -> list[int]:
        """Return the messages that contain most of a query's keywords, weighted by how rare they are."""
        found = [_find_keywords(part, query) for part in self._parts]
        weights = self._weigh(found)
        best: list[MatchedMessage] = []
        for part, matches in zip(self._parts, found, strict=True):
            has_any = np.zeros(len(part.postings), np.bool_)
            for each in matches:
                has_any[each.ordinals] = True
            allowed = _select(part, query, ())
            best += self._rank(part, allowed[has_any[allowed]], matches, weights, limit)
        return [each.message for each in heapq.nsmallest(limit, best)]

    def score_all(self, query: Query) -> ScoredMessages:
        """Return all messages that pass a query's filters, each scored for those of its keywords that it has."""
        found = [_find_keywords(part, query) for part in self._parts]
        weights = self._weigh(found)
        rows: list[tuple[NDArray[Any], ...]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
        for part, matches in zip(self._parts, found, strict=True):
            ordinals = _select(part, query, ())
            scores = self._score(part.postings, ordinals, matches, weights)
            rows.append((part.postings.messages[ordinals], part.postings.times[ordinals], scores))
        messages, times, scores = map(np.concatenate, zip(*rows, strict=True))
        order = np.argsort(messages)
        return ScoredMessages(messages[order].astype(np.int64), times[order], scores[order])

    def _weigh(self, found: Sequence[Sequence[TermMatches]]) -> list[float]:
        """Return the inverse document frequency of each keyword in this inbox, for its matches in each part."""
        counts = [
            sum(len(part.keep_visible(each.ordinals)) for part, each in zip(self._parts, matches, strict=True))
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
        """Return the best of some messages."""
        if not len(ordinals):
            return []
        postings = part.postings
        scores = self._score(postings, ordinals, found, weights)
        if len(ordinals) > limit:
            worst = np.partition(scores, len(scores) - limit)[len(scores) - limit]
            kept = np.flatnonzero(scores >= worst)  # all with an equal score: the date decides between them
            ordinals, scores = ordinals[kept], scores[kept]
        times, numbers = postings.times[ordinals], postings.messages[ordinals]
        best = np.lexsort((numbers, -times, -scores))[:limit]  # there may be many with an equal score
        rows = zip((-scores[best]).tolist(), times[best].tolist(), numbers[best].tolist(), strict=True)
        return [MatchedMessage(score, -time, number) for score, time, number in rows]

    def _score(
        self, postings: InboxPostings, ordinals: NDArray[np.intp], found: Sequence[TermMatches], weights: list[float]
    ) -> NDArray[np.float64]:
        norms = _K1 * (1 - _B) + (_K1 * _B / self._average) * postings.lengths[ordinals]
        scores = np.zeros(len(ordinals))
        for each, weight in zip(found, weights, strict=True):
            frequencies = _find_weights(each, ordinals, len(postings)).astype(np.float64)
            scores += weight * frequencies / (frequencies + norms)
        return scores * (_K1 + 1)


def _find_keywords(part: _InboxPart, query: Query) -> list[TermMatches]:
    return [part.postings.find_any(keyword) for keyword in query.keywords]


def _select(part: _InboxPart, query: Query, found: Sequence[TermMatches]) -> NDArray[Any]:
    """Return the ordinals, ascending, that have all filters of a query and are in all matches `found`."""
    period = _find_visible_period(part, query)
    lists = [*(part.postings.find(each).ordinals for each in query.filters), *(each.ordinals for each in found)]
    if not lists:
        return part.keep_visible(np.arange(*period))
    rarest, *others = sorted(lists, key=len)
    if not len(rarest):
        return rarest
    return part.keep_visible(reduce(intersect, (_cut(each, *period) for each in others), _cut(rarest, *period)))


def _match_newest(part: _InboxPart, query: Query, limit: int) -> NDArray[np.uint16]:
    """Return the ordinals, ascending, of the newest messages that match a query.

    Messages are looked at in blocks, the newest first.
    """
    period = _find_visible_period(part, query)
    several = [keyword for keyword in query.keywords if len(keyword) > 1]
    single = [keyword[0] for keyword in query.keywords if len(keyword) == 1]
    lists = [
        part.postings.find(term).ordinals for term in {*query.filters, *(each for one in single for each, _ in one)}
    ]
    lists += [part.postings.find_any(keyword).ordinals for keyword in several]
    if not all(map(len, lists)):
        return np.zeros(0, np.uint16)
    rarest, *others = sorted((_cut(each, *period) for each in lists), key=len)
    found: list[NDArray[np.uint16]] = [rarest[:0]]
    end, size, count = len(rarest), _BLOCK, 0
    while end > 0 and count < limit:
        block = part.keep_visible(reduce(intersect, others, rarest[max(end - size, 0) : end]))
        for phrase in single:
            if len(phrase) > 1:
                block = part.postings.find_phrase(phrase, block).ordinals
        found.append(block)
        end, size, count = end - size, size * _GROWTH, count + len(block)
    return np.concatenate(found[::-1])[-limit:]


def _cut(ordinals: NDArray[Any], first: int, last: int) -> NDArray[Any]:
    """Return those of some ordinals, ascending, that are in a range."""
    if not len(ordinals):
        return ordinals
    number = ordinals.dtype.type  # comparing with another type would convert all
    end = len(ordinals) if ordinals[-1] < last else int(np.searchsorted(ordinals, number(last)))
    start = 0 if ordinals[0] >= first else int(np.searchsorted(ordinals, number(first)))
    return ordinals[start:end]


def _find_weights(matches: TermMatches, ordinals: NDArray[Any], size: int) -> NDArray[np.uint8]:
    """Return how often some messages [ordinals] contain what is matched. `size` is the number of all messages."""
    if len(ordinals) * FEW < len(matches.ordinals):
        places = np.searchsorted(matches.ordinals, ordinals.astype(np.uint16))
        found = matches.ordinals.take(places, mode="clip") == ordinals
        return np.where(found, matches.weights.take(places, mode="clip"), 0).astype(np.uint8)
    weights = np.zeros(size, np.uint8)
    weights[matches.ordinals] = matches.weights
    chosen: NDArray[np.uint8] = weights[ordinals]
    return chosen


def _find_visible_period(part: _InboxPart, query: Query) -> tuple[int, int]:
    """Return the range of ordinals that are visible and in the period of a query."""
    first, last = _find_period(part.postings.times, query.after, query.before)
    return max(first, part.first), min(last, part.last)


def _find_period(times: NDArray[np.int64], after: int | None, before: int | None) -> tuple[int, int]:
    """Return the range of ordinals of a period. Messages without a date are in no period."""
    if after is None and before is None:
        return 0, len(times)
    first = int(np.searchsorted(times, (NO_DATE + 1 if after is None else after) << TIE_BITS))
    last = len(times) if before is None else int(np.searchsorted(times, before << TIE_BITS))
    return first, last
