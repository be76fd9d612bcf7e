"""Advantages of their own for the turns of an episode."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from gumshoe.rewards.turn_rewards import TurnRewardValues
from gumshoe.training.algorithms.algorithm import (
    STD_EPSILON,
    Algorithm,
    AlgorithmSettings,
    ClippedSettings,
    TokenBatch,
    mean_by_episode,
    mean_by_length,
    mean_by_pass,
    mean_by_step,
)

if TYPE_CHECKING:
    from torch import Tensor

_REDUCE = {"dapo": mean_by_step, "grpo": mean_by_episode, "dr_grpo": mean_by_length, "bnpo": mean_by_pass}

GroupTurns = Sequence[Sequence[float]]
"""Values of the turns of a group, [episodes][turns]."""


class TurnLevelSettings(ClippedSettings):
    """The settings of turn-level advantages."""

    scale: Literal["group", "batch", "none"] = Field(
        "group",
        description="divide advantages by their standard deviation over all turns of the group, or of the step, or by "
        "nothing",
    )
    loss: Literal["dapo", "grpo", "dr_grpo", "bnpo"] = Field("dapo", description="algorithm whose loss is used")
    values: TurnRewardValues = Field(TurnRewardValues(), description="what the events of a turn are worth")
    discount: float = Field(
        1.0, gt=0, le=1, description="discount of the return: a reward counts this much less for each turn before it"
    )
    baseline: Literal["depth", "group"] = Field(
        "depth",
        description="what the return of a turn is compared with: depth: the mean return at the same turn number (the "
        "last return of episodes that ended before); group: the mean return of all turns of the group",
    )


class TurnLevel(Algorithm):
    """Compare the return of each turn, which is the discounted sum of its reward and those of later turns.

    Rewards are summed up before anything is subtracted. Process supervision of GRPO (https://arxiv.org/abs/2402.03300,
    4.1.3) subtracts the mean reward m of the group from the reward of each turn first. Then the baseline of a turn is m
    times the number of turns that follow, which the policy decides by when it stops. The expected gradient is that of
    E[R] - m E[T] instead of E[R], for the return R and the number of turns T of an episode. If m is negative, each
    further turn is worth -m, however useless it is (https://github.com/verl-project/verl/issues/7244).

    With baseline `depth`, n episodes that have turns give n returns at each turn number, and nothing that an episode
    does changes the returns of the others. So the expected gradient is (1 - 1/n) times that of E[R], as for GRPO
    without scaling. With baseline `group`, long episodes have a larger share in the mean: a bias that vanishes with
    the number of episodes.

    Derive from it for other advantages of turns.
    """

    Settings: ClassVar[type[AlgorithmSettings]] = TurnLevelSettings

    @property
    def by_pass(self) -> bool:
        """True if the loss is that of `bnpo`."""
        return bool(self.settings.loss == "bnpo")

    def relative_returns(self, rewards: GroupTurns) -> list[tuple[float, ...]]:
        """Return the returns of a group's turns minus their baseline, [episodes][turns], from their rewards."""
        returns = [self._returns(turns) for turns in rewards]
        there = [each for each in returns if each]
        if self.settings.baseline == "group":
            mean = float(np.mean([*chain.from_iterable(there)])) if there else 0.0
            return [tuple(value - mean for value in each) for each in returns]
        longest = max(map(len, there), default=0)
        means = [float(np.mean([each[min(turn, len(each) - 1)] for each in there])) for turn in range(longest)]
        return [tuple(value - mean for value, mean in zip(each, means, strict=False)) for each in returns]

    def _returns(self, rewards: Sequence[float]) -> list[float]:
        """Return the discounted sums of each reward and those after it, [turns]."""
        returns: list[float] = []
        for reward in reversed(rewards):
            returns.append(reward + self.settings.discount * (returns[-1] if returns else 0.0))
        return returns[::-1]

    def turn_advantages(self, groups: Sequence[GroupTurns]) -> list[list[tuple[float, ...]]]:
        """Return the advantages of the turns of a step, [groups][episodes][turns], from their relative returns."""
        every = _standard_deviation(chain.from_iterable(groups))
        advantages = []
        for group in groups:
            spreads = {"group": _standard_deviation(group) + STD_EPSILON, "batch": every + STD_EPSILON, "none": 1.0}
            spread = spreads[self.settings.scale]
            advantages.append([tuple(value / spread for value in turns) for turns in group])
        return advantages

    def reduce(self, losses: "Tensor", batch: TokenBatch) -> "Tensor":
        """Reduce as the algorithm that `loss` names."""
        return _REDUCE[self.settings.loss](losses, batch)


def _standard_deviation(episodes: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation of the values of all turns; 0 if there are less than two."""
    values = [*chain.from_iterable(episodes)]
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
