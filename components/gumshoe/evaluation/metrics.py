"""Compute the metrics of a policy, each with its 95 % interval. `METRICS` lists them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from gumshoe.environments.base import Unusable
from gumshoe.evaluation.predictions import Prediction, group_by_question
from gumshoe.evaluation.statistics import bootstrap, pass_at, wilson
from gumshoe.rollouts.answer import Cost

UNUSABLE = get_args(Unusable)


class Estimate(BaseModel):
    """A number with its 95 % interval."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    value: float
    low: float
    """Lower end of the interval: Wilson score for rates, bootstrap for all others."""
    high: float
    questions: int
    """Number of questions that the metric applies to."""


class Price(BaseModel):
    """Price of tokens."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    prompt: float
    """Dollars per million prompt tokens."""
    completion: float
    """Dollars per million sampled tokens."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Definition of a metric."""

    name: str
    label: str
    about: str
    compute: Callable[[Prediction], float | None]
    """Return the value of an episode, or None if the metric does not apply to it."""
    unit: Literal["rate", "number", "seconds", "dollars"] = "number"
    quantile: float | None = None
    """Quantile over the episodes to report instead of the mean over the questions."""


def _ended_with(*endings: str) -> Callable[[Prediction], float]:
    return lambda each: float(each.ending in endings)


def _has_no_answer(each: Prediction) -> bool:
    return each.does_not_know or each.answer is None


def _if_answerable(of: Callable[[Prediction], float]) -> Callable[[Prediction], float | None]:
    """Return a metric about correct sources, which unanswerable questions do not have."""
    return lambda each: None if each.unanswerable else of(each)


def _cost_of_samples(of: Callable[[Cost], float | None]) -> Callable[[Prediction], float | None]:
    """Return a cost of all samples of a question. It applies only if the answer was chosen among several samples."""
    return lambda each: of(each.chosen.cost) if each.chosen else None


def _of_samples(of: Callable[[Sequence[bool]], float]) -> Callable[[Prediction], float | None]:
    return lambda each: of(each.chosen.correct) if each.chosen else None


