"""Many episodes at once: whole groups, handed on as they finish, whatever the infrastructure does."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from gumshoe.errors import UnavailableError
from gumshoe.rollouts.trajectory import Group, Trajectory
from gumshoe.scenarios.scenario import Scenario

RunEpisode = Callable[[Scenario, int, int], Awaitable[Trajectory]]
"""Runs one fresh episode: of which scenario, which of its group, and which try."""


@dataclass(slots=True)
class RolloutProgress:
    """Where a rollout stands."""

    done: int = 0
    """Episodes that finished."""
    running: int = 0
    retried: int = 0
    """Episodes that were begun again for want of infrastructure."""
    dropped: int = 0
    """Groups."""
    sampled_tokens: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    """Why groups were dropped, by error code."""


@dataclass(slots=True)
class RolloutEngine:
    """Runs groups of episodes, so many episodes at once.

    A failure of infrastructure (`UnavailableError`) is no reward: the episode is run again, afresh, and after
    `tries` its whole group is dropped with the cause. Any other error is a defect, or a mistake in the settings,
    and ends the rollout.
    """

    run_episode: RunEpisode
    concurrency: int = 64
    tries: int = 3
    progress: RolloutProgress = field(default_factory=RolloutProgress)

    async def run(self, scenarios: Iterable[Scenario], samples: int = 1) -> AsyncGenerator[Group, None]:
        """Each scenario's group as it finishes. Leaving the iteration early cancels what still runs.

        Groups begin in the order of their scenarios, one as each is taken: no more of them run, or wait to be taken,
        than there may be episodes at once.
        """
        slots = asyncio.Semaphore(self.concurrency)
        finished: asyncio.Queue[asyncio.Task[Group]] = asyncio.Queue()
        coming, running = iter(scenarios), set[asyncio.Task[Group]]()

        def begin(count: int) -> None:
            for scenario in islice(coming, count):
                task = asyncio.create_task(self._group(scenario, samples, slots))
                task.add_done_callback(finished.put_nowait)
                running.add(task)

        begin(self.concurrency)
        try:
            while running:
                task = await finished.get()
                running.discard(task)
                begin(1)
                yield task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _group(self, scenario: Scenario, samples: int, slots: asyncio.Semaphore) -> Group:
        episodes = [asyncio.create_task(self._episode(scenario, sample, slots)) for sample in range(samples)]
        try:
            return Group(scenario.id, tuple(await asyncio.gather(*episodes)))
        except UnavailableError as error:
            self.progress.dropped += 1
            self.progress.causes[error.code] += 1
            return Group(scenario.id, dropped=error.message_with_code)
        finally:
            for episode in episodes:
                episode.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*episodes, return_exceptions=True)

    async def _episode(self, scenario: Scenario, sample: int, slots: asyncio.Semaphore) -> Trajectory:
        async with slots:
            self.progress.running += 1
            try:
                for attempt in range(1, self.tries):
                    try:
                        return self._counted(await self.run_episode(scenario, sample, attempt), attempt)
                    except UnavailableError:
                        self.progress.retried += 1
                return self._counted(await self.run_episode(scenario, sample, self.tries), self.tries)
            finally:
                self.progress.running -= 1

    def _counted(self, trajectory: Trajectory, tries: int) -> Trajectory:
        trajectory.tries = tries
        self.progress.done += 1
        self.progress.sampled_tokens += trajectory.sampled_tokens
        return trajectory
