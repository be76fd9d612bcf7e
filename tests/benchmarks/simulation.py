"""Trainers and rollout servers in synchronous training, as a discrete-event simulation in seconds.

A step is as `gumshoe train` has it: the adapter is published, all episodes of the step run on the servers, groups that
teach nothing are drawn again, the trainers share the groups, and every so often a checkpoint is saved. Nobody learns
while episodes run, and no episode runs while somebody learns.

What always holds: all servers are equally busy, since each episode begins with the least busy one (near the end of the
rollouts, those of a real run are a little less even: an episode stays where it began); and the same seed gives the same
episodes however many servers and trainers there are.
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
    """What the parts of a step take, in seconds where nothing else is said."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = Field(description="where the numbers come from")
    episode_seconds: dict[float, float] = Field(
        description="of an episode that is alone on a server: quantiles, by the share of episodes that take no longer, "
        "from 0 to 1"
    )
    slowdown: float = Field(
        ge=0, description="how much longer an episode takes for each other one on its server, as a share"
    )
    slots: int = Field(ge=1, description="episodes that a server runs at once")
    turns: float = Field(6, ge=1, description="of an episode")
    calls_per_second: float | None = Field(
        None, gt=0, description="turns a second that the one process can drive that runs all episodes; no bound if none"
    )
    score_seconds: float = Field(0, ge=0, description="from a group's last episode to its rewards")
    tokens: float = Field(gt=0, description="of an episode, mean; in proportion to its seconds")
    token_seconds: float = Field(gt=0, description="of one trainer for a token, forwards and backwards")
    update_seconds: float = Field(0, ge=0, description="of a step, whatever its tokens")
    exchange_seconds: float = Field(0, ge=0, description="of gradients between trainers, where there are several")
    save_seconds: float = Field(0, ge=0, description="of the adapter")
    send_seconds: float = Field(0, ge=0, description="of the adapter, to the store that servers take it from")
    load_seconds: float = Field(0, ge=0, description="of the adapter, on all servers at the same time")
    checkpoint_seconds: float = Field(0, ge=0)
    server_detection_seconds: float = Field(1, ge=0, description="until it is known that a server is gone")
    server_restart_seconds: float = Field(120, ge=0)
    trainer_detection_seconds: float = Field(30, ge=0, description="until it is known that a trainer is gone")
    trainer_restart_seconds: float = Field(180, ge=0, description="of all trainers, from the last checkpoint")
    gpus_per_server: int = Field(1, ge=1)
    gpus_per_trainer: int = Field(1, ge=1)

    @model_validator(mode="after")
    def _rising(self) -> Self:
        shares, seconds = list(self.episode_seconds), list(self.episode_seconds.values())
        if shares != sorted(shares) or seconds != sorted(seconds) or not {0.0, 1.0} <= {*shares} or seconds[0] <= 0:
            raise ValueError("episode_seconds are quantiles, from that of 0 to that of 1, above 0 and rising")
        return self

    def draw(self, rng: np.random.Generator, episodes: int) -> Seconds:
        """[episodes]: the seconds of each, alone."""
        shares, seconds = list(self.episode_seconds), list(self.episode_seconds.values())
        return np.interp(rng.random(episodes), shares, seconds)

    @property
    def mean_episode(self) -> float:
        """Seconds, alone."""
        return mean_of(self.episode_seconds)

    @property
    def publishing(self) -> float:
        """Seconds from the trainer's weights to the last server that has them."""
        return self.save_seconds + self.send_seconds + self.load_seconds


def mean_of(quantiles: dict[float, float]) -> float:
    """The mean of what has such quantiles, by share, with straight lines between them."""
    return float(np.trapezoid(list(quantiles.values()), list(quantiles)))


@dataclass(frozen=True, slots=True)
class Work:
    """What a step is to do."""

    groups: int
    episodes: int
    """Of a group."""
    flat: float = 0.0
    """Share of groups that teach nothing, in place of which others are drawn."""
    draws: int = 1
    """At most."""


@dataclass(frozen=True, slots=True)
class Rolled:
    """Episodes of one draw, at their end."""

    ends: Seconds
    """[episodes]: when each ended, from the first one's beginning."""
    again: int = 0
    """Episodes that lost a turn with a server."""

    @property
    def seconds(self) -> float:
        return float(self.ends.max(initial=0.0))


