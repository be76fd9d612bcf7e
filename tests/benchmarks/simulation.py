"""Simulate trainers and rollout servers in synchronous training, by discrete events in seconds.

A step is like one of `gumshoe train`: the adapter is published, all episodes of the step run on the servers, flat
groups are replaced, the trainers share the groups, and sometimes a checkpoint is saved. Training and rollouts never
overlap.

Invariants: all servers are equally busy, because each episode starts on the least busy one (in a real run, load is a
little less even near the end, because episodes stay on their server). The same seed gives the same episodes for any
number of servers and trainers.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

Seconds = NDArray[np.float64]


class Phases(BaseModel):
    """Times of the parts of a step, in seconds unless noted otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = Field(description="where the numbers come from")
    episode_seconds: dict[float, float] = Field(
        description="seconds of an episode that is alone on a server: quantiles, by the share of episodes that take "
        "no longer, from 0 to 1"
    )
    slowdown: float = Field(
        ge=0, description="relative increase of an episode's time for each other episode on its server"
    )
    slots: int = Field(ge=1, description="maximum number of concurrent episodes per server")
    turns: float = Field(6, ge=1, description="turns per episode")
    calls_per_second: float | None = Field(
        None, gt=0, description="turns per second that the process that runs all episodes can handle; no limit if null"
    )
    score_seconds: float = Field(0, ge=0, description="time from a group's last episode to its rewards")
    tokens: float = Field(gt=0, description="mean number of tokens per episode; proportional to its seconds")
    token_seconds: float = Field(gt=0, description="time of one trainer per token, forward and backward")
    update_seconds: float = Field(0, ge=0, description="time per step that does not depend on tokens")
    exchange_seconds: float = Field(0, ge=0, description="time to exchange gradients, if there are several trainers")
    save_seconds: float = Field(0, ge=0, description="time to save the adapter")
    send_seconds: float = Field(0, ge=0, description="time to upload the adapter to the store")
    load_seconds: float = Field(0, ge=0, description="time to load the adapter, on all servers in parallel")
    checkpoint_seconds: float = Field(0, ge=0)
    server_detection_seconds: float = Field(1, ge=0, description="time until the loss of a server is detected")
    server_restart_seconds: float = Field(120, ge=0)
    trainer_detection_seconds: float = Field(30, ge=0, description="time until the loss of a trainer is detected")
    trainer_restart_seconds: float = Field(
        180, ge=0, description="time to restart all trainers from the last checkpoint"
    )
    gpus_per_server: int = Field(1, ge=1)
    gpus_per_trainer: int = Field(1, ge=1)

    @model_validator(mode="after")
    def _rising(self) -> Self:
        shares, seconds = list(self.episode_seconds), list(self.episode_seconds.values())
        if shares != sorted(shares) or seconds != sorted(seconds) or not {0.0, 1.0} <= {*shares} or seconds[0] <= 0:
            raise ValueError("episode_seconds are quantiles, from that of 0 to that of 1, above 0 and rising")
        return self

    def draw(self, rng: np.random.Generator, episodes: int) -> Seconds:
        """Draw the seconds of episodes that are alone on a server, [episodes]."""
        shares, seconds = list(self.episode_seconds), list(self.episode_seconds.values())
        return np.interp(rng.random(episodes), shares, seconds)

    @property
    def mean_episode(self) -> float:
        """Mean seconds of an episode that is alone on a server."""
        return mean_of(self.episode_seconds)

    @property
    def publishing(self) -> float:
        """Seconds until all servers have the trainer's weights."""
        return self.save_seconds + self.send_seconds + self.load_seconds


