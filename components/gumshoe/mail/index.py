"""Search one inbox and read its messages, isolated from all other inboxes.

Every query contains the inbox, as a term of the full-text expression or as a condition of the SQL that finds the
message. Ranking uses the statistics of that inbox only. Results are therefore the same as if the inbox were alone in
the index.
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

from gumshoe.artifacts.sqlite import explain_damage, open_read_only
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.mail.message import Recipient, clean, to_datetime
from gumshoe.mail.schema import TOKENIZER, VERSION, address_term, index_path
from gumshoe.mail.search_arguments import (
    MAX_KEYWORD_LENGTH,
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
_SUBJECT_WEIGHT = 2.0  # a word in the subject counts as much as two in the body
_RESULT_CACHE_SIZE = 1_000  # search results, and messages, in memory
_LOOKUP_CACHE_SIZE = 10_000  # statistics and addresses in memory
_CACHE_KIB = 2_000  # per connection; each thread has one, and the operating system caches the file for all

_COLUMNS = {"inbox": "{sender recipients}", "sender": "sender", "recipient": "recipients"}
# The recipients of {message} that an inbox may see. The sender sees all. Others see those of the copies that they
# received, without blind copies to somebody else.
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
# One pass over the matches: the `+` prevents SQLite from starting a slower query for each message.
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
    """The inbox contains no message with that id. Other inboxes are not mentioned."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result."""

    message_id: str
    sent: datetime | None
    """In the sender's time zone. None if the message has no date."""
    sender: str
    subject: str
    snippet: str
    """The part of the body that contains the keywords, at most `SNIPPET_WORDS` words on one line."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message, as the reading inbox may see it."""

    message_id: str
    sent: datetime | None
    """In the sender's time zone. None if the message has no date."""
    sender: str
    sender_name: str
    recipients: tuple[Recipient, ...]
    """Recipients visible to the reading inbox. A blind copy is visible to the sender and to its recipient."""
    subject: str
    body: str


@dataclass(slots=True)
class _Scorer:
    """Compute BM25 for the current row of a query. SQLite calls it for every match, so it is optimized for speed."""

    weights: list[float] = field(default_factory=list)
    """Inverse document frequency of each keyword, in the order of the query's phrases."""
    average: float = 1.0
    """Average number of words per message of this inbox."""

    def __call__(self, row: apsw.FTS5ExtensionApi, *_: object) -> float:
        norm = _K1 * (1 - _B) + _K1 * _B * (row.column_size(0) + row.column_size(1)) / self.average
        score = 0.0
        for phrase, weight in enumerate(self.weights):
            places = row.phrase_locations(phrase)
            frequency = _SUBJECT_WEIGHT * len(places[0]) + len(places[1])
            score += weight * frequency / (frequency + norm)
        return score * (_K1 + 1)


