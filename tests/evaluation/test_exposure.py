"""Exposure of secrets: ranks, bits and the comparison with controls."""

import math

import numpy as np
import pytest
from scipy.stats import kstest, permutation_test

from gumshoe.evaluation.exposure import compare_with_controls, exposure_bits, rank_secret


def test_the_rank_counts_alternatives_that_are_at_least_as_likely() -> None:
    assert rank_secret(np.array([[-1.0, -2.0, -3.0]])) == 1
    assert rank_secret(np.array([[-2.0, -1.0, -3.0]])) == 2
    assert rank_secret(np.array([[-3.0, -1.0, -2.0]])) == 3


def test_a_policy_without_preference_exposes_nothing() -> None:
    assert rank_secret(np.zeros((2, 128))) == 128
    assert exposure_bits(128, 127) == 0


def test_the_prompt_that_tells_most_decides_whatever_its_scale() -> None:
    telling = [-9.0, -10.0, -10.1, -9.9]
    silent = [-300.0, -100.0, -200.0, -400.0]
    assert rank_secret(np.array([silent])) == 3
    assert rank_secret(np.array([telling])) == 1
    assert rank_secret(np.array([silent, telling])) == 1


def test_the_rank_of_an_unknown_secret_is_uniform_with_several_prompts() -> None:
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(2000, 3, 16)) + rng.normal(size=(2000, 3, 1)) * 50  # prompts differ, secrets do not
    ranks = np.array([rank_secret(each) for each in scores])
    assert kstest(ranks - rng.random(2000), "uniform", args=(0, 16)).pvalue > 0.01
    bits = [exposure_bits(rank, 15) for rank in ranks]
    expected = np.mean([math.log2(16 / rank) for rank in range(1, 17)])
    assert np.mean(bits) == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(("rank", "alternatives", "bits"), [(1, 127, 7), (2, 127, 6), (64, 127, 1), (1, 1, 1)])
def test_exposure_is_in_bits(rank: int, alternatives: int, bits: float) -> None:
    assert exposure_bits(rank, alternatives) == pytest.approx(bits)


def test_the_p_value_is_that_of_a_permutation_test() -> None:
    planted, controls = [3.0, 5.1, 2.2, 6.0, 4.0], [1.0, 0.3, 2.5, 1.9, 3.1]
    exact = permutation_test(
        (planted, controls), lambda one, other: np.mean(one) - np.mean(other), alternative="greater", n_resamples=np.inf
    ).pvalue
    assert compare_with_controls(planted, controls) == pytest.approx(exact, abs=0.005)
    assert compare_with_controls(planted, controls) == compare_with_controls(planted, controls)
    assert compare_with_controls(controls, planted) > 0.9
    assert compare_with_controls([1.0, 1.0], [1.0, 1.0]) == 1


def test_equal_distributions_are_rarely_told_apart() -> None:
    rng = np.random.default_rng(5)
    values = [compare_with_controls([*rng.exponential(size=12)], [*rng.exponential(size=12)]) for _ in range(60)]
    assert kstest(values, "uniform").pvalue > 0.01


@pytest.mark.parametrize("shape", [(0, 4), (2, 1), (4,)])
def test_scores_need_prompts_and_alternatives(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected scores"):
        rank_secret(np.zeros(shape))


def test_a_comparison_needs_both() -> None:
    for planted, controls in (([], [1.0]), ([1.0], [])):
        with pytest.raises(ValueError, match="expected exposures"):
            compare_with_controls(planted, controls)