def mean_of(quantiles: dict[float, float]) -> float:
    """Return the mean of a distribution with these quantiles, by share, interpolated linearly."""
    return float(np.trapezoid(list(quantiles.values()), list(quantiles)))


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a step."""

    groups: int
    episodes: int
    """Episodes per group."""
    flat: float = 0.0
    """Share of flat groups, which are replaced."""
    draws: int = 1
    """Maximum number of draws."""


@dataclass(frozen=True, slots=True)
class RolloutTimes:
    """Times of the episodes of one draw."""

    ends: Seconds
    """[episodes]: end of each, in seconds from the start of the first."""
    again: int = 0
    """Number of episodes that lost a turn with a server."""

    @property
    def seconds(self) -> float:
        return float(self.ends.max(initial=0.0))


def roll_out(
    work: Seconds, servers: int, phases: Phases, lost_at: float = math.inf, rng: np.random.Generator | None = None
) -> RolloutTimes:
    """Simulate episodes with these seconds of work, [episodes], on servers of which one may be lost at a time.

    All running episodes advance at the same rate, 1 / (1 + slowdown · others on the server) per second. So one clock
    counts the work done, and an episode ends when the clock has advanced by its own work. Episodes of a lost server
    repeat their turn on another one, once the loss is detected. The server comes back empty.
    """
    ends = np.zeros(len(work))
    waiting = deque(range(len(work)))
    slots, alive = phases.slots * servers, servers
    running: list[tuple[float, int]] = []  # clock at the end, and number of the episode
    left = work.tolist()  # work left of each episode at its start or restart
    changes: list[tuple[float, int, tuple[int, ...]]] = []  # time; change in servers; episodes to restart
    if lost_at < math.inf:
        changes.append((lost_at, -1, ()))
    now, clock, again = 0.0, 0.0, 0
    driven = math.inf
    if phases.calls_per_second is not None:
        driven = phases.calls_per_second * float(work.mean()) / phases.turns  # maximum work per second
    while running or waiting or any(each[2] for each in changes):
        while waiting and len(running) < slots and alive:
            started = waiting.popleft()
            heappush(running, (clock + left[started], started))
        count = len(running)
        others = max(count / alive - 1, 0.0) if alive else 0.0
        pace = min(1 / (1 + phases.slowdown * others), driven / max(1, count)) if alive else 0.0
        ends_in = (running[0][0] - clock) / pace if running and pace else math.inf
        if changes and changes[0][0] <= now + ends_in:
            at, more, back = heappop(changes)
            clock += pace * (at - now)
            now = at
            alive += more
            slots = phases.slots * alive
            waiting.extendleft(back)
            if more < 0:
                gone = _lost(running, alive + 1, rng or np.random.default_rng(0))
                for ended, which in gone:
                    turn = work[which] / phases.turns
                    done = work[which] - (ended - clock)
                    left[which] = float(work[which] - math.floor(done / turn) * turn)
                again += len(gone)
                known = now + phases.server_detection_seconds
                heappush(changes, (known, 0, tuple(which for _, which in gone)))
                heappush(changes, (known + phases.server_restart_seconds, 1, ()))
            continue
        now += ends_in
        clock, which = heappop(running)
        ends[which] = now
    return RolloutTimes(ends, again)


def _lost(running: list[tuple[float, int]], servers: int, rng: np.random.Generator) -> list[tuple[float, int]]:
    """Remove the episodes of one server from the running ones, and return them; any will do, as servers are alike."""
    count = min(len(running), math.ceil(len(running) / servers))
    places = set(rng.choice(len(running), count, replace=False).tolist())
    gone = [each for place, each in enumerate(running) if place in places]
    running[:] = [each for place, each in enumerate(running) if place not in places]
    heapify(running)
    return gone


@dataclass(frozen=True, slots=True)
class Step:
    """Times of one step, in seconds."""

    rollouts: float
    training: float
    """Time of the trainer with the most tokens."""
    publishing: float
    worked: float
    """Sum over all episodes, as if each were alone on a server."""
    learned: float
    """Sum over all trainers of the time with tokens."""
    slowest: float
    """Sum over draws of the longest episode, alone: rollouts cannot be shorter with any number of servers."""
    tail: float
    """Share of the rollout time with fewer episodes than half of the servers' slots."""

    @property
    def seconds(self) -> float:
        return self.rollouts + self.training + self.publishing


def steps(phases: Phases, work: Work, servers: int, trainers: int, count: int, seed: int = 0) -> Iterator[Step]:
    """Simulate `count` steps, one after another, without lost nodes.

    Raises:
        ValueError: the groups cannot be split evenly over the trainers.
    """
    if work.groups % trainers:
        raise ValueError(f"{work.groups} groups cannot be split evenly over {trainers} trainers")
    for number in range(count):
        yield _step(phases, work, servers, trainers, np.random.default_rng([seed, number]))


