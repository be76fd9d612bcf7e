"""BNPO."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gumshoe.training.algorithms.algorithm import Algorithm, TokenBatch, clipped_trl_arguments, mean_by_pass

if TYPE_CHECKING:
    from torch import Tensor


class Bnpo(Algorithm):
    """TRL's `bnpo` (https://huggingface.co/docs/trl/grpo_trainer): each token of a pass counts the same."""

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
