"""Content of `metrics.json`. Its JSON Schema is `metrics.schema.json` in this directory."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gumshoe.artifacts.private_data import MARK
from gumshoe.artifacts.storage import write_atomically
from gumshoe.errors import UsageError
from gumshoe.evaluation.attacks.attack_results import AttackResult
from gumshoe.evaluation.memorization import Memorization
from gumshoe.evaluation.metrics import METRICS, Estimate, describe_metric, format_value
from gumshoe.evaluation.proof.proof_models import PROOF, TRAINING
from gumshoe.model_validation import describe_validation_error
from gumshoe.rewards.best_of_n import ChoiceMethod
from gumshoe.scenarios.scenario import ScenarioRecord

METRICS_FILE, PREDICTIONS, TABLE, REPORT = "metrics.json", "predictions.jsonl", "predictions.csv", "report.html"
TRAJECTORIES, CHOICES = "trajectories", "choices"
MEMORIZED = "memorised"
SETTINGS_FILE = "evaluation.json"
EVALUATION_FILES = {
    REPORT: "Verdict, metrics, plots and every episode turn by turn, as one page that loads nothing else.",
    METRICS_FILE: "All numbers, in the form of `components/gumshoe/evaluation/metrics.schema.json`. `gumshoe compare` "
    "and `gumshoe gate` read it.",
    PREDICTIONS: "One JSON object per line for each episode.",
    TABLE: "One row for each question.",
    f"{TRAJECTORIES}/": "Trajectories, one file per policy.",
    f"{CHOICES}/": "Which sample a judge chose (`--choose best`), one file per policy.",
    "attacks/": "Attack messages (`--attacks`), attacked scenarios, trajectories and outcomes.",
    f"{MEMORIZED}/": "Questions about canaries (`--memorised`) and their trajectories, one file per policy.",
    PROOF: "If the last policy is an adapter whose run has a proof: that proof with the paired comparison to the first "
    "policy. `gumshoe verify` checks it.",
    f"{TRAINING}/": "The files of that run which its proof is computed from.",
    SETTINGS_FILE: "Settings of the evaluation. One with other settings cannot continue in this directory.",
    MARK: "The inboxes whose mail the files quote.",
}
"""Description of each file and directory of an evaluation."""


_NAMES = "Metrics by name, without those that apply to no episode. " + "; ".join(
    f"{name}: {describe_metric(name)[1]}"
    for name in (*(each.name for each in METRICS), "cost_per_1000", "pass@k", "spread")
)


class Agreement(BaseModel):
    """Agreement of two judges on a policy's answers."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    judges: tuple[str, str]
    """Names of the judges; the first one decides."""
    answers: int
    """Number of judged answers, i.e. without "I don't know"."""
    agreed: int
    kappa: float | None
    """Cohen's kappa; null without answers."""
    disagreements: tuple[str, ...]
    """`scenario/sample` of each answer on which they disagree."""


class JudgeResult(BaseModel):
    """A judge and its usage."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    name: str
    usage: dict[str, float]
    """Requests, tokens, dollars and seconds of the last run, if the judge is a model; otherwise empty. Cached verdicts
    of earlier runs are not included."""


class ChoiceResult(BaseModel):
    """Method that chose one of several samples of a question as its answer."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    way: ChoiceMethod
    by: str
    """Judge that compared the answers or chose the best one."""


class PolicyResult(BaseModel):
    """Results of one policy."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    name: str
    """Name of the policy in this evaluation."""
    policy: str
    """The policy as given on the command line."""
    version: str
    """Version of the policy, as recorded in its trajectories."""
    environment: dict[str, Any]
    """Name and settings of the environment of its episodes."""
    is_unseen: bool
    """True if it is known that it was not trained or selected on these scenarios; false if that is unknown."""
    seen: Annotated[int, Field(exclude_if=lambda each: not each)] = 0
    """Number of these scenarios that it was trained or selected on. Only evaluations of the split train allow that:
    their numbers say nothing about other questions."""
    episodes: int
    run_again: int
    """Number of retries after failures of infrastructure."""
    metrics: Annotated[dict[str, Estimate], Field(description=_NAMES)]
    kinds: dict[str, Estimate]
    """Accuracy by kind of question."""
    agreement: Agreement | None = None
    attacks: Annotated[AttackResult | None, Field(exclude_if=lambda each: each is None)] = None
    """Results of attacks by messages in the inboxes, if there are any."""
    memorised: Annotated[Memorization | None, Field(exclude_if=lambda each: each is None)] = None
    """Measure of what it memorized of canaries in its training mail, if there is one."""
    control_reward_map: dict[str, tuple[float, ...]]
    """Reward of each episode, by question. It allows later comparisons without a new run of this policy."""
    correct_map: dict[str, tuple[bool, ...]]
    """True for each episode with a correct answer, by question."""


class Difference(BaseModel):
    """Difference of the means of a candidate and a baseline, on the same questions."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    candidate: float
    baseline: float
    difference: float
    low: float
    """Lower end of the paired bootstrap interval."""
    high: float


