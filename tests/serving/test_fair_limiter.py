"""Test that slots are shared fairly among callers and never lost, against a simple model."""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from prometheus_client import Gauge

from gumshoe.serving.fair_limiter import BusyError, FairLimiter

CALLERS = ("ann", "bob", "eve")
LIMIT, QUEUE = 4, 5


def make_limiter(limit: int = LIMIT, queue: int = QUEUE) -> FairLimiter:
    return FairLimiter(limit, queue, Gauge("waiting", "Waiting tasks.", registry=None))


class Task:
    """A task that holds slots until the test ends it."""

    def __init__(self, limiter: FairLimiter, caller: str, count: int = 1) -> None:
        self.caller, self.count, self.held = caller, count, 0
        self.was_refused = self.has_begun = False
        self._limiter, self._end = limiter, asyncio.Event()
        self._release: Any = None
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            async with self._limiter.acquire(self.caller, self.count) as self._release:
                self.held, self.has_begun = self.count, True
                await self._end.wait()
        except BusyError:
            self.was_refused = True
        finally:
            self.held = 0

    def release_one(self) -> None:
        self._release()
        self.held -= 1

    def end(self) -> None:
        self._end.set()

    @property
    def is_waiting(self) -> bool:
        return not self.has_begun and not self.task.done()


async def settle() -> None:
    """Let all tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


@settings(max_examples=40, stateful_step_count=30, deadline=None)
class LimiterMachine(RuleBasedStateMachine):
    """Random work of three callers. The model is the list of their tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.limiter = make_limiter()
        self.tasks: list[Task] = []

    def teardown(self) -> None:
        async def end() -> None:
            for each in self.tasks:
                each.task.cancel()
            await settle()

        self.runner.run(end())
        self.runner.close()
        assert (self.limiter.free, self.limiter.waiting) == (LIMIT, 0)
        assert self.limiter._shares == {}, "idle callers are forgotten"

    def run(self, *actions: Any) -> None:
        """Do things in the event loop without letting tasks run in between."""

        async def act() -> None:
            for each in actions:
                each()
            await settle()

        self.runner.run(act())
        self.tasks = [each for each in self.tasks if not each.task.done()]

    def start(self, caller: str, count: int) -> Task:
        self.tasks.append(Task(self.limiter, caller, count))
        return self.tasks[-1]

    @rule(caller=st.sampled_from(CALLERS), count=st.integers(1, LIMIT))
    def ask(self, caller: str, count: int) -> None:
        waiting = Counter(each.caller for each in self.tasks if each.is_waiting)
        before, asked = list(self.tasks), list[Task]()
        self.run(lambda: asked.append(self.start(caller, count)))
        refused = [each for each in [*before, *asked] if each.was_refused]
        if sum(waiting.values()) < QUEUE:
            assert refused == []
        elif refused:
            waiting[caller] += 1
            assert [waiting[each.caller] for each in refused] == [max(waiting.values())], "the longest queue loses"
            assert asked[0].was_refused == (waiting[caller] == max(waiting.values()))

    @rule(callers=st.lists(st.sampled_from(CALLERS), min_size=2, max_size=8))
    def ask_at_once(self, callers: list[str]) -> None:
        self.run(*(lambda caller=each: self.start(caller, 1) for each in callers))

    @precondition(lambda self: any(each.has_begun for each in self.tasks))
    @rule(data=st.data())
    def end_one(self, data: st.DataObject) -> None:
        self.run(data.draw(st.sampled_from([each for each in self.tasks if each.has_begun])).end)

    @precondition(lambda self: any(each.held for each in self.tasks))
    @rule(data=st.data())
    def end_a_sample(self, data: st.DataObject) -> None:
        self.run(data.draw(st.sampled_from([each for each in self.tasks if each.held])).release_one)

    @precondition(lambda self: self.tasks)
    @rule(data=st.data(), other=st.data())
    def cancel_while_another_ends(self, data: st.DataObject, other: st.DataObject) -> None:
        """Cancel a task at the moment at which it may be served, before it can run."""
        cancelled = data.draw(st.sampled_from(self.tasks))
        holding = [each for each in self.tasks if each.held]
        ends = [other.draw(st.sampled_from(holding)).end] if holding else []
        self.run(*ends, lambda: asyncio.get_running_loop().call_soon(cancelled.task.cancel))
        self.run(cancelled.task.cancel)

    @invariant()
    def slots_are_held_or_free(self) -> None:
        held = sum(each.held for each in self.tasks)
        assert held + self.limiter.free == LIMIT
        assert self.limiter.waiting == sum(each.is_waiting for each in self.tasks) <= QUEUE

    @invariant()
    def nobody_waits_without_need(self) -> None:
        """Check that the next one waits only because it needs more slots than are free."""
        waiting = [each for each in self.tasks if each.is_waiting]
        if waiting:
            held = Counter[str]()
            for each in self.tasks:
                held[each.caller] += each.held
            first: dict[str, Task] = {}
            for each in waiting:
                first.setdefault(each.caller, each)
            fewest = min(held[caller] for caller in first)
            assert any(each.count > self.limiter.free for each in first.values() if held[each.caller] == fewest)


