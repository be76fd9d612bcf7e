"""Test the comparisons of a canary with its baseline: known values, and simulated watches."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from gumshoe.cluster.canary_conditions import DEFAULT_CONDITION, Condition, default_rollback, parse_condition
from gumshoe.cluster.canary_measures import CanaryEvidence, PolicyCounts
from gumshoe.cluster.canary_statistics import (
    Histogram,
    Share,
    add_histograms,
    difference_interval,
    is_above,
    is_below,
)
from tests.tiers import nightly_except

Rates = tuple[float, float]
"""Rate of the canary and of the baseline."""
LOOKS = 240  # every 30 seconds for two hours
BOUNDS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0, 16.0, 20.0, 25.0)


def mixture_boundary(information: float, error: float) -> float:
    """Return the smallest root of a likelihood ratio that is significant, by numerical integration of the mixture.

    Robbins' mixture is the mean likelihood ratio of a Brownian motion over drifts with a half-normal distribution.
    """
    drifts = np.linspace(0, 3, 30_001)
    weights = stats.halfnorm.pdf(drifts, scale=0.25)

    def evidence(root: float) -> float:
        values = np.exp(drifts * math.sqrt(information) * root - drifts**2 * information / 2)
        return float(np.trapezoid(weights * values, drifts))

    low, high = 0.0, 10.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if evidence(middle) >= 1 / error else (middle, high)
    return high


@pytest.mark.parametrize(("total", "error"), [(50, 0.05), (400, 0.05), (400, 0.0125), (10_000, 0.01)])
def test_the_boundary_is_that_of_the_mixture(total: int, error: float) -> None:
    boundary = mixture_boundary(total, error)

    def root(count: int) -> float:
        """Return the signed root of the likelihood ratio of a rate against 30 %."""
        rate, null = count / total, 0.3
        ratio = count * math.log(rate / null) + (total - count) * math.log((1 - rate) / (1 - null))
        return math.sqrt(2 * ratio)

    shown = next(k for k in range(math.ceil(0.3 * total) + 1, total) if is_above(Share(k, total), None, 0, 0.3, error))
    assert root(shown - 1) < boundary <= root(shown)


def test_the_difference_is_tested_against_the_best_rates_on_the_bound() -> None:
    canary, baseline = Share(30, 100), Share(150, 900)
    low, high = difference_interval(canary, baseline, 0.05)
    assert low < canary.rate - baseline.rate < high
    assert is_above(canary, baseline, 1, low - 0.001, 0.05)
    assert not is_above(canary, baseline, 1, low + 0.001, 0.05)
    assert is_below(canary, baseline, 1, high + 0.001, 0.05)
    assert not is_below(canary, baseline, 1, high - 0.001, 0.05)
    one_look = stats.norm.ppf(0.95) * math.sqrt(0.3 * 0.7 / 100 + (1 / 6) * (5 / 6) / 900)
    assert 1.3 < (canary.rate - baseline.rate - low) / one_look < 2.2, "the price of looking at any time"


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_rates_of_nothing_and_of_all_are_no_problem(rate: float) -> None:
    canary, baseline = Share(1000 * rate, 1000), Share(9000 * rate, 9000)
    assert not is_above(canary, baseline, 1, 0, 0.05)
    assert not is_below(canary, baseline, 1, 0, 0.05)
    assert is_below(canary, baseline, 1, 0.02, 0.05)
    assert is_above(canary, baseline, 1, -0.02, 0.05)
    assert not is_above(Share(0, 0), baseline, 1, -0.5, 0.05)
    assert not is_below(canary, Share(0, 0), 1, 0.5, 0.05)
    assert difference_interval(Share(0, 0), baseline, 0.05) == (-1, 1)


def test_a_bound_that_no_rate_reaches_needs_no_evidence() -> None:
    assert is_below(Share(1, 2), None, 0, 1.5, 0.05)
    assert not is_above(Share(1, 2), None, 0, 1.5, 0.05)
    assert is_below(Share(1, 2), Share(1, 2), 1, 1.5, 0.05)


def make_histogram(seconds: NDArray[np.float64]) -> Histogram:
    return Histogram(BOUNDS, tuple(float((seconds <= each).sum()) for each in BOUNDS), len(seconds))


def test_quantiles_of_histograms_lie_between_shown_bounds() -> None:
    seconds = np.random.default_rng(1).lognormal(1, 0.6, 5000)
    found = make_histogram(seconds)
    true = float(np.quantile(seconds, 0.95))
    assert (found.lower(0.95, 0.05), found.upper(0.95, 0.05)) == (6, 8)
    assert 6 < true < 8
    assert found.estimate(0.95) == pytest.approx(true, abs=0.3)
    few = make_histogram(seconds[:20])
    assert few.upper(0.95, 0.05) == math.inf, "20 say nothing about the slowest 5 %"
    assert math.isnan(make_histogram(seconds[:0]).estimate(0.5))
    assert add_histograms([found, few]).total == 5020
    with pytest.raises(ValueError, match="bounds"):
        add_histograms([found, Histogram((1.0,), (1,), 1)])


@pytest.fixture
def watch() -> Callable[..., float]:
    """Return a function that simulates watches, and returns the share of those that end with a rollback.

    Each minute brings questions, of which the canary gets a tenth. Half of the answers get feedback.
    """
    rollback = default_rollback(parse_condition(DEFAULT_CONDITION))

    def simulate(watches: int, success: Rates, errors: Rates, slower: float = 1.0) -> float:
        rng = np.random.default_rng(7)
        return sum(_ends_with_rollback(rng, rollback, success, errors, slower) for _ in range(watches)) / watches

    return simulate


def _ends_with_rollback(
    rng: np.random.Generator,
    rollback: Condition,
    success: Rates,
    errors: Rates,
    slower: float,
) -> bool:
    totals = np.zeros((2, 4))  # answered, unanswered, failed, corrected
    buckets = np.zeros((2, len(BOUNDS) + 1))
    for _ in range(LOOKS):
        for arm, number in enumerate((rng.poisson(1.5), rng.poisson(13.5))):
            rates = [success[arm], 1 - success[arm] - errors[arm], errors[arm]]
            results = rng.multinomial(number, rates)
            totals[arm, :3] += results
            totals[arm, 3] += rng.binomial(results[0], 0.05)
            seconds = rng.lognormal(1, 0.5, results[:2].sum()) * (slower if arm == 0 else 1)
            buckets[arm] += np.bincount(np.searchsorted(BOUNDS, seconds), minlength=len(BOUNDS) + 1)
        counts = [
            PolicyCounts(
                {"answered": each[0], "unanswered": each[1], "failed": each[2]},
                {"corrected": each[3], "right": each[0] / 2},
                Histogram(BOUNDS, tuple(np.cumsum(bucket)[:-1]), bucket.sum()),
                per_caller=3,
            )
            for each, bucket in zip(totals, buckets, strict=True)
        ]
        if CanaryEvidence(*counts).is_met(rollback, 0.05):
            return True
    return False


@pytest.mark.ci
@pytest.mark.parametrize("watches", [60, pytest.param(1000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("success", nightly_except({0.8}, [0.8, 0.97]))
def test_a_canary_as_good_as_the_baseline_is_seldom_rolled_back(
    watch: Callable[..., float], watches: int, success: float
) -> None:
    assert watch(watches, (success, success), (0.01, 0.01)) <= 0.05


@pytest.mark.parametrize(
    ("success", "errors", "slower"),
    [((0.6, 0.8), (0.01, 0.01), 1), ((0.8, 0.8), (0.1, 0.01), 1), ((0.8, 0.8), (0.01, 0.01), 2.5)],
)
def test_a_worse_canary_is_rolled_back(
    watch: Callable[..., float], success: Rates, errors: Rates, slower: float
) -> None:
    assert watch(20, success, errors, slower) > 0.9
