"""Collect the terms of a batch of messages: words of their texts, and people, ids and threads of their copies."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gumshoe.mail.postings import MAX_POSITION, NO_POSITION
from gumshoe.mail.prepared_messages import BatchTerms, EnvelopeTerms, TermRange, TextTerms
from gumshoe.mail.terms import PersonRole, name_words, person_terms, subject_term, thread_terms
from gumshoe.mail.words import MailAnalyzer, TermNumbers

_MAX_CACHED = 60_000  # different terms
_POSITIONS = np.minimum(np.arange(1 << 17), MAX_POSITION).astype(np.uint16)
_NAMES_START = MAX_POSITION + 1


class TermCollector:
    """Collect terms of messages, until `finish` returns them. Not thread-safe."""

    def __init__(self, analyzer: MailAnalyzer) -> None:
        self._analyzer = analyzer
        self._start_batch()
        self._start_cache()

    def _start_batch(self) -> None:
        self._numbers: list[bytes] = []
        self._positions: list[NDArray[np.uint16]] = []
        self._count = 0

    def _start_cache(self) -> None:
        self._known = TermNumbers(self._analyzer)
        self._people: dict[tuple[PersonRole, str, str], bytes] = {}
        self._names: dict[tuple[str, str], tuple[bytes, list[int], int]] = {}  # numbers, positions and words of each

    def add_text(self, subject: str, texts: Iterable[str]) -> TextTerms:
        """Add the words of a subject and of other texts, with a gap between each two, so that no phrase spans them."""
        tokens = self._known.look_up(subject)
        subject_words = words = len(tokens)
        for text in texts:
            found = self._known.look_up(text)
            tokens.append(b"")
            tokens += found
            words += len(found)
        numbers = b"".join(tokens)
        thread = subject_term(subject)
        position_parts = [self._list_positions(tokens, len(numbers) // 4, subject_words, words)]
        if thread is not None:
            numbers += self._number([thread])
            position_parts.append(_no_positions(1))
        return TextTerms(self._add(numbers, position_parts), min(subject_words, MAX_POSITION), words)

    def _list_positions(self, tokens: list[bytes], terms: int, subject: int, words: int) -> NDArray[np.uint16]:
        if terms == words and len(tokens) == words + 1 <= len(_POSITIONS):  # a subject and a text, a term for each word
            return np.concatenate([_POSITIONS[:subject], _POSITIONS[subject + 1 : words + 1]])
        counts = np.fromiter(map(len, tokens), np.int64, len(tokens)) // 4
        positions = np.minimum(np.repeat(np.arange(len(tokens)), counts), MAX_POSITION)
        return positions.astype(np.uint16)

    def add_envelope(
        self,
        message_id: str,
        references: Sequence[str],
        sender: str,
        sender_name: str,
        recipients: Iterable[Sequence[str]],
    ) -> EnvelopeTerms:
        """Add the people, ids and threads of a copy. `recipients` has role, address and name of each."""
        people: dict[tuple[PersonRole, str, str], None] = {("from", sender, sender_name): None}
        blind: dict[int, tuple[PersonRole, str, str]] = {}
        for number, (role, address, name) in enumerate(recipients):
            if role == "bcc":
                blind[number] = ("to", address, name)
            else:
                people["to", address, name] = None
        ids = self._number(thread_terms(message_id, references))
        visible, end = self._add_people(people, _NAMES_START, ids)
        if not blind:
            return EnvelopeTerms(visible, {}, (0, 0))
        others = {number: person for number, person in blind.items() if person not in people}
        alone = {number: self._add_people([person], end)[0] for number, person in others.items()}
        return EnvelopeTerms(visible, alone, self._add_people(dict.fromkeys(others.values()), end)[0])

    def _add_people(
        self, people: Iterable[tuple[PersonRole, str, str]], start: int, others: bytes = b""
    ) -> tuple[TermRange, int]:
        """Add people, and other terms. Return their range, and the position after their names."""
        numbers = [others]
        names: dict[tuple[str, str], None] = {}
        for person in people:
            known = self._people.get(person)
            if known is None:
                known = self._people[person] = self._number(person_terms(*person, self._analyzer))
            numbers.append(known)
            names[person[2], person[1]] = None
        places: list[int] = []
        count = sum(map(len, numbers)) // 4
        for named in names:
            found = self._names.get(named)
            if found is None:
                words = name_words(*named, self._analyzer)
                found = self._number(words.terms.tolist()), words.positions.tolist(), words.tokens
                self._names[named] = found
            numbers.append(found[0])
            places += [start + position for position in found[1]]
            start += found[2] + 1
        positions = np.minimum(np.array(places, np.int64), NO_POSITION - 1).astype(np.uint16)
        return self._add(b"".join(numbers), [_no_positions(count), positions]), start

    def _number(self, terms: Iterable[int]) -> bytes:
        return b"".join([self._known.number(term.to_bytes(8, "little")) for term in terms])

    def _add(self, numbers: bytes, positions: Iterable[NDArray[np.uint16]]) -> TermRange:
        first = self._count
        self._count += len(numbers) // 4
        self._numbers.append(numbers)
        self._positions += positions
        return first, self._count

    def finish(self) -> BatchTerms:
        """Return everything that was added, and begin a new batch."""
        numbers = np.frombuffer(b"".join(self._numbers), "<u4")
        positions = np.concatenate(self._positions) if self._positions else np.zeros(0, np.uint16)
        terms, places = self._known.collect(numbers)
        self._start_batch()
        if self._known.terms > _MAX_CACHED or len(self._known) > _MAX_CACHED:
            self._start_cache()
        return BatchTerms(terms, places, positions)


def _no_positions(count: int) -> NDArray[np.uint16]:
    return np.full(count, NO_POSITION, np.uint16)