TestLimiterMachine = LimiterMachine.TestCase


def test_a_free_slot_goes_to_the_caller_that_holds_the_fewest() -> None:
    async def run() -> None:
        limiter = make_limiter(2, 10)
        ann = [Task(limiter, "ann") for _ in range(6)]
        await settle()
        bob = [Task(limiter, "bob") for _ in range(2)]
        await settle()
        assert [each.held for each in ann] == [1, 1, 0, 0, 0, 0], "alone, it may use all slots"
        order = []
        for _ in range(6):
            next(each for each in [*ann, *bob] if each.held).end()
            await settle()
            order.append(sum(each.held for each in bob))
        assert order[0] == 1, "the next slot is the other caller's"
        assert all(each.task.done() or each.held for each in bob)

    asyncio.run(run())


def test_callers_take_turns_if_there_is_one_slot() -> None:
    async def run() -> list[str]:
        limiter = make_limiter(1, 20)
        first = Task(limiter, "ann")
        await settle()
        tasks = [Task(limiter, caller) for caller in ["ann"] * 4 + ["bob"] * 2 + ["eve"] * 2]
        order = []
        running = first
        for _ in tasks:
            running.end()
            await settle()
            running = next(each for each in tasks if each.held)
            order.append(running.caller)
        return order

    order = asyncio.run(run())
    assert sorted(order[:3]) == ["ann", "bob", "eve"]
    assert sorted(order[3:6]) == ["ann", "bob", "eve"]
    assert order[6:] == ["ann", "ann"]


def test_a_caller_that_needs_several_slots_is_not_overtaken_for_ever() -> None:
    async def run() -> None:
        limiter = make_limiter(4, 100)
        small = [Task(limiter, f"caller-{number}") for number in range(4)]
        await settle()
        large = Task(limiter, "ann", 4)
        later = [Task(limiter, f"later-{number}") for number in range(20)]
        await settle()
        for each in small:
            assert not any(task.held for task in later)
            each.end()
            await settle()
        assert large.held == 4

    asyncio.run(run())


def test_a_full_queue_has_room_for_a_caller_with_fewer_tasks() -> None:
    async def run() -> None:
        limiter = make_limiter(1, 4)
        greedy = [Task(limiter, "ann") for _ in range(9)]
        await settle()
        assert [each.was_refused for each in greedy] == [False] * 5 + [True] * 4
        other = [Task(limiter, "bob") for _ in range(3)]
        await settle()
        assert [each.was_refused for each in other] == [False, False, True], "half of the queue each"
        assert [each.was_refused for each in greedy] == [False] * 3 + [True] * 6, "the newest ones lose their places"
        for each in [*greedy, *other]:
            each.end()
        await settle()
        assert limiter.free == 1

    asyncio.run(run())


@pytest.mark.parametrize("queue", [0, 1])
def test_without_a_free_place_a_caller_is_refused_at_once(queue: int) -> None:
    async def run() -> None:
        limiter = make_limiter(1, queue)
        async with limiter.acquire("ann"):
            waiting = [Task(limiter, "ann") for _ in range(queue)]
            await settle()
            with pytest.raises(BusyError):
                async with limiter.acquire("ann"):
                    pytest.fail("there was no slot")
            for each in waiting:
                each.task.cancel()
                with suppress(asyncio.CancelledError):
                    await each.task
        assert limiter.free == 1

    asyncio.run(run())


def test_the_gauge_shows_the_waiting_tasks() -> None:
    async def run() -> None:
        gauge = Gauge("waiting", "Waiting tasks.", registry=None)
        limiter = FairLimiter(1, 5, gauge)
        tasks = [Task(limiter, "ann") for _ in range(3)]
        await settle()
        assert next(iter(gauge.collect())).samples[0].value == 2
        for each in tasks:
            each.task.cancel()
        await settle()
        assert next(iter(gauge.collect())).samples[0].value == 0

    asyncio.run(run())
