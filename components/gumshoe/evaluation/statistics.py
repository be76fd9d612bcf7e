"""Intervals and tests, of samples small enough that it matters which.

All intervals are of 95 % unless another level is asked for, and come as (lower, upper).
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
_AT_ONCE = 4_000_000  # numbers that are resampled together


def wilson(successes: float, trials: int, level: float = 0.95) -> Interval:
    """Wilson's score interval of a rate (https://doi.org/10.1080/01621459.1927.10502953); (0, 1) of no trials.

    `successes` may be a fraction, as a mean over several samples of each trial is.
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
    """The percentile bootstrap interval of the mean of values [n], or of another statistic, which takes [resamples, n]
    and gives [resamples]; (nan, nan) of no values. The same seed gives the same interval. Of values [n, samples] whole
    rows are drawn, and the statistic takes [resamples, n, samples].

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if not len(numbers):
        return math.nan, math.nan
    dice = np.random.default_rng(seed)
    found = []
    rows = max(1, min(resamples, _AT_ONCE // numbers.size))
    for start in range(0, resamples, rows):
        drawn = numbers[dice.integers(len(numbers), size=(min(rows, resamples - start), len(numbers)))]
        found.append(drawn.mean(axis=1) if statistic is None else statistic(drawn))
    low, high = np.quantile(np.concatenate(found), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def paired_difference(candidate: Numbers, baseline: Numbers, *, level: float = 0.95, seed: int = 0) -> Interval:
    """The bootstrap interval of the mean of candidate [n] less baseline [n], of the same questions in the same order.

    Where fewer than about ten questions changed sides it is too narrow; `mcnemar` is exact there.

    Raises:
        ValueError: they are of different lengths.
    """
    if len(candidate) != len(baseline):
        raise ValueError(f"expected pairs, got {len(candidate)} and {len(baseline)} numbers")
    return bootstrap(np.asarray(candidate, np.float64) - np.asarray(baseline, np.float64), level=level, seed=seed)


def mcnemar(wins: int, losses: int) -> float:
    """The two-sided p-value of McNemar's exact test: how likely such a lopsided split of the questions that changed
    sides is, were either side as likely (https://doi.org/10.1007/BF02295996). 1 where none changed.
    """
    changed = wins + losses
    term = tail = 1
    for count in range(min(wins, losses)):
        term = term * (changed - count) // (count + 1)
        tail += term
    return float(min(1.0, 2 * tail / 2**changed))


def pass_at(k: int, correct: int, samples: int) -> float:
    """The chance that one of k samples is right, estimated without bias from `samples` of which so many are correct
    (Chen et al., https://arxiv.org/abs/2107.03374, equation 1).

    Raises:
        ValueError: there are fewer samples than k.
    """
    if not 0 < k <= samples:
        raise ValueError(f"pass@{k} needs 1 <= k <= samples, got {samples} samples")
    return 1 - math.comb(samples - correct, k) / math.comb(samples, k)


def cohens_kappa(one: Sequence[bool], other: Sequence[bool]) -> float:
    """How far two judges agree beyond chance, from -1 to 1 (https://doi.org/10.1177/001316446002000104); 1 where they
    agree on all and chance would too; nan without any verdicts.

    Raises:
        ValueError: they judged different numbers of answers.
    """
    if len(one) != len(other):
        raise ValueError(f"expected pairs, got {len(one)} and {len(other)} verdicts")
    if not one:
        return math.nan
    agreed = sum(mine == theirs for mine, theirs in zip(one, other, strict=True)) / len(one)
    yes, also_yes = sum(one) / len(one), sum(other) / len(one)
    by_chance = yes * also_yes + (1 - yes) * (1 - also_yes)
    return 1.0 if by_chance == 1 else (agreed - by_chance) / (1 - by_chance)
