"""Search one inbox, read one of its messages: the wall round a mailbox.

Every query carries the inbox as a term of the full-text expression, or as a condition of the SQL that finds the
message. Ranking uses the inbox's own statistics, so that what an inbox is shown is what it would be shown if it
were alone in the index.
"""

import json
import math
import os
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import apsw

from gumshoe.artifacts.sqlite import damage_explained, open_read_only
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.mail.message import Recipient, clean, shown_date
from gumshoe.mail.schema import TOKENIZER, VERSION, address_term, index_file
from gumshoe.mail.search_arguments import (
    MAX_KEYWORD,
    MailSearchError,
    Order,
    check_address,
    check_choices,
    check_keywords,
    check_period,
)

SNIPPET_WORDS = 24

# Okapi BM25 as SQLite computes it (https://sqlite.org/fts5.html#the_bm25_function), over subject and body.
_K1, _B = 1.2, 0.75
_SUBJECT_WEIGHT = 2.0  # a word in the subject counts as often as two in the body
_RESULTS = 1_000  # results of searches, and messages, kept in memory
_CACHED = 10_000  # statistics and addresses kept in memory
_CACHE_KIB = 2_000  # a connection, one a thread; the operating system caches the file for all

_COLUMNS = {"inbox": "{sender recipients}", "sender": "sender", "recipient": "recipients"}
# The recipients of {message} that an inbox may know of: all for its sender; for the others those of the copies that
# reached them, without blind copies to somebody else.
_VISIBLE = """
    SELECT role, listed.address AS address, name FROM recipients AS listed
    WHERE listed.message = {message} AND (
        (SELECT written.sender FROM messages AS written WHERE written.message = {message}) = :inbox
        OR (
            (role != 'bcc' OR listed.address = :inbox)
            AND copy IN (SELECT own.copy FROM recipients AS own WHERE own.message = {message} AND own.address = :inbox)
        )
    )
"""
_LENGTHS = "SELECT words(search) FROM search WHERE search MATCH ?"
_LISTED = """
    SELECT message_id, sent FROM search CROSS JOIN messages ON message = search.rowid
    WHERE search MATCH ? ORDER BY sent IS NULL, sent, message_id
"""
_COUNT = "SELECT count(*) FROM search WHERE search MATCH ?"
# One pass over the matches: with `+`, SQLite does not begin a query of its own for each message, which takes longer.
_HITS = f"""
    SELECT message, message_id, sent, utc_offset, text, messages.subject,
        snippet(search, 1, '', '', ' … ', {SNIPPET_WORDS})
    FROM search CROSS JOIN messages ON message = search.rowid CROSS JOIN addresses ON address = messages.sender
    WHERE search MATCH ? AND +search.rowid IN (SELECT value FROM json_each(?))
"""  # noqa: S608 - a number
_READ = """
    SELECT found.message, message_id, sent, utc_offset, text, sender_name, subject, body
    FROM messages AS found JOIN bodies USING (message) JOIN addresses ON addresses.address = found.sender
    WHERE found.message IN (
        SELECT message FROM messages WHERE message_id IN (:exact, :bare, :bracketed)
        UNION SELECT message FROM other_ids WHERE message_id IN (:exact, :bare, :bracketed)
    ) AND (
        found.sender = :inbox
        OR EXISTS (SELECT 1 FROM recipients WHERE recipients.message = found.message AND address = :inbox)
    )
    ORDER BY message_id = :exact DESC LIMIT 1
"""


class MessageNotFoundError(GumshoeError):
    """The inbox holds no message of that id. Whether another inbox does is not said."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One message that a search found."""

    message_id: str
    sent: datetime | None
    """On the sender's clock; None where the message has no date."""
    sender: str
    subject: str
    snippet: str
    """The part of the body where the keywords are, at most `SNIPPET_WORDS` words on one line."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message, as the reading inbox may see it."""

    message_id: str
    sent: datetime | None
    """On the sender's clock; None where the message has no date."""
    sender: str
    sender_name: str
    recipients: tuple[Recipient, ...]
    """As the reading inbox may know them: a blind copy is known to the sender, and to who got it."""
    subject: str
    body: str


