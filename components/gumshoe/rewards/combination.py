"""From several rewards of each trajectory in a group to one, and which trajectories and groups to learn from.

What always holds: nothing gives NaN, and to change the order of a group changes the order of its rewards alone.
A NaN among the scores is a reward that does not apply to its trajectory: it counts as the group's mean of that
function, and neither helps nor harms. A function that applies to nobody is left out.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gumshoe.errors import UsageError

Scores = NDArray[np.float64]
"""[trajectories, functions]; NaN where a function does not apply."""
Rewards = NDArray[np.float64]
"""[trajectories]"""
Way = Literal["uniform", "weights", "std", "pca", "l2norm"]
"""How rewards are combined: see `combined`."""

_SAME = 1e-9  # below this share of a function's values, or of a variance, a difference is one of rounding
_LEAST = 1e-6  # length of what a direction has in common with another, for that to be more than rounding


def check_combination(way: str, names: Sequence[str], weights: Mapping[str, float] | None) -> Way:
    """The way of that name, if functions of these names can be combined so.

    Raises:
        UsageError: there is no such way; or the weights are missing, not wanted, or not those of the functions.
    """
    known: dict[str, Way] = {each: each for each in get_args(Way)}
    if way not in known:
        raise UsageError("rewards.unknown-combination", f"combine must be one of {', '.join(known)}; got {way!r}")
    if way == "weights" and not weights:
        raise UsageError("rewards.weights-missing", "combine: weights needs weights, e.g. {exact: 1, turns: 0.1}")
    if weights and way != "weights":
        raise UsageError("rewards.weights-unused", f"combine: {way} takes no weights, got {dict(weights)}; remove them")
    if weights and set(weights) != set(names):
        raise UsageError(
            "rewards.weights-mismatch",
            f"weights must name each reward: got {', '.join(sorted(weights))} for the rewards "
            f"{', '.join(sorted(names))}; use 0 for a reward that is only logged",
        )
    if weights and not all(map(np.isfinite, weights.values())):
        raise UsageError("rewards.weights-not-finite", f"weights must be finite numbers, got {dict(weights)}")
    return known[way]


def combine_rewards(scores: Scores, way: Way, weights: Sequence[float] = ()) -> Rewards:
    """One reward for each trajectory of a group.

    `uniform`: the mean of all functions.
    `weights`: the sum of each function times its weight [functions].
    `std`: the sum of each function times its share of all standard deviations in the group: what tells the
        trajectories apart counts. The mean, where nothing does.
    `pca`: the projection of the standardised functions on their first principal component
        (https://en.wikipedia.org/wiki/Principal_component_analysis), turned so that more reward is more: its loadings
        sum to more than 0, and where they sum to 0 the first function's is positive. Functions that tell nobody apart
        have no part in it; 0, where none does.
    `l2norm`: the square root of the sum of squares of all that is positive, less that of all that is negative.
    """
    applies, filled = _filled(scores)
    count = filled.shape[1]
    made: Rewards = np.zeros(len(scores))
    if not count:
        return made
    if way == "pca":
        return _first_component(filled)
    if way == "l2norm":
        good, bad = (np.sqrt(np.square(part).sum(axis=1)) for part in (filled.clip(min=0), filled.clip(max=0)))
        made = good - bad
    elif way == "weights":
        made = filled @ np.asarray(weights, dtype=np.float64)[applies]
    else:
        spread = _spread(filled) if way == "std" else np.zeros(count)
        made = filled @ (spread / spread.sum() if spread.any() else np.full(count, 1 / count))
    return made


def on_one_side(scores: Scores) -> NDArray[np.bool_]:
    """[trajectories]: whether each lies on one side of the group's mean, or on it, in every function.

    Such trajectories are good or bad whatever counts; the others are good in one way and bad in another.
    """
    _, filled = _filled(scores)
    if not len(filled):
        return np.zeros(0, dtype=bool)
    above = filled - filled.mean(axis=0)
    above[np.abs(above) <= _SAME * np.abs(filled).max(axis=0)] = 0
    one_side: NDArray[np.bool_] = (above >= 0).all(axis=1) | (above <= 0).all(axis=1)
    return one_side


def is_flat(rewards: Rewards, bound: float) -> bool:
    """Whether a group's rewards have a standard deviation under a bound, so that there is little to learn from it."""
    return bool(np.std(rewards) < bound) if len(rewards) else True


def _filled(scores: Scores) -> tuple[NDArray[np.bool_], Scores]:
    """Which functions apply to anybody [functions], and their scores with no NaN [trajectories, those functions]."""
    scores = np.asarray(scores, dtype=np.float64)
    known = np.array(np.isfinite(scores))
    applies: NDArray[np.bool_] = np.array(known.any(axis=0))
    scores, known = scores[:, applies], known[:, applies]
    means = np.where(known, scores, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return applies, np.where(known, scores, means)


def _spread(scores: Scores) -> NDArray[np.float64]:
    """[functions]: standard deviations; 0 where values differ by rounding alone."""
    if not len(scores):
        return np.zeros(scores.shape[1])
    spread: NDArray[np.float64] = scores.std(axis=0)
    return np.where(spread > _SAME * np.abs(scores).max(axis=0), spread, 0)


def _first_component(scores: Scores) -> Rewards:
    spread = _spread(scores)
    telling = spread > 0
    if not telling.any():
        return np.zeros(len(scores))
    standard = (scores[:, telling] - scores[:, telling].mean(axis=0)) / spread[telling]
    variances, directions = np.linalg.eigh(standard.T @ standard / len(scores))
    first = directions[:, variances > variances[-1] * (1 - _SAME)]  # several, where none is the first alone
    count = int(telling.sum())
    for wanted in (np.ones(count), *np.eye(count)):
        loadings = first @ (first.T @ wanted)
        if (length := np.linalg.norm(loadings)) > _LEAST:
            projected: Rewards = standard @ (loadings / length)
            return projected
    raise AssertionError("a direction is at a right angle to all axes")
