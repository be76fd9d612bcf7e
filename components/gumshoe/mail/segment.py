"""Read a segment of an index: its database, and the postings of its inboxes."""

import fcntl
import json
import os
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import apsw
import orjson

from gumshoe.artifacts.sqlite import ReadOnlyDatabase, explain_damage
from gumshoe.errors import GumshoeError
from gumshoe.mail.message import Attachment
from gumshoe.mail.postings_reader import InboxPostings, PostingsReader
from gumshoe.mail.schema import DATABASE, POSTINGS, IndexState, read_state
from gumshoe.mail.terms import bare_id

_INBOXES_CACHED = 10_000
_HEAD = "SELECT sender, subject FROM messages WHERE message = ?"
_TEXT = "SELECT sender, subject, body, attachments FROM messages WHERE message = ?"


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


class InboxShare(NamedTuple):
    """An inbox as one segment knows it."""

    postings: InboxPostings | None
    """Its messages in the segment. None if the segment has no message of it."""
    removed: list[int]
    """Messages that earlier segments hold for it, and that no longer count."""


@dataclass(frozen=True, slots=True)
class MessageCopy:
    """A message as somebody received or sent it."""

    copy: int
    """Number of the copy among those of its message, from 0."""
    message_id: str
    sent: int | None
    """Seconds since 1970, UTC."""
    utc_offset: int | None
    """Minutes east of UTC on the sender's clock."""
    sender_name: str
    is_unverified: bool
    """True if a mail server found that the sender is forged."""
    recipients: list[list[str]]
    """[role, address, name] of each."""
    references: list[str]


@dataclass(frozen=True, slots=True)
class StoredCopy(MessageCopy):
    """A copy of a message with all of its recipients, and the inboxes that hold it."""

    inboxes: list[InboxEntry]
    """Sorted by address."""

    def find_entry(self, inbox: str) -> InboxEntry | None:
        """Return the entry of an inbox, or None if it does not hold the copy."""
        return next((each for each in self.inboxes if each.address == inbox), None)

    def list_ids(self) -> list[str]:
        """Return its id, and those under which inboxes list it."""
        return list(dict.fromkeys([self.message_id, *(each.shown_id for each in self.inboxes)]))


@dataclass(frozen=True, slots=True)
class OwnCopy(MessageCopy):
    """A copy of a message as one of its inboxes may see it, with the recipients that are visible to the inbox."""

    shown_id: str
    """Id under which the inbox lists the message."""


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
        with explain_damage(directory, content=True):
            facts = {name: json.loads(value) for name, value in self.execute("SELECT name, value FROM facts")}
            self.first, self.messages = int(facts["first"]), int(facts["messages"])
            self.replaces_unreadable = bool(facts["replaces_unreadable"])
            self.postings = PostingsReader(directory / POSTINGS, facts["sizes"])
        self._inbox = lru_cache(_INBOXES_CACHED)(self._find_inbox)

    def hold(self) -> None:
        """Keep the files from being deleted by an extension of the index, as long as this object exists."""
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(self, os.close, descriptor)
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def execute(self, query: str, values: Any = None) -> apsw.Cursor:
        """Run a query on this thread's connection."""
        return self._database.execute(query, values)

    def open_inbox(self, address: str) -> InboxShare:
        """Return what this segment says about an inbox."""
        return self._inbox(address)

    def _find_inbox(self, address: str) -> InboxShare:
        query = (
            "SELECT (SELECT number FROM inboxes WHERE address = ?1), "
            "(SELECT json_group_array(message) FROM removed WHERE inbox = ?1)"
        )
        ((number, removed),) = self.execute(query, (address,))
        return InboxShare(None if number is None else self.postings.open_inbox(number), orjson.loads(removed))

    def prepare_lookups(self) -> None:
        """Prepare what `read_text` and `read_head` need on this thread's connection."""
        for query in (_TEXT, _HEAD):
            self.execute(query, (0,)).close()

    def read_text(self, message: int) -> StoredText:
        """Return the text of a message of this segment."""
        ((sender, subject, body, attachments),) = self.execute(_TEXT, (message,))
        return StoredText(sender, subject, body, [Attachment(*each) for each in orjson.loads(attachments)])

    def read_head(self, message: int) -> tuple[str, str]:
        """Return sender and subject of a message of this segment."""
        ((sender, subject),) = self.execute(_HEAD, (message,))
        return sender, subject

    def read_own_copies(self, inbox: str, messages: list[int]) -> dict[int, list[OwnCopy]]:
        """Return the copies of some messages that are in this segment and in an inbox. Others are left out."""
        rows = self.execute(
            "SELECT message, copy, message_id, sent, utc_offset, sender_name, is_unverified, recipients, refs, hidden, "
            "shown_id "
            "FROM json_each(?) CROSS JOIN entries ON message = value AND inbox = ? "
            "CROSS JOIN copies USING (message, copy)",
            (str(messages), inbox),
        )
        found: dict[int, list[OwnCopy]] = {}
        for message, copy, own_id, sent, offset, name, forged, recipients, references, hidden, shown_id in rows:
            invisible, people = orjson.loads(hidden), orjson.loads(recipients)
            visible = [each for number, each in enumerate(people) if number not in invisible]
            own = OwnCopy(copy, own_id, sent, offset, name, bool(forged), visible, orjson.loads(references), shown_id)
            found.setdefault(message, []).append(own)
        return found

    def read_copies(self, message: int) -> list[StoredCopy]:
        """Return the copies of a message that are in this segment."""
        entries: dict[int, list[InboxEntry]] = {}
        query = "SELECT copy, inbox, hidden, shown_id FROM entries WHERE message = ? ORDER BY inbox"
        for copy, inbox, hidden, shown_id in self.execute(query, (message,)):
            entries.setdefault(copy, []).append(InboxEntry(inbox, orjson.loads(hidden), shown_id))
        query = (
            "SELECT copy, message_id, sent, utc_offset, sender_name, is_unverified, recipients, refs FROM copies "
            "WHERE message = ? ORDER BY copy"
        )
        return [
            StoredCopy(
                *(copy, own_id, sent, offset, name, bool(forged)),
                orjson.loads(people),
                orjson.loads(ids),
                entries.get(copy, []),
            )
            for copy, own_id, sent, offset, name, forged, people, ids in self.execute(query, (message,))
        ]


