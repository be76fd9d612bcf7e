"""Directories of mail, and archives of them: files with one message each, and mbox files."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path, PurePosixPath

from gumshoe.artifacts.lines import GZIP_ERRORS, read_blocks
from gumshoe.artifacts.source_files import Files, UnreadableItem, list_files, read_files
from gumshoe.artifacts.storage import Entry, NotFoundError, StorageError
from gumshoe.errors import UsageError
from gumshoe.mail.archives import is_archive, open_archive
from gumshoe.mail.items import MailSource, RawFile, RawItem, RawMessage
from gumshoe.mail.mbox import ONE_LARGE_MESSAGE, START_SIZE, MboxFile, MboxSource, split_mbox, starts_like_mbox
from gumshoe.mail.message import State
from gumshoe.mail.states import find_file_state, find_folder_state, is_sent_folder, strip_flags

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
_MESSAGE_FOLDERS = {"cur", "new"}  # of a Maildir
_LISTINGS = 3  # of a directory that changes while it is read
_MESSAGE_SUFFIXES = (".eml", ".emlx", ".msg")
_PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_MBOX_SUFFIXES = (".mbox", ".mbx", ".mbox.gz", ".mbox.bz2", ".mbox.xz", ".mbx.gz")
# Files beside mbox files: indexes of mail programs, and settings. They are not opened.
_NO_MBOX_SUFFIXES = (".msf", ".dat", ".json", ".sqlite", ".html", ".plist", ".js", ".ini", ".eml", ".emlx", ".msg")


@dataclass(frozen=True, slots=True)
class DirectorySource(MailSource):
    """Files with one message each.

    Mail programs rename and move files while they are read. Those that are gone, and those that have appeared, are
    found by listing the directory again.
    """

    files: Files
    entries: list[Entry]
    unread: list[UnreadableItem]
    """Folders that are not read."""
    list_again: Callable[[], list[Entry]]
    """Return the message files that exist now. Those of an archive do not change."""
    changed: list[str] = field(default_factory=list)
    """Keys of files that have appeared or disappeared since the source was opened."""

    @classmethod
    def open_maildir(cls, uri: str, place: str) -> "DirectorySource":
        """Open a Maildir, or any tree of raw files such as the public Enron release."""
        return cls._create(uri, place, _choose_mail_files)

    @classmethod
    def open_eml(cls, uri: str, place: str) -> "DirectorySource":
        """Open a directory of `.eml` files, and of those of Apple Mail (`.emlx`) and Outlook (`.msg`)."""
        return cls._create(uri, place, _choose_message_files)

    @classmethod
    def _create(cls, uri: str, place: str, choose: Callable[[list[Entry]], list[Entry]]) -> "DirectorySource":
        files, entries, unread = _list_mail(uri, place)
        found = choose(entries)
        if not found:
            raise _no_messages(uri, "message files", entries, unread)

        def list_again() -> list[Entry]:
            return found if _is_archive_file(place) else choose(list_files(uri, place)[1])

        return cls(uri, sum(entry.size for entry in found), files, found, unread, list_again)

    @property
    def has_changed(self) -> bool:
        """See `MailSource.has_changed`."""
        return bool(self.changed)

    def read_raw(self, advance: Callable[[int], object]) -> Iterator[RawItem]:
        """See `MailSource.read_raw`. A file that was deleted meanwhile gives no item."""
        yield from self.unread
        self.changed.clear()
        gone: dict[str, Entry] = {}
        yield from self._read_files(self.entries, gone, advance)
        missed = {entry.key for entry in gone.values()}
        known = {identify_file(entry.key) for entry in self.entries if entry.key not in missed}
        left: list[Entry] = []
        for _ in range(_LISTINGS):
            left = [entry for entry in self.list_again() if identify_file(entry.key) not in known]
            if not left and not gone:
                return
            self.changed.extend(entry.key for entry in left)
            yield from self._read_files(left, gone, advance)
            known.update({identify_file(entry.key) for entry in left} - gone.keys())
        listed = {identify_file(entry.key) for entry in left}
        for name, entry in gone.items():
            if name in known:  # it was listed under both names
                continue
            advance(entry.size)
            if name in listed or not self._has_folder(entry):
                detail = "it is moved again and again" if name in listed else "its folder does not exist any more"
                yield UnreadableItem(f"{self.files.uri}/{entry.key}", "cannot be opened", detail)

    def _read_files(
        self, entries: Iterable[Entry], gone: dict[str, Entry], advance: Callable[[int], object]
    ) -> Iterator[RawItem]:
        """Yield the items of files. Those that do not exist any more are added to `gone`, the others taken from it."""
        for entry, raw in read_files(self.files, entries):
            name = identify_file(entry.key)
            if isinstance(raw, NotFoundError):
                gone[name] = entry
                self.changed.append(entry.key)
                continue
            gone.pop(name, None)
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

    def _has_folder(self, entry: Entry) -> bool:
        """Return True if the folder of a file exists. If it does not, a disk may have been unmounted."""
        return "://" in self.files.uri or Path(self.files.uri, entry.key).parent.is_dir()


def identify_file(key: str) -> str:
    """Return the part of a path or URI that stays if mail programs rename the file.

    For a message in a Maildir, it is the Maildir and the unique name, e.g. `Maildir/1.a` of `Maildir/cur/1.a:2,S`.
    """
    path = PurePosixPath(key)
    return str(path.parent.parent / strip_flags(path.name)) if path.parent.name in _MESSAGE_FOLDERS else key


def identify_unreadable(place: str, reason: str) -> str:
    """Return a digest of the place and the reason of an unreadable item. It stays if mail programs rename a file."""
    return blake2b(f"{identify_file(place)}\0{reason}".encode(), digest_size=8).hexdigest()


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
    if _is_archive_file(place):
        return (*open_archive(uri, place), [])
    if "://" not in place and Path(place).is_file():
        raise UsageError(
            "sources.no-such-directory",
            f"{uri}: {place} is a file, not a directory; name its directory, or use mbox:{place} if it is an mbox",
        )
    return list_files(uri, place)


def _is_archive_file(place: str) -> bool:
    return is_archive(place) and ("://" in place or not Path(place).is_dir())


def _choose_mail_files(entries: list[Entry]) -> list[Entry]:
    """Return the files that are messages of a Maildir or of a tree of raw files."""
    folders = {str(PurePosixPath(entry.key).parent) for entry in entries}
    boxes = {str(PurePosixPath(folder).parent) for folder in folders if PurePosixPath(folder).name in _MESSAGE_FOLDERS}
    return [entry for entry in entries if _is_mail_file(PurePosixPath(entry.key), boxes)]


def _choose_message_files(entries: list[Entry]) -> list[Entry]:
    """Return the files whose names are those of single messages."""
    found = [entry for entry in entries if _strip_packing(entry.key.lower()).endswith(_MESSAGE_SUFFIXES)]
    return [entry for entry in found if not _is_resource_fork(entry.key)]


def _is_mail_file(path: PurePosixPath, boxes: set[str]) -> bool:
    """Return True if a file of a tree is a message. Servers store files of their own beside a Maildir's folders."""
    if path.name.startswith(".") or (path.parent.name == "tmp" and str(path.parent.parent) in boxes):
        return path.parent.name in _MESSAGE_FOLDERS
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
    if kind_of_source != "maildir" and any(PurePosixPath(key).parent.name in _MESSAGE_FOLDERS for key in keys):
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
