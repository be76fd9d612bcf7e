"""Shared parts of all kinds of sources: files below a directory and lines of JSON, on disk or on S3.

A missing source is an error before anything is read. An unreadable item of it is reported, and reading continues.
"""

import hashlib
import io
import json
import os
import re
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from gumshoe.artifacts.hub import find_local_dataset, get_dataset_commit
from gumshoe.artifacts.lines import GZIP_ERRORS, read_lines
from gumshoe.artifacts.storage import (
    Entry,
    FileStorage,
    InvalidUriError,
    NotFoundError,
    Storage,
    StorageError,
    list_uri,
    open_storage,
)
from gumshoe.errors import UsageError
from gumshoe.model_validation import describe_validation_error
from gumshoe.text_checks import replace_bad_texts

Opened = TypeVar("Opened")
Item = TypeVar("Item", covariant=True)
ModelT = TypeVar("ModelT", bound=BaseModel)
_KIND = re.compile(r"\A[a-z]+:(?!//)")  # e.g. `jsonl:` in `jsonl:FILE`
_SERVERS = ("imap://", "imaps://")
_AHEAD = 64  # files requested ahead of the parser, if each costs a round trip
_AHEAD_BYTES = 64 << 20  # their maximum total size; a larger file is read alone
_MAX_FILE_SIZE = 256 << 20  # bytes; files are read as a whole


@dataclass(slots=True)
class UnreadableItem:
    """An item of a source that could not be read as the expected type."""

    where: str
    reason: str
    """One of a few short reasons, for counting."""
    detail: str = ""


class Files(Protocol):
    """A directory, a prefix of a bucket, or an archive."""

    @property
    def uri(self) -> str: ...

    def open(self, key: str) -> io.BufferedReader:
        """Open a file for reading."""
        ...


class Source(Protocol[Item]):
    """A source of messages or documents.

    Creating it checks that it exists. `read` returns its items in the same order each time.
    """

    @property
    def uri(self) -> str: ...

    @property
    def total(self) -> int | None:
        """Size in bytes, if known in advance."""
        ...

    def read(self, advance: Callable[[int], object]) -> Iterator[Item | UnreadableItem]:
        """Yield all items, and an UnreadableItem for each that cannot be read. `advance` is called with the bytes read.

        Raises:
            UnavailableError, StorageError: if the source itself failed.
        """
        ...


def split_source(uri: str, kinds: Container[str], of: str, forms: str) -> tuple[str, str]:
    """Return the kind of a source, such as `jsonl` in `jsonl:FILE`, and its place.

    `of` names the content, and `forms` the valid forms, in the error message.

    Raises:
        UsageError: if the URI has none of these kinds.
    """
    kind, _, place = uri.partition(":")
    if not place or kind not in kinds:
        raise UsageError("sources.unknown-form", f"{uri!r} is not a source of {of}; use {forms}")
    return kind, place


def open_source(uri: str, openers: Mapping[str, Callable[[str, str], Opened]], of: str, forms: str) -> Opened:
    """Return the source at a URI, created by the opener of its kind from the URI and its place.

    Raises:
        UsageError: if the URI has none of these kinds, or nothing of that kind exists there.
        StorageError, UnavailableError: if the place cannot be read.
    """
    kind, place = split_source(uri, openers, of, forms)
    try:
        return openers[kind](uri, place)
    except (NotFoundError, InvalidUriError) as error:
        raise UsageError(error.code, f"{uri}: {error}") from None


def is_on_server(uri: str) -> bool:
    """Return True if the content at a URI can be compared only by reading it from a server (`imap://`, `imaps://`)."""
    return uri.startswith(_SERVERS)


