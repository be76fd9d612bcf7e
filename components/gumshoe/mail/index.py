"""Search one inbox, read one of its messages: the wall round a mailbox.

Every query carries the inbox as a term of the full-text expression, or as a condition of the SQL that finds the
message. Ranking uses the inbox's own statistics, so that what an inbox is shown is what it would be shown if it
were alone in the index.
"""

import json
import math
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import apsw

from gumshoe.errors import GumshoeError
from gumshoe.mail.message import Role, clean, normal_address, shown_date, to_utc
from gumshoe.mail.schema import TOKENIZER, VERSION, IndexFileError, address_term, index_file

Order = Literal["relevance", "date"]

MAX_LIMIT = 10
MAX_KEYWORDS = 32
MAX_KEYWORD = 200  # characters
SNIPPET_WORDS = 24

# Okapi BM25 as SQLite computes it (https://sqlite.org/fts5.html#the_bm25_function), over subject and body.
_K1, _B = 1.2, 0.75
_SUBJECT_WEIGHT = 2.0  # a word in the subject counts as often as two in the body
_CACHED = 10_000  # statistics kept in memory
_CACHE_KIB = 16_000  # of a connection; the operating system caches the file for all of them


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
_COUNT = "SELECT count(*) FROM search WHERE search MATCH ?"
_HIT = f"""
    SELECT message_id, sent, utc_offset, text, messages.subject, snippet(search, 1, '', '', ' … ', {SNIPPET_WORDS})
    FROM search JOIN messages ON message = search.rowid JOIN addresses ON address = messages.sender
    WHERE search MATCH ? AND search.rowid = ?
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


class SearchArgumentError(GumshoeError):
    """An argument of a search that cannot be carried out; the message says what to write instead."""


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
class Addressee:
    """Somebody a message was sent to, as the reading inbox may know it."""

    role: Role
    address: str
    name: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message, as the reading inbox may see it."""

    message_id: str
    sent: datetime | None
    """On the sender's clock; None where the message has no date."""
    sender: str
    sender_name: str
    recipients: tuple[Addressee, ...]
    """Blind copies are known to the sender, and to each who got one for themselves."""
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
        IndexFileError: there is none, it is damaged, or another version of Gumshoe built it.
    """

    def __init__(self, directory: Path) -> None:
        self.path = index_file(directory)
        if not self.path.is_file():
            raise IndexFileError(f"there is no index in {directory}; build one with `gumshoe mail index`")
        self._local = threading.local()
        self._statistics: dict[str, tuple[int, float]] = {}
        self._frequencies: dict[tuple[str, str], int] = {}
        with self._explained():
            schema = self._connection().execute("SELECT value FROM build WHERE name = 'schema'").get
        if schema != str(VERSION):
            raise IndexFileError(
                f"{self.path} was built by another version of Gumshoe (schema {schema}, not {VERSION}); build it again"
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
            IndexFileError: the file is damaged.
        """
        phrases = [self._phrase(keyword) for keyword in _keyword_list(keywords)]
        after, before = _moment("sent_after", sent_after), _moment("sent_before", sent_before)
        if after is not None and before is not None and after >= before:
            raise SearchArgumentError(f"sent_after {sent_after} is not earlier than sent_before {sent_before}")
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_LIMIT:
            raise SearchArgumentError(f"limit is {limit!r}; write a whole number from 1 to {MAX_LIMIT}")
        if order not in {"relevance", "date"}:
            raise SearchArgumentError(f"order is {order!r}; write 'relevance' or 'date'")
        owner = self._address(_full_address("inbox", inbox))
        people = {
            role: self._address(_full_address(role, text))
            for role, text in (("sender", sender), ("recipient", recipient))
            if text is not None
        }
        if owner is None or None in people.values():
            return []
        match = " AND ".join([*phrases, _belongs_to(owner)])
        if author := people.get("sender"):
            match += f' AND sender : "{address_term(author)}"'
        addressee = people.get("recipient")
        if addressee:
            match += f' AND recipients : "{address_term(addressee)}"'
        conditions = ["search MATCH :match"]
        if after is not None:
            conditions.append("sent >= :after")
        if before is not None:
            conditions.append("sent < :before")
        if addressee and addressee != owner:
            visible = _VISIBLE.format(message="messages.message")
            conditions.append(f":addressee IN (SELECT address FROM ({visible}))")  # noqa: S608 - fixed text
        values = {"match": match, "after": after, "before": before, "inbox": owner, "addressee": addressee}
        with self._explained():
            if order == "relevance":
                self._prepare_scorer(owner, phrases)
            numbers = self._best(conditions, values, limit, order)
            return [self._hit(number, match) for number in numbers]

    def _best(self, conditions: list[str], values: dict[str, Any], limit: int, order: Order) -> list[int]:
        score = "relevance(search) DESC, " if order == "relevance" else ""
        rows = self._connection().execute(
            f"SELECT message FROM search CROSS JOIN messages ON message = search.rowid "  # noqa: S608 - fixed texts
            f"WHERE {' AND '.join(conditions)} ORDER BY {score}sent DESC, message LIMIT {limit:d}",
            values,
        )
        return [number for (number,) in rows]

    def _hit(self, number: int, match: str) -> Hit:
        row = next(self._connection().execute(_HIT, (match, number)))
        message_id, sent, offset, sender, subject, snippet = row
        return Hit(message_id, shown_date(sent, offset), sender, subject, " ".join(snippet.split()))

    def read(self, inbox: str, message_id: str) -> Message:
        """One message of an inbox, by its id or by that of a dropped duplicate.

        Raises:
            MessageNotFoundError: the inbox holds no such message, wherever else it may be.
            SearchArgumentError: an argument is not of the right form.
            IndexFileError: the file is damaged.
        """
        owner = self._address(_full_address("inbox", inbox))
        if not isinstance(message_id, str):
            raise SearchArgumentError("message_id is not text; write an id as a search shows it")
        exact = clean(message_id).strip()
        bare = exact.strip("<>")  # agents lose the brackets
        values = {"inbox": owner, "exact": exact, "bare": bare, "bracketed": f"<{bare}>"}
        with self._explained():
            found = next(self._connection().execute(_READ, values), None)
            if found is None:
                raise MessageNotFoundError(f"there is no message {exact!r} in this inbox")
            number, kept_id, sent, offset, sender, sender_name, subject, body = found
            listed = self._connection().execute(
                _VISIBLE.format(message=":message"), {"message": number, "inbox": owner}
            )
            recipients = dict.fromkeys(Addressee(role, self._text(address), name) for role, address, name in listed)
        return Message(kept_id, shown_date(sent, offset), sender, sender_name, tuple(recipients), subject, body.strip())

    def stats(self) -> dict[str, Any]:
        """What built this index and what is in it: the facts of `BuildReport`, and counts."""
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

    def _phrase(self, keyword: str) -> str:
        """A keyword as a quoted phrase of the query language: nothing in it is an operator."""
        words = clean(keyword)
        if len(words) > MAX_KEYWORD:
            raise SearchArgumentError(f"a keyword has {len(words)} characters; use at most {MAX_KEYWORD}")
        tokenize = self._connection().fts5_tokenizer(TOKENIZER[0], list(TOKENIZER[1:]))
        if not tokenize(words.encode(), apsw.FTS5_TOKENIZE_QUERY, None):
            raise SearchArgumentError(f"keyword {words!r} has no letter or digit to search for; use words")
        return '"' + words.replace('"', '""') + '"'

    def _address(self, text: str) -> int | None:
        with self._explained():
            number: int | None = self._connection().execute("SELECT address FROM addresses WHERE text = ?", (text,)).get
        return number

    def _text(self, address: int) -> str:
        return str(self._connection().execute("SELECT text FROM addresses WHERE address = ?", (address,)).get)

    def _prepare_scorer(self, owner: int, phrases: list[str]) -> None:
        """Set the statistics that this thread's next query is ranked by, all of them the inbox's own."""
        database = self._connection()
        term = _belongs_to(owner)
        if term not in self._statistics:
            lengths = [words for (words,) in database.execute(_LENGTHS, (term,))]
            _remember(self._statistics, term, (len(lengths), sum(lengths) / max(len(lengths), 1)))
        messages, average = self._statistics[term]
        scorer: _Scorer = self._local.scorer
        scorer.average = max(average, 1.0)
        # A single weight changes no order.
        scorer.weights = [self._weight(term, phrase, messages) if phrases[1:] else 1.0 for phrase in phrases]

    def _weight(self, term: str, phrase: str, messages: int) -> float:
        count = self._frequencies.get((term, phrase))
        if count is None:
            rows = self._connection().execute(_COUNT, (f"{phrase} AND {term}",))
            _remember(self._frequencies, (term, phrase), count := next(rows)[0])
        return max(math.log((messages - count + 0.5) / (count + 0.5)), 1e-6)

    def _connection(self) -> apsw.Connection:
        """This thread's connection, made on its first use, and made anew after a fork."""
        if getattr(self._local, "process", None) != os.getpid():
            uri = f"file:{quote(str(self.path.absolute()))}?immutable=1"
            database = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
            database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._local.scorer = scorer = _Scorer()
            database.register_fts5_function("relevance", scorer)
            database.register_fts5_function("words", lambda row, *_: row.column_size(0) + row.column_size(1))
            self._local.database, self._local.process = database, os.getpid()
        connection: apsw.Connection = self._local.database
        return connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (apsw.NotADBError, apsw.CorruptError, apsw.IOError, apsw.CantOpenError, apsw.SQLError) as error:
            raise IndexFileError(f"{self.path} is damaged ({error}); fetch it again, or build it again") from error


