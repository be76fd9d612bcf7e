"""Where mail comes from: `maildir:`, `mbox:`, `eml:`, `jsonl:` and `hf:`, on disk or on S3."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from itertools import chain, repeat
from pathlib import PurePosixPath
from typing import Any

from gumshoe.artifacts import source_files
from gumshoe.artifacts.hub import dataset_errors_explained, open_dataset
from gumshoe.artifacts.lines import DAMAGED, file_size, read_lines
from gumshoe.artifacts.source_files import Unreadable, files_below, read_files, read_json_lines
from gumshoe.artifacts.storage import Entry, Storage
from gumshoe.errors import UsageError
from gumshoe.mail.message import (
    ROLES,
    ParsedMessage,
    Recipient,
    Role,
    clean,
    clean_line,
    invent_id,
    known_date,
    normal_address,
    parse_date,
    to_utc,
)
from gumshoe.mail.rfc822 import listed_addresses, parse_message, shorten_name

FORMS = (
    "maildir:DIR, mbox:FILE[.gz], eml:DIR, jsonl:FILE[.gz] (each a path, file:// or s3://) or hf:DATASET[@SPLIT], "
    "such as hf:corbt/enron-emails"
)
_KINDS = ("maildir", "mbox", "eml", "jsonl", "hf")
_FIELDS = {"message_id", "date", "from", *ROLES, "subject", "body", "x_from"}
_NOBODY = Recipient("to", "")
_FROM_LINE = re.compile(rb"From \S.*\d\d:\d\d.*\b\d{4}")  # the line between two messages of an mbox
_FROM_DATE = re.compile(rb"[A-Z][a-z]{2},? +(?:\d+ +)?[A-Z][a-z]{2} +\d.*")
_QUOTED_FROM = re.compile(rb"^>(>*From )", re.M)
_SERVERS_FILES = ("dovecot", "courier", "maildirfolder", "maildirsize", "subscriptions", "shared-", "cyrus.", "sieve")


Source = source_files.Source[ParsedMessage]


def open_source(uri: str) -> Source:
    """The source that a URI names.

    Raises:
        UsageError: the URI is of no known form, or nothing of that kind lies there.
        StorageError, UnavailableError: the place could not be looked into.
    """
    openers: dict[str, Callable[[str, str], Source]] = {
        "maildir": _DirectoryMail.maildir,
        "eml": _DirectoryMail.eml,
        "mbox": _Mbox.at,
        "jsonl": _JsonlMail.at,
        "hf": _DatasetMail.named,
    }
    return source_files.open_source(uri, openers, "mail", FORMS)


def split_source(uri: str) -> tuple[str, str]:
    """The kind of a source and its place.

    Raises:
        UsageError: the URI is of no known form.
    """
    return source_files.split_source(uri, _KINDS, "mail", FORMS)


@dataclass(frozen=True, slots=True)
class _DirectoryMail:
    """A directory of raw messages, one a file."""

    uri: str
    total: int | None
    storage: Storage
    files: list[Entry]

    @classmethod
    def maildir(cls, uri: str, place: str) -> "_DirectoryMail":
        """A Maildir, or any tree of raw files such as the public Enron release."""
        storage, entries = files_below(uri, place)
        folders = {str(PurePosixPath(entry.key).parent) for entry in entries}
        boxes = {
            str(PurePosixPath(folder).parent) for folder in folders if PurePosixPath(folder).name in {"cur", "new"}
        }
        return cls.of(uri, storage, [entry for entry in entries if _is_mail_file(PurePosixPath(entry.key), boxes)])

    @classmethod
    def eml(cls, uri: str, place: str) -> "_DirectoryMail":
        storage, entries = files_below(uri, place)
        return cls.of(uri, storage, [entry for entry in entries if entry.key.lower().endswith(".eml")])

    @classmethod
    def of(cls, uri: str, storage: Storage, files: list[Entry]) -> "_DirectoryMail":
        if not files:
            raise UsageError("mail.no-messages", f"{uri} contains no message files; check the directory")
        return cls(uri, sum(entry.size for entry in files), storage, files)

    def read(self, advance: Callable[[int], object]) -> Iterator[ParsedMessage | Unreadable]:
        for entry, raw in read_files(self.storage, self.files):
            where = f"{self.storage.uri}/{entry.key}"
            advance(entry.size)
            yield (
                parse_message(raw, where)
                if isinstance(raw, bytes)
                else Unreadable(where, "cannot be opened", raw.message_with_code)
            )


def _is_mail_file(path: PurePosixPath, boxes: set[str]) -> bool:
    """Whether a file of a tree is to be a message. Servers keep files of their own beside a Maildir's folders."""
    if path.name.startswith(".") or (path.parent.name == "tmp" and str(path.parent.parent) in boxes):
        return path.parent.name in {"cur", "new"}
    return str(path.parent) not in boxes or not path.name.startswith(_SERVERS_FILES)


