"""Read a segment of an index: its database, and the postings of its inboxes."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from gumshoe.artifacts.sqlite import ReadOnlyDatabase, explain_damage
from gumshoe.errors import GumshoeError
from gumshoe.mail.message import Attachment
from gumshoe.mail.postings import InboxPostings, PostingsReader
from gumshoe.mail.schema import DATABASE, POSTINGS

_INBOXES_CACHED = 10_000


class StoredText(NamedTuple):
    """The text that the copies of a message share."""

    sender: str
    subject: str
    body: str
    attachments: list[Attachment]


class InboxEntry(NamedTuple):
    """An inbox that holds a copy of a message."""

    address: str
    hidden: list[int]
    """Numbers of the recipients that the inbox may not see."""
    shown_id: str
    """Id under which the inbox lists the message."""


class StoredCopy(NamedTuple):
    """A message as somebody received or sent it."""

    copy: int
    message_id: str
    sent: int | None
    utc_offset: int | None
    sender_name: str
    recipients: list[list[str]]
    """[role, address, name] of each."""
    references: list[str]
    inboxes: list[InboxEntry]

    def find_entry(self, inbox: str) -> InboxEntry | None:
        """Return the entry of an inbox, or None if it does not hold the copy."""
        return next((each for each in self.inboxes if each.address == inbox), None)

    def list_visible(self, entry: InboxEntry) -> list[list[str]]:
        """Return the recipients that the inbox of an entry may see."""
        return [each for number, each in enumerate(self.recipients) if number not in entry.hidden]


class IndexSegment:
    """One segment, opened read-only. Thread-safe and fork-safe.

    Raises on opening:
        GumshoeError: if a file is missing or damaged.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / DATABASE
        missing = [name for name in (DATABASE, POSTINGS) if not (directory / name).is_file()]
        if missing:
            raise GumshoeError(
                "store.index-damaged",
                f"{directory / missing[0]} does not exist; fetch the index again, or build it again",
            )
        self._database = ReadOnlyDatabase(
            self.path,
            lambda: GumshoeError(
                "mail.index-replaced", f"{self.path} was replaced after it was opened; open the index again"
            ),
        )
        with explain_damage(self.path):
            facts = {name: json.loads(value) for name, value in self.execute("SELECT name, value FROM facts")}
            self.first, self.messages = int(facts["first"]), int(facts["messages"])
        self._postings = PostingsReader(directory / POSTINGS, facts["sizes"])
        self._inbox = lru_cache(_INBOXES_CACHED)(self._find_inbox)

    def execute(self, query: str, values: Any = None) -> Iterator[tuple[Any, ...]]:
        """Run a query on this thread's connection."""
        return self._database.execute(query, values)

    def open_inbox(self, address: str) -> InboxPostings | None:
        """Return the messages of an inbox in this segment, or None if there are none."""
        return self._inbox(address)

    def _find_inbox(self, address: str) -> InboxPostings | None:
        number = next(self.execute("SELECT number FROM inboxes WHERE address = ?", (address,)), None)
        return None if number is None else self._postings.open_inbox(number[0])

    def list_removed(self, inbox: str) -> list[int]:
        """Return the messages that earlier segments hold for an inbox, and that no longer count."""
        return [message for (message,) in self.execute("SELECT message FROM removed WHERE inbox = ?", (inbox,))]

    def has_message(self, message: int) -> bool:
        """Return True if the text of a message is in this segment."""
        return self.first <= message < self.first + self.messages

    def read_text(self, message: int) -> StoredText:
        """Return the text of a message of this segment."""
        sender, subject, body, attachments = next(
            self.execute("SELECT sender, subject, body, attachments FROM messages WHERE message = ?", (message,))
        )
        return StoredText(sender, subject, body, [Attachment(*each) for each in orjson.loads(attachments)])

    def read_head(self, message: int) -> tuple[str, str]:
        """Return sender and subject of a message of this segment."""
        query = "SELECT sender, subject FROM messages WHERE message = ?"
        sender, subject = next(self.execute(query, (message,)))
        return sender, subject

    def read_copies(self, message: int) -> list[StoredCopy]:
        """Return the copies of a message that are in this segment."""
        rows = self.execute(
            "SELECT copy, message_id, sent, utc_offset, sender_name, recipients, refs, inboxes FROM copies "
            "WHERE message = ? ORDER BY copy",
            (message,),
        )
        return [
            StoredCopy(
                copy, own_id, sent, offset, name, orjson.loads(people), orjson.loads(ids), _read_inboxes(inboxes)
            )
            for copy, own_id, sent, offset, name, people, ids, inboxes in rows
        ]


def _read_inboxes(text: str) -> list[InboxEntry]:
    return [InboxEntry(*each) for each in orjson.loads(text)]


@dataclass(frozen=True, slots=True)
class IndexSegments:
    """The segments of an index, oldest first."""

    segments: tuple[IndexSegment, ...]

    @classmethod
    def open(cls, directory: Path, names: Iterable[str]) -> "IndexSegments":
        """Open the segments with some names."""
        return cls(tuple(IndexSegment(directory / name) for name in names))

    def read_text(self, message: int) -> StoredText:
        """Return the text of a message."""
        return self._find(message).read_text(message)

    def read_head(self, message: int) -> tuple[str, str]:
        """Return sender and subject of a message."""
        return self._find(message).read_head(message)

    def _find(self, message: int) -> IndexSegment:
        return next(each for each in self.segments if each.has_message(message))

    def read_copies(self, message: int) -> list[StoredCopy]:
        """Return the copies of a message, in order, without removed ones."""
        removed = {
            copy
            for each in self.segments
            for (copy,) in each.execute("SELECT copy FROM removed_copies WHERE message = ?", (message,))
        }
        copies = [copy for each in self.segments for copy in each.read_copies(message) if copy.copy not in removed]
        return sorted(copies, key=lambda each: each.copy)

    def find_last_copy(self, message: int) -> int:
        """Return the number of the last copy of a message, even if it was removed. -1 without copies."""
        query = "SELECT max(copy) FROM copies WHERE message = ?"
        found = self.collect(lambda each: each.execute(query, (message,)))
        return max((number for (number,) in found if number is not None), default=-1)

    def find_digests(self, digests: list[bytes]) -> dict[bytes, int]:
        """Return the message with each digest. Digests that no message has are left out."""
        query = "SELECT digest, message FROM json_each(?) CROSS JOIN messages ON digest = unhex(value)"
        found: dict[bytes, int] = {}
        for row in self._lookup(query, orjson.dumps([each.hex() for each in digests]).decode()):
            found.setdefault(*row)
        return found

    def find_ids(self, ids: list[str]) -> dict[str, list[int]]:
        """Return the messages of which a copy has each id."""
        query = "SELECT DISTINCT message_id, message FROM json_each(?) CROSS JOIN copies ON message_id = value"
        found: dict[str, list[int]] = {}
        for message_id, message in self._lookup(query, orjson.dumps(ids).decode()):
            found.setdefault(message_id, []).append(message)
        return found

    def _lookup(self, query: str, values: str) -> Iterator[tuple[Any, ...]]:
        for each in self.segments:
            yield from each.execute(query, (values,))

    def collect(self, read: Callable[[IndexSegment], Iterable[Any]]) -> list[Any]:
        """Return what `read` returns for each segment, as one list."""
        return [row for each in self.segments for row in read(each)]
