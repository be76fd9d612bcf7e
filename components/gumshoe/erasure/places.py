"""Find and erase a target in directories: in indexes, files of episodes and evaluations, and copies of artifacts."""

import os
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from gumshoe.artifacts.lines import GZIP_ERRORS
from gumshoe.artifacts.manifest import DATA_PREFIX, MANIFEST
from gumshoe.artifacts.private_data import MARK, read_mark
from gumshoe.artifacts.storage import explain_os_errors, is_partial
from gumshoe.documents.build import PARTIAL as DOCUMENT_PARTIAL
from gumshoe.documents.document_erasure import count_leftovers as count_folders
from gumshoe.documents.document_erasure import erase_documents, find_documents
from gumshoe.documents.schema import FACTS, FOLDER, is_document_index
from gumshoe.erasure.learned import explain_learning
from gumshoe.erasure.question_links import Links
from gumshoe.erasure.record_files import collect_links, is_structured, read_text, redact_file, write_redacted
from gumshoe.erasure.target import EraseTarget
from gumshoe.errors import GumshoeError
from gumshoe.mail.inbox_erasure import count_leftovers as count_segments
from gumshoe.mail.inbox_erasure import (
    erase_inbox,
    erase_leftovers,
    erase_messages,
    find_message_ids,
    find_messages_of,
    has_inbox,
)
from gumshoe.mail.index_directory import PARTIAL as MAIL_PARTIAL
from gumshoe.mail.schema import FILE_NAME, SEGMENT_PREFIX, index_path
from gumshoe.scenarios.lineage import Lineage

ChangeKind = Literal["mail index", "document index", "records", "page", "copy", "cache"]
ADAPTER_FILE = "adapter_config.json"
"""File that each adapter contains."""
_OUTDATED = {"documents.index-version", "mail.index-version"}
_BLOCK = 1 << 20
_AROUND = 16  # bytes around a name that decide if it is the whole name


@dataclass(frozen=True, slots=True)
class PlaceChange:
    """A file, index or copy to delete, or to write anew without the target."""

    path: Path
    kind: ChangeKind
    count: int
    """Number of messages, documents, records or files that are erased."""
    links: Links | None = field(default=None, repr=False)
    """Questions that identify the records of a file."""


@dataclass(slots=True)
class PlacePlan:
    """The changes to make in a directory, and the places that cannot be changed."""

    changes: list[PlaceChange] = field(default_factory=list)
    adapters: dict[Path, str] = field(default_factory=dict)
    """Reason why each adapter may have learned erased content."""
    remaining: list[Path] = field(default_factory=list)
    """Files that name the target, or may name it, and that cannot be changed; files and directories that cannot be
    read."""
    outdated: list[Path] = field(default_factory=list)
    """Indexes of another version of Gumshoe, which cannot be read: they may contain the target."""

    def extend(self, other: "PlacePlan") -> None:
        """Add another plan."""
        self.changes += other.changes
        self.adapters |= other.adapters
        self.remaining += other.remaining
        self.outdated += other.outdated


def collect_questions(root: Path, links: Links) -> Links:
    """Add the questions below a directory. Do this for all places before `plan_place`.

    Return the links of this place: ids of scenarios have a meaning within one place only. Files that cannot be read are
    left out; `plan_place` names them.
    """
    local = links.within(str(root.resolve()))
    for _, files in _walk(root, []):
        for path in files:
            if is_structured(path):
                with suppress(OSError, *GZIP_ERRORS):
                    collect_links(path, local)
    return local


def plan_place(root: Path, target: EraseTarget, links: Links) -> PlacePlan:
    """Plan the changes below a directory, or in a file, without changing anything.

    Raises:
        GumshoeError: if an index is damaged.
    """
    plan = PlacePlan()
    local = collect_questions(root, links)
    for directory, files in _walk(root, plan.remaining):
        if (index := _find_index(directory)) is not None:
            try:
                change = _plan_index(directory, index, target)
            except GumshoeError as error:
                if error.code not in _OUTDATED:
                    raise
                plan.outdated.append(directory)
                change = None
            if change is not None:
                plan.changes.append(change)
            files = [path for path in files if not _belongs_to_index(path, index)]
        plan.extend(_plan_files(directory, files, target, local))
    unique = {each.path: each for each in plan.changes if each.path == root or root in each.path.parents}
    plan.changes = _merge_copies(unique.values(), root)
    return plan


