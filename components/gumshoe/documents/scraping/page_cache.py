"""Cache of pages that have an ETag or a date, so that the next run downloads only changed pages."""

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
    """A page as received, with its ETag and date."""

    etag: str
    modified: str
    content_type: str
    body: bytes


class PageCache:
    """Store pages by URL in a directory, for several processes. Only its owner can read it."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._most_bytes = max_bytes
        with explain_os_errors(directory):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def get(self, url: str) -> CachedPage | None:
        """Return the cached page, or None if it is missing or damaged."""
        path = self._path(url)
        try:
            head, _, body = path.read_bytes().partition(b"\n")
            known: dict[str, Any] = json.loads(head)
            if known.pop("url") != url:
                return None
            os.utime(path)  # the least recently used page is removed first
            return CachedPage(**known, body=zlib.decompress(body))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, zlib.error):
            return None

    def put(self, url: str, page: CachedPage) -> None:
        """Store a page.

        Raises:
            StorageError: if it cannot be written.
        """
        path = self._path(url)
        head = {"url": url, "etag": page.etag, "modified": page.modified, "content_type": page.content_type}
        with explain_os_errors(path):
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, io.BytesIO(json.dumps(head).encode() + b"\n" + zlib.compress(page.body)))

    def shrink(self) -> None:
        """Remove the least recently used pages until the rest fits."""
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
