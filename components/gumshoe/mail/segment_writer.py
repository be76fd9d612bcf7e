"""Write a segment of an index: messages that are new, and copies of messages that may be in earlier segments."""

import itertools
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import apsw
import numpy as np
import orjson
from numpy.typing import NDArray

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.artifacts.storage import flush_to_disk
from gumshoe.mail.inboxes import Inboxes, drop_hidden_recipients
from gumshoe.mail.postings import PostingsWriter, sort_key
from gumshoe.mail.prepared_messages import BatchTerms, PreparedMessage, TermRange, TextTerms
from gumshoe.mail.schema import DATABASE, INDEXES, POSTINGS, TABLES
from gumshoe.mail.segment import InboxEntry, IndexSegments, StoredCopy
from gumshoe.mail.term_collector import TermCollector
from gumshoe.mail.words import MailAnalyzer

_CACHE_KIB = 4_000
_FULL_MESSAGES = 1 << 15  # half of what the 16 bits of an ordinal hold, because a batch may exceed it
_FULL_COPIES = 1 << 17  # their digests and ids are kept in memory
_FULL_OCCURRENCES = 6_000_000  # words, counted for each inbox: they are sorted in memory


class _HeldCopy(NamedTuple):
    """A copy of a message in this segment, without its recipients, which take much memory."""

    inboxes: tuple[str, ...]
    shown_ids: tuple[str, ...]
    """Id under which each inbox lists it."""