METRICS: tuple[Metric, ...] = (
    Metric("accuracy", "Correct", "answers that the judge accepts", lambda e: e.correct, "rate"),
    Metric(
        "undecided",
        "Undecided",
        "answers that the judge could not decide, which count as wrong",
        lambda e: e.verdicts[0].is_undecided,
        "rate",
    ),
    Metric(
        "source_accuracy",
        "Correct source",
        "a correct source was given with the answer",
        _if_answerable(lambda e: e.right_source),
        "rate",
    ),
    Metric(
        "sources_given",
        "Sources given",
        "per answer other than I don't know",
        lambda e: None if _has_no_answer(e) else len(e.sources),
    ),
    Metric(
        "unanswerable_accuracy",
        "Unanswerable, correct",
        "unanswerable questions that ended with I don't know",
        lambda e: e.correct if e.unanswerable else None,
        "rate",
    ),
    Metric("found", "Found", "a search listed a correct source", _if_answerable(lambda e: e.found), "rate"),
    Metric("read", "Read", "a correct source was read", _if_answerable(lambda e: e.read), "rate"),
    Metric(
        "answered",
        "Answered",
        "ended with an answer other than I don't know",
        lambda e: e.answer is not None and not e.does_not_know,
        "rate",
    ),
    Metric("does_not_know", "I don't know", "ended with I don't know", lambda e: e.does_not_know, "rate"),
    Metric(
        "hallucinated_sources",
        "Invented source",
        "gave a source that does not exist",
        lambda e: bool(e.hallucinated_sources),
        "rate",
    ),
    Metric(
        "unusable",
        "Unusable call",
        "ended with an unusable call, or cut off before a call",
        _ended_with(*UNUSABLE, "truncated"),
        "rate",
    ),
    *(
        Metric(each.replace(" ", "_"), each.capitalize(), f"ended with: {each}", _ended_with(each), "rate")
        for each in UNUSABLE
    ),
    Metric("out_of_turns", "Out of turns", "reached the turn limit", _ended_with("max turns"), "rate"),
    Metric("context_full", "Context full", "filled the context", _ended_with("context full"), "rate"),
    Metric(
        "truncated",
        "Truncated",
        "a turn reached its maximum number of tokens without a usable call",
        _ended_with("truncated"),
        "rate",
    ),
    Metric(
        "mistakes",
        "Mistakes answered",
        "turns without a usable call that were answered with an error, per episode",
        lambda e: e.mistakes,
    ),
    Metric("reward", "Reward (rubric)", "by the published ART·E rubric", lambda e: e.reward),
    Metric("turns", "Turns", "per episode", lambda e: e.turns),
    Metric("turns_correct", "Turns, correct", "per correct episode", lambda e: e.turns if e.correct else None),
    Metric(
        "turns_gave_up",
        "Turns, no answer",
        "per episode without an answer",
        lambda e: e.turns if _has_no_answer(e) else None,
    ),
    Metric("searches", "Searches", "per episode", lambda e: e.searches),
    Metric("repeated_searches", "Repeated searches", "per episode", lambda e: e.repeated_searches),
    Metric("empty_searches", "Empty searches", "searches without results, per episode", lambda e: e.empty_searches),
    Metric("read_others", "Others read", "other sources read, per episode", lambda e: e.read_others),
    Metric("prompt_tokens", "Prompt tokens", "of all requests of an episode, as billed", lambda e: e.prompt_tokens),
    Metric("sampled_tokens", "Sampled tokens", "per episode", lambda e: e.sampled_tokens),
    Metric("seconds", "Seconds", "mean per episode", lambda e: e.seconds, "seconds"),
    Metric("seconds_p50", "Seconds, p50", "median over the episodes", lambda e: e.seconds, "seconds", 0.5),
    Metric("seconds_p95", "Seconds, p95", "95th percentile over the episodes", lambda e: e.seconds, "seconds", 0.95),
    Metric(
        "one_sample", "One sample, correct", "share of correct samples", _of_samples(lambda c: sum(c) / len(c)), "rate"
    ),
    Metric("any_sample", "Any sample, correct", "at least one sample is correct", _of_samples(any), "rate"),
    Metric("all_turns", "Turns, all samples", "per question", _cost_of_samples(lambda c: c.turns)),
    Metric(
        "all_prompt_tokens",
        "Prompt tokens, all samples",
        "per question, as billed",
        _cost_of_samples(lambda c: c.prompt_tokens),
    ),
    Metric(
        "all_sampled_tokens",
        "Sampled tokens, all samples",
        "per question",
        _cost_of_samples(lambda c: c.sampled_tokens),
    ),
    Metric(
        "all_seconds",
        "Seconds, all samples",
        "per question, added up, with the judge",
        _cost_of_samples(lambda c: c.seconds),
        "seconds",
    ),
    Metric(
        "longest_seconds",
        "Seconds, longest sample",
        "per question, with the judge",
        _cost_of_samples(lambda c: c.longest),
        "seconds",
    ),
    Metric(
        "judge_requests",
        "Judge requests",
        "per question, to choose a sample",
        _cost_of_samples(lambda c: c.judge_requests),
    ),
    Metric(
        "judge_tokens",
        "Judge tokens",
        "of these requests",
        _cost_of_samples(lambda c: c.judge_prompt_tokens + c.judge_sampled_tokens),
    ),
)
"""All metrics, in display order. A rate is a share of questions."""


_COST = ("cost_per_1000", "Cost of 1,000", "dollars per 1,000 questions")
_BY_NAME = {each.name: each for each in METRICS}


def describe_metric(name: str) -> tuple[str, str]:
    """Return the label and the description of a metric."""
    metric = _BY_NAME.get(name)
    if metric:
        return metric.label, metric.about
    if name == _COST[0]:
        return _COST[1:]
    if name == "spread":
        return "Spread", "standard deviation of correctness over the episodes of a question"
    return name, f"at least one of {name.partition('@')[2]} episodes of a question is correct"


def format_value(name: str, value: float) -> str:
    """Format a metric's value for display."""
    metric = _BY_NAME.get(name)
    unit = metric.unit if metric else "dollars" if name == _COST[0] else "rate"
    if unit == "rate" and name != "spread":
        return f"{value:.1%}"
    if unit == "dollars":
        return f"${value:,.2f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


