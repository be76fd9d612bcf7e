"""Compare a canary with its baseline at any time, as often as wanted, with a bounded error.

A statement is *shown* at a confidence of 95 % if its opposite would be rejected wrongly in at most 5 % of all watches,
however often one looks and whenever one stops (an anytime-valid test). Each look costs nothing, so no number of looks
has to be planned.

The statistic is the signed root of the likelihood ratio between the observed rates and the best rates for which the
statement is not true (Barndorff-Nielsen, https://doi.org/10.1093/biomet/73.2.307). Its path is that of a Brownian
motion, nearly. It is compared with the boundary of the one-sided normal mixture (Robbins, 1970,
https://doi.org/10.1214/aoms/1177696786), which that path crosses with the probability of the error; this makes an
asymptotic confidence sequence (Waudby-Smith et al., https://arxiv.org/abs/2103.06476). `tests/cluster` simulates it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

_SCALE = 0.25  # standard deviations: differences of this size are detected with the fewest questions
_NORMAL = NormalDist()
_STEPS = 60  # of a bisection


@dataclass(frozen=True, slots=True)
class Share:
    """A number of cases among all."""

    count: float
    total: float

    @property
    def rate(self) -> float:
        """The share, from 0 to 1; nan without cases."""
        return self.count / self.total if self.total else math.nan

    def without(self, most: float) -> "Share":
        """Return the share if up to `most` of its cases had not happened."""
        return Share(max(0.0, self.count - most), self.total)


def is_above(canary: Share, baseline: Share | None, factor: float, offset: float, error: float) -> bool:
    """Return True if it is shown that the canary's rate is above `factor` times the baseline's, plus `offset`.

    Without a baseline, the bound is `offset`. `error` is the probability that this happens at any look if it is wrong.
    """
    return _exceeds(canary, baseline, factor, offset, error, sign=1)


def is_below(canary: Share, baseline: Share | None, factor: float, offset: float, error: float) -> bool:
    """Return True if it is shown that the canary's rate is below `factor` times the baseline's, plus `offset`."""
    return _exceeds(canary, baseline, factor, offset, error, sign=-1)


def difference_interval(canary: Share, baseline: Share, error: float) -> tuple[float, float]:
    """Return the anytime-valid interval of the canary's rate minus the baseline's. Each side has this error."""
    if not canary.total or not baseline.total:
        return -1.0, 1.0
    found = canary.rate - baseline.rate
    return (
        _find_last(lambda offset: is_above(canary, baseline, 1, offset, error), found),
        -_find_last(lambda offset: is_below(canary, baseline, 1, -offset, error), -found),
    )


def _find_last(is_shown: Callable[[float], bool], end: float) -> float:
    """Return the largest number from -1 to `end` for which something is shown that is shown for all below it."""
    low = -1.0
    for _ in range(_STEPS // 3):
        middle = (low + end) / 2
        low, end = (middle, end) if is_shown(middle) else (low, middle)
    return low


def _exceeds(canary: Share, baseline: Share | None, factor: float, offset: float, error: float, sign: int) -> bool:
    if not canary.total or (baseline is not None and not baseline.total):
        return False
    if sign * (canary.rate - offset - (factor * baseline.rate if baseline else 0)) <= 0:
        return False
    free = _log_likelihood(canary, canary.rate)
    if baseline is None:
        information = canary.total
        limited = _log_likelihood(canary, offset) if 0 <= offset <= 1 else None
    else:
        information = 1 / (1 / canary.total + factor**2 / baseline.total)
        free += _log_likelihood(baseline, baseline.rate)
        limited = _maximize(canary, baseline, factor, offset)
    if limited is None:  # all rates are on this side of the bound
        return True
    return _mixture(math.sqrt(max(0.0, 2 * (free - limited))), information) >= math.log(1 / error)


def _log_likelihood(share: Share, rate: float) -> float:
    """Return the logarithm of the probability of these cases at a rate; -inf if they are impossible."""
    found = 0.0
    for count, probability in ((share.count, rate), (share.total - share.count, 1 - rate)):
        if count > 0:
            found += count * math.log(probability) if probability > 0 else -math.inf
    return found


def _maximize(canary: Share, baseline: Share, factor: float, offset: float) -> float | None:
    """Return the largest log-likelihood with the canary's rate on the bound; None if no rates are on it."""
    low, high = max(0.0, -offset / factor), min(1.0, (1 - offset) / factor)
    if low > high:
        return None

    def slope(rate: float) -> float:
        own = factor * rate + offset
        return _slope(baseline, rate) + factor * _slope(canary, own)

    ends = low, high
    for _ in range(_STEPS):  # the log-likelihood is concave on this line
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return max(
        _log_likelihood(baseline, each) + _log_likelihood(canary, min(max(factor * each + offset, 0.0), 1.0))
        for each in ((low + high) / 2, *ends)
    )


def _slope(share: Share, rate: float) -> float:
    """Return the derivative of the log-likelihood."""
    rate = min(max(rate, 1e-15), 1 - 1e-15)
    return share.count / rate - (share.total - share.count) / (1 - rate)


def _mixture(root: float, information: float) -> float:
    """Return the logarithm of the one-sided normal mixture: the evidence against the limited rates."""
    spread = _SCALE**2 * information
    weight = spread / (1 + spread)
    at = root * math.sqrt(weight)
    return math.log(2 * _NORMAL.cdf(at)) + at * at / 2 - 0.5 * math.log1p(spread)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Numbers of durations up to each of some bounds, and of all. The bounds ascend."""

    bounds: tuple[float, ...]
    """Upper bounds in seconds, without infinity."""
    counts: tuple[float, ...]
    """Number of durations up to each bound."""
    total: float

    def share_over(self, index: int) -> Share:
        """Return the share of durations above a bound."""
        return Share(max(0.0, self.total - self.counts[index]), self.total)

    def estimate(self, quantile: float) -> float:
        """Return a quantile, linear within a bucket as Prometheus has it; nan without durations."""
        if not self.total:
            return math.nan
        rank, before, start = quantile * self.total, 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= rank:
                return start + (bound - start) * ((rank - before) / (count - before) if count > before else 1.0)
            before, start = count, bound
        return math.inf

    def upper(self, quantile: float, error: float) -> float:
        """Return the smallest bound that the quantile is shown not to exceed; infinity without one.

        Quantiles have order-statistic intervals: a quantile is at most x if at least that share of all is at most x.
        """
        found = (
            bound
            for index, bound in enumerate(self.bounds)
            if is_below(self.share_over(index), None, 0, 1 - quantile, error)
        )
        return next(found, math.inf)

    def lower(self, quantile: float, error: float) -> float:
        """Return the largest bound that the quantile is shown to exceed; 0 without one."""
        found = [
            bound
            for index, bound in enumerate(self.bounds)
            if is_above(self.share_over(index), None, 0, 1 - quantile, error)
        ]
        return max(found, default=0.0)


NO_SECONDS = Histogram((), (), 0)
"""A histogram without durations."""


def add_histograms(found: Sequence[Histogram]) -> Histogram:
    """Add histograms with the same bounds; an empty one without any.

    Raises:
        ValueError: if their bounds differ.
    """
    if not found:
        return NO_SECONDS
    if len({each.bounds for each in found}) > 1:
        raise ValueError("histograms have different bounds")
    return Histogram(
        found[0].bounds,
        tuple(map(sum, zip(*(each.counts for each in found), strict=True))),
        sum(each.total for each in found),
    )
