"""Run and score the episodes of groups, and measure a policy.

Invariants: a group is complete or missing. An episode depends only on its scenario, its seed and its policy.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from gumshoe.environments.registry import EnvFactory
from gumshoe.errors import UnavailableError
from gumshoe.rewards.combination import Combination, combine_rewards, is_flat
from gumshoe.rewards.judge import Judge
from gumshoe.rewards.reward import Reward, gather_all
from gumshoe.rewards.scoring import judge_trajectory, map_concurrently
from gumshoe.rewards.turn_rewards import turn_rewards
from gumshoe.rollouts.engine import EpisodePool, RolloutProgress, show_progress
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeRunner, EpisodeStart
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Group, Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.terminal import Advance, progress
from gumshoe.training.algorithms.turn_level import TurnLevel
from gumshoe.training.grpo.schedule import Schedule
from gumshoe.training.progress_file import ProgressFile
from gumshoe.training.timeline import GroupTime


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A complete group with its rewards."""

    scenario: Scenario
    trajectories: tuple[Trajectory, ...]
    rewards: tuple[float, ...]
    """[group]"""
    turn_returns: tuple[tuple[float, ...], ...] = ()
    """[group][turns]: returns minus their baseline, if each turn has an advantage of its own; else empty."""
    staleness: int = 0
    """Batches that the trainer has learned from since the oldest policy that sampled a token of it was published."""

    def is_flat(self, bound: float) -> bool:
        """Return True if what advantages are made of hardly differs (standard deviation below `bound`), i.e. is noise.

        That is the rewards of episodes, or the returns of turns minus their baseline.
        """
        values = [*chain.from_iterable(self.turn_returns)] if self.turn_returns else self.rewards
        return is_flat(np.array(values), bound)


@dataclass(slots=True)
class RolloutBatch:
    """The groups of a step, and what happened to those that are missing."""

    wanted: int
    """Number of groups that the step should have."""
    groups: list[ScoredGroup] = field(default_factory=list)
    """Groups to train on, at most `wanted`, in the order drawn."""
    scored: list[ScoredGroup] = field(default_factory=list)
    """All groups with rewards, including flat ones: rewards and accuracy are reported for these."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Why a group is missing (infrastructure or judge), by the id of its scenario; a further group of it has its batch
    and place too, e.g. `id (3/1)`."""
    draws: int = 0
    retried: int = 0
    retry_causes: Counter[str] = field(default_factory=Counter)
    """Number of retries by error code."""
    seconds: float = 0.0
    """Time from the start of the first group to the end of the last one."""
    waited: float = 0.0
    """Time that the trainer waited for them, in seconds."""
    judged: float = 0.0
    """Time that scoring took, in seconds; groups that are scored at once all count."""
    ended: dict[str, bool] = field(default_factory=dict)
    """The groups of a step with a lag, see `StepRecord.ended`."""
    times: list[GroupTime] = field(default_factory=list)
    """When its scored groups ran."""

    @property
    def flat(self) -> int:
        """Number of groups whose rewards hardly differ."""
        return len(self.scored) - len(self.groups)

    @property
    def flat_scenarios(self) -> tuple[str, ...]:
        """Ids of the scenarios of these groups."""
        useful = {id(each) for each in self.groups}
        return tuple(each.scenario.id for each in self.scored if id(each) not in useful)

    def raise_if_lost(self) -> None:
        """Raise if no group could be run and scored.

        Raises:
            UnavailableError: every group was dropped.
        """
        if self.dropped and not self.scored:
            raise UnavailableError(
                "training.no-scored-groups", f"no group could be run and scored: {next(iter(self.dropped.values()))}"
            )

    @property
    def trajectories(self) -> list[Trajectory]:
        return [each for group in self.scored for each in group.trajectories]


@dataclass(frozen=True, slots=True)
class Rubric:
    """Score groups of episodes with reward functions."""

    rewards: Sequence[Reward]
    combine: Combination = "uniform"
    weights: Sequence[float] = ()
    """[functions]"""
    by_turn: tuple[Judge, TurnLevel] | None = None
    """The judge of turns and the algorithm, if each turn has an advantage of its own."""

    async def score(self, group: Group, scenario: Scenario) -> ScoredGroup:
        """Return a group with its rewards, and set the rewards of its trajectories.

        Raises:
            UnavailableError: a judge did not answer.
        """
        found = group.trajectories
        columns = [await each.score(found, scenario) for each in self.rewards]
        scores = np.array(columns, dtype=np.float64).T  # [group, functions]
        values = tuple(map(float, combine_rewards(scores, self.combine, self.weights)))
        for trajectory, row, value in zip(found, scores, values, strict=True):
            named = {each.name: float(score) for each, score in zip(self.rewards, row, strict=True)}
            trajectory.rewards = {**named, "reward": value}
        if self.by_turn is None:
            return ScoredGroup(scenario, found, values)
        judge, algorithm = self.by_turn
        turns = [await turn_rewards(each, scenario, algorithm.settings.values, judge) for each in found]
        return ScoredGroup(scenario, found, values, tuple(algorithm.relative_returns(turns)))


