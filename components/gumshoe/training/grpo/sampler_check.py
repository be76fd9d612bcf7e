"""Compare the sampler's log-probabilities with the trainer's: statistics of a step, and groups of another policy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from gumshoe.training.episode_records import SampledComparison
from gumshoe.training.grpo.passes import Pass, loss_mask


@dataclass(slots=True)
class StepMetrics:
    """Statistics of a step's tokens, collected by the trainer."""

    uses: int = 0
    """Optimizer steps that used these episodes so far."""
    trainable: int = 0
    """Number of tokens that are trained on."""
    tokens: int = 0
    """Number of tokens of the episodes that are trained on, with their prompts."""
    off_policy: int = 0
    """Number of groups with an episode that another policy sampled."""
    ratio: float = 1.0
    """Mean importance ratio of trainer to sampler over sampled tokens, each at most 1: 1 minus the total variation
    distance between the two."""
    difference: float = 0.0
    """Mean absolute difference of their log-probabilities, in nats per token."""
    is_skipped: bool = False
    """No group was left, so the weights did not change."""
    comparisons: list[SampledComparison] = field(default_factory=list)
    """Comparison of sampler and trainer for each sample of the step, in their order."""

    def record(self, compared: Sequence[Sequence[float]], generations: int, limits: Sequence[float]) -> list[int]:
        """Take the comparisons of a step, and return the numbers of the groups that another policy sampled.

        `compared` has the fields of `compare_episodes` of each episode, group by group, `generations` in each.
        `limits` are the limits for the differences of the episodes, in nats per token.
        """
        counts, differences, ratios = ([each[place] for each in compared] for place in range(3))
        off_policy = [
            group
            for group in range(len(compared) // generations)
            if not all(
                differences[each] <= limits[each] for each in range(generations * group, generations * (group + 1))
            )
        ]
        total = sum(counts)
        self.off_policy = len(off_policy)
        kept = [each for number, each in enumerate(compared) if each[0] and number // generations not in off_policy]
        self.tokens = round(sum(each[-1] for each in kept))
        self.ratio = sum(map(math.prod, zip(counts, ratios, strict=True))) / total if total else 1.0
        self.difference = sum(map(math.prod, zip(counts, differences, strict=True))) / max(1, total)
        self.comparisons = []
        for number, (tokens, difference, mean_ratio, low, high, trained, _) in enumerate(compared):
            rejected = number // generations in off_policy
            self.comparisons.append(
                SampledComparison(
                    tokens=int(tokens),
                    difference=difference,
                    mean_ratio=mean_ratio,
                    min_ratio=low,
                    max_ratio=high,
                    trained=0 if rejected else int(trained),
                    rejected=rejected,
                )
            )
        self.trainable = sum(each.trained for each in self.comparisons)
        self.is_skipped = not self.trainable
        return off_policy


def difference_to_sampler(batch: Pass, logprobs: torch.Tensor) -> torch.Tensor:
    """Return the trainer's log-probabilities minus the sampler's in nats, [episodes, tokens]; 0 for other tokens."""
    return (logprobs - batch["sampling_per_token_logps"]).where(_sampled(batch), 0.0)


def _sampled(batch: Pass) -> torch.Tensor:
    return loss_mask(batch).bool() & ~torch.isnan(batch["sampling_per_token_logps"])


def compare_episodes(batch: Pass, logprobs: torch.Tensor) -> torch.Tensor:
    """Return a comparison of the trainer's log-probabilities [episodes, tokens] with the sampler's for each episode.

    The result is [episodes, fields]: number of sampled tokens, mean absolute difference in nats, mean importance ratio
    (each at most 1), the smallest and the largest ratio, number of tokens that are trained on, and number of all tokens
    with the prompt.
    """
    sampled, difference = _sampled(batch), difference_to_sampler(batch, logprobs)
    counts, ratios = sampled.sum(1), difference.exp()
    fields = (
        counts,
        difference.abs().sum(1) / counts.clamp(min=1),
        ratios.clamp(max=1).where(sampled, 0.0).sum(1) / counts.clamp(min=1),
        ratios.where(sampled, math.inf).amin(1).where(counts > 0, 0.0),
        ratios.where(sampled, 0.0).amax(1),
        loss_mask(batch).sum(1),
        batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1),
    )
    return torch.stack([each.double() for each in fields], dim=1)
