"""What every kind of source has in common: files below a directory and lines of JSON, on disk or on S3.

A place that is not there is refused before anything is read. What cannot be read in it is told, and the rest goes on.
"""

import json
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from gumshoe.artifacts.lines import DAMAGED, read_lines
from gumshoe.artifacts.storage import Entry, InvalidUriError, NotFoundError, Storage, StorageError, open_storage
from gumshoe.errors import UsageError, faults_of

Opened = TypeVar("Opened")
Item = TypeVar("Item", covariant=True)
Told = TypeVar("Told", bound=BaseModel)
_AHEAD = 64  # files requested ahead of the parser, where each costs a round trip
_AHEAD_BYTES = 64 << 20  # of them all; one that is larger is read alone
_LARGEST = 256 << 20  # bytes of a file, which is read whole


@dataclass(slots=True)
class Unreadable:
    """Something in a source that could not be read as what the source is to hold."""

    where: str
    reason: str
    """One of few short reasons, to count by."""
    detail: str = ""


class Source(Protocol[Item]):
    """A place with messages or documents. Making one checks that it is there; `read` reads it, in the same order each
    time.
    """

    @property
    def uri(self) -> str: ...

    @property
    def total(self) -> int | None:
        """Bytes in it, where that is known beforehand."""
        ...

    def read(self, advance: Callable[[int], object]) -> Iterator[Item | Unreadable]:
        """Everything in it, and what could not be read as such. `advance` is told of bytes as they are read.

        Raises:
            UnavailableError, StorageError: the place itself failed.
        """
        ...


def split_source(uri: str, kinds: Container[str], of: str, forms: str) -> tuple[str, str]:
    """The kind of a source, as in `jsonl:FILE`, and its place. An error says what it would be a source `of`, and the
    `forms` that there are.

    Raises:
        UsageError: the URI is of none of these kinds.
    """
    kind, _, place = uri.partition(":")
    if not place or kind not in kinds:
        raise UsageError("sources.unknown-form", f"{uri!r} is not a source of {of}; use {forms}")
    return kind, place


def open_source(uri: str, openers: Mapping[str, Callable[[str, str], Opened]], of: str, forms: str) -> Opened:
    """The source that a URI names; what opens one of a kind is given the URI and its place.

    Raises:
        UsageError: the URI is of none of these kinds, or nothing of that kind lies there.
        StorageError, UnavailableError: the place could not be looked into.
    """
    kind, place = split_source(uri, openers, of, forms)
    try:
        return openers[kind](uri, place)
    except (NotFoundError, InvalidUriError) as error:
        raise UsageError(error.code, f"{uri}: {error}") from None


def files_below(uri: str, place: str) -> tuple[Storage, list[Entry]]:
    """The storage at a directory, and every file below it, in order of path. `uri` is what an error names.

    Raises:
        UsageError: there is no such directory.
        InvalidUriError, StorageError, UnavailableError: it could not be looked into.
    """
    if "://" not in place and not Path(place).is_dir():
        raise UsageError("sources.no-such-directory", f"{uri}: the directory {place} does not exist; check the path")
    storage = open_storage(place)
    return storage, [entry for entry in storage.entries() if entry.key and not entry.key.endswith("/")]


def read_files(storage: Storage, entries: Iterable[Entry]) -> Iterator[tuple[Entry, bytes | StorageError]]:
    """Each file with its content, or with why it has none, in order. From S3, several reads are under way."""

    def content(entry: Entry) -> bytes | StorageError:
        if entry.size > _LARGEST:
            return StorageError(
                "sources.file-too-large", f"{entry.key} has {entry.size:,} bytes; the maximum is {_LARGEST:,}"
            )
        try:
            with storage.open(entry.key) as file:
                return file.read()
        except StorageError as error:  # no permission, or gone since it was listed: the others still count
            return error
        except OSError as error:
            return StorageError("store.file-unreadable", f"cannot read {entry.key}: {error.strerror or error}")

    if "://" not in storage.uri:
        yield from ((entry, content(entry)) for entry in entries)
        return
    waiting = deque(entries)
    with ThreadPoolExecutor(max_workers=16) as pool:
        under_way: deque[tuple[Entry, Future[bytes | StorageError]]] = deque()
        try:
            while True:
                while waiting and len(under_way) < _AHEAD:
                    ahead = sum(entry.size for entry, _ in under_way)
                    if under_way and ahead + waiting[0].size > _AHEAD_BYTES:
                        break
                    entry = waiting.popleft()
                    under_way.append((entry, pool.submit(content, entry)))
                if not under_way:
                    return
                entry, future = under_way.popleft()
                yield entry, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def read_json_lines(place: str, advance: Callable[[int], object]) -> Iterator[tuple[str, Any] | Unreadable]:
    """Where each line of a file is, and the value that it holds; `advance` is told of bytes as they are read.

    Raises:
        NotFoundError, StorageError, UnavailableError: the place itself failed.
    """
    try:
        for number, line in enumerate(read_lines(place, advance), 1):
            if line.strip():
                yield _json_value(line, f"{place}:{number}")
    except DAMAGED as error:
        yield Unreadable(place, "damaged file", str(error))


def _json_value(line: bytes, where: str) -> tuple[str, Any] | Unreadable:
    try:
        return where, orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            # Slower, and takes bytes and numbers that are none.
            return where, json.loads(line.decode("utf-8-sig", "replace"))
        except (ValueError, RecursionError) as error:
            return Unreadable(where, "not JSON", str(error)[:200])


def read_model(kind: type[Told], path: Path, of: str) -> Told | None:
    """What a file of JSON says `of` something; None where there is no such file.

    Raises:
        UsageError: it cannot be read, or says something else.
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
            "sources.invalid-metadata", f"{path} does not describe {of}: {faults_of(error)}; create it again"
        ) from None
