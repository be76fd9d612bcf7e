"""One small interface to a directory and to an S3 bucket, and functions that read by URI."""

import errno
import fcntl
import io
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from gumshoe.errors import GumshoeError, UnavailableError, UsageError

_LOCK_SECONDS = 60  # a conditional write holds its lock for milliseconds
_PARTIAL = (".gumshoe-", ".partial")  # prefix and suffix of the names of unfinished files
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class StorageError(GumshoeError):
    """The storage refused or failed, and trying again will not help."""


class NotFoundError(StorageError):
    """There is no object under that name."""


class DamagedError(UnavailableError):
    """The bytes that arrived are not those that are stored."""


class InvalidUriError(UsageError):
    """A URI has a form that Gumshoe cannot read."""


class DeadlineError(UnavailableError):
    """The time limit of the whole operation has passed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Time, retry and size limits for access to storage. Times are in seconds."""

    connect_timeout: float = 10
    read_timeout: float = 60
    """Maximum silence on a connection before the request is retried."""
    attempts: int = 6
    """Attempts per request, with exponential backoff and jitter between them."""
    backoff: float = 20
    """Maximum pause between two attempts."""
    workers: int = 8
    """Maximum number of concurrent requests."""
    part_size: int = 64 << 20
    """Bytes per part of a multipart upload. Larger files are sent in parts."""
    deadline: float = 6 * 3600
    """Time limit for one whole operation such as `publish`."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment by which an operation must be finished."""

    seconds: float
    started: float = field(default_factory=lambda: time.monotonic())  # looked up when called, so that tests can move it
    _stopped: Event = field(default_factory=Event)

    @property
    def is_over(self) -> bool:
        return self._stopped.is_set() or time.monotonic() - self.started > self.seconds

    def stop(self) -> None:
        """Let the operation end now, in all threads that check the deadline."""
        self._stopped.set()

    def check(self) -> None:
        """Raise DeadlineError if the time is over."""
        if self.is_over:
            raise DeadlineError(
                "store.deadline-exceeded",
                f"not finished within the deadline of {self.seconds:g} seconds; run it again to resume, or set a "
                "longer deadline",
            )


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored object: its key below the storage's root, its size in bytes, and when it was last written (UTC)."""

    key: str
    size: int
    modified: datetime


class Storage(Protocol):
    """A directory or a bucket prefix that stores bytes under keys (`a/b/c`).

    A key never shows half-written bytes. Every method may raise StorageError (final) or UnavailableError (try again).
    """

    uri: str

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        """Yield all objects whose key starts with `prefix`, sorted by key."""
        ...

    def open(self, key: str, offset: int = 0) -> io.BufferedReader:
        """Open an object for reading from byte `offset`. Raises NotFoundError."""
        ...

    def read(self, key: str) -> tuple[bytes, str]:
        """Return a small object's bytes, and a tag that changes with them. Raises NotFoundError."""
        ...

    def upload(self, files: dict[str, Path], deadline: Deadline, advance: Callable[[int], object]) -> None:
        """Store each local file under its key. `advance` is called with the number of bytes sent."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Store the bytes if nothing is stored under the key yet. Return True if this call stored them."""
        ...

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        """Replace the bytes if they still have that tag. Return True if this call replaced them."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects. Keys that do not exist are ignored."""
        ...

    def abandon_uploads(self, prefix: str, before: datetime, keys: re.Pattern[str]) -> int:
        """Abort unfinished uploads to matching keys that started before a time. Return their number."""
        ...


def open_storage(uri: str, limits: Limits | None = None) -> Storage:
    """Return the storage at a `file://` or `s3://` URI, or at a plain path.

    Raises:
        InvalidUriError: if the URI has another form.
    """
    scheme, bucket, path = split_uri(uri)
    if scheme == "s3":
        from gumshoe.artifacts.s3 import S3Storage  # boto3 takes a fifth of a second to import

        return S3Storage(bucket, path, limits or Limits())
    return FileStorage(Path(path))


def split_uri(uri: str) -> tuple[str, str, str]:
    """Return scheme (`file` or `s3`), bucket (empty for a file) and path or key of a URI.

    Raises:
        InvalidUriError: if it is neither `s3://BUCKET/KEY`, `file:///PATH` nor a plain path.
    """
    if "://" not in uri:
        if not uri:
            raise InvalidUriError("store.empty-path", "the path is empty; use a path, file:///PATH or s3://BUCKET/KEY")
        return "file", "", uri
    scheme, rest = uri.split("://", 1)
    if scheme == "s3":
        bucket, _, key = rest.partition("/")
        if not bucket:
            raise InvalidUriError("store.no-bucket-name", f"{uri!r} names no bucket; use s3://BUCKET/KEY")
        if "@" in bucket:
            raise InvalidUriError(
                "store.credentials-in-uri",
                f"{uri!r} contains credentials, which would be stored and logged; use s3://BUCKET/KEY, and set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile",
            )
        return "s3", bucket, key.strip("/")
    if scheme == "file":
        parts = urlsplit(uri)
        if parts.netloc not in {"", "localhost"} or not parts.path:
            raise InvalidUriError(
                "store.invalid-file-uri", f"{uri!r} is not a local path; use file:///PATH, with three slashes"
            )
        return "file", "", unquote(parts.path)
    raise InvalidUriError(
        "store.unknown-scheme", f"{uri!r} has an unknown scheme: {scheme!r}; use file://, s3:// or a path"
    )


