"""GSPO."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from gumshoe.training.algorithms.algorithm import Algorithm, TokenBatch, clipped_trl_arguments, mean_by_episode

if TYPE_CHECKING:
    from torch import Tensor


class Gspo(Algorithm):
    """Group sequence policy optimization (https://arxiv.org/abs/2507.18071): one importance ratio an episode."""

    equal_if_used_once: ClassVar[str] = "grpo"

    def ratio(self, batch: TokenBatch) -> "Tensor":
        """Return the geometric mean of an episode's token ratios, [E, 1] (equation 7)."""
        difference = (batch.logprobs - batch.old_logprobs) * batch.mask
        mean: Tensor = difference.sum(1, keepdim=True) / batch.mask.sum(1, keepdim=True).clamp(min=1)
        return mean.exp()

    def reduce(self, losses: "Tensor", batch: TokenBatch) -> "Tensor":
        """Average over episodes."""
        return mean_by_episode(losses, batch)

    def trl_arguments(self) -> Mapping[str, Any]:
        """Return the arguments of TRL's `grpo` with ratios by sequence."""
        return clipped_trl_arguments("grpo", self.settings, importance_sampling_level="sequence")
