"""Open SQLite files that never change, such as indexes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import apsw

from gumshoe.errors import GumshoeError, UnavailableError


def open_read_only(path: Path) -> apsw.Connection:
    """Open a file that never changes, without locks, a journal or any other file beside it."""
    uri = f"file:{quote(str(path.absolute()))}?immutable=1"
    return apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Turn SQLite's errors about an index into GumshoeError, and errors of its disk into UnavailableError."""
    try:
        yield
    except (apsw.IOError, apsw.CantOpenError, apsw.NoMemError) as error:
        raise UnavailableError("store.index-unreadable", f"cannot read {path}: {error}; try again") from error
    except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError) as error:
        raise GumshoeError(
            "store.index-damaged", f"{path} is damaged: {error}; fetch the index again, or build it again"
        ) from error
