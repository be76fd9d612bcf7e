"""What is measured of a policy, and how sure it is: one table of metrics, each with its 95 % interval."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from gumshoe.environments.base import Unusable
from gumshoe.evaluation.predictions import Prediction, by_question
from gumshoe.evaluation.statistics import bootstrap, pass_at, wilson
from gumshoe.rollouts.answer import Cost

UNUSABLE = get_args(Unusable)


class Estimate(BaseModel):
    """A number and the 95 % interval that it lies in."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    value: float
    low: float
    """Lower end: Wilson's of a rate, the bootstrap's otherwise."""
    high: float
    questions: int
    """How many questions it is of: those that it applies to."""


class Price(BaseModel):
    """What tokens cost."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    prompt: float
    """Dollars for a million tokens of prompts."""
    completion: float
    """Dollars for a million tokens that are sampled."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that is measured of episodes."""

    name: str
    label: str
    about: str
    of: Callable[[Prediction], float | None]
    """What an episode counts; None where it does not apply to it."""
    unit: Literal["rate", "number", "seconds", "dollars"] = "number"
    quantile: float | None = None
    """This quantile of the episodes, in place of the mean of the questions."""


def _ended(*endings: str) -> Callable[[Prediction], float]:
    return lambda each: float(each.ending in endings)


def _gave_up(each: Prediction) -> bool:
    return each.does_not_know or each.answer is None


def _took(of: Callable[[Cost], float | None]) -> Callable[[Prediction], float | None]:
    """Of all samples of a question; where it has one alone, what the episode counts says it already."""
    return lambda each: of(each.chosen.cost) if each.chosen else None


def _sampled(of: Callable[[Sequence[bool]], float]) -> Callable[[Prediction], float | None]:
    return lambda each: of(each.chosen.correct) if each.chosen else None


METRICS: tuple[Metric, ...] = (
    Metric("accuracy", "Correct", "answers that the judge calls right", lambda e: e.correct, "rate"),
    Metric(
        "source_accuracy",
        "Right source",
        "right source given with the answer",
        lambda e: e.right_source,
        "rate",
    ),
    Metric("found", "Found", "right source listed by a search", lambda e: e.found, "rate"),
    Metric("read", "Read", "right source read", lambda e: e.read, "rate"),
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
        "gave a source that is not there",
        lambda e: bool(e.hallucinated_sources),
        "rate",
    ),
    Metric("unusable", "Unusable call", "ended with a call that is no use", _ended(*UNUSABLE), "rate"),
    *(
        Metric(each.replace(" ", "_"), each.capitalize(), f"ended with: {each}", _ended(each), "rate")
        for each in UNUSABLE
    ),
    Metric("out_of_turns", "Out of turns", "had no turn left", _ended("max turns"), "rate"),
    Metric("context_full", "Context full", "had no context left", _ended("context full"), "rate"),
    Metric("reward", "Reward", "by the published ART·E scheme", lambda e: e.reward),
    Metric("turns", "Turns", "of an episode", lambda e: e.turns),
    Metric("turns_correct", "Turns, correct", "of correct episodes", lambda e: e.turns if e.correct else None),
    Metric("turns_gave_up", "Turns, gave up", "of episodes with no answer", lambda e: e.turns if _gave_up(e) else None),
    Metric("searches", "Searches", "of an episode", lambda e: e.searches),
    Metric("repeated_searches", "Repeated searches", "made before", lambda e: e.repeated_searches),
    Metric("empty_searches", "Empty searches", "that found nothing", lambda e: e.empty_searches),
    Metric("read_others", "Others read", "sources read that are not right ones", lambda e: e.read_others),
    Metric("prompt_tokens", "Prompt tokens", "of all requests, as billed", lambda e: e.prompt_tokens),
    Metric("sampled_tokens", "Sampled tokens", "of an episode", lambda e: e.sampled_tokens),
    Metric("seconds", "Seconds", "of an episode, mean", lambda e: e.seconds, "seconds"),
    Metric("seconds_p50", "Seconds, p50", "half take no longer", lambda e: e.seconds, "seconds", 0.5),
    Metric("seconds_p95", "Seconds, p95", "95 % take no longer", lambda e: e.seconds, "seconds", 0.95),
    Metric(
        "one_sample", "One sample, correct", "samples that are correct", _sampled(lambda c: sum(c) / len(c)), "rate"
    ),
    Metric(
        "any_sample", "Any sample, correct", "a sample is correct, so that it could be chosen", _sampled(any), "rate"
    ),
    Metric("all_turns", "Turns, all samples", "of all samples of a question", _took(lambda c: c.turns)),
    Metric(
        "all_prompt_tokens", "Prompt tokens, all samples", "of a question, as billed", _took(lambda c: c.prompt_tokens)
    ),
    Metric("all_sampled_tokens", "Sampled tokens, all samples", "of a question", _took(lambda c: c.sampled_tokens)),
    Metric(
        "all_seconds",
        "Seconds, all samples",
        "of all of them together, and the judge",
        _took(lambda c: c.seconds),
        "seconds",
    ),
    Metric(
        "longest_seconds", "Seconds, longest sample", "and the judge after it", _took(lambda c: c.longest), "seconds"
    ),
    Metric("judge_requests", "Judge requests", "to choose among samples", _took(lambda c: c.judge_requests)),
    Metric(
        "judge_tokens",
        "Judge tokens",
        "of those requests",
        _took(lambda c: c.judge_prompt_tokens + c.judge_sampled_tokens),
    ),
)
"""In the order in which they are shown. A rate is a share of questions."""