def cost_metric(price: Price) -> Metric:
    """Return the metric of dollars per 1,000 questions."""

    def cost(each: Prediction) -> float | None:
        usage = each.chosen.cost if each.chosen else each
        if usage.prompt_tokens is None or usage.sampled_tokens is None:
            return None
        judge = each.chosen.cost.judge_dollars * 1000 if each.chosen else 0.0
        return (usage.prompt_tokens * price.prompt + usage.sampled_tokens * price.completion) / 1000 + judge

    return Metric(*_COST, cost, "dollars")


def compute_metrics(predictions: Sequence[Prediction], price: Price | None = None) -> dict[str, Estimate]:
    """Return the metrics of one policy's episodes, by name. Metrics that apply to no episode are left out.

    A question with several episodes counts once, with their mean. If every question has two or more, there are also
    `pass@k`, the probability that one of k episodes is correct, and `spread`, the standard deviation per question.
    """
    groups = list(group_by_question(predictions).values())
    found: dict[str, Estimate] = {}
    for metric in (*METRICS, *([cost_metric(price)] if price else [])):
        estimate = _estimate(metric, groups)
        if estimate is not None:
            found[metric.name] = estimate
    samples = min(map(len, groups), default=0)
    if samples > 1:
        right = [sum(each.correct for each in group) for group in groups]
        for k in _powers_of_two(samples):
            values = [pass_at(k, count, len(group)) for count, group in zip(right, groups, strict=True)]
            found[f"pass@{k}"] = estimate_rate(values)
        found["spread"] = estimate_mean([float(np.std([each.correct for each in group], ddof=1)) for group in groups])
    return found


def accuracy_by_kind(predictions: Sequence[Prediction]) -> dict[str, Estimate]:
    """Return the accuracy by kind of question, the most frequent first; empty if the questions have no kind."""
    kinds: dict[str, list[Prediction]] = {}
    for each in predictions:
        if each.kind is not None:
            kinds.setdefault(each.kind, []).append(each)
    accuracy = METRICS[0]
    estimates = {kind: _estimate(accuracy, list(group_by_question(own).values())) for kind, own in kinds.items()}
    found = {kind: each for kind, each in estimates.items() if each is not None}
    return dict(sorted(found.items(), key=lambda item: (-item[1].questions, item[0])))


def _powers_of_two(samples: int) -> Iterator[int]:
    """Yield 1, 2, 4, 8 and so on below the number of samples, and the number of samples."""
    k = 1
    while k < samples:
        yield k
        k *= 2
    yield samples


def _estimate(metric: Metric, groups: Sequence[Sequence[Prediction]]) -> Estimate | None:
    given = [[value for each in group if (value := metric.compute(each)) is not None] for group in groups]
    values = [list(map(float, each)) for each in given if each]
    if not values:
        return None
    if metric.quantile is not None:
        return _estimate_quantile(values, metric.quantile)
    means = [sum(each) / len(each) for each in values]
    return estimate_rate(means) if metric.unit == "rate" else estimate_mean(means)


def estimate_rate(shares: Sequence[float]) -> Estimate:
    """Return the mean of shares from 0 to 1, one for each question, with a Wilson score interval."""
    low, high = wilson(sum(shares), len(shares))
    return Estimate(value=sum(shares) / len(shares), low=low, high=high, questions=len(shares))


def estimate_mean(values: Sequence[float]) -> Estimate:
    """Return the mean of numbers, one for each question, with a bootstrap interval."""
    low, high = bootstrap(values)
    return Estimate(value=math.fsum(values) / len(values), low=low, high=high, questions=len(values))


def _estimate_quantile(values: Sequence[Sequence[float]], quantile: float) -> Estimate:
    """Estimate a quantile of all episodes. The bootstrap resamples whole questions, whose episodes are correlated."""
    longest = max(map(len, values))
    padded = np.full((len(values), longest), np.nan)
    for row, each in zip(padded, values, strict=True):
        row[: len(each)] = each

    is_ragged = bool(np.isnan(padded).any())
    quantile_of = np.nanquantile if is_ragged else np.quantile  # `np.quantile` is 20 times as fast

    def statistic(drawn: NDArray[Any]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = quantile_of(drawn.reshape(len(drawn), -1), quantile, axis=1)
        return found

    low, high = bootstrap(padded, statistic)
    return Estimate(value=float(quantile_of(padded, quantile)), low=low, high=high, questions=len(values))
