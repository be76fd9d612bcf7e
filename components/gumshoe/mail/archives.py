"""Read the files in a `.zip` archive, e.g. of Google Takeout, like those of a directory, without unpacking it."""

import io
import shutil
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from lzma import LZMAError
from tempfile import TemporaryFile
from typing import IO, Any
from zipfile import BadZipFile, ZipFile, ZipInfo

from gumshoe.artifacts.lines import file_size
from gumshoe.artifacts.storage import Entry, open_uri
from gumshoe.errors import UsageError

_MAX_RATIO = 100  # unpacked to packed size
_FREE_SIZE = 1 << 30  # bytes that may be unpacked whatever the ratio


@dataclass(frozen=True, slots=True)
class ZipFiles:
    """The files in a `.zip` archive."""

    uri: str
    archive: ZipFile

    @classmethod
    def open_archive(cls, uri: str, place: str) -> "tuple[ZipFiles, list[Entry]]":
        """Open an archive and list its files, sorted by path. One on S3 is first copied to a temporary file.

        Raises:
            UsageError: if it is damaged or encrypted, or would be too large when unpacked.
            NotFoundError, StorageError, UnavailableError: if it cannot be read.
        """
        size = file_size(place)
        opened = open_uri(place)
        if place.startswith("s3://"):
            with opened:
                copy = TemporaryFile()  # noqa: SIM115 - open as long as the archive
                shutil.copyfileobj(opened, copy, 1 << 20)
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
        if len({info.filename for info in found}) < len(found):
            raise UsageError(
                "mail.unreadable-archive",
                f"{uri} contains several files of one name; unpack it, and name the directory",
            )
        return cls(place, archive), sorted(map(_to_entry, found), key=lambda entry: entry.key)

    def open(self, key: str) -> io.BufferedReader:
        """Open a file of the archive. Reading raises `zlib.error` if it is damaged."""
        with _explain_damage():
            return io.BufferedReader(_Member(self.archive.open(key)), 1 << 20)


class _Member(io.RawIOBase):
    """A file of an archive whose errors are those of a damaged gzip file."""

    def __init__(self, member: IO[bytes]) -> None:
        self._member = member

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        with _explain_damage():
            block = self._member.read(len(view))
        view[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self._member.close()
        super().close()


@contextmanager
def _explain_damage() -> Iterator[None]:
    try:
        yield
    except (BadZipFile, EOFError, OSError, ValueError, RuntimeError, LZMAError) as error:
        raise zlib.error(str(error) or type(error).__name__) from None


def _to_entry(info: ZipInfo) -> Entry:
    try:
        modified = datetime(*info.date_time, tzinfo=UTC)
    except ValueError:
        modified = datetime.fromtimestamp(0, UTC)
    return Entry(info.filename, info.file_size, modified)
