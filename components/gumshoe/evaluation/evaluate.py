"""Run policies over scenarios, judge their answers, and write the results.

Invariants: an episode that is on file is not run again; nothing is measured before every question has its episodes and
verdicts, because missing ones are rarely a random sample.
"""

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from gumshoe.artifacts.manifest import code_hash
from gumshoe.artifacts.private_data import mark_private
from gumshoe.artifacts.storage import explain_os_errors, write_atomically
from gumshoe.environments.registry import EnvFactory
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.evaluation.attacks.attack_run import AttackedPolicy, AttackRun
from gumshoe.evaluation.canary_evaluation import ProbedPolicy, check_probed, measure_memorization, prepare_questions
from gumshoe.evaluation.chosen_samples import choose_samples, keep_chosen
from gumshoe.evaluation.comparison import compare_policies
from gumshoe.evaluation.evaluation_request import EvaluationRequest, NamedPolicy
from gumshoe.evaluation.metrics import accuracy_by_kind, compute_metrics
from gumshoe.evaluation.predictions import Prediction, group_by_question, write_predictions, write_table
from gumshoe.evaluation.proof.held_out import write_held_out_proof
from gumshoe.evaluation.proof.proof_models import PROOF
from gumshoe.evaluation.results import (
    CHOICES,
    METRICS_FILE,
    PREDICTIONS,
    REPORT,
    SETTINGS_FILE,
    TABLE,
    TRAJECTORIES,
    Agreement,
    ChoiceResult,
    EvaluationResult,
    JudgeResult,
    PolicyResult,
)
from gumshoe.evaluation.statistics import cohens_kappa
from gumshoe.evaluation.trained_settings import find_chat_settings, open_trained_env
from gumshoe.inference.policy_names import PolicyName, digest_weights
from gumshoe.json_text import load_json
from gumshoe.redaction import redact
from gumshoe.rewards.best_of_n import Choice
from gumshoe.rewards.builtin_rewards import rubric
from gumshoe.rewards.judge import Judge, JudgedQuestion, Verdict
from gumshoe.rewards.judge_registry import describe_judge, model_of, open_judge
from gumshoe.rewards.scoring import JudgedTrajectory, judge_trajectory, map_concurrently
from gumshoe.rollouts.episode_runners import check_policy
from gumshoe.rollouts.policy_limits import PolicyLimits
from gumshoe.rollouts.trajectory import AGENT_FAILURES, Trajectory
from gumshoe.rollouts.writer import find_changed_settings, read_trajectories, run_to_file, select_scenarios
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from gumshoe.terminal import Advance, err, printable

_TRAINED = ("chat", "environment", *(each.name for each in fields(PolicyLimits)))  # settings from a policy's training
_ADDRESS = re.compile(r"https?://[^#]*")  # may change when a server is restarted

ShowProgress = Callable[[str], AbstractContextManager[Advance]]
"""Show the progress of a stage, given its name."""


@dataclass(frozen=True, slots=True)
class EvaluationRun:
    """An evaluation with its scenarios, predictions and trajectories."""

    result: EvaluationResult
    scenarios: ScenarioSet
    predictions: list[Prediction]
    trajectories: dict[str, list[Trajectory]]
    """Trajectories by policy name, in the order of their predictions, without samples that were not chosen."""
    env_factory: EnvFactory


