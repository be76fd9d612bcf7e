"""What cost money or time to get, kept on disk under what was asked."""

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

from gumshoe.artifacts.storage import StorageError

_AT_ONCE = 500  # keys of one query
_WAIT = 30  # seconds for another process to have written

_again = Retrying(  # SQLite itself does not wait where two processes change a new file's journal at once
    retry=retry_if_exception(lambda error: getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY),
    stop=stop_after_delay(_WAIT),
    wait=wait_random(0, 0.05),
    reraise=True,
)


class Cache:
    """A file of answers by key, for several threads and processes. Only its owner can read it, for it may hold mail.

    Raises:
        StorageError: the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with self._told():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            self._base = sqlite3.connect(path, timeout=_WAIT, isolation_level=None, check_same_thread=False)
            _again(self._base.execute, "PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = NORMAL")
            self._base.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The answers that are there."""
        wanted, found = list(dict.fromkeys(keys)), dict[str, bytes]()
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            marks = ",".join("?" * len(part))
            with self._lock, self._told():
                found.update(self._base.execute(f"SELECT key, value FROM answers WHERE key IN ({marks})", part))  # noqa: S608
        return found

    def put(self, answers: Mapping[str, bytes]) -> None:
        """Keep answers."""
        with self._lock, self._told():
            self._base.execute("BEGIN IMMEDIATE")
            try:
                self._base.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", answers.items())
            except BaseException:
                self._base.execute("ROLLBACK")
                raise
            self._base.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say what to do where the file does not serve."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise StorageError(
                "store.cache-unusable",
                f"cannot use {self._path} as a cache: {error}; choose another file, or delete this one",
            ) from None


def cache_key(*asked: object) -> str:
    """The key of what was asked: names, versions, texts."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def default_cache(name: str) -> Path:
    """A cache of that name where the user keeps such: GUMSHOE_CACHE, or `gumshoe` in XDG_CACHE_HOME or ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("GUMSHOE_CACHE") or Path(home, "gumshoe")).expanduser() / f"{name}.sqlite"
