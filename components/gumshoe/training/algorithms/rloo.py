"""RLOO."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from gumshoe.training.algorithms.algorithm import Algorithm, AlgorithmSettings, TokenBatch, sum_by_episode

if TYPE_CHECKING:
    from torch import Tensor


class RlooSettings(AlgorithmSettings):
    """The settings of RLOO."""

    epsilon: float = Field(0.2, gt=0, lt=1, description="lower clip range of a token's importance ratio")
    epsilon_high: float = Field(0.2, gt=0, description="upper clip range of a token's importance ratio")


class Rloo(Algorithm):
    """REINFORCE leave-one-out (https://arxiv.org/abs/2402.14740): an episode is one action, without scaling."""

    Settings: ClassVar[type[AlgorithmSettings]] = RlooSettings

    def advantages(self, rewards: "Tensor") -> "Tensor":
        """Return each reward minus the mean reward of the other episodes of its group (equation 8)."""
        count = rewards.shape[1]
        return (rewards - rewards.mean(1, keepdim=True)) * count / (count - 1)

    def reduce(self, losses: "Tensor", batch: TokenBatch) -> "Tensor":
        """Sum over the tokens of each episode, then average over episodes."""
        return sum_by_episode(losses, batch)
