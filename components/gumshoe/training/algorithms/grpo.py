"""GRPO."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gumshoe.training.algorithms.algorithm import Algorithm, TokenBatch, clipped_trl_arguments, mean_by_episode

if TYPE_CHECKING:
    from torch import Tensor


class Grpo(Algorithm):
    """Group relative policy optimization (https://arxiv.org/abs/2402.03300): each episode counts the same."""

    def reduce(self, losses: "Tensor", batch: TokenBatch) -> "Tensor":
        """Average over the tokens of each episode, then over episodes (equation 3)."""
        return mean_by_episode(losses, batch)

    def trl_arguments(self) -> Mapping[str, Any]:
        """Return the arguments of TRL's `grpo`."""
        return clipped_trl_arguments("grpo", self.settings)
