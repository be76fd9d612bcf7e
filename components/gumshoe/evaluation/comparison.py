"""Two policies on the same questions, question by question."""

from collections.abc import Sequence

import numpy as np

from gumshoe.errors import UsageError
from gumshoe.evaluation.metrics import Estimate
from gumshoe.evaluation.results import Comparison, Difference, PolicyResult
from gumshoe.evaluation.statistics import Numbers, bootstrap, mcnemar, paired_difference


def compared(candidate: PolicyResult, baseline: PolicyResult, level: float = 0.95) -> Comparison:
    """
    Raises:
        UsageError: they did not answer the same questions.
    """
    questions = list(candidate.correct_map)
    if set(questions) != set(baseline.correct_map):
        raise UsageError(
            f"{candidate.name} answered {len(questions):,} questions and {baseline.name} "
            f"{len(baseline.correct_map):,}, and they are not the same; evaluate both on the same scenarios"
        )
    ours = np.array([np.mean(candidate.correct_map[each]) for each in questions])
    theirs = np.array([np.mean(baseline.correct_map[each]) for each in questions])
    gained = [each for each, change in zip(questions, ours - theirs, strict=True) if change > 0]
    lost = [each for each, change in zip(questions, ours - theirs, strict=True) if change < 0]
    beaten = [_beaten(candidate.control_reward_map[each], baseline.control_reward_map[each]) for each in questions]
    low, high = bootstrap(beaten, level=level)
    return Comparison(
        candidate=candidate.name,
        baseline=baseline.name,
        questions=len(questions),
        level=level,
        accuracy=_difference(ours, theirs, level),
        p_value=mcnemar(len(gained), len(lost)),
        wins=len(gained),
        losses=len(lost),
        ties=len(questions) - len(gained) - len(lost),
        reward=_difference(
            [float(np.mean(candidate.control_reward_map[each])) for each in questions],
            [float(np.mean(baseline.control_reward_map[each])) for each in questions],
            level,
        ),
        beat_rate=Estimate(value=float(np.mean(beaten)), low=low, high=high, questions=len(questions)),
        gained=tuple(gained),
        lost=tuple(lost),
    )


def _difference(candidate: Numbers, baseline: Numbers, level: float) -> Difference:
    low, high = paired_difference(candidate, baseline, level=level)
    ours, theirs = np.asarray(candidate, float), np.asarray(baseline, float)
    return Difference(
        candidate=float(np.mean(ours)),
        baseline=float(np.mean(theirs)),
        # Of the pairs, since a gain of 96 of 240 is 0.4, and 206 / 240 - 110 / 240 is not.
        difference=float(np.mean(ours - theirs)),
        low=low,
        high=high,
    )


def _beaten(rewards: Sequence[float], control: Sequence[float]) -> float:
    """The share of pairs in which the first is higher; equal ones count half."""
    ours, theirs = np.array(rewards)[:, None], np.array(control)[None, :]
    return float(np.mean((ours > theirs) + 0.5 * (ours == theirs)))
