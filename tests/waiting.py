"""Wait in tests without a bound on wall time: for a condition, or on a clock that the test moves forward.

A condition that never holds ends with pytest's own timeout, so a slow machine cannot fail a test that waits.
"""

import asyncio
import subprocess
import time
from collections.abc import Callable

import pytest


def wait_until(
    condition: Callable[[], object],
    process: "subprocess.Popen[bytes] | subprocess.Popen[str] | None" = None,
    log: Callable[[], str] = lambda: "",
) -> None:
    """Return as soon as the condition holds; fail if the process that should bring it about has ended.

    Args:
        condition: asked again every 10 ms.
        process: fails the test with `log()` if it ends before the condition holds.
        log: what to show then.
    """
    while not condition():
        if process is not None and process.poll() is not None and not condition():
            pytest.fail(f"the process ended with {process.returncode} before the condition held: {log()[-3000:]}")
        time.sleep(0.01)


async def async_wait_until(condition: Callable[[], object]) -> None:
    """Return as soon as the condition holds, while the event loop goes on."""
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
        """Return the seconds of the monotonic clock, with what it was moved forward by."""
        return self._real() + self._ahead

    def advance(self, seconds: float) -> None:
        """Move the clock forward; an event loop that runs in another thread notices at its next wake-up."""
        self._ahead += seconds
