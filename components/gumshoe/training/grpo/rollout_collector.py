"""The episodes of one step: run, scored, and left out where they teach nothing.

What always holds: a group is whole or not there; and what is run depends on the run's seed, the step and the draw.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from gumshoe.environments.registry import EnvFactory
from gumshoe.errors import UnavailableError
from gumshoe.rewards.combination import Way, combine_rewards, is_flat
from gumshoe.rewards.judge import Judge
from gumshoe.rewards.reward import Reward
from gumshoe.rewards.scoring import at_once, judge_one
from gumshoe.rewards.turn_rewards import TurnRewardValues, turn_rewards
from gumshoe.rollouts.engine import RolloutEngine
from gumshoe.rollouts.episode import EpisodeLimits, run_episode
from gumshoe.rollouts.sessions import OpenChatSession
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Group, Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.terminal import Advance
from gumshoe.training.grpo.schedule import Schedule

SMALL = 1e-4  # added to standard deviations, as TRL does


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A whole group with its rewards."""

    scenario: Scenario
    trajectories: tuple[Trajectory, ...]
    rewards: tuple[float, ...]
    """[group]"""
    turn_advantages: tuple[tuple[float, ...], ...] = ()
    """[group][turns], where each turn has its own; empty otherwise."""
    turn_rewards: tuple[float, ...] = ()
    """[turns of all episodes], where each turn has its own."""

    def is_flat(self, bound: float) -> bool:
        """Whether what its advantages come from hardly differs, so that there is little to learn from it."""
        return is_flat(np.array(self.turn_rewards or self.rewards), bound)


@dataclass(slots=True)
class RolloutBatch:
    """What a step learns from, and what became of the rest."""

    wanted: int
    """Groups."""
    groups: list[ScoredGroup] = field(default_factory=list)
    """At most as many as wanted, in the order in which they were drawn."""
    every: list[ScoredGroup] = field(default_factory=list)
    """All that have rewards, the flat ones too: what rewards and accuracy are reported of."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Why a group is missing, by its scenario: infrastructure, or a judge."""
    draws: int = 0
    retried: int = 0
    seconds: float = 0.0

    @property
    def flat(self) -> int:
        """Groups that teach nothing."""
        return len(self.every) - len(self.groups)

    @property
    def trajectories(self) -> list[Trajectory]:
        return [each for group in self.every for each in group.trajectories]


@dataclass(frozen=True, slots=True)
class Rubric:
    """What episodes are rewarded for."""

    rewards: Sequence[Reward]
    combine: Way = "uniform"
    weights: Sequence[float] = ()
    """[functions]"""
    by_turn: Judge | None = None
    """Says which answers are right, where each turn has an advantage of its own."""

    async def of(self, group: Group, scenario: Scenario) -> ScoredGroup:
        """A group with its rewards, which its trajectories name too.

        Raises:
            UnavailableError: a judge gave no answer.
        """
        found = group.trajectories
        columns = [await each.of(found, scenario) for each in self.rewards]
        scores = np.array(columns, dtype=np.float64).T  # [group, functions]
        values = tuple(map(float, combine_rewards(scores, self.combine, self.weights)))
        for trajectory, row, value in zip(found, scores, values, strict=True):
            named = {each.name: float(score) for each, score in zip(self.rewards, row, strict=True)}
            trajectory.rewards = {**named, "reward": value}
        if self.by_turn is None:
            return ScoredGroup(scenario, found, values)
        turns = [await turn_rewards(each, scenario, TurnRewardValues(), self.by_turn) for each in found]
        return ScoredGroup(scenario, found, values, tuple(turn_advantages(turns)), tuple(chain.from_iterable(turns)))


