"""Charts of a run: which values of its records are drawn together, by step."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gumshoe.training.records import EvaluationRecord, StepRecord

_Record = TypeVar("_Record", StepRecord, EvaluationRecord)
Values = dict[int, float]
"""Values by step; steps without a finite value are missing."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart."""

    label: str
    values: Values
    is_sparse: bool = False
    """True if most steps have no value, so that each value needs a marker."""


@dataclass(frozen=True, slots=True)
class Band:
    """An area of a chart."""

    label: str
    ranges: dict[int, tuple[float, float]]
    """Lower and upper end, by step."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart over the steps of a run."""

    name: str
    title: str
    unit: str
    lines: list[Line]
    bands: list[Band] = field(default_factory=list)
    low: float | None = None
    """Lower end of the vertical axis; None to fit the values."""
    high: float | None = None

    @property
    def is_share(self) -> bool:
        """Return True if the values are shares of 1, which are shown as percentages."""
        return self.unit.startswith("share")


def make_charts(steps: Sequence[StepRecord], evaluations: Sequence[EvaluationRecord]) -> list[Chart]:
    """Return the charts that have data. Lines and bands without any value are left out."""
    found = []
    for chart in _charts(steps, evaluations):
        lines = [each for each in chart.lines if each.values]
        bands = [each for each in chart.bands if each.ranges]
        if lines:
            found.append(replace(chart, lines=lines, bands=bands))
    return found


def chart_data(charts: Sequence[Chart]) -> dict[str, Any]:
    """Return the charts as JSON for a page: the steps, and each chart's values in their order, or null."""
    rows = [each.values for chart in charts for each in chart.lines]
    steps = sorted({step for row in rows for step in row})
    return {"steps": steps, "charts": [_chart_data(each, steps) for each in charts]}


def _chart_data(chart: Chart, steps: Sequence[int]) -> dict[str, Any]:
    def row(values: Mapping[int, float]) -> list[float | None]:
        return [float(f"{values[step]:.6g}") if step in values else None for step in steps]

    lines = [{"label": each.label, "values": row(each.values), "sparse": each.is_sparse} for each in chart.lines]
    bands = [
        {"label": each.label}
        | {
            end: row({step: found[place] for step, found in each.ranges.items()})
            for place, end in enumerate(("low", "high"))
        }
        for each in chart.bands
    ]
    about = {"title": chart.title, "unit": chart.unit, "share": chart.is_share, "low": chart.low, "high": chart.high}
    return {**about, "lines": lines, "bands": bands}


def _charts(steps: Sequence[StepRecord], evaluations: Sequence[EvaluationRecord]) -> Iterator[Chart]:
    def line(label: str, value: Callable[[StepRecord], float | None]) -> Line:
        return Line(label, _by_step(steps, value))

    measured = Line("held-out questions, greedy", _by_step(evaluations, lambda each: each.accuracy), is_sparse=True)
    sampled = line("training episodes, sampled", lambda each: each.accuracy)
    yield Chart("accuracy", "Accuracy", "share of correct answers", [sampled, measured], low=0, high=1)
    names = dict.fromkeys(name for each in steps for name in each.rewards)
    rewards = [Line(name, _by_step(steps, lambda each, name=name: each.rewards.get(name))) for name in names]  # type: ignore[misc]
    yield Chart("rewards", "Reward by function", "mean reward", [line("combined", lambda each: each.reward), *rewards])
    yield _distribution(steps)
    loss = [line("loss", lambda each: each.loss), line("policy loss, without KL", lambda each: each.policy_loss)]
    yield Chart("loss", "Loss", "per step", loss)
    yield Chart("grad_norm", "Gradient norm", "per step", [line("gradient norm", lambda each: each.grad_norm)])
    yield Chart("kl", "KL divergence from the reference", "nats per token", [line("KL", lambda each: each.kl)])
    yield Chart("entropy", "Entropy", "nats per token", [line("entropy", lambda each: each.entropy)], low=0)
    ratio = line("importance ratio", lambda each: each.importance_ratio)
    yield Chart("importance_ratio", "Agreement of sampler and trainer", "mean importance ratio", [ratio], high=1)
    groups = [
        line("trained on", lambda each: each.groups),
        line("flat rewards", lambda each: each.groups_flat),
        line("dropped", lambda each: each.groups_dropped),
        line("off-policy", lambda each: each.groups_refused),
    ]
    yield Chart("groups", "Groups", "groups per step", groups, low=0)
    lengths = line("sampled tokens", lambda each: each.sampled_tokens)
    yield Chart("lengths", "Episode length", "sampled tokens per episode", [lengths], low=0)
    yield Chart("turns", "Turns", "turns per episode", [line("turns", lambda each: each.turns)], low=0)
    reasons = dict.fromkeys(reason for each in steps for reason in each.split_reasons)
    split = [line("all", lambda each: each.split_episodes)] if reasons else []
    split += [
        Line(reason, _by_step(steps, lambda each, reason=reason: each.split_reasons.get(reason, 0.0)))  # type: ignore[misc]
        for reason in reasons
    ]
    yield Chart("split_episodes", "Split episodes", "share of episodes with several segments", split, low=0, high=1)
    trained = line("trained tokens", lambda each: each.trainable_tokens / max(1, each.tokens))
    yield Chart("trainable", "Trained tokens", "share of all tokens", [trained], low=0)
    has_lag = any(each.ended for each in steps)
    times = [
        line("rollouts", lambda each: each.rollout_seconds),
        *([line("waiting for rollouts", lambda each: each.wait_seconds)] if has_lag else []),
        line("training", lambda each: each.train_seconds),
        line("publishing the adapter", lambda each: each.publish_seconds),
    ]
    yield Chart("times", "Time by phase", "seconds per step", times, low=0)
    names = dict.fromkeys(name for each in steps for name in each.phase_seconds)
    phases = [Line(name, _by_step(steps, lambda each, name=name: each.phase_seconds.get(name))) for name in names]  # type: ignore[misc]
    yield Chart("phases", "Time of the trainer by phase", "seconds per step", phases, low=0)
    stale = [line("mean", lambda each: each.staleness), line("largest", lambda each: each.max_staleness)]
    yield Chart("staleness", "Staleness", "batches between a policy and its use", stale if has_lag else [], low=0)


def _distribution(steps: Sequence[StepRecord]) -> Chart:
    known = {
        each.step: each.reward_quantiles
        for each in steps
        if each.reward_quantiles and all(map(math.isfinite, each.reward_quantiles))
    }
    bands = [
        Band("all", {step: (found[0], found[4]) for step, found in known.items()}),
        Band("middle 50%", {step: (found[1], found[3]) for step, found in known.items()}),
    ]
    median = Line("median", {step: found[2] for step, found in known.items()})
    return Chart("distribution", "Reward distribution", "reward per episode", [median], bands)


def _by_step(records: Sequence[_Record], value: Callable[[_Record], float | None]) -> Values:
    return {each.step: found for each in records if (found := value(each)) is not None and math.isfinite(found)}
