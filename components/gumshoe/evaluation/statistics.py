"""Confidence intervals and tests that are valid for small samples.

Intervals are (lower, upper), with a confidence level of 95 % by default.
"""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]
Numbers = Sequence[float] | NDArray[Any]

RESAMPLES = 10_000
_MAX_BATCH = 4_000_000  # maximum numbers per batch of resamples


def wilson(successes: float, trials: int, level: float = 0.95) -> Interval:
    """Return the Wilson score interval of a rate (https://doi.org/10.1080/01621459.1927.10502953).

    Returns (0, 1) without trials. `successes` may be fractional, e.g. a sum of means over several samples per trial.
    """
    if not trials:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2)
    rate, scale = successes / trials, 1 + z * z / trials
    centre = (rate + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    return (centre - half if successes else 0.0), (centre + half if successes < trials else 1.0)


def bootstrap(
    values: Numbers,
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Return the percentile bootstrap interval of the mean of values [n], or of another statistic.

    A statistic takes [resamples, n] and returns [resamples]. If values are [n, samples], whole rows are resampled and
    the statistic takes [resamples, n, samples]. Returns (nan, nan) without values. Deterministic for a given seed.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if not len(numbers):
        return math.nan, math.nan
    rng = np.random.default_rng(seed)
    found = []
    rows = max(1, min(resamples, _MAX_BATCH // numbers.size))
    for start in range(0, resamples, rows):
        drawn = numbers[rng.integers(len(numbers), size=(min(rows, resamples - start), len(numbers)))]
        found.append(drawn.mean(axis=1) if statistic is None else statistic(drawn))
    low, high = np.quantile(np.concatenate(found), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def paired_difference(candidate: Numbers, baseline: Numbers, *, level: float = 0.95, seed: int = 0) -> Interval:
    """Return the bootstrap interval of the mean of candidate [n] minus baseline [n], for the same questions in order.

    If fewer than about ten questions changed sides, the interval is too narrow; `mcnemar` is exact.

    Raises:
        ValueError: if the lengths differ.
    """
    if len(candidate) != len(baseline):
        raise ValueError(f"expected pairs, got {len(candidate)} and {len(baseline)} numbers")
    return bootstrap(np.asarray(candidate, np.float64) - np.asarray(baseline, np.float64), level=level, seed=seed)


def mcnemar(wins: int, losses: int) -> float:
    """Return the two-sided p-value of McNemar's exact test (https://doi.org/10.1007/BF02295996).

    It is the probability of a split of the changed questions that is at least as uneven, if wins and losses are equally
    likely. Returns 1 if no question changed.
    """
    changed = wins + losses
    term = tail = 1
    for count in range(min(wins, losses)):
        term = term * (changed - count) // (count + 1)
        tail += term
    return float(min(1.0, 2 * tail / 2**changed))


def pass_at(k: int, correct: int, samples: int) -> float:
    """Return the unbiased estimate of pass@k, the probability that at least one of k samples is correct.

    Source: Chen et al., https://arxiv.org/abs/2107.03374, equation 1.

    Raises:
        ValueError: if there are fewer samples than k.
    """
    if not 0 < k <= samples:
        raise ValueError(f"pass@{k} needs 1 <= k <= samples, got {samples} samples")
    return 1 - math.comb(samples - correct, k) / math.comb(samples, k)


def cohens_kappa(one: Sequence[bool], other: Sequence[bool]) -> float:
    """Return Cohen's kappa of two judges, from -1 to 1 (https://doi.org/10.1177/001316446002000104).

    Returns 1 if both always give the same verdict, and nan without verdicts.

    Raises:
        ValueError: if they judged different numbers of answers.
    """
    if len(one) != len(other):
        raise ValueError(f"expected pairs, got {len(one)} and {len(other)} verdicts")
    if not one:
        return math.nan
    agreed = sum(mine == theirs for mine, theirs in zip(one, other, strict=True)) / len(one)
    yes, also_yes = sum(one) / len(one), sum(other) / len(one)
    by_chance = yes * also_yes + (1 - yes) * (1 - also_yes)
    return 1.0 if by_chance == 1 else (agreed - by_chance) / (1 - by_chance)
