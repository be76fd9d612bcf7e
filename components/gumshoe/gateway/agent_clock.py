"""Limit the time that an agent takes itself: a slow policy or tool is no fault of the agent."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from gumshoe.gateway.agent_errors import AgentDeadlineError


class AgentClock:
    """The deadline of one episode. It stands still while the policy or a tool works for the agent."""

    def __init__(self, seconds: float) -> None:
        self._seconds = self._left = seconds
        self._pauses = 0
        self._timeout: asyncio.Timeout | None = None

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Cancel the block when the agent's time is over.

        Raises:
            AgentDeadlineError: if it was cancelled.
        """
        timeout = self._timeout = asyncio.timeout(None)
        try:
            async with timeout:
                self._resume()
                yield
        except TimeoutError:
            if not timeout.expired():
                raise
            raise AgentDeadlineError(
                "gateway.agent-deadline",
                f"the agent took more than {self._seconds:g} seconds, not counting those of the policy and the tools",
            ) from None
        finally:
            self._timeout = None

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Stop the clock while the block runs. Blocks may overlap."""
        if not self._pauses:
            self._stop()
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            self._resume()

    def _stop(self) -> None:
        if self._timeout is None or self._timeout.expired():
            return
        end = self._timeout.when()
        if end is not None:
            self._left = end - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    def _resume(self) -> None:
        if self._timeout is not None and not self._timeout.expired() and not self._pauses:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left)
