"""Sources of mail: `maildir:`, `mbox:`, `eml:`, `pst:`, `jsonl:`, `hf:` and `imap:`, on disk, on S3 or on a server."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from gumshoe.artifacts import source_files
from gumshoe.artifacts.hub import explain_dataset_errors, open_dataset
from gumshoe.artifacts.lines import GZIP_ERRORS, file_size, read_blocks, read_lines
from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.artifacts.storage import InvalidUriError, open_uri
from gumshoe.errors import UsageError
from gumshoe.mail.archives import is_archive
from gumshoe.mail.imap import ImapMail
from gumshoe.mail.items import MailSource, RawItem, RawLine, RawRecord
from gumshoe.mail.mail_directory import DirectorySource, open_mbox_directory
from gumshoe.mail.mbox import START_SIZE, MboxFile, MboxSource, starts_like_mbox
from gumshoe.mail.outlook import OLE_MAGIC
from gumshoe.mail.pst import PstSource
from gumshoe.mail.states import find_folder_state, is_sent_folder

FORMS = (
    "maildir:DIR, mbox:FILE[.gz], mbox:DIR, eml:DIR, pst:FILE, jsonl:FILE[.gz] (each a path, file:// or s3://; a DIR "
    "may be a .zip or .tgz file), imap://USER@HOST[:PORT]/[FOLDER,...] or hf:DATASET[@SPLIT], such as "
    "hf:corbt/enron-emails"
)
# First bytes of files that are given as an mbox by mistake, and what to do.
_OTHER_FORMATS = {
    b"PK\x03\x04": "; it is a zip archive: give it a name that ends in .zip",
    b"\x1f\x8b": "; it is compressed: give it a name that ends in .gz, or in .tgz if it is an archive",
    b"!BDN": "; it is a mailbox of Outlook: use pst:FILE",
    OLE_MAGIC: "; it is a message of Outlook: use eml:DIR for its directory",
    b"{": "; it looks like JSON: use jsonl:FILE",
    b"SQLite format 3": "; it is a database; export the mail as mbox",
}


def open_source(uri: str) -> MailSource:
    """Open the source that a URI names.

    Raises:
        UsageError: if the URI has no known form, or nothing of that kind exists there.
        StorageError, UnavailableError: if the source cannot be listed.
    """
    return source_files.open_source(uri, _OPENERS, "mail", FORMS)


def split_source(uri: str) -> tuple[str, str]:
    """Return the kind of a source and its place.

    Raises:
        UsageError: if the URI has no known form.
    """
    return source_files.split_source(uri, _OPENERS, "mail", FORMS)


def _open_mbox(uri: str, place: str) -> MailSource:
    """Open one mbox file, or the mbox files of a directory or archive."""
    if is_archive(place) or ("://" not in place and Path(place).is_dir()):
        return open_mbox_directory(uri, place)
    try:
        total = file_size(place)
    except InvalidUriError as error:
        if error.code != "store.is-a-directory":
            raise
        return open_mbox_directory(uri, place)
    try:
        with open_uri(place) as file:
            first = next(read_blocks(file, place, size=START_SIZE), b"")
    except GZIP_ERRORS as error:
        raise UsageError("mail.not-gzip", f"{uri}: cannot unpack the file: {error}; check the file") from None
    if total and not starts_like_mbox(first):
        hint = next((hint for start, hint in _OTHER_FORMATS.items() if first.startswith(start)), "")
        raise UsageError(
            "mail.unreadable-mbox", f"{uri} is not an mbox: its first line does not start with 'From '{hint}"
        )
    name = unquote(PurePosixPath(place).name)
    box = MboxFile(place, partial(open_uri, place), find_folder_state(name), is_sent_folder(name))
    return MboxSource(uri, total, [box])


@dataclass(frozen=True, slots=True)
class _JsonlMail(MailSource):
    """A file of JSON objects, one per line: message_id, date, from, to, cc, bcc, subject, body, and x_from if known."""

    place: str

    @classmethod
    def open(cls, uri: str, place: str) -> "_JsonlMail":
        return cls(uri, file_size(place), place)

    def read_raw(self, advance: Callable[[int], object]) -> Iterator[RawItem]:
        try:
            for number, line in enumerate(read_lines(self.place, advance), 1):
                if line.strip():
                    yield RawLine(f"{self.place}:{number}", line)
        except GZIP_ERRORS as error:
            yield UnreadableItem(self.place, "damaged file", str(error))


@dataclass(frozen=True, slots=True)
class _DatasetMail(MailSource):
    """A dataset of the Hugging Face hub, or a local directory of one, streamed. Fields are those of `_JsonlMail`."""

    records: Iterable[Any]

    @classmethod
    def open(cls, uri: str, _: str) -> "_DatasetMail":
        return cls(uri, None, open_dataset(uri))

    def read_raw(self, advance: Callable[[int], object]) -> Iterator[RawItem]:  # noqa: ARG002 - no bytes
        with explain_dataset_errors(self.uri):
            for number, record in enumerate(self.records, 1):
                yield RawRecord(f"{self.uri}#{number}", record)


_OPENERS: dict[str, Callable[[str, str], MailSource]] = {
    "maildir": DirectorySource.open_maildir,
    "eml": DirectorySource.open_eml,
    "mbox": _open_mbox,
    "pst": PstSource.open,
    "jsonl": _JsonlMail.open,
    "hf": _DatasetMail.open,
    "imap": ImapMail.open,
    "imaps": ImapMail.open,
}
