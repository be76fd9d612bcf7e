"""SQLite files that never change, as indexes are."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import apsw

from gumshoe.errors import GumshoeError, UnavailableError


def open_read_only(path: Path) -> apsw.Connection:
    """Open a file that never changes: no locks, no journal, nothing written beside it."""
    uri = f"file:{quote(str(path.absolute()))}?immutable=1"
    return apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


@contextmanager
def damage_explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors about an index into GumshoeError, and those of its disk into UnavailableError."""
    try:
        yield
    except (apsw.IOError, apsw.CantOpenError, apsw.NoMemError) as error:
        raise UnavailableError("store.index-unreadable", f"cannot read {path}: {error}; try again") from error
    except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError) as error:
        raise GumshoeError(
            "store.index-damaged", f"{path} is damaged: {error}; fetch the index again, or build it again"
        ) from error
