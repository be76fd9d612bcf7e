"""Build an index: read the sources, leave out what the options say, write one SQLite file, whole or not at all."""

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

from gumshoe.artifacts.private_data import mark
from gumshoe.artifacts.source_files import Unreadable
from gumshoe.artifacts.storage import directory_lock, explain_os_errors, is_partial
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.mail.message import ParsedMessage, Recipient, clean
from gumshoe.mail.schema import INDEXES, TABLES, VERSION, address_term, index_file
from gumshoe.mail.sources import Source, open_source
from gumshoe.terminal import progress

_BATCH = 2000
_HASH_BYTES = 64 << 20  # words gathered in memory before a piece of the full-text index is written
_MERGED_ABOVE = 50_000  # messages; the pieces of a smaller full-text index are searched as fast as one
_CACHE_KIB = 200_000


@dataclass(frozen=True, slots=True)
class MailBuildOptions:
    """What is kept out of an index. The defaults are the published recipe for the public Enron mail (ART-E)."""

    max_body: int | None = 5000
    """Longest body kept, in characters; None keeps all."""
    max_recipients: int | None = 30
    """Most recipients (to, cc and bcc together) of a message that is kept; None keeps all."""
    drop_duplicates: bool = True
    """Keep only the first message of each (subject, body, sender)."""


@dataclass(slots=True)
class MailBuildReport:
    """What a build read, kept and left out."""

    messages: int = 0
    """Messages in the index."""
    read: int = 0
    """Messages that could be read."""
    kept_out: Counter[str] = field(default_factory=Counter)
    """Messages left out, by reason."""
    unreadable: Counter[str] = field(default_factory=Counter)
    """Things that could not be read as a message, by reason; the table `unreadable` lists each."""
    without_date: int = 0
    without_id: int = 0
    content: str = ""
    """Digest of all that is in the index: equal for equal input and options."""
    seconds: float = 0


def build_index(
    sources: Iterable[str], directory: Path, options: MailBuildOptions | None = None, *, replace: bool = False
) -> MailBuildReport:
    """Index the messages of some sources into `directory/mail.sqlite`.

    The file appears when it is whole. A build that ends early leaves nothing that looks finished, and the next
    one removes what it left. With `replace`, an index that is there already is replaced in one step; threads that
    have the old one open go on reading it, and a `MailIndex` opens no other in its place.

    Raises:
        UsageError: a source is not there, or not what it is said to be; or there is an index already.
        UnavailableError: another build is under way.
        GumshoeError: the index cannot be written.
    """
    started = time.monotonic()
    opened = [open_source(uri) for uri in sources]
    if not opened:
        raise UsageError("mail.no-sources", "no source was given; name one or more sources to index")
    final = index_file(directory)
    with explain_os_errors(directory), directory_lock(directory, wait=None) as lock:
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
        for left in filter(lambda path: is_partial(path.name), list(directory.iterdir())):  # by a build that was killed
            left.unlink()
        try:
            report = _build(opened, partial, options or MailBuildOptions(), started)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            mark(directory, None)
            partial.replace(final)
        finally:
            partial.unlink(missing_ok=True)
    report.seconds = time.monotonic() - started
    return report


def _build(sources: list[Source], path: Path, options: MailBuildOptions, started: float) -> MailBuildReport:
    totals = [source.total for source in sources]
    total = None if None in totals else sum(filter(None, totals))
    database = _open(path)
    try:
        measured = total is not None  # else messages are counted
        with (
            progress("Indexing", total=total, in_bytes=measured) as advance,
            _MailWriter(database) as writer,
            _without_collector(),
        ):
            builder = _Builder(options, writer)
            for items in _batches(_read(sources, advance if measured else _ignore), _BATCH):
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
        if builder.report.messages > _MERGED_ABOVE:
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


def _open(path: Path) -> apsw.Connection:
    """A new file, written without a journal: until it is moved into place, nobody else reads it."""
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
    for merging in (("automerge", 0), ("crisismerge", 1999)):  # once, at the end, instead of again and again
        database.execute("INSERT INTO search(search, rank) VALUES (?, ?)", merging)
    return database


def _ignore(_: int) -> None:
    """Takes no account of bytes."""


def _read(sources: list[Source], advance: Callable[[int], object]) -> Iterator[ParsedMessage | Unreadable]:
    for source in sources:
        yield from source.read(advance)


