"""Pages that came with an ETag or a date, kept so that the next run asks only whether they have changed."""

import hashlib
import io
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gumshoe.artifacts.storage import explain_os_errors, write_atomically


@dataclass(frozen=True, slots=True)
class CachedPage:
    """A page as it came, and what its server calls this state of it."""

    etag: str
    modified: str
    content_type: str
    body: bytes


class PageCache:
    """A directory of pages by address, for several processes; only its owner can look into it."""

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self._directory = directory
        self._most_bytes = most_bytes
        with explain_os_errors(directory):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def get(self, url: str) -> CachedPage | None:
        """The page that was kept, if it is whole."""
        path = self._path(url)
        try:
            head, _, body = path.read_bytes().partition(b"\n")
            known: dict[str, Any] = json.loads(head)
            if known.pop("url") != url:
                return None
            os.utime(path)  # what was not asked for the longest goes first
            return CachedPage(**known, body=zlib.decompress(body))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, zlib.error):
            return None

    def put(self, url: str, page: CachedPage) -> None:
        """Keep a page.

        Raises:
            StorageError: it cannot be written.
        """
        path = self._path(url)
        head = {"url": url, "etag": page.etag, "modified": page.modified, "content_type": page.content_type}
        with explain_os_errors(path):
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, io.BytesIO(json.dumps(head).encode() + b"\n" + zlib.compress(page.body)))

    def shrink(self) -> None:
        """Remove what was not asked for the longest until the rest fits."""
        with explain_os_errors(self._directory):
            found = sorted(
                ((path, path.stat()) for path in self._directory.glob("*/*.page")), key=lambda each: each[1].st_mtime
            )
            excess = sum(each.st_size for _, each in found) - self._most_bytes
            for path, each in found:
                if excess <= 0:
                    break
                path.unlink(missing_ok=True)
                excess -= each.st_size

    def _path(self, url: str) -> Path:
        name = hashlib.sha256(url.encode()).hexdigest()
        return self._directory / name[:2] / f"{name}.page"
