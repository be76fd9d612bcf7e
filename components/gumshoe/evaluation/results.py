"""What `metrics.json` holds. `metrics.schema.json` beside this file is its JSON Schema."""

import io
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gumshoe.artifacts.storage import write_atomically
from gumshoe.errors import UsageError, faults_of
from gumshoe.evaluation.metrics import METRICS, Estimate, described, written
from gumshoe.rewards.best_of_n import Way
from gumshoe.scenarios.scenario import ScenarioRecord

METRICS_FILE, PREDICTIONS, TABLE, REPORT = "metrics.json", "predictions.jsonl", "predictions.csv", "report.html"
"""The files of an evaluation."""


_NAMES = "By name; one that applies to no episode is left out. " + "; ".join(
    f"{name}: {described(name)[1]}" for name in (*(each.name for each in METRICS), "cost_per_1000", "pass@k", "spread")
)


class Agreement(BaseModel):
    """How two judges agree on a policy's answers."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    judges: tuple[str, str]
    """The first decides."""
    answers: int
    """Those that were judged: "I don't know" is not."""
    agreed: int
    kappa: float | None
    """Cohen's; null of no answers."""
    disagreements: tuple[str, ...]
    """`scenario/sample` of each answer on which they differ."""


class JudgeResult(BaseModel):
    """A judge, and what asking it came to."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    name: str
    usage: dict[str, float]
    """Requests, tokens, dollars and seconds of the last run, of a judge that is a model; empty otherwise. What it had
    judged before is not asked, nor counted, again."""


class ChoiceResult(BaseModel):
    """How one of several samples of a question was chosen to be its answer."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    way: Way
    by: str
    """Who compared, or judged."""


class PolicyResult(BaseModel):
    """One policy, measured."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    name: str
    """What it is called in this evaluation."""
    policy: str
    """As it was named on the command line."""
    version: str
    """What its trajectories name as theirs."""
    environment: dict[str, Any]
    """That its episodes ran in: its name and settings."""
    is_unseen: bool
    """These scenarios were checked against what it learned from and was chosen on; false where that is not known."""
    episodes: int
    run_again: int
    """Episodes that were begun again for want of infrastructure."""
    metrics: Annotated[dict[str, Estimate], Field(description=_NAMES)]
    kinds: dict[str, Estimate]
    """Accuracy by kind of question."""
    agreement: Agreement | None = None
    control_reward_map: dict[str, tuple[float, ...]]
    """The reward of each episode, by question: with it a later run needs no run of the baseline."""
    correct_map: dict[str, tuple[bool, ...]]
    """Whether each episode's answer is correct, by question."""


class Difference(BaseModel):
    """A candidate's mean less a baseline's, of the same questions."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    candidate: float
    baseline: float
    difference: float
    low: float
    """Lower end of the paired bootstrap interval."""
    high: float


class CostPair(BaseModel):
    """What an answer takes, in the mean of the questions: of all samples, where one of several is chosen."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    candidate: float
    baseline: float
    ratio: float | None
    """How many times the baseline's; null where that is 0."""


