"""Run tools in threads, outside the event loop, with a deadline per call."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Self, TypeVar, cast

from gumshoe.errors import UnavailableError

T = TypeVar("T")
_DEFAULT_COUNT = max(
    2, min(4, os.cpu_count() or 1)
)  # tools are mostly Python code, so more threads would wait for the GIL


class ToolFailedError(UnavailableError):
    """Report that a tool did not answer in time. It is a failure of infrastructure, not of the model."""


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    name: str
    function: Callable[[], Any]
    outcome: "asyncio.Future[tuple[Any, BaseException | None]]"
    """Result and exception of the function."""


class ToolThreads:
    """Run the tools of all episodes of one event loop in `count` threads (default: 2 to 4).

    Threads take calls from a queue and never wait for the event loop. A call that exceeds the deadline, in seconds, is
    abandoned with its thread, and a new thread takes its place. So a tool that hangs delays neither other tools nor the
    end of the process. The deadline does not include the time in the queue.
    """

    def __init__(self, count: int | None = None, deadline: float = 30) -> None:
        self._count, self._deadline = count or _DEFAULT_COUNT, deadline
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._started: dict[_Call, float] = {}  # start times; whoever removes a call sets its outcome
        self._pending = 0  # calls that an episode waits for
        self._next_check: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        for _ in range(self._count):
            self._add_thread()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Tell the threads to end, without waiting for them."""
        if self._next_check is not None:
            self._next_check.cancel()
        for _ in range(self._count):
            self._calls.put(None)

    async def run(self, name: str, function: Callable[..., T], *arguments: object) -> T:
        """Run a function in a thread and return its result. `name` is the name of the tool, for errors.

        Raises:
            ToolFailedError: if it does not return in time.
            Exception: if the function raises it.
        """
        call = _Call(name, lambda: function(*arguments), self._loop.create_future())
        self._pending += 1
        try:
            self._calls.put(call)
            self._schedule_check()
            result, error = await call.outcome
        finally:
            self._pending -= 1
        if error is not None:
            raise error
        return cast(T, result)

    def _add_thread(self) -> None:
        threading.Thread(target=self._work, name="tool", daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if call.outcome.done():  # its episode was cancelled
                continue
            self._started[call] = time.monotonic()
            outcome = _call_function(call.function)
            if self._started.pop(call, None) is None:
                return  # the call was abandoned
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(_set_result, call, outcome)
            del call, outcome  # free memory while waiting for the next call

    def _schedule_check(self) -> None:
        if self._next_check is None:  # a timer per call would take longer than some tools
            self._next_check = self._loop.call_later(self._deadline / 8, self._abandon_overdue_calls)

    def _abandon_overdue_calls(self) -> None:
        """Abandon the calls that exceed the deadline."""
        self._next_check = None
        latest = time.monotonic() - self._deadline
        for call, begun in self._started.copy().items():
            if begun < latest and self._started.pop(call, None) is not None:
                self._add_thread()
                message = f"tool {call.name} did not answer in {self._deadline:g} seconds"
                error = ToolFailedError("rollouts.tool-timeout", message)
                _set_result(call, (None, error))
        if self._pending:
            self._schedule_check()


def _call_function(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - raised again by `run`
        return None, error


def _set_result(call: _Call, outcome: tuple[Any, BaseException | None]) -> None:
    if not call.outcome.done():
        call.outcome.set_result(outcome)
