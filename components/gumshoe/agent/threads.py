"""The threads that tools run in: off the event loop, each call with a deadline."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gumshoe.errors import UnavailableError

T = TypeVar("T")
_FEW = max(2, min(4, os.cpu_count() or 1))  # nearly all of a tool's time is Python's: more would wait for each other


class ToolFailedError(UnavailableError):
    """A tool did not answer in time, or could not: a failure of infrastructure, never of the model."""


class ToolThreads:
    """Runs the tools of all episodes of one event loop, `count` at once (a few, by default).

    A call that is past its deadline, in seconds, is left behind with its thread, and the others get new ones: tools
    that hang do not hold up those that do not. Waiting for a thread is no part of it.
    """

    def __init__(self, count: int | None = None, deadline: float = 30) -> None:
        self._count, self._deadline = count or _FEW, deadline
        self._free = asyncio.Semaphore(self._count)
        self._pool = self._made()

    async def run(self, name: str, function: Callable[..., T], *arguments: object) -> T:
        """What the function gives, which carries out a call of the tool of that name.

        Raises:
            ToolFailedError: it did not answer in time.
            Exception: whatever it raises.
        """
        async with self._free:
            pool = self._pool
            try:
                async with asyncio.timeout(self._deadline):
                    return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)
            except TimeoutError:
                if pool is self._pool:
                    self._pool = self._made()
                pool.shutdown(wait=False)  # what runs in it ends there
                raise ToolFailedError(f"{name} did not answer in {self._deadline:g} seconds") from None

    def _made(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._count, thread_name_prefix="tool")