_COST = ("cost_per_1000", "Cost of 1,000", "dollars for 1,000 questions")
_BY_NAME = {each.name: each for each in METRICS}


def described(name: str) -> tuple[str, str]:
    """A metric's label, and what it is about."""
    metric = _BY_NAME.get(name)
    if metric:
        return metric.label, metric.about
    if name == _COST[0]:
        return _COST[1:]
    if name == "spread":
        return "Spread", "standard deviation of a question's episodes, correct or not"
    return name, f"one of {name.partition('@')[2]} episodes of a question is correct"


def written(name: str, value: float) -> str:
    """A metric's value as people are shown it."""
    metric = _BY_NAME.get(name)
    unit = metric.unit if metric else "dollars" if name == _COST[0] else "rate"
    if unit == "rate" and name != "spread":
        return f"{value:.1%}"
    if unit == "dollars":
        return f"${value:,.2f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


def cost_metric(price: Price) -> Metric:
    """Dollars for 1,000 questions."""

    def cost(each: Prediction) -> float | None:
        took = each.chosen.cost if each.chosen else each
        if took.prompt_tokens is None or took.sampled_tokens is None:
            return None
        judged = each.chosen.cost.judge_dollars * 1000 if each.chosen else 0.0
        return (took.prompt_tokens * price.prompt + took.sampled_tokens * price.completion) / 1000 + judged

    return Metric(*_COST, cost, "dollars")


def compute_metrics(predictions: Sequence[Prediction], price: Price | None = None) -> dict[str, Estimate]:
    """Each metric of one policy's episodes, by name; without those that apply to none.

    With several episodes of a question, the question counts once, with their mean; with two or more each, there are
    `pass@k` and `spread` too: the chance that one of k is right, and the standard deviation of a question's episodes.
    """
    groups = list(by_question(predictions).values())
    found: dict[str, Estimate] = {}
    for metric in (*METRICS, *([cost_metric(price)] if price else [])):
        estimate = _estimated(metric, groups)
        if estimate is not None:
            found[metric.name] = estimate
    samples = min(map(len, groups), default=0)
    if samples > 1:
        right = [sum(each.correct for each in group) for group in groups]
        for k in _ks(samples):
            values = [pass_at(k, count, len(group)) for count, group in zip(right, groups, strict=True)]
            found[f"pass@{k}"] = _of_rate(values)
        found["spread"] = _of_mean([float(np.std([each.correct for each in group], ddof=1)) for group in groups])
    return found


def by_kind(predictions: Sequence[Prediction]) -> dict[str, Estimate]:
    """Accuracy by the questions' kind, the commonest first; empty where they have none."""
    kinds: dict[str, list[Prediction]] = {}
    for each in predictions:
        if each.kind is not None:
            kinds.setdefault(each.kind, []).append(each)
    accuracy = METRICS[0]
    found = {kind: _estimated(accuracy, list(by_question(those).values())) for kind, those in kinds.items()}
    told = {kind: each for kind, each in found.items() if each is not None}
    return dict(sorted(told.items(), key=lambda item: (-item[1].questions, item[0])))


def _ks(samples: int) -> Iterator[int]:
    """1, 2, 4, 8 and so on, and the number of samples."""
    k = 1
    while k < samples:
        yield k
        k *= 2
    yield samples


def _estimated(metric: Metric, groups: Sequence[Sequence[Prediction]]) -> Estimate | None:
    given = [[value for each in group if (value := metric.of(each)) is not None] for group in groups]
    values = [list(map(float, each)) for each in given if each]
    if not values:
        return None
    if metric.quantile is not None:
        return _of_quantile(values, metric.quantile)
    means = [sum(each) / len(each) for each in values]
    return _of_rate(means) if metric.unit == "rate" else _of_mean(means)


def _of_rate(shares: Sequence[float]) -> Estimate:
    low, high = wilson(sum(shares), len(shares))
    return Estimate(value=sum(shares) / len(shares), low=low, high=high, questions=len(shares))


def _of_mean(values: Sequence[float]) -> Estimate:
    low, high = bootstrap(values)
    return Estimate(value=math.fsum(values) / len(values), low=low, high=high, questions=len(values))


def _of_quantile(values: Sequence[Sequence[float]], quantile: float) -> Estimate:
    """Of all episodes; whole questions are drawn anew, for the episodes of one are alike."""
    longest = max(map(len, values))
    padded = np.full((len(values), longest), np.nan)
    for row, each in zip(padded, values, strict=True):
        row[: len(each)] = each

    is_ragged = bool(np.isnan(padded).any())
    quantile_of = np.nanquantile if is_ragged else np.quantile  # which takes a twentieth of the time

    def statistic(drawn: NDArray[Any]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = quantile_of(drawn.reshape(len(drawn), -1), quantile, axis=1)
        return found

    low, high = bootstrap(padded, statistic)
    return Estimate(value=float(quantile_of(padded, quantile)), low=low, high=high, questions=len(values))