def open_uri(uri: str, limits: Limits | None = None) -> BinaryIO:
    """Open the file at a `file://` or `s3://` URI or a plain path, for sequential reading.

    Reading from S3 survives dropped and silent connections: it resumes at the last byte that arrived. It fails if the
    object changes meanwhile.

    Raises:
        InvalidUriError: if the URI has another form.
        NotFoundError: if the file does not exist.
        StorageError, UnavailableError: if it cannot be read.
    """
    scheme, bucket, path = split_uri(uri)
    if scheme == "s3":
        return open_storage(f"s3://{bucket}", limits).open(path)
    return FileStorage(Path(path).parent).open(Path(path).name)


def list_uri(uri: str, limits: Limits | None = None) -> list[Entry]:
    """Return all files at and below a URI, sorted by name. Each entry's key is a URI (or path) for `open_uri`.

    Raises:
        InvalidUriError: if the URI has another form.
        NotFoundError: if there are no files.
        StorageError, UnavailableError: if they cannot be listed.
    """
    scheme, bucket, path = split_uri(uri)
    if scheme == "s3":
        storage = open_storage(f"s3://{bucket}", limits)
        wanted = (entry for entry in storage.entries(path) if not path or entry.key.startswith(f"{path}/"))
        found = [replace(entry, key=f"s3://{bucket}/{entry.key}") for entry in wanted if not entry.key.endswith("/")]
        if not found:
            found = [replace(entry, key=uri) for entry in storage.entries(path) if entry.key == path]
    elif Path(path).is_file():
        found = [_to_entry(path, Path(path).stat())]
    else:
        entries = FileStorage(Path(path)).entries()
        found = [replace(entry, key=str(Path(path) / entry.key)) for entry in entries]
    if not found:
        raise NotFoundError("store.not-found", f"{uri} does not exist; check the path")
    return found


def _to_entry(key: str, file: os.stat_result) -> Entry:
    return Entry(key, file.st_size, datetime.fromtimestamp(file.st_mtime, UTC))


@contextmanager
def lock_directory(directory: Path, wait: Deadline | None) -> Iterator[int | None]:
    """Hold the lock of a directory while the block runs, and yield its file descriptor.

    The directory is created if it does not exist. The lock ends when this process, and every process that inherited the
    descriptor, has ended. With `wait=None` the function does not wait: it yields None if another process holds the
    lock.

    Raises:
        DeadlineError: if another process still held the lock at the deadline.
    """
    descriptor = _lock(directory, wait)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(directory: Path, wait: Deadline | None) -> int | None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    while True:  # the process that held the lock may move or remove the directory at any time
        with suppress(FileExistsError):
            directory.mkdir()
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            if directory.is_symlink():
                raise
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            if wait is None:
                return None
            wait.check()
            time.sleep(0.05)
            continue
        with suppress(FileNotFoundError):
            if os.path.samestat(directory.stat(), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)


