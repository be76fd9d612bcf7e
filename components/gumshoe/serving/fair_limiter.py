"""Share a limited number of slots fairly among callers.

A caller that is alone may use all slots and the whole queue. If several callers wait, a free slot goes to the one that
holds the fewest, and among equals to the one that has not been served for longest (max-min fairness, round robin). If
the queue is full, a caller with fewer waiting tasks takes the place of the newest task of the caller with the most
(longest queue drop), so that nobody can fill the queue for others.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from prometheus_client import Gauge


class BusyError(Exception):
    """Report that the queue is full."""


@dataclass(slots=True, eq=False)
class _Waiter:
    count: int
    turn: "asyncio.Future[None]"


@dataclass(slots=True)
class _Share:
    """Slots and waiting tasks of one caller."""

    served: int
    """Number of the grant by which it was served last; for a new caller, that of the latest grant to anybody."""
    held: int = 0
    waiting: deque[_Waiter] = field(default_factory=deque)


@dataclass(slots=True)
class FairLimiter:
    """Limit concurrent tasks to `limit` slots, and waiting tasks to `queue`, shared fairly among callers."""

    limit: int
    queue: int
    waiting_gauge: Gauge
    """Metric for the number of waiting tasks."""
    _free: int = field(init=False)
    _grants: int = field(default=0, init=False)
    _shares: dict[str, _Share] = field(default_factory=dict, init=False)
    """Callers that hold slots or wait."""

    def __post_init__(self) -> None:
        self._free = self.limit
        self.waiting_gauge.set_function(lambda: float(self.waiting))

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self._free

    @property
    def waiting(self) -> int:
        """Number of waiting tasks. Metrics are collected in a thread of their own, so the shares are copied at once."""
        return sum(len(each.waiting) for each in list(self._shares.values()))

    @asynccontextmanager
    async def acquire(self, caller: str, count: int = 1) -> AsyncIterator[Callable[[], None]]:
        """Hold `count` slots while the block runs, which is at most `limit`.

        Yields a function that releases one of them early.

        Raises:
            BusyError: if the queue is full, also if that happens while the task waits.
        """
        await self._wait_for_turn(caller, count)
        held = count

        def release_one() -> None:
            nonlocal held
            if held:
                held -= 1
                self._release(caller, 1)

        try:
            yield release_one
        finally:
            if held:
                self._release(caller, held)

    async def _wait_for_turn(self, caller: str, count: int) -> None:
        """Return when the caller holds `count` more slots."""
        share = self._shares.setdefault(caller, _Share(self._grants))
        waiter = _Waiter(count, asyncio.get_running_loop().create_future())
        share.waiting.append(waiter)
        self._grant_turns()
        if not waiter.turn.done() and self.waiting > self.queue:
            self._drop_waiter(caller)
        try:
            await waiter.turn
        except BaseException:
            if waiter in share.waiting:
                share.waiting.remove(waiter)
            elif waiter.turn.done() and not waiter.turn.cancelled() and waiter.turn.exception() is None:
                self._add_slots(share, -count)  # it was served and cancelled at once
            self._forget_idle(caller)
            self._grant_turns()
            raise

    def _release(self, caller: str, count: int) -> None:
        self._add_slots(self._shares[caller], -count)
        self._forget_idle(caller)
        self._grant_turns()

    def _add_slots(self, share: _Share, count: int) -> None:
        share.held += count
        self._free -= count

    def _forget_idle(self, caller: str) -> None:
        share = self._shares.get(caller)
        if share is not None and not share.held and not share.waiting:
            del self._shares[caller]

    def _grant_turns(self) -> None:
        """Serve waiting callers as long as the next one fits.

        The next one is not overtaken if it needs more slots than are free, or it would wait for ever.
        """
        while True:
            for each in self._shares.values():
                while each.waiting and each.waiting[0].turn.done():  # its task was cancelled and has not run since
                    each.waiting.popleft()
            waiting = [each for each in self._shares.values() if each.waiting]
            if not waiting:
                return
            share = min(waiting, key=lambda each: (each.held, each.served))
            if share.waiting[0].count > self._free:
                return
            waiter = share.waiting.popleft()
            self._add_slots(share, waiter.count)
            self._grants += 1
            share.served = self._grants
            waiter.turn.set_result(None)

    def _drop_waiter(self, newcomer: str) -> None:
        """Refuse one waiting task: the newest of the caller with the most, or the newcomer's if it has as many."""
        longest = max(self._shares.values(), key=lambda each: len(each.waiting))
        own = self._shares[newcomer]
        share = own if len(own.waiting) >= len(longest.waiting) else longest
        waiter = share.waiting.pop()
        if not waiter.turn.done():
            waiter.turn.set_exception(BusyError())