def _batches(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(itertools.islice(items, size)):
        yield batch


@contextmanager
def _without_collector() -> Iterator[None]:
    """Without Python's cycle collector, which would walk millions of live rows again and again and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Builder:
    """Decides what is kept, numbers messages and addresses, and hands rows to the writer."""

    def __init__(self, options: MailBuildOptions, writer: "_MailWriter") -> None:
        self.report = MailBuildReport()
        self._options, self._writer = options, writer
        self._addresses: dict[str, int] = {}
        self._terms = [""]  # by number of address; numbers start at 1
        self._by_content: dict[bytes, int] = {}
        self._by_id: dict[str, int] = {}
        self._shared: set[tuple[str, int]] = set()  # ids that name more than one message, and the later ones
        self._content = blake2b(repr((VERSION, options)).encode(), digest_size=32)
        self._copies: dict[int, list[list[Recipient]]] = {}

    def add(self, items: list[ParsedMessage | Unreadable]) -> None:
        """Take in one batch."""
        rows = _MailRows()
        for item in items:
            if isinstance(item, Unreadable):
                self.report.unreadable[item.reason] += 1
                rows.unreadable.append((clean(item.where), item.reason, clean(item.detail)))
            else:
                self._add_message(item, rows)
        self._writer.write(rows)

    def _add_message(self, message: ParsedMessage, rows: "_MailRows") -> None:
        report, options = self.report, self._options
        report.read += 1
        report.without_id += message.invented_id
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
            self._keep(message, digest, rows)
            return
        # Another message under a used id must neither hide nor be hidden: it gets a name of its own, and the id stays
        # another name of it for whoever holds it.
        given = message.message_id
        named = self._by_id.get(next(_other_names(given, digest)))
        if named is not None and named == same:
            self._add_duplicate(message, named, rows)
            return
        message.message_id = next(name for name in _other_names(given, digest) if name not in self._by_id)
        rows.other_ids.append((given, report.messages + 1))
        self._shared.add((given, report.messages + 1))
        self._keep(message, digest, rows)

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

    def _keep(self, message: ParsedMessage, digest: bytes, rows: "_MailRows") -> None:
        self.report.messages += 1
        number = self.report.messages
        self._by_id[message.message_id] = number
        self._by_content.setdefault(digest, number)
        envelope = (message.message_id, message.sent, message.utc_offset, message.sender_name)
        self._content.update(digest + repr(envelope).encode())
        sender = self._address(message.sender, rows)
        addressed = self._add_recipients(number, 0, message.recipients, rows)
        rows.messages.append((number, *envelope[:3], sender, message.sender_name, message.subject))
        rows.bodies.append((number, message.body, self._joined_terms(addressed)))

    def _add_recipients(self, number: int, copy: int, recipients: list[Recipient], rows: "_MailRows") -> list[int]:
        known = self._addresses.get
        addresses = [known(each.address) or self._address(each.address, rows) for each in recipients]
        listed = [(each.role, address, each.name) for each, address in zip(recipients, addresses, strict=True)]
        addressed = orjson.dumps(listed)
        self._content.update(addressed)
        rows.envelopes.append((number, copy, addressed.decode()))
        return addresses

    def _address(self, text: str, rows: "_MailRows") -> int:
        number = self._addresses.get(text)
        if number is None:
            number = self._addresses[text] = len(self._terms)
            self._terms.append(address_term(number))
            rows.addresses.append((number, text))
            self._content.update(f"{text}\n".encode())
        return number

    def _joined_terms(self, addresses: list[int]) -> str:
        terms = self._terms
        return " ".join([terms[address] for address in dict.fromkeys(addresses)])

    def finish(self) -> None:
        """Let whoever received only a dropped duplicate find the message that was kept."""
        rows = _MailRows()
        for number, copies in sorted(self._copies.items()):  # the full-text index likes rising numbers
            sender, addressed = self._writer.addresses_of(number)
            known = {sender, *addressed}
            count = 0
            for recipients in copies:
                if {self._addresses.get(recipient.address) for recipient in recipients} <= known:
                    continue
                count += 1
                addressed += self._add_recipients(number, count, recipients, rows)
                known.update(addressed)
            if count:
                rows.readdressed.append((self._joined_terms(addressed), number))
        self._writer.write(rows)
        self._writer.wait()
        self.report.content = self._content.hexdigest()


def _other_names(message_id: str, digest: bytes) -> Iterator[str]:
    """Names for a message whose id is used, the same for the same content and order."""
    yield f"{message_id}#{digest.hex()}"
    yield from (f"{message_id}#{digest.hex()}-{count}" for count in itertools.count(2))


@dataclass(slots=True)
class _MailRows:
    """What one batch adds to each table."""

    addresses: list[tuple[int, str]] = field(default_factory=list)
    messages: list[tuple[int, str, int | None, int | None, int, str, str]] = field(default_factory=list)
    bodies: list[tuple[int, str, str]] = field(default_factory=list)
    envelopes: list[tuple[int, int, str]] = field(default_factory=list)
    other_ids: list[tuple[str, int]] = field(default_factory=list)
    unreadable: list[tuple[str, str, str]] = field(default_factory=list)
    readdressed: list[tuple[str, int]] = field(default_factory=list)
    """New terms of all who received a message that is in already, and its number."""


class _MailWriter:
    """Writes rows; SQLite indexes their words in a thread of its own while the next batch is read.

    One statement a batch does the indexing, outside the interpreter's lock; nothing else uses the connection
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
        """Write one batch and begin to index its words."""
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
        """Put the words of some messages into the full-text index, or with the command 'delete' take them out."""
        self._database.execute(
            "INSERT INTO search(search, rowid, subject, body, sender, recipients) "  # noqa: S608 - two fixed words
            f"SELECT {command}, message, subject, body, sender, recipients "
            "FROM json_each(?) CROSS JOIN indexed ON message = value",
            (json.dumps(numbers),),
        )

    def wait(self) -> None:
        """Until what was written is indexed. Raises what went wrong with it."""
        if self._indexing is not None:
            self._indexing.result()
            self._indexing = None

    def addresses_of(self, number: int) -> tuple[int, list[int]]:
        """The sender and the recipients of a message that was written."""
        self.wait()
        sender = self._database.execute("SELECT sender FROM messages WHERE message = ?", (number,)).get
        rows = self._database.execute(
            "SELECT address FROM recipients WHERE message = ? AND copy = 0 ORDER BY position", (number,)
        )
        return sender, [address for (address,) in rows]