def roll_out(
    work: Seconds, servers: int, phases: Phases, lost_at: float = math.inf, rng: np.random.Generator | None = None
) -> Rolled:
    """Run episodes [episodes], each so many seconds of work, on servers of which one may be lost at a moment.

    All running episodes advance alike: by 1 / (1 + slowdown · others on the server) a second. So one clock counts the
    work that each has had, and an episode ends when that clock has gone on by its own. The episodes of a lost server
    begin their turn again on another, once it is known to be gone; it comes back empty.
    """
    ends = np.zeros(len(work))
    waiting = deque(range(len(work)))
    slots, alive = phases.slots * servers, servers
    running: list[tuple[float, int]] = []  # where the clock stands at its end, and which
    left = work.tolist()  # of each, when it is begun or goes on
    changes: list[tuple[float, int, tuple[int, ...]]] = []  # when; servers more or fewer; episodes that go on
    if lost_at < math.inf:
        changes.append((lost_at, -1, ()))
    now, clock, again = 0.0, 0.0, 0
    driven = math.inf
    if phases.calls_per_second is not None:
        driven = phases.calls_per_second * float(work.mean()) / phases.turns  # episodes' seconds a second, at most
    while running or waiting or any(each[2] for each in changes):
        while waiting and len(running) < slots and alive:
            begun = waiting.popleft()
            heappush(running, (clock + left[begun], begun))
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
    return Rolled(ends, again)


def _lost(running: list[tuple[float, int]], servers: int, rng: np.random.Generator) -> list[tuple[float, int]]:
    """Take what one of so many servers had out of what runs: anything, since all have any."""
    count = min(len(running), math.ceil(len(running) / servers))
    places = set(rng.choice(len(running), count, replace=False).tolist())
    gone = [each for place, each in enumerate(running) if place in places]
    running[:] = [each for place, each in enumerate(running) if place not in places]
    heapify(running)
    return gone


@dataclass(frozen=True, slots=True)
class Step:
    """One step, in seconds."""

    rollouts: float
    training: float
    """Of the trainer with the most tokens."""
    publishing: float
    worked: float
    """Of all episodes, as if each had been alone on a server."""
    learned: float
    """Of all trainers together, with tokens."""
    slowest: float
    """The longest episode of each draw, alone, one after another: no number of servers makes rollouts shorter."""
    tail: float
    """The share of the rollouts in which fewer episodes are left than half of what the servers hold."""

    @property
    def seconds(self) -> float:
        return self.rollouts + self.training + self.publishing


def steps(phases: Phases, work: Work, servers: int, trainers: int, count: int, seed: int = 0) -> Iterator[Step]:
    """Simulate so many steps, one after another, without losses.

    Raises:
        ValueError: the groups cannot be shared out evenly among so many trainers.
    """
    if work.groups % trainers:
        raise ValueError(f"{work.groups} groups cannot be shared out among {trainers} trainers")
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
    learned = np.concatenate([*kept, np.zeros(missing)])  # what is missing costs nothing
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


# What the loss of a node costs.


def server_loss(
    phases: Phases, work: Work, servers: int, trainers: int, tries: int = 20, seed: int = 0
) -> tuple[float, float]:
    """Seconds that a server's loss at any moment of a step costs, the mean of so many, with its standard error.

    A server that is not back when a step's adapter is published is waited for.
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


def young(checkpoint: float, between: float) -> float:
    """Seconds of work between checkpoints that lose the least time to saving, and to failures so far apart in the mean
    (J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974).
    """
    return math.sqrt(2 * checkpoint * between)


def daly(checkpoint: float, between: float) -> float:
    """The same to a higher order (J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart
    dumps, Future Generation Computer Systems 22(3), 2006, equation 37).
    """
    if checkpoint >= 2 * between:
        return between
    share = checkpoint / (2 * between)
    return young(checkpoint, between) * (1 + math.sqrt(share) / 3 + share / 9) - checkpoint


def lost_share(
    step: float, every: int, checkpoint: float, restart: float, between: float, count: int = 20000, seed: int = 0
) -> float:
    """The share of all time that is lost to saving every so many steps, and to failures of which each sends the run
    back to its last checkpoint, simulated over so many checkpoints. Times are in seconds.

    Failures come at any moment alike, during restarts too.
    """
    rng = np.random.default_rng(seed)
    whole = step * every + checkpoint
    failures = rng.geometric(math.exp(-whole / between), count) - 1 if between < math.inf else np.zeros(count, int)
    total = int(failures.sum())
    before = _before(rng, whole, between, total)  # [failures]: work that was for nothing
    again = rng.geometric(math.exp(-restart / between), total) - 1  # of restarts that failed in their turn
    restarts = total * restart + _before(rng, restart, between, int(again.sum())).sum()
    spent = whole * count + before.sum() + restarts
    return float(1 - step * every * count / spent)


def _before(rng: np.random.Generator, whole: float, between: float, count: int) -> Seconds:
    """[count]: when a failure comes, given that it comes within a time."""
    return -between * np.log1p(-rng.random(count) * -math.expm1(-whole / between))


def best_interval(step: float, checkpoint: float, restart: float, between: float, seed: int = 0) -> tuple[int, float]:
    """The number of steps between checkpoints that the simulation finds best, and what is lost with it, as a share.

    Looked for among those in steps of about a tenth, up to five times Young's.
    """
    most = max(2, math.ceil(5 * young(checkpoint, between) / step))
    tried = sorted({round(each) for each in np.geomspace(1, most, max(2, math.ceil(math.log(most) / 0.1)))})
    found = [(lost_share(step, every, checkpoint, restart, between, seed=seed), every) for every in tried]
    share, every = min(found)
    return every, share