async def evaluate(settings: EvaluationRequest, directory: Path, watch: ShowProgress) -> EvaluationRun:
    """Run the episodes that are missing in a directory, judge and measure them, and write everything but the report.

    Raises:
        UsageError: if the settings are wrong; no episode was started.
        SeenScenarioError: if a policy was trained or selected on these scenarios.
        UnavailableError: if some questions have no episode, or some answers no verdict. Run it again to add them.
    """
    scenarios = select_scenarios(settings.rollout)
    seen = _check(settings, scenarios)
    settings = replace(settings, rollout=replace(settings.rollout, chat=find_chat_settings(settings)))
    env_factory = open_trained_env(settings)
    probed, questions = _list_probed(settings, seen), None
    if settings.canaries:
        questions = await prepare_questions(settings.canaries, settings.rollout, probed, env_factory, scenarios, watch)
    async with AsyncExitStack() as open_judges:
        judges = []
        for each in settings.judges:
            judge = open_judge(each)
            open_judges.push_async_callback(judge.aclose)
            judges.append((describe_judge(each), judge))
        selector = settings.choice.open_selector() if settings.choice else None
        if selector is not None:
            open_judges.push_async_callback(selector.aclose)
        attacks = None
        if settings.attacks is not None:
            options = (settings.rollout, directory, env_factory, scenarios, judges[0][1], watch)
            attacks = AttackRun(settings.attacks, *options)
            open_judges.push_async_callback(attacks.aclose)
        _record_settings(directory, settings, scenarios, env_factory, attacks)
        trajectories = await _run_rollouts(settings, directory, scenarios, env_factory, watch)
        sampled, samples, predictions = dict(trajectories), list[Prediction](), list[Prediction]()
        for name, found in trajectories.items():
            choices: dict[str, Choice] = {}
            if settings.choice and selector:
                with watch(f"Choosing for {name}") as advance:
                    path = directory / CHOICES / f"{name}.jsonl"
                    choices = await choose_samples(name, found, scenarios, settings.choice, selector, path, advance)
            with watch(f"Judging {name}") as advance:
                judged = await _judge(name, found, scenarios, judges, advance)
            samples += judged
            if choices:
                judged, trajectories[name] = keep_chosen(judged, found, choices)
            predictions += judged
        attacked = await attacks.run(_list_attacked(settings, samples, sampled)) if attacks else {}
        judge_results = tuple(
            JudgeResult(name=name, usage={} if (model := model_of(judge)) is None else model.usage.to_dict())
            for name, judge in judges
        )
    memorized = {}
    if settings.canaries and questions:
        memorized = await measure_memorization(
            settings.canaries, settings.rollout, probed, directory, env_factory, questions, watch
        )
    result = _build_result(settings, scenarios, env_factory, predictions, judge_results, seen)
    result = result.with_memorization(memorized).with_attacks(attacked)
    with explain_os_errors(directory):
        write_predictions(directory / PREDICTIONS, predictions)
        write_table(directory / TABLE, predictions)
        result.write(directory)
    write_held_out_proof(directory, _find_adapters(settings))
    return EvaluationRun(result, scenarios, predictions, trajectories, env_factory)


def _find_adapters(settings: EvaluationRequest) -> dict[str, Path]:
    """Return the directories of the adapters by policy name."""
    named = {each.name: PolicyName.parse(each.word).adapter for each in settings.policies}
    return {**{name: place for name, place in named.items() if place is not None}, **dict(settings.adapters)}


def _list_attacked(
    settings: EvaluationRequest, predictions: Sequence[Prediction], trajectories: Mapping[str, list[Trajectory]]
) -> list[AttackedPolicy]:
    """Return the policies to attack, with their first episode without attack of each question, and their accuracy.

    An attacked question has one sample, so its clean accuracy is that of a single sample too, even if the evaluation
    chooses one of several: `predictions` and `trajectories` have all of them.
    """
    found = []
    for each in settings.policies:
        own = group_by_question(prediction for prediction in predictions if prediction.policy == each.name)
        accuracy = {name: sum(one.correct for one in group) / len(group) for name, group in own.items()}
        clean = {trajectory.scenario: trajectory for trajectory in reversed(trajectories[each.name])}
        found.append(AttackedPolicy(each.name, each.word, clean, accuracy))
    return found


def _list_probed(settings: EvaluationRequest, seen: Mapping[str, frozenset[str]]) -> list[ProbedPolicy]:
    """Return the policies to measure what they memorized of the canaries; none without canaries."""
    if settings.canaries is None:
        return []
    learned = {name: settings.canaries.record.count_learned(questions) for name, questions in seen.items()}
    return [ProbedPolicy(each.name, each.word, learned.get(each.name)) for each in settings.policies]


