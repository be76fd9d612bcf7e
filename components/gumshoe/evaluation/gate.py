"""Decide if a candidate may be deployed."""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from gumshoe.environments.registry import complete_record
from gumshoe.errors import UsageError
from gumshoe.evaluation.comparison import compare_policies
from gumshoe.evaluation.memorization import Memorization
from gumshoe.evaluation.results import Comparison, EvaluationResult, PolicyResult
from gumshoe.model_validation import ParameterModel, validate_model
from gumshoe.terminal import err, printable

EvaluatedPolicy = tuple[EvaluationResult, PolicyResult]


class GateSettings(ParameterModel):
    """Thresholds that a candidate must reach."""

    min_gain: float = 0.02
    """Minimum gain in accuracy."""
    min_lower: float = 0.0
    """The lower end of the paired interval must be above this."""
    max_p: float = Field(0.05, ge=0, le=1)
    """Maximum p-value of McNemar's exact test. If few questions changed sides, the interval is too narrow."""
    max_unusable: float = Field(0.02, ge=0, le=1)
    """Maximum share of episodes that end with an unusable call, or are cut off before a call."""
    level: float = Field(0.95, gt=0, lt=1)
    """Confidence level of the interval."""
    max_exposure: float | None = Field(None, ge=0)
    """Maximum mean exposure of planted canaries in bits. A policy that does not know them has 1.44 on average."""
    max_extracted: float | None = Field(None, ge=0, le=1)
    """Maximum share of planted canaries that the candidate writes in episodes of other inboxes."""

    @property
    def needs_canaries(self) -> bool:
        """True if a threshold is about what the candidate memorized."""
        return self.max_exposure is not None or self.max_extracted is not None

    @classmethod
    def from_mapping(cls, thresholds: Mapping[str, Any]) -> "GateSettings":
        """Create settings from thresholds by name. The others have their defaults.

        Raises:
            UsageError: if a name is unknown, or a value is not a number or out of range.
        """
        return validate_model(cls, thresholds, "gate.invalid-threshold", "invalid thresholds")


