"""BNPO."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from gumshoe.training.algorithms.algorithm import Algorithm, TokenBatch, clipped_trl_arguments, mean_by_pass

if TYPE_CHECKING:
    from torch import Tensor


class Bnpo(Algorithm):
    """TRL's `bnpo` (https://huggingface.co/docs/trl/grpo_trainer): each token of a pass counts the same."""

    by_pass: ClassVar[bool] = True

    def reduce(self, losses: "Tensor", batch: TokenBatch) -> "Tensor":
        """Average over the tokens of each pass, then over passes."""
        return mean_by_pass(losses, batch)

    def trl_arguments(self) -> Mapping[str, Any]:
        """Return the arguments of TRL's `bnpo`."""
        return clipped_trl_arguments("bnpo", self.settings)
