"""Advantages of their own for the turns of an episode."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

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


class TurnLevelSettings(ClippedSettings):
    """The settings of turn-level advantages."""

    loss: Literal["dapo", "grpo", "dr_grpo", "bnpo"] = Field("dapo", description="algorithm whose loss is used")


class TurnLevel(Algorithm):
    """GRPO with process supervision (https://arxiv.org/abs/2402.03300, 4.1.3): each turn has a reward.

    Derive from it for other advantages of turns.
    """

    Settings: ClassVar[type[AlgorithmSettings]] = TurnLevelSettings

    @property
    def by_pass(self) -> bool:
        """True if the loss is that of `bnpo`."""
        return bool(self.settings.loss == "bnpo")

    def turn_advantages(self, rewards: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
        """Return the sum of the rewards of a turn and those after it, each relative to all turns of the group.

        Rewards are taken minus their mean and divided by their standard deviation over all turns of the group.
        """
        every = np.array([value for turns in rewards for value in turns])
        if not len(every):
            return [() for _ in rewards]
        mean, spread = every.mean(), every.std() + STD_EPSILON
        return [
            tuple(map(float, np.cumsum(((np.array(turns) - mean) / spread)[::-1])[::-1])) if len(turns) else ()
            for turns in rewards
        ]

    def reduce(self, losses: "Tensor", batch: TokenBatch) -> "Tensor":
        """Reduce as the algorithm that `loss` names."""
        return _REDUCE[self.settings.loss](losses, batch)
