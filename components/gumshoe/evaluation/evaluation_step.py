"""What the pipeline's steps do with policies: measure the base model or an adapter beside it, and decide."""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gumshoe.artifacts.manifest import artifact_files, content_digest, describe
from gumshoe.artifacts.private_data import mark
from gumshoe.artifacts.storage import explain_os_errors
from gumshoe.artifacts.store import Store
from gumshoe.errors import UsageError, faults_of
from gumshoe.evaluation.evaluate import EvaluationRequest, NamedPolicy, evaluate
from gumshoe.evaluation.gate import Decision, GateSettings, decide_gate
from gumshoe.evaluation.metrics import described, written
from gumshoe.evaluation.report import write_report
from gumshoe.evaluation.results import REPORT, EvaluationResult, PolicyResult, read_result
from gumshoe.inference.policy import Sampling
from gumshoe.rewards.best_of_n import ChoiceSettings
from gumshoe.rollouts.episode import EpisodeLimits
from gumshoe.rollouts.writer import RolloutOptions
from gumshoe.scenarios.scenario import SCENARIOS
from gumshoe.terminal import progress

BASE, CURRENT, ADAPTER = "base", "current", "adapter"
DECISION, SUMMARY = "gate.json", "summary.md"
_SUMMARISED = (
    *("accuracy", "source_accuracy", "found", "read", "unusable", "turns", "reward", "seconds_p50"),
    *("one_sample", "any_sample", "all_turns", "all_sampled_tokens", "all_seconds", "judge_requests"),
)


class MeasuringLimits(BaseModel):
    """Limits of each episode of an evaluation. Kubeflow hands every number over as a float; a whole one is taken."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_turns: int = Field(10, ge=1)
    max_tokens: int = Field(512, ge=1)
    """Of one turn."""
    max_context: int = Field(8192, ge=1)
    """Tokens of the whole episode."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "MeasuringLimits":
        """Read the limits from the pipeline's parameter.

        Raises:
            UsageError: a name is unknown, or a value is not a whole number from 1.
        """
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            raise UsageError("evaluation.invalid-limits", f"invalid limits: {faults_of(error)}") from None


def measure_policies(
    index: Path,
    scenarios: Path,
    base_model: str,
    adapters: Mapping[str, Path],
    judge: str,
    limits: Mapping[str, Any],
    directory: Path,
    page: Path,
    choice: Mapping[str, Any] | None = None,
) -> PolicyResult:
    """Measure the base model, and adapters of it by name, on the test split, and return the last of them.

    `limits` are those of `MeasuringLimits`. `choice` says how one of several samples becomes a question's answer, as
    `ChoiceSettings`; without it, one sample is taken greedily. The report is also written to `page`, beside the
    evaluation's directory. A directory without an adapter is left out. If the base model was measured before, none of
    its questions are asked again.

    Raises:
        UsageError: it cannot be carried out; nothing was begun.
        UnavailableError: questions have no answer, or answers no verdict.
    """
    policies = [NamedPolicy(BASE, f"local:{base_model}")]
    policies += [
        NamedPolicy(name, f"local:{base_model}#{place}")
        for name, place in adapters.items()
        if (place / "adapter_config.json").exists()
    ]
    asked, chosen, most = str(scenarios / SCENARIOS), ChoiceSettings.of(choice or {}), MeasuringLimits.of(limits)
    settings = EvaluationRequest(
        rollout=RolloutOptions(
            index=index,
            scenarios=asked,
            split="test",
            policy="",
            samples=chosen.samples if chosen else 1,
            sampling=Sampling(chosen.temperature if chosen else 0.0, max_tokens=most.max_tokens),
            limits=EpisodeLimits(most.max_turns, most.max_context),
        ),
        policies=tuple(policies),
        judges=(judge,),
        choice=chosen,
    )
    found = asyncio.run(evaluate(settings, directory, progress))
    write_report(found, settings, directory / REPORT)
    mark(directory, found.scenarios.inboxes, beside=[page.name])
    shutil.copyfile(directory / REPORT, page)
    return found.result.policies[-1]


def decide(directory: Path, settings: GateSettings) -> Decision:
    """What the gate says of the adapter of an evaluation, against the one in service or else the base model.

    It is written beside the evaluation, as JSON and as Markdown.

    Raises:
        UsageError: the evaluation is not of both.
    """
    candidate = read_result(f"{directory}#{ADAPTER}")
    names = [each.name for each in candidate[0].policies]
    baseline = read_result(f"{directory}#{CURRENT if CURRENT in names else BASE}")
    decision = decide_gate(candidate, baseline, settings)
    with explain_os_errors(directory):
        (directory / DECISION).write_text(decision.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (directory / SUMMARY).write_text(_summary(decision, candidate[0]), encoding="utf-8")
    return decision


def chosen(directories: Sequence[Path], settings: GateSettings) -> tuple[list[Decision], int, str]:
    """What the gate says of several adapters, the place of the best, and all of it as Markdown.

    The best is the one that answers most questions of those that pass; of all, where none does. The more there are,
    the likelier one is good by chance: each is held to a stricter level (Bonferroni's correction,
    https://en.wikipedia.org/wiki/Bonferroni_correction).

    Raises:
        UsageError: as `decide`.
    """
    count = len(directories)
    stricter = replace(settings, level=1 - (1 - settings.level) / count, max_p=settings.max_p / count)
    decisions = [decide(each, stricter) for each in directories]
    gains = [(each.passed, each.comparison.accuracy.candidate) for each in decisions]
    best = gains.index(max(gains))
    texts = [(each / SUMMARY).read_text(encoding="utf-8") for each in directories]
    verdict = f"Number {best + 1} of {count} is the best" + ("" if decisions[best].passed else ", and none passes")
    return decisions, best, "\n".join([f"{verdict}.", "", *texts])


def keep(directory: Path, decision: Decision, store: str, run: str) -> str:
    """Publish an evaluation and what the gate said of it as a report of a run; its reference.

    Raises:
        StorageError, UnavailableError: the store failed.
    """
    version = content_digest(describe(artifact_files(directory)))[:12]
    settings = {"passed": decision.passed, "code": decision.code, "why": decision.why}
    return Store(store).publish(directory, f"runs/{run}/reports", version, settings=settings).manifest.reference


def _summary(decision: Decision, result: EvaluationResult) -> str:
    rows = [
        f"| {described(name)[0]} | " + " | ".join(_shown(each, name) for each in result.policies) + " |"
        for name in _SUMMARISED
        if all(name in each.metrics for each in result.policies)
    ]
    names = [each.name for each in result.policies]
    return "\n".join(
        [
            f"# {'Passed' if decision.passed else 'Not passed'}",
            "",
            decision.why_with_code,
            "",
            f"| {len(result.scenarios.ids):,} questions | {' | '.join(names)} |",
            f"|---|{'---|' * len(names)}",
            *rows,
            "",
        ]
    )


def _shown(policy: PolicyResult, name: str) -> str:
    found = policy.metrics[name]
    return f"{written(name, found.value)} ({written(name, found.low)} to {written(name, found.high)})"
