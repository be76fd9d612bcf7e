"""Test that the deadline of an agent counts its own time alone."""

import asyncio
from contextlib import ExitStack

import pytest

from gumshoe.gateway.agent_clock import AgentClock
from gumshoe.gateway.agent_errors import AgentDeadlineError
from tests.waiting import Clock


async def pass_time(clock: Clock, seconds: float) -> None:
    """Move the clock, and let everything that is due happen."""
    clock.advance(seconds)
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize("blocks", [1, 3])
def test_pauses_do_not_count(clock: Clock, blocks: int) -> None:
    async def run() -> list[str]:
        done, agent = list[str](), AgentClock(100)
        with pytest.raises(AgentDeadlineError):  # noqa: PT012 - the block is what ends
            async with agent.limit():
                await pass_time(clock, 60)
                with ExitStack() as stack:
                    for _ in range(blocks):
                        stack.enter_context(agent.pause())
                    await pass_time(clock, 1000)
                done.append("paused")
                await pass_time(clock, 39)
                done.append("in time")
                await pass_time(clock, 2)
                done.append("too late")
        return done

    assert asyncio.run(run()) == ["paused", "in time"]


def test_the_clock_stands_still_until_the_last_pause_ends(clock: Clock) -> None:
    async def run() -> None:
        agent = AgentClock(100)
        async with agent.limit():
            outer, inner = agent.pause(), agent.pause()
            outer.__enter__()
            inner.__enter__()
            outer.__exit__(None, None, None)
            await pass_time(clock, 1000)
            inner.__exit__(None, None, None)
            await pass_time(clock, 99)

    asyncio.run(run())


def test_a_timeout_of_the_agent_s_own_stays_one() -> None:
    async def run() -> None:
        async with AgentClock(100).limit():
            raise TimeoutError

    with pytest.raises(TimeoutError):
        asyncio.run(run())