def _belongs_to(owner: int) -> str:
    """The full-text expression of an inbox: its owner wrote or received the message."""
    return f'{{sender recipients}} : "{address_term(owner)}"'


def _remember(cache: dict[Any, Any], key: Any, value: Any) -> None:
    if len(cache) >= _CACHED:
        cache.clear()
    cache[key] = value


def _keyword_list(keywords: Any) -> list[str]:
    if not isinstance(keywords, list | tuple) or not all(isinstance(keyword, str) for keyword in keywords):
        raise SearchArgumentError('keywords is not a list of texts; write it as ["first", "second words"]')
    if not 1 <= len(keywords) <= MAX_KEYWORDS:
        raise SearchArgumentError(f"there are {len(keywords)} keywords; write 1 to {MAX_KEYWORDS}")
    return list(keywords)


def _full_address(name: str, text: Any) -> str:
    if not isinstance(text, str) or not re.fullmatch(r"\S+@\S+", address := normal_address(text)):
        raise SearchArgumentError(f"{name} is {text!r}; write a whole address, such as ann@example.com")
    return address


def _moment(name: str, value: Any) -> int | None:
    """Seconds since 1970 of a day, a moment, or the ISO 8601 text of either; without a zone it is UTC."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value.strip()) if isinstance(value, str) else value
        if not isinstance(moment, datetime):
            moment = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
        return to_utc(moment)[0]
    except (ValueError, AttributeError, OverflowError):
        raise SearchArgumentError(f"{name} is {value!r}, which is no date; write it as YYYY-MM-DD") from None