def digest_of_uris(uris: Iterable[str]) -> str:
    """Return a digest that changes with the content at URIs, without reading it.

    It covers the commit of `hf:DATASET`, and the names, sizes and times of files. Files are given by `file://`, `s3://`
    or a path, with or without the kind of source before it. With a URI of a server (`imap://`, `imaps://`) the digest
    differs each time, because only the content would tell whether something has changed.

    Raises:
        UsageError, NotFoundError: if one of them does not exist.
        GumshoeError: if one cannot be listed.
    """
    digest = hashlib.sha256()
    for uri in uris:
        if is_on_server(uri):
            digest.update(f"{time.time_ns()}\0".encode())
            continue
        directory = find_local_dataset(uri) if uri.startswith("hf:") else None
        if uri.startswith("hf:") and directory is None:
            digest.update(f"{get_dataset_commit(uri)}\0".encode())
            continue
        for each in list_uri(directory or _KIND.sub("", uri, count=1)):
            digest.update(f"{each.key}\0{each.size}\0{each.modified.isoformat()}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def list_files(uri: str, place: str) -> tuple[Storage, list[Entry], list[UnreadableItem]]:
    """Return the storage at a directory, all files below it, sorted by path, and the folders that are not read.

    These are folders without permission, and links to other directories. `uri` is named in errors.

    Raises:
        UsageError: if the directory does not exist.
        InvalidUriError, StorageError, UnavailableError: if it cannot be listed.
    """
    if "://" not in place and not Path(place).is_dir():
        raise UsageError("sources.no-such-directory", f"{uri}: the directory {place} does not exist; check the path")
    storage = open_storage(place)
    unread = _find_unread_folders(Path(storage.uri)) if isinstance(storage, FileStorage) else {}
    entries = (entry for entry in storage.entries() if entry.key and not entry.key.endswith("/"))
    found = [UnreadableItem(f"{storage.uri}/{key}", *why) for key, why in sorted(unread.items())]
    return storage, [entry for entry in entries if entry.key not in unread], found


def _find_unread_folders(root: Path) -> dict[str, tuple[str, str]]:
    """Return reason and detail of each folder below a directory that is not read, by its path below it.

    Links are not followed, as they may lead in circles. A link to a folder of the same directory leaves nothing out.
    """
    closed: list[OSError] = []
    found: dict[str, tuple[str, str]] = {}
    for place, folders, _ in os.walk(root, onerror=closed.append):
        for path in (Path(place, name) for name in folders):
            if os.path.islink(path) and not path.resolve().is_relative_to(root.resolve()):  # noqa: PTH114 - never fails
                key = path.relative_to(root).as_posix()
                found[key] = ("link to a directory", f"name {path.resolve()} as a source of its own")
    for error in closed:
        if isinstance(error, PermissionError):
            key = Path(error.filename).relative_to(root).as_posix()
            found[key] = ("cannot be opened", "no permission; check its owner and mode")
    return found


def read_files(files: Files, entries: Iterable[Entry]) -> Iterator[tuple[Entry, bytes | StorageError]]:
    """Yield each file with its content, or with the error that prevented reading it, in order.

    Several files are read concurrently from S3.
    """

    def content(entry: Entry) -> bytes | StorageError:
        if entry.size > _MAX_FILE_SIZE:
            return StorageError(
                "sources.file-too-large", f"{entry.key} has {entry.size:,} bytes; the maximum is {_MAX_FILE_SIZE:,}"
            )
        try:
            with files.open(entry.key) as file:
                return file.read()
        except StorageError as error:  # no permission, or deleted since the listing: the other files are still read
            return error
        except OSError as error:
            return StorageError("store.file-unreadable", f"cannot read {entry.key}: {error.strerror or error}")
        except GZIP_ERRORS as error:
            return StorageError("store.file-unreadable", f"cannot unpack {entry.key}: {error}")

    if "://" not in files.uri:
        yield from ((entry, content(entry)) for entry in entries)
        return
    waiting = deque(entries)
    with ThreadPoolExecutor(max_workers=16) as pool:
        pending: deque[tuple[Entry, Future[bytes | StorageError]]] = deque()
        try:
            while True:
                while waiting and len(pending) < _AHEAD:
                    ahead = sum(entry.size for entry, _ in pending)
                    if pending and ahead + waiting[0].size > _AHEAD_BYTES:
                        break
                    entry = waiting.popleft()
                    pending.append((entry, pool.submit(content, entry)))
                if not pending:
                    return
                entry, future = pending.popleft()
                yield entry, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def read_json_lines(place: str, advance: Callable[[int], object]) -> Iterator[tuple[str, Any] | UnreadableItem]:
    """Yield the location and the value of each line of a file. `advance` is called with the bytes read.

    Raises:
        NotFoundError, StorageError, UnavailableError: if the source itself failed.
    """
    try:
        for number, line in enumerate(read_lines(place, advance), 1):
            if line.strip():
                yield parse_json_line(line, f"{place}:{number}")
    except GZIP_ERRORS as error:
        yield UnreadableItem(place, "damaged file", str(error))


def parse_json_line(line: bytes, where: str) -> tuple[str, Any] | UnreadableItem:
    """Return the location and the value of a line of JSON."""
    try:
        return where, orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            # Slower, but accepts invalid bytes and numbers such as NaN.
            return where, replace_bad_texts(json.loads(line.decode("utf-8-sig", "replace")))
        except (ValueError, RecursionError) as error:
            return UnreadableItem(where, "not JSON", str(error)[:200])


def read_json_model(kind: type[ModelT], path: Path, of: str) -> ModelT | None:
    """Return the content of a JSON file as a pydantic model, or None if the file does not exist.

    `of` names the described thing in the error message.

    Raises:
        UsageError: if the file cannot be read or does not match the model.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(
            "store.file-unreadable", f"cannot read {path}: {error.strerror}; check the path and its permissions"
        ) from None
    except ValidationError as error:
        raise UsageError(
            "sources.invalid-metadata",
            f"{path} does not describe {of}: {describe_validation_error(error)}; create it again",
        ) from None
