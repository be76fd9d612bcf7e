"""Run the groups of training steps: those of the step that waits for them, and with a lag those of later steps.

Invariants: which groups are run, and with which seeds, depends only on the run's seed, the step that they are drawn
for, and what came of earlier groups, never on time. A group that has ended belongs to one step. No policy that sampled
a token of a step is older than `Lead.most_staleness`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from gumshoe.rollouts.engine import EpisodePool, RolloutProgress
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.training.grpo.published_policies import HeldContext, PublishedPolicies
from gumshoe.training.grpo.rollout_collector import RolloutBatch, RolloutCollector, ScoredGroup
from gumshoe.training.timeline import GroupTime


@dataclass(frozen=True, slots=True)
class Lead:
    """How far episodes may be ahead of the trainer, in batches of episodes."""

    lag: int = 0
    """Batches whose episodes run while an earlier one is trained on. With 0, all are sampled by the newest policy."""
    most_staleness: int = 0
    """Batches that the trainer may have learned from between a token's policy and its use."""


@dataclass(slots=True, eq=False)
class _Group:
    """A group that was started."""

    step: int
    """Batch that it was drawn for, from 0; it may be trained on in a later one."""
    place: int
    """Place among the scenarios of that batch: first its groups, then those that replace others."""
    scenario: Scenario
    oldest: int | None = None
    """Number of the oldest policy of its episodes; None before the first one runs."""
    scored: ScoredGroup | None = None
    dropped: str = ""
    is_useful: bool = False
    """It has ended, and something can be learned from it."""
    started: float = 0.0
    """Seconds of the monotonic clock, as `ended`."""
    sampled: float = 0.0
    """End of its last episode."""
    ended: float = 0.0
    task: "asyncio.Task[None] | None" = None

    @property
    def key(self) -> str:
        """Name in the records of steps (`StepRecord.ended`)."""
        return f"{self.step}/{self.place}"