class Comparison(BaseModel):
    """A candidate against a baseline."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    candidate: str
    baseline: str
    questions: int
    level: float
    """Of the intervals: 0.95 is 95 %."""
    accuracy: Difference
    p_value: float
    """Of McNemar's exact test, two-sided, over the questions that changed sides; with several episodes of each question
    it is the sign test of their means."""
    wins: int
    """Questions that the candidate answers correctly more often than the baseline."""
    losses: int
    ties: int
    reward: Difference
    beat_rate: Estimate
    """How often an episode of the candidate has a higher reward than one of the baseline's of the same question; equal
    ones count half."""
    gained: tuple[str, ...]
    """Ids of the questions that were won."""
    lost: tuple[str, ...]
    costs: Annotated[dict[str, CostPair], Field(exclude_if=lambda each: not each)] = {}
    """By name, where one of the two chooses among several samples: turns, prompt_tokens, sampled_tokens, seconds,
    judge_requests."""

    @property
    def told_costs(self) -> str:
        """What an answer of the candidate takes beside one of the baseline, in words."""
        parts = []
        for name, pair in self.costs.items():
            if name == "judge_requests" and not (pair.candidate or pair.baseline):
                continue
            ratio = f" ({pair.ratio:.1f} times)" if pair.ratio is not None else ""
            both = f"{written(name, pair.candidate)} against {written(name, pair.baseline)}"
            parts.append(f"{both} {name.replace('_', ' ')}{ratio}")
        return ", ".join(parts)


class EvaluationResult(BaseModel):
    """An evaluation, as `metrics.json` has it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    format: Literal["gumshoe.metrics/1"] = "gumshoe.metrics/1"
    scenarios: ScenarioRecord
    """What was asked."""
    index: str
    """The content of the index that was searched."""
    split: str | None
    is_whole: bool
    """All of the split was asked; false where a limit was given."""
    samples: int
    """Episodes of each question."""
    settings: dict[str, Any]
    """Of each episode: seed, sampling, bounds."""
    judges: tuple[JudgeResult, ...]
    """The first decides."""
    policies: tuple[PolicyResult, ...]
    comparisons: tuple[Comparison, ...] = ()
    """Each policy against the first."""
    choice: Annotated[ChoiceResult | None, Field(exclude_if=lambda each: each is None)] = None
    """Where one of several samples is a question's answer; all else is measured of that one."""

    def bought(self, policy: PolicyResult) -> str:
        """What a policy's samples bought, and what they took, in a sentence; empty where none was chosen from."""
        if self.choice is None:
            return ""
        of = {name: written(name, each.value) for name, each in policy.metrics.items()}
        way = "the majority" if self.choice.way == "majority" else "the best"
        told = [f"{of['all_turns']} turns"]
        if "all_sampled_tokens" in of:
            told.append(f"{of['all_prompt_tokens']} prompt and {of['all_sampled_tokens']} sampled tokens")
        told.append(f"{of['all_seconds']} s together and {of['longest_seconds']} s for the longest")
        if policy.metrics["judge_requests"].value:
            told.append(f"{of['judge_requests']} judge requests with {of['judge_tokens']} tokens")
        return (
            f"{policy.name}: {way} of {self.samples} samples, by {self.choice.by}, is correct in {of['accuracy']}; one "
            f"sample alone in {of['one_sample']}, any of them in {of['any_sample']}. A question takes "
            f"{', '.join(told)}"
        )

    def write(self, directory: Path) -> None:
        """As `metrics.json` in a directory, all or nothing."""
        write_atomically(directory / METRICS_FILE, io.BytesIO(self.model_dump_json(indent=2).encode() + b"\n"))


def read_result(place: str) -> tuple[EvaluationResult, PolicyResult]:
    """An evaluation and one of its policies: DIR or FILE, with `#NAME` where it has several.

    Raises:
        UsageError: there is no evaluation, no such policy, or several and none is named.
    """
    where, _, name = place.partition("#")
    path = Path(where) / METRICS_FILE if Path(where).is_dir() else Path(where)
    try:
        found = EvaluationResult.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(
            "evaluation.not-found",
            f"no evaluation at {where}: {error.strerror}; name a directory that `gumshoe evaluate` wrote, or its "
            f"{METRICS_FILE}",
        ) from None
    except ValidationError as error:
        raise UsageError(
            "evaluation.invalid-metrics-file", f"{path} is not a {METRICS_FILE} of gumshoe: {faults_of(error)}"
        ) from None
    names = [each.name for each in found.policies]
    if not name and len(names) == 1:
        name = names[0]
    chosen = next((each for each in found.policies if each.name == name), None)
    if chosen is None:
        hint = f"write {where}#NAME with one of {', '.join(names)}"
        if name:
            raise UsageError("evaluation.policy-not-found", f"{path} has no policy {name!r}; {hint}")
        raise UsageError("evaluation.policy-not-named", f"{path} has {len(names)} policies; {hint}")
    return found, chosen