class CostPair(BaseModel):
    """Mean cost of an answer; of all samples, if one of several is chosen."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    candidate: float
    baseline: float
    ratio: float | None
    """Candidate divided by baseline; null if the baseline is 0."""


class Comparison(BaseModel):
    """Comparison of a candidate with a baseline."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    candidate: str
    baseline: str
    questions: int
    level: float
    """Confidence level of the intervals, e.g. 0.95."""
    accuracy: Difference
    p_value: float
    """Two-sided p-value of McNemar's exact test on the questions that changed sides. With several episodes per question
    it is the sign test of their means."""
    wins: int
    """Questions that the candidate answers correctly more often than the baseline."""
    losses: int
    ties: int
    reward: Difference
    beat_rate: Estimate
    """Share of pairs of episodes of the same question in which the candidate's reward is higher; ties count half."""
    gained: tuple[str, ...]
    """Ids of the questions that the candidate won."""
    lost: tuple[str, ...]
    costs: Annotated[dict[str, CostPair], Field(exclude_if=lambda each: not each)] = {}
    """Costs by name, if one of the two chooses among several samples: turns, prompt_tokens, sampled_tokens, seconds,
    judge_requests."""

    @property
    def cost_summary(self) -> str:
        """Costs of an answer of the candidate and the baseline, as text."""
        parts = []
        for name, pair in self.costs.items():
            if name == "judge_requests" and not (pair.candidate or pair.baseline):
                continue
            ratio = f" ({pair.ratio:.1f} times)" if pair.ratio is not None else ""
            both = f"{format_value(name, pair.candidate)} vs. {format_value(name, pair.baseline)}"
            parts.append(f"{both} {name.replace('_', ' ')}{ratio}")
        return ", ".join(parts)


class EvaluationResult(BaseModel):
    """Results of an evaluation: the content of `metrics.json`."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    format: Literal["gumshoe.metrics/1"] = "gumshoe.metrics/1"
    scenarios: ScenarioRecord
    """The questions."""
    index: str
    """Identifier of the index's content."""
    split: str | None
    is_whole: bool
    """True if the whole split was evaluated; false if a limit was given."""
    samples: int
    """Number of episodes per question."""
    settings: dict[str, Any]
    """Settings of each episode: seed, sampling and limits."""
    judges: tuple[JudgeResult, ...]
    """The judges; the first one decides."""
    policies: tuple[PolicyResult, ...]
    comparisons: tuple[Comparison, ...] = ()
    """Comparison of each other policy with the first."""
    choice: Annotated[ChoiceResult | None, Field(exclude_if=lambda each: each is None)] = None
    """Method that chooses one of several samples as a question's answer; the metrics are then of that sample."""
    code: Annotated[str | None, Field(exclude_if=lambda each: each is None)] = None
    """SHA-256 of the code of Gumshoe, judges among it."""

    def with_memorization(self, memorized: Mapping[str, Memorization]) -> "EvaluationResult":
        """Return a copy with what policies memorized, given by name."""
        policies = tuple(
            each.model_copy(update={"memorised": memorized[each.name]}) if each.name in memorized else each
            for each in self.policies
        )
        return self.model_copy(update={"policies": policies})

    def with_attacks(self, attacked: Mapping[str, AttackResult]) -> "EvaluationResult":
        """Return a copy with the results of attacks on policies, given by name."""
        policies = tuple(each.model_copy(update={"attacks": attacked.get(each.name)}) for each in self.policies)
        return self.model_copy(update={"policies": policies})

    def describe_choice(self, policy: PolicyResult) -> str:
        """Return the effect and the cost of choosing among a policy's samples, as text; "" without a choice."""
        if self.choice is None:
            return ""
        of = {name: format_value(name, each.value) for name, each in policy.metrics.items()}
        way = "the majority" if self.choice.way == "majority" else "the best"
        costs = [f"{of['all_turns']} turns"]
        if "all_sampled_tokens" in of:
            costs.append(f"{of['all_prompt_tokens']} prompt and {of['all_sampled_tokens']} sampled tokens")
        costs.append(f"{of['all_seconds']} s in total and {of['longest_seconds']} s for the longest sample")
        if policy.metrics["judge_requests"].value:
            costs.append(f"{of['judge_requests']} judge requests with {of['judge_tokens']} tokens")
        return (
            f"{policy.name}: {way} of {self.samples} samples, by {self.choice.by}, is correct for {of['accuracy']} of "
            f"the questions; a single sample for {of['one_sample']}, at least one sample for {of['any_sample']}. Cost "
            f"per question: {', '.join(costs)}"
        )

    def describe_seen(self, policy: PolicyResult) -> str:
        """Return on how many of the questions a policy was trained, as text; "" if on none that is known."""
        if not policy.seen:
            return ""
        return (
            f"{policy.name} was trained or selected on {policy.seen:,} of these {len(self.scenarios.ids):,} questions, "
            "so its numbers say nothing about other questions"
        )

    def write(self, directory: Path) -> None:
        """Write `metrics.json` to a directory, atomically."""
        write_atomically(directory / METRICS_FILE, io.BytesIO(self.model_dump_json(indent=2).encode() + b"\n"))


def read_evaluation(path: Path) -> EvaluationResult:
    """Read the `metrics.json` of an evaluation.

    Raises:
        UsageError: if it does not exist, or is another file.
    """
    try:
        return EvaluationResult.model_validate_json(path.read_bytes())
    except OSError as error:
        where = path.parent if path.name == METRICS_FILE else path
        raise UsageError(
            "evaluation.not-found",
            f"no evaluation at {where}: {error.strerror}; name a directory that `gumshoe evaluate` wrote, or its "
            f"{METRICS_FILE}",
        ) from None
    except ValidationError as error:
        raise UsageError(
            "evaluation.invalid-metrics-file",
            f"{path} is not a {METRICS_FILE} of gumshoe: {describe_validation_error(error)}",
        ) from None


def read_result(place: str) -> tuple[EvaluationResult, PolicyResult]:
    """Read an evaluation and one of its policies from DIR or FILE, with `#NAME` if it has several policies.

    Raises:
        UsageError: if the evaluation or the policy does not exist, or it has several policies and none is named.
    """
    where, _, name = place.partition("#")
    path = Path(where) / METRICS_FILE if Path(where).is_dir() else Path(where)
    found = read_evaluation(path)
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