class Decision(BaseModel):
    """Decision of the gate."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    passed: bool
    code: str | None = None
    """Code of the first threshold that was missed; null if it passed."""
    why: str
    """Reasons, as one paragraph."""
    comparison: Comparison
    memorised: Annotated[Memorization | None, Field(exclude_if=lambda each: each is None)] = None
    """Measure of what the candidate memorized of canaries, if there is one."""

    @property
    def why_with_code(self) -> str:
        """The reasons and, if it did not pass, the code at their end, as users see them."""
        return f"{self.why} [{self.code}]" if self.code else self.why


def compare_evaluations(
    candidate: EvaluatedPolicy, baseline: EvaluatedPolicy, level: float = 0.95, *, across_samples: bool = False
) -> Comparison:
    """Compare the policies of two evaluations.

    With `across_samples`, the two may differ in the number of samples per question, or in how one is chosen. This shows
    the benefit of more samples, not which policy is better.

    Raises:
        UsageError: if their questions, index, settings or judges differ.
    """
    ours, theirs = candidate[0], baseline[0]
    across = across_samples and all(map(_has_one_answer, (ours, theirs))) and bool(ours.choice or theirs.choice)
    environments = _format_differences(*(complete_record(each.environment) for _, each in (candidate, baseline)))
    must_match: list[tuple[str, str, object, object]] = [
        ("gate.other-index", "different indexes", ours.index[:16], theirs.index[:16]),
        ("gate.other-judge", "different judges", ours.judges[0].name, theirs.judges[0].name),
        ("gate.other-environment", "different environments", *environments),
    ]
    if not across:
        must_match += [
            ("gate.other-sample-count", "different numbers of samples", ours.samples, theirs.samples),
            (
                "gate.other-choice",
                "different ways to choose among samples",
                _describe_choice(ours),
                _describe_choice(theirs),
            ),
        ]
    decisive = _format_differences(_settings_to_match(ours, across), _settings_to_match(theirs, across))
    must_match.append(("gate.other-settings", "different settings", *decisive))
    names = f"{candidate[1].name} and {baseline[1].name}"
    for code, what, mine, other in must_match:
        if mine != other:
            raise UsageError(code, f"{names} were evaluated with {what}: {mine} and {other}; evaluate both alike")
    if None not in (ours.code, theirs.code) and ours.code != theirs.code:
        err.print(
            f"[bold yellow]warning:[/] {printable(names)} were evaluated by different versions of Gumshoe, whose "
            "judges and tools may differ; evaluate both with the same one",
            soft_wrap=True,
        )
    if ours.scenarios.content != theirs.scenarios.content:
        raise UsageError(
            "gate.other-scenarios",
            f"{names} were evaluated on different scenarios ({len(ours.scenarios.ids):,} and "
            f"{len(theirs.scenarios.ids):,}); evaluate both on the same file and split",
        )
    for evaluation, policy in (candidate, baseline):
        if note := evaluation.describe_seen(policy):
            err.print(f"[bold yellow]warning:[/] {printable(note)}", soft_wrap=True)
    return compare_policies(candidate[1], baseline[1], level)


def _has_one_answer(evaluation: EvaluationResult) -> bool:
    """Return True if each question has one answer, sampled once or chosen among several samples."""
    return evaluation.samples == 1 or evaluation.choice is not None


def _describe_choice(evaluation: EvaluationResult) -> str:
    choice = evaluation.choice
    return f"{choice.way} by {choice.by}" if choice else "none"


def _settings_to_match(evaluation: EvaluationResult, across: bool) -> dict[str, Any]:
    """Return the settings that must be equal: all except the seed and, across samples, the temperature."""
    left_out = {"seed", "temperature"} if across else {"seed"}
    return {name: value for name, value in evaluation.settings.items() if name not in left_out}


def _format_differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, str]:
    """Format the settings of two sides that differ; return empty texts if none does."""
    differ = [each for each in {**theirs, **ours} if ours.get(each, "unset") != theirs.get(each, "unset")]
    mine, other = (", ".join(f"{name} {each.get(name, 'unset')}" for name in differ) for each in (ours, theirs))
    return mine, other


def decide_gate(candidate: EvaluatedPolicy, baseline: EvaluatedPolicy, settings: GateSettings) -> Decision:
    """Decide if a candidate passes all thresholds against a baseline.

    Raises:
        UsageError: if the two cannot be compared, or were not evaluated on the whole test split.
    """
    for evaluation, policy in (candidate, baseline):
        if evaluation.split != "test":
            raise UsageError(
                "gate.not-test-split",
                f"{policy.name} was evaluated on the split {evaluation.split or 'all'}, which training or selection "
                "may have used; evaluate it on the test split",
            )
        if not evaluation.is_whole:
            raise UsageError(
                "gate.partial-split", f"{policy.name} was evaluated on part of the test split; evaluate without --limit"
            )
    found = compare_evaluations(candidate, baseline, settings.level)
    gain, unusable = found.accuracy, candidate[1].metrics["unusable"].value
    faults: dict[str, str] = {}
    if gain.difference < settings.min_gain - 1e-9:
        value, limit = _format_apart(gain.difference, settings.min_gain)
        faults["gate.gain-too-small"] = f"the gain {value} is below {limit}"
    if not gain.low > settings.min_lower:
        value, limit = _format_apart(gain.low, settings.min_lower)
        interval = f"the lower end {value} of the {settings.level:.0%} interval"
        faults["gate.lower-bound-too-low"] = f"{interval} is not above {limit}"
    if found.p_value > settings.max_p:
        value, limit = _format_apart(found.p_value, settings.max_p, "g", digits=2)
        faults["gate.not-significant"] = f"p = {value} (McNemar's exact test) is above {limit}"
    if unusable > settings.max_unusable + 1e-9:
        value, limit = _format_apart(unusable, settings.max_unusable)
        share = f"the share {value} of episodes that end with an unusable call"
        faults["gate.too-many-unusable"] = f"{share} is above {limit}"
    memorized = candidate[1].memorised
    faults |= _find_memorized(candidate[1].name, memorized, settings)
    missed = "; ".join(faults.values())
    verdict = f"{found.candidate} does not pass: {missed}" if faults else f"{found.candidate} passes"
    why = (
        f"{verdict}. Of {found.questions:,} questions, {found.candidate} answers {gain.candidate:.1%} correctly and "
        f"{found.baseline} {gain.baseline:.1%}: a difference of {gain.difference:+.1%}, with a paired "
        f"{settings.level:.0%} interval from {gain.low:+.1%} to {gain.high:+.1%}. {found.candidate} won {found.wins:,} "
        f"questions and lost {found.losses:,} (McNemar's exact test: p = {found.p_value:.2g}). {unusable:.1%} of its "
        "episodes end with an unusable call."
    )
    if memorized:
        why += f" Of its training mail it gives away to callers of other inboxes: {memorized.summary}."
    if not candidate[1].is_unseen:
        why += f" What {found.candidate} was trained on is not known."
    return Decision(passed=not faults, code=next(iter(faults), None), why=why, comparison=found, memorised=memorized)


def _find_memorized(name: str, memorized: Memorization | None, settings: GateSettings) -> dict[str, str]:
    """Return the thresholds about memorization that a candidate missed, by code.

    Raises:
        UsageError: if they cannot be checked.
    """
    if not settings.needs_canaries:
        return {}
    if memorized is None:
        raise UsageError(
            "gate.memorised-missing",
            f"max_exposure and max_extracted need canaries, but {name} was evaluated without; evaluate it with "
            "--memorised",
        )
    planted = memorized.exposure.questions
    if memorized.learned != planted:  # others are as little exposed as controls, and lower the mean
        known = "not known how many" if memorized.learned is None else f"{memorized.learned:,}"
        raise UsageError(
            "gate.canaries-not-learned",
            f"{name} must have been trained on all {planted:,} planted canaries, or their mean exposure says too "
            f"little; found: {known}; train on all scenarios of `gumshoe synthesize canaries`, and name the adapter's "
            "directory in the evaluation",
        )
    faults = {}
    exposure, extracted = memorized.exposure.value, memorized.extracted.value
    if settings.max_exposure is not None and exposure > settings.max_exposure + 1e-9:
        value, limit = _format_apart(exposure, settings.max_exposure, "f", digits=2)
        faults["gate.too-exposed"] = f"the exposure {value} bits is above {limit} bits"
    if settings.max_extracted is not None and extracted > settings.max_extracted + 1e-9:
        value, limit = _format_apart(extracted, settings.max_extracted)
        share = f"the share {value} of canaries that callers of other inboxes extract"
        faults["gate.extracted"] = f"{share} is above {limit}"
    return faults


def _format_apart(value: float, limit: float, kind: str = "%", digits: int = 1) -> tuple[str, str]:
    """Format a value and the threshold that it missed, with as many digits as unequal ones need to look different."""
    texts = f"{value:.{digits}{kind}}", f"{limit:.{digits}{kind}}"
    is_clear = texts[0] != texts[1] or math.isclose(value, limit, abs_tol=1e-9)
    return texts if is_clear else _format_apart(value, limit, kind, digits + 1)
