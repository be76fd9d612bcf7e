"""Run many episodes concurrently, and yield complete groups as they finish."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice

from gumshoe.errors import UnavailableError
from gumshoe.rollouts.trajectory import Group, Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.terminal import Advance

_UPDATE_INTERVAL = 0.5  # seconds between updates of the counters

RunEpisode = Callable[[Scenario, int, int], Awaitable[Trajectory]]
"""Run one new episode, given its scenario, its number in the group, and the number of the attempt."""


@dataclass(slots=True)
class RolloutProgress:
    """Counters of a rollout."""

    done: int = 0
    """Finished episodes."""
    running: int = 0
    retried: int = 0
    """Retries after failures of infrastructure."""
    retry_causes: Counter[str] = field(default_factory=Counter)
    """Retries by error code."""
    dropped: int = 0
    """Dropped groups."""
    sampled_tokens: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    """Dropped groups by error code."""


@contextmanager
def show_progress(state: RolloutProgress, advance: Advance) -> Iterator[None]:
    """Show the counters of a rollout beside its progress while the block runs."""
    started, before = time.monotonic(), state.sampled_tokens

    def show() -> None:
        sampled = state.sampled_tokens - before  # by episodes that have ended
        pace = f"{sampled / (time.monotonic() - started + _UPDATE_INTERVAL):,.0f} tokens/s, " if sampled else ""
        advance(note=f"{pace}{state.running} running, {state.retried} retries, {state.dropped} dropped")

    async def keep_showing() -> None:
        while True:
            show()
            await asyncio.sleep(_UPDATE_INTERVAL)

    showing = asyncio.create_task(keep_showing())
    try:
        yield
    finally:
        showing.cancel()
        show()


@dataclass(slots=True)
class EpisodePool:
    """Run groups, at most `concurrency` episodes of all of them at once.

    A failure of infrastructure (`UnavailableError`) is not a reward of zero: the episode starts again, and after
    `tries` attempts its whole group is dropped with the cause. Any other error is a defect or a wrong setting.
    """

    concurrency: int = 64
    tries: int = 3
    progress: RolloutProgress = field(default_factory=RolloutProgress)
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.concurrency)

    async def run_group(self, run_episode: RunEpisode, scenario: Scenario, samples: int = 1) -> Group:
        """Run one group, and return it.

        Raises:
            GumshoeError: an episode failed for a reason other than infrastructure; the others were cancelled.
        """
        episodes = [
            asyncio.create_task(self._run_with_retries(run_episode, scenario, sample)) for sample in range(samples)
        ]
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

    async def _run_with_retries(self, run_episode: RunEpisode, scenario: Scenario, sample: int) -> Trajectory:
        async with self._slots:
            self.progress.running += 1
            try:
                for attempt in range(1, self.tries):
                    try:
                        return self._count(await run_episode(scenario, sample, attempt), attempt)
                    except UnavailableError as error:
                        self.progress.retried += 1
                        self.progress.retry_causes[error.code] += 1
                return self._count(await run_episode(scenario, sample, self.tries), self.tries)
            finally:
                self.progress.running -= 1

    def _count(self, trajectory: Trajectory, tries: int) -> Trajectory:
        trajectory.tries = tries
        self.progress.done += 1
        self.progress.sampled_tokens += trajectory.sampled_tokens
        return trajectory


@dataclass(slots=True)
class RolloutEngine:
    """Run groups of episodes, at most `concurrency` episodes at once (see `EpisodePool`)."""

    run_episode: RunEpisode
    concurrency: int = 64
    tries: int = 3
    _pool: EpisodePool = field(init=False)

    def __post_init__(self) -> None:
        self._pool = EpisodePool(self.concurrency, self.tries)

    @property
    def progress(self) -> RolloutProgress:
        return self._pool.progress

    async def run(self, scenarios: Iterable[Scenario], samples: int = 1) -> AsyncGenerator[Group, None]:
        """Yield the group of each scenario as it finishes. Leaving the iteration early cancels the rest.

        Groups start in the order of their scenarios. A new group starts when a finished one is taken, so that at most
        `concurrency` groups run or wait to be taken.
        """
        finished: asyncio.Queue[asyncio.Task[Group]] = asyncio.Queue()
        coming, running = iter(scenarios), set[asyncio.Task[Group]]()

        def start(count: int) -> None:
            for scenario in islice(coming, count):
                task = asyncio.create_task(self._pool.run_group(self.run_episode, scenario, samples))
                task.add_done_callback(finished.put_nowait)
                running.add(task)

        start(self.concurrency)
        try:
            while running:
                task = await finished.get()
                running.discard(task)
                start(1)
                yield task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
