"""BNPO."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gumshoe.training.algorithms.algorithm import Algorithm, TokenBatch, clipped_trl_arguments, mean_by_pass

if TYPE_CHECKING:
    from torch import Tensor


class Bnpo(Algorithm):
    """TRL's `bnpo` (https://huggingface.co/docs/trl/grpo_trainer): each token of a pass counts the same.

    The mean is over the tokens that a device works on at once, as TRL defines it. Episodes are divided into passes at
    random, so with several passes (or processes) the loss depends on that division; those of other algorithms do not.
    """

    @property
    def by_pass(self) -> bool:
        """True: the loss is a mean over a pass."""
        return True

    def reduce(self, losses: "Tensor", batch: TokenBatch) -> "Tensor":
        """Average over the tokens of each pass, then over passes."""
        return mean_by_pass(losses, batch)

    def trl_arguments(self) -> Mapping[str, Any]:
        """Return the arguments of TRL's `bnpo`."""
        return clipped_trl_arguments("bnpo", self.settings)
