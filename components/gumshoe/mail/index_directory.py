"""Lock, check and clean up the directory of an index of mail, and compute the digest of its content."""

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from heapq import merge
from pathlib import Path

import apsw

from gumshoe.artifacts.storage import explain_os_errors, is_partial, lock_directory
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.schema import SEGMENT_PREFIX, VERSION, index_path
from gumshoe.mail.segment import IndexSegments
from gumshoe.signals import exit_on_signals

PARTIAL = ".partial"
"""Directory of the segments that are being written."""


def check_is_new(directory: Path) -> None:
    """Check that a directory contains no index.

    Raises:
        UsageError: if it does.
    """
    if index_path(directory).exists():
        raise UsageError(
            "mail.index-exists",
            f"{directory} contains an index already; choose another directory, replace it with `gumshoe mail index "
            "--replace`, or add to it with `--into`",
        )


def list_leftovers(directory: Path, segments: Sequence[str]) -> list[Path]:
    """Return the temporary files of killed builds, and segments that are not in `segments`, without `PARTIAL`."""
    return [
        path
        for path in directory.iterdir()
        if is_partial(path.name) or (path.name.startswith(SEGMENT_PREFIX) and path.name not in segments)
    ]


def remove_leftovers(directory: Path, segments: Sequence[str], *, at_once: bool) -> None:
    """Delete what `list_leftovers` returns. Segments stay while a reader has them open, unless `at_once` is set."""
    for path in list_leftovers(directory, segments):
        if not path.is_dir():
            path.unlink()
        elif at_once or not _is_held(path):
            shutil.rmtree(path)


def _is_held(directory: Path) -> bool:
    """Return True if a reader has a segment open. See `IndexSegment.hold`."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False


@contextmanager
def change_index(directory: Path) -> Iterator[None]:
    """Hold the lock of an index while the block writes to its directory. SIGTERM and SIGHUP end it as Ctrl-C does.

    Raises:
        UnavailableError: if another process holds the lock.
        GumshoeError: if the directory cannot be written.
    """
    with explain_os_errors(directory), lock_directory(directory, wait=None) as lock, exit_on_signals():
        if lock is None:
            raise UnavailableError(
                "mail.index-busy",
                f"another process is building an index in {directory}; wait for it, or choose another directory",
            )
        with explain_write_errors(directory):
            yield


@contextmanager
def explain_write_errors(directory: Path) -> Iterator[None]:
    """Turn SQLite's errors about a disk that is full or fails into GumshoeError."""
    try:
        yield
    except (apsw.FullError, apsw.IOError, apsw.CantOpenError) as error:
        raise GumshoeError(
            "mail.index-not-written", f"cannot write {directory}: {error}; free space on its disk, then try again"
        ) from None


def digest_content(segments: IndexSegments, options: MailBuildOptions) -> str:
    """Return a digest of all copies of messages, in an order that does not depend on how the index was built."""
    removed = set(segments.collect(lambda each: each.execute("SELECT message, copy FROM removed_copies")))
    digest = blake2b(repr((VERSION, options)).encode(), digest_size=32)
    rows = [each.execute("SELECT digest, message, copy FROM copies ORDER BY digest") for each in segments.segments]
    for content, message, copy in merge(*rows):
        if (message, copy) not in removed:
            digest.update(content)
    return digest.hexdigest()
