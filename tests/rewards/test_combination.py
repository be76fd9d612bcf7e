"""One reward from several: hand-worked numbers, what has no answer of its own, and what must never matter."""

import math
from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gumshoe.rewards.combination import Scores, Way, check_combination, combine_rewards, is_flat, on_one_side
from tests.errors import raises
from tests.scenarios.questions import QUICK

NAN = math.nan
WAYS: tuple[Way, ...] = get_args(Way)
VALUES = st.floats(-10, 10, allow_subnormal=False).map(lambda value: round(value, 3)) | st.just(NAN)
GROUPS = st.tuples(st.integers(1, 8), st.integers(1, 5)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=VALUES)
)


def one(scores: Sequence[Sequence[float]], way: Way, weights: Sequence[float] = ()) -> list[float]:
    """The combined rewards of a group, for functions that all weigh the same unless told."""
    table = np.array(scores, dtype=np.float64)
    made: list[float] = combine_rewards(
        table, way, weights or ([1.0] * table.shape[1] if way == "weights" else ())
    ).tolist()
    return made


@pytest.mark.parametrize(
    ("way", "weights", "expected"),
    [
        ("uniform", [], [2.0, 2.0, 5.0]),
        ("weights", [1, 0.5], [2.5, 2.0, 5.0]),
        ("weights", [0, -1], [-3.0, -4.0, -10.0]),
        ("l2norm", [], [math.sqrt(10), 4.0, 10.0]),
    ],
)
def test_ways_to_combine_as_worked_by_hand(way: Way, weights: list[float], expected: list[float]) -> None:
    assert one([[1, 3], [0, 4], [0, 10]], way, weights) == pytest.approx(expected)


def test_std_weighs_each_function_by_its_share_of_the_standard_deviations() -> None:
    """Standard deviations 1 and 3: shares 1/4 and 3/4."""
    assert one([[0, 6], [2, 0]], "std") == pytest.approx([4.5, 0.5])
    assert one([[5, 6], [5, 0]], "std") == pytest.approx([6, 0]), "what is the same for all has no share"


def test_pca_projects_standardised_functions_on_their_first_component() -> None:
    """Two functions that agree: both standardise to -1 and 1, and the component is (1, 1) / sqrt(2)."""
    assert one([[0, 10], [1, 30]], "pca") == pytest.approx([-math.sqrt(2), math.sqrt(2)])
    # The third stands at a right angle to the first two, which agree: it has no part in the component.
    scores = [[0, 0, 1], [0, 0, -1], [2, 4, 1], [2, 4, -1]]
    assert one(scores, "pca") == pytest.approx([-math.sqrt(2), -math.sqrt(2), math.sqrt(2), math.sqrt(2)])


def test_pca_is_turned_so_that_more_is_more() -> None:
    """Of three functions two agree and one is against them: the two decide. Of two, the first."""
    assert one([[0, 0, 1], [1, 1, 0]], "pca") == pytest.approx([-math.sqrt(3), math.sqrt(3)])
    assert one([[0, 1], [1, 0]], "pca") == pytest.approx([-math.sqrt(2), math.sqrt(2)])


def test_pca_of_functions_that_have_nothing_in_common_is_their_sum() -> None:
    """All directions are then as good as another; the one is taken that weighs all functions alike."""
    scores = [[1, 1], [1, -1], [-1, 1], [-1, -1]]
    assert one(scores, "pca") == pytest.approx([math.sqrt(2), 0, 0, -math.sqrt(2)])


def test_the_lengths_of_what_is_good_and_of_what_is_bad_are_told_apart() -> None:
    assert one([[3, 4, 0], [-3, -4, 0], [3, 0, -4], [0, 0, 0]], "l2norm") == pytest.approx([5, -5, -1, 0])


@pytest.mark.parametrize("way", WAYS)
def test_one_function_keeps_its_order(way: Way) -> None:
    made = one([[0.5], [-1], [3]], way)
    assert made[1] < made[0] < made[2]
    if way != "pca":
        assert made == pytest.approx([0.5, -1, 3])


@pytest.mark.parametrize(("way", "expected"), [("pca", 0.0), ("uniform", 1.5), ("std", 1.5), ("weights", 3.0)])
def test_where_nothing_tells_trajectories_apart_all_get_the_same(way: Way, expected: float) -> None:
    assert one([[1, 2], [1, 2], [1, 2]], way) == pytest.approx([expected] * 3)
    assert one([[1, 2]], way) == pytest.approx([expected])


@pytest.mark.parametrize("way", WAYS)
def test_a_function_that_does_not_apply_neither_helps_nor_harms(way: Way) -> None:
    """It counts as the mean of the group; one that applies to nobody is left out."""
    assert one([[1, 4], [0, NAN], [2, 8]], way) == pytest.approx(one([[1, 4], [0, 6], [2, 8]], way))
    weights = [1.0, 1.0, 1.0] if way == "weights" else []
    assert one([[1, NAN, 4], [0, NAN, 2]], way, weights) == pytest.approx(one([[1, 4], [0, 2]], way))
    assert one([[NAN], [NAN]], way) == [0, 0]


@QUICK
@given(scores=GROUPS, way=st.sampled_from(WAYS))
def test_nothing_gives_nan(scores: Scores, way: Way) -> None:
    made = combine_rewards(scores, way, [1.0] * scores.shape[1] if way == "weights" else ())
    assert made.shape == (len(scores),)
    assert np.isfinite(made).all()


@QUICK
@given(scores=GROUPS, way=st.sampled_from(WAYS), data=st.data())
def test_to_permute_a_group_permutes_its_rewards(scores: Scores, way: Way, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(scores))))
    weights = [1.0] * scores.shape[1] if way == "weights" else ()
    assert combine_rewards(scores[order], way, weights) == pytest.approx(
        combine_rewards(scores, way, weights)[order], abs=1e-6
    )
    assert on_one_side(scores[order]).tolist() == on_one_side(scores)[order].tolist()


@QUICK
@given(scores=GROUPS, way=st.sampled_from(["pca", "std"]), column=st.integers(0, 4), more=st.integers(-20, 20))
def test_to_add_a_number_to_one_function_changes_no_order(scores: Scores, way: Way, column: int, more: int) -> None:
    moved = scores.copy()
    moved[:, column % scores.shape[1]] += more
    before, after = combine_rewards(scores, way), combine_rewards(moved, way)
    assert before - before.mean() == pytest.approx(after - after.mean(), abs=1e-6)


def test_who_is_good_in_one_way_and_bad_in_another_lies_on_no_one_side() -> None:
    scores = np.array([[3, 3], [3, 0], [1, 0], [1, 1], [2, 1]], dtype=np.float64)  # means 2 and 1
    assert on_one_side(scores).tolist() == [True, False, True, True, True]
    assert on_one_side(np.array([[1.0, 5], [1, NAN]])).tolist() == [True, True]
    assert on_one_side(np.empty((0, 2))).tolist() == []


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
def test_a_way_that_does_not_fit_is_refused_before_it_is_used(
    way: str, weights: Mapping[str, float] | None, code: str, values: list[str]
) -> None:
    with raises(code, *values):
        check_combination(way, ["exact", "turns"], weights)


def test_a_way_that_fits_is_taken() -> None:
    assert check_combination("weights", ["exact", "turns"], {"turns": 0.1, "exact": 1}) == "weights"
    assert check_combination("std", ["exact"], None) == "std"