def _merge_copies(changes: Iterable[PlaceChange], root: Path) -> list[PlaceChange]:
    """Replace the changes in a fetched copy of an artifact by its deletion: it can be fetched again."""
    others: list[PlaceChange] = []
    counts: Counter[Path] = Counter()
    for change in changes:
        parents = [change.path, *change.path.parents]
        below = [each for each in parents if each == root or root in each.parents]
        copy = next((each for each in reversed(below) if _leads_to_file(each / MANIFEST)), None)
        if copy is None:
            others.append(change)
        else:
            counts[copy] += change.count
    return others + [PlaceChange(path, "copy", count) for path, count in counts.items()]


def _plan_files(directory: Path, files: list[Path], target: EraseTarget, links: Links) -> PlacePlan:
    """Plan the files of one directory."""
    plan = PlacePlan()
    if is_adapter(directory):
        if (reason := explain_learning(Lineage.read(directory), target, links)) is not None:
            plan.adapters[directory] = reason
        return plan
    for path in files:
        if not is_structured(path):
            continue
        try:
            _, count = redact_file(path, target, links)
        except (OSError, *GZIP_ERRORS):
            plan.remaining.append(path)
            continue
        if count:
            plan.changes.append(PlaceChange(path, "records", count, links))
    quotes = bool(plan.changes)
    if quotes:
        plan.changes += [PlaceChange(each, "page", 1) for each in _list_pages_beside(directory)]
    for path in files:
        try:
            if path.suffix.lower() in (".html", ".htm"):
                if quotes or target.is_mentioned(read_text(path)):
                    plan.changes.append(PlaceChange(path, "page", 1))
            elif not is_structured(path) and _contains_name(path, target):
                if _is_cache(path):
                    plan.changes.append(PlaceChange(path, "cache", 1))
                else:
                    plan.remaining.append(path)
        except OSError:
            plan.remaining.append(path)
    return plan


def _list_pages_beside(directory: Path) -> list[Path]:
    """Return the files beside a directory that quote the same mail, according to its mark."""
    try:
        mark = (directory / MARK).read_bytes()
    except OSError:  # the directory has no such file, or one that cannot be read, which is listed
        return []
    _, names = read_mark(mark)
    return [path for each in names if _is_file(path := directory.parent / Path(each).name)]


def is_adapter(directory: Path) -> bool:
    """Return True if a directory contains an adapter."""
    return _leads_to_file(directory / ADAPTER_FILE)


def _find_index(directory: Path) -> ChangeKind | None:
    if _leads_to_file(index_path(directory)):
        return "mail index"
    return "document index" if is_document_index(directory) and any(directory.glob("data-*")) else None


def _belongs_to_index(path: Path, index: ChangeKind) -> bool:
    """Return True if a file or folder in the directory of an index is a part of the index."""
    if index == "mail index":
        return path.name in {FILE_NAME, MARK, MAIL_PARTIAL} or path.name.startswith(SEGMENT_PREFIX)
    return path.name in {FACTS, MARK, DOCUMENT_PARTIAL} or re.fullmatch(FOLDER, path.name) is not None


def _plan_index(directory: Path, index: ChangeKind, target: EraseTarget) -> PlaceChange | None:
    if index == "document index":
        if target.kind != "document":
            return None
        count = len(find_documents(directory, [target.name], target.collection)) or count_folders(directory)
    elif target.kind == "message":
        count = len(find_message_ids(directory, target.name))
    elif target.kind == "inbox":
        messages = len(find_messages_of(directory, target.name)) if target.everywhere else 0
        count = max(messages, int(has_inbox(directory, target.name)))
    else:
        return None
    if index == "mail index":  # an erasure that was interrupted leaves the old segments
        count = count or count_segments(directory)
    return PlaceChange(directory, index, count) if count else None


def apply_change(change: PlaceChange, target: EraseTarget) -> int:
    """Make a planned change, in one step. Return the number of chunks that other documents lose: see `ErasedPlace`.

    Raises:
        StorageError: if a file cannot be written.
        GumshoeError: if an index cannot be written anew.
    """
    path = change.path
    with explain_os_errors(path):
        if change.kind == "document index":
            return erase_documents(path, find_documents(path, [target.name], target.collection))
        if change.kind == "mail index":
            _erase_from_mail(path, target)
        elif change.kind == "records":
            text, _ = redact_file(path, target, change.links or Links(target))
            write_redacted(path, text)
        elif change.kind == "copy":
            (path / MANIFEST).unlink()  # so that nobody takes the rest for the artifact
            shutil.rmtree(path)
        elif path.is_dir():
            shutil.rmtree(path.resolve())  # it may be a link to another disk
            if path.is_symlink():
                path.unlink()
        else:
            for each in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))):
                each.unlink(missing_ok=True)
    return 0