def _check(settings: EvaluationRequest, scenarios: ScenarioSet) -> dict[str, frozenset[str]]:
    """Check the settings. Return the digests of the questions that policies were trained or selected on, by name.

    Policies whose questions are not recorded are left out. No policy has seen the scenarios, as far as is recorded,
    unless they are those of the split train, e.g. to sort them by difficulty.

    Raises:
        UsageError: if a setting is wrong.
        SeenScenarioError: if a policy was trained or selected on these scenarios.
    """
    names = [each.name for each in settings.policies]
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise UsageError(
            "evaluation.duplicate-policy-name",
            f"two policies have the name {twice!r}; name each one, e.g. first={settings.policies[0].word}",
        )
    if not 1 <= len(settings.judges) <= 2:
        raise UsageError("evaluation.wrong-judge-count", f"expected 1 or 2 judges, got {len(settings.judges)}")
    for what, named in (("price", set(settings.prices)), ("adapter", {name for name, _ in settings.adapters})):
        unknown = next((each for each in named if each not in names), None)
        if unknown is not None:
            raise UsageError(
                "evaluation.option-for-unknown-policy",
                f"--{what} names the unknown policy {unknown!r}; use one of {', '.join(names)}",
            )
    takes_tokenizer, seen = [], dict[str, frozenset[str]]()
    for each in settings.policies:
        policy = PolicyName.parse(each.word)
        check_policy(policy, None, settings.rollout.agent)
        if settings.canaries:
            check_probed(each.word, each.name)
        takes_tokenizer.append(policy.takes_tokenizer)
        if policy.kind == "vllm" and settings.rollout.tokenizer is None:
            raise UsageError(
                "inference.tokenizer-required",
                f"{each.name} ({each.word}) needs its model's tokenizer: add --tokenizer",
            )
        own = [place for name, place in settings.adapters if name == each.name]
        merged = [Path(policy.base).expanduser()] if policy.kind in ("local", "transformers") else []
        for place in [*own, *([policy.adapter] if policy.adapter else []), *merged]:
            lineage = Lineage.read(place)
            if lineage:
                if settings.rollout.split != "train":
                    lineage.check_unseen(scenarios, each.name)
                seen[each.name] = seen.get(each.name, frozenset()) | lineage.questions
            elif place in own:
                raise UsageError(
                    "evaluation.lineage-missing",
                    f"no record of what {each.name} was trained on in {place}; remove this --adapter",
                )
    if settings.rollout.tokenizer is not None and not any(takes_tokenizer):
        raise UsageError(
            "inference.tokenizer-not-accepted",
            f"no policy of {', '.join(names)} takes a --tokenizer; remove that option",
        )
    return seen