@dataclass(frozen=True, slots=True)
class RolloutCollector:
    """Run the episodes of training steps and evaluations."""

    env: EnvFactory
    schedule: Schedule
    rubric: Rubric
    limits: EpisodeLimits
    generations: int
    """Episodes per group."""
    draws: int
    """Maximum number of times that scenarios are drawn for a step."""
    min_group_std: float
    concurrency: int
    """Maximum number of concurrent episodes per server."""
    on_pool: Callable[[EpisodePool], None] = lambda _: None
    """Called with the pool of episodes that are waited for, to observe their progress."""
    progress_file: ProgressFile = field(default_factory=ProgressFile)

    def order(self, step: int, resting: Collection[str] = ()) -> list[Scenario]:
        """Return the scenarios of a step, numbered from 0: those of its groups, then those that replace others.

        Scenarios whose ids are in `resting` are used only if there are not enough others.
        """
        found = sorted(self.schedule.order(step), key=lambda each: each.id in resting)
        return found[: self.draws * self.schedule.groups]

    def new_pool(self, servers: int, progress: RolloutProgress | None = None) -> EpisodePool:
        """Return a pool for episodes on this number of servers, which counts on in `progress`."""
        return EpisodePool(self.concurrency * servers, progress=progress or RolloutProgress())

    async def run_episode(
        self,
        run: EpisodeRunner,
        version: str | None,
        scenario: Scenario,
        seed: str,
        threads: ToolThreads,
        sample: int = 0,
    ) -> Trajectory:
        """Run one episode with the policy of this version; None if each of its turns chooses the policy.

        Raises:
            UnavailableError: another policy sampled it, or the episode failed for a reason other than its policy.
        """
        environment = self.env.new_environment(scenario, self.limits.max_turns)
        start = EpisodeStart(environment, seed, self.limits, threads, sample, may_change_policy=version is None)
        trajectory = await run(start)
        if version is not None and trajectory.policy not in (version, ""):
            raise UnavailableError(
                "training.stale-policy", f"an episode was sampled from {trajectory.policy} instead of {version}"
            )
        trajectory.settings = {"max_turns": self.limits.max_turns, **self.env.provenance}
        return trajectory

    async def score(self, group: Group, scenario: Scenario) -> tuple[ScoredGroup | None, str]:
        """Return a group with its rewards, or None and why it is dropped."""
        if group.dropped:
            return None, group.dropped
        try:
            scored = await self.rubric.score(group, scenario)
        except UnavailableError as error:
            return None, error.message_with_code
        self.progress_file.add_episodes(scored.scenario, scored.trajectories)
        return scored, ""

    @contextmanager
    def show(self, title: str, total: float, pool: EpisodePool) -> Iterator[Advance]:
        """Show the progress of episodes while the block waits for them, and yield what counts them."""
        self.on_pool(pool)
        with progress(title, total=total, is_transient=True) as shown:
            advance = self.progress_file.follow(title, total, shown)
            with show_progress(pool.progress, advance):
                yield advance

    async def measure(
        self, run: EpisodeRunner, version: str, scenarios: Sequence[Scenario], seed: str, servers: int
    ) -> RolloutBatch:
        """Run one episode of each scenario on this number of servers, with rewards, for an evaluation.

        Raises:
            UnavailableError: no episode could be run and scored.
        """
        started = time.monotonic()
        found = RolloutBatch(len(scenarios))
        pool = self.new_pool(servers)
        async with ToolThreads() as threads:

            async def episode(scenario: Scenario, sample: int, attempt: int) -> Trajectory:
                own_seed = f"{seed}/{scenario.id}/{sample}/{attempt}"
                return await self.run_episode(run, version, scenario, own_seed, threads, sample)

            async def measure_one(scenario: Scenario) -> tuple[ScoredGroup | None, str]:
                group = await pool.run_group(episode, scenario)
                advance(1)
                return await self.score(group, scenario)

            with self.show("Rollouts for evaluation", len(scenarios), pool) as advance:
                ended = await gather_all(map(measure_one, scenarios))
        for scenario, (scored, dropped) in zip(scenarios, ended, strict=True):
            if scored is None:
                found.dropped[scenario.id] = dropped
            else:
                found.scored.append(scored)
        found.raise_if_lost()
        found.groups = found.scored
        found.retried, found.retry_causes = pool.progress.retried, pool.progress.retry_causes
        found.seconds = time.monotonic() - started
        return found


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Shares of episodes by the verdict of a judge, in [0, 1]; 0 without episodes."""

    correct: float
    undecided: float
    """Share of episodes whose answer the judge could not decide. They are not correct."""


async def measure_accuracy(groups: Iterable[ScoredGroup], judge: Judge, advance: Advance) -> Accuracy:
    """Return the shares of episodes with a correct and with an undecided answer.

    Raises:
        UnavailableError: the judge gave no verdict on an answer.
    """
    asked = [(each, group.scenario) for group in groups for each in group.trajectories]
    verdicts = await map_concurrently(lambda pair: judge_trajectory(*pair, judge), asked, advance)
    for each in verdicts:
        if each.correct is None:
            raise UnavailableError(
                "training.no-verdict", f"the judge gave no verdict on an answer to {each.scenario}: {each.why}"
            )
    if not verdicts:
        return Accuracy(0.0, 0.0)
    return Accuracy(
        statistics.fmean(bool(each.correct) for each in verdicts),
        statistics.fmean(each.is_undecided for each in verdicts),
    )
