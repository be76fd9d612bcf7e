"""Combine several rewards into one: worked examples, missing values and invariants."""

import math
from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gumshoe.rewards.combination import Combination, Scores, check_combination, combine_rewards, is_flat
from tests.errors import raises
from tests.scenarios.questions import QUICK

NAN = math.nan
WAYS: tuple[Combination, ...] = get_args(Combination)
VALUES = st.floats(-10, 10, allow_subnormal=False).map(lambda value: round(value, 3)) | st.just(NAN)
GROUPS = st.tuples(st.integers(1, 8), st.integers(1, 5)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=VALUES)
)


def combine(scores: Sequence[Sequence[float]], way: Combination, weights: Sequence[float] = ()) -> list[float]:
    """Return the combined rewards of a group. By default all weights are 1."""
    table = np.array(scores, dtype=np.float64)
    rewards: list[float] = combine_rewards(
        table, way, weights or ([1.0] * table.shape[1] if way == "weights" else ())
    ).tolist()
    return rewards


@pytest.mark.parametrize(
    ("way", "weights", "expected"),
    [
        ("uniform", [], [2.0, 2.0, 5.0]),
        ("weights", [1, 0.5], [2.5, 2.0, 5.0]),
        ("weights", [0, -1], [-3.0, -4.0, -10.0]),
        ("l2norm", [], [math.sqrt(10), 4.0, 10.0]),
    ],
)
def test_combinations_in_worked_examples(way: Combination, weights: list[float], expected: list[float]) -> None:
    assert combine([[1, 3], [0, 4], [0, 10]], way, weights) == pytest.approx(expected)


def test_std_weighs_each_function_by_its_share_of_the_standard_deviations() -> None:
    """Standard deviations 1 and 3: shares 1/4 and 3/4."""
    assert combine([[0, 6], [2, 0]], "std") == pytest.approx([4.5, 0.5])
    assert combine([[5, 6], [5, 0]], "std") == pytest.approx([6, 0]), "a function with equal values has no share"


def test_pca_projects_on_the_first_component() -> None:
    """Two functions that agree are both standardized to -1 and 1, and the component is (1, 1) / sqrt(2)."""
    assert combine([[0, 10], [1, 30]], "pca") == pytest.approx([-math.sqrt(2), math.sqrt(2)])
    # The third function is orthogonal to the first two, which agree, so it does not contribute.
    scores = [[0, 0, 1], [0, 0, -1], [2, 4, 1], [2, 4, -1]]
    assert combine(scores, "pca") == pytest.approx([-math.sqrt(2), -math.sqrt(2), math.sqrt(2), math.sqrt(2)])


def test_pca_has_a_positive_sign() -> None:
    """With three functions, the two that agree decide the sign. With two opposed functions, the first decides."""
    assert combine([[0, 0, 1], [1, 1, 0]], "pca") == pytest.approx([-math.sqrt(3), math.sqrt(3)])
    assert combine([[0, 1], [1, 0]], "pca") == pytest.approx([-math.sqrt(2), math.sqrt(2)])


def test_pca_of_uncorrelated_functions_is_their_sum() -> None:
    """All directions have the same variance; the one with equal loadings is used."""
    scores = [[1, 1], [1, -1], [-1, 1], [-1, -1]]
    assert combine(scores, "pca") == pytest.approx([math.sqrt(2), 0, 0, -math.sqrt(2)])


def test_l2norm_treats_positive_and_negative_values_separately() -> None:
    assert combine([[3, 4, 0], [-3, -4, 0], [3, 0, -4], [0, 0, 0]], "l2norm") == pytest.approx([5, -5, -1, 0])


@pytest.mark.parametrize("way", WAYS)
def test_one_function_keeps_its_order(way: Combination) -> None:
    made = combine([[0.5], [-1], [3]], way)
    assert made[1] < made[0] < made[2]
    if way != "pca":
        assert made == pytest.approx([0.5, -1, 3])