@contextmanager
def open_locked_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading and appending, and lock it until the block, or this process, ends.

    The file is created if it does not exist.

    Raises:
        UsageError: if another process holds the lock.
    """
    file = path.open("a+b")
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have replaced the file since it was opened.
            is_same = os.path.samestat(path.stat(), os.fstat(file.fileno()))
        except (BlockingIOError, FileNotFoundError):
            is_same = False
        if not is_same:
            raise UsageError(
                "store.file-in-use", f"another process is writing {path}; wait until it ends, or choose another file"
            )
        yield file
    except BaseException:
        with suppress(OSError):  # on a full disk, what the block could not write fails again
            file.close()
        raise
    file.close()


def write_atomically(
    path: Path, source: BinaryIO, advance: Callable[[int], object] = lambda _: None, mode: int = 0o644
) -> None:
    """Write to a temporary file in the same directory, flush it to disk, and rename it.

    `mode` is the permissions of the file. Until it is complete, only its owner may read it.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=_PARTIAL[0], suffix=_PARTIAL[1], dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as target:
            while block := source.read(1 << 20):
                target.write(block)
                advance(len(block))
            target.flush()
            os.fsync(target.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def flush_to_disk(paths: Iterable[Path]) -> None:
    """Write complete files to the disk, so that they survive a crash of the machine."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())


class FileStorage:
    """Store objects as files below a directory. A conditional write locks the directory that it writes to."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.uri = str(root)

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        top = self._root / prefix.rpartition("/")[0]
        closed: list[Path] = []  # folders without permission: they are listed, so that opening them reports the error

        def note(error: OSError) -> None:
            if isinstance(error, PermissionError):
                closed.append(Path(error.filename))

        walk = os.walk(top, onerror=note)  # files that were removed meanwhile are skipped
        paths = [Path(folder, name) for folder, _, names in walk for name in names if not is_partial(name)]
        for path in sorted([*paths, *closed], key=lambda path: path.relative_to(self._root).as_posix()):
            key = path.relative_to(self._root).as_posix()
            if key.startswith(prefix) and (path in closed or path.is_file()):
                try:
                    found = path.stat()
                except FileNotFoundError:
                    continue
                yield _to_entry(key, found)

    def open(self, key: str, offset: int = 0) -> io.BufferedReader:
        with explain_os_errors(self._root / key):
            file = (self._root / key).open("rb")
            file.seek(offset)
            return file

    def read(self, key: str) -> tuple[bytes, str]:
        with self.open(key) as file:
            data = file.read()
        return data, data.hex()

    def upload(self, files: dict[str, Path], deadline: Deadline, advance: Callable[[int], object]) -> None:
        def count(amount: int) -> None:
            deadline.check()
            advance(amount)

        for key, path in files.items():
            with explain_os_errors(self._root / key):
                (self._root / key).parent.mkdir(parents=True, exist_ok=True)
                with path.open("rb") as source:
                    write_atomically(self._root / key, source, count)

    def create(self, key: str, data: bytes) -> bool:
        return self._write_if(key, data, None)

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        return self._write_if(key, data, tag)

    def _write_if(self, key: str, data: bytes, tag: str | None) -> bool:
        path = self._root / key
        with explain_os_errors(path), lock_directory(path.parent, Deadline(_LOCK_SECONDS)):
            current = path.read_bytes().hex() if path.exists() else None
            if current != tag:
                return False
            write_atomically(path, io.BytesIO(data))
            return True

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._root / key
            with explain_os_errors(path):
                path.unlink(missing_ok=True)
                for parent in path.parents:
                    if parent == self._root or not parent.is_dir() or any(parent.iterdir()):
                        break
                    parent.rmdir()

    def abandon_uploads(self, prefix: str, before: datetime, keys: re.Pattern[str]) -> int:
        count = 0
        for path in list((self._root / prefix).rglob("*".join(_PARTIAL))):
            key = path.relative_to(self._root).as_posix()
            if path.stat().st_mtime < before.timestamp() and keys.fullmatch(key):
                self.delete([key])
                count += 1
        return count


def is_partial(name: str) -> bool:
    """Return True if a file of that name is an unfinished one of `write_atomically`."""
    return name.startswith(_PARTIAL[0]) and name.endswith(_PARTIAL[1])


def make_writable_directory(place: str) -> Path:
    """Create a directory if it does not exist, and check that files can be created in it, before long work starts.

    Raises:
        UsageError: if it cannot be created or is not writable.
    """
    if not place:
        raise UsageError("store.empty-path", "the directory's name is empty; name one, or use . for this one")
    directory = Path(place)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except FileExistsError:
        raise UsageError("store.not-a-directory", f"{directory} is a file; name a directory") from None
    except OSError as error:
        raise UsageError(
            "store.directory-not-writable", f"cannot write to {directory}: {error.strerror}; choose another directory"
        ) from None
    return directory


def check_output_file(path: Path) -> None:
    """Check that a file can be created or replaced, before long work starts.

    Raises:
        NotFoundError: if its directory does not exist.
        StorageError: if it is a directory, or its directory is not writable.
    """
    with explain_os_errors(path):
        if path.is_dir():
            raise IsADirectoryError
    with explain_os_errors(path.parent):
        tempfile.TemporaryFile(dir=path.parent).close()


@contextmanager
def explain_os_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's errors about a file into errors that say what to do."""
    try:
        yield
    except FileNotFoundError:
        raise NotFoundError("store.not-found", f"{path} does not exist; check the path") from None
    except PermissionError:
        raise StorageError("store.no-permission", f"no permission for {path}; check its owner and mode") from None
    except IsADirectoryError:
        raise StorageError("store.is-a-directory", f"{path} is a directory; name a file in it") from None
    except (NotADirectoryError, FileExistsError) as error:
        raise StorageError(
            "store.not-a-directory", f"{path}: {error.strerror}, a file is in the way; choose another path"
        ) from error
    except OSError as error:
        free = shutil.disk_usage(_nearest_existing(path)).free
        raise StorageError(
            "store.disk-full" if error.errno in _DISK_FULL else "store.file-error",
            f"{path}: {error.strerror or error} ({free >> 20} MiB free on its disk); check the path and the disk",
        ) from error


def _nearest_existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.absolute().parents) if parent.exists())
