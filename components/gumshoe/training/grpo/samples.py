"""Convert the episodes of a step to the trainer's format."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.training.algorithms.algorithm import Algorithm
from gumshoe.training.grpo.rollout_collector import RolloutBatch
from gumshoe.training.grpo.segments import find_previous
from gumshoe.training.grpo.step_summary import turn_advantages

SegmentWeighting = Literal["share", "last", "weigh"]
"""How the segments of a split episode are weighted: see `to_sample`."""
_TRUNCATED = ("truncated", "context full")


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One episode in the trainer's format. All lists have the length of the completion, except the prompt."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float | None]
    """Log-probabilities of the sampler; None for tokens that are trained on but were not sampled."""
    mask: list[int]
    """1 for each token that is trained on, else 0."""
    reward: float | None
    advantages: list[float]
    """[completion tokens]"""
    previous: list[int]
    """[completion tokens]: place of the token before each, from the prompt's first token (see `segments`)."""
    staleness: int = 0
    """As `ScoredGroup.staleness`."""

    @property
    def is_split(self) -> bool:
        """True if the tokens are not one sequence, but the segments of an episode."""
        start = len(self.prompt_ids) - 1
        return self.previous != list(range(start, start + len(self.previous)))


def to_sample(
    trajectory: Trajectory,
    reward: float,
    advantages: Sequence[float],
    *,
    train_on_tool_tokens: bool = False,
    weighting: SegmentWeighting = "share",
    staleness: int = 0,
) -> TrainingSample:
    """Return an episode in the trainer's format: its prompt, and everything after it.

    `advantages` has one value per turn. The tokens of a tool result get the advantage of the turn after it.

    - `share`: the advantage holds for every segment.
    - `last`: only the last segment is trained on.
    - `weigh`: the advantage is divided by the number of segments.

    Raises:
        UsageError: the episode has no token ids, because a chat model wrote it.
    """
    prompt, *rest = trajectory.spans
    trajectory.check_token_ids()
    ids, mask, logprobs, by_token = list[int](), list[int](), list[float | None](), list[float]()
    turn, segments = 0, len(trajectory.segments) + 1
    known = {0}
    for span in rest:
        context = () if span.segment in known else trajectory.segments[span.segment - 1].context
        known.add(span.segment)
        is_sampled = span.origin == "sampled"
        is_trained = (is_sampled or train_on_tool_tokens) and (weighting != "last" or span.segment == segments - 1)
        advantage = advantages[min(turn, len(advantages) - 1)] / (segments if weighting == "weigh" else 1)
        ids += [*context, *span.ids]
        mask += [*[0] * len(context), *[int(is_trained)] * len(span.ids)]
        given = [None] * len(span.ids) if train_on_tool_tokens else [0.0] * len(span.ids)
        logprobs += [*[0.0] * len(context), *(span.logprobs if is_sampled else given)]
        by_token += [advantage] * (len(context) + len(span.ids))
        turn += is_sampled and not span.is_continued
    return TrainingSample(list(prompt.ids), ids, logprobs, mask, reward, by_token, find_previous(trajectory), staleness)


def to_samples(
    found: RolloutBatch,
    algorithm: Algorithm,
    generations: int,
    filler: int,
    *,
    train_on_tool_tokens: bool = False,
    weighting: SegmentWeighting = "share",
    mask_truncated: bool = False,
) -> list[TrainingSample]:
    """Return the samples of a step, group by group, with the advantages of the algorithm.

    A missing group is replaced by samples without trained tokens.
    """
    samples: list[TrainingSample] = []
    for group, advantages in zip(found.groups, turn_advantages(found, algorithm), strict=True):
        for trajectory, reward, turns in zip(group.trajectories, group.rewards, advantages, strict=True):
            samples.append(
                to_sample(
                    trajectory,
                    reward,
                    turns,
                    train_on_tool_tokens=train_on_tool_tokens,
                    weighting=weighting,
                    staleness=group.staleness,
                )
                if trajectory.turns and not (mask_truncated and trajectory.ending in _TRUNCATED)
                else _empty_sample(list(trajectory.spans[0].ids) if trajectory.spans else [filler], filler, reward)
            )
    missing = found.wanted - len(found.groups)
    return [*samples, *[_empty_sample([filler], filler, None)] * (missing * generations)]


def _empty_sample(prompt: list[int], filler: int, reward: float | None) -> TrainingSample:
    """Return a sample without trained tokens."""
    return TrainingSample(prompt, [filler], [0.0], [0], reward, [0.0], [len(prompt) - 1])