@dataclass(frozen=True, slots=True)
class _Mbox:
    """One file of messages, each after a line that starts with `From `."""

    uri: str
    total: int | None
    place: str

    @classmethod
    def at(cls, uri: str, place: str) -> "_Mbox":
        total = file_size(place)
        try:
            first = next(read_lines(place), b"")
        except DAMAGED as error:
            raise UsageError("mail.not-gzip", f"{uri}: cannot unpack the file: {error}; check the file") from None
        if total and not first.startswith(b"From "):
            raise UsageError(
                "mail.unreadable-mbox", f"{uri} is not an mbox: its first line does not start with 'From '"
            )
        return cls(uri, total, place)

    def read(self, advance: Callable[[int], object]) -> Iterator[ParsedMessage | Unreadable]:
        lines: list[bytes] = []
        number = 0
        separator = b""
        try:
            for line in read_lines(self.place, advance):
                if not separator or ((not lines or not lines[-1].strip()) and _FROM_LINE.match(line)):
                    if separator:
                        number += 1
                        yield self._message(lines, number, separator)
                    lines, separator = [], line
                else:
                    lines.append(line)
        except DAMAGED as error:
            yield Unreadable(self.place, "damaged file", str(error))
        if separator:
            yield self._message(lines, number + 1, separator)

    def _message(self, lines: list[bytes], number: int, separator: bytes) -> ParsedMessage | Unreadable:
        raw = _QUOTED_FROM.sub(rb"\1", b"\n".join(lines))
        written = _FROM_DATE.search(separator)
        return parse_message(raw, f"{self.place}#{number}", written[0].decode("latin-1") if written else "")


@dataclass(frozen=True, slots=True)
class _JsonlMail:
    """One JSON object a line: message_id, date, from, to, cc, bcc, subject, body, and x_from where known."""

    uri: str
    total: int | None
    place: str

    @classmethod
    def at(cls, uri: str, place: str) -> "_JsonlMail":
        return cls(uri, file_size(place), place)

    def read(self, advance: Callable[[int], object]) -> Iterator[ParsedMessage | Unreadable]:
        for found in read_json_lines(self.place, advance):
            yield found if isinstance(found, Unreadable) else parse_record(found[1], found[0])


@dataclass(frozen=True, slots=True)
class _DatasetMail:
    """A dataset of the Hugging Face hub, or a local directory of one, streamed. Fields as in `_JsonlMail`."""

    uri: str
    total: int | None
    records: Iterable[Any]

    @classmethod
    def named(cls, uri: str, _: str) -> "_DatasetMail":
        return cls(uri, None, open_dataset(uri))

    def read(self, advance: Callable[[int], object]) -> Iterator[ParsedMessage | Unreadable]:  # noqa: ARG002 - no bytes
        with dataset_errors_explained(self.uri):
            for number, record in enumerate(self.records, 1):
                yield parse_record(record, f"{self.uri}#{number}")


def parse_record(record: Any, where: str) -> ParsedMessage | Unreadable:
    """A message given as fields. What is missing is left empty; what is of the wrong type is `Unreadable`."""
    if not isinstance(record, dict) or not any(name in record for name in ("body", "subject", "from", "message_id")):
        return Unreadable(where, "not a message record", "no body, subject, from or message_id")
    field = record.get
    try:
        sent, offset = _record_date(field("date"))
        sender = next(iter(_recipients("to", field("from"))), _NOBODY)
        recipients = [
            *_recipients("to", field("to")),
            *_recipients("cc", field("cc")),
            *_recipients("bcc", field("bcc")),
        ]
        subject, body, message_id, x_from = [
            "" if text is None else text for text in map(field, ("subject", "body", "message_id", "x_from"))
        ]
        subject, body, message_id = clean_line(subject), clean(body), clean_line(message_id)
        name = sender.name or shorten_name(x_from)
    except (TypeError, AttributeError):
        return Unreadable(where, "wrong type of field", ", ".join(_types(record)))
    return ParsedMessage(
        message_id=message_id or invent_id(sender.address, str(sent), subject, body),
        sent=sent,
        utc_offset=offset,
        sender=sender.address,
        sender_name=name,
        recipients=recipients,
        subject=subject,
        body=body,
        invented_id=not message_id,
    )


def _types(record: dict[str, Any]) -> Iterator[str]:
    """What each field of a record is that should be something else."""
    for name in sorted(_FIELDS & record.keys()):
        value = record[name]
        fitting = (str, date, int, float) if name == "date" else str
        for each in value if name in {"from", *ROLES} and isinstance(value, list | tuple) else [value]:
            if each is not None and not isinstance(each, fitting):
                yield f"{name} is, or holds, {type(each).__name__}"


def _record_date(value: Any) -> tuple[int | None, int | None]:
    if isinstance(value, str):
        return parse_date(value)
    if isinstance(value, datetime):
        return known_date(*to_utc(value))
    if isinstance(value, date):
        return known_date(*to_utc(datetime(value.year, value.month, value.day)))  # noqa: DTZ001 - taken as UTC
    if value is None:
        return None, None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return known_date(value, None)
    raise TypeError(f"date is {type(value).__name__}, not text or a time")


def _recipients(role: Role, value: Any) -> Iterable[Recipient]:
    """The addressees in a list of addresses, or in one string of them."""
    if not value:
        return ()
    if isinstance(value, list | tuple):
        return chain.from_iterable(map(_addressed, repeat(role), value))
    return _addressed(role, value, several=True)


@lru_cache(1 << 16)  # few people receive most mail
def _addressed(role: Role, text: Any, several: bool = False) -> tuple[Recipient, ...]:
    if text is None:
        return ()
    if not isinstance(text, str):
        raise TypeError(f"an address is {type(text).__name__}, not text")
    if not several and "<" not in text:
        return (Recipient(role, address),) if (address := normal_address(text)) else ()
    named = [(normal_address(address), clean_line(name).strip("'\"")) for name, address in listed_addresses(text)]
    return tuple(Recipient(role, address, name) for address, name in named if address)