def _erase_from_mail(directory: Path, target: EraseTarget) -> None:
    if target.kind == "inbox" and has_inbox(directory, target.name):
        erase_inbox(directory, target.name)  # before its messages, as it takes the sources of the inbox too
    ids = list[str]()
    if index_path(directory).is_file():
        if target.kind == "message":
            ids = find_message_ids(directory, target.name)
        elif target.everywhere:
            ids = find_messages_of(directory, target.name)
    if ids:
        erase_messages(directory, ids)
    if index_path(directory).is_file():
        erase_leftovers(directory)


def find_mentions(root: Path, target: EraseTarget) -> Iterator[Path]:
    """Yield the files below a directory whose bytes contain the target, and what cannot be read there.

    Adapters are left out.
    """
    if root.is_file():
        if not is_adapter(root.parent) and _may_contain_name(root, target):
            yield root
        return
    unread: list[Path] = []
    for directory, folders, names in _walk_readable(root, unread):
        folders.sort()
        if is_adapter(directory):
            continue
        for path in (directory / name for name in sorted(names)):
            if _is_file(path) and _may_contain_name(path, target):
                yield path
    yield from unread


def _may_contain_name(path: Path, target: EraseTarget) -> bool:
    """Return True if the bytes of a file contain the target's name, or cannot be read."""
    try:
        return _contains_name(path, target)
    except OSError:
        return True


def _contains_name(path: Path, target: EraseTarget) -> bool:
    """Return True if the bytes of a file contain the target's name, in any case for an address."""
    if path.suffix.lower() == ".gz":
        with suppress(OSError, *GZIP_ERRORS):
            return target.is_mentioned(read_text(path))
    with path.open("rb") as file:
        return contains_name(file, target)


def contains_name(file: BinaryIO, target: EraseTarget) -> bool:
    """Return True if the bytes of an open file contain the target's name, in any case for an address."""
    needle, longest = target.searched_bytes, max(len(each.encode()) for each in target.spellings)
    rest = b""
    while block := file.read(_BLOCK):
        window = rest + block
        if needle in window.lower() and target.is_mentioned(window.decode("utf-8", "replace")):
            return True
        rest = window[-longest - _AROUND :]
    return False


def _is_cache(path: Path) -> bool:
    """Return True if a file is a cache of responses (see `gumshoe.artifacts.response_cache`)."""
    with path.open("rb") as file:
        if file.read(16) != b"SQLite format 3\0":
            return False
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as base:
        return base.execute("SELECT 1 FROM sqlite_master WHERE name = 'answers'").fetchone() is not None
    return False


def _walk(root: Path, unread: list[Path]) -> Iterator[tuple[Path, list[Path]]]:
    """Yield directories and their regular files. Directories that cannot be read are added to `unread`.

    Published artifacts, which only a store changes, the folders of indexes, and links are left out.
    """
    if root.is_file():
        yield root.parent, [root]
        return
    for place, folders, names in _walk_readable(root, unread):
        is_published = any(each.startswith(DATA_PREFIX) for each in folders) and MANIFEST in names
        if is_published:
            folders.clear()
            continue
        index = _find_index(place)
        folders[:] = [each for each in sorted(folders) if index is None or not _belongs_to_index(place / each, index)]
        files = [place / name for name in sorted(names) if not is_partial(name)]
        yield place, [each for each in files if _is_file(each)]


def _is_file(path: Path) -> bool:
    """Return True for a file that is no link, pipe, socket or device."""
    return not path.is_symlink() and _leads_to_file(path)


def _leads_to_file(path: Path) -> bool:
    """Return True for a file, or a link to one that the user may see. `Path.is_file` raises without permission."""
    return os.path.isfile(path)  # noqa: PTH113


def _walk_readable(root: Path, unread: list[Path]) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield what `os.walk` does. Directories that cannot be read are added to `unread`."""
    for directory, folders, names in os.walk(root, onerror=lambda error: unread.append(Path(error.filename))):
        place = Path(directory)
        if os.access(place, os.X_OK):
            yield place, folders, names
        else:  # its names can be read, but not its files
            folders.clear()
            unread.append(place)
