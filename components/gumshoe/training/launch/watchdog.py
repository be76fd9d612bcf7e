"""Ends a process in which nothing goes on, after it has written down what it knows."""

import faulthandler
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from gumshoe.errors import UnavailableError

_DUMP = 20  # seconds for writing it


class Watchdog:
    """Looks at something that changes as long as there is progress.

    When it has not changed for so many seconds, the stacks of all threads and what `describe` says go into a file, and
    the process ends at once with status 75, so that whoever started it tries again. Use as a context manager.
    """

    def __init__(self, seconds: float, look: Callable[[], object], describe: Callable[[], str], path: Path) -> None:
        self._seconds, self._look, self._describe, self._path = seconds, look, describe, path
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
        seen, since = self._look(), time.monotonic()
        while not self._over.wait(min(1.0, self._seconds / 4)):
            now = self._look()
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > self._seconds:
                self._end()

    def _end(self) -> None:
        error = UnavailableError("training.stalled", f"no progress for {self._seconds:g} seconds; see {self._path}")
        os.write(2, f"error: {error.message_with_code}\n".encode())
        last = threading.Timer(_DUMP, os._exit, [UnavailableError.exit_status])
        last.daemon = True
        last.start()  # for a disk that does not answer
        try:
            with self._path.open("w", encoding="utf-8") as file:
                file.write(f"No progress in {self._seconds:g} seconds.\n{self._describe()}\n\n")
                file.flush()
                faulthandler.dump_traceback(file)
        finally:
            os._exit(UnavailableError.exit_status)
