"""Other ways to search mail, for comparison: a plain SQLite database, Tantivy, Xapian and notmuch.

All hold the same messages and confine each search to one inbox. Each returns ids, subjects, senders and snippets of at
most ten messages; notmuch has no snippets, and does not sort by relevance. Stems are English, except in the plain
database, which has none. Xapian and notmuch do not stem the words of phrases. Only ours and notmuch also search the
names of senders and recipients.
"""

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import formatdate
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from gumshoe.mail.search_arguments import Order
from tests.benchmarks.mail_corpus import OWNER, Query

LIMIT = 10
_DEBIAN = "/usr/lib/python3/dist-packages"
_SNIPPET = 150  # characters


class Mail(NamedTuple):
    """A message as other engines index it."""

    message_id: str
    sent: int
    """Seconds since 1970, UTC."""
    sender: str
    subject: str
    body: str
    inboxes: list[str]


class Searcher(Protocol):
    """An index that can be searched."""

    name: ClassVar[str]
    orders: ClassVar[tuple[Order, ...]]

    def open(self) -> None:
        """Open the index, without anything that earlier searches left in memory."""

    def search(self, query: Query, order: Order) -> list[str]:
        """Return the ids of the best or newest messages."""
        ...


class Engine(Searcher, Protocol):
    """A search engine that may be installed."""

    needs: ClassVar[str]
    """Python module."""
    install: ClassVar[str]
    """Command that installs it."""
    directory: Path

    def __init__(self, directory: Path) -> None:
        """Use a directory for the index."""

    def build(self, mail: Iterator[Mail]) -> None:
        """Index messages."""


def import_system_module(name: str) -> Any:
    """Import a module, also from Debian's packages if it is not installed here."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        sys.path.append(_DEBIAN)
        try:
            return import_module(name)
        finally:
            sys.path.remove(_DEBIAN)


def find_engines(names: list[str]) -> list[type[Engine]]:
    """Return the engines that are installed, and print how to install the others."""
    found = []
    for name in names:
        engine = ENGINES[name]
        try:
            import_system_module(engine.needs)
        except ImportError:
            print(f"{name} is left out because it is not installed: {engine.install}")
        else:
            found.append(engine)
    return found


def to_seconds(day: str | None) -> int | None:
    return None if day is None else int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp())


class Plain:
    """A loop that inserts messages one by one into tables of messages and recipients and an FTS5 table.

    The query matches the text, and then checks for each match if the inbox is a recipient.
    """

    name: ClassVar[str] = "plain"
    orders: ClassVar[tuple[Order, ...]] = ("date", "relevance")

    def __init__(self, path: Path, tokenizer: str = "unicode61 remove_diacritics 2") -> None:
        self.path, self._tokenizer = path, tokenizer

    def build(self, messages: Iterable[dict[str, Any]], owner: str | None = None) -> None:
        """Insert messages. With an owner, all of them are in the owner's inbox too."""
        database = self._create_tables()
        seen: dict[tuple[str, str, str], int | None] = {}
        for message in messages:
            everyone = message["to"] + message["cc"] + message["bcc"]
            addresses = {each.strip().lower() for each in [message["from"], *everyone]} | ({owner} if owner else set())
            key = (message["subject"], message["body"], message["from"])
            if len(message["body"]) > 5000 or len(everyone) > 30:
                continue
            if key in seen:  # recipients of the duplicate find the message too
                pairs = [(seen[key], address) for address in addresses]
                database.executemany("INSERT OR IGNORE INTO recipients VALUES (?, ?)", pairs)
                continue
            sent = int(datetime.fromisoformat(message["date"]).timestamp())
            number = database.execute(
                "INSERT INTO messages (message_id, sent, sender, subject, body) VALUES (?, ?, ?, ?, ?)",
                (message["message_id"], sent, message["from"], message["subject"], message["body"]),
            ).lastrowid
            seen[key] = number
            for address in addresses:
                database.execute("INSERT INTO recipients VALUES (?, ?)", (number, address))
            database.execute(
                "INSERT INTO text (rowid, subject, body) VALUES (?, ?, ?)",
                (number, message["subject"], message["body"]),
            )
        database.commit()
        database.close()

    def _create_tables(self) -> sqlite3.Connection:
        self.path.unlink(missing_ok=True)
        database = sqlite3.connect(self.path)
        database.executescript(
            f"""
            PRAGMA journal_mode = off; PRAGMA synchronous = off;
            CREATE TABLE messages (
                id INTEGER PRIMARY KEY, message_id TEXT UNIQUE, sent INTEGER, sender TEXT, subject TEXT, body TEXT
            );
            CREATE TABLE recipients (message INTEGER, address TEXT, PRIMARY KEY (message, address)) WITHOUT ROWID;
            CREATE VIRTUAL TABLE text USING fts5(
                subject, body, content='messages', content_rowid='id', tokenize='{self._tokenizer}'
            );
            """
        )
        return database

    def open(self) -> None:
        self._database = sqlite3.connect(self.path)

    def search(self, query: Query, order: Order, operator: str = "AND") -> list[str]:
        """Return the ids of messages with all words, or with any of them (`OR`)."""
        match = f" {operator} ".join(f'"{keyword}"' for keyword in query.keywords)
        first, last = to_seconds(query.after), to_seconds(query.before)
        by = "sent DESC, id" if order == "date" else "rank"
        rows = self._database.execute(
            "SELECT message_id, snippet(text, 1, '', '', ' … ', 24) FROM text JOIN messages ON id = text.rowid "
            "WHERE text MATCH ? AND (? IS NULL OR sent >= ?) AND (? IS NULL OR sent < ?) "
            "AND EXISTS (SELECT 1 FROM recipients WHERE message = id AND address = ?) "
            f"ORDER BY {by} LIMIT {LIMIT}",
            (match, first, first, last, last, query.inbox),
        )
        return [message_id for message_id, _ in rows]

    def read_all(self) -> Iterator[Mail]:
        """Yield the messages that are kept, each once, for other engines."""
        rows = sqlite3.connect(self.path).execute(
            "SELECT message_id, sent, sender, subject, body, "
            "(SELECT group_concat(address, ' ') FROM recipients WHERE message = id) FROM messages ORDER BY id"
        )
        for message_id, sent, sender, subject, body, addresses in rows:
            yield Mail(message_id, sent, sender, subject, body, addresses.split())