class RolloutQueue:
    """Run groups in the event loop, and give each step those that it trains on.

    A group that is flat or dropped is replaced at once by the next scenario of the batch that it was drawn for. A step
    takes the useful groups with the oldest policies, and of these the ones that were drawn first. It waits while it has
    too few and one of its own runs, or while groups run that would be too old for the later steps that can take them;
    so with a lag, slow groups are trained on later.

    - `last`: number of the last batch.
    - `find_resting`: returns the ids of the scenarios that a batch uses last.
    """

    def __init__(
        self,
        collector: RolloutCollector,
        versions: PublishedPolicies,
        lead: Lead,
        last: int,
        find_resting: Callable[[int], Collection[str]] = lambda _: (),
    ) -> None:
        self._collector, self._versions, self._lead, self._last = collector, versions, lead, last
        self._find_resting = find_resting
        self._ended: Mapping[str, bool] = {}  # groups of earlier steps of a resumed run: True if they were trained on
        self._wanted = collector.schedule.groups
        self._groups: list[_Group] = []  # that no step has taken
        self._orders: dict[int, list[Scenario]] = {}  # of the batches that were begun
        self._next: dict[int, int] = {}  # next place of each
        self._unreplaced: list[int] = []  # batches of groups that ended in vain
        self._pool: EpisodePool | None = None
        self._progress = RolloutProgress()  # of all pools
        self._counted: Counter[str] = Counter()  # retries that are on record, by error code
        self._threads: HeldContext[ToolThreads] | None = None
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def running(self) -> int:
        """Number of groups that have not ended."""
        return sum(not each.ended for each in self._groups)

    def resume(self, ended: Mapping[str, bool]) -> None:
        """Continue after these groups, each with True if it was trained on (`StepRecord.ended`)."""
        self._ended = ended

    async def adopt(self, number: int) -> set[str]:
        """Start further episodes with the policy that was published last, and has learned from `number` batches.

        Returns:
            Names of the policies in use.
        """
        await self._versions.adopt(number)
        return self._versions.in_use

    async def take(self, number: int, servers: int) -> RolloutBatch:
        """Return a batch of groups, numbered from 0, whose episodes run on this number of servers.

        Raises:
            UnavailableError: no group could be run and scored.
        """
        started = time.monotonic()
        pool = await self._prepare(servers)
        first = 0 if self._lead.lag else number
        for step in range(first, min(number + self._lead.lag, self._last) + 1):
            if step not in self._orders:
                self._orders[step] = self._collector.order(step, self._find_resting(step))
                self._next[step] = 0
                self._start(step, self._wanted)
        await self._wait(number, pool)
        found = self._collect(number)
        found.waited = time.monotonic() - started
        retries = self._progress.retry_causes - self._counted
        found.retried, found.retry_causes = retries.total(), retries
        self._counted = self._progress.retry_causes.copy()
        found.raise_if_lost()
        return found

    async def aclose(self) -> None:
        """Cancel the groups that run, and close the policies."""
        tasks = [each.task for each in self._groups if each.task is not None]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._groups.clear()
        await self._versions.aclose()
        if self._threads is not None:
            await self._threads.aclose()
            self._threads = None

    async def _prepare(self, servers: int) -> EpisodePool:
        """Return the pool of this number of servers; groups that run keep the one that they began in."""
        if self._threads is None:
            self._threads = HeldContext(ToolThreads())
            await self._threads.open()
        if self._pool is None or self._pool.concurrency != self._collector.concurrency * servers:
            self._pool = self._collector.new_pool(servers, self._progress)
        return self._pool

    def _start(self, step: int, count: int) -> None:
        """Start the next groups of a batch, so that this many more may become useful, as far as there are scenarios."""
        order = self._orders[step]
        while count and self._next[step] < len(order):
            group = _Group(step, self._next[step], order[self._next[step]])
            self._next[step] += 1
            was_useful = self._ended.get(group.key)
            count -= was_useful is not False
            if was_useful is None:
                self._groups.append(group)
                group.task = asyncio.create_task(self._run(group))
                group.task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
        self._changed.set()

    async def _run(self, group: _Group) -> None:
        """Run and score a group, and replace it if nothing can be learned from it."""
        collector, pool, threads = self._collector, self._pool, self._threads
        if pool is None or threads is None:
            raise AssertionError("groups start after `_prepare`")
        seed = f"{collector.schedule.seed}/{group.step}/{group.place // self._wanted}/{group.scenario.id}"

        async def episode(scenario: Scenario, sample: int, attempt: int) -> Trajectory:
            async with self._versions.use() as served:
                group.oldest = served.number if group.oldest is None else min(group.oldest, served.number)
                version = None if self._versions.by_turn else served.version
                own_seed = f"{seed}/{sample}/{attempt}"
                return await collector.run_episode(served.run, version, scenario, own_seed, threads.value, sample)

        group.started = time.monotonic()
        found = await pool.run_group(episode, group.scenario, collector.generations)
        group.sampled = time.monotonic()
        group.scored, group.dropped = await collector.score(found, group.scenario)
        group.ended = time.monotonic()
        group.is_useful = group.scored is not None and not group.scored.is_flat(collector.min_group_std)
        self._replace_if_useless(group)

    def _replace_if_useless(self, group: _Group) -> None:
        """Start a group in place of one that ended in vain; if all were dropped so far, once one has rewards.

        If none ever has, the servers or the judge are lost, and more groups would only delay the error.
        """
        if not group.is_useful:
            self._unreplaced.append(group.step)
        if any(each.scored is not None for each in self._groups):
            steps, self._unreplaced = self._unreplaced, []
            for step in steps:
                self._start(step, 1)

    async def _wait(self, number: int, pool: EpisodePool) -> None:
        """Wait until a step can take its groups, and show the episodes of those that were drawn for it."""
        size, shown = self._collector.generations, 0
        with self._collector.show("Rollouts for training", self._wanted * size, pool) as advance:
            while True:
                if self._failure is not None:
                    raise self._failure
                own = [each for each in self._groups if each.step <= number]
                ended = sum(size for each in own if each.ended)
                advance(ended - shown, total=len(own) * size)
                shown = ended
                if self._is_ready(number):
                    return
                self._changed.clear()
                await self._changed.wait()

    def _is_ready(self, number: int) -> bool:
        running = [each for each in self._groups if not each.ended]
        oldest = sorted(each.oldest for each in running if each.oldest is not None)
        # Each later step takes only `wanted` groups, so the last of many that run has to wait for several steps.
        if any(number - each + rank // self._wanted >= self._lead.most_staleness for rank, each in enumerate(oldest)):
            return False
        useful = sum(each.is_useful for each in self._groups)
        return useful >= self._wanted or not any(each.step <= number for each in running)

    def _collect(self, number: int) -> RolloutBatch:
        """Return the batch of a step, made of groups that have ended, and forget these."""

        def priority(group: _Group) -> tuple[int, int, int]:
            return number if group.oldest is None else group.oldest, group.step, group.place

        useful = sorted((each for each in self._groups if each.is_useful), key=priority)[: self._wanted]
        taken = [each for each in self._groups if each in useful or (each.ended and not each.is_useful)]
        self._groups = [each for each in self._groups if each not in taken]
        found = RolloutBatch(self._wanted, draws=-(-self._next[number] // self._wanted))
        for each in sorted(taken, key=lambda each: (each.step, each.place)):
            if each.dropped:
                name = each.scenario.id  # a scenario may have several groups in a step
                found.dropped[f"{name} ({each.key})" if name in found.dropped else name] = each.dropped
            if each.scored is not None:
                staleness = number - (each.oldest if each.oldest is not None else number)
                scored = replace(each.scored, staleness=staleness)
                found.scored.append(scored)
                found.groups += [scored] * each.is_useful
                found.times.append(
                    GroupTime(each.scenario.id, each.step, staleness, each.started, each.sampled, each.ended)
                )
            if self._lead.lag:
                found.ended[each.key] = each.is_useful
        if taken:
            found.seconds = max(each.ended for each in taken) - min(each.started for each in taken)
            found.judged = sum(each.ended - each.sampled for each in taken)
        return found
