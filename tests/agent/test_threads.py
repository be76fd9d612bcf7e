"""Tools in threads: deadlines, and what a tool that hangs costs the others."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from gumshoe.agent.threads import ToolFailedError, ToolThreads


@pytest.fixture
def over() -> Iterator[threading.Event]:
    """Ends the tools that hang, when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def test_tools_that_hang_are_failures_and_the_others_get_threads_of_their_own(over: threading.Event) -> None:
    async def run() -> None:
        threads = ToolThreads(2, deadline=0.2)
        hung = [asyncio.create_task(threads.run("hang", over.wait)) for _ in range(5)]
        assert await asyncio.gather(*(threads.run("add", sum, (1, number)) for number in range(9))) == [*range(1, 10)]
        for failed in await asyncio.gather(*hung, return_exceptions=True):
            assert isinstance(failed, ToolFailedError)
            assert str(failed) == "hang did not answer in 0.2 seconds"

    asyncio.run(run())


def test_waiting_for_a_thread_is_no_part_of_the_deadline() -> None:
    async def run() -> None:
        threads = ToolThreads(2, deadline=0.5)
        await asyncio.gather(*(threads.run("sleep", time.sleep, 0.1) for _ in range(20)))  # 1 s in all

    asyncio.run(run())


def test_no_more_run_at_once_than_were_asked_for() -> None:
    running, most = [], []

    def count() -> None:
        running.append(1)
        most.append(len(running))
        time.sleep(0.02)
        running.pop()

    async def run() -> None:
        threads = ToolThreads(3)
        await asyncio.gather(*(threads.run("count", count) for _ in range(12)))

    asyncio.run(run())
    assert max(most) == 3


def test_what_a_tool_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(ToolThreads().run("divide", divmod, 1, 0))


def test_leaving_does_not_wait_for_a_tool(over: threading.Event) -> None:
    async def run() -> None:
        async with asyncio.timeout(0.1):
            await ToolThreads().run("hang", over.wait)

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert time.monotonic() - started < 1
