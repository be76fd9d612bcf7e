"""Pipeline steps that evaluate the base model and adapters, and decide if an adapter passes the gate."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import Field

from gumshoe.artifacts.manifest import content_digest, describe_files, find_artifact_files
from gumshoe.artifacts.private_data import mark_private
from gumshoe.artifacts.storage import explain_os_errors
from gumshoe.artifacts.store import Store
from gumshoe.corpus import SCENARIOS_FILE
from gumshoe.environments.registry import EnvFactory, NamedEnvironment
from gumshoe.evaluation.canary_evaluation import CanarySettings
from gumshoe.evaluation.evaluate import evaluate
from gumshoe.evaluation.evaluation_request import EvaluationRequest, NamedPolicy
from gumshoe.evaluation.gate import Decision, GateSettings, decide_gate
from gumshoe.evaluation.metrics import describe_metric, format_value
from gumshoe.evaluation.report import write_report
from gumshoe.evaluation.results import REPORT, EvaluationResult, PolicyResult, read_result
from gumshoe.evaluation.trained_settings import find_chat_settings, open_trained_env
from gumshoe.inference.policy import Sampling
from gumshoe.inference.policy_names import PolicyName
from gumshoe.model_validation import ParameterModel, validate_model
from gumshoe.rewards.best_of_n import ChoiceSettings
from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.rollouts.policy_limits import PolicyLimits
from gumshoe.rollouts.writer import RolloutOptions
from gumshoe.scenarios.canary_record import CanaryRecord
from gumshoe.terminal import progress

BASE, CURRENT, ADAPTER = "base", "current", "adapter"
DECISION, SUMMARY = "gate.json", "summary.md"
_SUMMARY_METRICS = (
    *("accuracy", "source_accuracy", "unanswerable_accuracy", "found", "read", "unusable", "turns", "reward"),
    "seconds_p50",
    *("one_sample", "any_sample", "all_turns", "all_sampled_tokens", "all_seconds", "judge_requests"),
)


class EvaluationLimits(ParameterModel):
    """Limits, chat settings and environment of each episode of an evaluation."""

    max_turns: int | None = Field(None, ge=1)
    """If unset, turns, tokens and context are those of the training of the adapter or the base model."""
    max_tokens: int | None = Field(None, ge=1)
    """Maximum number of tokens per turn."""
    max_context: int | None = Field(None, ge=1)
    """Maximum number of tokens per episode."""
    chat: ChatSettings | None = None
    """Chat settings, the same as in training; if unset, those that an adapter was trained with."""
    environment: NamedEnvironment | None = None
    """Environment, the same as in training; if unset, the one of an adapter's training, or that fits the index."""

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> "EvaluationLimits":
        """Create limits from the pipeline's parameter.

        Raises:
            UsageError: if a name is unknown, or a value is not an integer >= 1.
        """
        return validate_model(cls, given, "evaluation.invalid-limits", "invalid limits")

    def find_limits(self, base_model: str, *adapters: Path) -> PolicyLimits:
        """Return the limits of episodes. The first one of the adapters and the base model with a record counts."""
        given = self.model_dump(include={each.name for each in fields(PolicyLimits)})
        return PolicyLimits.of([*adapters, *PolicyName.parse(f"local:{base_model}").trained_directories], **given)


def evaluate_policies(
    index: Path,
    scenarios: Path,
    base_model: str,
    adapters: Mapping[str, Path],
    judge: str,
    limits: Mapping[str, Any],
    directory: Path,
    page: Path,
    choice: Mapping[str, Any] | None = None,
    canaries: str = "",
    agent: str = "",
) -> PolicyResult:
    """Evaluate the base model and its adapters, by name, on the test split. Return the result of the last one.

    `limits` has the fields of `EvaluationLimits`. Turns, tokens and context that it leaves out are those of the last
    adapter's training, or of the base model's. `choice` has those of `ChoiceSettings`, to choose among several
    samples; without it, one sample is taken greedily. The report is also written to `page`. Directories without an
    adapter are skipped. `canaries` is the path or the URI of a record of canaries, to measure what the policies
    memorized. `agent` runs the episodes; if empty, Gumshoe's own loop does. If `directory` already has an evaluation of
    the base model, it is not evaluated again.

    Raises:
        UsageError: if the settings are wrong; no episode was started.
        UnavailableError: if questions have no answer, or answers have no verdict.
    """
    policies = [NamedPolicy(BASE, f"local:{base_model}")]
    policies += [
        NamedPolicy(name, f"local:{base_model}#{place}")
        for name, place in adapters.items()
        if (place / "adapter_config.json").exists()
    ]
    choice_settings, given = ChoiceSettings.from_mapping(choice or {}), EvaluationLimits.from_mapping(limits)
    episode_limits = given.find_limits(base_model, *reversed([*adapters.values()]))
    settings = EvaluationRequest(
        rollout=RolloutOptions(
            index=index,
            scenarios=str(scenarios / SCENARIOS_FILE),
            split="test",
            policy="",
            samples=choice_settings.samples if choice_settings else 1,
            sampling=Sampling(
                choice_settings.temperature if choice_settings else 0.0, max_tokens=episode_limits.max_tokens
            ),
            limits=episode_limits.episode,
            chat=given.chat,
            environment=given.environment,
            agent=AgentSettings.parse_option(agent or None),
        ),
        policies=tuple(policies),
        judges=(judge,),
        choice=choice_settings,
        canaries=CanarySettings(CanaryRecord.read(canaries)) if canaries else None,
    )
    found = asyncio.run(evaluate(settings, directory, progress))
    write_report(found, settings, directory / REPORT)
    mark_private(directory, found.scenarios.inboxes, beside=[page.name])
    shutil.copyfile(directory / REPORT, page)
    return found.result.policies[-1]