@dataclass(slots=True)
class _Held:
    """A message that this segment holds for some inboxes."""

    text: int
    words: int
    subject: int
    pairs: dict[str, int]
    """Number of the pair of each inbox."""
    copies: list[_HeldCopy]
    """Copies in this segment, whose numbers follow each other."""
    next_copy: int


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
        self._copy_digests: set[bytes] = set()
        self._removed: list[tuple[str, int]] = []
        self._has_changes = False  # other than messages and copies
        self._replaces_unreadable = False
        self._messages: list[tuple[object, ...]] = []
        self._copies: list[tuple[object, ...]] = []
        self._entries: list[tuple[object, ...]] = []
        self._unreadable: list[tuple[str, str, str]] = []
        self._postings = PostingsWriter()
        self._numbers: NDArray[np.uint32] = np.zeros(0, np.uint32)
        """Number of the term of each occurrence in the current batch."""
        self._positions: NDArray[np.uint16] = np.zeros(0, np.uint16)
        directory.mkdir(parents=True)
        self._database = create_database(directory / DATABASE)

    @property
    def next_message(self) -> int:
        """Number of the next new message."""
        return self._next

    @property
    def is_full(self) -> bool:
        """True if the segment is large enough to be completed."""
        return (
            len(self._held) >= _FULL_MESSAGES
            or len(self._copy_digests) >= _FULL_COPIES
            or self._postings.occurrences >= _FULL_OCCURRENCES
        )

    @property
    def is_empty(self) -> bool:
        """True if nothing was added."""
        return self._next == self._first and not self._held and not self._has_changes

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
        self._has_changes = True
        self._unreadable.append((item.where, item.reason, item.detail))

    def replace_unreadable(self) -> None:
        """Let the unreadable items of this segment replace those of all earlier ones."""
        self._has_changes = self._replaces_unreadable = True

    def begin_batch(self, terms: BatchTerms) -> None:
        """Take the terms of the messages that are added next."""
        self._numbers = self._postings.number_terms(terms.terms)[terms.places]
        self._positions = terms.positions

    def add_message(self, message: PreparedMessage, digest: bytes) -> int:
        """Add a message that no segment has, without a copy, and return its number."""
        number = self._next
        self._next += 1
        self._by_digest[digest] = number
        attachments = orjson.dumps(message.attachments).decode()
        self._messages.append((number, digest, message.sender, message.subject, message.body, attachments))
        return number

    def _hold(self, number: int, terms: TextTerms) -> _Held:
        held = self._held.get(number)
        if held is None:
            text = self._add_text(terms.occurrences)
            next_copy = 0 if number >= self._first else 1 + self._earlier.find_last_copy(number)
            held = self._held[number] = _Held(text, terms.words, terms.subject, {}, [], next_copy)
        return held

    def _add_text(self, occurrences: TermRange) -> int:
        chosen = slice(*occurrences)
        return self._postings.add_text(self._numbers[chosen], self._positions[chosen])

    def add_copy(
        self, number: int, message: PreparedMessage, digest: bytes, inboxes: Inboxes, used_by: list[int]
    ) -> None:
        """Add a copy of a message, unless the index has an equal one.

        `digest` is that of `add_message`, and `used_by` lists the other messages that have a copy with the same id.
        """
        if message.terms is None or message.envelope is None:
            raise ValueError("a message without terms cannot be added")
        is_earlier = number < self._first
        new = to_copy(message, inboxes)
        copy_digest = digest_copy(digest, new)
        if copy_digest in self._copy_digests or (is_earlier and self._earlier.find_copies([copy_digest])):
            return
        self._copy_digests.add(copy_digest)
        held = self._hold(number, message.terms)
        new = replace(
            new,
            copy=held.next_copy,
            inboxes=[
                InboxEntry(inbox, hidden, self._choose_id(message.message_id, message.digest, inbox, used_by))
                for inbox, hidden, _ in new.inboxes
            ],
        )
        held.next_copy += 1
        addresses = tuple(map(sys.intern, (each.address for each in new.inboxes)))
        held.copies.append(_HeldCopy(addresses, tuple(each.shown_id for each in new.inboxes)))
        if number not in (ids := self._by_id.setdefault(new.message_id, [])):
            ids.append(number)
        self._copies.append(to_row(number, copy_digest, new))
        self._entries += to_entry_rows(number, new)
        texts: dict[TermRange, int] = {}
        is_listed = all(entry.address in held.pairs for entry in new.inboxes)
        earlier = self._earlier.read_copies(number) if is_earlier and not is_listed else []
        for entry, (_, hidden) in zip(new.inboxes, inboxes, strict=True):
            pair = held.pairs.get(entry.address)
            if pair is None:
                pair = self._add_pair(number, held, entry.address, message.sender, earlier)
            self._postings.add_time(pair, sort_key(new.sent, entry.shown_id))
            for occurrences in message.envelope.select(hidden):
                if occurrences not in texts:
                    texts[occurrences] = self._add_text(occurrences)
                self._postings.add_part(pair, texts[occurrences])
            if entry.shown_id != new.message_id:
                self._add_envelope(pair, message.sender, new, entry)

    def _add_pair(self, number: int, held: _Held, inbox: str, sender: str, copies: list[StoredCopy]) -> int:
        """Put a message into an inbox that this segment has not put it into, with its copies of earlier segments."""
        before = [(each, entry) for each in copies if (entry := each.find_entry(inbox))]
        if before:
            self._removed.append((inbox, number))
        pair = self._postings.add_pair(inbox, number, held.words, held.subject)
        held.pairs[sys.intern(inbox)] = pair
        self._postings.add_part(pair, held.text)
        for copy, entry in before:
            self._postings.add_time(pair, sort_key(copy.sent, entry.shown_id))
            self._add_envelope(pair, sender, copy, entry)
        return pair

    def _add_envelope(self, pair: int, sender: str, copy: StoredCopy, entry: InboxEntry) -> None:
        """Add the terms of a stored copy that its inbox may see."""
        collector = TermCollector(self._analyzer)
        references = [entry.shown_id, *copy.references]
        envelope = collector.add_envelope(copy.message_id, references, sender, copy.sender_name, copy.recipients)
        found = collector.finish()
        numbers = self._postings.number_terms(found.terms)[found.places]
        for first, end in envelope.select(entry.hidden):
            self._postings.add_part(pair, self._postings.add_text(numbers[first:end], found.positions[first:end]))

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
        wanted = (inbox, shown_id)
        for number in messages:
            copies = self._earlier.read_copies(number) if number < self._first else []
            entries = [entry for copy in copies if (entry := copy.find_entry(inbox))]
            if any(entry.shown_id == shown_id for entry in entries):
                return True
            held = self._held.get(number)
            if held and any(wanted in zip(each.inboxes, each.shown_ids, strict=True) for each in held.copies):
                return True
        return False

    def remove_copies(self, number: int, removed: set[int], analyze: Callable[[int], TextTerms]) -> None:
        """Remove copies of a message of an earlier segment."""
        self._has_changes = True
        copies = self._earlier.read_copies(number)
        self._database.executemany(
            "INSERT OR IGNORE INTO removed_copies VALUES (?, ?)", [(number, copy) for copy in sorted(removed)]
        )
        left = [each for each in copies if each.copy not in removed]
        gone = dict.fromkeys(entry.address for each in copies if each.copy in removed for entry in each.inboxes)
        self._removed.extend((inbox, number) for inbox in gone)
        sender = self._earlier.read_text(number).sender
        for inbox in gone:
            if any(each.find_entry(inbox) for each in left):
                held = self._hold(number, analyze(number))
                self._add_pair(number, held, inbox, sender, left)
        self.flush()

    def flush(self) -> None:
        """Write collected rows to the database."""
        insert = self._database.executemany
        insert("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)", self._messages)
        insert("INSERT INTO copies VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", self._copies)
        insert("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", self._entries)
        insert("INSERT INTO unreadable VALUES (?, ?, ?)", self._unreadable)
        insert("INSERT OR IGNORE INTO removed VALUES (?, ?)", self._removed)
        for rows in (self._messages, self._copies, self._entries, self._unreadable, self._removed):
            rows.clear()

    def finish(self) -> None:
        """Write everything to the disk, and close the segment."""
        self.flush()
        numbers = self._first, self._next - self._first
        complete_segment(self.directory, self._database, self._postings, numbers, self._replaces_unreadable)

    def close(self) -> None:
        """Close the database. A segment that was not finished is of no use."""
        self._database.close()


