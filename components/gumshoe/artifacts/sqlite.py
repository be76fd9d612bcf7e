"""Open SQLite files that never change, such as indexes."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from gumshoe.errors import GumshoeError, UnavailableError

# Errors of lookups, of decoding JSON, numbers and text, and of NumPy, e.g. for offsets beyond the end of an array. A
# generator in which `next` finds nothing raises a RuntimeError.
_CONTENT_ERRORS = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError),
    *(StopIteration, RuntimeError, MemoryError, apsw.Error),
)
_CACHE_KIB = 2_000  # per connection; the operating system caches the file for all


def open_read_only(path: Path) -> apsw.Connection:
    """Open a file that never changes, without locks, a journal or any other file beside it."""
    uri = f"file:{quote(str(path.absolute()))}?immutable=1"
    return apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


class ReadOnlyDatabase:
    """A file that never changes. Each thread has a connection of its own, created on first use and again after a fork.

    `replaced` creates the error to raise if another file has its name when a connection is created.
    """

    def __init__(self, path: Path, replaced: Callable[[], GumshoeError]) -> None:
        self._path, self._replaced = path, replaced
        self._file = _file_identity(path)
        self._local = threading.local()

    def execute(self, query: str, values: Any = None) -> apsw.Cursor:
        """Run a query on the connection of this thread."""
        if getattr(self._local, "process", None) != os.getpid():
            if _file_identity(self._path) != self._file:
                raise self._replaced()
            database = open_read_only(self._path)
            database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._local.database, self._local.process = database, os.getpid()
        cursor: apsw.Cursor = self._local.database.execute(query, values)
        return cursor


def _file_identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode, which distinguish files of the same name."""
    return (path.stat().st_dev, path.stat().st_ino) if path.exists() else None


@contextmanager
def explain_damage(path: Path, *, content: bool = False) -> Iterator[None]:
    """Turn SQLite's errors about an index into GumshoeError, and errors of its disk into UnavailableError.

    With `content`, turn other errors that damaged values cause into GumshoeError too. Use it only around code that
    reads an index, so that errors of other origin keep their class.

    Raises:
        GumshoeError: if the index is damaged.
        UnavailableError: if its disk cannot be read.
    """
    try:
        yield
    except (apsw.IOError, apsw.CantOpenError, apsw.NoMemError) as error:
        raise UnavailableError("store.index-unreadable", f"cannot read {path}: {error}; try again") from error
    except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError) as error:
        raise GumshoeError(
            "store.index-damaged", f"{path} is damaged: {error}; fetch the index again, or build it again"
        ) from error
    except _CONTENT_ERRORS as error:
        if not content:
            raise
        raise GumshoeError(
            "store.index-damaged",
            f"{path} is damaged: {type(error).__name__}: {str(error)[:200]}; fetch the index again, or build it again",
        ) from error
