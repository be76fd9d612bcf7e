"""Dr. GRPO."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from gumshoe.training.algorithms.algorithm import (
    Algorithm,
    AlgorithmSettings,
    ClippedSettings,
    TokenBatch,
    clipped_trl_arguments,
    mean_by_length,
)

if TYPE_CHECKING:
    from torch import Tensor


class DrGrpoSettings(ClippedSettings):
    """The settings of Dr. GRPO."""

    scale: Literal["group", "batch", "none"] = Field(
        "none", description="divide advantages by the standard deviation of rewards in the group or step, or by nothing"
    )


class DrGrpo(Algorithm):
    """Dr. GRPO (https://arxiv.org/abs/2503.20783): no bias by length or by how easy a group is."""

    Settings: ClassVar[type[AlgorithmSettings]] = DrGrpoSettings

    def reduce(self, losses: "Tensor", batch: TokenBatch) -> "Tensor":
        """Divide by a constant length instead of the episode's own."""
        return mean_by_length(losses, batch)

    def trl_arguments(self) -> Mapping[str, Any]:
        """Return the arguments of TRL's `dr_grpo`."""
        return clipped_trl_arguments("dr_grpo", self.settings)
