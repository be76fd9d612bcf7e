"""Directories of mail, and archives of them: files with one message each, and mbox files."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from gumshoe.artifacts.lines import GZIP_ERRORS, read_blocks
from gumshoe.artifacts.source_files import Files, UnreadableItem, list_files, read_files
from gumshoe.artifacts.storage import Entry, StorageError
from gumshoe.errors import UsageError
from gumshoe.mail.archives import is_archive, open_archive
from gumshoe.mail.items import MailSource, RawFile, RawItem, RawMessage
from gumshoe.mail.mbox import ONE_LARGE_MESSAGE, START_SIZE, MboxFile, MboxSource, split_mbox, starts_like_mbox
from gumshoe.mail.message import State
from gumshoe.mail.states import find_file_state, find_folder_state, is_sent_folder

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
_MESSAGE_SUFFIXES = (".eml", ".emlx", ".msg")
_PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_MBOX_SUFFIXES = (".mbox", ".mbx", ".mbox.gz", ".mbox.bz2", ".mbox.xz", ".mbx.gz")
# Files beside mbox files: indexes of mail programs, and settings. They are not opened.
_NO_MBOX_SUFFIXES = (".msf", ".dat", ".json", ".sqlite", ".html", ".plist", ".js", ".ini", ".eml", ".emlx", ".msg")


@dataclass(frozen=True, slots=True)
class DirectorySource(MailSource):
    """Files with one message each."""

    files: Files
    entries: list[Entry]
    unread: list[UnreadableItem]
    """Folders that are not read."""

    @classmethod
    def open_maildir(cls, uri: str, place: str) -> "DirectorySource":
        """Open a Maildir, or any tree of raw files such as the public Enron release."""
        files, entries, unread = _list_mail(uri, place)
        folders = {str(PurePosixPath(entry.key).parent) for entry in entries}
        boxes = {
            str(PurePosixPath(folder).parent) for folder in folders if PurePosixPath(folder).name in {"cur", "new"}
        }
        found = [entry for entry in entries if _is_mail_file(PurePosixPath(entry.key), boxes)]
        return cls._create(uri, files, found, entries, unread)

    @classmethod
    def open_eml(cls, uri: str, place: str) -> "DirectorySource":
        """Open a directory of `.eml` files, and of those of Apple Mail (`.emlx`) and Outlook (`.msg`)."""
        files, entries, unread = _list_mail(uri, place)
        found = [entry for entry in entries if _strip_packing(entry.key.lower()).endswith(_MESSAGE_SUFFIXES)]
        own = [entry for entry in found if not _is_resource_fork(entry.key)]
        return cls._create(uri, files, own, entries, unread)

    @classmethod
    def _create(
        cls, uri: str, files: Files, found: list[Entry], entries: list[Entry], unread: list[UnreadableItem]
    ) -> "DirectorySource":
        if not found:
            raise _no_messages(uri, "message files", entries, unread)
        return cls(uri, sum(entry.size for entry in found), files, found, unread)

    def read_raw(self, advance: Callable[[int], object]) -> Iterator[RawItem]:
        yield from self.unread
        for entry, raw in read_files(self.files, self.entries):
            where = f"{self.files.uri}/{entry.key}"
            advance(entry.size)
            if not isinstance(raw, bytes):
                yield UnreadableItem(where, "cannot be opened", raw.message_with_code)
                continue
            path = PurePosixPath(entry.key)
            folder = str(path.parent)
            state, is_sent = find_file_state(path.name) or find_folder_state(folder), is_sent_folder(folder)
            if raw.startswith(b"From ") and starts_like_mbox(raw[:START_SIZE]):
                yield from _read_mbox_file(where, raw, state, is_sent)
            else:
                yield RawFile(where, raw, state, is_sent)


def open_mbox_directory(uri: str, place: str) -> MboxSource:
    """Open the mbox files of a directory or archive, e.g. a Thunderbird profile, or an export of Apple Mail or Google.

    Raises:
        UsageError: if it contains none.
    """
    files, entries, unread = _list_mail(uri, place)
    found = [entry for entry in entries if _is_mbox(files, entry)]
    if not found:
        raise _no_messages(uri, "mbox files", entries, unread)
    boxes = [
        MboxFile(f"{files.uri}/{key}", partial(files.open, key), find_folder_state(key), is_sent_folder(key))
        for key in (entry.key for entry in found)
    ]
    return MboxSource(uri, sum(entry.size for entry in found), boxes, unread)


def _list_mail(uri: str, place: str) -> tuple[Files, list[Entry], list[UnreadableItem]]:
    if is_archive(place) and ("://" in place or not Path(place).is_dir()):
        return (*open_archive(uri, place), [])
    if "://" not in place and Path(place).is_file():
        raise UsageError(
            "sources.no-such-directory",
            f"{uri}: {place} is a file, not a directory; name its directory, or use mbox:{place} if it is an mbox",
        )
    return list_files(uri, place)


def _is_mail_file(path: PurePosixPath, boxes: set[str]) -> bool:
    """Return True if a file of a tree is a message. Servers store files of their own beside a Maildir's folders."""
    if path.name.startswith(".") or (path.parent.name == "tmp" and str(path.parent.parent) in boxes):
        return path.parent.name in {"cur", "new"}
    return str(path.parent) not in boxes or not path.name.startswith(_SERVER_FILE_PREFIXES)