def find_baseline_settings(index: Path, base_model: str, limits: Mapping[str, Any]) -> tuple[ChatSettings, EnvFactory]:
    """Return the chat settings and the environment in which `evaluate_policies` would evaluate the base model alone.

    Raises:
        UsageError: if they are not those that the base model was trained with.
    """
    given = EvaluationLimits.from_mapping(limits)
    rollout = RolloutOptions(index, scenarios="", policy="", chat=given.chat, environment=given.environment)
    request = EvaluationRequest(rollout, (NamedPolicy(BASE, f"local:{base_model}"),))
    return find_chat_settings(request) or ChatSettings(), open_trained_env(request)


def decide_and_write(directory: Path, settings: GateSettings) -> Decision:
    """Decide if the adapter of an evaluation passes the gate against the adapter in service, or the base model.

    The decision is written to the evaluation's directory, as JSON and Markdown.

    Raises:
        UsageError: if the evaluation does not have both.
    """
    candidate = read_result(f"{directory}#{ADAPTER}")
    names = [each.name for each in candidate[0].policies]
    baseline = read_result(f"{directory}#{CURRENT if CURRENT in names else BASE}")
    decision = decide_gate(candidate, baseline, settings)
    with explain_os_errors(directory):
        (directory / DECISION).write_text(decision.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (directory / SUMMARY).write_text(_summary(decision, candidate[0]), encoding="utf-8")
    return decision


def choose_best(directories: Sequence[Path], settings: GateSettings) -> tuple[list[Decision], int, str]:
    """Return the gate's decisions on several adapters, the index of the best one, and a summary in Markdown.

    The best is the most accurate of those that pass, or of all if none passes. With more adapters, it is more likely
    that one is good by chance, so the levels are stricter (https://en.wikipedia.org/wiki/Bonferroni_correction).

    Raises:
        UsageError: if an evaluation does not have both policies (see `decide`).
    """
    count = len(directories)
    stricter = settings.model_copy(update={"level": 1 - (1 - settings.level) / count, "max_p": settings.max_p / count})
    decisions = [decide_and_write(each, stricter) for each in directories]
    gains = [(each.passed, each.comparison.accuracy.candidate) for each in decisions]
    best = gains.index(max(gains))
    texts = [(each / SUMMARY).read_text(encoding="utf-8") for each in directories]
    verdict = f"Number {best + 1} of {count} is the best" + ("" if decisions[best].passed else ", and none passes")
    return decisions, best, "\n".join([f"{verdict}.", "", *texts])


def count_changes(directory: Path, decision: Decision) -> list[list[int]]:
    """Return the table of McNemar's test: answers by baseline (rows) and candidate (columns), correct and wrong [2, 2].

    The questions with several episodes count once per episode.
    """
    pair = (decision.comparison.baseline, decision.comparison.candidate)
    before, after = (read_result(f"{directory}#{name}")[1].correct_map for name in pair)
    changes = Counter(each for id_ in after for each in zip(before[id_], after[id_], strict=True))
    return [[changes[row, column] for column in (True, False)] for row in (True, False)]


def publish_report(directory: Path, decision: Decision, store: str, run: str) -> str:
    """Publish an evaluation and the gate's decision as a report of a run. Return its reference.

    Raises:
        StorageError: if the store rejects it.
        UnavailableError: if the store does not answer.
    """
    version = content_digest(describe_files(find_artifact_files(directory)))[:12]
    settings = {"passed": decision.passed, "code": decision.code, "why": decision.why}
    return Store(store).publish(directory, f"runs/{run}/reports", version, settings=settings).manifest.reference


def _summary(decision: Decision, result: EvaluationResult) -> str:
    rows = [
        f"| {describe_metric(name)[0]} | " + " | ".join(_format_metric(each, name) for each in result.policies) + " |"
        for name in _SUMMARY_METRICS
        if all(name in each.metrics for each in result.policies)
    ]
    names = [each.name for each in result.policies]
    return "\n".join(
        [
            f"# {'Passed' if decision.passed else 'Not passed'}",
            "",
            decision.why_with_code,
            "",
            *(f"- {each.name}: {each.memorised.summary}" for each in result.policies if each.memorised),
            "",
            f"| {len(result.scenarios.ids):,} questions | {' | '.join(names)} |",
            f"|---|{'---|' * len(names)}",
            *rows,
            "",
        ]
    )


def _format_metric(policy: PolicyResult, name: str) -> str:
    found = policy.metrics[name]
    return f"{format_value(name, found.value)} ({format_value(name, found.low)} to {format_value(name, found.high)})"
