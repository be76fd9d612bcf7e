"""Tools in threads: deadlines, and the effect of a tool that hangs."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from gumshoe.rollouts.tool_threads import ToolFailedError, ToolThreads
from tests.errors import check_error
from tests.waiting import Clock, async_wait_until, count_threads, wait_until

T = TypeVar("T")
HOUR = 3600.0  # seconds; passes only if a test advances the clock


@pytest.fixture
def over() -> Iterator[threading.Event]:
    """Yield an event that ends hanging tools, and set it after the test."""
    event = threading.Event()
    yield event
    event.set()


async def run_in_threads(function: Callable[[], T]) -> T:
    """Run a function in new tool threads and return its result."""
    async with ToolThreads(deadline=HOUR) as threads:
        return await threads.run("tool", function)


def test_hanging_tools_fail_and_their_threads_are_replaced(over: threading.Event, clock: Clock) -> None:
    begun: list[int] = []

    def hang() -> None:
        begun.append(1)
        over.wait()

    async def wait_for_hangs(count: int) -> None:
        await async_wait_until(lambda: len(begun) == count)

    async def run() -> None:
        async with ToolThreads(2, HOUR) as threads:
            hung = [asyncio.create_task(threads.run("hang", hang)) for _ in range(5)]
            sums = asyncio.gather(*(threads.run("add", sum, (1, number)) for number in range(9)))
            for count in (2, 4):  # two threads hang at a time
                await wait_for_hangs(count)
                clock.advance(HOUR)
            assert await sums == [*range(1, 10)]
            await wait_for_hangs(5)
            clock.advance(HOUR)
            for failed in await asyncio.gather(*hung, return_exceptions=True):
                assert isinstance(failed, ToolFailedError)
                check_error(failed, "rollouts.tool-timeout", "hang", 3600)

    asyncio.run(run())


def test_the_deadline_does_not_include_waiting_for_a_thread(clock: Clock) -> None:
    async def run() -> None:
        async with ToolThreads(1, HOUR) as threads:
            await asyncio.gather(*(threads.run("take half an hour", clock.advance, HOUR / 2) for _ in range(5)))

    asyncio.run(run())


def test_the_number_of_threads_is_limited() -> None:
    running, most = [], []
    go_on = threading.Event()

    def count() -> None:
        running.append(1)
        most.append(len(running))
        go_on.wait()
        running.pop()

    async def run() -> None:
        async with ToolThreads(3, HOUR) as threads:
            counted = asyncio.gather(*(threads.run("count", count) for _ in range(12)))
            await async_wait_until(lambda: len(running) == 3)
            go_on.set()
            await counted

    asyncio.run(run())
    assert max(most) == 3


@pytest.mark.parametrize(
    ("function", "raised"), [(lambda: 1 // 0, ZeroDivisionError), (lambda: next(iter(())), RuntimeError)]
)
def test_exceptions_of_a_tool_are_raised(function: Callable[[], object], raised: type[Exception]) -> None:
    """Including exceptions that a coroutine must not raise."""
    with pytest.raises(raised):
        asyncio.run(run_in_threads(function))


def test_cancelled_calls_are_not_run(over: threading.Event) -> None:
    carried: list[int] = []
    begun = threading.Event()

    def hang() -> None:
        begun.set()
        over.wait()

    async def run() -> None:
        async with ToolThreads(1, HOUR) as threads:
            hung = asyncio.create_task(threads.run("hang", hang))
            waiting = [asyncio.create_task(threads.run("note", carried.append, number)) for number in range(5)]
            await async_wait_until(begun.is_set)
            for task in waiting[:4]:
                task.cancel()
            await asyncio.wait(waiting[:4])
            over.set()
            await asyncio.gather(hung, waiting[4])

    asyncio.run(run())
    assert carried == [4]


def test_the_threads_end_with_their_context() -> None:
    before = count_threads("tool")
    for _ in range(20):
        asyncio.run(run_in_threads(int))
    wait_until(lambda: count_threads("tool") <= before)


def test_leaving_the_context_does_not_wait_for_a_tool(over: threading.Event) -> None:
    async def run() -> None:
        async with asyncio.timeout(0.1), ToolThreads(deadline=HOUR) as threads:
            await threads.run("hang", over.wait)

    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert not over.is_set()
