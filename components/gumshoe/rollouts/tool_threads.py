"""The threads that tools run in: off the event loop, each call with a deadline."""

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
_FEW = max(2, min(4, os.cpu_count() or 1))  # nearly all of a tool's time is Python's: more would wait for each other


class ToolFailedError(UnavailableError):
    """A tool did not answer in time, or could not: a failure of infrastructure, never of the model."""


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    name: str
    function: Callable[[], Any]
    outcome: "asyncio.Future[tuple[Any, BaseException | None]]"
    """What the function gave, and what it raised."""


class ToolThreads:
    """Runs the tools of all episodes of one event loop in `count` threads (a few, by default).

    A thread takes one call after another and never waits for the event loop, as the threads of a pool with a limit
    on what is handed to it would. A call that is past its deadline, in seconds, is left behind with its thread, which
    another replaces: tools that hang do not hold up those that do not, nor the end of the process. Waiting for a
    thread is no part of the deadline.
    """

    def __init__(self, count: int | None = None, deadline: float = 30) -> None:
        self._count, self._deadline = count or _FEW, deadline
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._begun: dict[_Call, float] = {}  # and when; who takes a call out of it decides what becomes of it
        self._open = 0  # calls that somebody waits for
        self._next_look: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        for _ in range(self._count):
            self._add_thread()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Let the threads end, without waiting for what runs in them."""
        if self._next_look is not None:
            self._next_look.cancel()
        for _ in range(self._count):
            self._calls.put(None)

    async def run(self, name: str, function: Callable[..., T], *arguments: object) -> T:
        """What the function gives, which carries out a call of the tool of that name.

        Raises:
            ToolFailedError: it did not answer in time.
            Exception: whatever it raises.
        """
        call = _Call(name, lambda: function(*arguments), self._loop.create_future())
        self._open += 1
        try:
            self._calls.put(call)
            self._look_later()
            result, error = await call.outcome
        finally:
            self._open -= 1
        if error is not None:
            raise error
        return cast(T, result)

    def _add_thread(self) -> None:
        threading.Thread(target=self._work, name="tool", daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if call.outcome.done():  # its episode was cancelled
                continue
            self._begun[call] = time.monotonic()
            outcome = _outcome(call.function)
            if self._begun.pop(call, None) is None:
                return  # it was left behind
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                self._loop.call_soon_threadsafe(_set_result, call, outcome)
            del call, outcome  # nothing is kept while waiting for the next

    def _look_later(self) -> None:
        if self._next_look is None:  # a timer for each call would take longer than some tools do
            self._next_look = self._loop.call_later(self._deadline / 8, self._look)

    def _look(self) -> None:
        """Leave the calls behind that are past their deadline."""
        self._next_look = None
        latest = time.monotonic() - self._deadline
        for call, begun in self._begun.copy().items():
            if begun < latest and self._begun.pop(call, None) is not None:
                self._add_thread()
                said = f"tool {call.name} did not answer in {self._deadline:g} seconds"
                error = ToolFailedError("rollouts.tool-timeout", said)
                _set_result(call, (None, error))
        if self._open:
            self._look_later()


def _outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - handed on, to be raised where the result is awaited
        return None, error


def _set_result(call: _Call, outcome: tuple[Any, BaseException | None]) -> None:
    if not call.outcome.done():
        call.outcome.set_result(outcome)
