"""SQLite files that never change, as indexes are."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import apsw

from gumshoe.errors import GumshoeError


def open_read_only(path: Path) -> apsw.Connection:
    """Open a file that never changes: no locks, no journal, nothing written beside it."""
    uri = f"file:{quote(str(path.absolute()))}?immutable=1"
    return apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


@contextmanager
def damage_explained(path: Path, damaged: type[GumshoeError], unreadable: type[GumshoeError]) -> Iterator[None]:
    """Turn SQLite's errors about a file into `damaged`, those of its disk into `unreadable`, which say what to do."""
    try:
        yield
    except (apsw.IOError, apsw.CantOpenError, apsw.NoMemError) as error:
        raise unreadable(f"{path} cannot be read ({error}); try again") from error
    except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError) as error:
        raise damaged(f"{path} is damaged ({error}); fetch it again, or build it again") from error