def _record_settings(
    directory: Path,
    settings: EvaluationRequest,
    scenarios: ScenarioSet,
    env_factory: EnvFactory,
    attacks: AttackRun | None,
) -> None:
    """Write the settings to the directory, or check that they are the same as before.

    Raises:
        UsageError: if they differ.
    """
    rollout = settings.rollout
    recorded: dict[str, Any] = {
        "scenarios": scenarios.content,
        "index": env_factory.content,
        "samples": rollout.samples,
    }
    recorded |= rollout.episode_settings | env_factory.provenance
    if settings.canaries:
        recorded |= {"canaries": settings.canaries.record.content, "canary samples": settings.canaries.samples}
    if attacks:
        recorded |= attacks.provenance
    for each in settings.policies:
        policy = PolicyName.parse(each.word)
        recorded |= {
            f"policy {each.name}": _ADDRESS.sub("", each.word),
            f"weights of {each.name}": policy.weights_digest,
        }
        if served := policy.describe_served():
            recorded[f"served model of {each.name}"] = served
        if policy.takes_tokenizer:
            recorded[f"tokenizer of {each.name}"] = rollout.tokenizer
    # A server may have another adapter by now under the same name; its directory tells which one is meant.
    recorded |= {f"adapter of {name}": digest_weights([place]) for name, place in settings.adapters}
    path = directory / SETTINGS_FILE
    mark_private(directory, scenarios.inboxes)
    with explain_os_errors(directory):
        (directory / TRAJECTORIES).mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomically(path, io.BytesIO(json.dumps(recorded, indent=2).encode() + b"\n"))
            return
        try:
            before = dict(load_json(path.read_bytes()))
        except (ValueError, TypeError):
            raise UsageError(
                "evaluation.state-damaged", f"{path} is not valid JSON; use another --out directory"
            ) from None
    other = find_changed_settings(before, recorded)
    for each in settings.policies:  # nothing tells whether the episodes so far are of that adapter
        if (name := f"adapter of {each.name}") in before.keys() ^ recorded.keys() and _has_episodes(directory, each):
            other.append(name)
    if other:
        trained = [name for name in other if name in _TRAINED]
        hint = (
            f". {' and '.join(trained)} are those of a policy's training unless an option sets them, and the same for "
            "all policies: evaluate them together in another directory"
            if trained
            else ""
        )
        raise UsageError(
            "evaluation.settings-changed",
            f"{directory} holds an evaluation with different settings: {', '.join(other)}; use another directory, or "
            f"the same settings{hint}",
        )
    with explain_os_errors(directory):
        write_atomically(path, io.BytesIO(json.dumps(before | recorded, indent=2).encode() + b"\n"))
        for name in (METRICS_FILE, PREDICTIONS, TABLE, REPORT, PROOF):  # remove the results of earlier runs
            (directory / name).unlink(missing_ok=True)


def _has_episodes(directory: Path, policy: NamedPolicy) -> bool:
    path = directory / TRAJECTORIES / f"{policy.name}.jsonl"
    return path.is_file() and path.stat().st_size > 0


async def _run_rollouts(
    settings: EvaluationRequest, directory: Path, scenarios: ScenarioSet, env_factory: EnvFactory, watch: ShowProgress
) -> dict[str, list[Trajectory]]:
    """Run the missing episodes, and return all episodes by policy.

    Raises:
        UnavailableError: if some questions have no answer.
    """
    found: dict[str, list[Trajectory]] = {}
    failures: list[str] = []
    order = {scenario.id: place for place, scenario in enumerate(scenarios)}
    for each in settings.policies:
        path = directory / TRAJECTORIES / f"{each.name}.jsonl"
        with watch(each.name) as advance:
            report = await run_to_file(settings.rollout.for_policy(each.word), path, advance, env_factory)
        if report.failure:
            count = sum(report.endings.get(ending, 0) for ending in AGENT_FAILURES)
            err.print(
                f"[bold yellow]warning:[/] {each.name}: the agent failed in {count:,} of {report.done:,} episodes: "
                f"{printable(report.failure)}",
                soft_wrap=True,
            )
        if report.dropped:
            scenario, cause = next(iter(report.dropped_groups.items()))
            failures.append(f"{each.name} did not answer {report.dropped:,} questions, e.g. {scenario}: {cause}")
            continue
        episodes = [episode for episode in read_trajectories(path) if episode.scenario in order]
        found[each.name] = sorted(episodes, key=lambda episode: (order[episode.scenario], episode.sample))
    if failures:
        raise UnavailableError(
            "evaluation.questions-unanswered", f"{'; '.join(failures)}; run the command again for the missing answers"
        )
    return found


class _FixedJudge:
    """Judge with a fixed verdict."""

    def __init__(self, correct: bool) -> None:
        self._verdict = Verdict(correct, "")

    async def verdict(self, asked: JudgedQuestion, answer: str) -> Verdict:  # noqa: ARG002
        """Return the fixed verdict."""
        return self._verdict

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""


