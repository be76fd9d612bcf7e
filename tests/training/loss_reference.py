"""The losses of the algorithms, written from the papers, episode by episode. It shares no code with the product.

GRPO https://arxiv.org/abs/2402.03300 (equation 3), DAPO 2503.14476 (8), Dr. GRPO 2503.20783 (4.1), GSPO 2507.18071 (5),
CISPO 2506.13585 (4), SAPO 2511.20347 (5), RLOO 2402.14740 (8), BNPO as TRL documents it. Truncated importance sampling:
https://fengyao.notion.site/off-policy-rl; unbiased KL: 2512.02556.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass
class Episode:
    """Log-probabilities of the tokens of a completion under four policies, [tokens], and which tokens were sampled."""

    new: "torch.Tensor"
    old: "torch.Tensor"
    sampler: "torch.Tensor"
    reference: "torch.Tensor"
    sampled: "torch.Tensor"


def episode_advantages(group: Sequence[float], algorithm: str) -> list[float]:
    mean, count = statistics.fmean(group), len(group)
    if algorithm == "rloo":
        return [value - (sum(group) - value) / (count - 1) for value in group]
    return [(value - mean) / (1.0 if algorithm == "dr_grpo" else statistics.stdev(group) + 1e-4) for value in group]


def turn_advantages(group: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return returns relative to those at the same turn, where ended episodes keep their last, by their deviation."""
    returns = [[sum(turns[place:]) for place in range(len(turns))] for turns in group]
    baseline = [statistics.fmean((each + each[-1:] * 99)[turn] for each in returns) for turn in range(99)]
    relative = [[value - baseline[turn] for turn, value in enumerate(each)] for each in returns]
    spread = statistics.stdev(value for each in relative for value in each) + 1e-4
    return [[value / spread for value in each] for each in relative]


def token_losses(episode: Episode, advantages: "torch.Tensor", algorithm: str, beta: float) -> "torch.Tensor":
    """Return the loss of each token that counts, [tokens]."""
    import torch

    ratio = (episode.new - episode.old).exp()
    if algorithm == "gspo":
        ratio = (episode.new - episode.old).mean().exp().expand(len(episode.new))
    gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2 if algorithm == "rloo" else 1.28) * advantages)
    if algorithm == "cispo":
        gain = ratio.clamp(max=5).detach() * advantages * episode.new
    if algorithm == "sapo":
        sharpness = torch.where(advantages > 0, 1.0, 1.05)
        gain = 4 / sharpness / (1 + torch.exp(sharpness * (1 - ratio))) * advantages
    correction = torch.where(episode.sampled, (episode.old - episode.sampler).exp().clamp(max=3), 1.0)
    difference = episode.reference - episode.new
    return -gain * correction + beta * (difference.exp() - difference - 1) * ratio


def step_loss(passes: Sequence[Sequence["torch.Tensor"]], algorithm: str, longest: int) -> "torch.Tensor":
    """Return the loss of an optimizer step from the losses of tokens, [passes][episodes][tokens]."""
    import torch

    every = [each for part in passes for each in part]
    if algorithm in {"grpo", "gspo", "sapo"}:
        return torch.stack([each.mean() for each in every]).mean()
    if algorithm == "rloo":
        return torch.stack([each.sum() for each in every]).mean()
    if algorithm == "dr_grpo":
        return torch.cat(every).sum() / longest / len(every)
    if algorithm == "bnpo":  # a mean over the tokens of the batch that a device works on at once
        return torch.stack([torch.cat([*part]).mean() for part in passes]).mean()
    return torch.cat(every).mean()
