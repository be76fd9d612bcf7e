"""Intervals and tests: results of scipy, worked examples, and coverage."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.evaluation.statistics import (
    bootstrap,
    cohens_kappa,
    mcnemar,
    paired_difference,
    pass_at,
    wilson,
)
from tests.scenarios.questions import QUICK


@QUICK
@given(st.integers(0, 200), st.integers(1, 200), st.sampled_from([0.9, 0.95, 0.99]))
def test_wilson_equals_scipy(successes: int, trials: int, level: float) -> None:
    from scipy import stats  # takes a second to import

    successes = min(successes, trials)
    expected = stats.binomtest(successes, trials).proportion_ci(level, method="wilson")
    assert wilson(successes, trials, level) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_of_few_trials() -> None:
    assert wilson(0, 0) == (0, 1)
    assert wilson(0, 10)[0] == 0
    assert wilson(10, 10)[1] == 1
    assert wilson(2.5, 10)[0] < 0.25 < wilson(2.5, 10)[1]


@QUICK
@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_equals_scipy_s_binomial_test(wins: int, losses: int) -> None:
    from scipy import stats  # takes a second to import

    expected = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert mcnemar(wins, losses) == pytest.approx(expected, abs=1e-12)


def test_mcnemar_of_many_questions() -> None:
    assert 0 <= mcnemar(900, 1100) < 1e-4
    assert mcnemar(5000, 5000) == 1


def test_the_bootstrap_of_a_mean_is_close_to_scipy() -> None:
    from scipy import stats  # takes a second to import

    values = np.random.default_rng(1).gamma(2, size=80)
    expected = stats.bootstrap((values,), np.mean, method="percentile", rng=2).confidence_interval
    assert bootstrap(values) == pytest.approx((expected.low, expected.high), abs=0.02)
    assert bootstrap(values) == bootstrap(list(values))
    assert bootstrap(values) != bootstrap(values, seed=1)


def test_the_bootstrap_of_other_statistics_and_few_values() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 100.0]
    low, high = bootstrap(values, lambda drawn: np.median(drawn, axis=1))
    assert 1 <= low < 3 < high <= 100
    assert bootstrap([4.0]) == (4, 4)
    assert all(math.isnan(bound) for bound in bootstrap([]))


def test_a_paired_interval_is_narrower_than_separate_ones() -> None:
    rng = np.random.default_rng(3)
    baseline = rng.random(200) < 0.4
    candidate = baseline | (rng.random(200) < 0.1)
    low, high = paired_difference(candidate, baseline)
    assert 0 < low < high < 0.2
    assert high - low < wilson(candidate.sum(), 200)[1] - wilson(candidate.sum(), 200)[0]
    with pytest.raises(ValueError, match="2 and 3 numbers"):
        paired_difference([1, 2], [1, 2, 3])


def coverage(interval: Callable[[np.random.Generator], tuple[float, float]], truth: float) -> float:
    """Return how often an interval contains the true value."""
    rng = np.random.default_rng(7)
    found = [interval(rng) for _ in range(400)]
    return sum(low <= truth <= high for low, high in found) / len(found)


@pytest.mark.parametrize("rate", [0.3, *(pytest.param(each, marks=pytest.mark.nightly) for each in (0.05, 0.7))])
def test_intervals_have_their_nominal_coverage(rate: float) -> None:
    assert 0.91 <= coverage(lambda rng: wilson(rng.binomial(100, rate), 100), rate) <= 0.985
    means = coverage(lambda rng: bootstrap(rng.random(150) < rate, resamples=600), rate)
    assert 0.9 <= means <= 0.985


@pytest.mark.nightly
@pytest.mark.parametrize("changed", [0.15, 0.3, 0.7])
def test_a_paired_interval_has_its_nominal_coverage(changed: float) -> None:
    def difference(rng: np.random.Generator) -> tuple[float, float]:
        baseline = rng.random(150) < 0.4
        return paired_difference(np.where(rng.random(150) < changed, rng.random(150) < 0.6, baseline), baseline)

    assert 0.91 <= coverage(difference, changed * 0.2) <= 0.985


@pytest.mark.parametrize(
    ("k", "correct", "samples", "expected"),
    [(1, 3, 10, 0.3), (2, 1, 2, 1), (5, 0, 5, 0), (2, 2, 4, 1 - 1 / 6), (10, 1, 10, 1), (3, 8, 10, 1)],
)
def test_worked_examples_of_pass_at_k(k: int, correct: int, samples: int, expected: float) -> None:
    assert pass_at(k, correct, samples) == pytest.approx(expected)


def test_pass_at_k_needs_k_samples() -> None:
    with pytest.raises(ValueError, match=r"pass@3 .*got 2 samples"):
        pass_at(3, 1, 2)
    with pytest.raises(ValueError, match=r"pass@0 .*got 2 samples"):
        pass_at(0, 1, 2)


def test_a_worked_example_of_kappa() -> None:
    """Yes: 20 from both judges, 5 from the first only, 10 from the second only. Agreement 0.7, by chance 0.5."""
    one = [True] * 25 + [False] * 25
    other = [True] * 20 + [False] * 5 + [True] * 10 + [False] * 15
    assert cohens_kappa(one, other) == pytest.approx(0.4)
    assert cohens_kappa(one, one) == 1
    assert cohens_kappa([True, True], [True, True]) == 1
    assert cohens_kappa([True, False], [False, True]) == -1
    assert math.isnan(cohens_kappa([], []))
    with pytest.raises(ValueError, match="1 and 0 verdicts"):
        cohens_kappa([True], [])