def _is_mbox(files: Files, entry: Entry) -> bool:
    """Return True if a file is named like an mbox or begins like one."""
    name = entry.key.lower()
    if not entry.size or _is_resource_fork(entry.key) or name.endswith(_NO_MBOX_SUFFIXES):
        return False
    if name.endswith(_MBOX_SUFFIXES):
        return True
    try:
        with files.open(entry.key) as file:
            return starts_like_mbox(next(read_blocks(file, name, size=START_SIZE), b""))
    except (StorageError, OSError, *GZIP_ERRORS):
        return False


def _is_resource_fork(key: str) -> bool:
    """Return True for the files that macOS writes beside others on foreign disks."""
    return PurePosixPath(key).name.startswith("._")


def _strip_packing(name: str) -> str:
    for suffix in _PACKED_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def _read_mbox_file(where: str, raw: bytes, state: State, is_sent: bool) -> Iterator[RawItem]:
    """Yield the messages of a file of a tree that begins like an mbox. A single one keeps the name of the file."""
    items = list(split_mbox([raw], where, state, is_sent=is_sent))
    problems = {item.reason for item in items if isinstance(item, UnreadableItem)}
    if len(items) - len(problems) == 1 and problems <= {ONE_LARGE_MESSAGE} and isinstance(items[0], RawMessage):
        items = [replace(items[0], where=where)]  # one message is what such a file should have, whatever its size
    yield from items


def _no_messages(uri: str, kind: str, entries: Iterable[Entry], unread: Sequence[UnreadableItem]) -> UsageError:
    """Return an error that says what to name instead."""
    kind_of_source, _, place = uri.partition(":")
    keys = [entry.key.lower() for entry in entries]
    hint = "check the directory"
    if kind_of_source != "maildir" and any(PurePosixPath(key).parent.name in {"cur", "new"} for key in keys):
        hint = f"it contains a Maildir: use maildir:{place}"
    elif kind_of_source != "eml" and any(_strip_packing(key).endswith(_MESSAGE_SUFFIXES) for key in keys):
        hint = f"it contains files with one message each: use eml:{place}"
    elif kind_of_source != "mbox" and any(key.endswith((*_MBOX_SUFFIXES, ".msf", "/mbox")) for key in keys):
        hint = f"it contains mbox files: use mbox:{place}"
    elif any(key.endswith((".pst", ".ost")) for key in keys):
        hint = "it contains mailboxes of Outlook: use pst:FILE for each"
    elif any(key.endswith((".jsonl", ".jsonl.gz")) for key in keys):
        hint = "it contains JSON Lines: use jsonl:FILE"
    elif unread:
        hint = f"{unread[0].where} is not read ({unread[0].reason}): {unread[0].detail}"
    return UsageError("mail.no-messages", f"{uri} contains no {kind}; {hint}")
