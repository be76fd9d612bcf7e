"""Whether a candidate goes into service."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pydantic import BaseModel, ConfigDict

from gumshoe.errors import UsageError
from gumshoe.evaluation.comparison import compared
from gumshoe.evaluation.results import Comparison, EvaluationResult, PolicyResult

Place = tuple[EvaluationResult, PolicyResult]


@dataclass(frozen=True, slots=True)
class GateSettings:
    """What a candidate has to reach."""

    min_gain: float = 0.02
    """Least gain in accuracy."""
    min_lower: float = 0.0
    """The lower end of the paired interval must lie above this."""
    max_p: float = 0.05
    """Highest p-value of McNemar's exact test: where few questions changed sides, the interval is too narrow."""
    max_unusable: float = 0.02
    """Highest share of episodes that end with a call that is no use."""
    level: float = 0.95
    """Of the interval."""

    @classmethod
    def of(cls, thresholds: Mapping[str, Any]) -> "GateSettings":
        """By name; those that are not named are the defaults.

        Raises:
            UsageError: there is no such threshold, or one is no number.
        """
        known = [each.name for each in fields(cls)]
        for name, value in thresholds.items():
            if name not in known or not isinstance(value, int | float) or isinstance(value, bool):
                raise UsageError(f"{name}: {value} is none; there are {', '.join(known)}, each a number")
        return cls(**thresholds)


class Decision(BaseModel):
    """What the gate says."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    passed: bool
    why: str
    """One paragraph."""
    comparison: Comparison


def compared_places(
    candidate: Place, baseline: Place, level: float = 0.95, *, across_samples: bool = False
) -> Comparison:
    """Policies of two evaluations.

    `across_samples`: whether one answer that was chosen from several samples may be compared with one of fewer, or
    chosen otherwise. That tells what the samples buy, and not which policy is better.

    Raises:
        UsageError: these were of other questions, or another index, or otherwise run or judged.
    """
    ours, theirs = candidate[0], baseline[0]
    across = across_samples and all(map(_has_one_answer, (ours, theirs))) and bool(ours.choice or theirs.choice)
    alike: list[tuple[str, object, object]] = [
        ("answering from the index", ours.index[:16], theirs.index[:16]),
        ("judged by", ours.judges[0].name, theirs.judges[0].name),
        ("run in the environment", _written(candidate[1].environment), _written(baseline[1].environment)),
    ]
    if not across:
        alike.append(("asked for samples:", ours.samples, theirs.samples))
        alike.append(("answered with", _choice(ours), _choice(theirs)))
    alike.append(("run with", _decisive(ours, across), _decisive(theirs, across)))
    for what, mine, other in alike:
        if mine != other:
            raise UsageError(
                f"{candidate[1].name} was {what} {mine}, and {baseline[1].name} {other}; evaluate both alike"
            )
    if ours.scenarios.content != theirs.scenarios.content:
        raise UsageError(
            f"{candidate[1].name} was evaluated on {len(ours.scenarios.ids):,} scenarios and {baseline[1].name} on "
            f"{len(theirs.scenarios.ids):,}, and they are not the same, or not word for word; evaluate both on the "
            "same file and split"
        )
    return compared(candidate[1], baseline[1], level)


def _has_one_answer(evaluation: EvaluationResult) -> bool:
    """Whether each question has one, whatever number of samples that took."""
    return evaluation.samples == 1 or evaluation.choice is not None


def _choice(evaluation: EvaluationResult) -> str:
    choice = evaluation.choice
    return f"the {choice.way} of them by {choice.by}" if choice else "each of them"


def _decisive(evaluation: EvaluationResult, across: bool) -> str:
    """What episodes were run with, but for the seed, and where samples are one's own, their temperature."""
    left_out = {"seed", "temperature"} if across else {"seed"}
    return _written({name: value for name, value in evaluation.settings.items() if name not in left_out})


def _written(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def decided(candidate: Place, baseline: Place, settings: GateSettings) -> Decision:
    """
    Raises:
        UsageError: the two cannot be compared, or not all of a split was asked.
    """
    for evaluation, policy in (candidate, baseline):
        if evaluation.split != "test":
            raise UsageError(
                f"{policy.name} was evaluated on {evaluation.split or 'all splits'}, with what is there to learn from "
                "or to choose on; a gate needs the test split"
            )
        if not evaluation.is_whole:
            raise UsageError(
                f"{policy.name} was evaluated on part of a split alone, with --limit; a gate needs the whole of it"
            )
    found = compared_places(candidate, baseline, settings.level)
    gain, unusable = found.accuracy, candidate[1].metrics["unusable"].value
    faults = []
    if not gain.low > settings.min_lower:
        faults.append(
            f"the lower end of the {settings.level:.0%} interval, {gain.low:+.1%}, does not lie above "
            f"{settings.min_lower:.1%}"
        )
    if gain.difference < settings.min_gain - 1e-9:
        faults.append(f"the gain of {gain.difference:+.1%} is under {settings.min_gain:.1%}")
    if found.p_value > settings.max_p:
        faults.append(f"by McNemar's exact test p = {found.p_value:.2g}, over {settings.max_p:g}")
    if unusable > settings.max_unusable + 1e-9:
        faults.append(f"{unusable:.1%} of its episodes end with an unusable call, over {settings.max_unusable:.1%}")
    verdict = f"{found.candidate} passes" if not faults else f"{found.candidate} does not pass: {', and '.join(faults)}"
    why = (
        f"{verdict}. Of {found.questions:,} questions it answers {gain.candidate:.1%} correctly and {found.baseline} "
        f"{gain.baseline:.1%}: a difference of {gain.difference:+.1%}, with a paired {settings.level:.0%} interval "
        f"from {gain.low:+.1%} to {gain.high:+.1%}. It won {found.wins:,} questions and lost {found.losses:,} "
        f"(McNemar's exact test: p = {found.p_value:.2g}). {unusable:.1%} of its episodes end with an unusable call."
    )
    if not candidate[1].is_unseen:
        why += " What it learned from is not known."
    return Decision(passed=not faults, why=why, comparison=found)