def _step(phases: Phases, work: Work, servers: int, trainers: int, rng: np.random.Generator) -> Step:
    rollouts = worked = slowest = 0.0
    kept: list[Seconds] = []
    tail_from = 0.0
    missing = work.groups
    for _ in range(work.draws):
        episodes = phases.draw(rng, missing * work.episodes)
        rolled = roll_out(episodes, servers, phases)
        half = min(len(episodes), servers * phases.slots) // 2
        tail_from += float(np.sort(rolled.ends)[len(episodes) - 1 - half])
        rollouts += rolled.seconds + phases.score_seconds
        worked += float(episodes.sum())
        slowest += float(episodes.max())
        teaches = rng.random(missing) >= work.flat
        kept.append(episodes.reshape(missing, work.episodes)[teaches].sum(1))
        missing -= int(teaches.sum())
        if not missing:
            break
    learned = np.concatenate([*kept, np.zeros(missing)])  # missing groups cost nothing
    by_trainer = learned.reshape(trainers, -1).sum(1) * phases.tokens / phases.mean_episode * phases.token_seconds
    fixed = phases.update_seconds + phases.exchange_seconds * (trainers > 1)
    return Step(
        rollouts,
        float(by_trainer.max()) + fixed,
        phases.publishing,
        worked,
        float(by_trainer.sum()) + fixed * trainers,
        slowest,
        1 - tail_from / rollouts,
    )


# The cost of lost nodes.


def server_loss(
    phases: Phases, work: Work, servers: int, trainers: int, tries: int = 20, seed: int = 0
) -> tuple[float, float]:
    """Return the mean cost of losing a server at a random time of a step, in seconds, with its standard error.

    If the server is not back when an adapter is published, the step waits for it.
    """
    costs: list[float] = []
    once = Work(work.groups, work.episodes)
    for number, step in enumerate(steps(phases, once, servers, trainers, tries, seed)):
        rng = np.random.default_rng([seed, number])
        episodes = phases.draw(rng, once.groups * once.episodes)
        lost_at = float(np.random.default_rng([seed, number, 1]).random()) * step.seconds
        rollouts = step.rollouts
        if lost_at < rollouts:
            rollouts = roll_out(episodes, servers, phases, lost_at, rng).seconds + phases.score_seconds
        back = lost_at + phases.server_detection_seconds + phases.server_restart_seconds
        late = max(0.0, back - rollouts - step.training)
        costs.append(rollouts - step.rollouts + late)
    return float(np.mean(costs)), float(np.std(costs) / math.sqrt(len(costs)))


def young_interval(checkpoint: float, between: float) -> float:
    """Return the optimal seconds of work between checkpoints, if failures are `between` seconds apart on average.

    Source: J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.
    """
    return math.sqrt(2 * checkpoint * between)


def daly_interval(checkpoint: float, between: float) -> float:
    """Return the same as `young_interval`, to a higher order.

    Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation
    Computer Systems 22(3), 2006, equation 37.
    """
    if checkpoint >= 2 * between:
        return between
    share = checkpoint / (2 * between)
    return young_interval(checkpoint, between) * (1 + math.sqrt(share) / 3 + share / 9) - checkpoint


def lost_share(
    step: float, every: int, checkpoint: float, restart: float, between: float, count: int = 20000, seed: int = 0
) -> float:
    """Simulate the share of time that is lost to checkpoints every `every` steps and to failures.

    Each failure sends the run back to its last checkpoint. Failures are equally likely at any time, also during
    restarts. `count` is the number of simulated checkpoints. Times are in seconds.
    """
    rng = np.random.default_rng(seed)
    whole = step * every + checkpoint
    failures = rng.geometric(math.exp(-whole / between), count) - 1 if between < math.inf else np.zeros(count, int)
    total = int(failures.sum())
    before = _before(rng, whole, between, total)  # [failures]: lost work
    again = rng.geometric(math.exp(-restart / between), total) - 1  # number of failures during each restart
    restarts = total * restart + _before(rng, restart, between, int(again.sum())).sum()
    spent = whole * count + before.sum() + restarts
    return float(1 - step * every * count / spent)


def _before(rng: np.random.Generator, whole: float, between: float, count: int) -> Seconds:
    """Draw the times of failures, [count], given that each comes within `whole` seconds."""
    return -between * np.log1p(-rng.random(count) * -math.expm1(-whole / between))


def best_interval(step: float, checkpoint: float, restart: float, between: float, seed: int = 0) -> tuple[int, float]:
    """Return the best number of steps between checkpoints in the simulation, and the share of time lost with it.

    Candidates are about 10 % apart, up to five times Young's interval.
    """
    most = max(2, math.ceil(5 * young_interval(checkpoint, between) / step))
    tried = sorted({round(each) for each in np.geomspace(1, most, max(2, math.ceil(math.log(most) / 0.1)))})
    found = [(lost_share(step, every, checkpoint, restart, between, seed=seed), every) for every in tried]
    share, every = min(found)
    return every, share