Copy = TypeVar("Copy", bound=MessageCopy)


def sort_copies(copies: Iterable[Copy]) -> list[Copy]:
    """Sort copies of a message. The earliest comes first: its id and date are shown. Copies without a date are last."""
    return sorted(copies, key=lambda each: (each.sent is None, each.sent or 0, each.copy))


def _to_hex(digests: list[bytes]) -> str:
    return orjson.dumps([each.hex() for each in digests]).decode()


class IndexSegments:
    """The segments of an index, oldest first. Thread-safe and fork-safe."""

    def __init__(self, segments: Iterable[IndexSegment]) -> None:
        self.segments = tuple(segments)
        self._starts = [each.first for each in self.segments]  # number of the first message of each
        self._prepared = threading.local()  # the process in which a thread prepared its lookups

    @classmethod
    def open(cls, directory: Path, names: Iterable[str]) -> "IndexSegments":
        """Open the segments with some names."""
        return cls(IndexSegment(directory / name) for name in names)

    @classmethod
    def open_present(cls, directory: Path) -> "tuple[IndexState, IndexSegments]":
        """Return the present state of an index, and its segments. An extension does not delete them while they exist.

        Raises:
            GumshoeError: if the index is damaged, or another version of Gumshoe built it.
        """
        while True:
            state = read_state(directory)
            try:
                opened = cls.open(directory, state.segments)
                for each in opened.segments:
                    each.hold()
            except (GumshoeError, OSError):
                if read_state(directory) == state:
                    raise
                continue
            if read_state(directory) == state:  # otherwise segments may have been deleted before they were held
                return state, opened

    def read_text(self, message: int) -> StoredText:
        """Return the text of a message."""
        return self.read_texts([message])[message]

    def read_texts(self, messages: Iterable[int]) -> dict[int, StoredText]:
        """Return the text of some messages."""
        return {message: segment.read_text(message) for segment, message in self._locate(messages)}

    def read_heads(self, messages: Iterable[int]) -> dict[int, tuple[str, str]]:
        """Return sender and subject of some messages."""
        return {message: segment.read_head(message) for segment, message in self._locate(messages)}

    def read_digest(self, message: int) -> bytes:
        """Return the digest of a message."""
        (digest,) = next(self._find(message).execute("SELECT digest FROM messages WHERE message = ?", (message,)))
        return bytes(digest)

    def _locate(self, messages: Iterable[int]) -> Iterator[tuple[IndexSegment, int]]:
        """Yield each message with the segment that has its text.

        Who else has a text decides in which segment it is, and must not decide how long it takes to read. So each
        message is looked up on its own, and a thread that begins prepares the lookups in all segments.
        """
        if getattr(self._prepared, "process", None) != os.getpid():
            for segment in self.segments:
                segment.prepare_lookups()
            self._prepared.process = os.getpid()
        for message in messages:
            yield self._find(message), message

    def _find(self, message: int) -> IndexSegment:
        return self.segments[max(bisect_right(self._starts, message) - 1, 0)]

    def read_split_copies(self, inbox: str, messages: Iterable[int]) -> dict[int, list[OwnCopy]]:
        """Return the copies of some messages that an inbox holds in any of these segments, without removed ones."""
        found: dict[int, list[OwnCopy]] = {}
        for message in messages:
            removed = self._list_removed_copies(message)
            several = [each.read_own_copies(inbox, [message]).get(message, []) for each in self.segments]
            found[message] = [copy for each in several for copy in each if copy.copy not in removed]
        return found

    def _list_removed_copies(self, message: int) -> set[int]:
        query = "SELECT copy FROM removed_copies WHERE message = ?"
        return {copy for (copy,) in self.collect(lambda each: each.execute(query, (message,)))}

    def list_inboxes(self) -> set[str]:
        """Return the addresses of all inboxes that hold a message."""
        found: set[str] = set()
        removed: dict[str, set[int]] = {}  # by later segments
        for segment in reversed(self.segments):
            for (address,) in segment.execute("SELECT address FROM inboxes"):
                postings = segment.open_inbox(address).postings if address in removed else None
                if postings is None or not removed[address].issuperset(postings.messages.tolist()):
                    found.add(address)
            for address, message in segment.execute("SELECT inbox, message FROM removed"):
                removed.setdefault(address, set()).add(message)
        return found

    def read_copies(self, message: int, *, with_removed: bool = False) -> list[StoredCopy]:
        """Return the copies of a message, in order. Removed ones that still are in a segment only if asked for."""
        removed = set() if with_removed else self._list_removed_copies(message)
        copies = [copy for each in self.segments for copy in each.read_copies(message) if copy.copy not in removed]
        return sorted(copies, key=lambda each: each.copy)

    def has_copies(self, message: int) -> bool:
        """Return True if a copy of a message was not removed."""
        removed = self._list_removed_copies(message)
        copies = self.collect(lambda each: each.execute("SELECT copy FROM copies WHERE message = ?", (message,)))
        return any(copy not in removed for (copy,) in copies)

    def find_last_copy(self, message: int) -> int:
        """Return the number of the last copy of a message, even if it was removed. -1 without copies."""
        query = "SELECT max(copy) FROM copies WHERE message = ?"
        found = self.collect(lambda each: each.execute(query, (message,)))
        return max((number for (number,) in found if number is not None), default=-1)

    def find_digests(self, digests: list[bytes]) -> dict[bytes, int]:
        """Return the message with each digest. Digests that no message has are left out."""
        query = "SELECT digest, message FROM json_each(?) CROSS JOIN messages ON digest = unhex(value)"
        found: dict[bytes, int] = {}
        for row in self._lookup(query, _to_hex(digests)):
            found.setdefault(*row)
        return found

    def find_copies(self, digests: list[bytes]) -> dict[bytes, tuple[int, int]]:
        """Return message and number of the copy with each digest. Digests that no copy has any more are left out."""
        query = "SELECT digest, message, copy FROM json_each(?) CROSS JOIN copies ON digest = unhex(value)"
        rows = list(self._lookup(query, _to_hex(digests)))
        messages = orjson.dumps([message for _, message, _ in rows]).decode()
        query = "SELECT message, copy FROM json_each(?) CROSS JOIN removed_copies ON message = value"
        removed = set(self._lookup(query, messages)) if rows else set()
        return {digest: (message, copy) for digest, message, copy in rows if (message, copy) not in removed}

    def find_ids(self, ids: list[str]) -> dict[str, list[int]]:
        """Return the messages of which a copy has each id."""
        query = "SELECT DISTINCT message_id, message FROM json_each(?) CROSS JOIN copies ON message_id = value"
        found: dict[str, list[int]] = {}
        for message_id, message in self._lookup(query, orjson.dumps(ids).decode()):
            found.setdefault(message_id, []).append(message)
        return found

    def find_named_copies(self, message_id: str, *, with_removed: bool = False) -> dict[int, list[StoredCopy]]:
        """Return the copies of messages that have an id, or that an inbox lists under it, by message.

        Angle brackets may be left out. Removed copies are not returned unless asked for, so that lists may be empty.
        """
        bare = bare_id(message_id)
        used = bare_id(bare.rpartition("#")[0])  # the id itself if it is that of a second message with an id, `ID#…`
        names = [name for each in (bare, used) if each for name in (each, f"<{each}>")]
        numbers = {number for found in self.find_ids([message_id, *names]).values() for number in found}
        return {
            number: [
                each
                for each in self.read_copies(number, with_removed=with_removed)
                if bare in map(bare_id, each.list_ids())
            ]
            for number in sorted(numbers)
        }

    def find_id_prefix(self, prefix: str) -> set[int]:
        """Return the messages of which a copy has an id that begins with `prefix`."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        query = "SELECT DISTINCT message FROM copies WHERE message_id >= ? AND message_id < ?"
        return {message for each in self.segments for (message,) in each.execute(query, (prefix, end))}

    def _lookup(self, query: str, values: str) -> Iterator[tuple[Any, ...]]:
        for each in self.segments:
            yield from each.execute(query, (values,))

    def list_unreadable(self) -> list[tuple[str, str, str]]:
        """Return place, reason and detail of each item that could not be read."""
        found: list[tuple[str, str, str]] = []
        for each in self.segments:
            if each.replaces_unreadable:
                found.clear()
            found += cast(Iterator[tuple[str, str, str]], each.execute("SELECT place, reason, detail FROM unreadable"))
        return found

    def collect(self, read: Callable[[IndexSegment], Iterable[Any]]) -> list[Any]:
        """Return what `read` returns for each segment, as one list."""
        return [row for each in self.segments for row in read(each)]
