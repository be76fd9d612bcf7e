"""Compare two policies on the same questions, question by question."""

from collections.abc import Sequence

import numpy as np

from gumshoe.errors import UsageError
from gumshoe.evaluation.metrics import Estimate
from gumshoe.evaluation.results import Comparison, CostPair, Difference, PolicyResult
from gumshoe.evaluation.statistics import Numbers, bootstrap, mcnemar, paired_difference


def compare_policies(candidate: PolicyResult, baseline: PolicyResult, level: float = 0.95) -> Comparison:
    """Compare two policies with paired statistics.

    Raises:
        UsageError: if they did not answer the same questions.
    """
    questions = list(candidate.correct_map)
    if set(questions) != set(baseline.correct_map):
        raise UsageError(
            "gate.other-questions",
            f"{candidate.name} and {baseline.name} answered different questions: {len(questions):,} and "
            f"{len(baseline.correct_map):,}; evaluate both on the same scenarios",
        )
    ours = np.array([np.mean(candidate.correct_map[each]) for each in questions])
    theirs = np.array([np.mean(baseline.correct_map[each]) for each in questions])
    gained = [each for each, change in zip(questions, ours - theirs, strict=True) if change > 0]
    lost = [each for each, change in zip(questions, ours - theirs, strict=True) if change < 0]
    win_rates = [_win_rate(candidate.control_reward_map[each], baseline.control_reward_map[each]) for each in questions]
    low, high = bootstrap(win_rates, level=level)
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
        beat_rate=Estimate(value=float(np.mean(win_rates)), low=low, high=high, questions=len(questions)),
        gained=tuple(gained),
        lost=tuple(lost),
        costs=_costs(candidate, baseline),
    )


_COSTS = {"turns": "all_turns", "prompt_tokens": "all_prompt_tokens", "sampled_tokens": "all_sampled_tokens"}
_COSTS |= {"seconds": "all_seconds", "judge_requests": "judge_requests"}


def _costs(candidate: PolicyResult, baseline: PolicyResult) -> dict[str, CostPair]:
    """Return the costs of an answer of each; empty if neither chooses among several samples."""
    if not any(_has_choice(each) for each in (candidate, baseline)):
        return {}
    found = {}
    for name in _COSTS:
        ours, theirs = (_get_cost(each, name) for each in (candidate, baseline))
        if ours is not None and theirs is not None:
            found[name] = CostPair(candidate=ours, baseline=theirs, ratio=ours / theirs if theirs else None)
    return found


def _has_choice(policy: PolicyResult) -> bool:
    return "all_turns" in policy.metrics


def _get_cost(policy: PolicyResult, name: str) -> float | None:
    if name == "judge_requests" and not _has_choice(policy):
        return 0.0
    found = policy.metrics.get(_COSTS[name] if _has_choice(policy) else name)
    return found.value if found else None


def _difference(candidate: Numbers, baseline: Numbers, level: float) -> Difference:
    low, high = paired_difference(candidate, baseline, level=level)
    ours, theirs = np.asarray(candidate, float), np.asarray(baseline, float)
    return Difference(
        candidate=float(np.mean(ours)),
        baseline=float(np.mean(theirs)),
        # Mean of the differences: a gain of 96 of 240 is exactly 0.4, but 206 / 240 - 110 / 240 is not.
        difference=float(np.mean(ours - theirs)),
        low=low,
        high=high,
    )


def _win_rate(rewards: Sequence[float], control: Sequence[float]) -> float:
    """Return the share of pairs in which the first reward is higher; ties count half."""
    ours, theirs = np.array(rewards)[:, None], np.array(control)[None, :]
    return float(np.mean((ours > theirs) + 0.5 * (ours == theirs)))