def turn_advantages(rewards: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """[group][turns]: the sum of what a turn and those after it are worth, each against all turns of the group.

    Process supervision of GRPO (https://arxiv.org/abs/2402.03300, 4.1.3): rewards are taken less their mean and
    divided by their standard deviation, over all turns of the group.
    """
    every = np.array([value for turns in rewards for value in turns])
    mean, spread = every.mean(), every.std() + SMALL
    return [
        tuple(map(float, np.cumsum(((np.array(turns) - mean) / spread)[::-1])[::-1])) if len(turns) else ()
        for turns in rewards
    ]


@dataclass(frozen=True, slots=True)
class RolloutCollector:
    """Runs the episodes of steps, and of evaluations."""

    world: EnvFactory
    schedule: Schedule
    scoring: Rubric
    limits: EpisodeLimits
    generations: int
    """Episodes of a group."""
    draws: int
    min_group_std: float
    concurrency: int
    """Episodes at once, of each server."""
    told: Callable[[RolloutEngine], None] = lambda _: None
    """Is given each engine that is begun, to look at its progress."""

    async def collect(self, speak: OpenChatSession, version: str, step: int, servers: int) -> RolloutBatch:
        """The groups of a step, from 0, run by so many servers.

        Raises:
            UnavailableError: none could be run, or scored.
        """
        started = time.monotonic()
        drawn = self.schedule.draw(step)
        found = RolloutBatch(len(drawn))
        async with ToolThreads() as threads:
            while drawn and found.draws < self.draws:
                seed = f"{self.schedule.seed}/{step}/{found.draws}"
                for group in await self._run(speak, version, drawn, self.generations, seed, servers, found, threads):
                    found.every.append(group)
                    if not group.is_flat(self.min_group_std):
                        found.groups.append(group)
                found.draws += 1
                missing = found.wanted - len(found.groups)
                drawn = self.schedule.draw(step, found.draws)[:missing]
        found.seconds = time.monotonic() - started
        return found

    async def measure(
        self, speak: OpenChatSession, version: str, scenarios: Sequence[Scenario], seed: str, servers: int
    ) -> RolloutBatch:
        """One episode of each scenario, with its reward, run by so many servers: an evaluation.

        Raises:
            UnavailableError: none could be run, or scored.
        """
        started = time.monotonic()
        found = RolloutBatch(len(scenarios))
        async with ToolThreads() as threads:
            found.every = await self._run(speak, version, scenarios, 1, seed, servers, found, threads)
        found.groups = found.every
        found.seconds = time.monotonic() - started
        return found

    async def _run(
        self,
        speak: OpenChatSession,
        version: str,
        scenarios: Sequence[Scenario],
        samples: int,
        seed: str,
        servers: int,
        found: RolloutBatch,
        threads: ToolThreads,
    ) -> list[ScoredGroup]:
        """The groups that are whole and have rewards, in the order of their scenarios."""

        async def episode(scenario: Scenario, sample: int, attempt: int) -> Trajectory:
            environment = self.world.new_environment(scenario, self.limits.max_turns)
            with speak(environment, f"{seed}/{scenario.id}/{sample}/{attempt}") as speaker:
                trajectory = await run_episode(speaker, environment, sample, self.limits, threads)
            if trajectory.policy not in (version, ""):
                raise UnavailableError(
                    "training.stale-policy", f"an episode was sampled from {trajectory.policy} instead of {version}"
                )
            trajectory.settings = {"max_turns": self.limits.max_turns, **self.world.provenance}
            return trajectory

        engine = RolloutEngine(episode, self.concurrency * servers)
        self.told(engine)
        by_id = {each.id: each for each in scenarios}

        async def scored(group: Group) -> ScoredGroup | None:
            try:
                return await self.scoring.of(group, by_id[group.scenario])
            except UnavailableError as error:
                found.dropped[group.scenario] = error.message_with_code
                return None

        begun = {}  # judges work while other episodes run
        try:
            async with aclosing(engine.run(scenarios, samples)) as groups, asyncio.TaskGroup() as scoring:
                async for group in groups:
                    if group.dropped:
                        found.dropped[group.scenario] = group.dropped
                    else:
                        begun[group.scenario] = scoring.create_task(scored(group))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the first is what ended the others
        found.retried += engine.progress.retried
        ended = (begun[each.id].result() for each in scenarios if each.id in begun)
        whole = [group for group in ended if group is not None]
        if found.dropped and not whole and not found.every:
            raise UnavailableError(
                "training.no-scored-groups", f"no group could be run and scored: {next(iter(found.dropped.values()))}"
            )
        return whole


async def accuracy(groups: Iterable[ScoredGroup], judge: Judge, advance: Advance) -> float:
    """The share of episodes whose answers are right, [0, 1]; 0 without any.

    Raises:
        UnavailableError: the judge gave no verdict on some answer.
    """
    asked = [(each, group.scenario) for group in groups for each in group.trajectories]
    verdicts = await at_once(lambda pair: judge_one(*pair, judge), asked, advance)
    for each in verdicts:
        if each.correct is None:
            raise UnavailableError(
                "training.no-verdict", f"the judge gave no verdict on an answer to {each.scenario}: {each.why}"
            )
    return statistics.fmean(bool(each.correct) for each in verdicts) if verdicts else 0.0