class MailIndex:
    """Search and read an index, opened read-only. Thread-safe and fork-safe.

    Raises on opening:
        UsageError: if there is no index.
        GumshoeError: if it is damaged, or another version of Gumshoe built it.
    """

    def __init__(self, directory: Path) -> None:
        self.path = index_path(directory)
        if not self.path.is_file():
            raise UsageError(
                "mail.no-index", f"{directory} contains no mail index; build one with `gumshoe mail index`"
            )
        self._file = _file_identity(self.path)
        self._local = threading.local()
        # The file never changes, and episodes of one group often send the same queries.
        self._hits = lru_cache(_RESULT_CACHE_SIZE)(self._find_hits)
        self._message = lru_cache(_RESULT_CACHE_SIZE)(self._find_message)
        self._phrase = lru_cache(_LOOKUP_CACHE_SIZE)(self._quote_keyword)
        self._address = lru_cache(_LOOKUP_CACHE_SIZE)(self._find_address)
        self._text = lru_cache(_LOOKUP_CACHE_SIZE)(self._find_text)
        self._size = lru_cache(_LOOKUP_CACHE_SIZE)(self._find_size)
        self._count = lru_cache(_LOOKUP_CACHE_SIZE)(self._find_count)
        with self._explain_damage():
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
        """Return the messages of an inbox that contain every keyword, sorted by relevance or newest first.

        A keyword with spaces is a phrase. Case and accents are ignored; everything except letters and digits only
        separates words. `sender` and `recipient` are complete addresses. `sent_after` is inclusive and `sent_before` is
        exclusive; a day (YYYY-MM-DD) begins at midnight UTC. A message without a date is found only if neither is
        given. `limit` is 1 to 10.

        Raises:
            MailSearchError: if an argument is invalid; the message says what to write instead.
            GumshoeError: if the file is damaged.
        """
        phrases = [self._phrase(keyword) for keyword in check_keywords(keywords)]
        after, before = check_period(sent_after, sent_before)
        check_choices(limit, order)
        addresses = [("inbox", check_address("inbox", inbox))]
        for role, text in (("sender", sender), ("recipient", recipient)):
            if text is not None:
                addresses.append((role, check_address(role, text)))
        return [*self._hits(tuple(phrases), tuple(addresses), after, before, limit, order)]

    def _find_hits(
        self,
        phrases: tuple[str, ...],
        addresses: tuple[tuple[str, str], ...],
        after: int | None,
        before: int | None,
        limit: int,
        order: Order,
    ) -> tuple[Hit, ...]:
        with self._explain_damage():
            people = {role: self._address(text) for role, text in addresses}
            if None in people.values():  # the address does not occur in the index
                return ()
            terms = [f'{_COLUMNS[role]} : "{address_term(number)}"' for role, number in people.items() if number]
            match = " AND ".join([*phrases, *terms])
            if order == "relevance":
                self._prepare_scorer(terms[0], phrases)
            values: dict[str, Any] = {"match": match, "after": after, "before": before, "limit": limit, **people}
            numbers: list[Any] = [
                number for (number,) in self._connection().execute(_best_matches_query(values, order), values)
            ]
            rows = self._connection().execute(_HITS, (match, json.dumps(numbers))) if numbers else ()
            hits = {
                number: Hit(message_id, to_datetime(moment, offset), sender, subject, " ".join(snippet.split()))
                for number, message_id, moment, offset, sender, subject, snippet in rows
            }
        return tuple(hits[number] for number in numbers)

    def read(self, inbox: str, message_id: str) -> Message:
        """Return one message of an inbox, by its id or by the id of a dropped duplicate.

        Raises:
            MessageNotFoundError: if the inbox does not contain the message, even if another inbox does.
            MailSearchError: if an argument is invalid.
            GumshoeError: if the file is damaged.
        """
        owner = check_address("inbox", inbox)
        if not isinstance(message_id, str):
            raise MailSearchError("mail.invalid-message-id", "message_id is not text; write an id as a search shows it")
        return self._message(owner, clean(message_id).strip())

    def _find_message(self, owner: str, exact: str) -> Message:
        bare = exact.strip("<>")  # agents often drop the brackets
        with self._explain_damage():
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
        return Message(
            kept_id, to_datetime(sent, offset), sender, sender_name, tuple(recipients), subject, body.strip()
        )

    def list_messages(self, inbox: str) -> list[tuple[str, datetime | None]]:
        """Return id and time (UTC) of all messages of an inbox, oldest first. Messages without a date come last.

        Raises:
            MailSearchError: if the inbox is not a complete address.
            GumshoeError: if the file is damaged.
        """
        owner = check_address("inbox", inbox)
        with self._explain_damage():
            number = self._address(owner)
            if number is None:
                return []
            rows = self._connection().execute(_LISTED, (f'{_COLUMNS["inbox"]} : "{address_term(number)}"',))
            return [(message_id, to_datetime(sent, None)) for message_id, sent in rows]

    def stats(self) -> dict[str, Any]:
        """Return statistics of the index and how it was built: the fields of `MailBuildReport`, and counts."""
        with self._explain_damage():
            database = self._connection()
            facts = {name: json.loads(value) for name, value in database.execute("SELECT name, value FROM build")}
            first, last = next(database.execute("SELECT min(sent), max(sent) FROM messages"))
            facts["first_sent"], facts["last_sent"] = (
                moment.isoformat() if (moment := to_datetime(sent, None)) else None for sent in (first, last)
            )
            facts["addresses"] = database.execute("SELECT count(*) FROM addresses").get
            facts["other_ids"] = database.execute("SELECT count(*) FROM other_ids").get
            facts["bytes"] = self.path.stat().st_size
        return facts

    def list_unreadable(self) -> list[tuple[str, str, str]]:
        """Return place, reason and detail of each item that the build could not read."""
        with self._explain_damage():
            return list(self._connection().execute("SELECT place, reason, detail FROM unreadable"))

    def _quote_keyword(self, keyword: str) -> str:
        """Return a keyword as a quoted phrase of the query language, so that nothing in it is an operator."""
        words = clean(keyword)
        if len(words) > MAX_KEYWORD_LENGTH:
            raise MailSearchError(
                "mail.keyword-too-long", f"a keyword has {len(words)} characters; use at most {MAX_KEYWORD_LENGTH}"
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
        """Return the number of messages of the inbox with that term, and their average number of words."""
        lengths = [words for (words,) in self._connection().execute(_LENGTHS, (term,))]
        return len(lengths), sum(lengths) / max(len(lengths), 1)

    def _find_count(self, term: str, phrase: str) -> int:
        """Return the number of messages of the inbox with that term that contain a phrase."""
        return int(next(self._connection().execute(_COUNT, (f"{phrase} AND {term}",)))[0])

    def _prepare_scorer(self, term: str, phrases: tuple[str, ...]) -> None:
        """Set the statistics for ranking this thread's next query: those of the inbox with that term only."""
        messages, average = self._size(term)
        self._connection()  # creates this thread's scorer
        scorer: _Scorer = self._local.scorer
        scorer.average = max(average, 1.0)
        # A single weight does not change the order.
        scorer.weights = [self._weight(term, phrase, messages) if phrases[1:] else 1.0 for phrase in phrases]

    def _weight(self, term: str, phrase: str, messages: int) -> float:
        count = self._count(term, phrase)
        return max(math.log((messages - count + 0.5) / (count + 0.5)), 1e-6)

    def _connection(self) -> apsw.Connection:
        """Return this thread's connection, created on first use and again after a fork."""
        if getattr(self._local, "process", None) != os.getpid():
            if _file_identity(self.path) != self._file:
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

    def _explain_damage(self) -> AbstractContextManager[None]:
        return explain_damage(self.path)


def _best_matches_query(values: dict[str, Any], order: Order) -> str:
    """Return the SQL for the best or newest matches, with the conditions present in `values`."""
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


def _file_identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode, which distinguish files of the same name."""
    return (path.stat().st_dev, path.stat().st_ino) if path.exists() else None
