"""Write a segment of an index: messages that are new, and copies of messages that may be in earlier segments."""

import itertools
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import apsw
import numpy as np
import orjson
from numpy.typing import NDArray

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail.inboxes import Inboxes
from gumshoe.mail.message import ParsedMessage
from gumshoe.mail.message_preparer import TextTerms
from gumshoe.mail.postings import MAX_POSITION, NO_POSITION, PostingsWriter
from gumshoe.mail.schema import DATABASE, INDEXES, POSTINGS, TABLES
from gumshoe.mail.segment import InboxEntry, IndexSegments, StoredCopy
from gumshoe.mail.terms import name_words, person_terms, thread_terms
from gumshoe.mail.words import MailAnalyzer

_CACHE_KIB = 20_000
_FULL_MESSAGES = 1 << 15  # half of what the 16 bits of an ordinal hold, because a batch may exceed it
_FULL_OCCURRENCES = 6_000_000  # words, counted for each inbox: they are sorted in memory


@dataclass(slots=True)
class _Held:
    """A message that this segment holds for some inboxes."""

    text: int
    words: int
    subject: int
    pairs: dict[str, int]
    """Number of the pair of each inbox."""
    copies: list[StoredCopy]
    """Copies in this segment."""


class SegmentWriter:
    """Collect messages, and write them as a segment when `finish` is called.

    `earlier` are the segments before it.
    """

    def __init__(self, directory: Path, earlier: IndexSegments, analyzer: MailAnalyzer, first: int) -> None:
        self.directory, self._earlier, self._analyzer = directory, earlier, analyzer
        self._first = self._next = first
        self._held: dict[int, _Held] = {}
        self._by_digest: dict[bytes, int] = {}
        self._by_id: dict[str, list[int]] = {}
        self._removed: list[tuple[str, int]] = []
        self._has_removals = False
        self._messages: list[tuple[object, ...]] = []
        self._copies: list[tuple[object, ...]] = []
        self._unreadable: list[tuple[str, str, str]] = []
        self._postings = PostingsWriter()
        self._numbers: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._envelopes: dict[tuple[int, int, tuple[int, ...], str], int] = {}
        directory.mkdir(parents=True)
        self._database = _create_database(directory / DATABASE)

    @property
    def next_message(self) -> int:
        """Number of the next new message."""
        return self._next

    @property
    def is_full(self) -> bool:
        """True if the segment is large enough to be completed."""
        return len(self._held) >= _FULL_MESSAGES or self._postings.occurrences >= _FULL_OCCURRENCES

    @property
    def is_empty(self) -> bool:
        """True if nothing was added."""
        return self._next == self._first and not (self._held or self._has_removals or self._unreadable)

    def find_digest(self, digest: bytes) -> int | None:
        """Return the message of this segment with a digest."""
        return self._by_digest.get(digest)

    def find_id(self, message_id: str) -> list[int]:
        """Return the messages that have a copy with an id in this segment."""
        return self._by_id.get(message_id, [])

    def has_copies(self, number: int) -> bool:
        """Return True if this segment has a copy of a message."""
        held = self._held.get(number)
        return held is not None and bool(held.copies)

    def add_unreadable(self, item: UnreadableItem) -> None:
        """Record an item that could not be read."""
        self._unreadable.append((item.where, item.reason, item.detail))

    def begin_batch(self, terms: NDArray[np.uint64]) -> None:
        """Take the different terms of the messages that are added next. See `TextTerms.places`."""
        self._numbers = self._postings.number_terms(terms)

    def add_message(self, message: ParsedMessage, digest: bytes, terms: TextTerms) -> int:
        """Add a message that no segment has, without a copy, and return its number."""
        number = self._next
        self._next += 1
        self._by_digest[digest] = number
        attachments = orjson.dumps([[each.name, each.text, each.problem] for each in message.attachments]).decode()
        self._messages.append((number, digest, message.sender, message.subject, message.body, attachments))
        self._hold(number, terms)
        return number

    def _hold(self, number: int, terms: TextTerms) -> _Held:
        held = self._held.get(number)
        if held is None:
            text = self._postings.add_text(self._numbers[terms.places], terms.positions)
            held = self._held[number] = _Held(text, terms.words, terms.subject, {}, [])
        return held

    def add_copy(
        self, number: int, message: ParsedMessage, digest: bytes, terms: TextTerms, inboxes: Inboxes, used_by: list[int]
    ) -> None:
        """Add a copy of a message, unless the index has an equal one.

        `digest` is that of the message, and `used_by` lists the other messages that have a copy with the same id.
        """
        is_new = number >= self._first
        earlier = [] if is_new else self._earlier.read_copies(number)
        last = -1 if is_new else self._earlier.find_last_copy(number)
        held = self._held.get(number)
        known = [*earlier, *(held.copies if held else ())]
        recipients = [[each.role, each.address, each.name] for each in message.recipients]
        new = StoredCopy(
            1 + max((each.copy for each in held.copies) if held else (), default=last),
            message.message_id,
            message.sent,
            message.utc_offset,
            message.sender_name,
            recipients,
            message.references,
            [
                InboxEntry(inbox, hidden, self._choose_id(message.message_id, digest, inbox, used_by))
                for inbox, hidden in inboxes
            ],
        )
        if any(each[1:] == new[1:] for each in known):
            return
        held = self._hold(number, terms)
        held.copies.append(new)
        if number not in (ids := self._by_id.setdefault(new.message_id, [])):
            ids.append(number)
        self._copies.append(_to_row(number, digest, new))
        for entry in new.inboxes:
            pair = held.pairs.get(entry.address)
            if pair is not None:
                self._add_envelope(pair, number, entry, message.sender, new)
                continue
            before = [each for each in earlier if each.find_entry(entry.address)]
            self._add_pair(number, held, entry.address, message.sender, [*before, new])
            if before:
                self._removed.append((entry.address, number))

    def _add_pair(self, number: int, held: _Held, inbox: str, sender: str, copies: list[StoredCopy]) -> None:
        pair = self._postings.add_pair(inbox, number, copies[0].sent, held.words, held.subject)
        held.pairs[inbox] = pair
        self._postings.add_part(pair, held.text)
        for each in copies:
            if entry := each.find_entry(inbox):
                self._add_envelope(pair, number, entry, sender, each)

    def _add_envelope(self, pair: int, number: int, entry: InboxEntry, sender: str, copy: StoredCopy) -> None:
        """Add the terms of a copy that one inbox may see."""
        key = (number, copy.copy, tuple(entry.hidden), entry.shown_id)
        if key not in self._envelopes:  # most inboxes of a copy see the same
            visible = [(address, name) for _, address, name in copy.list_visible(entry)]
            terms, positions = self._list_envelope(sender, copy, visible, entry.shown_id)
            numbers = self._postings.number_terms(np.array(terms, np.uint64))
            self._envelopes = {key: self._postings.add_text(numbers, np.array(positions, np.uint16))}
        self._postings.add_part(pair, self._envelopes[key])

    def _list_envelope(
        self, sender: str, copy: StoredCopy, visible: list[tuple[str, str]], shown_id: str
    ) -> tuple[list[int], list[int]]:
        """Return the terms of people, ids and threads, and the words of people's names, with their positions."""
        terms = dict.fromkeys(thread_terms(copy.message_id, [shown_id, *copy.references]))
        terms.update(dict.fromkeys(person_terms("from", sender, copy.sender_name, self._analyzer)))
        for address, name in visible:
            terms.update(dict.fromkeys(person_terms("to", address, name, self._analyzer)))
        positions = [NO_POSITION] * len(terms)
        words: list[int] = []
        place = MAX_POSITION + 1
        for name, address in dict.fromkeys([(copy.sender_name, sender), *((name, each) for each, name in visible)]):
            found = name_words(name, address, self._analyzer)
            words += found
            positions += [min(place + offset, NO_POSITION - 1) for offset in range(len(found))]
            place += len(found) + 1
        return [*terms, *words], positions

    def _choose_id(self, message_id: str, digest: bytes, inbox: str, used_by: list[int]) -> str:
        """Return the id under which an inbox lists a message: its own, unless the inbox has another with that id."""
        if not used_by or not self._holds(inbox, message_id, used_by):
            return message_id
        for name in _generate_alternative_ids(message_id, digest):
            others = [*self.find_id(name), *self._earlier.find_ids([name]).get(name, ())]
            if not self._holds(inbox, name, others):
                return name
        raise AssertionError("the ids never end")

    def _holds(self, inbox: str, shown_id: str, messages: Iterable[int]) -> bool:
        """Return True if an inbox lists one of some messages under an id."""
        for number in messages:
            held = self._held.get(number)
            for copy in (*self._earlier.read_copies(number), *(held.copies if held else ())):
                if (entry := copy.find_entry(inbox)) and entry.shown_id == shown_id:
                    return True
        return False

    def remove_copies(self, number: int, removed: set[int], analyze: Callable[[int], TextTerms]) -> None:
        """Remove copies of a message of an earlier segment."""
        self._has_removals = True
        copies = self._earlier.read_copies(number)
        self._database.executemany(
            "INSERT OR IGNORE INTO removed_copies VALUES (?, ?)", [(number, copy) for copy in sorted(removed)]
        )
        left = [each for each in copies if each.copy not in removed]
        gone = dict.fromkeys(entry.address for each in copies if each.copy in removed for entry in each.inboxes)
        self._removed.extend((inbox, number) for inbox in gone)
        sender = self._earlier.read_text(number).sender
        for inbox in gone:
            remaining = [each for each in left if each.find_entry(inbox)]
            if remaining:
                self._add_pair(number, self._hold(number, analyze(number)), inbox, sender, remaining)

    def flush(self) -> None:
        """Write collected rows to the database."""
        insert = self._database.executemany
        insert("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)", self._messages)
        insert("INSERT INTO copies VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", self._copies)
        insert("INSERT INTO unreadable VALUES (?, ?, ?)", self._unreadable)
        for rows in (self._messages, self._copies, self._unreadable):
            rows.clear()

    def finish(self) -> None:
        """Write everything to the disk, and close the segment."""
        self.flush()
        sizes = self._postings.write(self.directory / POSTINGS)
        insert = self._database.executemany
        insert("INSERT INTO inboxes VALUES (?, ?)", sorted(self._postings.addresses.items()))
        insert("INSERT OR IGNORE INTO removed VALUES (?, ?)", self._removed)
        facts = {"first": self._first, "messages": self._next - self._first, "sizes": sizes}
        insert("INSERT INTO facts VALUES (?, ?)", [(name, json.dumps(value)) for name, value in facts.items()])
        self._database.execute(INDEXES)
        self._database.execute("COMMIT")
        self._database.close()
        for path in self.directory.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())

    def close(self) -> None:
        """Close the database. A segment that was not finished is of no use."""
        self._database.close()


def _to_row(number: int, digest: bytes, copy: StoredCopy) -> tuple[object, ...]:
    content = orjson.dumps(
        [*copy[1:5], copy.recipients, copy.references, [[each.address, each.hidden] for each in copy.inboxes]]
    )
    return (
        number,
        copy.copy,
        blake2b(digest + content, digest_size=32).digest(),
        *copy[1:5],
        *(orjson.dumps(each).decode() for each in (copy.recipients, copy.references, [*map(list, copy.inboxes)])),
    )


def _generate_alternative_ids(message_id: str, digest: bytes) -> Iterable[str]:
    """Yield ids for a message whose id is used. Equal content and order give equal ids."""
    yield f"{message_id}#{digest.hex()}"
    yield from (f"{message_id}#{digest.hex()}-{count}" for count in itertools.count(2))


def _create_database(path: Path) -> apsw.Connection:
    """Create a database file without a journal: nobody else reads it before it is renamed."""
    database = apsw.Connection(str(path))
    for setting in (
        "journal_mode = off",
        "synchronous = off",
        "locking_mode = exclusive",
        f"cache_size = -{_CACHE_KIB}",
    ):
        database.execute(f"PRAGMA {setting}")
    database.execute("BEGIN")
    database.execute(TABLES)
    return database