def complete_segment(
    directory: Path,
    database: apsw.Connection,
    postings: PostingsWriter,
    numbers: tuple[int, int],
    replaces_unreadable: bool,
) -> None:
    """Write the postings and the facts of a segment, and everything to the disk. Closes the database.

    `numbers` are the number of the first message of the segment, and the number of its messages.
    """
    sizes = postings.write(directory / POSTINGS)
    insert = database.executemany
    insert("INSERT INTO inboxes VALUES (?, ?)", sorted(postings.addresses.items()))
    first, messages = numbers
    facts = {"first": first, "messages": messages, "sizes": sizes, "replaces_unreadable": replaces_unreadable}
    insert("INSERT INTO facts VALUES (?, ?)", [(name, json.dumps(value)) for name, value in facts.items()])
    database.execute(INDEXES)
    database.execute("COMMIT")
    database.close()
    flush_to_disk(directory.iterdir())


def to_copy(message: PreparedMessage, inboxes: Inboxes) -> StoredCopy:
    """Return a message as it is stored, but without the number of the copy and the ids under which inboxes list it."""
    recipients, visible = drop_hidden_recipients(message.recipients, inboxes)
    return StoredCopy(
        0,
        message.message_id,
        message.sent,
        message.utc_offset,
        message.sender_name,
        message.verdict == "fail",
        recipients,
        message.references,
        [InboxEntry(inbox, hidden, "") for inbox, hidden in visible],
    )


def digest_copy(digest: bytes, copy: StoredCopy) -> bytes:
    """Return a digest of a copy and its message, without the ids under which inboxes list it."""
    inboxes = [[each.address, each.hidden] for each in copy.inboxes]
    content = orjson.dumps([*_list_head(copy), copy.recipients, copy.references, inboxes])
    return blake2b(digest + content, digest_size=32).digest()


def _list_head(copy: StoredCopy) -> tuple[object, ...]:
    """Return the fields of a copy that are no lists."""
    return copy.message_id, copy.sent, copy.utc_offset, copy.sender_name, copy.is_unverified


def to_row(number: int, digest: bytes, copy: StoredCopy) -> tuple[object, ...]:
    """Return the row of a copy in the table `copies`. `digest` is that of the copy."""
    return (
        number,
        copy.copy,
        digest,
        *_list_head(copy),
        orjson.dumps(copy.recipients).decode(),
        orjson.dumps(copy.references).decode(),
    )


def to_entry_rows(number: int, copy: StoredCopy) -> list[tuple[object, ...]]:
    """Return the rows of a copy in the table `entries`."""
    return [
        (number, address, copy.copy, orjson.dumps(hidden).decode(), shown_id)
        for address, hidden, shown_id in copy.inboxes
    ]


def _generate_alternative_ids(message_id: str, digest: bytes) -> Iterable[str]:
    """Yield ids for a message whose id is used. Equal content and order give equal ids."""
    yield f"{message_id}#{digest.hex()}"
    yield from (f"{message_id}#{digest.hex()}-{count}" for count in itertools.count(2))


def create_database(path: Path) -> apsw.Connection:
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
