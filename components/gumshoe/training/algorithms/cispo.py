"""CISPO."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from gumshoe.training.algorithms.algorithm import Algorithm, AlgorithmSettings, ScaledSettings, TokenBatch

if TYPE_CHECKING:
    from torch import Tensor


class CispoSettings(ScaledSettings):
    """The settings of CISPO, which clips ratios from above only."""

    epsilon_high: float = Field(4.0, gt=0, description="upper clip range of the importance ratio")


class Cispo(Algorithm):
    """CISPO (https://arxiv.org/abs/2506.13585): clip the weight of a token's gradient, never the gradient itself."""

    Settings: ClassVar[type[AlgorithmSettings]] = CispoSettings
    equal_if_used_once: ClassVar[str] = "dapo"
    settings_for_reuse: ClassVar[frozenset[str]] = frozenset({"epsilon_high"})

    def token_loss(self, batch: TokenBatch) -> "Tensor":
        """Return REINFORCE's loss with the clipped ratio as a constant weight (equation 4)."""
        weight: Tensor = self.ratio(batch).clamp(max=1 + self.settings.epsilon_high).detach()
        return -weight * batch.advantages * batch.logprobs

    def clipped(self, batch: TokenBatch) -> "Tensor":
        """Return True for each token whose weight is clipped."""
        high: Tensor = self.ratio(batch) > 1 + self.settings.epsilon_high
        return high & (batch.advantages > 0)

    def trl_arguments(self) -> Mapping[str, Any]:
        """Return the arguments of TRL's `cispo`, which takes the clipped ratio itself."""
        high = 1 + self.settings.epsilon_high
        return {"loss_type": "cispo", "scale_rewards": self.settings.scale, "epsilon_high": high}
