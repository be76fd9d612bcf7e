"""End a process that makes no progress, after writing its state to a file."""

import faulthandler
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from gumshoe.errors import UnavailableError

_DUMP = 20  # seconds for writing the file


class Watchdog:
    """Watch a value that changes whenever there is progress. Use as a context manager.

    If `progress` returns the same value for this number of seconds, the result of `describe` and the stacks of all
    threads are written to a file, and the process exits at once with status 75, which means that it can be tried again.
    """

    def __init__(self, seconds: float, progress: Callable[[], object], describe: Callable[[], str], path: Path) -> None:
        self._seconds, self._progress, self._describe, self._path = seconds, progress, describe, path
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        seen, since = self._progress(), time.monotonic()
        while not self._over.wait(min(1.0, self._seconds / 4)):
            now = self._progress()
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > self._seconds:
                self._end()

    def _end(self) -> None:
        error = UnavailableError("training.stalled", f"no progress for {self._seconds:g} seconds; see {self._path}")
        os.write(2, f"error: {error.message_with_code}\n".encode())
        last = threading.Timer(_DUMP, os._exit, [UnavailableError.exit_status])
        last.daemon = True
        last.start()  # in case the disk hangs
        try:
            with self._path.open("w", encoding="utf-8") as file:
                file.write(f"No progress for {self._seconds:g} seconds.\n{self._describe()}\n\n")
                file.flush()
                faulthandler.dump_traceback(file)
        finally:
            os._exit(UnavailableError.exit_status)
