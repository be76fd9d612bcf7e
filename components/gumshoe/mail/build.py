"""Build an index: read the sources, skip messages by the options, and write one SQLite file in one step."""

import gc
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import apsw
import orjson

from gumshoe.artifacts.private_data import mark_private
from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.artifacts.storage import explain_os_errors, is_partial, lock_directory
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.mail.message import ParsedMessage, Recipient, clean
from gumshoe.mail.schema import INDEXES, TABLES, VERSION, address_term, index_path
from gumshoe.mail.sources import Source, open_source
from gumshoe.terminal import progress

_BATCH = 2000
_HASH_BYTES = 64 << 20  # words collected in memory before a segment of the full-text index is written
_MERGE_ABOVE = 50_000  # messages; below, merging the segments of the full-text index gains nothing
_CACHE_KIB = 200_000


@dataclass(frozen=True, slots=True)
class MailBuildOptions:
    """Limits above which messages are skipped.

    The defaults are the published recipe for the public Enron mail (ART-E).
    """

    max_body: int | None = 5000
    """Maximum body length in characters. None means no limit."""
    max_recipients: int | None = 30
    """Maximum number of recipients (to, cc and bcc together). None means no limit."""
    drop_duplicates: bool = True
    """Keep only the first message of each (subject, body, sender)."""


@dataclass(slots=True)
class MailBuildReport:
    """Numbers of messages that a build read, indexed and skipped."""

    messages: int = 0
    """Messages in the index."""
    read: int = 0
    """Messages that could be read."""
    kept_out: Counter[str] = field(default_factory=Counter)
    """Skipped messages, by reason."""
    unreadable: Counter[str] = field(default_factory=Counter)
    """Items that could not be read as a message, by reason. The table `unreadable` lists each."""
    without_date: int = 0
    without_id: int = 0
    content: str = ""
    """Digest of the index's content. Equal input and options give an equal digest."""
    seconds: float = 0


def build_mail_index(
    sources: Iterable[str], directory: Path, options: MailBuildOptions | None = None, *, replace: bool = False
) -> MailBuildReport:
    """Index the messages of some sources into `directory/mail.sqlite`.

    The file appears when it is complete. An interrupted build leaves nothing that looks finished, and the next build
    removes its files. With `replace`, an existing index is replaced in one step. Threads that have the old one open
    continue to read it, and their `MailIndex` does not open the new one.

    Raises:
        UsageError: if a source does not exist or has another format, or there is an index already.
        UnavailableError: if another build is in progress.
        GumshoeError: if the index cannot be written.
    """
    started = time.monotonic()
    opened = [open_source(uri) for uri in sources]
    if not opened:
        raise UsageError("mail.no-sources", "no source was given; name one or more sources to index")
    final = index_path(directory)
    with explain_os_errors(directory), lock_directory(directory, wait=None) as lock:
        if lock is None:
            raise UnavailableError(
                "mail.index-busy",
                f"another process is building an index in {directory}; wait for it, or choose another directory",
            )
        if final.exists() and not replace:
            raise UsageError(
                "mail.index-exists",
                f"{directory} contains an index already; choose another directory, or replace it with --replace",
            )
        partial = final.with_name(f".{final.name}.partial")
        partial.unlink(missing_ok=True)
        for left in filter(lambda path: is_partial(path.name), list(directory.iterdir())):  # of a killed build
            left.unlink()
        try:
            report = _build(opened, partial, options or MailBuildOptions(), started)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            mark_private(directory, None)
            partial.replace(final)
        finally:
            partial.unlink(missing_ok=True)
    report.seconds = time.monotonic() - started
    return report


def _build(sources: list[Source], path: Path, options: MailBuildOptions, started: float) -> MailBuildReport:
    totals = [source.total for source in sources]
    total = None if None in totals else sum(filter(None, totals))
    database = _create_database(path)
    try:
        measured = total is not None  # otherwise messages are counted
        with (
            progress("Indexing", total=total, in_bytes=measured) as advance,
            _MailWriter(database) as writer,
            _pause_garbage_collection(),
        ):
            builder = _Builder(options, writer)
            for items in _split_batches(_read_all(sources, advance if measured else _ignore_bytes), _BATCH):
                builder.add(items)
                pace = builder.report.read / (time.monotonic() - started)
                advance(0 if measured else len(items), note=f"{builder.report.read:,} messages, {pace:,.0f}/s")
            builder.finish()
        facts = {
            "schema": VERSION,
            "sources": [source.uri for source in sources],
            "options": asdict(options),
            "built": datetime.now(UTC).isoformat(timespec="seconds"),
            **{
                each.name: getattr(builder.report, each.name)
                for each in fields(MailBuildReport)
                if each.name != "seconds"
            },
        }
        rows = [(name, json.dumps(value)) for name, value in facts.items()]
        database.executemany("INSERT INTO build VALUES (?, ?)", rows)
        if builder.report.messages > _MERGE_ABOVE:
            database.execute("INSERT INTO search(search) VALUES ('optimize')")
        database.execute(INDEXES)
        database.execute("COMMIT")
        return builder.report
    except (apsw.FullError, apsw.IOError, apsw.CantOpenError) as error:
        raise GumshoeError(
            "mail.index-not-written", f"cannot write {path}: {error}; free space on its disk, then try again"
        ) from None
    finally:
        database.close()


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
    database.execute("INSERT INTO search(search, rank) VALUES ('hashsize', ?)", (_HASH_BYTES,))
    for merging in (("automerge", 0), ("crisismerge", 1999)):  # merge once, at the end
        database.execute("INSERT INTO search(search, rank) VALUES (?, ?)", merging)
    return database