class Tantivy:
    """The inbox is a filter on a field. Dates are sorted by a fast field."""

    name: ClassVar[str] = "tantivy"
    needs: ClassVar[str] = "tantivy"
    install: ClassVar[str] = "pip install tantivy"
    orders: ClassVar[tuple[Order, ...]] = ("date", "relevance")

    def __init__(self, directory: Path) -> None:
        self._library = import_system_module("tantivy")
        self.directory = directory
        schema = self._library.SchemaBuilder()
        for name in ("message_id", "sender", "subject"):
            schema.add_text_field(name, stored=True, tokenizer_name="raw", index_option="basic")
        schema.add_text_field("inbox", tokenizer_name="raw", index_option="basic")
        schema.add_text_field("text", stored=True, tokenizer_name="en_stem")
        schema.add_integer_field("sent", indexed=True, fast=True)
        self._schema = schema.build()

    def build(self, mail: Iterator[Mail]) -> None:
        self.directory.mkdir()
        writer = self._library.Index(self._schema, str(self.directory)).writer()
        for each in mail:
            document = self._library.Document(
                message_id=each.message_id,
                sender=each.sender,
                subject=each.subject,
                inbox=each.inboxes,
                text=f"{each.subject}\n{each.body}",
                sent=each.sent,
            )
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()

    def open(self) -> None:
        self._index = self._library.Index(self._schema, str(self.directory))
        self._searcher = self._index.searcher()

    def search(self, query: Query, order: Order) -> list[str]:
        tantivy = self._library
        kind, must = tantivy.Query, tantivy.Occur.Must
        inbox = kind.const_score_query(kind.term_query(self._schema, "inbox", query.inbox), 0.0)
        words = [self._index.parse_query(f'"{keyword}"', ["text"]) for keyword in query.keywords]
        period = []
        if query.after is not None:
            start, end = to_seconds(query.after), to_seconds(query.before)
            whole = kind.range_query(self._schema, "sent", tantivy.FieldType.Integer, start, end, include_upper=False)
            period = [kind.const_score_query(whole, 0.0)]
        everything = kind.boolean_query([(must, each) for each in (inbox, *words, *period)])
        by = "sent" if order == "date" else None
        found = self._searcher.search(everything, LIMIT, count=False, order_by_field=by)
        shown = kind.boolean_query([(must, each) for each in words])
        snippets = tantivy.SnippetGenerator.create(self._searcher, shown, self._schema, "text")
        snippets.set_max_num_chars(_SNIPPET)
        ids = []
        for _, address in found.hits:
            document = self._searcher.doc(address)
            snippets.snippet_from_doc(document).fragment()
            ids.append(document.get_first("message_id"))
        return ids


