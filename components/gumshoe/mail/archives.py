"""Read the files in an archive (`.zip`, `.tgz`), e.g. of Google Takeout, like those of a directory."""

import io
import shutil
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from gzip import GzipFile
from lzma import LZMAError
from tarfile import TarError, TarFile, TarInfo
from tempfile import TemporaryFile
from typing import IO, Any
from zipfile import BadZipFile, ZipFile, ZipInfo

from gumshoe.artifacts.lines import file_size
from gumshoe.artifacts.storage import Entry, open_uri
from gumshoe.errors import UsageError

_MAX_RATIO = 100  # unpacked to packed size
_FREE_SIZE = 1 << 30  # bytes that may be unpacked whatever the ratio
_MAX_FILES = 500_000  # of a `.tgz` archive; all its headers are kept in memory
_BLOCK = 1 << 20  # bytes
_TAR_SUFFIXES = (".tgz", ".tar.gz")


def is_archive(place: str) -> bool:
    """Return True if the name of a file is that of an archive."""
    return place.lower().endswith((".zip", *_TAR_SUFFIXES))


def open_archive(uri: str, place: str) -> "tuple[ZipFiles | TarFiles, list[Entry]]":
    """Open an archive and list its files.

    Raises:
        UsageError: if it is damaged or encrypted, would be too large when unpacked, or has two files of one name.
        NotFoundError, StorageError, UnavailableError: if it cannot be read.
    """
    kind = TarFiles if place.lower().endswith(_TAR_SUFFIXES) else ZipFiles
    files, entries = kind.open_archive(uri, place)
    if len({entry.key for entry in entries}) < len(entries):
        raise UsageError(
            "mail.unreadable-archive", f"{uri} contains several files of one name; unpack it, and name the directory"
        )
    return files, entries


@dataclass(frozen=True, slots=True)
class ZipFiles:
    """The files in a `.zip` archive."""

    uri: str
    archive: ZipFile

    @classmethod
    def open_archive(cls, uri: str, place: str) -> "tuple[ZipFiles, list[Entry]]":
        """Open an archive and list its files, sorted by path. See `open_archive`.

        One on S3 is first copied to a temporary file.
        """
        size = file_size(place)
        opened = open_uri(place)
        if place.startswith("s3://"):
            with opened:
                copy = TemporaryFile()  # noqa: SIM115 - open as long as the archive
                shutil.copyfileobj(opened, copy, _BLOCK)
            opened = copy
        try:
            archive = ZipFile(opened)
        except (BadZipFile, OSError, ValueError, RuntimeError) as error:
            opened.close()
            raise UsageError("mail.unreadable-archive", f"{uri} is not a zip archive, or damaged: {error}") from None
        weakref.finalize(archive, opened.close)
        found = [info for info in archive.infolist() if not info.is_dir() and not info.filename.startswith("__MACOSX/")]
        if any(info.flag_bits & 1 for info in found):
            raise UsageError("mail.unreadable-archive", f"{uri} is encrypted; unpack it, and name the directory")
        if (total := sum(info.file_size for info in found)) > max(_FREE_SIZE, _MAX_RATIO * size):
            raise UsageError(
                "mail.unreadable-archive", f"{uri} would unpack from {size:,} to {total:,} bytes; unpack it yourself"
            )
        return cls(place, archive), sorted(map(_to_entry, found), key=lambda entry: entry.key)

    def open(self, key: str) -> io.BufferedReader:
        """Open a file of the archive. Reading raises `zlib.error` if it is damaged."""
        with _explain_damage():
            return io.BufferedReader(_Member(self.archive.open(key)), _BLOCK)


@dataclass(frozen=True, slots=True)
class TarFiles:
    """The files in a `.tgz` archive. They are read fastest in its order, because it can only be unpacked forwards."""

    uri: str
    """Path without `file://`, because files below a URI are read concurrently, and those of this archive cannot be."""
    archive: TarFile
    members: dict[str, TarInfo]

    @classmethod
    def open_archive(cls, uri: str, place: str) -> "tuple[TarFiles, list[Entry]]":
        """Open an archive and list its files, in its order. See `open_archive`."""
        size = file_size(place)
        if "://" in place and not place.startswith("file://"):
            raise UsageError("mail.unreadable-archive", f"{uri}: copy the archive to a disk to read it")
        opened = open_uri(place)
        try:
            archive = TarFile(fileobj=_SmallReads(fileobj=opened), encoding="utf-8", errors="replace")
            found = _list_members(uri, archive, max(_FREE_SIZE, _MAX_RATIO * size))
        except UsageError:
            opened.close()
            raise
        except (TarError, zlib.error, EOFError, OSError, ValueError, RuntimeError) as error:
            opened.close()
            raise UsageError("mail.unreadable-archive", f"{uri} is not a .tgz archive, or damaged: {error}") from None
        weakref.finalize(archive, opened.close)
        files = cls(place.removeprefix("file://"), archive, {info.name: info for info in found})
        return files, list(map(_to_entry_of_tar, found))

    def open(self, key: str) -> io.BufferedReader:
        """Open a file of the archive. Reading raises `zlib.error` if it is damaged."""
        with _explain_damage():
            member = self.archive.extractfile(self.members[key])
            if member is None:
                raise ValueError("not a file")
            return io.BufferedReader(_Member(member), _BLOCK)


def _list_members(uri: str, archive: TarFile, max_size: int) -> list[TarInfo]:
    """Return the files of an archive, of at most `max_size` bytes. Links and directories are left out.

    Raises:
        UsageError: if there are too many or too large files.
        TarError, zlib.error, EOFError, OSError, ValueError: if the archive is damaged.
    """
    members = []
    total = 0
    for number, info in enumerate(archive):
        if info.size < 0 or archive.offset <= info.offset:  # tarfile would go backwards, and never end
            raise TarError("a file of negative size")
        total += info.size
        if total > max_size or number >= _MAX_FILES:
            detail = f"would unpack to more than {max_size:,} bytes or {_MAX_FILES:,} files"
            raise UsageError("mail.unreadable-archive", f"{uri} {detail}; unpack it yourself")
        if info.isreg() and not info.issparse() and not info.name.startswith("__MACOSX/"):
            members.append(info)
    return members


class _SmallReads(GzipFile):
    """A compressed file that is read in pieces of at most 1 MiB, so that a header cannot fill the memory.

    Reading more raises `ValueError`.
    """

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _BLOCK:
            raise ValueError(f"a header of {size} bytes")
        return super().read(size)


class _Member(io.RawIOBase):
    """A file of an archive whose errors are those of a damaged gzip file."""

    def __init__(self, member: IO[bytes]) -> None:
        self._member = member

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        with _explain_damage():
            block = self._member.read(min(len(view), _BLOCK))
        view[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self._member.close()
        super().close()


@contextmanager
def _explain_damage() -> Iterator[None]:
    try:
        yield
    except (BadZipFile, TarError, EOFError, OSError, ValueError, RuntimeError, LZMAError) as error:
        raise zlib.error(str(error) or type(error).__name__) from None


def _to_entry(info: ZipInfo) -> Entry:
    try:
        modified = datetime(*info.date_time, tzinfo=UTC)
    except ValueError:
        modified = datetime.fromtimestamp(0, UTC)
    return Entry(info.filename, info.file_size, modified)


def _to_entry_of_tar(info: TarInfo) -> Entry:
    try:
        modified = datetime.fromtimestamp(info.mtime, UTC)
    except (ValueError, OverflowError, OSError):
        modified = datetime.fromtimestamp(0, UTC)
    return Entry(info.name, info.size, modified)
