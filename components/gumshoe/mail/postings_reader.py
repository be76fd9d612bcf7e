"""Read postings: find the messages of one inbox that contain terms and phrases, and where they contain them."""

import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gumshoe.errors import GumshoeError
from gumshoe.mail.postings import (
    ARRAY_ORDER,
    ARRAYS,
    MAX_POSITION,
    NO_POSITION,
    POSITION_BITS,
    SUBJECT_WEIGHT,
    differs,
    to_ranges,
)

FEW = 8
"""Numbers among which one is looked up faster than all are read."""
_MAX_PLACES = 5  # that an inbox keeps in each segment, since there may be many
_UNKNOWN = -1


class TermMatches(NamedTuple):
    """The messages of an inbox that contain a term or a phrase."""

    ordinals: NDArray[np.uint16]
    """[matches], ascending."""
    weights: NDArray[np.uint8]
    """[matches]: how often the message contains it; occurrences in the subject count twice."""


_NO_MATCHES = TermMatches(np.zeros(0, np.uint16), np.zeros(0, np.uint8))


class PostingsReader:
    """The arrays of a segment, mapped into memory. Thread-safe, and not affected by a fork.

    Raises on opening:
        GumshoeError: if the file does not have the size that it was written with.
        OSError: if it cannot be opened.
    """

    def __init__(self, path: Path, sizes: dict[str, int]) -> None:
        found, expected = path.stat().st_size, sum(sizes.values())
        if found != expected:
            raise GumshoeError(
                "store.index-damaged",
                f"{path} is damaged: it has {found} bytes, not {expected}; fetch the index again, or build it again",
            )
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.arrays: dict[str, NDArray[Any]] = {}
        start = 0
        for name in ARRAY_ORDER:
            kind = np.dtype(ARRAYS[name])
            self.arrays[name] = np.frombuffer(data, kind, sizes[name] // kind.itemsize, start)
            start += sizes[name]

    def open_inbox(self, number: int) -> "InboxPostings":
        """Return the part of one inbox."""
        return InboxPostings(self.arrays, number)


def intersect(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers that are in both of two ascending arrays of one type without repetitions."""
    few, many = (one, other) if len(one) < len(other) else (other, one)
    if len(few) * FEW < len(many):
        return np.compress(many.take(np.searchsorted(many, few), mode="clip") == few, few)
    both = np.concatenate([few, many])
    both.sort(kind="stable")  # merges them
    return np.compress(both[1:] == both[:-1], both[1:])


class InboxPostings:
    """The messages of one inbox in one segment, and their words."""

    def __init__(self, arrays: dict[str, NDArray[Any]], number: int) -> None:
        pairs = slice(*arrays["pair_starts"][number : number + 2].tolist())
        self.messages: NDArray[np.int32] = arrays["pair_messages"][pairs]
        self.times: NDArray[np.int64] = arrays["pair_times"][pairs]
        """[messages]: see `sort_key`, ascending."""
        self.lengths: NDArray[np.int32] = arrays["pair_words"][pairs]
        self.words = int(arrays["inbox_words"][number])
        """Total number of words."""
        self._subjects: NDArray[np.uint16] = arrays["pair_subjects"][pairs]
        self._first, last = arrays["term_starts"][number : number + 2].tolist()
        self._terms: NDArray[np.uint64] = arrays["terms"][self._first : last]
        self._arrays = arrays
        # Of the last terms, since a query looks up each of its terms several times. Threads may clear it at any time.
        self._places: dict[int, int | None] = {}

    def __len__(self) -> int:
        return len(self.messages)

    def find_messages(self, messages: NDArray[np.int64]) -> list[int]:
        """Return those of some messages that the inbox has, in their order."""
        if not len(self.messages):
            return []
        places = np.searchsorted(self._sorted, messages)
        found: list[int] = messages[self._sorted.take(places, mode="clip") == messages].tolist()
        return found

    @cached_property
    def _sorted(self) -> NDArray[np.int32]:
        return np.sort(self.messages)

    def measure(self, terms: Mapping[int, int], in_phrases: Mapping[int, int]) -> int:
        """Return how many postings, and positions of those in phrases, a query with these numbers of terms may read."""
        size = 0
        for term, count in terms.items():
            place = self._find_term(term)
            if place is not None:
                postings, positions = (
                    self._arrays[name][place : place + 2] for name in ("posting_starts", "position_starts")
                )
                size += count * (int(postings[1]) - int(postings[0]))
                size += in_phrases.get(term, 0) * (int(positions[1]) - int(positions[0]))
        return size

    def find(self, term: int) -> TermMatches:
        """Return the messages that contain a term."""
        place = self._find_term(term)
        if place is None:
            return _NO_MATCHES
        part = slice(*self._arrays["posting_starts"][place : place + 2].tolist())
        return TermMatches(self._arrays["ordinals"][part], self._arrays["weights"][part])

    def find_each(self, terms: list[int]) -> Iterator[tuple[int, NDArray[np.uint16]]]:
        """Yield those of some terms that a message contains, each with the ordinals of these messages, ascending."""
        wanted = np.array(terms, np.uint64)
        places = np.searchsorted(self._terms, wanted)
        is_found = self._terms.take(places, mode="clip") == wanted if len(self._terms) else np.zeros(0, np.bool_)
        for number in np.flatnonzero(is_found).tolist():
            place = self._first + int(places[number])
            part = slice(*self._arrays["posting_starts"][place : place + 2].tolist())
            yield terms[number], self._arrays["ordinals"][part]

    def find_phrase(self, phrase: Sequence[tuple[int, int]], within: NDArray[np.uint16] | None = None) -> TermMatches:
        """Return the messages that contain terms at given distances from each other.

        `within` are ordinals of messages that contain all terms, ascending: only these are looked at.
        """
        if len(phrase) == 1 and within is None:
            return self.find(phrase[0][0])
        rarest, *others = sorted(phrase, key=lambda each: len(self.find(each[0]).ordinals))
        candidates = self.find(rarest[0]).ordinals if within is None else within
        if not len(candidates):
            return _NO_MATCHES
        first = min(offset for _, offset in phrase)
        starts = self._find_starts(rarest[0], rarest[1] - first, candidates)
        for term, offset in others:
            if len(starts) * FEW < len(candidates):
                candidates = intersect(candidates, np.unique(starts >> POSITION_BITS).astype(np.uint16))
            starts = intersect(starts, self._find_starts(term, offset - first, candidates))
            if not len(starts):
                return _NO_MATCHES
        matches = self._count_starts(starts)
        if within is None:
            return matches
        is_within = np.zeros(len(self), np.bool_)
        is_within[within] = True
        kept = is_within[matches.ordinals]
        return TermMatches(matches.ordinals[kept], matches.weights[kept])

    def find_any(self, phrases: Sequence[Sequence[tuple[int, int]]]) -> TermMatches:
        """Return the messages that contain any of some phrases. The one that a message contains most often counts."""
        every = [each for each in map(self.find_phrase, phrases) if len(each.ordinals)]
        if len(every) < 2:
            return every[0] if every else _NO_MATCHES
        ordinals, places = np.unique(np.concatenate([each.ordinals for each in every]), return_inverse=True)
        weights = np.zeros(len(ordinals), np.uint8)
        np.maximum.at(weights, places, np.concatenate([each.weights for each in every]))
        return TermMatches(ordinals, weights)

    def _count_starts(self, starts: NDArray[np.uint32]) -> TermMatches:
        """Return the messages in which a phrase starts, given by ordinal and position."""
        if not len(starts):
            return _NO_MATCHES
        ordinals = (starts >> POSITION_BITS).astype(np.uint16)
        firsts = np.flatnonzero(differs(ordinals))
        in_subject = (starts & NO_POSITION) < self._subjects[ordinals]
        weights = np.diff(np.append(firsts, len(starts)))
        weights += (SUBJECT_WEIGHT - 1) * np.add.reduceat(in_subject, firsts, dtype=np.int64)
        return TermMatches(ordinals[firsts], np.minimum(weights, 255).astype(np.uint8))

    def _find_term(self, term: int) -> int | None:
        known = self._places.get(term, _UNKNOWN)
        if known != _UNKNOWN:
            return known
        place = int(self._terms.searchsorted(np.uint64(term)))
        found = self._first + place if place < len(self._terms) and int(self._terms[place]) == term else None
        if len(self._places) >= _MAX_PLACES:
            self._places.clear()
        self._places[term] = found
        return found

    def _find_starts(self, term: int, offset: int, ordinals: NDArray[np.uint16]) -> NDArray[np.uint32]:
        """Return where a phrase can start in some messages, given by ordinals, by a term `offset` words from its start.

        All messages that contain the term are looked at if the given ones are many of them. Each place is an ordinal
        and a position as one number. They are ascending.
        """
        having = self.find(term).ordinals
        ordinals = having if len(ordinals) * FEW > len(having) else intersect(ordinals, having)
        positions, counts = self._read_positions(term, ordinals)
        starts = np.repeat(ordinals.astype(np.uint32) << POSITION_BITS, counts)
        starts |= positions
        if offset:
            starts = starts[positions >= offset] - np.uint32(offset)
        return starts

    def _read_positions(
        self, term: int, ordinals: NDArray[np.uint16]
    ) -> tuple[NDArray[np.uint16], NDArray[np.integer[Any]]]:
        """Return the positions of a term in some messages that contain it, and how many [ordinals] are in each."""
        place = self._find_term(term)
        if place is None or not len(ordinals):
            return np.zeros(0, np.uint16), np.zeros(len(ordinals), np.int64)
        begin, end = self._arrays["posting_starts"][place : place + 2].tolist()
        first, last = self._arrays["position_starts"][place : place + 2].tolist()
        counts = self._arrays["counts"][begin:end]
        if len(ordinals) == len(counts):
            return self._arrays["positions"][first:last], counts
        chosen = np.searchsorted(self._arrays["ordinals"][begin:end], ordinals)
        sizes = counts[chosen].astype(np.int64)
        low, high = int(chosen[0]), int(chosen[-1]) + 1
        if low > len(counts) // 2:
            first = last - int(counts[low:].sum(dtype=np.int64))
        else:
            first += int(counts[:low].sum(dtype=np.int64))
        ends = np.cumsum(counts[low:high], dtype=np.int64)[chosen - low]
        return self._arrays["positions"][first + to_ranges(ends - sizes, sizes)], sizes

    def find_occurrences(self, terms: Iterable[int], ordinals: Iterable[int]) -> dict[int, list[tuple[int, int]]]:
        """Return where some terms are in each of some messages: the number of the word, and the term, ascending.

        Words are numbered through subject, body and attachments, with a gap of one between each two. Of a term, the
        first 255 occurrences in a message are known.
        """
        found: dict[int, list[tuple[int, int]]] = {ordinal: [] for ordinal in sorted(ordinals)}
        messages = np.array(list(found), np.uint16)
        for term in terms:
            having = intersect(messages, self.find(term).ordinals)
            positions, counts = self._read_positions(term, having)
            for ordinal, position in zip(np.repeat(having, counts).tolist(), positions.tolist(), strict=True):
                if position < MAX_POSITION:
                    found[ordinal].append((position, term))
        return {ordinal: sorted(each) for ordinal, each in found.items()}

    def count_subject(self, ordinal: int) -> int:
        """Return the number of words in the subject of a message."""
        return int(self._subjects[ordinal])