class Xapian:
    """The inbox is a boolean term. Dates are sorted by a value, as in notmuch."""

    name: ClassVar[str] = "xapian"
    needs: ClassVar[str] = "xapian"
    install: ClassVar[str] = "apt-get install python3-xapian"
    orders: ClassVar[tuple[Order, ...]] = ("date", "relevance")
    _MAX_TERM = 240  # bytes

    def __init__(self, directory: Path) -> None:
        self._library = import_system_module("xapian")
        self.directory = directory
        self._stemmer = self._library.Stem("english")

    def _inbox_term(self, inbox: str) -> bytes:
        return f"XI{inbox}".encode()[: self._MAX_TERM]

    def build(self, mail: Iterator[Mail]) -> None:
        xapian = self._library
        database = xapian.WritableDatabase(str(self.directory), xapian.DB_CREATE_OR_OVERWRITE)
        words = xapian.TermGenerator()
        words.set_stemmer(self._stemmer)
        for each in mail:
            document = xapian.Document()
            words.set_document(document)
            words.index_text(each.subject)
            words.increase_termpos()
            words.index_text(each.body)
            for inbox in each.inboxes:
                document.add_boolean_term(self._inbox_term(inbox))
            document.add_value(0, xapian.sortable_serialise(each.sent))
            document.set_data(json.dumps([each.message_id, each.sender, each.subject, each.body]))
            database.add_document(document)
        database.commit()
        database.close()

    def open(self) -> None:
        xapian = self._library
        self._database = xapian.Database(str(self.directory))
        self._parser = xapian.QueryParser()
        self._parser.set_stemmer(self._stemmer)
        self._parser.set_stemming_strategy(xapian.QueryParser.STEM_SOME)
        self._parser.set_default_op(xapian.Query.OP_AND)
        self._parser.set_database(self._database)

    def search(self, query: Query, order: Order) -> list[str]:
        xapian = self._library
        text = " ".join(f'"{keyword}"' if " " in keyword else keyword for keyword in query.keywords)
        filters = xapian.Query(self._inbox_term(query.inbox))
        if query.after is not None:
            start, end = to_seconds(query.after), to_seconds(query.before)
            ends = xapian.sortable_serialise(start), xapian.sortable_serialise((end or 0) - 1)
            period = xapian.Query(xapian.Query.OP_VALUE_RANGE, 0, *ends)
            filters = xapian.Query(xapian.Query.OP_AND, filters, period)
        words = self._parser.parse_query(text, xapian.QueryParser.FLAG_PHRASE)
        enquire = xapian.Enquire(self._database)
        enquire.set_query(xapian.Query(xapian.Query.OP_FILTER, words, filters))
        if order == "date":
            enquire.set_weighting_scheme(xapian.BoolWeight())
            enquire.set_sort_by_value(0, True)
        found = enquire.get_mset(0, LIMIT)
        ids = []
        for match in found:
            message_id, _, _, body = json.loads(match.document.get_data())
            found.snippet(body, _SNIPPET, self._stemmer)
            ids.append(message_id)
        return ids


class Notmuch:
    """The inbox is a condition on senders and recipients; a database of one person's mail has none."""

    name: ClassVar[str] = "notmuch"
    needs: ClassVar[str] = "notmuch2"
    install: ClassVar[str] = "apt-get install notmuch python3-notmuch2"
    orders: ClassVar[tuple[Order, ...]] = ("date",)
    _OPERATORS = frozenset({"and", "or", "not", "xor", "near", "adj"})

    def __init__(self, directory: Path) -> None:
        self._library = import_system_module("notmuch2")
        self.directory, self._config = directory, directory / "config"

    def build(self, mail: Iterator[Mail]) -> None:
        """Write each message into a file, and index the files."""
        for number, each in enumerate(mail):
            path = self.directory / str(number // 1000) / f"{number}.eml"
            path.parent.mkdir(parents=True, exist_ok=True)
            headers = {
                "From": each.sender,
                "To": ", ".join(address for address in each.inboxes if address != each.sender),
                "Subject": " ".join(each.subject.split()),
                "Message-ID": each.message_id,
                "Date": formatdate(each.sent),
                "MIME-Version": "1.0",
                "Content-Type": "text/plain; charset=utf-8",
                "Content-Transfer-Encoding": "8bit",
            }
            lines = [f"{name}: {value}" for name, value in headers.items()]
            path.write_text("\n".join([*lines, "", each.body]))
        self._config.write_text(f"[database]\npath={self.directory}\n[new]\ntags=\nignore=config\n")
        environment = {**os.environ, "NOTMUCH_CONFIG": str(self._config)}
        subprocess.run(["notmuch", "new", "--quiet"], env=environment, check=True)

    def open(self) -> None:
        self._database = self._library.Database(str(self.directory), config=str(self._config))

    def search(self, query: Query, order: Order) -> list[str]:
        if order not in self.orders:
            raise ValueError(f"notmuch does not sort by {order}")
        conditions = [
            f'"{keyword}"' if " " in keyword or keyword in self._OPERATORS else keyword for keyword in query.keywords
        ]
        if query.inbox != OWNER:
            address = " ".join(re.findall(r"\w+", query.inbox))  # two dots would be a range
            conditions.append(f'(from:"{address}" or to:"{address}")')
        if query.after is not None:
            conditions.append(f"date:@{to_seconds(query.after)}..@{(to_seconds(query.before) or 0) - 1}")
        found = self._database.messages(" and ".join(conditions), sort=self._library.Database.SORT.NEWEST_FIRST)
        ids = []
        for message in islice(found, LIMIT):
            with suppress(LookupError):  # an empty header
                message.header("From"), message.header("Subject")
            ids.append(f"<{message.messageid}>")
        return ids


ENGINES: dict[str, type[Engine]] = {each.name: each for each in (Tantivy, Xapian, Notmuch)}
