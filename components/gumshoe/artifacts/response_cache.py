"""Cache on disk for responses that cost money or time, keyed by the request."""

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

_KEYS_PER_QUERY = 500
_WAIT = 30  # seconds to wait for another process that is writing

_retry_while_busy = Retrying(  # SQLite itself does not wait while another process sets the journal mode
    retry=retry_if_exception(lambda error: getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY),
    stop=stop_after_delay(_WAIT),
    wait=wait_random(0, 0.05),
    reraise=True,
)


class Cache:
    """Store responses by key in one SQLite file, shared by several threads and processes.

    Only the file's owner can read it, because it may contain mail.

    Raises:
        StorageError: if the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with self._explain_errors():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            self._base = sqlite3.connect(path, timeout=_WAIT, isolation_level=None, check_same_thread=False)
            _retry_while_busy(self._base.execute, "PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = NORMAL")
            self._base.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the values of those keys that are in the cache."""
        wanted, found = list(dict.fromkeys(keys)), dict[str, bytes]()
        for start in range(0, len(wanted), _KEYS_PER_QUERY):
            part = wanted[start : start + _KEYS_PER_QUERY]
            marks = ",".join("?" * len(part))
            with self._lock, self._explain_errors():
                found.update(self._base.execute(f"SELECT key, value FROM answers WHERE key IN ({marks})", part))  # noqa: S608
        return found

    def put(self, answers: Mapping[str, bytes]) -> None:
        """Store values by key."""
        with self._lock, self._explain_errors():
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
    def _explain_errors(self) -> Iterator[None]:
        """Turn errors of the file into a StorageError that says what to do."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise StorageError(
                "store.cache-unusable",
                f"cannot use {self._path} as a cache: {error}; choose another file, or delete this one",
            ) from None


def cache_key(*request: object) -> str:
    """Return the key of a request, given everything that its response depends on: names, versions, texts."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def default_cache_path(name: str) -> Path:
    """Return the path of a cache in the user's cache directory."""
    return cache_directory() / f"{name}.sqlite"


def cache_directory() -> Path:
    """Return the user's cache directory: GUMSHOE_CACHE, or `gumshoe` in XDG_CACHE_HOME, or `~/.cache/gumshoe`."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("GUMSHOE_CACHE") or Path(home, "gumshoe")).expanduser()
