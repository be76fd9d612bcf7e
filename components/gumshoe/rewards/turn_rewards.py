"""Process rewards: a reward for each turn, based on the events of that turn."""

from collections.abc import Mapping
from itertools import islice
from typing import get_args

from pydantic import BaseModel, ConfigDict, Field

from gumshoe.environments.base import Event, Unusable
from gumshoe.rewards.correctness import is_correct
from gumshoe.rewards.judge import Judge
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario


class TurnRewardValues(BaseModel):
    """Values of the events of a turn. The values of one turn are added up."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    found: float = Field(0.2, description="a search listed a correct source for the first time")
    read: float = Field(0.2, description="a correct source was read for the first time")
    read_another: float = Field(-0.02, description="only other sources were read")
    read_again: float = Field(-0.05, description="nothing was read for the first time")
    new_search: float = Field(
        0.0, description="a new search, with or without results; a value above 0 would pay for useless searches"
    )
    repeated_search: float = Field(-0.05, description="a search that was made before")
    in_vain: float = Field(
        -0.02,
        description="a search found nothing, or only partial matches without a correct source; added for a repeated "
        "one, too",
    )
    invalid_id: float = Field(-0.1, description="an ID that does not exist was read")
    correct: float = Field(
        1.0, description='the answer is correct, which "I don\'t know" is if the question is unanswerable'
    )
    wrong: float = Field(-0.5, description='the answer is neither correct nor "I don\'t know"')
    source: float = Field(
        0.0,
        description="the answer, right or wrong, names enough correct sources; times their share of all that it names",
    )
    no_answer: float = Field(
        0.0, description='"I don\'t know" to a question with an answer, or the end of the turns or of the context'
    )
    unusable: float = Field(
        -1.0, description="the turn has no usable call: the episode ends, or goes on after an error message"
    )

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
    """Return the reward of each sampled turn [turns]; an agent's episode may have none.

    Raises:
        UnavailableError: if the judge gave no verdict.
    """
    if not trajectory.turns:
        return []
    record, worth = trajectory.record, values.by_event()
    by_call = iter([sum(worth[event] for event in events) for events in record.deeds])
    counts = trajectory.deeds or [1] * trajectory.turns
    rewards = [sum(islice(by_call, count)) for count in counts]
    rewards += [0.0] * (trajectory.turns - len(rewards))
    for mistake in trajectory.mistakes:
        rewards[mistake.turn - 1] += values.unusable
    if trajectory.ending in (*get_args(Unusable), "truncated"):
        rewards[-1] += values.unusable
    elif record.answer is None or (record.does_not_know and not scenario.unanswerable):
        rewards[-1] += values.no_answer
    else:
        rewards[-1] += values.correct if await is_correct(trajectory, scenario, judge) else values.wrong
        if len(record.right_sources) >= scenario.needed_sources:
            rewards[-1] += values.source * record.share_of_right_sources
    return rewards