@dataclass(slots=True)
class _Scorer:
    """BM25 of the row that a query stands at. Called once for every match, so it is written for speed."""

    weights: list[float] = field(default_factory=list)
    """Inverse document frequency of each keyword, in the order of the query's phrases."""
    average: float = 1.0
    """Words in a message of this inbox, on average."""

    def __call__(self, row: apsw.FTS5ExtensionApi, *_: object) -> float:
        norm = _K1 * (1 - _B) + _K1 * _B * (row.column_size(0) + row.column_size(1)) / self.average
        score = 0.0
        for phrase, weight in enumerate(self.weights):
            places = row.phrase_locations(phrase)
            frequency = _SUBJECT_WEIGHT * len(places[0]) + len(places[1])
            score += weight * frequency / (frequency + norm)
        return score * (_K1 + 1)


class MailIndex:
    """An index, opened read-only. One may be used by many threads, and survives a fork.

    Raises on opening:
        UsageError: there is none.
        GumshoeError: it is damaged, or another version of Gumshoe built it.
    """

    def __init__(self, directory: Path) -> None:
        self.path = index_file(directory)
        if not self.path.is_file():
            raise UsageError(
                "mail.no-index", f"{directory} contains no mail index; build one with `gumshoe mail index`"
            )
        self._file = _identity(self.path)
        self._local = threading.local()
        # The file never changes, and the episodes of a group, or the turns of one, ask for the same.
        self._hits = lru_cache(_RESULTS)(self._find_hits)
        self._message = lru_cache(_RESULTS)(self._find_message)
        self._phrase = lru_cache(_CACHED)(self._quoted)
        self._address = lru_cache(_CACHED)(self._find_address)
        self._text = lru_cache(_CACHED)(self._find_text)
        self._size = lru_cache(_CACHED)(self._find_size)
        self._count = lru_cache(_CACHED)(self._find_count)
        with self._explained():
            schema = self._connection().execute("SELECT value FROM build WHERE name = 'schema'").get
        if schema != str(VERSION):
            raise GumshoeError(
                "mail.index-version",
                f"{self.path} was built by another version of Gumshoe (schema {schema}, not {VERSION}); build it again",
            )

    def search(
        self,
        inbox: str,
        keywords: list[str],
        *,
        sender: str | None = None,
        recipient: str | None = None,
        sent_after: str | date | None = None,
        sent_before: str | date | None = None,
        limit: int = 10,
        order: Order = "relevance",
    ) -> list[Hit]:
        """Messages of an inbox that contain every keyword, the best or the newest first.

        A keyword with spaces is a phrase. Case and accents do not count, and all that is not a letter or digit
        only separates words. `sender` and `recipient` are whole addresses. `sent_after` includes its moment and
        `sent_before` does not; a day (YYYY-MM-DD) begins at midnight UTC. A message without a date is found only
        where neither is given. `limit` is 1 to 10.

        Raises:
            SearchArgumentError: an argument cannot be used; the message says what to write instead.
            GumshoeError: the file is damaged.
        """
        phrases = [self._phrase(keyword) for keyword in check_keywords(keywords)]
        after, before = check_period(sent_after, sent_before)
        check_choices(limit, order)
        named = [("inbox", check_address("inbox", inbox))]
        for role, text in (("sender", sender), ("recipient", recipient)):
            if text is not None:
                named.append((role, check_address(role, text)))
        return [*self._hits(tuple(phrases), tuple(named), after, before, limit, order)]

    def _find_hits(
        self,
        phrases: tuple[str, ...],
        named: tuple[tuple[str, str], ...],
        after: int | None,
        before: int | None,
        limit: int,
        order: Order,
    ) -> tuple[Hit, ...]:
        with self._explained():
            people = {role: self._address(text) for role, text in named}
            if None in people.values():  # nobody in the whole index has that address
                return ()
            terms = [f'{_COLUMNS[role]} : "{address_term(number)}"' for role, number in people.items() if number]
            match = " AND ".join([*phrases, *terms])
            if order == "relevance":
                self._prepare_scorer(terms[0], phrases)
            values: dict[str, Any] = {"match": match, "after": after, "before": before, "limit": limit, **people}
            numbers: list[Any] = [number for (number,) in self._connection().execute(_best(values, order), values)]
            rows = self._connection().execute(_HITS, (match, json.dumps(numbers))) if numbers else ()
            hits = {
                number: Hit(message_id, shown_date(moment, offset), sender, subject, " ".join(snippet.split()))
                for number, message_id, moment, offset, sender, subject, snippet in rows
            }
        return tuple(hits[number] for number in numbers)

    def read(self, inbox: str, message_id: str) -> Message:
        """One message of an inbox, by its id or by that of a dropped duplicate.

        Raises:
            MessageNotFoundError: the inbox holds no such message, wherever else it may be.
            SearchArgumentError: an argument is not of the right form.
            GumshoeError: the file is damaged.
        """
        owner = check_address("inbox", inbox)
        if not isinstance(message_id, str):
            raise MailSearchError("mail.invalid-message-id", "message_id is not text; write an id as a search shows it")
        return self._message(owner, clean(message_id).strip())

    def _find_message(self, owner: str, exact: str) -> Message:
        bare = exact.strip("<>")  # agents lose the brackets
        with self._explained():
            values = {"inbox": self._address(owner), "exact": exact, "bare": bare, "bracketed": f"<{bare}>"}
            found = next(self._connection().execute(_READ, values), None)
            if found is None:
                raise MessageNotFoundError(
                    "mail.message-not-found",
                    f"message {exact!r} does not exist in this inbox; use an id from `gumshoe mail search`",
                )
            number, kept_id, sent, offset, sender, sender_name, subject, body = found
            listed = self._connection().execute(
                _VISIBLE.format(message=":message"), {"message": number, "inbox": values["inbox"]}
            )
            recipients = dict.fromkeys(Recipient(role, self._text(address), name) for role, address, name in listed)
        return Message(kept_id, shown_date(sent, offset), sender, sender_name, tuple(recipients), subject, body.strip())

    def listing(self, inbox: str) -> list[tuple[str, datetime | None]]:
        """All messages of an inbox, the oldest first: the id of each, and when it was sent, in UTC.

        Those without a date stand last.

        Raises:
            SearchArgumentError: the inbox is not a whole address.
            GumshoeError: the file is damaged.
        """
        owner = check_address("inbox", inbox)
        with self._explained():
            number = self._address(owner)
            if number is None:
                return []
            rows = self._connection().execute(_LISTED, (f'{_COLUMNS["inbox"]} : "{address_term(number)}"',))
            return [(message_id, shown_date(sent, None)) for message_id, sent in rows]

    def stats(self) -> dict[str, Any]:
        """What built this index and what is in it: the facts of `MailBuildReport`, and counts."""
        with self._explained():
            database = self._connection()
            facts = {name: json.loads(value) for name, value in database.execute("SELECT name, value FROM build")}
            first, last = next(database.execute("SELECT min(sent), max(sent) FROM messages"))
            facts["first_sent"], facts["last_sent"] = (
                moment.isoformat() if (moment := shown_date(sent, None)) else None for sent in (first, last)
            )
            facts["addresses"] = database.execute("SELECT count(*) FROM addresses").get
            facts["other_ids"] = database.execute("SELECT count(*) FROM other_ids").get
            facts["bytes"] = self.path.stat().st_size
        return facts

    def unreadable(self) -> list[tuple[str, str, str]]:
        """What the build could not read: place, reason, detail."""
        with self._explained():
            return list(self._connection().execute("SELECT place, reason, detail FROM unreadable"))

    def _quoted(self, keyword: str) -> str:
        """A keyword as a quoted phrase of the query language: nothing in it is an operator."""
        words = clean(keyword)
        if len(words) > MAX_KEYWORD:
            raise MailSearchError(
                "mail.keyword-too-long", f"a keyword has {len(words)} characters; use at most {MAX_KEYWORD}"
            )
        tokenize = self._connection().fts5_tokenizer(TOKENIZER[0], list(TOKENIZER[1:]))
        if not tokenize(words.encode(), apsw.FTS5_TOKENIZE_QUERY, None):
            raise MailSearchError(
                "mail.keyword-without-words", f"keyword {words!r} has no letter or digit to search for; use words"
            )
        return '"' + words.replace('"', '""') + '"'

    def _find_address(self, text: str) -> int | None:
        number: int | None = self._connection().execute("SELECT address FROM addresses WHERE text = ?", (text,)).get
        return number

    def _find_text(self, address: int) -> str:
        return str(self._connection().execute("SELECT text FROM addresses WHERE address = ?", (address,)).get)

    def _find_size(self, term: str) -> tuple[int, float]:
        """How many messages the inbox with that term has, and how many words a message of it on average."""
        lengths = [words for (words,) in self._connection().execute(_LENGTHS, (term,))]
        return len(lengths), sum(lengths) / max(len(lengths), 1)

    def _find_count(self, term: str, phrase: str) -> int:
        """How many messages of the inbox with that term a phrase is in."""
        return int(next(self._connection().execute(_COUNT, (f"{phrase} AND {term}",)))[0])

    def _prepare_scorer(self, term: str, phrases: tuple[str, ...]) -> None:
        """Set the statistics that this thread's next query is ranked by: those of the inbox with that term alone."""
        messages, average = self._size(term)
        self._connection()  # makes this thread's scorer
        scorer: _Scorer = self._local.scorer
        scorer.average = max(average, 1.0)
        # A single weight changes no order.
        scorer.weights = [self._weight(term, phrase, messages) if phrases[1:] else 1.0 for phrase in phrases]

    def _weight(self, term: str, phrase: str, messages: int) -> float:
        count = self._count(term, phrase)
        return max(math.log((messages - count + 0.5) / (count + 0.5)), 1e-6)

    def _connection(self) -> apsw.Connection:
        """This thread's connection, made on its first use, and made anew after a fork."""
        if getattr(self._local, "process", None) != os.getpid():
            if _identity(self.path) != self._file:
                raise GumshoeError(
                    "mail.index-replaced", f"{self.path} was replaced after it was opened; open it again"
                )
            database = open_read_only(self.path)
            database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._local.scorer = scorer = _Scorer()
            database.register_fts5_function("relevance", scorer)
            database.register_fts5_function("words", lambda row, *_: row.column_size(0) + row.column_size(1))
            self._local.database, self._local.process = database, os.getpid()
        connection: apsw.Connection = self._local.database
        return connection

    def _explained(self) -> AbstractContextManager[None]:
        return damage_explained(self.path)


def _best(values: dict[str, Any], order: Order) -> str:
    """The query for the best or newest matches, with the conditions that `values` asks for."""
    conditions = ["search MATCH :match"]
    if values["after"] is not None:
        conditions.append("sent >= :after")
    if values["before"] is not None:
        conditions.append("sent < :before")
    if values.get("recipient", values["inbox"]) != values["inbox"]:
        conditions.append(f":recipient IN (SELECT address FROM ({_VISIBLE.format(message='messages.message')}))")  # noqa: S608
    score = "relevance(search) DESC, " if order == "relevance" else ""
    return (
        f"SELECT message FROM search CROSS JOIN messages ON message = search.rowid "  # noqa: S608 - fixed texts
        f"WHERE {' AND '.join(conditions)} ORDER BY {score}sent DESC, message LIMIT :limit"
    )


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells one file from another of the same name."""
    return (path.stat().st_dev, path.stat().st_ino) if path.exists() else None
