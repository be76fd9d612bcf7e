"""Count what the agent servers of a deployment measured, by policy, and test conditions about it.

The counters of a server begin at 0 when it starts, and a server is restarted whenever the share of its canary changes.
So they hold what both policies did over the same time. A server that restarts is another one: what it had counted stays
in the sum.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gumshoe.cluster.canary_conditions import Condition, ConditionGroup, MeasureComparison, count_alternatives
from gumshoe.cluster.canary_statistics import (
    NO_SECONDS,
    Histogram,
    Share,
    add_histograms,
    difference_interval,
    is_above,
    is_below,
)
from gumshoe.errors import UsageError

PREFIX = "gumshoe_"
_STARTED = "start_time_seconds"
NAMES = (_STARTED, "policy_share", "policy_available", "questions_total", "answer_seconds_bucket")
FEEDBACK_NAMES = ("feedback_total", "feedback_per_caller")
_DAY = 86_400.0  # seconds in which the agent server limits the verdicts of a caller
_SAME = 1e-6  # difference of two shares that are equal


class Sample(NamedTuple):
    """One line of metrics."""

    name: str
    labels: Mapping[str, str]
    value: float


def is_starting(samples: Iterable[Sample]) -> bool:
    """Return True if these are the metrics of an agent server that has not opened its policies yet."""
    found = {each.name.removeprefix(PREFIX) for each in samples}
    return _STARTED in found and not found.issuperset(NAMES)


@dataclass(frozen=True, slots=True)
class PolicyCounts:
    """Counts of one policy: questions, verdicts and durations."""

    questions: Mapping[str, float] = field(default_factory=dict)
    """Number of questions by result."""
    verdicts: Mapping[str, float] = field(default_factory=dict)
    """Number of verdicts of callers."""
    seconds: Histogram = NO_SECONDS
    per_caller: float = 0
    """How many verdicts of one caller the counts can contain, if all servers are asked."""

    @property
    def total(self) -> float:
        """Number of questions."""
        return sum(self.questions.values())

    def share(self, measure: str) -> Share:
        """Return the share of a rate: of questions for success and errors, of answers for corrections."""
        if measure == "corrections":
            corrections = sum(count for verdict, count in self.verdicts.items() if verdict != "right")
            return Share(corrections, max(corrections, self.questions.get("answered", 0)))
        result = "answered" if measure == "success" else "failed"
        return Share(self.questions.get(result, 0), self.total)

    @property
    def has_feedback(self) -> bool:
        """True if there are more verdicts than one caller can have given."""
        return sum(self.verdicts.values()) > self.per_caller


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """The metrics of one agent server at one moment."""

    name: str
    started: float
    """When it started, in seconds since 1970."""
    shares: Mapping[str, float]
    """Fraction of the questions by policy."""
    unavailable: frozenset[str]
    """Policies that cannot answer."""
    verdicts_per_caller: float
    counts: Mapping[str, PolicyCounts]

    @classmethod
    def of(cls, name: str, samples: Iterable[Sample]) -> "ServerMetrics":
        """Read the metrics of an agent server.

        Raises:
            UsageError: if they are not those of an agent server that measures its policies.
        """
        found: dict[str, list[Sample]] = defaultdict(list)
        for each in samples:
            found[each.name.removeprefix(PREFIX)].append(each)
        missing = [each for each in NAMES if not found[each]]
        if missing:
            raise UsageError(
                "deploy.measures-missing",
                f"{name} does not have the metric {PREFIX}{missing[0]}; update the agent server to this version of "
                "Gumshoe, and check that --metrics is the address of its metrics or of a Prometheus that has them",
            )
        shares = {each.labels["policy"]: each.value for each in found["policy_share"]}
        return cls(
            name,
            found[_STARTED][0].value,
            shares,
            frozenset(each.labels["policy"] for each in found["policy_available"] if each.value == 0),
            found["feedback_per_caller"][0].value if found["feedback_per_caller"] else 0,
            {policy: _read_counts(found, policy) for policy in shares},
        )


def _read_counts(found: Mapping[str, list[Sample]], policy: str) -> PolicyCounts:
    def select(name: str, label: str) -> dict[str, float]:
        own = (each for each in found.get(name, ()) if each.labels.get("policy") == policy)
        return {each.labels.get(label, ""): each.value for each in own}

    buckets = {float(bound): count for bound, count in select("answer_seconds_bucket", "le").items() if bound}
    total = buckets.pop(math.inf, 0.0)
    bounds = tuple(sorted(buckets))
    histogram = Histogram(bounds, tuple(buckets[each] for each in bounds), total)
    return PolicyCounts(select("questions_total", "result"), select("feedback_total", "verdict"), histogram)


@dataclass(slots=True)
class MeasureTracker:
    """Add up the counters of all servers that were seen, also of those that ended or restarted."""

    _servers: dict[tuple[str, float], ServerMetrics] = field(default_factory=dict)

    def update(self, servers: Iterable[ServerMetrics]) -> None:
        """Replace what is known of these servers."""
        for each in servers:
            self._servers[each.name, each.started] = each

    def select(self, canary: str, baseline: str, share: float) -> list[ServerMetrics]:
        """Return the servers that route this share to the canary and the rest to the baseline."""
        return [
            each
            for each in self._servers.values()
            if baseline in each.shares and abs(each.shares.get(canary, 0.0) - share) < _SAME
        ]

    def sum(self, policy: str, servers: Iterable[ServerMetrics], now: float) -> PolicyCounts:
        """Return the counts of a policy on servers. `now` is the time in seconds since 1970.

        Raises:
            UsageError: if servers of different versions have different buckets.
        """
        questions: dict[str, float] = defaultdict(float)
        verdicts: dict[str, float] = defaultdict(float)
        per_caller, histograms = 0.0, []
        for each in servers:
            counts = each.counts[policy]
            for result, count in counts.questions.items():
                questions[result] += count
            for verdict, count in counts.verdicts.items():
                verdicts[verdict] += count
            histograms.append(counts.seconds)
            per_caller += each.verdicts_per_caller * (max(0.0, now - each.started) // _DAY + 1)
        try:
            return PolicyCounts(questions, verdicts, add_histograms(histograms), per_caller)
        except ValueError:
            raise UsageError(
                "deploy.measures-differ",
                "the agent servers have different buckets of gumshoe_answer_seconds; wait until all run the same image",
            ) from None


@dataclass(frozen=True, slots=True)
class CanaryEvidence:
    """Test comparisons between the counts of a canary and of the adapter in service."""

    canary: PolicyCounts
    baseline: PolicyCounts

    def is_met(self, condition: Condition, error: float) -> bool:
        """Return True if it is shown that the condition holds, with this error of the whole condition."""
        return self._is_met(condition, error / max(1, count_alternatives(condition)))

    def _is_met(self, condition: Condition, error: float) -> bool:
        if isinstance(condition, MeasureComparison):
            return self.is_shown(condition, error)
        if not condition.parts:
            return False
        return (any if condition.word == "or" else all)(self._is_met(each, error) for each in condition.parts)

    def is_shown(self, comparison: MeasureComparison, error: float) -> bool:
        """Return True if one comparison is shown with this error."""
        if comparison.quantile is not None:
            return self._is_latency_shown(comparison, comparison.quantile, error)
        canary, baseline = (each.share(comparison.measure) for each in (self.canary, self.baseline))
        if comparison.measure == "corrections":
            if not self.canary.has_feedback or (comparison.factor and not self.baseline.has_feedback):
                return False
            if comparison.is_upper:  # it must be shown without the verdicts of any one caller
                baseline = baseline.without(self.baseline.per_caller)
            else:
                canary = canary.without(self.canary.per_caller)
        test = is_below if comparison.is_upper else is_above
        return test(canary, baseline if comparison.factor else None, comparison.factor, comparison.offset, error)

    def _is_latency_shown(self, comparison: MeasureComparison, quantile: float, error: float) -> bool:
        """Compare a bound of the canary's quantile with a bound of the baseline's. Each has half of the error."""
        canary, baseline = self.canary.seconds, self.baseline.seconds
        if not comparison.factor:
            limit = comparison.offset
        elif comparison.is_upper:
            limit = comparison.factor * baseline.lower(quantile, error / 2) + comparison.offset
        else:
            limit = comparison.factor * baseline.upper(quantile, error / 2) + comparison.offset
        own = error / 2 if comparison.factor else error
        if comparison.is_upper:
            return canary.upper(quantile, own) <= limit
        return canary.lower(quantile, own) > limit if canary.total else False

    def describe(self, comparison: MeasureComparison, error: float) -> str:
        """Return the numbers of a comparison, e.g. `12% (9 of 75), baseline 9% (61 of 675), difference -5% to 13%`."""
        if comparison.quantile is not None:
            canary, baseline = (each.seconds for each in (self.canary, self.baseline))
            texts = [
                f"{each.estimate(comparison.quantile):.3g}s ({each.lower(comparison.quantile, error):.3g} to "
                f"{each.upper(comparison.quantile, error):.3g}s)"
                if each.total
                else "no answers"
                for each in (canary, baseline)
            ]
            return f"{texts[0]}, baseline {texts[1]}"
        own, other = (each.share(comparison.measure) for each in (self.canary, self.baseline))
        text = f"{_format(own)}, baseline {_format(other)}"
        if own.total and other.total:
            low, high = difference_interval(own, other, error)
            text += f", difference {100 * low:+.1f}% to {100 * high:+.1f}%"
        if comparison.measure == "corrections" and not (self.canary.has_feedback and self.baseline.has_feedback):
            verdicts = " and ".join(f"{sum(each.verdicts.values()):,.0f}" for each in (self.canary, self.baseline))
            text += f"; too little feedback ({verdicts} verdicts, one caller can give {self.canary.per_caller:,.0f})"
        return text


def _format(share: Share) -> str:
    if not share.total:
        return "no questions"
    return f"{100 * share.rate:.1f}% ({share.count:,.0f} of {share.total:,.0f})"


def find_measures(condition: Condition) -> set[str]:
    """Return the measures that a condition mentions."""
    if isinstance(condition, ConditionGroup):
        return {measure for each in condition.parts for measure in find_measures(each)}
    return {condition.measure}
