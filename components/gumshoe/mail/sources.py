"""Sources of mail: `maildir:`, `mbox:`, `eml:`, `jsonl:` and `hf:`, on disk or on S3."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from gumshoe.artifacts import source_files
from gumshoe.artifacts.hub import explain_dataset_errors, open_dataset
from gumshoe.artifacts.lines import GZIP_ERRORS, file_size, read_lines
from gumshoe.artifacts.source_files import UnreadableItem, list_files, read_files, read_json_lines
from gumshoe.artifacts.storage import Entry, Storage
from gumshoe.errors import UsageError
from gumshoe.mail.message import ParsedMessage
from gumshoe.mail.records import parse_record
from gumshoe.mail.rfc822 import parse_message

FORMS = (
    "maildir:DIR, mbox:FILE[.gz], eml:DIR, jsonl:FILE[.gz] (each a path, file:// or s3://) or hf:DATASET[@SPLIT], "
    "such as hf:corbt/enron-emails"
)
_KINDS = ("maildir", "mbox", "eml", "jsonl", "hf")
_FROM_LINE = re.compile(rb"From \S.*\d\d:\d\d.*\b\d{4}")  # separator line between two messages of an mbox
_FROM_DATE = re.compile(rb"[A-Z][a-z]{2},? +(?:\d+ +)?[A-Z][a-z]{2} +\d.*")
_QUOTED_FROM = re.compile(rb"^>(>*From )", re.M)
_SERVER_FILE_PREFIXES = (
    "dovecot",
    "courier",
    "maildirfolder",
    "maildirsize",
    "subscriptions",
    "shared-",
    "cyrus.",
    "sieve",
)


Source = source_files.Source[ParsedMessage]


def open_source(uri: str) -> Source:
    """Open the source that a URI names.

    Raises:
        UsageError: if the URI has no known form, or nothing of that kind exists there.
        StorageError, UnavailableError: if the source cannot be listed.
    """
    openers: dict[str, Callable[[str, str], Source]] = {
        "maildir": _DirectoryMail.open_maildir,
        "eml": _DirectoryMail.open_eml,
        "mbox": _Mbox.open,
        "jsonl": _JsonlMail.open,
        "hf": _DatasetMail.open,
    }
    return source_files.open_source(uri, openers, "mail", FORMS)


def split_source(uri: str) -> tuple[str, str]:
    """Return the kind of a source and its place.

    Raises:
        UsageError: if the URI has no known form.
    """
    return source_files.split_source(uri, _KINDS, "mail", FORMS)


@dataclass(frozen=True, slots=True)
class _DirectoryMail:
    """A directory of raw messages, one per file."""

    uri: str
    total: int | None
    storage: Storage
    files: list[Entry]

    @classmethod
    def open_maildir(cls, uri: str, place: str) -> "_DirectoryMail":
        """Open a Maildir, or any tree of raw files such as the public Enron release."""
        storage, entries = list_files(uri, place)
        folders = {str(PurePosixPath(entry.key).parent) for entry in entries}
        boxes = {
            str(PurePosixPath(folder).parent) for folder in folders if PurePosixPath(folder).name in {"cur", "new"}
        }
        return cls._create(uri, storage, [entry for entry in entries if _is_mail_file(PurePosixPath(entry.key), boxes)])

    @classmethod
    def open_eml(cls, uri: str, place: str) -> "_DirectoryMail":
        storage, entries = list_files(uri, place)
        return cls._create(uri, storage, [entry for entry in entries if entry.key.lower().endswith(".eml")])

    @classmethod
    def _create(cls, uri: str, storage: Storage, files: list[Entry]) -> "_DirectoryMail":
        if not files:
            raise UsageError("mail.no-messages", f"{uri} contains no message files; check the directory")
        return cls(uri, sum(entry.size for entry in files), storage, files)

    def read(self, advance: Callable[[int], object]) -> Iterator[ParsedMessage | UnreadableItem]:
        for entry, raw in read_files(self.storage, self.files):
            where = f"{self.storage.uri}/{entry.key}"
            advance(entry.size)
            yield (
                parse_message(raw, where)
                if isinstance(raw, bytes)
                else UnreadableItem(where, "cannot be opened", raw.message_with_code)
            )


def _is_mail_file(path: PurePosixPath, boxes: set[str]) -> bool:
    """Return True if a file of a tree is a message. Servers store files of their own beside a Maildir's folders."""
    if path.name.startswith(".") or (path.parent.name == "tmp" and str(path.parent.parent) in boxes):
        return path.parent.name in {"cur", "new"}
    return str(path.parent) not in boxes or not path.name.startswith(_SERVER_FILE_PREFIXES)


@dataclass(frozen=True, slots=True)
class _Mbox:
    """One file of messages, each after a line that starts with `From `."""

    uri: str
    total: int | None
    place: str

    @classmethod
    def open(cls, uri: str, place: str) -> "_Mbox":
        total = file_size(place)
        try:
            first = next(read_lines(place), b"")
        except GZIP_ERRORS as error:
            raise UsageError("mail.not-gzip", f"{uri}: cannot unpack the file: {error}; check the file") from None
        if total and not first.startswith(b"From "):
            raise UsageError(
                "mail.unreadable-mbox", f"{uri} is not an mbox: its first line does not start with 'From '"
            )
        return cls(uri, total, place)

    def read(self, advance: Callable[[int], object]) -> Iterator[ParsedMessage | UnreadableItem]:
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
        except GZIP_ERRORS as error:
            yield UnreadableItem(self.place, "damaged file", str(error))
        if separator:
            yield self._message(lines, number + 1, separator)

    def _message(self, lines: list[bytes], number: int, separator: bytes) -> ParsedMessage | UnreadableItem:
        raw = _QUOTED_FROM.sub(rb"\1", b"\n".join(lines))
        written = _FROM_DATE.search(separator)
        return parse_message(raw, f"{self.place}#{number}", written[0].decode("latin-1") if written else "")


@dataclass(frozen=True, slots=True)
class _JsonlMail:
    """A file of JSON objects, one per line: message_id, date, from, to, cc, bcc, subject, body, and x_from if known."""

    uri: str
    total: int | None
    place: str

    @classmethod
    def open(cls, uri: str, place: str) -> "_JsonlMail":
        return cls(uri, file_size(place), place)

    def read(self, advance: Callable[[int], object]) -> Iterator[ParsedMessage | UnreadableItem]:
        for found in read_json_lines(self.place, advance):
            yield found if isinstance(found, UnreadableItem) else parse_record(found[1], found[0])


@dataclass(frozen=True, slots=True)
class _DatasetMail:
    """A dataset of the Hugging Face hub, or a local directory of one, streamed. Fields are those of `_JsonlMail`."""

    uri: str
    total: int | None
    records: Iterable[Any]

    @classmethod
    def open(cls, uri: str, _: str) -> "_DatasetMail":
        return cls(uri, None, open_dataset(uri))

    def read(self, advance: Callable[[int], object]) -> Iterator[ParsedMessage | UnreadableItem]:  # noqa: ARG002 - no bytes
        with explain_dataset_errors(self.uri):
            for number, record in enumerate(self.records, 1):
                yield parse_record(record, f"{self.uri}#{number}")
