"""Many episodes at once: whole groups, handed on as they finish, whatever the infrastructure does."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from gumshoe.agent.trajectory import Group, Trajectory
from gumshoe.errors import UnavailableError
from gumshoe.scenarios.scenario import Scenario

RunEpisode = Callable[[Scenario, int, int], Awaitable[Trajectory]]
"""Runs one fresh episode: of which scenario, which of its group, and which try."""


@dataclass(slots=True)
class Progress:
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
    """Why groups were dropped, by the kind of failure."""


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
    progress: Progress = field(default_factory=Progress)

    async def run(self, scenarios: Iterable[Scenario], samples: int = 1) -> AsyncGenerator[Group, None]:
        """Each scenario's group as it finishes. Leaving the iteration early cancels what still runs."""
        slots = asyncio.Semaphore(self.concurrency)
        finished: asyncio.Queue[Group | BaseException] = asyncio.Queue()
        waiting = [asyncio.create_task(self._group(each, samples, slots, finished)) for each in scenarios]
        try:
            for _ in range(len(waiting)):
                group = await finished.get()
                if isinstance(group, BaseException):
                    raise group
                yield group
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _group(
        self,
        scenario: Scenario,
        samples: int,
        slots: asyncio.Semaphore,
        finished: "asyncio.Queue[Group | BaseException]",
    ) -> None:
        """Run one group and put it, or what ended it, into the queue."""
        episodes = [asyncio.create_task(self._episode(scenario, sample, slots)) for sample in range(samples)]
        try:
            trajectories = await asyncio.gather(*episodes)
            await finished.put(Group(scenario.id, tuple(trajectories)))
        except UnavailableError as error:
            self.progress.dropped += 1
            self.progress.causes[type(error).__name__] += 1
            await finished.put(Group(scenario.id, dropped=f"{type(error).__name__}: {error}"))
        except BaseException as error:  # noqa: BLE001 - handed on, to be raised where the groups are read
            finished.put_nowait(error)  # a cancelled episode too, or the reader would wait for ever
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