async def _judge(
    policy: str,
    trajectories: Sequence[Trajectory],
    scenarios: ScenarioSet,
    judges: Sequence[tuple[str, Judge]],
    advance: Advance,
) -> list[Prediction]:
    by_id: dict[str, Scenario] = {scenario.id: scenario for scenario in scenarios}

    async def judged(each: Trajectory) -> tuple[Trajectory, list[tuple[str, JudgedTrajectory]], float]:
        scenario = by_id[each.scenario]
        verdicts = [(name, await judge_trajectory(each, scenario, judge)) for name, judge in judges]
        return each, verdicts, await rubric(each, scenario, judge=_FixedJudge(verdicts[0][1].correct is True))

    found = await map_concurrently(judged, trajectories, advance)
    missing = [(name, verdict.why) for _, verdicts, _ in found for name, verdict in verdicts if verdict.correct is None]
    if missing:
        judge, why = missing[0]
        raise UnavailableError(
            "evaluation.verdicts-missing",
            f"{judge} gave no verdict on {len(missing):,} answers of {policy}, e.g.: {why}; run the command "
            "again for them",
        )
    return [
        Prediction.from_trajectory(policy, by_id[each.scenario], each, verdicts, reward)
        for each, verdicts, reward in found
    ]


def _build_result(
    settings: EvaluationRequest,
    scenarios: ScenarioSet,
    env_factory: EnvFactory,
    predictions: Sequence[Prediction],
    judges: tuple[JudgeResult, ...],
    seen: Mapping[str, frozenset[str]],
) -> EvaluationResult:
    policies = []
    for each in settings.policies:
        own = [prediction for prediction in predictions if prediction.policy == each.name]
        questions = group_by_question(own)
        policy = PolicyName.parse(each.word)
        known = sum(scenario.digest in seen.get(each.name, ()) for scenario in scenarios)
        policies.append(
            PolicyResult(
                name=each.name,
                policy=redact(each.word),
                version=policy.version,
                environment=env_factory.provenance["environment"],
                is_unseen=each.name in seen and not known,
                seen=known,
                episodes=sum(each.chosen.cost.samples if each.chosen else 1 for each in own),
                run_again=sum(each.chosen.run_again if each.chosen else each.tries - 1 for each in own),
                metrics=compute_metrics(own, settings.prices.get(each.name)),
                kinds=accuracy_by_kind(own),
                agreement=_agreement(own, tuple(judge.name for judge in judges)),
                control_reward_map={
                    scenario: tuple(one.reward for one in group) for scenario, group in questions.items()
                },
                correct_map={scenario: tuple(one.correct for one in group) for scenario, group in questions.items()},
            )
        )
    rollout = settings.rollout
    return EvaluationResult(
        scenarios=scenarios.to_record(),
        index=env_factory.content,
        split=rollout.split,
        is_whole=rollout.limit is None or len(select_scenarios(replace(rollout, limit=None))) == len(scenarios),
        samples=rollout.samples,
        settings=rollout.episode_settings,
        judges=judges,
        policies=tuple(policies),
        comparisons=tuple(compare_policies(each, policies[0]) for each in policies[1:]),
        choice=ChoiceResult(way=settings.choice.choose, by=settings.choice.judge_name) if settings.choice else None,
        code=code_hash(),
    )


def _agreement(predictions: Sequence[Prediction], judges: tuple[str, ...]) -> Agreement | None:
    if len(judges) < 2:
        return None
    judged = [each for each in predictions if each.answer is not None and not each.does_not_know]
    one, other = ([each.verdicts[place].correct for each in judged] for place in (0, 1))
    differing = [each for each, mine, theirs in zip(judged, one, other, strict=True) if mine != theirs]
    return Agreement(
        judges=(judges[0], judges[1]),
        answers=len(judged),
        agreed=len(judged) - len(differing),
        kappa=cohens_kappa(one, other) if judged else None,
        disagreements=tuple(f"{each.scenario}/{each.sample}" for each in differing),
    )
