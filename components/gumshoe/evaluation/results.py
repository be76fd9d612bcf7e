"""What `metrics.json` holds. `metrics.schema.json` beside this file is its JSON Schema."""

import io
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gumshoe.artifacts.storage import write_atomically
from gumshoe.errors import UsageError, faults_of
from gumshoe.evaluation.metrics import METRICS, Estimate, described
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


class PolicyResult(BaseModel):
    """One policy, measured."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    name: str
    """What it is called in this evaluation."""
    policy: str
    """As it was named on the command line."""
    version: str
    """What its trajectories name as theirs."""
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


class EvaluationResult(BaseModel):
    """An evaluation, as `metrics.json` has it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    format: Literal["gumshoe.metrics/1"] = "gumshoe.metrics/1"
    scenarios: ScenarioRecord
    """What was asked."""
    index: str
    """The content of the mail index that was searched."""
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
            f"there is no evaluation at {where} ({error.strerror}); name a directory that `gumshoe evaluate` wrote, or "
            f"its {METRICS_FILE}"
        ) from None
    except ValidationError as error:
        raise UsageError(f"{path} is no {METRICS_FILE} of gumshoe ({faults_of(error)})") from None
    names = [each.name for each in found.policies]
    if not name and len(names) == 1:
        name = names[0]
    chosen = next((each for each in found.policies if each.name == name), None)
    if chosen is None:
        said = f"no policy {name!r}" if name else "several policies"
        raise UsageError(f"{path} holds {said}; write {where}#NAME with one of {', '.join(names)}")
    return found, chosen
