"""Process rewards: a reward for each turn, based on the events of that turn."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import get_args

from gumshoe.environments.base import Event, Unusable
from gumshoe.rewards.correctness import is_correct
from gumshoe.rewards.judge import Judge
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario


@dataclass(frozen=True, slots=True)
class TurnRewardValues:
    """Values of the events of a turn. The values of one turn are added up."""

    found: float = 0.2
    """A search listed a correct source for the first time."""
    read: float = 0.2
    """A correct source was read for the first time."""
    read_another: float = -0.02
    read_again: float = -0.05
    new_search: float = 0.0
    """A new search, with or without results. A value above 0 would pay for useless searches."""
    repeated_search: float = -0.05
    in_vain: float = -0.02
    """A search found nothing, or only partial matches without a correct source. A repeated one gets both values."""
    invalid_id: float = -0.1
    right: float = 1.0
    """The answer is correct. "I don't know" is correct if the question is unanswerable, and else neither correct nor
    wrong."""
    wrong: float = -0.5
    unusable: float = -1.0
    """The turn has no usable call. The episode ends, or goes on after an error message."""

    def by_event(self) -> Mapping[Event, float]:
        """Return the value of each event. The value of an answer depends on the judge, so it is 0 here."""
        return {
            "searched": self.new_search,
            "searched again": self.repeated_search,
            "in vain": self.in_vain,
            "found": self.found,
            "read": self.read,
            "read again": self.read_again,
            "read another": self.read_another,
            "invalid id": self.invalid_id,
            "answered": 0.0,
        }


async def turn_rewards(
    trajectory: Trajectory, scenario: Scenario, values: TurnRewardValues, judge: Judge
) -> list[float]:
    """Return the reward of each sampled turn [turns].

    Raises:
        UnavailableError: if the judge gave no verdict.
    """
    record, worth = trajectory.record, values.by_event()
    by_call = iter([sum(worth[event] for event in events) for events in record.deeds])
    counts = trajectory.deeds or [1] * trajectory.turns
    rewards = [sum(islice(by_call, count)) for count in counts]
    rewards += [0.0] * (trajectory.turns - len(rewards))
    for mistake in trajectory.mistakes:
        rewards[mistake.turn - 1] += values.unusable
    if trajectory.ending in (*get_args(Unusable), "truncated"):
        rewards[-1] += values.unusable
    elif record.answer is not None and (scenario.unanswerable or not record.does_not_know):
        rewards[-1] += values.right if await is_correct(trajectory, scenario, judge) else values.wrong
    return rewards
