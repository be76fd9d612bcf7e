"""The interface of an algorithm, and what most of them share.

An algorithm of your own is a class like those beside this file, named as `my_package.module:Class`. Methods take and
return torch tensors; this module does not import torch, so that settings can be checked without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from torch import Tensor

STD_EPSILON = 1e-4
"""Added to standard deviations before dividing by them, as TRL does."""


class AlgorithmSettings(BaseModel):
    """The settings of an algorithm: none, unless a subclass adds some."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ScaledSettings(AlgorithmSettings):
    """The settings of an algorithm with group-relative advantages."""

    scale: Literal["group", "batch", "none"] = Field(
        "group",
        description="divide advantages by the standard deviation of rewards in the group (GRPO), in the step "
        "(https://arxiv.org/abs/2508.08221), or by nothing (Dr. GRPO)",
    )


class ClippedSettings(ScaledSettings):
    """The settings of an algorithm that clips the importance ratio from both sides."""

    epsilon: float = Field(0.2, gt=0, lt=1, description="lower clip range of the importance ratio (PPO)")
    epsilon_high: float = Field(
        0.28, gt=0, description="upper clip range of the importance ratio (DAPO, https://arxiv.org/abs/2503.14476)"
    )


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """One pass of a trainer: E episodes, padded to T completion tokens."""

    logprobs: "Tensor"
    """[E, T]: log-probabilities under the policy that is trained, with gradient."""
    old_logprobs: "Tensor"
    """[E, T]: the same when the episodes were sampled, without gradient."""
    advantages: "Tensor"
    """[E, T]"""
    mask: "Tensor"
    """[E, T]: 1 for each token that is trained on, else 0."""
    step_tokens: "Tensor"
    """Number of tokens that are trained on in an optimizer step, divided by the number of trainer processes."""
    passes: float
    """Episodes of an optimizer step, divided by those of this pass."""
    max_length: int
    """Maximum number of completion tokens of an episode."""


class Algorithm:
    """Advantages and loss for the episodes of a step. Subclasses override what differs from GRPO with a clipped ratio.

    Attributes:
        Settings: the class of its settings.
        equal_if_used_once: the algorithm with the same gradient if each batch is used for one optimizer step; empty if
            no other one is. Asking for this one is then an error, because it does nothing.
        settings_for_reuse: settings that have no effect if each batch is used for one optimizer step.
    """

    Settings: ClassVar[type[AlgorithmSettings]] = ClippedSettings
    equal_if_used_once: ClassVar[str] = ""
    settings_for_reuse: ClassVar[frozenset[str]] = frozenset({"epsilon", "epsilon_high"})

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def advantages(self, rewards: "Tensor") -> "Tensor":
        """Return the advantages of episodes, [groups, episodes], from their rewards in the same shape.

        GRPO (https://arxiv.org/abs/2402.03300, 4.1.2): rewards minus the mean of their group, scaled.
        """
        spread: Tensor | None = {"group": rewards.std(1, keepdim=True), "batch": rewards.std()}.get(self.settings.scale)
        centered = rewards - rewards.mean(1, keepdim=True)
        return centered if spread is None else centered / (spread + STD_EPSILON)

    def ratio(self, batch: TokenBatch) -> "Tensor":
        """Return the importance ratios of the new policy to the old one, [E, T], or [E, 1] if by episode."""
        return (batch.logprobs - batch.old_logprobs).exp()

    def token_loss(self, batch: TokenBatch) -> "Tensor":
        """Return the loss of each token, [E, T]: the clipped surrogate of PPO (https://arxiv.org/abs/1707.06347)."""
        ratio = self.ratio(batch)
        clipped: Tensor = ratio.clamp(1 - self.settings.epsilon, 1 + self.settings.epsilon_high)
        return -(ratio * batch.advantages).minimum(clipped * batch.advantages)

    def clipped(self, batch: TokenBatch) -> "Tensor":
        """Return True for each token, [E, T], whose gradient the clip removes."""
        ratio, settings = self.ratio(batch), self.settings
        low: Tensor = (ratio < 1 - settings.epsilon) & (batch.advantages < 0)
        high: Tensor = (ratio > 1 + settings.epsilon_high) & (batch.advantages > 0)
        return low | high

    @property
    def by_pass(self) -> bool:
        """True if the loss is a mean over a pass, so that passes must mix episodes of all lengths."""
        return False

    def reduce(self, losses: "Tensor", batch: TokenBatch) -> "Tensor":
        """Return the share of a pass in the loss of an optimizer step, from the losses of its tokens, [E, T]."""
        return mean_by_step(losses, batch)

    def trl_arguments(self) -> Mapping[str, Any] | None:
        """Return the arguments with which plain TRL does the same, for mode `simple`; None if it cannot."""
        return None


def clipped_trl_arguments(loss_type: str, settings: ClippedSettings, **more: Any) -> dict[str, Any]:
    """Return the arguments of TRL's trainer for a loss type with these settings."""
    clip = {"epsilon": settings.epsilon, "epsilon_high": settings.epsilon_high}
    return {"loss_type": loss_type, "scale_rewards": settings.scale, **clip, **more}


def mean_by_episode(losses: "Tensor", batch: TokenBatch) -> "Tensor":
    """Average over the tokens of each episode, then over episodes."""
    means = (losses * batch.mask).sum(1) / batch.mask.sum(1).clamp(min=1)
    return means.mean() / batch.passes


def mean_by_step(losses: "Tensor", batch: TokenBatch) -> "Tensor":
    """Average over all tokens of the optimizer step."""
    return (losses * batch.mask).sum() / batch.step_tokens


def mean_by_pass(losses: "Tensor", batch: TokenBatch) -> "Tensor":
    """Average over the tokens of each pass, then over passes."""
    return (losses * batch.mask).sum() / batch.mask.sum().clamp(min=1) / batch.passes


def mean_by_length(losses: "Tensor", batch: TokenBatch) -> "Tensor":
    """Divide the sum over tokens by the number of episodes and the maximum length, the same for all episodes."""
    return (losses * batch.mask).sum() / (len(losses) * batch.max_length) / batch.passes


def sum_by_episode(losses: "Tensor", batch: TokenBatch) -> "Tensor":
    """Sum over the tokens of each episode, then average over episodes."""
    return (losses * batch.mask).sum(1).mean() / batch.passes