@pytest.mark.parametrize(("way", "expected"), [("pca", 0.0), ("uniform", 1.5), ("std", 1.5), ("weights", 3.0)])
def test_identical_scores_give_identical_rewards(way: Combination, expected: float) -> None:
    assert combine([[1, 2], [1, 2], [1, 2]], way) == pytest.approx([expected] * 3)
    assert combine([[1, 2]], way) == pytest.approx([1.5 if way == "pca" else expected]), "as in evaluations"


@pytest.mark.parametrize("way", WAYS)
def test_a_function_that_does_not_apply_has_no_effect(way: Combination) -> None:
    """It counts as the mean of the group. A function that applies to no trajectory is ignored."""
    assert combine([[1, 4], [0, NAN], [2, 8]], way) == pytest.approx(combine([[1, 4], [0, 6], [2, 8]], way))
    weights, kept = ([1.0, 2.0, 3.0], [1.0, 3.0]) if way == "weights" else ([], [])
    assert combine([[1, NAN, 4], [0, NAN, 2]], way, weights) == pytest.approx(combine([[1, 4], [0, 2]], way, kept))
    assert combine([[NAN], [NAN]], way) == [0, 0]


@QUICK
@given(scores=GROUPS, way=st.sampled_from(WAYS))
def test_results_are_never_nan(scores: Scores, way: Combination) -> None:
    rewards = combine_rewards(scores, way, [1.0] * scores.shape[1] if way == "weights" else ())
    assert rewards.shape == (len(scores),)
    assert np.isfinite(rewards).all()


@QUICK
@given(scores=GROUPS, way=st.sampled_from(WAYS), data=st.data())
def test_permuting_a_group_permutes_its_rewards(scores: Scores, way: Combination, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(scores))))
    weights = [1.0] * scores.shape[1] if way == "weights" else ()
    assert combine_rewards(scores[order], way, weights) == pytest.approx(
        combine_rewards(scores, way, weights)[order], abs=1e-6
    )


@QUICK
@given(scores=GROUPS, way=st.sampled_from(["pca", "std"]), column=st.integers(0, 4), more=st.integers(-20, 20))
def test_adding_a_constant_to_a_function_changes_nothing(
    scores: Scores, way: Combination, column: int, more: int
) -> None:
    moved = scores.copy()
    moved[:, column % scores.shape[1]] += more
    before, after = combine_rewards(scores, way), combine_rewards(moved, way)
    assert before - before.mean() == pytest.approx(after - after.mean(), abs=1e-6)


def test_a_group_is_flat_under_a_bound() -> None:
    assert is_flat(np.array([1.0, 1.0]), 0.01)
    assert not is_flat(np.array([0.0, 1.0]), 0.5)
    assert is_flat(np.array([0.0, 1.0]), 0.51)
    assert is_flat(np.array([]), 0)


@pytest.mark.parametrize(
    ("way", "weights", "code", "values"),
    [
        ("mean", None, "rewards.unknown-combination", ["'mean'", "uniform, weights, std, pca, l2norm"]),
        ("weights", None, "rewards.weights-missing", []),
        ("weights", {}, "rewards.weights-missing", []),
        ("pca", {"exact": 1.0, "turns": 1.0}, "rewards.weights-unused", ["pca"]),
        ("weights", {"exact": 1.0}, "rewards.weights-mismatch", ["got exact for", "exact, turns"]),
        ("weights", {"exact": 1.0, "turn": 1.0}, "rewards.weights-mismatch", ["got exact, turn for"]),
        ("weights", {"exact": 1.0, "turns": NAN}, "rewards.weights-not-finite", ["'turns': nan"]),
    ],
)
def test_an_invalid_combination_is_rejected(
    way: str, weights: Mapping[str, float] | None, code: str, values: list[str]
) -> None:
    with raises(code, *values):
        check_combination(way, ["exact", "turns"], weights)


def test_a_valid_combination_is_accepted() -> None:
    assert check_combination("weights", ["exact", "turns"], {"turns": 0.1, "exact": 1}) == "weights"
    assert check_combination("std", ["exact"], None) == "std"