def _ignore_bytes(_: int) -> None:
    """Ignore the number of bytes."""


def _read_all(sources: list[Source], advance: Callable[[int], object]) -> Iterator[ParsedMessage | UnreadableItem]:
    for source in sources:
        yield from source.read(advance)


def _split_batches(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(itertools.islice(items, size)):
        yield batch


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Pause Python's cyclic garbage collector, which would repeatedly walk millions of live rows and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Builder:
    """Select messages, number messages and addresses, and pass rows to the writer."""

    def __init__(self, options: MailBuildOptions, writer: "_MailWriter") -> None:
        self.report = MailBuildReport()
        self._options, self._writer = options, writer
        self._addresses: dict[str, int] = {}
        self._terms = [""]  # by address number; numbers start at 1
        self._by_content: dict[bytes, int] = {}
        self._by_id: dict[str, int] = {}
        self._shared: set[tuple[str, int]] = set()  # ids of several messages, with the later messages
        self._content = blake2b(repr((VERSION, options)).encode(), digest_size=32)
        self._copies: dict[int, list[list[Recipient]]] = {}

    def add(self, items: list[ParsedMessage | UnreadableItem]) -> None:
        """Add one batch."""
        rows = _MailRows()
        for item in items:
            if isinstance(item, UnreadableItem):
                self.report.unreadable[item.reason] += 1
                rows.unreadable.append((clean(item.where), item.reason, clean(item.detail)))
            else:
                self._add_message(item, rows)
        self._writer.write(rows)

    def _add_message(self, message: ParsedMessage, rows: "_MailRows") -> None:
        report, options = self.report, self._options
        report.read += 1
        report.without_id += message.has_generated_id
        report.without_date += message.sent is None
        if options.max_body is not None and len(message.body) > options.max_body:
            report.kept_out["long body"] += 1
            return
        if options.max_recipients is not None and len(message.recipients) > options.max_recipients:
            report.kept_out["many recipients"] += 1
            return
        content = f"{message.subject}\0{message.body}\0{message.sender}".encode()
        digest = blake2b(content, digest_size=16).digest()
        same = self._by_content.get(digest)
        known = self._by_id.get(message.message_id)
        if same is not None and (options.drop_duplicates or known == same):
            self._add_duplicate(message, same, rows)
            return
        if known is None:
            self._add_new(message, digest, rows)
            return
        # A different message with a used id must not hide the first one, nor be hidden by it. It gets an id of its
        # own, and its inboxes can still find it by the id it came with.
        original_id = message.message_id
        existing = self._by_id.get(next(_generate_alternative_ids(original_id, digest)))
        if existing is not None and existing == same:
            self._add_duplicate(message, existing, rows)
            return
        message.message_id = next(
            name for name in _generate_alternative_ids(original_id, digest) if name not in self._by_id
        )
        rows.other_ids.append((original_id, report.messages + 1))
        self._shared.add((original_id, report.messages + 1))
        self._add_new(message, digest, rows)

    def _add_duplicate(self, message: ParsedMessage, kept: int, rows: "_MailRows") -> None:
        self.report.kept_out["duplicate"] += 1
        self._copies.setdefault(kept, []).append(message.recipients)
        name = (message.message_id, kept)
        known = self._by_id.get(message.message_id)
        if known == kept or name in self._shared:
            return
        if known is None:
            self._by_id[message.message_id] = kept
        else:
            self._shared.add(name)
        rows.other_ids.append(name)
        self._content.update(f"={message.message_id}\0{kept}\n".encode())

    def _add_new(self, message: ParsedMessage, digest: bytes, rows: "_MailRows") -> None:
        self.report.messages += 1
        number = self.report.messages
        self._by_id[message.message_id] = number
        self._by_content.setdefault(digest, number)
        envelope = (message.message_id, message.sent, message.utc_offset, message.sender_name)
        self._content.update(digest + repr(envelope).encode())
        sender = self._get_address_number(message.sender, rows)
        addressed = self._add_recipients(number, 0, message.recipients, rows)
        rows.messages.append((number, *envelope[:3], sender, message.sender_name, message.subject))
        rows.bodies.append((number, message.body, self._join_terms(addressed)))

    def _add_recipients(self, number: int, copy: int, recipients: list[Recipient], rows: "_MailRows") -> list[int]:
        known = self._addresses.get
        addresses = [known(each.address) or self._get_address_number(each.address, rows) for each in recipients]
        listed = [(each.role, address, each.name) for each, address in zip(recipients, addresses, strict=True)]
        addressed = orjson.dumps(listed)
        self._content.update(addressed)
        rows.envelopes.append((number, copy, addressed.decode()))
        return addresses

    def _get_address_number(self, text: str, rows: "_MailRows") -> int:
        number = self._addresses.get(text)
        if number is None:
            number = self._addresses[text] = len(self._terms)
            self._terms.append(address_term(number))
            rows.addresses.append((number, text))
            self._content.update(f"{text}\n".encode())
        return number

    def _join_terms(self, addresses: list[int]) -> str:
        terms = self._terms
        return " ".join([terms[address] for address in dict.fromkeys(addresses)])

    def finish(self) -> None:
        """Make the kept message visible to inboxes that received only a dropped duplicate of it."""
        rows = _MailRows()
        for number, copies in sorted(self._copies.items()):  # the full-text index is faster with ascending numbers
            sender, addressed = self._writer.read_addresses(number)
            known = {sender, *addressed}
            count = 0
            for recipients in copies:
                if {self._addresses.get(recipient.address) for recipient in recipients} <= known:
                    continue
                count += 1
                addressed += self._add_recipients(number, count, recipients, rows)
                known.update(addressed)
            if count:
                rows.readdressed.append((self._join_terms(addressed), number))
        self._writer.write(rows)
        self._writer.wait()
        self.report.content = self._content.hexdigest()


def _generate_alternative_ids(message_id: str, digest: bytes) -> Iterator[str]:
    """Yield ids for a message whose id is used. Equal content and order give equal ids."""
    yield f"{message_id}#{digest.hex()}"
    yield from (f"{message_id}#{digest.hex()}-{count}" for count in itertools.count(2))


@dataclass(slots=True)
class _MailRows:
    """Rows that one batch adds to each table."""

    addresses: list[tuple[int, str]] = field(default_factory=list)
    messages: list[tuple[int, str, int | None, int | None, int, str, str]] = field(default_factory=list)
    bodies: list[tuple[int, str, str]] = field(default_factory=list)
    envelopes: list[tuple[int, int, str]] = field(default_factory=list)
    other_ids: list[tuple[str, int]] = field(default_factory=list)
    unreadable: list[tuple[str, str, str]] = field(default_factory=list)
    readdressed: list[tuple[str, int]] = field(default_factory=list)
    """New recipient terms of a message that is indexed already, and its number."""


class _MailWriter:
    """Write rows, and let SQLite index their words in a thread while the next batch is read.

    One statement per batch does the indexing and releases the interpreter's lock. Nothing else uses the connection
    meanwhile.
    """

    def __init__(self, database: apsw.Connection) -> None:
        self._database = database
        self._thread = ThreadPoolExecutor(1)
        self._indexing: Future[None] | None = None

    def __enter__(self) -> "_MailWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def write(self, rows: _MailRows) -> None:
        """Write one batch and start to index its words."""
        self.wait()
        insert = self._database.executemany
        insert("INSERT INTO addresses VALUES (?, ?)", rows.addresses)
        insert("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?)", rows.messages)
        insert("INSERT INTO bodies VALUES (?, ?, ?)", rows.bodies)
        insert("INSERT INTO envelopes VALUES (?, ?, ?)", rows.envelopes)
        insert("INSERT INTO other_ids VALUES (?, ?)", rows.other_ids)
        insert("INSERT INTO unreadable VALUES (?, ?, ?)", rows.unreadable)
        if changed := [number for _, number in rows.readdressed]:
            self._index("'delete'", changed)
            insert("UPDATE bodies SET addressed = ? WHERE message = ?", rows.readdressed)
            self._index("NULL", changed)
        if rows.messages:
            self._indexing = self._thread.submit(self._index, "NULL", [number for number, *_ in rows.messages])

    def _index(self, command: str, numbers: list[int]) -> None:
        """Add the words of some messages to the full-text index, or remove them with the command 'delete'."""
        self._database.execute(
            "INSERT INTO search(search, rowid, subject, body, sender, recipients) "  # noqa: S608 - two fixed words
            f"SELECT {command}, message, subject, body, sender, recipients "
            "FROM json_each(?) CROSS JOIN indexed ON message = value",
            (json.dumps(numbers),),
        )

    def wait(self) -> None:
        """Wait until everything written is indexed. Raise the error if indexing failed."""
        if self._indexing is not None:
            self._indexing.result()
            self._indexing = None

    def read_addresses(self, number: int) -> tuple[int, list[int]]:
        """Return the sender and the recipients of a written message."""
        self.wait()
        sender = self._database.execute("SELECT sender FROM messages WHERE message = ?", (number,)).get
        rows = self._database.execute(
            "SELECT address FROM recipients WHERE message = ? AND copy = 0 ORDER BY position", (number,)
        )
        return sender, [address for (address,) in rows]
