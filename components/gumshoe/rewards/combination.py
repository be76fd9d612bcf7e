"""Combine several rewards of each trajectory in a group into one.

Invariants: results are never NaN; reordering a group only reorders its rewards. A NaN score means that a function does
not apply to a trajectory: it is replaced by the group's mean of that function. A function that applies to no trajectory
is ignored.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gumshoe.errors import UsageError

Scores = NDArray[np.float64]
"""[trajectories, functions]; NaN if a function does not apply."""
Rewards = NDArray[np.float64]
"""[trajectories]"""
Combination = Literal["uniform", "weights", "std", "pca", "l2norm"]
"""Name of a method to combine rewards: see `combine_rewards`."""

_RELATIVE_TOLERANCE = 1e-9  # relative differences below this are rounding errors
_MIN_LENGTH = 1e-6  # projections shorter than this are rounding errors


def check_combination(method: str, names: Sequence[str], weights: Mapping[str, float] | None) -> Combination:
    """Return the combination with that name, if it suits the functions with these names.

    Raises:
        UsageError: if it does not exist, or the weights are missing, not allowed, or not those of the functions.
    """
    known: dict[str, Combination] = {each: each for each in get_args(Combination)}
    if method not in known:
        raise UsageError("rewards.unknown-combination", f"combine must be one of {', '.join(known)}; got {method!r}")
    if method == "weights" and not weights:
        raise UsageError("rewards.weights-missing", "combine: weights needs weights, e.g. {exact: 1, turns: 0.1}")
    if weights and method != "weights":
        raise UsageError(
            "rewards.weights-unused", f"combine: {method} takes no weights, got {dict(weights)}; remove them"
        )
    if weights and set(weights) != set(names):
        raise UsageError(
            "rewards.weights-mismatch",
            f"weights must name each reward: got {', '.join(sorted(weights))} for the rewards "
            f"{', '.join(sorted(names))}; use 0 for a reward that is only logged",
        )
    if weights and not all(map(np.isfinite, weights.values())):
        raise UsageError("rewards.weights-not-finite", f"weights must be finite numbers, got {dict(weights)}")
    return known[method]


def combine_rewards(scores: Scores, method: Combination, weights: Sequence[float] = ()) -> Rewards:
    """Return one reward for each trajectory of a group.

    `uniform`: mean of all functions.
    `weights`: sum of the functions, weighted by `weights` [functions].
    `std`: sum of the functions, each weighted by its share of all standard deviations in the group. The mean if all
        standard deviations are 0.
    `pca`: projection of the standardized functions on their first principal component
        (https://en.wikipedia.org/wiki/Principal_component_analysis). The sign is chosen so that the loadings sum to
        more than 0, or if they sum to 0, so that the first loading is positive. Functions with the same value for all
        trajectories are ignored; 0 if there are no others. The mean for a single trajectory, as in evaluations.
    `l2norm`: square root of the sum of squares of all positive values, minus that of all negative values.
    """
    applies, filled = _fill_missing(scores)
    count = filled.shape[1]
    rewards: Rewards = np.zeros(len(scores))
    if not count:
        return rewards
    if method == "pca" and len(scores) > 1:
        return _project_on_first_component(filled)
    if method == "l2norm":
        good, bad = (np.sqrt(np.square(part).sum(axis=1)) for part in (filled.clip(min=0), filled.clip(max=0)))
        rewards = good - bad
    elif method == "weights":
        rewards = filled @ np.asarray(weights, dtype=np.float64)[applies]
    else:
        spread = _standard_deviations(filled) if method == "std" else np.zeros(count)
        rewards = filled @ (spread / spread.sum() if spread.any() else np.full(count, 1 / count))
    return rewards


def is_flat(rewards: Rewards, bound: float) -> bool:
    """Return True if the standard deviation of a group's rewards is below `bound`, i.e. there is little to learn."""
    return bool(np.std(rewards) < bound) if len(rewards) else True


def _fill_missing(scores: Scores) -> tuple[NDArray[np.bool_], Scores]:
    """Return which functions apply to any trajectory [functions], and their scores without NaN [trajectories, ...]."""
    scores = np.asarray(scores, dtype=np.float64)
    known = np.array(np.isfinite(scores))
    applies: NDArray[np.bool_] = np.array(known.any(axis=0))
    scores, known = scores[:, applies], known[:, applies]
    means = np.where(known, scores, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return applies, np.where(known, scores, means)


def _standard_deviations(scores: Scores) -> NDArray[np.float64]:
    """Return the standard deviation of each function [functions]; 0 if its values differ by rounding errors only."""
    if not len(scores):
        return np.zeros(scores.shape[1])
    spread: NDArray[np.float64] = scores.std(axis=0)
    return np.where(spread > _RELATIVE_TOLERANCE * np.abs(scores).max(axis=0), spread, 0)


def _project_on_first_component(scores: Scores) -> Rewards:
    spread = _standard_deviations(scores)
    varies = spread > 0
    if not varies.any():
        return np.zeros(len(scores))
    standard = (scores[:, varies] - scores[:, varies].mean(axis=0)) / spread[varies]
    variances, directions = np.linalg.eigh(standard.T @ standard / len(scores))
    first = directions[
        :, variances > variances[-1] * (1 - _RELATIVE_TOLERANCE)
    ]  # several if the largest variance is not unique
    count = int(varies.sum())
    for wanted in (np.ones(count), *np.eye(count)):
        loadings = first @ (first.T @ wanted)
        if (length := np.linalg.norm(loadings)) > _MIN_LENGTH:
            projected: Rewards = standard @ (loadings / length)
            return projected
    raise AssertionError("a direction is at a right angle to all axes")
