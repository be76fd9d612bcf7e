"""Run and score the episodes of a step, and leave out groups without a learning signal.

Invariants: a group is complete or missing. Which episodes are run depends only on the run's seed, the step and the
draw.
"""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from gumshoe.environments.registry import EnvFactory
from gumshoe.errors import UnavailableError
from gumshoe.rewards.combination import Combination, combine_rewards, is_flat
from gumshoe.rewards.judge import Judge
from gumshoe.rewards.reward import Reward
from gumshoe.rewards.scoring import judge_trajectory, map_concurrently
from gumshoe.rewards.turn_rewards import TurnRewardValues, turn_rewards
from gumshoe.rollouts.engine import RolloutEngine, show_progress
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeRunner, EpisodeStart
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Group, Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.terminal import Advance, progress
from gumshoe.training.algorithms.turn_level import TurnLevel
from gumshoe.training.grpo.schedule import Schedule
from gumshoe.training.progress_file import ProgressFile


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A complete group with its rewards."""

    scenario: Scenario
    trajectories: tuple[Trajectory, ...]
    rewards: tuple[float, ...]
    """[group]"""
    turn_returns: tuple[tuple[float, ...], ...] = ()
    """[group][turns]: returns minus their baseline, if each turn has an advantage of its own; else empty."""

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
    """Why a group is missing (infrastructure or judge), by the id of its scenario."""
    draws: int = 0
    retried: int = 0
    retry_causes: Counter[str] = field(default_factory=Counter)
    """Number of retries by error code."""
    seconds: float = 0.0

    @property
    def flat(self) -> int:
        """Number of groups whose rewards hardly differ."""
        return len(self.scored) - len(self.groups)

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
        turns = [await turn_rewards(each, scenario, TurnRewardValues(), judge) for each in found]
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
    on_engine: Callable[[RolloutEngine], None] = lambda _: None
    """Called with each engine that starts, to observe its progress."""
    progress_file: ProgressFile = field(default_factory=ProgressFile)

    async def collect(self, run: EpisodeRunner, version: str, step: int, servers: int) -> RolloutBatch:
        """Run the groups of a step, numbered from 0, on this number of servers.

        Raises:
            UnavailableError: no group could be run and scored.
        """
        started = time.monotonic()
        drawn = self.schedule.draw(step)
        found = RolloutBatch(len(drawn))
        async with ToolThreads() as threads:
            while drawn and found.draws < self.draws:
                seed = f"{self.schedule.seed}/{step}/{found.draws}"
                title = "Rollouts for training" + (f", draw {found.draws + 1}" if found.draws else "")
                for group in await self._run(
                    title, run, version, drawn, self.generations, seed, servers, found, threads
                ):
                    found.scored.append(group)
                    if not group.is_flat(self.min_group_std):
                        found.groups.append(group)
                found.draws += 1
                missing = found.wanted - len(found.groups)
                drawn = self.schedule.draw(step, found.draws)[:missing]
        found.seconds = time.monotonic() - started
        return found

    async def measure(
        self, run: EpisodeRunner, version: str, scenarios: Sequence[Scenario], seed: str, servers: int
    ) -> RolloutBatch:
        """Run one episode of each scenario on this number of servers, with rewards, for an evaluation.

        Raises:
            UnavailableError: no episode could be run and scored.
        """
        started = time.monotonic()
        found = RolloutBatch(len(scenarios))
        async with ToolThreads() as threads:
            title = "Rollouts for evaluation"
            found.scored = await self._run(title, run, version, scenarios, 1, seed, servers, found, threads)
        found.groups = found.scored
        found.seconds = time.monotonic() - started
        return found

    async def _run(
        self,
        title: str,
        run: EpisodeRunner,
        version: str,
        scenarios: Sequence[Scenario],
        samples: int,
        seed: str,
        servers: int,
        found: RolloutBatch,
        threads: ToolThreads,
    ) -> list[ScoredGroup]:
        """Return the complete groups with their rewards, in the order of their scenarios."""

        async def episode(scenario: Scenario, sample: int, attempt: int) -> Trajectory:
            environment = self.env.new_environment(scenario, self.limits.max_turns)
            own_seed = f"{seed}/{scenario.id}/{sample}/{attempt}"
            trajectory = await run(EpisodeStart(environment, own_seed, self.limits, threads, sample))
            if trajectory.policy not in (version, ""):
                raise UnavailableError(
                    "training.stale-policy", f"an episode was sampled from {trajectory.policy} instead of {version}"
                )
            trajectory.settings = {"max_turns": self.limits.max_turns, **self.env.provenance}
            return trajectory

        engine = RolloutEngine(episode, self.concurrency * servers)
        self.on_engine(engine)
        by_id = {each.id: each for each in scenarios}

        async def score(group: Group) -> ScoredGroup | None:
            try:
                scored = await self.rubric.score(group, by_id[group.scenario])
            except UnavailableError as error:
                found.dropped[group.scenario] = error.message_with_code
                return None
            self.progress_file.add_episodes(scored.scenario, scored.trajectories)
            return scored

        started = {}  # groups are scored while other episodes run
        try:
            async with AsyncExitStack() as held:
                groups = await held.enter_async_context(aclosing(engine.run(scenarios, samples)))
                scoring = await held.enter_async_context(asyncio.TaskGroup())
                total = len(scenarios) * samples
                shown = held.enter_context(progress(title, total=total, is_transient=True))
                advance = self.progress_file.follow(title, total, shown)
                held.enter_context(show_progress(engine.progress, advance))
                async for group in groups:
                    advance(samples)
                    if group.dropped:
                        found.dropped[group.scenario] = group.dropped
                    else:
                        started[group.scenario] = scoring.create_task(score(group))
        except ExceptionGroup as errors:
            first = errors.exceptions[0]  # it cancelled the others
            raise first from first.__cause__
        found.retried += engine.progress.retried
        found.retry_causes.update(engine.progress.retry_causes)
        ended = (started[each.id].result() for each in scenarios if each.id in started)
        whole = [group for group in ended if group is not None]
        if found.dropped and not whole and not found.scored:
            raise UnavailableError(
                "training.no-scored-groups", f"no group could be run and scored: {next(iter(found.dropped.values()))}"
            )
        return whole


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
