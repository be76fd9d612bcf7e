"""Process rewards: a value for each turn, from what that turn did."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from gumshoe.environments.base import Event, Unusable
from gumshoe.rewards.judge import Judge
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario


@dataclass(frozen=True, slots=True)
class TurnRewardValues:
    """What the deeds of a turn are worth; those of one turn add up."""

    found: float = 0.2
    """A search listed a right source that none had listed before."""
    read: float = 0.2
    """A right source was read for the first time."""
    read_another: float = -0.02
    read_again: float = -0.05
    new_search: float = 0.02
    """A search that was not made before, whatever it found."""
    repeated_search: float = -0.05
    in_vain: float = -0.02
    """A search found nothing; one that is repeated loses both."""
    invalid_id: float = -0.1
    right: float = 1.0
    """The answer is right; "I don't know" is neither right nor wrong."""
    wrong: float = -0.5
    unusable: float = -1.0
    """The call could not be used."""

    def of_deeds(self) -> Mapping[Event, float]:
        """By what a record calls them; an answer has its value from a judge."""
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
    """[turns]: what each sampled turn is worth by itself.

    Raises:
        UnavailableError: the judge gave no verdict.
    """
    record, worth = trajectory.record, values.of_deeds()
    rewards = [sum(worth[deed] for deed in deeds) for deeds in record.deeds]
    rewards += [0.0] * (trajectory.turns - len(rewards))
    if trajectory.ending in get_args(Unusable):
        rewards[-1] += values.unusable
    elif record.answer is not None and not record.does_not_know:
        rewards[-1] += values.right if (await judge.verdict(scenario, record.answer)).correct else values.wrong
    return rewards
