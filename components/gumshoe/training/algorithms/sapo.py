"""SAPO."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from gumshoe.training.algorithms.algorithm import (
    Algorithm,
    AlgorithmSettings,
    ScaledSettings,
    TokenBatch,
    mean_by_episode,
)

if TYPE_CHECKING:
    from torch import Tensor


class SapoSettings(ScaledSettings):
    """The settings of SAPO."""

    temperature: float = Field(1.0, gt=0, description="sharpness of the gate for tokens with a positive advantage")
    temperature_negative: float = Field(1.05, gt=0, description="the same for a negative advantage")


class Sapo(Algorithm):
    """Soft adaptive policy optimization (https://arxiv.org/abs/2511.20347): a smooth gate instead of a clip."""

    Settings: ClassVar[type[AlgorithmSettings]] = SapoSettings
    equal_if_used_once: ClassVar[str] = "grpo"
    settings_for_reuse: ClassVar[frozenset[str]] = frozenset({"temperature", "temperature_negative"})

    def token_loss(self, batch: TokenBatch) -> "Tensor":
        """Return the gated loss: the sigmoid of the ratio, with slope 1 where old and new policy agree."""
        settings, positive = self.settings, (batch.advantages > 0).to(batch.advantages.dtype)
        temperature = settings.temperature * positive + settings.temperature_negative * (1 - positive)
        gate: Tensor = (temperature * (self.ratio(batch) - 1)).sigmoid() * 4 / temperature
        return -gate * batch.advantages

    def clipped(self, batch: TokenBatch) -> "Tensor":
        """Return False for each token: nothing is clipped."""
        return batch.mask < 0

    def reduce(self, losses: "Tensor", batch: TokenBatch) -> "Tensor":
        """Average over the tokens of each episode, then over episodes."""
        return mean_by_episode(losses, batch)

    def trl_arguments(self) -> Mapping[str, Any]:
        """Return the arguments of TRL's `sapo`."""
        settings = self.settings
        return {
            "loss_type": "sapo",
            "scale_rewards": settings.scale,
            "sapo_temperature_pos": settings.temperature,
            "sapo_temperature_neg": settings.temperature_negative,
        }
