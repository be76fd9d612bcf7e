"""Wait in tests without a limit on wall time: for a condition, or with a clock that the test moves forward.

If a condition never holds, pytest's own timeout ends the test. So a slow machine does not make tests fail.
"""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from tests.warm_processes import Process


def wait_until(
    condition: Callable[[], object],
    process: Process | None = None,
    log: Callable[[], str] = lambda: "",
) -> None:
    """Return as soon as a condition holds; fail if the process that should make it hold has ended.

    Args:
        condition: checked every 10 ms.
        process: the test fails if this process ends before the condition holds.
        log: returns the text to show in that case.
    """
    while not condition():
        if process is not None and process.poll() is not None and not condition():
            pytest.fail(f"the process ended with {process.returncode} before the condition held: {log()[-3000:]}")
        time.sleep(0.01)


def count_threads(name: str) -> int:
    """Return the number of threads of this process with a name; those of servers of other tests come and go."""
    return sum(each.name == name for each in threading.enumerate())


async def async_wait_until(condition: Callable[[], object]) -> None:
    """Return as soon as a condition holds, while the event loop continues."""
    while not condition():
        await asyncio.sleep(0.01)


class Clock:
    """The monotonic clock of this process, which a test moves forward.

    `time.monotonic` is what deadlines, pauses and asyncio's own timers read, so `advance` makes them elapse at once:

        clock.advance(59)   # a deadline of 60 seconds has not passed
        clock.advance(2)    # now it has

    Waits inside C code (`time.sleep`, `Event.wait`, a socket's timeout) still take real time.
    """

    def __init__(self) -> None:
        self._real = time.monotonic
        self._ahead = 0.0

    def now(self) -> float:
        """Return the seconds of the monotonic clock, plus the time that it was moved forward."""
        return self._real() + self._ahead

    def advance(self, seconds: float) -> None:
        """Move the clock forward; an event loop in another thread notices it when it wakes up next."""
        self._ahead += seconds
