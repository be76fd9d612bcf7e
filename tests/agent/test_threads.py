"""Tools in threads: deadlines, and what a tool that hangs costs the others."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from gumshoe.agent.threads import ToolFailedError, ToolThreads
from tests.conftest import once_within

T = TypeVar("T")


@pytest.fixture
def over() -> Iterator[threading.Event]:
    """Ends the tools that hang, when the test is over."""
    event = threading.Event()
    yield event
    event.set()


async def carried_out(function: Callable[[], T]) -> T:
    """What threads of their own make of a function."""
    async with ToolThreads() as threads:
        return await threads.run("tool", function)


def test_tools_that_hang_are_failures_and_the_others_get_threads_of_their_own(over: threading.Event) -> None:
    async def run() -> None:
        async with ToolThreads(2, deadline=0.2) as threads:
            hung = [asyncio.create_task(threads.run("hang", over.wait)) for _ in range(5)]
            sums = await asyncio.gather(*(threads.run("add", sum, (1, number)) for number in range(9)))
            assert sums == [*range(1, 10)]
            for failed in await asyncio.gather(*hung, return_exceptions=True):
                assert isinstance(failed, ToolFailedError)
                assert str(failed) == "hang did not answer in 0.2 seconds"

    asyncio.run(run())


def test_waiting_for_a_thread_is_no_part_of_the_deadline() -> None:
    async def run() -> None:
        async with ToolThreads(2, deadline=2) as threads:
            await asyncio.gather(*(threads.run("sleep", time.sleep, 0.1) for _ in range(60)))  # 3 s in all

    asyncio.run(run())


def test_no_more_run_at_once_than_were_asked_for() -> None:
    running, most = [], []

    def count() -> None:
        running.append(1)
        most.append(len(running))
        time.sleep(0.02)
        running.pop()

    async def run() -> None:
        async with ToolThreads(3) as threads:
            await asyncio.gather(*(threads.run("count", count) for _ in range(12)))

    asyncio.run(run())
    assert max(most) == 3


@pytest.mark.parametrize(
    ("function", "raised"), [(lambda: 1 // 0, ZeroDivisionError), (lambda: next(iter(())), RuntimeError)]
)
def test_what_a_tool_raises_is_raised(function: Callable[[], object], raised: type[Exception]) -> None:
    """Also what a coroutine may not raise."""
    with pytest.raises(raised):
        asyncio.run(carried_out(function))


def test_calls_that_nobody_waits_for_are_not_carried_out(over: threading.Event) -> None:
    carried: list[int] = []

    async def run() -> None:
        async with ToolThreads(1) as threads:
            hung = asyncio.create_task(threads.run("hang", over.wait))
            waiting = [asyncio.create_task(threads.run("note", carried.append, number)) for number in range(5)]
            await asyncio.sleep(0.05)
            for task in waiting[:4]:
                task.cancel()
            over.set()
            await asyncio.gather(hung, waiting[4])

    asyncio.run(run())
    assert carried == [4]


def test_the_threads_end_with_their_context() -> None:
    before = threading.active_count()
    for _ in range(20):
        asyncio.run(carried_out(int))
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_leaving_does_not_wait_for_a_tool(over: threading.Event) -> None:
    async def run() -> None:
        async with asyncio.timeout(0.1), ToolThreads() as threads:
            await threads.run("hang", over.wait)

    def seconds() -> float:
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            asyncio.run(run())
        return time.monotonic() - started

    assert once_within(1, seconds)
